"""The actors: each is one of the product's operations, replayed from the replies it received."""

from __future__ import annotations

import importlib
import pkgutil
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass, replace
from types import CoroutineType
from typing import TYPE_CHECKING, Any

from fairlane import settings
from fairlane.errors import ReceiptExpired
from fairlane.model import Slice, Verdict, result_head
from fairlane.operations import change, dead_letters, lease, rates, shards, tokens, workers
from fairlane.operations.audit import Audit
from fairlane.operations.flow_hand_over import hand_over, look_after_and_feed
from fairlane.operations.intents import Intent
from fairlane.operations.pause import resume_queue
from fairlane.operations.rates import set_rate
from fairlane.operations.schedules import Move, fire
from fairlane.operations.submit import submit
from fairlane.operations.take import Taker, exchange_tokens
from fairlane.operations.tokens import seen_to_exist
from fairlane.options import Policy
from fairlane.protocol import keys, scripts
from fairlane.protocol.scripts import StandInReply
from fairlane.protocol.steps import (
    Batch,
    Call,
    Command,
    Confirm,
    Handle,
    Message,
    NextChunk,
    Pause,
    SingleServer,
    Subscribe,
)
from fairlane.worker import settle
from fairlane.worker.calls import Outcome
from fairlane.worker.unit import LeaseBatch, Unit
from tests.explore.machinery.names import scored
from tests.explore.machinery.protocol import QUEUE, REQUEST, T0, TAKEN_BY
from tests.explore.machinery.replies import Broken, Chunk, replay
from tests.explore.one_request.distincts import parity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fairlane.protocol.lua import Library
    from fairlane.protocol.steps import Operation
    from tests.explore.machinery.names import Template
    from tests.explore.machinery.world import Doing, World

    Begin = Callable[["Role", tuple[Any, ...]], Operation[Any]]

_TAKEN = keys.taken(QUEUE, TAKEN_BY)
END, FAILED = "end", "failed"  # the next step of an operation that is over


class StillRecord:
    """A worker's record that never asks it to stop."""

    is_draining = is_paused = False
    takes_ahead = True
    queue_rate: tuple[int, int] | None = None
    deadline = 30.0  # its lease has always just begun, because its clock never moves
    unit = 0
    shards = b""

    def begin_acquire(self, *_: Any) -> None: ...
    def begin_exchange(self, *_: Any) -> None: ...
    def end_acquire(self, **_: Any) -> None: ...
    def hold(self, *_: Any, **__: Any) -> None: ...
    def release(self, *_: Any) -> None: ...
    def end_turn(self) -> None: ...

    def take_turn(self) -> bool:
        return True

    def is_revoked(self, _: bytes) -> bool:
        return False

    def count(self, *_: Any, **__: Any) -> None: ...


class Fixed:
    """Makes slices of a fixed size, and pops as many tokens each time."""

    slice_s = 1.0
    is_quick = True

    def __init__(self, size: int, most: int = 1) -> None:
        self.size, self.most = size, most

    def entries(self, *_: Any) -> int:
        return self.size

    def tokens(self, *_: Any) -> int:
        return self.most

    def has_measured(self, *_: Any) -> bool:
        return False

    def sizes(self, *_: Any) -> list[tuple[str, int]]:
        return [(REQUEST, self.size)] if self.size > 1 else []

    def potential_seconds(self, *_: Any) -> float:
        return 0.0

    def forget(self, *_: Any) -> None: ...
    def observe_slice(self, *_: Any) -> None: ...
    def observe_tokens(self, *_: Any) -> None: ...
    def take_singly(self, *_: Any) -> None: ...


class NoMeasures:
    def add(self, *_: Any) -> None: ...

    def add_cost(self, *_: Any) -> None: ...

    def add_tasks(self, *_: Any) -> None: ...

    def due(self) -> list[Any]:
        return []

    def rest(self) -> list[Any]:
        return []


@dataclass(frozen=True)
class Role:
    """The role of an actor; `options` are the plain values its operation is made from."""

    name: str
    kind: str  # a name of KINDS
    options: tuple[tuple[str, Any], ...] = ()

    def option(self, name: str, default: Any = None) -> Any:
        return dict(self.options).get(name, default)

    @property
    def may_stay_away(self) -> bool:
        """Returns whether the actor may stay away after a crash."""
        stay_away = {"reviver", "follower", "flow producer", "queue changer"}
        stay_away |= {"fan-out", "forwarder"}
        return self.is_producer or self.kind in stay_away

    @property
    def works(self) -> bool:
        """Returns whether the actor pops tokens."""
        return self.kind in {"worker", "bunch worker", "beating worker", "puller", "program"}

    @property
    def draws(self) -> bool:
        """Draws names that no other process has."""
        return self.works or self.kind == "forwarder"

    @property
    def is_producer(self) -> bool:
        """Returns whether the actor submits; the number of its starts is its life."""
        return self.kind in {"producer", "opener"}


