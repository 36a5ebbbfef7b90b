"""The tables of the report: small aggregates of the archive, however long the history is.

Time is cut into windows of equal width. Distributions are kept as KLL sketches, which can be
merged afterwards: over windows, priorities, or the reports of several queues.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812  the usual name

from fairlane.errors import InvalidArgument
from fairlane.spark.archive import read_table

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from pyspark.sql import Column, DataFrame, SparkSession


# ------------------------------------------------------------------ time windows
# The windows of time that a report is made of, and the shape of its tables.


FAIR_S = 1.0  # a shorter window holds too few slices to compare requests
_WINDOWS = 120  # at most
_SHORT_WINDOWS = 40  # at most, below a second: a window should hold several slices of 20 ms
_WIDTHS_S = (
    *(0.02, 0.05, 0.1, 0.2, 0.5),
    *(1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200),
    *(86_400, 172_800, 604_800, 2_592_000),
)
_MICRO = 1_000_000


class Axis(NamedTuple):
    """The windows: the first begins at `start_us`, each is `width_us` long."""

    start_us: int
    width_us: int
    windows: int

    @classmethod
    def spanning(cls, low_us: int, high_us: int) -> Axis:
        """Returns windows of a round width that hold both moments."""
        span_s = (high_us - low_us) / _MICRO
        width_s = next((w for w in _WIDTHS_S if span_s / w < _most(w) - 1), _WIDTHS_S[-1])
        width_us = round(width_s * _MICRO)
        start_us = low_us // width_us * width_us
        return cls(start_us, width_us, (high_us - start_us) // width_us + 1)

    def at_least(self, width_s: float) -> Axis:
        """Returns windows that are no shorter than `width_s` and end within these."""
        width_us = max(self.width_us, round(width_s * _MICRO))
        return Axis(self.start_us, width_us, self.width_us * self.windows // width_us)

    def of(self, micros: Column) -> Column:
        """Returns the number of the window that a moment is in."""
        return F.floor((micros - F.lit(self.start_us)) / F.lit(self.width_us)).cast("int")


def _most(width_s: float) -> int:
    return _WINDOWS if width_s >= 1 else _SHORT_WINDOWS


# ------------------------------------------------------------------ bands
# Priorities as the few series that a plot and a table can show: each alone, or in bands.


ALONE = 8  # so many priorities get a series each
_BANDS = 6  # at most
_SIZES = (2, 5, 10, 20)  # of a band; the last makes five bands of all 100 priorities


class Bands:
    """Holds the series of a report. A series' key is the first priority that it could hold."""

    def __init__(self, priorities: Iterable[int | None]) -> None:
        self.priorities = sorted({priority for priority in priorities if priority is not None})
        self.size = 1
        if len(self.priorities) > ALONE:
            self.size = next(size for size in _SIZES if len(self._keys(size)) <= _BANDS)
        self.keys = self._keys(self.size)

    @classmethod
    def of(cls, tables: Mapping[str, Rows]) -> Bands:
        """Returns the bands of all priorities that a report names."""
        rows = [*tables["requests"], *tables.get("priorities", [])]
        return cls(row["priority"] for row in rows)

    def _keys(self, size: int) -> list[int]:
        return sorted({priority // size * size for priority in self.priorities})

    def key(self, priority: Any) -> Any:
        """Returns the key of a priority's series: of a number, or of a column as a column."""
        return priority - priority % self.size

    def name(self, key: int) -> str:
        """Returns how a series is called, such as "20 to 39"; one priority is called by itself."""
        members = [priority for priority in self.priorities if self.key(priority) == key]
        return str(members[0]) if len(members) == 1 else f"{key} to {key + self.size - 1}"

    def group(self, rows: Rows, *by: str) -> list[Rows]:
        """Returns the rows in groups of one series and equal values of `by`, in that order."""
        groups: dict[tuple[Any, ...], Rows] = {}
        for row in rows:
            key = (self.key(row["priority"]), *(row[name] for name in by))
            groups.setdefault(key, []).append(row)
        return [groups[key] for key in sorted(groups)]

    def total(self, group: Rows, *names: str) -> dict[str, Any]:
        """Returns the sums of a group of one series, with the series' key as its priority."""
        sums = {name: sum(row[name] for row in group) for name in names}
        return {**group[0], **sums, "priority": self.key(group[0]["priority"])}


# ------------------------------------------------------------------ fairness
# Measures how evenly requests share the tokens over time.
#
# A sub-request in its handler uses one token. A request may use as many tokens as its limit, from
# its submission to its end.


def in_windows(frame: DataFrame, begin: Column, end: Column, axis: Axis) -> DataFrame:
    """Returns each row once for each window of [begin, end), with `window` and `overlap_us`."""
    low = F.greatest(axis.of(begin), F.lit(0))
    high = F.least(axis.of(F.greatest(end - 1, begin)), F.lit(axis.windows - 1))
    spread = frame.where(low <= high).withColumn("window", F.explode(F.sequence(low, high)))
    window_begins = F.lit(axis.start_us) + F.col("window").cast("bigint") * F.lit(axis.width_us)
    overlap = F.least(end, window_begins + F.lit(axis.width_us)) - F.greatest(begin, window_begins)
    return spread.withColumn("overlap_us", overlap)


def busy_in_windows(results: DataFrame, axis: Axis) -> DataFrame:
    """Returns the microseconds in the handler by request and window."""
    ran = results.where("ran_us > 0")
    spread = in_windows(ran, F.col("started_us"), F.col("started_us") + F.col("ran_us"), axis)
    return spread.groupBy("request", "batch", "priority", "window").agg(
        F.sum("overlap_us").alias("busy_us")
    )


def _allowed(requests: DataFrame, axis: Axis) -> DataFrame:
    """Returns the requests by window, with how long (us) each existed there."""
    begin, end = F.unix_micros("submitted"), F.unix_micros("ended")
    named = requests.select(
        F.col("id").alias("request"),
        *("batch", "priority", "limit"),
        begin.alias("begin_us"),
        end.alias("end_us"),
    )
    return in_windows(named, F.col("begin_us"), F.col("end_us"), axis)


def token_use(requests: DataFrame, busy: DataFrame, axis: Axis) -> DataFrame:
    """Returns tokens in use on average, tokens allowed and their ratio, by window and priority."""
    width = F.lit(axis.width_us)
    allowed = (
        _allowed(requests, axis)
        .groupBy("window", "priority")
        .agg((F.sum(F.col("overlap_us") * F.col("limit")) / width).alias("allowed"))
    )
    used = busy.join(
        requests.select(F.col("id").alias("request"), "batch"), ["request", "batch"], "left_semi"
    )
    used = used.groupBy("window", "priority").agg((F.sum("busy_us") / width).alias("used"))
    return (
        allowed.join(used, ["window", "priority"], "left")
        .fillna(0.0, ["used"])
        .withColumn("at", _moment(axis))
        .withColumn("use", F.col("used") / F.col("allowed"))
        .orderBy("window", "priority")
    )


def fairness(requests: DataFrame, busy: DataFrame, axis: Axis) -> DataFrame:
    """Returns Jain's index by window and priority, of requests that existed for all of the window.

    It needs two or more requests. Each counts with the share of its own limit that it used. 1 =
    all the same, 1/n = one had everything.
    """
    there = _allowed(requests, axis).where(F.col("overlap_us") == axis.width_us)
    share = F.coalesce(F.col("busy_us"), F.lit(0)) / F.col("limit")
    shares = there.join(busy.drop("priority"), ["request", "batch", "window"], "left").withColumn(
        "share", share
    )
    return (
        shares.groupBy("window", "priority")
        .agg(
            F.count(F.lit(1)).alias("requests"),
            F.sum("share").alias("sum"),
            F.sum(F.col("share") * F.col("share")).alias("squares"),
        )
        .where("requests > 1 and squares > 0")
        .withColumn("jain", F.col("sum") * F.col("sum") / (F.col("requests") * F.col("squares")))
        .withColumn("at", _moment(axis))
        .drop("sum", "squares")
        .orderBy("window", "priority")
    )


def _moment(axis: Axis) -> Column:
    micros = F.lit(axis.start_us) + F.col("window").cast("bigint") * F.lit(axis.width_us)
    return F.timestamp_micros(micros)


# ------------------------------------------------------------------ inversions
# Finds takes that happened although a more urgent request was open to workers.
#
# A worker *takes* a slice: some sub-requests of one request, at one moment. A request is *open to
# workers* under two conditions. One of its sub-requests waits for its first attempt, and it holds
# fewer slices than its limit. A take is inverted if a more urgent request was open from GRACE_MS
# before the take until after it. The grace covers slices that workers have begun: a higher
# priority waits for one slice. A request that a person paused looks the same as one that waited.


GRACE_MS = 250
MOST = 20  # inverted takes that are shown
NO_WORKER = "-"  # the worker of a sub-request that a deadline ended
_OF_REQUEST = ("request", "batch", "priority", "limit")


def find_inversions(results: DataFrame, requests: DataFrame) -> tuple[DataFrame, DataFrame]:
    """Returns takes and inverted takes by priority, and the longest-waiting examples."""
    limits = requests.select(F.col("id").alias("request"), "batch", "limit")
    rows = results.join(limits, ["request", "batch"]).withColumn("taken_us", _taken())
    with_worker = rows.where(f"worker != '{NO_WORKER}' and taken_us is not null")
    takes = with_worker.groupBy(*_OF_REQUEST, "worker", "taken_us").agg(
        F.max("settled_us").alias("settled_us"), F.count(F.lit(1)).alias("sub_requests")
    )
    judged = _judged(takes, open_times(rows, takes)).persist()
    inverted = F.col("other.request").isNotNull()
    summed = (
        judged.groupBy("priority")
        .agg(
            F.count(F.lit(1)).alias("takes"),
            F.count_if(inverted).alias("inverted"),
            F.sum(F.when(inverted, F.col("sub_requests")).otherwise(0)).alias("sub_requests"),
        )
        .orderBy("priority")
    )
    examples = (
        judged.where(inverted)
        .select(
            F.timestamp_micros("taken_us").alias("taken"),
            *("request", "priority", "worker", "sub_requests"),
            F.col("other.request").alias("waiting_request"),
            F.col("other.priority").alias("waiting_priority"),
            ((F.col("taken_us") - F.col("other.begin_us")) / 1000).alias("waiting_ms"),
        )
        .orderBy(F.desc("waiting_ms"), "taken")
        .limit(MOST)
    )
    return summed, examples


def _taken() -> Column:
    """Returns when a result's slice was taken: before its first sub-request started.

    It is null for a sub-request that died with its worker. If a deadline ended the sub-request,
    it is that moment.
    """
    ran_us = F.coalesce("ran_us", F.lit(0))
    before_us = F.col("total_us") - F.col("waited_us") - ran_us
    return F.col("started_us") - before_us


def open_times(rows: DataFrame, takes: DataFrame) -> DataFrame:
    """Returns when each request was open to workers: request, priority, begin_us, end_us."""
    zero, one = F.lit(0), F.lit(1)
    first = rows.where(
        f"taken_us is not null and (attempt = 0 or attempt = 1 and worker != '{NO_WORKER}')"
    )
    submitted = F.col("taken_us") - F.col("waited_us")
    events = (
        first.select(*_OF_REQUEST, submitted.alias("t"), one.alias("waiting"), zero.alias("held"))
        .unionAll(first.select(*_OF_REQUEST, "taken_us", -one, zero))
        .unionAll(takes.select(*_OF_REQUEST, "taken_us", zero, one))
        .unionAll(takes.select(*_OF_REQUEST, "settled_us", zero, -one))
        .groupBy(*_OF_REQUEST, "t")
        .agg(F.sum("waiting").alias("waiting"), F.sum("held").alias("held"))
    )
    in_order = Window.partitionBy("request", "batch").orderBy("t")
    so_far = in_order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    is_open = (F.col("waiting") > 0) & (F.col("held") < F.col("limit"))
    steps = (
        events.withColumn("until", F.lead("t").over(in_order))
        .withColumn("waiting", F.sum("waiting").over(so_far))
        .withColumn("held", F.sum("held").over(so_far))
        .where("until is not null")
        .withColumn("is_open", is_open)
        .withColumn("closed", F.sum((~F.col("is_open")).cast("int")).over(so_far))
    )
    return (
        steps.where("is_open")
        .groupBy("request", "batch", "priority", "closed")
        .agg(F.min("t").alias("begin_us"), F.max("until").alias("end_us"))
        .drop("closed", "batch")
    )


def _judged(takes: DataFrame, times: DataFrame) -> DataFrame:
    """Returns the takes with `other`: a more urgent request that was open to workers, or null.

    Of all times that began before, the one that ends last decides: a running maximum.
    """
    levels = takes.select(F.col("priority").alias("level")).distinct()
    other = F.struct(
        *(F.col(name) for name in ("end_us", "begin_us", "request", "priority"))
    ).alias("other")
    grace_us = F.lit(GRACE_MS * 1000)
    starts = (
        times.join(F.broadcast(levels), F.col("priority") < F.col("level"))
        .where(F.col("end_us") - F.col("begin_us") > grace_us)
        .select("level", (F.col("begin_us") + grace_us).alias("t"), other)
    )
    take_events = takes.select(
        F.col("priority").alias("level"), F.col("taken_us").alias("t"), F.struct("*").alias("take")
    )
    events = starts.withColumn("take", F.lit(None)).unionByName(
        take_events, allowMissingColumns=True
    )
    so_far = (
        Window.partitionBy("level")
        .orderBy("t", F.col("take").isNotNull())
        .rowsBetween(Window.unboundedPreceding, Window.currentRow)
    )
    last = F.max("other").over(so_far)
    waits = F.when(last["end_us"] > F.col("t"), last)
    return events.withColumn("other", waits).where("take is not null").select("take.*", "other")


# ------------------------------------------------------------------ summary
# Computes the few numbers at the head of the page.


def summarise(
    tables: Mapping[str, Rows], start_us: int, width_us: int, windows: int
) -> dict[str, Any]:
    """Returns the summary as numbers and texts that JSON can hold; None for unknown values."""
    width_s = width_us / 1e6
    states = tables["states"]
    totals = next((row for row in tables.get("priorities", []) if row["priority"] is None), None)
    summary: dict[str, Any] = {
        "from": _iso(start_us, width_us),
        "to": _iso(start_us + width_us * windows, width_us),
        "window_s": width_s,
        "windows": windows,
        "requests": sum(row["requests"] for row in states),
        "cancelled_requests": sum(r["requests"] for r in states if r["state"] == "cancelled"),
        "lost_requests": sum(row["requests"] for row in states if row["state"] == "lost"),
        "done": sum(row["done"] for row in states),
        "dead": sum(row["dead"] for row in states),
        "cancelled": sum(row["cancelled"] for row in states),
        "results": sum(row["results"] for row in states),
    }
    if totals is None:
        return summary
    return (
        summary
        | rates(tables["windows"], tables["tokens"], width_s)
        | {
            "finished": totals["finished"],
            "retries": totals["retries"],
            **{name: totals[name] for name in totals if name.endswith("_ms") and "_p" in name},
            "longest_wait_ms": totals["waited_max_ms"],
            "attainment": _attainment(tables["priorities"]),
            "jain": weighted_mean(tables["fairness"], "jain", "requests"),
            "jain_worst": min((row["jain"] for row in tables["fairness"]), default=None),
            "token_use": _use(tables["tokens"]),
            "takes": sum(row["takes"] for row in tables["inversions"]),
            "inverted_takes": sum(row["inverted"] for row in tables["inversions"]),
            "workers": len(tables["workers"]),
        }
    )


def rates(windows: Rows, tokens: Rows, width_s: float) -> dict[str, float]:
    """Returns rates per second of the windows in which a handler ran or something was settled.

    Windows without work do not count, because a queue is not slow when it is empty.
    """
    settled: dict[int, int] = {}
    for row in windows:
        settled[row["window"]] = settled.get(row["window"], 0) + row["finished"]
    busy = set(settled) | {row["window"] for row in tokens if row["used"]}
    return {
        "per_s": sum(settled.values()) / (len(busy) * width_s),
        "peak_per_s": max(settled.values()) / width_s,
    }


def _iso(micros: int, width_us: int) -> str:
    digits = "seconds" if width_us >= 1_000_000 else "milliseconds"  # noqa: PLR2004
    return datetime.fromtimestamp(micros / 1e6, UTC).isoformat(timespec=digits)


def weighted_mean(rows: Rows, value: str, weight: str) -> float | None:
    """Returns the mean of the rows' values by weight, or None of no rows."""
    weights = sum(row[weight] for row in rows)
    return sum(row[value] * row[weight] for row in rows) / weights if weights else None


def _use(rows: Rows) -> float | None:
    allowed = sum(row["allowed"] for row in rows)
    return sum(row["used"] for row in rows) / allowed if allowed else None


def _attainment(priorities: Rows) -> float | None:
    """Returns the share of the settled sub-requests with a target that met it."""
    aimed = [row for row in priorities if row["target_ms"] is not None]
    finished = sum(row["finished"] for row in aimed)
    return sum(row["met"] for row in aimed) / finished if finished else None


# ------------------------------------------------------------------ tables
# Writes the tables of one report.


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
