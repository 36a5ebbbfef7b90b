"""What the workers measured: how long sub-requests waited and ran by priority, and ran by task.

A worker that runs a release of its users' code measures each task by release. The statistics of a
task are the sum over its releases.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from fairlane.call_records import CodeRelease
from fairlane.common.histogram import Distribution
from fairlane.common.task_names import OTHER
from fairlane.protocol import keys, scripts
from fairlane.protocol.request_hash import read
from fairlane.protocol.steps import Batch, Call, Command

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fairlane.protocol.steps import Arg

COUNTS = ("failed", "timeouts")
MOST_TASKS = 200  # that have statistics of their own; the others count as OTHER
MOST_RELEASES = 3  # by which tasks are measured; lua/v1/lib/task_stats.lua has the same number
_MOST = 1000  # fields of one call
_FIELDS_OF_TASK = 24  # about so many: counts, and a bucket for a quarter of an octave
_TASK_FIELD = re.compile(
    r"([^\t]*)(?:\t([^:]*))?:(calls|failed|ran:(?:count|sum|max|\d+))", re.DOTALL
)
_MINUTE_MS = 60_000


# ------------------------------------------------------------------ measured


class Lately(NamedTuple):
    """The calls that ended in this minute since 1970 and in the one before, and their failures."""

    minute: int = 0
    calls: int = 0
    failed: int = 0
    calls_before: int = 0
    failed_before: int = 0

    @classmethod
    def parse(cls, text: bytes) -> Lately:
        """Returns what add_stats.lua wrote; zeros for the text of another release."""
        parts = text.split()
        if len(parts) != len(cls._fields) or not all(map(bytes.isdigit, parts)):
            return cls()
        return cls(*map(int, parts))

    def at(self, minute: int) -> Lately:
        """Returns the same as seen in a later minute."""
        if minute <= self.minute:
            return self
        is_next = minute == self.minute + 1
        return Lately(minute, 0, 0, *((self.calls, self.failed) if is_next else (0, 0)))

    def plus(self, other: Lately) -> Lately:
        """Returns the sum of both."""
        minute = max(self.minute, other.minute)
        pairs = zip(self.at(minute)[1:], other.at(minute)[1:], strict=True)
        return Lately(minute, *(one + more for one, more in pairs))

    def since(self, now_ms: int) -> tuple[int, int, float]:
        """Returns the calls, the failures and the seconds since the last whole minute began."""
        found = self.at(now_ms // _MINUTE_MS)
        seconds = (_MINUTE_MS + now_ms % _MINUTE_MS) / 1000
        return found.calls + found.calls_before, found.failed + found.failed_before, seconds


@dataclass(slots=True)
class Measured:
    """One priority, one task, or all: waited in ms, ran in microseconds, and how often it failed.

    What was measured of a task has no `waited`; only that has `lately`.
    """

    waited: Distribution = field(default_factory=Distribution)
    ran: Distribution = field(default_factory=Distribution)
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTS, 0))
    lately: Lately = field(default_factory=Lately)

    def parts(self) -> list[tuple[str, Distribution]]:
        """Returns the distributions by name."""
        return [("waited", self.waited), ("ran", self.ran)]


def all_of(found: Mapping[Any, Measured]) -> Measured:
    """Returns the sum."""
    whole = Measured()
    for one in found.values():
        whole.waited.merge([one.waited])
        whole.ran.merge([one.ran])
        whole.lately = whole.lately.plus(one.lately)
        for name, number in one.counts.items():
            whole.counts[name] = whole.counts.get(name, 0) + number
    return whole


# ------------------------------------------------------------------ by priority


def add_stats(
    queue: str,
    priority: int,
    waited: Mapping[int, int],
    ran: Mapping[int, int],
    counts: Mapping[str, int],
) -> list[Call[Any]]:
    """Returns the calls that add measurements: value -> how often, in ms and in microseconds."""
    fields: dict[str, int] = {
        f"{priority}:{name}": count for name, count in counts.items() if count
    }
    for name, values in (("waited", waited), ("ran", ran)):
        fields |= _spread(f"{priority}:{name}", values)
    return _adding(keys.stats(queue), 0, fields)


async def tally_timeout(queue: str, request_id: str) -> None:
    """Adds a call of the handler that was killed: its process cannot report it."""
    (priority,) = await read(request_id, "priority")
    if priority:
        await Batch(add_stats(queue, int(priority), {}, {}, {"failed": 1, "timeouts": 1}))


async def read_stats(queue: str) -> dict[int, Measured]:
    """Returns priority -> what was measured, without priorities that have no measurement."""
    flat = await Command(b"HGETALL", keys.stats(queue))
    found: dict[int, Measured] = {}
    for name, value in zip(flat[::2], flat[1::2], strict=True):  # up to 13,000 fields
        priority, kind, what = _parts(name)
        one = found.get(priority)
        if one is None:
            one = found[priority] = Measured()
        if what == "":
            one.counts[kind] = int(value)
            continue
        distribution = one.waited if kind == "waited" else one.ran
        if isinstance(what, int):
            distribution.buckets[what] = int(value)
        else:
            setattr(distribution, what, int(value))
    return dict(sorted(found.items()))


@lru_cache(maxsize=1 << 14)  # a dashboard reads the same names once a second
def _parts(name: bytes) -> tuple[int, str, str | int]:
    """Returns the priority, the kind, and the bucket or another part of a distribution."""
    priority, kind, what = f"{name.decode()}:".split(":")[:3]
    return int(priority), kind, int(what) if what.isdigit() else what


# ------------------------------------------------------------------ by task


@dataclass(slots=True)
class TaskMeasures:
    """What one process measured of a task: how long its done calls ran, and how many failed."""

    ran_us: Counter[int] = field(default_factory=Counter)  # value -> how often
    failed: int = 0


class OfTask(NamedTuple):
    """A task, and the release of the code that was measured; "" if its worker names none."""

    task: str
    release: str = ""

    @property
    def text(self) -> str:
        """Returns what its fields begin with."""
        return f"{self.task}\t{self.release}" if self.release else self.task


TaskStats = dict[OfTask, Measured]


def add_task_stats(
    queue: str, found: Mapping[str, TaskMeasures], release: str = ""
) -> list[Call[Any]]:
    """Returns the calls that add what was measured of these tasks, by workers of this release."""
    calls, fields = list[Call[Any]](), dict[str, int]()
    bound = MOST_TASKS * _FIELDS_OF_TASK * (MOST_RELEASES if release else 1)
    for task, one in found.items():
        name = OfTask(task, release).text
        own = {f"{name}:calls": sum(one.ran_us.values()) + one.failed}
        if one.failed:
            own[f"{name}:failed"] = one.failed
        own |= _spread(f"{name}:ran", one.ran_us)
        if len(fields) + len(own) > _MOST:  # the fields of a task are in one call
            calls += _adding(keys.task_stats(queue), bound, fields)
            fields = {}
        fields |= own
    return calls + _adding(keys.task_stats(queue), bound, fields)


async def read_task_stats(queue: str) -> TaskStats:
    """Returns what was measured by task and release; see `by_task`."""
    flat = await Command(b"HGETALL", keys.task_stats(queue))
    found: TaskStats = {}
    for name, value in zip(flat[::2], flat[1::2], strict=True):  # up to 14,400 fields
        of, kind, what = _task_parts(name)
        if of is None:  # of another release of Fairlane
            continue
        one = found.get(of)
        if one is None:
            one = found[of] = Measured()
        if kind == "calls":
            one.lately = Lately.parse(value)
        elif kind == "failed":
            one.counts["failed"] = int(value)
        elif isinstance(what, int):
            one.ran.buckets[what] = int(value)
        else:
            setattr(one.ran, what, int(value))
    return found


@lru_cache(maxsize=1 << 14)
def _task_parts(name: bytes) -> tuple[OfTask | None, str, str | int]:
    match = _TASK_FIELD.fullmatch(name.decode("utf-8", "replace"))
    if match is None:
        return None, "", ""
    kind, _, what = match[3].partition(":")
    return OfTask(match[1], match[2] or ""), kind, int(what) if what.isdecimal() else what


def by_task(stats: TaskStats) -> dict[str, Measured]:
    """Returns task -> what was measured, the busiest first: at most 200 tasks, and OTHER last."""
    releases: dict[str, list[Measured]] = {}
    for of, measured in stats.items():
        releases.setdefault(of.task, []).append(measured)
    found = {
        task: rows[0] if len(rows) == 1 else all_of(dict(enumerate(rows)))
        for task, rows in releases.items()
    }
    named = sorted((task for task in found if task != OTHER), key=lambda task: _busy(found, task))
    shown = {task: found[task] for task in named[:MOST_TASKS]}
    rest = [found[task] for task in (*named[MOST_TASKS:], OTHER) if task in found]
    if rest:  # also tasks that were new at the same moment
        shown[OTHER] = all_of(dict(enumerate(rest)))
    return shown


def _busy(found: Mapping[str, Measured], task: str) -> tuple[int, str]:
    return -found[task].ran.count, task


# ------------------------------------------------------------------ releases


def read_releases(text: str) -> tuple[CodeRelease, ...]:
    """Returns the last releases, the newest first, from the field `releases` of a queue's conf."""
    parts = text.split()
    pairs = zip(parts[::2], parts[1::2], strict=False)
    found = [CodeRelease(name, int(at)) for name, at in pairs if at.isdecimal()]
    return tuple(reversed(found))


