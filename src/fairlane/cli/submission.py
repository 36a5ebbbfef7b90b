"""Submits what `rq-submit` reads: lines or requests; prints ids and waits for the end."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import chain, tee
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar, cast

import click

from fairlane import settings
from fairlane.cli.options import range_ms, time_limit_ms, time_ms
from fairlane.cli.output import note, write_json, write_line
from fairlane.cli.results import NDJSON, write_results
from fairlane.common.clock import moment_ms
from fairlane.common.text import exact, format_duration, of_queue
from fairlane.errors import (
    FairlaneError,
    InvalidArgument,
    QueueFull,
    RedisFull,
    RedisUnreachable,
    RequestNotFound,
)
from fairlane.options import MAX_LIMIT, RequestOptions
from fairlane.settings import MAX_BODY

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fairlane.drivers.sync import SyncDriver
    from fairlane.options import Policy, SharedOptions
    from fairlane.queue import Queue
    from fairlane.request import Request

    F = TypeVar("F", bound=Callable[..., Any])


# ------------------------------------------------------------------ input lines
# Reads FILE as lines, lazily: a line ends at \n, its bytes are kept as they are.
#
# A last line without \n counts, nothing after a last \n does not. A file is checked in a first
# pass before anything is written; what can be read only once (a pipe) is checked as it comes.


BLOCK = 1 << 20  # at most the longest line, so that a line inside one block is short enough
Read = Callable[[int], bytes]
Look = Callable[[int], object]  # called with how many lines have been read


@dataclass(frozen=True, slots=True)
class Source:
    """An open FILE: its name in messages, and whether it can be read twice."""

    name: str
    stream: BinaryIO
    is_file: bool

    def blocks(self, most: int = MAX_BODY) -> Iterator[list[bytes]]:
        """Yields the lines, from the beginning of a file or as a pipe brings them.

        Never holds more than a block and a line. Raises InvalidArgument for a line over `most`
        bytes or a failing read, naming the line.
        """
        if self.is_file:
            self.stream.seek(0)
            return line_blocks(self.stream.read, self.name, most)
        # read1 returns available bytes: a slow pipe's lines need not wait for a full block.
        return line_blocks(getattr(self.stream, "read1", self.stream.read), self.name, most)

    def share(self) -> float | None:
        """Returns how much of a file has been read, 0 to 1; None for a pipe."""
        size = os.fstat(self.stream.fileno()).st_size if self.is_file else 0
        return min(1.0, self.stream.tell() / size) if size else None

    def check(self, look: Look, most: int = MAX_BODY) -> None:
        """Checks a file in a first pass. Raises InvalidArgument for a line over `most` bytes."""
        self.stream.seek(0)
        line, length = 1, 0  # of the line that the blocks so far end in
        while block := _read(self.stream.read, self.name, line):
            first, last = block.find(b"\n"), block.rfind(b"\n")
            _check_length(length + (len(block) if first < 0 else first), most, self.name, line)
            if first >= 0:
                line += block.count(b"\n")
                length = 0
            length += len(block) - last - 1 if first >= 0 else len(block)
            look(line)


@contextmanager
def open_source(path: str) -> Iterator[Source]:
    """Opens FILE, `-` for stdin. Raises InvalidArgument when it cannot be read."""
    if path == "-":
        yield _stdin()
        return
    try:
        stream = open(path, "rb", buffering=BLOCK)  # noqa: SIM115, PTH123  closed below; a path may be no text
    except IsADirectoryError:
        raise InvalidArgument(
            f"{path} is a directory: a file with one sub-request a line is expected"
        ) from None
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"{path} cannot be read: {_reason(error)}") from None
    with stream:
        yield Source(path, stream, is_file=_is_file(stream))


def _stdin() -> Source:
    if sys.stdin is None:
        raise InvalidArgument("- is standard input, which is closed")
    if sys.stdin.isatty():
        note("reading sub-requests from the terminal, one a line; Ctrl-D ends")
    return Source("standard input", sys.stdin.buffer, is_file=False)


def _is_file(stream: BinaryIO) -> bool:
    return stat.S_ISREG(os.fstat(stream.fileno()).st_mode)


def line_blocks(read: Read, name: str, most: int = MAX_BODY) -> Iterator[list[bytes]]:
    """Yields the lines of each block that `read` returns, as a list."""
    number = 1  # of the line that begins `parts`
    parts: list[bytes] = []
    held = 0
    while block := _read(read, name, number):
        first, *rest = block.split(b"\n")
        held += len(first)
        _check_length(held, most, name, number)
        parts.append(first)
        if not rest:
            continue
        last = rest.pop()
        lines = [b"".join(parts), *rest]
        yield lines
        number += len(lines)
        parts, held = [last], len(last)
    if held:
        yield [b"".join(parts)]


def _check_length(length: int, most: int, name: str, number: int) -> None:
    if length > most:
        raise InvalidArgument(
            f"line {number} of {name} has more than {most:,} bytes, the most a line may have"
        )


def _read(read: Read, name: str, number: int) -> bytes:
    try:
        return read(BLOCK)
    except OSError as error:
        raise InvalidArgument(f"{name} cannot be read at line {number}: {_reason(error)}") from None


def _reason(error: Exception) -> str:
    return (getattr(error, "strerror", None) or str(error)).lower()


# ------------------------------------------------------------------ requests format
# `--format requests`: every line `limit:sub:sub:...` is a request, `#` begins a comment.
#
# Blank lines are skipped. A sub-request may be empty and cannot contain a colon. The whole file is
# checked, naming the line, before the first request is submitted.


LONGEST_LINE = 64 << 20  # one line is one request: more than one sub-request's size
IN_MEMORY = 16 << 20  # bytes of a pipe kept in memory, because it must be read twice; then a file


@dataclass(frozen=True, slots=True)
class RequestLine:
    """One line: a request's limit and its sub-requests."""

    number: int
    limit: int
    bodies: list[bytes]


