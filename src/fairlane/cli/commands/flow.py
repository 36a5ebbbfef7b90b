"""`fairlane flow`: lists the runs of flows, and draws one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from fairlane.cli.options import json_option, limit_option, open_queue, queue_option, redis_option
from fairlane.cli.output import (
    REQUESTS,
    State,
    note,
    note_unknown,
    request_cells,
    table,
    write_json,
    write_line,
    write_styled,
)
from fairlane.cli.program import CommandGroup
from fairlane.errors import InvalidArgument, RequestNotFound
from fairlane.operations.flow_shared import read_shared

if TYPE_CHECKING:
    from fairlane.cli.output import Cell
    from fairlane.records import FlowProgress, StepProgress

# What a step gets of the ones before it; most get their results, and need no word.
_WORDS = {
    "dead": "dead",
    "branch": "branch",
    "chosen": "chosen",
    "join": "joins",
    "merge": "merges",
}
_HEAD = ("RUN", "FLOW", "STATE", "STEPS", "DONE", "DEAD")


@click.group("flow", cls=CommandGroup, short_help="List the runs of flows, and draw one.")
def command() -> None:
    """List the runs of flows, and draw one: its steps, and what is done in each.

    A program submits flows with Queue.submit_flow. Exit code 3: there is no such run.
    """


@command.command("list", short_help="List the runs that began in a queue.")
@click.argument("properties", metavar="[NAME=VALUE]...", nargs=-1)
@click.option("--flow", "name", default="", metavar="FLOW", help="Only runs of this flow.")
@limit_option(50)
@queue_option
@json_option
@redis_option
def list_(
    properties: tuple[str, ...], name: str, limit: int, queue: str,
    as_json: bool, redis: str | None,
) -> int:  # fmt: skip
    """List the runs that began in a queue, unfinished ones first.

    Only those are listed that have all properties NAME=VALUE. A bounded part of the queue is read.
    """
    wanted = _properties(properties)
    with open_queue(redis, queue) as opened:
        found: list[FlowProgress] = []
        for run in opened.flows.find(name, most=limit, **wanted):
            try:
                found.append(run.progress())
            except RequestNotFound:  # its retention is over meanwhile
                continue
        if as_json:
            for one in found:
                write_json(_fields(one))
        elif found:
            for line in table(_HEAD, map(_row, found)):
                write_styled(line)
        else:
            note(f"no such flow began in queue {queue}")
            note_unknown(opened)
    return 0


@command.command("show", short_help="Draw one run, with the counts of each step.")
@click.argument("run", metavar="ID")
@click.option("--svg", "picture", metavar="FILE", help="Write a picture of it, too.")
@queue_option
@json_option
@redis_option
def show(
    run: str, picture: str | None, queue: str, as_json: bool, redis: str | None
) -> int:  # fmt: skip
    """Draw the run ID: each step below the one whose results it gets.

    A step that gets the dead sub-requests of another step is below that one, with the word `dead`.
    A step that joins children is below their parent. The shared state of the run follows.
    """
    with open_queue(redis, queue) as opened:
        found = opened.flows.run(run).progress()
        shared = opened.driver.run(read_shared(run))
    if picture is not None:
        _write_picture(picture, found)
    if as_json:
        write_json({**_fields(found), "shared": shared})
        return 0
    write_line(f"flow {found.flow}, run {found.id}: {found.shown_state}")
    for line in table(("STEP", "QUEUE", *REQUESTS), _drawn(found)):
        write_styled(line)
    for name, value in shared.items():
        write_line(f"shared {name} = {json.dumps(value, ensure_ascii=False)}")
    return 0


def _write_picture(file: str, found: FlowProgress) -> None:
    from fairlane.cli.files import open_results
    from fairlane.flow_svg import svg

    with open_results(file, "--svg") as out:
        if out is not None:
            out.write(svg(found).encode())


def _drawn(found: FlowProgress) -> list[tuple[Cell, ...]]:
    """Returns the rows of the steps: each is followed by those that it feeds."""
    drawn: list[tuple[int, StepProgress]] = []
    todo: list[tuple[int, StepProgress]] = [(0, one) for one in found.steps if not one.sources]
    while todo:
        depth, one = todo.pop()
        drawn.append((depth, one))
        # The compensation comes first; the last one that is added is drawn first. What joins or
        # merges others comes after the last of them, as deep as the one that is least deep.
        fed = [each for each in found.steps if each.sources[-1:] == (one.step,)]
        fed.sort(key=lambda each: (each.is_compensating, -found.steps.index(each)))
        deep = {each.step: depth for depth, each in drawn}
        for each in fed:
            goes_back = each.gets == "join" or len(each.sources) > 1
            least = min(deep.get(name, depth) for name in each.sources)
            todo.append((least + (not goes_back), each))
    depths = [depth for depth, _ in drawn]
    return [
        (
            _branch(depths, place) + _name(one),
            one.progress.queue,
            *request_cells(one.progress),
        )
        for place, (_, one) in enumerate(drawn)
    ]


def _branch(depths: list[int], place: int) -> str:
    """Returns the line that leads to a row, with the lines that pass by it."""
    own, line = depths[place], ""
    for depth in range(1, own + 1):
        rest = next((one for one in depths[place + 1 :] if one <= depth), 0)
        goes_on = rest == depth
        if depth == own:
            return line + ("├─ " if goes_on else "└─ ")
        line += "│  " if goes_on else "   "
    return line


def _name(one: StepProgress) -> str:
    word = _WORDS.get(one.gets, "")
    return f"{word} → {one.step}" if word else one.step


def _row(found: FlowProgress) -> tuple[Cell, ...]:
    return (
        *(found.id, found.flow, State(found.outcome or found.state, found.shown_state)),
        *(str(len(found.steps)), f"{found.done:,}"),
        State("dead", f"{found.dead:,}") if found.dead else "0",
    )


def _properties(words: tuple[str, ...]) -> dict[str, str]:
    """Returns the properties. Raises InvalidArgument."""
    found = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            raise InvalidArgument(f"property {word!r} is not valid: write NAME=VALUE")
        if name in found:
            raise InvalidArgument(f"property {name} is given twice: give it once")
        found[name] = value
    return found


def _fields(found: FlowProgress) -> dict[str, Any]:
    return {
        "id": found.id,
        "flow": found.flow,
        "state": found.state,
        "outcome": found.outcome,
        "steps": [
            {
                "step": one.step,
                "request": one.progress.id,
                "queue": one.progress.queue,
                "state": one.progress.state,
                "outcome": one.progress.outcome,
                "sources": list(one.sources),
                "is_compensating": one.is_compensating,
                "gets": one.gets,
                "total": one.progress.total,
                "done": one.progress.done,
                "dead": one.progress.dead,
                "cancelled": one.progress.cancelled,
                "is_open": one.progress.is_open,
            }
            for one in found.steps
        ],
    }
