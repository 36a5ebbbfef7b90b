"""Tests handlers and bodies that break rules: the cause is charged, the others continue.

The workers run in the test's own process; their children are forked from it.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import os
import resource
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

from fairlane.protocol import keys
from fairlane.worker import Worker
from tests.support.processes.workers import Folder, check_settled_once
from tests.support.run.params import rest_but
from tests.support.wait import PATIENCE_S
from tests.worker.handlers import spend_async
from tests.worker.parts import ON_SINGLE

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import redis

    from fairlane.queue import Queue
    from fairlane.request import Request
    from fairlane.worker import Context
    from tests.support.processes.workers import Workers

BAD = 7  # its place
ATTEMPTS = 2

pytestmark = ON_SINGLE


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """Returns the folder that a test and its handlers share."""
    return Folder(tmp_path)


def submit(queue: Queue, limit: int = 1, **options: Any) -> Request:
    """Submits a request, one body of which is bad."""
    bodies = [b"bad" if i == BAD else b"%d" % i for i in range(40)]
    return queue.submit_request(
        bodies, limit=limit, attempts=ATTEMPTS, backoff=(0.01, 0.02), **options
    )


def handler_of(act: Callable[[], Any]) -> Callable[[bytes], Any]:
    """Returns a handler that does this for the bad body."""

    def handler(body: bytes) -> Any:
        return act() if body == b"bad" else body

    return handler


def check_only_bad_is_dead(request: Request, client: Any, reason: bytes) -> str:
    """Asserts that it alone was charged, and returns its error."""
    results = list(request.results())
    assert [result.index for result in results if result.status == "dead"] == [BAD]
    assert [result.attempt for result in results] == [
        ATTEMPTS if i == BAD else 1 for i in range(len(results))
    ]
    ((_, dead),) = client.xrange(keys.request_keys(request.id)[7])
    assert dead[b"reason"] == reason
    check_settled_once(request)
    return results[BAD].error or ""


# ------------------------------------------------------------------ what only fails


def raise_it(error: BaseException) -> Any:
    """Raises an exception, as an expression."""
    raise error


def recurse() -> Any:
    """Recurses without an end."""
    return recurse()


def eat() -> Any:
    """Allocates more memory than there is."""
    return bytes(1 << 60)


def print_when_closed() -> Any:
    """Prints to a stream that is closed."""
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115, PTH123
    sys.stdout.close()
    print("unheard")  # noqa: T201


class OfItsOwn(BaseException):
    """An exception that `except Exception` does not catch."""


FAILURES = {
    "wrong type": (lambda: 3, "returned an int"),
    "KeyboardInterrupt": (lambda: raise_it(KeyboardInterrupt()), "KeyboardInterrupt"),
    "SystemExit": (lambda: sys.exit(3), "SystemExit: 3"),
    "GeneratorExit": (lambda: raise_it(GeneratorExit()), "GeneratorExit"),
    "BaseException": (lambda: raise_it(OfItsOwn()), "OfItsOwn"),
    "too long": (lambda: bytes(1_048_577), "1,048,577 bytes: the most is 1,048,576"),
    "recursion": (recurse, "RecursionError"),
    "memory": (eat, "MemoryError"),
    "closed stdout": (print_when_closed, "I/O operation on closed file"),
}


@pytest.mark.parametrize(
    "is_async", [False, pytest.param(True, marks=pytest.mark.rest)], ids=["sync", "async"]
)
@pytest.mark.parametrize(("act", "said"), FAILURES.values(), ids=FAILURES.keys())
def test_what_goes_wrong_in_python_is_a_failure_and_ends_no_process(
    act: Any, said: str, queue: Queue, redis_client: redis.Redis, *, is_async: bool
):
    """Its type and the way it is raised do not matter."""
    handler = handler_of(act)

    async def asynchronous(body: bytes) -> Any:
        await asyncio.sleep(0)
        return handler(body)

    request = submit(queue)
    worker = Worker(queue, asynchronous if is_async else handler)
    worker.run(until_idle=True)
    assert said in check_only_bad_is_dead(request, redis_client, b"attempts")
    assert (worker._children.crashes, worker._children.restarts) == (0, 0)


# ------------------------------------------------------------------ the end of its process


def without_core(act: Callable[[], Any]) -> Callable[[], Any]:
    """Does the same, and leaves no core file behind."""

    def quietly() -> Any:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        return act()

    return quietly


def overflow() -> Any:
    """Overflows the stack of C, which Python's own limit does not see."""
    sys.setrecursionlimit(1_000_000)

    def deeper(_: int) -> int:
        return max([1], key=deeper)

    return deeper(1)


def forbid_calls() -> None:
    """Leaves so little of Python's stack that the worker's own calls fail, far from any handler."""
    for depth in range(1, 1000):
        with contextlib.suppress(RecursionError):
            sys.setrecursionlimit(depth)
            return


