"""Types that tests of tasks share, and one call of a worker's handler."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict

import msgspec

from fairlane import Context
from fairlane.tasks.serve import TaskCalls
from fairlane.worker.handlers import shape_of

if TYPE_CHECKING:
    from fairlane import App


@dataclass
class Size:
    width: int
    height: int


class Box(msgspec.Struct):
    sizes: list[Size]
    name: str = ""


class Row(TypedDict):
    id: int
    tags: list[str]


class Record:
    """Replaces a lease."""

    def __init__(self) -> None:
        self.is_stopped = False
        self.deadline = 7.5
        self.reports: list[tuple[int, int, int]] = []

    def report(self, *numbers: int) -> None:
        self.reports.append(numbers)  # type: ignore[arg-type]


def context_of(attempt: int = 1, attempts: int = 3) -> Context:
    return Context("r1", 4, attempt, 9, Record(), (), attempts)


def body_of(app: App, task: str, **arguments: Any) -> bytes:
    """Returns the body of one call, whatever its arguments are."""
    return app.codec.encode((1, task, arguments))


def call(apps: App | list[App], body: bytes, context: Context | None = None) -> bytes | None:
    """Runs one call as a worker does."""
    calls = TaskCalls(apps if isinstance(apps, list) else [apps])
    shape = shape_of(calls.handler())
    done = shape.call(body, context or context_of()) if shape.wants_context else shape.call(body)
    if not shape.is_async:
        return done  # type: ignore[no-any-return]

    async def wait() -> Any:
        return await done

    return asyncio.run(wait())  # type: ignore[no-any-return]
