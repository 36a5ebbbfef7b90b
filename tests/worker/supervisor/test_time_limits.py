"""Tests the supervisor's watch over calls with a time limit: which are dumped, killed, charged."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

import pytest

from fairlane.worker import limits, pool, stack_dump
from fairlane.worker.board import LeaseBoard
from fairlane.worker.child import Assignment
from tests.support.run.for_each import for_each

if TYPE_CHECKING:
    from collections.abc import Callable


class Kept:
    """A keeper that records what it must release."""

    def __init__(self) -> None:
        self.given: list[tuple[str, list[str]]] = []

    def timed_out(self, request_id: str) -> None: ...

    def give_back(self, held: list[Any], verdicts: Any = ()) -> None:
        self.given += [(one.request_id, [v.verdict for v in verdicts]) for one in held]


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Makes a process with units that run calls, and the supervisor's view of it."""
    calls: list[str] = []
    now = [100.0]
    monkeypatch.setattr("fairlane.common.clock.mono_s", lambda: now[0])
    monkeypatch.setattr(limits, "kill", lambda _: calls.append("kill"))
    monkeypatch.setattr(stack_dump, "ask", lambda *_: calls.append("ask"))

    def make(untils: list[float], *, is_async: bool = False) -> Any:
        records = tuple(LeaseBoard(len(untils), limit_s=1.0).records)
        child = pool.ChildProcess(7, 0, records, -1, -1, 0.0)
        for i, until in enumerate(untils):
            begin(records[i], i, until)
        keeper: Any = Kept()
        some: Any = type("Children", (), {"running": {7: child}})
        watch = limits.TimeLimits(some, keeper, is_async=is_async)

        def look(moment: float) -> None:
            now[0] = moment
            watch.look()

        return child, watch, look, calls, keeper.given

    return make


def begin(record: Any, index: int, until: float) -> None:
    """Takes a lease in a unit and calls the handler."""
    record.hold(
        f"r{index}", "0", 7, b"o" * 32, 99.0, 30.0, index, 1, 2, taken_ms=5, backoff_ms=(1, 1)
    )
    record.take_turn()
    call(record, b"1-%d" % index, until)


def call(record: Any, entry_id: bytes, until: float) -> None:
    """Calls the handler, whose time limit is 1 s."""
    record.call.entry_id = entry_id
    record.call.began_ns = int((until - 1.0) * 1e9)


def test_a_process_dumps_its_stacks_before_it_is_killed(scene: Any):
    """This happens once; and the supervisor does not wait for the dump."""
    _, watch, look, calls, _ = scene([101.0])
    for moment, expected in [
        (100.9, []),
        (101.1, ["ask"]),
        (102.0, ["ask"]),
        (102.2, ["ask", "kill"]),
        (102.9, ["ask", "kill"]),
    ]:
        look(moment)
        assert calls == expected
        assert watch.is_waiting == (moment in {101.1, 102.0})


def test_a_process_is_killed_when_its_stack_dump_is_complete(
    scene: Any, monkeypatch: pytest.MonkeyPatch
):
    """It is complete as soon as it has stopped growing."""
    sizes = iter([0, 10, 20, 20])
    monkeypatch.setattr(stack_dump, "size", lambda _: next(sizes))
    _, _, look, calls, _ = scene([101.0])
    for i in range(5):
        assert calls == ["ask"][:i]
        look(101.1 + i / 25)
    assert calls == ["ask", "kill"]


def test_a_call_that_ends_before_the_kill_saves_its_process(scene: Any):
    """A call that begins in the meantime has its own time."""
    child, watch, look, calls, _ = scene([101.0])
    look(101.1)
    call(child.records[0], b"1-1", 103.0)
    look(102.5)
    assert (calls, watch.is_waiting, child.late) == (["ask"], False, [])
    look(103.1)
    assert calls == ["ask", "ask"]


