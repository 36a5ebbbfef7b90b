"""Tests the recovery of lost tokens: permits whose tokens are in no lane get new ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fairlane.errors import NodeAway
from fairlane.operations import audit, workers
from fairlane.operations.audit import Suspect, queued_long, remint_lost
from fairlane.protocol import keys
from tests.support.operations.upkeep import (
    DELAYED,
    HOME,
    expected,
    queued,
    server_ms,
    standing,
    suspects,
    token,
    watch,
)
from tests.support.scripts.requests import MINUTE, Lane, Tok, insert, pop_token

if TYPE_CHECKING:
    from fairlane.drivers.sync import SyncDriver


def test_what_was_queued_just_now_is_not_suspected(lane: Lane):
    """Its token may be on its way."""
    lane.start(3)
    assert lane.run(queued_long("r1")) == []


def test_what_sleeps_is_not_suspected_until_it_was_due(old: Lane):
    """The grace counts from the later of since and due."""
    held = old.take(old.start(1)[0])
    old.complete(held, others=[(held.ids[0], "retry", 2 * MINUTE)])
    assert old.run(queued_long("r1")) == []
    assert len(queued(old)) == 1


def test_a_lost_tokens_due_is_kept(lane: Lane):
    """A retry does not run early because its token was lost."""
    held = lane.take(lane.start(1)[0])
    lane.complete(held, others=[(held.ids[0], "retry", MINUTE)])
    ((g, _, due),) = queued(lane).values()
    assert lane.run(remint_lost("req", suspects(lane))) == 1
    ((again, _, due_again),) = queued(lane).values()
    assert (int(again) > int(g), due_again) == (True, due)
    ((member, score),) = lane.client.zrange(DELAYED, 0, -1, withscores=True)
    assert [member] == [b"5|" + one for one in expected(lane)]
    assert abs(score - due) < 1000
    lane.client.delete(DELAYED)


def test_tokens_that_stand_somewhere_are_left(old: Lane):
    here, later, lost = old.start(3)
    old.client.lpush(HOME, token(here))
    old.client.zadd(DELAYED, {b"5|" + token(later): 9e12})
    before = queued(old)
    assert old.run(remint_lost("req", suspects(old))) == 1
    after = queued(old)
    assert {k for k in before if before[k] != after[k]} == {lost.k}
    assert standing(old.client) == sorted([token(here), token(Tok(5, lost.k, after[lost.k][0]))])
    assert old.client.zcard(DELAYED) == 1
    old.client.delete(DELAYED)


def test_without_suspects_nothing_is_read(driver: SyncDriver):
    assert watch(driver, remint_lost("req", [])) == (0, [])


def test_a_token_promoted_meanwhile_is_seen(old: Lane):
    """`delayed` is read first, because tokens move only from there to the lane."""
    (late,) = old.start(1)
    old.client.zadd(DELAYED, {b"5|" + token(late): 1})
    seen: list[str] = []

    def promote(name: str) -> None:
        if seen:
            old.run(workers.promote("req"))
        seen.append(name)

    assert watch(old.driver, remint_lost("req", suspects(old)), promote)[0] == 0
    assert expected(old) == [token(late)]


def test_a_token_popped_meanwhile_costs_one_stale_token(old: Lane):
    """A worker has it: that token is refused, its copy is not, and nothing runs twice."""
    (only,) = old.start(1)
    old.client.lpush(HOME, token(only))
    popped = []

    def pop(name: str) -> None:
        if name == "1 LPOS":
            popped.append(pop_token(old.driver))

    minted, steps = watch(old.driver, remint_lost("req", suspects(old)), pop)
    assert (minted, steps) == (1, ["HMGET", "1 ZSCORE", "1 LPOS", "1 reap", "1 insert_tokens"])
    old.now = server_ms(old.client)
    hand, copy = *popped, pop_token(old.driver)
    assert hand
    assert copy
    assert old.acquire(Tok(5, hand.k, hand.g)).word == "stale"
    held = old.take(Tok(5, copy.k, copy.g))
    assert old.complete(held)[0] == b"ended"
    assert pop_token(old.driver) is None


def test_few_tokens_are_looked_up_one_by_one(old: Lane):
    insert(old.driver, "req", "r1", old.enqueue(20, limit=20)[1])
    asked = remint_lost("req", suspects(old))
    assert watch(old.driver, asked) == (0, ["HMGET", "20 ZSCORE", "20 LPOS"])


@pytest.mark.parametrize(("others", "pages"), [(0, 1), (980, 2), (2400, 3)])
def test_for_many_tokens_the_lane_is_read_page_by_page(old: Lane, others: int, pages: int):
    insert(old.driver, "req", "r1", old.enqueue(21, limit=21)[1])
    assert pop_token(old.driver)
    if others:
        old.client.rpush(HOME, *[b"other#0.%d" % i for i in range(others)])
    minted, steps = watch(old.driver, remint_lost("req", suspects(old)))
    assert (minted, steps[1:2], steps[-2:]) == (1, ["21 ZSCORE"], ["1 reap", "1 insert_tokens"])
    assert steps[2:-2] == ["LRANGE"] * 2 * pages, "twice, for the one that is missing"
    assert set(expected(old)) <= set(standing(old.client))


def test_tokens_that_change_ends_meanwhile_are_looked_for_again(old: Lane):
    """A lease continues in place of the next one, which slips past the reader; but hardly twice."""
    insert(old.driver, "req", "r1", old.enqueue(30, limit=30)[1])
    old.client.lpush(HOME, *[b"other#0.%d" % i for i in range(1500)])
    turns = 0

    def change(name: str) -> None:
        nonlocal turns
        if name == "LRANGE" and (turns := turns + 1) == 2:
            for _ in range(5):
                old.client.rpoplpush(HOME, HOME)

    minted, steps = watch(old.driver, remint_lost("req", suspects(old)), change)
    assert (minted, steps[2:]) == (0, ["LRANGE"] * 3)


def test_tokens_that_come_in_meanwhile_hide_none(old: Lane):
    """They push the others towards the reader, not past it; and pops take from the other end."""
    flat = old.enqueue(21, limit=21)[1]
    old.client.lpush(HOME, *[b"other#0.%d" % i for i in range(1060)])
    insert(old.driver, "req", "r1", flat)
    old.client.lpush(HOME, *[b"other#1.%d" % i for i in range(990)])

    def push(name: str) -> None:
        if name == "LRANGE":
            old.client.lpush(HOME, *[b"other#2.%d" % i for i in range(50)])
            old.client.rpop(HOME, 50)

    minted, steps = watch(old.driver, remint_lost("req", suspects(old)), push)
    assert (minted, steps) == (0, ["HMGET", "21 ZSCORE", *["LRANGE"] * 2])


def test_a_shard_that_is_away_keeps_no_token_of_another_from_being_found():
    away = NodeAway("Redis at h:1 has not answered")
    looking = audit.find_lost("req", [Suspect("r1", "0", "1", 5), Suspect("r1", "1", "2", 305)])
    first: Any = looking.send(None)
    (here, there) = first.steps
    assert (here.args[1], there.args[1]) == (DELAYED, keys.delayed("req", 3))
    second: Any = looking.send([None, away])
    (place,) = second.steps
    assert place.args[:3] == (b"LPOS", HOME, b"r1#0.1")
    with pytest.raises(StopIteration) as end:
        looking.send([None])
    assert end.value.value == ({"r1": [Suspect("r1", "0", "1", 5)]}, [away])
