"""Hands what a step has finished over to the next one, while both run.

The next step is an open request. Its cursor, the last entry of the earlier step that it has, is in
its own hash, and the script that adds the bodies moves it by compare-and-set. So a hand-over may be
cut off at any step, and two leaders may do it concurrently. When the earlier step has ended and all
of it is handed over, the next one is sealed: then it ends like any other request.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from fairlane import settings
from fairlane.errors import FairlaneError, RequestNotFound
from fairlane.model import ENDED_STATES
from fairlane.operations.batching import run_all
from fairlane.operations.control import change
from fairlane.operations.control.completion import PAGE, parse_results
from fairlane.operations.control.dead_letters import read_dead
from fairlane.operations.flows.feed import DEAD, Feed, Place, request_of, run_of
from fairlane.operations.lease.follow_up import follow_up
from fairlane.operations.maintenance.registry import look_after
from fairlane.protocol import keys
from fairlane.protocol.request_hash import hmget, parse_fields, read
from fairlane.protocol.scripts import library
from fairlane.protocol.steps import Batch, Command

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fairlane.protocol.replies import Reply
    from fairlane.protocol.steps import Call, Operation

_PAGES = 20  # of one hand-over; then other steps come first
_FIELDS = ("state", "open", "queue", "feed", "flow", "handed", "chunks", "chain")
_NONE = "0-0"
_GONE = frozenset({"", "abandoned"})


class HandedOver(NamedTuple):
    """What one hand-over did. `is_over`: the request will get nothing more."""

    bodies: int = 0
    is_over: bool = False


class _Page(NamedTuple):
    entries: list[tuple[str, list[bytes]]]
    is_last: bool
    has_dead: bool = False


def hand_over(request_id: str) -> Operation[HandedOver]:
    """Adds to a step's request what the earlier step has finished since; seals it after the last.

    If the earlier step was cancelled, or has dead sub-requests and stops the flow, the steps of the
    flow are cancelled. If the earlier step is not there (its producer died before it, or its
    retention is over) nothing happens, and the request is given up like any one that is left open.
    """
    state, is_open, queue, text, place, handed, chunks, chain = yield from read(
        request_id, *_FIELDS
    )
    feed = Feed.parse(text)
    if feed is None or is_open != "1" or state in {*_GONE, *ENDED_STATES, "cancelling"}:
        return HandedOver(is_over=True)
    (source_state,) = yield from read(feed.source, "state")
    if source_state in _GONE:
        return HandedOver()
    hand = _Hand(request_id, queue, feed, handed or _NONE, int(chunks))
    try:
        yield from hand.read_on(source_state, chain)
        if not hand.count and not hand.is_over:
            yield from hand.keep_open()
    except _Stop as stop:
        yield from _stop(request_id, place, str(stop))
        return HandedOver(hand.count, is_over=True)
    except RequestNotFound:  # the source is gone meanwhile
        return HandedOver(hand.count)
    return HandedOver(hand.count, hand.is_over)


def look_after_and_feed(queue: str) -> Operation[None]:
    """Does one `look_after`, and hands over to each step that it finds.

    The error of a step is raised after the others had their turn.
    """
    fed: list[str] = []
    yield from look_after(queue, fed=fed)
    failure: FairlaneError | None = None
    for request_id in fed:
        try:
            yield from hand_over(request_id)
        except FairlaneError as error:
            failure = failure or error
    if failure is not None:
        raise failure


def cancel_flow(run: str, count: int, reason: str) -> Operation[None]:
    """Cancels the steps of a flow, but no compensating one: that ends after what it undoes."""
    ids = [request_of(run, number) for number in range(1, count + 1)]
    rows = yield from run_all([hmget(one, "feed") for one in ids])
    for one, row in zip(ids, rows, strict=True):
        feed = Feed.parse(parse_fields(["feed"], row)[0])
        if feed is None or feed.kind != DEAD:
            with suppress(RequestNotFound):
                yield from change.cancel(one, reason)


class _Stop(Exception):
    """The flow is to be cancelled; the text says why."""


class _Hand:
    """The open end of one step's request."""

    def __init__(self, request_id: str, queue: str, feed: Feed, cursor: str, chunks: int) -> None:
        self.id, self.queue, self.feed = request_id, queue, feed
        self.cursor, self.chunks = cursor, chunks
        self.count, self.is_over = 0, False

    def read_on(self, source_state: str, chain: str) -> Operation[None]:
        """Adds what the source has since; seals the request if nothing will follow.

        Dead sub-requests may be requeued until the source's end, so they are read after it. Raises
        _Stop, and RequestNotFound if the source is gone.
        """
        if self.feed.kind == DEAD and source_state not in ENDED_STATES:
            return
        if self.feed.kind != DEAD and source_state == "cancelled":
            raise _Stop(f"flow: request {self.feed.source} was cancelled")
        for _ in range(_PAGES):
            page = yield from _read(self.feed, source_state, self.cursor)
            if page.has_dead and self.feed.stops:
                raise _Stop(f"flow: request {self.feed.source} has dead sub-requests")
            for last, bodies in _parts(page.entries):
                if not (yield from self._call(last, bodies)):
                    return
                self.count += len(bodies)
            if page.is_last:
                names = keys.request_keys(self.id)
                seal = library().seal(names, chunks=self.chunks, chain=chain)
                yield from _run(self.queue, self.id, seal)
                self.is_over = True
                return

    def keep_open(self) -> Operation[None]:
        """Postpones the time at which the request counts as left open by its producer."""
        yield from self._call(self.cursor, [])

    def _call(self, last: str, bodies: list[bytes]) -> Operation[bool]:
        call = library().hand_over(
            keys.request_keys(self.id),
            since=self.cursor,
            upto=last,
            open_ms=settings.OPEN_MS,
            bodies=bodies,
        )
        reply = yield from _run(self.queue, self.id, call)
        # A call that was repeated after a lost reply finds its own cursor.
        if reply.is_ok or (reply.is_moved and reply.cursor.decode() == last):
            self.cursor, self.chunks = last, reply.chunks
            return True
        self.is_over = not reply.is_moved  # else another leader hands over
        return False


