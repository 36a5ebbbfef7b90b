"""Tests that an archive is whole after a stop at any step, and for readers beside its writer."""

from __future__ import annotations

import errno
import os
import shutil
from collections import Counter
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyarrow")

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from fairlane import archive
from fairlane.archive import archiver, manifest
from fairlane.archive.archiver import FULL, due
from fairlane.archive.manifest import GRACE_MS, File
from fairlane.common import clock
from fairlane.errors import InvalidArgument
from tests.archive.kept import check, check_files, ended, read
from tests.spark.worlds import World

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairlane.drivers.sync import SyncDriver

DAY_MS = 86_400_000
KEY = {"requests": ["id"], "results": ["request", "index"], "dead": ["request", "index"]}
# All by which an archive changes its folder.
STEPS = (
    *((Path, "replace"), (Path, "unlink"), (Path, "rmdir"), (Path, "mkdir"), (os, "fsync")),
    *((pq.ParquetWriter, "__init__"), (pq.ParquetWriter, "write_table")),
    (pq.ParquetWriter, "close"),
)


class Killed(BaseException):
    """Stops an archiver as a kill does: no handler of an error sees it."""


class Steps:
    """Calls `before` with the number of each step of an archiver, before the step."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self.before: Callable[[int], None] | None = None
        for owner, name in STEPS:
            monkeypatch.setattr(owner, name, self._counted(getattr(owner, name)))

    def _counted(self, real: Any) -> Any:
        def call(*args: Any, **given: Any) -> Any:
            before, self.before = self.before, None  # what it does itself is no step
            if before is not None:
                before(self.count)
                self.count += 1
                self.before = before
            return real(*args, **given)

        return call

    def run(self, before: Callable[[int], None], what: Callable[[], Any]) -> int:
        """Runs something to its end or until it is killed; returns how many steps it did."""
        self.count, self.before = 0, before
        try:
            what()
        except Killed:
            pass
        finally:
            self.before = None
        return self.count


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Steps:
    return Steps(monkeypatch)


@pytest.fixture
def world(driver: SyncDriver, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(archiver, "TOGETHER", 3)
    return World(driver)


def kills(
    steps: Steps,
    begun: Path,
    run: Callable[[Path], Any],
    whole: Callable[[Path], None],
    complete: Callable[[Path], None],
) -> int:
    """Kills `run` before each of its steps, in copies of `begun`; returns how many there are.

    What it leaves must be `whole`, and when it is repeated, `complete`.
    """
    at, killed = 0, [0]
    while len(killed) > at:
        folder = begun.with_name(f"killed-{at}")
        shutil.copytree(begun, folder)

        def kill(step: int, at: int = at) -> None:
            if step == at:
                killed.append(at)
                raise Killed

        steps.run(kill, partial(run, folder))
        whole(folder)
        run(folder)
        complete(folder)
        at += 1
    return at - 1


def check_whole(folder: Path) -> None:
    """Checks that the manifest's files hold as many rows as its positions say, each once."""
    if not (folder / manifest.NAME).exists():
        return
    for table in manifest.TABLES:
        rows = [(row["queue"], *map(row.get, KEY[table])) for row in read(folder, table)]
        assert len(set(rows)) == len(rows)
        counts = Counter(row[0] for row in rows)
        for queue, position in manifest.read(folder).queues.items():
            assert counts[queue] == getattr(position, table), table


@pytest.mark.rest
def test_a_kill_at_any_step_of_batches_and_merges_loses_and_doubles_nothing(
    steps: Steps, world: World, driver: SyncDriver, tmp_path: Path
):
    begun, other = tmp_path / "begun", World(driver, "other")
    ended(world, 0, 2)
    archive.write(begun, redis=driver, most=1)
    ended(world, 2, 3)
    other.submit("o", 2)
    other.work_off()
    run = partial(archive.write, queues=["req", "other"], redis=driver, most=1)

    def complete(folder: Path) -> None:
        check_whole(folder)
        check_files(folder)
        found = manifest.read(folder)
        assert sorted(row["id"] for row in read(folder, "requests")) == ["o", "r0", "r1", "r2"]
        assert sorted(file.batches for file in found.files) == [1, 1, 3, 3, 3]
        assert len(found.retired) == 9

    assert kills(steps, begun, run, check_whole, complete) > 50


def test_a_kill_at_any_step_of_a_first_batch_is_repaired(
    steps: Steps, world: World, tmp_path: Path
):
    ended(world, 0, 1)
    begun = tmp_path / "begun"
    begun.mkdir()
    run = partial(archive.write, redis=world.driver)
    assert kills(steps, begun, run, check_whole, partial(check, count=1)) > 15


