"""Tests that a report reads what an archive holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

pytest.importorskip("duckdb")
pytest.importorskip("matplotlib")

from fairlane import archive, report
from tests.archive.kept import ended
from tests.spark.worlds import World

if TYPE_CHECKING:
    from pathlib import Path

    import redis

    from fairlane.drivers.sync import SyncDriver


@pytest.mark.slow
def test_a_report_counts_each_life_and_each_queue_of_an_archive(
    driver: SyncDriver, redis_client: redis.Redis, tmp_path: Path
):
    """Also two requests of one id in one batch."""
    world, other = World(driver), World(driver, "other")
    ended(world, 0, 2)
    other.submit("o", 5, limit=3)
    other.work_off()
    archive.write(tmp_path / "archive", ["req", "other"], redis=driver)
    for key in redis_client.keys("*:{r0}"):
        redis_client.delete(key)
    world.submit("r0", 7, limit=4)
    world.work_off()
    archive.write(tmp_path / "archive", redis=driver)
    made = report.make(tmp_path / "archive", tmp_path / "out")
    assert (made.summary["finished"], made.summary["requests"]) == (52, 4)
    rows = pq.read_table(tmp_path / "out" / "tables" / "requests.parquet").to_pylist()
    found = sorted((row["id"], row["queue"], row["limit"], row["results"]) for row in rows)
    assert found == [("o", "other", 3, 5), *(("r0", "req", n, m) for n, m in ((2, 20), (4, 7))),
                     ("r1", "req", 2, 20)]  # fmt: skip
    busy = {(row["id"], row["limit"]): row["busy_ms"] for row in rows}
    assert busy == {("o", 3): 7.5, ("r0", 2): 27, ("r0", 4): 10.5, ("r1", 2): 27}
