"""The actors: each is one of the product's operations, replayed from the replies it was given."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from fairlane.model import Policy, Slice, Verdict, result_head
from fairlane.operations import control, maintain, tokens, work
from fairlane.operations.submit import submit
from fairlane.steps import Batch, Call, Command, Handle, Step
from fairlane.worker import loop
from fairlane.worker.loop import Outcome, Unit

from .world import QUEUE, REQUEST

if TYPE_CHECKING:
    from collections.abc import Generator

    from fairlane.scripts import Library

END = object()
FAILED = "failed"


class StillRecord:
    """A worker's record that never says stop."""

    is_draining = False

    def hold(self, *_: Any) -> None: ...
    def release(self) -> None: ...
    def count(self, *_: Any) -> None: ...


class OneEach:
    """Slices of a fixed size."""

    def __init__(self, size: int) -> None:
        self.size = size

    def next(self, _: str) -> int:
        return self.size

    def observe(self, *_: Any) -> None: ...


@dataclass(frozen=True)
class Role:
    """What an actor is; `options` are the plain values its operation is made from."""

    name: str
    kind: str  # producer | worker | canceller | keeper
    options: tuple[tuple[str, Any], ...] = ()

    def option(self, name: str, default: Any = None) -> Any:
        return dict(self.options).get(name, default)


@dataclass
class Actor:
    """One actor at one moment: what it was told, and how far a batch of its has come.

    Never changed but for `view`, which remembers what replaying it came to.
    """

    role: Role
    life: int = 0  # a crash begins a new one
    replies: tuple[Any, ...] = ()
    partial: tuple[Any, ...] = ()  # replies to the first steps of a batch
    argument: Any = None  # what a keeper looks at
    is_over: bool = False
    view: Any = None

    def told(self, reply: Any) -> Actor:
        return replace(self, replies=(*self.replies, reply), partial=(), view=None)

    def reborn(self) -> Actor:
        return Actor(self.role, self.life + 1)


@dataclass
class Running:
    """An actor brought back to life: its generator stands at `step`."""

    generator: Any = None
    step: Any = None
    frames: list[Any] = field(default_factory=list)


class Ops:
    """Replaces the random op ids: the same actor, life and call get the same id."""

    def __init__(self) -> None:
        self.prefix = 0
        self.count = 0

    def token_hex(self, _: int) -> str:
        self.count += 1
        return f"{self.prefix:028x}{self.count:04x}"


OPS = Ops()


def begin(actor: Actor) -> Generator[Step, Any, Any]:
    """The operation of an actor, from its start."""
    role = actor.role
    if role.kind == "producer":
        policy = Policy(
            limit=role.option("limit"), attempts=role.option("attempts", 2), backoff_ms=(1000, 1000)
        )
        return submit(REQUEST, policy)
    if role.kind == "worker":
        unit: Any = Unit(QUEUE, role.name, "1", StillRecord(), OneEach(role.option("slice", 1)))  # type: ignore[arg-type]
        return loop.serve(unit)
    if role.kind == "canceller":
        return control.cancel(REQUEST, "because", queue=QUEUE)
    what, *given = actor.argument
    if what == "promote":
        return maintain.promote(QUEUE)
    return look(*given)


def look(score: int, now: int) -> Generator[Step, Any, None]:
    """What the leading worker does about a request that is due."""
    goes_on = yield from maintain.look_at(QUEUE, REQUEST, score, now)
    if goes_on:
        suspects = yield from maintain.queued_long(REQUEST)
        yield from maintain.mint_again(QUEUE, suspects)


def revive(actor: Actor) -> Running:
    """Runs the actor's operation up to its present step by telling it all replies again."""
    OPS.prefix = sum(ord(char) for char in actor.role.name) * 1000 + actor.life
    OPS.count = 0
    generator = begin(actor)
    reply: Any = None
    try:
        step = generator.send(None)
        for reply in actor.replies:
            step = generator.throw(reply) if isinstance(reply, Exception) else generator.send(reply)
    except StopIteration:
        return Running(generator, END)
    except Exception as error:  # noqa: BLE001  it ends by telling its caller what is wrong
        return Running(generator, FAILED, [type(error).__name__])
    return Running(generator, step)


