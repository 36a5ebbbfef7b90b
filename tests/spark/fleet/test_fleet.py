"""Tests that a fleet works like any other workers, and a killed executor loses nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fairlane.errors import FairlaneError, HandlerNotFound, InvalidArgument
from fairlane.protocol import keys
from fairlane.queue import Queue
from fairlane.spark import fleet as shares
from fairlane.spark import fleet as stop_signal
from fairlane.spark.fleet import FleetPlan, Watch, cancel_fleet, run_fleet, stop_fleet, tag_of
from fairlane.worker import Context, Retry
from tests.spark.fleet import fleet_handlers as handlers
from tests.spark.processes import workers_of
from tests.spark.sink.sinks import numbers, write
from tests.support.processes.workers import is_alive
from tests.support.wait import PATIENCE_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    import redis

ON_ONE_KIND = pytest.mark.parametrize("redis_server", ["single"], indirect=True)
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def queue(redis_url: str) -> Iterator[Queue]:
    with Queue.from_url(redis_url) as opened:
        yield opened


class InThread(threading.Thread):
    """Runs a fleet in a thread, which a test observes."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__()
        self.given, self.options = given, options
        self.rows: list[Any] = []
        self.error: Exception | None = None
        self.start()

    def run(self) -> None:
        try:
            self.rows = run_fleet(*self.given, **self.options).collect()
        except Exception as error:  # noqa: BLE001  the test reads it
            self.error = error


def until_idle(spark: Any, handler: Any, queue: Queue, **options: Any) -> list[Any]:
    """Runs a fleet until the queue is idle; returns the workers' rows."""
    options = {"workers": 2, "until_idle": True} | options
    return list(run_fleet(spark, handler, redis=queue.driver.url, **options).collect())


def results_of(queue: Queue, request_id: str) -> list[Any]:
    return [(one.status, one.body) for one in queue.request(request_id).results()]


def test_a_plain_handler_works_on_all_and_each_worker_reports(spark: Any, queue: Queue):
    request = queue.submit_request((b"a%d" % i for i in range(2000)), limit=4)
    rows = until_idle(spark, handlers.upper, queue)
    assert results_of(queue, request.id) == [("done", b"A%d" % i) for i in range(2000)]
    assert len(rows) == len({row.worker for row in rows}) == 2
    assert sum(row.done for row in rows) == sum(row.taken for row in rows) == 2000
    assert [row.failed for row in rows] == [0, 0]
    assert {row.ended for row in rows} == {"idle"}
    assert all(row.idle_ms >= 0 and row.busy_ms >= 0 for row in rows)


@pytest.mark.rest
@pytest.mark.parametrize(
    ("handler", "given", "result", "error"),
    [
        (handlers.table_of_all, "table", b"r1|%d|b%d", None),
        (handlers.frame_of_all, "pandas", b"b%d!%d", None),
        (handlers.row_of_all, "rows", b"r1 %d b%d", "a bad row"),
        (handlers.one_fails, "table", None, "it is bad"),
    ],
)
def test_a_vectorised_handler_gets_index_body_and_request_and_a_row_may_fail_alone(
    handler: Any, given: str, result: bytes | None, error: str | None, spark: Any, queue: Queue
):
    if result:
        queue.submit_request((b"b%d" % i for i in range(300)), limit=2, id="r1")
    if error:
        failing = queue.submit_request([b"good", b"bad", b"fine"], attempts=1)
    until_idle(spark, handler, queue, input=given)
    if result:
        assert results_of(queue, "r1") == [("done", result % (i, i)) for i in range(300)]
    if error:
        found = list(failing.results())
        assert [one.status for one in found] == ["done", "dead", "done"]
        assert error in (found[1].error or "")


@pytest.mark.rest
def test_a_fleet_ends_after_its_time(spark: Any, queue: Queue):
    options: dict[str, Any] = {"workers": 1, "max_idle_s": None, "max_runtime_s": 0.5}
    rows = run_fleet(spark, handlers.upper, redis=queue.driver.url, **options).collect()
    assert [row.ended for row in rows] == ["runtime"]


