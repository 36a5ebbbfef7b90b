"""The base of the machine's rules: the queue under test, and the choice of its requests."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from tests.model.play.player import IDS, Lease, Player

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.model.plain.reference import Request
    from tests.model.plain.words import Options
    from tests.model.play.wire import Wire
    from tests.model.rules.acting import Acting

T = TypeVar("T")
MINUTE, HOUR = 60_000, 3_600_000

WORKERS = (("w:1", "7"), ("w:1", "8"), ("w:2", "7"))
VERDICTS = {"r": "retry", "t": "timeout", "x": "dead", "f": "release", "u": "unbegun"}
which = st.integers(0, 99)
workers = st.sampled_from(WORKERS)


def pick(choices: Sequence[T], n: int) -> T:
    """Returns one of them; the smaller the number, the newer."""
    return choices[-1 - n % len(choices)]


def has_graves(request: Request) -> bool:
    return any(sub.grave for sub in request.subs)


def step(**arguments: Any) -> Callable[[Callable[..., None]], Any]:
    """Marks a rule; while it runs, and after it has failed, the final check is left out."""

    def made(function: Callable[..., None]) -> Any:
        @wraps(function)
        def run(machine: Base, **given: Any) -> None:
            machine.is_whole = False
            function(machine, **given)
            machine.is_whole = True
            machine.counts["steps"] = machine.counts.get("steps", 0) + 1

        return rule(**arguments)(run)

    return made


class Base(RuleBasedStateMachine):
    """One queue, and what was begun in it."""

    wire: ClassVar[Wire]
    counts: ClassVar[dict[str, int]] = {}

    def __init__(self) -> None:
        super().__init__()
        self.player = Player(self.wire)
        self.book = self.player.book
        self.acting: list[Acting] = []  # operations that were cut off
        self._sent = 0
        self.is_whole = True

    def teardown(self) -> None:
        """Ends what was begun, and checks the final counts."""
        if self.is_whole:
            self.player.finish()
        self.counts["calls"] = self.counts.get("calls", 0) + self.player.calls

    def submit_one(self, request_id: str, chosen: Options, size: int, open_ms: int) -> None:
        """Submits a request as a producer does."""
        self.player.call(
            "enqueue",
            request_id,
            options=chosen,
            digest=f"d{self.player.new_op()}",
            intent=self.player.intend(request_id, 5_000),
            open_ms=open_ms,
            over=self.over(request_id, size),
            bodies=self.bodies(size),
        )

    def over(self, request_id: str, chance: int) -> str:
        """Returns the end of the abandoned life that a new one replaces; "" = it is not named."""
        former = self.book.requests.get(request_id)
        return former.ending if former and former.is_abandoned and chance % 3 else ""

    # ------------------------------------------------------------------ the choice of requests

    def some(self, n: int) -> str:
        """Returns an id: most often of a request that has not ended."""
        alive = sorted(self.book.live)
        return pick(IDS if n >= 90 or not alive else alive, n)

    def among(self, n: int, wanted: Callable[[Request], bool]) -> str:
        """Returns an id: most often of a request of this kind."""
        chosen = sorted(name for name, one in self.book.live.items() if wanted(one))
        return pick((chosen if n < 90 else []) or IDS, n)

    def standing(self) -> list[Lease]:
        return [lease for lease in self.player.leases if self.owed(lease) is not None]

    def lease(self, n: int) -> Lease:
        """Returns a lease: most often one that is valid."""
        return pick((self.standing() if n < 60 else []) or self.player.leases, n)

    def owed(self, lease: Lease) -> list[bytes] | None:
        """Returns what a lease still owes; None if it is not valid."""
        request = self.book.requests.get(lease.id)
        permit = request.permits.get(lease.k) if request else None
        if request is None or permit is None or not permit.is_held_by(lease.fence, lease.op):
            return None
        return [sub.id for sub in request.owed_by(lease.k)]

    def buried(self, n: int, count: int) -> tuple[str, list[bytes]]:
        """Returns a request and some of its sub-requests that are dead, or once were."""
        name = pick(sorted(name for name, one in self.book.requests.items() if has_graves(one)), n)
        return name, [sub.grave for sub in self.book.requests[name].subs if sub.grave][:count]

    def bodies(self, count: int) -> list[bytes]:
        """Returns so many bodies, no two alike."""
        self._sent += count
        return [b"b%d" % n for n in range(self._sent - count, self._sent)]

    # ------------------------------------------------------------------ shared steps

    def take_one(self, n: int, count: int, worker: tuple[str, str]) -> None:
        """Takes a token as a worker does, if its last heartbeat has reported no pause."""
        paused_until, rate = self.player.known.get(worker, (0, (0, 0)))
        self.player.flush()
        filled = self.book.filled()
        waits = max(paused_until, self.player.waits.get(worker, 0))
        if filled and waits <= self.book.now:
            lane = filled[0] if n < 60 else pick(filled, n)
            self.player.take(lane, count, worker, rate)

    def give_verdicts(
        self, lease: Lease, entries: list[bytes], chosen: str, delay: int, keep: str
    ) -> None:
        """Completes with verdicts: the letters are the fates of the entries, again and again."""
        fate_of = [(entry, chosen[i % len(chosen)]) for i, entry in enumerate(entries)]
        done = [(entry, lease.attempt, b"of " + entry) for entry, fate in fate_of if fate == "d"]
        others = [
            (entry, lease.attempt, VERDICTS[fate], delay)
            for entry, fate in fate_of
            if fate in VERDICTS
        ]
        self.player.complete(lease, done=done, others=others, keep=keep)
