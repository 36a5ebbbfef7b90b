"""Tests the script delete: it removes an ended request, and its id is free for another life."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fairlane import settings
from fairlane.operations.tokens import retire
from fairlane.protocol import keys
from tests.scripts.after_the_end.test_reopen import ended
from tests.support.run.for_each import for_each
from tests.support.scripts.requests import HOUR, once

if TYPE_CHECKING:
    from tests.support.scripts.requests import Lane


def delete(lane: Lane, **changed: Any) -> list[Any]:
    given = {"ending": lane.hash().get("born", 0), "seen": lane.now, "ttl": HOUR}
    beside = (keys.unique_ids, keys.owner, keys.of_flow, keys.fed)
    names = (*lane.names, *(name(lane.id) for name in beside))
    reply: list[Any] = lane.call("delete", names, **(given | changed))
    assert lane.check() == []
    return reply


def retired(lane: Lane) -> None:
    """Logs the request's end."""
    _, summary = lane.cancel()
    lane.driver.run(once(retire(lane.queue, lane.id, summary)))


def test_all_keys_of_an_ended_request_go_but_a_small_marker(lane: Lane):
    ended(lane)
    lane.client.set(keys.unique_ids(lane.id), "row")
    lane.client.set(keys.owner(lane.id), "txn")
    lane.client.hset(keys.of_flow(lane.id), "v:a", "1")
    lane.client.setbit(keys.fed(lane.id), 3, 1)
    born = lane.hash()["born"]
    assert delete(lane, seen=7) == [b"ok"]
    assert [*lane.dump()] == [lane.names[2]]
    marker = {"state": "abandoned", "seen": "7", "discarded": "1", "over": born}
    assert {name: lane.hash()[name] for name in marker} == marker
    assert 0 < lane.client.pttl(lane.names[2]) <= HOUR


def test_a_cancelled_request_is_deleted(lane: Lane):
    lane.start(9)
    lane.cancel()
    assert delete(lane) == [b"ok"]


def test_deleted_twice_is_once(lane: Lane):
    ended(lane)
    born = lane.number("born")
    delete(lane)
    with lane.unchanged():
        assert delete(lane, ending=born) == [b"gone"]


def test_what_was_never_there_is_gone(lane: Lane):
    with lane.unchanged():
        assert delete(lane) == [b"gone"]


@for_each("way", ["waits", "is held", "is paused", "is cancelling", "is open"])
def test_a_request_that_has_not_ended_stays(lane: Lane, way: str):
    if way == "is open":
        lane.start(9, open_ms=HOUR)
    elif way in {"waits", "is paused"}:
        lane.start(9)
    else:
        lane.begin(9)
    if way == "is paused":
        lane.pause()
    if way == "is cancelling":
        lane.cancel()
    with lane.unchanged():
        assert delete(lane) == [b"alive"]


def test_another_life_of_the_id_stays(lane: Lane):
    ended(lane)
    with lane.unchanged():
        assert delete(lane, ending=lane.number("born") - 1) == [b"other"]


def test_an_ending_that_is_not_the_one_that_was_logged_stays(lane: Lane):
    """The request was reopened since, and its next end may not be in the log."""
    ended(lane)
    born = lane.hash()["born"]
    lane.client.hset(lane.names[2], "opened", "2:9-0:0::")
    for other in (born, f"{born}|1", f"{born}|3"):
        with lane.unchanged():
            assert delete(lane, ending=other) == [b"alive"]
    assert delete(lane, ending=f"{born}|2") == [b"ok"]


def test_a_request_that_was_reopened_stays(lane: Lane):
    ids = ended(lane)
    born = lane.hash()["born"]
    lane.reopen(ids)
    with lane.unchanged():
        assert delete(lane, ending=born) == [b"alive"]


def test_a_late_copy_of_the_submission_begins_no_new_life(lane: Lane):
    ended(lane)
    delete(lane, seen=lane.now)
    with lane.unchanged():
        assert lane.enqueue(4, intent=lane.now) == [b"late", lane.now]
    assert lane.enqueue(4, intent=lane.now + 1)[0] == b"ok"


def test_intents_that_were_given_up_before_stay_given_up(lane: Lane):
    ended(lane)
    lane.client.hset(lane.names[2], "seen", 99)
    delete(lane, seen=7)
    assert lane.hash()["seen"] == "99"


def test_the_auditor_finds_no_loss_in_a_deleted_request(lane: Lane):
    ended(lane)
    delete(lane)
    assert lane.abandon(lane.now) == [b"discarded"]


def test_the_next_life_begins_later_and_both_endings_are_logged(lane: Lane):
    """Both end in the same ms, and the log distinguishes them by their beginnings."""
    lane.complete(lane.begin(2, limit=1))
    first = lane.number("born")
    retired(lane)
    delete(lane)
    lane.complete(lane.begin(2, limit=1, intent=lane.now + 1))
    assert lane.number("born") == first + 1
    retired(lane)
    log = lane.client.xrange(keys.completed(lane.queue))
    assert [fields[b"born"] for _, fields in log] == [b"%d" % first, b"%d" % (first + 1)]


# ------------------------------------------------------------------ a short retention


def ttls(lane: Lane) -> dict[str, int]:
    return {
        key.decode().partition(":")[0]: lane.client.pttl(key) for key in lane.client.scan_iter()
    }


@pytest.mark.parametrize("count", [2, 20], ids=["few", "many"])
def test_without_a_retention_only_the_counts_stay(lane: Lane, count: int):
    held = lane.begin(count, limit=1, count=count, retain_ms=0)
    lane.complete(held, held.ids[1:], [(held.ids[0], "dead", 0)])
    assert [*ttls(lane)] == ["req"]
    assert 0 < ttls(lane)["req"] <= settings.LEAST_TOMBSTONE_MS
    assert (lane.hash()["state"], lane.number("done"), lane.number("dead")) == (
        "done", count - 1, 1,
    )  # fmt: skip


def test_a_repeat_after_the_end_finds_the_tombstone_also_without_a_retention(lane: Lane):
    held = lane.begin(2, limit=1, retain_ms=0)
    lane.complete(held)
    with lane.unchanged():
        assert lane.complete(held)[0] == b"ended"


def test_a_short_retention_is_that_of_results_and_not_of_the_tombstone(lane: Lane):
    held = lane.begin(20, limit=1, count=20, retain_ms=60_000)
    lane.complete(held, held.ids[1:], [(held.ids[0], "dead", 0)])
    found = ttls(lane)
    assert found["req"] > settings.LEAST_TOMBSTONE_MS - 60_000
    assert 0 < found["out"] <= 60_000
    assert 0 < found["dead"] <= 60_000


def test_a_long_retention_is_that_of_all(lane: Lane):
    held = lane.begin(20, limit=1, count=20, retain_ms=2 * HOUR)
    lane.complete(held)
    assert all(HOUR < ttl <= 2 * HOUR for ttl in ttls(lane).values())
