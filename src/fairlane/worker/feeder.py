"""One exchange for the units of a process: it settles and acquires for all that need it now.

A unit that has one lease at a time brings its portion of the next exchange. If no other unit
gathers portions now, and fewer than two exchanges are on their way, this unit leads. It sends the
portions of all units that wait, and passes on what each one gets. So no thread or task of its own
is needed, and a unit never waits for the handler of another one.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING

from fairlane import settings
from fairlane.common import clock
from fairlane.operations.lease import exchange, new_op
from fairlane.protocol.scripts import ExchangeReply
from fairlane.protocol.steps import Pause, Signal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fairlane.model import Slice
    from fairlane.operations.lease import Exchanger, Part
    from fairlane.worker.board import LeaseRecord
    from fairlane.worker.unit import Sizer


_SENT_MOST = 2  # exchanges on their way: the server runs one while the reply to the other is read
_EVERY_S = 0.001  # between the starts of two: so the portions of quick handlers come together
_MOST_PORTIONS = 100  # of one exchange, which must not keep Redis busy for long
MOST_RESULTS = 2_000  # ... for the same reason


@dataclass(slots=True, eq=False)
class Portion:
    """What one unit settles and acquires in an exchange.

    `size`: of the results, in bytes. `wants`: it takes tokens, and only one if several units make
    the exchange. `op`, `sent` (by clock.mono_s) and `sizes` are those of the exchange.
    """

    record: LeaseRecord
    settled: list[tuple[Slice, Part]]
    size: int
    lanes: Sequence[bytes]
    wants: bool
    signal: Signal = field(default_factory=Signal)
    op: bytes = b""
    sent: float = 0.0
    sizes: Sequence[tuple[str, int]] = ()
    reply: ExchangeReply | None = None
    error: BaseException | None = None

    @property
    def results(self) -> int:
        """Returns how many results it settles."""
        return sum([len(ids) for _, (ids, _, _) in self.settled])


class Feeder:
    """The exchanges that the units of one process make together. All of its threads may use it."""

    def __init__(self, sender: Exchanger, sizer: Sizer) -> None:
        self._sender, self._sizer = sender, sizer
        self._lock = Lock()
        self._waiting: deque[Portion] = deque()
        self._is_gathering = False  # one of the units will send the portions that wait
        self._sent = 0  # exchanges on their way
        self._next_at = 0.0

    async def exchange(self, portion: Portion) -> ExchangeReply | None:
        """Returns this portion's part of the reply; None if no server has all keys.

        Raises what the exchange raises.
        """
        if self._join(portion) or await portion.signal:
            await self._lead()
        if portion.error is not None:
            raise portion.error
        return portion.reply

    def _join(self, portion: Portion) -> bool:
        """Adds a portion; returns True if its unit must lead."""
        with self._lock:
            self._waiting.append(portion)
            return self._may_gather()

    def _may_gather(self) -> bool:
        """Returns True if another exchange may be gathered, and notes that it is."""
        if self._is_gathering or self._sent >= _SENT_MOST or not self._waiting:
            return False
        self._is_gathering = True
        return True

    async def _lead(self) -> None:
        """Sends the portions that wait, and gives each unit its part of the reply."""
        portions: list[Portion] = []
        reply = error = None
        try:
            if (wait_s := self._next_at - clock.mono_s()) > 0:
                await Pause(wait_s)
            portions = self._take()
            reply = await self._send(portions)
        except BaseException as raised:  # noqa: BLE001  each of the units raises it
            error = raised
            portions = portions or self._take()
        self._end(portions, reply, error)

    def _take(self) -> list[Portion]:
        """Removes and returns the portions that wait, up to the bounds of one exchange."""
        portions: list[Portion] = []
        results = size = 0
        with self._lock:
            while self._waiting and len(portions) < _MOST_PORTIONS:
                portion = self._waiting[0]
                results, size = results + portion.results, size + portion.size
                if portions and (results > MOST_RESULTS or size > settings.FLUSH_BYTES):
                    break
                portions.append(self._waiting.popleft())
            self._is_gathering = False
            self._sent += 1
            self._next_at = clock.mono_s() + _EVERY_S
            self._pass_on()
        return portions

    def _pass_on(self) -> None:
        """Makes the unit lead whose portion has waited longest, if one may."""
        if self._may_gather():
            self._waiting[0].signal.give(True)

    async def _send(self, portions: list[Portion]) -> ExchangeReply | None:
        """Sends one exchange; the portions that want a token come first."""
        portions.sort(key=lambda portion: not portion.wants)
        want = sum([portion.wants for portion in portions])
        sender = self._sender.of_many([portion.record.unit for portion in portions])
        return await send_exchange(sender, portions, want, self._sizer.sizes() if want else ())

    def _end(
        self, portions: list[Portion], reply: ExchangeReply | None, error: BaseException | None
    ) -> None:
        """Gives each unit its part of the reply, or the error."""
        with self._lock:
            self._sent -= 1
            self._pass_on()
        if reply is not None:
            _divide(portions, reply)
        for portion in portions:
            portion.error = error
            portion.signal.give(False)


async def send_exchange(
    sender: Exchanger,
    portions: Sequence[Portion],
    want: int,
    sizes: Sequence[tuple[str, int]],
    *,
    shared: bool = False,
) -> ExchangeReply | None:
    """Sends one exchange of these portions; the arguments are as in `exchange`.

    If this process dies before the reply, the supervisor sends the exchange again.
    """
    sent, op = clock.mono_s(), new_op()
    for portion in portions:
        portion.op, portion.sent, portion.sizes = op, sent, sizes
        portion.record.begin_exchange(op)
    settled = [row for portion in portions for row in portion.settled]
    lanes = max([portion.lanes for portion in portions], key=len)
    return await exchange(sender, op, settled, lanes=lanes, want=want, shared=shared, sizes=sizes)


def _divide(portions: list[Portion], reply: ExchangeReply) -> None:
    """Gives each portion its part of the reply; the first one dispatches what the script left."""
    at, left, unlogged = 0, reply.left, reply.unlogged
    for number, portion in enumerate(portions):
        settled = reply.settled[at : at + len(portion.settled)]
        at += len(settled)
        mine = slice(number, number + 1)
        rest = [reply.tokens[mine], reply.acquired[mine]] if portion.wants else [[], []]
        portion.reply = ExchangeReply.of([settled, left, unlogged, *rest])
        left, unlogged = [], []
