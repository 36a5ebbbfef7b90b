"""Runs one operation by a blocking or an asyncio driver of its own, and closes the driver."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import pytest

from fairlane import settings
from fairlane.drivers.aio import AsyncDriver
from fairlane.drivers.sync import SyncDriver
from tests.support.scripts.requests import once

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairlane.protocol.steps import Operation

KINDS = ("sync", "async")
both = pytest.mark.parametrize("kind", KINDS)


def perform(
    kind: str,
    url: str,
    step: Any,
    *,
    patience_s: float = 0,
    timeout_s: float = settings.SOCKET_TIMEOUT_S,
) -> Any:
    return run(kind, url, once(step), patience_s=patience_s, timeout_s=timeout_s)


def run(
    kind: str,
    url: str,
    operation: Operation[Any],
    *,
    patience_s: float = 0,
    timeout_s: float = settings.SOCKET_TIMEOUT_S,
    handle: Callable[[Any], Any] | None = None,
) -> Any:
    """Runs one operation. `handle` blocks; the asyncio driver runs it in a thread."""
    with contextlib.closing(operation):  # no driver begins it if the URL is refused
        return _run(kind, url, operation, patience_s, timeout_s, handle)


def _run(
    kind: str,
    url: str,
    operation: Operation[Any],
    patience_s: float,
    timeout_s: float,
    handle: Callable[[Any], Any] | None,
) -> Any:
    if kind == "sync":
        with contextlib.closing(
            SyncDriver(url, patience_s=patience_s, timeout_s=timeout_s)
        ) as driver:
            return driver.run(operation, handle=handle)

    async def in_thread(step: Any) -> Any:
        assert handle is not None
        return await asyncio.to_thread(handle, step)

    async def main() -> Any:
        driver = AsyncDriver(url, patience_s=patience_s, timeout_s=timeout_s)
        try:
            return await driver.run(operation, handle=in_thread if handle else None)
        finally:
            await driver.close()

    return asyncio.run(main())
