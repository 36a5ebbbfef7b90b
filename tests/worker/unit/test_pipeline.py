"""Tests a unit's pipeline: while one batch runs, it settles the last and fetches the next."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fairlane.errors import RedisUnfit, RedisUnreachable
from fairlane.protocol import keys
from fairlane.protocol.steps import Batch, Handle, Handled, UntilHandled
from fairlane.worker.calls import Runner
from fairlane.worker.handlers import shape_of
from tests.support.processes.worker_units import (
    MORE,
    SUMMARY,
    argument,
    begin,
    echo,
    held,
    names_of,
    popped,
    quick_unit,
    rest_of,
)
from tests.support.run.for_each import for_each
from tests.worker.parts import granted

if TYPE_CHECKING:
    from fairlane.worker.unit import Unit

pytestmark = pytest.mark.usefixtures("steady_clock")


def streaming(count: int = 4, **changed: Any) -> tuple[Unit, Any, Handle]:
    """Makes a unit that popped as many as it wanted, and handles them next."""
    unit = quick_unit(spare=2 * count - 1, is_alone=True, each_s=0.01 / count, **changed)
    loop, pop = begin(unit)
    assert pop.steps[-1].most == count
    assert names_of(loop.send([popped(count)])) == ["acquire"] * count
    step: Any = loop.send([granted(b"x") for _ in range(count)])
    assert names_of(step) == ["handle"]
    return unit, loop, step


def handled(unit: Unit, step: Handle, result: Any = None, error: Any = None) -> Handled:
    """Ends the handler and what ran beside it."""
    return Handled(Runner(shape_of(echo), unit.record).run(step.leases), result, error)


def fetched(step: Handle, first: int, *replies: Any) -> Any:
    """Runs what is beside the handler, until so many of the next are there; returns its result."""
    beside: Any = step.meanwhile
    beside.send(None)
    asked = beside.send([[b"ok", 1, MORE]] * 0 + [popped(len(replies), first)])
    assert names_of(asked)[-len(replies) :] == ["acquire"] * len(replies)
    assert isinstance(beside.send([*replies]), UntilHandled)
    with pytest.raises(StopIteration) as end:
        beside.send(True)
    return end.value.value


# ------------------------------------------------------------------ when it fetches


@for_each("why", ["fewer than wanted", "other units", "slow", "durable", "a retry"])
def test_nothing_is_fetched_ahead(why: str):
    """There is nothing more to fetch, or another unit might wait for it."""
    unit = quick_unit(spare=7, is_alone=why != "other units", each_s=0.0025)
    if why == "slow":
        unit.sizer.observe_tokens(1, 0.03)
    loop, pop = begin(unit)
    most = pop.steps[-1].most
    count = max(2, most - (why == "fewer than wanted"))
    loop.send([popped(count)])
    replies: list[Any] = [granted(b"x") for _ in range(count)]
    if why == "durable":
        replies[0][3] = [*replies[0][3][:-3], 1, 0, b""]
    if why == "a retry":
        replies[0] = [b"alone"]
    step: Any = loop.send(replies)
    assert isinstance(step, Handle)
    assert step.meanwhile is None


def test_a_single_token_of_an_idle_worker_goes_through_no_other_thread():
    """It is acquired, handled and settled as usual."""
    loop, _ = begin(quick_unit(is_alone=True))
    assert names_of(loop.send([popped(1)])) == ["acquire"]
    assert names_of(loop.send(granted(b"x"))) == ["handle"]


# ------------------------------------------------------------------ what it fetches


def test_the_next_tokens_are_of_this_lane_or_a_more_urgent_one():
    """An earlier lane's tokens may be leased here: a later lane does not overtake them."""
    _, _, step = streaming()
    beside: Any = step.meanwhile
    (pop,) = beside.send(None).steps
    assert pop.keys == keys.lanes("req")[:6]
    assert (pop.seconds, pop.most) == (0, 4)


