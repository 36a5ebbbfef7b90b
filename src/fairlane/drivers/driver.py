"""The base of both drivers: the first connection, errors, and which connections an error ends."""

from __future__ import annotations

import contextlib
import math
import os
from collections import deque
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import redis

from fairlane import settings
from fairlane.common.clock import connection_delays
from fairlane.common.text import exact
from fairlane.drivers import error_mapping, topology, urls
from fairlane.drivers.topology import ServerHealth, Topology, given_up
from fairlane.errors import RedisUnreachable
from fairlane.protocol.lua import Dialect, is_in_cluster
from fairlane.protocol.server_info import read_info

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from fairlane.drivers.calls import Primitives, StepRunner
    from fairlane.drivers.urls import Address
    from fairlane.errors import FairlaneError
    from fairlane.protocol.steps import Call, Command, Operation, T


# ------------------------------------------------------------------ connections
# Connections to one server or to the primaries of a cluster, for both kinds of I/O.


class ConnectionSet(ServerHealth):
    """Idle connections to one server, shared by threads and safe across a fork."""

    IO: ClassVar[Primitives]

    def __init__(self, pool: Any, place: str) -> None:
        self.place = place
        self._pool = pool
        self._idle: deque[Any] = deque()
        self._pid = os.getpid()

    def idle(self) -> Any:
        """Returns an open idle connection that needs no probe; None = `take` makes one."""
        if self.probes_first or self.may_be_plain or self._pid != os.getpid():
            return None
        try:
            line = self._idle.pop()
        except IndexError:
            return None
        if self.IO.is_open(line):
            return line
        self._idle.append(line)
        return None

    async def take(self) -> Any:
        """Returns an idle connection, or a new one. A new one asks a Sentinel for the master."""
        if self.probes_first:
            await self._probe()
        if self.may_be_plain:
            await self._greet()
        if self._pid != os.getpid():  # a forked child must not use its parent's sockets
            self._idle, self._pid = deque(), os.getpid()
        try:
            line = self._idle.pop()
        except IndexError:
            line = self._new()
        await self.IO.connect(line)
        return line

    def _new(self) -> Any:
        # Not pool.make_connection: it counts what it made and refuses after a hundred.
        return self._made(self._pool.connection_kwargs)

    def _made(self, options: dict[str, Any]) -> Any:
        return self.IO.connection_class(self._pool.connection_class)(**options)

    async def _probe(self) -> None:
        """Returns if the server answers; raises soon if it does not."""
        io, line = self.IO, self._made(self.briefly(self._pool.connection_kwargs))
        try:
            await io.connect(line)
            await io.send_command(line, "PING")
            await io.receive(line)
        except redis.exceptions.ResponseError:
            pass  # an error is a reply, too
        except redis.exceptions.TimeoutError:
            self.note_slow_probe()
            raise
        finally:
            await io.disconnect(line)
        self.note_probe_reply()

    async def _greet(self) -> None:
        """Raises ConnectionError if the server answers without TLS."""
        options = self._pool.connection_kwargs
        line = self._made(urls.greeting_options(options))
        try:
            await self.IO.connect(line)
        except redis.exceptions.TimeoutError:
            await self.IO.refuse_plain(options)
        finally:
            await self.IO.disconnect(line)
        self.may_be_plain = False

    def give(self, line: Any) -> None:
        """Makes a connection idle; a broken one reconnects at its next use."""
        self._idle.append(line)
        if self._away_since:
            self.note_reply()

    async def close(self) -> None:
        """Closes the idle connections; one in use is given back as usual."""
        with contextlib.suppress(IndexError):  # another thread may take the last one
            while self._idle:
                await self.IO.disconnect(self._idle.pop())


C = TypeVar("C", bound=ConnectionSet)


