"""The handlers of the tests' workers. Bodies and gates control what they do."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import threading
import time
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from fairlane import Fan, Next
from fairlane.worker import Retry, batch_handler
from tests.support.processes.workers import END_S, Folder
from tests.support.wait import wait_until

if TYPE_CHECKING:
    from fairlane.worker import Context


def spend(seconds: float) -> None:
    """Spends time, as a handler's work does."""
    threading.Event().wait(seconds)


async def spend_async(seconds: float) -> None:
    """Spends time and lets other tasks run."""
    loop = asyncio.get_running_loop()
    over = loop.create_future()
    loop.call_later(seconds, over.set_result, None)
    await over


def here() -> str:
    """Returns the name of this unit."""
    task = asyncio.current_task() if _runs_loop() else None
    return f"{os.getpid()}/{task.get_name() if task else threading.current_thread().name}"


def _runs_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def echo(body: bytes) -> bytes:
    """Returns the body."""
    return body


def note_key_interval(body: bytes, context: Context) -> bytes:
    """Notes when it begins and ends, by a clock that all processes of this machine share."""
    folder, run = Folder.of_handler(), f"{context.id}/{context.index}/{context.fence}"
    folder.note("began", run, context.id, os.getpid(), time.monotonic_ns())
    spend(0.02)
    folder.note("ended", run, time.monotonic_ns())
    return body


def echo_noted(body: bytes, context: Context) -> bytes:
    """Returns the body; notes which unit ran which index at which attempt."""
    Folder.of_handler().note("ran", context.index, context.attempt, context.id)
    return body


def meet(body: bytes) -> str:
    """Waits until as many units as the body names run concurrently; returns this unit's name."""
    folder = Folder.of_handler()
    folder.note("met", here())
    folder.wait_noted("met", int(body))
    return here()


async def meet_async(body: bytes) -> str:
    """Does the same as a coroutine."""
    folder = Folder.of_handler()
    folder.note("met", here())
    while len(folder.noted("met")) < int(body):
        await spend_async(0.005)
    return here()


@batch_handler
def number_batch(bodies: list[bytes]) -> list[bytes]:
    """Returns each body with the length of its batch."""
    return [b"%b of %d" % (body, len(bodies)) for body in bodies]


@batch_handler
async def number_batch_async(bodies: list[bytes]) -> list[bytes]:
    """Does the same as a coroutine."""
    await spend_async(0.001)
    return [b"%b of %d" % (body, len(bodies)) for body in bodies]


def describe(body: bytes, context: Context) -> str:
    """Returns the fields of the context."""
    left = context.deadline - time.monotonic()
    words = (context.id, context.index, context.attempt, context.fence, context.cancelled)
    return " ".join(map(str, (*words, 25 < left <= 30)))


def interval(body: bytes, context: Context) -> str:
    """Returns when it began and ended; the first wait until so many run concurrently."""
    began = time.monotonic_ns()
    folder = Folder.of_handler()
    if context.index < int(body):
        folder.note("met", context.index)
        folder.wait_noted("met", int(body))
    spend(0.003)
    return f"{began} {time.monotonic_ns()}"


def busy_noted(body: bytes, context: Context) -> None:
    """Computes for 20 µs; notes when it began."""
    began = time.monotonic_ns()
    Folder.of_handler().note(context.id, began)
    while time.monotonic_ns() < began + 20_000:
        pass


def hold(body: bytes, context: Context) -> bytes:
    """Waits at the gate; notes beginning, process and attempt, and that it continued."""
    folder = Folder.of_handler()
    folder.note("began", context.index, os.getpid(), context.attempt)
    folder.pass_gate()
    folder.note("ended", context.index, os.getpid(), context.attempt)
    return body


def hold_some(body: bytes) -> bytes:
    """Takes 15 ms and notes its end, or waits at the gate."""
    folder = Folder.of_handler()
    if body == b"hold":
        folder.note("holds")
        folder.pass_gate()
    else:
        spend(0.015)
        folder.note("passed")
    return body


async def hold_some_async(body: bytes) -> bytes:
    """Does the same in an event loop."""
    folder = Folder.of_handler()
    if body == b"hold":
        folder.note("holds")
        while not folder.is_open():
            await spend_async(0.005)
    else:
        await spend_async(0.015)
        folder.note("passed")
    return body


