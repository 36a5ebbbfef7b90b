"""Runs the calls that wait in the queues of apps in this process, until none is left."""

from __future__ import annotations

import os
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, Any, TypeVar

from fairlane import settings
from fairlane.errors import InvalidArgument
from fairlane.operations import tokens
from fairlane.operations.flow_hand_over import hand_over
from fairlane.operations.workers import look_after, promote
from fairlane.protocol import keys
from fairlane.protocol.steps import Batch, Call, Command, LazySteps, SingleServer, forward
from fairlane.tasks.app import check_apps
from fairlane.tasks.serve import TaskCalls
from fairlane.worker.board import LeaseBoard
from fairlane.worker.calls import Runner
from fairlane.worker.errors import GiveBack
from fairlane.worker.handlers import Shape, connect_handlers, shape_of
from fairlane.worker.measures import Metrics
from fairlane.worker.settle import take
from fairlane.worker.unit import FollowUps, Sizer, Unit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fairlane.protocol.steps import Operation
    from fairlane.tasks.app import App
    from fairlane.worker.handlers import Context


T = TypeVar("T")
__fairlane_caller__ = (
    True  # its frames are left out of a task's traceback: see worker/error_texts.py
)
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


# ------------------------------------------------------------------ watched
# The handler of an app in a test: counts attempts, keeps errors, and lets an interrupt through.


class WatchedHandler:
    """Calls the tasks of apps in this process.

    A worker makes every exception an outcome of its call. In a test, Ctrl-C and what pytest raises
    are none: `check` raises them again.
    """

    def __init__(self, calls: TaskCalls) -> None:
        self._handler = calls.handler(is_async=False)
        self._wants_context = shape_of(self._handler).wants_context
        self.attempts = 0
        self.first_error: BaseException | None = None
        self._interrupt: BaseException | None = None

    @property
    def shape(self) -> Shape:
        """Returns how a Runner calls it."""
        own = shape_of(self._handler)
        return replace(
            shape_of(self._call), task_of=own.task_of, trace_of=own.trace_of, hide=own.hide
        )

    def start(self) -> None:
        """Runs the hooks of a process's start."""
        self._handler.fairlane_lifespan.start()

    def stop(self) -> None:
        """Runs the hooks of a process's end."""
        self._handler.fairlane_lifespan.stop()

    def check(self) -> None:
        """Raises what was no outcome of a call."""
        interrupt, self._interrupt = self._interrupt, None
        if interrupt is not None:
            raise interrupt

    def _call(self, body: bytes, context: Context) -> Any:
        try:
            result = self._handler(body, context) if self._wants_context else self._handler(body)
        except GiveBack:  # it waits for a worker that has its task
            raise
        except BaseException as error:
            self.attempts += 1
            self.first_error = self.first_error or error
            if not isinstance(error, (Exception, SystemExit)):
                self._interrupt = error
            raise
        self.attempts += 1
        return result


_WORKER = "127.0.0.1:1"  # a name for the leases; no worker has this port
_MOST_SKIPS = 100  # of pauses after which no call ran: the calls wait for a task that is not here
_clocks: dict[tuple[str, str], MovedClock] = {}  # by the Redis and the queue


def run_tasks(*apps: App, skip: float | str = 0.0, raises: bool = False) -> int:
    """Runs the calls that wait in the apps' queues, in this process, until none is left.

    So breakpoints, mocks and coverage work. Returns how many attempts it made. Pauses between
    attempts are skipped: the clock of the run is moved forward. `skip` moves the clock first, by
    seconds or a text such as "2h"; it stays moved, so a deadline may pass. With `raises`, the first
    error of a task is raised again when the run is over. Time limits do not apply. Priorities,
    attempts, hooks and results are those of a worker. Raises InvalidArgument and RedisError.
    """
    if not apps:
        raise InvalidArgument("no app is named: run_tasks needs one")
    check_apps("run_tasks", apps)
    moved_s = settings.duration_ms(skip) / 1000 if isinstance(skip, str) else skip
    if isinstance(moved_s, bool) or not isinstance(moved_s, (int, float)) or not moved_s >= 0:
        raise InvalidArgument(
            f"skip {skip!r} is not valid: seconds or a text such as 2h is expected"
        )
    runs = [
        _Run(list(group), moved_s)
        for _, group in groupby(sorted(apps, key=lambda app: app.name), key=lambda app: app.name)
    ]
    while any(run.until_idle() for run in runs):  # a task may submit to another app
        continue
    for run in runs:
        run.close()
    errors = [run.first_error for run in runs if run.first_error is not None]
    if raises and errors:
        raise errors[0]
    return sum(run.attempts for run in runs)


