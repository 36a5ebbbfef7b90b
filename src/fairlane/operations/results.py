"""Reads a request's results while it runs, in completion or in input order.

Input order holds back early results in a bounded window. If a result does not fit, only its place
in Redis is kept, a few bytes for a run of results. It is read again when its turn comes.
"""

from __future__ import annotations

import heapq
from collections.abc import Generator, Iterator
from math import inf
from typing import Any

from fairlane.common import clock
from fairlane.common.text import brief_ms, when
from fairlane.errors import InvalidArgument, RequestLost, RequestNotFound
from fairlane.operations.completion import (
    ResultPage,
    is_reopened,
    read_entries,
    read_results,
    timed_out,
    vanished,
)
from fairlane.operations.request_state import moment, progress
from fairlane.protocol.steps import Operation
from fairlane.records import Result
from fairlane.settings import BLOCK_MS, LEAST_TOMBSTONE_MS

WINDOW_RESULTS = 20_000
WINDOW_BYTES = 64 << 20

# What Queue and aio.Queue must do next: run an operation and send its result, or yield results.
Flow = Generator[Operation[Any] | list[Result], Any, None]


class InputOrder:
    """A bounded reorder window over results that arrive in completion order."""

    def __init__(self, most: int = WINDOW_RESULTS, most_bytes: int = WINDOW_BYTES) -> None:
        self.next = 0
        self._most, self._most_bytes = most, most_bytes
        self._early: list[tuple[int, int, Result]] = []
        self._bytes = 0
        self._order = 0
        self._spilled: list[tuple[int, int, bytes]] = []  # first index, last index, entry of `out`

    def add(self, entry_id: bytes, found: list[Result]) -> None:
        """Takes the results of one entry of `out`; keeps them, or only the id of the entry."""
        if len(self._early) + len(found) <= self._most and self._bytes < self._most_bytes:
            self._keep(found)
            return
        for first, last in _runs(sorted(result.index for result in found)):
            heapq.heappush(self._spilled, (first, last, entry_id))

    def _keep(self, found: list[Result]) -> None:
        for result in found:
            self._order -= 1  # of two outcomes of one index (it was requeued) the later comes first
            heapq.heappush(self._early, (result.index, self._order, result))
            self._bytes += len(result.body or b"")

    def ready(self) -> list[Result]:
        """Returns the results whose turn it is; each index is returned once."""
        out = []
        while self._early and self._early[0][0] <= self.next:
            index, _, result = heapq.heappop(self._early)
            self._bytes -= len(result.body or b"")
            if index == self.next:
                out.append(result)
                self.next += 1
        return out

    def wanted(self) -> bytes | None:
        """Returns the id of the entry that must be read again now, or None."""
        if self._spilled and self._spilled[0][0] <= self.next:
            return self._spilled[0][2]
        return None

    def refill(self, found: list[Result]) -> None:
        """Takes the results of the wanted entry, of which only the current run is due."""
        first, last, _ = heapq.heappop(self._spilled)
        self._keep([result for result in found if max(first, self.next) <= result.index <= last])

    def gap(self) -> int:
        """Returns how many indexes lie before the next one that has a result.

        0 = no result is left.
        """
        heads = [heap[0][0] for heap in (self._early, self._spilled) if heap]
        return max(0, min(heads) - self.next) if heads else 0

    def skip(self, count: int) -> None:
        """Skips indexes that get no result."""
        self.next += count


class DistinctIndexes:
    """Counts distinct indexes among results, with one bit for each."""

    def __init__(self) -> None:
        self.count = 0
        self._bits = bytearray()

    def add(self, found: list[Result]) -> None:
        """Counts the indexes that are new."""
        bits = self._bits
        for result in found:
            at, mask = result.index >> 3, 1 << (result.index & 7)
            if at >= len(bits):
                bits.extend(bytes(at + 1 - len(bits)))
            if not bits[at] & mask:
                bits[at] |= mask
                self.count += 1


def _runs(indexes: list[int]) -> Iterator[tuple[int, int]]:
    first = last = None
    for index in indexes:
        if last is not None and index != last + 1:
            yield first, last  # type: ignore[misc]
            first = index
        first = index if first is None else first
        last = index
    if first is not None and last is not None:
        yield first, last


