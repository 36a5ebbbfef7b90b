"""Guards that no other test would miss (python -m tests.explore.mutants finds such)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.support.requests import Lane

MIB = 1 << 20


def test_a_deadline_buries_what_was_given_back_in_bites_of_bytes_too(lane: Lane):
    """With bodies of 1 MiB a call buries 16, and says that there is more to do now."""
    (token,) = lane.start([b"x" * MIB] + [b"y"] * 19, limit=1, deadline_ms=60_000)
    held = lane.take(token)
    lane.complete(held, [], [(entry_id, "release", 0) for entry_id in held.ids])
    assert lane.pending() == {"-": 20}
    lane.later(60_000)
    assert lane.reap()[:2] == [b"ok", 1]
    assert len(lane.dead()) == 16
    word, summary = lane.reap()
    assert (word, summary[4]) == (b"ended", 20)
