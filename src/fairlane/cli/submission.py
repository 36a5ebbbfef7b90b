"""Submits one request for `rq-submit`, from its options to its exit code.

Both formats use these functions: they send a request, print its id, wait for its end.
"""

from __future__ import annotations

import signal
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, BinaryIO, cast

from fairlane import settings
from fairlane.cli.output import write_json, write_line
from fairlane.cli.results import NDJSON, write_results
from fairlane.common.text import exact
from fairlane.errors import (
    FairlaneError,
    QueueFull,
    RedisFull,
    RedisUnreachable,
    RequestNotFound,
)
from fairlane.option_types import RequestOptions

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from fairlane.cli.input_lines import Look, Source
    from fairlane.drivers.sync import SyncDriver
    from fairlane.option_types import SharedOptions
    from fairlane.options import Policy
    from fairlane.request import Request


@dataclass(frozen=True, slots=True)
class SubmitOptions:
    """The options of a submission, checked before anything is read or written."""

    policy: Policy
    id: str | None
    as_json: bool
    watch: bool
    waits: bool
    timeout: float | None
    out: str | None
    max_wait_s: float = 0.0
    options: RequestOptions = field(default_factory=RequestOptions)  # they make the policy

    @property
    def shared_options(self) -> SharedOptions:
        """Returns the options that all requests of a file share: all but the limit."""
        shared = {name: value for name, value in self.options.items() if name != "limit"}
        return cast("SharedOptions", shared)

    @property
    def ndjson(self) -> bool:
        """Returns True if the results go to a file of JSON lines."""
        return self.out is not None and self.out.endswith(NDJSON)


