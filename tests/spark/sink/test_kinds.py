"""Tests the sink on other kinds of Redis: a cluster, and the oldest supported one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from fairlane.queue import Queue
from tests.spark.sink.sinks import numbers, rows, write
from tests.support.scripts.requests import work_off
from tests.support.wait import PATIENCE_S

if TYPE_CHECKING:
    from fairlane.drivers.sync import SyncDriver

pytestmark = [
    pytest.mark.rest,
    pytest.mark.parametrize("redis_server", ["cluster1", "system_redis"], indirect=True),
]


@pytest.mark.parametrize(
    "options", [{}, {"writeMode": "dedupe", "keyColumn": "id"}, {"writeMode": "pipelined"}], ids=str
)
def test_rows_come_in_and_are_worked_off(
    spark: Any, redis_url: str, driver: SyncDriver, options: dict[str, str]
):
    write(numbers(spark, 3000), redis_url, request="r1", **options)
    assert sorted(work_off(driver)) == sorted(rows(3000))
    assert Queue(driver).request("r1").wait(timeout=PATIENCE_S) == "done"
