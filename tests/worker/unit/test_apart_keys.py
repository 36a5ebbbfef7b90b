"""Tests what a unit does with tokens whose keys must be taken before the acquire."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairlane.protocol.steps import Popped
from fairlane.worker.settle import serve
from tests.support.processes.worker_units import LANE, argument, done, names_of, quick_unit, rest_of
from tests.worker.parts import granted, handled

if TYPE_CHECKING:
    from fairlane.worker.unit import Unit

TOKENS = [b"r%d#0.3%%%%x=9" % n for n in range(3)]
NOTES = ["HSET", "PEXPIRE"]


def take_keys(unit: Unit, count: int, taken: list[int]) -> tuple[Any, Any]:
    """Has a unit pop so many tokens: the loop, and the step after it took their keys."""
    loop: Any = serve(unit)
    loop.send(None)
    step = loop.send([Popped(LANE, TOKENS[:count])])
    assert names_of(step) == [*NOTES, "take_keys"]
    return loop, loop.send([1, 1, taken])


def ops_of(step: Any) -> list[bytes]:
    return [argument(call, "op") for call in step.steps if names_of(call) == ["acquire"]]


def shared_of(step: Any) -> list[Any]:
    return [argument(call, "shared") for call in step.steps if names_of(call) == ["acquire"]]


def ask_again(loop: Any, step: Any, token: bytes, op: bytes) -> Any:
    """Asserts that a unit asks with this token again, alone; returns the step after the grant."""
    assert names_of(step)[-1] == "take_keys"
    assert rest_of(step.steps[-1]) == [5, token.decode(), op]
    step = loop.send([*[1] * (len(step.steps) - 1), [1]])
    assert (ops_of(step), shared_of(step)) == ([op], [b""])
    return loop.send([granted(b"x")])


def test_retries_are_acquired_alone_with_the_keys_that_were_taken_for_them():
    loop, step = take_keys(quick_unit(), 2, [1, 1])
    assert shared_of(step) == [b"1", b"1"]
    first, second = ops_of(step)
    step = ask_again(loop, loop.send([[b"alone"], [b"alone"]]), TOKENS[0], first)
    assert names_of(step) == ["handle"]
    assert names_of(loop.send(handled(step, done(1)))) == ["complete"]
    step = ask_again(loop, loop.send([b"ok", 0, []]), TOKENS[1], second)
    assert names_of(step) == ["handle"]


def test_a_retry_is_acquired_after_the_leases_that_came_with_it():
    loop, step = take_keys(quick_unit(), 2, [1, 1])
    op = ops_of(step)[0]
    step = loop.send([[b"alone"], granted(b"y")])
    assert names_of(step) == ["handle"]
    assert names_of(loop.send(handled(step, done(1)))) == ["complete"]
    assert names_of(ask_again(loop, loop.send([b"ok", 0, []]), TOKENS[0], op)) == ["handle"]


def test_a_token_whose_companions_wait_for_a_key_is_acquired_alone():
    """So a retry needs no second acquire."""
    _, step = take_keys(quick_unit(), 3, [0, 1, 0])
    assert shared_of(step) == [b""]


def test_kept_keys_are_looked_at_when_the_worker_drains():
    unit = quick_unit()
    loop, step = take_keys(unit, 2, [1, 1])
    op = ops_of(step)[0]
    step = loop.send([[b"alone"], [b"alone"]])
    unit.record._worker.is_draining = True
    step = ask_again(loop, step, TOKENS[0], op)
    assert names_of(step) == ["handle"]
    assert names_of(loop.send(handled(step, done(1)))) == ["complete"]
    step = loop.send([b"ok", 0, []])
    assert names_of(step) == ["look_at_keys"]
    assert rest_of(step) == ["x", "r1#0.3"]
    assert unit.kept == {}
