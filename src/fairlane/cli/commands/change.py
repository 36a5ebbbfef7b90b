"""The commands that change requests: pause, resume, set, cancel, delete."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from fairlane import settings
from fairlane.cli.options import (
    OF_CHANGE,
    any_or_home_option,
    filter_options,
    filters_of,
    json_option,
    open_queue,
    open_request,
    read_options,
    redis_option,
    request_options,
)
from fairlane.cli.output import note, note_unknown, write_json, write_line
from fairlane.errors import InvalidArgument, RequestNotFound

if TYPE_CHECKING:
    from fairlane import Change
    from fairlane.model import RequestFilters
    from fairlane.operations.change import Selection
    from fairlane.option_types import ChangeOptions
    from fairlane.queue import Queue
    from fairlane.records import ChangeReport
    from fairlane.request import Request


F = TypeVar("F", bound=Callable[..., Any])
NOTHING, NOT_CONFIRMED, FAILED = 3, 2, 1  # exit codes
_SHOWN = 3  # ids in a sentence
_SHOWN_FAILED = 10
_LISTED = 1_000  # ids in JSON
CODES = (
    "Several IDs are changed immediately. With filters, or --all, the command counts the requests, "
    "and changes them only with --yes. Exit code 1: some could not be changed; 2: --yes is "
    "missing, and nothing was changed; 3: there is no such request."
)


def control_options(priority: str = "--priority", *, everything: bool = True) -> Callable[[F], F]:
    """Returns the arguments and options of a command that changes one request or many."""
    all_option = click.option(
        "--all", "everything", is_flag=True, help="All requests of the queue."
    )
    yes = click.option("--yes", is_flag=True, help="Do it; without it they are only counted.")

    def decorate(function: F) -> F:
        function = any_or_home_option(json_option(redis_option(yes(function))))
        function = filter_options(priority)(all_option(function) if everything else function)
        return click.argument("ids", nargs=-1, metavar="[ID]...")(function)

    return decorate


@dataclass(frozen=True, slots=True)
class Wish:
    """The requests that a person chose, and the other values of control_options."""

    redis: str | None
    queue: str | None
    as_json: bool
    ids: tuple[str, ...]
    everything: bool
    yes: bool
    filters: RequestFilters

    @classmethod
    def of(
        cls,
        *,
        ids: tuple[str, ...],
        everything: bool = False,
        has_default: bool = False,
        **given: Any,
    ) -> Wish:
        """Returns the wish. Raises UsageError unless it chooses requests in one way.

        With `has_default` the command is for all requests if there is no choice.
        """
        from fairlane.operations.find import RequestFilter, filter_of

        filters = filters_of(given)
        is_filtered = filter_of(**filters) != RequestFilter()
        everything = everything or (has_default and not ids and not is_filtered)
        ways = bool(ids) + is_filtered + everything
        if ways != 1:
            what = "two ways of choice" if ways else "no request is chosen"
            raise click.UsageError(
                f"{what}: give IDs, or filters such as --state running, or --all for all requests"
            )
        return cls(ids=ids, everything=everything, filters=filters, **given)

    @property
    def only(self) -> str | None:
        """Returns the id if the wish names one request."""
        return self.ids[0] if len(set(self.ids)) == 1 else None


def change_many(change: Change, wish: Wish) -> int:
    """Counts the requests, changes them if that is confirmed, and returns the exit code."""
    with open_queue(wish.redis, None if wish.ids else wish.queue) as opened:
        selected = _select(opened, change, wish)
        if not selected:
            return _report_nothing(opened, change, wish)
        if not wish.ids and not wish.yes:
            return _report_count(selected, wish)
        report = _change(opened, selected)
    if wish.as_json:
        write_json(_fields(selected) | _outcome(report))
    else:
        write_line(_sentence(selected, report))
    for name, error in list(report.failed.items())[:_SHOWN_FAILED]:
        note(f"{name}: {error}" if name not in str(error) else str(error))
    if len(report.failed) > _SHOWN_FAILED:
        note(f"{len(report.failed) - _SHOWN_FAILED:,} more failed: --json names them")
    return FAILED if report.failed else 0


def _select(queue: Queue, change: Change, wish: Wish) -> Selection:
    if wish.everything:
        return queue.select(change, everything=True)
    if not wish.ids:
        return queue.select(change, **wish.filters)
    selected = queue.select(change, wish.ids)
    for one in selected.requests:
        if wish.queue not in {None, one.queue}:
            raise RequestNotFound(
                f"request {one.id} is in queue {one.queue}, not in queue {wish.queue}: "
                f"give --queue {one.queue}, or leave it out"
            )
    return selected


def _change(queue: Queue, selected: Selection) -> ChangeReport:
    """Changes the requests; after Ctrl-C or an error it reports how far that came."""
    from fairlane.records import ChangeReport

    report = ChangeReport()
    try:
        return queue.change(selected, report)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"interrupted: {_how_far(selected, report)}") from None
    except Exception:
        note(_how_far(selected, report))
        raise


def _how_far(selected: Selection, report: ChangeReport) -> str:
    verb = selected.change.verb
    return (
        f"{report.changed:,} of {_requests(len(selected))} {_were(report.changed)} {verb}, and up "
        "to 100 more may be; the same command changes the rest"
    )


def _report_nothing(queue: Queue, change: Change, wish: Wish) -> int:
    if wish.as_json:
        write_json({"change": change.word, "matched": 0, "ids": []})
    note(f"no request of queue {queue.name} matches: nothing is {change.verb}")
    note_unknown(queue)
    return NOTHING


def _report_count(selected: Selection, wish: Wish) -> int:
    if wish.as_json:
        write_json(_fields(selected))
    ids = selected.ids
    more = f" and {len(ids) - _SHOWN:,} more" if len(ids) > _SHOWN else ""
    dead = f" with {selected.dead:,} dead sub-requests" if selected.dead else ""
    note(
        f"{_requests(len(ids))}{dead} would be {selected.change.verb}: "
        f"{', '.join(ids[:_SHOWN])}{more}; give --yes to do it"
    )
    return NOT_CONFIRMED


def _sentence(selected: Selection, report: ChangeReport) -> str:
    parts = []
    if report.changed or not (report.ended or report.failed):
        dead = f" ({report.dead:,} dead sub-requests)" if report.dead else ""
        parts.append(f"{_requests(report.changed)} {selected.change.verb}{dead}")
    if report.ended:
        parts.append(f"{_requests(report.ended)} had ended meanwhile")
    if report.failed:
        parts.append(f"{_requests(len(report.failed))} could not be {selected.change.verb}")
    return "; ".join(parts)


def _fields(selected: Selection) -> dict[str, Any]:
    return {
        "change": selected.change.word,
        "matched": len(selected),
        "ids": selected.ids[:_LISTED],
        **({"dead": selected.dead} if selected.dead else {}),
    }


def _outcome(report: ChangeReport) -> dict[str, Any]:
    return {
        "changed": report.changed,
        "ended": report.ended,
        "failed": {name: str(error) for name, error in report.failed.items()},
        **({"dead": report.dead} if report.dead else {}),
    }


def _requests(count: int) -> str:
    from fairlane.common.text import plural

    return plural(count, "request")


def _were(count: int) -> str:
    return "was" if count == 1 else "were"


# ------------------------------------------------------------------ pause and resume


def switch(name: str, wanted: str, short: str, does: str) -> click.Command:
    """Returns the command `name`, which makes requests `wanted`: paused or active."""

    def command(**given: Any) -> int:
        from fairlane import Change

        wish = Wish.of(**given)
        if wish.only:
            return _switch(wish, wish.only, wanted)
        return change_many(Change.pause() if wanted == "paused" else Change.resume(), wish)

    text = (
        f"{does}, and print its state. Or do so with many requests and print how many.\n\n"
        "Exit code 1: the request has ended, is being cancelled or is past its deadline. " + CODES
    )
    return click.command(name, short_help=short, help=text)(control_options()(command))


def _switch(wish: Wish, request_id: str, wanted: str) -> int:

    with open_request(wish.redis, wish.queue, request_id) as request:
        state = request.pause() if wanted == "paused" else request.resume()
        progress = request.progress()
    if wish.as_json:
        write_json(progress)
    else:
        write_line(progress.state)
    if state == wanted:
        return 0
    way = "being cancelled" if state == "cancelling" else "past its deadline"
    note(f"request {request_id} is {way}: it stays {state}")
    return 1


pause = switch(
    "pause",
    "paused",
    "Pause requests: what runs ends, nothing more starts.",
    "Pause the request ID until fairlane resume ID",
)


resume = switch("resume", "active", "Let paused requests go on.", "Let the paused request ID go on")


# ------------------------------------------------------------------ set


@click.command(
    "set",
    short_help="Change the limit, priority, rate and so on of requests.",
    help="Change the request ID while it waits or runs, and print what is now in force. Or change "
    "many requests and print how many.\n\nSlices that workers hold already end first, also above a "
    f"lower limit. Exit code 1: the request has ended. {CODES}",
)
@control_options("--at-priority")
@request_options(OF_CHANGE, defaults=False)
def set_(**given: Any) -> int:
    """Change one request or many."""
    from fairlane import Change

    wanted = {option.name: given.pop(option.name) for option in OF_CHANGE}
    wish = Wish.of(**given)
    if set(wanted.values()) == {None}:
        raise InvalidArgument(
            "there is nothing to set: give --limit N, --priority P, --deadline TIME, --rate N/s, "
            "--weight N or --share N"
        )
    change = Change.set(**cast("ChangeOptions", read_options(wanted)))
    return _set(wish, wish.only, change) if wish.only else change_many(change, wish)


def _set(wish: Wish, request_id: str, change: Change) -> int:
    from fairlane.common.text import format_duration
    from fairlane.operations.change import set_one

    with open_request(wish.redis, wish.queue, request_id) as request:
        request.queue.driver.run(set_one(request.id, change))
        progress = request.progress()
    if wish.as_json:
        write_json(progress)
        return 0
    line = f"limit {progress.limit}, priority {progress.priority}"
    if change.deadline_ms:
        line += f", deadline in {format_duration(change.deadline_ms)}"
    elif change.deadline_ms == 0:
        line += ", no deadline"
    if change.share is not None:
        line += f", share {progress.share} of tenant {progress.tenant}"
    if change.rate is not None or change.weight is not None:
        line += f", rate {', '.join(progress.rates)}"
    write_line(line)
    return 0


# ------------------------------------------------------------------ cancel


@click.command(
    "cancel",
    short_help="Cancel requests: nothing more of them starts.",
    help="Cancel the request ID and print its state: cancelling while workers or programs "
    f"still hold some of it. Or cancel many requests and print how many.\n\n{CODES}",
)
@control_options()
@click.option(
    "--reason", default="cancelled by the caller", show_default=True, help="Kept with the request."
)
def cancel(reason: str, **given: Any) -> int:
    """Cancel one request or many."""
    from fairlane import Change

    wish = Wish.of(**given)
    reason = os.fsencode(reason).decode("utf-8", "replace")
    if wish.only:
        return _cancel(wish, wish.only, reason)
    return change_many(Change.cancel(reason), wish)


def _cancel(wish: Wish, request_id: str, reason: str) -> int:
    with open_request(wish.redis, wish.queue, request_id) as request:
        before = request.progress()
        request.cancel(reason)
        progress = request.progress()
        if progress.state == "cancelling":
            note(_waits_for(request))
    if before.ended:
        note(f"request {request_id} had ended before: it is {progress.shown_state}")
    if wish.as_json:
        write_json(progress)
    else:
        write_line(progress.shown_state)
    return 0


def _waits_for(request: Request) -> str:
    """Returns what a cancelled request waits for, and for how long at most."""
    from fairlane.common.text import exact, join_names, plural
    from fairlane.operations.request_state import read_holders

    held = request.queue.driver.run(read_holders(request.id))
    names = join_names([*dict.fromkeys(one.worker for one in held)])
    return (
        f"request {request.id} waits for what runs under {plural(len(held), 'permit')}, of "
        f"{names or 'a worker'}: a worker ends it {exact(settings.CANCEL_GRACE_S)} s after it has "
        "detected the cancel, unless it has another --cancel-grace; fairlane stacks "
        f"{request.id} shows the calls"
    )


# ------------------------------------------------------------------ delete


@click.command(
    "delete",
    short_help="Delete ended requests with their results.",
    help="Delete ended requests with their results and dead sub-requests, and print how many. "
    f"Their ids are free again; the completion log keeps their endings.\n\n{CODES}",
)
@control_options()
@click.option(
    "--cancel", is_flag=True,
    help="Cancel requests first that have not ended, and delete those that end immediately.",
)  # fmt: skip
def delete(cancel: bool, **given: Any) -> int:
    """Delete one request or many."""
    from fairlane import Change

    return change_many(Change.delete(cancel=cancel), Wish.of(**given))
