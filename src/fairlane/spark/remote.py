"""The queue as a remote function: rows become sub-requests, their results are joined back.

All rows go into one request, so its limit and its priority hold for all of them, whoever works on
them. The rows are numbered and kept (a checkpoint) before anything is submitted: what is computed
again later, on another executor or by a rand(), is never another row's result. See docs/decisions.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from pyspark.sql import functions as sql

from .. import keys, settings
from ..errors import FairlaneError, InvalidArgument
from ..model import check_limit, check_priority
from ..queue import Queue
from .fleet import url_for
from .source import FORMAT, register
from .stream_errors import ours

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession

RESULTS = ("result", "status", "attempt")
_ROW, _PART, _BASE, _INDEX = "__fairlane_row", "__fairlane_part", "__fairlane_base", "index"
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
    timeout_s: float | None = None,
    keep: Sequence[str] | None = None,
) -> DataFrame:
    """Sends the column `body` of each row through a queue; the rows with what came of them.

    Submits one request (named `request`, else by itself), waits until it has ended, and returns the
    columns `keep` (default: all) with `result` (binary), `status` (done, dead or cancelled) and
    `attempt`. At most `limit` workers have rows in their hands at once; they work elsewhere: plain
    workers, or a fleet. What is returned reads the results out of Redis whenever it is computed,
    and calls nobody again; they stay there for a day. After `timeout_s` seconds the request is
    cancelled. Raises InvalidArgument, RequestExists, WaitTimeout, RedisError.
    """
    wanted = _wanted(df, body, keep)
    check_priority(priority), check_limit(limit)
    request_id = keys.check_name("request id", keys.new_id() if request is None else request)
    url = url_for(df.sparkSession, redis)
    rows = _kept(df.select(*dict.fromkeys([*wanted, body])))
    register(df.sparkSession)
    _submit(rows, body, request_id, {
        "redis": url, "queue": queue, "priority": str(priority), "limit": str(limit),
    })  # fmt: skip
    _await(url, queue, request_id, timeout_s)
    reader = df.sparkSession.read.format(FORMAT).option("redis", url).option("request", request_id)
    results = reader.load().select(_INDEX, *RESULTS)
    # `index` may be the name of a column of the caller's.
    results = results.withColumnRenamed(_INDEX, _ROW)
    status = sql.coalesce(sql.col("status"), sql.lit("cancelled")).alias("status")
    found = _indexed(rows).join(results, _ROW, "left")
    return found.select(
        *wanted, "result", status, sql.coalesce("attempt", sql.lit(0)).alias("attempt")
    )


def _wanted(df: DataFrame, body: str, keep: Sequence[str] | None) -> list[str]:
    """The columns that are kept. Raises InvalidArgument for one that is not there."""
    wanted = list(df.columns if keep is None else keep)
    for name in (body, *wanted):
        if name not in df.columns:
            raise InvalidArgument(f"there is no column {name!r}: there are {', '.join(df.columns)}")
    taken = [name for name in wanted if name in RESULTS]
    if taken:
        raise InvalidArgument(
            f"the column {taken[0]!r} would stand twice in what comes back: rename it, "
            "or leave it out of keep"
        )
    return wanted


def _kept(df: DataFrame) -> DataFrame:
    """The rows with a number, computed once; their order within each partition is kept, too."""
    numbered = df.withColumn(_ROW, sql.monotonically_increasing_id())
    if _has_checkpoints(df.sparkSession):
        return numbered.checkpoint(eager=True)
    return numbered.localCheckpoint(eager=True)


def _has_checkpoints(spark: SparkSession) -> bool:
    """True where a folder for checkpoints is set, so that they outlive an executor."""
    if spark.conf.get("spark.checkpoint.dir", None):
        return True
    try:
        return spark.sparkContext.getCheckpointDir() is not None
    except Exception:  # noqa: BLE001  Spark Connect has no context
        return False


def _indexed(rows: DataFrame) -> DataFrame:
    """With the index in the request instead: partitions are submitted one after the other."""
    part = sql.shiftright(_ROW, _PART_BITS)
    counts = rows.groupBy(part.alias(_PART)).count().orderBy(_PART).collect()
    bases, base = [], 0
    for number, count in counts:
        bases.append((number, base))
        base += count
    known = rows.sparkSession.createDataFrame(bases, f"{_PART} long, {_BASE} long")
    within = sql.col(_ROW).bitwiseAND(sql.lit((1 << _PART_BITS) - 1))
    found = rows.withColumn(_PART, part).join(sql.broadcast(known), _PART)
    return found.withColumn(_ROW, within + sql.col(_BASE)).drop(_PART, _BASE)


def _submit(rows: DataFrame, body: str, request_id: str, options: dict[str, str]) -> None:
    writer = rows.select(body).write.format(FORMAT).options(**options)
    try:
        writer.option("request", request_id).option("bodyColumn", body).mode("append").save()
    except Exception as error:
        found = ours(error)
        if found is None:
            raise
        raise found from error


def _await(url: str, queue: str, request_id: str, timeout_s: float | None) -> None:
    with Queue.from_url(url, name=queue) as opened:
        request = opened.request(request_id)
        try:
            request.wait(timeout_s)
        except BaseException:  # nobody else knows which row is which
            with contextlib.suppress(FairlaneError):
                request.cancel("nobody waits for its rows any more")
            raise
