"""Tests the audit: it finds lost tokens and old leases without a check of every request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fairlane import settings
from fairlane.errors import FairlaneError
from fairlane.operations import audit, shards, tokens, workers
from fairlane.operations.audit import Audit
from fairlane.operations.completion import read_completions
from fairlane.operations.shards import Shards
from fairlane.protocol import keys
from tests.support.operations.upkeep import (
    ACTIVE,
    DELAYED,
    HOME,
    WORKERS,
    expected,
    server_ms,
    standing,
    suspects,
    watch,
)
from tests.support.scripts.requests import HOUR, MINUTE, Lane, Tok, insert

if TYPE_CHECKING:
    from fairlane.drivers.sync import SyncDriver


GRACE = settings.TOKEN_GRACE_MS
SEEN = "9000000000000.5"  # in `active`: the request exists, and is not checked for long


@pytest.fixture
def lane(lane: Lane) -> Lane:
    """Makes the request `r1`, as of a minute ago: what is queued then has been queued for long."""
    lane.now = server_ms(lane.client) - MINUTE
    return lane


@pytest.fixture
def no_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the audit read no request that it does not suspect."""
    monkeypatch.setattr(settings, "AUDIT_SAMPLE", 0)


def other(lane: Lane, name: str) -> Lane:
    """Makes another request of the same moment."""
    made = Lane(lane.driver, lane.client, request_id=name)
    made.now = lane.now
    return made


def submit(lane: Lane, *, in_lane: bool = True, bodies: int = 1, **options: Any) -> list[Any]:
    """Submits a request as its producer does, perhaps without its tokens."""
    flat = lane.enqueue(bodies, **options)[1]
    lane.client.zadd(ACTIVE, {lane.id: float(SEEN)})
    if in_lane:
        insert(lane.driver, "req", lane.id, flat)
    return list(flat)


def submit_some(lane: Lane, count: int, **options: Any) -> list[Lane]:
    """Submits so many requests: r0, r1, ..."""
    made = [other(lane, f"r{i}") for i in range(count)]
    for one in made:
        submit(one, **options)
    return made


def glanced(steps: list[str]) -> int:
    """Returns how many requests were read."""
    return sum(int(name.split()[0]) for name in steps if name.endswith(" glance"))


def lose(lane: Lane, count: int = 1) -> None:
    """Takes tokens of this request out of its lane."""
    own = [one for one in standing(lane.client) if one.startswith(lane.id.encode() + b"#")]
    for one in own[:count]:
        lane.client.lrem(HOME, 1, one)


# ------------------------------------------------------------------ lost tokens


@pytest.mark.usefixtures("no_sample")
def test_a_lost_token_is_found_and_only_its_request_is_glanced_at(lane: Lane):
    """Requests with a token in a lane wait for their turn."""
    made = submit_some(lane, 20, limit=1)
    lose(made[7])
    minted, steps = watch(lane.driver, Audit("req").run(GRACE))
    assert (minted, glanced(steps)) == (1, 1)
    (again,) = suspects(made[7])
    assert again.token.encode() in standing(lane.client)
    assert len(standing(lane.client)) == 20
    assert watch(lane.driver, Audit("req").run(GRACE))[0] == 0


def test_each_lost_token_of_a_request_with_several_is_found(lane: Lane):
    submit(lane, bodies=9, limit=3)
    lose(lane, 2)
    assert lane.run(Audit("req").run(GRACE)) == 2
    lane.now = server_ms(lane.client)
    assert standing(lane.client) == expected(lane)
    assert len(expected(lane)) == 3


def test_a_token_that_was_queued_just_now_is_not_suspected(lane: Lane):
    """The token may be on its way; after a death the grace is shorter."""
    lane.now = server_ms(lane.client) - 3_000
    submit(lane, in_lane=False)
    assert lane.run(Audit("req").run(GRACE)) == 0
    assert lane.run(Audit("req").run(1_000)) == 1


@pytest.mark.usefixtures("no_sample")
def test_a_request_whose_only_token_is_delayed_waits(lane: Lane):
    submit(lane, in_lane=False)
    (only,) = suspects(lane)
    lane.client.zadd(DELAYED, {f"5|{only.token}": 9e12})
    minted, steps = watch(lane.driver, Audit("req").run(GRACE))
    assert (minted, glanced(steps)) == (0, 0)
    lane.client.delete(DELAYED)
    assert lane.run(Audit("req").run(GRACE)) == 1


