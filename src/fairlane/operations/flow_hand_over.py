"""Hands the results of a flow's earlier steps over to the next step, while all of them run.

The next step is an open request. Its hash has a cursor: the last entry that it got from each
earlier step, its sources. The script that adds bodies also moves the cursor, by compare-and-set. So
a hand-over may be interrupted anywhere, and two leaders may do it concurrently. When the sources
have ended and all is handed over, the next step is sealed. Then it ends like any other request.

A failover of a source may take back results that were handed over. Their sub-requests run again,
and the new results may be before the cursor or after it. So the next step keeps a bit for each
index that it got. If results are missing at the end, all are read again from the beginning.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import zip_longest
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from fairlane import settings
from fairlane.errors import FairlaneError, InvalidArgument, RequestLost, RequestNotFound
from fairlane.model import ENDED_STATES
from fairlane.operations import change
from fairlane.operations.completion import PAGE, parse_results
from fairlane.operations.dead_letters import count_dead, list_dead, read_dead
from fairlane.operations.flow_branches import (
    FAN,
    NEXT,
    Choice,
    Choices,
    StepPlace,
    as_json,
    unpacked,
)
from fairlane.operations.flow_sources import keep_ended, keep_origins
from fairlane.operations.tokens import follow_up
from fairlane.operations.workers import look_after
from fairlane.protocol import keys, scripts
from fairlane.protocol.request_hash import hmget, parse_fields, read
from fairlane.protocol.server_info import time_ms
from fairlane.protocol.steps import Batch, Command, run_all

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fairlane.protocol.lua import Reply
    from fairlane.protocol.steps import Call
    from fairlane.records import Result

AnyReply = TypeVar("AnyReply", bound="Reply")


# What is handed over. done: each result. dead: the bodies of dead sub-requests. join, array: one
# result of each source, put together as it is or as a value of a JSON array. gather: several
# results of one source, put together. merge: each result of several sources.
DONE, DEAD, JOIN, ARRAY, GATHER, MERGE = "done", "dead", "join", "array", "gather", "merge"
# branch: the results that name this step. chosen: the children that results chose for this step.
# collect, list: the results of the children of one result, put together as they are or as a JSON
# array. The first source of these two is the parent, whose results chose the children.
BRANCH, CHOSEN, COLLECT, LIST = "branch", "chosen", "collect", "list"
# ------------------------------------------------------------------ feed
# Two fields in the hash of a step's request: its place in the flow, and what it is fed with.


JOINING = frozenset({JOIN, ARRAY, GATHER})
CHOOSING, COLLECTING = frozenset({BRANCH, CHOSEN}), frozenset({COLLECT, LIST})
_KINDS = frozenset({DONE, DEAD, MERGE, *JOINING, *CHOOSING, *COLLECTING})
_WRAP_PARTS = 4
GETS = {  # kind -> `gets` of records.StepProgress
    **dict.fromkeys((DONE, GATHER), "results"),
    **dict.fromkeys((JOIN, ARRAY, COLLECT, LIST), "join"),
    **{one: one for one in (DEAD, BRANCH, CHOSEN, MERGE)},
}
_NOTHING = "-"
# What becomes of a flow if a step has dead sub-requests, or the name of a compensating step.
STOP, CONTINUE, HOLD = "stop", "continue", "hold"


class Wrap(NamedTuple):
    """What is written around each result to make a body of the next step.

    `none` stands for the result None and, where results are joined, for a dead one. `between`
    separates joined results.
    """

    before: bytes
    after: bytes
    none: bytes
    between: bytes = b""

    def body(self, result: bytes | None) -> bytes:
        """Returns the body of the next step for this result."""
        return self.before + (self.none if result is None else result) + self.after


PLAIN = Wrap(b"", b"", b"")  # a result is the next body unchanged; None is an empty body
JSON_ARRAY = Wrap(b"[", b"]", b"null", b",")


class Feed(NamedTuple):
    """What an open request is fed with: the results, or the dead, of its sources.

    `on_dead`: for each source, what its dead sub-requests do: STOP cancels the flow, and HOLD keeps
    this request open while there are any. `bound`: the request that
    joins this step with its siblings; this step must not be far ahead of it. `width`: how many
    results make one body, or how many a result may choose. `choices`: what a result may choose.
    """

    kind: str
    sources: tuple[str, ...]
    on_dead: tuple[str, ...]
    wrap: Wrap = PLAIN
    bound: str = ""
    width: int = 1
    choices: Choices = Choices()

    @property
    def text(self) -> str:
        """Returns the field `feed` of the request's hash."""
        sources, on_dead = ",".join(self.sources), ",".join(self.on_dead)
        words = [self.kind, sources, on_dead, self.bound or _NOTHING, str(self.width)]
        if self.wrap != PLAIN or self.choices.steps:
            parts = [part.hex() for part in self.wrap]
            words.append(".".join([*parts, self.choices.text] if self.choices.steps else parts))
        return " ".join(words)

    @property
    def shown_sources(self) -> tuple[str, ...]:
        """Returns the sources whose results become the step's bodies, or parts of bodies."""
        return self.sources[1:] if self.kind in COLLECTING else self.sources

    def bit(self, index: int, place: int) -> int:
        """Returns the bit of `fed:{id}` that is set once a source's result is handled here."""
        if self.kind == MERGE:
            return index * self.width + place
        return index * (self.width + 1) if self.kind in CHOOSING else index

    @classmethod
    def parse(cls, text: str) -> Feed | None:
        """Returns the feed in a field `feed`; None if the request is not fed.

        Raises InvalidArgument if the field is damaged.
        """
        if not text:
            return None
        try:
            kind, sources, on_dead, bound, width, *wrap = text.split(" ")
            hexes = wrap[0].split(".") if wrap else []
            parts = Wrap(*map(bytes.fromhex, hexes[:_WRAP_PARTS])) if wrap else PLAIN
            names, each = tuple(sources.split(",")), tuple(on_dead.split(","))
            count = int(width)
            most = count if kind == CHOSEN else 0
            chosen = [Choices.parse(text, most) for text in hexes[_WRAP_PARTS:]]
        except (TypeError, ValueError):
            kind, names, each, chosen = "", (), (), []
        if kind not in _KINDS or len(names) != len(each):
            raise InvalidArgument(f"feed {text!r} of a step is damaged: cancel its request")
        return cls(
            kind,
            names,
            each,
            parts,
            "" if bound == _NOTHING else bound,
            count,
            *chosen[:1],
        )