def _read(feed: Feed, source_state: str, cursor: str) -> Operation[_Page]:
    """Returns what the source has after the cursor; its state was read before.

    So one that has ended has written all its results. Raises RequestNotFound.
    """
    if feed.kind == DEAD:
        dead = yield from read_dead(feed.source, "" if cursor == _NONE else cursor)
        return _Page([(one.dead_id, [one.body]) for one in dead], not dead)
    out = keys.results(feed.source)
    rows = yield Command(b"XRANGE", out, f"({cursor}", b"+", b"COUNT", PAGE)
    entries, has_dead = [], False
    for entry_id, fields in rows:
        found = parse_results(fields)
        has_dead = has_dead or any(one.status == "dead" for one in found)
        bodies = [feed.wrap.body(one.body) for one in found if one.status == "done"]
        entries.append((entry_id.decode(), bodies))
    return _Page(entries, source_state in ENDED_STATES and len(rows) < PAGE, has_dead)


def _parts(entries: list[tuple[str, list[bytes]]]) -> Iterator[tuple[str, list[bytes]]]:
    """Yields whole entries together, as many as one call takes."""
    part: list[bytes] = []
    size, last = 0, ""
    for entry_id, bodies in entries:
        more = sum(map(len, bodies))
        is_full = len(part) + len(bodies) > settings.CHUNK_ENTRIES
        if part and (is_full or size + more > settings.CHUNK_BYTES):
            yield last, part
            part, size = [], 0
        part, size, last = part + bodies, size + more, entry_id
    if last:
        yield last, part


def _stop(request_id: str, place: str, reason: str) -> Operation[None]:
    found = Place.parse(place)
    if found is None:
        yield from change.cancel(request_id, reason)
    else:
        yield from cancel_flow(run_of(request_id), found.steps, reason)


def _run(queue: str, request_id: str, call: Call) -> Operation[Reply]:
    reply = yield from call.run()
    if calls := follow_up(queue, (request_id, reply)):
        yield Batch(calls)
    return reply
