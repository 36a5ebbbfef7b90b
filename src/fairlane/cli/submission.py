"""What both formats of `rq-submit` do: send a request, print its id, wait for its end."""

from __future__ import annotations

import signal
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, BinaryIO

import click

from ..errors import FairlaneError, QueueFull, RedisFull, RequestNotFound
from .results_file import NDJSON, write_results
from .talk import emit, emit_json, say

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ..model import Policy
    from ..queue import Request
    from .lines import Look, Source


@dataclass(frozen=True, slots=True)
class Wish:
    """What the caller asked for, checked before anything is read or written."""

    policy: Policy
    id: str | None
    as_json: bool
    watch: bool
    waits: bool
    timeout: float | None
    out: str | None
    max_wait_s: float = 0.0

    @property
    def ndjson(self) -> bool:
        """True when the results go to a file of JSON lines."""
        return self.out is not None and self.out.endswith(NDJSON)


class Terminated(KeyboardInterrupt):
    """SIGTERM or a closed terminal: like Ctrl-C, but nobody asked to detach."""


def end_like_interrupt() -> None:
    """SIGTERM and a closed terminal end a command like Ctrl-C: nothing stays half done."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # not under nohup
            signal.signal(number, _terminate)


def _terminate(*_: object) -> None:
    raise Terminated


def send(wish: Wish, request: Request, chunks: Iterable[list[bytes]]) -> int:
    """Submits one request; returns how many sub-requests it has."""
    from ..operations.submit import submit

    try:
        sent = submit(request.id, wish.policy, wish.max_wait_s)
        return request.queue.driver.run(sent, iter(chunks))
    except KeyboardInterrupt:
        raise KeyboardInterrupt(_take_back(wish, request)) from None
    except (RedisFull, QueueFull) as error:
        raise no_room(wish, error) from None


def no_room(wish: Wish, error: RedisFull | QueueFull) -> RedisFull | QueueFull:
    """The refusal, and how long it was waited for."""
    if not wish.max_wait_s:
        return error
    return type(error)(f"no room after {wish.max_wait_s:g} s: {error}")


def _take_back(wish: Wish, request: Request) -> str:
    """Cancels what was interrupted; returns a sentence about what is left of it."""
    from ..operations.control import cancel

    if wish.id is None:  # else it may have been there before
        with suppress(FairlaneError):  # there may be nothing to cancel
            queue = request.queue
            queue.driver.run(cancel(request.id, "interrupted", queue=queue.name))
    return f"interrupted: {_left_of(request)}"


def _left_of(request: Request) -> str:
    look = f"fairlane status {request.id}"
    try:
        now = request.progress()
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
def shown(wish: Wish, source: Source, title: str, doing: str) -> Iterator[Look]:
    """Yields a function to call with the lines read so far; with --watch, it shows them."""
    if not wish.watch:
        yield lambda _: None
        return
    from .watching import Meter

    with Meter(source, title, doing) as meter:
        yield meter.look


def announce(wish: Wish, request: Request, total: int) -> None:
    """Prints the id of a request that was submitted."""
    if not wish.as_json:
        emit(request.id)
        return
    policy = wish.policy
    emit_json(
        {
            "id": request.id,
            "sub_requests": total,
            "priority": policy.priority,
            "limit": policy.limit,
        }
    )


def await_end(wish: Wish, request: Request, out: BinaryIO | None = None) -> int:
    """Waits as wished and writes the results, if there is a file for them; the exit code.

    Raises RequestLost when the request vanished after it was submitted.
    """
    from .endings import known

    with known(request.id):
        return _await_end(wish, request, out)


def _await_end(wish: Wish, request: Request, out: BinaryIO | None) -> int:
    from .endings import dead_of, judge

    if out is None:
        _await(wish, request)
        _confirm_end(wish, request)
        progress = request.progress()
        return judge(progress, dead_of(request.queue, progress))
    try:
        if wish.watch or wish.timeout is not None:
            _await(wish, request)
        progress = write_results(request, out, ndjson=wish.ndjson)
        _confirm_end(wish, request)
        return judge(progress, dead_of(request.queue, progress))
    except KeyboardInterrupt:
        again = f"fairlane results {request.id} --out {wish.out}"
        raise KeyboardInterrupt(
            f"{wish.out} was not written; request {request.id} goes on: {again}"
        ) from None


def _confirm_end(wish: Wish, request: Request) -> None:
    """What ended while somebody watched is confirmed, as it is for one who waits."""
    if wish.policy.durable and (wish.watch or wish.out is not None):
        request.wait(wish.timeout)


def _await(wish: Wish, request: Request) -> None:
    """Waits or watches. Ctrl-C detaches from what is watched: raises Exit(0)."""
    from .endings import wait_for

    if not wish.watch:
        wait_for(request, wish.timeout)
        return
    from .watching import watch

    try:
        watch(request, wish.timeout)
    except KeyboardInterrupt as error:
        sentence = f"detached; request {request.id} goes on: fairlane status {request.id}"
        if wish.out is not None or isinstance(error, Terminated):
            raise KeyboardInterrupt(sentence) from None
        say(sentence)
        raise click.exceptions.Exit(0) from None


def one_of_many(wish: Wish, limit: int, xid: str | None) -> Wish:
    """The same wish for a request with its own limit and id."""
    return replace(wish, policy=replace(wish.policy, limit=limit), id=xid)
