"""Tests the leader's chores: it hastens ageing requests, and starts those that wait for others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fairlane import Change, InvalidArgument, RequestNotFound
from fairlane.operations import workers
from fairlane.operations.doctor import Walk
from fairlane.operations.workers import do_chore
from fairlane.protocol import keys
from tests.support.run.for_each import for_each
from tests.support.scripts.requests import MINUTE, toks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fairlane.queue import Queue
    from tests.support.scripts.requests import Lane

DUE_FIRST = 1  # a score in `active` that is due


def look(lane: Lane, request_id: str) -> None:
    """Checks this request as the leader."""
    lane.client.zadd(keys.active("req"), {request_id: DUE_FIRST + 0.5})
    lane.driver.run(workers.look_after("req"))


# ------------------------------------------------------------------ after


def test_a_request_starts_when_the_other_one_is_done(lane: Lane, queue: Queue):
    (token,) = lane.start(1)
    queue.submit_request(["a"], id="r2", after=["r1"])
    look(lane, "r2")
    assert lane.client.llen(keys.lanes("req")[5]) == 0
    lane.complete(lane.take(token))
    look(lane, "r2")
    assert lane.client.llen(keys.lanes("req")[5]) == 1
    look(lane, "r2")
    assert lane.client.llen(keys.lanes("req")[5]) == 1


def test_a_request_is_cancelled_if_the_other_one_has_dead(lane: Lane, queue: Queue):
    held = lane.take(lane.start(1)[0])
    lane.complete(held, others=[(held.ids[0], "dead", 0)])
    queue.submit_request(["a"], id="r2", after=["r1"])
    look(lane, "r2")
    progress = queue.request("r2").progress()
    assert (progress.state, progress.reason) == ("cancelled", "after: request r1 has 1 of 1 dead")


def test_a_request_is_cancelled_if_the_other_one_was(lane: Lane, queue: Queue):
    queue.submit_request(["a"], id="r1").cancel()
    queue.submit_request(["a"], id="r2", after=["r1"])
    look(lane, "r2")
    assert queue.request("r2").progress().reason == "after: request r1 was cancelled"


def test_the_failure_of_another_one_that_was_deleted_still_counts(lane: Lane, queue: Queue):
    held = lane.take(lane.start(1)[0])
    queue.submit_request(["a"], id="r2", after=["r1"])
    lane.complete(held, others=[(held.ids[0], "dead", 0)])
    queue.submit_request(["a"], id="r3")
    queue.submit_request(["a"], id="r4", after=["r3"])
    queue.submit_request([], id="r5")
    queue.submit_request(["a"], id="r6", after=["r5"])
    selected = queue.select(Change.delete(cancel=True), ["r1", "r3", "r5"])
    assert queue.change(selected).changed == 3
    for name in ("r2", "r4", "r6"):
        look(lane, name)
    found = [queue.request(name).progress() for name in ("r2", "r4", "r6")]
    assert [(one.state, one.reason) for one in found] == [
        ("cancelled", "after: request r1 has 1 of 1 dead"),
        ("cancelled", "after: request r3 was cancelled"),
        ("active", None),
    ]


def test_any_end_is_enough_if_that_is_asked_for(lane: Lane, queue: Queue):
    queue.submit_request(["a"], id="r1").cancel()
    queue.submit_request(["a"], id="r2", after=["r1"], after_any_end=True)
    look(lane, "r2")
    assert queue.request("r2").progress().opens_ms is None


def test_all_of_several_must_have_ended(lane: Lane, queue: Queue):
    queue.submit_request([], id="r1")
    queue.submit_request(["a"], id="r3")
    queue.submit_request(["a"], id="r2", after=["r1", "r3"], after_any_end=True)
    look(lane, "r2")
    assert queue.request("r2").progress().opens_ms is not None
    queue.request("r3").cancel()
    look(lane, "r2")
    assert queue.request("r2").progress().opens_ms is None


def reason(queue: Queue, request_id: str) -> tuple[str, str]:
    progress = queue.request(request_id).progress()
    return progress.state, progress.reason or ""


def wait_for(queue: Queue, ids: list[str]) -> None:
    """Submits a request for each id that starts after it: first-done after first, and so on.

    Those whose names end with -end start after any end.
    """
    for name in ids:
        queue.submit_request(["a"], id=f"{name}-done", after=name)
        queue.submit_request(["a"], id=f"{name}-end", after=name, after_any_end=True)


def expire(lane: Lane, request_id: str) -> None:
    """Deletes what the end of a tombstone's time deletes."""
    lane.client.delete(*keys.request_keys(request_id))


