"""Tests the tasks of a queue, and which calls run unusually long."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from fairlane import settings
from fairlane.call_records import SlowCall
from fairlane.errors import InvalidArgument
from fairlane.operations import doctor, long_calls
from fairlane.operations.holds import Holds, WorkerPace
from fairlane.operations.long_calls import limit_ms
from fairlane.operations.request_state import full_progress
from fairlane.operations.stats import TaskMeasures, add_task_stats
from fairlane.operations.workers import register_worker
from fairlane.protocol.steps import Batch
from tests.operations.find.test_failures import fail
from tests.operations.find.test_tasks import body
from tests.support.processes.beats import beat
from tests.support.run.for_each import for_each
from tests.web.api.test_stacks import hold

if TYPE_CHECKING:
    from fairlane.call_records import TaskState
    from fairlane.queue import Queue


def measure(queue: Queue, release: str = "", /, **tasks: TaskMeasures) -> None:
    async def run() -> None:
        await Batch(add_task_stats(queue.name, tasks, release))

    queue.driver.run(run())


def quick(count: int, failed: int = 0, ran_us: int = 20_000) -> TaskMeasures:
    return TaskMeasures(Counter({ran_us: count}), failed)


def holding(*slow: SlowCall) -> str:
    return Holds(len(slow), WorkerPace(4, 1.0), "0.1", slow=slow).text


def slow_call(name: str, ran_s: int, task: str | None = "send_mail", index: int = 7) -> SlowCall:
    return SlowCall(name, 0, index, 1, 2, 1000 * ran_s, task)


def test_a_task_has_its_pace_its_durations_and_what_waits_and_is_dead(queue: Queue):
    measure(queue, send_mail=quick(99, failed=1), resize=quick(5, ran_us=3_000_000))
    queue.submit_request([body("send_mail")], task="send_mail", id="ill", attempts=1)
    fail(queue, [("dead", "ValueError: never")])
    queue.submit_request([body("send_mail")] * 3, task="send_mail")
    queue.submit_request(["a"] * 9, task={"resize": 6, "new": 3})
    page = queue.tasks()
    rows = {one.task: one for one in page.tasks}
    assert list(rows) == ["send_mail", "resize", "new"]
    mail, resize, new = rows.values()
    assert (mail.done, mail.failed, mail.recent, mail.recent_failed) == (99, 1, 100, 1)
    assert (mail.waiting, mail.running, mail.dead, mail.long_calls) == (3, 0, 1, 0)
    assert mail.problem == "1 of 100 calls failed lately, 1 dead"
    assert replace(mail, recent=1, dead=0).problem == "1 of 1 call failed lately"
    assert 100 / 120 - 0.01 <= mail.per_s <= 100 / 60 + 0.01
    assert (mail.p50_ms, mail.p99_ms, mail.slowest_ms) == (20.0, 20.0, 20.0)
    assert (resize.slowest_ms, resize.waiting, new.waiting, new.p50_ms) == (3000.0, 6, 3, None)
    assert (page.is_exact, page.more, page.long_calls, page.releases) == (False, 0, [], ())


def test_the_dead_of_a_request_of_several_tasks_count_for_the_task_that_they_call(queue: Queue):
    calls = [body("send_mail"), body("send_mail"), body("resize")]
    queue.submit_request(calls, task={"resize": 1, "send_mail": 2}, limit=1)
    fail(queue, [("dead", "ValueError: a"), ("dead", "ValueError: b"), ("retry", "c")])
    counts = {one.task: one.dead for one in queue.tasks().tasks}
    assert counts == {"send_mail": 2}


def test_of_ten_thousand_tasks_the_page_has_two_hundred_and_the_others_together(queue: Queue):
    for first in range(0, 10_000, 500):
        measure(queue, "", **{f"t{n:05}": quick(1) for n in range(first, first + 500)})
    for n in range(60):
        queue.submit_request(["a"], task=[f"named_{n}_{k}" for k in range(20)])
    page = queue.tasks()
    assert (len(page.tasks), page.tasks[-1].task) == (201, "other")
    assert page.more > 0
    assert not page.is_exact


def test_by_release_each_task_has_a_row_for_each(queue: Queue):
    for release, measured in (("1.0", quick(4)), ("1.1", quick(2, failed=2)), ("", quick(1))):
        if release:
            queue.driver.run(register_worker(queue.name, f"w:{release}", "here", 1, "1", release))
        measure(queue, release, send_mail=measured)
    page = queue.tasks(by_release=True)

    def shown(one: TaskState) -> tuple[Any, ...]:
        return one.release, one.done, one.recent_failed, one.waiting

    assert [shown(one) for one in page.tasks] == [
        ("1.1", 2, 2, None), ("1.0", 4, 0, None), (None, 1, 0, None),
    ]  # fmt: skip
    assert [one.name for one in page.releases] == ["1.1", "1.0"]
    (whole,) = queue.tasks().tasks
    assert (whole.done, whole.failed, whole.release) == (7, 2, None)


# ------------------------------------------------------------------ calls that run unusually long


@for_each(
    "usual_ms, count, limit_s",
    [(20, 1, 10), (1_000, 1, 10), (3_000, 1, 30), (None, 1, 600), (500, 40, 200)],
)
def test_a_call_is_unusual_after_ten_times_the_p99_and_at_least_ten_seconds(
    usual_ms: float | None, count: int, limit_s: int
):
    assert limit_ms(usual_ms, count) == 1000 * limit_s


def test_a_call_that_runs_unusually_long_is_named_wherever_one_looks(queue: Queue):
    measure(queue, send_mail=quick(100), report=quick(100, ran_us=9_000_000))
    queue.submit_request(["a"] * 9, id="monday", task="send_mail")
    beat(queue, "w:1", holding(slow_call("monday", 613), slow_call("tuesday", 80, "report")))
    (call,) = queue.tasks().long_calls
    assert (call.id, call.index, call.worker, call.task, call.ran_ms) == (
        "monday", 7, "w:1", "send_mail", 613_000,
    )  # fmt: skip
    assert (call.usual_ms, call.of_task) == (20.0, True)
    usual = "99 of 100 calls of its task take up to 20 ms"
    remedy = "`fairlane stacks monday` shows where it is, `fairlane kill monday --index 7` ends it"
    assert (call.usual, call.remedy) == (usual, remedy)
    assert {one.task: one.long_calls for one in queue.tasks().tasks} == {
        "send_mail": 1, "report": 0,
    }  # fmt: skip
    assert queue.status().long_calls == (call,)
    cause = queue.why("monday").causes[-1]
    assert cause.kind == "long_call"
    assert cause.text.startswith("sub-request 7 (send_mail) has run since ")
    assert cause.text.endswith(f"on worker w:1; {usual}: {remedy}")
    found = queue.driver.run(doctor.examine_queue(queue.name))
    (finding,) = [one for one in found if one.check == "calls"]
    assert (finding.severity, finding.subject, finding.remedy) == ("warn", "monday", remedy)


def test_status_of_a_request_names_the_long_call_of_a_worker_that_holds_it(queue: Queue):
    measure(queue, send_mail=quick(100))
    queue.submit_request(["a"] * 9, id="monday", task="send_mail")
    hold(queue, "w:1")
    slow = (slow_call("monday", 30), slow_call("other", 90))
    beat(queue, "w:1", holding(*slow))
    found, _ = queue.driver.run(full_progress("monday"))
    assert [(one.id, one.ran_ms) for one in found.long_calls or ()] == [("monday", 30_000)]


def test_with_too_few_calls_the_queue_says_what_is_usual_and_else_ten_minutes(queue: Queue):
    measure(queue, send_mail=quick(settings.UNUSUAL_SAMPLES - 1))
    beat(queue, "w:1", holding(slow_call("monday", 599), slow_call("other", 601, None)))
    (call,) = queue.tasks().long_calls
    assert (call.id, call.usual_ms, call.of_task) == ("other", None, False)
    assert call.usual == "too few calls have ended to say what is usual"


def test_no_statistics_are_read_while_no_call_is_slow(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(long_calls, "read_task_stats", None)
    beat(queue, "w:1", holding())
    assert queue.status().long_calls == ()


# ------------------------------------------------------------------ since the newest release


def test_a_failure_is_new_if_none_failed_so_before_the_newest_release(queue: Queue):
    queue.submit_request(["a"], id="r1", attempts=1)
    fail(queue, [("dead", "ValueError: old")])
    with pytest.raises(InvalidArgument, match=r"queue req has no release: name that of your code"):
        queue.errors(since="release")
    assert [one.is_new for one in queue.errors().groups] == [False]
    queue.driver.run(register_worker(queue.name, "w:1", "here", 1, "1", "1.0"))
    queue.submit_request(["a", "b"], id="r2", limit=1)
    fail(queue, [("dead", "ValueError: old"), ("dead", "KeyError: new")])
    found = queue.errors()
    assert found.release is not None
    assert found.release.name == "1.0"
    assert {one.headline: (one.count, one.is_new) for one in found.groups} == {
        "ValueError: old": (2, False), "KeyError: new": (1, True),
    }  # fmt: skip
    found = queue.errors(since="release")
    assert {one.headline: (one.count, one.is_new) for one in found.groups} == {
        "ValueError: old": (1, False), "KeyError: new": (1, True),
    }  # fmt: skip
    shown = queue.request("r1").errors(since="release"), queue.request("r2").errors()
    assert [[one.is_new for one in found.groups] for found in shown] == [[], [True, True]]
    assert queue.request("r1").requeue_dead(since="release") == 0
    assert queue.request("r2").requeue_dead(since="release") == 2
