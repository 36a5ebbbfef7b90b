"""Tests the scripts on a full Redis, which must be drainable, and on one that forgot them."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest
import redis

from fairlane.errors import RedisFull
from fairlane.protocol import keys
from tests.support.scripts.requests import HOUR, Lane, Tok, toks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


ACTIVE, DELAYED = keys.active("req"), keys.delayed("req")
LANES, TURNS = keys.lanes("req"), keys.turns("req")
CONF, LOADS = keys.bound("req")
LOG = (ACTIVE, keys.logged("req"), keys.completed("req"), CONF, LOADS)


@contextlib.contextmanager
def full(client: redis.Redis) -> Iterator[None]:
    """Keeps the server at its maxmemory until the end of the block."""
    client.config_set("maxmemory", 100_000)
    try:
        with pytest.raises(redis.OutOfMemoryError):
            client.set("more", "x")
        yield
    finally:
        client.config_set("maxmemory", 0)


def dispatch(lane: Lane, *tokens: Tok) -> None:
    names = [DELAYED, *(LANES[token.lane] for token in tokens)]
    flat: list[object] = []
    for t in tokens:
        text = f"r1#{t.k}.{t.g}"
        flat += [t.lane, 0, 1, text, t.delay] if t.delay else [t.lane, 1, 0, text]
    assert lane.call("insert_tokens", names, tokens=flat) == len(tokens)


def test_a_full_redis_refuses_what_is_new_and_writes_nothing(lane: Lane):
    lane.start(3, open_ms=HOUR)
    other = Lane(lane.driver, lane.client, request_id="r2")
    with full(lane.client):
        before = lane.dump()
        for refused in (
            lambda: other.enqueue(3),
            lambda: other.enqueue([b"x" * 1000] * 1000),
            lambda: lane.append(3, chunk=2),
            lambda: lane.call("intend", (ACTIVE, CONF), ids=["r2"], grace=1, above=0, named=""),
        ):
            with pytest.raises(RedisFull, match="full"):
                refused()
        assert lane.dump() == before
    assert lane.append(3, chunk=2)[0] == b"ok"


def test_a_full_redis_can_be_drained(lane: Lane):
    tokens = lane.start(6, open_ms=HOUR)
    with full(lane.client):
        assert lane.seal()[0] == b"ok"
        dispatch(lane, *tokens)
        while tokens:
            held = lane.take(tokens.pop(0), count=1)
            assert lane.extend(held) == "ok"
            reply = lane.complete(held)
            if reply[0] == b"ok":
                tokens += toks(reply[2])
        assert reply[0] == b"ended"
        given = {"least": 1, "longest": 1, "most": 10, "endings": ["r1", *reply[1]]}
        assert lane.call("retire", LOG, **given) == 1
    assert len(lane.results()) == 6


def test_a_full_redis_retries_reaps_and_buries(lane: Lane):
    first, second, third = lane.start(9)
    with full(lane.client):
        held = lane.take(first)
        others = [
            (held.ids[0], "dead", 0),
            (held.ids[1], "retry", 500),
            (held.ids[2], "release", 0),
        ]
        lane.complete(held, others=others)
        lane.take(second, worker="w:2")
        lane.take(third, worker="w:3", count=1)
        dispatch(lane, Tok(5, "0", "9", 100))
        lane.later(30_000)
        assert lane.call("promote", (DELAYED, *TURNS, *LANES), most=10)[0] == 1
        assert lane.reap()[0] == b"ok"
        assert lane.cancel()[0] == b"ended"
    assert lane.number("dead") == 1
    assert lane.number("cancelled") == 8


def test_workers_live_on_a_full_redis(lane: Lane):
    workers, record = keys.workers("req"), keys.worker("req", "w:1")
    lane.call("intend", (ACTIVE, CONF), ids=["r2"], grace=1, above=0, named="")
    with full(lane.client):
        words = {"id": "w:1", "host": "box", "pid": 1, "started": 7, "ttl": 60_000, "late": 2_000}
        home = (workers, record, CONF, keys.task_stats("req"))
        assert lane.call("register_worker", home, release="1.0", **words) == [b"ok"]
        taken, ticks = keys.taken("req", "w:1"), keys.schedules("req")[1]
        names = (workers, record, ACTIVE, DELAYED, CONF, taken, ticks, keys.firing("req"))
        words = {"id": "w:1", "started": 7, "ttl": 60_000, "lock_ms": 5_000, "holds": ""}
        words |= {"taken_ttl": 600_000, "died": "1"}
        assert lane.call("heartbeat", names, **words)[:2] == [b"ok", 1]
        assert lane.call("expire_workers", (workers,), ttl=60_000) == []
        assert (
            lane.call("unregister_worker", (workers, record, CONF, taken), id="w:1", started=7) == 1
        )
        assert lane.abandon(5) == [b"ok"]
        seen = lane.now + 1
        assert lane.call("reschedule_active", (ACTIVE,), rows=["r2", seen, "7.5"]) == 1
        own = (ACTIVE, keys.completed("req"), CONF, LOADS)
        assert lane.call("drop_active", own, id="r2", seen="7.5", gone="1", most=9) == 1


def forget_before_each(lane: Lane) -> Callable[..., object]:
    """Makes the server forget every script before each call."""
    call = lane.call

    def forgetting(*args: object, **given: object) -> object:
        lane.client.script_flush()
        return call(*args, **given)  # type: ignore[arg-type]

    return forgetting


@pytest.mark.any_command
def test_everything_works_while_the_server_forgets_its_scripts(
    lane: Lane, monkeypatch: pytest.MonkeyPatch
):
    """SCRIPT FLUSH runs before each call, because a restart and a failover have this effect."""
    monkeypatch.setattr(lane, "call", forget_before_each(lane))
    tokens = lane.start(4, open_ms=HOUR, limit=2)
    lane.append(2, chunk=2)
    lane.seal(2)
    dispatch(lane, *tokens)
    while tokens:
        held = lane.take(tokens.pop(0), count=1)
        lane.extend(held)
        reply = lane.complete(held)
        tokens += toks(reply[2]) if reply[0] == b"ok" else []
    assert reply[1][2:6] == [6, 6, 0, 0]
