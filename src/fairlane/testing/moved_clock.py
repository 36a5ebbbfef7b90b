"""A clock that a test moves forward, for operations whose scripts take the time as an argument."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from fairlane.protocol.steps import Batch, Call, Command, LazySteps, SingleServer, forward

if TYPE_CHECKING:
    from fairlane.protocol.steps import Operation

T = TypeVar("T")
_TIME = (b"TIME",)


class MovedClock:
    """The time of Redis, moved forward by `moved_ms`."""

    def __init__(self) -> None:
        self.moved_ms = 0

    def move(self, seconds: float) -> None:
        """Moves the clock forward."""
        self.moved_ms += round(seconds * 1000)

    async def during(self, operation: Operation[T]) -> T:
        """Performs an operation in the moved time: its scripts get it, and TIME returns it."""
        if not self.moved_ms:
            return await operation
        try:
            step = operation.send(None)
            while True:
                try:
                    seconds, micros = await Command(*_TIME)
                    now_ms = int(seconds) * 1000 + int(micros) // 1000 + self.moved_ms
                    reply = await forward(_at(step, now_ms))
                except BaseException as error:  # noqa: BLE001  the operation's own to handle
                    step = operation.throw(error)
                else:
                    step = operation.send(self._read(step, reply))
        except StopIteration as end:
            found: T = end.value
            return found

    def _read(self, step: Any, reply: Any) -> Any:
        if isinstance(step, Batch):
            return [self._read(one, got) for one, got in zip(step.steps, reply, strict=True)]
        if isinstance(step, Command) and step.args == _TIME:
            return self._moved(*reply)
        return reply

    def _moved(self, seconds: bytes, micros: bytes) -> list[bytes]:
        moved_us = int(seconds) * 1_000_000 + int(micros) + self.moved_ms * 1000
        return [b"%d" % (moved_us // 1_000_000), b"%d" % (moved_us % 1_000_000)]


def _at(step: Any, now_ms: int) -> Any:
    """Returns a step whose scripts take this time as theirs."""
    if isinstance(step, SingleServer):
        return SingleServer(_at(step.step, now_ms))
    if isinstance(step, Batch):
        steps: Any = [_at(one, now_ms) for one in step.steps]
        if isinstance(step.steps, LazySteps):
            steps = LazySteps(len(steps), steps)
        return Batch(
            steps, lenient=step.lenient, patience_s=step.patience_s, away_s=step.away_s,
            again_s=step.again_s,
        )  # fmt: skip
    if not isinstance(step, Call) or step.script.params[:1] != ("now",):
        return step
    now = b"%d" % now_ms
    moved = type(step)(step.script, step.keys, (now, *step.args[1:]), step.read)
    moved.apart, moved.away_s = step.apart, step.away_s
    return moved
