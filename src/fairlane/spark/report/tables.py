"""The tables of the report: small aggregates of the archive, however long the history is.

Time is cut into windows of equal width. Distributions are kept as KLL sketches, which can be
merged afterwards: over windows, priorities, or the reports of several queues.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import functions as F  # noqa: N812  the usual name

from fairlane.errors import InvalidArgument
from fairlane.spark.archive import read_table
from fairlane.spark.report.axes import FAIR_S, Axis, Bands
from fairlane.spark.report.fairness import busy_in_windows, fairness, token_use
from fairlane.spark.report.inversions import NO_WORKER, find_inversions
from fairlane.spark.report.summary import summarise

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pyspark.sql import Column, DataFrame, SparkSession


Rows = list[dict[str, Any]]
SKETCH_K = 800  # of a sketch: ranks to within about half a percent
RANKS = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
LADDER_MS = {"within_1s": 1_000, "within_10s": 10_000, "within_1m": 60_000, "within_10m": 600_000}
SKETCHED = {"waited": "waited_us", "ran": "ran_us", "total": "total_us"}


class Models:
    """Computes the tables of one report. Raises InvalidArgument without anything to report on."""

    def __init__(
        self,
        spark: SparkSession,
        archive: str,
        since: datetime | None,
        targets: Mapping[int | None, int],
    ) -> None:
        self.spark, self.targets = spark, dict(targets)
        requests = read_table(spark, archive, "requests")
        results = read_table(spark, archive, "results")
        dead = read_table(spark, archive, "dead")
        if requests is None:
            raise InvalidArgument(_why_none(spark, archive))
        if since is not None:
            day, moment = f"{since.astimezone(UTC):%Y-%m-%d}", F.lit(since)
            requests = requests.where((F.col("date") >= day) & (F.col("logged") >= moment))
            if results is not None:
                results = results.where((F.col("date") >= day) & (F.col("settled") >= moment))
            if dead is not None:
                dead = dead.where((F.col("date") >= day) & (F.col("died") >= moment))
        self.requests = requests
        self.results = None if results is None else _measured(results)
        self.dead = dead
        self.axis = self._axis()

    def _axis(self) -> Axis:
        ended = F.unix_micros("ended")
        extents = self.requests.agg(F.min(ended), F.max(ended)).collect()
        if self.results is not None:
            rows = self.results.agg(F.min("started_us"), F.max("settled_us")).collect()
            if rows[0][0] is None:
                self.results = None
            extents += rows
        measured = [row for row in extents if row[0] is not None]
        if not measured:
            raise InvalidArgument("the archive holds nothing of that time")
        return Axis.spanning(min(row[0] for row in measured), max(row[1] for row in measured))

    # ------------------------------------------------------------------ tables

    def frames(self) -> dict[str, DataFrame]:
        """Returns the tables by name. `write` makes `windows` and `priorities` from each other."""
        tables = {"requests": self._requests(), "states": self._states()}
        if self.results is None:
            return tables
        requests = self.requests.where("limit is not null and results > 0")
        even = self.axis.at_least(FAIR_S)
        tables |= {
            "windows": self._windows(self.results),
            "tokens": token_use(requests, busy_in_windows(self.results, self.axis), self.axis),
            "fairness": fairness(requests, busy_in_windows(self.results, even), even),
            "workers": _workers(self.results),
            "longest_waits": _longest_waits(self.results),
        }
        takes, inverted = find_inversions(self.results, requests)
        tables |= {"inversions": takes, "inverted": inverted}
        if self.dead is not None:
            tables["dead"] = _dead(self.dead)
        return tables

    def write(self, folder: Path) -> dict[str, Rows]:
        """Writes every table as Parquet to a file of its own, and returns them as rows.

        `windows` and `bands` (the priorities of the report's bands, and all) are returned by band.
        """
        rows: dict[str, Rows] = {}
        folder.mkdir(parents=True, exist_ok=True)
        for name, frame in self.frames().items():
            table = _write(frame, folder / f"{name}.parquet")
            rows[name] = rows_of(table)
            if name == "windows":
                windows = self.spark.createDataFrame(table).withColumn("target_ms", self._target())
                priorities = _write(_with_total(windows), folder / "priorities.parquet")
                rows["priorities"] = rows_of(priorities)
                bands = Bands.of(rows)
                banded = windows.withColumn("priority", bands.key(F.col("priority")))
                rows["windows"] = rows_of(_merged(banded, "window", "at", "priority").toArrow())
                rows["bands"] = (
                    rows["priorities"]
                    if bands.size == 1
                    else rows_of(_with_total(banded).toArrow())
                )
        return rows

    def _windows(self, results: DataFrame) -> DataFrame:
        sketches = [
            F.kll_sketch_agg_bigint(column, F.lit(SKETCH_K)).alias(f"{name}_sketch")
            for name, column in SKETCHED.items()
        ]
        target, is_done = self._target(), F.col("status") == "done"
        within = [
            F.count_if(is_done & (F.col("total_ms") <= bound)).alias(name)
            for name, bound in LADDER_MS.items()
        ]
        return (
            results.withColumn("window", self.axis.of(F.col("settled_us")))
            .groupBy("window", "priority")
            .agg(
                F.count(F.lit(1)).alias("finished"),
                F.count_if(F.col("status") == "dead").alias("dead"),
                F.sum(F.greatest(F.col("attempt") - 1, F.lit(0))).alias("retries"),
                F.max("waited_ms").alias("waited_max_ms"),
                F.sum("ran_ms").alias("busy_ms"),
                F.count_if((F.col("total_ms") <= target) & (F.col("status") == "done")).alias(
                    "met"
                ),
                *within,
                *sketches,
            )
            .withColumn("at", self._moment("window"))
            .orderBy("window", "priority")
        )

    def _target(self) -> Column:
        """Returns the target of a row's priority, ms; null = none."""
        target = F.lit(self.targets.get(None)).cast("double")
        for priority, bound in self.targets.items():
            if priority is not None:
                target = F.when(F.col("priority") == priority, F.lit(float(bound))).otherwise(
                    target
                )
        return target

    def _moment(self, window: str) -> Column:
        start, width = F.lit(self.axis.start_us), F.lit(self.axis.width_us)
        return F.timestamp_micros(start + F.col(window).cast("bigint") * width)

    def _requests(self) -> DataFrame:
        rows = self.requests.withColumn(
            "duration_ms", F.unix_millis("ended") - F.unix_millis("submitted")
        )
        if self.results is None:
            return rows.withColumn("busy_ms", F.lit(None).cast("double")).withColumn(
                "use", F.lit(None).cast("double")
            )
        busy = self.results.groupBy(F.col("request").alias("id"), "batch").agg(
            F.sum("ran_ms").alias("busy_ms"), F.min("started").alias("first_started")
        )
        use = F.col("busy_ms") / F.col("limit") / F.greatest("duration_ms", F.lit(1))
        return rows.join(busy, ["id", "batch"], "left").withColumn("use", use).orderBy("log_id")

    def _states(self) -> DataFrame:
        sums = ("total", "done", "dead", "cancelled", "results")
        return (
            self.requests.groupBy("state")
            .agg(F.count(F.lit(1)).alias("requests"), *(F.sum(name).alias(name) for name in sums))
            .orderBy("state")
        )

    # ------------------------------------------------------------------ the head of the page

    def summary(self, tables: Mapping[str, Rows]) -> dict[str, Any]:
        """Returns the few numbers at the head of the page; times are UTC."""
        return summarise(tables, self.axis.start_us, self.axis.width_us, self.axis.windows)


def _with_total(windows: DataFrame) -> DataFrame:
    """Returns a row for each priority, and one without a target for all, as priority null."""
    all_priorities = _merged(windows.withColumn("priority", F.lit(None).cast("int")), "priority")
    all_priorities = all_priorities.withColumn("target_ms", F.lit(None).cast("double"))
    return _merged(windows, "priority").unionByName(all_priorities).orderBy("priority")


def _merged(windows: DataFrame, *keys: str) -> DataFrame:
    """Returns windows with equal keys as one row.

    The target is null unless all of them have the same. `aimed` counts what has a target.
    """
    sums = [*("finished", "dead", "retries", "busy_ms", "met"), *LADDER_MS]
    target = F.col("target_ms")
    has_one = F.bool_and(target.isNotNull()) & (F.min(target) == F.max(target))
    merged = windows.groupBy(*keys).agg(
        *(F.sum(name).alias(name) for name in sums),
        F.sum(F.when(target.isNotNull(), F.col("finished")).otherwise(0)).alias("aimed"),
        F.max("waited_max_ms").alias("waited_max_ms"),
        F.when(has_one, F.min(target)).alias("target_ms"),
        *(
            F.kll_merge_agg_bigint(f"{name}_sketch", F.lit(SKETCH_K)).alias(f"{name}_sketch")
            for name in SKETCHED
        ),
    )
    return with_quantiles(merged).orderBy(*keys)


def with_quantiles(frame: DataFrame) -> DataFrame:
    """Adds p50, p95 and p99 of each sketch, as e.g. `waited_p95_ms`; null of an empty one."""
    ranks = F.array(*(F.lit(rank) for rank in RANKS.values()))
    for name in SKETCHED:
        quantiles = F.when(
            F.kll_sketch_get_n_bigint(f"{name}_sketch") > 0,
            F.kll_sketch_get_quantile_bigint(f"{name}_sketch", ranks),
        )
        for at, rank in enumerate(RANKS):
            frame = frame.withColumn(f"{name}_{rank}_ms", quantiles[at] / 1000)
    return frame


def _measured(results: DataFrame) -> DataFrame:
    """Returns the results without their bodies, with the measured times as whole microseconds.

    `ran_us` is null for a sub-request that died before its handler ran, or with its worker. If
    it died with its worker, `waited_us` and `total_us` are null as well. In Redis these are 0.
    """
    has_run = (F.col("status") != "dead") | (F.col("ran_ms") > 0)
    is_known = has_run | (F.col("waited_ms") > 0)
    return results.drop("result", "error").select(
        "*",
        F.when(is_known, F.col("waited_ms") * 1000).alias("waited_us"),
        F.when(has_run, _micros("ran_ms")).alias("ran_us"),
        F.when(is_known, _micros("total_ms")).alias("total_us"),
        F.unix_micros("started").alias("started_us"),
        F.unix_micros("settled").alias("settled_us"),
    )


def _why_none(spark: SparkSession, archive: str) -> str:
    """Returns why a folder has no table of requests."""
    if read_table(spark, archive, "batches") is not None:
        return f"the archive {archive} holds nothing yet: nothing had ended when it was written"
    return f"{archive} is no archive of a queue: it has no table of requests"


def _micros(name: str) -> Column:
    return F.round(F.col(name) * 1000).cast("bigint")


def _write(frame: DataFrame, file: Path) -> pa.Table:
    table = frame.toArrow()
    pq.write_table(table, file)
    return table


def rows_of(table: pa.Table) -> Rows:
    """Returns the rows, with moments as ms and without sketches."""
    columns = {}
    for field in table.schema:
        values = table.column(field.name)
        if pa.types.is_timestamp(field.type):
            values = pc.divide(values.cast(pa.int64()), 1000)
        if not pa.types.is_binary(field.type) and not pa.types.is_large_binary(field.type):
            columns[field.name] = values
    rows: Rows = pa.table(columns).to_pylist()
    return rows


def _workers(results: DataFrame) -> DataFrame:
    return (
        results.where(F.col("worker") != NO_WORKER)
        .groupBy("worker")
        .agg(
            F.count(F.lit(1)).alias("finished"),
            F.sum("ran_ms").alias("busy_ms"),
            F.min("started").alias("first"),
            F.max("settled").alias("last"),
        )
        .orderBy(F.desc("finished"), "worker")
    )


def _longest_waits(results: DataFrame) -> DataFrame:
    wait = F.struct("waited_ms", "request", "index", "started")
    return (
        results.groupBy("priority")
        .agg(F.max(wait).alias("longest"))
        .select("priority", "longest.*")
        .orderBy("priority")
    )


def _dead(dead: DataFrame) -> DataFrame:
    return (
        dead.groupBy("priority", "reason", "fingerprint")
        .agg(
            F.count(F.lit(1)).alias("count"),
            F.count_distinct("request").alias("requests"),
            F.min("error").alias("error"),
            F.min("died").alias("first"),
            F.max("died").alias("last"),
        )
        .orderBy(F.desc("count"), "fingerprint", "priority")
    )
