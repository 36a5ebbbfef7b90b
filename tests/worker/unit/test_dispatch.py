"""Tests what a unit does while a node is unreachable, step by step with replies by hand."""

from __future__ import annotations

from typing import Any

import pytest

from fairlane import settings
from fairlane.errors import NodeAway, RedisUnfit
from fairlane.protocol import keys
from fairlane.protocol.steps import Batch, Command, Pause, Pop, Popped
from fairlane.worker import unit as dispatch
from fairlane.worker.board import LeaseBoard
from fairlane.worker.calls import Outcome
from fairlane.worker.measures import Metrics
from fairlane.worker.unit import FollowUps, Sizer, Unit, acquire
from tests.support.processes.worker_units import (
    POPPED,
    TOKENS,
    argument,
    begin,
    done,
    echo,
    handle,
    held,
    names_of,
    popped,
    quick_unit,
    rest_of,
    show,
    take,
)
from tests.support.run.for_each import for_each
from tests.worker.parts import granted, unit_of_its_own, unnoted

SHARDS = (3, 4)


def away(away_s: float = 0.0) -> NodeAway:
    """Raises the error of a node that has been away for so long."""
    return NodeAway("Redis at h:1 has not answered", away_s)


def delayed(call: Any) -> list[Any]:
    """Returns the arguments of an insertion: lane, tokens now and later, these with delays."""
    assert call.script.name == "insert_tokens"
    return rest_of(call)


def spread_unit() -> Unit:
    """Makes a unit of a queue over two shards."""
    board = LeaseBoard(1)
    board.spread(SHARDS)
    return Unit("req", "w:1", "7", board.records[0], Sizer(20), Metrics("req"))


# ------------------------------------------------------------------ tokens


@for_each("away_s, delay_ms", [(0.0, 1_000), (2.5, 2_500), (14.0, 14_000), (600.0, 15_000)])
def test_a_token_whose_node_is_away_is_put_off(away_s: float, delay_ms: int):
    """The longer the node has been away, the longer, up to a bound; then the unit pops again."""
    unit = unit_of_its_own()
    loop, _ = begin(unit)
    loop.send([POPPED])
    step: Any = loop.throw(away(away_s))
    assert names_of(step) == ["insert_tokens", "pop"]
    assert delayed(step.steps[0]) == [5, 0, 1, b"r1#0.3", delay_ms]
    assert unit.record.pending_acquire() is None


def test_a_token_of_a_shard_is_put_off_in_its_shard():
    """The auditor looks for it there."""
    unit = spread_unit()
    loop, _ = begin(unit)
    lane = keys.lane("req", 405)
    loop.send([Popped(lane, [b"r1#0.3"])])
    step = loop.throw(away())
    insertion = step.steps[0]
    assert insertion.keys == [keys.delayed("req", 4), lane]
    assert delayed(insertion) == [5, 0, 1, b"r1#0.3", 1_000]


def test_of_several_tokens_those_of_the_node_are_put_off():
    """The leases of the other nodes are worked on."""
    unit = quick_unit()
    loop, shown = show(unit, 3)
    assert shown.away_s == settings.AWAY_S
    step = loop.send([granted(b"x"), away(3.0), granted(b"y")])
    assert names_of(step) == ["insert_tokens"]
    assert delayed(step.steps[0]) == [5, 0, 1, b"r1#0.3", 3_000]
    assert names_of(loop.send([1])) == ["handle"]
    assert len(held(unit)) == 2


def test_several_tokens_of_one_node_are_all_put_off():
    """A batch raises an error if nothing of it was answered."""
    unit = quick_unit()
    loop, _ = show(unit, 2)
    step = loop.throw(away())
    assert names_of(step) == ["insert_tokens", "pop"]
    assert delayed(step.steps[0]) == [5, 0, 2, b"r0#0.3", 1_000, b"r1#0.3", 1_000]
    assert held(unit) == []
    assert len(unit.free) == 8