@contextmanager
def rereadable(source: Source) -> Iterator[Source]:
    """Yields the source if it is a file; else a temporary file with its content."""
    if source.is_file:
        yield source
        return
    with tempfile.SpooledTemporaryFile(max_size=IN_MEMORY) as copy:
        shutil.copyfileobj(source.stream, copy, BLOCK)
        yield Source(source.name, cast("BinaryIO", copy), is_file=True)


def request_lines(source: Source) -> Iterator[RequestLine]:
    """Yields the requests of a file. Raises InvalidArgument, naming the line."""
    lines = itertools.chain.from_iterable(source.blocks(LONGEST_LINE))
    for number, line in enumerate(lines, 1):
        if line.strip() and not line.startswith(b"#"):
            yield _parse(line, number, source.name)


def _parse(line: bytes, number: int, name: str) -> RequestLine:
    limit, *bodies = line.split(b":")
    where = f"line {number} of {name}"
    if not bodies or not limit.isdigit():
        raise InvalidArgument(
            f"{where} is not a request: limit:sub-request:sub-request:... is expected"
        )
    if len(limit) > len(str(MAX_LIMIT)) or not 1 <= int(limit) <= MAX_LIMIT:
        raise InvalidArgument(
            f"{where} has the limit {limit[:20].decode()}: 1 to {MAX_LIMIT:,} is expected"
        )
    if max(map(len, bodies)) > MAX_BODY:
        raise InvalidArgument(
            f"{where} has a sub-request of more than {MAX_BODY:,} bytes, the most it may have"
        )
    return RequestLine(number, int(limit), bodies)


# ------------------------------------------------------------------ options
# The options of `rq-submit` that become options of the request.


