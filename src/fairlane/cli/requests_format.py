"""Submits each line of `--format requests` as a request: `limit:sub:sub:...`, `#` is a comment.

Blank lines are skipped. A sub-request may be empty and cannot contain a colon. The whole file is
checked, naming the line, before the first request is submitted.
"""

from __future__ import annotations

import itertools
import shutil
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import tee
from typing import TYPE_CHECKING, BinaryIO, cast

from fairlane.cli.input_lines import BLOCK, Source
from fairlane.cli.output import note
from fairlane.cli.submission import (
    announce,
    await_end,
    cancel_if_there,
    count_left_out,
    impatient,
    no_room,
    not_certain,
)
from fairlane.common.text import of_queue
from fairlane.errors import (
    InvalidArgument,
    QueueFull,
    RedisFull,
    RedisUnreachable,
)
from fairlane.options_table import BY_NAME
from fairlane.settings import MAX_BODY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from fairlane.cli.submission import SubmitOptions
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
