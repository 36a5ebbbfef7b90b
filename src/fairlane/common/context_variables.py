"""Runs a coroutine in context variables of its own."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine, Generator
    from contextvars import Context

T = TypeVar("T")
__fairlane_caller__ = (
    True  # its frames are left out of a handler's traceback: see worker/error_texts.py
)


@types.coroutine
def run_in(variables: Context, called: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
    """Awaits a coroutine; each of its steps reads and sets these variables.

    A task of asyncio could have them, too, but a call must stay in the task that may cancel it.
    """
    step: Any = called.send
    given: Any = None
    while True:
        try:
            awaited = variables.run(step, given)
        except StopIteration as end:
            value: T = end.value
            return value
        finally:
            given = None  # because a traceback holds this frame
        try:
            step, given = called.send, (yield awaited)
        except GeneratorExit:
            called.close()
            raise
        except BaseException as error:  # noqa: BLE001  the coroutine's own to handle
            step, given = called.throw, error
