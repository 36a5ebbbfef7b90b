"""Tests the reaper: it checks every unfinished request in time, and does what is due."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest

from fairlane import settings
from fairlane.errors import FairlaneError, RedisUnreachable
from fairlane.operations import tokens, workers
from fairlane.operations.completion import read_completions
from fairlane.protocol import keys
from fairlane.protocol.steps import Batch
from fairlane.queue import Queue
from tests.support.operations.upkeep import (
    ACTIVE,
    DELAYED,
    WORKERS,
    expected,
    name_of,
    server_ms,
    standing,
    suspects,
    watch,
)
from tests.support.scripts.requests import HOUR, MINUTE, Lane, Tok, work_off

if TYPE_CHECKING:
    from fairlane.drivers.sync import SyncDriver

# ------------------------------------------------------------------ drain or unknown


@pytest.mark.parametrize(
    ("late_ms", "word"),
    [(0, b"drain"), (59_999, b"drain"), (60_000, b"unknown"), (HOUR, b"unknown")],
)
def test_an_expired_record_is_not_taken_for_a_deleted_one(lane: Lane, late_ms: int, word: bytes):
    """It expired after a TTL without a heartbeat, and its worker registers again."""
    record, conf = keys.worker("req", "w:1"), keys.conf("req")
    same = {"id": "w:1", "started": 7, "ttl": settings.WORKER_TTL_MS}
    home = (WORKERS, record, conf, keys.task_stats("req"))
    lane.call("register_worker", home, host="b", pid=1, late=2000, release="", **same)
    lane.client.delete(record)
    lane.later(late_ms)
    names = (WORKERS, record, ACTIVE, DELAYED, conf, keys.taken("req", "w:1"))
    every = (*names, keys.schedules("req")[1], keys.firing("req"))
    given = {"lock_ms": 5000, "holds": "", "taken_ttl": 600_000, "died": ""}
    assert lane.call("heartbeat", every, **same, **given) == [word]


# ------------------------------------------------------------------ bounds


def test_one_pass_looks_at_a_bounded_number(lane: Lane, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(settings, "MAINTAIN_MOST", 5)
    lane.client.zadd(ACTIVE, {f"lost{i}": i + 1 for i in range(8)})
    assert lane.run(workers.look_after("req")) == 5
    assert lane.client.zrange(ACTIVE, 0, -1) == [b"lost5", b"lost6", b"lost7"]
    assert lane.run(workers.look_after("req")) == 3


@pytest.mark.parametrize("count", [1, 250, 251])
def test_calm_requests_cost_one_glance_each(driver: SyncDriver, redis_client: Any, count: int):
    queue = Queue(driver)
    many = queue.submit_many([[b"x"]] * count, ids=[f"r{i}" for i in range(count)])
    assert len(many) == count
    for i in range(count):
        redis_client.zadd(ACTIVE, {f"r{i}": 1})
    looked, steps = watch(driver, workers.look_after("req"))
    batches = [f"{size} glance" for size in (min(count, 250), count - 250) if size > 0]
    assert (looked, steps) == (count, ["3 ZCARD", *batches, "reschedule_active"])
    assert redis_client.zcount(ACTIVE, 0, server_ms(redis_client)) == 0


@pytest.mark.parametrize(
    ("lease_ms", "unfinished", "least_ms", "most_ms"),
    [
        pytest.param(0, 1, 5_000, 5_000, id="a calm request alone"),
        pytest.param(0, 1_000, 5_000, 5_000, id="a calm one of a thousand"),
        pytest.param(0, 50_000, 125_000, 250_000, id="a calm one of very many"),
        pytest.param(3_000, 50_000, 3_000, 3_000, id="a held one when its lease expires"),
        pytest.param(600_000, 50_000, 125_000, 250_000, id="a held one with a long lease"),
    ],
)
def test_calm_requests_are_looked_at_later_the_more_there_are(
    lane: Lane, lease_ms: int, unfinished: int, least_ms: int, most_ms: int
):
    tokens = lane.start(3, lease_ms=lease_ms or 30_000)
    if lease_ms:
        lane.take(tokens[0])
    before = server_ms(lane.client)
    later = {f"later{i}": before + MINUTE for i in range(unfinished - 1)}
    lane.client.zadd(ACTIVE, {"r1": 1, **later})
    assert lane.run(workers.look_after("req")) == 1
    found = lane.client.zscore(ACTIVE, "r1") - before
    assert least_ms - (2_500 if lease_ms else 1_000) <= found <= most_ms + 1_000
    lane.client.delete(ACTIVE)


def test_what_needs_more_than_a_glance_is_reaped(old: Lane):
    old.take(old.start(1)[0])
    calm = Lane(old.driver, old.client, request_id="r2")
    calm.now = server_ms(old.client)
    calm.start(1)
    old.client.zadd(ACTIVE, {"r1": 1, "r2": 1})
    _, steps = watch(old.driver, workers.look_after("req"))
    looks = ["3 ZCARD", "2 glance", "reap", "1 insert_tokens"]
    assert steps == [*looks, "reschedule_active", "reschedule_active"]
    assert old.client.zcard(keys.leases("r1")) == 0


@pytest.mark.parametrize("others", [0, 400])
def test_a_check_that_lies_too_far_ahead_is_due(lane: Lane, others: int):
    """It was set before the clock of Redis went back."""
    lane.start(1)
    soon = {f"soon{i}": server_ms(lane.client) + MINUTE for i in range(others)}
    lane.client.zadd(ACTIVE, {"r1": server_ms(lane.client) + 2 * HOUR + 0.5, **soon})
    assert lane.run(workers.look_after("req")) == 1
    assert lane.client.zscore(ACTIVE, "r1") < server_ms(lane.client) + MINUTE
    lane.client.delete(ACTIVE)


def test_what_is_not_due_is_not_looked_at(lane: Lane):
    lane.client.zadd(ACTIVE, {"later": lane.now + MINUTE})
    assert watch(lane.driver, workers.look_after("req")) == (0, ["3 ZCARD"])


# ------------------------------------------------------------------ one check


def look(lane: Lane, score: float = 1) -> bool:
    """Checks `r1`, whose score in `active` is this."""
    lane.client.zadd(ACTIVE, {"r1": score})
    lane.now = server_ms(lane.client)
    looked: bool = lane.run(workers.look_at("req", "r1", str(score), lane.now))
    return looked


def test_an_intent_without_a_request_is_abandoned_and_dropped(lane: Lane):
    """It is marked first: a producer that is only slow starts again instead of being lost."""
    score = lane.now + 100
    assert look(lane, score) is False
    assert lane.client.zcard(ACTIVE) == 0
    assert lane.hash() == {"state": "abandoned", "seen": str(score)}
    assert 0 < lane.client.pttl("req:{r1}") <= settings.MARKER_MS
    assert lane.enqueue(1, intent=score)[0] == b"late"
    assert lane.enqueue(1, intent=score + 1)[0] == b"ok"


@pytest.mark.parametrize("what", ["renewed", "submitted"])
def test_an_intent_that_is_alive_after_all_is_not_dropped(lane: Lane, what: str):
    """The producer returned between the check and the verdict."""

    def come_back(name: str) -> None:
        if name == "abandon" and what == "renewed":
            lane.client.zadd(ACTIVE, {"r1": 700})
        elif name == "abandon":
            lane.start(1, intent=500)

    lane.client.zadd(ACTIVE, {"r1": 500})
    assert watch(lane.driver, workers.look_at("req", "r1", "500", lane.now), come_back)[0] is False
    assert lane.client.zscore(ACTIVE, "r1") == (700 if what == "renewed" else 500)


def test_an_ending_is_logged_once_and_dropped(lane: Lane):
    lane.complete(lane.take(lane.start(1)[0]))
    for _ in range(2):
        assert look(lane) is False
        assert lane.client.zcard(ACTIVE) == 0
        assert lane.client.xlen(keys.completed("req")) == 1


def test_another_queues_request_is_dropped_and_left_alone(lane: Lane):
    """Its own queue looks after it: not even its expired lease is touched here."""
    other = Lane(lane.driver, lane.client, queue="other")
    other.now = lane.now - MINUTE
    other.take(other.start(3)[0])
    before = other.dump()
    assert look(lane) is False
    assert other.dump() == before


def test_an_expired_lease_is_taken_back(old: Lane):
    old.take(old.start(1)[0])
    assert look(old) is True
    assert old.client.zcard(keys.leases("r1")) == 0
    assert standing(old.client) == expected(old)
    old.now = server_ms(old.client)
    (again,) = suspects(old)
    assert old.take(Tok(5, again.k, again.g)).attempt == 2


@pytest.mark.parametrize(("lease_ms", "least", "most"), [(3000, 1000, 3000), (30_000, 5000, 5000)])
def test_the_next_look_is_soon_or_at_a_leases_end(lane: Lane, lease_ms: int, least: int, most: int):
    lane.take(lane.start(3, lease_ms=lease_ms)[0])
    assert look(lane) is True
    assert least <= lane.client.zscore(ACTIVE, "r1") - lane.now <= most + 0.5


def test_a_request_that_is_not_held_is_looked_at_soon_again(lane: Lane):
    """Its tokens may have been lost."""
    lane.start(3)
    assert look(lane) is True
    assert lane.client.zscore(ACTIVE, "r1") - lane.now == settings.AUDIT_MS + 0.5


@pytest.mark.parametrize("open_ms", [HOUR, 3 * HOUR])
def test_a_request_left_open_is_cancelled(lane: Lane, open_ms: int):
    lane.later(-2 * HOUR)
    lane.start(2, open_ms=open_ms)
    is_over = open_ms == HOUR
    assert look(lane) is not is_over
    ended = lane.client.xrange(keys.completed("req"))
    reasons = [(entry[b"state"], entry[b"reason"]) for _, entry in ended]
    assert reasons == ([(b"cancelled", b"abandoned")] if is_over else [])
    assert lane.hash()["state"] == ("cancelled" if is_over else "active")


# ------------------------------------------------------------------ what can't be read, is lost


def test_a_request_that_was_there_and_is_gone_is_logged_as_lost(lane: Lane):
    lane.start(1)
    assert look(lane) is True
    lane.client.delete(*lane.names)
    score = lane.client.zscore(ACTIVE, "r1")
    for _ in range(2):
        assert lane.run(workers.look_at("req", "r1", str(score), lane.now)) is False
    (ending,) = lane.run(read_completions("req", "0", 0))
    assert (ending.id, ending.state, ending.total) == ("r1", "lost", 0)
    assert lane.client.zcard(ACTIVE) == 0


def test_a_lost_request_may_be_submitted_again(lane: Lane):
    for is_logged in (False, True):
        lane.start(1)
        look(lane)
        lane.client.delete(*lane.names)
        if is_logged:
            look(lane, lane.now + 7.5)
        Queue(lane.driver).submit_request([b"x"], id="r1")
        assert lane.client.zscore(ACTIVE, "r1") % 1 == 0
        assert work_off(lane.driver) == [b"x"]
        lane.client.flushall()


def test_a_request_that_cannot_be_read_does_not_stop_the_others(lane: Lane):
    for name in ("r1", "r2", "r3"):
        other = Lane(lane.driver, lane.client, request_id=name)
        other.now = lane.now - MINUTE
        other.start(1)
    lane.client.delete("tok:{r2}")
    lane.client.set("tok:{r2}", "text")
    lane.client.zadd(ACTIVE, {"r1": 1, "r2": 2.5, "r3": 3, b"a b": 4})
    failed: dict[str, FairlaneError] = {}
    assert lane.run(workers.look_after("req", failed=failed)) == 4
    assert list(failed) == ["r2"]
    assert "WRONGTYPE" in str(failed["r2"])
    scores = dict(lane.client.zrange(ACTIVE, 0, -1, withscores=True))
    assert set(scores) == {b"r1", b"r2", b"r3"}
    assert all(score % 1 == 0.5 and score > lane.now for score in scores.values())
    lane.client.delete(*keys.request_keys("r2"))


def test_an_unread_intent_stays_an_intent(lane: Lane):
    """An error proves neither that there is a request nor that there is none."""
    lane.client.set("req:{r1}", "text")
    lane.client.zadd(ACTIVE, {"r1": 1})
    lane.run(workers.look_after("req"))
    assert lane.client.zscore(ACTIVE, "r1") % 1 == 0
    lane.client.delete("req:{r1}")


def test_what_was_renewed_meanwhile_is_not_put_off(lane: Lane):
    """A producer's new intent is newer than what the check has read."""
    lane.start(1)
    lane.client.zadd(ACTIVE, {"r1": 1})

    def renew(name: str) -> None:
        if name == "reschedule_active":
            lane.client.zadd(ACTIVE, {"r1": 700})

    assert watch(lane.driver, workers.look_at("req", "r1", "1", lane.now), renew)[0] is True
    assert lane.client.zscore(ACTIVE, "r1") == 700


