"""The actors: each is one of the product's operations, replayed from the replies it was given."""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass
from types import GeneratorType
from typing import TYPE_CHECKING, Any

import redis

from fairlane.model import Policy, Slice, Verdict, result_head
from fairlane.operations import change, control, deaths, maintain, requeue, tokens, work
from fairlane.operations.submit import submit
from fairlane.steps import (
    Across,
    Batch,
    Call,
    Command,
    Handle,
    HandleBunch,
    Handled,
    Pause,
    Pop,
    Popped,
    Pull,
    Step,
)
from fairlane.worker import loop
from fairlane.worker.bunch import Bunch
from fairlane.worker.unit import Lease, Outcome, Unit

from .protocol import QUEUE, REQUEST
from .world import Doing, Refused, World

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from fairlane.scripts import Library

    from .names import Template

    Begin = Callable[["Role", tuple[Any, ...]], Generator[Step, Any, Any]]

END, FAILED = "end", "failed"


class Chunk(tuple[bytes, ...]):
    """The reply to a Pull."""

    __slots__ = ()


@dataclass(frozen=True)
class Way:
    """The reply to a Handle: how the handler went. The Outcome is made where it is needed."""

    how: str


class StillRecord:
    """A worker's record that never says stop."""

    is_draining = False
    unit = 0
    shards = b""

    def want(self, *_: Any) -> None: ...
    def unwant(self) -> None: ...
    def hold(self, *_: Any, **__: Any) -> None: ...
    def release(self, *_: Any) -> None: ...
    def end_turn(self) -> None: ...

    def take_turn(self) -> bool:
        """Nobody took its lease back."""
        return True

    def count(self, *_: Any, **__: Any) -> None: ...


class OneEach:
    """Slices of a fixed size."""

    def __init__(self, size: int) -> None:
        self.size = size

    def knows(self, _: str) -> bool:
        return True

    def next(self, *_: Any) -> int:
        return self.size

    def whole_s(self, *_: Any) -> float:
        return 0.0

    def observe(self, *_: Any, **__: Any) -> None: ...


class Two:
    """Two tokens at once, always."""

    slice_s = 1.0
    is_quick = True

    def next(self, *_: Any) -> int:
        return 2

    def takes_one(self, *_: Any) -> bool:
        return False

    def observe(self, *_: Any) -> None: ...
    def take_singly(self, *_: Any) -> None: ...


class NoMeasures:
    """Measures that nobody sends."""

    def add(self, *_: Any) -> None: ...

    def due(self) -> list[Any]:
        return []

    def rest(self) -> list[Any]:
        return []


@dataclass(frozen=True)
class Role:
    """What an actor is; `options` are the plain values its operation is made from."""

    name: str
    kind: str  # a name of KINDS
    options: tuple[tuple[str, Any], ...] = ()

    def option(self, name: str, default: Any = None) -> Any:
        return dict(self.options).get(name, default)


@dataclass(frozen=True)
class Kind:
    """How actors of one kind begin; `again` = one that came too early tries again."""

    begin: Begin
    again: bool = False


KINDS: dict[str, Kind] = {}


def kind(name: str, *, again: bool = False) -> Callable[[Begin], Begin]:
    """Registers the operation that actors of a kind run."""

    def register(begin: Begin) -> Begin:
        KINDS[name] = Kind(begin, again)
        return begin

    return register


@kind("producer")
def _produce(role: Role, _: tuple[Any, ...]) -> Generator[Step, Any, Any]:
    policy = Policy(
        limit=role.option("limit"),
        attempts=role.option("attempts", 2),
        backoff_ms=(1000, 1000),
        deadline_ms=role.option("deadline_ms", 0),
    )
    return submit(REQUEST, policy)


@kind("worker")
def _work(role: Role, _: tuple[Any, ...]) -> Generator[Step, Any, Any]:
    sizes: Any = OneEach(role.option("slice", 1))
    record: Any = StillRecord()
    measures: Any = NoMeasures()
    unit: Any = Unit(QUEUE, role.name, "1", record, sizes, measures)
    return loop.serve(unit)


