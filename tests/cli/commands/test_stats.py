"""Tests `fairlane stats`: the measurements, as a table and as JSON."""

from __future__ import annotations

import json
from contextlib import closing
from typing import TYPE_CHECKING

from fairlane.drivers.sync import SyncDriver
from fairlane.operations.stats import add_stats
from tests.support.scripts.requests import once

if TYPE_CHECKING:
    from tests.cli.program import Program


def measure(redis_url: str) -> None:
    with closing(SyncDriver(redis_url)) as driver:
        for call in add_stats("req", 5, {100: 99, 90_000: 1}, {1500: 100}, {"failed": 3}):
            driver.run(once(call))


def test_a_queue_without_measurements_reports_that(program: Program):
    ended = program("stats")
    assert ended.code == 0
    assert "nothing was measured in queue req yet" in ended.err


def test_a_line_for_each_lane_and_one_for_all(program: Program, redis_url: str):
    measure(redis_url)
    head, *rows = (line.split() for line in program("stats").out.decode().splitlines())
    assert head[:4] == ["LANE", "DONE", "FAILED", "TIMEOUTS"]
    assert [row[0] for row in rows] == ["5", "all"]
    assert rows[0][1:] == rows[1][1:]
    assert rows[0][1:4] == ["100", "3", "0"]
    assert rows[0][-2:] == ["1.5", "ms"]


def test_json_has_the_same_and_a_reset_begins_anew(program: Program, redis_url: str):
    measure(redis_url)
    found = json.loads(program("stats", "--json").out)
    lane = found["lanes"]["5"]
    assert (lane["done"], lane["failed"], lane["timeouts"]) == (100, 3, 0)
    assert lane["waited_ms"]["count"] == 100
    assert lane["waited_ms"]["max"] == 90_000
    assert 100 <= lane["waited_ms"]["p90"] <= 125
    assert lane["ran_ms"]["sum"] == 150
    assert json.loads(program("stats", "--reset", "--json").out)["lanes"]["all"]["done"] == 100
    after = json.loads(program("stats", "--json").out)["lanes"]
    assert list(after) == ["all"]
    assert after["all"]["done"] == 0
