"""Tests which lanes a unit pops next, if its queue has several shards."""

from __future__ import annotations

from typing import Any

import pytest

from fairlane import settings
from fairlane.protocol import keys
from fairlane.protocol.steps import Popped
from fairlane.worker.board import LeaseBoard
from fairlane.worker.unit import LaneRotation
from tests.support.run.for_each import for_each

SHARDS = (3, 4, 9)


def turns_of(*shards: int, unit: int = 0, units: int = 1) -> tuple[LaneRotation, LeaseBoard]:
    """Returns the rotation of a unit whose supervisor has set these shards."""
    board = LeaseBoard(units)
    board.spread(shards or (0,))
    return LaneRotation("req", "w:1", board.records[unit]), board


def asked(pop: Any) -> tuple[int, int]:
    """Returns the shard of a pop, and the least urgent priority it would take."""
    last = keys.number_of(pop.keys[-1])
    return divmod(last, keys.LANES)


def brought(shard: int, priority: int) -> Popped:
    return Popped(keys.lane("req", shard * keys.LANES + priority), [b"r1#0.1"])


def test_a_queue_that_is_not_spread_is_waited_at():
    """There is one pop of its own lanes, from which a drain can wake."""
    turns, _ = turns_of()
    for came in (None, brought(0, 5), None):
        pop = turns.next(7)
        assert pop.keys == (keys.wake("req", "w:1"), *keys.lanes("req"))
        assert (pop.most, pop.seconds) == (7, settings.BLOCK_MS / 1000)
        turns.record_pop(came)


def test_a_single_shard_is_waited_at_as_well():
    """There is no other shard to read."""
    turns, _ = turns_of(3)
    assert turns.next(1).keys == (keys.wake("req", "w:1", 3), *keys.lanes("req", 3))
    turns.record_pop(None)
    assert turns.next(1).seconds == settings.BLOCK_MS / 1000


def test_shards_have_their_turns():
    """Each gets the same number, whatever it returns."""
    turns, _ = turns_of(*SHARDS)
    seen = []
    for _ in range(9):
        shard, _ = asked(turns.next(1))
        seen.append(shard)
        turns.record_pop(brought(shard, 5))
    assert seen[:3] * 3 == seen
    assert sorted(seen[:3]) == list(SHARDS)


def test_only_what_is_as_urgent_is_taken_from_the_next_shard():
    """Priority is strict, over all shards."""
    turns, _ = turns_of(*SHARDS)
    assert asked(turns.next(1))[1] == 99
    turns.record_pop(brought(3, 40))
    assert asked(turns.next(1))[1] == 40
    turns.record_pop(brought(4, 7))
    assert asked(turns.next(1))[1] == 7


def test_what_is_less_urgent_is_taken_after_a_round_without_success():
    """No shard is waited at before all were popped for anything."""
    turns, _ = turns_of(*SHARDS)
    turns.next(1)
    turns.record_pop(brought(3, 7))
    bounds = []
    for _ in range(7):
        pop = turns.next(1)
        bounds.append((asked(pop)[1], pop.seconds))
        turns.record_pop(None)
    wait = settings.SHARD_BLOCK_MS / 1000
    assert bounds == [(7, 0)] * 3 + [(99, 0)] * 3 + [(99, wait)]


def test_an_idle_unit_waits_at_one_shard_after_the_other():
    """It waits for a moment at each: a token elsewhere is found within so many of them."""
    turns, _ = turns_of(*SHARDS)
    for _ in SHARDS:
        turns.next(1)
        turns.record_pop(None)
    pops = []
    for _ in range(3):
        pops.append(turns.next(1))
        turns.record_pop(None)
    assert sorted(asked(pop)[0] for pop in pops) == list(SHARDS)
    assert {pop.keys[0] for pop in pops} == {keys.wake("req", "w:1", shard) for shard in SHARDS}
    assert all(pop.seconds == settings.SHARD_BLOCK_MS / 1000 for pop in pops)


def test_units_begin_at_different_shards():
    """So some unit waits at each of them."""
    firsts = {asked(turns_of(*SHARDS, unit=unit, units=30)[0].next(1))[0] for unit in range(30)}
    assert firsts == set(SHARDS)


def test_what_is_fetched_ahead_comes_from_the_next_shard():
    """They have the same priority or a more urgent one."""
    turns, _ = turns_of(*SHARDS)
    pops = [asked(turns.ahead(keys.lane("req", 306), 5)) for _ in range(3)]
    assert sorted(shard for shard, _ in pops) == list(SHARDS)
    assert {priority for _, priority in pops} == {6}


@for_each("shards", [(3, 4), SHARDS, (1, 2, 3, 4)])
@for_each("ahead", [1, 2, 3, 4])
def test_no_rhythm_leaves_a_shard_out(shards: tuple[int, ...], ahead: int):
    """However many are prefetched between two pops, as many pops as shards cover them all."""
    turns, _ = turns_of(*shards)
    seen = []
    for _ in range(12):
        seen.append(asked(turns.next(1))[0])
        turns.record_pop(brought(seen[-1], 6))
        seen += [asked(turns.ahead(keys.lane("req", 306), 5))[0] for _ in range(ahead)]
    some = [set(seen[at : at + len(shards)]) for at in range(len(seen) - len(shards))]
    assert all(part == set(shards) for part in some)


@pytest.mark.parametrize("left", [(), (3,), SHARDS])
def test_a_change_is_noticed_at_the_next_pop(left: tuple[int, ...]):
    """The reply to a heartbeat names the shards."""
    turns, board = turns_of(*left)
    turns.next(1)
    turns.record_pop(None)
    board.spread((7, 8))
    assert asked(turns.next(1))[0] in {7, 8}


def test_a_wake_does_not_narrow_what_is_taken():
    """A wake is no token."""
    turns, _ = turns_of(*SHARDS)
    turns.next(1)
    turns.record_pop(Popped(keys.wake("req", "w:1", 3), [b"wake"]))
    assert asked(turns.next(1))[1] == 99


def test_a_shard_that_does_not_answer_is_passed_over():
    """No reply is passed on: the next pop calls another one."""
    turns, _ = turns_of(*SHARDS)
    seen = [asked(turns.next(1))[0] for _ in range(3)]
    assert sorted(seen) == list(SHARDS)


def test_shards_that_do_not_answer_are_popped_in_turn_with_a_pause_after_a_round():
    """The pause is as long as a pop waits: units must not spin while all shards are away."""
    turns, _ = turns_of(*SHARDS)
    pauses = []
    for _ in range(6):
        turns.next(1)
        pauses.append(turns.failed())
    assert pauses == [0, 0, 0] + [settings.SHARD_BLOCK_MS / 1000] * 3


def test_a_shard_with_a_number_too_large_is_left_out():
    """It belongs to a later release."""
    board = LeaseBoard(1)
    board.spread((7, 300))
    assert tuple(board.records[0].shards) == (7,)
