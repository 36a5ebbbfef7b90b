"""Writes an archive: batches of several queues, merges of small files, and what is too old.

A batch becomes one file of each table for each date. A commit of the manifest adds these files and
moves the queue's position, so each ending counts once, wherever the archiver stops.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
from collections import defaultdict
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import accumulate
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec.structs import replace

from fairlane import settings
from fairlane.archive import Archived
from fairlane.archive.manifest import Archive, File, Position, open_archive, torn, why_unreadable
from fairlane.archive.rows import MOMENTS, SCHEMAS, PageReader
from fairlane.arrow import stream_ranges
from fairlane.errors import DataLost, FairlaneError, InvalidArgument
from fairlane.operations.completion import BEGIN, last_completion, lost_behind, mark
from fairlane.operations.completion import place as place_of
from fairlane.protocol import keys
from fairlane.protocol.keys import check_name, check_names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from fairlane.drivers.sync import SyncDriver

MOST = 500_000  # endings of a batch: a longer one is repeated as a whole after a stop
TOGETHER = 60  # files of a date that are merged on that date
FULL = 256 << 20  # a file of so many bytes is not merged
_HELD = 64 << 20  # bytes of rows in memory, of all files
_ROWS = 200_000  # ... and rows; a row group has no more
_DAY_MS = 86_400_000
_LATE_MS = 3_600_000  # the files of a date are merged so long after its end
_MOST_QUEUES = 1_000
WRITERS = 100  # files that are open: a log may have a thousand dates
_log = logging.getLogger(__name__)


class Files:
    """Writes rows to the files of one commit: one for each partition."""

    def __init__(self, archive: Archive, queue: str) -> None:
        self._archive, self._queue = archive, queue
        self._writers: dict[tuple[str, str], pq.ParquetWriter] = {}
        self._held: dict[tuple[str, str], list[pa.Table]] = defaultdict(list)
        self._rows: dict[tuple[str, str], int] = defaultdict(int)
        self._held_bytes = self._held_rows = 0

    @property
    def is_wide(self) -> bool:
        """Returns True if there are so many files that the batch must end."""
        return len(self._rows) >= WRITERS

    def add(self, table: str, rows: pa.Table) -> int:
        """Adds rows by the dates of their moments; returns how many."""
        micros = rows.column(MOMENTS[table]).cast(pa.int64()).fill_null(0)
        days = pc.divide(micros, _DAY_MS * 1000)  # without the time zones of the system
        for day in pc.unique(days):
            date = datetime.fromtimestamp(day.as_py() * _DAY_MS // 1000, UTC)
            self.put(table, f"{date:%Y-%m-%d}", rows.filter(pc.equal(days, day)))
        return int(rows.num_rows)

    def put(self, table: str, date: str, rows: pa.Table) -> None:
        """Adds rows of one date."""
        self._held[table, date].append(rows)
        self._rows[table, date] += rows.num_rows
        self._held_bytes += rows.nbytes
        self._held_rows += rows.num_rows
        if self._held_bytes >= _HELD or self._held_rows >= _ROWS:
            self._flush()

    def _flush(self) -> None:
        """Writes the rows that are held, except those of files beyond the bound."""
        wide = {}
        for part, rows in self._held.items():
            if part not in self._writers and len(self._writers) >= WRITERS:
                wide[part] = rows
            else:
                self._write(part, rows)
        self._held = defaultdict(list, wide)
        self._held_bytes = self._held_rows = 0

    def _write(self, part: tuple[str, str], rows: list[pa.Table]) -> None:
        table, date = part
        if part not in self._writers:
            path = self._archive.temporary(self._archive.path(table, self._queue, date))
            path.parent.mkdir(parents=True, exist_ok=True)
            self._writers[part] = pq.ParquetWriter(
                path, SCHEMAS[table], compression="zstd", write_page_checksum=True
            )
        self._writers[part].write_table(pa.concat_tables(rows))

    def close(self, first: str, last: str, batches: int = 1) -> list[File]:
        """Completes the files under their temporary names, and returns them."""
        self._flush()
        made = [self._complete(part, first, last, batches) for part in [*self._writers]]
        for part, rows in self._held.items():
            self._write(part, rows)
            made.append(self._complete(part, first, last, batches))
        self._held.clear()
        return made

    def _complete(self, part: tuple[str, str], first: str, last: str, batches: int) -> File:
        self._writers.pop(part).close()
        table, date = part
        path = self._archive.path(table, self._queue, date)
        with self._archive.temporary(path).open("rb") as file:
            os.fsync(file.fileno())
            size = os.fstat(file.fileno()).st_size
        return File(path, table, self._queue, date, self._rows[part], size, first, last, batches)


@dataclass(slots=True)
class _Batch:
    """Holds what a batch has read of a queue. `is_new`: no call before began with the queue."""

    queue: str
    position: Position
    files: Files
    is_new: bool
    place: str = field(init=False)
    first: str = ""
    counts: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(("requests", "results", "dead", "missing"), 0)
    )
    why: str = ""
    has_more: bool = False

    def __post_init__(self) -> None:
        self.place = self.position.place


@dataclass(slots=True)
class Archiver:
    """Writes one archive. `opened` must be entered first."""

    driver: SyncDriver
    folder: Path
    queues: Sequence[str]
    now_ms: Callable[[], int]
    keep_days: float | None
    most: int | None
    reads_results: bool
    skips_lost: bool
    follows: bool
    reveals: bool = False
    done: Archived = field(default_factory=Archived)
    _archive: Archive = field(init=False)
    _torn: set[str] = field(default_factory=set)
    _errors: dict[str, FairlaneError] = field(default_factory=dict)

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Holds the archive's lock. Raises InvalidArgument."""
        self.queues = check_names("queue", self.queues, _MOST_QUEUES, _checked)
        with open_archive(self.folder, f"archive:{secrets.token_hex(8)}") as self._archive:
            yield

    def round(self) -> bool:
        """Drops what is old, writes a batch of each queue, and merges; returns if more has ended.

        A queue that fails does not stop the others. Raises its error when they have no more, unless
        it follows; and InvalidArgument if the folder cannot be written.
        """
        try:
            return self._round()
        except OSError as error:
            with suppress(OSError):
                self._archive.clear()
            raise InvalidArgument(
                f"{self.folder} cannot be written: {error.strerror or error}"
            ) from error

    def _round(self) -> bool:
        self._drop()  # first, because it makes room on a full disk
        has_more = False
        for queue in self._named():
            try:
                has_more |= queue not in self._errors and self._batch(queue)
            except DataLost as error:
                self._errors[queue] = error
                if self.follows:
                    _log.warning("%s", error)
        self._merge()
        if not has_more and not self.follows:
            self.end()
        return has_more

    def end(self) -> None:
        """Raises the first error of a queue or a file that did not stop the others."""
        if self._errors:
            raise next(iter(self._errors.values()))

    def _named(self) -> list[str]:
        found: dict[str, None] = {}
        for queue in self.queues:
            is_pattern = "*" in queue or "?" in queue
            names = self.driver.run(stream_ranges.queues_like(queue)) if is_pattern else [queue]
            found.update(dict.fromkeys(names))
        return list(found)

    # ------------------------------------------------------------------ batches

    def _batch(self, queue: str) -> bool:
        """Archives what has ended in a queue; returns True if `most` left some.

        Raises DataLost when what was read before the loss is archived.
        """
        batch = self._begun(queue)
        self._read_pages(batch)
        counts, place = batch.counts, batch.place
        if batch.first:
            was = batch.position
            totals = {name: getattr(was, name) + count for name, count in counts.items()}
            self._archive.commit(
                self.now_ms(),
                added=batch.files.close(batch.first, place),
                queues={queue: Position(place, was.removed, **totals)},
            )
            self.done.batches += 1
            for name, count in counts.items():
                setattr(self.done, name, getattr(self.done, name) + count)
            self._mark(queue, place)
        elif batch.why and self.skips_lost:
            place = self.driver.run(last_completion(queue))
            self._mark(queue, place)
            self._note(queue, replace(batch.position, place=place))
        if batch.why and not self.skips_lost:
            raise DataLost(
                f"the archive {self.folder} has lost entries of queue {queue} that were not read "
                f"yet: {batch.why}. To go on with what is left set skip_lost (--skip-lost); to "
                "prevent it archive more often"
            )
        return batch.has_more

    def _begun(self, queue: str) -> _Batch:
        """Returns an empty batch, whose place is marked and in the manifest."""
        position = self._archive.manifest.queues.get(queue)
        self._mark(queue, BEGIN if position is None else position.place)
        files = Files(self._archive, queue)
        if position is None:  # noted before the first read, so that a loss before it is detected
            return _Batch(queue, self._note(queue, Position(BEGIN, 0)), files, is_new=True)
        return _Batch(queue, position, files, is_new=False)

    def _note(self, queue: str, position: Position) -> Position:
        """Commits a position with how many endings have left the log until now."""
        removed = self.driver.run(stream_ranges.removed(keys.completed(queue)))
        noted = replace(position, removed=removed)
        self._archive.commit(self.now_ms(), queues={queue: noted})
        return noted

    def _read_pages(self, batch: _Batch) -> None:
        """Reads endings of the log until its present end, a bound of a batch, or a loss."""
        most = self.most or MOST
        last = self.driver.run(last_completion(batch.queue))
        unread: stream_ranges.StreamRange | None
        unread = stream_ranges.StreamRange(stream_ranges.after(batch.place), last)
        while unread is not None and batch.counts["requests"] < most and not batch.files.is_wide:
            count = min(stream_ranges.PAGE, most - batch.counts["requests"])
            read = stream_ranges.log_entries(batch.queue, unread, count)
            entries, unread = self.driver.run(read)
            # Checked after the page was read: a place that is in the log now was in it then.
            batch.why = self._lost(batch)
            if batch.why and not self.skips_lost:
                break
            if entries:
                page = PageReader(self.driver, entries, reveals=self.reveals)
                self._page(batch.files, page, batch.counts)
                batch.first = batch.first or entries[0][0].decode()
                batch.place = entries[-1][0].decode()
        batch.has_more = unread is not None

    def _lost(self, batch: _Batch) -> str:
        """Returns why endings behind the place of a batch may be missing; "" if none can be."""
        if batch.place != BEGIN:
            return self.driver.run(lost_behind(batch.queue, batch.place))
        removed = self.driver.run(stream_ranges.removed(keys.completed(batch.queue)))
        if removed == batch.position.removed:
            return ""
        if batch.is_new:  # they left the log before the archive has begun with the queue
            batch.position = self._note(batch.queue, batch.position)
            return ""
        return "the log was trimmed before anything of it was archived"

    def _mark(self, queue: str, place: str) -> None:
        """Marks how far the archive is, so that the log keeps the rest."""
        reader = {self._archive.manifest.reader: place}
        self.driver.run(mark(queue, reader, settings.LOG_READER_MS))

    def _page(self, files: Files, page: PageReader, counts: dict[str, int]) -> None:
        if self.reads_results:
            for table, read in (("results", page.results), ("dead", page.dead)):
                for rows in read():
                    counts[table] += files.add(table, rows)
            short = (one.counts["results"] - one.rows for one in page.requests)
            counts["missing"] += sum(max(0, count) for count in short)
        counts["requests"] += files.add("requests", page.ended())

    # ------------------------------------------------------------------ old files

    def _today(self, back_ms: float) -> str:
        """Returns the date (UTC) so long ago."""
        return f"{datetime.fromtimestamp((self.now_ms() - back_ms) / 1000, UTC):%Y-%m-%d}"

    def _drop(self) -> None:
        """Takes the files of dates that are too old off the manifest, and removes retired ones."""
        manifest, now_ms = self._archive.manifest, self.now_ms()
        oldest = "" if self.keep_days is None else self._today(self.keep_days * _DAY_MS)
        old = {file for file in manifest.files if file.date < oldest}
        if old or any(end_ms <= now_ms for end_ms in manifest.retired.values()):
            self._archive.commit(now_ms, removed=old)
            self.done.dropped += len(old)

    def _merge(self) -> None:
        """Merges small files of a partition. A file that cannot be read stays as it is."""
        today = self._today(_LATE_MS)
        parts: dict[tuple[str, str, str], list[File]] = defaultdict(list)
        for file in self._archive.manifest.files:
            if file.path not in self._torn:
                parts[file.table, file.queue, file.date].append(file)
        for part, files in parts.items():
            while group := due(files, is_over=part[2] < today):
                try:
                    merged = self._merged(*part, group)
                except InvalidArgument as error:
                    self._archive.clear()
                    if self.follows:
                        _log.warning("%s", error)
                    else:
                        self._errors.setdefault("", error)
                    break
                files = [*(file for file in files if file not in group), merged]  # noqa: PLW2901
                self.done.merged += len(group)

    def _merged(self, table: str, queue: str, date: str, group: Sequence[File]) -> File:
        """Writes files as one. Raises InvalidArgument, which names a torn file."""
        made = Files(self._archive, queue)
        for file in group:
            for rows in self._rows_of(file):
                made.put(table, date, rows)
        ordered = sorted(group, key=lambda file: place_of(file.first))
        last = max((file.last for file in group), key=place_of)
        (merged,) = made.close(ordered[0].first, last, sum(file.batches for file in group))
        self._archive.commit(self.now_ms(), added=[merged], removed={*group})
        return merged

    def _rows_of(self, file: File) -> Iterator[pa.Table]:
        path, count = self.folder / file.path, 0
        why = why_unreadable(self.folder, file)
        try:
            if not why:
                with pq.ParquetFile(path, page_checksum_verification=True) as read:
                    is_ours = read.schema_arrow.equals(SCHEMAS[file.table])
                    for at in range(read.num_row_groups if is_ours else 0):
                        rows = read.read_row_group(at)
                        rows.validate(full=True)
                        count += rows.num_rows
                        yield rows
                if not is_ours or count != file.rows:
                    why = torn(path)
        except (pa.ArrowException, OSError, UnicodeDecodeError):
            why = torn(path)
        if why:
            self._torn.add(file.path)
            raise InvalidArgument(why)


def due(files: Sequence[File], *, is_over: bool) -> list[File]:
    """Returns files of a partition to merge now, or none.

    On its date these are the files of TOGETHER batches, or of FULL bytes. When the date `is_over`
    these are all, unless one of them is larger than the others together: late rows are few, and
    would write that one again and again.
    """
    small = [file for file in files if file.bytes < FULL]
    new = [file for file in small if file.batches == 1]
    sizes = [file.bytes for file in small]
    if is_over and len(small) > 1 and 2 * max(sizes) <= sum(sizes):
        group = small
    elif len(new) >= TOGETHER or (len(new) > 1 and sum(file.bytes for file in new) >= FULL):
        group = new
    else:
        return []
    total = accumulate(file.bytes for file in group)
    enough = next((at for at, size in enumerate(total, 1) if size >= FULL), len(group))
    return group[: max(2, enough)]


def _checked(kind: str, name: str) -> str:
    """Returns the name of a queue, or a pattern of names. Raises InvalidArgument."""
    check_name(kind, re.sub("[*?]", "x", name) if isinstance(name, str) else name)
    return name
