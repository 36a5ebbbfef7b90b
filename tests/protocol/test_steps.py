"""Steps: what an operation reads of a reply, and what awaits it without a driver."""

from __future__ import annotations

import asyncio

import pytest

from fairlane.errors import NodeAway
from fairlane.protocol import keys, scripts
from fairlane.protocol.steps import (
    Batch,
    Command,
    Confirm,
    Confirmed,
    Operation,
    SingleServer,
    forward,
)
from tests.support.run.for_each import for_each

EXTEND = scripts.extend(keys.request_keys("r1"), k="0", fence="1", op="a", term=0)


def answered(operation: Operation[object], raw: object) -> object:
    """Returns the result of an operation of one step whose raw reply this is."""
    operation.send(None)
    with pytest.raises(StopIteration) as end:
        operation.send(raw)
    return end.value.value


def test_an_operation_reads_the_reply_of_its_script_however_it_sends_the_call():
    async def operation() -> list[bool]:
        alone = await EXTEND
        one, *_ = await Batch([EXTEND, Command(b"TIME")])
        here = await SingleServer(EXTEND)
        both = await SingleServer(Batch([EXTEND]))
        sure = await Confirm(EXTEND, 1)
        assert here is not None
        assert both is not None
        return [reply.is_ok for reply in (alone, one, here, both[0], sure.reply)]

    running = operation()
    running.send(None)
    for raw in ([b"ok"], [[b"ok"], [b"1", b"2"]], [b"ok"], [[b"ok"]]):
        running.send(raw)
    with pytest.raises(StopIteration) as end:
        running.send(Confirmed([b"ok"], 1, True))
    assert end.value.value == [True] * 5


def test_an_error_in_a_batch_and_no_reply_of_a_cluster_stay_what_they_are():
    async def several() -> object:
        return await Batch([EXTEND, EXTEND], lenient=True)

    async def alone() -> object:
        return await SingleServer(EXTEND)

    error = NodeAway("away")
    found = answered(several(), [error, [b"ok"]])
    assert isinstance(found, list)
    assert found[0] is error
    assert found[1].is_ok
    assert answered(alone(), None) is None


def test_a_forwarded_step_returns_the_unread_reply():
    async def operation() -> object:
        return await forward(EXTEND)

    assert answered(operation(), [b"ok"]) == [b"ok"]


@for_each("step", [Command(b"TIME"), EXTEND, Batch([EXTEND])])
def test_an_operation_that_is_awaited_without_a_driver_says_what_to_do(step: Command):
    """Its event loop gets the step, and no driver performs it."""

    async def operation() -> object:
        return await step

    with pytest.raises(RuntimeError, match=r"await driver\.run\(operation\)"):
        asyncio.run(operation())


def test_a_task_that_awaits_an_operation_without_a_driver_can_be_cancelled():
    async def operation() -> object:
        return await Command(b"TIME")

    async def main() -> None:
        task = asyncio.create_task(operation())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])

    asyncio.run(main())
