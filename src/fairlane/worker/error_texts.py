"""The text of a failed call: its reason, or the traceback from the handler's own first frame on."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, Any

from fairlane import settings
from fairlane.common.fingerprint import CAUSE
from fairlane.common.text import shortened
from fairlane.worker.errors import TimedOut

if TYPE_CHECKING:
    from types import TracebackType

    from fairlane.worker.errors import Reject, Retry

_RAISED = f"{__package__}.errors"


def reason_of(error: Retry | Reject) -> str:
    """Returns the error's reason, and the exception that it was raised from, or while handling."""
    try:
        text = str(error)
    except BaseException:  # noqa: BLE001  a subclass may raise anything
        text = type(error).__name__
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if cause is None:
        return text
    head = f"{shortened(text, settings.MAX_ERROR // 4)}\n{CAUSE}\n"
    room = settings.MAX_ERROR - len(head.encode())
    return head + shortened(text_of(cause, room), room)


def text_of(error: BaseException, most: int = settings.MAX_ERROR) -> str:
    """Returns the traceback, from the handler's own first frame on.

    A message is shortened, so that its type and the place are in the `most` bytes that are kept.
    """
    if isinstance(error, TimedOut):  # its cause has the place where the handler was
        cause = error.__cause__
        return str(error) if cause is None else f"{error}\n{text_of(cause)}"
    trace: TracebackType | None = error.__traceback__
    while trace is not None and _is_caller(trace.tb_frame.f_globals):
        trace = trace.tb_next
    try:
        report = traceback.TracebackException(type(error), error, trace, compact=True)
        report.stack = traceback.StackSummary.from_list(_others(trace, report.stack))
        text, last = "".join(report.format()), "".join(report.format_exception_only())
        if not text.endswith(last):  # a group's own line is not its last
            return text
        trail = text.removesuffix(last)
        return trail + shortened(
            last, max(most // 4, most - len(trail.encode(errors="backslashreplace")))
        )
    except BaseException:  # noqa: BLE001  methods of the handler's own classes run here
        return f"{type(error).__name__}, which has no text\n"


def _is_caller(module: dict[str, Any]) -> bool:
    """Returns True for a module that only calls the handler, or its tasks."""
    return "__fairlane_caller__" in module


def _others(
    trace: TracebackType | None, frames: list[traceback.FrameSummary]
) -> list[traceback.FrameSummary]:
    """Returns the frames without those of this package's exceptions, which refuse bad arguments."""
    modules = [frame.f_globals.get("__name__") for frame, _ in traceback.walk_tb(trace)]
    if len(modules) != len(frames):
        return frames
    return [one for one, module in zip(frames, modules, strict=True) if module != _RAISED]
