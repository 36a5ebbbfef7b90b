"""Watches a request: its end, its results, the completion log."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from fairlane import settings
from fairlane.common.text import exact
from fairlane.errors import FairlaneError, InvalidArgument, RequestLost, WaitTimeout
from fairlane.model import ENDED_STATES, Result
from fairlane.operations.control.error_texts import ERROR_DROPPED, error_texts
from fairlane.operations.control.live_workers import unserved
from fairlane.operations.control.request_state import not_found
from fairlane.operations.submit.durability import confirm_end
from fairlane.protocol import keys
from fairlane.protocol.request_hash import read
from fairlane.protocol.steps import Batch, Command, Message, Operation, Subscribe

_WAITED = ("state", "born", "durable", "queue")
_COUNTED = ("state", "born", "total", "done", "dead")
PAGE = 64  # entries of `out` a page; an entry is what one call of complete settled


def state(request_id: str) -> Operation[str]:
    """Returns the state of a request now. Raises RequestNotFound."""
    found = yield Command(b"HGET", keys.request_hash(request_id), b"state")
    if found is None or found == b"abandoned":
        raise not_found(request_id)
    return str(found.decode())


def wait(
    request_id: str, clock: Any, timeout_s: float | None, began: float | None = None
) -> Operation[str]:
    """Returns the final state. It subscribes first, then reads the state, then polls it slowly.

    So neither a message before the subscription nor a lost message can make it wait for ever.
    `clock` returns seconds; `began` is when the timeout began, None = now. The replicas confirm the
    end of a durable request before it is returned. Raises WaitTimeout, RequestNotFound, RequestLost
    (it existed and is gone, or another request has its id by now), NotDurable.
    """
    if timeout_s is not None and not isinstance(timeout_s, (int, float)):
        raise InvalidArgument(f"timeout {timeout_s!r} is not valid: seconds are expected")
    since = clock() if began is None else began
    deadline = None if timeout_s is None else since + timeout_s
    yield Subscribe(keys.done_channel(request_id))
    born = ""
    while True:
        seen, life, durable, queue = yield from read(request_id, *_WAITED)
        if born and seen in {"", "abandoned"}:  # the auditor marks a missing request so
            raise vanished(request_id)
        if seen in {"", "abandoned"}:
            raise not_found(request_id)
        if born and life != born:
            raise replaced(request_id)
        born = life
        if seen in ENDED_STATES:
            if (yield from confirm_end(request_id, int(durable or 0), seen)):
                return seen
            continue  # a failover took the end back: it runs again
        left = settings.POLL_S if deadline is None else deadline - clock()
        if left <= 0:
            raise (yield from timed_out(request_id, queue, timeout_s or 0.0))
        yield Message(min(left, settings.POLL_S))


def timed_out(
    request_id: str, queue: str, timeout_s: float, counts: str = ""
) -> Operation[WaitTimeout]:
    """Returns the error for a timeout; it mentions a pause, and a queue without a worker."""
    try:
        (found,) = yield Batch(
            [Command(b"HGET", keys.request_hash(request_id), b"state")], patience_s=0.0
        )
    except FairlaneError:  # the timeout is over, whatever Redis replies
        found = None
    is_paused = found == b"paused"
    goes_on = f"fairlane resume {request_id} lets it go on" if is_paused else "it goes on"
    missing = yield from unserved(queue)
    more = f"; {missing}" if missing else ""
    return WaitTimeout(
        f"request {request_id} had not ended after {exact(timeout_s)} s; {goes_on}{counts}{more}"
    )


class ResultPage(NamedTuple):
    """A page of entries of `out`, with the counts of the request's hash.

    `born` distinguishes the request from a later one with the same id. `is_last`: the request has
    ended and no entry follows. Then `settled` counts its results, and `cancelled` its sub-requests
    without a result.
    """

    entries: list[tuple[bytes, list[Result]]]
    born: str
    is_last: bool
    settled: int
    cancelled: int


def read_results(
    request_id: str, after: bytes, block_ms: int, born: str = ""
) -> Operation[ResultPage]:
    """Returns the next page of results after entry `after` of `out`.

    Blocks up to `block_ms` if there is nothing new. `born` is that of the page before. Raises
    RequestNotFound, and RequestLost if the request of that page is gone.
    """
    # The hash is read before the results: a request that has ended has written all of them.
    seen, life, total, done, dead = yield from read(request_id, *_COUNTED)
    if seen in {"", "abandoned"}:
        raise vanished(request_id) if born else not_found(request_id)
    if born and life != born:
        raise replaced(request_id)
    ended = seen in ENDED_STATES
    out = keys.results(request_id)
    words: tuple[Any, ...] = (b"XREAD", b"COUNT", PAGE)
    if not ended and block_ms:
        words += (b"BLOCK", block_ms)
    reply = yield Command(*words, b"STREAMS", out, after)
    rows = reply[0][1] if reply else []
    found = yield from with_errors(request_id, [parse_results(fields) for _, fields in rows])
    entries = [(entry_id, page) for (entry_id, _), page in zip(rows, found, strict=True)]
    settled = int(done or 0) + int(dead or 0)
    is_last = ended and len(entries) < PAGE
    return ResultPage(entries, life, is_last, settled, int(total or 0) - settled)


def vanished(request_id: str) -> RequestLost:
    """Returns the error for a request that existed and is gone."""
    return RequestLost(
        f"request {request_id} is gone from Redis: a failover or a flush took it, "
        "or it was deleted, or its retention is over"
    )


def replaced(request_id: str) -> RequestLost:
    """Returns the error for a request whose id another request has now."""
    return RequestLost(f"request {request_id} is gone: another request has its id by now")


def read_entries(request_id: str, entry_ids: list[bytes]) -> Operation[list[list[Result]]]:
    """Reads some entries of `out` again; returns their results in the order of the ids."""
    out = keys.results(request_id)
    replies = yield Batch([Command(b"XRANGE", out, entry, entry) for entry in entry_ids])
    pages = [parse_results(reply[0][1]) if reply else [] for reply in replies]
    return (yield from with_errors(request_id, pages))


def with_errors(request_id: str, pages: list[list[Result]]) -> Operation[list[list[Result]]]:
    """Returns what parse_results returned, with the texts of errors instead of their names."""
    names = {one.error for page in pages for one in page if one.error is not None}
    if not names:
        return pages
    texts = yield from error_texts(request_id, map(str.encode, names))
    return [
        [
            one
            if one.error is None
            else replace(one, error=texts.get(one.error.encode(), ERROR_DROPPED))
            for one in page
        ]
        for page in pages
    ]


def parse_results(fields: list[bytes]) -> list[Result]:
    """Reads one entry of `out`: worker, then (head, body) pairs; see model.result_head.

    `error` of a dead sub-request is the name of its text: see with_errors.
    """
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
