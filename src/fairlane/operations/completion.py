"""Watches a request: its end, its results, the completion log."""

from __future__ import annotations

import re
import secrets
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from fairlane import settings
from fairlane.common import clock
from fairlane.common.text import exact
from fairlane.errors import (
    DataLost,
    FairlaneError,
    InvalidArgument,
    RequestLost,
    WaitTimeout,
    not_found,
)
from fairlane.model import ENDED_STATES
from fairlane.operations.durability import confirm_end
from fairlane.operations.flow_branches import FAN, NEXT, shown_body
from fairlane.operations.request_state import completion
from fairlane.operations.workers import unserved
from fairlane.protocol import keys
from fairlane.protocol.request_hash import as_text, hmget, parse_fields, read
from fairlane.protocol.server_info import time_ms
from fairlane.protocol.steps import Batch, Command, Message, Subscribe, run_all
from fairlane.records import Result

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from fairlane.records import Completion


# ------------------------------------------------------------------ error texts
# Reads the texts of errors, which `error:{id}` has once: `dead` and `out` only name them.


ERROR_DROPPED = "the error was dropped with its dead sub-request"


async def error_texts(request_id: str, names: Iterable[bytes]) -> dict[bytes, str]:
    """Returns the text of each name, without those that were dropped. No name costs no command."""
    wanted = sorted(set(names))
    if not wanted:
        return {}
    return _present(wanted, await Command(b"HMGET", keys.errors(request_id), *wanted))


async def error_texts_of_many(named: Sequence[tuple[str, set[bytes]]]) -> dict[bytes, str]:
    """Returns the texts of the names that several requests have, each (request, names).

    A name is the digest of its text. So a text is read from the first request that has the name,
    and from the others only if the first one has dropped the text.
    """
    asked: set[bytes] = set()
    first, others = [], []
    for request_id, names in named:
        first.append((request_id, names - asked))
        others.append((request_id, names & asked))
        asked |= names
    found = await _texts(first)
    missing = [(request_id, names - found.keys()) for request_id, names in others]
    return found | await _texts(missing)


async def _texts(named: Sequence[tuple[str, set[bytes]]]) -> dict[bytes, str]:
    questions = [(request_id, sorted(names)) for request_id, names in named if names]
    replies = await run_all(
        [Command(b"HMGET", keys.errors(request_id), *wanted) for request_id, wanted in questions]
    )
    found: dict[bytes, str] = {}
    for (_, wanted), texts in zip(questions, replies, strict=True):
        found |= _present(wanted, texts)
    return found


def _present(names: Sequence[bytes], texts: Sequence[bytes | None]) -> dict[bytes, str]:
    return {
        name: text.decode("utf-8", "replace")
        for name, text in zip(names, texts, strict=True)
        if text is not None
    }


# ------------------------------------------------------------------ completion log
# Reads endings from a place in the completion log, and detects if some may be missing.


_ENTRY = re.compile(r"[0-9]{1,20}(-[0-9]{1,20})?")
_SHOWN = 60  # characters of what is refused
_PAGE = 100  # endings of one read


class LogReader:
    """Reads the log page by page, and marks how far it is, so that the log keeps the rest."""

    def __init__(self, queue: str, after: str) -> None:
        self.queue, self.after = queue, after
        self._name = f"follower:{secrets.token_hex(8)}"
        self._mark_at = 0.0

    async def page(self, block_ms: int = 0) -> list[Completion]:
        """Returns endings behind `after`, which the caller moves. Raises as read_completions."""
        endings = await read_completions(self.queue, self.after, block_ms)
        has_more = bool(block_ms) or len(endings) == _PAGE
        if endings and has_more and clock.mono_s() >= self._mark_at:
            self._mark_at = clock.mono_s() + settings.LOG_MARK_S
            await mark(self.queue, {self._name: self.after}, settings.LOG_FOLLOWER_MS)
        return endings


