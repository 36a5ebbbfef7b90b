"""`rq-submit --format requests`: all lines are checked, then each becomes a request."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from .requests_format import RequestLine, request_lines, rereadable
from .submission import Wish, announce, await_end, one_of_many, send
from .talk import say

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ..queue import Queue, Request
    from .lines import Source


def submit_each(wish: Wish, source: Source, connect: Callable[[], Queue]) -> int:
    """Submits every line as a request, prints their ids, waits for all if wished; the exit code."""
    with rereadable(source) as file:
        count = sum(1 for _ in request_lines(file))
        if not count:
            say(f"{source.name} has no requests: nothing was submitted")
            return 0
        if wish.id is not None:
            from ..keys import check_name

            check_name("request id", f"{wish.id}.{count}")
        with connect() as queue:
            lines = enumerate(request_lines(file), 1)
            sent = [_submit_line(queue, wish, line, n) for n, line in lines]
            return _await_all(wish, sent) if wish.waits else 0


def _submit_line(queue: Queue, wish: Wish, line: RequestLine, n: int) -> Request:
    from ..bodies import chunks

    own = one_of_many(wish, line.limit, None if wish.id is None else f"{wish.id}.{n}")
    request, total = send(queue, own, chunks(line.bodies))
    announce(own, request, total)
    return request


def _await_all(wish: Wish, sent: list[Request]) -> int:
    """Waits for each in turn, all within one timeout; the worst exit code."""
    return max(await_end(own, request) for own, request in _with_time_left(wish, sent))


def _with_time_left(wish: Wish, sent: list[Request]) -> Iterator[tuple[Wish, Request]]:
    end = None if wish.timeout is None else time.monotonic() + wish.timeout
    for request in sent:
        left = None if end is None else max(0.0, end - time.monotonic())
        yield replace(wish, timeout=left), request
