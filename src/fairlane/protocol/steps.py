"""What an operation may ask of a driver: one step, one reply.

Operations are coroutines: they await steps, and do no I/O of their own. So the same operation runs
under a blocking driver, an asyncio driver and a test that cuts it off.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine, Generator, Iterable, Sequence
from types import coroutine
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, overload

from fairlane.errors import FairlaneError, RedisUnreachable

if TYPE_CHECKING:
    import asyncio

    from fairlane.protocol.lua import Script

T = TypeVar("T")
R = TypeVar("R")


class Awaited:
    """The base of all steps. A driver receives the step itself, and sends the reply.

    If a program of asyncio awaits an operation without a driver, its event loop receives the step.
    It treats what has the attributes below as a future of its own. The step is then one that has
    failed, so the program gets an error at its `await`.
    """

    __slots__ = ()

    def __await__(self) -> Generator[Any, Any, Any]:
        return (yield self)

    _asyncio_future_blocking = property(lambda _: True, lambda *_: None)

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """Returns the loop of the task that awaits the step."""
        import asyncio  # this is a leaf of every command

        return asyncio.get_running_loop()

    def add_done_callback(self, wake: Callable[[Any], object], *, context: Any = None) -> None:
        """Wakes the task in the next turn of the loop, as a future does that is done."""
        self.get_loop().call_soon(wake, self, context=context)

    def cancel(self, msg: object = None) -> bool:  # noqa: ARG002  the name is of a future
        """Returns False: it is done."""
        return False

    def result(self) -> None:
        """Raises RuntimeError."""
        raise RuntimeError(
            f"no driver performs {type(self).__name__} here: an operation is not awaited, it is "
            "run, as in await driver.run(operation)"
        )


_APART_S = 0.2  # between looks at lists one by one, while their slot is moved
Arg = bytes | str | int | float


class Command(Awaited):
    """One Redis command; the reply is Redis's, undecoded.

    A driver sends it again when its reply is lost, so a repeat must have no other effect.

    `apart` makes an operation that does the same by commands of one key each, for a cluster that
    is moving the slot: there a command of several keys is refused. `away_s` as in Batch.
    """

    __slots__ = ("apart", "args", "away_s")
    is_once = False

    def __init__(self, *args: Arg) -> None:
        self.args: tuple[Arg, ...] = args
        self.apart: Callable[[], Operation[Any]] | None = None
        self.away_s: float | None = None

    def read(self, raw: Any) -> Any:
        """Returns the reply of a batch to this step: Redis's own."""
        return raw


class Call(Awaited, Generic[R]):
    """One script, by EVALSHA; `args` are complete and in order. The others as in Command.

    `read` turns what Redis replied into the script's reply, with the names of its header. A call
    `is_once` is sent at most once. If its reply is lost, what Redis replied is None.
    """

    __slots__ = ("apart", "args", "away_s", "keys", "read", "script")

    def __init__(
        self, script: Script, keys: Sequence[bytes], args: Sequence[Arg], read: Callable[[Any], R]
    ) -> None:
        self.script = script
        self.keys = keys
        self.args = args
        self.read = read
        self.apart: Callable[[], Operation[Any]] | None = None
        self.away_s: float | None = None

    @property
    def is_once(self) -> bool:
        """Returns True if the call must not be sent again when its reply is lost."""
        return self.script.is_once

    def __await__(self) -> Generator[Any, Any, R]:
        return self.read((yield self))


class TextCall(Call[R]):
    """A script call whose `args` are all bytes or str, so that they need no conversion."""

    __slots__ = ()


class Popped(NamedTuple):
    """The tokens that a Pop took from one lane, oldest first."""

    lane: bytes
    tokens: list[bytes]


class Pop(Command):
    """Pops up to `most` tokens from the first list of `keys` that is not empty: Popped, or None.

    If all lists are empty, it waits up to `block_ms` for a token; 0 = not at all.
    """

    __slots__ = ("keys", "most", "packed", "seconds")

    def __init__(self, keys: Sequence[bytes], block_ms: int, most: int = 1) -> None:
        self.seconds = block_ms / 1000
        super().__init__(*_pop_words(keys, self.seconds, most))
        self.keys = keys
        self.most = most
        self.packed: bytes | None = None  # set by a driver: the bytes to send
        self.apart = self._one_by_one

    async def _one_by_one(self) -> Popped | None:
        lengths = await Batch([Command(b"LLEN", key) for key in self.keys])
        for key, length in zip(self.keys, lengths, strict=True):
            if length:
                tokens = await Command(b"RPOP", key, self.most)
                if tokens:
                    return Popped(key, tokens)
        if self.seconds:
            await Pause(min(self.seconds, _APART_S))
        return None


_KEYLESS = frozenset({b"TIME", b"INFO", b"SUBSCRIBE"})
_READS = frozenset({b"XREAD", b"XREADGROUP"})
_KEY_AT: dict[Arg, int] = {
    b"XINFO": 2,
    b"XGROUP": 2,
    b"MEMORY": 2,
    b"LMPOP": 2,
    b"BLMPOP": 3,
}  # else 1


