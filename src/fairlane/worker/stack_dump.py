"""Reads the Python stacks of a process: one that crashed, had to be killed, or only was asked.

The process writes its stacks in a signal handler in C that needs neither the interpreter nor its
lock. So this works even if a handler hangs in foreign code. The file is in memory; the
supervisor reads it.

A signal ends a wait in foreign code that is not restarted, such as a `sleep` in C. So the signal is
sent to a thread that does nothing else. No thread blocks it, because the programs that a handler
starts would inherit that.

The signal's handler writes the stacks of the newest 100 threads. In a process with more than
`_THREADS_MOST`, each wanted thread gets a second signal, and writes its own stack alone. That one
may end a wait, so it is not sent where the first one is enough.
"""

from __future__ import annotations

import _thread
import asyncio
import contextlib
import ctypes
import faulthandler
import fcntl
import os
import re
import signal
import sysconfig
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairlane.common import clock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

# Signals that other programs rarely use; only Linux has real-time signals.
_SIGNAL = signal.SIGRTMIN + 9 if hasattr(signal, "SIGRTMIN") else signal.SIGUSR2
_SIGNAL_OF_ONE = signal.SIGRTMIN + 10 if hasattr(signal, "SIGRTMIN") else None
_SIGNAL_OF_TASKS = signal.SIGRTMIN + 11 if hasattr(signal, "SIGRTMIN") else None
_THREADS_MOST = 90  # all threads of a process with more of them are not written
_MOST = 8 << 20  # bytes of a file that are read: 100 threads of 100 long lines have fewer
_FRAMES_MOST = 100
_LINES = 30  # of one stack
_TASKS_END = "End of tasks\n"
_TASK = re.compile(r"Task (\d+)")
_LONGEST_S = 1.0  # how long a process may take to write its stacks
_PR_SET_NAME, _TAKER = 15, b"fairlane-stacks"
_QUIET_S = 0.03  # a dump that has not grown for so long is complete
_PAUSE_S, _PAUSES = 0.0005, 20
_EACH_S = 0.05  # ... and for each thread that is asked alone
_LOOK_S = 0.05  # for so long one look may wait for threads that write one after the other
_CUT = "  ..."  # stands for the rest of a stack of more than a hundred calls
_NEXT = re.compile(r"(?:Current t|T)hread 0x([0-9a-f]+)\b.*")
_FRAME = re.compile(r'File "(.+)", line (\d+) in (.+)')
_PACKAGE = f'File "{Path(__file__).parents[1]}{os.sep}'
_STEP = f'{os.sep}asyncio{os.sep}events.py"'  # runs a step of an async call
_RUNNER = f'File "{Path(__file__).with_name("calls.py")}"'
_OUTERMOST = (" in _bootstrap\n", " in <module>\n", f"{_CUT}\n")  # ends a stack
_LIBRARIES = tuple(
    f'File "{folder}{os.sep}'
    for name in ("stdlib", "platstdlib", "purelib", "platlib")
    if (folder := sysconfig.get_path(name))
)


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
    """Makes this process write its stacks when it gets a signal, and when it crashes."""
    if file < 0:
        return
    faulthandler.register(_SIGNAL, file=file, all_threads=True)
    _start_taker()
    if _SIGNAL_OF_ONE is not None:
        faulthandler.register(_SIGNAL_OF_ONE, file=file, all_threads=False)
    if not faulthandler.is_enabled():  # else the handler's author wants crash reports elsewhere
        faulthandler.enable(file=file, all_threads=True)


def _start_taker() -> None:
    """Starts the thread that takes the signal, which has a name for the system."""
    is_on = _thread.allocate_lock()
    is_on.acquire()

    def wait() -> None:
        with contextlib.suppress(AttributeError):  # only Linux has it
            ctypes.CDLL(None).prctl(_PR_SET_NAME, _TAKER)
        is_on.release()
        forever = _thread.allocate_lock()
        forever.acquire()
        while True:
            forever.acquire()

    _thread.start_new_thread(wait, ())
    is_on.acquire()


def _taker_of(pid: int) -> int:
    """Returns the number of the thread that takes the signal; 0 if there is none."""
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):  # the thread has ended meanwhile
                if (task / "comm").read_bytes().strip() == _TAKER:
                    return int(task.name)
    return 0


