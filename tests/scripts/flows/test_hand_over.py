"""Tests the script hand_over: it adds bodies of another request and moves the cursor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fairlane.errors import FairlaneError
from fairlane.protocol import keys
from tests.support.run.for_each import for_each
from tests.support.scripts.requests import HOUR, toks, waiting_bodies

if TYPE_CHECKING:
    from tests.support.scripts.requests import Lane


def give(lane: Lane, since: str, upto: str, *bodies: bytes) -> list[Any]:
    """Hands bodies over; the index of each is made of the body."""
    pairs = [word for body in bodies for word in (int.from_bytes(body[:3], "big"), body)]
    return call(lane, since=since, upto=upto, open_ms=HOUR, bodies=pairs)


def call(lane: Lane, **given: Any) -> list[Any]:
    reply: list[Any] = lane.call("hand_over", (*lane.names, keys.fed(lane.id)), **given)
    assert lane.check() == []
    return reply


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
    """The first one leaves a cursor, which shows that the sources were there."""
    assert give(fed, "0-0", "0-0") == [b"ok", [], 2]
    assert fed.hash()["handed"] == "0-0"
    before = fed.dump()
    assert give(fed, "0-0", "0-0") == [b"ok", [], 2]
    assert fed.dump() == before
    fed.later(HOUR // 2 + 1)
    assert give(fed, "0-0", "0-0") == [b"ok", [], 3]
    assert int(fed.hash()["open_until"]) == fed.now + HOUR


def test_without_time_the_next_reap_gives_it_up(fed: Lane):
    given = {"since": "0-0", "upto": "0-0", "open_ms": 0, "bodies": []}
    assert call(fed, **given) == [b"ok", [], 2]
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


@for_each(
    "extras",
    [
        *("feed=", "feed=done", "feed=done a", "feed=done a b - 1 x", "feed=1 a stop - 1"),
        *("feed=done a,b stop", "feed=done a stop - x", "flow=a 1 b c"),
    ],
)
def test_a_feed_that_cannot_be_read_is_refused(lane: Lane, extras: str):
    with lane.refuses("BADARGUMENT"):
        lane.enqueue(0, open_ms=HOUR, extras=extras)


def test_a_body_that_comes_again_with_another_place_is_there_once(fed: Lane):
    """A failover took its result back: its sub-request ran again."""
    give(fed, "0-0", "7-1", b"a", b"b")
    assert give(fed, "7-1", "9-0", b"b", b"c", b"c")[0] == b"ok"
    assert waiting_bodies(fed.client, "r1") == [b"a", b"b", b"c"]
    assert fed.hash()["handed"] == "9-0"
    assert 0 < fed.client.pttl(keys.fed("r1")) <= 31 * 24 * HOUR


def test_another_life_of_the_id_gets_what_the_former_one_had(lane: Lane):
    lane.start(0, limit=2, open_ms=HOUR)
    give(lane, "0-0", "7-1", b"a")
    lane.request("cancel", reason="why")
    lane.client.delete(*lane.names)
    lane.start(0, limit=2, open_ms=HOUR)
    give(lane, "0-0", "7-1", b"a")
    assert waiting_bodies(lane.client, "r1") == [b"a"]


def test_bits_of_another_kind_are_an_error_and_nothing_is_written(fed: Lane):
    give(fed, "0-0", "1-0", b"a")
    fed.client.delete(keys.fed("r1"))
    fed.client.lpush(keys.fed("r1"), "x")
    before = fed.dump()
    with pytest.raises(FairlaneError, match="WRONGTYPE"):
        give(fed, "1-0", "2-0", b"b")
    assert fed.dump() == before
    fed.client.delete(keys.fed("r1"))


@pytest.mark.parametrize("bodies", [["0"], ["x", "a"], ["-1", "a"], ["4294967296", "a"]])
def test_what_is_no_pair_of_an_index_and_a_body_is_refused(fed: Lane, bodies: list[str]):
    with fed.refuses("BADARGUMENT"):
        call(fed, since="0-0", upto="1-0", open_ms=HOUR, bodies=bodies)
