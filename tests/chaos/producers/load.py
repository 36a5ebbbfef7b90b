"""The load: threads that submit requests of all sizes, and a follower of the completion log."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

from fairlane.errors import FairlaneError
from fairlane.queue import Queue
from fairlane.settings import PATIENCE_S
from tests.chaos.producers.handlers import body_of, name_of

if TYPE_CHECKING:
    from collections.abc import Callable

TRIES = 20  # of one submission
MEAN_SIZE = 33  # of a `quick` request, about
ATTEMPTS = 100  # the most: no sub-request may use them up by being killed again and again
BACKOFF_MS = (20, 100)
_POLL_S = 0.05


class Plan(NamedTuple):
    kind: str
    size: int
    limit: int
    priority: int
    options: tuple[tuple[str, Any], ...] = ()  # more of submit_request


@dataclass
class Submitted:
    """A submitted request; `acked_ns` is when that was acknowledged."""

    number: int
    plan: Plan
    sent_ns: int
    acked_ns: int = 0
    tried_ns: int = 0
    tries: int = 1
    place: int = 0  # its submitter


def mixed(rng: random.Random) -> Plan:
    """Returns many small ones, some big ones, some slow, some that fail at first."""
    limit, priority = rng.randint(1, 8), rng.choice((0, 5, 5, 9, 50, 99))
    kind = rng.choices("esf", (70, 15, 15))[0]
    if kind == "e":
        size = rng.choices(
            (1, rng.randint(2, 50), rng.randint(51, 2000), rng.randint(2000, 20_000)),
            (25, 30, 30, 15),
        )[0]
    else:
        size = rng.randint(1, 200)
    return Plan(kind, size, limit, priority)


def of_all_kinds(rng: random.Random) -> Plan:
    """Returns `small`, most of them with a tenant, a rate, a delay, ageing, or another life."""
    options: dict[str, Any] = rng.choice(
        (
            {},
            {"tenant": rng.choice("abc"), "share": rng.choice((1, 5))},
            {"tenant": rng.choice("abc"), "delay": rng.choice((0.01, 0.3))},
            {"rate": "400/s", "burst": 40, "rate_key": "chaos"},
            {"rate": "300/s", "delay": 0.2, "tenant": "a"},
            {"ageing": 1.0, "tags": ["aged"]},
            {"delay": rng.choice((0.05, 1.0)), "on_duplicate": "keep"},
            {"open": True, "tenant": "b"},  # its first producer dies
            {"after": (), "after_any_end": rng.random() < 0.5},  # Load names one that is there
        )
    )
    plan = small(rng)
    most = 60 if "rate" in options else plan.size
    return plan._replace(size=min(plan.size, most), options=tuple(options.items()))


def small(rng: random.Random) -> Plan:
    """Returns the same as `mixed`, but nothing above 500."""
    plan = mixed(rng)
    return plan._replace(size=min(plan.size, rng.randint(1, 500)))


def quick(rng: random.Random) -> Plan:
    """Returns many tiny requests: many acknowledgements a second, in many hash slots."""
    limit, priority = rng.randint(1, 8), rng.choice((0, 5, 5, 9, 50, 99))
    kind = rng.choices("esf", (70, 15, 15))[0]
    most = {"e": 2_500, "s": 60, "f": 200}[kind]
    size = rng.choices((1, rng.randint(2, 20), rng.randint(20, 300), most), (30, 62, 7, 1))[0]
    return Plan(kind, min(size, most), limit, priority)


def long_ones(rng: random.Random) -> Plan:
    """Returns many long ones, some of them longer than their lease."""
    plan = small(rng)
    kind = rng.choices("eslh", (10, 20, 65, 5))[0]
    most = {"e": 200, "s": 100, "l": 60, "h": 8}[kind]
    return plan._replace(kind=kind, size=rng.randint(1, most))


@dataclass
class Load:
    """Submits until `most` sub-requests are in, never more than `allowed()` and `window` ahead."""

    url: str
    most: int
    seed: int
    plan: Callable[[random.Random], Plan] = mixed
    lease_ms: int = 3_000
    window: int = 60_000
    submitters: int = 2
    allowed: Callable[[], float] = lambda: float("inf")
    durable: int = 0
    patience_s: Callable[[int], float] = lambda _: PATIENCE_S  # submitter -> of one call
    enter: Callable[[int], None] = lambda _: None  # a submitter's thread begins; -1 the follower's
    again_s: float = 0.0  # from a submission that failed until the same again
    tries: int = TRIES
    pace: Callable[[], float] = lambda: float("inf")  # requests that may be in by now
    chosen: Callable[[int], bool] = lambda _: True  # the numbers of its requests
    requests: dict[int, Submitted] = field(default_factory=dict)
    logged: dict[int, list[tuple[str, int]]] = field(default_factory=lambda: defaultdict(list))
    forgotten: set[int] = field(default_factory=set)  # acknowledged, and gone after a restart
    lost: set[int] = field(default_factory=set)  # ... and the log has their loss
    fresh: deque[tuple[int, int]] = field(default_factory=deque)  # acknowledged: number, submitter
    problems: list[str] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)  # submissions, by the error they met
    count: int = 0
    ended: int = 0
    _paced: int = 0

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers = filter(self.chosen, count())
        self._over = threading.Event()
        self._threads: list[threading.Thread] = []
        self._follower: threading.Thread | None = None

    @property
    def is_in(self) -> bool:
        return not any(thread.is_alive() for thread in self._threads)

    @property
    def is_done(self) -> bool:
        return self.is_in and len(self.forgotten | set(self.logged)) >= len(self.requests)

    @property
    def room(self) -> int:
        """Returns how many sub-requests may still be submitted now."""
        return int(min(self.allowed(), self.most)) - self.count

    @property
    def is_idle(self) -> bool:
        """Returns whether all that may be submitted now was submitted, and has ended."""
        return self.room < 1 and self.ended >= self.count

    def start(self) -> None:
        """Begins to submit and to follow the completion log."""
        rng = random.Random(self.seed)
        self._follower = threading.Thread(target=self._follow, daemon=True)
        for place in range(self.submitters):
            given = (random.Random(rng.random()), place)
            self._threads.append(threading.Thread(target=self._submit, args=given, daemon=True))
        for thread in [*self._threads, self._follower]:
            thread.start()

    def close(self) -> None:
        self._over.set()
        for thread in [*self._threads, *([self._follower] if self._follower else [])]:
            thread.join(PATIENCE_S)

    # ------------------------------------------------------------------ submission

    def _submit(self, rng: random.Random, place: int) -> None:
        self.enter(place)
        again: deque[Submitted] = deque()
        with Queue.from_url(self.url, patience_s=self.patience_s(place)) as queue:
            while not self._over.is_set():
                one = self._todo(rng, again, place)
                if one is None:
                    if self.count >= self.most and not again:
                        return
                    self._over.wait(0.02)
                elif self.send(queue, one):
                    self.fresh.append((one.number, place))
                elif one.tries <= self.tries:
                    again.append(one)

    def _todo(self, rng: random.Random, again: deque[Submitted], place: int) -> Submitted | None:
        """Returns what failed a while ago, before anything new."""
        if again and time.monotonic_ns() - again[0].tried_ns >= self.again_s * 1e9:
            return again.popleft()
        with self._lock:
            plan = self._next(rng) if self.count < self.most else None
        if plan is None:
            return None
        return self.enlist(next(self._numbers), plan, place)

    def enlist(self, number: int, plan: Plan, place: int = 0) -> Submitted:
        one = Submitted(number, plan, time.monotonic_ns(), place=place)
        self.requests[number] = one
        return one

    def _next(self, rng: random.Random) -> Plan | None:
        room = self.room
        if self.count - self.ended > self.window or room < 1:
            return None
        if self._paced >= self.pace():
            return None
        self._paced += 1
        plan = self.plan(rng)
        plan = plan._replace(size=min(plan.size, room), options=self._named(plan.options, rng))
        self.count += plan.size
        return plan

    def _named(
        self, options: tuple[tuple[str, Any], ...], rng: random.Random
    ) -> tuple[tuple[str, Any], ...]:
        """Names the requests that a new one starts after: some that were acknowledged lately."""
        given = dict(options)
        if "after" in given:
            there = [one.number for one in list(self.requests.values())[-20:] if one.acked_ns]
            if not there:
                return ()
            given["after"] = tuple(name_of(n) for n in rng.sample(there, min(2, len(there))))
        return tuple(given.items())

    def submit(self, queue: Queue, plan: Plan) -> int:
        """Submits one request in the caller's own thread; returns its number once acknowledged."""
        one = self.enlist(next(self._numbers), plan)
        while not self._over.is_set() and one.tries <= self.tries:
            if self.send(queue, one):
                break
        self.count += plan.size
        return one.number

    def send(self, queue: Queue, one: Submitted) -> bool:
        """Submits it, or the same again by its id; False if it was not acknowledged."""
        number = one.number
        one.tried_ns = time.monotonic_ns()
        try:
            self._send(queue, one)
        except FairlaneError as error:
            one.tries += 1
            self.refused[type(error).__name__] += 1
            if one.tries > self.tries:
                self.problems.append(f"request {number} can't be submitted: {error}")
            return False
        one.acked_ns = time.monotonic_ns()
        return True

    def _send(self, queue: Queue, one: Submitted) -> None:
        plan = one.plan
        bodies = [body_of(plan.kind, one.number, index) for index in range(plan.size)]
        given: dict[str, Any] = {
            "id": name_of(one.number),
            "priority": plan.priority,
            "limit": plan.limit,
            "attempts": ATTEMPTS,
            "backoff": (BACKOFF_MS[0] / 1000, BACKOFF_MS[1] / 1000),
            "lease": self.lease_ms / 1000,
            "retain": 3600,
            "durable": self.durable,
        } | dict(plan.options)
        if not given.pop("open", False):
            queue.submit_request(bodies, **given)
            return
        first = queue.open(**given)
        first.add_many(bodies[first.added : plan.size // 2])
        second = queue.open(**given)  # the first producer is gone with what it had not sent
        second.add_many(bodies[second.added :])
        second.seal()

    # ------------------------------------------------------------------ completion

    def _follow(self) -> None:
        """Reads the log as a consumer does, and notes when each end was seen."""
        self.enter(-1)
        after = "0"
        with Queue.from_url(self.url) as queue:
            while not self._over.wait(_POLL_S):
                with contextlib.suppress(FairlaneError):
                    for ending in queue.completions(after, follow=False):
                        after = ending.log_id
                        number = int(ending.id[1:])
                        if not self.chosen(number):
                            continue
                        self.logged[number].append((ending.log_id, time.monotonic_ns()))
                        self.ended += ending.total
                        if ending.state == "lost":
                            self.lost.add(number)
