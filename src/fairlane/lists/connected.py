"""Names on one Redis and the connections to it, blocking and for asyncio."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Self

from fairlane import settings
from fairlane.drivers.aio import AsyncDriver
from fairlane.drivers.sync import SyncDriver
from fairlane.redis_url import resolve_url

if TYPE_CHECKING:
    from collections.abc import Iterable


class _Named(ABC):
    """Has the checked names."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = self._checked(names)

    @staticmethod
    @abstractmethod
    def _checked(names: Iterable[str]) -> tuple[str, ...]:
        """Returns the names. Raises InvalidArgument."""


class Connected(_Named):
    """Names on one Redis; any thread may use it."""

    def __init__(self, driver: SyncDriver, names: Iterable[str]) -> None:
        super().__init__(names)
        self._driver = driver

    @classmethod
    def from_url(
        cls,
        names: Iterable[str],
        url: str | None = None,
        *,
        patience_s: float = settings.PATIENCE_S,
    ) -> Self:
        """Returns one for these names on the Redis at `url`; see Queue.from_url.

        Raises InvalidArgument.
        """
        return cls(SyncDriver(resolve_url(url), patience_s=patience_s), names)

    def close(self) -> None:
        """Closes the idle connections."""
        self._driver.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncConnected(_Named):
    """Does what Connected does, awaited."""

    def __init__(self, driver: AsyncDriver, names: Iterable[str]) -> None:
        super().__init__(names)
        self._driver = driver

    @classmethod
    def from_url(
        cls,
        names: Iterable[str],
        url: str | None = None,
        *,
        patience_s: float = settings.PATIENCE_S,
    ) -> Self:
        """Returns one for these names on the Redis at `url`; see Queue.from_url."""
        return cls(AsyncDriver(resolve_url(url), patience_s=patience_s), names)

    async def close(self) -> None:
        """Closes the idle connections."""
        await self._driver.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
