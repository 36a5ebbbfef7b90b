"""Tests set_max_waiting, admit and report, and what retire and drop subtract: the bound."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fairlane.errors import RedisFull
from fairlane.protocol import keys
from tests.support.scripts.requests import HOUR

if TYPE_CHECKING:
    from tests.support.scripts.requests import Lane

ACTIVE = keys.active("req")
BOUND = CONF, LOADS = keys.bound("req")
SECOND = 1_000


def set_bound(lane: Lane, most: Any) -> None:
    assert lane.call("set_max_waiting", BOUND, most=most) == 1


def admit(lane: Lane, request_id: str, chunk: Any, count: Any, pause: Any = SECOND) -> list[Any]:
    """Admits a chunk as a producer does, after its intent."""
    lane.client.zadd(ACTIVE, {request_id: lane.now}, nx=True)
    reply: list[Any] = lane.call(
        "admit", (*BOUND, ACTIVE), id=request_id, chunk=chunk, count=count, pause=pause
    )
    return reply


def report(lane: Lane, *rows: tuple[str, int, int, int]) -> int:
    flat = [part for row in rows for part in row]
    return int(lane.call("report_backlog", (ACTIVE, *BOUND), rows=flat))


def waiting(lane: Lane) -> int:
    return int(lane.client.hget(CONF, "waiting") or 0)


def loads(lane: Lane) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = lane.client.hgetall(LOADS)
    return found


def forget(lane: Lane) -> None:
    """Subtracts a request as if all of it had ended."""
    lane.client.delete(ACTIVE, *BOUND)


# ------------------------------------------------------------------ admit


def test_without_a_bound_there_is_room_for_everything_and_nothing_is_counted(lane: Lane):
    assert admit(lane, "r1", 1, 10**9) == [b"ok"]
    assert set(lane.dump()) == {ACTIVE}


def test_a_chunk_of_a_request_that_is_over_takes_no_room(lane: Lane):
    """Its room would never be freed, because its append reports the end."""
    set_bound(lane, 10)
    reply = lane.call("admit", (*BOUND, ACTIVE), id="over", chunk=2, count=4, pause=SECOND)
    assert (reply, waiting(lane), loads(lane)) == ([b"ok"], 0, {})


def test_chunks_are_admitted_up_to_the_bound(lane: Lane):
    """Exactly 10 fit, and 11 do not. A refusal changes only the time of the recount."""
    set_bound(lane, 10)
    assert admit(lane, "r1", 1, 4) == [b"ok"]
    assert admit(lane, "r2", 1, 6) == [b"ok"]
    assert admit(lane, "r3", 1, 1) == [b"full", 10, 10, 1]
    assert admit(lane, "r1", 2, 1)[0] == b"full"
    assert loads(lane) == {b"r1": b"4:1:0", b"r2": b"6:1:0"}
    assert waiting(lane) == 10


def test_a_chunk_is_counted_once(lane: Lane):
    """A repeat is not counted: after a lost reply, or of an earlier chunk, also without room."""
    set_bound(lane, 10)
    for _ in range(2):
        assert admit(lane, "r1", 1, 4) == [b"ok"]
        assert admit(lane, "r1", 2, 6) == [b"ok"]
        assert admit(lane, "r1", 1, 4) == [b"ok"]
    assert loads(lane) == {b"r1": b"10:2:0"}


def test_where_nothing_waits_even_a_chunk_above_the_bound_goes_in(lane: Lane):
    """Otherwise a bound below the size of a chunk would stop the queue for good."""
    set_bound(lane, 10)
    assert admit(lane, "r1", 1, 1000) == [b"ok"]
    assert admit(lane, "r2", 1, 1)[0] == b"full"
    assert report(lane, ("r1", 1, 1000, 1000)) == 0
    assert admit(lane, "r2", 1, 1) == [b"ok"]


def test_one_refusal_a_second_asks_for_a_recount(lane: Lane):
    set_bound(lane, 1)
    admit(lane, "r1", 1, 1)
    assert [admit(lane, "r2", 1, 1)[3] for _ in range(3)] == [1, 0, 0]
    lane.later(999)
    assert admit(lane, "r2", 1, 1)[3] == 0
    lane.later(1)
    assert admit(lane, "r2", 1, 1)[3] == 1


def test_a_recount_that_lies_ahead_keeps_no_refusal_from_the_next(lane: Lane):
    """If the clock went back by minutes, the last recount counts as a second old."""
    set_bound(lane, 1)
    admit(lane, "r1", 1, 1)
    assert admit(lane, "r2", 1, 1)[3] == 1
    lane.later(-999)
    assert admit(lane, "r2", 1, 1)[3] == 0
    lane.later(-600_000)
    assert [admit(lane, "r2", 1, 1)[3] for _ in range(2)] == [1, 0]


# ------------------------------------------------------------------ report


def test_a_report_that_is_older_than_a_chunk_does_not_forget_the_chunk(lane: Lane):
    """The report was read before that chunk was written; its count of settled ones still holds."""
    set_bound(lane, 100)
    admit(lane, "r1", 1, 6)
    admit(lane, "r1", 2, 10)
    assert report(lane, ("r1", 1, 6, 5)) == 11
    assert report(lane, ("r1", 2, 16, 5)) == 11


def test_the_same_report_twice_is_one_report(lane: Lane):
    set_bound(lane, 100)
    admit(lane, "r1", 1, 10)
    assert [report(lane, ("r1", 1, 10, n)) for n in (4, 4, 2, 9, 10, 10)] == [6, 6, 8, 1, 0, 0]


def test_a_request_that_ran_before_there_was_a_bound_counts_from_its_next_report(lane: Lane):
    set_bound(lane, 100)
    lane.client.zadd(ACTIVE, {"r1": 1, "r2": 1})
    admit(lane, "r2", 3, 7)
    assert report(lane, ("r1", 5, 50, 20), ("r2", 3, 27, 0)) == 57
    assert loads(lane) == {b"r1": b"50:5:20", b"r2": b"27:3:0"}


def test_what_is_not_in_active_counts_no_more(lane: Lane):
    set_bound(lane, 100)
    admit(lane, "r1", 1, 10)
    lane.client.zrem(ACTIVE, "r1")
    assert report(lane, ("r1", 1, 10, 3)) == 0
    assert loads(lane) == {}
    assert report(lane, ("r2", 1, 10, 3)) == 0


def test_a_wrong_report_never_makes_the_sum_negative(lane: Lane):
    set_bound(lane, 100)
    admit(lane, "r1", 1, 10)
    admit(lane, "r2", 1, 10)
    assert report(lane, ("r1", 1, 10, 999)) == 10
    assert report(lane, ("r1", 1, 10, 0)) == 20


def test_without_a_bound_a_report_counts_nothing(lane: Lane):
    lane.client.zadd(ACTIVE, {"r1": 1})
    assert report(lane, ("r1", 1, 10, 3)) == 0
    assert loads(lane) == {}


# ------------------------------------------------------------------ set_max_waiting


def test_the_bound_may_be_raised_and_lowered(lane: Lane):
    set_bound(lane, 10)
    admit(lane, "r1", 1, 10)
    set_bound(lane, 5)
    assert admit(lane, "r2", 1, 1)[:3] == [b"full", 10, 5]
    set_bound(lane, 10**15)
    assert admit(lane, "r2", 1, 1) == [b"ok"]
    assert lane.client.hget(CONF, "max_waiting") == b"1000000000000000"


def test_without_a_bound_what_was_counted_is_forgotten(lane: Lane):
    set_bound(lane, 10)
    admit(lane, "r1", 1, 10)
    admit(lane, "r2", 1, 1)
    for _ in range(2):
        set_bound(lane, 0)
    assert set(lane.dump()) == {ACTIVE}


# ------------------------------------------------------------------ retire and drop


def log(lane: Lane, request_id: str, born: int = 7) -> int:
    names = (ACTIVE, keys.logged("req"), keys.completed("req"), *BOUND)
    ending = [request_id, "done", born, 6, 6, 0, 0, 9, 5, "", HOUR, ""]
    return int(lane.call("retire", names, least=1, longest=1, most=10, endings=ending))


def drop(lane: Lane, request_id: str, seen: int) -> int:
    names = (ACTIVE, keys.completed("req"), *BOUND)
    return int(lane.call("drop_active", names, id=request_id, seen=seen, gone="1", most=10))


def test_an_ended_request_makes_room_immediately(lane: Lane):
    set_bound(lane, 10)
    admit(lane, "r1", 1, 6)
    admit(lane, "r2", 1, 4)
    assert [log(lane, "r1"), log(lane, "r1")] == [1, 0]
    assert (loads(lane), waiting(lane)) == ({b"r2": b"4:1:0"}, 4)


def test_a_new_life_of_an_id_is_not_taken_out_by_the_old_ending(lane: Lane):
    """retire leaves `active` alone then, and the count that belongs to it."""
    set_bound(lane, 10)
    log(lane, "r1")
    admit(lane, "r1", 1, 6)
    assert log(lane, "r1") == 0
    assert waiting(lane) == 6
    forget(lane)


def test_a_dropped_intent_makes_room(lane: Lane):
    set_bound(lane, 10)
    admit(lane, "r1", 1, 6)
    assert drop(lane, "r1", lane.now + 1) == 0
    assert waiting(lane) == 6
    assert drop(lane, "r1", lane.now) == 1
    assert (loads(lane), waiting(lane)) == ({}, 0)


# ------------------------------------------------------------------ malformed, full


def test_a_full_redis_admits_no_request_and_is_drained_all_the_same(lane: Lane):
    set_bound(lane, 10)
    admit(lane, "r1", 1, 6)
    admit(lane, "r2", 1, 4)
    lane.client.config_set("maxmemory", 100_000)
    try:
        with pytest.raises(RedisFull):
            lane.call("admit", (*BOUND, ACTIVE), id="r1", chunk=2, count=1, pause=1)
        assert report(lane, ("r1", 1, 6, 5)) == 5
        assert log(lane, "r1") == 1
        assert drop(lane, "r2", lane.now) == 1
        set_bound(lane, 20)
    finally:
        lane.client.config_set("maxmemory", 0)
    assert waiting(lane) == 0
