"""The runs of flows in the asyncio API."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlane.aio.request import Request
from fairlane.common import clock
from fairlane.flows import AsyncSharedState, named_step
from fairlane.operations import flow_runs
from fairlane.protocol import keys

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from fairlane.aio.queue import Queue
    from fairlane.records import FlowProgress, Result


class AsyncFlowRun:
    """A flow that was submitted, for asyncio; see FlowRun."""

    def __init__(self, queue: Queue, run: str) -> None:
        self.queue, self.id = queue, keys.check_name("flow id", run)

    async def state(self) -> str:
        """Returns active, done or cancelled; see FlowRun.state."""
        return await self.queue.driver.run(flow_runs.flow_state(self.id))

    async def progress(self) -> FlowProgress:
        """Returns the steps with their counts; see FlowRun.progress."""
        return await self.queue.driver.run(flow_runs.flow_progress(self.id))

    async def wait(self, timeout: float | None = None) -> str:  # noqa: ASYNC109  same word as in the blocking API
        """Returns done or cancelled once every step has ended; see FlowRun.wait."""
        return await self.queue.driver.run(flow_runs.wait_for_flow(self.id, clock.mono_s, timeout))

    async def results(
        self,
        order: str = "input",
        *,
        timeout: float | None = None,  # noqa: ASYNC109  same word as in the blocking API
    ) -> AsyncIterator[Result]:
        """Yields the results of the last step; see FlowRun.results."""
        last = await self.queue.driver.run(flow_runs.last_step(self.id))
        async for result in Request(self.queue, last).results(order, timeout=timeout):
            yield result

    async def step(self, name: str) -> Request:
        """Returns the request of a step; see FlowRun.step."""
        return Request(self.queue, named_step(await self.progress(), name))

    @property
    def shared(self) -> AsyncSharedState:
        """Returns the state that the steps share; see FlowRun.shared."""
        return AsyncSharedState(self.queue.driver, self.id)

    async def cancel(self, reason: str = "cancelled by the caller") -> None:
        """Cancels every step; see FlowRun.cancel."""
        await self.queue.driver.run(flow_runs.cancel_run(self.id, reason))

    def __repr__(self) -> str:
        return f"<AsyncFlowRun {self.id}>"


class AsyncFlows:
    """The runs of flows that began in a queue, for asyncio; aio.Queue.flows returns it."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    async def find(
        self, flow: str = "", /, *, most: int = 100, **properties: object
    ) -> list[AsyncFlowRun]:
        """Returns runs that have all these properties; see Flows.find."""
        found = flow_runs.find_flows(self._queue.name, properties, flow, most)
        return [AsyncFlowRun(self._queue, run) for run, _ in await self._queue.driver.run(found)]

    def run(self, id: str) -> AsyncFlowRun:  # noqa: A002  the word of the API
        """Returns the run with this id, without a call to Redis."""
        return AsyncFlowRun(self._queue, id)
