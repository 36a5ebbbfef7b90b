"""Tests the script hand_over: it adds bodies of another request and moves the cursor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.support.scripts.requests import HOUR, toks, waiting_bodies

if TYPE_CHECKING:
    from tests.support.scripts.requests import Lane


def give(lane: Lane, since: str, upto: str, *bodies: bytes) -> list[Any]:
    return lane.request("hand_over", since=since, upto=upto, open_ms=HOUR, bodies=list(bodies))


@pytest.fixture
def fed(lane: Lane) -> Lane:
    """Makes an open request without a sub-request."""
    assert lane.start(0, limit=2, open_ms=HOUR) == []
    return lane


def test_bodies_are_added_and_the_cursor_moves(fed: Lane):
    word, tokens, chunks = give(fed, "0-0", "7-1", b"a", b"b")
    assert (word, len(toks(tokens)), chunks) == (b"ok", 2, 2)
    assert waiting_bodies(fed.client, "r1") == [b"a", b"b"]
    assert fed.hash()["handed"] == "7-1"
    assert give(fed, "7-1", "9-0", b"c")[0] == b"ok"
    assert waiting_bodies(fed.client, "r1") == [b"a", b"b", b"c"]


def test_a_repeat_adds_nothing_and_returns_what_is_queued(fed: Lane):
    first = give(fed, "0-0", "7-1", b"a", b"b")
    before = fed.dump()
    assert give(fed, "0-0", "7-1", b"a", b"b") == [b"moved", b"7-1", *first[1:]]
    assert give(fed, "3-0", "8-0", b"x")[:2] == [b"moved", b"7-1"]
    assert fed.dump() == before


def test_the_cursor_moves_over_what_has_no_body(fed: Lane):
    assert give(fed, "0-0", "5-0")[0] == b"ok"
    assert fed.hash()["handed"] == "5-0"
    assert fed.number("total") == 0


def test_without_news_it_only_postpones_the_end(fed: Lane):
    before = fed.dump()
    assert give(fed, "0-0", "0-0") == [b"ok", [], 1]
    assert fed.dump() == before
    fed.later(HOUR // 2 + 1)
    assert give(fed, "0-0", "0-0") == [b"ok", [], 2]
    assert int(fed.hash()["open_until"]) == fed.now + HOUR


def test_without_time_the_next_reap_gives_it_up(fed: Lane):
    given = {"since": "0-0", "upto": "0-0", "open_ms": 0, "bodies": []}
    assert fed.request("hand_over", **given) == [b"ok", [], 2]
    fed.later(1)
    assert fed.reap()[0] == b"ended"


def test_what_is_sealed_gets_nothing(fed: Lane):
    give(fed, "0-0", "7-1", b"a")
    assert fed.seal(2)[0] == b"ok"
    before = fed.dump()
    assert give(fed, "7-1", "8-0", b"b") == [b"closed"]
    assert fed.dump() == before


def test_what_is_being_cancelled_gets_nothing(fed: Lane):
    _, tokens, _ = give(fed, "0-0", "7-1", b"a", b"b")
    fed.take(toks(tokens)[0])
    fed.request("cancel", reason="why")
    assert give(fed, "7-1", "8-0", b"b")[0] == b"cancelling"


def test_what_has_ended_gets_nothing(fed: Lane):
    fed.request("cancel", reason="why")
    before = fed.dump()
    assert give(fed, "0-0", "8-0", b"b")[0] == b"ended"
    assert fed.dump() == before


def test_what_does_not_exist_is_gone(lane: Lane):
    assert give(lane, "0-0", "8-0", b"b") == [b"gone"]


def test_glance_reports_an_open_request_that_is_fed(lane: Lane):
    lane.start(0, open_ms=HOUR, extras="feed=done r0 continue - 1")

    def chore() -> list[Any]:
        return list(lane.request("glance", queue="", grace="")[3:])

    assert chore() == [b"feed"]
    lane.seal(1)
    assert chore() == []


def test_glance_reports_no_other_open_request(fed: Lane):
    assert fed.request("glance", queue="", grace="")[3:] == []


def test_glance_reports_no_feed_of_what_is_sealed(lane: Lane):
    lane.start(1, open_ms=HOUR, extras="feed=done r0 continue - 1")
    lane.seal()
    assert lane.request("glance", queue="", grace="")[3:] == []


def test_glance_reports_no_feed_of_what_is_being_cancelled(lane: Lane):
    (token,) = lane.start(1, open_ms=HOUR, extras="feed=done r0 continue - 1")
    lane.take(token)
    lane.request("cancel", reason="why")
    assert lane.request("glance", queue="", grace="")[3:] == []


def test_a_fed_request_is_looked_at_each_second_and_later_each_five(lane: Lane):
    lane.start(0, open_ms=HOUR, extras="feed=done r0 continue - 1")
    assert lane.request("glance", queue="", grace="")[1] == 1_000
    lane.later(600_000)
    assert lane.request("glance", queue="", grace="")[1] == 3_000
    lane.later(600_000)
    assert lane.request("glance", queue="", grace="")[1] == 5_000


def test_bodies_are_added_though_the_cursor_stays(fed: Lane):
    assert give(fed, "0-0", "0-0", b"a")[0] == b"ok"
    assert fed.number("total") == 1


@pytest.mark.parametrize(
    "extras",
    [
        *("feed=", "feed=done", "feed=done a", "feed=done a b - 1 x", "feed=1 a stop - 1"),
        *("feed=done a,b stop", "feed=done a stop - x", "flow=a 1 b c"),
    ],
)
def test_a_feed_that_cannot_be_read_is_refused(lane: Lane, extras: str):
    with lane.refuses("BADARGUMENT"):
        lane.enqueue(0, open_ms=HOUR, extras=extras)
