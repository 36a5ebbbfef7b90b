"""Tests a hold that a handler requested, while Redis or one of its nodes refuses it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from fairlane.errors import NodeAway, RedisUnfit, RedisUnreachable
from fairlane.protocol.steps import Call
from fairlane.worker import settle

if TYPE_CHECKING:
    from fairlane.errors import FairlaneError


@pytest.fixture(autouse=True)
def _learns_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settle, "_observe", lambda unit, done: None)
    monkeypatch.setattr(settle, "note_away", lambda unit, what, error: None)


def begun() -> Any:
    """Makes a lease whose handler has requested a pause of the whole request; the call is sent."""
    lease: Any = SimpleNamespace(
        outcome=SimpleNamespace(hold_ms=30_000), slice=SimpleNamespace(request_id="r1")
    )
    unit: Any = SimpleNamespace(queue="req")
    operation = settle.note_handled(unit, [lease])
    step = operation.send(None)
    assert isinstance(step, Call)
    assert (step.script.name, step.away_s) == ("hold", 2.0)
    return operation


@pytest.mark.parametrize("error", [NodeAway("away"), RedisUnfit("NOPERM")], ids=["away", "refused"])
def test_what_was_done_is_settled_although_the_hold_failed(error: FairlaneError):
    with pytest.raises(StopIteration):
        begun().throw(error)


def test_without_redis_the_unit_stops():
    with pytest.raises(RedisUnreachable):
        begun().throw(RedisUnreachable("no answer"))


def test_a_bucket_that_is_away_delays_no_settlement():
    operation = begun()
    batch = operation.send([b"ok", [], b"1 key/api 1000 1 1"])
    assert [call.script.name for call in batch.steps] == ["hold_rate"]
    assert (batch.lenient, batch.away_s) == (True, 2.0)
    with pytest.raises(StopIteration):
        operation.send([NodeAway("away")])
