"""Tests the contract of mpush: the commands of its README have the same results."""

from __future__ import annotations

import hashlib
import json
import signal
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from tests.cli.lists.running import Crew
from tests.support.wait import PATIENCE_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cli.program import Program

IN, PENDING, OUTS = "demo:mpush:in", "demo:mpush:pending", ["demo:mpush:out0", "demo:mpush:out1"]
CONFIG = {"in": IN, "pending": PENDING, "popTimeout": 10, "out": OUTS}
SERVICE = CONFIG | {"redisNamespace": "demo:mpush", "serviceExpire": 60}
TRACKED = SERVICE | {"messageTimeout": 10, "messageExpire": 60}


@pytest.fixture
def crew(program: Program) -> Iterator[Crew]:
    with Crew(program) as made:
        yield made


def start(crew: Crew, program: Program, config: dict[str, Any]) -> Any:
    """Starts mpush as its README does: the file is named by propsFile."""
    program.env["propsFile"] = str(program.file(json.dumps(config).encode(), "mpush.json"))
    return crew.fairlane("fanout")


def mpush(client: Any) -> bool:
    """Does one turn of mpush, as its README has it in JavaScript."""
    message = client.rpoplpush(IN, PENDING)
    if message is None:
        return False
    with client.pipeline(transaction=True) as multi:
        for out in OUTS:
            multi.lpush(out, message)
        multi.lrem(PENDING, -1, message)
        multi.execute()
    return True


def lists_of(client: Any) -> dict[str, list[bytes]]:
    return {name: client.lrange(name, 0, -1) for name in (IN, PENDING, *OUTS)}


@pytest.mark.parametrize(
    "messages",
    [
        ["one"],
        ["one", "two", "three"],
        ["same", "same", "other", "same"],
        ["", "\x00\xff", "ü" * 1000, '{"meta": {"id": 7}}', "12345"],
        [str(number % 7) for number in range(250)],
    ],
    ids=["one", "three", "equal", "any bytes", "more than a batch"],
)
def test_the_same_messages_in_the_same_lists_out(messages: list[str], program: Program, lists: Any):
    lists.lpush(IN, *messages)
    while mpush(lists):
        continue
    expected = lists_of(lists)
    lists.flushall()
    lists.lpush(IN, *messages)
    config = program.file(json.dumps(CONFIG).encode(), "mpush.json")
    assert program("fanout", "--config", config, "--until-idle").code == 0
    assert lists_of(lists) == expected
    assert set(lists.keys("*")) == {out.encode() for out in OUTS}


def test_the_demo(crew: Crew, program: Program, lists: Any):
    """`redis-cli lpush demo:mpush:in one`, then `lrange` of both lists."""
    start(crew, program, CONFIG)
    lists.lpush("demo:mpush:in", "one")
    wait_until(partial(lists.llen, "demo:mpush:out1"))
    assert lists.lrange("demo:mpush:out0", 0, -1) == [b"one"]
    assert lists.lrange("demo:mpush:out1", 0, -1) == [b"one"]
    assert not lists.exists(IN, PENDING)


def test_a_service_registers_itself_and_sigterm_takes_it_off(
    crew: Crew, program: Program, lists: Any
):
    lists.set("demo:mpush:id", 8)
    fanout = start(crew, program, SERVICE)
    wait_until(partial(lists.exists, "demo:mpush:9"))
    assert {b"host", b"pid", b"started", b"renewed"} == set(lists.hkeys("demo:mpush:9"))
    assert 0 < lists.ttl("demo:mpush:9") <= 60
    assert lists.lrange("demo:mpush:ids", -1, -1) == [b"9"]
    assert lists.hget("demo:mpush:9", "pid") == b"%d" % fanout.pid
    fanout.send_signal(signal.SIGTERM)
    assert fanout.wait(PATIENCE_S) == 0
    assert not lists.exists("demo:mpush:9", "demo:mpush:ids")


def test_a_service_whose_registration_is_deleted_ends(crew: Crew, program: Program, lists: Any):
    """`redis-cli del demo:mpush:1` and `redis-cli lrem demo:mpush:ids -1 1`."""
    fanout = start(crew, program, SERVICE | {"serviceRenew": 1})
    wait_until(partial(lists.exists, "demo:mpush:1"))
    lists.delete("demo:mpush:1")
    lists.lrem("demo:mpush:ids", -1, "1")
    assert fanout.wait(PATIENCE_S) == 0
    assert not lists.exists("demo:mpush:1", "demo:mpush:ids")


