"""Tests `fairlane fanout`: refusals, its end, and that no crash loses or doubles a message."""

from __future__ import annotations

import json
import signal
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from fairlane.drivers.sync import SyncDriver
from fairlane.lists.fanout import Fanout
from fairlane.lists.service import FanoutOptions
from fairlane.operations.lists import fan_out
from fairlane.protocol.steps import Call
from tests.cli.lists.running import Crew
from tests.support.wait import PATIENCE_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fairlane.operations.lists import Route
    from tests.cli.program import Program

LISTS = ("--in", "q:in", "--out", "q:a", "--out", "q:b")


@pytest.fixture
def crew(program: Program) -> Iterator[Crew]:
    with Crew(program) as made:
        yield made


# ------------------------------------------------------------------ bad input


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "needs --in LIST"),
        (("--in", "q"), "needs --out LIST"),
        (("--in", "q", "--out", "q"), "list q is both in and out"),
        (("--in", "q", "--out", "q:pending"), "list q:pending is both pending and out"),
        (("--in", "q", "--pending", "q", "--out", "a"), "list q is both in and pending"),
        (("--in", "q", "--out", "a", "--out", "a"), "list a is named twice"),
        (("--in", "", "--out", "a"), "needs --in LIST"),
        (("--in", "q", "--out", "x" * 513), "1 to 512 bytes"),
        (("--in", "q{", "--out", "a"), "its brace begins no hash tag"),
        ((*LISTS, "--pop-timeout", "0"), "popTimeout 0 is not valid"),
        ((*LISTS, "--message-timeout", "5"), "messageTimeout 5 needs a namespace"),
        (
            (*LISTS, "--namespace", "n", "--message-timeout", "5", "--message-expire", "5"),
            "messageExpire 5 is not valid: it must be longer than messageTimeout 5",
        ),
        ((*LISTS, "--out", "n:ids", "--namespace", "n"), "list n:ids is a key of namespace n"),
        ((*LISTS, "--out", "n:7", "--namespace", "n"), "list n:7 is a key of namespace n"),
        (("--in", "n:message:done", "--out", "a", "--namespace", "n"), "a key of namespace n"),
        ((*LISTS, "--to", "some"), "--to"),
        ((*LISTS, "--redis", "http://x"), "Redis URL"),
    ],
)
def test_what_is_refused(words: tuple[str, ...], said: str, program: Program, lists: Any):
    program("fanout", *words).refused(2, said)
    assert lists.dbsize() == 0


@pytest.mark.rest
@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"{", "is no JSON"),
        (b"[]", "is a list: an object is expected"),
        (b'{"inn": "q"}', "unknown key 'inn': did you mean in?"),
        (b'{"zzzzzz": "q"}', "unknown key 'zzzzzz': it may have in, out"),
        (b'{"in": 5}', "in 5 is not valid: a text is expected"),
        (b'{"out": "a"}', "out 'a' is not valid: a list of texts is expected"),
        (b'{"to": "some"}', 'to \'some\' is not valid: "all" or "shortest" is expected'),
        (b'{"popTimeout": "5"}', "popTimeout '5' is not valid: a whole number of seconds"),
        (b'{"serviceRedis": "redis://x"}', "serviceRedis is not possible"),
        (b'{"in": "q", "out": ["q"]}', "list q is both in and out"),
        (b'{"in": "q", "out": []}', "needs --out LIST"),
        (
            b'{"in": "q", "out": ["a"], "serviceNamespace": "n", "serviceRenew": 60}',
            "serviceRenew 60 is not valid: it must be shorter than serviceExpire 60",
        ),
    ],
)
def test_what_is_refused_in_a_config_file(content: bytes, said: str, program: Program, lists: Any):
    program("fanout", "--config", program.file(content, "c.json")).refused(2, said)
    assert lists.dbsize() == 0


def test_a_config_file_that_cannot_be_used(program: Program):
    program("fanout", "--config", "none.json").refused(2, "none.json", "cannot be read")
    program("fanout", "--config", "mpush.js").refused(2, "is a program", "JSON")


