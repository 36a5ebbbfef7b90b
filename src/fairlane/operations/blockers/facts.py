"""What the diagnosis of a request reads: the request itself, its queue, those that it waits for.

The cost is bounded: one page of permits, and a few commands.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from fairlane.errors import FairlaneError
from fairlane.model import ENDED_STATES
from fairlane.operations.batching import run_each_or_error
from fairlane.operations.control.request_state import number, progress_of
from fairlane.operations.create.lives import NEVER_MS, Life, find_circles, read_lives, waiting_lives
from fairlane.operations.lease.rates import opens
from fairlane.operations.maintenance.dead_workers import LATEST_MS
from fairlane.operations.maintenance.queue_pause import QueuePause, read_until
from fairlane.operations.maintenance.queue_rate import parse_queue_rate
from fairlane.protocol import keys, permit_fields
from fairlane.protocol.request_hash import hmget, parse_fields
from fairlane.protocol.server_info import time_ms
from fairlane.protocol.steps import Batch, Command

if TYPE_CHECKING:
    from fairlane.common.rate import Rate
    from fairlane.model import Progress
    from fairlane.protocol.permit_fields import HeldPermit
    from fairlane.protocol.steps import Operation

MOST_PERMITS = 1_000  # held permits whose workers are read
_MOST_OTHERS = 20  # requests that one waits for, and that are read
_OTHER = ("state", "born", "total", "done", "dead")


class Other(NamedTuple):
    """A request that another one waits for; `state` is "" if it is gone or could not be read."""

    id: str
    state: str
    settled: int
    total: int

    @property
    def has_ended(self) -> bool:
        """Returns True if it holds up nothing any more."""
        return not self.state or self.state in ENDED_STATES or self.state == "abandoned"


class RequestFacts(NamedTuple):
    """A request at one moment of its Redis.

    `fresh` sub-requests wait for their first delivery, `retries` for another one; `due` of these
    may start now, the first of the others at `next_due_ms`. `holders` are at most MOST_PERMITS.
    """

    progress: Progress
    now_ms: int
    fresh: int
    retries: int
    due: int
    next_due_ms: int
    last_chunk_ms: int
    holders: list[HeldPermit]
    after: str  # "done" or "end"; "" = it waits for no other request
    others: list[Other]
    more_others: int
    rates_open_ms: int = 0  # when its rates allow the next start, if they hold it up
    circle: tuple[str, ...] = ()  # requests that wait for each other, one of which holds it up

    @property
    def is_gate_open(self) -> bool:
        """Returns True if neither a delay, a rate nor other requests keep it from starting."""
        return self.progress.opens_ms <= self.now_ms

    @property
    def ready(self) -> int:
        """Returns how many sub-requests may be delivered now, as lua/v1/lib/permits/mint.lua."""
        return self.fresh + self.due if self.is_gate_open else 0

    @property
    def can_start(self) -> bool:
        """Returns True if the request waits for nothing but a worker."""
        free = self.progress.limit - self.progress.held
        return self.progress.state == "active" and self.ready > 0 and free > 0


class QueueFacts(NamedTuple):
    """A queue: its pause, how many of its workers beat, and its rate.

    `opens_ms` is when the rate allows the next start, 0 = now.
    """

    name: str
    pause: QueuePause
    workers: int
    rate: Rate | None = None
    opens_ms: int = 0


def read_queue(queue: str) -> Operation[QueueFacts]:
    """Returns what holds up all requests of a queue."""
    (until, text), time = yield Batch(
        [Command(b"HMGET", keys.conf(queue), b"paused_until", b"rate"), Command(b"TIME")]
    )
    now_ms = time_ms(time)
    beats = yield Command(b"ZCOUNT", keys.workers(queue), now_ms - LATEST_MS, b"+inf")
    rate = parse_queue_rate(queue, text)
    opens_ms = 0 if rate is None else (yield from opens(rate, now_ms))
    return QueueFacts(queue, QueuePause(read_until(until), now_ms), beats, rate, opens_ms)


def read_request(request_id: str) -> Operation[RequestFacts | None]:
    """Returns what a request waits for; None if there is no such request."""
    leases, retries = keys.leases(request_id), keys.retries(request_id)
    fields, held, permits, waiting, first, time = yield Batch(
        [
            Command(b"HGETALL", keys.request_hash(request_id)),
            Command(b"ZCARD", leases),
            Command(b"ZRANGE", leases, 0, MOST_PERMITS - 1),
            Command(b"ZCARD", retries),
            Command(b"ZRANGE", retries, 0, 0, b"WITHSCORES"),
            Command(b"TIME"),
        ]
    )
    progress = progress_of(request_id, fields, held)
    if progress is None:
        return None
    now_ms = time_ms(time)
    next_due_ms = int(float(first[1])) if first else 0
    due = 0
    if first and next_due_ms <= now_ms:
        due = yield Command(b"ZCOUNT", retries, b"-inf", now_ms)
    mode, lives = read_lives(progress.detail.get("after", ""))
    is_held_back = bool(mode) and progress.opens_ms == NEVER_MS
    left = [life for life in lives if not life.is_over] if is_held_back else []
    detail = progress.detail
    waits = waiting_lives(progress.state, str(progress.opens_ms), detail.get("after", ""))
    return RequestFacts(
        progress=progress,
        now_ms=now_ms,
        fresh=number(progress.detail, "fresh"),
        retries=waiting,
        due=due,
        next_due_ms=next_due_ms,
        last_chunk_ms=number(progress.detail, "last_ms"),
        holders=(yield from read_holders(request_id, permits)),
        after=mode if is_held_back else "",
        others=(yield from _others(left[:_MOST_OTHERS])),
        more_others=max(0, len(left) - _MOST_OTHERS),
        rates_open_ms=(yield from _rates_open(progress, now_ms)),
        circle=(yield from _circle({request_id: waits})) if waits else (),
    )


def _rates_open(progress: Progress, now_ms: int) -> Operation[int]:
    latest = 0
    for rate in progress.rates if progress.is_rate_limited else ():
        latest = max(latest, (yield from opens(rate, now_ms, progress.id)))
    return latest


def read_holders(request_id: str, names: list[bytes]) -> Operation[list[HeldPermit]]:
    """Returns the holders of these permits; one that was just returned is left out."""
    if not names:
        return []
    texts = yield Command(b"HMGET", keys.permits(request_id), *names)
    pairs = zip(names, texts, strict=True)
    fields = {
        name.decode(): text.decode("utf-8", "replace") for name, text in pairs if text is not None
    }
    return list(permit_fields.held(fields))


def _circle(waiting: dict[str, list[Life]]) -> Operation[tuple[str, ...]]:
    circles = yield from find_circles(waiting)
    return tuple(circles[0]) if circles else ()


def _others(lives: list[Life]) -> Operation[list[Other]]:
    rows = yield from run_each_or_error([hmget(life.id, *_OTHER) for life in lives])
    found = []
    for life, row in zip(lives, rows, strict=True):
        if isinstance(row, FairlaneError):
            found.append(Other(life.id, "unreadable", 0, 0))
            continue
        state, born, total, done, dead = parse_fields(_OTHER, row)
        if born != str(life.born):  # the id has another life, or none
            state = ""
        found.append(Other(life.id, state, int(done or 0) + int(dead or 0), int(total or 0)))
    return found
