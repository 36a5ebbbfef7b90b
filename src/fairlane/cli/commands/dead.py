"""`fairlane dead`: lists, requeues and drops sub-requests that were given up."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import click

from fairlane.cli.commands.change import Wish, change_many, control_options
from fairlane.cli.exit_status import gone_words
from fairlane.cli.options import (
    any_or_home_option,
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
    from collections.abc import Callable

    from fairlane.model import DeadChoice
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
@any_or_home_option
@json_option
@redis_option
def list_(
    request_id: str | None, redis: str | None, queue: str | None, each: bool, as_json: bool
) -> int:
    """List the requests of a queue that have dead sub-requests; with ID, how those failed."""
    if request_id is None:
        if each:
            raise InvalidArgument("--each needs the ID of a request")
        with open_queue(redis, queue) as opened:
            _list_queue(opened, as_json=as_json)
        return 0
    with open_request(redis, queue, request_id) as request:
        show = _list_each if each else _list_groups
        if not show(request.queue, request_id, as_json=as_json):
            note(_none(request.queue, request_id))
            return 0
        if gone := _gone(request.queue, request_id):
            note(f"request {request_id}: {gone}")
        if not as_json:
            note(f"to run them again: fairlane dead requeue {request_id} --all")
    return 0


def _choice_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """`--fingerprint`, `--index`, `--all`."""
    options = (
        click.option("--fingerprint", "fingerprints", multiple=True, metavar="F",
                     help="Those with this fingerprint (see dead list); may be repeated."),
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
def requeue(
    fingerprints: tuple[str, ...], indexes: tuple[int, ...], everything: bool, **given: Any
) -> int:
    """Let dead sub-requests of ID run again, with all attempts; print how many.

    Several IDs, or filters, choose many requests; without both, those of the whole queue. They are
    counted first, and --yes is needed to requeue. Exit code 2: --yes is missing; 3: none matches.

    They run again in ID, under their old indexes. If ID has ended, it is opened again: `wait` waits
    for its next end, and `results` then shows the repaired whole. The same command may be repeated
    after an error: it requeues what is left.
    """
    from fairlane import Change

    choice = _choose(fingerprints, indexes, everything=everything)
    wish = Wish.of(**given, has_default=True)
    if wish.only:
        return _requeue(wish, wish.only, choice)
    if indexes:
        raise InvalidArgument("--index needs the ID of one request")
    return change_many(Change.requeue_dead(fingerprint=fingerprints or None), wish)


def _requeue(wish: Wish, request_id: str, choice: DeadChoice) -> int:
    from fairlane.operations.dead_letters import requeue_dead
    from fairlane.protocol.request_hash import read

    with open_request(wish.redis, wish.queue, request_id) as request:
        has_ended = request.progress().ended
        (flow,) = request.queue.driver.run(read(request_id, "flow"))
        listed = request.queue.driver.run(_indexes(request_id, choice))
        count = request.queue.driver.run(requeue_dead(request_id, choice))
        # Another count: another caller, or an end meanwhile, has changed what is dead.
        indexes = listed if len(listed) == count else None
        sentence = (
            _will_run(request_id, count, indexes, has_ended=has_ended)
            if count
            else _none(request.queue, request_id)
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
def drop(
    fingerprints: tuple[str, ...], indexes: tuple[int, ...], everything: bool, **given: Any
) -> int:
    """Forget dead sub-requests of ID with their bodies; print how many. Counts and results stay.

    Several IDs, or filters, choose many requests; without both, those of the whole queue. They are
    counted first, and --yes is needed to drop. Exit code 2: --yes is missing; 3: none matches.
    """
    from fairlane import Change

    choice = _choose(fingerprints, indexes, everything=everything)
    wish = Wish.of(**given, has_default=True)
    if not wish.only:
        if indexes:
            raise InvalidArgument("--index needs the ID of one request")
        return change_many(Change.drop_dead(fingerprint=fingerprints or None), wish)
    with open_request(wish.redis, wish.queue, wish.only) as request:
        count = request.drop_dead(fingerprint=choice.fingerprints, indexes=choice.indexes)
    if wish.as_json:
        write_json({"id": wish.only, "dropped": count})
    else:
        write_line(str(count))
    return 0


def _choose(
    fingerprints: tuple[str, ...], indexes: tuple[int, ...], *, everything: bool
) -> DeadChoice:
    from fairlane.model import DeadChoice

    kinds = bool(fingerprints) + bool(indexes) + everything
    if kinds != 1:
        what = "two kinds of choice" if kinds else "none is chosen"
        raise InvalidArgument(f"{what}: give --all, or --fingerprint F, or --index I")
    return DeadChoice.of(fingerprints or None, indexes or None)


def _list_queue(queue: Queue, *, as_json: bool) -> None:
    from fairlane.common.text import reason_words
    from fairlane.model import outcome_words
    from fairlane.operations.dead_letters import queue_dead

    found = queue.driver.run(queue_dead(queue.name))
    for row in found["requests"]:
        if as_json:
            write_json(row)
            continue
        counted = sum(row["reasons"].values())
        counts = sorted(row["reasons"].items())
        reasons = [f"{count:,} {reason_words(reason)}" for reason, count in counts]
        rest = [f"{row['kept'] - counted:,} not looked at"] if row["kept"] > counted else []
        state = outcome_words(row["outcome"] or row["state"], row["dead"])
        write_line(f"{row['id']}  {state}  {row['kept']:,} kept: {', '.join(reasons + rest)}")
    if not found["requests"]:
        note(
            f"no request of queue {queue.name} has dead sub-requests; "
            "dead list ID and --queue NAME show others"
        )
        note_unknown(queue)
    if found["more"]:
        note(f"{found['more']:,} more requests were not read")


def _list_groups(queue: Queue, request_id: str, *, as_json: bool) -> bool:
    from fairlane.operations.dead_letters import group_dead
    from fairlane.operations.request_state import moment

    groups = queue.driver.run(group_dead(request_id))
    now_ms = queue.driver.run(moment(request_id))
    for group in groups:
        if as_json:
            write_json(group)
            continue
        for line in group_lines(group, now_ms):
            write_styled(line)
    return bool(groups)


def _list_each(queue: Queue, request_id: str, *, as_json: bool) -> bool:
    from fairlane.common.fingerprint import read_failure

    found = False
    for one in queue.request(request_id).dead():
        found = True
        if as_json:
            write_json(_fields(one))
            continue
        headline = short(read_failure(one.error).headline)
        body = short(one.body[: 4 * PREVIEW].decode("utf-8", "backslashreplace"), PREVIEW)
        write_line(f"{one.index}  {one.fingerprint}  {_ended(one)}: {headline}  <- {body}")
    return found


def _ended(one: DeadSubRequest) -> str:
    """Returns why a sub-request was given up, and after which attempt."""
    from fairlane.common.text import plural, reason_words

    if one.reason == "attempts":  # an attempt that is not the last one is followed by another
        return f"failed {one.attempt} of {plural(one.attempt, 'attempt')}"
    words = reason_words(one.reason)
    return f"{words} at attempt {one.attempt}" if one.attempt else words


def _fields(one: DeadSubRequest) -> dict[str, Any]:
    body: dict[str, str]
    try:
        body = {"body": one.body.decode()}
    except UnicodeDecodeError:
        body = {"body_base64": base64.b64encode(one.body).decode()}
    return {
        "index": one.index,
        "attempt": one.attempt,
        "reason": one.reason,
        "fingerprint": one.fingerprint,
        "error": one.error,
        "worker": one.worker,
        "died_ms": one.died_ms,
        "dead_id": one.dead_id,
        **body,
    }


def _none(queue: Queue, request_id: str) -> str:
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

    prints, wanted = choice.fingerprints, choice.indexes
    found, after = list[int](), b""
    while page := await list_dead(request_id, after):
        after = page[-1].dead_id
        found += [
            one.index
            for one in page
            if (prints is None or one.fingerprint in prints)
            and (wanted is None or one.index in wanted)
        ]
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
