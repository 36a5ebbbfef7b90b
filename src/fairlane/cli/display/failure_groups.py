"""Lines and JSON of dead sub-requests with equal failures, for `dead list` and `errors`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairlane.cli.display.colours import coloured
from fairlane.cli.durations import ago
from fairlane.common.terminal import printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fairlane.found import FailureGroup
    from fairlane.model import DeadGroup

HEADLINE = 200  # characters of an error


def group_lines(group: DeadGroup, now_ms: int) -> Iterator[str]:
    """Yields the two lines of one group."""
    from fairlane.common.text import reason_words

    words = coloured("dead", f"{group.count:,} dead")
    yield (
        f"{printable(group.fingerprint)}  {words} ({printable(reason_words(group.reason))}): "
        f"{short(group.headline)}"
    )
    first, last = (ago(max(0, now_ms - ms)) for ms in (group.first_ms, group.last_ms))
    more = ", ..." if group.count > len(group.indexes) else ""
    indexes = f"index {', '.join(map(str, group.indexes))}{more}"
    when = f"{last} ago" if group.count == 1 else f"first {first} ago, last {last} ago"
    where = f"{short(group.where)}; " if group.where else ""
    yield f"            {where}{indexes}; {when}"


def group_fields(group: DeadGroup) -> dict[str, Any]:
    """Returns one group as JSON has it."""
    return {
        "fingerprint": group.fingerprint,
        "count": group.count,
        "reason": group.reason,
        "error": group.headline,
        "where": group.where or None,
        "indexes": group.indexes,
        "first_ms": group.first_ms,
        "last_ms": group.last_ms,
    }


def queue_group_fields(group: FailureGroup) -> dict[str, Any]:
    """Returns one group of a queue as JSON has it."""
    return {
        "fingerprint": group.fingerprint,
        "count": group.count,
        "requests": group.requests,
        "reason": group.reason,
        "error": group.headline,
        "where": group.where or None,
        "examples": [{"id": name, "index": index} for name, index in group.examples],
        "first_ms": group.first_ms,
        "last_ms": group.last_ms,
    }


def short(text: str, most: int = HEADLINE) -> str:
    """Returns the beginning of a text on one line."""
    shown = printable(text)
    return shown if len(shown) <= most else shown[: most - 3] + "..."