async def releases(queue: str) -> tuple[CodeRelease, ...]:
    """Returns the last releases of the code that workers of a queue ran, the newest first."""
    text = await Command(b"HGET", keys.conf(queue), b"releases")
    return read_releases((text or b"").decode("utf-8", "replace"))


# ------------------------------------------------------------------ fields


def _spread(name: str, values: Mapping[int, int]) -> dict[str, int]:
    """Returns the fields of a distribution of these values."""
    if not values:
        return {}
    found = Distribution()
    found.add(values)
    fields = {f"{name}:count": found.count, f"{name}:sum": found.sum, f"{name}:max": found.max}
    return fields | {f"{name}:{bucket}": count for bucket, count in found.buckets.items()}


def _adding(key: bytes, bound: int, fields: Mapping[str, int]) -> list[Call[Any]]:
    flat: list[Arg] = [part for pair in fields.items() for part in pair]
    return [
        scripts.add_stats((key,), most=bound, numbers=flat[first : first + 2 * _MOST])
        for first in range(0, len(flat), 2 * _MOST)
    ]


async def forget_stats(queue: str) -> Any:
    """Deletes all measurements of the queue."""
    return await Batch(
        [Command(b"DEL", keys.stats(queue)), Command(b"DEL", keys.task_stats(queue))]
    )
