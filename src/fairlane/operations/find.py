"""Finds requests and workers of a queue, in bounded pages."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, NamedTuple

from fairlane.common.clock import ms_of
from fairlane.common.task_names import check_task, read_tasks, task_names
from fairlane.common.text import exact, split_names
from fairlane.errors import InvalidArgument
from fairlane.model import (
    ENDED,
    ENDED_STATES,
    OUTCOMES,
    RUNNING,
    STATE_GROUPS,
    STATE_ORDER,
    RequestFilters,
    outcome_of,
)
from fairlane.operations import tokens as waiting_tokens
from fairlane.operations.call_words import with_calls
from fairlane.operations.completion import has_entries_before
from fairlane.operations.holds import read_holds
from fairlane.operations.request_state import completion, counts_of
from fairlane.operations.shards import read_shards
from fairlane.operations.workers import is_late
from fairlane.options import check_option
from fairlane.protocol import keys
from fairlane.protocol.keys import check_name
from fairlane.protocol.lua import ending_name
from fairlane.protocol.request_hash import hmget, parse_fields
from fairlane.protocol.server_info import time_ms
from fairlane.protocol.steps import Batch, Command, run_all
from fairlane.records import (
    Completion,
    RequestCounts,
    RequestPage,
    WorkerPage,
    WorkerState,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Unpack

    from fairlane.operations.tokens import Waiting


# ------------------------------------------------------------------ cursor
# A cursor is a text that says where a page ended. The next call continues there.


_DIGITS = 20  # of the greatest number of 64 bits
_SHOWN_MOST = 60  # characters of a refused cursor that an error shows


def write_cursor(owner: str, *parts: Any) -> str:
    """Returns a cursor. `owner` names what is listed, for example `queue req`."""
    text = json.dumps([owner, *parts], separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def read_cursor(cursor: str, owner: str) -> list[Any]:
    """Returns the parts of a cursor. Raises InvalidArgument if its owner differs."""
    parts = _decoded(cursor)
    if not isinstance(parts, list) or not parts or not isinstance(parts[0], str):
        raise invalid_cursor(cursor)
    if parts[0] != owner:
        raise InvalidArgument(
            f"cursor {_short(cursor)} is of {parts[0]}, not of {owner}: "
            f"give one that a page of {owner} ended with"
        )
    return parts[1:]


def is_number(text: str) -> bool:
    """Returns True for a cursor of SCAN: a number of 64 bits."""
    return len(text) <= _DIGITS and text.isascii() and text.isdecimal() and int(text) < 1 << 64


def invalid_cursor(cursor: object) -> InvalidArgument:
    """Returns the error for a text that is no page's cursor."""
    return InvalidArgument(
        f"cursor {_short(cursor)} is not valid: give the one that the page before ended with"
    )


def _decoded(cursor: str) -> Any:
    try:
        return json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    except (ValueError, TypeError, binascii.Error, RecursionError):
        return None


def _short(cursor: object) -> str:
    shown = repr(cursor)
    return shown if len(shown) <= _SHOWN_MOST else f"{shown[:_SHOWN_MOST]}..."


# ------------------------------------------------------------------ filters
# Which requests a list shows: by state, priority, age, tag, tenant, task and beginning of the id.


_PREFIX = re.compile(r"[A-Za-z0-9_.:-]{0,128}")

_OLDEST_S = 10**12  # a greater age is refused
_NAMES = RequestFilters.__optional_keys__