async def read_choices(request_id: str) -> tuple[StepPlace, Choices] | None:
    """Returns a step's place, and what its results may choose; None if the request is no step.

    The feeds of later steps have the choices. Raises RequestLost if a step of the flow is gone.
    """
    (text,) = await read(request_id, "flow")
    place = StepPlace.parse(text)
    if place is None:
        return None
    ids = [request_of(run_of(request_id), number) for number in range(1, place.steps + 1)]
    rows = await run_all([hmget(one, "state", "feed") for one in ids])
    gone = ""
    for one, row in zip(ids, rows, strict=True):
        state, text = parse_fields(["state", "feed"], row)
        feed = Feed.parse(text)
        if feed is not None and feed.kind in CHOOSING and request_id in feed.sources:
            return place, feed.choices
        gone = gone or ("" if state else one)
    if gone:
        raise RequestLost(f"request {gone} is gone, a step of the same flow: submit the flow again")
    return place, Choices()


def request_of(run: str, number: int) -> str:
    """Returns the id of the request of a step."""
    return f"{run}.{number}"


def run_of(request_id: str) -> str:
    """Returns the flow's run that a step's request belongs to."""
    return request_id.rpartition(".")[0]


# ------------------------------------------------------------------ pages
# Reads what the sources of a step have finished, and cuts it into parts for one call each.


BEFORE_ALL = "0-0"
MOST_BITS = 1 << 32  # of a string in Redis


class FeedSource(NamedTuple):
    """A request that feeds a step, as it was before its results are read.

    `handed` is the source's own cursor, if it is fed, too.
    """

    id: str
    state: str
    total: int
    done: int
    is_open: bool = False
    handed: str = ""
    reopened: str = ""

    @property
    def has_ended(self) -> bool:
        """Returns True if the source has written all its results."""
        return self.state in ENDED_STATES


class Entry(NamedTuple):
    """An entry of a source: the source's number, the entry's id, and what is made of it.

    `made` alternates indexes and bodies of results. For a step that joins, it alternates names and
    parts.
    """

    source: int
    id: str
    made: list[bytes]

    @property
    def size(self) -> int:
        """Returns how many bytes are made."""
        return sum(map(len, self.made))


