"""Tests two releases of the scripts on one Redis, and a layout that is newer than ours."""

from __future__ import annotations

import contextlib
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from fairlane.errors import LayoutTooNew
from fairlane.protocol import keys
from fairlane.protocol.lua import Library, library
from fairlane.queue import Queue

if TYPE_CHECKING:
    from pathlib import Path

    import redis

    from fairlane.drivers.sync import SyncDriver
    from tests.support.scripts.requests import Lane

CONF = keys.conf("req")
OTHER = "-- of another release\n"


@pytest.fixture
def other(tmp_path: Path) -> Library:
    """Makes the same scripts with other texts, so that they have other names on the server."""
    root = tmp_path / "v1"
    shutil.copytree(library().root, root)
    for path in root.rglob("*.lua"):
        path.write_text(path.read_text() + OTHER)
    return Library(root)


@contextlib.contextmanager
def release(lane: Lane, scripts: Library) -> Any:
    """Switches to the other release."""
    ours, lane.scripts = lane.scripts, scripts
    yield
    lane.scripts = ours


@pytest.mark.any_command
def test_two_releases_work_on_one_request(lane: Lane, other: Library):
    first, *_ = lane.start(20, limit=1)
    with release(lane, other):
        held = lane.take(first, count=8)
    reply = lane.complete(held, held.ids[:3], keep=True)
    assert reply[0] == b"ok"
    lane.later(60_000)
    with release(lane, other):
        word, *_ = lane.reap()
    assert word == b"ok"
    with release(lane, other):
        seen = lane.request("set_limit", limit=2)
    assert seen[0] == b"ok"
    dialect = lane.driver.dialect
    assert dialect is not None
    assert lane.scripts["acquire"].shas[dialect] != other["acquire"].shas[dialect]


def test_a_worker_notes_the_layout_of_its_release(lane: Lane, driver: SyncDriver):
    """A later release reads which layouts are in use."""
    from fairlane.operations import workers

    assert driver.run(workers.register_worker("req", "w:1", "box", 1, "7"))[0].is_ok
    assert lane.client.hget(CONF, "layout") == b"1"
    lane.client.hset(CONF, "layout", "1")
    assert driver.run(workers.register_worker("req", "w:1", "box", 1, "7"))[0].is_ok
    lane.client.delete(CONF, keys.workers("req"), keys.worker("req", "w:1"))


def test_a_newer_layout_is_refused_before_anything_is_written(
    driver: SyncDriver, redis_client: redis.Redis
):
    from fairlane.operations import workers

    redis_client.hset(CONF, "layout", "2")
    queue = Queue(driver)
    sentence = r"has key layout 2, and this release of Fairlane works with up to 1: upgrade it"
    with pytest.raises(LayoutTooNew, match=sentence):
        queue.submit_request([b"x"])
    with pytest.raises(LayoutTooNew, match=sentence):
        queue.submit_many([[b"x"]])
    with pytest.raises(LayoutTooNew, match=sentence):
        driver.run(workers.register_worker("req", "w:1", "box", 1, "7"))
    assert list(redis_client.scan_iter()) == [CONF]
    redis_client.delete(CONF)