def test_a_token_that_is_promoted_during_the_audit_is_not_lost(lane: Lane):
    """`delayed` is read before the lanes."""
    submit(lane, in_lane=False)
    (only,) = suspects(lane)
    lane.client.zadd(DELAYED, {f"5|{only.token}": 1})

    def promote(name: str) -> None:
        if name == "100 LLEN":
            lane.run(workers.promote("req"))

    assert watch(lane.driver, Audit("req").run(GRACE), promote)[0] == 0
    assert standing(lane.client) == [only.token.encode()]


@pytest.mark.usefixtures("no_sample")
def test_tokens_in_the_lanes_of_shards_are_seen(lane: Lane):
    lane.run(shards.set_shards("req", Shards((3, 4))))
    made = [other(lane, name) for name in ("r1", "r2")]
    for one, place in zip(made, ("3", "4"), strict=True):
        submit(one, limit=1, shards=place)
    minted, steps = watch(lane.driver, Audit("req").run(GRACE))
    assert (minted, glanced(steps)) == (0, 0)
    lane.client.delete(keys.lanes("req", 4)[5])
    minted, steps = watch(lane.driver, Audit("req").run(GRACE))
    assert (minted, glanced(steps)) == (1, 1)
    assert lane.client.llen(keys.lanes("req", 3)[5]) == 1
    assert lane.client.llen(keys.lanes("req", 4)[5]) == 1


def test_a_token_in_a_shard_that_no_worker_looks_into_is_lost(lane: Lane):
    """`conf` was rolled back: the request is moved."""
    submit(lane, limit=1, shards="7")
    assert lane.run(Audit("req").run(GRACE)) == 1
    assert len(standing(lane.client)) == 1
    lane.client.delete(keys.lanes("req", 7)[5])


