"""Tests the walk: each damage is found and reported once, repaired on request, then gone."""

from __future__ import annotations

from typing import Any

import pytest

from fairlane import settings
from fairlane.errors import RedisUnreachable
from fairlane.operations import doctor as walking
from fairlane.operations import request_checks
from fairlane.operations.check_result import BAD, Finding
from fairlane.operations.completion import read_completions
from fairlane.operations.doctor import Walk
from fairlane.protocol import keys
from fairlane.protocol.steps import Nodes, OnNode
from fairlane.queue import Queue
from tests.support.operations.upkeep import (
    ACTIVE,
    DELAYED,
    HOME,
    expected,
    server_ms,
    standing,
    watch,
)
from tests.support.scripts.requests import (
    HOUR,
    MINUTE,
    Lane,
    next_slice,
    numbered,
    settle,
    take_slice,
    work_off,
)
from tests.support.scripts.requests import insert as dispatch

LOGGED = keys.logged("req")


@pytest.fixture
def lane(lane: Lane) -> Lane:
    """Makes the request `r1`, as of two minutes ago, when maintenance would have checked it."""
    lane.now = server_ms(lane.client) - 2 * MINUTE
    return lane


def walk(lane: Lane, *, repair: bool = False, **given: Any) -> list[Finding]:
    """Returns all findings of one walk."""
    made = Walk("req", **given)
    found: list[Finding] = []
    while not made.is_over:
        page = lane.run(made.page())
        for finding in page if repair else ():
            lane.run(finding.apply())
        found += page
    return found


def bad_of(found: list[Finding]) -> list[tuple[str, str]]:
    """Returns the faults: each check and its subject."""
    return [(one.check, one.subject) for one in found if one.severity == BAD]


def is_found_and_fixed(lane: Lane, *expected: tuple[str, str]) -> None:
    """Checks that it is found twice, then found and repaired, and then not found any more."""
    for _ in range(2):
        found = walk(lane)
        assert bad_of(found) == [*expected]
        assert all(one.is_left and one.remedy for one in found if one.severity == BAD)
    found = walk(lane, repair=True)
    assert bad_of(found) == [*expected]
    assert not any(one.is_left for one in found), found
    assert bad_of(walk(lane)) == []


def submitted(lane: Lane, *ids: str, count: int = 3) -> None:
    """Submits whole requests."""
    for name in ids:
        Queue(lane.driver).submit_request(numbered(count), id=name)


def announced(lane: Lane) -> Lane:
    """Adds an entry to `active`, as if the request had been checked a moment ago."""
    lane.client.zadd(ACTIVE, {lane.id: server_ms(lane.client) + 5000.5})
    return lane


def queued(lane: Lane, count: int = 3, **options: Any) -> Lane:
    """Makes a whole request: its tokens in their lane, itself in `active`."""
    dispatch(lane.driver, "req", lane.id, lane.enqueue(count, **options)[1])
    return announced(lane)


def finished(lane: Lane) -> Lane:
    """Makes a request that has ended and was not logged."""
    lane.complete(lane.take(lane.start(1)[0]))
    return lane


# ------------------------------------------------------------------ nothing is wrong


def test_an_empty_redis_has_nothing_to_find(lane: Lane):
    assert walk(lane) == []


def test_whole_requests_have_no_finding(lane: Lane):
    queued(lane)
    submitted(lane, "held", "ended", "cancelled", count=2)
    next_slice(lane.driver)
    assert Queue(lane.driver).request("cancelled").cancel() is True
    Queue(lane.driver, "other").submit_request([b"x"], id="foreign")
    found = Walk("req")
    while not found.is_over:
        assert bad_of(lane.run(found.page())) == []
    assert found.looked == 4


def test_workers_that_continue_meanwhile_cause_no_finding(lane: Lane):
    submitted(lane, *(f"r{i}" for i in range(8)), count=4)
    held: list[Any] = []

    def work(_: str) -> None:
        if held:
            settle(lane.driver, held.pop())
        elif taken := take_slice(lane.driver, count=1):
            held.append(taken)

    made = Walk("req")
    while not made.is_over:
        found, _ = watch(lane.driver, made.page(), work)
        assert bad_of(found) == []
    for taken in held:
        settle(lane.driver, taken)
    work_off(lane.driver)
    assert bad_of(walk(lane)) == []


# ------------------------------------------------------------------ the dispatch slot


def test_a_wiped_dispatch_slot_is_rebuilt(lane: Lane):
    queued(lane)
    other = Lane(lane.driver, lane.client, request_id="r2")
    other.now = lane.now
    finished(other)
    lane.client.delete(*lane.client.keys("{req}:*"))
    found = walk(lane, repair=True)
    assert sorted(bad_of(found)) == [("forgotten", "r1"), ("lost tokens", "r1"), ("unlogged", "r2")]
    assert not any(one.is_left for one in found)
    lane.now = server_ms(lane.client)
    assert standing(lane.client) == expected(lane)
    assert work_off(lane.driver) == [b"b0", b"b1", b"b2"]
    (first, second) = lane.run(read_completions("req", "0", 0))
    assert {first.id, second.id} == {"r1", "r2"}
    assert bad_of(walk(lane)) == []


