"""The requests of a queue in bounded pages: first unfinished ones, then ended ones.

The most urgent of the unfinished ones comes first. The ended ones come from the completion log, the
newest first. A page reads at most MOST_READ tokens and MOST_READ entries of `active` and of the
log; each unfinished request among them costs one HMGET, 100 in a round trip. So a page may be
empty, and yet another one may follow.

In a queue with more than MOST_READ unfinished requests, the first part has the most urgent ones.
The next parts walk over all unfinished requests, also those of the first, and each part is sorted
on its own. Any other order also sorts within one part, which may be a whole section.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from fairlane.errors import InvalidArgument
from fairlane.found import ENDED, RUNNING, RequestPage
from fairlane.model import Completion
from fairlane.operations.batching import run_all
from fairlane.operations.control.completion_log import has_entries_before
from fairlane.operations.control.request_state import completion
from fairlane.operations.find import waiting
from fairlane.operations.find.cursor import invalid_cursor, is_number, read_cursor, write_cursor
from fairlane.operations.find.urgent import Order, most_urgent, read_progress, unfinished
from fairlane.operations.lease.shards import read_shards
from fairlane.protocol import keys
from fairlane.protocol.request_hash import hmget, parse_fields
from fairlane.protocol.server_info import time_ms
from fairlane.protocol.steps import Batch, Command

if TYPE_CHECKING:
    from fairlane.model import Progress
    from fairlane.operations.find.filters import RequestFilter
    from fairlane.operations.find.urgent import OrderKey, Unfinished
    from fairlane.protocol.steps import Operation

MOST_LISTED = 1_000  # requests of one page
_PART = 1_000  # entries of `active`, or of the log, that one call reads
_CLOCKS_MS = 60_000  # how far the clocks of two nodes of a cluster may be apart
_URGENT, _WALK, _ENDED = "urgent", "walk", "ended"
_LABELS = ("born", "tags", "tenant")
_BEFORE_ALL = (-(1 << 62), 0, 0, "")  # sorted before each request


class _Place(NamedTuple):
    """A section of the list, the ZSCAN cursor in `active`, and what was listed last.

    `log_id` is the entry behind which the list goes on. In the middle of a sorted part of the log
    it is the first entry of that part.
    """

    section: str
    scan: str = "0"
    behind: OrderKey = _BEFORE_ALL
    log_id: str = ""


class _Part(NamedTuple):
    """What one part of the list gave, where the next one begins, and how much it cost."""

    found: list[Progress | Completion]
    next: _Place | None
    read: int


class _Search(NamedTuple):
    """What is searched, and when."""

    queue: str
    wanted: RequestFilter
    order: Order
    now_ms: int
    is_small: bool  # one part has all unfinished requests

    def accepts(self, row: Unfinished) -> bool:
        """Returns True if this unfinished request is listed."""
        return self.wanted.accepts_labels(row.tags, row.tenant) and self.wanted.accepts(
            row.id, row.state, row.priority, row.submitted_ms, self.now_ms
        )

    def accepts_ended(self, one: Completion) -> bool:
        """Returns True if this ended request is listed, whatever its tags and tenant are."""
        return self.wanted.accepts(one.id, one.state, one.priority, one.submitted_ms, self.now_ms)

    @property
    def behind_running(self) -> _Place | None:
        """Returns where the list goes on behind the last unfinished request."""
        return _Place(_ENDED) if self.wanted.wants_any(ENDED) else None


def list_requests(
    queue: str, wanted: RequestFilter, limit: int = 100, after: str = "", sort: str = ""
) -> Operation[RequestPage]:
    """Returns the page behind `after` ("" = the first), at most `limit` (1 to 1,000) requests.

    Raises InvalidArgument for a limit, an order or a cursor that is not valid.
    """
    check_page(limit)
    order = Order.of(sort)
    place: _Place | None = _read_place(after, queue, sort) if after else None
    active, logged, time = yield Batch(
        [
            Command(b"ZCARD", keys.active(queue)),
            Command(b"XLEN", keys.completed(queue)),
            Command(b"TIME"),
        ]
    )
    is_small = active <= waiting.MOST_READ
    search = _Search(queue, wanted, order, time_ms(time), is_small)
    if place is None:
        running = _URGENT if is_small or not sort else _WALK
        place = _Place(running if wanted.wants_any(RUNNING) else _ENDED)
    found: list[Progress | Completion] = []
    left = waiting.MOST_READ
    while place is not None and left > 0 and len(found) < limit:
        part = yield from _SECTIONS[place.section](search, place, limit - len(found))
        found += part.found
        place, left = part.next, left - part.read
    is_sorted = (is_small or not wanted.wants_any(RUNNING)) and (
        not sort or logged <= _PART or not wanted.wants_any(ENDED)
    )
    rows = _without_earlier(found)
    rest = _write_place(place, queue, sort) if place else ""
    return RequestPage(rows, rest, search.now_ms, is_sorted)


def _without_earlier(found: list[Progress | Completion]) -> list[Progress | Completion]:
    """Leaves out the running row of a request that ended while the page was read."""
    over = {(one.id, one.submitted_ms) for one in found if isinstance(one, Completion)}
    return [
        one
        for one in found
        if isinstance(one, Completion) or (one.id, one.submitted_ms) not in over
    ]


def check_page(limit: object) -> None:
    """Raises InvalidArgument unless `limit` is a number of rows that one page may have."""
    is_number = isinstance(limit, int) and not isinstance(limit, bool)
    if not is_number or not 1 <= limit <= MOST_LISTED:  # type: ignore[operator]
        raise InvalidArgument(
            f"limit {limit!r} is not valid: a whole number from 1 to {MOST_LISTED:,} is expected"
        )


# ------------------------------------------------------------------ sections


def _urgent(search: _Search, place: _Place, room: int) -> Operation[_Part]:
    """Lists the most urgent requests; all unfinished ones, unless there are very many."""
    most = waiting.MOST_READ if search.is_small else waiting.MOST_READ // 2
    spread = yield from read_shards(search.queue)
    tokens = yield from waiting.read_waiting(search.queue, spread.served, most)
    names = yield Command(b"ZRANGE", keys.active(search.queue), 0, most - 1)
    rows = yield from most_urgent(search.queue, tokens, names)
    behind = search.behind_running if search.is_small else _Place(_WALK)
    return (yield from _chosen(search, rows, place, room, behind))


def _walk(search: _Search, place: _Place, room: int) -> Operation[_Part]:
    """Lists the requests of one part of `active`."""
    cursor, flat = yield Command(b"ZSCAN", keys.active(search.queue), place.scan, b"COUNT", _PART)
    ids = [name.decode("utf-8", "replace") for name in flat[::2]]
    rows = yield from unfinished(search.queue, ids, frozenset(ids))
    scan = cursor.decode()
    behind = search.behind_running if scan == "0" else _Place(_WALK, scan)
    return (yield from _chosen(search, rows, place, room, behind))


def _chosen(
    search: _Search, rows: list[Unfinished], place: _Place, room: int, behind: _Place | None
) -> Operation[_Part]:
    """Returns the listed ones of `rows`; `behind` is where the list goes on when all are listed."""
    key = search.order.key
    listed = [row for row in rows if key(row) > place.behind and search.accepts(row)]
    listed.sort(key=key)
    if len(listed) > room:
        listed = listed[:room]
        behind = place._replace(behind=key(listed[-1]))
    return _Part([*(yield from read_progress(listed))], behind, max(1, len(rows)))


def _ended(search: _Search, place: _Place, room: int) -> Operation[_Part]:
    """Lists the requests of one part of the completion log, the newest first or in the order."""
    entries = yield _log_part(search, place)
    ended = [completion(*entry) for entry in entries]
    end = None if len(entries) < _PART else _Place(_ENDED, log_id=ended[-1].log_id)
    rows, key = ended, search.order.key
    if search.order.sort:
        rows = sorted((one for one in ended if key(one) > place.behind), key=key)
    labels = None
    if search.wanted.reads_labels:
        labels = yield from _labels([one for one in rows if search.accepts_ended(one)])
    found: list[Completion] = []
    for at, one in enumerate(rows):
        if len(found) == room:
            # The next one is for the next page, which begins behind the last one that was examined.
            last = rows[at - 1]
            end = _Place(_ENDED, log_id=last.log_id)
            if search.order.sort:
                end = _Place(_ENDED, behind=key(last), log_id=ended[0].log_id)
            break
        if search.accepts_ended(one) and (
            labels is None or search.wanted.accepts_labels(*labels.get(one.log_id, ("", "")))
        ):
            found.append(one)
    if labels is None:
        labels = yield from _labels(found)
    listed: list[Progress | Completion] = [_with(one, *labels.get(one.log_id, ())) for one in found]
    return _Part(listed, end, max(1, len(entries)))


def _log_part(search: _Search, place: _Place) -> Command:
    newer_ms = search.wanted.newer_ms
    # No request is logged before it is submitted.
    oldest = "-" if newer_ms is None else str(max(0, search.now_ms - newer_ms - _CLOCKS_MS))
    newest = "+"
    if place.log_id:
        newest = place.log_id if place.behind != _BEFORE_ALL else f"({place.log_id}"
    return Command(b"XREVRANGE", keys.completed(search.queue), newest, oldest, b"COUNT", _PART)


def _labels(ended: list[Completion]) -> Operation[dict[str, tuple[str, str]]]:
    """Returns the tags and the tenant of those endings whose requests are still kept."""
    replies = yield from run_all([hmget(one.id, *_LABELS) for one in ended])
    found = {}
    for one, reply in zip(ended, replies, strict=True):
        born, tags, tenant = parse_fields(_LABELS, reply)
        if born == str(one.submitted_ms):  # else another life has the id
            found[one.log_id] = tags, tenant
    return found


def _with(one: Completion, tags: str = "", tenant: str = "") -> Completion:
    return replace(one, tags=tuple(filter(None, tags.split(","))), tenant=tenant)


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