def test_a_process_that_died_before_the_kill_is_forgotten(scene: Any):
    """Its dump is not awaited; a process that gets its number must dump its stacks first."""
    child, watch, look, calls, _ = scene([101.0])
    look(101.1)
    watch._children.running.clear()
    look(101.2)
    assert not watch.is_waiting
    watch._children.running[7] = pool.ChildProcess(7, 0, child.records, -1, -1, 0.0)
    look(102.2)
    assert calls == ["ask", "ask"]


@pytest.mark.parametrize(("ends", "late"), [(False, 1), (True, 0)], ids=["in it", "in another"])
def test_a_process_that_dies_of_the_dump_signal_is_late(
    scene: Any, monkeypatch: pytest.MonkeyPatch, *, ends: bool, late: int
):
    """The death is a timeout: but not of a call that ended in time to begin another."""
    child, _, look, _, _ = scene([101.0])
    look(101.1)
    if ends:
        call(child.records[0], b"1-1", 103.0)
    shape: Any = None
    some = pool.ProcessPool([Assignment("", "req", "w:1", "7", shape, 20.0, child.records)], [])
    child.pipe = os.open(os.devnull, os.O_RDONLY)
    some.running[child.pid] = child
    monkeypatch.setattr(os, "waitpid", lambda pid, _: (pid, signal.SIGABRT))
    monkeypatch.setattr(pool, "kill_group", lambda _: None)
    (died,) = some.collect(restart=True)
    assert (len(died.late), some.crashes) == (late, 1 - late)


def test_of_a_killed_process_only_the_calls_it_was_killed_for_are_charged(scene: Any):
    """The second has ended and another one has begun; the third had its time left."""
    child, watch, look, _, given = scene([101.0, 101.0, 109.0])
    look(101.1)
    look(102.2)
    call(child.records[1], b"1-9", 103.0)
    assert watch.settle(child) is False
    assert given == [("r0", ["timeout"]), ("r1", []), ("r2", [])]


@pytest.mark.parametrize(("untils", "is_known"), [([101.0], True), ([101.0, 109.0], False)])
def test_a_task_is_charged_when_it_was_the_only_one(
    untils: list[float], scene: Any, *, is_known: bool
):
    """Otherwise another task may be what blocks the loop."""
    child, watch, look, _, given = scene(untils, is_async=True)
    look(101.1)
    look(102.2)
    assert watch.settle(child) is not is_known
    expected = [("r0", ["timeout"])] if is_known else [("r0", []), ("r1", [])]
    assert given == expected


# ------------------------------------------------------------------ stacks

DUMP = """Thread 0x00007f0000000001 (most recent call first):
  File "/app/mine.py", line 7 in search
  File "/app/mine.py", line 3 in handler
  File "RUNNER", line 47 in run
  File "/app/process.py", line 1 in _serve

Current thread 0x00007f0000000002 (most recent call first):
  File "/python/threading.py", line 1112 in join
""".replace("RUNNER", stack_dump._RUNNER[6:-1])


@pytest.mark.parametrize(
    ("thread", "expected"),
    [
        (0x7F0000000001, ["line 7 in search", "line 3 in handler"]),
        (0x7F0000000002, []),
        (0x7F0000000003, []),
    ],
    ids=["the handler's", "the main thread", "another"],
)
def test_a_stack_is_the_handlers_part_of_its_thread(thread: int, expected: list[str]):
    """The innermost call is first; the callers of the handler do not help its author."""
    found = stack_dump.stack_of(DUMP, thread)
    assert [line.rpartition(", ")[2] for line in found] == expected


def test_a_crash_is_reported_by_its_own_thread():
    """An earlier dump is before it."""
    crashed = DUMP.replace("Current t", "T").replace("Thread", "Current thread", 1)
    text = f"{DUMP}Fatal Python error: Segmentation fault\n\n{crashed}\nExtension modules: x\n"
    assert len(stack_dump.crash_of(text)) == 2
    assert stack_dump.crash_of(DUMP) == []


def test_of_a_crash_the_innermost_call_in_the_handlers_own_file_is_reported():
    """Its callees may be a library's; and a crash outside of any handler has no place."""
    lines = [
        '  File "/python/ctypes/__init__.py", line 519 in string_at',
        '  File "/app/mine.py", line 60 in deep',
        '  File "/app/mine.py", line 70 in handler',
    ]
    assert stack_dump.own_frame(lines) == "mine.py:60 deep"
    assert stack_dump.own_frame([]) == ""


