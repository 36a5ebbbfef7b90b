"""Tests which tokens a repeated call returns: each queued token once more, never a third time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.scripts.requests import HOUR, toks

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.scripts.requests import Lane, Tok

CALLS: dict[str, Callable[[Lane], list[Tok]]] = {
    "enqueue": lambda lane: toks(lane.enqueue(9, open_ms=HOUR)[5]),
    "append": lambda lane: toks(lane.append(1, chunk=2)[1]),
    "seal": lambda lane: toks(lane.seal(2)[1]),
    "resume": lambda lane: toks(lane.resume()[2]),
    "set_deadline": lambda lane: toks(lane.request("set_deadline", deadline_ms=0)[1]),
    "set_limit": lambda lane: toks(lane.set_limit(3)[1]),
    "set_priority": lambda lane: toks(lane.set_priority(5)[1]),
    "change_shards": lambda lane: toks(lane.request("change_shards", shards="")[1]),
}
every_call = pytest.mark.parametrize("name", CALLS)


def begun(lane: Lane) -> list[Tok]:
    """Makes a sealed request of ten sub-requests; returns its three tokens."""
    tokens = lane.start(9, open_ms=HOUR)
    lane.append(1, chunk=2)
    lane.seal(2)
    return sorted(tokens)


@every_call
def test_a_repeat_brings_every_queued_token_once(lane: Lane, name: str):
    """The reply before it may be lost. A caller that repeats for ever fills no lane."""
    tokens = begun(lane)
    assert sorted(CALLS[name](lane)) == tokens
    for again in CALLS.values():
        assert again(lane) == []


@every_call
def test_a_token_minted_since_is_repeated_too(lane: Lane, name: str):
    first, *_ = begun(lane)
    CALLS[name](lane)
    held = lane.take(first, count=1)
    (minted,) = toks(lane.complete(held)[2])
    assert CALLS[name](lane) == [minted]
    assert CALLS[name](lane) == []


def test_no_repeat_leaves_a_note_behind_the_end(lane: Lane):
    begun(lane)
    lane.cancel()
    before = lane.client.hgetall(lane.names[2])
    assert lane.enqueue(9, open_ms=HOUR)[5] == []
    assert lane.client.hgetall(lane.names[2]) == before
