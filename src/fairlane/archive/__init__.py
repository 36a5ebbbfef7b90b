"""Keeps endings, results and dead sub-requests of queues as Parquet, each exactly once.

Needs the extra `archive`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from fairlane.archive.manifest import TABLES, read
from fairlane.common import clock
from fairlane.default_redis import resolve_url
from fairlane.drivers.sync import SyncDriver
from fairlane.errors import InvalidArgument
from fairlane.settings import DEFAULT_QUEUE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

EVERY_S = 60.0  # from one batch to the next, with `follow`
MAX_EVERY_S = 86_400  # the log keeps for a day what was not archived
MAX_KEEP_DAYS = 36_500
_MISSING = (
    "an archive needs the extra archive: pip install '.[archive]' in a clone of the repository"
)


@dataclass(slots=True)
class Archived:
    """Counts what one call of `write` archived; `missing` results were not in Redis then.

    `merged` and `dropped` count files that compaction replaced, or that were too old.
    """

    batches: int = 0
    requests: int = 0
    results: int = 0
    dead: int = 0
    missing: int = 0
    merged: int = 0
    dropped: int = 0


def write(
    folder: str | Path,
    queues: Sequence[str] = (DEFAULT_QUEUE,),
    *,
    redis: str | SyncDriver | None = None,
    follow: bool = False,
    every_s: float = EVERY_S,
    keep_days: float | None = None,
    results: bool = True,
    most: int | None = None,
    skip_lost: bool = False,
    on_round: Callable[[Archived], None] | None = None,
    wait: Callable[[float], None] = clock.sleep,
    now_ms: Callable[[], int] = clock.wall_ms,
) -> Archived:
    """Writes what has ended in these queues since the last call to the archive `folder`.

    A queue with * or ? in its name is a pattern. A batch has what has ended by then in one queue,
    at most `most` endings. `results`: also the results and the dead sub-requests with their bodies,
    else only the endings. With `follow` it writes again every `every_s` seconds until an interrupt.
    Days that are older than `keep_days` leave the archive. `on_round` gets the counts so far.

    Raises InvalidArgument, RedisError, and DataLost if endings left the log before they were read,
    unless `skip_lost` is set. With `follow` the other queues go on, and DataLost comes at the end.
    The log keeps what an archive has not read for a day, up to settings.LOG_MOST endings.
    """
    _check(most, keep_days, every_s)
    from fairlane.archive.archiver import Archiver

    driver = redis if isinstance(redis, SyncDriver) else SyncDriver(resolve_url(redis))
    archiver = Archiver(
        driver, Path(folder), queues, now_ms, keep_days=keep_days, most=most,
        reads_results=results, skips_lost=skip_lost, follows=follow,
    )  # fmt: skip
    try:
        with archiver.opened():
            while True:
                begun_s = clock.mono_s()
                before = replace(archiver.done)
                more = archiver.round()
                if on_round is not None and archiver.done != before:
                    on_round(archiver.done)
                if not follow and not more:
                    return archiver.done
                if not more:
                    wait(max(0.0, begun_s + every_s - clock.mono_s()))
    except KeyboardInterrupt:
        if not follow:
            raise
        archiver.end()
        return archiver.done
    finally:
        if driver is not redis:
            driver.close()


def _check(most: int | None, keep_days: float | None, every_s: float) -> None:
    if find_spec("pyarrow") is None:
        raise InvalidArgument(_MISSING)
    if most is not None and most < 1:
        raise InvalidArgument(f"most {most} is not valid: a batch has at least one ending")
    if keep_days is not None and not 1 <= keep_days <= MAX_KEEP_DAYS:
        raise InvalidArgument(
            f"keep_days {keep_days} is not valid: an archive keeps 1 to {MAX_KEEP_DAYS:,} days"
        )
    if not 0 < every_s <= MAX_EVERY_S:
        raise InvalidArgument(
            f"every_s {every_s} is not valid: an archive is written at least once a day"
        )


def files(folder: str | Path, table: str) -> list[str]:
    """Returns the Parquet files that a table of the archive has now. Raises InvalidArgument.

    A file that a later batch replaces stays for an hour. `table`: requests, results or dead.
    """
    if table not in TABLES:
        raise InvalidArgument(f"table {table!r} is not valid: {', '.join(TABLES)} are")
    found = read(Path(folder)).files
    return [str(Path(folder) / file.path) for file in found if file.table == table]