def test_one_bunch_is_settled_while_the_next_is_handled_and_one_more_is_fetched():
    """The handler runs during two round trips."""
    unit, loop, first = streaming()
    second = loop.send(handled(unit, first, fetched(first, 4, *[granted(b"y")] * 4)))
    assert len(held(unit)) == 8
    beside: Any = second.meanwhile
    step: Any = beside.send(None)
    assert names_of(step) == ["complete"] * 4 + ["pop"]
    assert {call.keys[2] for call in step.steps[:4]} == {
        keys.request_hash(f"r{i}") for i in range(4)
    }
    shown = beside.send([*[[b"ok", 1, MORE]] * 3, [b"ended", SUMMARY], popped(4, 8)])
    assert names_of(shown) == ["insert_tokens", "retire", *["acquire"] * 4]
    more = granted(b"z", tokens=(b"5", b"1.4", 0))
    assert names_of(beside.send([3, 1, *[more] * 4])) == ["insert_tokens"]
    assert isinstance(beside.send([4]), UntilHandled)
    assert len(held(unit)) == 8
    assert unit.record.counts()["done"] == 4


def test_when_there_is_nothing_more_the_last_is_settled_before_the_next_pop():
    """The next pop blocks, as usual."""
    unit, loop, first = streaming()
    beside: Any = first.meanwhile
    beside.send(None)
    assert isinstance(beside.send([None]), UntilHandled)
    with pytest.raises(StopIteration) as end:
        beside.send(True)
    settle = loop.send(handled(unit, first, end.value.value))
    assert names_of(settle) == ["complete"] * 4
    last = loop.send([[b"ok", 1, MORE]] * 4)
    assert names_of(last) == ["insert_tokens", "pop"]
    assert last.steps[-1].seconds > 0
    assert (held(unit), len(unit.free)) == ([], 8)


def test_retries_among_the_next_end_the_stream():
    """The others are handled and settled, then one retry is worked on alone."""
    unit, loop, first = streaming()
    result = fetched(first, 4, granted(b"y"), [b"alone"], granted(b"z"), [b"alone"])
    assert names_of(loop.send(handled(unit, first, result))) == ["complete"] * 4
    step: Any = loop.send([[b"ok", 0, []]] * 4)
    assert (names_of(step), step.meanwhile) == (["handle"], None)
    assert names_of(loop.send(handled(unit, step))) == ["complete"] * 2
    back: Any = loop.send([[b"ok", 0, []]] * 2)
    assert (back.steps[0].keys, rest_of(back.steps[0])) == ((keys.lanes("req")[5],), ["r7#0.3"])
    assert names_of(loop.send([1])) == ["acquire"]


# ------------------------------------------------------------------ slow handlers


def test_what_was_fetched_does_not_wait_for_a_handler_that_takes_long():
    """It is released uncharged while the handler still runs, and so is what is behind it."""
    unit, loop, first = streaming()
    running = first.leases.take()
    beside: Any = first.meanwhile
    beside.send(None)
    beside.send([popped(4, 4)])
    wait = beside.send([granted(b"y")] * 2 + [[b"alone"]] * 2)
    assert isinstance(wait, UntilHandled)
    assert wait.timeout_s == pytest.approx(0.04)
    back: Any = beside.send(False)
    assert names_of(back) == ["complete"] * 5
    assert {argument(call, "done") for call in back.steps} == {0}
    out = beside.send([[b"ok", 1, MORE]] * 5)
    put_back = out.steps[0]
    assert (put_back.keys, rest_of(put_back)) == (
        (keys.lanes("req")[5],),
        ["r6#0.3", "r7#0.3"],
    )
    with pytest.raises(StopIteration) as end:
        beside.send([7, 7])
    running.record.take_turn()
    running.note(Runner(shape_of(echo), running.record).run_slice(running.slice, 0))
    settle = loop.send(Handled([running], end.value.value))
    assert argument(settle, "done") == 1
    assert len(held(unit)) == 1


