"""`fairlane submit` = `rq-submit`: a FILE becomes one request (or one for each line)."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import sys
import tempfile
import time
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import chain, tee
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import click

from fairlane import settings
from fairlane.cli.commands.results import NDJSON, write_results
from fairlane.cli.files import BLOCK, Look, Source, open_results, open_source
from fairlane.cli.options import (
    FILE,
    OF_REQUEST,
    checked_policy,
    click_option,
    json_option,
    open_queue,
    read_options,
    redis_option,
    request_options,
    timeout_option,
    timeout_s,
)
from fairlane.cli.output import note, write_json, write_line
from fairlane.common.text import exact, of_queue, plural
from fairlane.errors import (
    FairlaneError,
    InvalidArgument,
    QueueFull,
    RedisError,
    RedisFull,
    RedisUnreachable,
    RequestNotFound,
)
from fairlane.option_types import RequestOptions
from fairlane.options_table import BY_NAME
from fairlane.settings import MAX_BODY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from fairlane.drivers.sync import SyncDriver
    from fairlane.option_types import SharedOptions
    from fairlane.options import Policy
    from fairlane.queue import Queue
    from fairlane.request import Request


# ------------------------------------------------------------------ lines
# Reads each line as a request.


MAX_LIMIT = BY_NAME["limit"].most
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


def request_lines(source: Source, *, is_ordered: bool = False) -> Iterator[RequestLine]:
    """Yields the requests of a file. Raises InvalidArgument, naming the line.

    If they have an order key (`is_ordered`), each has the limit 1.
    """
    lines = itertools.chain.from_iterable(source.blocks(LONGEST_LINE))
    for number, line in enumerate(lines, 1):
        if line.strip() and not line.startswith(b"#"):
            found = _parse(line, number, source.name)
            if is_ordered and found.limit != 1:
                raise InvalidArgument(
                    f"line {number} of {source.name} has the limit {found.limit:,}: with "
                    "--order-key write 1, because its sub-requests start one after the other"
                )
            yield found


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


# ------------------------------------------------------------------ many requests
# `rq-submit --format requests`: all lines are checked, then each becomes a request.


def submit_each(wish: SubmitOptions, source: Source, connect: Callable[[], Queue]) -> int:
    """Submits every line as a request, prints their ids and may wait; returns the exit code."""
    with rereadable(source) as file:
        is_ordered = bool(wish.shared_options.get("order_key"))
        count = sum(1 for _ in request_lines(file, is_ordered=is_ordered))
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
            max_wait=self._wish.max_wait_s,
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


# ------------------------------------------------------------------ submission
# Submits one request for `rq-submit`, from its options to its exit code.
#
# Both formats use these functions: they send a request, print its id, wait for its end.


HIDDEN = "opentelemetry"


def import_redis() -> None:
    """Imports redis-py; hides OpenTelemetry from redis-py, unless this process uses it."""
    is_named = any(name.startswith("OTEL_") for name in os.environ)  # then spans are sent
    if is_named or HIDDEN in sys.modules or "redis" in sys.modules:
        return
    sys.modules[HIDDEN] = None  # type: ignore[assignment]  # each import of it raises ImportError
    try:
        import redis  # noqa: F401
    finally:
        del sys.modules[HIDDEN]


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
    return f"request {request.id} was submitted and is {now.shown_state}: {look}"


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
    from fairlane.cli.progress import StallNotice

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


# ------------------------------------------------------------------ submit
# `fairlane submit` = `rq-submit`: a FILE becomes one request (or one for each line).


@click.command("submit", short_help="Submit the lines of FILE as one request and print its id.")
@click.argument("file", metavar="FILE", type=FILE)
@request_options(OF_REQUEST)
@click.option(
    "--queue",
    "queues",
    metavar="NAME",
    multiple=True,
    default=[settings.DEFAULT_QUEUE],
    help="The queue's name. Repeat it: the queue with the fewest unfinished requests gets this one."
    f"  [default: {settings.DEFAULT_QUEUE}]",
)
@click.option(
    "--id",
    "xid",
    metavar="XID",
    help="Your own id: submitting the same again finds the same request, until its results expire.",
)
@click.option(
    "--once",
    is_flag=True,
    help="Make the id of the content and the options: the same FILE again is the same request, "
    "until its results expire.",
)
@click.option(
    "--wait",
    is_flag=True,
    help="Block until the request has ended; exit code 1 unless all is done.",
)
@click.option(
    "--watch", is_flag=True, help="Like --wait, with a progress bar on stderr; Ctrl-C detaches."
)
@timeout_option
@click.option(
    "--out",
    metavar="RESULTS",
    type=FILE,
    help="Wait, and write the results to RESULTS in input order; JSON if it ends in .ndjson.",
)
@json_option
@click_option(BY_NAME["max_wait"])
@click.option(
    "--format",
    "form",
    type=click.Choice(["lines", "requests"]),
    default="lines",
    show_default=True,
    help="requests: every line `limit:sub:sub:...` is a request.",
)
@redis_option
def command(
    file: str, redis: str | None, queues: tuple[str, ...], form: str, limit: int | None,
    once: bool, **given: Any,
) -> int:  # fmt: skip
    """Submit FILE (- is stdin) as one request: every line is a sub-request. Prints its id.

    A pipe is submitted while it is read, and its id is printed before anything is submitted. With
    --json its line comes at the end, as it has the counts. --watch shows how many lines were read.
    The first lines are submitted when more lines follow, or when it ends. With --id, each part has
    up to 1,000 lines and 1 MiB.
    """
    queue = _checked(queues, form, limit, once=once)
    wish = _read_wish(queue, limit=limit, **given)
    if form == "requests" and wish.out is not None:
        raise InvalidArgument(
            "--out needs --format lines: ask for each request's results with fairlane results ID"
        )
    if once and wish.id is not None:
        raise InvalidArgument("--once makes the id from the content: leave out --id or --once")

    end_like_interrupt()
    import_redis()
    with ExitStack() as opened:
        source = opened.enter_context(open_source(file))
        if once:
            wish = replace(wish, id=_content_id(wish, source, form))
        if form == "requests":
            return submit_each(wish, source, lambda: open_queue(redis, queue))
        if source.is_file:
            with shown(wish, source, source.name, "checking") as look:
                source.check(look)

        out = opened.enter_context(open_results(wish.out))
        here = opened.enter_context(open_queue(redis, queue))
        request = opened.enter_context(_placed(wish, queues, here))
        policy = wish.policy.in_queue(request.queue.name)
        return _submit_one(replace(wish, policy=policy), source, request, out)


def _checked(queues: tuple[str, ...], form: str, limit: int | None, *, once: bool) -> str:
    """Returns the first queue, if these options go together. Raises InvalidArgument."""
    from fairlane.operations.admission import check_queues

    if form == "requests" and limit is not None:
        raise InvalidArgument(
            "--limit has no meaning with --format requests: every line begins with its own limit"
        )
    if len(queues) > 1 and (once or form == "requests"):
        option = "--once" if once else "--format requests"
        raise InvalidArgument(f"{option} needs one queue: name --queue once")
    return check_queues(queues)[0]


@contextmanager
def _placed(wish: SubmitOptions, queues: tuple[str, ...], first: Queue) -> Iterator[Request]:
    """Yields the request, in the shortest queue; if it is not submitted, it counts no more."""
    from fairlane.operations.admission import place, withdraw
    from fairlane.options import id_for
    from fairlane.queue import Queue

    driver, request_id = first.driver, id_for(wish.policy, wish.id)
    if len(queues) == 1:
        yield first.request(request_id)
        return
    found = driver.run(place(queues, request_id))
    note(f"request {request_id} goes to queue {found.queue}")
    try:
        yield Queue(driver, found.queue).request(request_id)
    except BaseException:
        with suppress(RedisError):
            driver.run(withdraw(found, request_id))
        raise


def _read_wish(
    queue: str, *, max_wait: str | None, xid: str | None, wait: bool, watch: bool,
    timeout: str | None, out: str | None, as_json: bool, **given: Any,
) -> SubmitOptions:  # fmt: skip
    from fairlane.options import read_option
    from fairlane.protocol.keys import check_name

    options = cast("RequestOptions", read_options(given))
    policy = checked_policy(queue, options)
    if xid is not None:
        check_name("request id", xid)
    waits = wait or watch or out is not None
    if timeout is not None and not waits:
        raise InvalidArgument("--timeout needs --wait, --watch or --out")
    if out == "-":
        raise InvalidArgument("--out - is not possible: standard output carries the request's id")
    max_wait_s = 0.0 if max_wait is None else read_option("max_wait", max_wait, "--max-wait") / 1000
    stop_s = timeout_s(timeout)
    return SubmitOptions(policy, xid, as_json, watch, waits, stop_s, out, max_wait_s, options)


def _content_id(wish: SubmitOptions, source: Source, form: str) -> str:
    """Returns the id of a file's lines under these options; reads the file once more."""
    if not source.is_file:
        raise InvalidArgument(f"--once reads twice, and {source.name} can be read only once")
    from fairlane.operations.content_id import ContentId

    digest = ContentId(wish.policy)
    blocks = source.blocks() if form == "lines" else source.blocks(LONGEST_LINE)
    with shown(wish, source, source.name, "making the id") as look:
        for lines in _counted(blocks, look):
            digest.add(lines)
    return digest.id


def _submit_one(wish: SubmitOptions, source: Source, request: Request, out: BinaryIO | None) -> int:
    is_first = not source.is_file and not wish.as_json
    if is_first:  # a pipe may take long, and its request can be looked at meanwhile
        write_line(request.id)
    with shown(wish, source, f"request {request.id}", "submitting") as look:
        # With an id of the caller's the chunks must depend on the content only, for a repeat.
        as_they_come = not source.is_file and wish.id is None
        total = send(wish, request, _counted(source.blocks(), look), as_they_come=as_they_come)
    if not total:
        note(f"{source.name} is empty: request {request.id} has no sub-requests and is done")
    left_out = count_left_out(wish, request)
    if not is_first:
        announce(wish, request, total, wish.policy.limit, left_out)
    if left_out:
        note(f"left out as repeats: {plural(left_out, 'line')} of {source.name}")
    return await_end(wish, request, out) if wish.waits else 0


def _counted(lists: Iterable[list[bytes]], look: Look) -> Iterator[list[bytes]]:
    """Yields the same lists, and calls `look` with how many lines the caller has used."""
    count = 0
    look(count)
    for lines in lists:
        yield lines
        count += len(lines)
        look(count)
