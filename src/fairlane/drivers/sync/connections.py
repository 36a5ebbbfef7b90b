"""The connections of the blocking driver."""

from __future__ import annotations

import redis.connection
import redis.sentinel

from fairlane.drivers.cluster.topology import kinds_of
from fairlane.drivers.connections import ConnectionSet, ServerSet
from fairlane.drivers.sync.io import BlockingIO


class ServerConnections(ConnectionSet):
    """Idle connections to one server."""

    IO = BlockingIO()


class Servers(ServerSet[ServerConnections]):
    """The servers of a blocking driver."""

    IO = ServerConnections.IO
    KINDS = kinds_of(redis.connection, redis.sentinel, ServerConnections)
