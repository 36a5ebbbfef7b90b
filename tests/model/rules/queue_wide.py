"""Models what holds for a whole queue: its pause, its rate, and the workers' heartbeats."""

from __future__ import annotations

from collections import deque
from typing import Any

from tests.model.plain.words import agree

ENDLESS_MS = 10**15  # a pause until the queue is resumed
LONGEST_WAIT = 30_000  # ms in the line of a bucket
LOCK_MS, TTL_MS = 10_000, 86_400_000
Reply = list[Any]


class Bucket:
    """The bucket of a rate, in µs: its debt, and when the last in its line may ask again."""

    def __init__(self) -> None:
        self.tat = self.line = 0
        self.starts: deque[tuple[int, int]] = deque()  # when and how many, under one rate

    def take(
        self, now: int, interval: int, burst: int, want: int, *, has_waited: bool
    ) -> tuple[int, int]:
        """Returns how many may start now, and if none may, the ms until the caller asks again."""
        clock = 1_000 * now
        tat = max(self.tat, clock)
        room = (interval * burst - (tat - clock)) // interval
        is_behind = self.line > clock and not has_waited
        if room < 1 or is_behind:
            several = max(1, min(want, burst // 2))
            begin = self.line if self.line > clock else tat - interval * burst
            line = begin + several * interval
            self.tat, self.line = tat, min(line, clock + 1_000 * LONGEST_WAIT)
            return 0, min(LONGEST_WAIT, max(1, -((clock - line) // 1_000)))
        granted = min(room, want)
        self.tat = tat + granted * interval
        return granted, 0

    def refund(self, now: int, interval: int, count: int) -> None:
        """Returns what was taken and not used; the bucket never exceeds its burst."""
        self.tat = max(1_000 * now, self.tat - count * interval)

    def refit(self, now: int, interval: int, burst: int) -> None:
        """Fits the bucket to a new rate: it owes at most the burst, and the line begins anew."""
        clock = 1_000 * now
        self.tat, self.line = min(max(self.tat, clock), clock + interval * burst), 0
        self.starts.clear()

    def note(self, now: int, interval: int, burst: int, count: int) -> None:
        """Checks that no window has more starts than the burst and the rate allow."""
        self.starts.append((1_000 * now, count))
        total = 0
        for began, number in reversed(self.starts):
            total += number
            most = burst + (1_000 * now - began) // interval
            agree(total <= most, True, f"{total} starts in {now - began // 1_000} ms")


class QueueWide:
    """The switches of the queue, and the workers that send heartbeats."""

    def __init__(self) -> None:
        self.paused_until = 0
        self.rate = (0, 0)  # interval in µs and burst; 0 = none
        self.bucket = Bucket()
        self.beats: dict[str, int] = {}
        self.started: dict[str, str] = {}
        self.lock, self.lock_until = "", 0

    def pause(self, now: int, period: int) -> Reply:
        """Pauses from now on for so long, or resumes with 0."""
        self.paused_until = min(ENDLESS_MS, now + period) if period else 0
        return [now, self.paused_until]

    def is_paused(self, now: int) -> bool:
        return self.paused_until > now

    def register(self, now: int, worker: str, started: str, late: int) -> Reply:
        """Registers a worker, which may take a name over whose last heartbeat is late."""
        other = self.started.get(worker)
        if other not in (None, started) and now - self.beats[worker] <= late:
            return [b"taken", b"h", b"1"]
        self.started[worker], self.beats[worker] = started, now
        return [b"ok"]

    def beat(self, now: int, worker: str, started: str, dues: tuple[int, int, int]) -> Reply:
        """Returns a heartbeat's reply; `dues`: when `active`, tokens and ticks are due next."""
        if worker not in self.started:
            return [b"unknown"]
        if self.started[worker] != started:
            return [b"replaced"]
        self.beats[worker] = now
        leads = self.lock == worker or self.lock_until < now
        if leads:
            self.lock, self.lock_until = worker, now + LOCK_MS
        active, delayed, tick = dues
        pause = self.paused_until if self.is_paused(now) else 0
        rate = b"%d %d" % self.rate if self.rate[0] else b""
        oldest = min(self.beats.values())
        found = [b"ok", int(leads), now, active, delayed, oldest, b"", b"", 0, tick, pause, rate]
        return [*found, 0]  # no order was given to a worker