@pytest.mark.parametrize("was_sent", [True, False])
def test_an_acquire_that_may_be_performed_later_is_left_to_the_supervisor(*, was_sent: bool):
    """A node that only hung grants it; a postponed token would be stale then."""
    unit, error = unit_of_its_own(), away()
    error.was_sent = was_sent
    loop, _ = begin(unit)
    call: Any = loop.send([POPPED])
    op = argument(call, "op")
    assert names_of(loop.throw(error)) == ["insert_tokens", "pop"]
    assert unit.record.abandoned_acquire() == ((b"r1#0.3", op) if was_sent else None)
    assert unit.record.pending_acquire() is None


def test_of_several_acquires_each_is_left():
    """Every one has a record of its own."""
    unit, error = quick_unit(), away()
    error.was_sent = True
    loop, shown = show(unit, 3)
    ops = [argument(call, "op") for call in shown.steps]
    loop.send([error, granted(b"x"), error])
    left = {found for one in (unit.record, *unit.spare) if (found := one.abandoned_acquire())}
    assert left == {(b"r0#0.3", ops[0]), (b"r2#0.3", ops[2])}


def test_it_is_logged_now_and_then(now: list[float], caplog: pytest.LogCaptureFixture):
    """A node that is away may hold thousands of requests."""
    unit = unit_of_its_own()
    for at in (100.0, 105.0, 111.0):
        now[0] = at
        dispatch.note_away(unit, f"at {at:g}", away())
    assert [one.message.partition(":")[0] for one in caplog.records] == ["at 100", "at 111"]


# ------------------------------------------------------------------ leases


def test_a_lease_that_cannot_be_settled_is_left_to_expire():
    """The unit continues with its next token."""
    unit = unit_of_its_own()
    loop, _ = take(unit, granted(b"x"))
    loop.send(done(1))
    step: Any = loop.throw(away())
    assert names_of(step) == ["pop"]
    assert unit.record.held() is None


@pytest.mark.parametrize(
    ("used_s", "away_s"), [(0.0, 30.0), (12.0, 18.0), (29.5, settings.AWAY_S), (90.0, 2.0)]
)
def test_a_settlement_is_repeated_for_as_long_as_its_lease_is_held(
    used_s: float, away_s: float, now: list[float]
):
    """The lease is 30 s; a failover takes less, and what comes later is refused anyway."""
    loop, _ = take(unit_of_its_own(), granted(b"x"))
    now[0] += used_s
    call: Any = loop.send(done(1))
    assert names_of(call) == ["complete"]
    assert call.away_s == pytest.approx(away_s)


def test_leases_of_a_bunch_that_cannot_be_settled_are_left_to_expire():
    """The leases of the other nodes are settled."""
    unit = quick_unit()
    loop, _ = show(unit, 2)
    step = loop.send([granted(b"x"), granted(b"y")])
    step = loop.send(handle(step, echo, unit.record))
    assert names_of(step) == ["complete"] * 2
    step = loop.send([away(), [b"ok", 0, []]])
    assert names_of(step)[-1] == "pop"
    assert held(unit) == []


def test_a_lease_settled_apart_is_left_to_expire_too():
    """A slice that continues is settled in parts, after the others."""
    unit = quick_unit()
    loop, _ = show(unit, 2)
    step = loop.send([granted(b"x", b"x2"), granted(b"y")])
    replied = handle(step, echo, unit.record)
    first = replied.leases[0]
    first.seconds = 0.0
    first.note(Outcome(1, 0.001, first.outcome.ids[:1], first.outcome.results[:2]))
    assert names_of(loop.send(replied)) == ["complete"]
    assert argument(loop.send([[b"ok", 0, []]]), "keep") == b"1"
    step = loop.throw(away())
    assert names_of(step)[-1] == "pop"
    assert held(unit) == []