@kind("bunch worker")
def _work_in_bunches(role: Role, _: tuple[Any, ...]) -> Generator[Step, Any, Any]:
    sizes: Any = OneEach(role.option("slice", 1))
    own, spare, measures, two = (made() for made in (StillRecord, StillRecord, NoMeasures, Two))
    given: Any = (own, sizes, measures, two, (spare,))
    return loop.serve(Unit(QUEUE, role.name, "1", *given))


@kind("canceller", again=True)
def _cancel(role: Role, _: tuple[Any, ...]) -> Generator[Step, Any, Any]:
    return control.cancel(REQUEST, "because", queue=QUEUE)


@kind("changer", again=True)
def _change(role: Role, _: tuple[Any, ...]) -> Generator[Step, Any, Any]:
    """One live change after the other: words of fairlane.operations.change, and what they take."""
    for word, *given in role.option("changes"):
        yield from getattr(change, word)(REQUEST, *given)


@kind("requeuer", again=True)
def _requeue(role: Role, _: tuple[Any, ...]) -> Generator[Step, Any, Any]:
    return _until_ended(requeue.requeue_dead(REQUEST))


def _until_ended(operation: Generator[Step, Any, Any]) -> Generator[Step, Any, None]:
    """What it does after the end happens in another request, which nobody looks at here."""
    step = operation.send(None)
    while True:
        reply = yield step
        if isinstance(reply, tuple) and reply and reply[0] == b"ended":
            return
        try:
            step = operation.send(reply)
        except StopIteration:
            return


@kind("taker")
def _take_over(role: Role, _: tuple[Any, ...]) -> Generator[Step, Any, Any]:
    """Somebody holds a worker for dead, rightly or not."""
    return deaths.take_over(QUEUE, role.option("worker"), "1")


@kind("keeper")
def _keep(role: Role, argument: tuple[Any, ...]) -> Generator[Step, Any, Any]:
    (what,) = argument
    return maintain.promote(QUEUE) if what == "promote" else maintain.look_after(QUEUE)


KEEPER = Role("keeper", "keeper")


class Ops:
    """Replaces the random op ids: the same actor, life and call get the same id."""

    def __init__(self) -> None:
        self.prefix = 0
        self.count = 0

    def draw(self) -> bytes:
        """The next op of the present actor and life."""
        self.count += 1
        return b"%028x%04x" % (self.prefix, self.count)


OPS = Ops()


class Actor:
    """One actor at one moment: what it was told, and how far a batch of its has come.

    The same moment is the same object (see Cast); it remembers what comes next.
    """

    __slots__ = (
        *("role", "life", "replies", "partial", "argument", "is_over"),
        *("step", "template", "doing", "fence", "result", "error", "told", "is_idle"),
    )

    step: Any
    template: Template
    doing: Doing | None  # what it does next, unless that is no plain command
    fence: tuple[str, bytes] | None  # what it works under
    result: Any  # what its operation returned
    error: str  # the exception its operation ended with

    def __init__(self, *identity: Any) -> None:
        self.role, self.life, self.replies, self.partial, self.argument, self.is_over = identity
        self.told: dict[Any, Actor] = {}
        self.doing = self.fence = self.result = None
        self.error = ""
        self.is_idle = False  # a worker at its pop: what it did before is forgotten


