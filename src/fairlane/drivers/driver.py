"""The base of both drivers: the first connection, errors, and which connections an error ends."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import redis

from fairlane import settings
from fairlane.common.backoff import connection_delays
from fairlane.common.text import exact
from fairlane.drivers.cluster.topology import given_up
from fairlane.drivers.connections import ServerSet
from fairlane.drivers.wire import error_mapping, fitness
from fairlane.protocol.scripts import Dialect

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from fairlane.drivers.step_runner import StepRunner
    from fairlane.errors import FairlaneError
    from fairlane.protocol.steps import Call, Command, Operation, T

S = TypeVar("S", bound=ServerSet[Any])  # a driver's Servers
BACK = "Redis answers again"


def away(place: str, patience_s: float) -> str:
    """Returns the sentence about a Redis that does not answer."""
    return f"Redis at {place} does not answer: trying for up to {exact(patience_s)} s"


class Driver(Generic[S]):
    """A driver. Each kind of I/O names its servers in SERVERS, and its step runner in RUNNER.

    `patience_s`: how long a call without a reply is repeated; `timeout_s`: how long the driver
    waits for one reply. `give_up` is called before each repeat; if it returns True, the call ends.
    With `checks_fitness` = False the driver sends no INFO first and refuses no server as unfit.
    """

    SERVERS: type[S]
    RUNNER: type[StepRunner]

    def __init__(
        self,
        url: str,
        *,
        patience_s: float = settings.PATIENCE_S,
        timeout_s: float = settings.SOCKET_TIMEOUT_S,
        give_up: Callable[[], bool] = lambda: False,
        checks_fitness: bool = True,
    ) -> None:
        self.url = url
        self.servers = self.SERVERS(url, timeout_s)
        self.place = self.servers.place
        self.patience_s = patience_s
        self.give_up = give_up
        self.on_cut: Callable[[], None] = lambda: None  # called when a reply was lost
        self.dialect: Dialect | None = None if checks_fitness else Dialect.SINGLE
        self.waits_for_disk = False
        self.is_replica = False  # as INFO reports, like `is_cluster`
        self.is_cluster = False  # whatever the URL says

    def learn(self, infos: list[bytes]) -> Dialect:
        """Keeps what INFO reports, of one server or of a cluster's primaries. Raises RedisUnfit."""
        dialect, *_ = [fitness.check_fitness(info, self.place) for info in infos]
        self.waits_for_disk = all(map(fitness.has_waitaof, infos))
        self.is_replica = fitness.names_replica(infos[0], self.url)
        self.is_cluster = any(map(fitness.is_cluster, infos))
        self.dialect = dialect  # set last: a thread that sees it may use the values above
        return dialect

    async def find_dialect(self, patience_s: float) -> Dialect:
        """Connects and reads INFO. Raises RedisUnreachable, RedisUnfit.

        `patience_s` as in FirstContact. A cluster sends INFO of all primaries that answer.
        """
        contact = FirstContact(self, patience_s)
        while True:
            try:
                return self.learn(await self._infos())
            except (redis.RedisError, OSError) as error:
                pause = contact.pause(error)
                if pause is None:
                    raise error_mapping.translate(error, self.place) from None
                await self.servers.IO.sleep(pause)

    async def _infos(self) -> list[bytes]:
        servers = self.servers
        if servers.is_one:
            return [await self._info(await servers.lines_for(None))]
        infos: list[bytes] = []
        failure: Exception | None = None
        for node in (await servers.slots()).nodes:
            try:
                infos.append(await self._info(servers.lines_at(node)))
            except (redis.RedisError, OSError) as error:
                if not error_mapping.is_passing(error):
                    raise
                failure = error
        if failure is not None and not infos:
            raise failure
        return infos

    async def _info(self, lines: Any) -> bytes:
        io, line = self.servers.IO, None
        try:
            line = await lines.take()
            await io.send_command(line, "INFO")
            info: bytes = await io.receive(line)
        except (redis.RedisError, OSError) as error:
            await self.drop(lines, line, error)
            raise
        except BaseException:
            if line is not None:
                await io.abandon(line)
            raise
        lines.give(line)
        return info

    async def drop(self, lines: Any, line: Any, error: Exception) -> None:
        """Closes a connection after an error, and the server's idle ones if they would fail, too.

        They would fail if the connection broke, or if the server was demoted or is cut off.
        """
        if line is not None:
            await self.servers.IO.disconnect(line)
        self.servers.moved()
        if lines is None:
            return
        if not isinstance(error, redis.exceptions.ResponseError):
            await lines.close()
            self.servers.failed(lines)
            if line is not None:
                self.on_cut()
        elif self.spoils(error):
            await lines.close()
            if error_mapping.is_cut_off(error):
                self.servers.distrust(lines)

    def start(
        self,
        operation: Operation[T],
        *given: Any,
        until: float = math.inf,
        away_s: float | None = None,
    ) -> Coroutine[Any, Any, T]:
        """Returns the coroutine that runs an operation and returns its result.

        `given`: as in StepRunner, after the driver. `until`, `away_s`: as in Calls.
        """
        runner = self.RUNNER(self, *given)
        runner.calls.until, runner.calls.away_s = until, away_s
        return runner.run(operation)

    def spoils(self, error: Exception) -> bool:
        """Returns True if the connections to the server that sent this error must be closed."""
        return error_mapping.spoils_connections(error, in_cluster=not self.servers.is_one)

    def may_pass(self, error: Exception) -> bool:
        """Returns True if the same call may succeed a moment later."""
        return error_mapping.is_passing(error) and not self.is_final(error)

    def cluster_away_s(self, away_s: float | None) -> float | None:
        """Returns `away_s` in a cluster; None for a single server, which has no other."""
        return None if self.servers.is_one else away_s

    def error_of(
        self, error: Exception, away_s: float | None, step: Command | Call | None = None
    ) -> FairlaneError:
        """Returns our error for a call that is not repeated; `step` is its step, if given."""
        if away_s is not None:
            return given_up(error, self.place, away_s)
        return error_mapping.translate(
            error, self.place, is_replica=self.is_final(error), step=step
        )

    def is_final(self, error: Exception) -> bool:
        """Returns True if the replica that the URL names refused a write."""
        return self.is_replica and error_mapping.is_read_only(error)


class FirstContact:
    """Decides, without I/O, how long a driver tries to reach its servers for the first time.

    It waits `patience_s` for a Redis that starts, loads or refuses connections, as a later call
    does. A worker and each command say immediately that they wait. `fairlane doctor` makes one try
    with patience 0, because a diagnosis must not take long. No driver waits after a mistake: a
    wrong password, a host name without an address, a server that is no cluster.
    """

    def __init__(self, driver: Driver[Any], patience_s: float) -> None:
        self._driver = driver
        self._tries = driver.servers.tries()
        self._delays = connection_delays(patience_s)

    def pause(self, error: Exception) -> float | None:
        """Returns the seconds until the next try after this error; None = there is none."""
        if not error_mapping.is_passing(error) or error_mapping.is_unknown_host(error):
            return None
        is_last = next(self._tries, True)
        if not is_last:
            return 0.0
        return None if self._driver.give_up() else next(self._delays, None)
