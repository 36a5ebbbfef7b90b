"""Tests the gate of a request: nothing starts before it opens, and everything after it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fairlane.errors import InvalidArgument
from tests.support.run.for_each import for_each
from tests.support.scripts.requests import HOUR, toks

if TYPE_CHECKING:
    from tests.support.scripts.requests import Lane, Tok

DAY = 24 * HOUR


def test_a_delayed_request_has_one_token_which_is_due_when_the_delay_is_over(lane: Lane):
    (token,) = lane.start(9, limit=3, extras="delay=5000")
    assert token.delay == 5_000
    assert lane.number("opens") == lane.now + 5_000


@pytest.mark.parametrize("bodies", [1, 20], ids=["few", "many"])
def test_what_is_shown_too_early_sleeps_until_the_gate_opens(lane: Lane, bodies: int):
    (token,) = lane.start(bodies, limit=3, extras="delay=5000")
    lane.now += 4_000
    early = lane.acquire(token)
    assert early.word == "empty"
    (again,) = early.tokens
    assert again.delay == 1_000
    lane.now += 1_000
    held = lane.take(again)
    assert len(held.ids) == -(-bodies // 3)
    assert len(held.tokens) == min(2, bodies - 1)


def test_a_start_that_is_over_is_none(lane: Lane):
    (token,) = lane.start(1, extras=f"start={lane.now - 1}")
    assert token.delay == 0
    assert lane.client.hexists(lane.names[2], "gate") is False


def test_a_start_is_a_time_of_the_servers_clock(lane: Lane):
    (token,) = lane.start(1, extras=f"start={lane.now + DAY}")
    assert token.delay == DAY


def test_a_delayed_request_may_be_cancelled_paused_and_resumed(lane: Lane):
    lane.start(3, extras="delay=5000")
    lane.request("pause")
    word, *_, tokens = lane.request("resume")
    assert (word, [token.delay for token in toks(tokens)]) == (b"ok", [5_000])
    assert lane.request("cancel", reason="enough")[0] == b"ended"


def test_a_delay_ends_no_later_than_the_deadline_lets_it(lane: Lane):
    (token,) = lane.start(3, extras="delay=5000", deadline_ms=3_000)
    lane.now += 5_000
    assert lane.acquire(token).word == "paused"


@for_each(
    "extras",
    [
        "delay=-1",
        "delay=",
        "delay",
        "delay=5\n\nstart=3",
        "delay=1\ndelay=2",
        "unknown=1",
        "\n",
        "tags=",
        "tags=,a",
        "tenant=a b",
        "by=a{b}",
        "rates=1 = 10 5",
        "rates=x",
        "DELAY=1",
        "by=",
        "by=a b",
        "trace=",
        "trace=x",
        "trace=00-zz-b7ad-01",
        "trace=00-0af7-b7ad-1",
        "trace=00-a-b-01 a b",
    ],
)
def test_extras_that_are_not_valid_are_refused_before_anything_is_written(lane: Lane, extras: str):
    with pytest.raises(InvalidArgument, match="lines name=value are expected as extras"):
        lane.enqueue(1, extras=extras)
    assert lane.dump() == {}


def test_tags_and_tenant_are_fields_of_the_request(lane: Lane):
    lane.start(1, extras="tags=nightly,eu\ntenant=acme")
    assert (lane.hash()["tags"], lane.hash()["tenant"]) == ("nightly,eu", "acme")


# ------------------------------------------------------------------ hold


def test_a_hold_makes_waiting_tokens_stale_and_ends_by_itself(lane: Lane):
    first, second = lane.start(20, limit=2)
    held = lane.take(first, count=1)
    word, tokens, rates = lane.request("hold", ms=30_000)
    (sleeper,) = toks(tokens)
    assert (word, sleeper.delay, rates) == (b"ok", 30_000, b"")
    assert lane.acquire(second).word == "stale"
    left, after = lane.complete(held)[1:3]
    assert (left, toks(after)) == (19, [])
    lane.now += 30_000
    assert lane.take(sleeper).ids


def test_a_second_hold_never_shortens_the_first(lane: Lane):
    lane.start(20, limit=2)
    lane.request("hold", ms=30_000)
    lane.request("hold", ms=1_000)
    assert lane.number("opens") == lane.now + 30_000


def test_a_hold_keeps_retries_too(lane: Lane):
    held = lane.take(lane.start(1)[0])
    lane.request("hold", ms=30_000)
    _, _, tokens = lane.complete(held, others=[(held.ids[0], "retry", 1_000)])
    assert [token.delay for token in toks(tokens)] == [30_000]


def test_a_hold_of_a_request_that_ended_changes_nothing(lane: Lane):
    lane.complete(lane.take(lane.start(1)[0]))
    before = lane.dump()
    assert lane.request("hold", ms=5)[0] == b"ended"
    assert lane.dump() == before


def test_a_hold_of_no_request_is_gone(lane: Lane):
    assert lane.request("hold", ms=5) == [b"gone"]


@for_each("ms", [0, -1, "x", DAY + 1])
def test_a_hold_of_another_length_is_refused(lane: Lane, ms: int | str):
    lane.start(1)
    with pytest.raises(InvalidArgument, match="BADARGUMENT 1 ms to a day is expected"):
        lane.request("hold", ms=ms)


# ------------------------------------------------------------------ rates

RATES = "rates=1 = 10000 5 1"


def test_a_request_with_a_rate_has_one_token_at_a_time(lane: Lane):
    assert len(lane.start(20, limit=9, extras=RATES)) == 1


def test_without_an_allowance_nothing_changes(lane: Lane):
    (token,) = lane.start(20, limit=4, extras=RATES)
    before = lane.dump()
    rated = lane.acquire(token, count=8)
    assert rated.reply == [b"rated", b"1 = 10000 5 1", 5, 0]
    assert lane.dump() == before


def test_an_allowance_bounds_the_slice(lane: Lane):
    (token,) = lane.start(20, limit=2, extras=RATES)
    held = lane.acquire(token, allowance=3, wait=0)
    assert (held.word, len(held.ids), len(held.tokens)) == ("ok", 3, 1)


def test_without_room_the_request_waits_and_comes_again_by_itself(lane: Lane):
    (token,) = lane.start(20, limit=2, extras=RATES)
    limited = lane.acquire(token, allowance=0, wait=40)
    assert limited.word == "limited"
    (sleeper,) = limited.tokens
    assert sleeper.delay == 40
    lane.now += 40
    assert lane.acquire(sleeper).reply == [b"rated", b"1 = 10000 5 1", 10, 1]
    held = lane.acquire(sleeper, allowance=1, wait=0)
    assert (held.word, lane.number("opens"), lane.hash()["rates"]) == ("ok", 0, "1 = 10000 5 1")


@for_each("allowance, wait", [("x", ""), (1, ""), ("", 1), (-1, 1), (1.5, 1)])
def test_an_allowance_that_is_no_number_is_refused(
    lane: Lane, allowance: int | str, wait: int | str
):
    (token,) = lane.start(1, extras=RATES)
    if allowance == "":
        assert lane.acquire(token, allowance=allowance, wait=wait).word == "rated"
        return
    with pytest.raises(InvalidArgument, match="whole numbers are expected as allowance"):
        lane.acquire(token, allowance=allowance, wait=wait)


@pytest.mark.parametrize("limit", [1, 2, 8])
def test_a_request_that_is_limited_again_and_again_needs_no_more_permits(lane: Lane, limit: int):
    (token,) = lane.start(50, limit=limit, extras=RATES)
    for _ in range(10):
        (sleeper,) = lane.acquire(token, allowance=0, wait=40).tokens
        lane.now += 40
        held = lane.acquire(sleeper, count=1, allowance=1, wait=0)
        _, _, tokens = lane.complete(held)
        (token,) = [*held.tokens, *toks(tokens)][-1:]
        assert lane.check() == []
    assert lane.number("high") <= limit
    assert lane.number("queued") == 1


# ------------------------------------------------------------------ set_rate

FASTER = "4 = 1000 20 1"


def set_rate(lane: Lane, rates: str = FASTER) -> list[Tok]:
    word, tokens = lane.request("set_rate", rates=rates)
    assert word == b"ok"
    return toks(tokens)


def test_a_request_that_waits_for_its_rate_goes_on_with_another_one(lane: Lane):
    (token,) = lane.start(20, limit=2, extras=RATES)
    (sleeper,) = lane.acquire(token, allowance=0, wait=30_000).tokens
    first, second = set_rate(lane)
    assert (first.delay, second.delay) == (0, 0)
    assert lane.acquire(sleeper).word == "stale"
    assert lane.acquire(first).reply == [b"rated", FASTER.encode(), 10, 0]
    assert lane.check() == []


def test_a_delay_stands_whatever_the_rate(lane: Lane):
    (token,) = lane.start(20, limit=2, extras="delay=5000\n" + RATES)
    assert set_rate(lane) == []
    assert lane.number("opens") == lane.now + 5_000
    lane.now += 5_000
    assert lane.acquire(token).reply == [b"rated", FASTER.encode(), 10, 0]


@pytest.mark.parametrize("ms", [1_000, 60_000])
def test_a_hold_stands_whatever_the_rate(lane: Lane, ms: int):
    (token,) = lane.start(20, limit=2, extras=RATES)
    lane.acquire(token, allowance=0, wait=30_000)
    lane.request("hold", ms=ms)
    assert set_rate(lane) == []
    assert lane.number("opens") == lane.now + max(ms, 30_000)


def test_a_request_without_a_rate_is_given_one_while_it_runs(lane: Lane):
    first, second = lane.start(20, limit=2)
    held = lane.take(first, count=1)
    assert set_rate(lane, "1 = 10000 5 1") == []
    assert lane.acquire(second).word == "rated"
    assert lane.complete(held)[0] == b"ok"
    assert lane.check() == []


def test_the_same_rate_again_brings_the_tokens_once_more_and_changes_nothing(lane: Lane):
    tokens = lane.start(20, limit=2, extras="rates=" + FASTER)
    assert sorted(set_rate(lane)) == sorted(tokens)
    with lane.unchanged():
        assert set_rate(lane) == []


def test_a_paused_request_with_another_rate_stays_paused(lane: Lane):
    lane.start(20, limit=2, extras=RATES)
    lane.request("pause")
    assert set_rate(lane) == []
    assert len(toks(lane.request("resume")[2])) == 2


# ------------------------------------------------------------------ ageing


def test_the_permit_that_has_waited_for_longest_is_hastened(lane: Lane):
    first, second = lane.start(20, limit=2, priority=90, extras="ageing=60000")
    lane.now += 60_000
    (hastened,) = toks(lane.request("hasten")[1])
    assert (hastened.k, hastened.lane) == (first.k, 0)
    lane.now += 60_000
    (hastened,) = toks(lane.request("hasten")[1])
    assert (hastened.k, hastened.lane) == (second.k, 0)


def test_a_permit_in_the_most_urgent_lane_is_not_hastened(lane: Lane):
    """Its token would lose its turn, and a stale one would stay each time while no worker pops."""
    first, second = lane.start(20, limit=2, priority=90, extras="ageing=60000")
    hastened = []
    for _ in range(4):
        lane.now += 60_000
        hastened += [one.k for one in toks(lane.request("hasten")[1])]
    assert hastened == [first.k, second.k]


def test_a_request_of_the_most_urgent_lane_has_no_token_to_hasten(lane: Lane):
    (token,) = lane.start(1, priority=0, extras="ageing=60000")
    lane.now += 60_000
    assert lane.request("hasten") == [b"ok", []]
    assert lane.acquire(token).word == "ok"


def test_a_sleeper_is_not_hastened(lane: Lane):
    """Its retry is not due, so its token would find nothing."""
    held = lane.take(lane.start(1, priority=90, extras="ageing=60000")[0])
    reply = lane.complete(held, others=[(held.ids[0], "retry", HOUR)])
    (sleeper,) = toks(reply[2])
    lane.now += 60_000
    assert lane.request("hasten")[1] == []
    lane.now += HOUR - 60_000
    assert lane.acquire(sleeper).word == "ok"


def test_a_request_of_which_nothing_waits_has_no_token_to_hasten(lane: Lane):
    lane.take(lane.start(1, priority=90, extras="ageing=60000")[0])
    lane.now += 60_000
    assert lane.request("hasten") == [b"ok", []]


def test_glance_reports_no_ageing_of_what_is_paused_or_has_no_token(lane: Lane):
    (token,) = lane.start(1, limit=1, priority=90, extras="ageing=60000")
    lane.request("pause")
    lane.now += 60_000
    assert b"aged" not in lane.request("glance", queue="", grace="")
    (token,) = toks(lane.request("resume")[2])
    assert lane.request("glance", queue="", grace="")[3] == b"aged"
    lane.take(token)
    lane.now += 60_000
    assert b"aged" not in lane.request("glance", queue="", grace="")


# ------------------------------------------------------------------ after others


def test_a_request_that_waits_for_others_sleeps_until_its_gate_is_opened(lane: Lane):
    assert lane.start(1, extras="after=done:r0") == []
    assert lane.request("glance", queue="", grace="")[3] == b"done:r0"
    (token,) = toks(lane.request("open_gate", found="done:r0", left="", reason="")[1])
    assert token.delay == 0
    assert len(lane.request("glance", queue="", grace="")) == 3
    lane.take(token)


def test_a_gate_that_cannot_be_read_is_an_error_and_not_an_open_gate(lane: Lane):
    lane.start(1, extras="delay=5000")
    lane.client.hset(lane.names[2], "gate", "x")
    with pytest.raises(Exception, match="the gate of"):
        lane.call("pause", lane.names)


# ------------------------------------------------------------------ the clock goes back


def look(lane: Lane) -> Any:
    """Reaps as a leader if a glance reports that there is something to do."""
    word, ms, *_ = lane.request("glance", queue="", grace="")
    assert word == b"ok"
    return lane.reap() if ms == 1 else None


def test_a_gate_that_opens_later_than_it_may_waits_once_more(lane: Lane):
    lane.later(2 * HOUR)
    lane.start(3, extras="delay=5000")
    assert look(lane) is None
    lane.later(-2 * HOUR)
    (token,) = toks(look(lane)[2])
    assert (token.delay, lane.number("opens")) == (5_000, lane.now + 5_000)
    assert look(lane) is None, "this is done once"
    lane.later(5_000)
    lane.take(token)


def test_a_request_that_starts_at_a_time_of_the_calendar_still_does(lane: Lane):
    start = lane.now + 3 * HOUR
    lane.later(2 * HOUR)
    lane.start(3, extras=f"start={start}")
    lane.later(-2 * HOUR)
    assert look(lane) is None
    assert lane.number("opens") == start


def test_a_gate_that_its_rate_closed_is_open_after_the_wait(lane: Lane):
    lane.later(2 * HOUR)
    (token,) = lane.start(9, limit=1, extras="rates=1 = 100000 1 1")
    lane.acquire(token, allowance=0, wait=700)
    lane.later(-2 * HOUR)
    (token,) = toks(look(lane)[2])
    assert token.delay == 700


def test_a_hold_is_as_long_as_it_was_asked_for(lane: Lane):
    lane.later(2 * HOUR)
    lane.start(3)
    lane.request("hold", ms=90_000)
    lane.later(-2 * HOUR)
    lane.request("hold", ms=60_000)
    look(lane)
    assert lane.number("opens") == lane.now + 90_000


def test_a_retry_that_is_due_later_than_it_may_be_is_due_now(lane: Lane):
    lane.later(2 * HOUR)
    held = lane.take(lane.start(1, backoff_min=1_000, backoff_max=10_000)[0])
    lane.complete(held, others=[(held.ids[0], "retry", 10_000)])
    assert look(lane) is None
    lane.later(-2 * HOUR)
    (token,) = toks(look(lane)[2])
    assert token.delay == 0
    assert lane.take(token).ids == held.ids


def test_a_pause_that_a_handler_asked_for_may_be_longer_than_the_backoff(lane: Lane):
    held = lane.take(lane.start(1, backoff_min=1_000, backoff_max=10_000)[0])
    lane.complete(held, others=[(held.ids[0], "retry", HOUR)])
    assert look(lane) is None
    lane.later(-2 * HOUR)
    assert toks(look(lane)[2])[0].delay == 0
