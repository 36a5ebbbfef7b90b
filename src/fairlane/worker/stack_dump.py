"""Reads the Python stacks of a process that crashed or had to be killed.

The process writes its stacks in a signal handler in C that needs neither the interpreter nor its
lock. So this works even if a handler hangs in foreign code. The file is in memory; the
supervisor reads it.
"""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import os
import re
import signal
import tempfile
from pathlib import Path

# A signal that other programs rarely use; only Linux has real-time signals.
_SIGNAL = signal.SIGRTMIN + 9 if hasattr(signal, "SIGRTMIN") else signal.SIGUSR2
_MOST = 1 << 16  # bytes of a file that are looked at
_LINES = 30  # of one stack
_CUT = "  ..."  # stands for the rest of a stack of more than a hundred calls
_NEXT = re.compile(r"(?:Current t|T)hread 0x([0-9a-f]+)\b.*")
_FRAME = re.compile(r'File "(.+)", line (\d+) in (.+)')
_PACKAGE = f'File "{Path(__file__).parents[1]}{os.sep}'
_STEP = f'{os.sep}asyncio{os.sep}events.py"'  # runs a step of an async call
_RUNNER = f'File "{Path(__file__).with_name("calls.py")}"'


def make() -> int:
    """Returns a file for one process's stacks; -1 if none can be made."""
    try:
        if hasattr(os, "memfd_create"):
            made = os.memfd_create("fairlane-stacks")
        else:
            with tempfile.TemporaryFile() as file:
                made = os.dup(file.fileno())
        fcntl.fcntl(made, fcntl.F_SETFL, os.O_APPEND)
    except OSError:
        return -1
    return made


def close_stacks(file: int) -> None:
    """Closes the file of a process that is gone."""
    if file >= 0:
        os.close(file)


def prepare(file: int) -> None:
    """Makes this process write its stacks when it gets the signal, and when it crashes."""
    if file < 0:
        return
    faulthandler.register(_SIGNAL, file=file, all_threads=True)
    if not faulthandler.is_enabled():  # else the handler's author wants crash reports elsewhere
        faulthandler.enable(file=file, all_threads=True)


def ask(pid: int, file: int) -> None:
    """Makes a process write its stacks anew; the signal ends a process that did not `prepare`."""
    if file >= 0:
        os.ftruncate(file, 0)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, _SIGNAL)


def size(file: int) -> int:
    """Returns how many bytes were written."""
    return os.fstat(file).st_size if file >= 0 else 0


def read(file: int) -> str:
    """Returns all that was written."""
    if file < 0:
        return ""
    return os.pread(file, _MOST, 0).decode(errors="backslashreplace")


def crash_of(text: str) -> list[str]:
    """Returns the handler's lines of the thread that crashed, the innermost call first."""
    _, is_crash, rest = text.rpartition("Fatal Python error: ")
    found = re.search(r"^Current thread 0x([0-9a-f]+)", rest, re.MULTILINE)
    if not is_crash or not found:
        return []
    thread = int(found[1], 16)
    return stack_of(rest, thread) or stack_of(rest, thread, until=_STEP)


def own_frame(lines: list[str]) -> str:
    """Returns the innermost call in the handler's own file, as `file.py:60 name`, or "".

    `lines` are those of the handler's thread: the outermost is the handler itself.
    """
    frames = [found.groups() for line in lines if (found := _FRAME.search(line))]
    for path, number, name in frames:
        if path == frames[-1][0]:
            return f"{Path(path).name}:{number} {name}"
    return ""


def stack_of(text: str, thread: int, until: str = _RUNNER) -> list[str]:
    """Returns the handler's lines of one thread, the innermost call first; [] if it ran none.

    They end at the line that has `until`.
    """
    lines: list[str] = []
    is_ours = False
    for line in text.splitlines():
        begins = _NEXT.match(line)
        if begins:
            is_ours = int(begins[1], 16) == thread
        elif is_ours and (until in line or line == _CUT):
            while lines and _PACKAGE in lines[-1]:  # it called the task, and is not the user's code
                lines.pop()
            return lines[:_LINES]
        elif is_ours and line.startswith("  "):
            lines.append(line)
    return []
