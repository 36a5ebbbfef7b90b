"""`fairlane dead`: lists, requeues and drops sub-requests that were given up."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import click

from fairlane.cli.commands.change import Wish, change_many, control_options
from fairlane.cli.exit_status import gone_words
from fairlane.cli.options import (
    TASK_HELP,
    any_or_home_option,
    dead_filters,
    dead_filters_of,
    json_option,
    open_queue,
    open_request,
    redis_option,
)
from fairlane.cli.output import (
    group_lines,
    note,
    note_unknown,
    short,
    write_json,
    write_line,
    write_styled,
)
from fairlane.cli.program import CommandGroup
from fairlane.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fairlane.model import DeadChoice, DeadFilters
    from fairlane.queue import Queue
    from fairlane.records import DeadSubRequest

PREVIEW = 60  # characters of a body
NAMED = 20  # indexes in a sentence


@click.group(
    "dead", cls=CommandGroup, short_help="List, requeue or drop sub-requests that were given up."
)
def command() -> None:
    """List, requeue or drop sub-requests that were given up.

    Exit code 1: the request is being cancelled or expires, so nothing can be requeued; 3: there is
    no such request, or no such dead sub-request.
    """


@command.command("list", short_help="List dead sub-requests, and how they failed.")
@click.argument("request_id", metavar="[ID]", required=False)
@click.option(
    "--each",
    is_flag=True,
    help="List each dead sub-request with its body, not only how they failed.",
)
@dead_filters
@click.option("--task", "tasks", multiple=True, metavar="NAME", help=TASK_HELP)
@any_or_home_option
@json_option
@redis_option
def list_(
    request_id: str | None, redis: str | None, queue: str | None, each: bool, as_json: bool,
    **given: Any,
) -> int:  # fmt: skip
    """List the requests of a queue that have dead sub-requests; with ID, how those failed."""
    from fairlane.operations.dead_letters import dated_of

    choice = _choice(**given)
    if request_id is None:
        if each:
            raise InvalidArgument("--each needs the ID of a request")
        with open_queue(redis, queue) as opened:
            _list_queue(opened, choice, as_json=as_json)
        return 0
    with open_request(redis, queue, request_id) as request:
        choice = request.queue.driver.run(dated_of(request_id, choice))
        show = _list_each if each else _list_groups
        if not show(request.queue, request_id, choice, as_json=as_json):
            note(_none(request.queue, request_id, choice))
            return 0
        if gone := _gone(request.queue, request_id):
            note(f"request {request_id}: {gone}")
        if not as_json:
            note(f"to run them again: fairlane dead requeue {request_id} --all")
    return 0


def _choice_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """`--fingerprint`, `--error`, `--since`, `--until`, `--index`, `--all`."""
    options = (
        dead_filters,
        click.option("--index", "indexes", multiple=True, type=int, metavar="I",
                     help="The sub-request of this index, from 0; may be repeated."),
        click.option("--all", "everything", is_flag=True, help="All dead sub-requests."),
    )  # fmt: skip
    for option in reversed(options):
        function = option(function)
    return function


@command.command("requeue", short_help="Let dead sub-requests run again.")
@control_options(everything=False)
@_choice_options
def requeue(indexes: tuple[int, ...], everything: bool, **given: Any) -> int:
    """Let dead sub-requests of ID run again, with all attempts; print how many.

    Several IDs, or filters, choose many requests; without both, those of the whole queue. They are
    counted first, and --yes is needed to requeue. Exit code 2: --yes is missing; 3: none matches.

    They run again in ID, under their old indexes. If ID has ended, it is opened again: `wait` waits
    for its next end, and `results` then shows the repaired whole. The same command may be repeated
    after an error: it requeues what is left.
    """
    from fairlane import Change

    filters = dead_filters_of(given)
    choice = _choose(filters, indexes, everything=everything)
    wish = Wish.of(**given, has_default=True)
    if wish.only:
        return _requeue(wish, wish.only, choice)
    if indexes:
        raise InvalidArgument("--index needs the ID of one request")
    return change_many(Change.requeue_dead(**filters), wish)


def _requeue(wish: Wish, request_id: str, choice: DeadChoice) -> int:
    from fairlane.operations.dead_letters import dated_of, requeue_dead
    from fairlane.protocol.request_hash import read

    with open_request(wish.redis, wish.queue, request_id) as request:
        has_ended = request.progress().ended
        (flow,) = request.queue.driver.run(read(request_id, "flow"))
        choice = request.queue.driver.run(dated_of(request_id, choice))
        listed = request.queue.driver.run(_indexes(request_id, choice))
        count = request.queue.driver.run(requeue_dead(request_id, choice))
        # Another count: another caller, or an end meanwhile, has changed what is dead.
        indexes = listed if len(listed) == count else None
        sentence = (
            _will_run(request_id, count, indexes, has_ended=has_ended)
            if count
            else _none(request.queue, request_id, choice)
        )
    if wish.as_json:
        write_json({"id": request_id, "requeued": count, "indexes": indexes})
    else:
        write_line(str(count))
    note(sentence)
    if count and flow and has_ended:
        name, *_, step = flow.split(" ")
        note(
            f"request {request_id} is step {step} of flow {name}: steps after it that have ended "
            "get no repaired result, and what a compensating step has undone is done again"
        )
    return 0


@command.command("drop", short_help="Forget dead sub-requests with their bodies.")
@control_options(everything=False)
@_choice_options
def drop(indexes: tuple[int, ...], everything: bool, **given: Any) -> int:
    """Forget dead sub-requests of ID with their bodies; print how many. Counts and results stay.

    Several IDs, or filters, choose many requests; without both, those of the whole queue. They are
    counted first, and --yes is needed to drop. Exit code 2: --yes is missing; 3: none matches.
    """
    from fairlane import Change
    from fairlane.operations.dead_letters import drop_dead

    filters = dead_filters_of(given)
    choice = _choose(filters, indexes, everything=everything)
    wish = Wish.of(**given, has_default=True)
    if not wish.only:
        if indexes:
            raise InvalidArgument("--index needs the ID of one request")
        return change_many(Change.drop_dead(**filters), wish)
    with open_request(wish.redis, wish.queue, wish.only) as request:
        count = request.queue.driver.run(drop_dead(wish.only, choice))
    if wish.as_json:
        write_json({"id": wish.only, "dropped": count})
    else:
        write_line(str(count))
    return 0


def _choice(**given: Any) -> DeadChoice:
    from fairlane.model import DeadChoice

    return DeadChoice.of(**dead_filters_of(given))


def _choose(filters: DeadFilters, indexes: tuple[int, ...], *, everything: bool) -> DeadChoice:
    from fairlane.model import DeadChoice

    kinds = bool(filters) + bool(indexes) + everything
    if kinds != 1:
        what = "two kinds of choice" if kinds else "none is chosen"
        raise InvalidArgument(
            f"{what}: give --all, or --index I, or some of --fingerprint, --task, --error, "
            "--since and --until"
        )
    return DeadChoice.of(**filters) if not indexes else DeadChoice.of(indexes=indexes)


def _list_queue(queue: Queue, choice: DeadChoice, *, as_json: bool) -> None:
    from fairlane.common.task_names import tasks_words
    from fairlane.common.text import reason_words
    from fairlane.model import outcome_words
    from fairlane.operations.dead_letters import ALL, queue_dead

    found = queue.driver.run(queue_dead(queue.name, choice))
    for row in found["requests"]:
        if as_json:
            write_json(row)
            continue
        counted = sum(row["reasons"].values())
        counts = sorted(row["reasons"].items())
        reasons = [f"{count:,} {reason_words(reason)}" for reason, count in counts]
        rest = [f"{row['kept'] - counted:,} not looked at"] if row["kept"] > counted else []
        state = outcome_words(row["outcome"] or row["state"], row["dead"])
        tasks = f"  {tasks_words(row['tasks'])}" if row["tasks"] else ""
        counts_of = f"{row['kept']:,} kept: {', '.join(reasons + rest)}"
        write_line(f"{row['id']}  {state}  {counts_of}{tasks}")
    if not found["requests"]:
        what = "dead sub-requests" if choice == ALL else "such dead sub-requests"
        note(
            f"no request of queue {queue.name} has {what}; "
            "dead list ID and --queue NAME show others"
        )
        note_unknown(queue)
    if found["more"]:
        note(f"{found['more']:,} more requests were not read")


def _list_groups(queue: Queue, request_id: str, choice: DeadChoice, *, as_json: bool) -> bool:
    from fairlane.operations.dead_letters import request_errors
    from fairlane.operations.request_state import moment

    groups = queue.driver.run(request_errors(request_id, choice=choice)).groups
    now_ms = queue.driver.run(moment(request_id))
    for group in groups:
        if as_json:
            write_json(group)
            continue
        for line in group_lines(group, now_ms):
            write_styled(line)
    return bool(groups)


def _list_each(queue: Queue, request_id: str, choice: DeadChoice, *, as_json: bool) -> bool:
    from fairlane.common.fingerprint import read_failure
    from fairlane.operations.call_words import call_words, hide
    from fairlane.operations.dead_letters import read_redact

    found, hidden = False, queue.driver.run(read_redact(request_id))
    for one in filter(choice.accepts, queue.request(request_id).dead()):
        found = True
        if as_json:
            write_json(_fields(one, hidden))
            continue
        headline = short(read_failure(one.error).headline)
        raw = hide(one.body, hidden)[: 4 * PREVIEW]
        body = call_words(one.body, hidden) or short(
            raw.decode("utf-8", "backslashreplace"), PREVIEW
        )
        write_line(f"{one.index}  {one.fingerprint}  {_ended(one)}: {headline}  <- {body}")
    return found


def _ended(one: DeadSubRequest) -> str:
    """Returns why a sub-request was given up, after which attempt, and where it has died."""
    from fairlane.common.text import plural, reason_words

    if one.reason == "attempts":  # an attempt that is not the last one is followed by another
        return f"failed {one.attempt} of {plural(one.attempt, 'attempt')}"
    words = reason_words(one.reason)
    where = f" on {one.worker}" if one.reason == "died" and one.worker else ""
    return f"{words} at attempt {one.attempt}{where}" if one.attempt else words


def _fields(one: DeadSubRequest, hidden: Sequence[str]) -> dict[str, Any]:
    from fairlane.operations.call_words import call_words, hide

    body: dict[str, str]
    raw = hide(one.body, hidden)
    try:
        body = {"body": raw.decode()}
    except UnicodeDecodeError:
        body = {"body_base64": base64.b64encode(raw).decode()}
    return {
        "index": one.index,
        "attempt": one.attempt,
        "reason": one.reason,
        "fingerprint": one.fingerprint,
        "error": one.error,
        "worker": one.worker,
        "task": one.task or None,
        "call": call_words(one.body, hidden) or None,
        "died_ms": one.died_ms,
        "dead_id": one.dead_id,
        **body,
    }


def _none(queue: Queue, request_id: str, choice: DeadChoice) -> str:
    from fairlane.operations.dead_letters import ALL, count_dead

    if choice != ALL and queue.driver.run(count_dead(request_id)):
        return f"request {request_id} has no such dead sub-requests"
    gone = _gone(queue, request_id)
    return f"request {request_id} has no dead sub-requests" + (f" left: {gone}" if gone else "")


def _gone(queue: Queue, request_id: str) -> str:
    """Returns how many of all dead were dropped; "" for none."""
    from fairlane.operations.dead_letters import count_dead

    counts = queue.request(request_id).progress()
    gone = gone_words(counts, queue.driver.run(count_dead(request_id)))
    return f"{counts.dead:,} of {counts.total:,} dead, {gone}" if gone else ""


async def _indexes(request_id: str, choice: DeadChoice) -> list[int]:
    """Returns the indexes of the dead that are chosen, in the order in which they are requeued."""
    from fairlane.operations.dead_letters import list_dead

    found, after = list[int](), b""
    while page := await list_dead(request_id, after):
        after = page[-1].dead_id
        found += [one.index for one in filter(choice.accepts, page)]
    return found


def _will_run(request_id: str, count: int, indexes: list[int] | None, *, has_ended: bool) -> str:
    named = f": index {_first_of(indexes)}" if indexes else ""
    ended = f"; it had ended, and is open again: fairlane wait {request_id}" if has_ended else ""
    return f"{_sub_requests(count)} will run again in request {request_id}{named}{ended}"


def _first_of(indexes: list[int]) -> str:
    more = f" and {len(indexes) - NAMED:,} more" if len(indexes) > NAMED else ""
    return ", ".join(map(str, indexes[:NAMED])) + more


def _sub_requests(count: int) -> str:
    return f"{count:,} sub-request" + ("" if count == 1 else "s")
