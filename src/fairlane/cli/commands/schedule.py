"""`fairlane schedule`: adds, lists, pauses, resumes and removes recurring work."""

from __future__ import annotations

import json
from itertools import chain
from typing import TYPE_CHECKING, Any

import click

from fairlane import settings
from fairlane.cli.options import (
    FILE,
    OF_SCHEDULE,
    json_option,
    open_queue,
    queue_option,
    read_options,
    redis_option,
    request_options,
)
from fairlane.cli.output import (
    State,
    note,
    note_unknown,
    table,
    write_json,
    write_line,
    write_styled,
)
from fairlane.cli.program import CommandGroup
from fairlane.errors import InvalidArgument

if TYPE_CHECKING:
    from fairlane.operations.schedules import Schedule

SHOWN = 5  # ticks of a schedule
MISSED = ("skip", "one", "all")
_WHEN = "%a %Y-%m-%d %H:%M:%S %z"
_HEAD = ("SCHEDULE", "STATE", "CRON", "TZ", "MISSED", "NEXT")


@click.group("schedule", cls=CommandGroup, short_help="Add, list, pause or remove recurring work.")
def command() -> None:
    """Add, list, pause or remove recurring work: each tick of a schedule submits one request.

    The workers of the queue submit it. The id of the request is QUEUE:NAME:TICK, with the tick in
    UTC, as in req:daily:20261224T060000Z. Exit code 3: there is no such schedule.
    """


@command.command("add", short_help="Add a schedule, or change the one of this name.")
@click.argument("name", metavar="NAME")
@click.argument("cron", metavar="CRON")
@click.argument("file", metavar="[FILE]", type=FILE, required=False)
@click.option("--body", "bodies", multiple=True, metavar="TEXT",
              help="A sub-request of each request, instead of FILE; may be repeated.")  # fmt: skip
@click.option("--task", metavar="TASK", help="A task that is called, instead of FILE.")
@click.option("--args", "arguments", metavar="JSON",
              help="The arguments of the task, an object such as '{\"day\": 1}'.")  # fmt: skip
@click.option("--tz", default="UTC", show_default=True, metavar="ZONE",
              help="The time zone of CRON, such as Europe/Berlin.")  # fmt: skip
@click.option("--missed", type=click.Choice(MISSED), default="one", show_default=True,
              help="What is submitted of ticks that were missed; one: the latest.")  # fmt: skip
@click.option("--most", type=int, default=settings.MISSED_MOST, show_default=True, metavar="N",
              help="The most missed ticks that are submitted by --missed all.")  # fmt: skip
@request_options(one for one in OF_SCHEDULE if one.name != "task")
@queue_option
@json_option
@redis_option
def add(
    name: str, cron: str, file: str | None, bodies: tuple[str, ...], task: str | None,
    arguments: str | None, tz: str, missed: Any, most: int,
    queue: str, as_json: bool, redis: str | None, **given: Any,
) -> int:  # fmt: skip
    """Add the schedule NAME, or change the one of this name, and print its next tick.

    CRON is one argument of five fields, '0 7 * * mon-fri', or of six with seconds first. Each line
    of FILE (- is stdin) is a sub-request of each request. A change keeps the next tick, unless CRON
    or --tz changes. A paused schedule stays paused.
    """
    from fairlane.operations import schedules
    from fairlane.operations.schedules import check_schedule_name, define

    check_schedule_name(queue, name)
    options = read_options(given | {"task": task})
    found = _bodies(file, bodies, task, arguments)
    wanted = define(cron=cron, bodies=found, tz=tz, missed=missed, most=most, **options)
    wanted.policy(queue)
    with open_queue(redis, queue) as opened:
        schedule = opened.driver.run(schedules.put_schedule(queue, name, wanted))
    _write(schedule, as_json=as_json)
    return 0


@command.command("list", short_help="List the schedules with their next ticks.")
@queue_option
@json_option
@redis_option
def list_(queue: str, as_json: bool, redis: str | None) -> int:
    """List the schedules of a queue, each with its next five ticks in its time zone.

    A schedule is overdue if no worker has submitted its tick, and paused until it is resumed.
    """
    from fairlane.operations import schedules

    with open_queue(redis, queue) as opened:
        found = opened.driver.run(schedules.list_schedules(queue))
        if as_json:
            for schedule in found:
                write_json(_fields(schedule))
        elif found:
            _write_table(found)
        else:
            note(f"queue {queue} has no schedules")
            note_unknown(opened)
    return 0