def test_a_service_that_could_not_renew_registers_itself_again(
    crew: Crew, program: Program, lists: Any
):
    """It was stopped, or Redis was unreachable, for longer than its registration lasts."""
    fanout = start(crew, program, SERVICE | {"serviceExpire": 2, "serviceRenew": 1})
    wait_until(partial(lists.exists, "demo:mpush:1"))
    fanout.send_signal(signal.SIGSTOP)
    wait_until(lambda: not lists.exists("demo:mpush:1"))
    fanout.send_signal(signal.SIGCONT)
    wait_until(partial(lists.exists, "demo:mpush:2"))
    assert lists.lrange("demo:mpush:ids", 0, -1) == [b"2"]
    assert fanout.poll() is None


def test_a_service_registers_itself_again_at_a_redis_that_lost_its_data(
    crew: Crew, program: Program, lists: Any
):
    fanout = start(crew, program, SERVICE | {"serviceRenew": 1})
    wait_until(partial(lists.exists, "demo:mpush:1"))
    lists.flushall()
    wait_until(partial(lists.exists, "demo:mpush:1"))
    lists.lpush(IN, "one")
    wait_until(partial(lists.llen, OUTS[1]))
    assert fanout.poll() is None


def test_a_service_takes_off_those_that_expired(crew: Crew, program: Program, lists: Any):
    lists.set("demo:mpush:id", 3)
    lists.lpush("demo:mpush:ids", 1, 2, 3)
    lists.hset("demo:mpush:2", "host", "box")
    start(crew, program, SERVICE)
    wait_until(partial(lists.exists, "demo:mpush:4"))
    assert lists.lrange("demo:mpush:ids", 0, -1) == [b"4", b"2"]


def test_a_tracked_message(crew: Crew, program: Program, lists: Any):
    """`get demo:mpush:message:id` is 2, so the next message has the id 3."""
    lists.set("demo:mpush:message:id", 2)
    start(crew, program, TRACKED)
    lists.lpush("demo:mpush:in", 12345)
    wait_until(partial(lists.llen, "demo:mpush:message:ids"))
    assert lists.lrange("demo:mpush:message:ids", 0, -1) == [b"3"]
    found = lists.hgetall("demo:mpush:message:3")
    assert set(found) == {b"timestamp", b"xid", b"deadline", b"service"}
    assert (found[b"xid"], found[b"service"]) == (b"12345", b"1")
    assert int(found[b"deadline"]) == int(found[b"timestamp"]) + 10
    assert lists.hgetall("demo:mpush:message:xid:12345") == {b"id": b"3", b"type": b"number"}


@pytest.mark.rest
@pytest.mark.parametrize(
    ("message", "xid", "kind"),
    [
        (b"12345", "12345", b"number"),
        (b'{"meta": {"id": "abc"}}', "abc", b"meta"),
        (b'{"meta": {}}', hashlib.sha1(b'{"meta": {}}').hexdigest(), b"sha1"),
        (b"text", hashlib.sha1(b"text").hexdigest(), b"sha1"),
    ],
)
def test_the_xid_of_a_message(message: bytes, xid: str, kind: bytes, program: Program, lists: Any):
    lists.lpush(IN, message)
    config = program.file(json.dumps(TRACKED).encode(), "mpush.json")
    assert program("fanout", "--config", config, "--until-idle").code == 0
    assert lists.hgetall(f"demo:mpush:message:xid:{xid}") == {b"id": b"1", b"type": kind}


def test_a_done_message_and_one_that_is_not_done_in_time(crew: Crew, program: Program, lists: Any):
    start(crew, program, TRACKED | {"messageTimeout": 1})
    lists.lpush(IN, "1", "2")
    wait_until(lambda: lists.llen("demo:mpush:message:ids") == 2)
    lists.lpush("demo:mpush:message:done", lists.hget("demo:mpush:message:xid:1", "id"))
    wait_until(partial(lists.exists, "demo:mpush:metrics:timeout"))
    assert lists.hget("demo:mpush:metrics:done", "count") == b"1"
    assert set(lists.hkeys("demo:mpush:metrics:done")) == {b"count", b"sum", b"max"}
    assert lists.hget("demo:mpush:metrics:timeout", "count") == b"1"
    assert not lists.exists("demo:mpush:message:ids", "demo:mpush:message:done")