def test_requests_that_do_not_answer_are_put_off_together():
    """A node that is unreachable costs one batch; its requests are not read again."""
    failed: dict[str, FairlaneError] = {}
    operation: Any = workers.look_after("req", failed=failed)
    due = [part for i in range(9) for part in (b"r%d" % i, b"%d.5" % i)]
    operation.send(None)
    asked = operation.send([[b"100", b"0"], due, 9])
    assert name_of(asked) == "9 glance"
    put_off = operation.throw(RedisUnreachable(""))
    assert name_of(put_off) == "reschedule_active"
    rows = list(put_off.args[-27:])
    assert rows[:3] == ["r0", "0.5", tokens.seen_to_exist(100_000 + settings.AUDIT_MS)]
    with pytest.raises(StopIteration):
        operation.send(9)
    assert set(failed) == {f"r{i}" for i in range(9)}


def test_a_node_that_is_away_costs_the_others_nothing():
    failed: dict[str, FairlaneError] = {}
    operation: Any = workers.look_after("req", failed=failed)
    operation.send(None)
    operation.send([[b"100", b"0"], [b"r1", b"1.5", b"r2", b"2.5"], 2])
    put_off = operation.send([RedisUnreachable(""), [b"ok", 0, []]])
    assert sorted(put_off.args[-6::3]) == ["r1", "r2"]
    assert list(failed) == ["r1"]


