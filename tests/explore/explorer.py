"""Every interleaving of a small system, with every fault its budget allows, each state once."""

from __future__ import annotations

import hashlib
import time
from array import array
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from fairlane import keys
from fairlane.steps import Batch, Command, Handle, Pull

from .actors import (
    END,
    FAILED,
    Actor,
    Role,
    frames,
    handled,
    is_pop,
    plain,
    rest_of,
    revive,
)
from .world import LANE, QUEUE, T0, Saved, World, rename

if TYPE_CHECKING:
    from collections.abc import Iterator

ADVANCE_MS = 31_000  # longer than a lease, a grace, a backoff
KEEPER = Role("keeper", "keeper")
CHUNK = (b"x",)
LANE_KEY = keys.lanes(QUEUE)[LANE]


class Violation(AssertionError):
    """What does not hold, and the way there."""


@dataclass(frozen=True)
class System:
    """What is explored: the actors, and how many faults of each kind may happen."""

    name: str
    roles: tuple[Role, ...]
    faults: tuple[tuple[str, int], ...] = ()  # crash, lost (a reply), ghost (a late copy)
    hows: tuple[str, ...] = ("all done",)
    most: int = 2_000_000


@dataclass(frozen=True)
class State:
    """The system at one moment."""

    saved: Saved
    actors: tuple[Actor, ...]
    clock: int = 0
    faults: tuple[tuple[str, int], ...] = ()
    ghost: Any = None

    @property
    def now(self) -> int:
        return T0 + self.clock * ADVANCE_MS


@dataclass
class Report:
    """What was seen."""

    system: str
    states: int = 0
    steps: int = 0
    ends: int = 0
    seconds: float = 0.0
    events: Counter[str] = field(default_factory=Counter)


