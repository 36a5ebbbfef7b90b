"""`fairlane results`: prints or writes a request's results, also while it still runs."""

from __future__ import annotations

import click

from .options import json_option, open_queue, redis_option


@click.command("results")
@click.argument("request_id", metavar="ID")
@click.option(
    "--order", type=click.Choice(["input", "done"]), default="input", show_default=True,
    help="input: line N is the result of input N; done: as they finish.",
)  # fmt: skip
@click.option(
    "--out", metavar="FILE", help="Write them to FILE (- is stdout); JSON if it ends in .ndjson."
)
@json_option
@redis_option
def command(request_id: str, redis: str | None, order: str, out: str | None, as_json: bool) -> int:
    """Print the results of the request ID, one a line, until it has ended."""
    from ..keys import check_name
    from .endings import judge
    from .results_file import NDJSON, open_results, write_results

    check_name("request id", request_id)
    name = None if out == "-" else out
    ndjson = as_json or (name is not None and name.endswith(NDJSON))
    with open_results(name) as stream, open_queue(redis) as queue:
        return judge(write_results(queue.request(request_id), stream, order=order, ndjson=ndjson))
