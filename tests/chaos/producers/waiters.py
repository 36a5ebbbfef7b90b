"""Threads that wait for requests and keep the outcome: an end and its results, or a loss.

Each thread waits for the newest acknowledged request that has no waiter. Its answer is kept, and
compared at the end with what is there: an end that was reported must not be taken back.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fairlane.errors import FairlaneError, RedisError, RequestNotFound, WaitTimeout
from fairlane.queue import Queue
from tests.chaos.producers.handlers import name_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from fairlane.records import Result
    from tests.chaos.producers.load import Load

ANSWER_S = 120.0  # a waiter without an answer by then was forgotten
_READ_MOST = 500  # results that a waiter reads
_POLL_S = 0.02
_CALL_S = 10.0  # one wait; then it looks whether the run is over


def digest_of(results: Iterable[Result]) -> str:
    """Returns a digest of these results: their fences, so that another execution is detected."""
    made = hashlib.sha256()
    for result in results:
        made.update(b"%d:%s:%b\n" % (result.index, result.status.encode(), result.body or b""))
    return made.hexdigest()


@dataclass
class Answer:
    """What one waiter received about its request."""

    word: str  # done, cancelled, RequestLost, RequestNotFound; "" = nothing yet
    seconds: float = 0.0  # it took
    digest: str = ""  # of the results it read; "" = it did not
    unconfirmed: int = 0  # NotDurable, before


@dataclass
class Waiters:
    """Threads that wait. `place` names the submitter's requests: it may be cut off with it."""

    load: Load
    url: str
    count: int = 4
    enter: Callable[[int], None] = lambda _: None
    answers: dict[int, Answer] = field(default_factory=dict)
    problems: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._over = threading.Event()
        places = [number % self.load.submitters for number in range(self.count)]
        self._threads = [
            threading.Thread(target=self._work, args=(place,), daemon=True) for place in places
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Ends each thread with the request it waits for, if that ends soon."""
        self._over.set()
        for thread in self._threads:
            thread.join(ANSWER_S)

    def _work(self, place: int) -> None:
        self.enter(place)
        with Queue.from_url(self.url) as queue:
            while not self._over.is_set():
                number = self._next(place)
                if number < 0:
                    self._over.wait(_POLL_S)
                else:
                    self._wait(queue, number)

    def _next(self, place: int) -> int:
        """Returns the newest request that was acknowledged at this place; -1 if there is none."""
        fresh = self.load.fresh
        with self._lock:
            for _ in range(len(fresh)):
                number, its_place = fresh.pop()
                if its_place == place:
                    while len(fresh) > 1000:  # older ones never have their turn
                        fresh.popleft()
                    return number
                fresh.appendleft((number, its_place))
        return -1

    def _wait(self, queue: Queue, number: int) -> None:
        began = time.monotonic()
        one = self.answers[number] = Answer("")
        request = queue.request(name_of(number))
        while time.monotonic() - began < ANSWER_S:
            try:
                word = request.wait(timeout=_CALL_S)
                if self.load.requests[number].plan.size <= _READ_MOST:
                    one.digest = digest_of(request.results())
                one.word = word
            except RequestNotFound as error:
                one.word = type(error).__name__
            except WaitTimeout:
                continue
            except RedisError as error:
                one.unconfirmed += 1
                self.problems[type(error).__name__] += 1
                continue
            except FairlaneError as error:
                one.word = type(error).__name__
            break
        one.seconds = time.monotonic() - began
