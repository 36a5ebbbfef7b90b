"""Explores every interleaving of a small system, with every fault of its budget."""

from __future__ import annotations

import gc
import time
from array import array
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from fairlane.protocol.steps import Batch, Confirm
from tests.explore.machinery.actors import (
    FAILED,
    KEEPER,
    KINDS,
    Actor,
    Cast,
    Role,
    extension,
    split,
    ways,
)
from tests.explore.machinery.names import digest
from tests.explore.machinery.protocol import T0
from tests.explore.machinery.replies import Away, ConfirmReply, Full, Way

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.explore.lists import Lists
    from tests.explore.machinery.protocol import Fairlane
    from tests.explore.machinery.world import Doing, Stand, World

ADVANCE_MS = 31_000  # longer than a lease, a grace, a backoff
BATCH = 400  # states whose steps share a round trip


class Faults(NamedTuple):
    """How many faults of each kind may still happen."""

    crash: int = 0
    lost: int = 0  # replies
    ghost: int = 0  # calls that arrive late a second time
    full: int = 0  # calls that Redis refuses as it has no room
    away: int = 0  # steps of a lenient batch whose node does not answer
    short: int = 0  # writes that the replica does not confirm in time
    failover: int = 0  # to what the replica has
    catch_up: int = 0  # of the replica, besides what it confirms


class Violation(AssertionError):
    """An invariant that does not hold, and the steps that lead there."""

    def __init__(self, system: str, wrong: Sequence[str], way: Sequence[str], states: int) -> None:
        super().__init__(
            "\n".join([f"{system}: {'; '.join(wrong)}", *(f"  {step}" for step in way)])
        )
        self.system, self.wrong, self.way, self.states = system, wrong, way, states


class TooLarge(RuntimeError):
    """Raised if the system has more states than it may."""


@dataclass(frozen=True)
class System:
    """What is explored: the actors, and how many faults of each kind may happen."""

    name: str
    roles: tuple[Role, ...]
    faults: tuple[int, ...] = ()  # kinds of Faults
    hows: tuple[str, ...] = ("all done",)
    extends: bool = False  # workers ask for more time
    splits: bool = False  # what is beside a slow call goes back
    keepers: int = 1  # how many actors check the queue concurrently
    passes: bool = True  # whether time passes
    before: tuple[Role, ...] = ()  # they act first, in turn; the exploration begins then
    protocol: type[Fairlane | Lists] | None = None  # the invariants; None = the usual ones
    tolerates: frozenset[str] = frozenset()  # errors with which an operation may end here, too
    most: int = 3_000_000


class State(NamedTuple):
    """The system at one moment."""

    stand: Stand
    actors: tuple[Actor, ...]
    clock: int
    faults: Faults
    ghost: Doing | None
    replica: Stand | None = None  # what it has, where there is one

    @property
    def now(self) -> int:
        return T0 + self.clock * ADVANCE_MS


Event = tuple[str, State, bool]  # label, state afterwards, is it fair, that is, without a fault


@dataclass
class Report:
    system: str
    states: int = 0
    steps: int = 0
    ends: int = 0
    stands: int = 0
    seconds: float = 0.0
    events: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        return (
            f"{self.system:34} {self.states:>10,} states {self.steps:>11,} steps "
            f"{self.ends:>9,} ends {self.seconds:>7.1f} s"
        )