def test_the_log_shows_how_a_request_ended_whose_tombstone_has_expired(lane: Lane, queue: Queue):
    held = lane.take(lane.start(1)[0])
    queue.submit_request([], id="empty")
    queue.submit_request(["a"], id="stopped")
    names = ["r1", "empty", "stopped"]
    wait_for(queue, names)
    lane.complete(held, others=[(held.ids[0], "dead", 0)])
    look(lane, "r1")  # its end goes to the log
    queue.request("stopped").cancel("no")
    for name in names:
        expire(lane, name)
        look(lane, f"{name}-done")
        look(lane, f"{name}-end")
    assert [reason(queue, f"{name}-done") for name in names] == [
        ("cancelled", "after: request r1 has 1 of 1 dead"),
        ("active", ""),
        ("cancelled", "after: request stopped was cancelled"),
    ]
    for started in ("empty-done", "empty-end", "r1-end", "stopped-end"):
        assert queue.request(started).progress().opens_ms is None


def test_what_nothing_shows_the_end_of_is_not_taken_for_done(lane: Lane, queue: Queue):
    queue.submit_request(["a"], id="gone")
    wait_for(queue, ["gone"])
    expire(lane, "gone")
    look(lane, "gone-done")
    look(lane, "gone-end")
    state, why = reason(queue, "gone-done")
    assert (state, why) == (
        "cancelled",
        "after: request gone is no longer kept, and the completion log does not show how it ended",
    )
    assert queue.request("gone-end").progress().opens_ms is None


def test_a_request_that_was_lost_is_not_done(lane: Lane, queue: Queue):
    queue.submit_request(["a"], id="gone")
    wait_for(queue, ["gone"])
    look(lane, "gone")
    expire(lane, "gone")
    look(lane, "gone")  # logged as lost
    expire(lane, "gone")
    look(lane, "gone-done")
    assert reason(queue, "gone-done") == ("cancelled", "after: request gone was lost")


def test_a_request_that_its_producer_withdrew_is_not_done(lane: Lane, queue: Queue):
    def rows() -> Iterator[bytes]:
        yield from [b"row"] * 2_500
        wait_for(queue, ["import"])
        raise OSError("the file broke off")

    with pytest.raises(OSError, match="broke off"):
        queue.submit_request(rows(), id="import")
    look(lane, "import-done")
    assert reason(queue, "import-done") == ("cancelled", "after: request import was withdrawn")
    look(lane, "import-end")
    assert queue.request("import-end").progress().opens_ms is None


def test_a_new_life_of_the_id_is_not_the_one_that_was_waited_for(lane: Lane, queue: Queue):
    queue.submit_request(["a"], id="r1", on_duplicate="replace")
    wait_for(queue, ["r1"])
    queue.submit_request([], id="r1", on_duplicate="replace")
    assert queue.request("r1").state() == "done"
    look(lane, "r1-done")
    assert reason(queue, "r1-done") == ("cancelled", "after: request r1 was cancelled")


def test_a_life_that_was_done_counts_while_a_new_one_runs(lane: Lane, queue: Queue):
    queue.submit_request([], id="r1", on_duplicate="replace")
    wait_for(queue, ["r1"])
    queue.submit_request(["b"], id="r1", on_duplicate="replace")
    look(lane, "r1-done")
    assert reason(queue, "r1-done") == ("active", "")
    assert queue.request("r1-done").progress().opens_ms is None


def test_an_ending_that_was_seen_is_needed_no_more(lane: Lane, queue: Queue):
    """The others may take longer than the tombstone and the log's place for it."""
    queue.submit_request([], id="r1")
    queue.submit_request([], id="r0")
    queue.submit_request(["a"], id="r3")
    queue.submit_request(["a"], id="r2", after=["r1", "r3"])
    look(lane, "r2")
    expire(lane, "r1")
    lane.client.delete(keys.completed("req"))
    look(lane, "r2")
    assert reason(queue, "r2") == ("active", "")
    queue.request("r3").cancel()
    look(lane, "r2")
    assert reason(queue, "r2") == ("cancelled", "after: request r3 was cancelled")


def test_the_first_failure_is_enough(lane: Lane, queue: Queue):
    queue.submit_request(["a"], id="r1").cancel()
    queue.submit_request(["a"], id="r3")
    queue.submit_request(["a"], id="r2", after=["r1", "r3"])
    look(lane, "r2")
    assert reason(queue, "r2") == ("cancelled", "after: request r1 was cancelled")


