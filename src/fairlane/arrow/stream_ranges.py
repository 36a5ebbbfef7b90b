"""Reads ranges of a stream by id, without consumer groups, so that a repeat reads the same.

Parallel reads, and reads that repeat after a crash, need ranges that are fixed beforehand. Entries
of a stream never change, so (first id, last id) names the same entries each time.
"""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from fairlane.errors import FairlaneError, InvalidArgument, not_found
from fairlane.model import ENDED_STATES
from fairlane.operations.after import is_unended
from fairlane.operations.completion import BEGIN, Entries, Span, is_place, place, span
from fairlane.operations.dead_letters import page_size, sub_requests, sub_requests_of_many
from fairlane.operations.request_state import asks_of_progress, completion, progress_of
from fairlane.protocol import keys, scripts
from fairlane.protocol.request_hash import as_text, hmget, parse_fields
from fairlane.protocol.steps import Batch, Command, Nodes, OnNode, run_all, run_each

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fairlane.protocol.steps import Call
    from fairlane.records import Completion, DeadSubRequest, Progress


PAGE = 1_000  # small entries of one read
RESULTS_PAGE = 64  # entries of `out`: each may hold hundreds of results
HEADS_PAGE = 200  # ... without their bodies: Redis needs about 5 ms for them
_SEQ = 2**64 - 1
_LAST = f"{_SEQ}-{_SEQ}"


class StreamRange(NamedTuple):
    """A part of a stream, both ends included."""

    first: str
    last: str


class Ended(NamedTuple):
    """Holds the limit of an ended request, and whether its rows have keys.

    `since` is the last entry of `out` when it was opened again after this end; "" if it was not.
    """

    limit: int
    is_keyed: bool
    since: str = ""


class EndedOpening(NamedTuple):
    """An opening of a request that has ended, by its entry in the completion log.

    The request was submitted at `submitted_ms`, and reopened so often before. `since` is the last
    entry of `out` at that time; what was settled in this opening is behind it.
    """

    id: str
    submitted_ms: int
    reopened: int = 0
    since: str = BEGIN

    def results(self, record: Ended | None) -> StreamRange:
        """Returns the part of `out` that this opening has."""
        last = record.since if record is not None and record.since else _LAST
        return StreamRange(after(self.since), last)

    def deaths(self) -> StreamRange:
        """Returns the part of `dead` that this opening has: what died later than `since`."""
        return StreamRange(f"{place(self.since)[0] + 1}-0" if self.reopened else BEGIN, _LAST)


def opening_of(entry: tuple[bytes, Sequence[bytes]]) -> EndedOpening:
    """Returns the opening whose end this entry of the completion log is."""
    fields = as_text(entry[1])
    numbers = (fields.get("born", "0"), fields.get("reopened", "0"))
    born, reopened = (int(one) if one.isdecimal() else 0 for one in numbers)
    since = fields.get("since", BEGIN)
    return EndedOpening(fields.get("id", ""), born, reopened, since if is_place(since) else BEGIN)


def after(entry_id: str) -> str:
    """Returns the smallest id after this one."""
    ms, seq = place(entry_id)
    return f"{ms}-{seq + 1}" if seq < _SEQ else f"{ms + 1}-0"