class Page(NamedTuple):
    """Entries in the order of the hand-over. `dead`: the source whose dead one stops the flow.

    `is_set_back`: a failover, or a requeue, has taken back the entry at the cursor.
    """

    entries: list[Entry]
    is_last: bool
    dead: str = ""
    has_more: bool = False
    is_set_back: bool = False


async def read_page(
    feed: Feed,
    sources: Sequence[FeedSource],
    cursor: Sequence[str],
    step: str = "",
    holds_first: bool = False,
) -> Page:
    """Returns what the sources have after the cursor for this step.

    If `holds_first`, the first source is not read. The caller has read the states of the sources,
    so a source that has ended has written all its results. Raises RequestNotFound, and StopFlow
    if results choose what the flow does not declare.
    """
    if feed.kind == DEAD:
        (source,), (after,) = sources, cursor
        dead = await read_dead(source.id, "" if after == BEFORE_ALL else after)
        entries = [Entry(0, one.dead_id, [b"%d" % one.index, one.body]) for one in dead]
        return Page(entries, not dead)
    pairs = list(enumerate(zip(sources, cursor, strict=True)))[holds_first:]
    replies = await Batch([_reading(feed, *pair) for pair in pairs])
    if feed.kind in CHOOSING and cursor[0] != BEFORE_ALL:
        if not replies[0] or replies[0][0][0].decode() != cursor[0]:
            return Page([], is_last=False, is_set_back=True)
        replies = [replies[0][1:]]
    is_last, has_more, stopped, columns = not holds_first, False, "", list[list[Entry]]()
    for (place, (source, after)), reply in zip(pairs, replies, strict=True):
        rows, is_full = _rows_of(feed, place, reply)
        is_last = is_last and source.has_ended and not is_full
        has_more = has_more or is_full
        column, before = list[Entry](), after
        for entry_id, fields, *origins in rows:
            if _stops(feed, place, fields):
                stopped = source.id
            if feed.kind in CHOOSING:
                each = list(_choices(feed, source, step, fields))
                # The cursor moves past an entry with the entry's last result.
                column += [Entry(place, before, made) for made in each[:-1]]
                made = each[-1] if each else []
            elif feed.kind in COLLECTING:
                made = _collected(feed, place, source, fields, *origins)
            else:
                _refuse_choices(source, fields)
                made = _made(feed, place, source, parse_results(fields))
            before = entry_id.decode()
            column.append(Entry(place, before, made))
        columns.append(column)
    # The sources take turns, so that one call often has all parts of a body.
    entries = [one for row in zip_longest(*columns) for one in row if one is not None]
    return Page(entries, is_last, stopped, has_more)


def _reading(feed: Feed, place: int, pair: tuple[FeedSource, str]) -> Command | Call[Any]:
    """Returns the step that reads the next entries of a source."""
    source, after = pair
    if _has_origins(feed, place):
        names = (*keys.request_keys(source.id), keys.of_flow(source.id))
        return scripts.list_chosen(names, after=after, count=PAGE)
    out = keys.results(source.id)
    if feed.kind in CHOOSING and after != BEFORE_ALL:  # also reads `after`: is it still there?
        return Command(b"XRANGE", out, after, b"+", b"COUNT", PAGE + 1)
    return Command(b"XRANGE", out, f"({after}", b"+", b"COUNT", PAGE)


def _has_origins(feed: Feed, place: int) -> bool:
    """Returns True if a source's results are read together with their origins."""
    return feed.kind in COLLECTING and place > 0


def _rows_of(feed: Feed, place: int, reply: Any) -> tuple[list[Any], bool]:
    """Returns the entries in a reply, and whether more may follow them."""
    if _has_origins(feed, place):
        return reply.rows, reply.more > 0
    return reply, len(reply) >= PAGE


def _stops(feed: Feed, place: int, fields: Sequence[bytes]) -> bool:
    """Returns True if an entry has a dead sub-request that cancels the flow."""
    return feed.on_dead[place] == STOP and any(status == b"x" for _, status, _ in _heads(fields))


def _made(feed: Feed, place: int, source: FeedSource, results: list[Result]) -> list[bytes]:
    made: list[bytes] = []
    if feed.kind not in JOINING:
        for one in results:
            if one.status == "done":
                _check_index(feed, source, one.index)
                made += [b"%d" % feed.bit(one.index, place), feed.wrap.body(one.body)]
        return made
    for one in results:
        child, index = place, one.index
        if feed.kind == GATHER:
            index, child = divmod(one.index, feed.width)
        made += [b"%d:%d" % (child + 1, index), _part(feed, one)]
    return made


