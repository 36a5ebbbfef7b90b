"""Tests `fairlane workers` and `fairlane queues`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from fairlane.protocol import keys
from fairlane.queue import Queue
from tests.support.processes.beats import beat, make_older

if TYPE_CHECKING:
    import redis

    from tests.cli.program import Program


def test_workers_alive_and_dead(program: Program, redis_url: str, redis_client: redis.Redis):
    with Queue.from_url(redis_url) as queue:
        beat(queue, "a:1")
        beat(queue, "b:1")
        make_older(redis_client, queue, "a:1", 30_000)
    ended = program("workers")
    assert (ended.code, ended.err) == (0, "")
    head, alive, dead = ended.out.decode().splitlines()
    assert head.split() == (
        ["WORKER", "STATE", "HOST", "PID", "SINCE", "LAST", "BEAT", "RELEASE", "HOLDS"]
    )
    assert alive.split()[:4] == ["b:1", "alive", "machine", "17"]
    assert alive.endswith("3 leases; mine sub-request 4 at 30 of 100")
    assert dead.split()[:2] == ["a:1", "dead"]
    rows = [json.loads(line) for line in program("workers", "--json").out.splitlines()]
    assert [(row["id"], row["is_alive"]) for row in rows] == [("b:1", True), ("a:1", False)]
    assert rows[0]["calls"] == [{"id": "mine", "permit": 0, "index": 4, "done": 30, "total": 100}]


def test_a_limit_names_how_many_are_left_out(program: Program, redis_url: str):
    with Queue.from_url(redis_url) as queue:
        for number in range(3):
            beat(queue, f"w:{number}")
    ended = program("workers", "--limit", 2)
    assert ended.out.count(b"alive") == 2
    assert "1 worker with older heartbeats left out: see --limit" in ended.err


def test_a_queue_without_workers_names_the_command_that_starts_one(program: Program):
    ended = program("workers", "--queue", "mail")
    assert (ended.code, ended.out) == (0, b"")
    assert ended.err == (
        "fairlane: queue mail has no worker: "
        "rq-worker --handler module:function --queue mail starts one\n"
    )


def test_queues_with_what_is_in_them(program: Program, redis_url: str):
    program("submit", "-", "--queue", "mail", "--limit", 2, stdin=b"a\nb\nc\n")
    with Queue.from_url(redis_url, name="idle") as queue:
        beat(queue, "w:1")
    ended = program("queues")
    assert (ended.code, ended.err) == (0, "")
    assert [line.split() for line in ended.out.decode().splitlines()] == [
        ["QUEUE", "WAITING", "TREND", "REQUESTS", "WORKERS", "TOKENS", "ENDED", "DEAD"],
        ["idle", "0", "0", "1", "0", "0", "0"],
        ["mail", "3", "nothing", "works", "on", "them", "now", "1", "0", "2", "0", "0"],
    ]
    found = json.loads(program("queues", "--json").out)
    assert [one["name"] for one in found["queues"]] == ["idle", "mail"]
    assert (found["queues"][1]["tokens"], found["after"]) == (2, None)


def test_no_queue_is_a_note_and_a_wrong_cursor_is_refused(program: Program):
    ended = program("queues")
    assert (ended.code, ended.out) == (0, b"")
    assert "no queue was used on this Redis yet" in ended.err
    program("queues", "--after", "x").refused(2, "cursor 'x' is not valid")


def test_a_queue_of_another_type_has_no_counts(program: Program, redis_client: redis.Redis):
    redis_client.set(keys.active("odd"), "x")
    assert program("queues").out.decode().splitlines()[1].split() == ["odd", *"------"]
    redis_client.delete(keys.active("odd"))