def cut(first: str, last: str, parts: int) -> list[StreamRange]:
    """Returns at most `parts` pieces that cover `first` to `last`, of equal time; or none.

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


async def last_id(stream: bytes) -> str:
    """Returns the greatest id that an entry of the stream ever had; BEGIN without a stream."""
    is_there, info = await Batch(
        [Command(b"EXISTS", stream), Command(b"XINFO", b"STREAM", stream)], lenient=True
    )
    if isinstance(info, FairlaneError):
        if is_there == 0:
            return BEGIN
        raise info
    fields = dict(zip(info[::2], info[1::2], strict=True))
    return str(fields[b"last-generated-id"].decode())


async def removed(stream: bytes) -> int:
    """Returns how many entries have left a stream."""
    is_there, info = await Batch(
        [Command(b"EXISTS", stream), Command(b"XINFO", b"STREAM", stream)], lenient=True
    )
    if isinstance(info, FairlaneError):
        if is_there == 0:
            return 0
        raise info
    fields = dict(zip(info[::2], info[1::2], strict=True))
    return int(fields[b"entries-added"]) - int(fields[b"length"])


async def read_page(
    stream: bytes, piece: StreamRange, count: int
) -> tuple[Entries, StreamRange | None]:
    """Returns the first `count` entries of a piece and the unread rest of it, or None."""
    entries: Entries = await Command(b"XRANGE", stream, piece.first, piece.last, b"COUNT", count)
    return entries, _rest(entries, piece, count)


def _rest(entries: Entries, piece: StreamRange, count: int) -> StreamRange | None:
    """Returns what is unread of a piece behind its first entries; `count` were wanted."""
    if len(entries) < count:
        return None
    begin = after(entries[-1][0].decode())
    return StreamRange(begin, piece.last) if place(begin) <= place(piece.last) else None


async def read_heads(
    request_id: str, piece: StreamRange, count: int
) -> tuple[Entries, StreamRange | None]:
    """Returns the same as `read_page` of a request's results, with empty bodies.

    The bodies stay in Redis.
    """
    found = await scripts.read_heads(
        (keys.results(request_id),), first=piece.first, last=piece.last, count=count
    )
    entries = _empty(found)
    return entries, _rest(entries, piece, count)


def _empty(heads: Sequence[Any]) -> Entries:
    """Returns entries of `out` with empty bodies, from a reply of read_heads."""
    return [
        (entry_id, [b"w", worker, *(word for head in others for word in (head, b""))])
        for entry_id, worker, *others in heads
    ]


async def these_entries(stream: bytes, ids: Sequence[bytes]) -> Entries:
    """Returns the entries with these ids."""
    replies = await run_all([Command(b"XRANGE", stream, one, one) for one in ids])
    return [entry for reply in replies for entry in reply]


async def log_entries(
    queue: str, piece: StreamRange, count: int = PAGE
) -> tuple[Entries, StreamRange | None]:
    """Returns a page of entries of the completion log and the unread rest of the piece."""
    return await read_page(keys.completed(queue), piece, count)


async def endings(queue: str, piece: StreamRange) -> tuple[list[Completion], StreamRange | None]:
    """Returns a page of the completion log and the unread rest of the piece, or None."""
    entries, unread = await log_entries(queue, piece)
    return [completion(queue, log_id, fields) for log_id, fields in entries], unread


async def first_from(stream: bytes, moment_ms: str) -> str | None:
    """Returns the first entry of a stream that is not older than this moment, None without one."""
    entries: Entries = await Command(b"XRANGE", stream, moment_ms, "+", b"COUNT", 1)
    return entries[0][0].decode() if entries else None


async def unfinished(queue: str) -> tuple[list[str], Span | None]:
    """Returns the ids in `active` and the log's span; no request is in neither or both.

    A request that ends moves from `active` to the log in one step. So the log is read last, and
    the requests in it since the first look leave the list, unless they were reopened.
    """
    log = keys.completed(queue)
    newest, names = await Batch(
        [
            Command(b"XREVRANGE", log, "+", "-", b"COUNT", 1),
            Command(b"ZRANGE", keys.active(queue), 0, -1),
        ]
    )
    ids = dict.fromkeys(name.decode("utf-8", "replace") for name in names)
    logged = await span(log)
    ended = set[str]()
    if logged is not None:
        unread: StreamRange | None = StreamRange(
            newest[0][0].decode() if newest else BEGIN, logged.last
        )
        while unread is not None:
            page, unread = await endings(queue, unread)
            for ending in page:
                if not newest or ending.log_id != newest[0][0].decode():
                    ended.add(ending.id)
    asked = [one for one in ids if one in ended]
    states = await run_all([hmget(one, "state") for one in asked])
    for request_id, reply in zip(asked, states, strict=True):
        if not is_unended(*parse_fields(("state",), reply)):
            del ids[request_id]
    return list(ids), logged


async def progresses(ids: Sequence[str]) -> list[Progress]:
    """Returns the counts of requests now, without those that are gone or cannot be read."""
    replies = await run_each(asks_of_progress(ids))
    counts = []
    for request_id, fields, held in zip(ids, replies[::2], replies[1::2], strict=True):
        if not isinstance(fields, FairlaneError) and not isinstance(held, FairlaneError):
            counts.append(progress_of(request_id, fields, held))
    return [progress for progress in counts if progress is not None]


def _measured(reply: Sequence[Any]) -> Span | None:
    if not reply:
        return None
    first, last, length, size = reply
    return Span(first.decode(), last.decode(), length, size)


async def dead_spans(ids: Sequence[str]) -> list[tuple[str, Span]]:
    """Returns the requests that have dead sub-requests, and the span of `dead` of each."""
    spans = await measured([keys.dead(request_id) for request_id in ids])
    pairs = zip(ids, spans, strict=True)
    return [(request_id, span) for request_id, span in pairs if span is not None]


async def whole_results(
    openings: Sequence[EndedOpening],
) -> list[tuple[Entries, Ended | None]]:
    """Returns the entries of `out` of openings, and the record of each; see `_whole`."""
    found = await _whole([(keys.results(one.id), one.results(None), one) for one in openings])
    return [
        ([one for one in entries if _is_before(one, record)], record) for entries, record in found
    ]


def _is_before(entry: tuple[bytes, Any], record: Ended | None) -> bool:
    """Returns True unless an entry of `out` is of a later opening."""
    is_last = record is None or not record.since
    return is_last or place(entry[0].decode()) <= place(record.since)  # type: ignore[union-attr]


async def whole_dead(
    openings: Sequence[EndedOpening],
) -> list[tuple[list[DeadSubRequest], Ended | None]]:
    """Returns the dead sub-requests of openings, and the record of each; see `_whole`."""
    found = await _whole([(keys.dead(one.id), one.deaths(), one) for one in openings])
    pairs = zip(openings, found, strict=True)
    dead = await sub_requests_of_many([(one.id, entries) for one, (entries, _) in pairs])
    return [(died, record) for died, (_, record) in zip(dead, found, strict=True)]


async def _whole(
    parts: Sequence[tuple[bytes, StreamRange, EndedOpening]],
) -> list[tuple[Entries, Ended | None]]:
    """Returns the entries of parts of streams, each of an opening that has ended.

    A request that is gone, or is a later one of this id, has neither entries nor a record. All
    are read in one round trip, so the requests must be few and small.
    """
    if not parts:
        return []
    steps: list[Command] = []
    for stream, part, one in parts:
        # If the record is right after the read, the entries are of this request.
        steps += [Command(b"XRANGE", stream, part.first, part.last), _record(one.id)]
    replies = await Batch(steps)
    found: list[tuple[Entries, Ended | None]] = []
    for (_, _, one), entries, reply in zip(parts, replies[::2], replies[1::2], strict=True):
        record = _ended(reply, one)
        found.append(([] if record is None else entries, record))
    return found


async def measured(streams: Sequence[bytes]) -> list[Span | None]:
    """Returns the spans of streams, with their sizes; None for one without entries."""
    replies = await run_all([scripts.measure_stream((stream,)) for stream in streams])
    return [_measured(reply) for reply in replies]


async def read_dead(
    request_id: str, piece: StreamRange
) -> tuple[list[DeadSubRequest], StreamRange | None]:
    """Returns a page of a piece of `dead`, about 4 MiB, and the rest. Raises RequestNotFound."""
    count = await page_size(request_id)
    entries, unread = await read_page(keys.dead(request_id), piece, count)
    return await sub_requests(request_id, entries), unread


class ResultSpan(NamedTuple):
    """Says what results a request has now; `born` (ms) distinguishes it from others of its id.

    `reopened` is how often it was reopened: then the results of dead sub-requests have gone.
    """

    id: str
    queue: str
    born: int
    reopened: int
    is_ended: bool
    rows: int  # results
    span: Span | None  # of `out`


_OF_RESULTS = ("state", "queue", "born", "reopened", "done", "dead")


async def result_span(request_id: str) -> ResultSpan:
    """Returns what results a request has now. Raises RequestNotFound."""
    (found,) = await result_spans([request_id])
    if found is None:
        raise not_found(request_id)
    return found


async def result_spans(ids: Sequence[str]) -> list[ResultSpan | None]:
    """Returns the same for many requests; None for one that is gone. It costs two commands each."""
    steps: list[Command | Call[Any]] = []
    for request_id in ids:  # the state first, because the end wrote all results
        steps += [
            hmget(request_id, *_OF_RESULTS),
            scripts.measure_stream((keys.results(request_id),)),
        ]
    replies = await run_all(steps)
    rows = zip(ids, replies[::2], replies[1::2], strict=True)
    return [_result_span(one, reply, _measured(span)) for one, reply, span in rows]


async def begins(ids: Sequence[str]) -> list[int | None]:
    """Returns when each request was submitted, in ms; None for one that is gone."""
    replies = await run_all([hmget(one, "born") for one in ids])
    borns = (parse_fields(("born",), reply)[0] for reply in replies)
    return [int(born) if born else None for born in borns]


def _result_span(
    request_id: str, reply: Sequence[bytes | None], held: Span | None
) -> ResultSpan | None:
    state, queue, *numbers = parse_fields(_OF_RESULTS, reply)
    if state in {"", "abandoned"}:
        return None
    born, reopened, done, dead = (int(number or 0) for number in numbers)
    return ResultSpan(request_id, queue, born, reopened, state in ENDED_STATES, done + dead, held)


async def small_results(
    ids: Sequence[str], spans: Sequence[Span], *, with_bodies: bool
) -> list[tuple[Entries, ResultSpan | None]]:
    """Returns all entries of `out` of small requests, and what they are then; in one round trip."""
    steps: list[Command | Call[Any]] = []
    for request_id, held in zip(ids, spans, strict=True):
        out = keys.results(request_id)
        whole = Command(b"XRANGE", out, *held[:2])
        heads = scripts.read_heads((out,), first=held.first, last=held.last, count=held.length)
        steps.append(whole if with_bodies else heads)
        steps.append(hmget(request_id, *_OF_RESULTS))
    replies = await Batch(steps)
    found = []
    for request_id, entries, reply in zip(ids, replies[::2], replies[1::2], strict=True):
        read = entries if with_bodies else _empty(entries)
        found.append((read, _result_span(request_id, reply, None)))
    return found


async def queues_of(ids: Sequence[str]) -> list[str]:
    """Returns the queue of each request; "" for one that is gone."""
    replies = await run_all([hmget(request_id, "queue") for request_id in ids])
    return [parse_fields(("queue",), reply)[0] for reply in replies]


# ------------------------------------------------------------------ requests by pattern


NAMES_MOST = 1_000_000  # requests of one read
_SCAN = 1_000  # keys of one look


async def named_like(pattern: str, txn: str = "") -> list[str]:
    """Returns the requests with an id of this pattern (* and ?), or those that `txn` wrote.

    It looks through all keys of each primary. Raises InvalidArgument for more than NAMES_MOST.
    """
    kind = "txn" if txn else "req"
    match = f"{kind}:{{{pattern}}}" + (f":{txn}" if txn else "")
    return await _named(match, b"hash", txn or pattern)


async def queues_like(pattern: str) -> list[str]:
    """Returns the queues with a name of this pattern in which anything has ended."""
    names = await _named(f"{{{pattern}}}:completed", b"stream", pattern)
    return [name for name in names if keys.queue_and_part(keys.completed(name))]


async def _named(match: str, kind: bytes, shown: str) -> list[str]:
    found: dict[str, None] = {}
    for node in await Nodes():
        cursor = b"0"
        while True:
            words = (b"SCAN", cursor, b"MATCH", match, b"COUNT", _SCAN, b"TYPE", kind)
            cursor, names = await OnNode(node, Command(*words))
            texts = [name.decode("utf-8", "replace") for name in names]
            found.update({text.partition("{")[2].partition("}")[0]: None for text in texts})
            if len(found) > NAMES_MOST:
                raise InvalidArgument(
                    f"more than {NAMES_MOST:,} requests are {shown}: name fewer of them"
                )
            if int(cursor) == 0:
                break
    return sorted(found)


# ------------------------------------------------------------------ what is kept of rows


class RowKeys:
    """Reads the keys of rows, which `error:{id}` has in parts of a thousand indexes.

    It keeps some parts, because the results of a page often need those of the page before.
    """

    def __init__(self) -> None:
        self._parts: dict[tuple[str, int], dict[int, str]] = {}

    async def read(self, asked: Sequence[tuple[str, Sequence[int]]]) -> list[str | None]:
        """Returns the keys of results, each request with its indexes; None for a row without."""
        if len(self._parts) > _KEY_PARTS:
            self._parts = {}
        rows = [(one, *divmod(index, _KEYS)) for one, indexes in asked for index in indexes]
        missing: dict[str, set[int]] = {}
        for request_id, part, at in rows:
            if at not in self._parts.get((request_id, part), ()):
                missing.setdefault(request_id, set()).add(part)
        fields = {one: sorted(parts) for one, parts in missing.items()}
        replies = await run_all(
            [
                Command(b"HMGET", keys.errors(one), *(b"k%d" % part for part in parts))
                for one, parts in fields.items()
            ]
        )
        for (one, parts), texts in zip(fields.items(), replies, strict=True):
            for part, text in zip(parts, texts, strict=True):
                if text is not None:
                    self._parts[one, part] = _keys_in(text)
        return [self._parts.get((one, part), {}).get(at) for one, part, at in rows]


_KEYS = 1_000  # see keep_rows in lua/v1/lib/append.lua
_KEY_PARTS = 64


def _keys_in(packed: bytes) -> dict[int, str]:
    found, at = {}, 0
    while at < len(packed):
        index, length = _KEY_HEAD.unpack_from(packed, at)
        at += _KEY_HEAD.size
        found[index] = packed[at : at + length].decode("utf-8", "replace")
        at += length
    return found


_KEY_HEAD = struct.Struct("<HH")


_BODIES = 100  # of one command: each has up to 1 MiB


async def kept_bodies(asked: Sequence[tuple[str, Sequence[int]]]) -> list[bytes | None]:
    """Returns the bodies that were kept beside results, each request with its indexes."""
    replies = await run_all(
        [
            Command(b"HMGET", keys.errors(one), *(b"b%d" % at for at in indexes[k : k + _BODIES]))
            for one, indexes in asked
            for k in range(0, len(indexes), _BODIES)
        ]
    )
    return [body for reply in replies for body in reply]


async def ended_requests(openings: Sequence[EndedOpening]) -> list[Ended | None]:
    """Returns the record of each opening; None = the request is gone.

    A later request with the same id does not count.
    """
    replies = await run_all([_record(one.id) for one in openings])
    return [_ended(reply, one) for one, reply in zip(openings, replies, strict=True)]


_RECORD = ("state", "born", "reopened", "since", "limit", "keyed")


def _record(request_id: str) -> Command:
    return hmget(request_id, *_RECORD)


def _ended(reply: Sequence[bytes | None], one: EndedOpening) -> Ended | None:
    """Returns the record in a reply to `_record`; None if it is not of this life, or has no end."""
    state, born, reopened, since, limit, keyed = parse_fields(_RECORD, reply)
    is_again = int(reopened or 0) > one.reopened
    is_it = born == str(one.submitted_ms) and (is_again or state in ENDED_STATES)
    return Ended(int(limit or 0), bool(keyed), since if is_again else "") if is_it else None


async def workers(queue: str) -> list[dict[str, str]]:
    """Returns the living workers: worker, host, pid, started, renewed (ms), holds; each as text."""
    names = await Command(b"ZRANGE", keys.workers(queue), 0, -1)
    ids = [name.decode("utf-8", "replace") for name in names]
    replies = await run_all([Command(b"HGETALL", keys.worker(queue, worker)) for worker in ids])
    return [
        {"worker": worker} | as_text(reply)
        for worker, reply in zip(ids, replies, strict=True)
        if reply
    ]
