"""Calls the queue as a remote function: rows become sub-requests, and their results are joined.

All rows go into one request, so its limit and its priority hold for all of them. The rows are
numbered and kept (a checkpoint) before they are submitted. So rows that are computed again later,
by another executor or with rand(), never get another row's result. See docs/decisions.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as sql

from fairlane import settings
from fairlane.common.text import exact
from fairlane.errors import FairlaneError, InvalidArgument, WaitTimeout
from fairlane.options import check_option, read_option
from fairlane.protocol import keys
from fairlane.queue import Queue
from fairlane.spark.data_source import FORMAT, register
from fairlane.spark.fleet import url_for
from fairlane.spark.spark_session import ours

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame, SparkSession

    from fairlane.option_types import Duration
    from fairlane.records import Progress

ATTEMPTS = 3
BACKOFF = (0.1, 1.0)
RESULTS = ("result", "status", "attempt")
_ROW, _PART, _BASE, _INDEX = "__fairlane_row", "__fairlane_part", "__fairlane_base", "index"
_NO_READER = "no query waits for its rows any more"
_PART_BITS = 33  # monotonically_increasing_id has the partition above, the row in it below


def queue_udf(
    df: DataFrame,
    *,
    body: str = "body",
    redis: str | None = None,
    queue: str = settings.DEFAULT_QUEUE,
    priority: int = settings.DEFAULT_PRIORITY,
    limit: int = settings.DEFAULT_LIMIT,
    request: str | None = None,
    attempts: int = ATTEMPTS,
    backoff: Duration | tuple[Duration, Duration] = BACKOFF,
    deadline: Duration | None = None,
    time_limit: Duration | None = None,
    timeout_s: float | None = None,
    keep: Sequence[str] | None = None,
) -> DataFrame:
    """Sends the column `body` of each row through a queue; returns the rows with their results.

    Submits one request (named `request`, else with a new id) and waits until it has ended.
    Returns the columns `keep` (default: all) with `result` (binary), `status` (done, dead or
    cancelled) and `attempt`. At most `limit` workers hold rows at a time; plain workers or a
    fleet must run. The frame reads the results from Redis whenever it is computed, without new
    handler calls. After a day it raises RequestLost. The request has `attempts`, `backoff`
    (shortest, longest), `deadline` and `time_limit`. Their defaults are small, because one
    row that always fails holds the query. After `timeout_s` seconds the request is cancelled.
    Raises InvalidArgument, RequestExists, WaitTimeout and RedisError.
    """
    wanted = _wanted(df, body, keep)
    policy = _policy(attempts, backoff, deadline, time_limit)
    policy |= {
        "priority": check_option("priority", priority),
        "limit": check_option("limit", limit),
    }
    request_id = keys.check_name("request id", keys.new_id() if request is None else request)
    url = url_for(df.sparkSession, redis)
    rows = _kept(df.select(*map(_column, dict.fromkeys([*wanted, body]))))
    register(df.sparkSession, wrap_calls=False)
    _submit(rows, body, request_id, {"redis": url, "queue": queue, **policy})
    counts = _await(url, queue, request_id, timeout_s)
    results = _joined(rows, url, counts)
    attempt = sql.coalesce("attempt", sql.lit(0)).alias("attempt")
    return results.select(*map(_column, wanted), "result", _status(counts), attempt)


def _wanted(df: DataFrame, body: str, keep: Sequence[str] | None) -> list[str]:
    """Returns the columns to keep. Raises InvalidArgument for one that does not exist."""
    wanted = list(df.columns if keep is None else keep)
    for name in (body, *wanted):
        if name not in df.columns:
            raise InvalidArgument(f"there is no column {name!r}: there are {', '.join(df.columns)}")
    reserved = [name for name in wanted if name in RESULTS]
    if reserved:
        raise InvalidArgument(
            f"the column {reserved[0]!r} would stand twice in what comes back: rename it, "
            "or leave it out of keep"
        )
    return wanted


def _joined(rows: DataFrame, url: str, counts: Progress) -> DataFrame:
    """Returns the rows with the columns RESULTS; they are null if there is no result."""
    reader = rows.sparkSession.read.format(FORMAT).option("redis", url).option("request", counts.id)
    results = reader.option("born", counts.submitted_ms).load().select(_INDEX, *RESULTS)
    # The caller may have a column `index`.
    results = results.withColumnRenamed(_INDEX, _ROW)
    return _indexed(rows, counts.total).join(results, _ROW, "left")


def _policy(
    attempts: int,
    backoff: Duration | tuple[Duration, Duration],
    deadline: Duration | None,
    time_limit: Duration | None,
) -> dict[str, Any]:
    """Returns the request's policy as options of the sink. Raises InvalidArgument."""
    low, high = read_option("backoff", backoff)
    policy: dict[str, Any] = {
        "attempts": check_option("attempts", attempts), "backoff": f"{low}ms..{high}ms",
    }  # fmt: skip
    if deadline is not None:
        policy["deadline"] = f"{read_option('deadline', deadline)}ms"
    if time_limit is not None:
        policy["timeLimit"] = f"{read_option('time_limit', time_limit)}ms"
    return policy


