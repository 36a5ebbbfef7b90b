"""Writes results: plain lines or NDJSON, to stdout or to a file."""

from __future__ import annotations

import base64
from dataclasses import replace
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from fairlane.cli.exit_status import counts_of
from fairlane.cli.files import open_results
from fairlane.cli.options import (
    FILE,
    home_option,
    json_option,
    open_request,
    redis_option,
    timeout_option,
    timeout_s,
)
from fairlane.cli.output import note, stdout
from fairlane.common.text import as_json
from fairlane.errors import FairlaneError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fairlane.cli.progress import StallNotice
    from fairlane.records import Progress, Result
    from fairlane.request import Request


NDJSON = ".ndjson"


def write_results(
    request: Request, out: BinaryIO | None, *, order: str = "input", ndjson: bool,
    timeout: float | None = None, notice: StallNotice | None = None, hidden: Sequence[str] = (),
) -> Progress:  # fmt: skip
    """Writes every result as it comes; ends with the request and returns its counts.

    In input order a sub-request without a result gets its line, too: line N is input N. Raises
    FairlaneError for a result with a newline in plain lines, and WaitTimeout. The values of the
    `hidden` fields are not written.
    """
    from fairlane.operations.call_words import hide

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
        body = None if result.body is None else hide(result.body, hidden)
        target.write(encode(replace(result, body=body) if hidden else result))
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


# ------------------------------------------------------------------ results
# `fairlane results`: prints or writes a request's results, also while it still runs.


@click.command("results", short_help="Print or write the results of a request until it has ended.")
@click.argument("request_id", metavar="ID")
@click.option(
    "--order", type=click.Choice(["input", "done"]), default="input", show_default=True,
    help="input: line N is the result of input N; done: as they finish.",
)  # fmt: skip
@click.option(
    "--out", metavar="FILE", type=FILE,
    help="Write them to FILE (- is stdout); JSON if it ends in .ndjson.",
)  # fmt: skip
@click.option(
    "--reveal", is_flag=True, help="Also write the fields that the request hides (redact)."
)
@timeout_option
@home_option
@json_option
@redis_option
def command(
    request_id: str,
    redis: str | None,
    queue: str | None,
    order: str,
    out: str | None,
    timeout: str | None,
    reveal: bool,
    as_json: bool,
) -> int:
    """Print the results of the request ID, one a line, until it has ended."""
    from fairlane.cli.commands.submit import end_like_interrupt
    from fairlane.cli.exit_status import dead_of, judge, naming_what_goes_on
    from fairlane.cli.progress import StallNotice

    limit = timeout_s(timeout)
    name = None if out == "-" else out
    ndjson = as_json or (name is not None and name.endswith(NDJSON))
    if name is not None:  # a signal leaves no half file
        end_like_interrupt()
    with open_results(name) as stream, open_request(redis, queue, request_id) as request:
        notice = StallNotice(request_id, reads=True)
        to_file = f" --out {out}" if out else ""
        resume = f"fairlane results {request_id}{to_file}"
        with naming_what_goes_on(request_id, resume=resume):
            hidden = () if reveal else request.progress().redact
            counts = write_results(
                request, stream, order=order, ndjson=ndjson, timeout=limit, notice=notice,
                hidden=hidden,
            )  # fmt: skip
        return judge(counts, dead_of(request.queue, counts))
