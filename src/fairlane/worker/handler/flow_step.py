"""The step of a flow that a handler runs: the state that it shares with the other steps.

A handler's process makes one connection of its own for that, when the first handler asks for it.
"""

from __future__ import annotations

import asyncio
import os
import weakref
from functools import cached_property
from typing import TYPE_CHECKING

from fairlane import settings
from fairlane.drivers.aio.driver import AsyncDriver
from fairlane.drivers.sync.driver import SyncDriver
from fairlane.errors import InvalidArgument
from fairlane.flows.shared import AsyncSharedState, SharedState
from fairlane.operations.hand_over import Place, run_of
from fairlane.operations.shared import forget_callers
from fairlane.protocol.request_hash import read

if TYPE_CHECKING:
    from collections.abc import MutableMapping

_KNOWN_MOST = 1_000  # steps whose places a process remembers


class _Connections:
    """The drivers of this process, each made when it is first used."""

    url = ""
    _sync: SyncDriver | None = None

    def __init__(self) -> None:
        loops: MutableMapping[asyncio.AbstractEventLoop, AsyncDriver] = weakref.WeakKeyDictionary()
        self._loops = loops
        self.places: dict[str, Place] = {}

    def forget(self) -> None:
        """Leaves the drivers to the process that was forked."""
        self._sync = None
        self._loops.clear()
        forget_callers()

    def blocking(self) -> SyncDriver:
        """Returns the driver for sync handlers; any thread may use it."""
        if self._sync is None:
            self._sync = SyncDriver(self.url, patience_s=settings.PATIENCE_S)
        return self._sync

    def of_loop(self) -> AsyncDriver:
        """Returns the driver for the tasks of the running event loop."""
        loop = asyncio.get_running_loop()
        if loop not in self._loops:
            self._loops[loop] = AsyncDriver(self.url, patience_s=settings.PATIENCE_S)
        return self._loops[loop]


_connections = _Connections()
os.register_at_fork(after_in_child=_connections.forget)


def connect_handlers(url: str) -> None:
    """Sets the Redis of the handlers of this process."""
    _connections.url = url


class FlowStep:
    """The step of a flow that a handler runs: `context.flow`.

    `shared` is the state that all steps of the run share; async handlers use `ashared`.
    """

    def __init__(self, request_id: str) -> None:
        self._id, self.run = request_id, run_of(request_id)

    @cached_property
    def shared(self) -> SharedState:
        """Returns the shared state for sync handlers."""
        self._check()
        return SharedState(_connections.blocking(), self.run)

    @cached_property
    def ashared(self) -> AsyncSharedState:
        """Returns the shared state for async handlers."""
        self._check()
        return AsyncSharedState(_connections.of_loop(), self.run)

    @property
    def name(self) -> str:
        """Returns the name of the flow, after one look at Redis for each step."""
        return self._place().flow

    @property
    def step(self) -> str:
        """Returns the name of the step, after one look at Redis for each step."""
        return self._place().step

    def _place(self) -> Place:
        self._check()
        found = _connections.places.get(self._id)
        if found is None:
            (text,) = _connections.blocking().run(read(self._id, "flow"))
            found = Place.parse(text)
            if found is None:
                raise InvalidArgument(
                    f"request {self._id} is no step of a flow: only a flow has these"
                )
            if len(_connections.places) >= _KNOWN_MOST:
                _connections.places.clear()
            _connections.places[self._id] = found
        return found

    def _check(self) -> None:
        """Raises InvalidArgument outside of a worker."""
        if not self.run or not _connections.url:
            what = f"request {self._id}" if self._id else "a call outside of a worker"
            raise InvalidArgument(f"{what} is no step of a flow: it shares no state with others")

    def __repr__(self) -> str:
        return f"<FlowStep of {self.run}>"
