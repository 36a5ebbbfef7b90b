"""Tests live changes by the blocking and the asyncio API: their tokens reach the lanes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fairlane.errors import InvalidArgument, RequestEnded, RequestNotFound
from fairlane.operations import audit, change, request_state
from fairlane.protocol import keys
from tests.support.both_faces import both_faces
from tests.support.scripts.requests import cut, next_slice, pop_token, settle, work_off

if TYPE_CHECKING:
    from fairlane.queue import Queue
    from tests.support.scripts.requests import Lane

CHANGES: dict[str, tuple[Any, ...]] = {
    "pause": (),
    "resume": (),
    "set_limit": (2,),
    "set_priority": (1,),
}
each_change = pytest.mark.parametrize("name", CHANGES)


def do(name: str, request_id: str = "r1") -> Any:
    return getattr(change, name)(request_id, *CHANGES[name])


@both_faces
def test_paused_it_brings_nothing_and_resumed_it_runs_to_its_end(queue: Queue, lane: Lane):
    request = queue.submit_request(["a", "b", "c"], id="r1")
    assert request.pause() == "paused"
    assert (request.state(), request.progress().state) == ("paused", "paused")
    assert [one.state for one in queue.status().requests] == ["paused"]
    assert not request.progress().ended
    assert work_off(lane.driver) == []
    assert request.resume() == "active"
    assert sorted(work_off(lane.driver)) == [b"a", b"b", b"c"]
    assert request.wait(5) == "done"
    assert lane.client.zcard(keys.active("req")) == 0


@both_faces
def test_a_raised_limit_and_another_lane_are_dispatched(queue: Queue, lane: Lane):
    request = queue.submit_request(["a"] * 9, id="r1", limit=1)
    request.set_limit(3)
    assert lane.client.llen(keys.lanes("req")[5]) == 3
    request.set_priority(0)
    assert lane.client.llen(keys.lanes("req")[0]) == 3
    found = request.progress()
    assert (found.limit, found.priority) == (3, 0)


@both_faces
def test_cancelled_while_held_neither_pauses_nor_resumes(queue: Queue, lane: Lane):
    request = queue.submit_request(["a", "b"], id="r1", limit=1)
    held = next_slice(lane.driver)
    request.cancel()
    assert (request.pause(), request.resume()) == ("cancelling", "cancelling")
    assert settle(lane.driver, held) == b"ended"
    assert lane.hash()["state"] == "cancelled"


@each_change
def test_what_has_ended_cannot_be_changed_and_is_logged(queue: Queue, lane: Lane, name: str):
    queue.submit_request(["a"], id="r1")
    lane.cancel()
    assert lane.client.zcard(keys.active("req")) == 1
    with pytest.raises(RequestEnded, match=r"r1 has ended \(cancelled\): it cannot be "):
        lane.run(do(name))
    assert lane.client.zcard(keys.active("req")) == 0
    assert [one.id for one in queue.completions("0", follow=False)] == ["r1"]


@each_change
def test_a_missing_request_is_not_found(lane: Lane, name: str):
    with pytest.raises(RequestNotFound, match="no request r1"):
        lane.run(do(name))
    assert lane.dump() == {}


@pytest.mark.parametrize(
    ("name", "span", "values"),
    [
        ("limit", "1 to 10000", [0, 10_001, True, 1.5, "3", None]),
        ("priority", "0 to 99", [-1, 100, False, "1"]),
    ],
)
def test_a_bad_value_is_refused(queue: Queue, lane: Lane, name: str, span: str, values: list[Any]):
    for value in values:
        with pytest.raises(InvalidArgument, match=f"^{name} .* number from {span}") as mine:
            getattr(queue.request("r1"), f"set_{name}")(value)
        with pytest.raises(InvalidArgument) as its:
            queue.submit_request(["a"], **{name: value})
        assert str(mine.value) == str(its.value)
    assert lane.dump() == {}


@pytest.mark.parametrize("name", ["resume", "set_limit", "set_priority"])
def test_a_change_cut_off_anywhere_is_repeated(queue: Queue, lane: Lane, name: str):
    for steps in range(4):
        lane.client.flushall()
        queue.submit_request(["a"] * 6, id="r1", limit=1)
        pop_token(lane.driver)
        if name == "resume":
            queue.request("r1").pause()
        over = cut(lane.driver, do(name), [], steps)
        lane.run(do(name))
        assert len(work_off(lane.driver, count=1)) == 6
        assert queue.request("r1").state() == "done"
    assert over


def test_progress_reports_what_was_asked_for(queue: Queue, lane: Lane):
    plain = queue.submit_request(["a"], id="r0").progress()
    assert (plain.deadline_ms, plain.time_limit_ms, plain.durable, plain.timeouts) == (
        *(None, None, None, 0),
    )
    assert plain.by is None
    given = {"deadline_ms": 60_000, "time_limit_ms": 2_000, "extras": "by=ann"}
    (token,) = lane.start(1, **given)
    held = lane.take(token)
    lane.complete(held, others=[(held.ids[0], "timeout", 0)])
    found = lane.run(request_state.progress("r1"))
    assert found.deadline_ms == lane.now + 60_000
    assert (found.time_limit_ms, found.timeouts, found.by) == (2_000, 1, "ann")


def test_repeats_do_not_fill_a_lane_with_tokens(queue: Queue, lane: Lane):
    """A second copy replaces a reply that may be lost. Later the auditor finds lost tokens."""
    for _ in range(20):
        request = queue.submit_request(["a"] * 9, id="r1", limit=4)
        request.resume()
        request.set_limit(4)
        request.set_priority(5)
    assert lane.client.llen(keys.lanes("req")[5]) == 2 * 4
    assert sorted(work_off(queue.driver)) == [b"a"] * 9
    assert lane.client.llen(keys.lanes("req")[5]) == 0


def test_a_token_lost_after_its_repeat_is_found_by_the_auditor(queue: Queue, lane: Lane):
    """A repeat returns no third copy, so only the auditor restores the token."""
    for _ in range(2):
        request = queue.submit_request(["a"] * 9, id="r1", limit=4)
    lane.client.delete(keys.lanes("req")[5])
    request.resume()
    assert lane.client.llen(keys.lanes("req")[5]) == 0
    suspects = queue.driver.run(audit.queued_long("r1", -1))
    assert queue.driver.run(audit.remint_lost("req", suspects)) == 4
    assert sorted(work_off(queue.driver)) == [b"a"] * 9