_PAST_MS = 2_000  # a time that was read from a clock just now is not in the past
_RANGE = "{}..{}".format(*(f"{ms // 1000}s" for ms in settings.DEFAULT_BACKOFF_MS))
_OPTIONS = (
    click.option(
        "--priority",
        type=int,
        default=settings.DEFAULT_PRIORITY,
        show_default=True,
        help="Lane 0 (first) to 99.",
    ),
    click.option(
        "--limit",
        type=int,
        help=f"At most so many workers at the same time.  [default: {settings.DEFAULT_LIMIT}]",
    ),
    click.option(
        "--attempts",
        type=int,
        default=settings.DEFAULT_ATTEMPTS,
        show_default=True,
        help="Deliveries of a sub-request until it is dead.",
    ),
    click.option(
        "--backoff",
        metavar="TIME",
        default=_RANGE,
        show_default=True,
        help="Pause before another attempt, shortest..longest; 1s means 1s..1s.",
    ),
    click.option(
        "--lease",
        metavar="TIME",
        default="30s",
        show_default=True,
        help="How long a worker that sends no heartbeat keeps its work.",
    ),
    click.option(
        "--retain",
        metavar="TIME",
        default="24h",
        show_default=True,
        help="How long results stay after the end, 0s to 366d; with 0s only the counts.",
    ),
    click.option(
        "--deadline",
        metavar="TIME",
        help="A sub-request that has not started by then is dead, as 10m or 2h.",
    ),
    click.option(
        "--time-limit",
        metavar="TIME",
        help="A handler that takes longer is stopped, and the attempt fails.",
    ),
    click.option("--delay", metavar="TIME", help="Start nothing before this time is over, as 10m."),
    click.option(
        "--run-at",
        metavar="TIME",
        help="Start nothing before this time, as 2026-12-24T18:00+01:00.",
    ),
    click.option(
        "--rate", metavar="RATE", help="Start at most so many in a time: 100/s, 30/m or 5/h."
    ),
    click.option(
        "--burst",
        type=int,
        metavar="N",
        help="After a pause, so many may start together.  [default: what the rate has in 0.1 s]",
    ),
    click.option(
        "--rate-key", metavar="NAME", help="Share the rate with requests of the same key."
    ),
    click.option(
        "--weight", type=int, metavar="N", help="A sub-request counts for N.  [default: 1]"
    ),
    click.option(
        "--tag",
        "tags",
        multiple=True,
        metavar="NAME",
        help="A name for choosing requests; may be repeated.",
    ),
    click.option(
        "--tenant", metavar="NAME", help="The customer or team that the request belongs to."
    ),
    click.option(
        "--share", type=int, metavar="N", help="Time of the tenant beside others.  [default: 1]"
    ),
    click.option(
        "--ageing",
        metavar="TIME",
        help="If nothing of it has started for this time, one slice goes first, as 10m.",
    ),
    click.option(
        "--after",
        multiple=True,
        metavar="ID",
        help="Start when this request is done; may be repeated.",
    ),
    click.option(
        "--after-any-end",
        is_flag=True,
        help="Start when the requests of --after have ended in any way.",
    ),
    click.option(
        "--on-duplicate",
        type=click.Choice(["keep", "replace", "debounce"]),
        help="What to do if --id has another request that runs, or began less than --window ago.",
    ),
    click.option("--window", metavar="TIME", help="See --on-duplicate.  [default: 0s]"),
    click.option(
        "--distinct",
        is_flag=True,
        help="Leave out each line whose own id (a number, meta.id, else its hash) came before.",
    ),
    click.option(
        "--durable",
        type=int,
        default=0,
        metavar="N",
        help="Wait until N replicas have each acknowledged write.  [default: 0]",
    ),
)