class ReadTime:
    """The time that a reader allows for all reads of a request's results; None = no bound."""

    def __init__(self, timeout_s: float | None) -> None:
        self.timeout_s = timeout_s or 0.0
        self._end = inf if timeout_s is None else clock.mono_s() + timeout_s

    def block_ms(self) -> int:
        """Returns how long the next read may block."""
        return max(1, int(min((self._end - clock.mono_s()) * 1000, BLOCK_MS)))

    def is_over(self) -> bool:
        """Returns True if no other read may begin."""
        return clock.mono_s() >= self._end


def flow(
    request_id: str, order: str, timeout_s: float | None = None, *, read: Any = read_results
) -> Flow:
    """Yields what the caller must do next to return every result: see Flow.

    However short the timeout is, results that are there are read once. A caller that waits for many
    requests gives its own `read`, and answers what that returns as `read_results` would. Raises
    WaitTimeout, and RequestLost if some results are gone.
    """
    if order not in {"input", "done"}:
        raise InvalidArgument(f"order {order!r} is not valid: input or done is expected")
    if timeout_s is not None and not isinstance(timeout_s, (int, float)):
        raise InvalidArgument(f"timeout {timeout_s!r} is not valid: seconds are expected")
    window = InputOrder() if order == "input" else None
    after, seen, time = b"0-0", DistinctIndexes(), ReadTime(timeout_s)
    page = yield read(request_id, after, time.block_ms())
    while True:
        for entry_id, results in page.entries:
            after = entry_id
            if window is None:
                seen.add(results)
                yield results
            else:
                window.add(entry_id, results)
                yield from _drain(request_id, window, seen)
        if page.is_last:
            is_whole = window is None or (yield from _pass_gaps(request_id, window, seen, page))
            if is_whole and seen.count >= page.settled:
                return
            if not (yield is_reopened(request_id, page)):
                raise (yield _incomplete(request_id, page, seen.count))
        # A request that has ended has all its results: they are read, however long that takes.
        if time.is_over() and not page.has_ended:
            yield _check_ended(request_id, time)
        page = yield read(request_id, after, time.block_ms(), page.born)


async def _check_ended(request_id: str, time: ReadTime) -> None:
    """Raises WaitTimeout for a request that has not ended, and RequestLost."""
    try:
        now = await progress(request_id)
    except RequestNotFound:
        raise vanished(request_id) from None
    if not now.ended:
        counts = f": {now.done:,}/{now.total:,} done"
        raise await timed_out(request_id, now.queue, time.timeout_s, counts)


def _drain(request_id: str, window: InputOrder, seen: DistinctIndexes) -> Flow:
    while True:
        out = window.ready()
        if out:
            seen.add(out)
            yield out
        wanted = window.wanted()
        if wanted is None:
            return
        (found,) = yield read_entries(request_id, [wanted])
        window.refill(found)


def _pass_gaps(
    request_id: str, window: InputOrder, seen: DistinctIndexes, end: ResultPage
) -> Generator[Operation[Any] | list[Result], Any, bool]:
    """Skips the indexes of cancelled sub-requests; returns False if there is any other gap."""
    passed = 0
    while gap := window.gap():
        # If the request was reopened since its end, results of indexes in the gap may follow.
        if passed + gap > end.cancelled or (yield is_reopened(request_id, end)):
            return False
        passed += gap
        window.skip(gap)
        yield from _drain(request_id, window, seen)
    return True


async def _incomplete(request_id: str, end: ResultPage, seen: int) -> RequestLost:
    """Returns the error for a request of whose results only `seen` were there."""
    if not seen and (expired := await _expired(request_id)):
        return RequestLost(expired)
    return RequestLost(
        f"request {request_id} has {end.settled:,} results, but only {seen:,} of them were "
        "there when their turn came: their retention is over, or a failover or a flush took them; "
        "read again what is still there"
    )


async def _expired(request_id: str) -> str:
    """Returns that the retention of all results is over, and until when the id is known; or ""."""
    try:
        now = await progress(request_id)
    except RequestNotFound:
        raise vanished(request_id) from None
    now_ms = await moment(request_id)
    if not now.ended or now.ended_ms is None or now.retain_ms is None:
        return ""
    if now.ended_ms + now.retain_ms > now_ms:
        return ""
    known_ms = max(now.retain_ms, now.remember_ms or 0, LEAST_TOMBSTONE_MS)
    return (
        f"the results of request {request_id} are gone: it ended at {when(now.ended_ms, now_ms)}, "
        f"and their retention is {brief_ms(now.retain_ms)}; its id is known "
        f"until {when(now.ended_ms + known_ms, now_ms)}"
    )