def _part(feed: Feed, result: Result) -> bytes:
    """Returns a result as a part of a body."""
    if result.status == "dead" or result.body is None:
        return feed.wrap.none
    return as_json(result.body) if feed.kind in {ARRAY, LIST} else result.body


# ------------------------------------------------------------------ choices
# Checks what results choose against the flow, as the worker did before.


class StopFlow(Exception):
    """The flow is to be cancelled; the text says why."""


def _heads(fields: Sequence[bytes]) -> Iterator[tuple[int, bytes, bytes]]:
    """Yields the index, the status and the bytes of each result of an entry."""
    for head, data in zip(fields[::2], fields[1::2], strict=True):
        if head != b"w":
            index, status, _ = head.split(b":", 2)
            yield int(index), status, data


def _refuse_choices(source: FeedSource, fields: Sequence[bytes]) -> None:
    """Raises StopFlow if a result chooses something, because its step declares no choices."""
    for index, status, _ in _heads(fields):
        if status in {NEXT, FAN}:
            what = "names the next step" if status == NEXT else "chooses children"
            raise StopFlow(
                f"{STOPPED}result {index} of request {source.id} {what}, and the flow declares none"
            )


def _choices(
    feed: Feed, source: FeedSource, step: str, fields: Sequence[bytes]
) -> Iterator[list[bytes]]:
    """Yields for each result the names and bodies for this step, then the index alone."""
    declared = feed.choices
    for index, status, data in _heads(fields):
        if status == b"x":
            continue
        _check_index(feed, source, index)
        found: list[Choice] = []
        if status in {NEXT, FAN}:
            found = unpacked(data)
            _check(feed, source, index, status, found)
        elif declared.default:
            found = [Choice(declared.default, data if status == b"d" else None)]
        made: list[bytes] = []
        for place, one in enumerate(found):
            if one.step == step:
                made += [b"%d:%d" % (index, place), feed.wrap.body(one.body)]
        yield [*made, b"%d" % index, b""]


def _check_index(feed: Feed, source: FeedSource, index: int) -> None:
    """Raises StopFlow if `fed:{id}` has no bits for a result with this index."""
    most = MOST_BITS // (feed.width + (feed.kind in CHOOSING))
    if index >= most:
        raise StopFlow(
            f"{STOPPED}request {source.id} has more results than this step can note, which are "
            f"{most:,}: submit several flows"
        )


def _check(
    feed: Feed, source: FeedSource, index: int, status: bytes, found: Sequence[Choice]
) -> None:
    """Raises StopFlow unless the flow declares what a result chooses."""
    declared, where = feed.choices, f"{STOPPED}result {index} of request {source.id}"
    kind = "children" if feed.kind == CHOSEN else "branches"
    if (status == FAN) != (feed.kind == CHOSEN):
        raise StopFlow(f"{where} does not choose among the {kind} {', '.join(declared.steps)}")
    for one in found:
        if one.step not in declared.steps:
            raise StopFlow(
                f"{where} names step {one.step}, and the {kind} are {', '.join(declared.steps)}"
            )
    if len(found) > feed.width:
        raise StopFlow(f"{where} has {len(found)} children, and the most are {feed.width}")


def _collected(
    feed: Feed,
    place: int,
    source: FeedSource,
    fields: list[bytes],
    origins: Sequence[int] = (),
) -> list[bytes]:
    """Returns how many children each result of the parent chose, or the children's results."""
    made: list[bytes] = []
    if not place:
        for index, status, data in _heads(fields):
            if status != b"x":
                count = len(unpacked(data)) if status == FAN else 0
                made += [b"0:%d" % index, b"%d" % count]
        return made
    for result, origin in zip(parse_results(fields), origins, strict=True):
        if not origin:
            raise StopFlow(
                f"{STOPPED}the origin of result {result.index} of request {source.id} is lost"
            )
        index, at = divmod(origin, feed.width + 1)
        made += [b"%d:%d" % (at, index), _part(feed, result)]
    return made


def parts(
    entries: Sequence[Entry], cursor: Sequence[str], most: int
) -> Iterator[tuple[list[str], list[bytes]]]:
    """Yields groups of whole entries for one call each: the cursor after them, what they made."""
    moved, made = list(cursor), list[bytes]()
    size, count = 0, 0
    for entry in entries:
        is_full = len(made) + len(entry.made) > most
        if count and (is_full or size + entry.size > settings.CHUNK_BYTES):
            yield list(moved), made
            made, size, count = [], 0, 0
        made = made + entry.made
        size, count = size + entry.size, count + 1
        moved[entry.source] = entry.id
    if count:
        yield list(moved), made


