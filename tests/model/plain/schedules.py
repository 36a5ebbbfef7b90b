"""Models schedules: what is due each minute, and which ticks get a request."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, NamedTuple

from fairlane.operations.schedules import decode, request_id
from tests.model.plain.words import agree

PERIODS = {"* * * * *": 60_000, "*/5 * * * *": 300_000}  # ms between two ticks of a line
LATE = 10_000  # a tick that is later than this was missed
Reply = list[Any]


@dataclass
class Schedule:
    raw: bytes
    tick: int | None  # None = it is paused

    @property
    def period(self) -> int:
        return PERIODS[decode(self.raw).cron]

    @property
    def digest(self) -> str:
        return hashlib.sha1(self.raw, usedforsecurity=False).hexdigest()


class Owed(NamedTuple):
    """What a leader owes to one schedule, by what it read."""

    ids: list[str]
    read_ms: int


class Schedules:
    """The schedules of one queue."""

    def __init__(self, queue: str) -> None:
        self.queue = queue
        self.stored: dict[str, Schedule] = {}
        self.made: set[str] = set()  # the ids of all requests that a tick ever had
        self.looks: list[int] = []  # when a leader lived

    def due(self, now: int, skip: int, most: int) -> Reply:
        """Returns the schedules that are due, the earliest first."""
        ticks = [(one.tick, name) for name, one in self.stored.items() if one.tick is not None]
        later = min((tick for tick, _ in ticks if tick > now), default=0)
        rows = sorted(row for row in ticks if row[0] <= now)[skip : skip + most]
        flat = [part for tick, name in rows for part in (name.encode(), tick, self.raw(name))]
        return [now, later, *flat]

    def look(self, now: int) -> None:
        """Notes that a leader lives now."""
        self.looks = [at for at in self.looks if at <= now] + [now]

    def raw(self, name: str) -> bytes:
        return self.stored[name].raw

    def owed(self, now: int) -> dict[str, Owed]:
        """Returns what a leader that reads now must submit, by each schedule's policy."""
        return {
            name: Owed(self._owed(name, one, now), now)
            for name, one in self.stored.items()
            if one.tick is not None and one.tick <= now
        }

    def _owed(self, name: str, one: Schedule, now: int) -> list[str]:
        """Returns the ticks that need a request: all that a leader saw; of the missed ones some."""
        ticks = list(range(one.tick or 0, now + 1, one.period))
        found = {tick for tick in ticks if any(tick <= at <= tick + LATE for at in self.looks)}
        policy = decode(one.raw)
        if policy.missed != "skip":
            found |= set(ticks[-(policy.most if policy.missed == "all" else 1) :])
        return [request_id(self.queue, name, tick) for tick in sorted(found)]

    def put(self, name: str, found: str, definition: bytes, tick: str) -> Reply:
        one = self.stored.get(name)
        if one and one.raw == definition and (not tick or one.tick == int(tick)):
            return [b"ok"]
        if (one.digest if one else "") != found:
            return [b"changed"]
        if one is None:
            self.stored[name] = Schedule(definition, int(tick))
            return [b"ok"]
        one.raw = definition
        if tick and one.tick is not None:
            one.tick = int(tick)
        return [b"ok"]

    def move(self, name: str, found: str, expected: str, tick: str, owed: Owed | None) -> Reply:
        """Moves a tick if nothing has changed; all that it passes must have its request."""
        one = self.stored.get(name)
        if one is None:
            return [b"gone"]
        then = int(tick) if tick else None
        if one.digest != found:
            return [b"moved"]
        if one.tick == then:
            return [b"ok"]
        if one.tick != (int(expected) if expected else None):
            return [b"moved"]
        if owed is not None:
            agree(
                [tick for tick in owed.ids if tick not in self.made], [], "ticks without a request"
            )
            agree(then, (owed.read_ms // one.period + 1) * one.period, f"the next tick of {name}")
        one.tick = then
        return [b"ok"]