def return_to_present() -> None:
    """Forgets how far clocks were moved, because the queues are empty now."""
    _clocks.clear()


class _Run:
    """One queue and the apps that share it."""

    def __init__(self, apps: Sequence[App], moved_s: float) -> None:
        self._queue, self._handler = apps[0].queue, WatchedHandler(TaskCalls(apps))
        connect_handlers(self._queue.driver.url)
        self._handler.start()
        self._clock = _clocks.setdefault((self._queue.driver.url, self._queue.name), MovedClock())
        self._clock.move(moved_s)
        record, name = LeaseBoard(1, 0).records[0], self._queue.name
        sizer, metrics = Sizer(settings.SLICE_MS, 1), Metrics(name)
        self._unit = Unit(name, _WORKER, str(os.getpid()), record, sizer, metrics)
        self._runner = Runner(self._handler.shape, record, queue=name)

    @property
    def attempts(self) -> int:
        """Returns how many attempts were made."""
        return self._handler.attempts

    @property
    def first_error(self) -> BaseException | None:
        """Returns the first error of a task."""
        return self._handler.first_error

    def until_idle(self) -> bool:
        """Runs what waits, also what waits for its next attempt; returns False if nothing did."""
        before, skips, seen, moved_ms = self.attempts, 0, self.attempts, self._clock.moved_ms
        while skips < _MOST_SKIPS:
            self._perform(look_after(self._unit.queue))
            is_fed = self._perform(self._feed())
            while self._perform(self._work()):
                self._handler.check()
            if self.attempts > seen:
                skips, seen, moved_ms = 0, self.attempts, self._clock.moved_ms
            skips += 1
            if not self._perform(self._skip_pause()) and not is_fed:
                break
        else:  # what still waits, waits for a task that is not here
            self._clock.moved_ms = moved_ms
        return self.attempts > before

    def close(self) -> None:
        """Runs the hooks of the end. If nothing is left, the next run begins in the present."""
        self._handler.stop()
        if not self._perform(_one(Command(b"ZCARD", keys.active(self._unit.queue)))):
            self._clock.moved_ms = 0

    def _perform(self, operation: Operation[T]) -> T:
        driver = self._queue.driver
        return driver.run(self._clock.during(operation), handle=self._runner.run)

    async def _feed(self) -> bool:
        """Hands over to each step of a flow what there is; returns False if there is nothing."""
        active, count = keys.active(self._unit.queue), 0
        while True:
            names = await Command(b"ZRANGE", active, 0, -1)
            bodies = 0
            for name in names:
                bodies += (await hand_over(name.decode())).bodies
            count += bodies
            if not bodies and await Command(b"ZCARD", active) == len(names):
                return count > 0

    async def _work(self) -> bool:
        """Takes one token and works until nothing follows it; returns False if there is none."""
        unit = self._unit
        popped = await tokens.pop_ahead(unit.queue, keys.LANES - 1, 1)
        if popped is None:
            return False
        returned = FollowUps(unit.queue)
        await take(unit, popped, 1, returned)
        if left := [*returned.calls(), *unit.measures.rest()]:
            await Batch(left)
        return True

    async def _skip_pause(self) -> bool:
        """Moves the clock to the first token that is due later; returns False if there is none."""
        delayed = keys.delayed(self._unit.queue)
        first = await Command(b"ZRANGE", delayed, 0, 0, b"WITHSCORES")
        if not first:
            return False
        seconds, micros = await Command(b"TIME")
        now = int(seconds) + int(micros) / 1e6
        self._clock.move(max(0.0, float(first[1]) / 1000 - now + 0.001))
        await promote(self._unit.queue)
        return True


async def _one(step: Command) -> Any:
    return await step
