"""A fleet: Spark's executors as workers of a queue, beside plain ones.

Each Spark task is one worker like any other (fairlane.worker): registered, with leases that it
extends, drained when it ends. Its processes die with Spark's Python process. What they held comes
back when the leases expire, so a killed executor loses nothing. Limits and priorities hold across
all workers.
"""

from __future__ import annotations

import contextlib
import logging
import re
import socket
from contextlib import closing
from dataclasses import dataclass, field, replace
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Self, TypedDict, Unpack

from pyspark import InheritableThread

from fairlane import settings
from fairlane.common import clock
from fairlane.default_redis import resolve_url
from fairlane.drivers.sync import SyncDriver
from fairlane.errors import FairlaneError, InvalidArgument, WorkerRefused
from fairlane.operations.why import waiting
from fairlane.protocol import keys
from fairlane.protocol.keys import check_name
from fairlane.protocol.steps import Batch, Command
from fairlane.queue import Queue
from fairlane.spark.handlers import adapted
from fairlane.spark.spark_session import is_local, ours
from fairlane.worker import Worker
from fairlane.worker.health_port import address_towards

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import pyarrow as pa
    from pyspark import SparkContext
    from pyspark.sql import DataFrame, SparkSession

    Rows = list[tuple[Any, ...]]


# ------------------------------------------------------------------ stop signal
# The stop signal of fleets: their workers look for it by the name that they share.


KEPT_MS = 7 * 24 * 3_600_000  # no worker of a fleet waits so long for a core


async def now_us(queue: str) -> int:
    """Returns the time of the queue's dispatch server, in microseconds."""
    _, (seconds, micros) = await Batch([Command(b"ZCARD", keys.fleets(queue)), Command(b"TIME")])
    return int(seconds) * 1_000_000 + int(micros)


async def stop(queue: str, name: str) -> None:
    """Drains every worker of this fleet that began before now; later ones go on.

    The signal expires a week later, or at the next stop after that.
    """
    keys.check_name("fleet", name)
    now = await now_us(queue)
    key = keys.fleets(queue)
    old = now - KEPT_MS * 1000
    await Batch(
        [
            Command(b"ZREMRANGEBYSCORE", key, b"-inf", old),
            Command(b"ZADD", key, now, name),
            Command(b"PEXPIRE", key, KEPT_MS),
        ]
    )


async def read_stop_us(queue: str, name: str) -> int:
    """Returns the moment of this fleet's last stop signal, in microseconds; 0 = never."""
    score = await Command(b"ZSCORE", keys.fleets(queue), name)
    return int(float(score)) if score else 0


# ------------------------------------------------------------------ shares
# The Spark jobs of a fleet: several, so that a lost worker does not end the others.
#
# Spark ends a job when one of its tasks has failed `spark.task.maxFailures` times. That is 4, and
# 1 on `local[N]`. Spark then kills the job's other tasks. So each worker is a job of its own.
# Workers of a fleet of more than MOST_SHARES share jobs.


_log = logging.getLogger("fairlane.spark")
MOST_SHARES = 64
_SHARE_LOOK_S = 5.0  # between looks for requests that an idle fleet waits for
_END_S = 0.2  # between attempts to cancel jobs that may just begin
_LOST = re.compile(r"Python worker exited unexpectedly|ExecutorLostFailure|Connection reset")
LOST_ROW = ("", "", 0, 0, 0, 0, 0, "lost")
_FAILURES = (
    "spark.task.maxFailures sets how often Spark starts a worker (docs/how-to/connect/spark.md)"
)