def test_a_replacement_cannot_start_after_what_is_gone(lane: Lane, queue: Queue):
    queue.submit_request(["a"], id="r1")
    queue.submit_request(["a"], id="r2", after="r1", on_duplicate="replace")
    expire(lane, "r1")
    with pytest.raises(RequestNotFound, match="there is no request r1"):
        queue.submit_request(["b"], id="r2", after="r1", on_duplicate="replace")
    assert queue.request("r2").state() == "active"


def test_a_repeat_is_found_though_the_others_are_gone(lane: Lane, queue: Queue):
    queue.submit_request(["a"], id="r1")
    for _ in range(2):
        queue.submit_request(["a"], id="r2", after="r1")
        expire(lane, "r1")
    assert queue.request("r2").state() == "active"


def test_requests_that_would_wait_for_each_other_are_refused(lane: Lane, queue: Queue):
    queue.submit_request(["a"], id="a", delay=600, on_duplicate="replace")
    queue.submit_request(["b"], id="b", after="a", on_duplicate="replace")
    queue.submit_request(["c"], id="c", after="b")
    message = r"a starts after c, and c starts after b, and b starts after a; cancel one of them"
    with pytest.raises(InvalidArgument, match=message):
        queue.submit_request(["a2"], id="a", after="c", on_duplicate="replace")
    assert [queue.request(name).state() for name in "abc"] == ["active"] * 3
    queue.request("b").cancel()
    queue.submit_request(["a2"], id="a", after="c", on_duplicate="replace")


def test_a_circle_is_named_by_why_and_doctor(lane: Lane, queue: Queue):
    """No call makes one; a restored backup might."""
    queue.submit_request(["a"], id="z")
    queue.submit_request(["a"], id="a", after="z")
    queue.submit_request(["b"], id="b", after="a")
    queue.submit_request(["c"], id="c", after="b")
    born = queue.request("b").progress().submitted_ms
    lane.client.hset(keys.request_hash("a"), "after", f"done:b|{born}|req")
    for name in ("a", "c"):
        (first, *_) = queue.why(name).causes
        assert first.text.startswith("waits in a circle: ")
        assert set(first.figures["circle"]) == {"a", "b"}
    walk = Walk("req")
    found = []
    while not walk.is_over:
        found += [one for one in lane.run(walk.page()) if one.check == "circle"]
    assert [one.subject for one in found] == ["a"]
    assert set(found[0].what.removeprefix("waits in a circle: ").split(", and ")) == {
        "a starts after b",
        "b starts after a",
    }


def test_a_late_leader_does_not_decide_about_the_next_life(lane: Lane, queue: Queue):
    queue.submit_request(["a"], id="r1")
    queue.submit_request(["a"], id="r3").cancel()
    queue.submit_request(["a"], id="r2", after="r3", on_duplicate="replace")
    (_, _, _, chore) = lane.call("glance", keys.request_keys("r2"), queue="", grace="")
    queue.submit_request(["b"], id="r2", after="r1", on_duplicate="replace")
    lane.driver.run(do_chore("req", "r2", chore.decode()))
    assert reason(queue, "r2") == ("active", "")
    assert queue.request("r2").progress().opens_ms is not None


def test_a_request_that_does_not_exist_is_refused(queue: Queue, redis_client: Any):
    with pytest.raises(RequestNotFound, match="there is no request r9"):
        queue.submit_request(["a"], id="r2", after=["r9"])
    assert redis_client.dbsize() == 0


def test_a_request_cannot_wait_for_itself(queue: Queue):
    with pytest.raises(InvalidArgument, match="request r2 cannot start after itself"):
        queue.submit_request(["a"], id="r2", after=["r2"])


@for_each(
    "given, sentence",
    [
        ({"after": b"r1"}, "give a name, or a list of names"),
        ({"after": ["a b"]}, "request id 'a b' is not valid"),
        ({"after": [f"r{i}" for i in range(101)]}, "name at most 100"),
        ({"after_any_end": True}, "after_any_end needs after"),
        ({"after": ["r1"], "delay": 5}, "after and delay are given together"),
    ],
)
def test_what_cannot_be_waited_for_is_refused(queue: Queue, given: Any, sentence: str):
    with pytest.raises(InvalidArgument, match=sentence):
        queue.submit_request(["a"], **given)


# ------------------------------------------------------------------ ageing


def test_a_request_that_waits_for_long_has_one_token_in_the_first_lane(lane: Lane):
    first, _ = lane.start(20, limit=2, priority=90, extras="ageing=60000")
    assert lane.request("hasten") == [b"early"]
    lane.now += MINUTE
    word, tokens = lane.request("hasten")
    (token,) = toks(tokens)
    assert (word, token.lane, token.k) == (b"ok", 0, first.k)
    assert lane.acquire(first).word == "stale"
    held = lane.take(token)
    assert {one.lane for one in toks(lane.complete(held)[2])} == {90}


