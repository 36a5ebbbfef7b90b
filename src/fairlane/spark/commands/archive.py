"""`fairlane spark archive`: keeps the completion log and the results for good, as Parquet."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING

import click

from fairlane import settings
from fairlane.cli.options import FILE, json_option, queue_option, redis_option
from fairlane.cli.output import note, write_json
from fairlane.errors import InvalidArgument
from fairlane.spark.commands.session import master_option, must_answer, redis_for, spark_session

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fairlane.spark.archive import Archived


@click.command("archive", short_help="Keep endings and results as Parquet, by date.")
@click.argument("out", metavar="FOLDER", type=FILE)
@click.option("--checkpoint", metavar="FOLDER", help="Where it stands.  [default: inside FOLDER]")
@click.option("--follow", is_flag=True, help="Go on with what ends from now on, until Ctrl-C.")
@click.option(
    "--every",
    default="1m",
    show_default=True,
    metavar="DURATION",
    help="With --follow: from one batch to the next, such as 30s.",
)
@click.option(
    "--batch",
    type=click.IntRange(1),
    metavar="N",
    help="At most so many endings in a batch.  [default: all there are]",
)
@click.option("--results/--no-results", default=True, help="Of each request.  [default: results]")
@click.option(
    "--skip-lost", is_flag=True,
    help="Go on with what is left where endings left the log unread.",
)  # fmt: skip
@queue_option
@master_option
@json_option
@redis_option
def command(
    out: str, checkpoint: str | None, follow: bool, every: str, batch: int | None, results: bool,
    skip_lost: bool, queue: str, master: str | None, redis: str | None, as_json: bool,
) -> int:  # fmt: skip
    """Write what has ended since the last time to FOLDER, every ending exactly once.

    A batch has all that has ended by then. With --follow the next one begins after --every. Run it
    at least once a day: the log keeps for a day what was not archived, up to 2,000,000 endings, and
    results stay for a day.
    """
    from fairlane.protocol.keys import check_name

    check_name("queue", queue)
    every_s = _every_s(every)
    url = redis_for(master, redis)
    with spark_session(master, f"archive {queue}", ends_well=follow) as spark, _named():
        from fairlane.spark.archive import archive

        must_answer(url)
        archived = archive(
            spark, url, out, queue=queue, checkpoint=checkpoint, follow=follow, results=results,
            most=batch, every_s=every_s, fail_on_data_loss=not skip_lost, on_batch=_note_progress,
        )  # fmt: skip
    if as_json:
        write_json(dataclasses.asdict(archived))
    note(f"archived to {out}: {_counts(archived)}")
    if archived.missing:
        note(f"{archived.missing:,} results had left Redis before: archive more often")
    return 0


def _every_s(text: str) -> float:
    """Returns the seconds of --every. Raises InvalidArgument."""
    try:
        every_s = settings.duration_ms(text) / 1000
    except InvalidArgument as error:
        raise InvalidArgument(f"--every: {error}") from None
    if every_s < 1:
        raise InvalidArgument(
            f"--every {text} is too short: a batch takes seconds, name 1s or more"
        )
    return every_s


@contextlib.contextmanager
def _named() -> Iterator[None]:
    """Replaces the option's name in a DataLost error by this command's option."""
    from fairlane.errors import DataLost

    try:
        yield
    except DataLost as lost:
        sentence = str(lost).replace("set the option failOnDataLoss to false", "add --skip-lost")
        raise DataLost(sentence) from None


def _note_progress(done: Archived) -> None:
    note(f"so far {_counts(done)}")


def _counts(done: Archived) -> str:
    return f"{done.requests:,} endings, {done.results:,} results, {done.dead:,} dead"