@pytest.mark.rest
def test_a_fleet_is_stopped_by_its_name(spark: Any, queue: Queue, redis_client: redis.Redis):
    """This includes workers that wait for a core: 3 on 2 cores. A later fleet runs until idle."""
    url = queue.driver.url
    options: dict[str, Any] = {"redis": url, "name": "nightly", "max_idle_s": None}
    fleet = InThread(spark, handlers.upper, workers=3, **options)
    wait_until(lambda: redis_client.zcard(keys.workers("req")) == 2, why="two work")
    stop_fleet("other", redis=url)
    request = queue.submit_request([b"a"])
    assert request.wait(PATIENCE_S) == "done"
    stop_fleet("nightly", redis=url)
    fleet.join(PATIENCE_S)
    assert [row.ended for row in fleet.rows] == ["stopped"] * 3
    again = run_fleet(spark, handlers.upper, workers=1, **(options | {"max_idle_s": 0.5}))
    (row,) = again.collect()
    assert (row.ended, row.taken) == ("idle", 0)
    assert row.idle_ms >= 400


@pytest.mark.rest
def test_another_thread_cancels_a_fleet_immediately(
    spark: Any, queue: Queue, redis_client: redis.Redis
):
    """Its leases are not lost; a fleet of another name continues."""
    request = queue.submit_request([b"a"], lease=1)
    options: dict[str, Any] = {"redis": queue.driver.url, "workers": 1, "max_idle_s": None}
    fleet = InThread(spark, handlers.never, name="nightly", **options)
    wait_until(lambda: request.progress().held, why="its handler has it")
    cancel_fleet(spark, "other")
    other = InThread(spark, handlers.upper, name="other", **options)
    wait_until(lambda: redis_client.zcard(keys.workers("req")) == 2, why="both work")
    workers = workers_of(redis_client)
    assert all(workers)
    spark.sparkContext.cancelJobsWithTag(tag_of("nightly"))  # as in docs/how-to/connect/spark.md
    fleet.join(PATIENCE_S)
    assert "cancelled" in str(fleet.error)
    assert request.wait(PATIENCE_S) == "done"
    cancel_fleet(spark, "other")
    other.join(PATIENCE_S)
    assert "cancelled" in str(other.error)
    wait_until(lambda: not any(map(is_alive, workers)), why="Spark has killed them")


@pytest.mark.rest
def test_limits_hold_across_spark_and_plain_workers(
    spark: Any, queue: Queue, redis_client: redis.Redis, plain_worker: Any
):
    request = queue.submit_request((b"x" for _ in range(1500)), limit=2)
    rows = until_idle(spark, handlers.Crowd(queue.driver.url), queue, slice_s=0.002)
    counts = [int(body or b"0") for _, body in results_of(queue, request.id)]
    assert (len(counts), max(counts)) == (1500, 2)
    by_fleet = sum(row.done for row in rows)
    assert 0 < by_fleet < 1500, "both kinds of workers had some"
    redis_client.delete(handlers.CROWD)


@pytest.fixture
def plain_worker(queue: Queue, redis_client: redis.Redis) -> Iterator[Any]:
    """Starts a worker from the command line."""
    words = [sys.executable, "-m", "fairlane", "worker", "--slice", "2ms"]
    words += ["--handler", "tests.spark.fleet.fleet_handlers:crowd"]
    env = os.environ | {"FAIRLANE_REDIS": queue.driver.url, "PYTHONPATH": str(ROOT / "src")}
    worker = subprocess.Popen(words, cwd=ROOT, env=env, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: redis_client.zcard(keys.workers("req")), why="it registers")
        yield worker
    finally:
        worker.terminate()
        assert worker.wait(PATIENCE_S) == 0


def test_a_killed_python_process_loses_nothing(
    spark: Any, queue: Queue, redis_client: redis.Redis, tmp_path: Path
):
    """Spark tries its task again; the processes of the killed worker have ended with it."""
    request = queue.submit_request((b"%d" % i for i in range(5000)), limit=2, lease=2)
    url = queue.driver.url
    fleet = InThread(spark, handlers.Gated(tmp_path), redis=url, workers=2, until_idle=True)
    held = wait_until(lambda: list(tmp_path.glob("in-*")), why="a handler is at the gate")
    supervisor, child = (int(part) for part in held[0].name.split("-")[1:])
    os.kill(supervisor, signal.SIGKILL)
    wait_until(lambda: not is_alive(child), why="its process has gone with it")
    (tmp_path / "open").touch()
    assert request.wait(PATIENCE_S) == "done"
    fleet.join(PATIENCE_S)
    assert results_of(queue, request.id) == [("done", b"%d" % i) for i in range(5000)]
    assert len(fleet.rows) == 2


