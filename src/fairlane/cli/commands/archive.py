"""`fairlane archive`: keeps the completion log and the results for good, as Parquet."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import click

from fairlane import settings
from fairlane.cli.options import FILE, json_option, open_queue, read_duration, redis_option
from fairlane.cli.output import note, note_unknown, write_json
from fairlane.errors import InvalidArgument

if TYPE_CHECKING:
    from fairlane.archive import Archived

_DAY_MS = 86_400_000


@click.command("archive", short_help="Keep endings and results as Parquet, by date.")
@click.argument("folder", metavar="FOLDER", type=FILE)
@click.option(
    "--queue", "queues", metavar="NAME", multiple=True, default=(settings.DEFAULT_QUEUE,),
    help="A queue, or a pattern such as 'shop-*'; may be repeated."
    f"  [default: {settings.DEFAULT_QUEUE}]",
)  # fmt: skip
@click.option("--follow", is_flag=True, help="Go on with what ends from now on, until Ctrl-C.")
@click.option(
    "--every", default="1m", show_default=True, metavar="DURATION",
    help="With --follow: from one batch to the next, such as 30s.",
)  # fmt: skip
@click.option(
    "--keep", metavar="DURATION", help="Drop days that are older, such as 90d.  [default: none]"
)
@click.option(
    "--batch", type=click.IntRange(1), metavar="N",
    help="At most so many endings in a batch.  [default: 500,000]",
)  # fmt: skip
@click.option("--results/--no-results", default=True, help="Of each request.  [default: results]")
@click.option(
    "--reveal", is_flag=True, help="Also write the fields that the requests hide (redact)."
)
@click.option(
    "--skip-lost", is_flag=True,
    help="Go on with what is left where endings left the log unread.",
)  # fmt: skip
@json_option
@redis_option
def command(
    folder: str, queues: tuple[str, ...], follow: bool, every: str, keep: str | None,
    batch: int | None, results: bool, reveal: bool, skip_lost: bool, redis: str | None,
    as_json: bool,
) -> int:  # fmt: skip
    """Write what has ended since the last time to FOLDER, every ending exactly once.

    One command archives any number of queues to one folder. With --follow it looks again every
    --every. Run it at least once a day: the log keeps for a day what was not archived, up to
    2,000,000 endings, and results stay for a day. Readers follow FOLDER/manifest.json.
    """
    from fairlane import archive
    from fairlane.cli.log import log_to_stderr
    from fairlane.protocol.keys import check_name
    from fairlane.queue import Queue

    every_s = read_duration("--every", every) / 1000
    keep_days = None if keep is None else read_duration("--keep", keep) / _DAY_MS
    if every_s < 1:
        raise InvalidArgument(f"--every {every} is too short: name 1s or more")
    if every_s > archive.MAX_EVERY_S:
        raise InvalidArgument(
            f"--every {every} is too long: the log keeps for a day what was not archived"
        )
    if keep_days is not None and keep_days > archive.MAX_KEEP_DAYS:
        raise InvalidArgument(f"--keep {keep} is too long: name {archive.MAX_KEEP_DAYS}d or less")
    if keep_days is not None and keep_days < 1:
        raise InvalidArgument(f"--keep {keep} is too short: an archive keeps whole days, as 90d")
    log_to_stderr("warning", "text")
    with open_queue(redis) as opened:
        for name in queues:
            if not {"*", "?"} & {*name}:
                note_unknown(Queue(opened.driver, check_name("queue", name)))
        done = archive.write(
            folder, queues, redis=opened.driver, follow=follow, every_s=every_s,
            keep_days=keep_days, results=results, reveal=reveal, most=batch, skip_lost=skip_lost,
            on_round=_note_progress,
        )  # fmt: skip
    if as_json:
        write_json(dataclasses.asdict(done))
    note(f"archived to {folder}: {_counts(done)}")
    if done.missing:
        note(
            f"{done.missing:,} results were not in Redis: archive more often, unless the requests "
            "keep none"
        )
    return 0


def _note_progress(done: Archived) -> None:
    note(f"so far {_counts(done)}")


def _counts(done: Archived) -> str:
    return f"{done.requests:,} endings, {done.results:,} results, {done.dead:,} dead"
