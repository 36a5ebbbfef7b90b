"""Tests `fairlane server`, and the embedded server that starts if no other is named."""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cli.program import Program

pytestmark = pytest.mark.server
NOTICE = "fairlane: uses your embedded Redis server; --redis URL names another\n"


@pytest.fixture
def embedded(alone: Program) -> Iterator[Program]:
    """Makes `fairlane` with an embedded server of its own, which ends with the test."""
    yield alone
    alone("server", "stop")


def test_none_is_running(embedded: Program):
    embedded("server", "status").refused(3, "is not running")
    ended = embedded("server", "status", "--json")
    assert (ended.code, json.loads(ended.out)) == (3, {"running": False})
    ended = embedded("server", "stop")
    assert (ended.code, ended.out) == (0, b"")


def test_start_look_stop(embedded: Program):
    started = embedded("server", "start")
    assert (started.code, started.err) == (0, "")
    assert started.id.startswith("unix://")
    found = json.loads(embedded("server", "status", "--json").out)
    assert found["running"]
    assert embedded("server", "start", "--json").code == 0
    assert f"pid          {found['pid']}\n" in embedded("server", "status").out.decode()
    assert "has stopped" in embedded("server", "stop").err
    assert embedded("server", "status").code == 3


def test_without_a_redis_the_embedded_one_is_named_in_one_short_line_a_day(embedded: Program):
    ended = embedded("submit", "-", "--id", "mine", stdin=b"a\n")
    assert (ended.code, ended.id) == (0, "mine")
    assert ended.err == NOTICE
    assert len(NOTICE) <= 80
    assert embedded("status", "mine").err == ""
    yesterday = time.time() - 86_400
    os.utime(embedded.folder / "home" / "run" / "noticed", (yesterday, yesterday))
    assert [embedded("status", "mine").err for _ in range(2)] == [NOTICE, ""]


def test_what_the_embedded_server_holds_outlives_it(embedded: Program):
    embedded("submit", "-", "--id", "mine", stdin=b"a\n")
    embedded("server", "stop")
    assert embedded("status", "mine").code == 0, "its data are kept"
