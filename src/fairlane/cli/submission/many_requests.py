"""`rq-submit --format requests`: all lines are checked, then each becomes a request."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from fairlane.cli.output import note
from fairlane.cli.submission.request import (
    SubmitOptions,
    announce,
    await_end,
    cancel_if_there,
    impatient,
    no_room,
    not_certain,
    one_of_many,
)
from fairlane.cli.submission.requests_format import RequestLine, request_lines, rereadable
from fairlane.common.text import of_queue
from fairlane.errors import FairlaneError, QueueFull, RedisFull, RedisUnreachable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from fairlane.cli.submission.input_lines import Source
    from fairlane.queue import Queue, Request


def submit_each(wish: SubmitOptions, source: Source, connect: Callable[[], Queue]) -> int:
    """Submits every line as a request, prints their ids, waits for all if wished; the exit code."""
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
    """Many requests on their way, a group at a time; the id of each is printed once it is there."""

    def __init__(self, queue: Queue, wish: SubmitOptions) -> None:
        from fairlane.operations.submit.many import Many

        self._queue, self._wish = queue, wish
        self._many = Many(wish.policy, wish.max_wait_s)
        self._coming: dict[str, tuple[SubmitOptions, int]] = {}  # what was not printed yet, by id
        self._count = 0

    def all(self, lines: Iterable[RequestLine]) -> list[Request]:
        """Submits every line; the requests in their order."""
        try:
            for n, line in enumerate(lines, 1):
                self._add(n, line)
            self._queue.driver.run(self._many.rest())
        except KeyboardInterrupt:
            self._announce()
            raise KeyboardInterrupt(self._take_back()) from None
        except (RedisFull, QueueFull) as error:
            self._announce()
            raise no_room(self._wish, error) from None
        except FairlaneError:
            self._announce()
            raise
        self._announce()
        return [self._queue.request(request_id) for request_id in self._many.submitted]

    def _add(self, n: int, line: RequestLine) -> None:
        from fairlane.common.chunking import split
        from fairlane.protocol.keys import new_id

        wish = self._wish
        own = one_of_many(wish, line.limit, None if wish.id is None else f"{wish.id}.{n}")
        request_id = own.id or new_id()
        chunk, rest = split(line.bodies)
        if rest is None:
            step = self._many.add(request_id, chunk, own.policy)
        else:
            step = self._many.large(request_id, own.policy)
        self._coming[request_id] = own, len(line.bodies)
        if step is not None:
            self._queue.driver.run(step, rest)
            self._announce()

    def _announce(self) -> None:
        """Prints the ids of those that are submitted since the last time."""
        there = self._many.submitted
        for request_id in there[self._count :]:
            own, total = self._coming.pop(request_id)
            announce(own, self._queue.request(request_id), total)
        self._count = len(there)

    def _take_back(self) -> str:
        """Cancels what was interrupted; a sentence about it."""
        from fairlane.queue import Queue

        printed = f"{self._count:,} of the requests were submitted and go on"
        if self._wish.id is not None:  # they may have been there before
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
    """Waits for each in turn, all within one timeout; the worst exit code."""
    return max(await_end(own, request) for own, request in _with_time_left(wish, sent))


def _with_time_left(
    wish: SubmitOptions, sent: list[Request]
) -> Iterator[tuple[SubmitOptions, Request]]:
    end = None if wish.timeout is None else time.monotonic() + wish.timeout
    for request in sent:
        left = None if end is None else max(0.0, end - time.monotonic())
        yield replace(wish, timeout=left), request
