"""The text of an error is stored once, however many dead sub-requests have it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fairlane import settings
from tests.support.scripts.requests import Held, Lane, dead

BUDGET = 64 << 20  # bytes of all texts of one request: lib/dead_letters.lua


def texts(lane: Lane) -> dict[str, str]:
    """Returns what the hash of errors has, with names that a test can compare."""
    found: Any = lane.client.hgetall(lane.names[9])
    return {name.decode(): text.decode() for name, text in found.items()}


def kept(lane: Lane) -> list[str]:
    """Returns the texts of errors that are stored."""
    return sorted(text for name, text in texts(lane).items() if len(name) == 16)


def bury(lane: Lane, held: Held, errors: list[str], keep: str = "") -> list[Any]:
    """Makes the sub-requests of a lease dead, each with its own error."""
    rest: list[Any] = []
    for one, text in zip(held.ids, errors, strict=True):
        rest += (one, "dead", 0, dead(one, text).head, text)
    return lane.request(
        "complete", k=held.k, fence=held.fence, op=held.op, keep=keep, done=0, verdicts=rest
    )


def test_equal_errors_are_stored_once_and_shown_for_each(lane: Lane):
    held = lane.begin(4, limit=1)
    bury(lane, held, ["same", "other", "same", "same"])
    assert kept(lane) == ["other", "same"]
    assert texts(lane)["bytes"] == "9"
    assert [one["error"] for one in lane.dead()] == ["same", "other", "same", "same"]
    assert [body for _, _, body in lane.results().values()] == [b"same", b"other", b"same", b"same"]
    listed = lane.call("list_dead", lane.names, after="", count=10)
    assert [row[3] for row in listed] == [b"same", b"other", b"same", b"same"]


def test_a_text_of_another_program_is_cut_between_characters(lane: Lane):
    held = lane.begin(1, limit=1)
    bury(lane, held, ["aä" * 5_000])
    (text,) = kept(lane)
    assert len(text.encode()) <= settings.MAX_ERROR
    assert text.startswith("aäaä")
    assert "\n[...]\n" in text
    assert text.endswith("aä")


@pytest.mark.parametrize("character", ["ä", "€", "😀"])
def test_a_character_of_any_length_is_never_cut(lane: Lane, character: str):
    held = lane.begin(4, limit=1)
    bury(lane, held, ["x" * shift + character * 5_000 for shift in range(4)])
    shown = kept(lane)  # decoding raises an error if a character is broken
    assert len(shown) == 4
    for text in shown:
        assert settings.MAX_ERROR - 8 <= len(text.encode()) <= settings.MAX_ERROR


def test_above_the_budget_new_texts_are_short_and_old_ones_are_shared(lane: Lane):
    held = lane.begin(4, limit=1)
    first, second = "a" * 3_000, "b" * 3_000
    rest = replace(held, entries=held.entries[1:])
    bury(lane, replace(held, entries=held.entries[:1]), [first], keep="1")
    lane.client.hset(lane.names[9], "bytes", BUDGET - 1_000)
    bury(lane, rest, [second, first, second])
    shown = [one["error"] for one in lane.dead()]
    assert (shown[0], shown[2]) == (first, first)
    assert shown[1] == shown[3]
    assert len(shown[1]) == 500
    assert shown[1].startswith("bbb")


def test_a_requeued_sub_request_takes_its_error_along(lane: Lane):
    held = lane.begin(3, limit=1, open_ms=3_600_000)
    bury(lane, held, ["same", "other", "same"])
    first, second, third = lane.dead_ids()
    lane.requeue([first, second])
    assert kept(lane) == ["same"]
    assert [one["error"] for one in lane.dead()] == ["same"]
    lane.requeue([third])
    assert not lane.client.exists(lane.names[9])


def test_a_dropped_sub_request_takes_its_error_along_once(lane: Lane):
    held = lane.begin(3, limit=1)
    bury(lane, held, ["same", "other", "same"])
    first, second, third = lane.dead_ids()
    assert lane.call("drop_dead", lane.names, ids=[first, second, first]) == 2
    assert kept(lane) == ["same"]
    assert texts(lane)["bytes"] == "4"
    assert lane.call("drop_dead", lane.names, ids=[first]) == 0
    assert kept(lane) == ["same"]
    assert lane.call("drop_dead", lane.names, ids=[third]) == 1
    assert not lane.client.exists(lane.names[9])


def test_the_errors_live_as_long_as_the_results(lane: Lane):
    held = lane.begin(2, limit=1)
    bury(lane, held, ["why", "why"])
    assert lane.check() == []
    assert lane.client.pttl(lane.names[9]) == pytest.approx(
        lane.client.pttl(lane.names[6]), abs=1_000
    )


def test_a_text_that_a_refused_call_left_expires_although_none_is_dead(lane: Lane):
    held = lane.begin(100, limit=1, count=100)  # so many are in a stream
    lane.client.hset(lane.names[9], mapping={"bytes": 3, "left": "why"})
    assert lane.complete(held)[0] == b"ended"
    assert lane.check() == []
    assert lane.client.pttl(lane.names[9]) > 0


def test_without_a_retention_the_errors_go_with_the_end(lane: Lane):
    held = lane.begin(1, limit=1, retain_ms=0)
    assert bury(lane, held, ["why"])[0] == b"ended"
    assert not lane.client.exists(lane.names[9])


def test_an_error_that_cannot_be_stored_buries_nothing(lane: Lane):
    held = lane.begin(1, limit=1)
    lane.client.set(lane.names[9], "a key of another type")
    with pytest.raises(Exception, match="WRONGTYPE"):
        bury(lane, held, ["why"])
    assert (lane.dead(), lane.client.exists(lane.names[6])) == ([], 0)
    lane.client.delete(lane.names[9])
    assert bury(lane, held, ["why"])[0] == b"ended"
    assert [one["error"] for one in lane.dead()] == ["why"]
