"""Tests scripts on a request that is absent or has ended: they report that and write nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairlane.protocol import keys
from tests.scripts.calls import RUNNING, accepted, three_requests
from tests.support.run.for_each import for_each
from tests.support.scripts.requests import listening

if TYPE_CHECKING:
    import redis

    from tests.support.scripts.requests import Lane

GONE = (
    *("acquire", "append", "cancel", "change_shards", "complete", "confirm"),
    *("extend", "glance", "pause", "reap", "requeue_dead", "resume", "seal"),
    *("set_deadline", "set_limit", "set_priority", "set_rate", "set_share", "set_time_limit"),
)
ENDED = ({*GONE} - {"confirm", "extend"}) | {"discard"}


def made(lane: Lane) -> dict[str, dict[str, Any]]:
    """Returns each script's arguments for a request of a database that is empty now."""
    calls = accepted(lane, three_requests(lane))
    lane.client.flushall()
    return {name: call.given for name, call in calls.items()}


@for_each("is_abandoned", [False, True])
@for_each("script", GONE)
def test_what_is_not_there_is_gone(lane: Lane, script: str, *, is_abandoned: bool):
    given = made(lane)[script]
    if is_abandoned:
        lane.abandon(5)
    with lane.unchanged():
        assert lane.call(script, keys.request_keys(RUNNING), **given) == [b"gone"]


@for_each("script", sorted(ENDED))
def test_after_the_end_a_script_returns_the_summary(
    lane: Lane, redis_client: redis.Redis, script: str
):
    given = made(lane)[script]
    lane.complete(lane.begin(1))
    with listening(redis_client, "done:{r1}") as published, lane.unchanged():
        word, summary, *late = lane.call(script, keys.request_keys(RUNNING), **given)
        assert (word, summary[:6]) == (b"ended", [b"done", lane.now, 1, 1, 0, 0])
        assert late == ([1] if script == "complete" else [])
        assert published() == []