def test_a_kill_at_any_step_of_a_drop_leaves_all_of_a_date_or_nothing(
    steps: Steps, world: World, tmp_path: Path
):
    begun = tmp_path / "begun"
    ended(world, 0, 2)
    archive.write(begun, redis=world.driver, most=1)
    later_ms = clock.wall_ms() + 3 * DAY_MS

    def run(folder: Path) -> None:
        for now_ms in (later_ms, later_ms + GRACE_MS):
            archive.write(folder, redis=world.driver, keep_days=1, now_ms=partial(int, now_ms))

    def whole(folder: Path) -> None:
        assert [len(read(folder, table)) for table in manifest.TABLES] in ([2, 40, 4], [0, 0, 0])

    def complete(folder: Path) -> None:
        assert [read(folder, table) for table in manifest.TABLES] == [[], [], []]
        assert [*folder.glob("*/*/*")] == []

    assert kills(steps, begun, run, whole, complete) > 10


# ------------------------------------------------------------------ readers beside a writer


def test_a_reader_at_any_step_finds_each_row_once(steps: Steps, world: World, tmp_path: Path):
    """Also one that holds an older manifest: its files stay for a time."""
    ended(world, 0, 4)
    archive.write(tmp_path, redis=world.driver, most=2)
    held = archive.files(tmp_path, "results")
    ended(world, 4, 7)

    def look(_: int) -> None:
        check_whole(tmp_path)
        assert ds.dataset(held).count_rows() == 80

    looks = steps.run(look, partial(archive.write, tmp_path, redis=world.driver, most=1))
    assert looks > 50
    assert not set(held) & set(archive.files(tmp_path, "results"))
    check(tmp_path, 7)


def test_files_that_were_merged_are_removed_after_a_time(world: World, tmp_path: Path):
    ended(world, 0, 3)
    begun_ms = clock.wall_ms()
    done = archive.write(tmp_path, redis=world.driver, most=1)
    assert done.merged == 9
    assert len(manifest.read(tmp_path).retired) == 9
    for passed_ms, left in ((GRACE_MS - 1, 9), (GRACE_MS + 60_000, 0)):
        now_ms = partial(int, begun_ms + passed_ms)
        assert archive.write(tmp_path, redis=world.driver, now_ms=now_ms).requests == 0
        assert len(manifest.read(tmp_path).retired) == left
        check(tmp_path, 3)
    assert len([*tmp_path.rglob("*.parquet")]) == 3


def test_dates_that_are_kept_stay(world: World, tmp_path: Path):
    ended(world, 0, 1)
    for days in (0, 1, 2):
        now_ms = partial(int, clock.wall_ms() + days * DAY_MS)
        done = archive.write(tmp_path, redis=world.driver, keep_days=2, now_ms=now_ms)
        assert done.dropped == 0
    check(tmp_path, 1)


# ------------------------------------------------------------------ torn files