@pytest.mark.usefixtures("no_sample")
def test_long_lanes_and_lists_are_read_page_by_page(lane: Lane, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(audit, "_PAGE", 5)
    made = submit_some(lane, 15, limit=1)
    minted, steps = watch(lane.driver, Audit("req").run(GRACE))
    assert (minted, glanced(steps), steps.count("LRANGE")) == (0, 0, 4)
    lose(made[14])
    assert lane.run(Audit("req").run(GRACE)) == 1


def test_an_idle_queue_costs_a_few_reads(driver: SyncDriver, redis_client: Any):
    minted, steps = watch(driver, Audit("req").run(GRACE))
    assert (minted, glanced(steps)) == (0, 0)
    assert set(steps) <= {"ZCARD", "ZSCAN", "HMGET", "100 LLEN", "ZRANGE", "2 TIME"}
    assert redis_client.dbsize() == 0


# ------------------------------------------------------------------ leases


@pytest.mark.usefixtures("no_sample")
def test_an_expired_lease_is_found_without_a_note(lane: Lane):
    """Its request has no token in a lane; `active` would name it much later."""
    submit(lane, in_lane=False)
    (only,) = suspects(lane)
    lane.take(Tok(5, only.k, only.g))
    assert lane.run(Audit("req").run(GRACE)) == 0
    assert lane.client.zcard(keys.leases("r1")) == 0
    lane.now = server_ms(lane.client)
    assert standing(lane.client) == expected(lane)
    assert lane.client.zscore(ACTIVE, "r1") < float(SEEN)


def test_a_lease_that_goes_on_is_left_alone(lane: Lane):
    lane.later(MINUTE)
    submit(lane, in_lane=False)
    (only,) = suspects(lane)
    lane.take(Tok(5, only.k, only.g))
    before = lane.dump()
    minted, steps = watch(lane.driver, Audit("req").run(GRACE))
    assert (minted, glanced(steps), "reap" in steps) == (0, 1, False)
    assert lane.dump() == before


def held_beside_a_token(lane: Lane) -> None:
    """Makes an expired lease of `r1`, noted by a live worker; its other token is in the lane."""
    submit(lane, in_lane=False, bodies=4, limit=2)
    mine, kept = suspects(lane)
    lane.take(Tok(5, mine.k, mine.g), count=1)
    lane.client.lpush(HOME, kept.token)
    lane.client.zadd(WORKERS, {"w:1": server_ms(lane.client)})
    lane.client.hset(keys.taken("req", "w:1"), "0.1", f"{mine.token} rx#0.1 no-token")
    lane.client.expire(keys.taken("req", "w:1"), 600)


@pytest.mark.usefixtures("no_sample")
def test_what_a_worker_has_held_for_two_audits_is_looked_at(lane: Lane):
    """Such a lease may have expired, although its request has other tokens in a lane."""
    held_beside_a_token(lane)
    audits, glances = Audit("req"), []
    for _ in range(2):
        _, steps = watch(lane.driver, audits.run(GRACE))
        glances.append((glanced(steps), "reap" in steps))
    assert glances == [(0, False), (1, True)]
    assert lane.client.zcard(keys.leases("r1")) == 0


@pytest.mark.usefixtures("no_sample")
def test_what_a_worker_has_let_go_between_two_audits_is_not_looked_at(lane: Lane):
    held_beside_a_token(lane)
    audits = Audit("req")
    lane.run(audits.run(GRACE))
    lane.client.hset(keys.taken("req", "w:1"), "0.1", "ry#0.1")
    assert glanced(watch(lane.driver, audits.run(GRACE))[1]) == 0


# ------------------------------------------------------------------ some of many


def test_the_sample_is_the_urgent_and_others_in_turn(lane: Lane, monkeypatch: pytest.MonkeyPatch):
    """After so many audits every request had its turn, and the turns begin again."""
    monkeypatch.setattr(settings, "AUDIT_SAMPLE", 4)
    urgent = [other(lane, name) for name in ("u0", "u1")]
    for one in urgent:
        submit(one, bodies=4, limit=2, priority=1)
    made = submit_some(lane, 4, bodies=4, limit=2)
    for one in made:
        lose(one)
    audits = Audit("req")
    found = [lane.run(audits.run(GRACE)) for _ in range(3)]
    assert found == [0, 2, 2]
    lane.client.lpop(keys.lanes("req")[1])
    for one in (*urgent, *made):
        age(one)
    assert lane.run(audits.run(GRACE)) == 1, "the most urgent are looked at each time"


def age(lane: Lane) -> None:
    """Makes every token of a request look as if it had been queued a minute ago."""
    permits = keys.permits(lane.id)
    for k, text in lane.client.hgetall(permits).items():
        kind, g, _, *rest = text.split(b":")
        if kind == b"q":
            lane.client.hset(permits, k, b":".join([kind, g, b"%d" % lane.now, *rest]))


@pytest.mark.parametrize(("unfinished", "audits"), [(9, 1), (10, 2), (25, 3)])
def test_of_very_many_requests_each_audit_compares_a_part(
    lane: Lane, monkeypatch: pytest.MonkeyPatch, unfinished: int, audits: int
):
    monkeypatch.setattr(settings, "AUDIT_PART", 10)
    submit_some(lane, unfinished, in_lane=False, limit=1)
    one = Audit("req")
    found = [lane.run(one.run(GRACE)) for _ in range(audits)]
    assert sum(found) == unfinished == len(standing(lane.client))
    assert all(0 < part < unfinished for part in found) or audits == 1
    assert lane.run(one.run(GRACE)) == 0


# ------------------------------------------------------------------ what is no waiting request


def test_an_intent_on_its_way_is_left_alone(lane: Lane):
    """The intent has its own timeout; no request exists yet."""
    lane.client.zadd(ACTIVE, {"r1": server_ms(lane.client) + 5_000})
    before = lane.dump()
    assert lane.run(Audit("req").run(GRACE)) == 0
    assert lane.dump() == before
    lane.client.delete(ACTIVE)


def test_a_request_that_was_seen_to_exist_and_is_gone_is_logged_as_lost(lane: Lane):
    lane.client.zadd(ACTIVE, {"r1": float(tokens.seen_to_exist(9 * 10**12))})
    for _ in range(2):
        assert lane.run(Audit("req").run(GRACE)) == 0
    (ending,) = lane.run(read_completions("req", "0", 0))
    assert (ending.id, ending.state) == ("r1", "lost")
    assert lane.client.zcard(ACTIVE) == 0


def test_an_end_that_was_not_logged_is_logged_once(lane: Lane):
    submit(lane, in_lane=False)
    (only,) = suspects(lane)
    lane.complete(lane.take(Tok(5, only.k, only.g)))
    for _ in range(2):
        assert lane.run(Audit("req").run(GRACE)) == 0
    assert [one.state for one in lane.run(read_completions("req", "0", 0))] == ["done"]
    assert lane.client.zcard(ACTIVE) == 0


def test_the_request_of_another_queue_is_dropped_and_left_alone(lane: Lane):
    foreign = Lane(lane.driver, lane.client, queue="other")
    foreign.now = lane.now
    foreign.enqueue(1)
    before = foreign.dump()
    lane.client.zadd(ACTIVE, {"r1": float(SEEN)})
    assert lane.run(Audit("req").run(GRACE)) == 0
    assert foreign.dump() == before


def test_a_request_left_open_is_cancelled(lane: Lane):
    lane.later(-2 * HOUR)
    submit(lane, in_lane=False, open_ms=HOUR)
    lane.run(Audit("req").run(GRACE))
    (ending,) = lane.run(read_completions("req", "0", 0))
    assert (ending.state, ending.reason) == ("cancelled", "abandoned")


@pytest.mark.parametrize("damage", ["permits", "hash"])
def test_a_request_that_cannot_be_read_keeps_no_other_from_its_tokens(lane: Lane, damage: str):
    """Its error is returned; nor does an invalid name stop the audit."""
    made = submit_some(lane, 3, in_lane=False, limit=1)
    bad = keys.permits("r1") if damage == "permits" else keys.request_hash("r1")
    lane.client.delete(bad)
    lane.client.set(bad, "text")
    lane.client.zadd(ACTIVE, {"{": 2.5, b"\xff": 3.5})
    failed: dict[str, FairlaneError] = {}
    assert lane.run(Audit("req").run(GRACE, failed)) == 2
    assert list(failed) == ["r1"]
    assert "WRONGTYPE" in str(failed["r1"])
    names = {token.partition(b"#")[0].decode() for token in standing(lane.client)}
    assert names == {made[0].id, made[2].id}
    lane.client.delete(*keys.request_keys("r1"))


def test_a_lane_that_cannot_be_read_is_no_proof_that_a_token_is_lost(lane: Lane):
    """Any request may wait there. What is found without it is done first."""
    alone = other(lane, "r2")
    submit(alone, in_lane=False, limit=1)
    submit(lane, bodies=9, limit=3)
    lose(lane, 2)
    damaged = keys.lanes("req")[7]
    lane.client.set(damaged, "text")
    with pytest.raises(FairlaneError, match="WRONGTYPE"):
        lane.run(Audit("req").run(GRACE))
    names = [token.partition(b"#")[0] for token in standing(lane.client)]
    assert names == [b"r1"] * 3
    lane.client.delete(damaged)
    assert lane.run(Audit("req").run(GRACE)) == 1


def test_requests_of_which_nothing_is_expected_are_first_all_glanced_at_and_then_in_turn(
    lane: Lane, monkeypatch: pytest.MonkeyPatch
):
    """Thousands may be paused. A lost token beside them is found as soon as ever."""
    monkeypatch.setattr(settings, "AUDIT_SAMPLE", 4)
    made = submit_some(lane, 20, in_lane=False, limit=1)
    for one in made:
        one.call("pause", one.names)
    looking = Audit("req")
    found = [glanced(watch(lane.driver, looking.run(GRACE))[1]) for _ in range(3)]
    assert found == [20, 4, 4]
    made[7].call("resume", made[7].names)
    lost = other(lane, "r20")
    submit(lost, in_lane=False, limit=1)
    assert lane.run(looking.run(GRACE)) >= 1
    assert any(token.startswith(b"r20#") for token in standing(lane.client))


def test_a_worker_that_left_the_registry_is_still_found_by_its_notes(lane: Lane):
    """Its lease may last longer than its record."""
    (mine, *_) = lane.start(9, limit=3, lease_ms=HOUR)
    lane.client.zadd(ACTIVE, {"r1": float(SEEN)})
    insert(lane.driver, "req", "r1", [b"5", b"1.2", 0])
    lane.take(mine)
    taken = keys.taken("req", "w:1")
    lane.client.hset(taken, "0.0", f"r1#{mine.k}.{mine.g}")
    lane.client.expire(taken, 600)
    lane.client.zadd(WORKERS, {"w:1": 1})
    looking = Audit("req")
    lane.run(looking.run(GRACE))
    lane.client.delete(WORKERS)
    lane.client.zadd(keys.leases("r1"), {mine.k: 1})
    lane.run(looking.run(GRACE))
    assert lane.client.zcard(keys.leases("r1")) == 0
