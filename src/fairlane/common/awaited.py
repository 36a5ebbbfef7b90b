"""What a coroutine awaits that only a driver can perform, and not an event loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Generator


class Awaited:
    """The base of all steps. A driver receives the step itself, and sends the reply.

    If a program of asyncio awaits an operation without a driver, its event loop receives the step.
    It treats what has the attributes below as a future of its own. The step is then one that has
    failed, so the program gets an error at its `await`.
    """

    __slots__ = ()

    def __await__(self) -> Generator[Any, Any, Any]:
        return (yield self)

    _asyncio_future_blocking = property(lambda _: True, lambda *_: None)

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """Returns the loop of the task that awaits the step."""
        import asyncio  # this is a leaf of every command

        return asyncio.get_running_loop()

    def add_done_callback(self, wake: Callable[[Any], object], *, context: Any = None) -> None:
        """Wakes the task in the next turn of the loop, as a future does that is done."""
        self.get_loop().call_soon(wake, self, context=context)

    def cancel(self, msg: object = None) -> bool:  # noqa: ARG002  the name is of a future
        """Returns False: it is done."""
        return False

    def result(self) -> None:
        """Raises RuntimeError."""
        raise RuntimeError(
            f"no driver performs {type(self).__name__} here: an operation is not awaited, it is "
            "run, as in await driver.run(operation)"
        )