class Labels(NamedTuple):
    """What only a request's hash has of it, as text: tags (`a,b`), tenant, tasks, hidden fields."""

    tags: str = ""
    tenant: str = ""
    task: str = ""
    redact: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFilter:
    """The checked filters; an empty set excludes nothing."""

    states: frozenset[str] = frozenset()
    priorities: frozenset[int] = frozenset()
    id_prefix: str = ""
    older_ms: int = 0
    newer_ms: int | None = None
    tags: frozenset[str] = frozenset()
    tenants: frozenset[str] = frozenset()
    tasks: frozenset[str] = frozenset()

    @property
    def reads_labels(self) -> bool:
        """Returns True if it filters by labels, which only a request's hash has."""
        return bool(self.tags or self.tenants or self.tasks)

    def accepts_labels(self, labels: Labels) -> bool:
        """Returns True if a request with these labels is listed."""
        return (
            self.tags.issubset(labels.tags.split(","))
            and (not self.tenants or labels.tenant in self.tenants)
            and (not self.tasks or not self.tasks.isdisjoint(task_names(labels.task)))
        )

    def wants_any(self, states: tuple[str, ...]) -> bool:
        """Returns True if requests in one of these states are listed."""
        return not self.states or any(OUTCOMES.get(one, one) in states for one in self.states)

    def accepts(self, row: Unfinished | Completion, now_ms: int) -> bool:
        """Returns True if all filters except those of labels accept this request."""
        age_ms = now_ms - row.submitted_ms
        return (
            (not self.states or row.state in self.states or row.outcome in self.states)
            and (not self.priorities or row.priority in self.priorities)
            and row.id.startswith(self.id_prefix)
            and age_ms >= self.older_ms
            and (self.newer_ms is None or age_ms < self.newer_ms)
        )


def filter_of(**wanted: Unpack[RequestFilters]) -> RequestFilter:
    """Returns the filter. Raises InvalidArgument, and TypeError for a wrong name."""
    given: dict[str, Any] = dict(wanted)
    for name in given:
        if name not in _NAMES:
            raise TypeError(f"filter {name} is not valid: {', '.join(sorted(_NAMES))} are known")
    older_ms = _age_ms("older_s", given.get("older_s")) or 0
    newer_ms = _age_ms("newer_s", given.get("newer_s"))
    if newer_ms is not None and older_ms >= newer_ms:
        raise InvalidArgument(
            f"older {exact(older_ms / 1000)} s and newer {exact(newer_ms / 1000)} s exclude each "
            "other: no request is older than the first and newer than the second"
        )
    prefix = given.get("id_prefix", "")
    if not isinstance(prefix, str) or not _PREFIX.fullmatch(prefix):
        raise InvalidArgument(
            f"beginning of an id {prefix!r} is not valid: ids have letters, digits and _ . : -"
        )
    return RequestFilter(
        states=frozenset(state for word in _each(given, "states") for state in _states_of(word)),
        priorities=frozenset(check_option("priority", one) for one in _each(given, "priorities")),
        id_prefix=prefix,
        older_ms=older_ms,
        newer_ms=newer_ms,
        tags=frozenset(check_name("tag", tag) for tag in _each(given, "tags")),
        tenants=frozenset(check_name("tenant", name) for name in _each(given, "tenants")),
        tasks=frozenset(map(check_task, _each(given, "tasks"))),
    )


def _each(given: dict[str, Any], name: str) -> Iterable[Any]:
    values = given.get(name, ())
    if isinstance(values, (str, int)):
        return (values,)
    if isinstance(values, bytes) or not isinstance(values, Iterable):
        raise InvalidArgument(f"{name} {values!r} is not valid: give one, or a list")
    return values