def test_a_list_that_holds_something_else_loses_no_message(program: Program, lists: Any):
    lists.lpush("q:in", "one")
    lists.set("q:b", "text")
    ended = program("fanout", *LISTS, "--until-idle")
    assert ended.code == 2
    assert "key q:b holds no list" in ended.err
    assert lists.lrange("q:in:pending", 0, -1) == [b"one"]
    lists.delete("q:b")
    assert program("fanout", *LISTS, "--until-idle").code == 0
    assert lists.lrange("q:b", 0, -1) == lists.lrange("q:a", 0, -1) == [b"one"]


@pytest.mark.parametrize("name", ["q:in", "q:in:pending"])
def test_a_source_that_holds_something_else(name: str, program: Program, lists: Any):
    lists.set(name, "text")
    ended = program("fanout", *LISTS, "--until-idle")
    assert ended.code == 2
    assert f"key {name} holds no list: name another" in ended.err
    assert lists.keys("*") == [name.encode()]


@pytest.mark.parametrize("redis_server", ["cluster1"], indirect=True)
def test_a_cluster_where_the_slots_of_the_lists_differ(program: Program, lists: Any):
    lists.lpush("q:in", "one")
    ended = program("fanout", *LISTS, "--until-idle")
    assert ended.code == 2
    assert "lists q:in and q:in:pending are in different slots of the cluster" in ended.err
    assert "the same hash tag" in ended.err
    assert lists.keys("*") == [b"q:in"]
    tagged = [word if word.startswith("--") else f"{{t}}{word}" for word in LISTS]
    lists.delete("q:in")
    lists.lpush("{t}q:in", "one")
    assert program("fanout", *tagged, "--namespace", "{t}", "--until-idle").code == 0
    assert lists.lrange("{t}q:a", 0, -1) == [b"one"]


def test_until_idle_goes_on_though_another_fan_out_was_first(
    lists: Any, redis_url: str, monkeypatch: pytest.MonkeyPatch
):
    """The other one hands over the first batch, and dies: the rest is still there."""
    other = SyncDriver(redis_url)

    def second(route: Route, *given: Any) -> Any:
        operation, reply = fan_out(route, *given), None
        while True:
            try:
                step: Any = operation.send(reply)
            except StopIteration as end:
                return end.value
            if isinstance(step, Call) and step.script.name == "fan_out" and not lists.llen("a"):
                other.run(fan_out(route, 0.0))
            reply = yield step

    lists.lpush("in", *range(150))
    monkeypatch.setattr("fairlane.lists.fanout.fan_out", second)
    Fanout(redis_url, FanoutOptions("in", ("a",))).run(until_idle=True)
    other.close()
    assert lists.llen("a") == 150


# ------------------------------------------------------------------ the config file and options


def test_options_overrule_the_config_file(program: Program, lists: Any):
    config = {"in": "other", "out": ["q:a"], "redis": "redis://127.0.0.1:1"}
    path = program.file(json.dumps(config).encode(), "c.json")
    lists.lpush("q:in", "one")
    url = program.env["FAIRLANE_REDIS"]
    words = ("--config", path, "--in", "q:in", "--redis", url, "--until-idle")
    assert program("fanout", *words).code == 0
    assert lists.lrange("q:a", 0, -1) == [b"one"]


def test_the_shortest_list_gets_each_message(program: Program, lists: Any):
    lists.lpush("q:a", "x", "y")
    lists.lpush("q:in", *"abcd")
    assert program("fanout", *LISTS, "--to", "shortest", "--until-idle").code == 0
    assert lists.lrange("q:a", 0, -1) == [b"c", b"y", b"x"]
    assert lists.lrange("q:b", 0, -1) == [b"d", b"b", b"a"]


@pytest.mark.rest
def test_the_log_has_what_was_handed_over_and_every_length(crew: Crew, program: Program):
    with program.start("fanout", *LISTS, "--metrics", "1") as fanout:
        assert fanout.stderr
        line = next(text for text in map(bytes.decode, fanout.stderr) if "waiting" in text)
        fanout.terminate()
        assert fanout.wait(PATIENCE_S) == 0
    assert line == "fairlane: 0 messages handed over; waiting 0, pending 0; q:a 0, q:b 0\n"