def set_alarm() -> Any:
    """Sets an alarm that rings when another body is worked on, or none."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, 0.001)
    threading.Event().wait()


DEATHS = {
    "os._exit(0)": (lambda: os._exit(0), "exit 0"),
    "os._exit(3)": (lambda: os._exit(3), "exit 3"),
    "segfault": (without_core(lambda: ctypes.string_at(0)), "signal 11 (SIGSEGV)"),
    "abort": (without_core(os.abort), "signal 6 (SIGABRT)"),
    "kill -9": (lambda: os.kill(os.getpid(), signal.SIGKILL), "signal 9 (SIGKILL)"),
    "overflow": (without_core(overflow), "signal 11 (SIGSEGV)"),
    "no recursion": (forbid_calls, "exit 1"),
    "alarm": (set_alarm, "signal 14 (SIGALRM)"),
}


@pytest.mark.rest
@pytest.mark.parametrize(("act", "how"), rest_but(3, DEATHS.values()), ids=DEATHS.keys())
def test_what_ends_its_process_is_charged_once_it_is_alone(
    act: Any, how: str, queue: Queue, redis_client: redis.Redis, caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
):  # fmt: skip
    """The first death, in a slice of several, is not charged; the supervisor names the others."""
    monkeypatch.setattr("faulthandler.is_enabled", lambda: False)  # pytest's shows them elsewhere
    # On a busy machine a death takes long: then its call would be alone before it, and charged.
    monkeypatch.setattr("fairlane.worker.limits._LONG_S", 60.0)
    caplog.set_level("INFO")
    request = submit(queue)
    worker = Worker(queue, handler_of(act))
    worker.run(until_idle=True)
    check_only_bad_is_dead(request, redis_client, b"died")
    assert worker._children.crashes == ATTEMPTS + 1
    said = [one.message for one in caplog.records if "ended by" in one.message]
    first, other = "sub-requests", f"sub-request {BAD}"
    for i, message in enumerate(said):
        assert f"ended by {how} in {other if i else first} of request {request.id}" in message
        at = f" at attempt {i} of {ATTEMPTS}" if i else ""
        assert f" of request {request.id}{at}" in message
        end = ", and the sub-request is dead" if i == ATTEMPTS else ""
        assert message.endswith(f"; its work is taken back{end}")
    (last,) = [one for one in caplog.messages if " has stopped: " in one]
    assert last.endswith(f" done, {ATTEMPTS} attempts failed, 1 dead")
    assert (", at test_bad_input.py:" in said[-1]) == ("SEGV" in how or "ABRT" in how)


def test_a_death_while_the_worker_drains_is_a_death_too(queue: Queue, redis_client: redis.Redis):
    """This holds even for an exit that looks clean: its leases do not wait to expire."""

    def leave(body: bytes) -> bytes:
        made[0].stop()
        os._exit(0)

    request = queue.submit_request([b"x", b"y"], limit=1)
    made = [Worker(queue, leave)]
    assert made[0].run() == 0
    progress = request.progress()
    assert (progress.held, progress.left) == (0, 2)
    request.cancel()


# ------------------------------------------------------------------ damage to its process


def close_files() -> None:
    """Closes all files, except those of the terminal."""
    os.closerange(3, 256)


@pytest.mark.rest
@pytest.mark.parametrize("concurrency", [1, 3])
def test_a_handler_that_closes_the_sockets_harms_only_itself(
    concurrency: int, queue: Queue, redis_client: redis.Redis
):
    """A new connection is made; or its process ends, and it is charged."""
    request = submit(queue, limit=concurrency)
    Worker(queue, handler_of(close_files), concurrency=concurrency).run(until_idle=True)
    results = list(request.results())
    assert {result.attempt for result in results if result.index != BAD} == {1}
    assert {result.status for result in results if result.index != BAD} == {"done"}
    check_settled_once(request)


@pytest.mark.rest
def test_an_async_handler_that_closes_its_loops_files_is_charged(
    queue: Queue, redis_client: redis.Redis
):
    """The loop can't continue: its process ends."""

    async def handler(body: bytes) -> bytes:
        if body == b"bad":
            close_files()
            await spend_async(0.01)
        return body

    request = submit(queue)
    Worker(queue, handler).run(until_idle=True)
    check_only_bad_is_dead(request, redis_client, b"died")


def code_of(pid: int) -> bytes:
    """Returns how a process ended."""
    return b"%d" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def fork_and_return() -> bytes:
    """Forks, and both processes return."""
    pid = os.fork()
    return b"forked" if pid == 0 else code_of(pid)


def fork_and_exit() -> bytes:
    """Exits as a program does that runs outside of a worker."""
    pid = os.fork()
    if pid == 0:
        sys.exit(3)
    return code_of(pid)


def fork_and_fail() -> bytes:
    """Forks, and the forked process raises."""
    pid = os.fork()
    if pid == 0:
        raise ValueError("in the fork")
    return code_of(pid)


