"""Tests which files of an archive a report reads, and how it names a file that it cannot read."""

from __future__ import annotations

import resource
import shutil
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("duckdb")
pytest.importorskip("matplotlib")

from fairlane.archive import manifest
from fairlane.archive.manifest import open_archive
from fairlane.archive.rows import SCHEMAS
from fairlane.errors import InvalidArgument
from fairlane.report import tables
from fairlane.report.page import page_of
from fairlane.report.tables import Figures, compute
from tests.report.history import T0, Asked, History

if TYPE_CHECKING:
    from pathlib import Path


def wrote(folder: Path, count: int = 20, name: str = "one") -> History:
    """Writes an archive of one request; the first of its sub-requests is dead."""
    history = History([Asked(name, 3, 2, count, T0, 12, 1)], 2)
    history.write(folder)
    return history


def read(archive: Path, since: datetime | None = None) -> Figures:
    """Computes the tables into `out` beside the archive."""
    return compute(archive, archive.parent / "out", since, {})


def refused(archive: Path) -> str:
    with pytest.raises(InvalidArgument) as refusal:
        read(archive)
    return str(refusal.value)


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    wrote(tmp_path / "archive")
    return tmp_path / "archive"


def a_file(archive: Path) -> Path:
    """Returns the only file of the results."""
    (file,) = (archive / "results").rglob("*.parquet")
    return file


# ------------------------------------------------------------------ which files


@pytest.mark.parametrize(("name", "sibling"), [("a[1]", "a1"), ("a*b", "a'b"), ("a?b", "axb")])
def test_the_name_of_a_folder_is_no_pattern(tmp_path: Path, name: str, sibling: str):
    wrote(tmp_path / name, 20)
    wrote(tmp_path / sibling, 30, "other")
    found = read(tmp_path / name)
    assert found.summary["finished"] == 20
    assert [row["request"] for row in found.tables["requests"]] == ["one"]


@pytest.mark.parametrize("above", ["priority=9", "state=gone", "date=2020-01-01", "queue=b"])
def test_a_folder_above_the_archive_replaces_no_column(tmp_path: Path, above: str):
    wrote(tmp_path / above / "x")
    (row,) = read(tmp_path / above / "x").tables["requests"]
    assert (row["priority"], row["outcome"]) == (3, "done, 1 dead")
    rows = pq.read_table(tmp_path / above / "out" / "requests.parquet").to_pylist()
    assert [(row["queue"], row["date"]) for row in rows] == [("req", "2026-11-20")]


def test_only_files_of_the_manifest_are_read(archive: Path):
    for file in archive.rglob("*.parquet"):
        shutil.copy(file, file.with_name("00000002.parquet"))
        file.with_name("00000003.parquet.tmp").write_bytes(b"is being written")
    found = read(archive)
    assert (found.summary["finished"], found.summary["requests"]) == (20, 1)
    assert sum(row["sub-requests"] for row in found.tables["dead"]) == 1


def test_an_archive_without_a_batch_holds_nothing_yet(tmp_path: Path):
    with open_archive(tmp_path, "reader"):
        pass
    assert "holds nothing yet" in refused(tmp_path)


def test_years_before_1000_are_compared_as_dates(archive: Path):
    assert read(archive, datetime(900, 1, 1, tzinfo=UTC)).summary["finished"] == 20


def test_a_request_that_waited_for_years_fits_in_short_windows(tmp_path: Path):
    history = wrote(tmp_path / "archive")
    shutil.rmtree(tmp_path / "archive")
    history.requests[0].at_ms -= 3 * 365 * 86_400_000
    history.write(tmp_path / "archive")
    found = read(tmp_path / "archive")
    assert found.axis.width_us == 20_000
    assert {row["window"] for row in found.plots["tokens"]} >= set(range(5))


# ------------------------------------------------------------------ files that cannot be read


@pytest.mark.parametrize("how", ["short", "empty", "spoilt"])
def test_a_torn_file_is_named(archive: Path, how: str):
    file = a_file(archive)
    good = file.read_bytes()
    spoilt = good[:4] + bytes(len(good) // 2) + good[4 + len(good) // 2 :]
    file.write_bytes({"short": good[:-100], "empty": b"", "spoilt": spoilt}[how])
    assert f"{file} is torn or no Parquet file" in refused(archive)


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ("torn", "is torn or no manifest: restore it from a copy"),
        ("missing", "is missing: restore it from a copy, or name another folder"),
        ("a folder", "cannot be read: Is a directory"),
    ],
)
def test_a_manifest_that_cannot_be_read_is_named(archive: Path, how: str, sentence: str):
    place = archive / manifest.NAME
    good = place.read_bytes()
    place.unlink()
    if how == "torn":
        place.write_bytes(good[:-9])
    elif how == "a folder":
        place.mkdir()
    assert refused(archive) == f"{place} {sentence}"


def test_a_file_that_is_missing_is_named(archive: Path):
    file = a_file(archive)
    file.unlink()
    assert f"{file} is missing: restore it from a copy" in refused(archive)


def test_a_file_that_was_replaced_meanwhile_is_named(
    archive: Path, monkeypatch: pytest.MonkeyPatch
):
    file, held = a_file(archive), manifest.read(archive)
    with open_archive(archive, "reader") as opened:
        opened.commit(T0, removed=held.files)
        opened.commit(T0 + manifest.GRACE_MS)
    monkeypatch.setattr(tables, "read", lambda _: held)
    why = refused(archive)
    assert "was replaced while it was read: repeat the command" in why
    assert not file.exists()


def test_too_little_memory_is_not_blamed_on_the_archive(
    archive: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(tables, "_blamed", lambda *_: AssertionError("it read every file again"))
    monkeypatch.setattr(tables, "_RESULTS", "SET memory_limit = '1MB'; SELECT list(range(900_000))")
    assert refused(archive).startswith("DuckDB failed: Out of Memory Error")


def test_a_full_disk_is_not_blamed_on_the_archive(archive: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tables, "_blamed", lambda *_: AssertionError("it read every file again"))
    usual = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16, usual[1]))
    try:
        why = refused(archive)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, usual)
    assert why.startswith("DuckDB failed: IO Error")


def test_an_archive_of_another_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    fields = [one for one in SCHEMAS["results"] if one.name != "waited_ms"]
    monkeypatch.setitem(SCHEMAS, "results", pa.schema(fields))
    wrote(tmp_path / "archive")
    why = refused(tmp_path / "archive")
    assert "of another version of Fairlane" in why
    assert f"{a_file(tmp_path / 'archive')} has no column waited_ms" in why


# ------------------------------------------------------------------ texts of others


def test_an_error_cannot_command_what_shows_the_page(tmp_path: Path):
    history = wrote(tmp_path / "archive")
    shutil.rmtree(tmp_path / "archive")
    history.dead[0]["error"] = "ValueError: \x1b[31m<b>\u202e"
    history.write(tmp_path / "archive")
    page = page_of(read(tmp_path / "archive"), {"dead": "<svg></svg>"})
    assert "ValueError: \\x1b[31m&lt;b&gt;\\u202e" in page
    assert not {"\x1b", "\u202e"} & set(page)
