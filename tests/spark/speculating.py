"""Writes on a speculating cluster: `python -m tests.spark.speculating MASTER URL ROWS`.

The first attempt at the last partition writes some rows and then waits until another attempt has
come to its end, as a stalled machine would; it ends well, or Spark kills it.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql import SparkSession

from fairlane.spark.data_source import FairlaneSource, SparkOptions
from fairlane.spark.sink.plan import OPTIONS, plan_of
from fairlane.spark.sink.writers import StagedWriter
from tests.spark.sink.sinks import numbers, write

if TYPE_CHECKING:
    from collections.abc import Iterator

STALL_S = 60.0  # on a loaded machine the other attempt takes its time
CONF = {
    "spark.ui.enabled": "false",
    "spark.log.level": "OFF",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.executor.memory": "700m",
    "spark.executor.cores": "1",
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.3",
    "spark.speculation.efficiency.enabled": "false",
}
PARTITIONS = 4


class Stalling(FairlaneSource):
    """The format "stalling"."""

    @classmethod
    def name(cls) -> str:
        return "stalling"

    def writer(self, schema: Any, overwrite: bool) -> Any:
        return StallingWriter(plan_of(SparkOptions(self.options, OPTIONS), schema, is_stream=False))


class StallingWriter(StagedWriter):
    def write(self, iterator: Iterator[Any]) -> Any:
        return super().write(stalling(iterator))


def stalling(batches: Iterator[Any]) -> Iterator[Any]:
    """Yields the rows, with a long pause behind the first ones."""
    task: Any = TaskContext.get()
    for batch in batches:
        yield batch
        if task.partitionId() == PARTITIONS - 1 and task.attemptNumber() == 0:
            threading.Event().wait(STALL_S)


def main() -> None:
    master, url, count = sys.argv[1:]
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master(master)
    for name, value in CONF.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.dataSource.register(Stalling)
    # Small chunks: the attempt that stalls has sent some of its rows by then.
    write(numbers(spark, int(count), PARTITIONS), url, "stalling", request="r1", batchSize="100")
    spark.stop()


if __name__ == "__main__":
    main()