def end_like_interrupt() -> None:
    """Makes SIGTERM and a closed terminal act like Ctrl-C, so that no request is left half done."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # not under nohup
            signal.signal(number, _terminate)


def _terminate(*_: object) -> None:
    raise KeyboardInterrupt


def send(
    wish: SubmitOptions, request: Request, lines: Iterable[list[bytes]], *, as_they_come: bool
) -> int:
    """Submits one request; returns how many sub-requests it has.

    The lists of lines are chunks if they are sent `as_they_come`, else any part of the input.
    """
    queue, max_wait_s = request.queue, wish.max_wait_s
    given = wish.options
    try:
        if as_they_come:
            submitted = queue.submit_chunks(lines, id=request.id, max_wait=max_wait_s, **given)
        else:
            bodies = chain.from_iterable(lines)
            submitted = queue.submit_request(bodies, id=request.id, max_wait=max_wait_s, **given)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(_take_back(wish, request)) from None
    except RedisUnreachable as error:
        raise RedisUnreachable(f"{error}; {_completed_by(wish, request, as_they_come)}") from None
    except (RedisFull, QueueFull) as error:
        raise no_room(wish, error) from None
    return submitted.total or 0


def _completed_by(wish: SubmitOptions, request: Request, as_they_come: bool) -> str:
    """Returns how to complete or withdraw a request whose submission was interrupted.

    A repeat cannot complete what was sent `as_they_come`, because it cuts other chunks.
    """
    withdraw = f"fairlane cancel {request.id}"
    if as_they_come:
        remedy = f"{withdraw}, then run the command again; with --id, a repeat completes it"
    elif wish.id:
        remedy = f"run the same command again to complete it, or {withdraw}"
    else:
        remedy = f"add --id {request.id} and run it again to complete it, or {withdraw}"
    return f"request {request.id} may be incomplete: when Redis answers, {remedy}"


def no_room(wish: SubmitOptions, error: RedisFull | QueueFull) -> RedisFull | QueueFull:
    """Returns the refusal, with the time that the command waited for room."""
    if not wish.max_wait_s:
        return error
    return type(error)(f"no room after {exact(wish.max_wait_s)} s: {error}")


def _take_back(wish: SubmitOptions, request: Request) -> str:
    """Cancels what was interrupted; returns a sentence about what is left of it."""
    from fairlane.queue import Queue

    with impatient(request.queue.driver.url) as driver:
        own = Queue(driver, request.queue.name).request(request.id)
        try:
            if wish.id is None:  # with an id, the request may have existed before
                cancel_if_there(own)
            return f"interrupted: {_left_of(own)}"
        except RedisUnreachable as error:
            open_end = not_certain(f"request {request.id} is", error)
            return (
                f"interrupted: nothing more is submitted, but {open_end} "
                f"fairlane status {request.id} shows it, if it is"
            )


def impatient(url: str) -> AbstractContextManager[SyncDriver]:
    """Opens a driver that makes one short try, because a person has interrupted the command."""
    from fairlane.drivers.sync import SyncDriver

    return closing(SyncDriver(url, patience_s=0, timeout_s=settings.ASK_S))


def cancel_if_there(request: Request) -> None:
    """Cancels what an interrupt may have left of a request. Raises RedisUnreachable."""
    try:
        request.cancel("interrupted")
    except RedisUnreachable:
        raise
    except FairlaneError:  # there may be nothing to cancel
        return


def not_certain(which: str, error: RedisUnreachable) -> str:
    """Returns what an interrupt left open, and why, to be followed by a command that shows it."""
    return f"whether {which} in Redis is not certain ({error}): when Redis answers again,"


def _left_of(request: Request) -> str:
    look = f"fairlane status {request.id}"
    try:
        now = request.progress()
    except RedisUnreachable:
        raise
    except RequestNotFound:
        return f"request {request.id} was withdrawn, and nothing of it is left"
    except FairlaneError as error:
        return f"whether request {request.id} was submitted is not known ({error}): {look}"
    if now.state in ("cancelling", "cancelled"):
        return f"request {request.id} was cancelled before all of it was submitted"
    if now.is_open:
        again = f"submit the same again to go on, or fairlane cancel {request.id}"
        return f"request {request.id} is not complete: {again}"
    return f"request {request.id} was submitted and is {now.state}: {look}"


@contextmanager
def shown(wish: SubmitOptions, source: Source, title: str, doing: str) -> Iterator[Look]:
    """Yields a function to call with the lines read so far; with --watch, it shows them."""
    if not wish.watch:
        yield lambda _: None
        return
    from fairlane.cli.progress import Meter

    with Meter(source, title, doing) as meter:
        yield meter.look


def announce(
    wish: SubmitOptions, request: Request, total: int, limit: int, left_out: int | None
) -> None:
    """Prints the id of a request that was submitted; `left_out` is from count_left_out."""
    if not wish.as_json:
        write_line(request.id)
        return
    row = {"id": request.id, "total": total, "left_out": left_out}
    write_json({**row, "priority": wish.policy.priority, "limit": limit})


def count_left_out(wish: SubmitOptions, request: Request) -> int | None:
    """Returns how many lines of a request were repeats; None if Redis does not report it.

    The request is submitted already, so an error of this call is none of the submission.
    """
    if not wish.policy.distinct:
        return 0
    with suppress(FairlaneError):
        return request.progress().left_out
    return None


def await_end(wish: SubmitOptions, request: Request, out: BinaryIO | None = None) -> int:
    """Waits, and writes the results if there is a file for them; returns the exit code.

    Raises RequestLost when the request vanished after it was submitted.
    """
    from fairlane.cli.exit_status import known

    with known(request.id):
        return _await_end(wish, request, out)


def _await_end(wish: SubmitOptions, request: Request, out: BinaryIO | None) -> int:
    from fairlane.cli.exit_status import dead_of, judge, naming_what_goes_on
    from fairlane.cli.stall_notice import StallNotice

    with naming_what_goes_on(request.id, *_after(wish, request)):
        if out is None or wish.watch or wish.timeout is not None:
            _await(wish, request)
        if out is None:
            _confirm_end(wish, request)
            progress = request.progress()
        else:
            notice = StallNotice(request.id, reads=True)
            progress = write_results(request, out, ndjson=wish.ndjson, notice=notice)
            _confirm_end(wish, request)
        return judge(progress, dead_of(request.queue, progress))


def _after(wish: SubmitOptions, request: Request) -> tuple[str, ...]:
    """Returns what an interrupt or an outage leaves, and the commands: see naming_what_goes_on."""
    if wish.out is not None:
        return f"{wish.out} was not written", f"fairlane results {request.id} --out {wish.out}"
    if wish.watch:
        return "detached", f"fairlane status {request.id}", f"fairlane wait {request.id}"
    return ()


def _confirm_end(wish: SubmitOptions, request: Request) -> None:
    """Confirms the end of a durable request that was watched or read, as `wait` does."""
    if wish.policy.durable and (wish.watch or wish.out is not None):
        request.wait(wish.timeout)


def _await(wish: SubmitOptions, request: Request) -> None:
    if wish.watch:
        from fairlane.cli.progress import watch

        watch(request, wish.timeout)
    else:
        from fairlane.cli.exit_status import wait_for

        wait_for(request, wish.timeout)