@pytest.mark.rest
def test_a_fleet_goes_on_without_a_worker_that_spark_gives_up(
    spark: Any, queue: Queue, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    """Three failures of a task are too many here: the session is on local[2,3]."""
    gated = queue.submit_request([b"0"], limit=1)
    url = queue.driver.url
    fleet = InThread(spark, handlers.Killing(tmp_path, 3), redis=url, workers=2, until_idle=True)
    wait_until(lambda: [*tmp_path.glob("in-*")], why="one worker is at the gate")
    killing = queue.submit_request([b"kill"], limit=1, attempts=100, lease=1)
    wait_until(lambda: "goes on without a worker" in caplog.text, why="the other is lost")
    (tmp_path / "open").touch()
    fleet.join(PATIENCE_S)
    assert fleet.error is None
    assert (gated.wait(PATIENCE_S), killing.wait(PATIENCE_S)) == ("done", "done")
    assert sorted((row.ended, row.done) for row in fleet.rows) == [("idle", 2), ("lost", 0)]
    assert "spark.task.maxFailures" in caplog.text


@pytest.mark.rest
def test_a_fleet_whose_workers_are_all_lost_raises_one_sentence(
    spark: Any, queue: Queue, tmp_path: Path
):
    request = queue.submit_request([b"kill"], limit=1, attempts=100, lease=1)
    url, handler = queue.driver.url, handlers.Killing(tmp_path, 3)
    lost = r"all workers of the fleet f were lost \(1\)"
    with pytest.raises(FairlaneError, match=lost) as caught:
        run_fleet(spark, handler, name="f", redis=url, workers=1)
    assert "\n" not in str(caught.value)
    assert request.state() == "active"


@pytest.mark.rest
def test_a_fleet_logs_the_open_requests_that_it_waits_for(
    spark: Any, queue: Queue, caplog: pytest.LogCaptureFixture
):
    url = queue.driver.url
    write(numbers(spark, 5, 1), url, request="lines", finalize="false")
    options: dict[str, Any] = {"until_idle": True, "max_idle_s": None, "workers": 1}
    fleet = InThread(spark, handlers.upper, redis=url, **options)
    wait_until(lambda: "open requests are unfinished: lines." in caplog.text)
    stop_fleet(redis=url)
    fleet.join(PATIENCE_S)
    assert [(row.ended, row.done) for row in fleet.rows] == [("stopped", 5)]
    assert caplog.text.count("open requests are unfinished") == 1


@pytest.mark.rest
def test_workers_beyond_the_most_jobs_share_them(spark: Any):
    begun: list[int] = []

    def begin(share: int) -> list[Any]:
        begun.append(share)
        if share == 2:
            raise OSError("Python worker exited unexpectedly (crashed)")
        return [("w", "h", 1, 1, 0, 0, 0, "idle")]

    rows = shares.run_shares(spark, "f", "t", shares.MOST_SHARES + 1, begin, lambda: None)
    assert sorted(begun) == [1] * (shares.MOST_SHARES - 1) + [2]
    assert (len(rows), rows.count(shares.LOST_ROW)) == (shares.MOST_SHARES + 1, 2)


def test_another_error_of_a_job_ends_the_fleet(spark: Any):
    def begin(share: int) -> list[Any]:
        raise OSError("the handler cannot be read")

    with pytest.raises(OSError, match="the handler cannot be read"):
        shares.run_shares(spark, "f", "t", 3, begin, lambda: None)


@pytest.mark.rest
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"workers": 0}, "workers 0"),
        ({"workers": True}, "workers True"),
        ({"workers": 1, "input": "arrow"}, "bytes, table, pandas, rows"),
        ({"workers": 1, "slices": 3}, "slice_s"),
        ({"workers": 1, "max_idle_s": -1}, "max_idle_s -1"),
        ({"workers": 1, "name": "a b"}, "fleet 'a b'"),
        ({"workers": 1, "queue": "a{b"}, "queue"),
        ({"workers": 1, "slice_s": -1}, "slice"),
    ],
)
def test_a_wrong_argument_is_refused_before_any_task_runs(
    options: dict[str, Any], words: str, spark: Any, redis_url: str
):
    with pytest.raises(InvalidArgument, match=words):
        run_fleet(spark, handlers.upper, redis=redis_url, **options)


