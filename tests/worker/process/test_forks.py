"""Tests processes that a handler forks or starts: signals act on them as on any program."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import threading
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import TYPE_CHECKING, Any

import pytest

from fairlane.worker import Worker
from tests.worker.parts import ON_SINGLE

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairlane.queue import Queue
    from fairlane.request import Request

pytestmark = ON_SINGLE
METHODS = ["fork", "spawn", "forkserver"]
LIMIT_S = 20.0  # a call that hangs ends, and its test fails
STARTS = 50  # enough for a process that is terminated before its first instruction


def run(queue: Queue, handler: Callable[[bytes], Any], body: bytes, **options: Any) -> bytes:
    """Returns the result of one sub-request, which must not hang."""
    request: Request = queue.submit_request([body], attempts=1)
    Worker(queue, handler, time_limit_s=LIMIT_S, **options).run(until_idle=True)
    (result,) = request.results()
    assert result.status == "done", result.error
    return result.body or b""


def use_pool(body: bytes) -> str:
    """Leaves a pool, which terminates its processes."""
    with multiprocessing.get_context(body.decode()).Pool(2) as pool:
        return str(pool.map(abs, [-1, -2]))


def leave_pool_unused(body: bytes) -> str:
    """Terminates a pool whose processes have just been forked."""
    for _ in range(STARTS // 5):
        with multiprocessing.get_context(body.decode()).Pool(5):
            pass
    return "left"


def use_executor(body: bytes) -> str:
    """Shuts an executor down."""
    context = multiprocessing.get_context(body.decode())
    with ProcessPoolExecutor(2, mp_context=context) as executor:
        return str(list(executor.map(abs, [-1, -2])))


def break_executor(body: bytes) -> str:
    """Kills one process of an executor, which then terminates the others."""
    context = multiprocessing.get_context(body.decode())
    with ProcessPoolExecutor(2, mp_context=context) as executor:
        executor.submit(threading.Event().wait)
        dies = executor.submit(signal.raise_signal, signal.SIGKILL)
        try:
            dies.result()
        except BrokenProcessPool:
            return "broken"
    return "whole"


@pytest.mark.rest
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("use", "expected"),
    [
        (use_pool, b"[1, 2]"),
        (use_executor, b"[1, 2]"),
        (break_executor, b"broken"),
    ],
    ids=["pool", "executor", "broken"],
)
def test_a_handler_may_use_processes_of_its_own(
    use: Callable[[bytes], str], expected: bytes, method: str, queue: Queue
):
    """Each start method works, and its processes end when they are terminated."""
    assert run(queue, use, method.encode()) == expected


def test_an_async_handler_may_use_a_pool(queue: Queue):
    """The process runs an event loop, whose signal handling the pool must not inherit."""

    async def handler(body: bytes) -> str:
        return use_pool(body)

    assert run(queue, handler, b"fork") == b"[1, 2]"


@pytest.mark.rest
@pytest.mark.parametrize("concurrency", [1, 2])
def test_a_forked_process_may_be_terminated_at_its_first_instruction(
    concurrency: int, queue: Queue
):
    """A signal between the fork and the restored disposition is not lost."""
    assert run(queue, leave_pool_unused, b"fork", concurrency=concurrency) == b"left"


WATCHED = ["SIGINT", "SIGTERM", "SIGCHLD", "SIGHUP", "SIGTSTP", "SIGUSR1"]


def dispositions() -> dict[str, str]:
    """Returns how this process handles signals."""
    found = {name: str(signal.getsignal(getattr(signal, name))) for name in WATCHED}
    found["wakeup"] = str(signal.set_wakeup_fd(-1))
    found["blocked"] = str(signal.pthread_sigmask(signal.SIG_BLOCK, []))
    return found


def report_fork(body: bytes) -> str:
    """Returns the dispositions in a process that is forked here."""
    ours, theirs = os.pipe()
    pid = os.fork()
    if not pid:
        os.write(theirs, json.dumps(dispositions()).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    return os.read(ours, 4096).decode()


def report_program(body: bytes) -> str:
    """Returns the signals that a program started here ignores and blocks."""
    status = subprocess.run(["cat", "/proc/self/status"], check=True, capture_output=True)
    lines = [line.split() for line in status.stdout.decode().splitlines()]
    return json.dumps(
        {line[0]: int(line[1], 16) for line in lines if line[0] in {"SigBlk:", "SigIgn:"}}
    )


@pytest.mark.parametrize("concurrency", [1, 2])
def test_a_forked_process_has_pythons_own_dispositions(concurrency: int, queue: Queue):
    """This holds also if the thread that forks is not the main one."""
    found = json.loads(run(queue, report_fork, b"", concurrency=concurrency))
    default = str(signal.SIG_DFL)
    expected = dict.fromkeys(WATCHED, default) | {"wakeup": "-1", "blocked": "set()"}
    assert found == expected | {"SIGINT": str(signal.default_int_handler)}


def test_a_handlers_own_signal_handler_goes_with_its_fork(queue: Queue):
    """Only what the worker has set is reset."""

    def handler(body: bytes) -> str:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        return report_fork(body)

    found = json.loads(run(queue, handler, b""))
    assert found["SIGTERM"] == str(signal.SIG_IGN)


def test_a_program_that_a_handler_starts_can_be_terminated(queue: Queue):
    """It blocks nothing, and ignores only what a program of this process ignores, too."""
    found, here = json.loads(run(queue, report_program, b"")), json.loads(report_program(b""))
    terminal = 1 << signal.SIGTTIN - 1 | 1 << signal.SIGTTOU - 1  # stop a background reader
    assert found["SigBlk:"] == 0
    assert found["SigIgn:"] & ~(terminal | here["SigIgn:"]) == 0


def test_a_handlers_process_still_leaves_signals_to_the_supervisor(queue: Queue):
    """The mask and the dispositions are as before once it has forked."""

    def handler(body: bytes) -> str:
        before = dispositions()
        report_fork(body)
        assert dispositions() == before
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
        return "lives"

    assert run(queue, handler, b"") == b"lives"
