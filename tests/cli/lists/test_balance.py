"""Tests `fairlane balance`, Balancer and AsyncBalancer."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import TYPE_CHECKING, Any

import pytest

from fairlane.drivers.sync import SyncDriver
from fairlane.errors import FairlaneError, InvalidArgument, RedisUnreachable
from fairlane.lists.balancer import AsyncBalancer, Balancer
from fairlane.operations.lists import LOOKS
from tests.support.run.for_each import for_each

if TYPE_CHECKING:
    from tests.cli.program import Program

CLUSTER = pytest.mark.parametrize("redis_server", ["cluster1"], indirect=True)


def lengths(lists: Any, names: list[str]) -> list[int]:
    return [int(lists.llen(name)) for name in names]


def test_the_lines_of_a_file_go_to_the_shortest_lists(program: Program, lists: Any):
    lists.lpush("a", "x", "y")
    path = program.file(b"one\ntwo\nthree\n")
    ended = program("balance", path, "--out", "a", "--out", "b")
    assert (ended.code, ended.out) == (0, b"a 1\nb 2\n")
    assert lists.lrange("a", 0, -1) == [b"three", b"y", b"x"]
    assert lists.lrange("b", 0, -1) == [b"two", b"one"]


def test_lines_of_stdin_and_counts_as_json(program: Program, lists: Any):
    ended = program("balance", "--out", "a", "--out", "b", "--json", stdin=b"one\ntwo\nthree\n")
    assert [json.loads(line) for line in ended.out.splitlines()] == [
        {"list": "a", "pushed": 2},
        {"list": "b", "pushed": 1},
    ]


@for_each(
    "words, code, said",
    [
        ((), 2, "--out"),
        (("--out", "a", "--out", "a"), 2, "list a is named twice"),
        (("--out", "a}"), 2, "its brace begins no hash tag"),
        (("missing", "--out", "a"), 2, "missing"),
        (("--out", "a", "--redis", "redis://127.0.0.1:1"), 5, "127.0.0.1:1"),
    ],
)
def test_what_is_refused(words: tuple[str, ...], code: int, said: str, program: Program):
    program("balance", *words).refused(code, said)


def test_a_key_that_holds_no_list(program: Program, lists: Any):
    lists.set("b", "text")
    program("balance", "--out", "a", "--out", "b", stdin=b"x\n").refused(2, "key b holds no list")
    assert not lists.exists("a")


def test_one_message_is_pushed_to_the_list_that_is_named(lists: Any, redis_url: str):
    lists.lpush("a", "x")
    with Balancer.from_url(["a", "b"], redis_url) as balancer:
        assert [balancer.push(one) for one in ("m", b"n", "o")] == ["b", "a", "b"]
    assert lists.lrange("b", 0, -1) == [b"o", b"m"]


def test_several_threads_keep_the_lists_equally_long(lists: Any, redis_url: str):
    names = ["a", "b", "c", "d"]
    with Balancer.from_url(names, redis_url) as balancer:

        def push() -> None:
            for number in range(50):
                balancer.push(str(number))

        threads = [threading.Thread(target=push) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert lengths(lists, names) == [50] * 4


def test_asyncio(lists: Any, redis_url: str):
    async def main() -> dict[str, int]:
        async with AsyncBalancer.from_url(["a", "b"], redis_url) as balancer:
            assert await balancer.push("m") == "a"
            return await balancer.push_many(str(number) for number in range(2_001))

    assert asyncio.run(main()) == {"a": 1_000, "b": 1_001}
    assert lengths(lists, ["a", "b"]) == [1_001, 1_001]


def test_lists_that_cannot_be_balanced_are_refused(redis_url: str):
    for wrong in ([], "a", ["a", "a"], [""], [1]):
        with pytest.raises(InvalidArgument):
            Balancer.from_url(wrong, redis_url)  # type: ignore[arg-type]


def test_a_redis_that_is_not_there():
    with (
        Balancer(SyncDriver("redis://127.0.0.1:1", patience_s=0), ["a"]) as balancer,
        pytest.raises(RedisUnreachable),
    ):
        balancer.push("m")


# ------------------------------------------------------------------ on a cluster


@CLUSTER
def test_lists_with_one_hash_tag_are_balanced_in_one_script(lists: Any, redis_url: str):
    names = ["{t}a", "{t}b"]
    lists.lpush("{t}a", "x", "y")
    with Balancer.from_url(names, redis_url) as balancer:
        assert balancer.push_many([*"abcd"]) == {"{t}a": 1, "{t}b": 3}


@CLUSTER
def test_lists_in_several_slots_are_compared_by_one_look(lists: Any, redis_url: str):
    lists.lpush("a", "x", "y")
    with Balancer.from_url(["a", "b", "c"], redis_url) as balancer:
        assert balancer.push_many([*"mnopqrs"]) == {"a": 1, "b": 3, "c": 3}
    assert lengths(lists, ["a", "b", "c"]) == [3, 3, 3]
    assert lists.lrange("b", -1, -1) == [b"m"]


@CLUSTER
def test_a_look_is_bounded(lists: Any, redis_url: str):
    names = [f"list-{number}" for number in range(50)]
    lists.config_resetstat()
    with Balancer.from_url(names, redis_url) as balancer:
        counts = balancer.push_many(str(number) for number in range(800))
    assert len(counts) == LOOKS
    assert set(counts.values()) == {100}
    # one look, and one in the script of each list
    assert lists.info("commandstats")["cmdstat_llen"]["calls"] == 2 * LOOKS


@CLUSTER
def test_a_key_that_holds_no_list_on_a_cluster(lists: Any, redis_url: str):
    lists.set("b", "text")
    with (
        Balancer.from_url(["a", "b"], redis_url) as balancer,
        pytest.raises(FairlaneError, match="WRONGTYPE"),
    ):
        balancer.push_many([*"mn"])
