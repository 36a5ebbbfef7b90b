"""Measures how evenly requests share the tokens over time.

A sub-request in its handler uses one token. A request may use as many tokens as its limit, from
its submission to its end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812  the usual name

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from fairlane.spark.report.axes import Axis


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
