"""Finds takes that happened although a more urgent request was open to workers.

A worker *takes* a slice: some sub-requests of one request, at one moment. A request is *open to
workers* under two conditions. One of its sub-requests waits for its first attempt, and it holds
fewer slices than its limit. A take is inverted if a more urgent request was open from GRACE_MS
before the take until after it. The grace covers slices that workers have begun: a higher
priority waits for one slice. A request that a person paused looks the same as one that waited.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812  the usual name

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


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
