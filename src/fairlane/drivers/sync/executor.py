"""How the blocking driver speaks to Redis: a call until it is answered, a batch to many nodes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import redis

from fairlane import settings
from fairlane.common import clock
from fairlane.common.backoff import connection_delays
from fairlane.drivers.cluster.batch_state import BatchState, NodePart, batch_of
from fairlane.drivers.wire import encoding, error_mapping
from fairlane.drivers.wire.missing_scripts import may_refuse_to_load
from fairlane.errors import FairlaneError, RedisUnfit
from fairlane.protocol.scripts import Dialect
from fairlane.protocol.steps import Batch, Call, Command, Confirm, Confirmed, Pop, SingleServer

if TYPE_CHECKING:
    from collections.abc import Callable

    from redis.connection import Connection

    from fairlane.drivers.cluster import slot_map
    from fairlane.drivers.sync.background import OneShotEvent
    from fairlane.drivers.sync.connections import ServerConnections
    from fairlane.drivers.sync.driver import SyncDriver


class Calls:
    """The calls of one run. `sent` is told once what was to be sent first has gone out.

    `until`: no call is repeated after this moment, in seconds of clock.mono_s; calls that take the
    place of another one have no more time than that. `away_s`: as in Batch, for every batch.
    """

    def __init__(self, driver: SyncDriver, sent: OneShotEvent | None = None) -> None:
        self.driver = driver
        self.sent = sent
        self.until = math.inf
        self.away_s: float | None = None

    def hurry(self) -> None:
        """Bounds what follows an interrupt, because a person waits for the end of this run.

        Its calls are not repeated for long, and a server that hangs is left after a short try.
        """
        self.until = min(self.until, clock.mono_s() + settings.HURRY_S)
        self.driver.servers.doubt()

    def call(self, step: Command | Call) -> Any:
        """One step."""
        if self.driver.servers.is_one and not isinstance(step, Pop):
            return self.again(None, lambda line: self.one(line, step), step=step)
        return self.spread(batch_of(step))[0]

    def across(self, step: SingleServer) -> Any:
        """The same, if one server has all its keys."""
        if self.driver.dialect is None:
            self.driver.check(self._left_s())
        if not self.driver.is_cluster:
            try:
                return self.call(step.call)
            except RedisUnfit as error:
                if not error_mapping.crosses_slots(error):
                    raise
                self.driver.is_cluster = True  # whatever INFO said, or said then
        return None

    def again(
        self,
        key: bytes | slot_map.Address | None,
        call: Callable[[Connection], Any],
        *,
        keep: bool = False,
        away_s: float | None = None,
        step: Command | Call | None = None,
    ) -> Any:
        """One call, repeated while Redis does not answer; the same words each time.

        `away_s` as in Batch. An error may name the keys of `step`.
        """
        driver, away_s = self.driver, self.driver.cluster_away_s(away_s)
        left_s = self._left_s(away_s)
        delays = connection_delays(left_s)
        if driver.dialect is None:
            driver.check(left_s)
        while True:
            lines = line = None
            try:
                lines = driver.servers.lines_for(key)
                line = lines.take()
                reply = call(line)
            except (redis.RedisError, OSError) as error:
                driver.drop(lines, line, error)
                pause = next(delays, None) if driver.may_pass(error) else None
                if pause is None or driver.give_up():
                    raise driver.error_of(error, away_s, step) from None
                clock.sleep(pause)
            except BaseException:  # Ctrl-C in the middle of a reply: this line is out of step
                if line is not None:
                    line.disconnect()
                raise
            else:
                if not keep:
                    lines.give(line)
                return reply

    def _left_s(self, patience_s: float | None = None) -> float:
        """How long a call may be repeated that begins now."""
        patience_s = self.driver.patience_s if patience_s is None else patience_s
        return min(patience_s, self.until - clock.mono_s())

    def one(self, line: Connection, step: Command | Call, *, asking: bool = False) -> Any:
        """A step on this line. `asking`: its slot is on the way there."""
        dialect = self.dialect
        line.send_packed_command([*encoding.pieces([step], dialect, asking=asking)])
        if asking:
            line.read_response()
        try:
            reply = line.read_response()
        except redis.exceptions.NoScriptError:
            if not isinstance(step, Call):  # a command never says so
                raise
            line.send_packed_command([encoding.whole(step, dialect, asking=asking)])
            if asking:
                line.read_response()
            with may_refuse_to_load(line):
                return line.read_response()
        return encoding.popped(reply) if isinstance(step, Pop) else reply

    @property
    def dialect(self) -> Dialect:
        """Which texts of the scripts the server wants, as the driver found."""
        return self.driver.dialect or Dialect.SINGLE

    def confirm(self, step: Confirm, line: Connection) -> Confirmed:
        """A step, and what its replicas say to it."""
        reply = self.one(line, step.step)
        commands = encoding.confirmation(step.replicas, waits_for_disk=self.driver.waits_for_disk)
        answers: list[Any] = []
        for command in commands:
            with encoding.disk_may_be_missing(answers):
                answers.append(self.one(line, command))
        return encoding.confirmed(reply, answers)

    def spread(self, batch: Batch) -> list[Any]:
        """A batch: one round trip, in a cluster one for each node, all of them at once."""
        driver, left_s = self.driver, self._left_s(batch.patience_s)
        if driver.dialect is None:
            driver.check(left_s)
        away_s = driver.cluster_away_s(self.away_s if batch.away_s is None else batch.away_s)
        spread = BatchState(batch, driver.place, driver.may_pass, away_s)
        until, delays = clock.mono_s() + left_s, connection_delays(left_s)
        while True:
            self._turn(spread)
            for index, other in spread.other_ways():
                try:
                    spread.replies[index] = driver.run(other, until=until, away_s=away_s)
                except FairlaneError as error:
                    spread.replies[index] = error
            if spread.is_over:
                break
            pause = spread.pause(delays)
            if pause is None or spread.is_enough() or driver.give_up():
                break
            clock.sleep(pause)
        return spread.result(is_replica=driver.is_replica)

    def _turn(self, spread: BatchState) -> None:
        """Sends what is left to where it goes, then reads what comes."""
        servers = self.driver.servers
        ways: list[tuple[NodePart, ServerConnections, Connection]] = []
        try:
            try:
                home = None if servers.is_one else servers.slots().home
                for part in spread.parts(home):
                    self._send(spread, part, ways)
            except (redis.RedisError, OSError) as error:
                spread.broke(list(range(len(spread.steps))), error)
            if self.sent is not None:
                self.sent.give()
            while ways:
                self._read(spread, *ways[0])
                del ways[0]
        finally:  # Ctrl-C in the middle of the replies: these lines are out of step
            for _, _, line in ways:
                line.disconnect()

    def _send(
        self,
        spread: BatchState,
        part: NodePart,
        ways: list[tuple[NodePart, ServerConnections, Connection]],
    ) -> None:
        lines = line = None
        try:
            lines = self._lines(part)
            if spread.skip_if_away(part.indexes, lines):
                self.driver.servers.look_again()
                return
            line = lines.take()
            spread.goes_out(part.indexes)
            steps = (spread.steps[index] for index in part.indexes)
            for piece in encoding.pieces(steps, self.dialect, asking=part.asking):
                line.send_packed_command([piece])
            ways.append((part, lines, line))
        except (redis.RedisError, OSError) as error:
            self.driver.drop(lines, line, error)
            spread.broke(part.indexes, error)
            spread.give_up_if_away(part.indexes, lines)
        except BaseException:
            if line is not None:
                line.disconnect()
            raise

    def _read(
        self, spread: BatchState, part: NodePart, lines: ServerConnections, line: Connection
    ) -> None:
        spoilt: Exception | None = None
        try:
            for index in part.indexes:
                if part.asking:
                    line.read_response()
                reply = self._reply(line, spread.steps[index], part)
                spread.answer(index, reply)
                if isinstance(reply, Exception) and self.driver.spoils(reply):
                    spoilt = reply
        except (redis.RedisError, OSError) as error:
            self.driver.drop(lines, line, error)
            spread.broke(part.indexes, error)
            spread.give_up_if_away(part.indexes, lines)
        else:
            self._leave(lines, line, spoilt)
            if spoilt is not None:
                spread.give_up_if_away(part.indexes, lines)

    def _leave(self, lines: ServerConnections, line: Connection, spoilt: Exception | None) -> None:
        """The line is idle again, if the server may answer the next call on it."""
        if spoilt is None:
            lines.give(line)
        else:
            self.driver.drop(lines, line, spoilt)

    def _lines(self, part: NodePart) -> ServerConnections:
        servers = self.driver.servers
        if isinstance(part.place, tuple):  # it may have no slot yet, and so not be known
            return servers.lines_at(part.place)
        return servers.lines_for(part.place)

    def _reply(self, line: Connection, step: Command | Call, part: NodePart) -> Any:
        """What a step brought, or the error it was refused with."""
        try:
            reply = line.read_response(disconnect_on_error=False)
        except redis.exceptions.ResponseError as error:
            if error_mapping.is_forgotten(error):
                return self._elsewhere(step, part)
            if self.driver.may_pass(error) and not error_mapping.is_on_the_move(error):
                self.driver.servers.moved()
            return error
        return encoding.popped(reply) if isinstance(step, Pop) else reply

    def _elsewhere(self, step: Command | Call, part: NodePart) -> Any:
        """A forgotten script, on a line of its own: behind it in the batch a pop may block.

        An error of the script is its reply, as it is in the batch.
        """
        spoilt: Exception | None = None
        lines = self._lines(part)
        line = lines.take()
        try:
            reply = self.one(line, step, asking=part.asking)
        except redis.exceptions.ResponseError as error:
            reply = error
            spoilt = error if self.driver.spoils(error) else None
        except BaseException:
            line.disconnect()
            raise
        self._leave(lines, line, spoilt)
        return reply