def hold_once(body: bytes, context: Context) -> bytes:
    """Waits at the gate at the first call of all, whatever the attempt is."""
    folder = Folder.of_handler()
    folder.note("began", context.index, os.getpid(), context.attempt)
    if len(folder.noted("began")) == 1:
        folder.pass_gate()
    return body


def append_first(body: bytes, context: Context) -> bytes:
    """Appends to a file until the gate opens, at the first attempt."""
    folder = Folder.of_handler()
    folder.note("began", context.index, os.getpid(), context.attempt)
    while context.attempt == 1 and not folder.is_open():
        folder.note("appends", context.index)
        spend(0.001)
    return body


def until_cancelled(body: bytes, context: Context) -> bytes:
    """Waits at the gate that the body names, or until the result is not wanted."""
    folder = Folder.of_handler()
    folder.note("began", context.index, os.getpid(), context.attempt)
    gate = body.decode()
    wait_until(lambda: context.cancelled or folder.is_open(gate), 2 * END_S, why="gate or stop")
    folder.note("cancelled" if context.cancelled else "passed", context.index, os.getpid())
    return b"by %d" % os.getpid()


def deaf(body: bytes, context: Context) -> str:
    """Holds the interpreter lock, in C, for as many ms as the body names; returns for how long.

    PyDLL does not release the lock during the call, as CDLL does: no other thread of this
    process runs meanwhile, which the second thread proves.
    """
    folder = Folder.of_handler()
    beats, over = [time.monotonic()], threading.Event()

    def beat() -> None:
        while not over.wait(0.001):
            beats.append(time.monotonic())

    other = threading.Thread(target=beat)
    other.start()
    folder.note("began", context.index, os.getpid(), context.attempt)
    ctypes.PyDLL(None).poll(None, 0, int(body))
    spend(0.01)
    over.set()
    other.join()
    return f"{max(b - a for a, b in pairwise(beats)):.3f}"


def fail(body: bytes, context: Context) -> bytes:
    """Fails always."""
    Folder.of_handler().note("failed", context.attempt, time.monotonic_ns())
    raise LookupError("no such thing: " + body.decode())


def fail_first(body: bytes, context: Context) -> bytes:
    """Fails at the first attempt only."""
    Folder.of_handler().note("ran", context.attempt, time.monotonic_ns())
    if context.attempt == 1:
        raise LookupError("not yet")
    return body


def poison(body: bytes, context: Context) -> bytes:
    """Kills its process at one body."""
    if body == b"poison":
        Folder.of_handler().note("died", context.attempt)
        os.kill(os.getpid(), signal.SIGKILL)
    return body


def step(body: bytes, context: Context) -> bytes:
    """Takes a millisecond; notes which unit ran."""
    Folder.of_handler().note("ran", context.index)
    spend(0.001)
    return body


def slow_noted(body: bytes, context: Context) -> bytes:
    """Takes 4 ms, or waits at the gate that the body names; notes the request."""
    folder = Folder.of_handler()
    folder.note("began", context.id)
    if body:
        folder.pass_gate(body.decode())
    spend(0.004)
    return body


async def slow_noted_async(body: bytes, context: Context) -> bytes:
    """Takes 4 ms and lets others run; notes the request."""
    Folder.of_handler().note("began", context.id)
    await spend_async(0.004)
    return body


def fail_bad_first(body: bytes, context: Context) -> bytes:
    """Fails at the first attempt of a bad body."""
    Folder.of_handler().note("ran", context.index, context.attempt)
    if body == b"bad" and context.attempt == 1:
        raise LookupError("not yet")
    return body


async def step_async(body: bytes) -> bytes:
    """Takes a millisecond and lets others run."""
    await spend_async(0.001)
    return body


def kill_parent(body: bytes) -> bytes:
    """Dies with the supervisor."""
    os.kill(os.getppid(), signal.SIGKILL)
    threading.Event().wait()
    return body


async def echo_async(body: bytes) -> bytes:
    """Returns the body."""
    return body


def hold_999(body: bytes) -> bytes:
    """Returns the body; 999 waits at the gate."""
    if body == b"999":
        folder = Folder.of_handler()
        folder.note("began")
        folder.pass_gate()
    return body