def test_a_request_that_no_leader_looks_after_is_put_into_active(lane: Lane):
    queued(lane)
    lane.client.delete(ACTIVE)
    is_found_and_fixed(lane, ("forgotten", "r1"))
    score = lane.client.zscore(ACTIVE, "r1")
    assert score % 1 == 0.5
    assert abs(score - server_ms(lane.client)) < 5000


def test_a_request_that_ended_meanwhile_is_not_missed(lane: Lane):
    """It ends between the read of the request and the read of `active`."""
    (token,) = lane.start(1)
    announced(lane)

    def end(name: str) -> None:
        if name.endswith("ZSCORE") and lane.hash()["state"] == "active":
            lane.complete(lane.take(token))
            lane.client.zrem(ACTIVE, "r1")

    made = Walk("req", thorough=False)
    assert watch(lane.driver, made.page(), end)[0] == []
    assert lane.client.zcard(ACTIVE) == 0


def test_an_unlogged_ending_is_logged_once(lane: Lane):
    """The log entry has its counts; a recent end may be on its way to the log."""
    finished(lane)
    is_found_and_fixed(lane, ("unlogged", "r1"))
    (ending,) = lane.run(read_completions("req", "0", 0))
    assert (ending.id, ending.state, ending.done) == ("r1", "done", 1)
    young = Lane(lane.driver, lane.client, request_id="r2")
    young.now = server_ms(lane.client)
    finished(young)
    assert bad_of(walk(lane)) == []


@pytest.mark.parametrize("mark", ["", ".5"])
def test_an_entry_without_a_request_is_dropped(lane: Lane, mark: str):
    lane.client.zadd(ACTIVE, {"r1": f"{lane.now}{mark}"})
    is_found_and_fixed(lane, ("no request", "r1"))
    endings = lane.run(read_completions("req", "0", 0))
    assert [(one.id, one.state) for one in endings] == ([("r1", "lost")] if mark else [])


def test_a_recent_intent_is_left_alone(lane: Lane):
    lane.client.zadd(ACTIVE, {"r1": server_ms(lane.client)})
    assert bad_of(walk(lane, repair=True)) == []
    assert lane.client.zcard(ACTIVE) == 1


def test_an_entry_of_an_ended_or_foreign_request_is_dropped(lane: Lane):
    finished(lane)
    walk(lane, repair=True)
    Lane(lane.driver, lane.client, request_id="r2", queue="other").start(1)
    lane.client.zadd(ACTIVE, {"r1": lane.now, "r2": lane.now})
    is_found_and_fixed(lane, ("no request", "r1"), ("no request", "r2"))
    assert lane.client.zcard(ACTIVE) == 0
    assert lane.client.xlen(keys.completed("req")) == 1


def test_what_nothing_of_ours_wrote_is_taken_out(lane: Lane):
    lane.client.zadd(ACTIVE, {b"a b": 5, b"\xff": 5})
    lane.client.zadd(DELAYED, {b"garbage": 5, b"500|r1#0.1": 5})
    found = walk(lane, repair=True)
    assert {one.check for one in found} == {"no request", "unreadable"}
    assert [one.is_fixed for one in found] == [True] * 4
    assert not lane.client.exists(ACTIVE, DELAYED)


def test_stale_tokens_are_only_counted(lane: Lane):
    """They cost a round trip each, and then they are gone."""
    queued(lane)
    lane.client.lpush(HOME, b"gone#0.1", b"r1#0.999", b"junk")
    lane.client.zadd(DELAYED, {b"5|gone#0.1": 9e12})
    found = walk(lane)
    assert sorted((one.check, one.subject) for one in found) == [
        ("stale", "delayed"),
        ("stale", "lane 5"),
    ]
    assert "3 tokens" in next(one.what for one in found if one.subject == "lane 5")
    assert bad_of(found) == []
    lane.client.delete(DELAYED)


# ------------------------------------------------------------------ the request's slot


def test_lost_tokens_are_minted_again(lane: Lane):
    queued(lane)
    lane.client.rpop(HOME)
    is_found_and_fixed(lane, ("lost tokens", "r1"))
    assert standing(lane.client) == expected(lane)


def test_a_token_in_a_workers_hands_is_not_lost(lane: Lane):
    """It was popped before the walk read the lane, and used before the walk was done."""
    tokens = lane.start(1)
    announced(lane)

    def show(name: str) -> None:
        if name == "1 HGET" and tokens:
            lane.take(tokens.pop())

    made = Walk("req")
    while not made.is_over:
        assert bad_of(watch(lane.driver, made.page(), show)[0]) == []