async def read_completions(queue: str, after: str, block_ms: int) -> list[Completion]:
    """Returns endings logged after `after`: a log_id, "0" for all that is kept, or a moment in ms.

    Raises InvalidArgument. Raises DataLost if endings after that place may have left the log, or if
    a failover lost that place, because later endings may then be logged before it.
    """
    if not is_place(after):
        raise InvalidArgument(
            f"{after[:_SHOWN]!r} is no place in the completion log: a log_id is expected"
        )
    words: tuple[Any, ...] = (b"XREAD", b"COUNT", _PAGE)
    if block_ms:
        words += (b"BLOCK", block_ms)
    reply = await Command(*words, b"STREAMS", keys.completed(queue), after)
    # Checked after the page was read: a place that is in the log now was in it then.
    if "-" in after:
        why = await lost_behind(queue, after)
    else:
        why = "" if after == "0" else await trimmed_before(queue, after)
    if why:
        raise DataLost(
            f"endings after {after} may be missing from the completion log of queue {queue}: {why}"
            '; read on from an earlier log_id, or from "0": some endings then come again'
        )
    return [completion(queue, log_id, fields) for log_id, fields in (reply[0][1] if reply else [])]


async def last_completion(queue: str) -> str:
    """Returns where the completion log ends now: an entry id, "0-0" if it is empty."""
    reply = await Command(b"XREVRANGE", keys.completed(queue), "+", "-", b"COUNT", 1)
    return reply[0][0].decode() if reply else "0-0"


BEGIN = "0-0"  # before every entry


Entries = list[tuple[bytes, Any]]


class Span(NamedTuple):
    """The present content of a stream: its first and last entry, and how many there are."""

    first: str
    last: str
    length: int
    size: int = 0  # about how many bytes they have, if that was measured


def place(entry_id: str) -> tuple[int, int]:
    """Returns an entry id as (ms, number), which compare in the order of the stream.

    Raises ValueError.
    """
    ms, _, seq = entry_id.partition("-")
    return int(ms), int(seq or 0)


def is_place(text: str) -> bool:
    """Returns True for a place in a stream: an entry id, or a moment in ms."""
    return bool(_ENTRY.fullmatch(text)) and max(place(text)) < (1 << 64) - 1


def has_entries_before(text: str) -> bool:
    """Returns True for a place in a stream that entries may be before."""
    return is_place(text) and place(text) > place(BEGIN)


async def span(stream: bytes) -> Span | None:
    """Returns the present content of a stream; None if it is empty or does not exist."""
    steps = (
        Command(b"XLEN", stream),
        Command(b"XRANGE", stream, "-", "+", b"COUNT", 1),
        Command(b"XREVRANGE", stream, "+", "-", b"COUNT", 1),
    )
    length, first, last = await Batch(steps)
    if not first or not last:
        return None
    return Span(first[0][0].decode(), last[0][0].decode(), length)


async def lost_behind(queue: str, at: str) -> str:
    """Returns why endings after the entry `at` may be missing from the log; "" if none can be.

    The log loses entries at its old end only. So while it holds `at`, it holds all later entries.
    `at` is an entry that was read, or BEGIN if none was read.
    """
    log = keys.completed(queue)
    if place(at) == place(BEGIN) or await Command(b"XRANGE", log, at, at):
        return ""
    found = await span(log)
    if found is None:
        return "the log is empty by now"
    if place(at) < place(found.first):
        return f"the log begins at {found.first} by now"
    if place(found.last) < place(at):
        return f"the log ends at {found.last} by now, as a failover or a restart took back its end"
    return f"the entry {at} is not in the log any more, as a failover or a restart took it back"


async def trimmed_before(queue: str, moment_ms: str) -> str:
    """Returns why endings after this time may be missing from the log; "" if none can be.

    A log with fewer entries than LOG_ENTRIES was never trimmed.
    """
    found = await span(keys.completed(queue))
    if found is None or found.length < settings.LOG_ENTRIES:
        return ""
    is_behind = place(moment_ms) < place(found.first)
    return f"the log begins at {found.first} by now" if is_behind else ""


_WAITED = ("state", "born", "durable", "queue")
_OPENING = ("state", "reopened")
_COUNTED = ("state", "reopened", "born", "total", "done", "dead")
PAGE = 64  # entries of `out` a page; an entry is what one call of complete settled


async def state(request_id: str) -> str:
    """Returns the state of a request now. Raises RequestNotFound."""
    found = await Command(b"HGET", keys.request_hash(request_id), b"state")
    if found is None or found == b"abandoned":
        raise not_found(request_id)
    return str(found.decode())


