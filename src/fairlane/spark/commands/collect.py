"""`fairlane spark collect`: writes the results of a request as files, in input order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from fairlane.cli.options import FILE, json_option, redis_option, timeout_option, timeout_s
from fairlane.cli.output import note, write_json, write_line
from fairlane.errors import InvalidArgument
from fairlane.spark.commands.session import (
    FORMATS,
    StageProgress,
    master_option,
    must_answer,
    must_be_free,
    redis_for,
    spark_session,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from fairlane.records import Progress as Counts

_COLUMNS = ("index", "status", "result", "attempt", "worker", "waited_ms", "ran_ms")


@click.command("collect", short_help="Write the results of a request as files, in input order.")
@click.argument("request_id", metavar="ID")
@click.option(
    "--out", required=True, metavar="PATH", type=FILE, help="A folder that does not exist so far."
)
@click.option(
    "--format", "form", type=click.Choice(FORMATS), default="parquet", show_default=True,
    help="text: a result a line; the others have all columns.",
)  # fmt: skip
@timeout_option
@master_option
@json_option
@redis_option
def command(
    request_id: str, out: str, form: str, timeout: str | None, master: str | None,
    redis: str | None, as_json: bool,
) -> int:  # fmt: skip
    """Wait until the request ID has ended and write its results to PATH; print PATH.

    The columns are index, status, result, attempt, worker, waited_ms and ran_ms. Parquet keeps
    results as bytes, the others as text. Exit code 1: some are dead or cancelled; 3: there is no
    such request; 4: --timeout is over.
    """
    from fairlane.cli.exit_status import dead_of, judge, naming_what_goes_on, wait_for
    from fairlane.protocol.keys import check_name
    from fairlane.queue import Queue

    check_name("request id", request_id)
    limit_s = timeout_s(timeout)
    must_be_free(out)
    url = redis_for(master, redis)
    must_answer(url)
    with Queue.from_url(url) as queue:
        request = queue.request(request_id)
        if not request.progress().ended:
            note(f"waiting for request {request_id} to end")
        with naming_what_goes_on(request_id):
            wait_for(request, limit_s)
        counts = request.progress()
        dead = dead_of(queue, counts)
    with (
        spark_session(master, f"collect {request_id}") as spark,
        StageProgress(spark, "collecting"),
    ):
        write(results(spark, url, counts), out, form)
    row: dict[str, Any] = {
        "id": request_id,
        "out": out,
        "state": counts.state,
        "outcome": counts.outcome,
    }
    row |= {"sub_requests": counts.total, "done": counts.done, "dead": counts.dead}
    write_json(row) if as_json else write_line(out)
    return judge(counts, dead)


def results(spark: SparkSession, url: str, counts: Counts) -> DataFrame:
    """Returns a row for each sub-request in input order; cancelled ones have no result."""
    from fairlane.spark.data_source import FORMAT

    reader = spark.read.format(FORMAT).option("redis", url).option("request", counts.id)
    rows = reader.load().select(*_COLUMNS)
    if counts.cancelled:
        from pyspark.sql import functions as sql

        indexes = spark.range(counts.total).withColumnRenamed("id", "index")
        rows = indexes.join(rows, "index", "left")
        status = sql.coalesce("status", sql.lit("cancelled"))
        rows = rows.withColumn("status", status).select(*_COLUMNS)
    return rows.orderBy("index")


def write(rows: DataFrame, out: str, form: str) -> None:
    """Writes the rows as files of a folder; the files' names are in the rows' order."""
    from pyspark.sql import functions as sql

    if form != "parquet":
        rows = rows.withColumn("result", sql.col("result").cast("string"))
    if form == "text":
        is_done = sql.col("status") == "done"
        _check_lines(rows.where(is_done))
        rows = rows.select(sql.when(is_done, sql.col("result")).otherwise("").alias("value"))
    writer = rows.write.format(form)
    if form == "csv":
        writer = writer.option("header", "true")
    writer.mode("errorifexists").save(out)


def _check_lines(done: DataFrame) -> None:
    """Raises InvalidArgument for a result that would be two lines, before anything is written."""
    from pyspark.sql import functions as sql

    (first,) = done.where(sql.contains("result", sql.lit("\n"))).agg(sql.min("index")).collect()[0]
    if first is not None:
        raise InvalidArgument(
            f"the result of sub-request {first} has more than one line, and text is a result a "
            "line: choose --format json"
        )