class ServerSet(Topology[C]):
    """One server, or the primaries of a cluster as they are needed."""

    IO: ClassVar[Primitives]

    async def lines_for(self, key: bytes | Address | None) -> C:
        """Returns the connections to the server of this key, or to this primary.

        Reads the slots of a cluster when needed.
        """
        if self.only is not None:
            return self.only
        return self._there(await self.slots(), key)

    async def slots(self) -> topology.SlotMap:
        """Returns a cluster's slots, read when needed."""
        return self._map or await self._ask()

    async def _ask(self) -> topology.SlotMap:
        failure: Exception = RedisUnreachable(f"no node of {self.place} answers")
        for node in self._to_ask():
            line = None
            try:
                line = await self.lines_at(node).take()
                await self.IO.send_command(line, "CLUSTER", "SLOTS")
                slots = topology.SlotMap(await self.IO.receive(line), node[0])
            except (redis.RedisError, OSError) as error:
                if line is not None:
                    await self.IO.disconnect(line)
                failure = error
                self.note_failed(self.lines_at(node))
                continue
            except BaseException:  # interrupted in the middle of the reply
                if line is not None:
                    await self.IO.abandon(line)
                raise
            self._asked_last.pop(node, None)
            self.lines_at(node).give(line)
            if slots.nodes:
                return self._learn(slots)
            # The node starts, or its cluster is being made: the call may succeed a moment later.
            failure = redis.ConnectionError(f"{node[0]}:{node[1]} serves no slot of a cluster yet")
        raise failure

    async def close(self) -> None:
        """Closes all idle connections, also those to sentinels."""
        for lines in self._all_lines():
            await lines.close()
        for guard in self._guards:
            await self.IO.close_client(guard)


S = TypeVar("S", bound=ServerSet[Any])  # a driver's Servers
BACK = "Redis answers again"


def away(place: str, patience_s: float) -> str:
    """Returns the sentence about a Redis that does not answer."""
    return f"Redis at {place} does not answer: trying for up to {exact(patience_s)} s"


class Driver(Generic[S]):
    """A driver. Each kind of I/O names its servers in SERVERS, and its step runner in RUNNER.

    `patience_s`: how long a call without a reply is repeated; `timeout_s`: how long the driver
    waits for one reply. `give_up` is called before each repeat; if it returns True, the call ends.
    If `checks_fitness` is False, the driver sends no INFO first and refuses no server as unfit.
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
        found = [read_info(info) for info in infos]
        dialect, *_ = [error_mapping.check_fitness(info, self.place) for info in found]
        self.waits_for_disk = all(map(error_mapping.has_waitaof, found))
        self.is_replica = error_mapping.names_replica(found[0], self.url)
        self.is_cluster = any(map(is_in_cluster, found))  # refuses keys in several slots
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
        self.servers.forget_slots()
        if lines is None:
            return
        if not isinstance(error, redis.exceptions.ResponseError):
            await lines.close()
            self.servers.note_failed(lines)
            if line is not None:
                self.on_cut()
        elif self.spoils(error):
            await lines.close()
            if error_mapping.is_cut_off(error):
                self.servers.ask_last(lines)

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

    def is_retryable(self, error: Exception) -> bool:
        """Returns True if the same call may succeed a moment later."""
        return error_mapping.is_passing(error) and not self.is_final(error)

    def cluster_away_s(self, away_s: float | None) -> float | None:
        """Returns `away_s` in a cluster; None for a single server, which has no other node."""
        return None if self.servers.is_one else away_s

    def error_of(
        self, error: Exception, away_s: float | None, step: Command | Call[Any] | None = None
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

    A driver waits `patience_s` for a Redis that starts, loads or refuses connections, as later
    calls do. A worker and each command report immediately that they wait. `fairlane doctor` makes
    one try with patience 0, because a diagnosis must not take long. No driver waits after a
    mistake: a wrong password, a host name without an address, a server that is no cluster.
    """

    def __init__(self, driver: Driver[Any], patience_s: float) -> None:
        self._driver = driver
        self._tries = driver.servers.tries()
        self._delays = connection_delays(patience_s)

    def pause(self, error: Exception) -> float | None:
        """Returns the seconds until the next try after this error; None = no further try."""
        if not error_mapping.is_passing(error) or error_mapping.is_unknown_host(error):
            return None
        is_last = next(self._tries, True)
        if not is_last:
            return 0.0
        return None if self._driver.give_up() else next(self._delays, None)