def test_what_was_done_before_a_call_that_takes_long_is_settled_meanwhile():
    """Its results are stored, and its permits are free."""
    unit, loop, first = streaming()
    done = first.leases.take()
    done.record.take_turn()
    done.note(Runner(shape_of(echo), done.record).run_slice(done.slice, 0))
    running = first.leases.take()
    beside: Any = first.meanwhile
    beside.send(None)
    first.leases.done.append(done)
    wait = beside.send([None])
    assert isinstance(wait, UntilHandled)
    back: Any = beside.send(False)
    assert [argument(call, "done") for call in back.steps] == [1, 0, 0]
    with pytest.raises(StopIteration) as end:
        beside.send([[b"ok", 0, []]] * 3)
    assert held(unit) == [running.slice.request_id]
    running.note(Runner(shape_of(echo), running.record).run_slice(running.slice, 0))
    settle = loop.send(Handled([running], end.value.value))
    assert argument(settle, "done") == 1


def test_with_every_record_in_hand_nothing_more_is_popped():
    """There would be no place for its lease; the next time there is."""
    unit = quick_unit(spare=3, is_alone=True, each_s=0.0025)
    loop, pop = begin(unit)
    assert pop.steps[-1].most == 4
    loop.send([popped(4)])
    first: Any = loop.send([granted(b"x") for _ in range(4)])
    assert unit.free == []
    assert isinstance(first.meanwhile.send(None), UntilHandled)
    with pytest.raises(StopIteration) as end:
        first.meanwhile.send(True)
    settle = loop.send(handled(unit, first, end.value.value))
    assert names_of(settle) == ["complete"] * 4
    assert names_of(loop.send([[b"ok", 0, []]] * 4))[-1] == "pop"
    assert len(unit.free) == 4


def test_a_drain_settles_what_is_done_and_gives_back_what_was_fetched():
    """It takes one round trip; and nothing more is taken."""
    unit, loop, first = streaming()
    result = fetched(first, 4, *[granted(b"y")] * 4)
    outcome = handled(unit, first, result)
    unit.record._worker.is_draining = True
    settle = loop.send(outcome)
    assert [argument(call, "done") for call in settle.steps] == [1] * 4 + [0] * 4
    assert names_of(loop.send([[b"ok", 0, []]] * 8)) == ["add_stats"]


# ------------------------------------------------------------------ failures


@pytest.mark.parametrize("at", ["settled", "shown", "dispatched"])
def test_when_redis_is_away_what_was_handled_is_settled_if_it_can_be(at: str):
    """Then the error is raised; nothing stays on the board, and every record can be used again."""
    unit, loop, first = streaming()
    second = loop.send(handled(unit, first, fetched(first, 4, *[granted(b"y")] * 4)))
    beside: Any = second.meanwhile
    step = beside.send(None)
    if at != "settled":
        step = beside.send([*[[b"ok", 1, []]] * 4, popped(4, 8)])
    if at == "dispatched":
        step = beside.send([granted(b"z", tokens=(b"5", b"1.4", 0))] * 4)
    assert isinstance(step, Batch)
    error = RedisUnreachable("no answer")
    with pytest.raises(RedisUnreachable):
        beside.throw(error)
    settle = loop.send(handled(unit, second, error=error))
    assert names_of(settle) == ["complete"] * 4
    assert names_of(loop.send([[b"ok", 0, MORE]] * 4)) == ["insert_tokens"]
    with pytest.raises(RedisUnreachable):
        loop.send([4])
    assert held(unit) == []
    assert sorted(record.unit for record in unit.free) == list(range(8))


def test_a_pop_that_is_refused_is_an_error_like_any_other():
    """A lane may be no list: what was handled is settled."""
    unit, loop, first = streaming()
    beside: Any = first.meanwhile
    beside.send(None)
    with pytest.raises(RedisUnfit) as raised:
        beside.send([RedisUnfit("WRONGTYPE")])
    assert names_of(loop.send(handled(unit, first, error=raised.value))) == ["complete"] * 4
    with pytest.raises(RedisUnfit):
        loop.send([[b"ok", 0, []]] * 4)
