"""Tests intents that are undone: the earlier entry of `active` returns, unless it moved."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fairlane.operations.create import Digest, NewRequest, create_each
from fairlane.operations.intents import Intent, intend, restore, withdraw
from fairlane.operations.tokens import drop_active
from fairlane.options import Policy
from fairlane.protocol import keys
from tests.support.scripts.requests import once

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairlane.drivers.sync import SyncDriver
    from tests.support.scripts.requests import Lane

    Undo = Callable[..., Any]


def put_back(queue: str, request_id: str, intent: Intent) -> Any:
    """Undoes the intent of a producer that found a running request."""
    return restore(queue, request_id, intent, is_over=False)


either_step = pytest.mark.parametrize("undo", [withdraw, put_back], ids=["withdraw", "restore"])


def new_request() -> NewRequest:
    digest = Digest(Policy())
    digest.add([b"a"])
    return NewRequest("r1", Policy(), digest, [b"a"])


def announced(driver: SyncDriver) -> Intent:
    """Announces one more producer of r1."""
    _, (intent,) = driver.run(intend([new_request()]))
    return intent


def place(lane: Lane) -> float | None:
    """Returns the score of r1 in `active`."""
    score: float | None = lane.client.zscore(keys.active("req"), "r1")
    return score


@either_step
def test_an_acknowledged_request_stays_listed_when_an_older_intent_is_undone(
    lane: Lane, undo: Undo
):
    """The auditor abandoned the first intent, and removes that score last."""
    first = announced(lane.driver)
    lane.abandon(first.score)
    older, newer = announced(lane.driver), announced(lane.driver)
    assert lane.run(create_each([(new_request(), newer)], 0.0)) == {}
    lane.run(once(undo("req", "r1", older)))
    lane.run(once(drop_active("req", "r1", str(first.score))))
    assert place(lane) == newer.score


@either_step
@pytest.mark.parametrize("times", [1, 2])
def test_an_undone_intent_leaves_the_place_that_was_before(lane: Lane, undo: Undo, times: int):
    before = announced(lane.driver)
    intent = announced(lane.driver)
    for _ in range(times):
        lane.run(once(undo("req", "r1", intent)))
    mark = 0.5 if undo is put_back else 0
    assert place(lane) == before.score + mark


def test_a_mark_that_the_request_exists_comes_back_with_its_place(lane: Lane):
    """If the request vanishes later, it is logged as lost."""
    lane.client.zadd(keys.active("req"), {"r1": 1000.5})
    for undo in (withdraw, put_back):
        lane.run(once(undo("req", "r1", announced(lane.driver))))
        assert place(lane) == 1000.5


@either_step
def test_an_intent_is_undone_on_a_full_redis(lane: Lane, undo: Undo):
    """The full Redis is the reason why it is undone."""
    before = announced(lane.driver)
    intent = announced(lane.driver)
    lane.client.config_set("maxmemory", 1)
    try:
        lane.run(once(undo("req", "r1", intent)))
    finally:
        lane.client.config_set("maxmemory", 0)
    assert int(place(lane) or 0) == before.score


def test_an_intent_alone_is_taken_out_only_while_it_stands(lane: Lane):
    """Another producer announced the same id after it."""
    intent = announced(lane.driver)
    newer = announced(lane.driver)
    lane.run(once(withdraw("req", "r1", intent)))
    assert place(lane) == newer.score
    lane.run(once(withdraw("req", "r1", Intent(newer.score, "0"))))
    assert place(lane) is None