def key_of(step: Command | Call[Any]) -> bytes | None:
    """Returns the key whose slot decides where the step goes; None if any node will do."""
    if isinstance(step, Call):
        return step.keys[0]
    args = step.args
    if args[0] in _KEYLESS:
        return None
    is_read = args[0] in _READS
    at = args.index(b"STREAMS") + 1 if is_read else _KEY_AT.get(args[0], 1)
    return _as_bytes(args[at])


def _as_bytes(arg: Arg) -> bytes:
    return arg if isinstance(arg, bytes) else str(arg).encode()


def _pop_words(keys: Sequence[bytes], seconds: float, most: int) -> tuple[Arg, ...]:
    if seconds and most == 1:
        return (b"BRPOP", *keys, seconds)
    several: tuple[Arg, ...] = (len(keys), *keys, b"RIGHT", b"COUNT", most)
    return (b"BLMPOP", seconds, *several) if seconds else (b"LMPOP", *several)


class Batch(Awaited):
    """Independent steps in one round trip; replies in the same order.

    Nothing may depend on the order of their effects: if the server has forgotten a step's script,
    that step runs again later than the others. `lenient`: a step that fails has its error, a
    FairlaneError, as its reply; otherwise the first error is raised. `patience_s`: how long steps
    without a reply are repeated, instead of the driver's patience. The whole batch waits for its
    slowest node; a lenient batch does so for only 5 s after its first replies.

    `away_s`: a node of a cluster that has not answered for so long is away. Its steps end with
    NodeAway and are not sent any more, except for a try now and then. A single server is waited for
    as long as without `away_s`, because there is nothing else to do meanwhile. A Call or Command
    that is performed alone may have its own `away_s`; a Confirm uses that of its step. `again_s`:
    this batch tries such a node again after so many seconds, even if the usual pause is longer.
    """

    __slots__ = ("again_s", "away_s", "lenient", "patience_s", "steps")

    def __init__(
        self,
        steps: Sequence[Command | Call[Any]],
        *,
        lenient: bool = False,
        patience_s: float | None = None,
        away_s: float | None = None,
        again_s: float = math.inf,
    ) -> None:
        self.steps = steps
        self.lenient = lenient
        self.patience_s = patience_s
        self.away_s = away_s
        self.again_s = again_s

    def __await__(self) -> Generator[Any, Any, list[Any]]:
        return self.read((yield self))

    def read(self, raw: list[Any]) -> list[Any]:
        """Reads the replies of calls; errors, and replies to commands, stay what they are."""
        return [
            reply if isinstance(reply, Exception) else step.read(reply)
            for step, reply in zip(self.steps, raw, strict=True)
        ]


class LazySteps(Sequence["Command | Call[Any]"]):
    """The steps of a batch, `count` of them, each made when it is first asked for.

    The steps are made in their order. A driver sends them to a single server part by part, so that
    the server runs the first ones while the next are made. (A cluster needs all keys first.)
    """

    def __init__(self, count: int, makes: Iterable[Command | Call[Any]]) -> None:
        self._count, self._makes = count, iter(makes)
        self._made: list[Command | Call[Any]] = []

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, at: int) -> Command | Call[Any]: ...
    @overload
    def __getitem__(self, at: slice) -> list[Command | Call[Any]]: ...
    def __getitem__(self, at: int | slice) -> Command | Call[Any] | list[Command | Call[Any]]:
        made = self._made
        wanted = at + 1 if isinstance(at, int) and 0 <= at < self._count else self._count
        while len(made) < wanted:
            made.append(next(self._makes))
        return made[at]


class SingleServer(Awaited, Generic[R]):
    """Scripts whose keys are in several slots: a server that has all of them runs them.

    The reply is that of `step`, or None in a cluster, where nothing was asked.
    """

    __slots__ = ("step",)

    @overload
    def __init__(self: SingleServer[list[Any]], step: Batch) -> None: ...
    @overload
    def __init__(self: SingleServer[R], step: Call[R]) -> None: ...
    def __init__(self, step: Any) -> None:
        self.step: Call[Any] | Batch = step

    def __await__(self) -> Generator[Any, Any, R | None]:
        raw = yield self
        step: Any = self.step
        reply: R | None = None if raw is None else step.read(raw)
        return reply


class Nodes(Awaited):
    """Returns the primaries, a list of values for the `node` of OnNode. A single server: [None]."""

    __slots__ = ()


class OnNode(Awaited):
    """One command at one primary, whatever its keys: INFO, SCAN. The reply is Redis's, undecoded.

    Raises RedisUnreachable if the node is no longer a primary of the cluster.
    """

    __slots__ = ("command", "node")

    def __init__(self, node: Any, command: Command) -> None:
        self.node = node
        self.command = command


