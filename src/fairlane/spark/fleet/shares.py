"""The Spark jobs of a fleet: several, so that a lost worker does not end the others.

Spark ends a job when one of its tasks has failed `spark.task.maxFailures` times. That is 4, and 1
on `local[N]`. Spark then kills the job's other tasks. So each worker is a job of its own. Workers
of a fleet of more than MOST_SHARES share jobs.
"""

from __future__ import annotations

import contextlib
import logging
import re
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from pyspark import InheritableThread

from fairlane.errors import FairlaneError
from fairlane.operations.why import waiting
from fairlane.protocol import keys
from fairlane.spark.source.errors import ours

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    from fairlane.drivers.sync import SyncDriver

    Rows = list[tuple[Any, ...]]

_log = logging.getLogger("fairlane.spark")
MOST_SHARES = 64
_LOOK_S = 5.0  # between looks for requests that an idle fleet waits for
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
            return ended.get(timeout=_LOOK_S)
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
