"""Writes results: plain lines or NDJSON, to stdout or to a file that is whole or not there.

A file is written as `<name>.part` beside its final name and renamed at the end, so that nothing
half done is taken for whole.
"""

from __future__ import annotations

import base64
import os
import stat
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from ..errors import FairlaneError, InvalidArgument
from .talk import as_json, say, stdout

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ..model import Progress, Result
    from ..queue import Request

NDJSON = ".ndjson"
BUFFER = 1 << 18


@contextmanager
def open_results(name: str | None) -> Iterator[BinaryIO | None]:
    """A file for the results under `name`, which it gets when all went well; None for no name.

    Raises InvalidArgument at once when it cannot be written.
    """
    if name is None:
        yield None
        return
    target = Path(os.path.realpath(name))
    part = target if _is_device(target) else target.with_name(target.name + ".part")
    try:
        if target.is_dir():
            raise IsADirectoryError(0, "it is a directory")
        stream = part.open("wb", buffering=BUFFER)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InvalidArgument(f"--out {name} cannot be written: {reason.lower()}") from None
    try:
        with stream:
            yield stream
        if part != target:
            part.replace(target)
    except BaseException:
        if part != target:
            with suppress(OSError):
                part.unlink()
        raise


def _is_device(target: Path) -> bool:
    try:
        mode = target.stat().st_mode
    except (OSError, ValueError):
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def write_results(
    request: Request, out: BinaryIO | None, *, order: str = "input", ndjson: bool
) -> Progress:
    """Writes every result as it comes; ends with the request and returns its counts.

    In input order a sub-request that has no result gets its line, too: line N is input N. Raises
    FairlaneError for a result with a newline in plain lines.
    """
    target = stdout() if out is None else out
    pause = target.flush if out is None else _no_pause
    encode: Callable[[Result], bytes] = as_ndjson if ndjson else as_line
    missing, following = 0, 0
    for result in results_of(request, order, pause):
        if order == "input":
            if result.index > following:
                missing += _fill(target, request, range(following, result.index), ndjson=ndjson)
            following = result.index + 1
        target.write(encode(result))
    progress = request.progress()
    if order == "input":
        missing += _fill(target, request, range(following, progress.total), ndjson=ndjson)
    target.flush()
    _say_what_is_empty(progress, missing, is_aligned=order == "input" and not ndjson)
    return progress


def results_of(request: Request, order: str, pause: Callable[[], Any]) -> Iterator[Result]:
    """Every result as it comes; `pause` is called before Redis is asked for more."""
    from ..results import flow

    items = flow(request.id, order)
    try:
        item = next(items)
        while True:
            if isinstance(item, list):
                yield from item
                item = next(items)
            else:
                pause()
                item = items.send(request.queue.driver.run(item))
    except StopIteration:
        return


def _no_pause() -> None:
    """A file needs no flush while Redis is asked for more."""


def _fill(target: BinaryIO, request: Request, indexes: range, *, ndjson: bool) -> int:
    """Lines for sub-requests without a result: known only at the end, when they are cancelled."""
    if indexes and ndjson:
        reason = request.progress().reason or None
        for index in indexes:
            row: dict[str, Any] = {"index": index, "status": "cancelled", "attempt": 0}
            row |= {"result": None, "error": reason}
            target.write(as_json(row).encode() + b"\n")
    elif indexes:
        target.writelines(b"\n" for _ in indexes)
    return len(indexes)


def _say_what_is_empty(progress: Progress, missing: int, *, is_aligned: bool) -> None:
    if is_aligned and (missing or progress.dead):
        say(
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
    return as_json(row).encode("utf-8", "replace") + b"\n"
