"""Frames to write, and writes that fail or crash; reads what they left in Redis."""

from __future__ import annotations

import contextlib
import os
import signal
from contextlib import closing
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext

from fairlane.protocol import keys
from fairlane.spark.commit import commit
from fairlane.spark.data_source import FairlaneSource, SparkOptions
from fairlane.spark.sink.plan import OPTIONS, STREAM_OPTIONS, plan_of
from fairlane.spark.sink.writers import (
    LiveWriter,
    StagedStreamWriter,
    StagedWriter,
    commit_staged,
    query_of,
    shares_of,
    stream_txn,
)
from tests.support.scripts.requests import once

if TYPE_CHECKING:
    from collections.abc import Iterator

    import redis

COUNT = 25_000  # rows of the fixture `frame`


def numbers(spark: Any, count: int, partitions: int = 3) -> Any:
    """Returns a frame of so many rows: id, and body `row <id>`."""
    return spark.range(0, count, 1, partitions).selectExpr("id", "concat('row ', id) AS body")


def rows(count: int) -> list[bytes]:
    """Returns its bodies."""
    return [b"row %d" % i for i in range(count)]


def write(frame: Any, url: str, format: str = "fairlane", **options: Any) -> None:  # noqa: A002
    writer = frame.write.format(format).option("redis", url).mode("append")
    for name, value in options.items():
        writer = writer.option(name, str(value))
    writer.save()


def bodies_in(client: redis.Redis, request_id: str) -> list[bytes]:
    """Returns the bodies that wait in a request, in their order."""
    found: Any = client.xrange(keys.request_keys(request_id)[0])
    return [fields[b"b"] for _, fields in found]


def areas(client: redis.Redis) -> list[bytes]:
    """Returns the staged areas."""
    return [*client.scan_iter(match="stage:*", count=1000)]


# ------------------------------------------------------------------ failing tasks


def failing(batches: Iterator[Any], how: str) -> Iterator[Any]:
    """Yields the rows; but an attempt at partition 1 fails when it has written some.

    The first one, or with `task:always` every one; with `task:kill:<pid>` a process is killed
    there instead.
    """
    task: Any = TaskContext.get()
    is_meant = how.startswith("task") and task.partitionId() == 1
    for batch in batches:
        yield batch
        if is_meant and how.startswith("task:kill:"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(how.rpartition(":")[2]), signal.SIGKILL)
        elif is_meant and (how == "task:always" or task.attemptNumber() == 0):
            raise OSError("the disk of this executor is broken")


# ------------------------------------------------------------------ crashing drivers


class Crashing(FairlaneSource):
    """The format "crashing": its commit ends after some steps, by the option `crash`.

    `exit:<n>`: the process ends after n steps; `raise:<n>`: an error is raised there.
    `task:first`, `task:always` and `task:kill:<pid>`: see `failing`. `kill:<n>:<pid>`: that
    process is killed after n steps, and the commit continues.
    """

    @classmethod
    def name(cls) -> str:
        return "crashing"

    def _plan(self, schema: Any, *, is_stream: bool) -> Any:
        given = {name: value for name, value in self.options.items() if name.lower() != "crash"}
        options = SparkOptions(given, (*OPTIONS, *STREAM_OPTIONS))
        return plan_of(options, schema, is_stream=is_stream)

    def writer(self, schema: Any, overwrite: bool) -> Any:
        plan = self._plan(schema, is_stream=False)
        kind = CrashingWriter if plan.mode == "staged" else FailingWriter
        return kind(plan, self.options["crash"])

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:  # noqa: N802  Spark's
        return CrashingStreamWriter(self._plan(schema, is_stream=True), self.options["crash"])


class CrashingWriter(StagedWriter):
    def __init__(self, plan: Any, crash: str) -> None:
        super().__init__(plan)
        self.how = crash

    def write(self, iterator: Iterator[Any]) -> Any:
        return super().write(failing(iterator, self.how))

    def commit(self, messages: list[Any]) -> None:
        crash(self.plan, self.plan.txn, messages, self.how)


class FailingWriter(LiveWriter):
    """Fails in a task; its commit does not crash."""

    def __init__(self, plan: Any, crash: str) -> None:
        super().__init__(plan)
        self.how = crash

    def write(self, iterator: Iterator[Any]) -> Any:
        return super().write(failing(iterator, self.how))


class CrashingStreamWriter(StagedStreamWriter):
    def __init__(self, plan: Any, crash: str) -> None:
        super().__init__(plan)
        self.how = crash

    def write(self, iterator: Iterator[Any]) -> Any:
        return super().write(failing(iterator, self.how))

    def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803  Spark's name
        crash(self.plan, stream_txn(query_of(messages), batchId), messages, self.how)


def crash(plan: Any, txn: str, messages: list[Any], how: str) -> None:
    """Runs so many steps of a commit, and no more; all of them if `crash` names a task."""
    word, steps, *pid = how.split(":")
    if word == "task":
        commit_staged(plan, txn, messages)
        return
    operation = commit(shares_of(plan, messages), plan.transaction(txn))
    reply: Any = None
    with closing(plan.driver()) as driver:
        for _ in range(int(steps)):
            try:
                step = operation.send(reply)
            except StopIteration:
                break
            reply = driver.run(once(step))
        if pid:
            os.kill(int(pid[0]), signal.SIGKILL)
            driver.run(once(operation.send(reply)))
    if word == "exit":
        os._exit(1)
    raise OSError("the driver's disk is broken")