async def wait(
    request_id: str, clock: Any, timeout_s: float | None, began: float | None = None
) -> str:
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
    await Subscribe(keys.done_channel(request_id))
    born = ""
    while True:
        seen, life, durable, queue = await read(request_id, *_WAITED)
        if born and seen in {"", "abandoned"}:  # the auditor marks a missing request so
            raise vanished(request_id)
        if seen in {"", "abandoned"}:
            raise not_found(request_id)
        if born and life != born:
            raise replaced(request_id)
        born = life
        if seen in ENDED_STATES:
            if await confirm_end(request_id, int(durable or 0), seen):
                return seen
            continue  # a failover took the end back: it runs again
        left = settings.POLL_S if deadline is None else deadline - clock()
        if left <= 0:
            raise await timed_out(request_id, queue, timeout_s or 0.0)
        await Message(min(left, settings.POLL_S))


async def timed_out(request_id: str, queue: str, timeout_s: float, counts: str = "") -> WaitTimeout:
    """Returns the error for a timeout; it mentions a pause, and a queue without a worker."""
    try:
        (found,) = await Batch(
            [Command(b"HGET", keys.request_hash(request_id), b"state")], patience_s=0.0
        )
    except FairlaneError:  # the caller gets WaitTimeout also if Redis does not answer
        found = None
    is_paused = found == b"paused"
    goes_on = f"fairlane resume {request_id} lets it go on" if is_paused else "it goes on"
    missing = await unserved(queue)
    more = f"; {missing}" if missing else ""
    return WaitTimeout(
        f"request {request_id} had not ended after {exact(timeout_s)} s; {goes_on}{counts}{more}"
    )


class ResultPage(NamedTuple):
    """A page of entries of `out`, with the counts of the request's hash.

    `born` distinguishes the request from a later one with the same id. `is_last`: the request has
    ended and no entry follows. Then `settled` counts its results, and `cancelled` its sub-requests
    without a result. `has_ended` and `reopened` say how it stood when the page was read.
    """

    entries: list[tuple[bytes, list[Result]]]
    born: str
    reopened: str
    has_ended: bool
    is_last: bool
    settled: int
    cancelled: int


async def read_results(request_id: str, after: bytes, block_ms: int, born: str = "") -> ResultPage:
    """Returns the next page of results after entry `after` of `out`.

    Blocks up to `block_ms` if there is nothing new. `born` is that of the page before. Raises
    RequestNotFound, and RequestLost if the request of that page is gone.
    """
    # The hash is read before the results, because an ended request has written all of them. It is
    # read again after them: if `reopened` differs, a repair may have deleted some of them.
    words, from_after = (b"XREAD", b"COUNT", PAGE), (b"STREAMS", keys.results(request_id), after)
    opening = hmget(request_id, *_OPENING)
    first = [hmget(request_id, *_COUNTED), Command(*words, *from_after), opening]
    fields, reply, then = await Batch(first)
    seen, reopened, life, total, done, dead = parse_fields(_COUNTED, fields)
    if seen in {"", "abandoned"}:
        raise vanished(request_id) if born else not_found(request_id)
    if born and life != born:
        raise replaced(request_id)
    ended = seen in ENDED_STATES
    if not (reply or ended) and block_ms:
        reply = await Command(*words, b"BLOCK", block_ms, *from_after)
    rows = reply[0][1] if reply else []
    found = await with_errors(request_id, [parse_results(fields) for _, fields in rows])
    entries = [(entry_id, page) for (entry_id, _), page in zip(rows, found, strict=True)]
    settled = int(done or 0) + int(dead or 0)
    is_same = parse_fields(_OPENING, then) == [seen, reopened]
    is_last = ended and is_same and len(entries) < PAGE
    cancelled = int(total or 0) - settled
    return ResultPage(entries, life, reopened, ended, is_last, settled, cancelled)


async def is_reopened(request_id: str, page: ResultPage) -> bool:
    """Returns True if the request of a last page was reopened since that was read."""
    _, reopened = await read(request_id, *_OPENING)
    return reopened not in {"", page.reopened}


def vanished(request_id: str) -> RequestLost:
    """Returns the error for a request that existed and is gone."""
    return RequestLost(
        f"request {request_id} is gone from Redis: a failover or a flush took it, "
        "or it was deleted, or its retention is over"
    )


def replaced(request_id: str) -> RequestLost:
    """Returns the error for a request whose id another request has now."""
    return RequestLost(f"request {request_id} is gone: another request has its id by now")


