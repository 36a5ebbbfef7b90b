"""The rules of the product's operations of several steps, each of which may be cut off anywhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st
from hypothesis.stateful import precondition

from fairlane.errors import RequestExists, ScheduleNotFound
from fairlane.operations import schedules
from fairlane.operations.create import Digest, NewRequest, RequestKept, create_one
from fairlane.operations.flow_branches import Choices
from fairlane.operations.flow_hand_over import BRANCH, DONE, GATHER, JOIN, Feed, Wrap, hand_over
from fairlane.operations.schedules import define, fire
from fairlane.options import Policy
from tests.model.plain.book import QUEUE
from tests.model.plain.schedules import PERIODS
from tests.model.plain.words import Options, agree
from tests.model.play.player import IDS
from tests.model.rules.acting import Acting
from tests.model.rules.base import HOUR, MINUTE, WORKERS, Base, pick, step, which, workers
from tests.model.rules.queue_wide import ENDLESS_MS

if TYPE_CHECKING:
    from fairlane.protocol.steps import Operation
    from tests.model.plain.reference import Request

FLOWS = ("f", "g")  # each has two children, f1 and f2, and the request f3 that they feed
SCHEDULES = ("s", "t")
WRAP = Wrap(b"[", b"]", b"null", b",")
SHORT_MS = 10 * MINUTE  # a leader that was suspended for longer may find no tombstone any more
RATES = ((0, 0), (1_000_000, 2), (500_000, 5), (7_000_000, 1))  # interval in µs, burst
cuts = st.sampled_from((99, 99, 99, 1, 2, 3, 5))


def has_acting(machine: Base) -> bool:
    return bool(machine.acting)


def has_fed(machine: Base) -> bool:
    return any(request.options.feeds for request in machine.book.requests.values())


def has_schedules(machine: Base) -> bool:
    return bool(machine.book.schedules.stored)


class Operations(Base):
    """Unique ids, flows, schedules, and the pause and the rate of the queue."""

    def act(self, operation: Operation[Any], steps: int = 99) -> Acting:
        """Runs an operation; if it is cut off, another rule may continue it, or none."""
        acting = Acting(self.player, operation).go_on(steps)
        if not acting.is_over:
            self.acting = [*self.acting[-3:], acting]
        return acting

    @precondition(has_acting)
    @step(n=which, steps=cuts)
    def go_on(self, n: int, steps: int) -> None:
        """Continues a suspended producer or leader with what it has read."""
        acting = pick(self.acting, n)
        if acting.is_over or self.book.now - acting.began >= SHORT_MS:
            self.acting.remove(acting)
        else:
            acting.go_on(steps)

    # ------------------------------------------------------------------ unique ids

    @step(
        n=which,
        how=st.sampled_from(("keep", "replace", "debounce")),
        window_ms=st.sampled_from((0, 0, 5_000, 10 * MINUTE)),
        delay_ms=st.sampled_from((3_000, 30_000, 0)),
        steps=cuts,
    )
    def submit_unique(self, n: int, how: str, window_ms: int, delay_ms: int, steps: int) -> None:
        """Submits as a producer whose id may have another request."""
        name, new = pick(IDS, n), self.player.new_op()
        if how == "debounce":
            delay_ms = delay_ms or 1_000
        policy = Policy(
            queue=QUEUE,
            priority=3 + n % 3,
            limit=1 + n % 2,
            retain_ms=HOUR,
            delay_ms=delay_ms,
            window_ms=window_ms,
            on_duplicate=how,
            nonce=new,
        )
        digest, bodies = Digest(policy), self.bodies(n % 4)
        digest.add(bodies)
        former = self.book.requests.get(name)
        wanted = outcome(former, how, window_ms, self.book.now)
        acting = self.act(create_one(NewRequest(name, policy, digest, bodies)), steps)
        if not acting.is_over or self.book.max_waiting:
            return
        agree(type(acting.error), wanted, f"a submission of {name} that must {how}")
        stands = self.book.requests[name]
        if wanted is type(None):
            agree(stands.digest, digest.hex, f"the request of {name}")
        else:
            agree(stands is former, True, f"the request of {name} stays")

    # ------------------------------------------------------------------ flows

    @step(
        n=which,
        size=st.sampled_from((2, 1, 4, 3)),
        kind=st.sampled_from((JOIN, JOIN, GATHER, DONE, BRANCH)),
        bound=st.booleans(),
    )
    def begin_flow(self, n: int, size: int, kind: str, bound: bool) -> None:
        """Begins two children of as many sub-requests, and a request that they feed."""
        run = pick(FLOWS, n)
        sources = tuple(f"{run}{child}" for child in (1, 2))
        if any(name in self.book.live for name in (*sources, f"{run}3")):
            return
        sources, width = (sources, 2) if kind == JOIN else (sources[:1], 1 + (kind == GATHER))
        on_dead = tuple("stop" if bound else "continue" for _ in sources)
        # No result of the model names a step: all go to the branch if it is the default, or none.
        choices = Choices(("x", "y"), "x" if n % 2 else "") if kind == BRANCH else Choices()
        feed = Feed(kind, sources, on_dead, WRAP, "", width, choices)
        extras = f"feed={feed.text}" + ("\nflow=f 3 3 x" if kind == BRANCH else "")
        self.submit_one(f"{run}3", Options(extras=extras), 0, 2 * HOUR)
        for name in sources:
            chosen = Options(priority=3 + n % 3, attempts=1 + n % 2)
            self.submit_one(name, chosen, size * (1 + (kind == GATHER)), 0)

    @precondition(has_fed)
    @step(n=which, steps=cuts)
    def feed(self, n: int, steps: int) -> None:
        """Hands over the finished results of the children, as a leader."""
        fed = sorted(name for name, one in self.book.requests.items() if one.options.feeds)
        self.act(hand_over(pick(fed, n)), steps)

    @precondition(has_fed)
    @step(n=which, cut=st.integers(1, 6))
    def feed_twice(self, n: int, cut: int) -> None:
        """Hands over the same results by two leaders, one after the other."""
        fed = sorted(name for name, one in self.book.requests.items() if one.options.feeds)
        first = Acting(self.player, hand_over(pick(fed, n))).go_on(cut)
        self.act(hand_over(pick(fed, n)))
        first.go_on()

    @precondition(has_fed)
    @step(chosen=st.sampled_from(("d", "x", "dx", "xd")), count=st.sampled_from((1, 2)))
    def work_for_flows(self, chosen: str, count: int) -> None:
        """Lets workers take tokens, and settle those of flows."""
        for _ in range(4):
            self.take_one(0, count, ("w:2", "7"))
        for lease in self.standing():
            if lease.id.startswith(FLOWS):
                self.give_verdicts(lease, self.owed(lease) or [], chosen, 0, "0")

    # ------------------------------------------------------------------ the whole queue

    @step(worker=workers)
    def beat(self, worker: tuple[str, str]) -> None:
        self.player.beat(worker)

    @step(period=st.sampled_from((0, 0, 3_000, 20_000, ENDLESS_MS)), worker=workers)
    def pause_queue(self, period: int, worker: tuple[str, str]) -> None:
        """Pauses the queue for a time or without an end, or resumes it."""
        self.player.pause_queue(period)
        self.player.beat(worker)

    @step(
        rate=st.sampled_from(RATES),
        count=st.sampled_from((1_000, 1, 2)),
        ms=st.sampled_from((0, 300, 2_000)),
    )
    def rate_queue(self, rate: tuple[int, int], count: int, ms: int) -> None:
        """Gives the queue a rate, or none; workers receive it, and take what it allows."""
        self.player.rate_queue(*rate)
        free = [name for name in IDS if name not in self.book.live]
        if free:
            self.submit_one(free[0], Options(priority=3, limit=4), 9, 0)
        for worker in WORKERS[::2] * 2:
            self.player.beat(worker)
            self.take_one(0, count, worker)
            self.player.pass_time(ms)

    # ------------------------------------------------------------------ schedules

    @step(
        n=which,
        missed=st.sampled_from(("all", "one", "skip")),
        most=st.integers(1, 3),
        line=st.sampled_from(sorted(PERIODS)),
        steps=cuts,
    )
    def put_schedule(self, n: int, missed: Any, most: int, line: str, steps: int) -> None:
        """Adds a schedule, or gives it another line or policy for missed ticks."""
        definition = define(
            cron=line, bodies=[b"t"], missed=missed, most=most, priority=3 + n % 3, retain=3_600
        )
        self.act(schedules.put_schedule(QUEUE, pick(SCHEDULES, n), definition), steps)

    @precondition(has_schedules)
    @step(n=which, what=st.sampled_from(("pause", "resume", "drop_schedule")), steps=cuts)
    def change_schedule(self, n: int, what: str, steps: int) -> None:
        name = pick(sorted(self.book.schedules.stored), n)
        acting = self.act(getattr(schedules, what)(QUEUE, name), steps)
        if acting.is_over and what != "drop_schedule":
            is_paused = self.book.schedules.stored[name].tick is None
            agree(is_paused, what == "pause", f"whether schedule {name} is paused")
        agree(isinstance(acting.error, ScheduleNotFound), False, f"{what} of {name}")

    @precondition(has_schedules)
    @step(ms=st.sampled_from((0, 0, MINUTE, 5 * MINUTE)), steps=cuts)
    def fire(self, ms: int, steps: int) -> None:
        """Submits the due ticks, as a leader."""
        self.player.pass_time(ms)
        acting = self.act(fire(QUEUE), steps)
        if acting.is_over and not self.book.max_waiting:
            agree(acting.result.waiting, {}, "schedules whose requests were not submitted")
            agree(self.book.schedules.owed(self.book.now), {}, "what is due afterwards")

    @precondition(has_schedules)
    @step(ms=st.sampled_from((0, MINUTE, 5 * MINUTE)), cut=st.integers(1, 4))
    def fire_twice(self, ms: int, cut: int) -> None:
        """Suspends a leader while another one submits the due ticks, and then continues it."""
        self.player.pass_time(5 * MINUTE)
        first = Acting(self.player, fire(QUEUE)).go_on(cut)
        self.fire_all(ms)
        first.go_on()

    def fire_all(self, ms: int) -> None:
        self.player.pass_time(ms)
        Acting(self.player, fire(QUEUE)).go_on()


def outcome(former: Request | None, how: str, window_ms: int, now: int) -> type[Any]:
    """Returns the error of a submission under an id that has this request."""
    if former is None or former.is_abandoned or former.state == "cancelled":
        return type(None)
    if former.state == "done":
        return type(None) if now >= former.born + window_ms else RequestKept
    if former.state != "cancelling" and (
        how == "keep" or (how == "debounce" and (former.has_started or not former.gated))
    ):
        return RequestKept
    return RequestExists if former.held else type(None)