@dataclass(frozen=True)
class Kind:
    """How actors of one kind begin; `again` = an actor that came too early tries again.

    An actor is idle, and its past is dropped, at the script `rests_at`; "" = at a blocking pop.
    """

    begin: Begin
    again: bool = False
    rests_at: str = ""


KINDS: dict[str, Kind] = {}


def kind(name: str, *, again: bool = False, rests_at: str = "") -> Callable[[Begin], Begin]:
    def register(begin: Begin) -> Begin:
        KINDS[name] = Kind(begin, again, rests_at)
        return begin

    return register


@kind("producer")
def _produce(role: Role, _: tuple[Any, ...]) -> Operation[Any]:
    policy = Policy(
        limit=role.option("limit"),
        attempts=role.option("attempts", 2),
        backoff_ms=(1000, 1000),
        deadline_ms=role.option("deadline_ms", 0),
        delay_ms=role.option("delay_ms", 0),
        on_duplicate=role.option("on_duplicate", ""),
        nonce=role.option("nonce", ""),
        ageing_ms=role.option("ageing_ms", 0),
        tenant=role.option("tenant", ""),
        rates=role.option("rates", ()),
        durable=role.option("durable", 0),
        distinct=role.option("distinct", False),
        key=parity,
    )
    return submit(REQUEST, policy)


@kind("worker")
def _work(role: Role, _: tuple[Any, ...]) -> Operation[Any]:
    given: Any = (StillRecord(), Fixed(role.option("slice", 1)), NoMeasures())
    return settle.serve(Unit(QUEUE, role.name, "1", *given))


@kind("bunch worker")
def _work_in_bunches(role: Role, _: tuple[Any, ...]) -> Operation[Any]:
    sizer = Fixed(role.option("slice", 1), 2)
    given: Any = (StillRecord(), sizer, NoMeasures(), (StillRecord(),))
    return settle.serve(Unit(QUEUE, role.name, "1", *given))


@kind("puller")
async def _pull(role: Role, _: tuple[Any, ...]) -> Any:
    """Runs a program that takes sub-requests, holds each for a time of its own, and settles it."""
    taker = Taker(QUEUE, lambda: role.name)
    while True:
        popped = await tokens.pop(QUEUE, settings.BLOCK_MS)
        if popped is None:
            continue
        taken, _error, _wait_s = await exchange_tokens(taker, popped, role.option("visible_ms"))
        for delivery in taken:
            # Results that differ only in how long they waited would be as many more states.
            submitted = int(delivery.receipt.entry_id.partition(b"-")[0])
            with suppress(ReceiptExpired):
                await role.option("settle")(replace(delivery.receipt, taken_ms=submitted))


@kind("canceller", again=True)
def _cancel(role: Role, _: tuple[Any, ...]) -> Operation[Any]:
    return change.cancel(REQUEST, "because", queue=QUEUE)


@kind("changer", again=True)
async def _change(role: Role, _: tuple[Any, ...]) -> Any:
    """Makes one live change after the other: operations of control.change, with arguments."""
    name = role.option("of", REQUEST)
    for word, *given in role.option("changes"):
        if word == "hold":
            await rates.hold(QUEUE, name, *given)
        elif word == "set_rate":
            await set_rate(name, *given)
        elif word == "requeue":
            await dead_letters.requeue_dead(name)
        elif word == "cancel":
            await change.cancel(name, "because", queue=QUEUE)
        else:
            await getattr(change, word)(name, *given)


@kind("requeuer", again=True)
def _requeue(role: Role, _: tuple[Any, ...]) -> Operation[Any]:
    return dead_letters.requeue_dead(REQUEST)


@kind("taker")
def _take_over(role: Role, _: tuple[Any, ...]) -> Operation[Any]:
    """Takes over from a worker that is believed dead, rightly or wrongly."""
    return workers.take_over(QUEUE, role.option("worker"), "1")