def test_expired_leases_are_taken_back(lane: Lane):
    lane.take(lane.start(1)[0])
    announced(lane)
    is_found_and_fixed(lane, ("overdue", "r1"))
    assert lane.client.zcard(keys.leases("r1")) == 0


def test_a_request_without_a_queued_permit_gets_one(lane: Lane):
    lane.start(1)
    announced(lane)
    lane.client.hset(keys.permits("r1"), "0", "p:")
    lane.change("queued", 0)
    lane.change("free", 0)
    found = walk(lane)
    assert bad_of(found) == [("unsound", "r1")]
    assert "nothing is queued" in found[0].what
    is_found_and_fixed(lane, ("unsound", "r1"))
    lane.now = server_ms(lane.client)
    assert standing(lane.client) == expected(lane)


def test_a_request_past_its_deadline_is_sound(lane: Lane):
    """Its token was refused and nothing of it starts any more: maintenance ends it."""
    (token,) = lane.start(1, deadline_ms=1000)
    announced(lane)
    lane.later(2000)
    assert lane.acquire(token).word == "paused"
    assert bad_of(walk(lane)) == []


def test_what_cannot_be_repaired_is_left_to_a_person(lane: Lane):
    queued(lane, 20)
    lane.client.incr("counter:{r1}")
    for repair in (False, True):
        (found, *_) = walk(lane, repair=repair)
        assert (found.check, found.is_left) == ("unsound", True)
        assert ("under another id" in found.remedy) == repair


def test_what_outlived_the_end_goes(lane: Lane):
    finished(lane)
    walk(lane, repair=True)
    lane.client.set("counter:{r1}", 1)
    lane.client.persist("req:{r1}")
    is_found_and_fixed(lane, ("left over", "r1"))
    assert not lane.client.exists("counter:{r1}")
    assert lane.client.pttl("req:{r1}") > 0


def test_keys_without_a_request_expire_in_a_day(lane: Lane):
    held = lane.take(lane.start(3)[0])
    lane.complete(held, held.ids[:1], keep=True)
    lane.client.delete("req:{r1}")
    before = set(lane.client.keys())
    is_found_and_fixed(lane, ("orphan", "r1"))
    assert set(lane.client.keys()) == before
    assert all(0 < lane.client.pttl(key) <= settings.MARKER_MS for key in before)


@pytest.mark.parametrize("part", ["sub", "tok", "out"])
def test_one_key_alone_is_recognized_by_its_content(lane: Lane, part: str):
    held = lane.take(lane.start(3)[0])
    lane.complete(held, held.ids[:1], keep=True)
    for key in set(lane.client.scan_iter()):
        if not key.startswith(part.encode()):
            lane.client.delete(key)
    is_found_and_fixed(lane, ("orphan", "r1"))


def test_another_programs_keys_are_reported_and_left_alone(lane: Lane):
    client = lane.client
    client.set("counter:{theirs}", 1)
    client.hset("tok:{theirs}", "a", "b")
    client.xadd("out:{alone}", {"field": 1})
    client.zadd("lease:{z}", {"1": 1})
    client.set("req:{theirs}", "text")
    before = lane.dump()
    found = walk(lane, repair=True)
    assert bad_of(found) == []
    assert {one.subject for one in found} == {"theirs", "alone", "z"}
    assert lane.dump() == before
    client.flushall()


def test_other_queues_requests_are_left_alone(lane: Lane):
    other = Lane(lane.driver, lane.client, queue="other")
    other.start(1)
    other.change("queued", 7)
    before = other.dump()
    assert walk(lane, repair=True) == []
    assert other.dump() == before


def test_a_request_that_cannot_be_read_is_reported_and_the_others_are_repaired(lane: Lane):
    submitted(lane, "r1", "r2", "r3")
    lane.client.delete(ACTIVE)
    lane.client.set("tok:{r2}", "text")
    found = walk(lane, repair=True)
    assert sorted(bad_of(found)) == [
        *(("forgotten", f"r{i}") for i in (1, 2, 3)),
        ("unreadable", "r2"),
    ]
    assert [one.subject for one in found if one.is_left] == ["r2"]
    lane.client.flushall()


def test_a_full_redis_is_repaired(lane: Lane):
    """A request that is not in `active` could never be drained."""
    queued(lane)
    lane.client.delete(ACTIVE)
    lane.client.config_set("maxmemory", 1)
    try:
        found = walk(lane, repair=True)
    finally:
        lane.client.config_set("maxmemory", 0)
    assert [(one.check, one.is_left) for one in found] == [("forgotten", False)]
    assert lane.client.zscore(ACTIVE, "r1") % 1 == 0.5


