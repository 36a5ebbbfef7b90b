"""Reads results: entries of `out` as columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from fairlane.arrow.stream_ranges import (
    HEADS_PAGE,
    RESULTS_PAGE,
    StreamRange,
    read_heads,
    read_page,
    these_entries,
)
from fairlane.operations.completion import ERROR_DROPPED, error_texts
from fairlane.operations.flow_branches import FAN, NEXT, shown_body
from fairlane.protocol import keys

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from fairlane.drivers.sync import SyncDriver
    from fairlane.operations.completion import Entries

_FIRST = 4  # entries of the first page
_CHOOSING = (NEXT.decode(), FAN.decode())  # statuses of results that a flow reads
_INDEX, _STATUS, _ATTEMPT, _WAITED, _RAN = range(5)  # of a head: model.result_head


def read_results(
    driver: SyncDriver,
    request_id: str,
    piece: StreamRange,
    page: int = RESULTS_PAGE,
    *,
    wants: Wants | None = None,
) -> Iterator[dict[str, Any]]:
    """Yields pages of the results in a piece of `out`, each as columns of the view `results`.

    Results that were settled in one millisecond are on one page, unless it is all of them. The
    first page is small, because a query may want few rows. `wants` may leave out bodies.
    """
    for entries in _pages(driver, request_id, piece, page, with_bodies=wants is None):
        if wants is not None and not wants.bodies:
            yield columns(entries)
        elif wants is None:
            yield _with_errors(driver, request_id, entries)
        elif chosen := _chosen(entries, wants):
            out = keys.results(request_id)
            for at in range(0, len(chosen), page):
                found = driver.run(these_entries(out, chosen[at : at + page]))
                yield _with_errors(driver, request_id, found)


def _with_errors(driver: SyncDriver, request_id: str, entries: Entries) -> dict[str, Any]:
    return columns(entries, driver.run(error_texts(request_id, named_errors(entries))))


class Wants(NamedTuple):
    """What a read wants of results: no bodies, or those of the rows that meet its conditions.

    `meets` gets the columns, with empty bodies, and returns True for each row that does.
    """

    bodies: bool
    meets: Callable[[dict[str, Any]], Any]


def _pages(
    driver: SyncDriver, request_id: str, piece: StreamRange, page: int, *, with_bodies: bool
) -> Iterator[Entries]:
    """Yields the entries of a piece; those of one millisecond together, if they fit on a page."""
    page = page if with_bodies else HEADS_PAGE
    out = keys.results(request_id)
    held: Entries = []
    count = min(page, _FIRST)
    left: StreamRange | None = piece
    while left is not None:
        read = read_page(out, left, count) if with_bodies else read_heads(request_id, left, count)
        entries, left = driver.run(read)
        entries, held = [*held, *entries], []
        if left is not None:
            complete = _before_last_moment(entries)
            if not complete and len(entries) >= page:
                complete = len(entries)
            entries, held = entries[:complete], entries[complete:]
            count = min(page, 4 * count)
        if entries:
            yield entries


def _chosen(heads: Entries, wants: Wants) -> list[bytes]:
    """Returns the ids of the entries that have rows to keep, and of those that belong to them.

    Other entries of the worker in the same millisecond belong to an entry: `started` needs them.
    """
    meets = wants.meets(columns(heads)).to_pylist()
    settlers, row = set(), 0
    for entry, size in zip(heads, sizes_of(heads), strict=True):
        if any(meets[row : row + size]):
            settlers.add(_settler(entry))
        row += size
    return [entry[0] for entry in heads if _settler(entry) in settlers]


def _before_last_moment(entries: Entries) -> int:
    """Returns how many entries precede the last millisecond."""
    if not entries:
        return 0
    last = entries[-1][0].partition(b"-")[0] + b"-"
    at = len(entries)
    while at and entries[at - 1][0].startswith(last):
        at -= 1
    return at


def sizes_of(entries: Entries) -> list[int]:
    """Returns how many results each entry of `out` holds."""
    return [len(fields) // 2 - 1 for _, fields in entries]


def named_errors(entries: Entries) -> set[bytes]:
    """Returns the names of the errors in some entries of `out`; their texts are elsewhere."""
    return {
        name
        for _, fields in entries
        for head, name in zip(fields[2::2], fields[3::2], strict=True)
        if b":x:" in head and name
    }


def columns(
    entries: Entries, texts: Mapping[bytes, str] | None = None, streams: Sequence[Any] = ()
) -> dict[str, Any]:
    """Returns the results in some entries of `out`, as arrays by column.

    `texts`: those of the errors, by the names that the entries have instead. `streams`: what
    distinguishes the stream of each entry, if they are of several.
    """
    heads: list[bytes] = []
    bodies: list[bytes] = []
    for _, fields in entries:  # worker, then (head, body) pairs
        heads += fields[2::2]
        bodies += fields[3::2]
    sizes = sizes_of(entries)
    parts = pc.split_pattern(pa.array(heads, type=pa.binary()).cast(pa.string()), ":")
    status = pc.list_element(parts, _STATUS)
    is_dead = pc.equal(status, "x")
    if pc.any(pc.is_in(status, pa.array(_CHOOSING))).as_py():  # a step of a flow named the next one
        bodies = [
            (shown_body(one.encode(), body) or b"") if one in _CHOOSING else body
            for one, body in zip(status.to_pylist(), bodies, strict=True)
        ]
    ran_us = _whole(parts, _RAN)
    waited_ms = _whole(parts, _WAITED)
    owner = pa.array([at for at, size in enumerate(sizes) for _ in range(size)], type=pa.int64())
    workers = pa.array([fields[1].decode("utf-8", "replace") for _, fields in entries])
    settled_us = pa.array([_ms(entry) * 1000 for entry in entries], type=pa.int64()).take(owner)
    settlers: list[Any] = [*map(_settler, entries)]
    if streams:
        settlers = [*zip(settlers, streams, strict=True)]
    before, behind = _around(settlers, sizes, ran_us)
    return {
        "index": _whole(parts, _INDEX),
        "status": pc.if_else(is_dead, "dead", "done"),
        "result": pc.if_else(
            pc.is_in(status, pa.array(("d", *_CHOOSING))),
            pa.array(bodies, type=pa.binary()),
            pa.scalar(None, pa.binary()),
        ),
        "attempt": _whole(parts, _ATTEMPT),
        "worker": workers.take(owner),
        "waited_ms": waited_ms,
        "ran_ms": pc.divide(ran_us.cast(pa.float64()), 1000.0),
        "total_ms": pc.divide(
            pc.add(pc.multiply(waited_ms, 1000), pc.add(before, ran_us)).cast(pa.float64()), 1000.0
        ),
        "error": _errors(bodies, is_dead, texts or {}),
        "started": _moments(pc.subtract(settled_us, behind)),
        "settled": _moments(settled_us),
    }


def _ms(entry: tuple[bytes, Any]) -> int:
    return int(entry[0].partition(b"-")[0])


def _whole(parts: Any, at: int) -> Any:
    return pc.list_element(parts, at).cast(pa.int64())


def _moments(micros: Any) -> Any:
    return micros.cast(pa.timestamp("us", tz="UTC"))


def _errors(names: list[bytes], is_dead: Any, texts: Mapping[bytes, str]) -> Any:
    if not pc.any(is_dead).as_py():
        return pa.nulls(len(names), pa.string())
    shown = [
        texts.get(name, ERROR_DROPPED) if died else None
        for name, died in zip(names, is_dead.to_pylist(), strict=True)
    ]
    return pa.array(shown, type=pa.string())


def _around(settlers: Sequence[Any], sizes: list[int], ran_us: Any) -> tuple[Any, Any]:
    """Returns how long (us) other results ran before each, and how long each and later ones ran.

    Others are those that its worker settled in the same millisecond: a big slice takes several
    entries. `settlers` are equal for these entries.
    """
    firsts: list[int] = []
    lasts: list[int] = []
    row, at = 0, 0
    while at < len(settlers):
        settler, end, count = settlers[at], at, 0
        while end < len(settlers) and settlers[end] == settler:
            count += sizes[end]
            end += 1
        firsts += [row] * count
        lasts += [row + count - 1] * count
        row, at = row + count, end
    through = pc.cumulative_sum(ran_us)
    until = pc.subtract(through, ran_us)
    before = pc.subtract(until, until.take(pa.array(firsts, type=pa.int64())))
    behind = pc.subtract(through.take(pa.array(lasts, type=pa.int64())), until)
    return before, behind


def _settler(entry: tuple[bytes, Any]) -> tuple[bytes, bytes]:
    return entry[0].partition(b"-")[0], entry[1][1]