@kind("keeper")
def _keep(role: Role, argument: tuple[Any, ...]) -> Operation[Any]:
    what, *served = argument
    duties: dict[str, Callable[[], Operation[Any]]] = {
        "promote": lambda: workers.promote(QUEUE, served),
        "audit": lambda: Audit(QUEUE).run(settings.TOKEN_GRACE_MS),
        "feed": lambda: hand_over(REQUEST),
        "feed all": lambda: look_after_and_feed(QUEUE),
        "walk": _walk,
        "fire": lambda: fire(QUEUE),
        "change_shards": lambda: shards.move(QUEUE),
        "resume queue": lambda: resume_queue(QUEUE),
        "look": lambda: workers.look_after(QUEUE),
    }
    return duties[what]()


async def _walk() -> Any:
    """Runs the part of a walk over all requests that restores one."""
    names = (keys.active(QUEUE),)
    await scripts.restore_active(names, id=REQUEST, due=seen_to_exist(T0))


KEEPER = Role("keeper", "keeper")


class Ops:
    """Replaces the random op ids: the same actor, life and call get the same id."""

    def __init__(self) -> None:
        self.prefix = 0
        self.count = 0

    def draw(self) -> bytes:
        """Returns the next op of the present actor and life."""
        self.count += 1
        return b"%028x%04x" % (self.prefix, self.count)


OPS = Ops()


class Actor:
    """An actor at one moment: its replies, and how far its present batch has come.

    The same moment is the same object (see Cast); it remembers what comes next.
    """

    __slots__ = (
        *("role", "life", "replies", "partial", "argument", "is_over"),
        *("step", "template", "doing", "fences", "result", "error", "following", "is_idle"),
    )

    step: Any
    template: Template
    doing: Doing | None  # its next step, unless it is a plain command
    fences: tuple[tuple[str, bytes], ...]  # the leases that its handler works on or will work on
    result: Any  # the result of its operation
    error: str  # the exception its operation ended with

    @property
    def ends(self) -> bool:
        """Returns whether the actor does nothing more."""
        return self.is_over or self.step is END or self.step is FAILED

    def __init__(self, *identity: Any) -> None:
        self.role, self.life, self.replies, self.partial, self.argument, self.is_over = identity
        self.following: dict[Any, Actor] = {}
        self.doing = self.result = None
        self.fences = ()
        self.error = ""
        self.is_idle = False  # a worker at its pop, or at its heartbeat: its past is forgotten


