"""Parts of a stream by id, so that the same part read again is the same; no consumer groups.

What reads in parallel, or comes back after a crash to what it read before, needs ranges that are
fixed beforehand: entries of a stream never change, so (first id, last id) says exactly which.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from fairlane.errors import FairlaneError
from fairlane.model import ENDED_STATES
from fairlane.operations.batching import run_all, run_each
from fairlane.operations.control.completion_log import (
    BEGIN,
    Entries,
    Span,
    ends,
    place,
    span,
    span_of,
)
from fairlane.operations.control.dead_letters import page_size, sub_request
from fairlane.operations.control.request_state import (
    asks_of_progress,
    completion,
    not_found,
    progress_of,
)
from fairlane.protocol import keys
from fairlane.protocol.request_hash import as_text, hmget, parse_fields, read
from fairlane.protocol.steps import Batch, Command

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fairlane.model import Completion, DeadSubRequest, Progress
    from fairlane.protocol.steps import Operation

PAGE = 1_000  # small entries read at once
RESULTS_PAGE = 64  # entries of `out`: each may hold hundreds of results
_SEQ = 2**64 - 1
_SPANS = 30  # streams whose ends are looked up at once


class StreamRange(NamedTuple):
    """A part of a stream, both ends included."""

    first: str
    last: str


class Ended(NamedTuple):
    """What the record of an ended request still tells: `limit` and `attempts` of its policy."""

    limit: int
    attempts: int


def after(entry_id: str) -> str:
    """The smallest id behind this one."""
    ms, seq = place(entry_id)
    return f"{ms}-{seq + 1}" if seq < _SEQ else f"{ms + 1}-0"


def cut(first: str, last: str, parts: int) -> list[StreamRange]:
    """At most `parts` pieces that cover `first` to `last`, of equal time; none when that is empty.

    Entries of one millisecond stay together.
    """
    if place(first) > place(last):
        return []
    begin, end = place(first)[0], place(last)[0]
    parts = max(1, min(parts, end - begin + 1))
    edges = [begin + (end - begin + 1) * n // parts for n in range(parts + 1)]
    pieces = [StreamRange(f"{a}-0", f"{b - 1}-{_SEQ}") for a, b in pairwise(edges)]
    pieces[0] = StreamRange(first, pieces[0].last)
    pieces[-1] = StreamRange(pieces[-1].first, last)
    return pieces


def last_id(stream: bytes) -> Operation[str]:
    """Returns the greatest id that an entry of the stream ever had; BEGIN without a stream."""
    is_there, found = yield Batch(
        [Command(b"EXISTS", stream), Command(b"XINFO", b"STREAM", stream)], lenient=True
    )
    if isinstance(found, FairlaneError):
        if is_there == 0:
            return BEGIN
        raise found
    named = dict(zip(found[::2], found[1::2], strict=True))
    return str(named[b"last-generated-id"].decode())


def read_page(
    stream: bytes, piece: StreamRange, count: int
) -> Operation[tuple[Entries, StreamRange | None]]:
    """The first `count` entries of a piece, and what is left of it; None when nothing is."""
    entries: Entries = yield Command(b"XRANGE", stream, piece.first, piece.last, b"COUNT", count)
    if len(entries) < count:
        return entries, None
    begin = after(entries[-1][0].decode())
    rest = StreamRange(begin, piece.last) if place(begin) <= place(piece.last) else None
    return entries, rest


def endings(
    queue: str, piece: StreamRange
) -> Operation[tuple[list[Completion], StreamRange | None]]:
    """A page of the completion log, and what is left of the piece."""
    entries, rest = yield from read_page(keys.completed(queue), piece, PAGE)
    return [completion(log_id, fields) for log_id, fields in entries], rest


def first_from(stream: bytes, moment_ms: str) -> Operation[str | None]:
    """Returns the first entry of a stream that is not older than this moment, None without one."""
    entries: Entries = yield Command(b"XRANGE", stream, moment_ms, "+", b"COUNT", 1)
    return entries[0][0].decode() if entries else None


def unfinished(queue: str) -> Operation[tuple[list[str], Span | None]]:
    """The ids in `active`, and what the completion log holds, so that none is missing or double.

    An ending goes from one to the other at once; so the log is read last, and who is in it since
    the first look is taken from the list.
    """
    log = keys.completed(queue)
    newest, names = yield Batch(
        [
            Command(b"XREVRANGE", log, "+", "-", b"COUNT", 1),
            Command(b"ZRANGE", keys.active(queue), 0, -1),
        ]
    )
    ids = dict.fromkeys(name.decode("utf-8", "replace") for name in names)
    found = yield from span(log)
    if found is not None:
        rest: StreamRange | None = StreamRange(
            newest[0][0].decode() if newest else BEGIN, found.last
        )
        while rest is not None:
            page, rest = yield from endings(queue, rest)
            for ending in page:
                if not newest or ending.log_id != newest[0][0].decode():
                    ids.pop(ending.id, None)
    return list(ids), found


def progresses(ids: Sequence[str]) -> Operation[list[Progress]]:
    """The counts of requests now, without those that are not there or cannot be read."""
    replies = yield from run_each(asks_of_progress(ids))
    found = []
    for one, fields, held in zip(ids, replies[::2], replies[1::2], strict=True):
        if not isinstance(fields, FairlaneError) and not isinstance(held, FairlaneError):
            found.append(progress_of(one, fields, held))
    return [one for one in found if one is not None]


def dead_spans(ids: Sequence[str]) -> Operation[list[tuple[str, Span]]]:
    """Which of these requests have dead sub-requests, and what is in `dead` of each."""
    return (yield from _spans([(one, keys.dead(one)) for one in ids]))


def spans_of_results(ids: Sequence[str]) -> Operation[list[tuple[str, Span]]]:
    """Which of these requests have results, and what is in `out` of each."""
    return (yield from _spans([(one, keys.results(one)) for one in ids]))


def _spans(streams: Sequence[tuple[str, bytes]]) -> Operation[list[tuple[str, Span]]]:
    found = []
    for at in range(0, len(streams), _SPANS):  # whole entries come with the ids: few at once
        some = streams[at : at + _SPANS]
        steps: list[Command] = []
        for _, stream in some:
            steps += ends(stream)
        replies = yield Batch(steps)
        for (one, _), *replied in zip(
            some, replies[::3], replies[1::3], replies[2::3], strict=True
        ):
            whole = span_of(*replied)
            if whole is not None:
                found.append((one, whole))
    return found


def read_dead(
    request_id: str, piece: StreamRange
) -> Operation[tuple[list[DeadSubRequest], StreamRange | None]]:
    """A page of a piece of `dead`, about 4 MiB, and what is left. Raises RequestNotFound."""
    count = yield from page_size(request_id)
    entries, rest = yield from read_page(keys.dead(request_id), piece, count)
    return [sub_request(dead_id, fields) for dead_id, fields in entries], rest


def result_span(request_id: str) -> Operation[tuple[Span | None, int, bool]]:
    """What is in `out` now, the request's birth (ms), and has it ended. Raises RequestNotFound.

    The birth tells this request from another one that has had the same id.
    """
    state, born = yield from read(request_id, "state", "born")  # before: the end wrote all results
    if state in {"", "abandoned"}:
        raise not_found(request_id)
    found = yield from span(keys.results(request_id))
    return found, int(born or 0), state in ENDED_STATES


def ended_requests(lives: Sequence[tuple[str, int]]) -> Operation[list[Ended | None]]:
    """What is still known of ended requests, each by (id, when it was submitted); None = nothing.

    A later request of the same id is not taken for it.
    """
    names = ("state", "born", "limit", "attempts")
    replies = yield from run_all([hmget(request_id, *names) for request_id, _ in lives])
    found: list[Ended | None] = []
    for (_, submitted_ms), reply in zip(lives, replies, strict=True):
        state, born, limit, attempts = parse_fields(names, reply)
        is_it = state in ENDED_STATES and born == str(submitted_ms)
        found.append(Ended(int(limit or 0), int(attempts or 0)) if is_it else None)
    return found


def workers(queue: str) -> Operation[list[dict[str, str]]]:
    """The living workers: worker, host, pid, started, renewed (ms), holds; each as text."""
    names = yield Command(b"ZRANGE", keys.workers(queue), 0, -1)
    ids = [name.decode("utf-8", "replace") for name in names]
    replies = yield from run_all([Command(b"HGETALL", keys.worker(queue, one)) for one in ids])
    return [
        {"worker": one} | as_text(reply) for one, reply in zip(ids, replies, strict=True) if reply
    ]