_PAGES = 20  # of one hand-over; then other steps have their turn
_FIELDS = (
    *("state", "open", "queue", "feed", "flow", "handed", "chunks", "chain", "total", "born"),
    "passed",
)
_OF_SOURCE = ("state", "total", "done", "open", "handed", "reopened")
_OF_BOUND = ("state", "total")
_GONE = frozenset({"", "abandoned"})
_ORIGINS_MS = 3_600_000  # how long the origins of children are kept after the join
STOPPED = "flow: "  # begins the reason with which a hand-over cancels a flow


class HandedOver(NamedTuple):
    """What one hand-over did. `is_over`: the request will get nothing more."""

    bodies: int = 0
    is_over: bool = False


async def hand_over(request_id: str) -> HandedOver:
    """Adds what the sources have finished to a step's request; seals it when they have ended.

    The flow is cancelled if a source was cancelled, vanished after it was seen, or has dead
    sub-requests that stop the flow. If a source was never seen, because the flow's producer died
    before, the request is given up after an hour.
    """
    found = dict(zip(_FIELDS, await read(request_id, *_FIELDS), strict=True))
    feed = Feed.parse(found["feed"])
    if feed is None or found["open"] != "1":
        return HandedOver(is_over=True)
    if found["state"] in {*_GONE, *ENDED_STATES, "cancelling"}:
        return HandedOver(is_over=True)
    hand = _Hand(request_id, found, feed)
    sources = await _sources(feed.sources)
    if not found["handed"] and any(source.state in _GONE for source in sources):
        await hand.give_up(int(found["born"]))
        return HandedOver()
    try:
        _check_there(sources)
        ended = [one.id for one in sources if one.has_ended]
        await keep_ended(ended if len(ended) < len(sources) else [])
        await keep_origins(feed.sources[1:] if feed.kind in COLLECTING else ())
        await hand.read_on(sources)
        if not hand.count and not hand.is_over:
            await hand.keep_open()
    except StopFlow as stop:
        await _stop(request_id, feed, found["flow"], str(stop))
        return HandedOver(hand.count, is_over=True)
    except RequestNotFound:  # a source is gone meanwhile
        return HandedOver(hand.count)
    return HandedOver(hand.count, hand.is_over)


async def begin_feed(request_id: str) -> None:
    """Sets a step's first cursor, which says that its sources are there.

    If the step has a cursor, nothing changes.
    """
    queue, text = await read(request_id, "queue", "feed")
    feed = Feed.parse(text)
    if feed is not None:
        first = ",".join([BEFORE_ALL] * len(feed.sources))
        names = (*keys.request_keys(request_id), keys.fed(request_id))
        open_ms = settings.FED_OPEN_MS
        call = scripts.hand_over(names, since=first, upto=first, open_ms=open_ms, bodies=[])
        await _run(queue, request_id, call)


async def look_after_and_feed(queue: str) -> None:
    """Does one `look_after`, and hands over to each step that it finds.

    If a step fails, its error is raised after the others had their turn.
    """
    fed: list[str] = []
    await look_after(queue, fed=fed)
    failure: FairlaneError | None = None
    for request_id in fed:
        try:
            await hand_over(request_id)
        except FairlaneError as error:
            failure = failure or error
    if failure is not None:
        raise failure


async def cancel_flow(run: str, count: int, reason: str) -> None:
    """Cancels the steps of a flow, except compensating ones, which end after what they undo."""
    ids = [request_of(run, number) for number in range(1, count + 1)]
    rows = await run_all([hmget(one, "feed") for one in ids])
    for one, row in zip(ids, rows, strict=True):
        feed = Feed.parse(parse_fields(["feed"], row)[0])
        if feed is None or feed.kind != DEAD:
            with suppress(RequestNotFound):
                await change.cancel(one, reason)
            if feed is not None:
                await Command(b"UNLINK", keys.of_flow(one), keys.fed(one))