@command.command("pause", short_help="Pause a schedule: it submits nothing until it is resumed.")
@click.argument("schedule", metavar="NAME")
@queue_option
@json_option
@redis_option
def pause(schedule: str, queue: str, as_json: bool, redis: str | None) -> int:
    """Pause the schedule NAME until fairlane schedule resume NAME. Its requests go on."""
    from fairlane.operations import schedules

    with open_queue(redis, queue) as opened:
        _write(opened.driver.run(schedules.pause(queue, schedule)), as_json=as_json)
    return 0


@command.command("resume", short_help="Resume a paused schedule.")
@click.argument("schedule", metavar="NAME")
@queue_option
@json_option
@redis_option
def resume(schedule: str, queue: str, as_json: bool, redis: str | None) -> int:
    """Resume the paused schedule NAME. What was due meanwhile is not submitted."""
    from fairlane.operations import schedules

    with open_queue(redis, queue) as opened:
        _write(opened.driver.run(schedules.resume(queue, schedule)), as_json=as_json)
    return 0


@command.command("remove", short_help="Remove a schedule.")
@click.argument("schedule", metavar="NAME")
@queue_option
@redis_option
def remove(schedule: str, queue: str, redis: str | None) -> int:
    """Remove the schedule NAME. Requests of its earlier ticks stay."""
    from fairlane.operations import schedules

    with open_queue(redis, queue) as opened:
        opened.driver.run(schedules.drop_schedule(queue, schedule))
    write_line("removed")
    return 0


def _bodies(
    file: str | None, bodies: tuple[str, ...], task: str | None, arguments: str | None
) -> list[bytes]:
    """Returns the bodies of each request. Raises InvalidArgument."""
    if sum((file is not None, bool(bodies), task is not None)) != 1:
        raise InvalidArgument("a schedule submits a FILE, --body or --task: name one of them")
    if arguments is not None and task is None:
        raise InvalidArgument("--args needs --task")
    if task is not None:
        return [_call(task, "{}" if arguments is None else arguments)]
    if file is None:
        return [body.encode("utf-8", "surrogateescape") for body in bodies]
    from fairlane.cli.files import open_source

    found: list[bytes] = []
    with open_source(file) as source:
        for block in source.blocks():
            found = list(chain(found, block))
            if sum(map(len, found)) > settings.MAX_SCHEDULE:
                break  # it is refused, and the rest may be very long
    if not found:
        raise InvalidArgument(f"{file} is empty: each request needs at least one line")
    return found


def _call(task: str, arguments: str) -> bytes:
    """Returns the body of a task's call. Raises InvalidArgument."""
    from fairlane.tasks.codec import JSON, VERSION

    try:
        found = json.loads(arguments)
    except ValueError as error:
        raise InvalidArgument(f"--args {arguments} is not JSON ({error})") from None
    if not isinstance(found, dict):
        raise InvalidArgument(f"--args {arguments} is no object: write '{{\"name\": value}}'")
    return JSON.encode((VERSION, task, found))


def _write(schedule: Schedule, *, as_json: bool) -> None:
    """Writes one schedule: its next tick, or that it is paused."""
    if as_json:
        write_json(_fields(schedule))
        return
    when = schedule.next()
    write_line(f"next {when[0].strftime(_WHEN)}" if when else "paused")


def _write_table(found: list[Schedule]) -> None:
    body: list[tuple[str | State, ...]] = []
    for one in found:
        times = [moment.strftime(_WHEN) for moment in one.next(SHOWN)] or [""]
        body.append((one.name, State(one.state), one.cron, one.tz, one.missed, times[0]))
        body += [("", "", "", "", "", later) for later in times[1:]]
    for line in table(_HEAD, body):
        write_styled(line)


def _fields(schedule: Schedule) -> dict[str, Any]:
    return {
        "schedule": schedule.name,
        "queue": schedule.queue,
        "state": schedule.state,
        "cron": schedule.cron,
        "tz": schedule.tz,
        "missed": schedule.missed,
        "most": schedule.most,
        "sub_requests": len(schedule.bodies),
        "options": schedule.options,
        "of_app": schedule.is_of_app,
        "next": [moment.isoformat() for moment in schedule.next(SHOWN)],
    }