class Cast:
    """All actors at every moment that occurred.

    Without `notes` no actor reads what a worker noted of its tokens, so it is no step of its own.
    """

    def __init__(self, world: World, *, notes: bool = True) -> None:
        self.world, self._notes = world, notes
        self._actors: dict[Any, Actor] = {}

    def first(self, role: Role, argument: tuple[Any, ...] = (), life: int = 0) -> Actor:
        return self._fed(self._actor(role, life, (), (), argument, False))

    def gone(self, actor: Actor) -> Actor:
        return self._actor(
            actor.role, actor.life, actor.replies, actor.partial, actor.argument, True
        )

    def after(self, actor: Actor, reply: Any) -> Actor:
        """Returns the actor after the reply to its step; a batch's only when all of it is there."""
        found = actor.following.get(reply)
        if found is None:
            found = actor.following[reply] = self._fed(self._after(actor, reply))
        return found

    def _after(self, actor: Actor, reply: Any) -> Actor:
        step = actor.step
        partial: tuple[Any, ...] = ()
        if isinstance(step, Batch):
            partial = (*actor.partial, reply)
            while len(partial) < len(step.steps):
                known = self._known(step.steps[len(partial)])
                if known is None:
                    break
                partial = (*partial, known)
            if len(partial) == len(step.steps):
                reply, partial = partial, ()
        replies = actor.replies if partial else (*actor.replies, reply)
        return self._actor(actor.role, actor.life, replies, partial, actor.argument, False)

    def _fed(self, actor: Actor) -> Actor:
        """Feeds a producer its bodies; it never waits for room.

        Without `one_server` it takes the steps of a cluster, because no server has all keys.
        """
        others: tuple[type, ...] = (NextChunk, Pause, Subscribe, Message)
        one_server = self.world.protocol.one_server or actor.role.option("one_server", False)
        if not one_server:
            others += (SingleServer,)
        while True:
            one = actor.step.steps[0] if isinstance(actor.step, Batch) else actor.step
            known = None if actor.partial else self._known(one)
            if known is not None:
                actor = self._after(actor, known)
                continue
            if not isinstance(actor.step, others):
                return actor
            if not isinstance(actor.step, NextChunk):
                actor = self._after(actor, None)
                continue
            given = sum(isinstance(reply, Chunk) for reply in actor.replies)
            sizes = actor.role.option("chunks")
            rest = Broken() if actor.role.option("breaks") else None
            first, more = sum(sizes[:given]), given < len(sizes)
            bodies = [b"%d" % index for index in range(first, first + sizes[given])] if more else ()
            actor = self._after(actor, Chunk(bodies) if more else rest)

    def _known(self, step: Any) -> Any:
        """Returns the reply to a command that is the same in every state, or is no step of its own.

        No worker registers; the world has two lanes; and a TTL does not end here.
        """
        if not isinstance(step, Command) or len(step.args) < 2:
            return None
        word, key = step.args[0], step.args[1]
        if word == b"PEXPIRE" or (key == _TAKEN and word == b"HSET" and not self._notes):
            return 1
        if word == b"LLEN" and not self.world.has(key):
            return 0
        return self.world.protocol.known.get((word, key))

    def _actor(self, *identity: Any) -> Actor:
        actor = self._actors.get(identity)
        if actor is None:
            actor = self._actors[identity] = Actor(*identity)
            self._revive(actor)
        return actor

    def _revive(self, actor: Actor) -> None:
        """Runs the operation up to its present step by replaying all replies."""
        role = actor.role
        OPS.prefix = sum(map(ord, role.name)) * 1000 + actor.life
        OPS.count = 0
        generator = KINDS[role.kind].begin(role, actor.argument)
        position: Any = "over"
        try:
            actor.step = replay(generator, actor.replies)
            position = frames(generator)
        except StopIteration as end:
            actor.step, actor.result = END, end.value
        except Exception as error:  # noqa: BLE001  its caller would get this error
            actor.step, actor.error = FAILED, type(error).__name__
            if not actor.error.startswith("Request"):
                actor.error += f" {error}"
        name = (role.name, actor.life) if role.is_producer else role.name
        text = repr((name, actor.is_over, plain(actor.partial), plain(actor.step), position))
        actor.template = self.world.namer.template(text + actor.error)
        self._make_ready(actor)

    def _make_ready(self, actor: Actor) -> None:
        step = actor.step
        if isinstance(step, Handle):
            waiting = [one.slice for one in step.leases.waiting]
            actor.fences = tuple((held.k, held.fence) for held in waiting)
            return
        one = step.steps[len(actor.partial)] if isinstance(step, Batch) else step
        one = one.step if isinstance(one, SingleServer) else one
        one = one.step if isinstance(one, Confirm) else one
        if isinstance(one, (Command, Call)):
            actor.doing = self.world.doing(one)
            rests_at = KINDS[actor.role.kind].rests_at
            is_script = actor.doing.name == rests_at
            actor.is_idle = is_script if rests_at else actor.doing.pops > 0

    def ops_of(self, role: Role, life: int) -> list[str]:
        """Returns the ops that a worker may draw in a life: for each token, retry and exchange."""
        most = 8 if role.kind == "bunch worker" or role.option("one_server", False) else 1
        prefix = f"{sum(map(ord, role.name)) * 1000 + life:028x}"
        return [f"{prefix}{number:04x}" for number in range(1, most + 1)]


def frames(operation: Any) -> list[Any]:
    """Returns the position of the operation: the line and locals of each of its frames."""
    found = []
    while (frame := getattr(operation, "cr_frame", None)) is not None:
        found.append((frame.f_code.co_name, frame.f_lasti, plain(frame.f_locals)))
        operation = operation.cr_await
    return found


_SCORES = {"score", "score_before", "scores", "seen", "before", "given_up"}
_SKIP = {"scripts", "unit", "names", "policy", "digest", "sent"}


def _score(value: Any) -> Any:
    text = value.decode() if isinstance(value, bytes) else str(value)
    return f"S{text}"


def _scores(value: Any) -> Any:
    """Returns a score, or the scores of requests by their names."""
    if isinstance(value, dict):
        return {name: _score(one) for name, one in value.items()}
    return _score(value)


def _standing(reply: StandInReply, *, is_used: bool) -> Any:
    """Returns a queue's state: what was due when it was read, unless that `is_used` up."""
    dues = () if is_used else (reply.active_due, reply.delayed_due, reply.tick_due)
    due = [0 < one <= reply.now for one in dues]
    rest = (reply.shards, reply.left, reply.paused_until > 0, reply.rate)
    return (*due, *(() if is_used else (reply.leads, reply.audits)), *rest)