class Confirm(Awaited):
    """One step, then WAIT for `replicas` on the same connection: the reply is Confirmed.

    WAIT covers what this connection wrote, and everything that its server had acknowledged
    before, to any client. So the step must always write, also when it is repeated.
    """

    __slots__ = ("replicas", "step")

    def __init__(self, step: Command | Call[Any], replicas: int) -> None:
        self.step = step
        self.replicas = replicas

    def __await__(self) -> Generator[Any, Any, Confirmed]:
        found: Confirmed = yield self
        return found._replace(reply=self.step.read(found.reply))


class Confirmed(NamedTuple):
    """The reply to a Confirm: the step's own reply, and how many replicas have its write.

    `is_synced` is False if the server reports that its own disk does not have the write.
    """

    reply: Any
    replicas: int
    is_synced: bool


class Pause(Awaited):
    """Waits for `seconds`."""

    __slots__ = ("seconds",)

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds


class Subscribe(Awaited):
    """Subscribes to a channel until the operation ends; the reply is the confirmation."""

    __slots__ = ("channel",)

    def __init__(self, channel: bytes) -> None:
        self.channel = channel


class Message(Awaited):
    """Waits for a message on the subscribed channel: its bytes, or None after `timeout_s`."""

    __slots__ = ("timeout_s",)

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s


class NextChunk(Awaited):
    """The next chunk of the caller's bodies: a list of bytes, or None at the end."""

    __slots__ = ()


class Hurry(Awaited):
    """Shortens the patience of all later calls, because a person waits after Ctrl-C.

    Python raises KeyboardInterrupt anywhere: also inside an operation, where no driver catches it.
    """

    __slots__ = ()


class Handle(Awaited):
    """Runs the handler over leases in turn, and the operation `meanwhile` beside it.

    `leases` is a worker's LeaseBatch; both may take leases from it. The reply is a Handled.
    """

    __slots__ = ("leases", "meanwhile")

    def __init__(self, leases: Any, meanwhile: Operation[Any] | None = None) -> None:
        self.leases = leases
        self.meanwhile = meanwhile


class Handled(NamedTuple):
    """The reply to a Handle: leases that were handled, and the operation's result or error."""

    leases: Any
    result: Any = None
    error: Exception | None = None


class UntilHandled(Awaited):
    """In a `meanwhile`: waits until the handler has returned, for `timeout_s` at most.

    The reply is True if it has returned.
    """

    __slots__ = ("timeout_s",)

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s


class Signal(Awaited):
    """Waits until another operation of the process gives the signal; the reply is what it gave.

    Only one operation may wait. A driver sets `wake`, and looks at `is_given` after that.
    """

    __slots__ = ("is_given", "value", "wake")

    def __init__(self) -> None:
        self.value: Any = None
        self.is_given = False
        self.wake: Callable[[], None] | None = None

    def give(self, value: Any) -> None:
        """Gives the signal."""
        self.value = value
        self.is_given = True
        if self.wake is not None:
            self.wake()


Step = (
    Command
    | Call[Any]
    | Batch
    | SingleServer[Any]
    | Nodes
    | OnNode
    | Confirm
    | Pause
    | Subscribe
    | Message
    | NextChunk
    | Hurry
    | Handle
    | UntilHandled
    | Signal
)
Operation = Coroutine[Step, Any, T]


@coroutine
def forward(step: Step) -> Generator[Step, Any, Any]:
    """Performs a step of another operation; returns what to send to it: the unread reply."""
    return (yield step)


# ------------------------------------------------------------------ batching
# Sends many independent steps in bounded round trips; one bad key need not stop the others.


TOGETHER = 100  # steps of one round trip


async def run_all(steps: Sequence[Command | Call[Any]]) -> list[Any]:
    """Sends any number of steps, or none; returns their replies."""
    replies: list[Any] = []
    for start in range(0, len(steps), TOGETHER):
        replies += await Batch(steps[start : start + TOGETHER])
    return replies


async def run_each(steps: Sequence[Command | Call[Any]]) -> list[Any]:
    """As `run_all`; a failed step has its error as its reply. Raises RedisUnreachable."""
    replies: list[Any] = []
    for start in range(0, len(steps), TOGETHER):
        replies += await Batch(steps[start : start + TOGETHER], lenient=True)
    return replies


async def run_each_or_error(
    steps: Sequence[Command | Call[Any]], together: int = TOGETHER
) -> list[Any]:
    """As `run_each`, with RedisUnreachable as a reply too, because other nodes may answer.

    `together` is how many steps share a round trip.
    """
    replies: list[Any] = []
    for start in range(0, len(steps), together):
        part = steps[start : start + together]
        try:
            replies += await Batch(part, lenient=True)
        except RedisUnreachable as error:
            replies += [error] * len(part)
    return replies


async def call_each(calls: Sequence[Call[R]], together: int = TOGETHER) -> list[R | FairlaneError]:
    """As `run_each_or_error`, for calls of one script."""
    replies: list[R | FairlaneError] = await run_each_or_error(calls, together)
    return replies