@pytest.mark.parametrize(("bites", "reaps"), [(1, 1), (3, 3), (1000, 20)])
def test_one_check_takes_back_all_of_a_request_in_bounded_calls(bites: int, reaps: int):
    operation = workers.look_at("req", "r1", "1", 5)
    step, steps = operation.send(None), []
    with contextlib.suppress(StopIteration):
        while True:
            steps.append(name_of(step))
            more = steps.count("reap") < bites
            reaped = [b"ok", 1 if more else 0, [b"5", b"0.1", 0]]
            step = operation.send([1] if isinstance(step, Batch) else reaped)
    assert steps == ["reap", "1 insert_tokens"] * reaps + ["reschedule_active"]


def test_another_end_between_the_reap_and_the_mark_is_left_to_the_next_look(lane: Lane):
    """The request was reopened, and the worker that ended it again died before it logged that."""

    def end_again(name: str) -> None:
        if name == "abandon":
            lane.client.hset(lane.names[2], "opened", "1:9-0:0::")

    lane.complete(lane.take(lane.start(1)[0]))
    score = lane.client.zscore(ACTIVE, "r1") or 0
    lane.client.zadd(ACTIVE, {"r1": score})
    looking = workers.look_at("req", "r1", str(score), lane.now)
    assert watch(lane.driver, looking, end_again)[0] is False
    lane.client.zadd(ACTIVE, {"r1": score}, nx=True)
    assert look(lane, lane.now) is False
    assert lane.client.xlen(keys.completed("req")) == 2


def test_an_end_between_the_reap_and_the_mark_is_left_to_the_next_look(lane: Lane):
    """An empty request ends as it is submitted. Its producer died before it logged that."""

    def come(name: str) -> None:
        if name == "abandon":
            lane.enqueue([], intent=lane.now + 1)

    lane.client.zadd(ACTIVE, {"r1": lane.now})
    looking = workers.look_at("req", "r1", str(lane.now), lane.now)
    assert watch(lane.driver, looking, come)[0] is False
    assert lane.client.zscore(ACTIVE, "r1") is not None
    assert look(lane, lane.now) is False
    assert lane.client.zscore(ACTIVE, "r1") is None
    assert lane.client.xlen(keys.completed("req")) == 1