def ask(pid: int, file: int) -> None:
    """Makes a process write its stacks anew; the signal ends a process that did not `prepare`."""
    if file >= 0:
        os.ftruncate(file, 0)
    _send(pid, _SIGNAL)


def _send(pid: int, number: int) -> None:
    """Sends a signal to the thread that takes it, or to the process if it has no such thread."""
    if _may_ask_one() and (taker := _taker_of(pid)):
        ctypes.CDLL(None).tgkill(pid, taker, int(number))
        return
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _ask_one(pid: int, native: int, file: int) -> None:
    """Makes one thread of a process write its stack anew; a no-op if the thread is gone."""
    os.ftruncate(file, 0)
    ctypes.CDLL(None).tgkill(pid, native, int(_SIGNAL_OF_ONE or 0))


def _may_ask_one() -> bool:
    return _SIGNAL_OF_ONE is not None and hasattr(ctypes.CDLL(None), "tgkill")


def _count_threads(pid: int) -> int:
    """Returns the threads of a process; 0 if the system does not say."""
    try:
        return len([*Path(f"/proc/{pid}/task").iterdir()])
    except OSError:
        return 0


class StackDump:
    """The stacks that a process writes on request.

    The request is made here, or by `look` if the threads are asked one by one. `look` returns True
    when it is answered, and never waits for long.
    """

    def __init__(self, pid: int, file: int) -> None:
        self._pid, self._file = pid, file
        self._asked = clock.mono_s()
        self._size, self._grew = 0, self._asked
        self._lines: dict[int, list[str]] = {}
        self._left: dict[int, int] = {}
        self._is_asked = False  # the first thread of those that are left
        is_large = file >= 0 and _count_threads(pid) > _THREADS_MOST
        self._is_whole = not (is_large and _may_ask_one())
        if self._is_whole:
            ask(pid, file)

    def want(self, threads: Mapping[int, int]) -> None:
        """Adds wanted threads: the identity of each, and its number in the system."""
        wanted = threads.items() if not self._is_whole else ()
        self._left |= {one: native for one, native in wanted if one not in self._lines and native}

    def look(self, now: float) -> bool:
        """Returns True if the stacks are written and grow no more, or if their time is up."""
        count = 0 if self._is_whole else len(self._lines) + len(self._left)
        is_late = now - self._asked >= _LONGEST_S + _EACH_S * count
        if not self._is_whole:
            until = clock.mono_s() + _LOOK_S
            while self._left and self._look_at_one(is_late=is_late) and clock.mono_s() < until:
                continue
            return is_late or not self._left
        before, self._size = self._size, size(self._file)
        if self._size != before:
            self._grew = now
        return is_late or (self._size > 0 and now - self._grew > _QUIET_S)

    def _look_at_one(self, *, is_late: bool) -> bool:
        """Asks the next thread, or reads what it has written; returns False if it must be awaited.

        Another thread is asked only after the end of the stack: the file does not name its thread.
        """
        thread, native = next(iter(self._left.items()))
        if not self._is_asked:
            if is_late:
                return False
            _ask_one(self._pid, native, self._file)
            self._is_asked = True
        before = ""
        for _ in range(_PAUSES):
            text = read(self._file)
            if text.endswith(_OUTERMOST) and text == before:
                del self._left[thread]
                self._lines[thread] = [line for line in text.splitlines() if line.startswith("  ")]
                self._is_asked = False
                return True
            before = text
            clock.sleep(_PAUSE_S)
        return False

    def stack(self, thread: int) -> list[str]:
        """Returns the user's lines of one thread, the innermost call first; [] if it ran none."""
        if self._is_whole and not self._lines:
            self._lines = by_thread(read(self._file))
        return users_lines(self._lines.get(thread, ()))


# ------------------------------------------------------------------ tasks
# The stacks of calls of an async handler, which wait without a thread of their own.


