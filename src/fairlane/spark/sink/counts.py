"""Logs how many rows a write added, and warns when these are not the rows that it was given."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fairlane.spark.operations.manifest import Brought

_log = logging.getLogger("fairlane.spark")
_NAMED = 3  # requests that one line names
# A write with more parts than this, most of them of requests that have others, gets a hint.
_MANY_PARTS = 1_000
_APART = "write new rows with a txn and a request of their own"


def log_brought(txn: str, brought: Sequence[Brought]) -> None:
    """Logs what a commit brought; as a warning, unless it brought all rows that it was given."""
    others = [part for part in brought if not part.is_same]
    counted = others or brought
    staged, added = sum(part.given for part in counted), sum(part.added for part in counted)
    where = _named([part.request for part in counted])
    terms = [part.request for part in brought if not part.is_as_begun]
    level = logging.INFO if staged == added and not others and not terms else logging.WARNING
    text = f"txn {txn}: {0 if others else added:,} of {staged:,} rows were added to {where}"
    if others:
        pinned = sum(part.pinned for part in others)
        text += f", because an earlier write with this txn brought {pinned:,} other rows: {_APART}"
        if added:
            text += f". This commit completed the earlier write with {added:,} rows"
    elif added < staged:
        text += "; an earlier write with this txn brought the others"
    if terms:
        text += (
            f". The priority, limit or another option is not the one with which {_named(terms)} "
            "began, and has no effect: change a request with `fairlane set`"
        )
    _log.log(level, "%s", text)


def log_added(txn: str, requests: Sequence[str], rows: int, new: int, *, by_ids: bool) -> None:
    """Logs how many rows joined their requests; as a warning when some were there before."""
    text = f"txn {txn}: {new:,} of {rows:,} rows were added to {_named(requests)}"
    if new < rows and by_ids:
        text += "; rows with the ids of the others were there before"
    elif new < rows:
        text += (
            "; an earlier write or attempt with this txn had filled the places of the others in "
            f"their partitions, with the same rows or with other ones: {_APART}"
        )
    _log.log(logging.INFO if new == rows else logging.WARNING, "%s", text)


def hint_at_scattered(column: str, requests: int, parts: int) -> None:
    """Warns if the rows of most requests came from several partitions: each part costs calls.

    `parts` counts the requests of each partition.
    """
    if not column or parts <= _MANY_PARTS or parts < 2 * requests:
        return
    _log.warning(
        "the rows of %s requests came in %s parts, because many partitions have rows of one "
        'request, and each part costs several calls: bring them together with repartition(N, "%s") '
        "before the write",
        f"{requests:,}", f"{parts:,}", column,
    )  # fmt: skip


def _named(requests: Sequence[str]) -> str:
    if len(requests) == 1:
        return f"request {requests[0]}"
    names = ", ".join([*requests[:_NAMED], *(["..."] if len(requests) > _NAMED else [])])
    return f"{len(requests):,} requests" + (f" ({names})" if names else "")