def test_a_handler_that_cannot_be_called_is_refused(spark: Any, redis_url: str):
    async def later(body: bytes) -> bytes:
        return body

    for handler, given in (("upper", "bytes"), ("upper", "table"), (later, "table")):
        with pytest.raises(HandlerNotFound):
            run_fleet(spark, handler, input=given, redis=redis_url, workers=1)  # type: ignore[arg-type]


@ON_ONE_KIND
def test_a_watch_ignores_stop_signals_from_before_the_fleet_began(queue: Queue):
    url = queue.driver.url
    stop_fleet("f", redis=url)
    began = int(queue.driver.run(stop_signal.now_us("req")))
    plan = FleetPlan(url, "req", "f", handlers.upper, began, None, None, False, {})
    counts = {"held": 0, "slices": 0}
    with Watch(plan) as watch:
        assert watch.look(counts) is False
    stop_fleet("f", redis=url)
    with Watch(plan) as watch:
        assert watch.look(counts) is True
        assert watch.row()["ended"] == "stopped"


def test_a_table_has_the_columns_of_its_slice():
    from fairlane.spark import arrow_handler, pandas_handler, row_handler

    entries = [(b"1-%d" % i, ()) for i in (7, 9)]
    context = Context("r1", 7, 1, 3, None, entries)
    assert context.indexes == [7, 9]
    assert Context("r1", 7, 1, 3, None).indexes == [7]
    bodies = [b"a", b"bc"]
    assert arrow_handler(handlers.table_of_all)(bodies, context) == ["r1|7|a", "r1|9|bc"]
    assert arrow_handler(handlers.lengths)(bodies, context) == ["1", "2"]
    assert pandas_handler(handlers.frame_of_all)(bodies, context) == ["a!7", "bc!9"]
    first, second = row_handler(handlers.row_of_all)([b"a", b"bad"], context)
    assert (first, type(second)) == ("r1 7 a", ValueError)
    marked = arrow_handler(handlers.one_fails)([b"a", b"bad"], context)
    assert (marked[0], type(marked[1]), str(marked[1])) == (b"a", Retry, "it is bad")
    with pytest.raises(TypeError, match="the columns body"):
        arrow_handler(handlers.no_result)(bodies, context)


def test_missing_values_of_pandas_are_no_result_and_no_error():
    """Its nullable types have NA, which is neither equal nor unequal to itself."""
    pd = pytest.importorskip("pandas")
    from fairlane.spark import pandas_handler, row_handler

    context = Context("r1", 0, 1, 3, None, [(b"1-%d" % i, ()) for i in range(3)])
    bodies = [b"a", b"b", b"c"]

    def answers_of(results: Any, errors: Any = None) -> list[Any]:
        columns = {"result": results} | ({} if errors is None else {"error": errors})
        return pandas_handler(lambda _: pd.DataFrame(columns))(bodies, context)

    assert answers_of(pd.array(["x", None, ""], dtype="string")) == ["x", None, ""]
    assert answers_of(pd.array([1, None, 3], dtype="Int64")) == ["1", None, "3"]
    assert answers_of(pd.array([True, None, False], dtype="boolean")) == ["True", None, "False"]
    assert answers_of([1.5, float("nan"), pd.NaT]) == ["1.5", None, None]
    found = answers_of(["x", "y", "z"], pd.array([None, "it is bad", None], dtype="string"))
    assert (found[0], str(found[1]), found[2]) == ("x", "it is bad", "z")
    answers = iter([pd.NA, pd.Series([1.5]).mean(), pd.Series([None], dtype="float").mean()])
    assert row_handler(lambda _: next(answers))(bodies, context) == [None, "1.5", None]


def test_each_name_of_the_package_is_its_object_and_no_module():
    import fairlane.spark as face

    for name in face.__all__:
        assert callable(getattr(face, name)), name