async def read_entries(request_id: str, entry_ids: list[bytes]) -> list[list[Result]]:
    """Reads some entries of `out` again; returns their results in the order of the ids."""
    out = keys.results(request_id)
    replies = await Batch([Command(b"XRANGE", out, entry, entry) for entry in entry_ids])
    pages = [parse_results(reply[0][1]) if reply else [] for reply in replies]
    return await with_errors(request_id, pages)


async def with_errors(request_id: str, pages: list[list[Result]]) -> list[list[Result]]:
    """Returns what parse_results returned, with the texts of errors instead of their names."""
    names = {one.error for page in pages for one in page if one.error is not None}
    if not names:
        return pages
    texts = await error_texts(request_id, map(str.encode, names))
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

    The body of a result that chose something is what it chose, see operations/flow_branches.py.
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
        shown = shown_body(status, body) if status in {NEXT, FAN} else body
        found.append(
            Result(
                index=int(index),
                status="dead" if is_dead else "done",
                attempt=int(attempt),
                body=None if is_dead or status == b"n" else shown,
                error=body.decode("utf-8", "replace") if is_dead else None,
                worker=worker,
                waited_ms=int(waited),
                ran_ms=int(ran) / 1000,
            )
        )
    return found


# ------------------------------------------------------------------ log readers
# Keeps endings in the completion log until its readers have read them, within a bound.
#
# Each reader marks its place in the hash `{queue}:readers`. The leader trims the log to
# settings.LOG_ENTRIES, and keeps each ending that a live reader has not read. A mark ends some
# time after its last renewal, and the log never has more than settings.LOG_MOST endings. So a dead
# reader holds a bounded part of the memory for a bounded time.


_TRIM_PAGE = 10_000  # endings of one trim: a longer one would hold up other callers
_GRACE_MS = 60_000  # a mark is deleted so long after its end: its reader may be late
_NO_PLACE = "18446744073709551615"  # behind every entry


async def mark(queue: str, places: Mapping[str, str], hold_ms: int) -> None:
    """Stores and renews the place of each reader: the last entry that it has read.

    If Redis refuses the write (a right is missing, or it is full), the reader goes on without it.
    """
    if not places:
        return
    until_ms = time_ms(await Command(b"TIME")) + hold_ms
    words = [word for name, at in places.items() for word in (name, f"{at} {until_ms}")]
    readers = keys.log_readers(queue)
    await Batch(
        [
            Command(b"HSET", readers, *words),
            Command(b"PEXPIRE", readers, settings.LOG_READER_MS + _GRACE_MS),
        ],
        lenient=True,
    )


async def unmark(queue: str, *readers: str) -> None:
    """Ends the marks of readers that want nothing more."""
    if readers:
        await Command(b"HDEL", keys.log_readers(queue), *readers)


async def trim(queue: str) -> int:
    """Deletes old endings that every live reader has read; returns how many.

    The newest settings.LOG_ENTRIES stay in any case. Deletes the marks of dead readers, too.
    """
    log, readers = keys.completed(queue), keys.log_readers(queue)
    length, marks, time = await Batch(
        [Command(b"XLEN", log), Command(b"HGETALL", readers), Command(b"TIME")]
    )
    floor, dead = _floor(as_text(marks), time_ms(time))
    if dead:
        await Command(b"HDEL", readers, *dead)
    trimmed = 0
    while (excess := length - settings.LOG_ENTRIES - trimmed) > 0:
        # MINID protects the entries from the floor on, and LIMIT the newest LOG_ENTRIES.
        count = await Command(
            b"XTRIM", log, b"MINID", b"~", floor, b"LIMIT", min(excess, _TRIM_PAGE)
        )
        if not count:
            break
        trimmed += count
    return trimmed


def _floor(marks: Mapping[str, str], now_ms: int) -> tuple[str, list[str]]:
    """Returns the earliest place of a live reader, and the readers that are dead."""
    floor, dead = _NO_PLACE, []
    for name, text in marks.items():
        at, _, until = text.partition(" ")
        left_ms = int(until) - now_ms if until.isdigit() else -_GRACE_MS
        # A mark that ends too late is from before the clock went back.
        if not is_place(at) or not -_GRACE_MS < left_ms <= settings.LOG_READER_MS + _GRACE_MS:
            dead.append(name)
        elif left_ms > 0:
            floor = min(floor, at, key=place)
    return floor, dead