async def hold_999_async(body: bytes) -> bytes:
    """Does the same in an event loop."""
    folder = Folder.of_handler()
    if body == b"999":
        folder.note("began")
        while not folder.is_open():
            await spend_async(0.005)
    return body


def deaf_999(body: bytes) -> bytes:
    """Returns the body; for 999 it first keeps the interpreter lock, in C, until the test lets go.

    PyDLL does not release the lock during the call, which waits for a writer of the pipe.
    """
    if body == b"999":
        folder = Folder.of_handler()
        pipe = folder.path / "lock"
        os.mkfifo(pipe)
        folder.note("began")
        os.close(ctypes.PyDLL(None).open(bytes(pipe), os.O_RDONLY))
    return body


async def deaf_999_async(body: bytes) -> bytes:
    """Does the same in an event loop, which it blocks."""
    return deaf_999(body)


def die_at_999(body: bytes) -> bytes:
    """Returns the body; 999 waits at the gate, and then kills its process."""
    if body == b"999":
        folder = Folder.of_handler()
        folder.note("began")
        folder.pass_gate()
        os.kill(os.getpid(), signal.SIGKILL)
    return body


@batch_handler
def hold_999_batch(bodies: list[bytes]) -> list[bytes]:
    """Returns the bodies; a batch with 999 waits at the gate."""
    if b"999" in bodies:
        folder = Folder.of_handler()
        folder.note("began")
        folder.pass_gate()
    return bodies


def busy_once(body: bytes, context: Context) -> bytes:
    """Asks for a pause at the first call of all, as a remote service does."""
    folder = Folder.of_handler()
    folder.note("called", body.decode(), time.time())
    if not folder.is_open("busy"):
        folder.open_gate("busy")
        raise Retry(after=1, reason="429", whole_request=True)
    return body


def note_interval(body: bytes) -> bytes:
    """Notes when it begins and ends; the first call whose body ends with ! kills its process."""
    folder = Folder.of_handler()
    folder.note("interval", "begin", body.decode())
    sum(range(30_000))
    is_first = body.endswith(b"!") and not folder.is_open("killed")
    if is_first:
        folder.open_gate("killed")
    folder.note("interval", "end", body.decode())
    if is_first:
        os.kill(os.getpid(), signal.SIGKILL)
    return body


def choose(body: bytes, context: Context) -> bytes | Next | Fan:
    """Names a branch in the step `route`, and chooses children in the step `fan`."""
    if context.flow.step == "route":
        return Next("odd" if int(body.removeprefix(b"b")) % 2 else "even", body)
    if context.flow.step == "fan":
        number = int(body.removeprefix(b"b")) % 4
        return Fan(Next("ab"[place % 2], b"%b.%d" % (body, place)) for place in range(number))
    return body


async def choose_async(body: bytes, context: Context) -> bytes | Next | Fan:
    """Does the same, in a coroutine."""
    return choose(body, context)


@batch_handler
def choose_batch(bodies: list[bytes], context: Context) -> list[bytes | Next | Fan]:
    """Does the same for a batch."""
    return [choose(body, context) for body in bodies]


def choose_noted(body: bytes, context: Context) -> bytes | Next | Fan:
    """Does the same slowly enough for a kill."""
    spend(0.001)
    return choose(body, context)


WRONG_FANS = {
    b"fan": Fan([b"x"]),
    b"101": Fan([b"x"] * 101),
    b"10001": Fan([b"x"] * 10_001),
    b"alone": Fan([b"x", Next("a", b"y")]),
    b"other child": Fan([Next("other", b"x")]),
}
WRONG_BODIES: dict[bytes, Any] = {b"number": 5, b"large": bytes((1 << 20) + 1)}


def choose_wrongly(body: bytes) -> Next | Fan:
    """Returns what the body says, whatever the flow declares."""
    if body in WRONG_BODIES:
        return Next("even", WRONG_BODIES[body])
    return WRONG_FANS.get(body) or Next(body.decode(), b"")


def share(body: bytes, context: Context) -> bytes:
    """Returns the body; counts the call in the state that the steps share."""
    flow = context.flow
    flow.shared.incr(f"{flow.name}.{flow.step}")
    return body


async def share_async(body: bytes, context: Context) -> bytes:
    """Does the same in an event loop."""
    await context.flow.ashared.incr("calls")
    return body
