"""Tests children that a parent's results choose: each once, and one joined body for each result."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from fairlane import settings
from fairlane.operations import change, dead_letters
from fairlane.operations import flow_hand_over as hand_overs
from fairlane.operations.flow_branches import Fan, Next
from fairlane.operations.flow_hand_over import Wrap, hand_over
from fairlane.operations.flows import Child, Flow, flow_progress
from fairlane.protocol import keys
from tests.operations.flows.parts import (
    FIRST,
    FOURTH,
    SECOND,
    THIRD,
    Dead,
    bodies_of,
    counts,
    feed_all,
    kept,
    lose_what_was_not_sent,
    put_cursor_ahead,
    rest_of,
    set_back,
    start_digits,
    work_by,
    work_off_by,
)
from tests.support.operations.stepping import cut_off
from tests.support.processes.workers import broken

if TYPE_CHECKING:
    from fairlane.queue import Queue

REWARDS = (
    Flow("reward").step("check", attempts=1).children("a", "b", chosen=5, attempts=1).step("end")
)
ONE_CHILD = Flow("reward").step("check").children("a", chosen=3).step("end")


def as_many(step: str, body: bytes) -> Any:
    """Result n has n children, of both steps in turn."""
    if step != "check":
        return step.encode() + body
    return Fan(Next("ab"[place % 2], b"%b.%d" % (body, place)) for place in range(int(body)))


def joined(plain: Any, name: str = FOURTH) -> list[Any]:
    """Returns the bodies of the step that joins, each as JSON has it."""
    return sorted((json.loads(one) for one in bodies_of(plain, name)), key=len)


def reach_join(plain: Any, count: int = 4, handler: Any = as_many, flow: Flow = REWARDS) -> None:
    """Works all off but the step that joins, and hands over to it."""
    start_digits(plain, flow, count)
    work_by(plain, handler)
    for name in (SECOND, THIRD):
        plain.run(hand_over(name))
    work_by(plain, handler)
    plain.run(hand_over(FOURTH))


def test_each_result_has_the_children_that_it_chose_and_one_body(plain: Any):
    reach_join(plain)
    assert joined(plain) == [[], ["a1.0"], ["a2.0", "b2.1"], ["a3.0", "b3.1", "a3.2"]]
    assert work_off_by(plain, as_many) == "done"
    assert counts(plain) == [
        *(("check", "done", 4, 4, 0), ("a", "done", 4, 4, 0), ("b", "done", 2, 2, 0)),
        ("end", "done", 4, 4, 0),
    ]


def test_a_body_is_joined_as_soon_as_its_own_children_are_done(plain: Any):
    start_digits(plain, REWARDS, 4)
    work_by(plain, as_many, 3)
    plain.run(hand_over(SECOND))
    plain.run(hand_over(FOURTH))
    assert joined(plain) == [[]]
    plain.run(change.pause(FOURTH))  # else its body would be worked off, too
    work_by(plain, as_many)
    plain.run(hand_over(FOURTH))
    assert joined(plain) == [[], ["a1.0"]]


def test_bodies_alone_go_to_the_only_child(plain: Any):
    def handler(step: str, body: bytes) -> Any:
        return Fan(["x", b"y", None]) if step == "check" else step.encode() + body

    start_digits(plain, ONE_CHILD, 1)
    work_by(plain, handler)
    plain.run(hand_over(SECOND))
    assert bodies_of(plain, SECOND) == [b"x", b"y", b""]
    work_by(plain, handler)
    plain.run(hand_over(THIRD))
    assert joined(plain, THIRD) == [["ax", "ay", "a"]]


def test_a_result_that_is_no_fan_has_no_children(plain: Any):
    start_digits(plain, ONE_CHILD, 2)
    work_by(plain, lambda _, body: body if body == b"0" else None)
    feed_all(plain)
    assert bodies_of(plain, THIRD) == [b"[]", b"[]"]
    assert work_off_by(plain, lambda _, body: body) == "done"
    assert [one[2] for one in counts(plain)] == [2, 0, 2]


def test_a_dead_child_and_none_are_null(plain: Any):
    def handler(step: str, body: bytes) -> Any:
        if body == b"3.1":
            raise Dead
        return None if body == b"3.2" else as_many(step, body)

    reach_join(plain, 4, handler)
    assert joined(plain)[-1] == ["a3.0", None, None]
    assert work_off_by(plain, handler) == "done"
    assert counts(plain)[2] == ("b", "done", 2, 1, 1)


def test_a_dead_parent_has_no_body(plain: Any):
    def handler(step: str, body: bytes) -> Any:
        if step == "check" and body == b"1":
            raise Dead
        return as_many(step, body)

    start_digits(plain, REWARDS, 3)
    assert work_off_by(plain, handler) == "done"
    assert counts(plain)[3][2] == 2


def test_a_wrap_is_written_around_the_results(plain: Any):
    wrap = Wrap(b"<", b">", b"-", b"|")
    flow = Flow("f").step("check").children(Child("a", wrap=Wrap(b"(", b")", b"")), chosen=3)
    flow = flow.step("end", wrap=wrap)

    def handler(step: str, body: bytes) -> Any:
        if step == "check":
            return Fan([b"x"] * int(body))
        return body if step == "end" else None if body == b"(x)" and step == "b" else body

    start_digits(plain, flow, 3)
    work_by(plain, handler)
    plain.run(hand_over(SECOND))
    work_by(plain, handler)
    plain.run(hand_over(THIRD))
    assert sorted(bodies_of(plain, THIRD)) == [b"<(x)>", b"<(x)|(x)>", b"<>"]


def test_an_empty_flow_with_chosen_children_ends(plain: Any):
    start_digits(plain, REWARDS, 0)
    assert work_off_by(plain, as_many) == "done"


def test_a_dead_child_cancels_a_flow_that_stops(plain: Any, queue: Queue):
    flow = Flow("f").step("check").children("a", chosen=2, on_dead="stop", attempts=1).step("end")

    def handler(step: str, body: bytes) -> Any:
        if step == "check":
            return Fan([b"x"])
        raise Dead

    start_digits(plain, flow, 1)
    assert work_off_by(plain, handler) == "cancelled"
    assert queue.request(THIRD).progress().reason == "flow: request r.2 has dead sub-requests"
    left = (keys.of_flow(SECOND), keys.fed(SECOND), keys.of_flow(THIRD))
    assert not any(plain.client.exists(one) for one in left)


def test_a_dead_child_is_compensated_and_null_in_the_join(plain: Any):
    flow = Flow("f").step("check").children("a", chosen=2, on_dead="undo", attempts=1)
    flow = flow.step("end").compensate("undo")

    def handler(step: str, body: bytes) -> Any:
        if step == "a":
            raise Dead
        return Fan([b"x", b"y"]) if step == "check" else body

    start_digits(plain, flow, 1)
    assert work_off_by(plain, handler) == "done"
    assert [one[2] for one in counts(plain)] == [1, 2, 1, 2]


def test_a_dead_child_that_ran_again_is_not_joined_a_second_time(plain: Any):
    def handler(step: str, body: bytes) -> Any:
        if body == b"3.1":
            raise Dead
        return as_many(step, body)

    start_digits(plain, REWARDS, 4)
    work_by(plain, handler)
    plain.run(hand_over(SECOND))
    work_by(plain, handler)
    plain.client.hset(keys.request_hash(FIRST), "state", "active")  # so that no child is sealed
    plain.run(hand_over(THIRD))
    work_by(plain, handler)
    plain.run(hand_over(FOURTH))
    assert len(joined(plain)) == 4
    plain.run(dead_letters.requeue_dead(THIRD))
    work_by(plain, as_many)
    plain.client.hset(keys.request_hash(FIRST), "state", "done")
    assert work_off_by(plain, as_many) == "done"
    assert counts(plain)[3][2] == 4


def test_what_is_handed_over_twice_is_there_once(plain: Any):
    reach_join(plain)
    for name in (SECOND, THIRD, FOURTH):
        assert plain.run(hand_over(name)).is_over
    assert [one[2] for one in counts(plain)] == [4, 4, 2, 4]
    left = (keys.of_flow(FOURTH), keys.fed(FOURTH), keys.fed(SECOND))
    assert not any(plain.client.exists(one) for one in left)
    assert 0 < plain.client.pttl(keys.of_flow(SECOND)) <= 3_600_000


@pytest.mark.parametrize("steps", [2, 3, 4])
def test_two_leaders_hand_over_and_join_once(plain: Any, steps: int):
    """A second leader has read, the first one does everything, then the second one continues."""
    start_digits(plain, REWARDS, 4)
    work_by(plain, as_many)
    for name in (SECOND, THIRD, FOURTH):
        late = hand_over(name)
        step = late.send(None)
        for _ in range(steps):
            step = late.send(plain.do(step))
        plain.run(hand_over(name))
        plain.run(rest_of(late, step))
        work_by(plain, as_many)
    assert work_off_by(plain, as_many) == "done"
    assert [one[2] for one in counts(plain)] == [4, 4, 2, 4]


@pytest.mark.slow
@pytest.mark.parametrize("name", [SECOND, FOURTH])
def test_a_hand_over_cut_off_at_any_step_is_finished_by_the_next_one(
    plain: Any, queue: Queue, name: str
):
    for steps in range(1, 60):
        plain.client.flushall()
        start_digits(plain, REWARDS, 4)
        work_by(plain, as_many)
        if name == FOURTH:
            for one in (SECOND, THIRD):
                plain.run(hand_over(one))
            work_by(plain, as_many)
        is_over = cut_off(queue.driver, hand_over(name), steps)
        assert broken(queue, name) == []
        lose_what_was_not_sent(plain)
        assert work_off_by(plain, as_many) == "done"
        assert [one[2] for one in counts(plain)] == [4, 4, 2, 4]
        if is_over:
            return
    raise AssertionError("it does not end")


@pytest.mark.parametrize("is_behind", [False, True])
def test_a_parent_that_a_failover_set_back_has_each_body_once(plain: Any, is_behind: bool):
    start_digits(plain, REWARDS, 5)
    work_by(plain, as_many, 2)
    before = kept(plain, FIRST)
    work_by(plain, as_many, 2)
    for name in (SECOND, THIRD):
        plain.run(hand_over(name))
    set_back(plain, FIRST, before)
    if is_behind:
        for name in (SECOND, THIRD):
            put_cursor_ahead(plain, name)
        put_cursor_ahead(plain, FOURTH, 3)
    assert work_off_by(plain, as_many) == "done"
    assert [one[2] for one in counts(plain)] == [5, 6, 4, 5]


@pytest.mark.parametrize("is_behind", [False, True])
def test_children_that_a_failover_set_back_are_joined_once(plain: Any, is_behind: bool):
    """Their origins are in the same slot, so a number that is given again has its own origin."""
    start_digits(plain, REWARDS, 5)
    work_by(plain, as_many)
    before = [kept(plain, one) | others(plain, one) for one in (SECOND, THIRD)]
    for name in (SECOND, THIRD):
        plain.run(hand_over(name))
    work_by(plain, as_many, 7)
    plain.run(hand_over(FOURTH))
    for one, rows in zip((SECOND, THIRD), before, strict=True):
        plain.client.delete(keys.of_flow(one), keys.fed(one))
        set_back(plain, one, rows)
    if is_behind:
        put_cursor_ahead(plain, FOURTH, 3)
    lose_what_was_not_sent(plain)
    found: list[Any] = []

    def handler(step: str, body: bytes) -> Any:
        if step == "end":
            found.append(json.loads(body))
        return as_many(step, body)

    assert work_off_by(plain, handler) == "done"
    assert [one[2] for one in counts(plain)] == [5, 6, 4, 5]


def others(plain: Any, name: str) -> dict[bytes, bytes]:
    """Returns what a step has beside its request, as a replica has it."""
    names = (keys.of_flow(name), keys.fed(name))
    return {key: text for key in names if (text := plain.client.dump(key)) is not None}


@pytest.mark.parametrize("counts_of", [(3, 1), (1, 3)])
def test_a_parent_that_chose_another_number_when_it_ran_again_has_one_body(
    plain: Any, counts_of: tuple[int, int]
):
    first, second = counts_of

    def fan(count: int) -> Any:
        def handler(step: str, body: bytes) -> Any:
            if step != "check":
                return body
            return Fan(b"%b.%d" % (body, place) for place in range(count))

        return handler

    start_digits(plain, ONE_CHILD, 2)
    before = kept(plain, FIRST)
    work_by(plain, fan(first), 1)
    plain.run(hand_over(SECOND))
    plain.run(hand_over(THIRD))
    set_back(plain, FIRST, before)
    assert work_off_by(plain, fan(second)) == "done"
    assert counts(plain)[2][2] == 2


def test_children_are_not_fed_far_ahead_of_their_join(plain: Any, monkeypatch: pytest.MonkeyPatch):
    """So what waits for other children is bounded, however slow one of them is."""
    monkeypatch.setattr(settings, "JOIN_WINDOW", 30)  # of 3 children: 10 results of the parent
    monkeypatch.setattr(hand_overs, "PAGE", 2)
    flow = Flow("f").step("check").children("a", "b", chosen=3).step("end")

    def handler(step: str, body: bytes) -> Any:
        return Fan([Next("a", body), Next("b", body)]) if step == "check" else body

    start_digits(plain, flow, 40)
    while counts(plain)[0][3] < 40:
        work_by(plain, handler)
    feed_all(plain)
    assert [one[2] for one in counts(plain)[1:3]] == [10, 10]
    work_by(plain, handler, 10)
    feed_all(plain)
    assert plain.client.hlen(keys.of_flow(FOURTH)) <= 60
    assert work_off_by(plain, handler) == "done"
    assert [one[2] for one in counts(plain)] == [40, 40, 40, 40]


def test_long_entries_are_handed_over_in_several_calls(plain: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(settings, "CHUNK_ENTRIES", 6)
    monkeypatch.setattr(hand_overs, "PAGE", 2)
    start_digits(plain, REWARDS, 5)
    assert work_off_by(plain, as_many) == "done"
    assert [one[2] for one in counts(plain)] == [5, 6, 4, 5]


def test_results_that_are_missing_cancel_the_flow(plain: Any, queue: Queue):
    start_digits(plain, REWARDS, 4)
    work_by(plain, as_many)
    for name in (SECOND, THIRD):
        plain.run(hand_over(name))
    work_by(plain, as_many)
    plain.client.delete(keys.results(THIRD))
    plain.run(hand_over(FOURTH))
    reason = "flow: results of requests r.2, r.3 are missing: 2 of 4 could be handed over"
    assert queue.request(FOURTH).progress().reason == reason


def test_origins_that_are_lost_cancel_the_flow(plain: Any, queue: Queue):
    start_digits(plain, REWARDS, 4)
    work_by(plain, as_many)
    for name in (SECOND, THIRD):
        plain.run(hand_over(name))
    work_by(plain, as_many)
    plain.client.delete(keys.of_flow(THIRD))
    plain.run(hand_over(FOURTH))
    reason = "flow: the origin of result 0 of request r.3 is lost"
    assert queue.request(FOURTH).progress().reason == reason


def test_more_children_than_declared_stop_the_flow_at_the_hand_over(
    plain: Any, queue: Queue, monkeypatch: pytest.MonkeyPatch
):
    start_digits(plain, ONE_CHILD, 1)
    monkeypatch.setattr("fairlane.operations.flow_branches.Choices.check", lambda *_: None)
    work_by(plain, lambda *_: Fan([b"x"] * 4))
    plain.run(hand_over(SECOND))
    reason = "flow: result 0 of request r.1 has 4 children, and the most are 3"
    assert queue.request(SECOND).progress().reason == reason


def test_progress_says_what_each_step_gets(plain: Any):
    start_digits(plain, REWARDS, 1)
    found = [(one.step, one.gets, one.sources) for one in plain.run(flow_progress("r")).steps]
    assert found == [
        *(("check", "input", ()), ("a", "chosen", ("check",)), ("b", "chosen", ("check",))),
        ("end", "join", ("a", "b")),
    ]


def test_a_reader_of_the_results_gets_the_bodies_of_the_children(plain: Any, queue: Queue):
    start_digits(plain, ONE_CHILD, 2)
    work_by(plain, lambda _, body: Fan([b"x", None, b"\xff"]) if body == b"0" else Fan([]))
    found = [json.loads(one.body or b"") for one in queue.request(FIRST).results()]
    assert found == [["x", None, {"base64": "/w=="}], []]


def test_an_ended_parent_is_kept_while_its_children_work(plain: Any):
    """Else the join would find it gone, and cancel a flow of which nothing is missing."""
    flow = Flow("f").step("check", retain="1h").children("a", "b", chosen=5).step("end")
    start_digits(plain, flow, 4)
    work_by(plain, as_many)
    for name in (SECOND, THIRD, FOURTH):
        plain.run(hand_over(name))
    for key in (keys.request_hash(FIRST), keys.results(FIRST)):
        plain.client.pexpire(key, 60_000)
    plain.run(hand_over(FOURTH))
    for key in (keys.request_hash(FIRST), keys.results(FIRST)):
        assert 3_590_000 < plain.client.pttl(key) <= 3_600_000


def test_the_origins_of_a_sealed_child_are_kept_while_it_works(plain: Any):
    start_digits(plain, ONE_CHILD, 3)
    work_by(plain, lambda _, body: Fan([body]))
    plain.run(hand_over(SECOND))
    plain.client.pexpire(keys.of_flow(SECOND), 60_000)
    plain.run(hand_over(THIRD))
    assert plain.client.pttl(keys.of_flow(SECOND)) > settings.FED_OPEN_MS - 60_000


def fans(step: str, body: bytes) -> Any:
    return Fan([Next("a", body), Next("b", body)]) if step == "check" else body


def test_the_window_holds_within_a_page(plain: Any, monkeypatch: pytest.MonkeyPatch):
    """One page may have 64 entries of 1,000 results; the window is looked at with each call."""
    monkeypatch.setattr(settings, "JOIN_WINDOW", 50)  # of 5 children: 10 results of the parent
    monkeypatch.setattr(settings, "CHUNK_ENTRIES", 4)
    start_digits(plain, REWARDS, 40)
    while counts(plain)[0][3] < 40:
        work_by(plain, fans)
    for _ in range(3):
        feed_all(plain)
        assert [one[2] <= 12 for one in counts(plain)[1:3]] == [True, True]
    monkeypatch.undo()
    assert work_off_by(plain, fans) == "done"
    assert [one[2] for one in counts(plain)] == [40, 40, 40, 40]


def test_the_window_holds_after_a_failover(plain: Any, monkeypatch: pytest.MonkeyPatch):
    """All is read once more up to the old place only, while the parent goes on."""
    monkeypatch.setattr(settings, "JOIN_WINDOW", 50)
    monkeypatch.setattr(hand_overs, "PAGE", 4)
    monkeypatch.setattr(settings, "CHUNK_ENTRIES", 4)
    start_digits(plain, REWARDS, 60)
    work_by(plain, fans, 40)
    plain.run(hand_over(SECOND))
    before = counts(plain)[1][2]
    assert 10 <= before <= 12
    last = plain.client.hget(keys.request_hash(SECOND), "handed")
    plain.client.xdel(keys.results(FIRST), last)  # its sub-request runs again
    monkeypatch.setattr(settings, "JOIN_WINDOW", 70)
    for _ in range(3):
        plain.run(hand_over(SECOND))
    assert before < counts(plain)[1][2] <= 14 + 4


def test_what_waits_of_the_parent_in_the_join_is_bounded(
    plain: Any, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(settings, "JOIN_WINDOW", 10)
    monkeypatch.setattr(hand_overs, "PAGE", 2)
    start_digits(plain, REWARDS, 40)
    while counts(plain)[0][3] < 40:
        work_by(plain, fans)
    for _ in range(10):
        plain.run(hand_over(FOURTH))
    assert plain.client.hlen(keys.of_flow(FOURTH)) <= 24
    for _ in range(50):
        work_by(plain, fans)
        feed_all(plain)
    assert [one[1:3] for one in counts(plain)] == [("done", 40)] * 4


def test_a_child_with_more_results_than_bits_cancels_the_flow(
    plain: Any, queue: Queue, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(hand_overs, "MOST_BITS", 11)
    start_digits(plain, ONE_CHILD, 4)
    work_by(plain, lambda _, body: Fan([body]))
    plain.run(hand_over(SECOND))
    reason = (
        "flow: request r.1 has more results than this step can note, which are 2: "
        "submit several flows"
    )
    assert queue.request(SECOND).progress().reason == reason