@pytest.mark.parametrize("how", ["short", "empty", "spoilt", "missing"])
def test_a_torn_file_is_named_and_stops_no_batch(
    world: World, tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture
):
    ended(world, 0, 2)
    archive.write(tmp_path, redis=world.driver, most=1)
    file = Path(archive.files(tmp_path, "results")[0])
    good = file.read_bytes()
    spoilt = good[:4] + bytes(len(good) // 2) + good[4 + len(good) // 2 :]
    file.write_bytes({"short": good[:-100], "spoilt": spoilt}.get(how, b""))
    if how == "missing":
        file.unlink()
    sentence = f"{file} is {'missing' if how == 'missing' else 'torn or no Parquet file'}: restore"
    ended(world, 2, 4)
    with pytest.raises(InvalidArgument) as refused:
        archive.write(tmp_path, redis=world.driver, most=1)
    assert sentence in str(refused.value)
    assert manifest.read(tmp_path).queues["req"].requests == 4
    ended(world, 4, 7)

    def stop(_: float) -> None:
        raise KeyboardInterrupt

    done = archive.write(tmp_path, redis=world.driver, follow=True, most=1, wait=stop)
    assert (done.requests, done.merged) == (3, 9)
    assert [record.getMessage() for record in caplog.records] == [str(refused.value)]
    file.write_bytes(good)
    check(tmp_path, 7)


def test_a_torn_file_does_not_keep_other_partitions_from_a_merge(world: World, tmp_path: Path):
    ended(world, 0, 2)
    archive.write(tmp_path, redis=world.driver, most=1)
    for file in archive.files(tmp_path, "results"):
        Path(file).write_bytes(b"")
    ended(world, 2, 3)
    with pytest.raises(InvalidArgument, match="is torn or no Parquet file"):
        archive.write(tmp_path, redis=world.driver)
    merged = [file.table for file in manifest.read(tmp_path).files if file.batches > 1]
    assert sorted(merged) == ["dead", "requests"]


def test_a_date_needs_no_time_zones_of_the_system(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def fails(*_: Any, **__: Any) -> None:
        raise pa.ArrowInvalid("Cannot locate timezone 'UTC'")

    monkeypatch.setattr(pc, "strftime", fails)
    ended(world, 0, 1)
    archive.write(tmp_path, redis=world.driver)
    check(tmp_path, 1)


def test_a_full_disk_is_not_blamed_on_a_file(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    ended(world, 0, 3)
    real = archiver.Files.put

    def full(files: archiver.Files, table: str, *given: Any) -> None:
        if len(manifest.read(tmp_path).files) == 9:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(files, table, *given)

    monkeypatch.setattr(archiver.Files, "put", full)
    with pytest.raises(InvalidArgument, match=f"^{tmp_path} cannot be written: No space left"):
        archive.write(tmp_path, redis=world.driver, most=1)
    check_files(tmp_path)
    monkeypatch.undo()
    archive.write(tmp_path, redis=world.driver)
    check(tmp_path, 3)


def test_old_dates_make_room_on_a_full_disk(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    ended(world, 0, 1)
    archive.write(tmp_path, redis=world.driver)
    ended(world, 1, 2)

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(archiver.Files, "put", full)
    later_ms = clock.wall_ms() + 3 * DAY_MS
    for now_ms in (later_ms, later_ms + GRACE_MS):
        with pytest.raises(InvalidArgument, match="cannot be written: No space left"):
            archive.write(tmp_path, redis=world.driver, keep_days=1, now_ms=partial(int, now_ms))
    assert [*tmp_path.rglob("*.parquet")] == []


def test_a_file_that_is_damaged_anywhere_is_refused_or_read_as_it_was(world: World, tmp_path: Path):
    """A merge must not keep damaged rows as good ones."""
    ended(world, 0, 1)
    archive.write(tmp_path, redis=world.driver)
    listed = {file.table: file for file in manifest.read(tmp_path).files}["results"]
    path = tmp_path / listed.path
    good, whole = path.read_bytes(), pq.read_table(path)
    reader = archiver.Archiver(
        world.driver, tmp_path, ["req"], clock.wall_ms, keep_days=None, most=None,
        reads_results=True, skips_lost=False, follows=False,
    )  # fmt: skip
    refused = 0
    for at in range(0, len(good), 7):
        path.write_bytes(good[:at] + bytes([good[at] ^ 0xFF]) + good[at + 1 :])
        try:
            assert pa.concat_tables(reader._rows_of(listed)).equals(whole)
        except InvalidArgument as error:
            assert str(error) == f"{path} is torn or no Parquet file: restore it from a copy"  # noqa: PT017
            refused += 1
    assert refused > len(good) // 14


def test_a_parquet_file_of_other_columns_or_fewer_rows_is_refused(world: World, tmp_path: Path):
    ended(world, 0, 3)
    archive.write(tmp_path, redis=world.driver, most=1, results=False)
    held = manifest.read(tmp_path)
    (first, *_) = held.files
    rows = pq.read_table(tmp_path / first.path)
    for other in (rows.select(["id", "state"]), rows.slice(0, 0)):
        pq.write_table(other, tmp_path / first.path)
        size = (tmp_path / first.path).stat().st_size
        reader = archiver.Archiver(
            world.driver, tmp_path, ["req"], clock.wall_ms, keep_days=None, most=None,
            reads_results=True, skips_lost=False, follows=False,
        )  # fmt: skip
        with pytest.raises(InvalidArgument, match="is torn or no Parquet file"):
            list(reader._rows_of(msgspec.structs.replace(first, bytes=size)))


# ------------------------------------------------------------------ which files are merged


def sized(*sizes: int, batches: int = 1) -> list[File]:
    return [
        File(f"{at}", "results", "req", "2026-11-20", 1, size, "1-0", "1-0", batches)
        for at, size in enumerate(sizes)
    ]


def test_files_of_a_date_are_merged_when_they_are_many_or_full():
    assert due(sized(*[9] * 59), is_over=False) == []
    assert len(due(sized(*[9] * 60), is_over=False)) == 60
    assert due(sized(*[9] * 80, batches=60), is_over=False) == []
    assert len(due(sized(*[FULL // 4] * 7), is_over=False)) == 4
    assert due(sized(FULL, FULL, 9), is_over=False) == []


def test_files_of_a_date_that_is_over_are_merged_unless_one_is_most_of_them():
    assert due(sized(9), is_over=True) == []
    assert len(due(sized(9, 9), is_over=True)) == 2
    assert len(due(sized(5, 3, 3, batches=60), is_over=True)) == 3
    assert due(sized(9, 2, 2), is_over=True) == []
    assert due(sized(FULL, 2), is_over=True) == []
    assert len(due(sized(FULL - 1, FULL - 1, 9), is_over=True)) == 2
