"""`fairlane results`: prints or writes a request's results, also while it still runs."""

from __future__ import annotations

import click

from fairlane.cli.options import (
    FILE,
    home_option,
    json_option,
    open_request,
    redis_option,
    timeout_option,
    timeout_s,
)


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
    as_json: bool,
) -> int:
    """Print the results of the request ID, one a line, until it has ended."""
    from fairlane.cli.exit_status import dead_of, judge, naming_what_goes_on
    from fairlane.cli.results import NDJSON, open_results, write_results
    from fairlane.cli.stall_notice import StallNotice
    from fairlane.cli.submission import end_like_interrupt

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
            counts = write_results(
                request, stream, order=order, ndjson=ndjson, timeout=limit, notice=notice
            )
        return judge(counts, dead_of(request.queue, counts))
