"""Kills a server and starts it again on its own data."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING

from tests.support.servers import server_process
from tests.support.wait import PATIENCE_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

UP_S = PATIENCE_S
AOF = ("--appendonly", "yes", "--appendfsync")


@contextlib.contextmanager
def killed_and_started_again(
    server: server_process.Server, options: tuple[str, ...]
) -> Iterator[server_process.Server]:
    """Starts the same server on the same folder and port, after a kill -9."""
    server.process.kill()
    server.process.wait()
    process = server_process._spawn(server.kind, server.binary, server.folder, server.port, options)
    again = server_process.Server(server.kind, server.binary, server.port, server.folder, process)
    try:
        wait_until(partial(server_process._state, again), UP_S, why="it is up again")
        yield again
    finally:
        process.kill()
        process.wait()
