"""`fairlane stacks` and `fairlane kill`: what calls of a handler do now, and the end of one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from fairlane.cli.options import (
    any_or_home_option,
    home_option,
    json_option,
    open_queue,
    open_request,
    redis_option,
)
from fairlane.cli.output import ago, note, write_json, write_line
from fairlane.errors import RequestNotFound, WorkerNotFound

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fairlane.records import KilledCall, RunningCall, WorkerCalls


@click.command("stacks", short_help="Show what the calls of a worker, or of a request, do now.")
@click.argument("name", metavar="WORKER|ID")
@any_or_home_option
@json_option
@redis_option
def stacks(name: str, redis: str | None, queue: str | None, as_json: bool) -> int:
    """Show each call that WORKER, or a worker of the request ID, runs now, and where it is.

    For each call: its request and index, its task, since when it runs, its attempt, its worker,
    process and thread, and the lines of your own code, the innermost first. No call is ended. The
    worker answers within about 3 s. Exit code 3: there is no such worker or request, or none of the
    workers answers.
    """
    found = _find(name, redis, queue)
    for worker in found:
        if as_json:
            write_json(worker)
            continue
        for line in _lines(worker):
            write_line(line)
    if not any(worker.calls for worker in found):
        problems = [worker.problem for worker in found if worker.problem]
        if problems and not as_json:
            return WorkerNotFound.exit_code
        note(f"{name} runs no call now")
    return 0


def _find(name: str, redis: str | None, queue: str | None) -> list[WorkerCalls]:
    """Returns the calls of a worker of the queue, or of a request."""
    from fairlane.operations.orders import is_worker
    from fairlane.protocol.keys import check_name

    check_name("worker or request", name)
    with open_queue(redis, queue) as opened:
        if opened.driver.run(is_worker(opened.name, name)):
            return [opened.stacks(name)]
        try:
            return opened.request(name).stacks()
        except RequestNotFound:
            raise RequestNotFound(
                f"queue {opened.name} has no worker {name}, and there is no request of that id: "
                "fairlane workers lists the workers of a queue, fairlane list the requests"
            ) from None


def _lines(worker: WorkerCalls) -> Iterator[str]:
    if worker.problem:
        yield worker.problem
    for call in worker.calls:
        yield _head(call)
        if call.problem:
            yield f"    {call.problem}"
        yield from (f"  {line}" for line in call.lines)
        if not call.lines and not call.problem:
            yield "    no line of your code: it has just begun or ended"
    if worker.more:
        yield f"and {worker.more:,} more calls"


def _head(call: RunningCall) -> str:
    what = f"sub-request {call.index}" if call.index is not None else f"{call.count} sub-requests"
    task = f" ({call.call or call.task})" if call.task else ""
    limit = f", limit {ago(call.limit_ms)}" if call.limit_ms else ""
    thread = f", thread {call.thread}" if call.thread else ""
    return (
        f"{call.id} {what}{task}: for {ago(call.ran_ms)}{limit}, attempt {call.attempt} of "
        f"{call.attempts}, worker {call.worker}, process {call.process}{thread}"
    )


@click.command("kill", short_help="End one call that runs now.")
@click.argument("request_id", metavar="ID")
@click.option("--index", type=int, required=True, metavar="N", help="The index of its sub-request.")
@click.option("--charge", "verdict", flag_value="charge", default=True,
              help="Charge an attempt: the next one has its backoff, the last one makes it dead.  "
              "[default]")  # fmt: skip
@click.option("--free", "verdict", flag_value="free", help="Let it run again, uncharged.")
@click.option("--dead", "verdict", flag_value="dead", help="Give it up now: it is dead.")
@click.option("--yes", is_flag=True, help="Also if other calls of its process end with it.")
@home_option
@json_option
@redis_option
def kill(
    request_id: str, index: int, verdict: str, yes: bool, redis: str | None, queue: str | None,
    as_json: bool,
) -> int:  # fmt: skip
    """End the call of sub-request N of ID that runs now, and its process if it must.

    A call of an async handler is cancelled first. If that does not help, and for a sync handler,
    its process is killed and started again; other calls of the process run again uncharged, and
    --yes is needed. Exit code 2: --yes is missing, and nothing was done; 3: there is no such
    request, or the call does not run now.
    """
    with open_request(redis, queue, request_id) as request:
        killed = request.kill(index, verdict, others=yes, by=_who())
    if as_json:
        write_json(killed)
    else:
        write_line(_sentence(killed))
    return 0


def _who() -> str:
    """Returns the name of the person at this terminal, "" if it is not known."""
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        return ""


def _sentence(killed: KilledCall) -> str:
    from fairlane.common.text import plural

    what = f"sub-request {killed.index} of request {killed.id} was ended after {ago(killed.ran_ms)}"
    is_last = killed.attempt >= killed.attempts
    then = {
        "charge": f"attempt {killed.attempt} of {killed.attempts} is charged"
        + (", it is dead" if is_last else ""),
        "free": "it runs again, uncharged",
        "dead": "it is dead",
    }[killed.verdict]
    process = f"; process {killed.process} was killed" if killed.ended_process else ""
    verb = "runs" if killed.others == 1 else "run"
    others = f", and {plural(killed.others, 'other call')} {verb} again" if killed.others else ""
    return f"{what}: {then}{process}{others}"
