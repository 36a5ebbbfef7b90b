"""Tests that a worker notes the tokens it takes, before it acquires with them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fairlane import settings
from fairlane.errors import RedisFull
from fairlane.protocol import keys
from fairlane.protocol.steps import Batch, Popped
from fairlane.worker.settle import serve
from tests.support.processes.worker_units import (
    LANE,
    done,
    held,
    names_of,
    quick_unit,
)
from tests.support.scripts.requests import pop_token
from tests.worker.parts import granted, handled, is_note, unit_of_its_own

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fairlane.worker.unit import Unit

TAKEN = keys.taken("req", "w:1")


def notes(step: Any) -> Iterator[tuple[Any, ...]]:
    """Returns the words of each note of a batch."""
    for one in step.steps:
        if is_note(one):
            yield one.args


def popped(unit: Unit, *raw: bytes) -> tuple[Any, Any]:
    """Makes a unit that popped these tokens; returns the step after that."""
    loop: Any = serve(unit)
    loop.send(None)
    return loop, loop.send([Popped(LANE, list(raw))])


def test_a_token_is_noted_in_the_round_trip_that_shows_it():
    """The note is written first, and its key gets a TTL with it."""
    _, step = popped(unit_of_its_own(), b"r1#0.3")
    assert names_of(step) == ["HSET", "PEXPIRE", "acquire"]
    assert list(notes(step)) == [
        (b"HSET", TAKEN, b"0.0", b"r1#0.3"),
        (b"PEXPIRE", TAKEN, settings.TAKEN_TTL_MS),
    ]


def test_all_tokens_of_a_bunch_are_one_note():
    loop: Any = serve(quick_unit())
    loop.send(None)
    step = loop.send([Popped(LANE, [b"r1#0.3", b"r2#1.4", b"r3#0.5"])])
    assert names_of(step) == ["HSET", "PEXPIRE", *["acquire"] * 3]
    assert next(notes(step)) == (b"HSET", TAKEN, b"0.0", b"r1#0.3 r2#1.4 r3#0.5")


def test_two_notes_of_a_unit_stand_side_by_side():
    """One batch is handled while the next one is fetched; the third replaces the first note."""
    unit, places = unit_of_its_own(), []
    loop: Any = serve(unit)
    loop.send(None)
    for _ in range(3):
        step = loop.send([Popped(LANE, [b"r1#0.3"])])
        places.append(next(notes(step))[2])
        loop.send([*[1] * (len(names_of(step)) - 1), [b"stale"]])
    assert places == [b"0.0", b"0.1", b"0.0"]


def test_a_note_that_a_full_redis_refuses_keeps_no_work_back():
    """The audit finds what no note names."""
    unit = unit_of_its_own()
    loop, _ = popped(unit, b"r1#0.3")
    step = loop.send([RedisFull("full"), 1, granted(b"x")])
    assert names_of(step) == ["handle"]
    assert held(unit) == ["r1"]
    assert names_of(loop.send(handled(step, done(1)))) == ["complete"]


def test_an_acquire_that_fails_is_an_error_though_its_note_was_written():
    loop, _ = popped(unit_of_its_own(), b"r1#0.3")
    with pytest.raises(RedisFull):
        loop.send([1, 1, RedisFull("full")])


def test_a_note_on_a_real_redis_has_a_ttl_and_names_the_token(queue: Any, redis_client: Any):
    queue.submit_request([b"x"], id="r1")
    token = pop_token(queue.driver)
    assert token is not None

    async def note() -> Any:
        return await Batch(list(unit_of_its_own().note([token.text.encode()])))

    queue.driver.run(note())
    assert redis_client.hgetall(TAKEN) == {b"0.0": token.text.encode()}
    assert 0 < redis_client.pttl(TAKEN) <= settings.TAKEN_TTL_MS
