"""Tests that wrong arguments of a caller raise one clear sentence before Redis is called."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fairlane import Queue, Worker
from fairlane.errors import InvalidArgument
from tests.support.run.for_each import for_each

if TYPE_CHECKING:
    from collections.abc import Callable

NOWHERE = "redis://127.0.0.1:1"
MADE: Any = Worker  # mypy would refuse these

WRONG: dict[str, tuple[Callable[[Any], Any], str]] = {
    "a reason that is none": (lambda queue: queue.request("r").cancel(None), "words"),
    "a place in the log": (lambda queue: next(queue.completions("zzz")), "log_id"),
    "a timeout in words": (lambda queue: queue.request("r").wait("3"), "seconds"),
    "half a backoff": (
        lambda queue: queue.submit_request(["a"], backoff=(1,)),
        "give the shortest and the longest time",
    ),
    "half a character": (lambda queue: queue.submit_request(["\ud800"]), "not text"),
    "a slice in words": (lambda queue: MADE(queue, bytes.upper, slice_s="3"), "slice"),
    "a queue's name for a queue": (lambda _: MADE("req", bytes.upper), "fairlane.Queue"),
    "a number for a URL": (lambda queue: type(queue).from_url(5), "text"),
    "no units": (lambda queue: MADE(queue, bytes.upper, concurrency=0), "1 to 1000"),
    "an order that is none": (lambda queue: next(queue.request("r").results("up")), "done"),
}


@for_each("what", WRONG)
def test_wrong_arguments_are_refused_before_redis_is_called(what: str):
    call, said = WRONG[what]
    with Queue.from_url(NOWHERE) as queue, pytest.raises(InvalidArgument, match=said):
        call(queue)