class Cast:
    """All actors there were at any moment."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._actors: dict[Any, Actor] = {}

    def first(self, role: Role, argument: tuple[Any, ...] = (), life: int = 0) -> Actor:
        """An actor at its first step."""
        return self._fed(self._actor(role, life, (), (), argument, False))

    def gone(self, actor: Actor) -> Actor:
        """It does nothing any more."""
        return self._actor(
            actor.role, actor.life, actor.replies, actor.partial, actor.argument, True
        )

    def after(self, actor: Actor, reply: Any) -> Actor:
        """The actor gets the reply to its step; a batch's only when all of it is there."""
        found = actor.told.get(reply)
        if found is None:
            found = actor.told[reply] = self._fed(self._after(actor, reply))
        return found

    def _after(self, actor: Actor, reply: Any) -> Actor:
        step, partial = actor.step, ()
        if isinstance(step, Batch):
            partial = (*actor.partial, reply)
            if len(partial) == len(step.steps):
                reply, partial = partial, ()
        replies = actor.replies if partial else (*actor.replies, reply)
        return self._actor(actor.role, actor.life, replies, partial, actor.argument, False)

    def _fed(self, actor: Actor) -> Actor:
        """Gives a producer its bodies; it never waits for room.

        Unless it acts at once, no server has all keys: it takes the steps of a cluster.
        """
        others = (Pull, Pause) if actor.role.option("at_once", False) else (Pull, Pause, Across)
        while isinstance(actor.step, others):
            if not isinstance(actor.step, Pull):
                actor = self._after(actor, None)
                continue
            given = sum(isinstance(reply, Chunk) for reply in actor.replies)
            sizes = actor.role.option("chunks")
            chunk = Chunk([b"x"] * sizes[given]) if given < len(sizes) else None
            actor = self._after(actor, chunk)
        return actor

    def _actor(self, *identity: Any) -> Actor:
        actor = self._actors.get(identity)
        if actor is None:
            actor = self._actors[identity] = Actor(*identity)
            self._revive(actor)
        return actor

    def _revive(self, actor: Actor) -> None:
        """Runs the operation up to its present step by telling it all replies again."""
        role = actor.role
        OPS.prefix = sum(map(ord, role.name)) * 1000 + actor.life
        OPS.count = 0
        generator = KINDS[role.kind].begin(role, actor.argument)
        knows: Any = "over"
        try:
            actor.step = _replay(generator, actor.replies)
            knows = frames(generator)
        except StopIteration as end:
            actor.step, actor.result = END, end.value
        except Exception as error:  # noqa: BLE001  it ends by telling its caller what is wrong
            actor.step, actor.error = FAILED, type(error).__name__
            if not actor.error.startswith("Request"):
                actor.error += f" {error}"
        text = repr((role.name, actor.is_over, plain(actor.partial), plain(actor.step), knows))
        actor.template = self.world.namer.template(text + actor.error)
        self._make_ready(actor)

    def _make_ready(self, actor: Actor) -> None:
        step = actor.step
        if isinstance(step, (Handle, HandleBunch)):
            held = step.slice if isinstance(step, Handle) else step.bunch.waiting[0].slice
            actor.fence = (held.k, held.fence)
            return
        one = step.steps[len(actor.partial)] if isinstance(step, Batch) else step
        one = one.call if isinstance(one, Across) else one
        if isinstance(one, (Command, Call)):
            actor.doing = self.world.doing(one)
            actor.is_idle = actor.doing.name == "BRPOP"

    def ops_of(self, role: Role, life: int) -> list[str]:
        """The ops that a worker may draw in a life: for each token and a retry's, and to go on."""
        most = 4 if role.kind == "bunch worker" or role.option("at_once", False) else 1
        prefix = f"{sum(map(ord, role.name)) * 1000 + life:028x}"
        return [f"{prefix}{number:04x}" for number in range(1, most + 1)]


def _replay(generator: Generator[Step, Any, Any], replies: tuple[Any, ...]) -> Any:
    step: Any = generator.send(None)
    for reply in replies:
        if isinstance(reply, Refused):
            step = generator.throw(redis.ResponseError(reply.text))
        elif isinstance(reply, Way) and isinstance(step, HandleBunch):
            step = generator.send(Handled(handled_in_turn(step.bunch, reply.how)))
        elif isinstance(reply, Way):
            step = generator.send(handled(step.slice, step.position, reply.how))
        else:
            step = generator.send(_told(step, reply))
    return step


def _told(step: Any, reply: Any) -> Any:
    """The reply as a driver brings it: a pop's is a Popped, of one token."""
    if isinstance(step, Batch):
        return tuple(_told(one, part) for one, part in zip(step.steps, reply, strict=True))
    if not isinstance(step, Pop) or reply is None:
        return (
            [*reply] if isinstance(step, Command) and step.args[0] == b"RPOP" and reply else reply
        )
    lane, token = reply
    return Popped(lane, [token], is_cut=True)


def frames(generator: Any) -> list[Any]:
    """Where the operation stands and what it knows: the line and locals of each of its frames."""
    found = []
    while generator is not None and getattr(generator, "gi_frame", None) is not None:
        frame = generator.gi_frame
        found.append((frame.f_code.co_name, frame.f_lasti, plain(frame.f_locals)))
        generator = generator.gi_yieldfrom
    return found


