"""Results of a request as columns; an entry of `out` holds what one worker settled in one call.

`waited_ms` ends when a worker took the slice of the sub-request. `settled` is when the worker
reported the whole slice to Redis. In between the slice's sub-requests ran one after the other, in
the order of the entry. From that follow `started` and `total_ms`. `started` leaves out the time
between two calls of a handler. `total_ms` goes from the submission to the end of the handler.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from fairlane.operations.control.error_texts import ERROR_DROPPED, error_texts
from fairlane.protocol import keys
from fairlane.spark.operations.stream_ranges import RESULTS_PAGE, read_page

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fairlane.drivers.sync.driver import SyncDriver
    from fairlane.operations.control.completion_log import Entries
    from fairlane.spark.operations.stream_ranges import StreamRange

_INDEX, _STATUS, _ATTEMPT, _WAITED, _RAN = range(5)  # of a head: model.result_head


def read_results(
    driver: SyncDriver, request_id: str, piece: StreamRange, page: int = RESULTS_PAGE
) -> Iterator[dict[str, Any]]:
    """Yields pages of the results in a piece of `out`, each as columns of the view `results`.

    Results that were settled in one millisecond are on one page, unless it is all of them.
    """
    out = keys.results(request_id)
    held: Entries = []
    left: StreamRange | None = piece
    while left is not None:
        entries, left = driver.run(read_page(out, left, page))
        entries, held = [*held, *entries], []
        if left is not None:
            complete = _before_last_moment(entries)
            entries, held = entries[:complete], entries[complete:]
        if entries:
            yield columns(entries, lambda names: driver.run(error_texts(request_id, names)))


def _before_last_moment(entries: Entries) -> int:
    """Returns how many entries precede the last millisecond; all if there is one only."""
    last = entries[-1][0].partition(b"-")[0] + b"-"
    at = len(entries)
    while at and entries[at - 1][0].startswith(last):
        at -= 1
    return at or len(entries)


def columns(entries: Entries, texts_of: Callable[[set[bytes]], dict[bytes, str]]) -> dict[str, Any]:
    """Returns the results in some entries of `out`, as arrays by column.

    `texts_of` reads the texts of errors by the names that the entries have instead.
    """
    heads: list[bytes] = []
    bodies: list[bytes] = []
    sizes: list[int] = []
    for _, fields in entries:  # worker, then (head, body) pairs
        heads += fields[2::2]
        bodies += fields[3::2]
        sizes.append(len(fields) // 2 - 1)
    parts = pc.split_pattern(pa.array(heads, type=pa.binary()).cast(pa.string()), ":")
    status = pc.list_element(parts, _STATUS)
    is_dead = pc.equal(status, "x")
    ran_us = _whole(parts, _RAN)
    waited_ms = _whole(parts, _WAITED)
    owner = pa.array([at for at, size in enumerate(sizes) for _ in range(size)], type=pa.int64())
    workers = pa.array([fields[1].decode("utf-8", "replace") for _, fields in entries])
    settled_us = pa.array([_ms(entry) * 1000 for entry in entries], type=pa.int64()).take(owner)
    before, behind = _around(entries, sizes, ran_us)
    return {
        "index": _whole(parts, _INDEX),
        "status": pc.if_else(is_dead, "dead", "done"),
        "result": pc.if_else(
            pc.equal(status, "d"), pa.array(bodies, type=pa.binary()), pa.scalar(None, pa.binary())
        ),
        "attempt": _whole(parts, _ATTEMPT),
        "worker": workers.take(owner),
        "waited_ms": waited_ms,
        "ran_ms": pc.divide(ran_us.cast(pa.float64()), 1000.0),
        "total_ms": pc.divide(
            pc.add(pc.multiply(waited_ms, 1000), pc.add(before, ran_us)).cast(pa.float64()), 1000.0
        ),
        "error": _errors(bodies, is_dead, texts_of),
        "started": _moments(pc.subtract(settled_us, behind)),
        "settled": _moments(settled_us),
    }


def _ms(entry: tuple[bytes, Any]) -> int:
    return int(entry[0].partition(b"-")[0])


def _whole(parts: Any, at: int) -> Any:
    return pc.list_element(parts, at).cast(pa.int64())


def _moments(micros: Any) -> Any:
    return micros.cast(pa.timestamp("us", tz="UTC"))


def _errors(
    names: list[bytes], is_dead: Any, texts_of: Callable[[set[bytes]], dict[bytes, str]]
) -> Any:
    if not pc.any(is_dead).as_py():
        return pa.nulls(len(names), pa.string())
    dead = is_dead.to_pylist()
    texts = texts_of({name for name, died in zip(names, dead, strict=True) if died})
    shown = [
        texts.get(name, ERROR_DROPPED) if died else None
        for name, died in zip(names, dead, strict=True)
    ]
    return pa.array(shown, type=pa.string())


def _around(entries: Entries, sizes: list[int], ran_us: Any) -> tuple[Any, Any]:
    """Returns how long (us) other results ran before each, and how long each and later ones ran.

    Others are those that its worker settled in the same millisecond: a big slice takes several
    entries.
    """
    firsts: list[int] = []
    lasts: list[int] = []
    row, at = 0, 0
    while at < len(entries):
        settler, end, count = _settler(entries[at]), at, 0
        while end < len(entries) and _settler(entries[end]) == settler:
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
