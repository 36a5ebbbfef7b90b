"""Tests the promoter of one process: it promotes a token, however late that enters `delayed`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fairlane.worker import promoter
from tests.support.wait import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable


class Tries:
    """Replaces the driver and the operation: the first tries find no due token."""

    def __init__(self, *moved: int) -> None:
        self.replies, self.count = list(moved), 0

    def promote(self, *_: Any) -> int:
        self.count += 1
        return self.replies.pop(0) if self.replies else 0


@pytest.fixture
def tries(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Tries]:
    def made(*moved: int) -> Tries:
        found = Tries(*moved)

        class Driver:
            def __init__(self, *_: Any, **__: Any) -> None: ...

            def run(self, count: int) -> int:
                return count

        monkeypatch.setattr(promoter, "SyncDriver", Driver)
        monkeypatch.setattr(promoter, "promote", found.promote)
        return found

    return made


def begun(*delays_ms: float) -> promoter.Promoter:
    made = promoter.Promoter("redis://", "req", lambda: (0,))
    for delay_ms in delays_ms:
        made.after(delay_ms)
    return made


def test_a_token_that_comes_late_into_the_queue_is_still_promoted(tries: Any):
    """A busy machine may send the insertion long after its delay was noted."""
    found = tries(*[0] * 8, 1)
    made = begun(1)
    wait_until(lambda: found.count == 9)
    wait_until(lambda: not made._due)


def test_what_another_process_promotes_is_given_up(tries: Any):
    found = tries()
    made = begun(1)
    wait_until(lambda: found.count >= 8 and not made._due)
    assert found.count < 12


def test_one_token_that_was_promoted_leaves_the_tries_for_the_other(tries: Any):
    found = tries(1, 0, 0, 1)
    made = begun(1, 1.1)
    wait_until(lambda: found.count >= 2 and not made._due)


def test_a_long_delay_is_left_to_the_leader(tries: Any):
    found = tries()
    made = begun(60_000)
    assert (found.count, made._due, made._thread) == (0, [], None)
