"""Runs a test on both faces: what it calls on the asyncio face is awaited for it.

With `@both_faces` a test has the fixture `queue` of each face in turn; `on_both("topic")` is for
another fixture.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest


def on_both(fixture: str) -> pytest.MarkDecorator:
    """Returns the mark of a test that runs on both faces of a fixture."""
    return pytest.mark.parametrize(fixture, ["blocking", "asyncio"], indirect=True)


both_faces = on_both("queue")


def is_asyncio(request: pytest.FixtureRequest) -> bool:
    """Returns True if a fixture is for the asyncio face."""
    return getattr(request, "param", "blocking") == "asyncio"


@contextlib.contextmanager
def as_blocking(face: Any, driver: Any = None) -> Iterator[Any]:
    """Yields an object of the asyncio face that is called as a blocking one; closes it.

    `driver` is the blocking driver that a test finds in it.
    """
    with asyncio.Runner() as runner:
        try:
            yield _Awaited(face, runner, driver)
        finally:
            runner.run(face.close())


class _Awaited:
    def __init__(self, face: Any, runner: asyncio.Runner, driver: Any) -> None:
        self._face, self._runner = face, runner
        if driver is not None:
            self.driver = driver

    def __getattr__(self, name: str) -> Any:
        return self._of(getattr(self._face, name))

    def _of(self, value: Any) -> Any:
        if inspect.isawaitable(value):
            return self._of(self._runner.run(_wait(value)))
        if inspect.ismethod(value):
            return lambda *args, **given: self._of(value(*args, **given))
        if isinstance(value, AsyncIterator):
            return self._each(value)
        if isinstance(value, list):
            return [*map(self._of, value)]
        if type(value).__module__.startswith("fairlane.aio."):
            return _Awaited(value, self._runner, None)
        return value

    def _each(self, values: AsyncIterator[Any]) -> Iterator[Any]:
        end = object()
        while (value := self._of(anext(values, end))) is not end:
            yield value

    def __enter__(self) -> Any:
        self._runner.run(self._face.__aenter__())
        return self

    def __exit__(self, *error: object) -> None:
        self._runner.run(self._face.__aexit__(*error))


async def _wait(value: Any) -> Any:
    return await value
