"""Tests that a process shows the user's line of each wanted thread, however many threads it has."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from fairlane.common import clock
from fairlane.worker import stack_dump
from fairlane.worker.stack_dump import StackDump
from tests.support.wait import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

# Threads that wait in deep calls of a handler; each prints its identity and its number.
PROGRAM = r"""
import os, sys, threading
from fairlane.worker import stack_dump
from fairlane.worker.board import LeaseBoard
from fairlane.worker.calls import Runner
from fairlane.worker.handlers import shape_of
from tests.worker.parts import slice_of

def user_line(body):
    os.write(1, b"%d %d\n" % (threading.get_ident(), threading.get_native_id()))
    threading.Event().wait()

def deep(body, left=15):
    return deep(body, left - 1) if left else user_line(body)

def handler(body):
    return deep(body)

stack_dump.prepare(int(sys.argv[1]))
for record in LeaseBoard(int(sys.argv[2])).records:
    runner = Runner(shape_of(handler), record)
    threading.Thread(target=runner.run_slice, args=(slice_of(b"x"), 0), daemon=True).start()
threading.Event().wait()
"""

SLEEPER = r"""
import ctypes, os, sys, threading, time
from fairlane.worker import stack_dump
from fairlane.worker.board import LeaseBoard
from fairlane.worker.calls import Runner
from fairlane.worker.handlers import shape_of
from tests.worker.parts import slice_of

def user_line(body):
    began = time.monotonic()
    os.write(1, b"%d\n" % threading.get_ident())
    ctypes.CDLL(None).usleep(1_000_000)
    os.write(1, b"%f\n" % (time.monotonic() - began))

stack_dump.prepare(int(sys.argv[1]))
Runner(shape_of(user_line), LeaseBoard(1).records[0]).run_slice(slice_of(b"x"), 0)
"""


@contextmanager
def waiting(count: int) -> Iterator[tuple[int, int, dict[int, int]]]:
    """Runs a process with so many threads that wait; yields its pid, its file and its threads."""
    file = stack_dump.make()
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(file), str(count)],
        stdout=subprocess.PIPE, pass_fds=[file], text=True,
    )  # fmt: skip
    assert program.stdout is not None
    try:
        lines = [program.stdout.readline().split() for _ in range(count)]
        yield program.pid, file, {int(ident): int(native) for ident, native in lines}
    finally:
        program.kill()
        program.communicate()
        os.close(file)


def test_a_sleep_in_foreign_code_goes_on_when_its_stack_is_shown():
    """The handler's thread is the main one here, which would take a signal to the process."""
    file = stack_dump.make()
    program = subprocess.Popen(
        [sys.executable, "-c", SLEEPER, str(file)], stdout=subprocess.PIPE, pass_fds=[file],
        text=True,
    )  # fmt: skip
    assert program.stdout is not None
    try:
        thread = int(program.stdout.readline())
        dump = StackDump(program.pid, file)
        wait_until(lambda: dump.look(clock.mono_s()), why="the stacks are written")
        lines = [line.rpartition(" in ")[2] for line in dump.stack(thread)]
        assert lines == ["user_line"]
        assert float(program.stdout.readline()) >= 1.0
    finally:
        program.kill()
        program.communicate()
        os.close(file)


@pytest.mark.parametrize("count", [3, 89, 120])
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux sends a signal to one thread")
def test_the_users_line_of_each_thread_is_shown(count: int):
    """The first thread, too; above the number that one signal shows, each thread is asked alone."""
    with waiting(count) as (pid, file, threads):
        dump = StackDump(pid, file)
        dump.want(threads)
        wait_until(lambda: dump.look(clock.mono_s()), why="the stacks are written")
        lines = [[line.rpartition(" in ")[2] for line in dump.stack(one)] for one in threads]
    users = [[name for name in names if name != "wait"] for names in lines]
    assert users == [["user_line", *["deep"] * 16, "handler"]] * count


def test_a_thread_that_is_gone_does_not_keep_the_others_waiting_for_long():
    """Then the time is up; what others wrote is shown."""
    with waiting(91) as (pid, file, threads):
        dump = StackDump(pid, file)
        first, *_ = threads
        dump.want({first: threads[first], 1: 2**22 + 1})
        wait_until(lambda: dump.look(clock.mono_s()), why="its time is up")
        assert dump.stack(first)
        assert dump.stack(1) == []


def test_what_the_users_line_has_called_in_this_package_is_left_out():
    """The innermost line is the user's; the lines around a task are left out, too."""
    package = stack_dump._PACKAGE
    library = stack_dump._LIBRARIES[0]
    lines = [
        f'  {library}socket.py", line 9 in recv',
        f'  {package}drivers/sync.py", line 8 in run',
        '  File "/app/mine.py", line 7 in resize',
        f'  {package}tasks/serve.py", line 6 in bare',
        f"  {stack_dump._RUNNER}, line 5 in run_slice",
    ]
    assert stack_dump.users_lines(lines) == lines[2:3]


def test_a_library_that_the_user_calls_is_shown():
    """It says what the user's line waits for."""
    library = stack_dump._LIBRARIES[0]
    lines = [
        f'  {library}threading.py", line 9 in wait',
        '  File "/app/mine.py", line 7 in resize',
        f"  {stack_dump._RUNNER}, line 5 in run_slice",
    ]
    assert stack_dump.users_lines(lines) == lines[:2]