def plain(value: Any) -> Any:  # noqa: C901, PLR0911, PLR0912  one line for each kind of value
    """Returns a value as nested tuples, without what is the same in every state."""
    if isinstance(value, StandInReply):
        return _standing(value, is_used=False)
    if isinstance(value, dict) and "standing" in value:
        rest = {name: part for name, part in value.items() if name != "standing"}
        return (_standing(value["standing"], is_used=True), plain(rest))
    if isinstance(value, dict):
        return tuple(
            (name, plain(_scores(part)) if name in _SCORES else plain(part))
            for name, part in sorted(value.items(), key=str)
            if name not in _SKIP
        )
    if isinstance(value, Intent):
        return ("intent", _score(value.score), _score(value.before), value.shards)
    if isinstance(value, Move):  # its ticks are distinct, whether they have passed or not
        ticks = (value.expected, *value.ticks, value.next)
        return ("move", value.name, *(tick - T0 for tick in ticks))
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
        return ("handle", plain(value.leases))
    if isinstance(value, LeaseBatch):
        return ("bunch", *map(plain, value.waiting))
    if is_dataclass(value) and not isinstance(value, (Unit, type)):
        return tuple(plain(getattr(value, one.name)) for one in fields(value))
    if isinstance(value, Call):
        return (value.script.name, value.keys[-1], plain(scored(value)))
    if isinstance(value, SingleServer):
        return plain(value.step)
    if isinstance(value, Confirm):
        return ("confirm", plain(value.step))
    if isinstance(value, Batch):
        return plain(value.steps)
    if isinstance(value, Command):
        return value.args[0]
    if isinstance(value, (str, bytes, int, float, bool, type(None))):
        return value
    if isinstance(value, CoroutineType):
        return frames(value)
    return type(value).__name__


def ways(step: Handle, hows: tuple[str, ...]) -> Iterator[str]:
    """Returns the ways that a handler may go here."""
    first, *others = step.leases.waiting
    if others:
        yield from hows
        return
    left = len(first.slice.entries) - first.position
    for how in hows:
        if left > 1 or how not in {"stops", "in parts"}:
            yield how


def extension(step: Handle) -> Call[Any]:
    """Returns the step that the supervisor sends while a handler runs."""
    held = step.leases.waiting[0].slice
    return lease.extend(held.request_id, held.k, held.fence.decode(), held.op.decode())


def split(step: Handle) -> Call[Any] | None:
    """Returns the step that the supervisor sends while a call is slow; None = nothing is beside it.

    Of three sub-requests the first one is done, the second one runs, and the third one goes back;
    of two the first one runs. The unit may still call its handler with what went back.
    """
    first, *_ = step.leases.waiting
    held, entries = first.slice, first.slice.entries[first.position :]
    if len(entries) < 2:
        return None
    before = [entry_id for entry_id, _ in entries[: len(entries) - 2]]
    results: list[Any] = []
    for one in before:
        results += [result_head(one.partition(b"-")[2], b"d", held.attempt, 0, 0), b""]
    late = [Verdict(one, "unbegun", 0, b"", "") for one, _ in entries[len(before) + 1 :]]
    return lease.settle_part(
        held.request_id, held.k, held.fence.decode(), held.op.decode(),
        before, results, late, keep=True,
    )  # fmt: skip


def install(library: Library, monkeypatch: Any) -> None:
    """Makes the operations use this library, fixed op ids and a stopped clock."""
    from fairlane import operations, settings
    from fairlane.arrow import stream_ranges
    from fairlane.common import clock
    from fairlane.protocol import scripts
    from fairlane.spark import commit

    names = [found.name for found in pkgutil.iter_modules(operations.__path__)]
    modules = [importlib.import_module(f"{operations.__name__}.{name}") for name in names]
    for module in (*modules, commit, commit, stream_ranges, scripts):
        if hasattr(module, "library"):
            monkeypatch.setattr(module, "library", lambda: library)
    monkeypatch.setattr("fairlane.operations.lease._ops", OPS)
    monkeypatch.setattr(clock, "mono_s", lambda: 0.0)
    monkeypatch.setattr(settings, "OPEN_MS", 20_000)
    monkeypatch.setattr("fairlane.operations.dead_letters.CALL_REQUEUED", 2)
    for name in ("BATCH", "HAND_OVER_BATCH"):  # so that three messages are two batches
        monkeypatch.setattr(f"fairlane.operations.lists.{name}", 2)
