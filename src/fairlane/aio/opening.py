"""What opens a request in the asyncio API. The blocking one needs no such thing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Coroutine, Generator
    from types import TracebackType

    from fairlane.aio.request import OpenRequest


class Opening:
    """What Queue.open returns: await it for an OpenRequest, or use it in `async with`."""

    def __init__(self, opened: Coroutine[Any, Any, OpenRequest]) -> None:
        self._opened = opened
        self._request: OpenRequest | None = None

    def __await__(self) -> Generator[Any, None, OpenRequest]:
        return self._opened.__await__()

    async def __aenter__(self) -> OpenRequest:
        self._request = await self._opened
        return self._request

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._request is not None:
            await self._request.__aexit__(kind, error, trace)
