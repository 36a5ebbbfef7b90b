"""`fairlane fsck`: what it prints, what it repairs, and its exit codes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tests.cli.program import NOBODY, ON_ONE_KIND, Program, settle

if TYPE_CHECKING:
    import redis

ACTIVE = "{req}:active"
on_one_kind = ON_ONE_KIND


@on_one_kind
def test_nothing_is_wrong(program: Program):
    program("submit", "-", stdin=b"a\nb\n")
    for words in ((), ("--repair",)):
        ended = program("fsck", *words)
        assert (ended.code, ended.out) == (0, b"")
        assert "1 request of queue req: 0 found, 0 repaired, 0 left" in ended.err


@on_one_kind
def test_a_finding_is_a_line_and_an_exit_code(program: Program, redis_client: redis.Redis):
    program("submit", "-", "--id", "mine", stdin=b"a\n")
    redis_client.delete(ACTIVE)
    ended = program("fsck")
    line = b"found     forgotten    mine  is not in `active` (--repair: put it there)\n"
    assert (ended.code, ended.out) == (1, line)
    assert "1 found, 0 repaired, 1 left" in ended.err
    assert not redis_client.exists(ACTIVE)


@on_one_kind
def test_repair_leaves_nothing_to_be_found(
    program: Program, redis_client: redis.Redis, redis_url: str
):
    program("submit", "-", "--id", "mine", stdin=b"a\n")
    redis_client.delete(ACTIVE)
    ended = program("fsck", "--repair")
    assert (ended.code, ended.out[:8]) == (0, b"repaired")
    assert "1 found, 1 repaired, 0 left" in ended.err
    assert program("fsck").out == b""
    assert settle(redis_url, lambda _, body: body) == [b"a"]


def test_what_a_person_must_do_is_left(program: Program, redis_client: redis.Redis):
    program("submit", "-", "--id", "mine", stdin=b"a\n")
    redis_client.delete("tok:{mine}")
    redis_client.set("tok:{mine}", "text")
    ended = program("fsck", "--repair")
    assert ended.code == 1
    assert b"(by hand: look at its keys)" in ended.out
    redis_client.flushall()


@on_one_kind
def test_every_finding_is_one_json_value(program: Program, redis_client: redis.Redis):
    program("submit", "-", "--id", "mine", stdin=b"a\n")
    redis_client.delete(ACTIVE)
    redis_client.lpush("{req}:7", "gone#0.1")
    ended = program("fsck", "--json")
    found, note = map(json.loads, ended.out.splitlines())
    assert found == {
        "state": "found",
        "kind": "forgotten",
        "name": "mine",
        "what": "is not in `active`",
        "remedy": "put it there",
        "by_hand": False,
    }
    assert (note["state"], note["remedy"], ended.code) == ("note", None, 1)


@on_one_kind
def test_another_queue_is_another_matter(program: Program, redis_client: redis.Redis):
    program("submit", "-", "--queue", "slow", stdin=b"a\n")
    redis_client.delete("{slow}:active")
    assert program("fsck").code == 0
    assert program("fsck", "--queue", "slow").code == 1


@on_one_kind
def test_a_lost_request_is_read_from_the_log(program: Program, redis_client: Any):
    redis_client.zadd(ACTIVE, {"mine": 1_700_000_000_000.5})
    assert b"mine  was there and is gone" in program("fsck", "--repair").out
    (entry,) = redis_client.xrange("{req}:completed")
    assert entry[1][b"state"] == b"lost"


def test_nobody_answers(alone: Program):
    alone("fsck", "--redis", NOBODY).refused(5, "does not answer")


def test_a_queue_that_cannot_be(alone: Program):
    alone("fsck", "--redis", NOBODY, "--queue", "a{b").refused(2, "is not valid")