@pytest.mark.rest
@pytest.mark.parametrize("concurrency", [1, 3])
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize(
    ("fork", "code"), [(fork_and_return, b"0"), (fork_and_exit, b"3"), (fork_and_fail, b"1")]
)
def test_a_process_that_a_handler_forks_goes_no_further_than_the_handler(
    fork: Any, code: bytes, concurrency: int, queue: Queue, redis_client: redis.Redis,
    *, is_async: bool,
):  # fmt: skip
    """It neither settles nor uses the worker's sockets; its parent reads its exit code."""
    handler = handler_of(fork)

    async def asynchronous(body: bytes) -> Any:
        return handler(body)

    request = submit(queue, limit=concurrency)
    worker = Worker(queue, asynchronous if is_async else handler, concurrency=concurrency)
    worker.run(until_idle=True)
    results = list(request.results())
    assert {(result.status, result.attempt) for result in results} == {("done", 1)}
    assert results[BAD].body == code
    assert worker._children.crashes == 0
    check_settled_once(request)


@pytest.mark.rest
def test_a_forked_process_does_not_go_on_with_the_event_loop(queue: Queue, folder: Folder):
    """The loop's other tasks are not its own, nor are their sockets."""

    async def handler(body: bytes, context: Context) -> bytes:
        folder.note("ran", context.index, os.getpid())
        if body != b"bad":
            return body
        pid = os.fork()
        await asyncio.sleep(0)
        if pid == 0:
            folder.note("went on", os.getpid())
        return code_of(pid)

    request = submit(queue, limit=3)
    Worker(queue, handler, concurrency=3).run(until_idle=True)
    assert [result.body for result in request.results()][BAD] == b"0"
    assert folder.noted("went") == []
    assert len({pid for _, pid in folder.noted("ran")}) == 1
    check_settled_once(request)


@pytest.mark.rest
def test_a_handler_may_start_a_process_of_its_own(queue: Queue):
    """What multiprocessing forks runs to its end."""
    import multiprocessing

    def work(pipe: Any) -> None:
        pipe.send_bytes(b"from the other process")

    def handler(body: bytes) -> bytes:
        context = multiprocessing.get_context("fork")
        ours, theirs = context.Pipe()
        process = context.Process(target=work, args=(theirs,))
        process.start()
        answer: bytes = ours.recv_bytes()
        process.join()
        return answer + b" %d" % (process.exitcode or 0)

    request = queue.submit_request([b"x"])
    Worker(queue, handler).run(until_idle=True)
    assert [result.body for result in request.results()] == [b"from the other process 0"]


def ignore_signals() -> None:
    """Ignores all signals that can be ignored."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_IGN)
    threading.Event().wait()


@pytest.mark.rest
def test_a_handler_that_ignores_every_signal_is_killed_all_the_same(
    queue: Queue, redis_client: redis.Redis
):
    """It can't report its stack."""
    request = submit(queue, time_limit=0.5)
    Worker(queue, handler_of(ignore_signals)).run(until_idle=True)
    error = check_only_bad_is_dead(request, redis_client, b"timeout")
    assert error == "the handler took longer than its time limit of 0.5 s"


def leave_thread() -> None:
    """Leaves a thread for which no test could wait."""
    threading.Thread(target=threading.Event().wait).start()


def disturb_memory() -> None:
    """Switches the garbage collector off."""
    gc.disable()
    gc.set_threshold(0)


@pytest.mark.rest
@pytest.mark.parametrize(
    "act",
    [leave_thread, disturb_memory, lambda: sys.setrecursionlimit(100_000)],
    ids=["thread", "gc", "limit"],
)
@pytest.mark.parametrize("concurrency", [1, 2])
def test_what_a_handler_leaves_behind_keeps_no_worker_from_ending(
    act: Any, concurrency: int, queue: Queue
):
    """The request is done, and the worker ends at a signal."""
    request = submit(queue, limit=concurrency)
    assert Worker(queue, handler_of(act), concurrency=concurrency).run(until_idle=True) == 0
    assert {result.status for result in request.results()} == {"done"}


@pytest.mark.rest
@pytest.mark.slow
def test_a_body_that_kills_whole_workers_kills_no_more_than_its_attempts(
    queue: Queue, workers: Workers
):
    """One more may die, because the first death may be that of a slice."""
    request = queue.submit_request([b"poison"], attempts=2, backoff=(0.01, 0.01))
    killed = []
    for _ in range(2):
        worker = workers.start("kill_parent")
        worker.hurt = True
        killed.append(worker.process.wait(PATIENCE_S))
    last = workers.start("kill_parent")
    assert request.wait(timeout=PATIENCE_S) == "done"
    assert killed == [-signal.SIGKILL] * 2
    (result,) = request.results()
    assert (result.status, result.attempt) == ("dead", 2)
    assert last.health()["crashes"] == 0