def test_a_refusal_is_reported_with_the_finding(lane: Lane):
    """The log is no stream, so no end can be written to it; the walk continues."""
    finished(lane)
    lane.client.set(keys.completed("req"), "text")
    found = walk(lane, repair=True)
    assert [(one.check, one.is_left) for one in found] == [("unlogged", True)]
    assert "WRONGTYPE" in found[0].remedy
    lane.client.delete(keys.completed("req"))


# ------------------------------------------------------------------ pages


def test_it_goes_page_by_page(lane: Lane, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(walking, "PAGE", 20)
    monkeypatch.setattr(request_checks, "_PAGE", 20)
    names = {f"r{i}" for i in range(60)}
    for name in names:
        other = Lane(lane.driver, lane.client, request_id=name)
        other.now = lane.now
        other.start(11)
    for i in range(0, 60, 2):
        lane.client.delete(f"req:{{r{i}}}")
    found: list[Finding] = []
    made, pages = Walk("req"), 0
    while not made.is_over:
        new, _ = watch(lane.driver, made.page())
        found += new
        pages += 1
    assert pages > 5
    assert len(bad_of(found)) == len(set(bad_of(found)))
    assert {name for kind, name in bad_of(found) if kind == "orphan"} == {
        f"r{i}" for i in range(0, 60, 2)
    }
    assert {name for kind, name in bad_of(found) if kind == "forgotten"} == {
        f"r{i}" for i in range(1, 60, 2)
    }
    lane.client.flushall()


def test_the_hourly_walk_only_rebuilds(lane: Lane):
    """Lost tokens and leases are found by the check that follows."""
    lane.take(lane.start(3)[0])
    other = Lane(lane.driver, lane.client, request_id="r2")
    other.now = lane.now
    finished(other)
    found = walk(lane, repair=True, thorough=False)
    assert sorted(bad_of(found)) == [("forgotten", "r1"), ("unlogged", "r2")]
    made = Walk("req", thorough=False)
    steps = []
    while not made.is_over:
        steps += watch(lane.driver, made.page())[1]
    of_requests = ["2 HMGET", "1 ZSCORE", "1 ZSCORE"]
    if steps.count("SCAN") > 1:  # they may live on two nodes of a cluster
        steps = [step for step in steps if step not in {"Nodes", "SCAN", "TIME"}]
        assert steps in (of_requests, ["1 HMGET", "1 ZSCORE"] * 2)
    else:
        assert steps == ["Nodes", "SCAN", "TIME", *of_requests]


def test_an_idle_hourly_walk_reads_keys_only(lane: Lane):
    assert watch(lane.driver, Walk("req", thorough=False).page())[1] == ["Nodes", "SCAN"]


def test_a_primary_that_fails_over_is_walked_under_its_new_name():
    made = Walk("req", thorough=False)

    def page(*replies: Any) -> list[Any]:
        operation, asked = made.page(), []
        step = operation.send(None)
        for reply in replies:
            asked.append(step.node if isinstance(step, OnNode) else type(step))
            try:
                fails = isinstance(reply, Exception)
                step = operation.throw(reply) if fails else operation.send(reply)
            except StopIteration:
                break
        return asked

    away = RedisUnreachable("no answer")
    assert page(["a", "b", "c"], [b"0", []]) == [Nodes, "a"]
    with pytest.raises(RedisUnreachable):
        page(away, ["a", "b", "c"])
    assert page(away, ["a", "d", "c"]) == ["b", Nodes]
    assert page([b"7", []]) == ["d"]
    assert page([b"0", []]) == ["d"]
    assert not made.is_over
    assert page([b"0", []]) == ["c"]
    assert made.is_over


def test_a_request_of_an_hour_in_submission_is_whole(lane: Lane):
    queued(lane, open_ms=HOUR)
    assert bad_of(walk(lane)) == []


def test_what_a_sink_keeps_is_given_an_end(lane: Lane):
    lane.client.hset(keys.area("gone", "t", "0:1"), "rows", 1)
    lane.client.sadd(keys.unique_ids("gone"), "i1")
    lane.client.hset(keys.transaction("r1", "t"), "state", "pinned")
    lane.client.hset(keys.area("kept", "t", "0:1"), "rows", 1)
    lane.client.pexpire(keys.area("kept", "t", "0:1"), HOUR)
    expected = [("orphan", "gone"), ("orphan", "gone"), ("orphan", "r1")]
    assert sorted(bad_of(walk(lane))) == expected
    found = walk(lane, repair=True)
    assert sorted(bad_of(found)) == expected
    assert not any(one.is_left for one in found)
    assert bad_of(walk(lane)) == []
    assert 0 < lane.client.pttl(keys.unique_ids("gone")) <= settings.PINNED_MS
    assert 0 < lane.client.pttl(keys.area("kept", "t", "0:1")) <= HOUR
