"""A primary and its replica: real servers that tests stop, kill and promote."""

from __future__ import annotations

import contextlib
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING
from unittest.mock import patch

from fairlane import settings
from tests.support.servers import server_process
from tests.support.wait import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    import redis

CONFIRM_MS = 5_000  # a test of a late replica sets a shorter time


@dataclass(frozen=True)
class Pair:
    """A primary and the replica that follows it."""

    primary: server_process.Server
    replica: server_process.Server

    def freeze(self) -> None:
        """Stops the replica: it answers no client, and its connections stay open."""
        self.replica.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Continues the replica."""
        self.replica.process.send_signal(signal.SIGCONT)

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Stops the replica until the end of the block."""
        self.freeze()
        try:
            yield
        finally:
            self.thaw()

    def fail_over(self) -> None:
        """Kills the primary without warning and promotes the replica."""
        self.primary.process.kill()
        self.primary.process.wait()
        with contextlib.closing(self.replica.client()) as client:
            client.replicaof("NO", "ONE")
            wait_until(lambda: client.role()[0] == b"master", why="the replica is promoted")


@contextlib.contextmanager
def run_pair(kind: str = "single", *options: str) -> Iterator[Pair]:
    """Runs both servers, in step; more options are those of redis-server."""
    quick = ("--repl-diskless-sync-delay", "0", *options)
    with contextlib.ExitStack() as later:
        primary = later.enter_context(server_process.run_server(kind, *quick))
        follow = ("--replicaof", server_process.HOST, str(primary.port))
        replica = later.enter_context(server_process.run_server(kind, *quick, *follow))
        with contextlib.closing(primary.client()) as client:
            wait_until(lambda: in_step(client), why="the replica has caught up")
        # On a busy machine a replica may need more than the second that the product allows.
        later.enter_context(patch.object(settings, "CONFIRM_MS", CONFIRM_MS))
        yield Pair(primary, replica)


def in_step(client: redis.Redis) -> bool:
    """Returns True if the replica has what is written now; WAIT needs a write before it."""
    with client.client() as one:  # on one connection: WAIT is about what was written on it
        one.set("in step", 1)
        one.delete("in step")
        return bool(one.execute_command("WAIT", 1, 500) == 1)
