"""Explores one system on one server, with the product's own operations."""

from __future__ import annotations

from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

import pytest

from tests.explore.machinery.actors import install
from tests.explore.machinery.explorer import Explorer
from tests.explore.machinery.protocol import Fairlane
from tests.explore.machinery.world import World

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.explore.lists import Lists
    from tests.explore.machinery.explorer import Report, System
    from tests.support.servers.server_process import Server


@contextmanager
def world_of(
    server: Server, protocol: Fairlane | Lists, patience_s: float | None = None
) -> Iterator[World]:
    """Yields a world on this server; meanwhile the operations use the protocol's scripts."""
    path = f"{server.folder}/redis.sock"
    with closing(World(path, protocol, patience_s)) as world, pytest.MonkeyPatch.context() as patch:
        install(protocol.library, patch)
        yield world


def explore(
    server: Server,
    system: System,
    root: Path | None = None,
    *,
    in_stream: bool = False,
    patience_s: float | None = None,
) -> Report:
    """Returns the report of one system on the scripts below `root`; raises Violation."""
    protocol = (system.protocol or Fairlane)(root, in_stream=in_stream)
    with world_of(server, protocol, patience_s) as world:
        return Explorer(world, system).run()
