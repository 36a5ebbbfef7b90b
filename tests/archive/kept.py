"""Makes endings without workers, and reads an archive by its manifest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from fairlane import archive
from fairlane.archive import manifest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.spark.worlds import World

COUNT, DEAD = 20, (3, 11)  # sub-requests of a request of `ended`, and those that die


def ended(world: World, low: int, high: int) -> None:
    """Makes requests r<low> to r<high - 1> of 20 sub-requests, of which two die."""
    for n in range(low, high):
        world.submit(f"r{n}", COUNT, priority=n % 3, limit=2)
        world.work_off(dead=DEAD, most=8)


def read(folder: Path, table: str) -> list[dict[str, Any]]:
    """Returns the rows of a table, with its queue and date, as the documentation reads them."""
    files = archive.files(folder, table)
    if not files:
        return []
    parts = ds.partitioning(
        pa.schema([("queue", pa.string()), ("date", pa.string())]), flavor="hive"
    )
    found: list[dict[str, Any]] = ds.dataset(files, partitioning=parts).to_table().to_pylist()
    return found


def check(folder: Path, count: int) -> None:
    """Checks that the archive holds r0 to r<count - 1> once, completely, as its manifest says."""
    ids = [f"r{n}" for n in range(count)]
    found = {
        "requests": [row["id"] for row in read(folder, "requests")],
        "results": [(row["request"], row["index"]) for row in read(folder, "results")],
        "dead": [(row["request"], row["index"]) for row in read(folder, "dead")],
    }
    assert {name: sorted(rows) for name, rows in found.items()} == {
        "requests": sorted(ids),
        "results": sorted((one, index) for one in ids for index in range(COUNT)),
        "dead": sorted((one, index) for one in ids for index in DEAD),
    }
    check_files(folder)


def check_files(folder: Path) -> None:
    """Checks that the files are those of the manifest, and as it says."""
    listed = manifest.read(folder)
    there = {path.relative_to(folder).as_posix() for path in folder.glob("*/queue=*/date=*/*")}
    assert there == {*(file.path for file in listed.files), *listed.retired}
    for file in listed.files:
        assert (folder / file.path).stat().st_size == file.bytes
        assert pq.read_metadata(folder / file.path).num_rows == file.rows
