"""Explores several requests that depend on each other: `after`, schedules, and flows."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from fairlane.errors import FairlaneError
from fairlane.operations import change, schedules
from fairlane.operations.create import Digest, NewRequest, create
from fairlane.operations.flows import Flow, submit_flow
from fairlane.operations.schedules import define, request_id
from fairlane.options import Policy
from fairlane.protocol import keys
from tests.explore.machinery.actors import Role, kind
from tests.explore.machinery.protocol import QUEUE, REQUEST, T0, Facts
from tests.explore.several_requests.groups import Groups, each, needs_audit

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from fairlane.protocol.steps import Operation
    from tests.explore.machinery.actors import Actor

FIRST = "first"  # the request that `r` starts after
POLICY = Policy(limit=1, attempts=2, backoff_ms=(1000, 1000))
SCHEDULE = "daily"
TICKS = tuple(  # of the line below; the next ones are a year later
    int(datetime(2023, 11, 14, 22, minute, tzinfo=UTC).timestamp() * 1000) for minute in (14, 15)
)
LINES = {1: "14 22 14 11 *", 2: "14,15 22 14 11 *"}
RUN = "f"


class Several(Groups):
    """The audit looks for the tokens of each request, and each must end."""

    def errands(self, facts: Facts, now: int) -> Iterator[tuple[str, tuple[Any, ...]]]:
        yield from super().errands(facts, now)
        if needs_audit(facts, now):
            yield "keeper audits", ("audit",)

    def is_goal(self, facts: Facts, actors: Sequence[Actor]) -> bool:
        """Returns True if no call is under way, and each request is logged or was never created."""
        is_at_rest = all(actor.ends for actor in actors if not actor.role.works)
        return is_at_rest and all(
            bool(one.logged) and not one.active if one.is_over else not one.state and not one.active
            for one in each(facts)
        )


# One request that starts after another.


def follower(*names: str, any_end: bool = False) -> Role:
    """Submits one request, and then one that starts after it; or only those of the names."""
    submits = names or (FIRST, REQUEST)
    return Role("p", "follower", (("any_end", any_end), ("submits", submits)))


@kind("follower")
async def _follow(role: Role, _: tuple[Any, ...]) -> Any:
    later = replace(POLICY, after=(FIRST,), after_any_end=role.option("any_end"))
    for name in role.option("submits"):
        policy = POLICY if name == FIRST else later
        digest = Digest(policy)
        digest.add([b"0"])
        for result in await create([NewRequest(name, policy, digest, [b"0"])]):
            if isinstance(result, FairlaneError):
                raise result


@kind("canceller of the first", again=True)
def _cancel_first(*_: Any) -> Operation[Any]:
    return change.cancel(FIRST, "because", queue=QUEUE)


CANCEL_FIRST = Role("c", "canceller of the first")


class After(Several):
    """Nothing of a request starts before the other one has ended."""

    def wrong_stand(self, facts: Facts) -> tuple[str, ...]:
        first = facts.others.get(FIRST)
        wrong = super().wrong_stand(facts)
        if (facts.held or facts.outcomes) and (first is None or not first.is_over):
            wrong += ("the request has started before the one that it starts after has ended",)
        return wrong


class AfterDone(After):
    """Nothing of a request starts unless the other one is done."""

    def wrong_stand(self, facts: Facts) -> tuple[str, ...]:
        first = facts.others.get(FIRST)
        failed = first is not None and (first.state == b"cancelled" or first.dead)
        wrong = super().wrong_stand(facts)
        if (facts.held or facts.outcomes) and failed:
            wrong += ("the request has started though the one before it failed",)
        return wrong


# A schedule and its ticks.


def scheduler(ticks: int = 1) -> Role:
    """Adds a schedule with so many ticks; all missed ones are submitted."""
    return Role("s", "scheduler", (("ticks", ticks), ("changes", ("put",))))


def schedule_changer(*changes: str) -> Role:
    """Pauses, resumes or removes the schedule."""
    return Role("x", "scheduler", (("ticks", 1), ("changes", changes)))


@kind("scheduler", again=True)
async def _schedule(role: Role, _: tuple[Any, ...]) -> Any:
    for word in role.option("changes"):
        if word == "put":
            line = LINES[role.option("ticks")]
            given: dict[str, Any] = {"limit": 1, "attempts": 2, "backoff": (1.0, 1.0)}
            definition = define(cron=line, bodies=[b"0"], missed="all", **given)
            await schedules.put_schedule(QUEUE, SCHEDULE, definition)
        else:
            await getattr(schedules, word)(QUEUE, SCHEDULE)


class Ticks(Several):
    """Each tick that has passed has exactly one request."""

    tolerated = Several.tolerated | {"ScheduleNotFound"}

    def __init__(self, root: Path | None = None, *, in_stream: bool = False) -> None:
        """Adds the keys of schedules; the leader's fire joins the errands."""
        super().__init__(root, in_stream=in_stream)
        for name, key in zip(("schedules", "ticks"), keys.schedules(QUEUE), strict=True):
            self._add(name, key)
        self._add("firing", keys.firing(QUEUE))

    def wrong_stand(self, facts: Facts) -> tuple[str, ...]:
        """Checks that a schedule which moved on has submitted the ticks it passed."""
        wrong = super().wrong_stand(facts)
        due = _tick_of(facts)
        for tick in TICKS if due else ():
            made = facts.others.get(request_id(QUEUE, SCHEDULE, tick))
            if tick < due and tick in self.owed(facts) and (made is None or not made.state):
                wrong += (f"the tick {tick - T0} has passed, and there is no request",)
        for name, made in facts.others.items():
            if made.state and made.number(b"total") != 1:
                wrong += (f"{name} has {made.number(b'total')} sub-requests",)
        return wrong

    def owed(self, facts: Facts) -> tuple[int, ...]:
        """Returns the ticks that may not be skipped."""
        return TICKS if len(LINES[2]) == len(facts.extra[1]) else TICKS[:1]

    def facts(self, said: Sequence[Any]) -> Facts:
        """Adds the next tick and the cron line to the facts."""
        found = super().facts(said)
        content = dict(zip((name for name, _ in self._names), said, strict=False))
        ticks, text = content.get("ticks") or (), str(content.get("schedules") or "")
        line = next((one for one in (LINES[2], LINES[1]) if one in text), "")
        return found._replace(extra=(int(float(ticks[1])) if ticks else 0, line))

    def errands(self, facts: Facts, now: int) -> Iterator[tuple[str, tuple[Any, ...]]]:
        yield from super().errands(facts, now)
        if 0 < _tick_of(facts) <= now:
            yield "keeper fires", ("fire",)

    def is_goal(self, facts: Facts, actors: Sequence[Actor]) -> bool:
        """Returns True if no tick is left this year, and each request is there and has ended."""
        if not 0 < _tick_of(facts) < TICKS[-1] + 1:
            has_worker = any(actor.role.works for actor in actors)
            return all(actor.ends for actor in actors if not actor.role.works) and all(
                bool(one.logged) and not one.active
                if one.is_over
                else bool(one.state) == bool(one.active) and not (has_worker and one.state)
                for one in each(facts)
            )
        return False


