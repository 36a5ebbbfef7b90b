"""`fairlane submit` = `rq-submit`: a FILE becomes one request (or one for each line)."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import click

from fairlane import settings
from fairlane.cli.options import (
    FILE,
    json_option,
    open_queue,
    redis_option,
    timeout_option,
    timeout_s,
)
from fairlane.cli.output import note, write_line
from fairlane.cli.request_options import (
    OF_REQUEST,
    checked_policy,
    click_option,
    read_options,
    request_options,
)
from fairlane.cli.submission import (
    SubmitOptions,
    announce,
    await_end,
    count_left_out,
    end_like_interrupt,
    send,
    shown,
)
from fairlane.common.text import plural
from fairlane.errors import InvalidArgument, RedisError
from fairlane.options_table import BY_NAME

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from fairlane.cli.input_lines import Look, Source
    from fairlane.option_types import RequestOptions
    from fairlane.queue import Queue
    from fairlane.request import Request


@click.command("submit", short_help="Submit the lines of FILE as one request and print its id.")
@click.argument("file", metavar="FILE", type=FILE)
@request_options(OF_REQUEST)
@click.option(
    "--queue",
    "queues",
    metavar="NAME",
    multiple=True,
    default=[settings.DEFAULT_QUEUE],
    help="The queue's name. Repeat it: the queue with the fewest unfinished requests gets this one."
    f"  [default: {settings.DEFAULT_QUEUE}]",
)
@click.option(
    "--id",
    "xid",
    metavar="XID",
    help="Your own id: submitting the same again finds the same request, until its results expire.",
)
@click.option(
    "--once",
    is_flag=True,
    help="Make the id of the content and the options: the same FILE again is the same request, "
    "until its results expire.",
)
@click.option(
    "--wait",
    is_flag=True,
    help="Block until the request has ended; exit code 1 unless all is done.",
)
@click.option(
    "--watch", is_flag=True, help="Like --wait, with a progress bar on stderr; Ctrl-C detaches."
)
@timeout_option
@click.option(
    "--out",
    metavar="RESULTS",
    type=FILE,
    help="Wait, and write the results to RESULTS in input order; JSON if it ends in .ndjson.",
)
@json_option
@click_option(BY_NAME["max_wait"])
@click.option(
    "--format",
    "form",
    type=click.Choice(["lines", "requests"]),
    default="lines",
    show_default=True,
    help="requests: every line `limit:sub:sub:...` is a request.",
)
@redis_option
def command(
    file: str, redis: str | None, queues: tuple[str, ...], form: str, limit: int | None,
    once: bool, **given: Any,
) -> int:  # fmt: skip
    """Submit FILE (- is stdin) as one request: every line is a sub-request. Prints its id.

    A pipe is submitted while it is read, and its id is printed before anything is submitted. With
    --json its line comes at the end, as it has the counts. --watch shows how many lines were read.
    The first lines are submitted when more lines follow, or when it ends. With --id, each part has
    up to 1,000 lines and 1 MiB.
    """
    queue = _checked(queues, form, limit, once=once)
    wish = _read_wish(queue, limit=limit, **given)
    if form == "requests" and wish.out is not None:
        raise InvalidArgument(
            "--out needs --format lines: ask for each request's results with fairlane results ID"
        )
    if once and wish.id is not None:
        raise InvalidArgument("--once makes the id from the content: leave out --id or --once")
    from fairlane.cli.input_lines import open_source
    from fairlane.cli.redis_import import import_redis

    end_like_interrupt()
    import_redis()
    with ExitStack() as opened:
        source = opened.enter_context(open_source(file))
        if once:
            wish = replace(wish, id=_content_id(wish, source, form))
        if form == "requests":
            from fairlane.cli.requests_format import submit_each

            return submit_each(wish, source, lambda: open_queue(redis, queue))
        if source.is_file:
            with shown(wish, source, source.name, "checking") as look:
                source.check(look)
        from fairlane.cli.results import open_results

        out = opened.enter_context(open_results(wish.out))
        here = opened.enter_context(open_queue(redis, queue))
        request = opened.enter_context(_placed(wish, queues, here))
        policy = wish.policy.in_queue(request.queue.name)
        return _submit_one(replace(wish, policy=policy), source, request, out)


def _checked(queues: tuple[str, ...], form: str, limit: int | None, *, once: bool) -> str:
    """Returns the first queue, if these options go together. Raises InvalidArgument."""
    from fairlane.operations.admission import check_queues

    if form == "requests" and limit is not None:
        raise InvalidArgument(
            "--limit has no meaning with --format requests: every line begins with its own limit"
        )
    if len(queues) > 1 and (once or form == "requests"):
        option = "--once" if once else "--format requests"
        raise InvalidArgument(f"{option} needs one queue: name --queue once")
    return check_queues(queues)[0]


@contextmanager
def _placed(wish: SubmitOptions, queues: tuple[str, ...], first: Queue) -> Iterator[Request]:
    """Yields the request, in the shortest queue; if it is not submitted, it counts no more."""
    from fairlane.operations.admission import place, withdraw
    from fairlane.options import id_for
    from fairlane.queue import Queue

    driver, request_id = first.driver, id_for(wish.policy, wish.id)
    if len(queues) == 1:
        yield first.request(request_id)
        return
    found = driver.run(place(queues, request_id))
    note(f"request {request_id} goes to queue {found.queue}")
    try:
        yield Queue(driver, found.queue).request(request_id)
    except BaseException:
        with suppress(RedisError):
            driver.run(withdraw(found, request_id))
        raise


def _read_wish(
    queue: str, *, max_wait: str | None, xid: str | None, wait: bool, watch: bool,
    timeout: str | None, out: str | None, as_json: bool, **given: Any,
) -> SubmitOptions:  # fmt: skip
    from fairlane.options import read_option
    from fairlane.protocol.keys import check_name

    options = cast("RequestOptions", read_options(given))
    policy = checked_policy(queue, options)
    if xid is not None:
        check_name("request id", xid)
    waits = wait or watch or out is not None
    if timeout is not None and not waits:
        raise InvalidArgument("--timeout needs --wait, --watch or --out")
    if out == "-":
        raise InvalidArgument("--out - is not possible: standard output carries the request's id")
    max_wait_s = 0.0 if max_wait is None else read_option("max_wait", max_wait, "--max-wait") / 1000
    stop_s = timeout_s(timeout)
    return SubmitOptions(policy, xid, as_json, watch, waits, stop_s, out, max_wait_s, options)


def _content_id(wish: SubmitOptions, source: Source, form: str) -> str:
    """Returns the id of a file's lines under these options; reads the file once more."""
    if not source.is_file:
        raise InvalidArgument(f"--once reads twice, and {source.name} can be read only once")
    from fairlane.cli.requests_format import LONGEST_LINE
    from fairlane.operations.new_request import ContentId

    digest = ContentId(wish.policy)
    blocks = source.blocks() if form == "lines" else source.blocks(LONGEST_LINE)
    with shown(wish, source, source.name, "making the id") as look:
        for lines in _counted(blocks, look):
            digest.add(lines)
    return digest.id


def _submit_one(wish: SubmitOptions, source: Source, request: Request, out: BinaryIO | None) -> int:
    is_first = not source.is_file and not wish.as_json
    if is_first:  # a pipe may take long, and its request can be looked at meanwhile
        write_line(request.id)
    with shown(wish, source, f"request {request.id}", "submitting") as look:
        # With an id of the caller's the chunks must depend on the content only, for a repeat.
        as_they_come = not source.is_file and wish.id is None
        total = send(wish, request, _counted(source.blocks(), look), as_they_come=as_they_come)
    if not total:
        note(f"{source.name} is empty: request {request.id} has no sub-requests and is done")
    left_out = count_left_out(wish, request)
    if not is_first:
        announce(wish, request, total, wish.policy.limit, left_out)
    if left_out:
        note(f"left out as repeats: {plural(left_out, 'line')} of {source.name}")
    return await_end(wish, request, out) if wish.waits else 0


def _counted(lists: Iterable[list[bytes]], look: Look) -> Iterator[list[bytes]]:
    """Yields the same lists, and calls `look` with how many lines the caller has used."""
    count = 0
    look(count)
    for lines in lists:
        yield lines
        count += len(lines)
        look(count)
