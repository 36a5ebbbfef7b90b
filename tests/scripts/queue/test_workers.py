"""Tests register_worker, heartbeat, expire_workers and unregister_worker: registry and leader."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fairlane.protocol import keys

if TYPE_CHECKING:
    from tests.support.scripts.requests import Lane

FIRING = keys.firing("req")
WORKERS, CONF = keys.workers("req"), keys.conf("req")
TASKS = keys.task_stats("req")
DIED, PAUSED, RATE = -5, -3, -2  # indexes in the reply to a heartbeat
TTL, LATE, LOCK, TAKEN_TTL = 60_000, 2_000, 5_000, 600_000
WORDS = {"ttl": TTL, "late": LATE, "host": "box", "pid": 42, "started": 7, "release": ""}


def record(name: str) -> bytes:
    return keys.worker("req", name)


def taken(name: str) -> bytes:
    return keys.taken("req", name)


def register(lane: Lane, name: str = "w:1", **given: Any) -> list:
    return list(
        lane.call(
            "register_worker", (WORKERS, record(name), CONF, TASKS), id=name, **(WORDS | given)
        )
    )


def register_two(lane: Lane) -> None:
    register(lane, "w:1")
    register(lane, "w:2")


def beat(lane: Lane, name: str = "w:1", started: int = 7, **given: Any) -> list:
    slot = (keys.active("req"), keys.delayed("req"), CONF)
    names = (WORKERS, record(name), *slot, taken(name), keys.schedules("req")[1], FIRING)
    given = {"ttl": TTL, "lock_ms": LOCK, "holds": "", "taken_ttl": TAKEN_TTL, "died": ""} | given
    return list(lane.call("heartbeat", names, id=name, started=started, **given))


def expire(lane: Lane, ttl: Any = TTL) -> list[bytes]:
    return list(lane.call("expire_workers", (WORKERS,), ttl=ttl))


def unregister(lane: Lane, name: str = "w:1", started: int = 7) -> int:
    names = (WORKERS, record(name), CONF, taken(name))
    return int(lane.call("unregister_worker", names, id=name, started=started))


# ------------------------------------------------------------------ register


def test_register_notes_the_last_three_releases_each_once(lane: Lane):
    """Another beat of a known one changes nothing; a worker without a release is none."""
    for name in ("a", "b", "a", "", "c", "b"):
        assert register(lane, release=name) == [b"ok"]
        lane.now += 1
    t = lane.now - 6
    assert lane.client.hget(CONF, "releases") == f"a {t} b {t + 1} c {t + 4}".encode()
    lane.client.hset(TASKS, "t\ta:ran:count", 4)
    lane.client.hset(TASKS, mapping={"t\ta:calls": "1 1 1 1 1", "u\tc:ran:max": 3})
    register(lane, release="d")
    assert lane.client.hgetall(TASKS) == {
        b"t:ran:count": b"4", b"t:calls": b"0 0 0 0 0", b"u\tc:ran:max": b"3",
    }  # fmt: skip


def test_register_enters_a_worker_with_a_ttl(lane: Lane):
    assert register(lane) == [b"ok"]
    assert lane.client.hgetall(record("w:1")) == {
        b"host": b"box",
        b"pid": b"42",
        b"started": b"7",
        b"renewed": b"%d" % lane.now,
    }
    assert 0 < lane.client.pttl(record("w:1")) <= TTL
    assert lane.client.zscore(WORKERS, "w:1") == lane.now


def test_register_refuses_a_name_that_beats_elsewhere(lane: Lane):
    register(lane)
    lane.later(LATE)
    before = lane.client.hgetall(record("w:1"))
    assert register(lane, started=8, host="other", pid=1) == [b"taken", b"box", b"42"]
    assert lane.client.hgetall(record("w:1")) == before


def test_register_takes_over_a_name_without_heartbeats(lane: Lane):
    """The last heartbeat is later than `late`; nothing of the former life stays in the record."""
    register(lane)
    beat(lane, holds="much")
    lane.later(LATE + 1)
    assert register(lane, started=8) == [b"ok"]
    assert b"holds" not in lane.client.hgetall(record("w:1"))
    assert beat(lane, started=7) == [b"replaced"]


def test_a_name_whose_last_beat_lies_ahead_is_free(lane: Lane):
    """The clock went back by minutes: the record proves nothing about now."""
    register(lane)
    lane.later(-LATE)
    assert register(lane, started=8)[0] == b"taken"
    lane.later(-1)
    assert register(lane, started=8) == [b"ok"]
    assert lane.client.zscore(WORKERS, "w:1") == lane.now


# ------------------------------------------------------------------ beat


def test_a_beat_renews_the_worker(lane: Lane):
    register(lane)
    lane.client.pexpire(record("w:1"), 100_000)
    lane.later(1_000)
    assert beat(lane, holds="r1: 3")[0] == b"ok"
    found = lane.client.hgetall(record("w:1"))
    assert (found[b"renewed"], found[b"holds"]) == (b"%d" % lane.now, b"r1: 3")
    assert lane.client.pttl(record("w:1")) <= TTL
    assert lane.client.zscore(WORKERS, "w:1") == lane.now


def test_a_beat_brings_what_is_due_next(lane: Lane):
    """The reply has the earliest of active and of delayed, 0 for none, and the oldest heartbeat."""
    register(lane)
    assert beat(lane) == [b"ok", 1, lane.now, 0, 0, lane.now, b"", b"", 0, 0, 0, b"", 0]
    lane.client.zadd(keys.active("req"), {"r1": 900, "r2": 800})
    lane.client.zadd(keys.delayed("req"), {"5|r1#0.1": 700})
    lane.client.zadd(WORKERS, {"w:2": 600})
    lane.client.hset(keys.conf("req"), mapping={"shards": "1,7", "left": "0"})
    assert beat(lane)[3:] == [800, 700, 600, b"1,7", b"0", 0, 0, 0, b"", 0]
    lane.client.delete(keys.active("req"), keys.delayed("req"))
    lane.client.zadd(keys.schedules("req")[1], {"late": 9, "early": 8})
    assert beat(lane)[-4] == 8


def test_a_worker_whose_record_was_deleted_drains(lane: Lane):
    """The registry still lists the worker, because a person wants it to end."""
    register(lane)
    lane.client.delete(record("w:1"))
    with lane.unchanged():
        assert beat(lane) == [b"drain"]


def test_a_worker_that_is_listed_with_a_beat_far_ahead_is_unknown(lane: Lane):
    """The clock went back: the record may have expired before, so the worker registers again."""
    register(lane)
    lane.client.delete(record("w:1"))
    lane.later(-TTL)
    assert beat(lane) == [b"unknown"]
    lane.later(1)
    assert beat(lane) == [b"drain"]


def test_a_worker_whose_registry_is_gone_is_unknown(lane: Lane):
    """The slot was lost: the worker registers again."""
    register(lane)
    lane.client.delete(record("w:1"), WORKERS)
    with lane.unchanged():
        assert beat(lane) == [b"unknown"]


def test_a_worker_whose_name_has_another_life_is_replaced(lane: Lane):
    """The old process must stop; the record of the other one is left alone."""
    register(lane, started=8)
    with lane.unchanged():
        assert beat(lane, started=7) == [b"replaced"]


def test_a_beat_reports_a_death_to_the_leader(lane: Lane):
    """Each heartbeat returns when the last death was reported; that stays until another one."""
    register_two(lane)
    died = lane.now
    assert beat(lane, "w:2", died="1")[DIED] == died
    for _ in range(2):
        lane.later(1_000)
        assert beat(lane, "w:1")[DIED] == died
    assert beat(lane, "w:2", died="1")[DIED] == lane.now
    assert beat(lane, "w:2", died="0")[DIED] == beat(lane, "w:1")[DIED] == lane.now


@pytest.mark.parametrize("word", [b"drain", b"unknown", b"replaced"])
def test_a_beat_that_renews_nothing_reports_no_death(lane: Lane, word: bytes):
    """The worker reports the death again, once it is registered."""
    register(lane, started=8 if word == b"replaced" else 7)
    if word != b"replaced":
        lane.client.delete(record("w:1"), *([WORKERS] if word == b"unknown" else []))
    assert beat(lane, died="1") == [word]
    assert lane.client.hget(CONF, "died") is None


def test_a_beat_reports_a_pause_until_its_end(lane: Lane):
    """Exactly at the end of the pause the queue is not paused any more."""
    register(lane)
    assert beat(lane)[PAUSED] == 0
    lane.call("pause_queue", (CONF,), period=2_000, longest=10**15)
    assert beat(lane)[PAUSED] == lane.now + 2_000
    lane.later(1_999)
    assert beat(lane)[PAUSED] == lane.now + 1
    lane.later(1)
    assert beat(lane)[PAUSED] == 0


def test_a_beat_takes_a_pause_that_is_no_number_for_none(lane: Lane):
    register(lane)
    lane.client.hset(CONF, "paused_until", "soon")
    assert beat(lane)[PAUSED] == 0


def test_a_beat_reports_the_rate_of_the_queue(lane: Lane):
    register(lane)
    lane.call("rate_queue", (CONF,), interval=10_000, burst=5)
    assert beat(lane)[RATE] == b"10000 5"
    lane.call("rate_queue", (CONF,), interval=0, burst=0)
    assert beat(lane)[RATE] == b""


def test_a_beat_keeps_what_the_worker_took(lane: Lane):
    """A handler may run for longer than the TTL of the note."""
    register(lane)
    lane.client.hset(taken("w:1"), "0.1", "r1#0.3")
    lane.client.pexpire(taken("w:1"), 1_000)
    beat(lane)
    assert 1_000 < lane.client.pttl(taken("w:1")) <= TAKEN_TTL


def leaders(lane: Lane) -> list[int]:
    """Returns which of two workers lead, by a heartbeat of each."""
    return [beat(lane, "w:1")[1], beat(lane, "w:2")[1]]


def test_one_worker_at_a_time_leads(lane: Lane):
    register_two(lane)
    for _ in range(3):
        assert leaders(lane) == [1, 0]
        lane.later(LOCK)


def test_the_lock_goes_to_the_next_when_its_holder_stops_beating(lane: Lane):
    register_two(lane)
    assert leaders(lane) == [1, 0]
    lane.later(LOCK)
    assert beat(lane, "w:2")[1] == 0
    lane.later(1)
    assert beat(lane, "w:2")[1] == 1
    assert leaders(lane) == [0, 1]


def test_a_lock_that_ends_later_than_it_can_is_free(lane: Lane):
    """The clock went back just after the leader died: the next heartbeat of another one leads."""
    register_two(lane)
    assert leaders(lane) == [1, 0]
    lane.later(-1)
    assert beat(lane, "w:2")[1] == 1
    assert int(lane.client.hget(CONF, "lock_until")) == lane.now + LOCK
    lane.later(-600_000)
    assert beat(lane, "w:1")[1] == 1


def test_a_check_that_lies_too_far_ahead_is_due_after_the_clock_went_back(lane: Lane):
    register(lane, "w:1")
    active = keys.active("req")
    lane.client.zadd(active, {"r9": lane.now + 60_000})
    assert beat(lane)[3] == lane.now + 60_000
    lane.client.zadd(active, {"r9": lane.now + 2 * 3_600_000})
    assert beat(lane)[3] == lane.now
    lane.client.delete(active)


def test_a_pause_is_as_long_as_it_was_asked_for_whatever_the_clock_does(lane: Lane):
    register(lane, "w:1")
    lane.later(7_200_000)
    lane.call("pause_queue", (CONF,), period=60_000, longest=10**15)
    lane.later(-7_200_000)
    assert beat(lane)[10] == lane.now + 60_000
    lane.later(1_000)
    assert beat(lane)[10] == lane.now + 59_000


def test_a_tick_that_was_set_before_the_clock_went_back_is_due(lane: Lane):
    register(lane, "w:1")
    lane.client.zadd(keys.schedules("req")[1], {"s": lane.now + 9_000_000})
    assert beat(lane)[9] == lane.now + 9_000_000
    lane.client.hset(FIRING, ":ticked", lane.now + 7_200_000)
    assert beat(lane)[9] == lane.now


def test_the_leader_brings_beats_that_lie_ahead_back_to_now(lane: Lane):
    """The clock went back just after a worker died: its heartbeat is late like any other."""
    for name in ("w:1", "w:2", "w:3"):
        register(lane, name)
    lane.later(-600_000)
    assert beat(lane, "w:2")[1] == 1
    assert lane.client.zscore(WORKERS, "w:1") == lane.now
    lane.later(LATE + 1)
    before = lane.client.zrange(WORKERS, 0, -1, withscores=True)
    assert beat(lane, "w:2")[5] == lane.now - LATE - 1
    assert lane.client.zscore(WORKERS, "w:1") == dict(before)[b"w:1"]  # once, not with each beat


def test_a_beat_brings_back_a_bounded_number(lane: Lane):
    register(lane)
    lane.client.zadd(WORKERS, {f"w:{i}": lane.now + i for i in range(2, 152)})
    for left in (50, 0):
        beat(lane)
        assert lane.client.zcount(WORKERS, lane.now + 1, "+inf") == left


def test_a_worker_that_unregisters_frees_the_lock(lane: Lane):
    register_two(lane)
    assert leaders(lane) == [1, 0]
    unregister(lane, "w:1")
    assert beat(lane, "w:2")[1] == 1


# ------------------------------------------------------------------ unregister and expire


def test_unregister_leaves_nothing_but_the_layout(lane: Lane):
    register(lane)
    lane.client.hset(taken("w:1"), "0.1", "r1#0.3")
    assert unregister(lane) == 1
    assert unregister(lane) == 0
    assert list(lane.dump()) == [CONF]
    assert lane.client.hgetall(CONF) == {b"layout": b"1"}


def test_unregister_leaves_another_life_alone(lane: Lane):
    register(lane, started=8)
    lane.client.hset(taken("w:1"), "0.1", "r1#0.3")
    with lane.unchanged():
        assert unregister(lane, started=7) == 0
    lane.client.delete(taken("w:1"))


def test_expire_removes_workers_without_a_heartbeat_for_a_ttl(lane: Lane):
    register(lane, "w:1")
    lane.later(TTL - 1)
    register(lane, "w:2")
    assert expire(lane) == []
    lane.later(1)
    assert expire(lane) == [b"w:1"]
    assert expire(lane) == []
    assert lane.client.zrange(WORKERS, 0, -1) == [b"w:2"]


def test_expire_forgets_a_bounded_number(lane: Lane):
    lane.client.zadd(WORKERS, {f"w:{i}": 1 for i in range(150)})
    assert [len(expire(lane)), len(expire(lane)), len(expire(lane))] == [100, 50, 0]