def run_shares(
    spark: SparkSession,
    name: str,
    tag: str,
    count: int,
    begin: Callable[[int], Rows],
    look: Callable[[], None],
) -> Rows:
    """Runs `count` workers of the fleet `name`; returns a row for each, LOST_ROW for a lost one.

    `begin(n)` runs one job of n workers. `look` is called every few seconds meanwhile. All jobs
    have `tag`. Raises FairlaneError when all workers were lost, and what else a job raises.
    """
    most = min(count, MOST_SHARES)
    shares = [count // most + (n < count % most) for n in range(most)]
    ended: SimpleQueue[tuple[int, Rows, Exception | None]] = SimpleQueue()

    def run(share: int) -> None:
        try:
            ended.put((share, begin(share), None))
        except Exception as error:  # noqa: BLE001  judged in the thread that waits
            ended.put((share, [], error))

    run_tag = f"fairlane-run-{keys.new_id()}"
    with _tagged(spark, tag, run_tag):
        threads = [InheritableThread(run, args=(share,), session=spark) for share in shares]
        for thread in threads:
            thread.daemon = True
            thread.start()
    try:
        return _rows(name, len(shares), ended, look)
    except BaseException:
        while any(thread.is_alive() for thread in threads):
            with contextlib.suppress(Exception):  # Spark may have died
                cancel(spark, run_tag)
            for thread in threads:
                thread.join(_END_S)
        raise


def _rows(name: str, shares: int, ended: SimpleQueue[Any], look: Callable[[], None]) -> Rows:
    """Returns the rows of all jobs. Raises what a job raised, unless its worker was lost."""
    rows: Rows = []
    for _ in range(shares):
        share, summaries, error = _next(ended, look)
        if error is not None:
            _raise_unless_lost(error)
            _log.warning(
                "fleet %s goes on without %s, whose Python process or executor died: what it held "
                "comes back when its leases end; %s",
                name,
                "a worker" if share == 1 else f"{share:,} workers",
                _FAILURES,
            )
            summaries = [LOST_ROW] * share
        rows += summaries
    if all(row == LOST_ROW for row in rows):
        raise FairlaneError(
            f"all workers of the fleet {name} were lost ({len(rows):,}): their Python processes or "
            f"executors died; what they held comes back when its leases end; {_FAILURES}"
        )
    return rows


def _next(ended: SimpleQueue[Any], look: Callable[[], None]) -> Any:
    while True:
        try:
            return ended.get(timeout=_SHARE_LOOK_S)
        except Empty:
            look()


def _raise_unless_lost(error: Exception) -> None:
    carried = ours(error)
    if carried is not None:
        raise carried from error
    if _LOST.search(str(error)) is None:
        raise error


def cancel(spark: SparkSession, tag: str) -> None:
    """Ends the Spark jobs that have this tag, from any thread."""
    context = context_of(spark)
    if context is None:
        spark.interruptTag(tag)
    else:
        context.cancelJobsWithTag(tag)


def context_of(spark: SparkSession) -> SparkContext | None:
    """Returns the session's context, whose tags hold for all threads; None on Spark Connect."""
    try:
        return spark.sparkContext
    except Exception:  # noqa: BLE001  Spark Connect has none
        return None


@contextlib.contextmanager
def _tagged(spark: SparkSession, *tags: str) -> Iterator[None]:
    """Gives these tags to the jobs of threads that this thread starts meanwhile.

    A session's tags belong to one thread, and interruptTag of another thread does not find them.
    So the tags of the context are used if there is one.
    """
    context = context_of(spark)
    add = spark.addTag if context is None else context.addJobTag
    remove = spark.removeTag if context is None else context.removeJobTag
    for tag in tags:
        add(tag)
    try:
        yield
    finally:
        for tag in tags:
            remove(tag)


class OpenRequests:
    """Logs that a fleet which ends when idle waits for requests that are only open.

    A stream's request may be open without rows for days, and nothing else logs the reason.
    """

    def __init__(self, driver: SyncDriver, queue: str, name: str) -> None:
        self._driver, self._queue, self._name = driver, queue, name
        self._logged: list[str] = []

    def look(self) -> None:
        """Logs the open requests once, when nothing else is unfinished."""
        try:
            blockers, has_more = self._driver.run(waiting(self._queue))
        except FairlaneError:  # the workers log it
            return
        ids = [blocker.request_id for blocker in blockers if blocker.kind == "open"]
        if not ids or has_more or len(ids) < len(blockers) or ids == self._logged:
            return
        self._logged = ids
        _log.warning(
            "fleet %s is idle but does not end (until_idle), because open requests are unfinished: "
            "%s. Seal each with a last batch write with finalize, end it with fairlane cancel, or "
            "give the fleet a smaller max_idle_s",
            self._name,
            ", ".join(ids),
        )


SUMMARY = (
    "worker string, host string, taken long, done long, failed long, busy_ms long, idle_ms long, "
    "ended string"
)
_LOOK_S = 1.0  # between looks for the stop signal
_MOST = 10_000


class FleetOptions(TypedDict, total=False):
    """The options of each worker of a fleet; see Worker."""

    slice_s: float
    concurrency: int
    tokens: int
    time_limit_s: float


_OPTIONS = ("slice_s", "concurrency", "tokens", "time_limit_s")


@dataclass(frozen=True)
class FleetPlan:
    """Holds the settings of each worker of a fleet; pickled to the executors."""

    url: str = field(repr=False)  # with its password
    queue: str
    name: str
    handler: Callable[..., Any]
    began_us: int
    max_idle_s: float | None
    max_runtime_s: float | None
    until_idle: bool
    options: FleetOptions

    @property
    def units(self) -> int:
        """Returns how many handlers run concurrently in one worker."""
        return int(self.options.get("concurrency", 1))


def run_fleet(
    spark: SparkSession,
    handler: Callable[..., Any],
    *,
    redis: str | None = None,
    queue: str = settings.DEFAULT_QUEUE,
    workers: int | None = None,
    name: str = "fleet",
    input: str = "bytes",  # noqa: A002  what the handler takes
    max_idle_s: float | None = 30.0,
    max_runtime_s: float | None = None,
    until_idle: bool = False,
    **options: Unpack[FleetOptions],
) -> DataFrame:
    """Works on a queue with `workers` Spark tasks; returns a row for each when all have ended.

    `handler` gets `input`: "bytes" as for a Worker, or slices as in handlers.py ("table",
    "pandas", "rows"). A worker ends after `max_idle_s` seconds without work, and after
    `max_runtime_s` in all. With `until_idle` it ends when every request of the queue is
    finished. `stop_fleet` ends it by `name`. The default of `workers` is what Spark runs in
    parallel; more of them wait for a core. `options` are the Worker's: slice_s, concurrency,
    tokens, time_limit_s.

    A worker whose Spark task failed for good is `lost` in its row, and the others go on. Raises
    InvalidArgument, HandlerNotFound, RedisError, FairlaneError (all workers are lost), and
    Spark's errors.
    """
    plan = FleetPlan(
        url_for(spark, redis), check_name("queue", queue), check_name("fleet", name),
        adapted(handler, input), 0, _seconds("max_idle_s", max_idle_s),
        _seconds("max_runtime_s", max_runtime_s), until_idle, _checked(options),
    )  # fmt: skip
    count = _count(spark, workers)
    with Queue.from_url(plan.url, name=queue) as opened:
        Worker(opened, plan.handler, **plan.options)  # raises here, not on executors
        opened.driver.meet(_log.warning)
        plan = replace(plan, began_us=opened.driver.run(now_us(queue)))
    return _summaries(spark, plan, count)


def stop_fleet(
    name: str = "fleet", *, redis: str | None = None, queue: str = settings.DEFAULT_QUEUE
) -> None:
    """Drains the workers of the fleet, also those that Spark has not started yet.

    They finish what they hold and end. Fleets of this name that begin later go on. Raises
    InvalidArgument, RedisError.
    """
    with Queue.from_url(redis, name=queue) as opened:
        opened.driver.run(stop(queue, name))


def tag_of(name: str) -> str:
    """Returns the tag of a fleet's Spark jobs, for `sparkContext.cancelJobsWithTag`."""
    return f"fairlane-fleet-{name}"


def cancel_fleet(spark: SparkSession, name: str) -> None:
    """Cancels the Spark tasks of a fleet of this application immediately, from any thread.

    What they held comes back when its leases expire.
    """
    cancel(spark, tag_of(name))


def _summaries(spark: SparkSession, plan: FleetPlan, count: int) -> DataFrame:
    def work_here(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            pass
        yield from work(plan)

    def begin(share: int) -> list[tuple[Any, ...]]:
        begun = spark.range(0, share, 1, share).mapInArrow(work_here, SUMMARY)
        return [tuple(row) for row in begun.collect()]

    with closing(_quick_driver(plan.url)) as driver:
        open_requests = OpenRequests(driver, plan.queue, plan.name)
        look = open_requests.look if plan.until_idle else _no_look
        rows = run_shares(spark, plan.name, tag_of(plan.name), count, begin, look)
    return spark.createDataFrame(rows, SUMMARY)


def _quick_driver(url: str) -> SyncDriver:
    """Returns a driver whose calls give up soon, because its caller must get back to its work."""
    return SyncDriver(url, patience_s=settings.BEAT_MS / 1000, timeout_s=settings.KEEPER_TIMEOUT_S)


def _no_look() -> None:
    """Does nothing: a fleet that does not end when idle waits for nothing."""


def url_for(spark: SparkSession, redis: str | None) -> str:
    """Returns the URL of Redis; the embedded one only if all executors are on this machine."""
    if settings.redis_url(redis) is None and not _is_local(spark):
        raise InvalidArgument(
            f"redis is missing: name a URL that executors can reach, or set "
            f"{settings.REDIS_VARIABLE}"
        )
    return resolve_url(redis)


def _is_local(spark: SparkSession) -> bool:
    return is_local(str(spark.conf.get("spark.master", "") or ""))


def _count(spark: SparkSession, workers: int | None) -> int:
    if workers is None:
        context = context_of(spark)
        if context is None:
            raise InvalidArgument("workers is missing: say how many, Spark Connect does not")
        return int(context.defaultParallelism)
    if isinstance(workers, bool) or not isinstance(workers, int) or not 1 <= workers <= _MOST:
        raise InvalidArgument(
            f"workers {workers!r} is not valid: a whole number from 1 to {_MOST:,} is expected"
        )
    return workers


def _checked(options: FleetOptions) -> FleetOptions:
    for name in options:
        if name not in _OPTIONS:
            raise InvalidArgument(f"option {name!r} is not known: {', '.join(_OPTIONS)} are")
    return options


def _seconds(name: str, value: float | None) -> float | None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if value is not None and not (is_number and value > 0):
        raise InvalidArgument(f"{name} {value!r} is not valid: seconds above 0, or None, expected")
    return value


# ------------------------------------------------------------------ on the executors


def work(plan: FleetPlan) -> Iterator[pa.RecordBatch]:
    """Runs one worker in Spark's Python process; yields its summary."""
    import pyarrow as pa

    address = address_towards(plan.url)
    with Queue.from_url(plan.url, name=plan.queue) as queue, Watch(plan) as watch:
        worker = Worker(queue, plan.handler, id=f"{address}:0", **plan.options)
        try:
            worker.run(until_idle=plan.until_idle, watch=watch.look)
        except WorkerRefused:
            if address == "127.0.0.1":
                raise
            # The address is not this machine's own, as behind a NAT. No other worker can probe the
            # worker's port, so its leases expire when it dies.
            worker = Worker(queue, plan.handler, id="127.0.0.1:0", **plan.options)
            worker.run(until_idle=plan.until_idle, watch=watch.look)
    row = {"worker": worker.id, "host": socket.gethostname(), **watch.row()}
    kinds = (pa.string() if isinstance(value, str) else pa.int64() for value in row.values())
    arrays = [pa.array([value], kind) for value, kind in zip(row.values(), kinds, strict=True)]
    yield pa.RecordBatch.from_arrays(arrays, list(row))


class Watch:
    """Watches one worker of a fleet while it works, and decides when it ends."""

    def __init__(self, plan: FleetPlan) -> None:
        self._plan = plan
        self._began = self._quiet_since = self._ended = clock.mono_s()
        self._looked = 0.0
        self._counts: dict[str, int] = {}
        self._why = ""
        self._driver = _quick_driver(plan.url)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._driver.close()

    def look(self, counts: dict[str, int]) -> bool:
        """Returns True if the worker is to end."""
        now, plan = clock.mono_s(), self._plan
        if counts["held"] or counts["slices"] != self._counts.get("slices", 0):
            self._quiet_since = now
        self._counts, self._ended = counts, now
        if self._why:
            return True
        if plan.max_runtime_s is not None and now - self._began >= plan.max_runtime_s:
            self._why = "runtime"
        elif plan.max_idle_s is not None and now - self._quiet_since >= plan.max_idle_s:
            self._why = "idle"
        elif self._was_stopped(now):
            self._why = "stopped"
        return bool(self._why)

    def _was_stopped(self, now: float) -> bool:
        if now - self._looked < _LOOK_S:
            return False
        self._looked = now
        try:
            stopped_us = self._driver.run(read_stop_us(self._plan.queue, self._plan.name))
        except FairlaneError:  # Redis is unreachable: the worker logs it
            return False
        return stopped_us >= self._plan.began_us

    def row(self) -> dict[str, Any]:
        """Returns the worker's counts since it began."""
        counts, units = self._counts, self._plan.units
        lived = self._ended - self._began
        busy_ms = counts.get("busy_us", 0) // 1000
        done, failed = counts.get("done", 0), counts.get("failed", 0)
        return {
            "taken": done + failed,
            "done": done,
            "failed": failed,
            "busy_ms": busy_ms,
            "idle_ms": max(0, int(lived * 1000 * units) - busy_ms),
            "ended": self._why or ("idle" if self._plan.until_idle else "drained"),
        }