def frames(generator: Any) -> list[Any]:
    """Where the operation stands and what it knows: the line and locals of each of its frames."""
    found = []
    while generator is not None and getattr(generator, "gi_frame", None) is not None:
        frame = generator.gi_frame
        found.append((frame.f_code.co_name, frame.f_lasti, plain(frame.f_locals)))
        generator = generator.gi_yieldfrom
    return found


_SCORES = {"score", "intent", "before", "given_up"}
_SKIP = {"scripts", "unit", "names", "policy", "digest", "sent", "fields", "now"}


def plain(value: Any) -> Any:  # noqa: C901, PLR0911  one line for each kind of value
    """A value as nested tuples, without what is the same in every state."""
    if isinstance(value, dict):
        return tuple(
            (name, f"S{part}" if name in _SCORES else plain(part))
            for name, part in sorted(value.items(), key=str)
            if name not in _SKIP
        )
    if isinstance(value, (list, tuple)):
        return tuple(plain(part) for part in value)
    if isinstance(value, (set, frozenset)):
        return ("set", *sorted(map(str, value)))
    if isinstance(value, Slice):
        return ("slice", value.k, value.fence, value.op, value.attempt, plain(value.entries))
    if isinstance(value, Outcome):
        verdicts = [(verdict.entry_id, verdict.verdict) for verdict in value.verdicts]
        return ("outcome", value.position, value.is_over, plain(value.ids), plain(verdicts))
    if isinstance(value, Handle):
        return ("handle", value.position, plain(value.slice))
    if isinstance(value, Call):
        return (value.script.name, plain(value.args))
    if isinstance(value, Batch):
        return plain(value.steps)
    if isinstance(value, Command):
        return value.args[0]
    if isinstance(value, (str, bytes, int, float, bool, type(None))):
        return value
    return type(value).__name__


def handled(taken: Slice, how: str) -> Outcome:
    """What a handler could have made of a slice: all done, the first failed, or only one done."""
    outcome = Outcome(position=len(taken.entries))
    for i, (entry_id, _) in enumerate(taken.entries):
        index = entry_id.partition(b"-")[2]
        if how == "first fails" and i == 0:
            head = result_head(index, b"x", taken.attempt, 0, 0)
            outcome.verdicts.append(Verdict(entry_id, "retry", 1000, head, "no"))
        elif how == "stops" and i == 1:
            outcome.position, outcome.is_over = 1, True
            break
        elif how == "in parts" and i == 1:
            outcome.position = 1
            break
        else:
            outcome.ids.append(entry_id)
            outcome.results += [result_head(index, b"d", taken.attempt, 0, 0), b""]
    return outcome


def rest_of(taken: Slice, position: int) -> Outcome:
    """The second part of a slice worked off in parts."""
    part = replace(taken, entries=taken.entries[position:])
    outcome = handled(part, "all done")
    outcome.position = len(taken.entries)
    return outcome


def install(library: Library, monkeypatch: Any) -> None:
    """The operations use this library, our op ids and a clock that stands still."""
    from fairlane import clock, settings

    for module in (control, maintain, tokens, work):
        if hasattr(module, "library"):
            monkeypatch.setattr(module, "library", lambda: library)
    monkeypatch.setattr("fairlane.operations.submit.library", lambda: library)
    monkeypatch.setattr("fairlane.operations.work.secrets.token_hex", OPS.token_hex)
    monkeypatch.setattr(clock, "mono_s", lambda: 0.0)
    monkeypatch.setattr(settings, "OPEN_MS", 20_000)


def is_pop(step: Any) -> bool:
    """The blocking pop over all lanes."""
    return isinstance(step, Command) and step.args[0] == b"BRPOP"
