"""What both drivers know of their servers, and what an error means to them, without I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

from fairlane import settings
from fairlane.common.backoff import connection_delays
from fairlane.drivers.cluster.topology import Topology, given_up
from fairlane.drivers.wire import error_mapping, fitness
from fairlane.protocol.scripts import Dialect

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairlane.errors import FairlaneError
    from fairlane.protocol.steps import Call, Command

S = TypeVar("S", bound=Topology[Any])  # a driver's Servers


class Driver(Generic[S]):
    """What the driver of either kind of I/O is built on; each names its Servers in SERVERS.

    `patience_s`: how long a call is repeated that is not answered; `timeout_s`: how long one
    answer is waited for; `give_up` is asked before each repeat: is the answer not wanted any more?
    `checks_fitness` = False: no server is asked for INFO first, and none is refused as unfit.
    """

    SERVERS: type[S]

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
        self.on_cut: Callable[[], None] = lambda: None  # told when an answer was lost on its way
        self.dialect: Dialect | None = None if checks_fitness else Dialect.SINGLE
        self.waits_for_disk = False
        self.is_replica = False  # as `check` found it, as is what follows
        self.is_cluster = False  # whatever the URL says of it

    def learn(self, infos: list[bytes]) -> Dialect:
        """Keeps what INFO says, of one server or of a cluster's primaries. Raises RedisUnfit."""
        dialect, *_ = [fitness.check_fitness(info, self.place) for info in infos]
        self.waits_for_disk = all(map(fitness.has_waitaof, infos))
        self.is_replica = fitness.names_replica(infos[0], self.url)
        self.is_cluster = any(map(fitness.is_cluster, infos))
        self.dialect = dialect  # the last: another thread that sees it asks for nothing more
        return dialect

    def spoils(self, error: Exception) -> bool:
        """The connections to the server that said so are made anew."""
        return error_mapping.spoils_connections(error, in_cluster=not self.servers.is_one)

    def may_pass(self, error: Exception) -> bool:
        """The same call may succeed a moment later."""
        return error_mapping.is_passing(error) and not self.is_final(error)

    def cluster_away_s(self, away_s: float | None) -> float | None:
        """Returns `away_s` in a cluster; None for a single server, which is waited for as ever."""
        return None if self.servers.is_one else away_s

    def error_of(
        self, error: Exception, away_s: float | None, step: Command | Call | None = None
    ) -> FairlaneError:
        """Returns our error for a call, of `step` if that is given, that is not repeated."""
        if away_s is not None:
            return given_up(error, self.place, away_s)
        return error_mapping.translate(
            error, self.place, is_replica=self.is_final(error), step=step
        )

    def is_final(self, error: Exception) -> bool:
        """A write was refused by the replica that the URL names."""
        return self.is_replica and error_mapping.is_read_only(error)


class FirstContact:
    """Decides, without I/O, how long a driver tries to reach its servers for the first time.

    A call of a worker or of the API waits for a Redis that starts, loads or refuses connections for
    as long as it would later: `patience_s`. The command line makes one try with patience 0, because
    a person waits and the address may be wrong. A mistake is never waited out: a wrong password, a
    host name without an address, a server that is no cluster.
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