_SCORES = {"score", "score_before", "seen", "intent", "before", "given_up"}
_SKIP = {"scripts", "unit", "names", "policy", "digest", "sent"}


def _score(value: Any) -> Any:
    text = value.decode() if isinstance(value, bytes) else str(value)
    return f"S{text}"


def plain(value: Any) -> Any:  # noqa: C901, PLR0911, PLR0912  one line for each kind of value
    """A value as nested tuples, without what is the same in every state."""
    if isinstance(value, dict):
        return tuple(
            (name, plain(_score(part)) if name in _SCORES else plain(part))
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
    if isinstance(value, HandleBunch):
        return ("handle", plain(value.bunch))
    if isinstance(value, Bunch):
        return ("bunch", *map(plain, value.waiting))
    if is_dataclass(value) and not isinstance(value, (Unit, type)):
        return tuple(plain(getattr(value, one.name)) for one in fields(value))
    if isinstance(value, Call):
        return (value.script.name, plain(value.args))
    if isinstance(value, Across):
        return plain(value.call)
    if isinstance(value, Batch):
        return plain(value.steps)
    if isinstance(value, Command):
        return value.args[0]
    if isinstance(value, (str, bytes, int, float, bool, type(None))):
        return value
    if isinstance(value, GeneratorType):
        return frames(value)
    return type(value).__name__


def handled(taken: Slice, position: int, how: str) -> Outcome:
    """What a handler could have made of a slice: all done, the first failed, or only one done."""
    entries = taken.entries[position:]
    outcome = Outcome(position=len(taken.entries))
    for i, (entry_id, _) in enumerate(entries):
        index = entry_id.partition(b"-")[2]
        if how == "first fails" and i == 0:
            head = result_head(index, b"x", taken.attempt, 0, 0)
            outcome.verdicts.append(Verdict(entry_id, "retry", 1000, head, "no"))
        elif how == "first is bad" and i == 0:
            head = result_head(index, b"x", taken.attempt, 0, 0)
            outcome.verdicts.append(Verdict(entry_id, "dead", 0, head, "never"))
        elif how == "stops" and i == 1:
            outcome.position, outcome.is_over = position + 1, True
            break
        elif how == "drains" and i == 0:
            outcome.verdicts.append(Verdict(entry_id, "release", 0, b"", ""))
        elif how == "in parts" and i == 1:
            outcome.position = position + 1
            break
        else:
            outcome.ids.append(entry_id)
            outcome.results += [result_head(index, b"d", taken.attempt, 0, 0), b""]
    return outcome


def handled_in_turn(bunch: Bunch, how: str) -> list[Lease]:
    """The same for several leases; "stops" begins one only."""
    done = []
    while lease := bunch.take():
        done.append(lease)
        lease.outcome = handled(lease.slice, 0, how)
        if how in {"stops", "in parts"}:
            break
    return done


def ways(step: Handle | HandleBunch, hows: tuple[str, ...]) -> Iterator[str]:
    """Which of the ways a handler may go here."""
    if isinstance(step, HandleBunch):
        yield from hows
        return
    left = len(step.slice.entries) - step.position
    for how in hows:
        if left > 1 or how not in {"stops", "in parts"}:
            yield how


def extension(step: Handle | HandleBunch) -> Call:
    """What the supervisor sends while a handler runs."""
    held = step.slice if isinstance(step, Handle) else step.bunch.waiting[0].slice
    return work.extend(held.request_id, held.k, held.fence.decode(), held.op.decode())


def install(library: Library, monkeypatch: Any) -> None:
    """The operations use this library, our op ids and a clock that stands still."""
    from fairlane import clock, settings
    from fairlane.operations import enqueue, intents
    from fairlane.operations import submit as submission

    for module in (control, enqueue, intents, maintain, tokens, work, submission):
        if hasattr(module, "library"):
            monkeypatch.setattr(module, "library", lambda: library)
    monkeypatch.setattr("fairlane.operations.work._ops", OPS)
    monkeypatch.setattr(clock, "mono_s", lambda: 0.0)
    monkeypatch.setattr(settings, "OPEN_MS", 20_000)