def test_tokens_of_the_parts_that_were_settled_are_dispatched():
    """The node fails before the last part; the first one was answered."""
    unit = unit_of_its_own()
    loop, _ = take(unit, granted(b"x", b"y"))
    outcome = done(2)
    outcome.results[1] = outcome.results[3] = bytes(settings.FLUSH_BYTES + 1)
    assert argument(loop.send(outcome), "keep") == b"1"
    assert names_of(loop.send([b"ok", 1, [*TOKENS]])) == ["complete"]
    step: Any = loop.throw(away())
    assert names_of(step) == ["insert_tokens"]
    assert rest_of(step.steps[0])[1:] == [1, 0, b"r1#1.4"]
    assert names_of(loop.send([1])) == ["pop"]


# ------------------------------------------------------------------ shards


def test_a_shard_that_is_away_does_not_keep_the_others_waiting():
    """The next pop calls another shard, without a pause until none of them answered."""
    loop, step = begin(spread_unit())
    assert (step.lenient, step.away_s) == (True, settings.SHARD_AWAY_S)
    pauses, asked = [], []
    for _ in range(4):
        asked.append(step.steps[-1].keys[-1])
        paused = loop.throw(away())
        assert isinstance(paused, Pause)
        pauses.append(paused.seconds)
        step = loop.send(None)
    assert len(set(asked)) == 2
    assert pauses == [0, 0, 0.25, 0.25]


def test_what_a_shard_did_not_take_goes_with_a_later_batch():
    """What the others took is not sent again."""
    loop, step = begin(spread_unit())
    lane = keys.lane("req", 305)
    loop.send([Popped(lane, [b"r1#0.3"])])
    tokens = [b"305", b"1.4", 0, b"405", b"2.5", 0]
    step = loop.send([b"busy", tokens])
    assert names_of(step)[:2] == ["insert_tokens"] * 2
    lost = step.steps[1]
    step = loop.send([1, away(), None])
    assert isinstance(step, Batch)
    assert step.steps[0] is lost
    assert [type(one) for one in step.steps[1:]] == [Pop]
    step = loop.send([1, None])
    assert [type(one) for one in step.steps] == [Pop]


def test_a_dispatch_that_is_refused_beside_a_pop_is_logged(caplog: pytest.LogCaptureFixture):
    """The tokens that were popped are worked on."""
    loop, _ = begin(spread_unit())
    lane = keys.lane("req", 305)
    loop.send([Popped(lane, [b"r1#0.3"])])
    step = loop.send([b"busy", [b"305", b"1.4", 0]])
    assert names_of(step)[0] == "insert_tokens"
    step = loop.send([RedisUnfit("NOPERM"), Popped(lane, [b"r2#0.3"])])
    assert names_of(step) == ["acquire"]
    assert caplog.messages == ["could not dispatch what a reply asked for: NOPERM"]


def test_a_dispatch_that_is_refused_beside_acquires_is_logged(caplog: pytest.LogCaptureFixture):
    """It had to be sent first; the leases are worked on."""
    unit = quick_unit()
    returned = FollowUps("req", popped(1).lane)
    returned.more.append(Command(b"RPUSH", b"l", b"t"))
    fetching: Any = unnoted(acquire(unit, [b"r1#0.3"], returned, 1.0, shared=True))
    assert names_of(fetching.send(None)) == ["RPUSH", "acquire"]
    with pytest.raises(StopIteration) as end:
        fetching.send([RedisUnfit("NOPERM"), granted(b"x")])
    assert len(end.value.value.leases) == 1
    assert caplog.messages == ["could not dispatch what a reply asked for: NOPERM"]


def test_what_is_kept_for_a_shard_is_bounded():
    """The auditor finds the rest when the shard is back."""
    unit = spread_unit()
    calls: list[Any] = [object() for _ in range(500)]
    dispatch.keep_unsent(unit, calls, [away()] * 500)
    assert unit.unsent == calls[-200:]


def test_any_other_error_of_a_dispatch_is_raised():
    """Another try would not help."""
    unit = spread_unit()
    calls: list[Any] = [object(), object()]
    send: Any = dispatch.send(unit, calls)
    send.send(None)
    with pytest.raises(RedisUnfit):
        send.send([away(), RedisUnfit("WRONGTYPE")])
    assert unit.unsent == calls[:1]
