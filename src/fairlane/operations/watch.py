"""Watching a request: its end, its results, the completion log."""

from __future__ import annotations

import re
from typing import Any

from .. import keys, settings
from ..errors import InvalidArgument, RequestLost, WaitTimeout
from ..model import ENDED_STATES, Completion, Result
from ..steps import Batch, Command, Message, Operation, Subscribe
from .control import completion, not_found
from .durable import confirm_end
from .fields import read

_ENTRY = re.compile(r"\d+(-\d+)?")
PAGE = 64  # entries of `out` a page; one entry is what one complete call settled


def state(request_id: str) -> Operation[str]:
    """The state of a request now. Raises RequestNotFound."""
    found = yield Command(b"HGET", keys.request_hash(request_id), b"state")
    if found is None or found == b"abandoned":
        raise not_found(request_id)
    return str(found.decode())


def wait(request_id: str, clock: Any, timeout_s: float | None) -> Operation[str]:
    """Returns the final state: subscribe first, then read, with a slow poll behind both.

    So neither a message before the subscription nor a lost one can hang it. `clock` returns
    seconds. A durable request's end is confirmed by its replicas before it is told. Raises
    WaitTimeout, RequestNotFound, RequestLost (it was there and is gone), NotDurable.
    """
    if timeout_s is not None and not isinstance(timeout_s, (int, float)):
        raise InvalidArgument(f"timeout {timeout_s!r} is not valid: seconds are expected")
    deadline = None if timeout_s is None else clock() + timeout_s
    yield Subscribe(keys.done_channel(request_id))
    known = False
    while True:
        seen, durable = yield from read(request_id, "state", "durable")
        if known and seen in {"", "abandoned"}:  # the auditor marks what it finds missing
            raise RequestLost(
                f"request {request_id} is gone from Redis: a failover or a flush took it"
            )
        if seen in {"", "abandoned"}:
            raise not_found(request_id)
        known = True
        if seen in ENDED_STATES:
            if (yield from confirm_end(request_id, int(durable or 0), seen)):
                return seen
            continue  # a failover took the end back: it runs again
        left = settings.POLL_S if deadline is None else deadline - clock()
        if left <= 0:
            raise WaitTimeout(
                f"request {request_id} had not ended after {timeout_s:g} s; it goes on"
            )
        yield Message(min(left, settings.POLL_S))


def read_results(
    request_id: str, after: bytes, block_ms: int
) -> Operation[tuple[list[tuple[bytes, list[Result]]], bool]]:
    """The next page of results after entry `after` of `out`: ([(entry id, results)], is it over).

    Blocks up to `block_ms` when nothing new is there. Raises RequestNotFound.
    """
    # The state is read before the results: what ended has written all of them already.
    ended = (yield from state(request_id)) in ENDED_STATES
    out = keys.results(request_id)
    read: tuple[Any, ...] = (b"XREAD", b"COUNT", PAGE)
    if not ended and block_ms:
        read += (b"BLOCK", block_ms)
    reply = yield Command(*read, b"STREAMS", out, after)
    pages = [
        (entry_id, parse_results(fields)) for entry_id, fields in (reply[0][1] if reply else [])
    ]
    return pages, ended and len(pages) < PAGE


def read_entries(request_id: str, entry_ids: list[bytes]) -> Operation[list[list[Result]]]:
    """The results of some entries of `out` again, in the order asked for."""
    out = keys.results(request_id)
    replies = yield Batch([Command(b"XRANGE", out, entry, entry) for entry in entry_ids])
    return [parse_results(reply[0][1]) if reply else [] for reply in replies]


def parse_results(fields: list[bytes]) -> list[Result]:
    """One entry of `out`: worker, then (head, body) pairs; for a head see model.result_head."""
    found = []
    worker = ""
    for head, body in zip(fields[::2], fields[1::2], strict=True):
        if head == b"w":
            worker = body.decode("utf-8", "replace")
            continue
        index, status, attempt, waited, ran = head.split(b":")
        is_dead = status == b"x"
        found.append(
            Result(
                index=int(index),
                status="dead" if is_dead else "done",
                attempt=int(attempt),
                body=body if status == b"d" else None,
                error=body.decode("utf-8", "replace") if is_dead else None,
                worker=worker,
                waited_ms=int(waited),
                ran_ms=int(ran) / 1000,
            )
        )
    return found


def read_completions(queue: str, after: str, block_ms: int) -> Operation[list[Completion]]:
    """The endings logged after `after` (an entry id, "0" for all). Raises InvalidArgument."""
    if not _ENTRY.fullmatch(after):
        raise InvalidArgument(f"{after!r} is no place in the completion log: a log_id is expected")
    read: tuple[Any, ...] = (b"XREAD", b"COUNT", 100)
    if block_ms:
        read += (b"BLOCK", block_ms)
    reply = yield Command(*read, b"STREAMS", keys.completed(queue), after)
    return [completion(log_id, fields) for log_id, fields in (reply[0][1] if reply else [])]


def last_completion(queue: str) -> Operation[str]:
    """Where the completion log ends now: an entry id, "0-0" when it is empty."""
    reply = yield Command(b"XREVRANGE", keys.completed(queue), "+", "-", b"COUNT", 1)
    return reply[0][0].decode() if reply else "0-0"
