"""Reads what the earlier steps of a flow have finished, as one call of the next step takes it."""

from __future__ import annotations

import base64
import json
from itertools import zip_longest
from typing import TYPE_CHECKING, NamedTuple

from fairlane import settings
from fairlane.model import ENDED_STATES
from fairlane.operations.control.completion import PAGE, parse_results
from fairlane.operations.control.dead_letters import read_dead
from fairlane.operations.flows.feed import ARRAY, DEAD, GATHER, JOINING, Feed
from fairlane.protocol import keys
from fairlane.protocol.steps import Batch, Command

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fairlane.model import Result
    from fairlane.protocol.steps import Operation

BEFORE_ALL = "0-0"


class Source(NamedTuple):
    """A request that a step is fed with, as it was before its results are read."""

    id: str
    state: str
    total: int
    done: int

    @property
    def has_ended(self) -> bool:
        """Returns True if it has written all its results."""
        return self.state in ENDED_STATES


class Entry(NamedTuple):
    """An entry of one source: its place among the sources, its id, and what is made of it.

    `made` has the index and the body of each result in turn; for a step that joins, the name and
    the part.
    """

    source: int
    id: str
    made: list[bytes]

    @property
    def size(self) -> int:
        """Returns its bytes."""
        return sum(map(len, self.made))


class Page(NamedTuple):
    """Entries in the order in which they are handed over. `dead`: of this source one is dead."""

    entries: list[Entry]
    is_last: bool
    dead: str = ""


def read_page(feed: Feed, sources: Sequence[Source], cursor: Sequence[str]) -> Operation[Page]:
    """Returns what the sources have after the cursor. Raises RequestNotFound.

    The states of the sources were read before, so one that has ended has written all its results.
    """
    if feed.kind == DEAD:
        (source,), (after,) = sources, cursor
        dead = yield from read_dead(source.id, "" if after == BEFORE_ALL else after)
        entries = [Entry(0, one.dead_id, [b"%d" % one.index, one.body]) for one in dead]
        return Page(entries, not dead)
    replies = yield Batch(
        [
            Command(b"XRANGE", keys.results(source.id), f"({after}", b"+", b"COUNT", PAGE)
            for source, after in zip(sources, cursor, strict=True)
        ]
    )
    is_last, stopped, columns = True, "", list[list[Entry]]()
    for place, (source, rows) in enumerate(zip(sources, replies, strict=True)):
        is_last = is_last and source.has_ended and len(rows) < PAGE
        column = []
        for entry_id, fields in rows:
            results = parse_results(fields)
            if feed.stops[place] and any(one.status == "dead" for one in results):
                stopped = source.id
            column.append(Entry(place, entry_id.decode(), _made(feed, place, results)))
        columns.append(column)
    # In turn, so that the parts of one body are often in one call.
    entries = [one for row in zip_longest(*columns) for one in row if one is not None]
    return Page(entries, is_last, stopped)


def _made(feed: Feed, place: int, results: list[Result]) -> list[bytes]:
    made: list[bytes] = []
    if feed.kind not in JOINING:
        for one in results:
            if one.status == "done":
                made += [b"%d" % one.index, feed.wrap.body(one.body)]
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
    return as_json(result.body) if feed.kind == ARRAY else result.body


def as_json(body: bytes) -> bytes:
    """Returns a body as a JSON value: text, or {"base64": "..."} for bytes that are no UTF-8."""
    try:
        value: object = body.decode()
    except UnicodeDecodeError:
        value = {"base64": base64.b64encode(body).decode()}
    return json.dumps(value, ensure_ascii=False).encode()


def parts(
    entries: Sequence[Entry], cursor: Sequence[str], most: int
) -> Iterator[tuple[list[str], list[bytes]]]:
    """Yields whole entries together, as many as one call takes, each with the cursor after them."""
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
