"""Tests how a worker settles a durable request: it continues and logs what is not confirmed."""

from __future__ import annotations

import logging

import pytest

from fairlane.protocol.steps import Call, Confirm, Confirmed
from fairlane.worker.calls import Outcome
from tests.support.run.for_each import for_each
from tests.worker.parts import entries_of, slice_of, unit_of_its_own, work_off


def outcome(position: int, *, first: int = 0) -> Outcome:
    """Returns an outcome with results up to `position`."""
    ids = [entry_id for entry_id, _ in entries_of(*[b"x"] * position)][first:]
    return Outcome(position, 0.001, ids, [b"head", b"body"] * len(ids))


def script_of(step: object) -> str:
    """Returns the script whose write must be confirmed by two replicas."""
    assert isinstance(step, Confirm)
    assert step.replicas == 2
    assert isinstance(step.step, Call)
    return str(step.step.script.name)


@for_each("confirmed", [0, 1, 2, 3])
def test_a_durable_slice_is_settled_and_confirmed_in_one_step(
    confirmed: int, caplog: pytest.LogCaptureFixture
):
    """What is not confirmed is counted and logged; the permit's tokens are sent nevertheless."""
    unit = unit_of_its_own()
    loop = work_off(unit, slice_of(b"x", b"y", durable=2))
    loop.send(None)
    assert script_of(loop.send(outcome(2))) == "complete"
    with caplog.at_level(logging.WARNING), pytest.raises(StopIteration) as end:
        loop.send(Confirmed([b"ok", 0, [b"5", b"1.4", 0]], confirmed, is_synced=True))
    assert [call.script.name for call in end.value.value] == ["insert_tokens"]
    assert unit.record.counts()["unconfirmed"] == (confirmed < 2)
    assert unit.record.counts()["done"] == 2
    expected = f"request r1 goes on, but only {confirmed} of 2 replicas confirmed it within 1 s"
    assert caplog.messages == ([expected] if confirmed < 2 else [])


@pytest.mark.parametrize("word", [b"already", b"ended"])
def test_a_reply_that_may_have_written_nothing_is_confirmed_by_another_write(word: bytes):
    """The call was repeated after a lost reply: WAIT behind it would have nothing to wait for."""
    summary = [b"done", 1, 2, 2, 0, 0, 9, 5, b"", 3_600_000, b""]
    loop = work_off(unit_of_its_own(), slice_of(b"x", b"y", durable=2))
    loop.send(None)
    assert script_of(loop.send(outcome(2))) == "complete"
    settled = Confirmed([word, summary if word == b"ended" else []], 2, is_synced=True)
    assert script_of(loop.send(settled)) == "confirm"
    with pytest.raises(StopIteration) as end:
        loop.send(Confirmed([b"ok", b"done", b"c"], 2, is_synced=True))
    expected = {b"ended": ["retire"], b"already": []}[word]
    assert [call.script.name for call in end.value.value] == expected


@pytest.mark.parametrize("word", [b"lost", b"gone"])
def test_what_was_not_settled_is_not_confirmed(word: bytes):
    """Another unit has the lease now."""
    unit = unit_of_its_own()
    loop = work_off(unit, slice_of(b"x", durable=2))
    loop.send(None)
    assert script_of(loop.send(outcome(1))) == "complete"
    with pytest.raises(StopIteration) as end:
        loop.send(Confirmed([word], 0, is_synced=True))
    assert end.value.value == []
    assert unit.record.counts()["unconfirmed"] == 0


def test_every_part_of_a_durable_slice_is_confirmed():
    """This includes what is settled while the lease continues."""
    loop = work_off(unit_of_its_own(), slice_of(b"x", b"y", durable=2))
    loop.send(None)
    assert script_of(loop.send(outcome(1))) == "complete"
    loop.send(Confirmed([b"ok", 1, []], 2, is_synced=True))
    assert script_of(loop.send(outcome(2, first=1))) == "complete"


def test_what_asks_for_no_replica_waits_for_none():
    """It is a plain call, in one round trip."""
    loop = work_off(unit_of_its_own(), slice_of(b"x"))
    loop.send(None)
    assert isinstance(loop.send(outcome(1)), Call)
