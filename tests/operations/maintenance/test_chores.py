"""Tests the leader's chores: it hastens ageing requests, and starts those that wait for others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fairlane import Change, InvalidArgument, RequestNotFound
from fairlane.operations.maintenance import registry
from fairlane.protocol import keys
from tests.support.scripts.requests import MINUTE, toks

if TYPE_CHECKING:
    from fairlane.queue import Queue
    from tests.support.scripts.requests import Lane

DUE_FIRST = 1  # a score in `active` that is due


def look(lane: Lane, request_id: str) -> None:
    """Checks this request as the leader."""
    lane.client.zadd(keys.active("req"), {request_id: DUE_FIRST + 0.5})
    lane.driver.run(registry.look_after("req"))


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
        ("active", ""),
    ]


def test_any_end_is_enough_if_that_is_asked_for(lane: Lane, queue: Queue):
    queue.submit_request(["a"], id="r1").cancel()
    queue.submit_request(["a"], id="r2", after=["r1"], after_any_end=True)
    look(lane, "r2")
    assert queue.request("r2").progress().opens_ms == 0


def test_all_of_several_must_have_ended(lane: Lane, queue: Queue):
    queue.submit_request([], id="r1")
    queue.submit_request(["a"], id="r3")
    queue.submit_request(["a"], id="r2", after=["r1", "r3"], after_any_end=True)
    look(lane, "r2")
    assert queue.request("r2").progress().opens_ms > 0
    queue.request("r3").cancel()
    look(lane, "r2")
    assert queue.request("r2").progress().opens_ms == 0


def test_a_request_that_is_no_longer_kept_has_ended(lane: Lane, queue: Queue):
    queue.submit_request([], id="r1")
    queue.submit_request(["a"], id="r2", after=["r1"])
    lane.client.delete(keys.request_hash("r1"))
    look(lane, "r2")
    assert queue.request("r2").progress().opens_ms == 0


def test_a_request_that_does_not_exist_is_refused(queue: Queue, redis_client: Any):
    with pytest.raises(RequestNotFound, match="there is no request r9"):
        queue.submit_request(["a"], id="r2", after=["r9"])
    assert redis_client.dbsize() == 0


def test_a_request_cannot_wait_for_itself(queue: Queue):
    with pytest.raises(InvalidArgument, match="request r2 cannot start after itself"):
        queue.submit_request(["a"], id="r2", after=["r2"])


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"after": "r1"}, "a list of names is expected"),
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


@pytest.mark.parametrize("script", ["hasten", "open_gate"])
def test_what_has_ended_stays_as_it_is(lane: Lane, script: str):
    lane.complete(lane.take(lane.start(1, extras="ageing=60000")[0]))
    before = lane.dump()
    assert lane.request(script)[0] == b"ended"
    assert lane.dump() == before


@pytest.mark.parametrize("script", ["hasten", "open_gate"])
def test_what_does_not_exist_is_gone(lane: Lane, script: str):
    assert lane.request(script) == [b"gone"]


def test_a_gate_is_opened_once(lane: Lane):
    assert lane.start(3, limit=1, extras="after=end:r0") == []
    assert len(toks(lane.request("open_gate")[1])) == 1
    assert toks(lane.request("open_gate")[1]) == []


def test_a_gate_that_opens_by_time_is_left(lane: Lane):
    lane.start(3, extras="delay=5000")
    lane.request("open_gate")
    assert lane.number("opens") == lane.now + 5_000


def test_the_leader_hastens_what_it_looks_at(lane: Lane, queue: Queue):
    queue.submit_request(["a"] * 9, id="r1", priority=90, ageing_s=1)
    lane.client.hset(keys.request_hash("r1"), "aged", "0")
    policy = lane.client.hget(keys.request_hash("r1"), "policy").decode().split(":")
    policy[10] = str(int(policy[10]) - 5_000)  # it began five seconds ago
    lane.client.hset(keys.request_hash("r1"), "policy", ":".join(policy))
    look(lane, "r1")
    assert lane.client.llen(keys.lanes("req")[0]) == 1
    look(lane, "r1")
    assert lane.client.llen(keys.lanes("req")[0]) == 1