class PausedTicks(Ticks):
    """While the schedule is paused or removed, a tick that is due need not run."""

    def owed(self, facts: Facts) -> tuple[int, ...]:
        return ()


def _tick_of(facts: Facts) -> int:
    return int(facts.extra[0])


# A flow of two steps.


def flow_producer() -> Role:
    """Submits a flow of two steps, with one sub-request."""
    return Role("p", "flow producer", (("chunks", (1,)),))


@kind("flow producer")
def _produce_flow(role: Role, _: tuple[Any, ...]) -> Operation[Any]:
    given: dict[str, Any] = {"limit": 1, "attempts": 2, "backoff": (1.0, 1.0)}
    flow = Flow("two").step("one", **given).step("two", **given)
    return submit_flow(flow.plan(QUEUE, RUN, {}))


class HandedOver(Several):
    """Each result is in the next step once, and the next step ends after the first one."""

    def wrong_stand(self, facts: Facts) -> tuple[str, ...]:
        one, two = (facts.others.get(f"{RUN}.{number}") for number in (1, 2))
        wrong = super().wrong_stand(facts)
        if two is None or not two.state:
            return wrong
        done = one.number(b"done") if one is not None else 0
        if two.number(b"total") > done:
            wrong += (f"{two.number(b'total')} are in the second step, {done} are done",)
        if two.state == b"done" and (one is None or not one.is_over):
            wrong += ("the second step has ended before the first one",)
        if two.state == b"done" and two.number(b"total") < done:
            wrong += (f"{two.number(b'total')} were handed over, {done} are done",)
        return wrong

    def errands(self, facts: Facts, now: int) -> Iterator[tuple[str, tuple[Any, ...]]]:
        """Adds a hand-over to each of the leader's checks."""
        for label, argument in super().errands(facts, now):
            yield label, (("feed all",) if argument == ("look",) else argument)
