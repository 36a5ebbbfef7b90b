"""The state that the steps of a run share, in the blocking API and for asyncio."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairlane.operations import shared

if TYPE_CHECKING:
    from fairlane.drivers.aio import AsyncDriver
    from fairlane.drivers.sync import SyncDriver


class SharedState:
    """Values by name that all steps of a run read and change: `shared["user"] = {"id": 5}`.

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
        found = self._driver.run(shared.read_value(self._run, name))
        return default if found is None else found

    def set(self, name: str, value: Any) -> None:
        """Sets a value."""
        self._driver.run(shared.set_value(self._run, name, value))

    def incr(self, name: str, by: int = 1) -> int:
        """Adds to a whole number, which is 0 at first; returns the sum."""
        return self._driver.run(shared.add_to_value(self._run, name, by))

    def swap(self, name: str, expected: Any, value: Any) -> bool:
        """Sets a value if it is the expected one, None = there is none; returns whether it was."""
        return self._driver.run(shared.swap_value(self._run, name, expected, value))

    def delete(self, name: str) -> None:
        """Removes a value, if it is there."""
        self._driver.run(shared.drop_value(self._run, name))

    def all(self) -> dict[str, Any]:
        """Returns all values by their names."""
        return self._driver.run(shared.read_shared(self._run))

    def __getitem__(self, name: str) -> Any:
        found = self.get(name)
        if found is None:
            raise KeyError(name)
        return found

    def __setitem__(self, name: str, value: Any) -> None:
        self.set(name, value)

    def __delitem__(self, name: str) -> None:
        self.delete(name)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.get(name) is not None

    def __repr__(self) -> str:
        return f"<SharedState of flow {self._run}>"


class AsyncSharedState:
    """The same as SharedState for asyncio: `await shared.set("user", {"id": 5})`."""

    def __init__(self, driver: AsyncDriver, run: str) -> None:
        self._driver, self._run = driver, run

    async def get(self, name: str, default: Any = None) -> Any:
        """Returns a value, or the default if there is none."""
        found = await self._driver.run(shared.read_value(self._run, name))
        return default if found is None else found

    async def set(self, name: str, value: Any) -> None:
        """Sets a value."""
        await self._driver.run(shared.set_value(self._run, name, value))

    async def incr(self, name: str, by: int = 1) -> int:
        """Adds to a whole number, which is 0 at first; returns the sum."""
        return await self._driver.run(shared.add_to_value(self._run, name, by))

    async def swap(self, name: str, expected: Any, value: Any) -> bool:
        """Sets a value if it is the expected one; see SharedState.swap."""
        return await self._driver.run(shared.swap_value(self._run, name, expected, value))

    async def delete(self, name: str) -> None:
        """Removes a value, if it is there."""
        await self._driver.run(shared.drop_value(self._run, name))

    async def all(self) -> dict[str, Any]:
        """Returns all values by their names."""
        return await self._driver.run(shared.read_shared(self._run))

    def __repr__(self) -> str:
        return f"<AsyncSharedState of flow {self._run}>"
