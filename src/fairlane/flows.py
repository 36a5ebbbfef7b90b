# Generated from aio/flows.py by `make generate`: do not edit it.
"""The runs of flows in the blocking API."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairlane.aio.flows import AsyncSharedState
from fairlane.common import clock
from fairlane.errors import InvalidArgument
from fairlane.operations import flow_shared, flows
from fairlane.protocol import keys
from fairlane.request import Request

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fairlane.drivers.sync import SyncDriver
    from fairlane.queue import Queue
    from fairlane.records import FlowProgress, Result

__all__ = [
    "AsyncSharedState",
    "FlowRun",
    "Flows",
    "SharedState",
]


class SharedState(flow_shared.Items):
    """Values by name that all steps of a run share: `shared["user"] = {"id": 5}`.

    Values are what JSON has, but None: bool, int, float, str, list, dict; at most 1,000, and
    256 KiB together. They are kept as long as the run. Each change is one step in Redis, which a
    lost reply does not repeat. A handler that is called again, because its worker died, makes its
    changes again. All methods raise InvalidArgument and RedisError; those that change something
    also RequestNotFound.
    """

    def __init__(self, driver: SyncDriver, run: str) -> None:
        self._driver, self._run = driver, run

    def get(self, name: str, default: Any = None) -> Any:
        """Returns a value, or the default if there is none."""
        found = self._driver.run(flow_shared.read_value(self._run, name))
        return default if found is None else found

    def set(self, name: str, value: Any) -> None:
        """Sets a value."""
        self._driver.run(flow_shared.set_value(self._run, name, value))

    def incr(self, name: str, by: int = 1) -> int:
        """Adds to a whole number, which is 0 at first; returns the sum."""
        return self._driver.run(flow_shared.add_to_value(self._run, name, by))

    def swap(self, name: str, expected: Any, value: Any) -> bool:
        """Sets a value if it is the expected one, None = there is none; returns whether it was."""
        return self._driver.run(flow_shared.swap_value(self._run, name, expected, value))

    def delete(self, name: str) -> None:
        """Removes a value, if it is there."""
        self._driver.run(flow_shared.drop_value(self._run, name))

    def all(self) -> dict[str, Any]:
        """Returns all values by their names."""
        return self._driver.run(flow_shared.read_shared(self._run))

    def __repr__(self) -> str:
        return f"<SharedState of flow {self._run}>"


class FlowRun:
    """A flow that was submitted, by its id. It keeps no state, so it is never out of date."""

    def __init__(self, queue: Queue, run: str) -> None:
        if not hasattr(queue, "driver"):
            raise InvalidArgument(
                f"queue {queue!r} of a run is not valid: queue.flows.run(id) finds a run"
            )
        self.queue, self.id = queue, keys.check_name("flow id", run)

    def state(self) -> str:
        """Returns active, done, cancelled or unknown; active until every step has ended.

        It is unknown if a step is no longer kept. Raises RequestNotFound.
        """
        return self.queue.driver.run(flows.flow_state(self.id))

    def progress(self) -> FlowProgress:
        """Returns the steps that are still kept, with counts. Raises RequestNotFound."""
        return self.queue.driver.run(flows.flow_progress(self.id))

    def wait(self, timeout: float | None = None) -> str:
        """Blocks until every step has ended; returns done or cancelled.

        `timeout` in seconds; raises WaitTimeout, RequestNotFound, RequestLost.
        """
        return self.queue.driver.run(flows.wait_for_flow(self.id, clock.mono_s, timeout))

    def results(
        self,
        order: str = "input",
        *,
        timeout: float | None = None,
    ) -> Iterator[Result]:
        """Yields the results of the last step, also while it runs; see Request.results.

        Their index is the place in the last step, which is the order of completion before it.
        """
        last = self.queue.driver.run(flows.last_step(self.id))
        yield from Request(self.queue, last).results(order, timeout=timeout)

    def step(self, name: str) -> Request:
        """Returns the request of a step: its dead sub-requests, a pause, another limit.

        Raises RequestNotFound, and InvalidArgument for a step that the flow does not have.
        """
        return Request(self.queue, flows.named_step(self.progress(), name))

    @property
    def shared(self) -> SharedState:
        """Returns the state that the steps share; a handler has it as `context.flow.shared`."""
        return SharedState(self.queue.driver, self.id)

    def cancel(self, reason: str = "cancelled by the caller") -> None:
        """Cancels every step; a compensating step ends after its source. Raises RequestNotFound."""
        self.queue.driver.run(flows.cancel_run(self.id, reason))

    def __repr__(self) -> str:
        return f"<FlowRun {self.id}>"


class Flows:
    """The runs of flows that began in a queue; Queue.flows returns it."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    def find(self, flow: str = "", /, *, most: int = 100, **properties: object) -> list[FlowRun]:
        """Returns runs that have all these properties, of one flow or of all: unfinished first.

        At most `most` (1 to 1,000). It reads a bounded part of the queue, so in one of many
        thousand requests some runs may be missing. Raises InvalidArgument.
        """
        found = flows.find_flows(self._queue.name, properties, flow, most)
        return [FlowRun(self._queue, run) for run, _ in self._queue.driver.run(found)]

    def run(self, id: str) -> FlowRun:  # noqa: A002  the word of the API
        """Returns the run with this id, without a call to Redis."""
        return FlowRun(self._queue, id)