class TaskDump:
    """The stacks of the tasks of a process, which writes them in its event loop.

    Unless it has answered when `look` returns True, its loop is blocked.
    """

    def __init__(self, pid: int, file: int) -> None:
        self._file, self._asked = file, clock.mono_s()
        self.is_answered = False
        self._lines: dict[int, list[str]] = {}
        if file >= 0 and _SIGNAL_OF_TASKS is not None:
            os.ftruncate(file, 0)
            _send(pid, _SIGNAL_OF_TASKS)

    def look(self, now: float) -> bool:
        """Returns True if the stacks are written, or if their time is up."""
        text = read(self._file)
        if text.endswith(_TASKS_END):
            self.is_answered = True
            self._lines = by_thread(text, _TASK, 10)
        return self.is_answered or now - self._asked >= _LONGEST_S

    def stack(self, unit: int) -> list[str]:
        """Returns the user's lines of the call of a unit, the innermost first; [] if none runs."""
        return users_lines(self._lines.get(unit, ()))


def prepare_tasks(file: int, show: Callable[[], Iterable[str]]) -> None:
    """Makes this process write what `show` returns when it gets the signal; in its event loop."""
    if file < 0 or _SIGNAL_OF_TASKS is None:
        return

    def write() -> None:
        text = "".join([*show(), _TASKS_END])
        with contextlib.suppress(OSError):
            os.write(file, text.encode(errors="backslashreplace"))

    asyncio.get_running_loop().add_signal_handler(int(_SIGNAL_OF_TASKS), write)


def stack_text(called: Any, task: Any) -> str:
    """Returns the lines of a coroutine that is awaited in `task`, the innermost call first."""
    lines: list[str] = []
    while called is not None and len(lines) < _FRAMES_MOST:
        frame = _first(called, "cr_frame", "gi_frame", "ag_frame")
        if frame is not None:
            code = frame.f_code
            lines.append(f'  File "{code.co_filename}", line {frame.f_lineno} in {code.co_name}')
        called = _first(called, "cr_await", "gi_yieldfrom", "ag_await")
        if called is None or not hasattr(called, "send"):
            called, task = _awaited(task)
    return "\n".join([*reversed(lines), f"  {_RUNNER}, line 0 in run_slice_async"])


def _first(called: Any, *names: str) -> Any:
    return next((found for name in names if (found := getattr(called, name, None))), None)


def _awaited(task: Any) -> tuple[Any, Any]:
    """Returns the coroutine of a task that this task waits for, and that task; None if none."""
    waits_for = getattr(task, "_fut_waiter", None)
    children = getattr(waits_for, "_children", None) or [waits_for]
    for child in children:
        if isinstance(child, asyncio.Task) and not child.done():
            return child.get_coro(), child
    return None, None


def size(file: int) -> int:
    """Returns how many bytes were written."""
    return os.fstat(file).st_size if file >= 0 else 0


def read(file: int) -> str:
    """Returns all that was written."""
    if file < 0:
        return ""
    parts: list[bytes] = []
    at = 0
    while at < _MOST and (part := os.pread(file, _MOST - at, at)):
        parts.append(part)
        at += len(part)
    return b"".join(parts).decode(errors="backslashreplace")


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
    return users_lines(by_thread(text).get(thread, ()), until)


def by_thread(text: str, head: re.Pattern[str] = _NEXT, base: int = 16) -> dict[int, list[str]]:
    """Returns the lines of each thread by its identity, or of what else a line begins."""
    found: dict[int, list[str]] = {}
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith("  "):
            lines.append(line)
        elif begins := head.match(line):
            lines = found[int(begins[1], base)] = []
    return found


def users_lines(stack: Iterable[str], until: str = _RUNNER) -> list[str]:
    """Returns the lines of a stack that are the handler's or a task's, the innermost call first.

    They end at the line that has `until`; [] if there is none. The lines of this package around the
    task are left out, and so is what the user's innermost line has called in this package.
    """
    lines: list[str] = []
    for line in stack:
        if until in line or line == _CUT:
            break
        lines.append(line)
    else:
        return []
    while lines and _PACKAGE in lines[-1]:  # it called the task, and is not the user's code
        lines.pop()
    return lines[_inner_package(lines) :][:_LINES]


def _inner_package(lines: list[str]) -> int:
    """Returns how many of the innermost lines are those of this package and what it has called."""
    count = 0
    for at, line in enumerate(lines):
        if _PACKAGE in line:
            count = at + 1
        elif not any(folder in line for folder in _LIBRARIES):
            return count
    return 0
