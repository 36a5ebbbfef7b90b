"""`fairlane spark submit`: makes sub-requests of the rows of files."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import click

from fairlane.cli.options import (
    FILE,
    json_option,
    queue_option,
    read_options,
    redis_option,
    request_options,
)
from fairlane.cli.output import note, write_json, write_line
from fairlane.common import clock
from fairlane.errors import InvalidArgument, RequestNotFound
from fairlane.options_table import BY_NAME
from fairlane.spark.commands.session import (
    FORMATS,
    StageProgress,
    master_option,
    must_answer,
    must_be_there,
    redis_for,
    spark_session,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_OF_ROWS = (BY_NAME["priority"], BY_NAME["limit"])
_MODES = ("staged", "dedupe", "pipelined")


@click.command("submit", short_help="Submit the rows of files, of any size.")
@click.argument("source", metavar="SOURCE", type=FILE)
@click.option("--format", "form", type=click.Choice(FORMATS), default="text", show_default=True)
@click.option("--body", metavar="COL", help="The column that is the body.  [default: body]")
@click.option(
    "--body-format",
    type=click.Choice(("json", "arrow")),
    help="The whole row is the body: as a JSON object, or as an Arrow stream.",
)
@click.option(
    "--request-column", "column", metavar="COL",
    help="A request for each value of this column, its id.",
)  # fmt: skip
@click.option(
    "--id", "xid", metavar="XID", help="The request's id.  [default: that of --txn, or a new one]"
)
@request_options(_OF_ROWS)
@click.option(
    "--mode", type=click.Choice(_MODES), default="staged", show_default=True,
    help="staged: all or nothing; dedupe: by --key-column; pipelined: workers start immediately.",
)  # fmt: skip
@click.option(
    "--key-column", metavar="COL", help="The column that identifies a row: results show it."
)
@click.option(
    "--txn", metavar="NAME",
    help="Repeating a command with the same NAME adds nothing. Unless ids are given it is the id.",
)  # fmt: skip
@click.option(
    "--finalize/--open", "is_final", default=True,
    help="--open: more may be submitted to it later.  [default: finalize]",
)  # fmt: skip
@queue_option
@master_option
@json_option
@redis_option
def command(
    source: str, form: str, column: str | None, xid: str | None, master: str | None,
    redis: str | None, as_json: bool, **chosen: Any,
) -> int:  # fmt: skip
    """Submit the rows of SOURCE: a file, a folder or a pattern, of this machine or of s3a:, hdfs:.

    Text has a row a line; csv has its columns' names in the first line. Prints the request's id,
    with --request-column those of all. Exit code 2: nothing was submitted; 5: Redis cannot be used.
    """
    from fairlane.protocol.keys import check_name, new_id

    if column is not None and xid is not None:
        raise InvalidArgument(
            "--request-column takes the ids from its column: leave out --id or --request-column"
        )
    chosen |= {option.name: option.default for option in _OF_ROWS if chosen[option.name] is None}
    read_options({option.name: chosen[option.name] for option in _OF_ROWS})
    check_name("queue", chosen["queue"])
    if chosen["txn"] is not None:
        check_name("txn", chosen["txn"])
    # A transaction belongs to its request: under a new id it would add everything again.
    xid = chosen["txn"] if xid is None else xid
    request_id = check_name("request id", xid) if xid is not None else new_id()
    must_be_there(source, master)
    url = redis_for(master, redis)
    with spark_session(master, f"submit {source}") as spark:
        rows = read(spark, source, form)
        target = {"requestColumn": column} if column else {"request": request_id}
        options = {"redis": url, **target, **_options(rows, source, form, column, **chosen)}
        must_answer(url)
        return _submit(spark, rows, options, column, chosen, as_json=as_json)


def read(spark: SparkSession, source: str, form: str) -> DataFrame:
    r"""Returns the rows; a line of text ends at \n only.

    Columns of csv are text, and their names are in the first line.
    """
    reader = spark.read.format(form)
    if form == "text":
        reader = reader.option("lineSep", "\n")
    if form == "csv":
        reader = reader.option("header", "true")
    return reader.load(source)


def _options(
    rows: DataFrame, source: str, form: str, request_column: str | None, *, body: str | None,
    body_format: str | None, priority: int, limit: int, queue: str, mode: str,
    key_column: str | None, txn: str | None, is_final: bool,
) -> dict[str, str]:  # fmt: skip
    """Returns the sink's options. Raises InvalidArgument for a column that does not exist."""
    if body is not None and body_format is not None:
        raise InvalidArgument("--body names one column, --body-format takes all: leave one out")
    from fairlane.spark.sink.plan import column_of

    given = {"--body": body, "--request-column": request_column, "--key-column": key_column}
    for name, column in given.items():
        if column is not None and not column_of(column, rows.columns):
            raise InvalidArgument(
                f"{name} {column}: {source} has no such column, it has {', '.join(rows.columns)}"
            )
    options = {"queue": queue, "priority": str(priority), "limit": str(limit), "writeMode": mode}
    if body_format is not None:
        options["bodyFormat"] = body_format
    elif body is not None or form == "text" or column_of("body", rows.columns):
        options["bodyColumn"] = body or ("value" if form == "text" else "body")
    else:
        raise InvalidArgument(
            "what is the body? --body COL names a column, --body-format json takes the whole row; "
            f"{source} has {', '.join(rows.columns)}"
        )
    if key_column is not None:
        options["keyColumn"] = key_column
    if txn is not None:
        options["txn"] = txn
    return options | {"finalize": "true" if is_final else "false"}


def _submit(
    spark: SparkSession, rows: DataFrame, options: dict[str, str], column: str | None,
    chosen: dict[str, Any], *, as_json: bool,
) -> int:  # fmt: skip
    from fairlane.spark.data_source import FORMAT

    names = [options["request"]] if column is None else _ids_of(rows, column)
    before = _totals(options, names)
    began = clock.mono_s()
    with StageProgress(spark, "submitting"):
        rows.write.format(FORMAT).options(**options).mode("append").save()
    seconds = max(0.001, clock.mono_s() - began)
    now = _totals(options, names)
    for name in names:
        if not as_json:
            write_line(name)
            continue
        row = {"id": name, "sub_requests": now[name], "added": now[name] - before[name]}
        write_json(row | {"priority": chosen["priority"], "limit": chosen["limit"]})
    total = sum(now.values())
    added = total - sum(before.values())
    summary = f"submitted {added:,} sub-requests in {len(names):,} request"
    summary += f"{'' if len(names) == 1 else 's'} in {seconds:.1f} s"
    note(summary if added == total else f"{summary}: {total:,} with the earlier ones")
    return 0


def _ids_of(rows: DataFrame, name: str) -> list[str]:
    """Returns the ids in the column. The sink refuses a null and names its row."""
    from pyspark.sql import functions as sql

    column = sql.col(f"`{name}`").cast("string").alias("id")
    ids = rows.select(column).where("id is not null").distinct().orderBy("id")
    return [name for (name,) in ids.toLocalIterator()]


def _totals(options: dict[str, str], names: list[str]) -> dict[str, int]:
    """Returns each request's number of sub-requests; 0 if it does not exist."""
    from fairlane.queue import Queue

    totals = dict.fromkeys(names, 0)
    with Queue.from_url(options["redis"], name=options["queue"]) as queue:
        for name in names:
            with contextlib.suppress(RequestNotFound):
                totals[name] = queue.request(name).progress().total
    return totals
