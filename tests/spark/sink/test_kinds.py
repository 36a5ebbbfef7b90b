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

pytestmark = pytest.mark.rest
ON_OTHERS = pytest.mark.parametrize("redis_server", ["cluster1", "system_redis"], indirect=True)
ON_SINGLE = pytest.mark.parametrize("redis_server", ["single"], indirect=True)
MODES: tuple[dict[str, str], ...] = (
    {},
    {"writeMode": "dedupe", "keyColumn": "id"},
    {"writeMode": "pipelined"},
)


@ON_OTHERS
@pytest.mark.parametrize("options", MODES, ids=str)
def test_rows_come_in_and_are_worked_off(
    spark: Any, redis_url: str, driver: SyncDriver, options: dict[str, str]
):
    write(numbers(spark, 3000), redis_url, request="r1", **options)
    assert sorted(work_off(driver)) == sorted(rows(3000))
    assert Queue(driver).request("r1").wait(timeout=PATIENCE_S) == "done"


@ON_SINGLE
@pytest.mark.parametrize("options", MODES, ids=str)
def test_rows_of_a_request_that_names_a_key_take_turns(
    spark: Any, redis_url: str, driver: SyncDriver, options: dict[str, str]
):
    write(numbers(spark, 30), redis_url, request="r1", limits="api=1", limit=5, **options)
    queue = Queue(driver)
    assert queue.request("r1").progress().limits == {"api": 1}
    (taken,) = queue.take(10)
    taken.done(b"")
    assert len(work_off(driver)) == 29
    assert queue.request("r1").wait(timeout=PATIENCE_S) == "done"
    assert queue.keys().keys == []
