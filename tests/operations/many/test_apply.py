"""Tests a change of many requests: counted, made in batches, and whole after a repeat."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fairlane import Change
from fairlane.errors import (
    FairlaneError,
    RequestEnded,
    RequestLost,
    RequestNotEnded,
    RequestNotFound,
)
from fairlane.operations import change as selection
from fairlane.operations.change import apply, select, set_one
from fairlane.operations.find import RequestFilter
from fairlane.operations.tokens import seen_to_exist
from fairlane.protocol import keys, scripts
from fairlane.records import ChangeReport
from tests.support.both_faces import both_faces
from tests.support.operations.lost_replies import Forgetful, heal, put, take
from tests.support.operations.lost_replies import settle as settle_as
from tests.support.operations.stepping import cut_off
from tests.support.processes.workers import broken
from tests.support.run.for_each import for_each
from tests.support.scripts.requests import next_slice, once, settle, work_off
from tests.support.wait import PATIENCE_S

if TYPE_CHECKING:
    import redis

    from fairlane.queue import Queue

HOUR = 3600


def submit(queue: Queue, count: int = 3, bodies: int = 2) -> list[str]:
    ids = [f"r{number}" for number in range(count)]
    queue.submit_many([[b"x"] * bodies] * count, ids=ids)
    return ids


def change(queue: Queue, wanted: Change, **given: Any) -> ChangeReport:
    return queue.change(queue.select(wanted, **(given or {"everything": True})))


def states(queue: Queue, ids: list[str]) -> set[str]:
    return {queue.request(name).state() for name in ids}


@pytest.mark.parametrize(
    ("refused", "sentence"),
    [
        ({"share": 2}, "names no tenant"),
        ({"weight": 2}, "has no rate"),
        ({"deadline": HOUR}, "is being cancelled or past its deadline: it cannot be changed"),
    ],
)
def test_of_several_values_all_are_set_or_none(
    refused: dict[str, Any], sentence: str, queue: Queue
):
    request = queue.submit_request([b"x"] * 2, id="r1", limit=3, priority=5)
    if "deadline" in refused:
        assert next_slice(queue.driver, count=1) is not None
        request.cancel("enough")
    wanted = Change.set(limit=7, priority=1, **refused)
    with pytest.raises(FairlaneError, match=sentence):
        queue.driver.run(set_one("r1", wanted))
    report = change(queue, wanted, ids=["r1"])
    assert (report.changed, report.ended + len(report.failed)) == (0, 1)
    found = request.progress()
    assert (found.limit, found.priority, found.deadline_ms) == (3, 5, None)


def test_an_ended_or_unknown_request_is_not_set(queue: Queue):
    queue.submit_request([b"x"], id="r1").cancel("enough")
    with pytest.raises(RequestEnded, match=r"request r1 has ended \(cancelled\): it cannot be"):
        queue.driver.run(set_one("r1", Change.set(limit=7)))
    with pytest.raises(RequestNotFound, match="there is no request r2"):
        queue.driver.run(set_one("r2", Change.set(limit=7)))


@both_faces
def test_many_are_paused_resumed_set_and_cancelled(queue: Queue, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(selection, "TOGETHER", 4)
    ids = submit(queue, 10)
    assert change(queue, Change.pause()).changed == 10
    assert states(queue, ids) == {"paused"}
    assert work_off(queue.driver) == []
    assert change(queue, Change.resume()).changed == 10
    assert change(queue, Change.set(limit=7, priority=1, deadline=HOUR)).changed == 10
    found = [queue.request(name).progress() for name in ids]
    assert {(one.limit, one.priority) for one in found} == {(7, 1)}
    assert all((one.deadline_ms or 0) > one.submitted_ms for one in found)
    report = change(queue, Change.cancel("enough"))
    assert report == ChangeReport(changed=10)
    assert {queue.request(name).progress().reason for name in ids} == {"enough"}
    assert len([*queue.completions("0", follow=False)]) == 10


def test_resumed_requests_run_to_their_end(queue: Queue):
    submit(queue)
    change(queue, Change.pause())
    change(queue, Change.resume())
    assert len(work_off(queue.driver)) == 6


def test_what_ended_meanwhile_is_counted_apart(queue: Queue):
    for wanted in (Change.pause(), Change.cancel(), Change.set(limit=1, deadline=5)):
        queue.submit_request([b"x"], id="over")
        selected = queue.select(wanted, ["over"])
        work_off(queue.driver)
        assert queue.change(selected) == ChangeReport(ended=1)
        change(queue, Change.delete())


@for_each(
    "wanted", [Change.pause(), Change.cancel(), Change.set(limit=1), Change.delete(cancel=True)]
)
def test_another_life_of_an_id_is_left_alone(queue: Queue, wanted: Change):
    given: Any = {"id": "again", "on_duplicate": "replace"}
    queue.submit_request([b"x"], **given)
    selected = queue.select(wanted, everything=True)
    queue.submit_request([b"y", b"z"], **given)
    assert queue.change(selected) == ChangeReport(ended=1)
    found = queue.request("again").progress()
    assert (found.state, found.total, found.limit) == ("active", 2, 3)


def test_a_repeat_of_the_same_selection_changes_nothing_more(queue: Queue):
    submit(queue)
    selected = queue.select(Change.cancel("first"), everything=True)
    assert queue.change(selected).changed == 3
    queue.change(selected)
    assert queue.request("r0").progress().reason == "first"
    assert len([*queue.completions("0", follow=False)]) == 3


def test_a_report_shows_how_far_an_interrupted_change_came(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(selection, "TOGETHER", 2)
    submit(queue, 6)
    report = ChangeReport()
    changing = apply(queue.select(Change.cancel(), everything=True), report)
    cut_off(queue.driver, changing, 3)
    assert report.changed in {0, 2}
    rest = queue.select(Change.cancel(), everything=True)
    assert queue.change(rest).changed == len(rest) <= 6


@for_each(
    "wanted",
    [
        Change.cancel(),
        Change.pause(),
        Change.set(limit=1, priority=0, deadline=HOUR),
        Change.delete(cancel=True),
    ],
)
def test_stopped_at_any_step_and_repeated_it_is_whole(
    queue: Queue, redis_client: redis.Redis, wanted: Change
):
    steps = 0
    while True:
        steps += 1
        redis_client.flushall()
        submit(queue, 3)
        is_over = cut_off(queue.driver, _all(queue, wanted), steps)
        change(queue, wanted)
        heal(Forgetful(queue.driver, redis_client))
        assert {name: broken(queue, name) for name in _ids(queue)} == {
            name: [] for name in _ids(queue)
        }
        assert len(queue.select(wanted, everything=True)) == (3 if wanted.word == "set" else 0)
        log = [*queue.completions("0", follow=False)]
        assert len(log) == (3 if wanted.word in {"cancel", "delete"} else 0)
        if is_over:
            break
    assert steps > 3


async def _all(queue: Queue, wanted: Change) -> Any:
    selected = await select(queue.name, wanted, RequestFilter())
    return await apply(selected)


def _ids(queue: Queue) -> list[str]:
    return [one.id for one in queue.list_requests(states=["running"]).requests]


# ------------------------------------------------------------------ delete


@both_faces
def test_deleted_requests_leave_free_ids(queue: Queue):
    request = queue.submit_request([b"x"], id="mine")
    work_off(queue.driver)
    assert change(queue, Change.delete()) == ChangeReport(changed=1)
    with pytest.raises(RequestNotFound):
        request.state()
    with pytest.raises(RequestNotFound):
        request.wait(1)
    with pytest.raises(RequestNotFound):
        list(request.results())
    again = queue.submit_request([b"other", b"content"], id="mine", priority=9)
    assert sorted(work_off(queue.driver)) == [b"content", b"other"]
    assert again.wait(PATIENCE_S) == "done"
    log = [*queue.completions("0", follow=False)]
    assert [(one.id, one.total) for one in log] == [("mine", 1), ("mine", 2)]
    assert log[0].submitted_ms < log[1].submitted_ms


def test_a_reader_of_results_gets_an_error_if_they_are_deleted_meanwhile(queue: Queue):
    request = queue.submit_request([b"x"] * 3, id="mine", limit=1)
    settle(queue.driver, next_slice(queue.driver, count=1))
    results = request.results("done", timeout=5)
    assert next(results).index == 0
    change(queue, Change.delete(cancel=True))
    with pytest.raises(RequestLost, match="deleted"):
        list(results)


def test_a_request_that_workers_hold_is_cancelled_and_deleted_later(queue: Queue):
    submit(queue, 1)
    held = next_slice(queue.driver, count=1)
    report = change(queue, Change.delete(cancel=True))
    (error,) = report.failed.values()
    assert isinstance(error, RequestNotEnded)
    assert (report.changed, queue.request("r0").state()) == (0, "cancelling")
    settle(queue.driver, held)
    assert change(queue, Change.delete()).changed == 1


def test_an_unfinished_request_is_not_deleted(queue: Queue):
    submit(queue, 1)
    report = queue.change(queue.select(Change.delete(), ["r0"]))
    assert str(report.failed["r0"]).startswith("request r0 has not ended: cancel it first")


def test_the_life_that_was_chosen_is_deleted_and_no_later_one(queue: Queue):
    submit(queue, 1)
    work_off(queue.driver)
    selected = queue.select(Change.delete(), everything=True)
    queue.change(selected)
    submit(queue, 1)
    work_off(queue.driver)
    assert queue.change(selected) == ChangeReport(ended=1)
    assert queue.request("r0").state() == "done"


def test_an_ending_that_was_not_logged_is_logged_before_the_request_goes(
    queue: Queue, redis_client: redis.Redis
):
    submit(queue, 1)
    selected = queue.select(Change.delete(), ["r0"])
    queue.driver.run(once(scripts.cancel(keys.request_keys("r0"), reason="why")))
    assert redis_client.zcard(keys.active("req")) == 1
    assert queue.change(selected).changed == 1
    assert [one.state for one in queue.completions("0", follow=False)] == ["cancelled"]
    assert redis_client.zcard(keys.active("req")) == 0


# ------------------------------------------------------------------ requeue, deadline, retention


def test_the_dead_of_many_requests_run_again(queue: Queue, redis_client: redis.Redis):
    driver = Forgetful(queue.driver, redis_client)
    for name in ("r1", "r2"):
        put(driver, 1, name)
    for _ in range(2):
        settle_as(driver, take(driver), verdict="dead")
    put(driver, 1, "r3")
    assert change(queue, Change.requeue_dead()).changed == 2
    assert change(queue, Change.requeue_dead(), ids=["r1"]) == ChangeReport(ended=1)
    assert len(queue.select(Change.requeue_dead(), everything=True)) == 0
    assert sorted(work_off(queue.driver)) == [b"b0"] * 3


def test_the_dead_of_many_requests_are_counted_and_dropped(queue: Queue, redis_client: redis.Redis):
    driver = Forgetful(queue.driver, redis_client)
    for name, bodies in (("r1", 1), ("r2", 3)):
        put(driver, bodies, name)
    for _ in range(4):
        settle_as(driver, take(driver), verdict="dead")
    put(driver, 1, "r3")
    selected = queue.select(Change.drop_dead(), everything=True)
    assert (set(selected.ids), selected.dead) == ({"r1", "r2"}, 4)
    assert queue.change(selected) == ChangeReport(changed=2, dead=4)
    assert queue.change(selected) == ChangeReport(ended=2)
    assert [queue.request(name).progress().dead for name in ("r1", "r2")] == [1, 3]
    report = change(queue, Change.drop_dead(fingerprint="0" * 10), ids=["r1"])
    assert "has no dead sub-request with fingerprint" in str(report.failed["r1"])


def test_a_nearer_deadline_is_looked_at_in_time(queue: Queue, redis_client: redis.Redis):
    request = queue.submit_request([b"x"], id="r1")
    active = keys.active("req")
    far = float(redis_client.zscore(active, "r1") or 0) + HOUR * 1000
    redis_client.zadd(active, {"r1": seen_to_exist(int(far))})
    request.set_deadline(2 * HOUR)
    assert redis_client.zscore(active, "r1") == int(far) + 0.5
    request.set_deadline(60)
    near = float(redis_client.zscore(active, "r1") or 0)
    assert far - HOUR * 1000 < near < far - HOUR * 900
    request.set_deadline(0)
    assert request.progress().deadline_ms is None


def test_without_a_retention_the_counts_stay_and_results_are_gone(queue: Queue):
    request = queue.submit_request([b"a", b"b"], id="r1", retain=0)
    work_off(queue.driver)
    assert request.wait(5) == "done"
    assert request.progress().done == 2
    with pytest.raises(RequestLost, match="retention"):
        list(request.results())
