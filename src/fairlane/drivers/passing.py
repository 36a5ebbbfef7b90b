"""What both drivers know of their servers, and what an error means to them, without I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

from .. import settings
from . import wire
from .places import Places

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..scripts import Dialect

S = TypeVar("S", bound=Places[Any])  # a driver's Servers


class Driver(Generic[S]):
    """What the driver of either kind of I/O is built on; each names its Servers in SERVERS.

    `patience_s`: how long a call is repeated that is not answered; `timeout_s`: how long one
    answer is waited for; `give_up` is asked before each repeat: is the answer not wanted any more?
    """

    SERVERS: type[S]

    def __init__(
        self,
        url: str,
        *,
        patience_s: float = settings.PATIENCE_S,
        timeout_s: float = settings.SOCKET_TIMEOUT_S,
        give_up: Callable[[], bool] = lambda: False,
    ) -> None:
        self.url = url
        self.servers = self.SERVERS(url, timeout_s)
        self.place = self.servers.place
        self.patience_s = patience_s
        self.give_up = give_up
        self.on_cut: Callable[[], None] = lambda: None  # told when an answer was lost on its way
        self.dialect: Dialect | None = None
        self.waits_for_disk = False
        self.is_replica = False  # as `check` found it, as is what follows
        self.is_cluster = False  # whatever the URL says of it

    def learn(self, infos: list[bytes]) -> Dialect:
        """Keeps what INFO says, of one server or of a cluster's primaries. Raises RedisUnfit.

        Returns what the oldest of them understands.
        """
        dialect = wire.oldest([wire.check_fitness(info, self.place) for info in infos])
        self.waits_for_disk = all(map(wire.has_waitaof, infos))
        self.is_replica = wire.names_replica(infos[0], self.url)
        self.is_cluster = any(map(wire.is_cluster, infos))
        self.dialect = dialect  # the last: another thread that sees it asks for nothing more
        return dialect

    def spoils(self, error: Exception) -> bool:
        """The connections to the server that said so are made anew."""
        return wire.spoils_connections(error, in_cluster=not self.servers.is_one)

    def may_pass(self, error: Exception) -> bool:
        """The same call may succeed a moment later."""
        return wire.is_passing(error) and not self.is_final(error)

    def is_final(self, error: Exception) -> bool:
        """A write was refused by the replica that the URL names."""
        return self.is_replica and wire.is_read_only(error)