def request_options(command: F) -> F:
    """Adds the options to a command."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def read_options(
    *, limit: int, backoff: str, lease: str, retain: str, deadline: str | None,
    time_limit: str | None, ageing: str | None, tags: tuple[str, ...], after: tuple[str, ...],
    after_any_end: bool, window: str | None, distinct: bool, **given: Any,
) -> RequestOptions:  # fmt: skip
    """Returns the options as Queue.submit_request takes them. Raises InvalidArgument."""
    low, high = range_ms("--backoff", backoff, "0s", "24h")
    found: dict[str, Any] = {
        "limit": limit,
        "backoff_s": (low / 1000, high / 1000),
        "lease_s": time_ms("--lease", lease, "1s", "24h") / 1000,
        "retain_s": time_ms("--retain", retain, "0s", "366d") / 1000,
        **{name: value for name, value in given.items() if value is not None},
    }
    _note_past(given.get("run_at"))
    if deadline is not None:
        found["deadline_s"] = time_ms("--deadline", deadline, "1ms", "366d") / 1000
    if time_limit is not None:
        found["time_limit_s"] = time_limit_ms(time_limit) / 1000
    if ageing is not None:
        found["ageing_s"] = time_ms("--ageing", ageing, "1s", "24h") / 1000
    if window is not None:
        found["window_s"] = time_ms("--window", window, "0s", "366d") / 1000
    if distinct:
        found["distinct"] = True
    if tags:
        found["tags"] = tags
    if after or after_any_end:
        found |= {"after": after, "after_any_end": after_any_end}
    return cast("RequestOptions", found)


def _note_past(run_at: str | None) -> None:
    """Reports a start that is over: the request starts now. Raises InvalidArgument."""
    if run_at is None:
        return
    past_ms = round(time.time() * 1000) - moment_ms("run_at", run_at)
    if past_ms > _PAST_MS:
        gone = format_duration(past_ms)
        note(f"--run-at {run_at} is in the past ({gone} ago): the request may start now")


# ------------------------------------------------------------------ many requests
# `rq-submit --format requests`: all lines are checked, then each becomes a request.


def submit_each(wish: SubmitOptions, source: Source, connect: Callable[[], Queue]) -> int:
    """Submits every line as a request, prints their ids and may wait; returns the exit code."""
    with rereadable(source) as file:
        count = sum(1 for _ in request_lines(file))
        if not count:
            note(f"{source.name} has no requests: nothing was submitted")
            return 0
        if wish.id is not None:
            from fairlane.protocol.keys import check_name

            check_name("request id", f"{wish.id}.{count}")
        with connect() as queue:
            sent = _Sending(queue, wish).all(request_lines(file))
            return _await_all(wish, sent) if wish.waits else 0


class _Sending:
    """Many requests that are being submitted; each id is printed when its group is in Redis."""

    def __init__(self, queue: Queue, wish: SubmitOptions) -> None:
        self._queue, self._wish = queue, wish
        self._coming: dict[str, int] = {}  # id -> limit of each request that is not printed yet
        self._count = 0

    def all(self, lines: Iterable[RequestLine]) -> list[Request]:
        """Submits every line; returns the requests in their order."""
        for_bodies, for_ids, for_limits = tee(lines, 3)
        sent = self._queue.submit_each(
            (line.bodies for line in for_bodies),
            ids=self._ids(for_ids),
            limit=(line.limit for line in for_limits),
            max_wait_s=self._wish.max_wait_s,
            **self._wish.shared_options,
        )
        try:
            return [self._printed(request) for request in sent]
        except KeyboardInterrupt:
            raise KeyboardInterrupt(self._take_back()) from None
        except (RedisFull, QueueFull) as error:
            raise no_room(self._wish, error) from None

    def _ids(self, lines: Iterable[RequestLine]) -> Iterator[str]:
        from fairlane.protocol.keys import new_id

        own = self._wish.id
        for number, line in enumerate(lines, 1):
            request_id = new_id() if own is None else f"{own}.{number}"
            self._coming[request_id] = line.limit
            yield request_id

    def _printed(self, request: Request) -> Request:
        left_out = count_left_out(self._wish, request) if self._wish.as_json else 0
        announce(self._wish, request, request.total or 0, self._coming.pop(request.id), left_out)
        self._count += 1
        return request

    def _take_back(self) -> str:
        """Cancels interrupted requests; returns a sentence about them."""
        from fairlane.queue import Queue

        printed = f"{self._count:,} of the requests were submitted and go on"
        if self._wish.id is not None:  # the requests may have existed before
            return f"interrupted: {printed}; repeat the same to submit the others"
        with impatient(self._queue.driver.url) as driver:
            queue = Queue(driver, self._queue.name)
            try:
                for request_id in self._coming:
                    cancel_if_there(queue.request(request_id))
            except RedisUnreachable as error:
                count = f"up to {len(self._coming):,}"
                shows = f"fairlane status{of_queue(queue.name)} shows those that are"
                return (
                    f"interrupted: {printed}; {not_certain(f'{count} others are', error)} {shows}"
                )
        return f"interrupted: {printed}; what was on its way was cancelled"


def _await_all(wish: SubmitOptions, sent: list[Request]) -> int:
    """Waits for each in turn, all within one timeout; returns the worst exit code."""
    return max(await_end(timed, request) for timed, request in _with_time_left(wish, sent))


def _with_time_left(
    wish: SubmitOptions, sent: list[Request]
) -> Iterator[tuple[SubmitOptions, Request]]:
    end = None if wish.timeout is None else time.monotonic() + wish.timeout
    for request in sent:
        left = None if end is None else max(0.0, end - time.monotonic())
        yield replace(wish, timeout=left), request


# ------------------------------------------------------------------ request
# Shared by both formats of `rq-submit`: sends a request, prints its id, waits for its end.


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
            submitted = queue.submit_chunks(lines, id=request.id, max_wait_s=max_wait_s, **given)
        else:
            bodies = chain.from_iterable(lines)
            submitted = queue.submit_request(bodies, id=request.id, max_wait_s=max_wait_s, **given)
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
    row = {"id": request.id, "sub_requests": total, "left_out": left_out}
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