def _states_of(word: object) -> tuple[str, ...]:
    known = [*STATE_GROUPS, *RUNNING, *OUTCOMES, *ENDED]
    if not isinstance(word, str) or word not in known:
        near = get_close_matches(str(word), known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"the states are {', '.join(known)}"
        raise InvalidArgument(f"state {word!r} is not valid: {hint}")
    return STATE_GROUPS.get(word, (word,))


def _age_ms(name: str, seconds: object) -> int | None:
    if seconds is None:
        return None
    found = ms_of(name, seconds)  # type: ignore[arg-type]  # ms_of checks it
    if not 0 <= found <= _OLDEST_S * 1000:
        raise InvalidArgument(f"{name} {seconds!r} is not valid: 0 to {_OLDEST_S:,} s is expected")
    return found


# ------------------------------------------------------------------ requests
# Lists the requests of a queue in bounded pages: first unfinished ones, then ended ones.
#
# Unfinished requests are listed by urgency. Ended ones come from the completion log, newest first.
# A page reads at most MOST_READ tokens, and MOST_READ entries of `active` and of the log. Each
# unfinished request among these costs one HMGET, 100 in a round trip. Because its reads are
# bounded, a page may be empty although another one follows.
#
# If a queue has more than MOST_READ unfinished requests, the first part lists the most urgent ones.
# Later parts walk over all unfinished requests, so they list the first ones again. Each part is
# sorted on its own. In a smaller queue, one part has all unfinished requests.


MOST_LISTED = 1_000  # requests of one page
_PART = 1_000  # entries of `active`, or of the log, that one call reads
_CLOCKS_MS = 60_000  # how far the clocks of two nodes of a cluster may be apart
_URGENT, _WALK, _ENDED = "urgent", "walk", "ended"
_LABELS = ("born", *Labels._fields)
_OPENING = ("born", "reopened")
_BEFORE_ALL = (-(1 << 62), 0, 0, "")  # sorts before every request


class _Place(NamedTuple):
    """A place in the list: its section, the ZSCAN cursor in `active`, and the key listed last.

    `log_id` is the entry of the log after which the list goes on. In the middle of a sorted part,
    `log_id` is the first entry of that part.
    """

    section: str
    scan: str = "0"
    behind: OrderKey = _BEFORE_ALL
    log_id: str = ""


class _Part(NamedTuple):
    """A part of the list: its requests, where the next part begins, and how many rows it read."""

    found: list[RequestCounts]
    next: _Place | None
    read: int


class _Search(NamedTuple):
    """The filters and the order of one page, and the server's time."""

    queue: str
    wanted: RequestFilter
    order: Order
    now_ms: int
    is_small: bool  # one part has all unfinished requests

    def accepts(self, row: Unfinished) -> bool:
        """Returns True if this unfinished request is listed."""
        return self.wanted.accepts_labels(row.labels) and self.wanted.accepts(row, self.now_ms)

    @property
    def behind_running(self) -> _Place | None:
        """Returns the place behind all unfinished requests; None if the list ends there."""
        return _Place(_ENDED) if self.wanted.wants_any(ENDED) else None


async def list_requests(
    queue: str, wanted: RequestFilter, limit: int = 100, after: str | None = None, sort: str = ""
) -> RequestPage:
    """Returns at most `limit` (1 to 1,000) requests behind the cursor `after` (None = the first).

    Raises InvalidArgument for a limit, an order or a cursor that is not valid.
    """
    check_page(limit)
    order = Order.of(sort)
    place: _Place | None = _read_place(after, queue, sort) if after else None
    active, logged, time = await Batch(
        [
            Command(b"ZCARD", keys.active(queue)),
            Command(b"XLEN", keys.completed(queue)),
            Command(b"TIME"),
        ]
    )
    is_small = active <= waiting_tokens.MOST_READ
    search = _Search(queue, wanted, order, time_ms(time), is_small)
    if place is None:
        running = _URGENT if is_small or not sort else _WALK
        place = _Place(running if wanted.wants_any(RUNNING) else _ENDED)
    found: list[RequestCounts] = []
    left = waiting_tokens.MOST_READ
    while place is not None and left > 0 and len(found) < limit:
        part = await _SECTIONS[place.section](search, place, limit - len(found))
        found += part.found
        place, left = part.next, left - part.read
    is_sorted = (is_small or not wanted.wants_any(RUNNING)) and (
        not sort or logged <= _PART or not wanted.wants_any(ENDED)
    )
    rows = _without_earlier(found)
    rest = _write_place(place, queue, sort) if place else None
    return RequestPage(rows, rest, search.now_ms, is_sorted)


def _without_earlier(found: list[RequestCounts]) -> list[RequestCounts]:
    """Leaves out the running row of a request that ended while the page was read."""
    over = {_opening(one) for one in found if one.log_id}
    return [one for one in found if one.log_id or _opening(one) not in over]


def _opening(one: RequestCounts) -> tuple[str, int, int]:
    """Returns what distinguishes an opening of a request from all others: each ends once."""
    return one.id, one.submitted_ms, one.reopened


def check_page(limit: object) -> None:
    """Raises InvalidArgument unless `limit` is a number of rows that one page may have."""
    is_number = isinstance(limit, int) and not isinstance(limit, bool)
    if not is_number or not 1 <= limit <= MOST_LISTED:  # type: ignore[operator]
        raise InvalidArgument(
            f"limit {limit!r} is not valid: a whole number from 1 to {MOST_LISTED:,} is expected"
        )


# ------------------------------------------------------------------ sections


async def _urgent(search: _Search, place: _Place, room: int) -> _Part:
    """Lists the most urgent requests. In a small queue these are all unfinished ones."""
    most = waiting_tokens.MOST_READ if search.is_small else waiting_tokens.MOST_READ // 2
    spread = await read_shards(search.queue)
    tokens = await waiting_tokens.read_waiting(search.queue, spread.served, most)
    names = await Command(b"ZRANGE", keys.active(search.queue), 0, most - 1)
    rows = await most_urgent(search.queue, tokens, names)
    behind = search.behind_running if search.is_small else _Place(_WALK)
    return await _chosen(search, rows, place, room, behind)


async def _walk(search: _Search, place: _Place, room: int) -> _Part:
    """Lists the requests of one part of `active`."""
    cursor, flat = await Command(b"ZSCAN", keys.active(search.queue), place.scan, b"COUNT", _PART)
    ids = [name.decode("utf-8", "replace") for name in flat[::2]]
    rows = await unfinished(search.queue, ids, frozenset(ids))
    scan = cursor.decode()
    behind = search.behind_running if scan == "0" else _Place(_WALK, scan)
    return await _chosen(search, rows, place, room, behind)


async def _chosen(
    search: _Search, rows: list[Unfinished], place: _Place, room: int, behind: _Place | None
) -> _Part:
    """Returns the part with those of `rows` that are wanted; if all fit, `behind` is next."""
    key = search.order.key
    listed = [row for row in rows if key(row) > place.behind and search.accepts(row)]
    listed.sort(key=key)
    if len(listed) > room:
        listed = listed[:room]
        behind = place._replace(behind=key(listed[-1]))
    return _Part([*await read_counts(listed)], behind, max(1, len(rows)))


async def _ended(search: _Search, place: _Place, room: int) -> _Part:
    """Lists the requests of one part of the completion log, newest first or by `sort`."""
    entries = await _log_part(search, place)
    ended = [completion(search.queue, *entry) for entry in entries]
    end = None if len(entries) < _PART else _Place(_ENDED, log_id=ended[-1].log_id)
    rows, key = ended, search.order.key
    if search.order.sort:
        rows = sorted((one for one in ended if key(one) > place.behind), key=key)
    accepted = [one for one in rows if search.wanted.accepts(one, search.now_ms)]
    earlier = await earlier_endings(search.queue, accepted)
    labels = await _labels(accepted) if search.wanted.reads_labels else None
    found: list[Completion] = []
    for at, one in enumerate(rows):
        if len(found) == room:
            # The next page begins behind the last row that was examined.
            last = rows[at - 1]
            end = _Place(_ENDED, log_id=last.log_id)
            if search.order.sort:
                end = _Place(_ENDED, behind=key(last), log_id=ended[0].log_id)
            break
        is_accepted = one.log_id not in earlier and search.wanted.accepts(one, search.now_ms)
        if is_accepted and (
            labels is None or search.wanted.accepts_labels(labels.get(one.log_id, Labels()))
        ):
            found.append(one)
    if labels is None:
        labels = await _labels(found)
    listed = [_row(one, labels.get(one.log_id, Labels())) for one in found]
    return _Part([*await with_calls(listed)], end, max(1, len(entries)))


async def earlier_endings(queue: str, ended: list[Completion]) -> set[str]:
    """Returns the log ids of endings after which the request was opened again.

    Its present row, or its next ending, stands for it. Only a request with dead is ever reopened.
    """
    asked = [one for one in ended if one.dead]
    rows = await run_all([hmget(one.id, *_OPENING) for one in asked])
    found, gone = set[str](), list[Completion]()
    for one, row in zip(asked, rows, strict=True):
        born, reopened = parse_fields(_OPENING, row)
        if born != str(one.submitted_ms):
            gone.append(one)
        elif int(reopened or 0) > one.reopened:
            found.add(one.log_id)
    names = [f"{one.id}|{ending_name(one.submitted_ms, one.reopened + 1)}" for one in gone]
    markers = await run_all([Command(b"ZSCORE", keys.logged(queue), name) for name in names])
    return found | {one.log_id for one, marker in zip(gone, markers, strict=True) if marker}


def _log_part(search: _Search, place: _Place) -> Command:
    newer_ms = search.wanted.newer_ms
    # No request is logged before it is submitted.
    oldest = "-" if newer_ms is None else str(max(0, search.now_ms - newer_ms - _CLOCKS_MS))
    newest = "+"
    if place.log_id:
        newest = place.log_id if place.behind != _BEFORE_ALL else f"({place.log_id}"
    return Command(b"XREVRANGE", keys.completed(search.queue), newest, oldest, b"COUNT", _PART)


async def _labels(ended: list[Completion]) -> dict[str, Labels]:
    """Returns log_id -> labels, for the ended requests that are still kept."""
    replies = await run_all([hmget(one.id, *_LABELS) for one in ended])
    found = {}
    for one, reply in zip(ended, replies, strict=True):
        born, *texts = parse_fields(_LABELS, reply)
        if born == str(one.submitted_ms):  # else a later request has this id
            found[one.log_id] = Labels(*texts)
    return found


def _row(one: Completion, labels: Labels) -> Completion:
    """Returns the row of an ended request with its labels."""
    tags = split_names(labels.tags)
    tasks = read_tasks(labels.task, one.total)
    redact = split_names(labels.redact)
    return replace(one, tags=tags, tenant=labels.tenant or None, tasks=tasks, redact=redact)


_SECTIONS = {_URGENT: _urgent, _WALK: _walk, _ENDED: _ended}


# ------------------------------------------------------------------ cursors


def _write_place(place: _Place, queue: str, sort: str) -> str:
    return write_cursor(f"queue {queue}", sort, *place)


def _read_place(cursor: str, queue: str, sort: str) -> _Place:
    """Raises InvalidArgument."""
    match read_cursor(cursor, f"queue {queue}"):
        case [
            str(sorted_by),
            str(section),
            str(scan),
            [int(first), int(priority), int(born), str(name)],
            str(log_id),
        ] if (
            section in _SECTIONS and is_number(scan) and (not log_id or has_entries_before(log_id))
        ):
            if sorted_by != sort:
                raise InvalidArgument(
                    f"the cursor is of a list with sort={sorted_by!r}, not {sort!r}: begin anew"
                )
            return _Place(section, scan, (first, priority, born, name), log_id)
    raise invalid_cursor(cursor)


# ------------------------------------------------------------------ urgent
# Sorts unfinished requests: by urgency for `status`, by urgency or `sort` for `list`.


SORTS = ("priority", "submitted", "waiting", "state")
_FIELDS = (
    *("state", "queue", "priority", "born", "fresh", "done", "dead", "reopened"),
    *Labels._fields,
)

OrderKey = tuple[int, int, int, str]  # the value of `sort`, the priority, submitted_ms, the id


class Unfinished(NamedTuple):
    """An unfinished request. Its first fields sort such tuples by urgency."""

    priority: int
    submitted_ms: int
    id: str
    state: str
    labels: Labels = Labels()
    waiting: int = 0
    outcome: str | None = None  # of a request that has ended, and still is in `active`


class Order(NamedTuple):
    """The order of a list: one of SORTS, with - in front if descending; "" = by urgency.

    Equal requests are sorted by priority, then by age.
    """

    sort: str = ""

    @classmethod
    def of(cls, sort: object) -> Order:
        """Returns the order of this name. Raises InvalidArgument."""
        known = ["", *SORTS, *(f"-{one}" for one in SORTS)]
        if sort not in known:
            near = get_close_matches(str(sort), known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"write {', '.join(SORTS)}"
            raise InvalidArgument(f"sort {sort!r} is not valid: {hint}")
        return cls(str(sort))

    def key(self, one: Unfinished | Completion) -> OrderKey:
        """Returns the sort key of a request."""
        name = self.sort.removeprefix("-")
        first = 0
        if name == "state":
            word = one.outcome or one.state
            first = STATE_ORDER.index(word) if word in STATE_ORDER else len(STATE_ORDER)
        elif name == "waiting":
            first = one.waiting if isinstance(one, Unfinished) else 0
        elif name:
            first = one.priority if name == "priority" else one.submitted_ms
        sign = -1 if self.sort.startswith("-") else 1
        return (sign * first, one.priority, one.submitted_ms, one.id)


async def most_urgent(queue: str, waiting: Waiting, names: Iterable[bytes]) -> list[Unfinished]:
    """Returns the unfinished requests among these tokens and entries of `active`.

    The most urgent comes first. Each request costs one HMGET, 100 in a round trip.
    """
    listed = [name.decode("utf-8", "replace") for name in names]
    ids = list(dict.fromkeys([*waiting.request_ids(), *listed]))
    return await unfinished(queue, ids, frozenset(listed))


async def unfinished(queue: str, ids: Sequence[str], unretired: frozenset[str]) -> list[Unfinished]:
    """Returns the requests of this queue among `ids`, the most urgent first.

    Ended requests are left out, unless they are `unretired`, that is still in `active`.
    """
    found = []
    replies = await run_all([hmget(name, *_FIELDS) for name in ids])
    for name, reply in zip(ids, replies, strict=True):
        state, home, priority, born, fresh, *ended = parse_fields(_FIELDS, reply)
        is_over = state in ENDED_STATES and name not in unretired
        if home == queue and state != "abandoned" and not is_over:
            done, dead, reopened, *texts = ended
            outcome = outcome_of(state, int(done or 0), int(dead or 0), int(reopened or 0))
            more = (state, Labels(*texts), int(fresh or 0), outcome)
            found.append(Unfinished(int(priority or 0), int(born or 0), name, *more))
    return sorted(found)


async def read_counts(rows: Iterable[Unfinished]) -> list[RequestCounts]:
    """Returns the counts of these requests in their order, without those that are gone."""
    ids = [row.id for row in rows]
    hashes = await run_all([Command(b"HGETALL", keys.request_hash(name)) for name in ids])
    counts = (counts_of(name, reply, 0) for name, reply in zip(ids, hashes, strict=True))
    found = [one for one in counts if one is not None]
    # If all that is left waits for its first delivery, the request has no lease.
    busy = [one.id for one in found if one.state != "active" or one.left > one.waiting]
    replies = await run_all([Command(b"ZCARD", keys.leases(name)) for name in busy])
    held = dict(zip(busy, replies, strict=True))
    return await with_calls(
        [replace(one, held=held[one.id]) if held.get(one.id) else one for one in found]
    )


# ------------------------------------------------------------------ workers
# Lists the workers of a queue: where and since when each runs, its last beat, what it holds.
#
# A page costs one HMGET a worker, 100 in a round trip.


_WORKER_FIELDS = (b"host", b"pid", b"started", b"holds")


async def list_workers(queue: str, limit: int = 1000) -> WorkerPage:
    """Returns the workers with the newest beats, at most `limit` (1 to 1,000).

    A worker that unregistered is not among them. Raises InvalidArgument.
    """
    check_page(limit)
    key = keys.workers(queue)
    newest = Command(b"ZRANGE", key, 0, limit - 1, b"REV", b"WITHSCORES")
    beats, count, time = await Batch([newest, Command(b"ZCARD", key), Command(b"TIME")])
    names = [name.decode("utf-8", "replace") for name in beats[::2]]
    records = await run_all(
        [Command(b"HMGET", keys.worker(queue, name), *_WORKER_FIELDS) for name in names]
    )
    now_ms = time_ms(time)
    found = [
        _state(name, int(float(beat)), record, now_ms)
        for name, beat, record in zip(names, beats[1::2], records, strict=True)
    ]
    found.sort(key=lambda one: (not one.is_alive, one.id))
    return WorkerPage(found, max(0, count - len(found)))


def _state(name: str, beat_ms: int, record: list[bytes | None], now_ms: int) -> WorkerState:
    host, pid, started, holds = ((value or b"").decode("utf-8", "replace") for value in record)
    age_ms = max(0, now_ms - beat_ms)
    found = read_holds(holds)
    return WorkerState(
        id=name,
        # the host's name, then a unique part: see worker/health_port.py
        host=host.partition(" ")[0] or None,
        pid=_number(pid) or None,
        started_ms=_number(started) or None,
        beat_ms=beat_ms,
        beat_age_ms=age_ms,
        is_alive=not is_late(age_ms),
        leases=found.leases,
        calls=tuple(found.calls),
        units=found.pace.units or None,
        per_s=found.pace.per_s or None,
        version=found.version or None,
        release=found.release or None,
        slow=tuple(found.slow),
        awaits=tuple(found.awaits),
    )


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else 0