class Explorer:
    """Searches the states of one system breadth first, so that the way to a violation is short."""

    def __init__(self, world: World, system: System) -> None:
        world.forget()
        takes_over = any(role.kind == "taker" for role in system.roles)
        self.world, self.system = world, system
        self.cast = Cast(world, notes=takes_over)
        self.protocol = world.protocol
        self._tolerated = world.protocol.tolerated | system.tolerates
        self.report = Report(system.name)
        self.known: dict[bytes, int] = {}
        self._parents, self._labels = array("q"), array("I")
        self._label_of: dict[str, int] = {}
        self._sources, self._targets = array("I"), array("I")
        self._goals = bytearray()
        self._besides: dict[Actor, list[Doing]] = {}
        self._ghost_template = world.namer.template("no ghost")

    def run(self) -> Report:
        """Explores the whole system; raises Violation."""
        began = time.perf_counter()
        gc.disable()  # nothing here is garbage before the end
        try:
            self._explore()
        finally:
            gc.enable()
        self.report.states, self.report.ends = len(self.known), sum(self._goals)
        self.report.seconds = time.perf_counter() - began
        return self.report

    def _explore(self) -> None:
        actors = tuple(self.cast.first(role) for role in self.system.roles)
        clock = 1 if self.system.before else 0  # what existed before has changed by now
        faults = Faults(*self.system.faults)
        replica = self.world.empty if faults.failover else None
        start = State(self._stand_before(), actors, clock, faults, None, replica)
        todo = deque([(self._enter(start, -1, "start")[0], start)])
        while todo:
            batch = [todo.popleft() for _ in range(min(BATCH, len(todo)))]
            self._prepare([state for _, state in batch])
            for number, state in batch:
                self._check(number, state)
                for label, after, is_fair in self._events(state, number):
                    target, is_new = self._enter(after, number, label)
                    self.report.steps += 1
                    if is_fair:
                        self._sources.append(number)
                        self._targets.append(target)
                    if is_new:
                        todo.append((target, after))
        self._check_ends_stay_reachable()

    def _stand_before(self) -> Stand:
        """Returns what Redis holds after the actors that act first have ended, or wait for work."""
        state = State(self.world.empty, (), 0, Faults(), None)
        for role in self.system.before:
            state = state._replace(actors=(self.cast.first(role),))
            following: State | None = state
            while following is not None:
                state = following
                self._prepare([state])
                events = self._own_events(state, 0, state.actors[0], 0)
                following = next((after for _, after, _ in events), None)
            assert state.actors[0].step is not FAILED, state.actors[0].error
        return state.stand

    # States.

    def _enter(self, state: State, parent: int, label: str) -> tuple[int, bool]:
        ghost = self._ghost_template if state.ghost is None else state.ghost.template
        parts = [state.stand.template, ghost, *[actor.template for actor in state.actors]]
        if state.replica is not None:
            parts.append(state.replica.template)
        key = digest(parts, state.faults, state.now)
        number = self.known.setdefault(key, len(self.known))
        if number < len(self._parents):
            return number, False
        if number >= self.system.most:
            raise TooLarge(f"{self.system.name} has more than {self.system.most:,} states")
        self._parents.append(parent)
        self._labels.append(self._label_of.setdefault(label, len(self._label_of)))
        # If time does not pass, the auditor checks nothing.
        is_over = not self.system.passes and all(actor.ends for actor in state.actors)
        self._goals.append(is_over or self.protocol.is_goal(state.stand.facts, state.actors))
        return number, True

    def _check(self, number: int, state: State) -> None:
        wrong = [*state.stand.checked.get(state.now, ()), *state.stand.wrong]
        wrong += self.protocol.wrong_actors(state.stand.facts, state.actors)
        wrong += [
            f"{actor.role.name} failed: {actor.error}"
            for actor in state.actors
            if actor.step is FAILED and actor.error.split()[0] not in self._tolerated
        ]
        if wrong:
            self._fail(wrong, number)

    def _fail(self, wrong: Sequence[str], number: int, label: str | None = None) -> None:
        way = self._way(number) + ([] if label is None else [label])
        raise Violation(self.system.name, wrong, way, len(self.known))

    def _way(self, number: int) -> list[str]:
        labels, way = list(self._label_of), []
        while self._parents[number] >= 0:
            way.append(labels[self._labels[number]])
            number = self._parents[number]
        return way[::-1]

    def _check_ends_stay_reachable(self) -> None:
        """Searches backwards from the ends over steps without faults: every state must be reached.

        Most steps lead to a later number, so a few passes from the last step to the first do.
        """
        reached = bytearray(self._goals)
        before = -1
        while (count := sum(reached)) != before:
            before = count
            for source, target in zip(
                reversed(self._sources), reversed(self._targets), strict=True
            ):
                if reached[target]:
                    reached[source] = 1
        stuck = reached.find(0)  # the first that was found: its way is as short as any
        if stuck >= 0:
            some = f"from {len(reached) - count} of {len(reached)} states the end can't be reached"
            self._fail([some], stuck)

    # What a round trip must bring before the events of these states are known.

    def _prepare(self, states: list[State]) -> None:
        wanted: dict[Stand, tuple[set[int], set[tuple[Doing, int]]]] = {}
        for state in states:
            stand, now = state.stand, state.now
            checks, steps = wanted.setdefault(stand, (set(), set()))
            if now not in stand.checked:
                stand.checked[now] = ()
                checks.add(now)
            for doing in self._doings(state):
                key = doing.key(now)
                if key not in stand.moves and key not in steps:
                    steps.add(key if doing.is_timed else (doing, 0))
        self.world.run({stand: both for stand, both in wanted.items() if both[0] or both[1]})

    def _doings(self, state: State) -> Iterator[Doing]:
        for actor in state.actors:
            if actor.is_over:
                continue
            if actor.doing is not None:
                yield from self._really(state, actor.doing)
            elif actor.fences:
                yield from self._beside(actor)
        if state.ghost is not None:
            yield state.ghost

    def _really(self, state: State, doing: Doing) -> Iterator[Doing]:
        """Makes a pop of one lane from the blocking pop; none while it blocks, or for TIME."""
        if doing.pops:
            for _, pop in self.protocol.pops(state.stand.facts, doing.pops):
                yield self.world.doing(pop)
        elif doing.name not in {"TIME", "INFO"}:
            yield doing

    def _beside(self, actor: Actor) -> list[Doing]:
        """Returns what the supervisor may send while a handler runs; its replies are lost."""
        if actor not in self._besides:
            calls = [extension(actor.step)] if self.system.extends else []
            if self.system.splits and (part := split(actor.step)) is not None:
                calls.append(part)
            self._besides[actor] = [self.world.doing(call) for call in calls]
        return self._besides[actor]

    # Events.

    def _events(self, state: State, number: int) -> Iterator[Event]:
        for index, actor in enumerate(state.actors):
            yield from self._own_events(state, index, actor, number)
        yield from self._keeper_events(state)
        yield from self._replica_events(state)
        if self.system.passes and not state.stand.facts.is_empty:
            yield "time passes", state._replace(clock=state.clock + 1), True
        if state.ghost is not None:
            move = state.stand.moves[state.ghost.key(state.now)]
            label = f"the late copy of {state.ghost.name}"
            if move.wrong:
                self._fail(move.wrong, number, label)
            yield label, state._replace(stand=move.stand, ghost=None), True

    def _own_events(self, state: State, index: int, actor: Actor, number: int) -> Iterator[Event]:
        if actor.is_over:
            return
        if actor.doing is not None:
            yield from self._step_events(state, index, actor, number)
        elif actor.fences:
            yield from self._handle_events(state, index, actor, number)

    def _keeper_events(self, state: State) -> Iterator[Event]:
        if sum(actor.role is KEEPER for actor in state.actors) >= self.system.keepers:
            return
        for label, argument in self.protocol.errands(state.stand.facts, state.now):
            keeper = self.cast.first(KEEPER, argument)
            yield label, state._replace(actors=(*state.actors, keeper)), True

    def _replica_events(self, state: State) -> Iterator[Event]:
        if state.replica is None or state.replica is state.stand:
            return
        faults = state.faults
        if faults.failover and faults.catch_up:
            less = faults._replace(catch_up=faults.catch_up - 1)
            yield "the replica catches up", state._replace(replica=state.stand, faults=less), False
        if faults.failover:
            less = faults._replace(failover=faults.failover - 1)
            after = state._replace(stand=state.replica, faults=less, replica=None)
            yield "a failover", after, False

    def _step_events(self, state: State, index: int, actor: Actor, number: int) -> Iterator[Event]:
        assert actor.doing is not None
        what = f"{actor.role.name} {actor.doing.name}"
        for reply, stand, wrong in self._moves(state, actor.doing):
            if wrong:
                self._fail(wrong, number, what)
            done = state._replace(stand=stand)
            if isinstance(actor.step, Confirm):
                if state.faults.short:
                    less = state.faults._replace(short=state.faults.short - 1)
                    short = self.cast.after(actor, ConfirmReply(reply, 0))
                    after = self._put(done._replace(faults=less), index, short)
                    yield f"{what} is not confirmed", after, False
                done = done._replace(replica=stand if state.faults.failover else None)
            given = ConfirmReply(reply, 1) if isinstance(actor.step, Confirm) else reply
            after = self._put(done, index, self.cast.after(actor, given))
            yield what, after, True
            if any(state.faults):
                yield from self._faults(state, index, actor, done, after, what)

    def _moves(self, state: State, doing: Doing) -> Iterator[tuple[Any, Stand, tuple[str, ...]]]:
        """Yields what a step may lead to: the reply, what Redis then holds, what is wrong."""
        moves, now = state.stand.moves, state.now
        if doing.name == "TIME":
            yield (str(now // 1000).encode(), b"0"), state.stand, ()
        elif doing.name == "INFO":
            yield b"slave0:ip=replica,port=1,state=online,offset=1,lag=0", state.stand, ()
        elif doing.pops:
            for lane, pop in self.protocol.pops(state.stand.facts, doing.pops):
                popped, stand, wrong = moves[self.world.doing(pop).key(now)]
                yield (lane, popped), stand, wrong
        else:
            yield moves[doing.key(now)]

    def _faults(
        self, state: State, index: int, actor: Actor, done: State, after: State, what: str
    ) -> Iterator[Event]:
        faults, doing = state.faults, actor.doing
        assert doing is not None
        # What is sent once has no copy, and its sender continues without a reply.
        copies = bool(faults.ghost) and state.ghost is None and doing.script and not doing.is_once
        if faults.crash:
            less = faults._replace(crash=faults.crash - 1)
            crashed = self._dead(state._replace(faults=less), index, actor)
            yield f"crash before {what}", crashed, False
            yield f"crash after {what}", self._dead(done._replace(faults=less), index, actor), False
            if actor.role.may_stay_away:
                gone = self._put(done._replace(faults=less), index, self.cast.gone(actor))
                yield f"end of {actor.role.name} after {what}", gone, False
            if copies:
                late = crashed._replace(faults=less._replace(ghost=less.ghost - 1), ghost=doing)
                yield f"crash before {what}, which is still on its way", late, False
        if faults.lost:
            less = faults._replace(lost=faults.lost - 1)
            next_state = after if doing.is_once else done
            yield f"lost reply of {what}", next_state._replace(faults=less), False
        if copies:
            late = after._replace(faults=faults._replace(ghost=faults.ghost - 1), ghost=doing)
            yield f"{what}, and a copy is on its way", late, False
        if faults.full and doing.grows:
            less = faults._replace(full=faults.full - 1)
            refused = self._put(state._replace(faults=less), index, self.cast.after(actor, Full()))
            yield f"{what} is refused: Redis is full", refused, False
        if faults.away and isinstance(actor.step, Batch) and actor.step.lenient:
            less = faults._replace(away=faults.away - 1)
            missed = self._put(state._replace(faults=less), index, self.cast.after(actor, Away()))
            yield f"{what} finds its node away", missed, False

    def _dead(self, state: State, index: int, actor: Actor) -> State:
        """Crashes an actor: it starts again; a keeper is dropped, because another one follows."""
        if actor.role is KEEPER:
            return self._put(state, index, self.cast.gone(actor))
        return self._put(state, index, self._reborn(state, actor))

    def _put(self, state: State, index: int, actor: Actor) -> State:
        """Puts the actor's next moment in its place; drops an actor that may be forgotten."""
        actors = state.actors
        if actor.is_idle or (actor.step is FAILED and self._comes_again(actor)):
            actor = self._reborn(state, actor)
        if actor.role is KEEPER and actor.ends:
            kept = actors[:index] + actors[index + 1 :]
        else:
            kept = (*actors[:index], actor, *actors[index + 1 :])
        return State(state.stand, kept, state.clock, state.faults, state.ghost, state.replica)

    def _comes_again(self, actor: Actor) -> bool:
        role = actor.role
        return KINDS[role.kind].again or actor.life + 1 < role.option("comings", 1)

    def _reborn(self, state: State, actor: Actor) -> Actor:
        """Starts the same role again; a worker draws an op that occurs nowhere else."""
        role, life = actor.role, 0
        if role.is_producer:
            life = actor.life + (actor.step is FAILED)
        elif role.draws:
            ghost = state.ghost.template.names if state.ghost else ()
            used = state.stand.names.union(ghost)
            while not used.isdisjoint(self.cast.ops_of(role, life)):
                life += 1
        return self.cast.first(role, (), life)

    def _handle_events(
        self, state: State, index: int, actor: Actor, number: int
    ) -> Iterator[Event]:
        for how in ways(actor.step, self.system.hows):
            after = self._put(state, index, self.cast.after(actor, Way(how)))
            yield f"{actor.role.name} handles: {how}", after, how == "all done"
        for doing in self._beside(actor):
            what = f"{actor.role.name} {doing.name}"
            move = state.stand.moves[doing.key(state.now)]
            if move.wrong:
                self._fail(move.wrong, number, what)
            if move.stand is not state.stand:
                yield what, state._replace(stand=move.stand), True
