"""Tests how long a request's id is known: longer than its results, if its producer asks for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fairlane.errors import InvalidArgument
from fairlane.protocol import keys

if TYPE_CHECKING:
    from tests.support.scripts.requests import Lane

HOUR, DAY = 3_600_000, 86_400_000
MONTH = 30 * DAY
EXTRAS = f"remember={MONTH}"


def ttl(lane: Lane, key: bytes) -> int:
    return int(lane.raw(b"PTTL", key))


def ended(lane: Lane, **given: Any) -> None:
    held = lane.begin(**{"bodies": 2, "limit": 1, "extras": EXTRAS, **given})
    lane.complete(held, done=held.ids)
    assert lane.hash()["state"] == "done"


def test_the_hash_stays_for_as_long_as_the_id_is_known_and_the_results_do_not(lane: Lane):
    ended(lane, bodies=[b"a" * 2_000, b"b" * 2_000])
    assert MONTH - HOUR < ttl(lane, keys.request_hash("r1")) <= MONTH
    assert 0 < ttl(lane, keys.results("r1")) <= HOUR


def test_a_shorter_time_than_the_retention_changes_nothing(lane: Lane):
    ended(lane, extras=f"remember={HOUR // 2}")
    assert HOUR // 2 < ttl(lane, keys.request_hash("r1")) <= HOUR


def test_without_results_the_id_is_known_all_the_same(lane: Lane):
    ended(lane, retain_ms=0)
    assert MONTH - HOUR < ttl(lane, keys.request_hash("r1")) <= MONTH
    assert ttl(lane, keys.results("r1")) == -2


@pytest.mark.parametrize("text", ["remember=", "remember=0", "remember=-1", "remember=1d"])
def test_what_is_no_time_is_refused_and_nothing_is_written(lane: Lane, text: str):
    with pytest.raises(InvalidArgument, match="extras"):
        lane.enqueue(1, extras=text)
    assert lane.hash() == {}


def test_a_repeat_after_the_results_are_gone_finds_the_request(lane: Lane):
    """Twice, too: the first repeat leaves all as it is."""
    ended(lane)
    lane.raw(b"UNLINK", keys.results("r1"), keys.dead("r1"), keys.errors("r1"))
    before = lane.hash()
    for _ in range(2):
        reply = lane.enqueue(2, limit=1, extras=EXTRAS)
        assert (reply[0], reply[4][0]) == (b"exists", b"done")
    assert lane.hash() == before
    assert lane.enqueue(1, digest="d2", extras=EXTRAS)[0] == b"conflict"


def test_the_marker_of_the_log_outlives_the_id(lane: Lane):
    """Otherwise a repeat would log the same ending again."""
    held = lane.begin(1, extras=EXTRAS)
    reply = lane.complete(held, done=held.ids)
    assert int(reply[1][9]) == MONTH


def test_a_change_while_it_runs_keeps_the_time(lane: Lane):
    held = lane.begin(2, limit=1, extras=EXTRAS)
    lane.request("set_priority", priority=7)
    assert lane.hash()["remember_ms"] == str(MONTH)
    lane.complete(held, done=held.ids)
    assert ttl(lane, keys.request_hash("r1")) > DAY


def test_a_deletion_ends_it_for_the_life_that_is_meant_only(lane: Lane):
    ended(lane)
    born = int(lane.hash()["born"])
    beside = (keys.unique_ids, keys.owner, keys.of_flow, keys.fed)
    names = (*lane.names, *(name("r1") for name in beside))
    given = {"seen": lane.now, "ttl": HOUR}
    assert lane.call("delete", names, ending=str(born - 1), **given) == [b"other"]
    assert ttl(lane, keys.request_hash("r1")) > DAY
    assert lane.call("delete", names, ending=str(born), **given) == [b"ok"]
    assert lane.enqueue(2, extras=EXTRAS, intent=lane.now + 1)[0] == b"ok"
