"""The runs of flows in the asyncio API."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairlane.aio.request import Request

# blocking: from fairlane.aio.flows import AsyncSharedState
from fairlane.common import clock
from fairlane.errors import InvalidArgument
from fairlane.operations import flow_shared, flows
from fairlane.protocol import keys

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from fairlane.aio.queue import Queue
    from fairlane.drivers.aio import AsyncDriver
    from fairlane.records import FlowProgress, Result

__all__ = [
    "AsyncFlowRun",
    "AsyncFlows",
    "AsyncSharedState",
    # blocking: "AsyncSharedState",
]


class AsyncSharedState:  # blocking: class SharedState(flow_shared.Items):
    """Values by name that all steps of a run share: `await shared.set("user", {"id": 5})`.

    Values are what JSON has, but None: bool, int, float, str, list, dict; at most 1,000, and
    256 KiB together. They are kept as long as the run. Each change is one step in Redis, which a
    lost reply does not repeat. A handler that is called again, because its worker died, makes its
    changes again. All methods raise InvalidArgument and RedisError; those that change something
    also RequestNotFound.
    """

    def __init__(self, driver: AsyncDriver, run: str) -> None:
        self._driver, self._run = driver, run

    async def get(self, name: str, default: Any = None) -> Any:
        """Returns a value, or the default if there is none."""
        found = await self._driver.run(flow_shared.read_value(self._run, name))
        return default if found is None else found

    async def set(self, name: str, value: Any) -> None:
        """Sets a value."""
        await self._driver.run(flow_shared.set_value(self._run, name, value))

    async def incr(self, name: str, by: int = 1) -> int:
        """Adds to a whole number, which is 0 at first; returns the sum."""
        return await self._driver.run(flow_shared.add_to_value(self._run, name, by))

    async def swap(self, name: str, expected: Any, value: Any) -> bool:
        """Sets a value if it is the expected one, None = there is none; returns whether it was."""
        return await self._driver.run(flow_shared.swap_value(self._run, name, expected, value))

    async def delete(self, name: str) -> None:
        """Removes a value, if it is there."""
        await self._driver.run(flow_shared.drop_value(self._run, name))

    async def all(self) -> dict[str, Any]:
        """Returns all values by their names."""
        return await self._driver.run(flow_shared.read_shared(self._run))

    def __repr__(self) -> str:
        return f"<AsyncSharedState of flow {self._run}>"


class AsyncFlowRun:
    """A flow that was submitted, by its id. It keeps no state, so it is never out of date."""

    def __init__(self, queue: Queue, run: str) -> None:
        if not hasattr(queue, "driver"):
            raise InvalidArgument(
                f"queue {queue!r} of a run is not valid: queue.flows.run(id) finds a run"
            )
        self.queue, self.id = queue, keys.check_name("flow id", run)

    async def state(self) -> str:
        """Returns active, done, cancelled or unknown; active until every step has ended.

        It is unknown if a step is no longer kept. Raises RequestNotFound.
        """
        return await self.queue.driver.run(flows.flow_state(self.id))

    async def progress(self) -> FlowProgress:
        """Returns the steps that are still kept, with counts. Raises RequestNotFound."""
        return await self.queue.driver.run(flows.flow_progress(self.id))

    async def wait(self, timeout: float | None = None) -> str:  # noqa: ASYNC109  same word as in the blocking API
        """Waits until every step has ended; returns done or cancelled.

        `timeout` in seconds; raises WaitTimeout, RequestNotFound, RequestLost.
        """
        return await self.queue.driver.run(flows.wait_for_flow(self.id, clock.mono_s, timeout))

    async def results(
        self,
        order: str = "input",
        *,
        timeout: float | None = None,  # noqa: ASYNC109  same word as in the blocking API
    ) -> AsyncIterator[Result]:
        """Yields the results of the last step, also while it runs; see Request.results.

        Their index is the place in the last step, which is the order of completion before it.
        """
        last = await self.queue.driver.run(flows.last_step(self.id))
        async for result in Request(self.queue, last).results(order, timeout=timeout):
            yield result

    async def step(self, name: str) -> Request:
        """Returns the request of a step: its dead sub-requests, a pause, another limit.

        Raises RequestNotFound, and InvalidArgument for a step that the flow does not have.
        """
        return Request(self.queue, flows.named_step(await self.progress(), name))

    @property
    def shared(self) -> AsyncSharedState:
        """Returns the state that the steps share; a handler has it as `context.flow.ashared`."""
        return AsyncSharedState(self.queue.driver, self.id)

    async def cancel(self, reason: str = "cancelled by the caller") -> None:
        """Cancels every step; a compensating step ends after its source. Raises RequestNotFound."""
        await self.queue.driver.run(flows.cancel_run(self.id, reason))

    def __repr__(self) -> str:
        return f"<AsyncFlowRun {self.id}>"


class AsyncFlows:
    """The runs of flows that began in a queue; Queue.flows returns it."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    async def find(
        self, flow: str = "", /, *, most: int = 100, **properties: object
    ) -> list[AsyncFlowRun]:
        """Returns runs that have all these properties, of one flow or of all: unfinished first.

        At most `most` (1 to 1,000). It reads a bounded part of the queue, so in one of many
        thousand requests some runs may be missing. Raises InvalidArgument.
        """
        found = flows.find_flows(self._queue.name, properties, flow, most)
        return [AsyncFlowRun(self._queue, run) for run, _ in await self._queue.driver.run(found)]

    def run(self, id: str) -> AsyncFlowRun:  # noqa: A002  the word of the API
        """Returns the run with this id, without a call to Redis."""
        return AsyncFlowRun(self._queue, id)