class _Hand:
    """Adds bodies to the open request of a step, and seals it."""

    def __init__(self, request_id: str, found: dict[str, str], feed: Feed) -> None:
        self.id, self.queue, self.feed = request_id, found["queue"], feed
        handed = found["handed"]
        self.cursor = handed.split(",") if handed else [BEFORE_ALL] * len(feed.sources)
        self.chunks, self.chain = int(found["chunks"]), found["chain"]
        place = StepPlace.parse(found["flow"])
        self.step = place.step if place else ""
        is_choosing = feed.kind in CHOOSING
        # The step's sub-requests; if results choose these, the results that it has handled.
        self.before = int((found["passed"] or 0) if is_choosing else found["total"])
        self.count, self.is_over = 0, False
        self.place, self.is_again = list(self.cursor), False  # where the next page begins

    async def read_on(self, sources: list[FeedSource]) -> None:
        """Adds what is new in the sources; seals the request if nothing will follow.

        Dead sub-requests are read after the source's end, because they may be requeued before.
        Raises StopFlow, and RequestNotFound if a source is gone.
        """
        if not self._may_read(sources):
            return
        pages = 0
        while (pages < _PAGES or self.is_again) and await self._read_page(sources):
            pages += 1

    async def _read_page(self, sources: list[FeedSource]) -> bool:
        """Adds one page; returns True if the next one may follow now."""
        room = await self._room()
        if room <= 0:
            return False
        holds = await self._holds_parent(sources)
        page = await read_page(self.feed, sources, self.place, self.step, holds)
        if page.is_set_back:
            self._read_again()
            return True
        if page.dead:
            raise StopFlow(f"{STOPPED}request {page.dead} has dead sub-requests")
        if not await self._add_all(page.entries, sources, room):
            return False
        if page.is_last:
            if await self._is_held(sources):
                return False
            begins_again = await self._begins_again()
            if not begins_again:
                await self._seal()
            return begins_again
        is_through = self.is_again and (not page.has_more or self._is_back(sources))
        return not is_through or await self._go_on()

    async def _is_held(self, sources: list[FeedSource]) -> bool:
        """Returns True if a source is to be repaired first, or is being repaired.

        A source without dead sub-requests is not opened again, so nothing is missed afterwards.
        """
        pairs = zip(sources, self.feed.on_dead, strict=True)
        held = [source for source, on_dead in pairs if on_dead == HOLD]
        dead = await run_all([Command(b"XLEN", keys.dead(one.id)) for one in held])
        # Read afterwards: a repair takes the dead away, and changes the state.
        return any(dead) or await _sources(tuple(one.id for one in held)) != held

    async def _add_all(self, entries: list[Entry], sources: list[FeedSource], room: float) -> bool:
        """Adds entries, in a second reading up to the old cursor; returns False if it must stop."""
        until = self.count + room
        for moved, made in parts(entries, self.place, 2 * settings.CHUNK_ENTRIES):
            if not await self._add(moved, made):
                return False
            if self._is_back(sources):
                break
            if self.count >= until:
                return False
        return True

    def _may_read(self, sources: list[FeedSource]) -> bool:
        """Returns False while a source of the dead runs. Raises StopFlow if one was cancelled."""
        if self.feed.kind == DEAD:
            return sources[0].has_ended
        for source in sources:
            if source.state == "cancelled":
                raise StopFlow(f"{STOPPED}request {source.id} was cancelled")
        return True

    async def keep_open(self) -> None:
        """Postpones the time at which the request counts as left open by its producer."""
        await self._move(self._hand_over_call(self.cursor, [], settings.FED_OPEN_MS), [])

    async def give_up(self, born: int) -> None:
        """Lets the next check cancel a step if its flow was not submitted within an hour."""
        now = time_ms(await Command(b"TIME"))
        if now > born + settings.UNFED_OPEN_MS:
            await self._move(self._hand_over_call(self.cursor, [], 0), [])

    async def _room(self) -> float:
        """Returns how many results may be added before the step that joins them has joined more."""
        if self.is_again or not self.feed.bound:
            return inf
        state, total = await read(self.feed.bound, *_OF_BOUND)
        if state not in {"active", "paused"}:
            return inf
        # Each of these results may have `width` children.
        window = max(1, settings.JOIN_WINDOW // self.feed.width)
        return window + int(total) - self.before - self.count

    async def _holds_parent(self, sources: list[FeedSource]) -> bool:
        """Returns True if the parent must not be read: much waits here, and no child is as far.

        A child stops while it is far ahead of this step, so what waits here is bounded.
        """
        if self.feed.kind not in COLLECTING or not any(one.is_open for one in sources[1:]):
            return False
        if _order(self.place[0]) <= max(_order(one.handed) for one in sources[1:]):
            return False
        # The parts of children alone may be as many as the window.
        return int(await Command(b"HLEN", keys.of_flow(self.id))) > 2 * settings.JOIN_WINDOW

    def _is_back(self, sources: list[FeedSource]) -> bool:
        """Returns True if the second reading has reached the cursor, and a source still runs."""
        if not self.is_again or all(source.has_ended for source in sources):
            return False
        return all(
            _order(one) >= _order(old) for one, old in zip(self.place, self.cursor, strict=True)
        )

    async def _begins_again(self) -> bool:
        """Begins a second reading and returns True if results are missing.

        What is here already is left out. Raises StopFlow if results are missing after it, too.
        """
        sources = await _sources(self.feed.sources)
        _check_there(sources)
        missing = await self._missing(sources)
        if missing and self.is_again:
            raise StopFlow(f"{STOPPED}{missing}")
        self.is_again = bool(missing)
        if missing:
            self._read_again()
        return self.is_again

    def _read_again(self) -> None:
        """Begins a reading from the beginning; the cursor stays until that is through."""
        self.is_again, self.place = True, [BEFORE_ALL] * len(self.feed.sources)

    async def _go_on(self) -> bool:
        """Ends the second reading, and moves the cursor to its last entry."""
        self.is_again = False
        if not await self._add(list(self.place), []):
            return False
        if self.feed.kind in CHOOSING:  # results that were here before were counted, too
            (passed,) = await read(self.id, "passed")
            self.before = int(passed or 0) - self.count
        return True

    async def _add(self, moved: list[str], made: list[bytes]) -> bool:
        self.place = moved
        moved = self.cursor if self.is_again else moved
        count = len(made) // 2
        if self.feed.kind in CHOOSING:
            call = self._hand_chosen_call(moved, made)
            count = sum(b":" not in name for name in made[::2])
        elif self.feed.kind in JOINING or self.feed.kind in COLLECTING:
            call = self._join_call(moved, made)
        else:
            call = self._hand_over_call(moved, made, settings.FED_OPEN_MS)
        return await self._move(call, moved, count)

    def _join_call(self, moved: list[str], made: list[bytes]) -> Call[Any]:
        wrap = self.feed.wrap
        script = scripts.join if self.feed.kind in JOINING else scripts.join_chosen
        return script(
            (*keys.request_keys(self.id), keys.of_flow(self.id), keys.fed(self.id)),
            since=",".join(self.cursor),
            upto=",".join(moved),
            open_ms=settings.FED_OPEN_MS,
            width=self.feed.width,
            before=wrap.before,
            between=wrap.between,
            after=wrap.after,
            parts=made,
        )

    def _hand_chosen_call(self, moved: list[str], made: list[bytes]) -> Call[Any]:
        return scripts.hand_chosen(
            (*keys.request_keys(self.id), keys.of_flow(self.id), keys.fed(self.id)),
            since=",".join(self.cursor),
            upto=",".join(moved),
            open_ms=settings.FED_OPEN_MS,
            width=self.feed.width,
            is_joined="1" if self.feed.kind == CHOSEN else "0",
            choices=made,
        )

    def _hand_over_call(self, moved: list[str], bodies: list[bytes], open_ms: int) -> Call[Any]:
        return scripts.hand_over(
            (*keys.request_keys(self.id), keys.fed(self.id)),
            since=",".join(self.cursor),
            upto=",".join(moved),
            open_ms=open_ms,
            bodies=bodies,
        )

    async def _move(self, call: Call[Any], moved: list[str], count: int = 0) -> bool:
        reply = await _run(self.queue, self.id, call)
        # A call that was repeated after a lost reply finds its own cursor.
        if reply.is_ok or (reply.is_moved and reply.cursor.decode() == ",".join(moved)):
            self.cursor, self.chunks = moved or self.cursor, reply.chunks
            self.count += count
            return True
        self.is_over = not reply.is_moved  # else another leader hands over
        return False

    async def _seal(self) -> None:
        """Ends the submission of the step."""
        names = keys.request_keys(self.id)
        seal = scripts.seal(names, chunks=self.chunks, chain=self.chain)
        reply = await _run(self.queue, self.id, seal)
        if not reply.is_conflict:
            await Command(b"UNLINK", keys.fed(self.id))
            if self.feed.kind != CHOSEN:  # else the step that joins it reads the origins
                await Command(b"UNLINK", keys.of_flow(self.id))
            if self.feed.kind in COLLECTING:  # a failover may take the seal back
                children = [keys.of_flow(child) for child in self.feed.sources[1:]]
                await run_all([Command(b"PEXPIRE", one, _ORIGINS_MS) for one in children])
        self.is_over = True

    async def _missing(self, sources: list[FeedSource]) -> str:
        """Returns which results of the ended sources this step lacks, as text; "" = none.

        Raises StopFlow if the results of a source cannot be gathered.
        """
        total, passed = await read(self.id, "total", "passed")
        here, kind = int(total or 0), self.feed.kind
        if kind in JOINING:
            return self._missing_parts(sources, here)
        named = sources
        if kind in COLLECTING:  # a result of the parent makes one body from all its children
            sources, named = sources[:1], sources[1:]
        elif kind in CHOOSING:
            here = int(passed or 0)
        if kind == DEAD:  # those that were dropped need not be here
            count = await count_dead(sources[0].id)
        else:
            count = sum(source.done for source in sources)
        is_doubtful = here >= count and not self.is_again and await self._differs(sources)
        return _lack(named, count, here) if here < count or is_doubtful else ""

    def _missing_parts(self, sources: list[FeedSource], here: int) -> str:
        for source in sources:
            if self.feed.kind == GATHER and source.total % self.feed.width:
                results = f"{source.total:,} results, and {self.feed.width} of them make one body"
                raise StopFlow(f"{STOPPED}request {source.id} has {results}")
            joined = here * (1 if len(sources) > 1 else self.feed.width)
            if source.total != joined:
                return _lack([source], source.total, joined)
        return ""

    async def _differs(self, sources: list[FeedSource]) -> bool:
        """Returns True if the counts are equal, but this step may have the wrong results.

        A failover of a source may take back a result that is here. If its sub-request then dies,
        the count hides that another result is missing. So the bits of the dead are read. All must
        be set if this step gets the dead, else none. Dropped ones have left no index.
        """
        for place, source in enumerate(sources):
            if await self._differs_from(source, place):
                return True
        return False

    async def _differs_from(self, source: FeedSource, place: int) -> bool:
        wants_dead, count, after = self.feed.kind == DEAD, 0, b""
        while source.total > source.done and (page := await list_dead(source.id, after)):
            count, after = count + len(page), page[-1].dead_id
            indexes = [self.feed.bit(one.index, place) for one in page]
            bits = await run_all([Command(b"GETBIT", keys.fed(self.id), one) for one in indexes])
            if any(bool(bit) != wants_dead for bit in bits):
                return True
        return not wants_dead and count < source.total - source.done


def _lack(sources: Sequence[FeedSource], count: int, here: int) -> str:
    names = ", ".join(source.id for source in sources)
    of = f"request {names}" if len(sources) == 1 else f"requests {names}"
    return f"results of {of} are missing: {here:,} of {count:,} could be handed over"


async def _sources(ids: tuple[str, ...]) -> list[FeedSource]:
    rows = await run_all([hmget(one, *_OF_SOURCE) for one in ids])
    found = []
    for one, row in zip(ids, rows, strict=True):
        state, total, done, is_open, handed, reopened = parse_fields(_OF_SOURCE, row)
        counts = int(total or 0), int(done or 0)
        found.append(FeedSource(one, state, *counts, is_open == "1", handed, reopened))
    return found


def _order(entry_id: str) -> tuple[int, ...]:
    """Returns the id of a stream's entry as numbers, which sort; "" is before all."""
    return tuple(map(int, (entry_id or BEFORE_ALL).split("-")))


def _check_there(sources: list[FeedSource]) -> None:
    """Raises StopFlow if a source is gone, because some results may not be handed over."""
    for source in sources:
        if source.state in _GONE:
            raise StopFlow(f"{STOPPED}request {source.id} is gone before all of it was handed over")


async def _stop(request_id: str, feed: Feed, place: str, reason: str) -> None:
    found = StepPlace.parse(place)
    if found is not None:
        await cancel_flow(run_of(request_id), found.steps, reason)
    if found is None or feed.kind == DEAD:  # cancel_flow leaves a compensating step as it is
        await change.cancel(request_id, reason)


async def _run(queue: str, request_id: str, call: Call[AnyReply]) -> AnyReply:
    reply = await call
    if calls := follow_up(queue, (request_id, reply)):
        await Batch(calls)
    return reply