def test_a_request_is_hastened_once_in_its_time(lane: Lane):
    lane.start(20, limit=2, extras="ageing=60000")
    lane.now += MINUTE
    assert lane.request("hasten")[0] == b"ok"
    lane.now += MINUTE - 1
    assert lane.request("hasten") == [b"early"]
    lane.now += 1
    assert lane.request("hasten")[0] == b"ok"


def test_a_request_of_which_something_starts_does_not_age(lane: Lane):
    (token,) = lane.start(20, limit=1, extras="ageing=60000")
    lane.now += MINUTE - 1
    lane.take(token)
    lane.now += MINUTE - 1
    assert lane.request("hasten") == [b"early"]


def test_a_delay_does_not_count_as_waiting(lane: Lane):
    lane.start(20, limit=1, extras="ageing=60000\ndelay=30000")
    lane.now += MINUTE
    assert lane.request("hasten") == [b"early"]


def test_a_request_without_ageing_is_never_hastened(lane: Lane):
    lane.start(20)
    lane.now += 1000 * MINUTE
    assert lane.request("hasten") == [b"early"]


def hasten(lane: Lane) -> Any:
    return lane.request("hasten")


@pytest.mark.parametrize("call", ["hasten", "open_gate"])
def test_what_has_ended_stays_as_it_is(lane: Lane, call: str):
    lane.complete(lane.take(lane.start(1, extras="ageing=60000")[0]))
    before = lane.dump()
    assert globals()[call](lane)[0] == b"ended"
    assert lane.dump() == before


@pytest.mark.parametrize("call", ["hasten", "open_gate"])
def test_what_does_not_exist_is_gone(lane: Lane, call: str):
    assert globals()[call](lane) == [b"gone"]


def open_gate(lane: Lane, found: str = "end:r0", left: str = "", reason: str = "") -> Any:
    return lane.request("open_gate", found=found, left=left, reason=reason)


def test_a_gate_is_opened_once(lane: Lane):
    assert lane.start(3, limit=1, extras="after=end:r0") == []
    assert len(toks(open_gate(lane)[1])) == 1
    assert open_gate(lane) == [b"other"]


def test_a_gate_that_opens_by_time_is_left(lane: Lane):
    lane.start(3, extras="delay=5000")
    assert open_gate(lane) == [b"other"]
    assert lane.number("opens") == lane.now + 5_000


def test_a_gate_stays_closed_while_the_request_waits_for_the_rest(lane: Lane):
    lane.start(1, extras="after=end:r0,r1")
    assert open_gate(lane, "end:r0", "") == [b"other"], "this is not what it waits for"
    assert open_gate(lane, "end:r0,r1", "end:r0|over,r1") == [b"ok", []]
    assert lane.request("glance", queue="", grace="")[3] == b"end:r0|over,r1"
    assert open_gate(lane, "end:r0,r1", "end:r0|over,r1") == [b"other"], "a repeat changes nothing"
    assert len(toks(open_gate(lane, "end:r0|over,r1")[1])) == 1


def test_a_request_whose_gate_must_not_open_is_cancelled(lane: Lane):
    lane.start(1, extras="after=done:r0")
    word, summary = open_gate(lane, "done:r0", reason="after: request r0 was lost")
    assert (word, summary[0], summary[8]) == (b"ended", b"cancelled", b"after: request r0 was lost")
    assert open_gate(lane, "done:r0", reason="again")[0] == b"ended"


def test_a_paused_request_that_waits_for_others_stays_paused(lane: Lane):
    lane.start(1, extras="after=done:r0")
    lane.request("pause")
    assert open_gate(lane, "done:r0") == [b"ok", []]
    assert lane.hash()["state"] == "paused"


def test_the_leader_hastens_what_it_looks_at(lane: Lane, queue: Queue):
    queue.submit_request(["a"] * 9, id="r1", priority=90, ageing=1)
    lane.client.hset(keys.request_hash("r1"), "aged", "0")
    policy = lane.client.hget(keys.request_hash("r1"), "policy").decode().split(":")
    policy[10] = str(int(policy[10]) - 5_000)  # it began five seconds ago
    lane.client.hset(keys.request_hash("r1"), "policy", ":".join(policy))
    look(lane, "r1")
    assert lane.client.llen(keys.lanes("req")[0]) == 1
    look(lane, "r1")
    assert lane.client.llen(keys.lanes("req")[0]) == 1