class Explorer:
    """Depth first over the states of one system."""

    def __init__(self, world: World, system: System) -> None:
        self.world, self.system = world, system
        self.report = Report(system.name)
        self.known: dict[bytes, int] = {}
        self._parents = array("q")
        self._labels: list[str] = []
        self._edges = (array("q"), array("q"))
        self._goals: list[int] = []

    def run(self) -> Report:
        """Explores all of it; raises Violation."""
        began = time.perf_counter()
        start = State(
            Saved(self.world.empty.dumps, None),
            tuple(self._onward(Actor(role)) for role in self.system.roles),
            faults=self.system.faults,
        )
        stack = [(self._enter(start, -1, "start")[0], start)]
        while stack:
            number, state = stack.pop()
            for label, after, is_fair in self._events(state):
                target, is_new = self._enter(after, number, label)
                self.report.steps += 1
                self.report.events[label.split(" ")[0]] += 1
                if is_fair:
                    self._edges[0].append(number)
                    self._edges[1].append(target)
                if is_new:
                    stack.append((target, after))
                    if len(self.known) > self.system.most:
                        raise RuntimeError(
                            f"{self.system.name} has more than {self.system.most} states"
                        )
        self._check_ends_stay_reachable()
        self.report.states = len(self.known)
        self.report.ends = len(self._goals)
        self.report.seconds = time.perf_counter() - began
        return self.report

    # States.

    def _enter(self, state: State, parent: int, label: str) -> tuple[int, bool]:
        text = repr(
            (state.saved.seen, [self._view(actor)[1] for actor in state.actors], state.faults)
        ) + repr(state.ghost and (state.ghost.script.name, plain(state.ghost.args)))
        key = hashlib.blake2b(rename(text, state.now).encode(), digest_size=12).digest()
        known = self.known.get(key)
        if known is not None:
            return known, False
        number = self.known[key] = len(self.known)
        self._parents.append(parent)
        self._labels.append(label)
        self._check(state, number)
        return number, True

    def _view(self, actor: Actor) -> tuple[Any, str]:
        """The actor's present step, and what it knows as text."""
        if actor.view is None:
            running = revive(actor)
            step = running.step
            knows = running.frames if step is FAILED else frames(running.generator)
            if step is END:
                knows = ["over"]
            text = repr((actor.role.name, actor.is_over, plain(actor.partial), plain(step), knows))
            actor.view = (step, text)
        seen: tuple[Any, str] = actor.view
        return seen

    def _check(self, state: State, number: int) -> None:
        wrong = [text.decode() for text in state.saved.broken]
        if state.saved.seen is not None:
            outcomes = [head.split(b":")[0] for head in state.saved.seen[7]]
            if len(outcomes) != len(set(outcomes)):
                wrong.append(f"a sub-request has two results: {state.saved.seen[7]}")
            if state.saved.seen[12] > 1:
                wrong.append("the ending was logged twice")
        for actor in state.actors:
            step, text = self._view(actor)
            if step is FAILED and "RequestEnded" not in text:
                wrong.append(f"{actor.role.name} failed: {text}")
        if wrong:
            raise Violation(
                "\n".join([f"{self.system.name}: " + "; ".join(wrong), *self._way(number)])
            )
        if self._is_goal(state):
            self._goals.append(number)

    def _way(self, number: int) -> list[str]:
        way = []
        while number >= 0:
            way.append("  " + self._labels[number])
            number = self._parents[number]
        return way[::-1]

    def _is_goal(self, state: State) -> bool:
        """Nobody would wait for anything: the request ended and is logged, or never came to be."""
        seen = state.saved.seen
        if seen is None or seen[9]:
            return False
        fields = dict(seen[3])
        return fields.get(b"state", b"abandoned") in {b"done", b"cancelled", b"abandoned"}

    def _check_ends_stay_reachable(self) -> None:
        """Backwards from the ends over what happens without faults: every state must be met."""
        sources, targets = self._edges
        back: dict[int, list[int]] = {}
        for source, target in zip(sources, targets, strict=True):
            back.setdefault(target, []).append(source)
        reached, todo = set(self._goals), list(self._goals)
        while todo:
            for source in back.get(todo.pop(), ()):
                if source not in reached:
                    reached.add(source)
                    todo.append(source)
        stuck = [number for number in range(len(self.known)) if number not in reached]
        if stuck:
            shortest = min(stuck, key=lambda number: len(self._way(number)))
            raise Violation(
                "\n".join(
                    [
                        (
                            f"{self.system.name}: from {len(stuck)} of {len(self.known)} states "
                            "the end can't be reached"
                        ),
                        *self._way(shortest),
                    ]
                )
            )

    # Events: (label, state afterwards, is it fair, that is, without a fault).

    def _events(self, state: State) -> Iterator[tuple[str, State, bool]]:
        for index, actor in enumerate(state.actors):
            if not actor.is_over:
                yield from self._actor_events(state, index, actor)
        yield from self._keeper_events(state)
        if state.saved.seen is not None:
            yield "advance", self._at(replace(state, clock=state.clock + 1)), True
        if state.ghost is not None:
            _, saved = self.world.visit(state.saved, state.ghost, state.now)
            yield f"ghost {state.ghost.script.name}", replace(state, saved=saved, ghost=None), True

    def _at(self, state: State) -> State:
        """The same keys at a later moment: what `check` says depends on the time."""
        _, saved = self.world.visit(state.saved, Command("PING"), state.now)
        return replace(state, saved=saved)

    def _keeper_events(self, state: State) -> Iterator[tuple[str, State, bool]]:
        if any(actor.role is KEEPER for actor in state.actors) or state.saved.seen is None:
            return
        active, delayed = state.saved.seen[9], state.saved.seen[11]
        if active and int(active[1][1:]) <= state.now + 1000:
            argument = ("look", int(active[1][1:]), state.now)
            yield "keeper looks", self._with(state, Actor(KEEPER, argument=argument)), True
        if delayed and int(delayed[1]) <= state.now:
            yield "keeper promotes", self._with(state, Actor(KEEPER, argument=("promote",))), True

    def _with(self, state: State, actor: Actor) -> State:
        return replace(state, actors=(*state.actors, actor))

    def _actor_events(
        self, state: State, index: int, actor: Actor
    ) -> Iterator[tuple[str, State, bool]]:
        step, _ = self._view(actor)
        name = actor.role.name
        if step is END or step is FAILED:
            return
        if isinstance(step, Handle):
            yield from self._handle_events(state, index, actor, step)
            return
        one = step.steps[len(actor.partial)] if isinstance(step, Batch) else step
        if is_pop(one) and not (state.saved.seen and state.saved.seen[13]):
            return
        reply, saved = self._perform(state, one)
        what = f"{name} {_word(one)}"
        after = self._told(replace(state, saved=saved), index, actor, step, reply)
        yield what, after, True
        yield from self._faults(state, index, actor, one, saved, after, what)

    def _perform(self, state: State, one: Any) -> tuple[Any, Saved]:
        if is_pop(one):
            token, saved = self.world.visit(state.saved, Command("RPOP", LANE_KEY), state.now)
            return (LANE_KEY, token), saved
        if isinstance(one, Command) and one.args[0] == b"TIME":
            return (str(state.now // 1000).encode(), b"0"), state.saved
        reply, saved = self.world.visit(state.saved, one, state.now)
        return _frozen(reply), saved

    def _told(self, state: State, index: int, actor: Actor, step: Any, reply: Any) -> State:
        """The actor gets its reply; a batch's only when all of it is there."""
        if isinstance(step, Batch):
            partial = (*actor.partial, reply)
            if len(partial) < len(step.steps):
                return self._put(state, index, replace(actor, partial=partial, view=None))
            reply = partial
        return self._put(state, index, self._onward(actor.told(reply)))

    def _onward(self, actor: Actor) -> Actor:
        """Feeds the producer its bodies, and forgets what an idle worker did before."""
        while isinstance(self._view(actor)[0], Pull):
            actor = actor.told(self._chunk(actor))
        step = self._view(actor)[0]
        if actor.role.kind == "worker" and isinstance(step, Batch) and is_pop(step.steps[0]):
            return actor.reborn()
        if actor.role.kind == "canceller" and step is FAILED:  # too early: it may try again
            return actor.reborn()
        if actor.role is KEEPER and (step is END or step is FAILED):
            return replace(actor, is_over=True, view=None)
        return actor

    def _chunk(self, actor: Actor) -> Any:
        given = sum(reply is CHUNK for reply in actor.replies)
        return CHUNK if given < actor.role.option("chunks") else None

    def _put(self, state: State, index: int, actor: Actor) -> State:
        actors = list(state.actors)
        if actor.role is KEEPER and actor.is_over:
            del actors[index]
        else:
            actors[index] = actor
        return replace(state, actors=tuple(actors))

    def _handle_events(
        self, state: State, index: int, actor: Actor, step: Handle
    ) -> Iterator[tuple[str, State, bool]]:
        if step.position:
            after = self._put(state, index, actor.told(rest_of(step.slice, step.position)))
            yield f"{actor.role.name} handles the rest", after, True
            return
        hows = self.system.hows if len(step.slice.entries) > 1 else self.system.hows[:2]
        for how in hows:
            after = self._put(state, index, actor.told(handled(step.slice, how)))
            yield f"{actor.role.name} handles: {how}", after, how == "all done"

    def _faults(
        self,
        state: State,
        index: int,
        actor: Actor,
        one: Any,
        saved: Saved,
        after: State,
        what: str,
    ) -> Iterator[tuple[str, State, bool]]:
        left = dict(state.faults)
        dead = replace(actor, is_over=True, view=None) if actor.role is KEEPER else actor.reborn()
        if left.get("crash"):
            less = _less(state.faults, "crash")
            crashed = self._put(replace(state, faults=less), index, self._onward(dead))
            yield f"crash before {what}", crashed, False
            done = replace(state, saved=saved, faults=less)
            yield f"crash after {what}", self._put(done, index, self._onward(dead)), False
            if actor.role.kind == "producer":
                gone = self._put(done, index, replace(actor, is_over=True, view=None))
                yield f"gone after {what}", gone, False
        if left.get("lost"):
            less = _less(state.faults, "lost")
            yield f"lost reply of {what}", replace(state, saved=saved, faults=less), False
        if left.get("ghost") and getattr(one, "script", None) is not None:
            less = _less(state.faults, "ghost")
            yield f"late copy of {what}", replace(after, faults=less, ghost=one), False


def _less(faults: tuple[tuple[str, int], ...], name: str) -> tuple[tuple[str, int], ...]:
    return tuple((kind, count - (kind == name)) for kind, count in faults)


def _word(step: Any) -> str:
    """The script's or command's name."""
    name = step.args[0] if isinstance(step, Command) else step.script.name
    return name.decode() if isinstance(name, bytes) else str(name)


def _frozen(reply: Any) -> Any:
    return tuple(_frozen(part) for part in reply) if isinstance(reply, list) else reply