def test_the_lag_of_a_fanout_and_its_services(program: Program, lists: Any):
    lists.lpush("q:in", "one", "two")
    lists.lpush("q:b", "old")
    show = ("fanout", *LISTS, "--namespace", "n", "--lag")
    assert program(*show).out == b"q:in 2\nq:in:pending 0\nq:a 0\nq:b 1\n"
    lists.lpush("n:ids", 1, 2)
    lists.hset("n:2", mapping={"host": "box", "pid": 7, "renewed": int(lists.time()[0])})
    *lengths, alive, gone = program(*show).out.decode().splitlines()
    assert len(lengths) == 4
    assert alive.startswith("service n:2 on box, pid 7, renewed ")
    assert gone == "service n:1 has expired: the next service takes it off"
    assert lists.llen("q:in") == 2
    assert lists.llen("n:ids") == 2


# ------------------------------------------------------------------ its end


@pytest.mark.rest
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_within_the_pop_timeout(number: signal.Signals, crew: Crew, lists: Any):
    fanout = crew.fairlane("fanout", *LISTS, "--pop-timeout", "2")
    lists.lpush("q:in", "one")
    wait_until(partial(lists.llen, "q:b"))
    fanout.send_signal(number)
    assert fanout.wait(PATIENCE_S) == 0


# ------------------------------------------------------------------ crashes


def handed_over(lists: Any, name: str) -> Counter[bytes]:
    """Returns how often each message is behind the fan-out."""
    return Counter(lists.lrange(f"seen:{name}", 0, -1)) + Counter(
        lists.lrange(f"q:{name}", 0, -1) + lists.lrange(f"q:{name}:work", 0, -1)
    )


@pytest.mark.slow
@pytest.mark.rest  # the explorer's fan-outs are in `make test`
@pytest.mark.parametrize("tracking", [(), ("--namespace", "q", "--message-timeout", "60")])
def test_fanouts_and_consumers_that_are_killed_lose_and_double_nothing(
    tracking: tuple[str, ...], crew: Crew, lists: Any, redis_url: str
):
    """Two fan-outs share the lists; in turn one of them, or a consumer, is killed at work."""
    sent = [b"%d" % (number % 4000) for number in range(12_000)]  # each three times
    running = [crew.fairlane("fanout", *LISTS, *tracking) for _ in range(2)]
    consumers = {name: consume(crew, redis_url, name) for name in "ab"}
    for at in range(0, len(sent), 1_000):
        seen = lists.llen("seen:a")
        lists.lpush("q:in", *sent[at : at + 1_000])
        wait_until(partial(has_more, lists, "seen:a", seen + 100))
        running.pop(0).kill()
        running.append(crew.fairlane("fanout", *LISTS, *tracking))
        name = "ab"[at // 1_000 % 2]
        consumers[name].kill()
        consumers[name] = consume(crew, redis_url, name)
    done = partial(all_seen, lists, len(sent))
    wait_until(done, why="every message was consumed from both lists")
    for name in "ab":
        assert handed_over(lists, name) == Counter(sent)
    assert not lists.exists("q:in", "q:in:pending")


def has_more(lists: Any, name: str, count: int) -> bool:
    return int(lists.llen(name)) > count


def consume(crew: Crew, url: str, name: str):
    return crew.start("tests.cli.lists.consumer:main", url, f"q:{name}", f"seen:{name}")


def all_seen(lists: Any, count: int) -> bool:
    return all(lists.llen(f"seen:{name}") >= count for name in "ab")


@pytest.mark.slow
def test_a_fanout_outlasts_a_restart_of_redis(crew: Crew, lists: Any):
    """All connections are closed, and the scripts are forgotten."""
    fanout = crew.fairlane("fanout", *LISTS)
    for number in range(20):
        lists.lpush("q:in", number)
        lists.script_flush()
        lists.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        wait_until(partial(has_more, lists, "q:b", number))
    assert fanout.poll() is None
    expected = [b"%d" % number for number in reversed(range(20))]
    assert lists.lrange("q:a", 0, -1) == lists.lrange("q:b", 0, -1) == expected
