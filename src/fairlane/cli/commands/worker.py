"""`fairlane worker` = `rq-worker`: works on sub-requests until a signal stops it."""

from __future__ import annotations

import logging
import os
import sys
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import click

from fairlane.cli.options import (
    log_format_option,
    open_queue,
    queue_option,
    redis_option,
    time_limit_ms,
    time_ms,
    url_of,
)
from fairlane.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairlane.queue import Queue


@click.command("worker", short_help="Work on sub-requests until a signal stops it.")
@click.option(
    "--id",
    "worker_id",
    metavar="HOST:PORT",
    envvar="FAIRLANE_WORKER_ID",
    help="The worker's name, and the address of its health port, [::1]:7101 for IPv6; :7101 is "
    "this machine's address in the network of Redis.  "
    "[default: $FAIRLANE_WORKER_ID, else a free port on 127.0.0.1]",
)
@click.option(
    "--handler",
    metavar="MODULE:FUNCTION",
    help="The function that is called for every sub-request.  "
    "[default: print it as JSON and mark it done]",
)
@click.option(
    "--app",
    "apps",
    metavar="MODULE:APP",
    multiple=True,
    help="An app, whose tasks are called, and whose queue is taken; may be repeated.",
)
@click.option(
    "--concurrency",
    type=int,
    metavar="N",
    help="Sub-requests that each process runs concurrently.  [default: 1]",
)
@click.option("--processes", type=int, metavar="P", help="Processes.  [default: 1]")
@queue_option
@click.option("--until-idle", is_flag=True, help="End when nothing is left to do.")
@click.option(
    "--slice",
    "slice_",
    metavar="TIME",
    help="How long the sub-requests of one lease should run together.  [default: 20ms]",
)
@click.option(
    "--tokens",
    type=int,
    metavar="N",
    help="The most leases that a unit takes in one call to Redis while the handler is quick; "
    "each process has as many units as --concurrency says.  [default: 128]",
)
@click.option(
    "--time-limit",
    metavar="TIME",
    help="A call of the handler that takes longer is ended, as 30s or 5m.  [default: none]",
)
@click.option(
    "--cancel-grace",
    metavar="TIME",
    help="End a handler that goes on for so long after its request was cancelled, uncharged; none: "
    "it may finish.  [default: 30s]",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
    help="The least level that is logged; debug logs every failed attempt with its traceback.",
)
@log_format_option
@redis_option
@click.pass_context
def command(
    context: click.Context,
    /,
    handler: str | None,
    apps: tuple[str, ...],
    redis: str | None,
    queue: str,
    until_idle: bool,
    worker_id: str | None,
    time_limit: str | None,
    cancel_grace: str | None,
    slice_: str | None,
    log_level: str,
    log_format: Literal["text", "json"],
    **given: Any,
) -> int:
    """Work on sub-requests. After SIGTERM, SIGHUP or Ctrl-C, finish the held work, and end."""
    from fairlane.cli.log import log_to_stderr
    from fairlane.cli.output import note
    from fairlane.worker import Worker

    chosen = {name: value for name, value in given.items() if value is not None}
    chosen |= _times(time_limit, cancel_grace, slice_)
    log = partial(log_to_stderr, log_level, log_format)
    if apps:
        _refuse_beside_apps(context, handler)
        return _run_apps(apps, redis, worker_id, chosen, log, until_idle=until_idle)
    function = _find(handler)
    log()
    with open_queue(redis, queue) as opened:
        worker = Worker(opened, function, id=worker_id, **chosen)
        _log_unknown(opened)
        if handler is None:
            note(f"no --handler: prints each sub-request of queue {queue} and marks it as done")
        return worker.run(until_idle=until_idle)


def _times(
    time_limit: str | None, cancel_grace: str | None, slice_: str | None
) -> dict[str, float | None]:
    """Returns the durations that were given, as options of Worker. Raises InvalidArgument."""
    found: dict[str, float | None] = {}
    if time_limit is not None:
        found["time_limit_s"] = time_limit_ms(time_limit) / 1000
    if cancel_grace == "none":
        found["cancel_grace_s"] = None
    elif cancel_grace is not None:
        found["cancel_grace_s"] = time_ms("--cancel-grace", cancel_grace, "0s", "24h") / 1000
    if slice_ is not None:
        found["slice_s"] = time_ms("--slice", slice_, "0s", "10s") / 1000
    return found


def _log_unknown(queue: Queue) -> None:
    """Logs that the queue was never used on this Redis, because its name may be mistyped."""
    from fairlane.cli.output import unknown

    if hint := unknown(queue):
        logging.getLogger("fairlane.worker").info(hint)


def _look_here() -> None:
    """Lets handlers and apps be in files of the current directory.

    It comes after the imports of this program, because a user's file may have the name of one.
    """
    here = os.getcwd()  # noqa: PTH109  sys.path holds text
    if here not in sys.path:
        sys.path.insert(0, here)


def _find(handler: str | None) -> Callable[..., Any]:
    """Returns the handler. Raises HandlerNotFound."""
    from fairlane.worker import handlers

    _look_here()
    return handlers.print_json if handler is None else handlers.load(handler)


def _refuse_beside_apps(context: click.Context, handler: str | None) -> None:
    """Raises InvalidArgument for options that contradict `--app`."""
    if handler is not None:
        raise InvalidArgument("--app and --handler exclude each other: name one of them")
    if context.get_parameter_source("queue") is not click.core.ParameterSource.DEFAULT:
        raise InvalidArgument("--queue is not valid with --app: an app names its own queue")


def _run_apps(
    names: tuple[str, ...],
    redis: str | None,
    worker_id: str | None,
    chosen: dict[str, Any],
    log: Callable[[], None],
    *,
    until_idle: bool,
) -> int:
    """Runs a worker for each queue of these apps. Once they are loaded, `log` sets up the log."""
    from fairlane.tasks.serve import load_apps, run_workers, workers_of

    _look_here()
    apps = load_apps(names)
    for app in apps if redis is None else []:
        app.url = app.url or url_of(None)
    log()
    workers = workers_of(apps, redis, id=worker_id, **chosen)
    for url in {worker.queue.driver.url for worker in workers}:
        with open_queue(url):
            pass
    for worker in workers:
        _log_unknown(worker.queue)
    return run_workers(workers, until_idle=until_idle)