@for_each(
    "status, count, said",
    [
        (
            11,
            1,
            (
                "signal 11 (SIGSEGV) in sub-request 0 of request r0 at attempt 1 of 2; "
                "its work is taken back"
            ),
        ),
        (256, 0, "exit 1; its work is taken back"),
        (50, 0, "signal 50; its work is taken back"),
        (
            9,
            4,
            (
                "signal 9 (SIGKILL) in sub-request 0 of request r0, sub-request 1 of request r1, "
                "sub-request 2 of request r2 and 1 more; its work is taken back, "
                "no attempt is charged, and one of its units works alone for 10 s"
            ),
        ),
    ],
)
def test_a_death_is_logged_in_one_line(
    status: int, count: int, said: str, caplog: pytest.LogCaptureFixture
):
    """The line has what was leased, and what follows if any may be the cause."""
    records = tuple(LeaseBoard(4).records)
    for i in range(count):
        records[i].hold(f"r{i}", "0", 7, b"o" * 32, 99.0, 30.0, i, 1, 2)
        records[i].take_turn()
    pool._log_crash(pool.ChildProcess(7, 0, records, -1, -1, 0.0), status)
    assert caplog.messages == ["process 7 of the worker ended by " + said]


def test_a_death_at_the_last_attempt_is_logged_as_the_end_of_the_sub_request(
    caplog: pytest.LogCaptureFixture,
):
    records = tuple(LeaseBoard(1).records)
    records[0].hold("r0", "0", 7, b"o" * 32, 99.0, 30.0, 5, 3, 3)
    records[0].take_turn()
    pool._log_crash(pool.ChildProcess(7, 0, records, -1, -1, 0.0), 9 << 8)
    (said,) = caplog.messages
    assert said.endswith(
        "ended by exit 9 in sub-request 5 of request r0 at attempt 3 of 3; "
        "its work is taken back, and the sub-request is dead"
    )


def test_several_late_tasks_are_logged_in_one_line(scene: Any, caplog: pytest.LogCaptureFixture):
    """No attempt is charged."""
    child, watch, look, _, _ = scene([101.0, 101.0, 101.0], is_async=True)
    look(101.1)
    look(102.2)
    watch.settle(child)
    (said,) = caplog.messages
    assert said.startswith("process 7 of the worker was killed: the handler took longer than ")
    assert said.endswith("; no attempt is charged, and one of its units works alone for 10 s")


def test_of_a_very_long_stack_the_beginning_is_kept():
    """The rest is not written at all, so that the runner is not in it."""
    calls = "".join(f'  File "/app/mine.py", line {i} in deep\n' for i in range(100))
    text = f"Current thread 0x0000000000000001 (most recent call first):\n{calls}  ...\n"
    found = stack_dump.stack_of(text, 1)
    assert len(found) == 30
    assert found[0].endswith("line 0 in deep")


def test_a_process_that_has_no_file_for_its_stacks_is_watched_all_the_same():
    """Without files of any kind there is just no text."""
    stack_dump.prepare(-1)
    stack_dump.close_stacks(-1)
    assert stack_dump.read(-1) == ""


def test_a_crash_in_a_task_is_placed_in_the_users_file():
    """The package's own frames between the runner and the task are left out."""
    package = stack_dump._PACKAGE.removeprefix('File "')
    text = (
        "Fatal Python error: Segmentation fault\n\n"
        "Current thread 0x0000000000000001 (most recent call first):\n"
        '  File "/app/mine.py", line 60 in deep\n'
        '  File "/app/mine.py", line 70 in resize\n'
        f'  File "{package}tasks/serve.py", line 120 in bare\n'
        f"  {stack_dump._RUNNER}, line 9 in run\n"
    )
    assert stack_dump.own_frame(stack_dump.crash_of(text)) == "mine.py:60 deep"
