"""The supervisor's calls for many leases in one round trip."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairlane import settings
from fairlane.protocol.steps import Batch

if TYPE_CHECKING:
    from fairlane.protocol.steps import Call, Operation

AT_MOST = 100  # leases of one call
AGAIN_S = 1.0  # between tries of an unreachable node that has leases, because these expire soon


def send_all(calls: list[Call], again_s: float = AGAIN_S) -> Operation[list[Any]]:
    """Returns the replies, each of which may be an error; waits once for a node that is away."""
    away_s = settings.BEAT_MS / 1000
    replies: list[Any] = yield Batch(calls, lenient=True, away_s=away_s, again_s=again_s)
    return replies
