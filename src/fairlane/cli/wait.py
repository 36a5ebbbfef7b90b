"""`fairlane wait`: blocks until a request has ended."""

from __future__ import annotations

import click

from .options import json_option, open_queue, redis_option, timeout_option, timeout_s
from .talk import emit, emit_json


@click.command("wait", short_help="Wait until a request has ended and print its state.")
@click.argument("request_id", metavar="ID")
@timeout_option
@json_option
@redis_option
def command(request_id: str, redis: str | None, timeout: str | None, as_json: bool) -> int:
    """Wait until the request ID has ended and print its state: done or cancelled."""
    from ..keys import check_name
    from .endings import counts_of, judge, summary, wait_for

    check_name("request id", request_id)
    limit = timeout_s(timeout)
    with open_queue(redis) as queue:
        request = queue.request(request_id)
        wait_for(request, limit)
        progress = counts_of(request)
    if as_json:
        emit_json(summary(progress))
    else:
        emit(progress.state)
    return judge(progress)
