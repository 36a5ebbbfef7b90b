"""Writes results: plain lines or NDJSON, to stdout or to a file."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any, BinaryIO

from fairlane.cli.exit_status import counts_of
from fairlane.cli.output import note, stdout
from fairlane.common.terminal import as_json
from fairlane.errors import FairlaneError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fairlane.cli.results.timeout import ReadTimeout
    from fairlane.model import Progress, Result
    from fairlane.protocol.steps import Operation
    from fairlane.queue import Request

NDJSON = ".ndjson"


def write_results(
    request: Request, out: BinaryIO | None, *, order: str = "input", ndjson: bool,
    patience: ReadTimeout | None = None,
) -> Progress:  # fmt: skip
    """Writes every result as it comes; ends with the request and returns its counts.

    In input order a sub-request that has no result gets its line, too: line N is input N. Raises
    FairlaneError for a result with a newline in plain lines, WaitTimeout when patience ends.
    """
    target = stdout() if out is None else out
    encode: Callable[[Result], bytes] = as_ndjson if ndjson else as_line
    missing, following = 0, 0
    for result in results_of(request, order, _asker(request, out, patience)):
        if patience is not None:
            patience.seen()
        if order == "input":
            if result.index > following:
                missing += _fill(target, request, range(following, result.index), ndjson=ndjson)
            following = result.index + 1
        target.write(encode(result))
    progress = counts_of(request)
    if order == "input":
        missing += _fill(target, request, range(following, progress.total), ndjson=ndjson)
    target.flush()
    _say_what_is_empty(progress, missing, is_aligned=order == "input" and not ndjson)
    return progress


def _asker(
    request: Request, out: BinaryIO | None, patience: ReadTimeout | None
) -> Callable[[Operation[Any]], Any]:
    """What runs an operation; before that, whoever reads stdout gets what there is so far."""
    run = request.queue.driver.run if patience is None else patience.run

    def ask(operation: Operation[Any]) -> Any:
        if out is None:
            stdout().flush()
        return run(operation)

    return ask


def results_of(
    request: Request, order: str, ask: Callable[[Operation[Any]], Any]
) -> Iterator[Result]:
    """Every result as it comes; `ask` runs what reads more of them."""
    from fairlane.results import flow

    items = flow(request.id, order)
    try:
        item = next(items)
        while True:
            if isinstance(item, list):
                yield from item
                item = next(items)
            else:
                item = items.send(ask(item))
    except StopIteration:
        return


def _fill(target: BinaryIO, request: Request, indexes: range, *, ndjson: bool) -> int:
    """Lines for sub-requests without a result: known only at the end, when they are cancelled."""
    if indexes and ndjson:
        reason = counts_of(request).reason or None
        for index in indexes:
            row: dict[str, Any] = {"index": index, "status": "cancelled", "attempt": 0}
            row |= {"result": None, "error": reason}
            target.write(as_json(row).encode() + b"\n")
    elif indexes:
        target.writelines(b"\n" for _ in indexes)
    return len(indexes)


def _say_what_is_empty(progress: Progress, missing: int, *, is_aligned: bool) -> None:
    if is_aligned and (missing or progress.dead):
        note(
            f"the lines of {progress.dead:,} dead and {missing:,} cancelled sub-requests "
            "are empty, so that line N is the result of input N"
        )


def as_line(result: Result) -> bytes:
    """A result as one plain line; an empty one when there is none."""
    body = result.body or b""
    if b"\n" in body:
        raise FairlaneError(
            f"result {result.index} contains a newline, which plain lines cannot hold: the results "
            f"stay in Redis, ask with --json or --out NAME{NDJSON}"
        )
    return body + b"\n"


def as_ndjson(result: Result) -> bytes:
    """A result as one JSON object on a line; one that is not UTF-8 as `result_base64`."""
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
