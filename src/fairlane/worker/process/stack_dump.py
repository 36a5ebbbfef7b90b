"""Where a process was that had to be killed or that crashed: the Python stacks of its threads.

It writes them itself, in a signal handler in C that needs neither the interpreter nor its lock, so
that a handler stuck in foreign code tells, too. The file is in memory; the supervisor reads it.
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

# One that nobody else is likely to use; elsewhere than on Linux there are no real-time ones.
_SIGNAL = signal.SIGRTMIN + 9 if hasattr(signal, "SIGRTMIN") else signal.SIGUSR2
_MOST = 1 << 16  # bytes of a file that are looked at
_LINES = 30  # of one stack
_CUT = "  ..."  # what is written for the rest of a stack of more than a hundred calls
_NEXT = re.compile(r"(?:Current t|T)hread 0x([0-9a-f]+)\b.*")
_FRAME = re.compile(r'File "(.+)", line (\d+) in (.+)')
_RUNNER = f'File "{Path(__file__).parents[1] / "handler" / "runner.py"}"'


def make() -> int:
    """A file for one process's stacks; -1 when there can be none."""
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


def close(file: int) -> None:
    """The process is gone."""
    if file >= 0:
        os.close(file)


def prepare(file: int) -> None:
    """In the process itself: from now on it can be asked, and tells when it crashes."""
    if file < 0:
        return
    faulthandler.register(_SIGNAL, file=file, all_threads=True)
    if not faulthandler.is_enabled():  # else the handler's author wants to see crashes elsewhere
        faulthandler.enable(file=file, all_threads=True)


def ask(pid: int, file: int) -> None:
    """Has a process write where it is, and nothing else; one that can't is ended by this."""
    if file >= 0:
        os.ftruncate(file, 0)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, _SIGNAL)


def size(file: int) -> int:
    """How many bytes were written."""
    return os.fstat(file).st_size if file >= 0 else 0


def read(file: int) -> str:
    """All that was written."""
    if file < 0:
        return ""
    return os.pread(file, _MOST, 0).decode(errors="backslashreplace")


def crash_of(text: str) -> list[str]:
    """The handler's lines of the thread that crashed, the innermost call first; else empty."""
    _, is_crash, rest = text.rpartition("Fatal Python error: ")
    found = re.search(r"^Current thread 0x([0-9a-f]+)", rest, re.MULTILINE)
    return stack_of(rest, int(found[1], 16)) if is_crash and found else []


def own_frame(lines: list[str]) -> str:
    """The innermost call in the handler's own file, as `file.py:60 name`; "" when there is none.

    `lines` are those of the handler's thread: the outermost is the handler itself.
    """
    frames = [found.groups() for line in lines if (found := _FRAME.search(line))]
    for path, number, name in frames:
        if path == frames[-1][0]:
            return f"{Path(path).name}:{number} {name}"
    return ""


def stack_of(text: str, thread: int) -> list[str]:
    """The handler's lines of one thread, the innermost call first; empty when it ran none."""
    lines: list[str] = []
    is_ours = False
    for line in text.splitlines():
        begins = _NEXT.match(line)
        if begins:
            is_ours = int(begins[1], 16) == thread
        elif is_ours and (_RUNNER in line or line == _CUT):
            return lines[:_LINES]
        elif is_ours and line.startswith("  "):
            lines.append(line)
    return []
