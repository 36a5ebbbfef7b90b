"""Drives operations step by step: cut off after a step, or observed at each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairlane.protocol.steps import Batch, Call, SingleServer, forward
from tests.support.scripts.requests import once

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairlane.drivers.sync import SyncDriver
    from fairlane.protocol.steps import Operation, Step


def cut_off(driver: SyncDriver, operation: Operation[Any], steps: int) -> bool:
    """Runs so many steps, and drops the reply to the last one; True if the operation had ended."""
    try:
        step = operation.send(None)
        for _ in range(steps - 1):
            step = operation.send(driver.run(once(step)))
        driver.run(once(step))
    except StopIteration:
        return True
    operation.close()
    return False


def cut_off_after(driver: SyncDriver, operation: Operation[Any], script: str) -> None:
    """Runs an operation up to and including the first step that calls this script."""
    step = operation.send(None)
    while not any(call.script.name == script for call in _calls_of(step)):
        step = operation.send(driver.run(once(step)))
    driver.run(once(step))
    operation.close()


def script_of(step: Any) -> str:
    """Returns the script that a step calls; "" if it calls none."""
    call = step.step if isinstance(step, SingleServer) else step
    return str(getattr(getattr(call, "script", None), "name", ""))


def _calls_of(step: Step) -> list[Call[Any]]:
    steps = step.steps if isinstance(step, Batch) else [step]
    return [call for call in steps if isinstance(call, Call)]


def drive(driver: SyncDriver, operation: Operation[Any], see: Callable[[Step], bool]) -> Any:
    """Runs an operation to its end, except the steps that `see` reports as handled."""
    reply: Any = None
    while True:
        try:
            step = operation.send(reply)
        except StopIteration as end:
            return end.value
        reply = None if see(step) else driver.run(once(step))


async def apart(operation: Operation[Any]) -> Any:
    """Runs an operation as in a cluster: no server has all keys. Errors of a step reach it."""
    reply: Any = None
    error: BaseException | None = None
    while True:
        try:
            step = operation.send(reply) if error is None else operation.throw(error)
        except StopIteration as end:
            return end.value
        reply = error = None
        if isinstance(step, SingleServer):
            continue
        try:
            reply = await forward(step)
        except GeneratorExit:
            raise
        except BaseException as failure:  # noqa: BLE001  the operation handles it
            error = failure
