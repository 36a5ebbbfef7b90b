"""Tests the script check: it reports nothing for a sound request, and names each damage."""

from __future__ import annotations

import re
from typing import Any

import pytest

from fairlane.protocol import lua
from fairlane.protocol.lua import expand
from tests.support.run.for_each import for_each
from tests.support.scripts.requests import HOUR, Lane

SUB, COUNTER, REQ, TOK, LEASE, RETRY, OUT, DEAD, FEW, ERROR = (
    f"{part}:{{r1}}"
    for part in ("sub", "counter", "req", "tok", "lease", "retry", "out", "dead", "few", "error")
)


def busy(lane: Lane) -> list[bytes]:
    """Makes a live request with everything in it: leased, queued, to retry, undelivered, open.

    Returns the ids of the one slice that is held, by permit 0.
    """
    first, second, _ = lane.start(6, open_ms=HOUR)
    held = lane.take(first)
    failed = lane.take(second)
    lane.complete(failed, failed.ids[:1], [(failed.ids[1], "retry", 50_000)])
    assert lane.hash() | {"queued": "2", "fresh": "2", "sleeper": ""} == lane.hash()
    return held.ids


def ended(lane: Lane) -> None:
    """Makes a request that has ended, with a result and a dead sub-request."""
    held = lane.begin(2, limit=1)
    lane.complete(held, held.ids[:1], [(held.ids[1], "dead", 0)])


def damage(lane: Lane, command: list[Any]) -> None:
    """Changes the packed numbers that are named as pairs; the rest is a raw command."""
    for name, value in (part for part in command if isinstance(part, tuple)):
        lane.change(name, value)
    if words := [part for part in command if not isinstance(part, tuple)]:
        lane.raw(*words)


BREAKS: dict[str, tuple[list[Any], str]] = {
    "a lease without a holder": (["ZADD", LEASE, 9e15, 2], "permits are held, 2 leases stand"),
    "a holder without a lease": (["ZREM", LEASE, 0], "permits are held, 0 leases stand"),
    "a wrong count of queued permits": (
        [("queued", 1)],
        "2 permits are queued awake, the count says 1",
    ),
    "a sleeper that does not sleep": ([("sleeper", 9)], "0 permits sleep, the sleeper is 9"),
    "a permit in no state": (["HDEL", TOK, 1], "1 permits below 3 are in no state"),
    "a parked permit out of the list": (["HSET", TOK, 7, "p:"], "1 permits are parked, 0 are"),
    "a counter too high": (["INCR", COUNTER], "counter 7 is not 2 undelivered + 2 held"),
    "a counter too low": (["DECR", COUNTER], "counter 5 is not 2 undelivered + 2 held"),
    "a total too high": ([("total", 7)], "does not match total 7"),
    "a result counted twice": ([("done", 2)], "does not match total 6"),
    "an entry more": (["XADD", SUB, "*", "b", "x"], "6 entries, 3 pending and 2 undelivered"),
    "an entry acknowledged by hand": (["XACK", SUB, SUB, b"held"], "2 pending, 2 held and 1 to"),
    "a lease that owes more": (["ZADD", RETRY, 1, "1-1"], "3 pending, 2 held and 2 to retry"),
    "a retry without an entry": (
        ["ZADD", RETRY, 9e15, "1-1"],
        "consumer - has 1 entries, retry has 2",
    ),
    "an orphan out of retry": (
        ["XCLAIM", SUB, SUB, "-", 0, b"held", "JUSTID"],
        "consumer - has 2 entries, retry has 1",
    ),
    "more queued than there is room": (
        [("limit", 1)],
        "2 permits are queued for 2 ready and 1 held",
    ),
    "a sleeper while others are awake": ([("sleeper", 1)], "a permit sleeps while 2 are awake"),
    "nothing queued": ([("queued", 0)], "2 wait, there is room, and nothing is queued"),
    "a counter that is gone": (["DEL", COUNTER], f"not ended, but {COUNTER} is gone"),
    "a stream that is gone": (["DEL", SUB], f"not ended, but {SUB} is gone"),
}
# A small request without a lease so far.
APART: dict[str, tuple[list[Any], str]] = {
    "the few that are gone": (["DEL", FEW], f"not ended, but {FEW} is gone"),
    "a stream beside the few": (
        ["XADD", SUB, "*", "b", "x"],
        f"sub-requests wait in {FEW} and in the stream",
    ),
}
LEFT_BEHIND: dict[str, list[Any]] = {
    SUB: ["XADD", SUB, "*", "b", "x"],
    COUNTER: ["SET", COUNTER, 1],
    TOK: ["HSET", TOK, 0, "p:"],
    LEASE: ["ZADD", LEASE, 1, 0],
    RETRY: ["ZADD", RETRY, 1, "1-0"],
    FEW: ["SET", FEW, "1:x"],
}
LATE_BREAKS: dict[str, tuple[list[Any], str]] = {
    **{f"{key} left": (how, f"ended, but {key} is left") for key, how in LEFT_BEHIND.items()},
    **{
        f"{key} for ever": (["PERSIST", key], f"ended, but {key} has no TTL")
        for key in (REQ, OUT, DEAD)
    },
    "one too many": ([("done", 2)], "of 2 sub-requests 2 done 1 dead and 0 cancelled"),
    "cancelled, though it is done": (
        [("done", 0), "HSET", REQ, "cancelled", 1],
        "1 are cancelled, the request is done",
    ),
    "one too few": ([("dead", 0)], "of 2 sub-requests 1 done 0 dead and 0 cancelled"),
}


@pytest.mark.any_command
@for_each("what", BREAKS)
def test_check_names_what_is_broken_in_a_live_request(lane: Lane, what: str):
    held = busy(lane)
    command, sentence = BREAKS[what]
    damage(lane, [held[0] if word == b"held" else word for word in command])
    assert any(sentence in found for found in lane.check()), lane.check()
    lane.client.flushall()


@pytest.mark.parametrize("what", APART)
def test_check_names_what_is_broken_while_few_wait_apart(lane: Lane, what: str):
    lane.start(3)
    command, sentence = APART[what]
    lane.raw(*command)
    assert lane.check() == [sentence]
    lane.client.flushall()


@pytest.mark.any_command
@for_each("what", LATE_BREAKS)
def test_check_names_what_is_broken_after_the_end(lane: Lane, what: str):
    ended(lane)
    command, sentence = LATE_BREAKS[what]
    damage(lane, command)
    found = lane.check()
    assert len(found) == 1
    assert sentence in found[0]
    lane.client.flushall()


def test_every_sentence_of_check_is_provoked_here():
    """A sentence that no test provokes may be unreachable."""
    text = expand(lua.library().root, "request/check.lua")
    calls = re.findall(r"^ *hold\((.*?)\)$", text, re.MULTILINE | re.DOTALL)
    provoked = " ".join(s for _, s in [*BREAKS.values(), *APART.values(), *LATE_BREAKS.values()])
    assert len(calls) == 19
    for call in calls:
        words = [w for w in re.findall(r'"([^"]*)"', call.split(",", 1)[1]) if len(w) > 2]
        assert words, call
        assert any(word in provoked for word in words), call


@for_each("state", [None, "active", "cancelling", "done"])
def test_check_reports_nothing_for_a_sound_request_and_writes_nothing(
    lane: Lane, state: str | None
):
    if state == "done":
        ended(lane)
    elif state:
        busy(lane)
        lane.checked = False
        if state == "cancelling":
            lane.cancel()
    with lane.unchanged():
        assert lane.check() == []
        assert lane.check() == []
