"""Writes results: plain lines or NDJSON, to stdout or to a file."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any, BinaryIO

from fairlane.cli.exit_status import counts_of
from fairlane.cli.output import note, stdout
from fairlane.common.terminal import as_json
from fairlane.errors import FairlaneError

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairlane.cli.stall_notice import StallNotice
    from fairlane.model import Progress, Result
    from fairlane.request import Request

NDJSON = ".ndjson"


def write_results(
    request: Request, out: BinaryIO | None, *, order: str = "input", ndjson: bool,
    timeout: float | None = None, notice: StallNotice | None = None,
) -> Progress:  # fmt: skip
    """Writes every result as it comes; ends with the request and returns its counts.

    In input order a sub-request without a result gets its line, too: line N is input N. Raises
    FairlaneError for a result with a newline in plain lines, and WaitTimeout.
    """
    target = stdout() if out is None else out
    encode: Callable[[Result], bytes] = as_ndjson if ndjson else as_line

    def before_read() -> None:
        if out is None:  # the reader of stdout gets all lines before the next read blocks
            target.flush()
        if notice is not None:
            request.queue.driver.run(notice.look())

    missing, following = 0, 0
    for result in request.results(order, timeout=timeout, before_read=before_read):
        if notice is not None:
            notice.put_off()
        if order == "input":
            if result.index > following:
                missing += _fill(target, request, range(following, result.index), ndjson=ndjson)
            following = result.index + 1
        target.write(encode(result))
    progress = counts_of(request)
    if order == "input":
        missing += _fill(target, request, range(following, progress.total), ndjson=ndjson)
    target.flush()
    _note_empty_lines(progress, missing, is_aligned=order == "input" and not ndjson)
    return progress


def _fill(target: BinaryIO, request: Request, indexes: range, *, ndjson: bool) -> int:
    """Writes lines for cancelled sub-requests, which have no result; returns how many."""
    if indexes and ndjson:
        reason = counts_of(request).reason or None
        for index in indexes:
            row: dict[str, Any] = {"index": index, "status": "cancelled", "attempt": 0}
            row |= {"result": None, "error": reason}
            target.write(as_json(row).encode() + b"\n")
    elif indexes:
        target.writelines(b"\n" for _ in indexes)
    return len(indexes)


def _note_empty_lines(progress: Progress, missing: int, *, is_aligned: bool) -> None:
    if is_aligned and (missing or progress.dead):
        note(
            f"the lines of {progress.dead:,} dead and {missing:,} cancelled sub-requests "
            "are empty, so that line N is the result of input N"
        )


def as_line(result: Result) -> bytes:
    """Returns a result as one plain line; an empty one for a dead sub-request."""
    body = result.body or b""
    if b"\n" in body:
        raise FairlaneError(
            f"result {result.index} contains a newline, which plain lines cannot hold: the results "
            f"stay in Redis, ask with --json or --out NAME{NDJSON}"
        )
    return body + b"\n"


def as_ndjson(result: Result) -> bytes:
    """Returns a result as a line of JSON; a body that is not UTF-8 as `result_base64`."""
    row: dict[str, Any] = {
        "index": result.index,
        "status": result.status,
        "attempt": result.attempt,
    }
    try:
        row["result"] = None if result.body is None else result.body.decode()
    except UnicodeDecodeError:
        row["result_base64"] = base64.b64encode(result.body or b"").decode()
    row["error"] = result.error
    return as_json(row).encode() + b"\n"