def _column(name: str) -> Column:
    """Returns the column of exactly this name: a dot in it is no field of a struct."""
    return sql.col("`{}`".format(name.replace("`", "``")))


def _status(counts: Progress) -> Column:
    """Returns the column `status`.

    A row without a result was cancelled if any sub-request was; otherwise it is an error.
    """
    other = sql.lit("cancelled")
    if not counts.cancelled:
        why = f"request {counts.id} has no result for a row, though none was cancelled"
        other = sql.raise_error(sql.lit(why)).cast("string")
    return sql.coalesce("status", other).alias("status")


def _kept(df: DataFrame) -> DataFrame:
    """Returns the rows with a number, computed once and in their order within each partition."""
    numbered = df.withColumn(_ROW, sql.monotonically_increasing_id())
    if _has_checkpoints(df.sparkSession):
        return numbered.checkpoint(eager=True)
    return numbered.localCheckpoint(eager=True)


def _has_checkpoints(spark: SparkSession) -> bool:
    """Returns True if a folder for checkpoints is set, so that they outlive an executor."""
    if spark.conf.get("spark.checkpoint.dir", None):
        return True
    try:
        return spark.sparkContext.getCheckpointDir() is not None
    except Exception:  # noqa: BLE001  Spark Connect has no context
        return False


def _indexed(rows: DataFrame, total: int) -> DataFrame:
    """Replaces each row's number by its index: partitions are submitted one after the other.

    Raises FairlaneError if the number of rows is not the request's number of sub-requests.
    """
    part = sql.shiftright(_ROW, _PART_BITS)
    counts = rows.groupBy(part.alias(_PART)).count().orderBy(_PART).collect()
    bases, base = [], 0
    for number, count in counts:
        bases.append((number, base))
        base += count
    if base != total:
        raise FairlaneError(f"{base:,} rows were sent, but the request has {total:,} sub-requests")
    offsets = rows.sparkSession.createDataFrame(bases, f"{_PART} long, {_BASE} long")
    within = sql.col(_ROW).bitwiseAND(sql.lit((1 << _PART_BITS) - 1))
    numbered = rows.withColumn(_PART, part).join(sql.broadcast(offsets), _PART)
    return numbered.withColumn(_ROW, within + sql.col(_BASE)).drop(_PART, _BASE)


def _submit(rows: DataFrame, body: str, request_id: str, options: dict[str, Any]) -> None:
    writer = rows.select(_column(body)).write.format(FORMAT).options(**options)
    try:
        writer.option("request", request_id).option("bodyColumn", body).mode("append").save()
    except Exception as error:
        carried = ours(error)
        if carried is None:
            raise
        raise carried from error


def _await(url: str, queue: str, request_id: str, timeout_s: float | None) -> Progress:
    """Waits for the end and returns the counts.

    Raises WaitTimeout after `timeout_s`; the request is cancelled then.
    """
    with Queue.from_url(url, name=queue) as opened:
        request = opened.request(request_id)
        try:
            request.wait(timeout_s)
            return request.progress()
        except WaitTimeout:
            request.cancel(_NO_READER)
            raise WaitTimeout(
                f"request {request_id} had not ended after {exact(timeout_s or 0)} s and was "
                "cancelled: no other query could match its results to rows"
            ) from None
        except BaseException:
            with contextlib.suppress(FairlaneError):
                request.cancel(_NO_READER)
            raise
