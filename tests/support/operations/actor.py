"""Runs operations by a driver of either kind, against fake servers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from fairlane.drivers.aio import AsyncDriver
from fairlane.drivers.sync import SyncDriver

if TYPE_CHECKING:
    from fairlane.protocol.lua import Dialect
    from fairlane.protocol.steps import Operation
    from tests.support.network.fakes import FakeServer


class Actor:
    """A driver, blocking or asyncio, that lives from one operation to the next."""

    def __init__(self, kind: str, *servers: FakeServer, patience_s: float = 20) -> None:
        scheme = "redis" if servers[0].slots is None else "redis+cluster"
        url = f"{scheme}://" + ",".join(f"127.0.0.1:{server.port}" for server in servers)
        self.loop = asyncio.new_event_loop() if kind == "async" else None
        made: Any = AsyncDriver if self.loop else SyncDriver
        self.driver = made(url, patience_s=patience_s)

    def _wait(self, what: Any) -> Any:
        return self.loop.run_until_complete(what) if self.loop else what

    def run(self, operation: Operation[Any]) -> Any:
        return self._wait(self.driver.run(operation))

    def check(self) -> Dialect:
        found: Dialect = self._wait(self.driver.check())
        return found

    def close(self) -> None:
        self._wait(self.driver.close())
        if self.loop:
            self.loop.close()
