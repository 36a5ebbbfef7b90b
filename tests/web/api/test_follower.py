"""Tests that streams of ends are read only after a blocking call found one, or an outage."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from fairlane.errors import RedisUnreachable
from fairlane.web import waiting as follower
from fairlane.web.waiting import Follower


class Log:
    """A driver whose replies a test gives: lists of ends, or errors."""

    def __init__(self) -> None:
        self.replies: asyncio.Queue[Any] = asyncio.Queue()
        self.queue: Any = SimpleNamespace(driver=self, name="req")

    async def run(self, operation: Any) -> Any:
        operation.close()
        if operation.__name__ == "last_completion":
            return "1-0"
        reply = await self.replies.get()
        self.replies.task_done()
        if isinstance(reply, Exception):
            raise reply
        return reply


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower, "_AGAIN_S", 0.0)


def test_a_stream_is_woken_at_the_start_by_an_ending_and_after_an_outage():
    async def scenario() -> None:
        log, found = Log(), Follower()
        async with found.following(log.queue):
            await found.wait(0)  # what came before the first call is read once
            assert found.count == 1
            log.replies.put_nowait([])
            waiting = asyncio.create_task(found.wait(1))
            log.replies.put_nowait([SimpleNamespace(log_id="2-0")] * 2)
            await waiting
            assert found.count == 3
            log.replies.put_nowait(RedisUnreachable("away"))
            await found.wait(3)
            assert found.count == 4

    asyncio.run(scenario())


def test_a_log_without_news_wakes_no_stream():
    async def scenario() -> None:
        log, found = Log(), Follower()
        async with found.following(log.queue):
            await found.wait(0)
            waiting = asyncio.create_task(found.wait(1))
            for _ in range(3):
                log.replies.put_nowait([])
            await log.replies.join()
            assert not waiting.done()
            waiting.cancel()

    asyncio.run(scenario())
