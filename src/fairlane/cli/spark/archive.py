"""`fairlane spark archive`: the completion log and the results, kept for good as Parquet."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import click

from ..options import json_option, queue_option, redis_option
from ..talk import emit_json, say
from .running import master_option, redis_for, spark_session

if TYPE_CHECKING:
    from ...spark.archive import Archived


@click.command("archive", short_help="Keep endings and results as Parquet, by date.")
@click.argument("out", metavar="FOLDER")
@click.option("--checkpoint", metavar="FOLDER", help="Where it stands.  [default: inside FOLDER]")
@click.option("--follow", is_flag=True, help="Go on with what ends from now on, until Ctrl-C.")
@click.option("--results/--no-results", default=True, help="Of each request.  [default: results]")
@queue_option
@master_option
@json_option
@redis_option
def command(
    out: str, checkpoint: str | None, follow: bool, results: bool, queue: str, master: str | None,
    redis: str | None, as_json: bool,
) -> int:  # fmt: skip
    """Write what has ended since the last time to FOLDER, every ending exactly once.

    Run it often enough: the log keeps the last 100,000 endings, results stay for a day.
    """
    from ...keys import check_name

    check_name("queue", queue)
    url = redis_for(master, redis)
    with spark_session(master, f"archive {queue}") as spark:
        from ...spark.archive import archive

        found = archive(
            spark, url, out, queue=queue, checkpoint=checkpoint, follow=follow, results=results,
            on_batch=_tell,
        )  # fmt: skip
    if as_json:
        emit_json(dataclasses.asdict(found))
    say(f"archived to {out}: {_counts(found)}")
    if found.missing:
        say(f"{found.missing:,} results had left Redis before: archive more often")
    return 0


def _tell(done: Archived) -> None:
    say(f"so far {_counts(done)}")


def _counts(done: Archived) -> str:
    return f"{done.requests:,} endings, {done.results:,} results, {done.dead:,} dead"
