"""Tests `fairlane forward`: messages in order, once, by one forwarder at a time."""

from __future__ import annotations

import signal
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from fairlane.lists.forward import Forwarder
from fairlane.lists.service import list_address
from tests.cli.lists.running import Crew
from tests.cli.program import NO_SERVER
from tests.support.servers.server_process import run_server
from tests.support.wait import PATIENCE_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cli.program import Program

STATE, FLIGHT, LANDED = "{orders}:forward", "{orders}:forwarding", "{copy}:landed"


@pytest.fixture
def crew(program: Program) -> Iterator[Crew]:
    with Crew(program) as made:
        yield made


@pytest.fixture
def far() -> Iterator[Any]:
    """Runs another Redis."""
    with run_server("single") as server:
        yield server


@pytest.fixture
def words(redis_url: str, far: Any) -> list[str]:
    """Returns the words that forward the list orders to the list copy on the other Redis."""
    return ["forward", "--from", f"{redis_url}/orders", "--to", f"{far.url}/copy", "--lease", "1s"]


def rest(client: Any, name: str) -> list[bytes]:
    """Returns the messages of a list, oldest first."""
    return [*reversed(client.lrange(name, 0, -1))]


def test_messages_come_in_order_and_leave_the_source(
    words: list[str], program: Program, lists: Any, far: Any
):
    sent = [b"%d" % (number % 90) for number in range(250)]
    lists.lpush("orders", *sent)
    ended = program(*words, "--until-idle")
    assert ended.code == 0, ended.err
    assert "250 messages forwarded, lag 0: ends" in ended.err
    with far.client() as client:
        assert rest(client, "copy") == sent
    assert not lists.exists("orders", FLIGHT)
    assert lists.hget(STATE, "sequence") == b"250"


def test_the_lag(words: list[str], program: Program, lists: Any, redis_url: str):
    lists.lpush("orders", "a", "b")
    show = ("forward", "--from", f"{redis_url}/orders", "--lag")
    assert program(*show).out == b"lag 2, forwarded 0, no forwarder is active\n"
    program(*words, "--until-idle")
    lists.lpush("orders", "c")
    assert program(*show).out == b"lag 1, forwarded 2, no forwarder is active\n"
    lists.hset(STATE, mapping={"owner": "box:1:ab", "until": 10**15})
    assert program(*show).out == b"lag 1, forwarded 2, lease of box:1:ab\n"
    lists.hset(STATE, mapping={"restarts": 2, "restarted": 1, "reason": "diverged"})
    assert "the numbers began again 2 times: last, the source was set" in program(*show).err


def test_what_was_forwarded_is_counted_on_when_the_numbers_begin_again(
    words: list[str], program: Program, lists: Any, far: Any
):
    show = ("forward", *words[1:], "--lag")
    lists.lpush("orders", "a", "b")
    program(*words, "--until-idle")
    with far.client() as client:
        client.flushall()
    lists.lpush("orders", "c")
    assert program(*show).out == b"lag 1, forwarded 2, no forwarder is active\n"
    program(*words, "--until-idle")
    assert lists.hget(STATE, "sequence") == b"1"
    lists.lpush("orders", "d")
    ended = program(*show)
    assert ended.out == b"lag 1, forwarded 3, no forwarder is active\n"
    assert "the numbers began again 1 time: last, the target had lost messages" in ended.err


def test_what_has_landed_and_is_not_settled_is_no_lag_beside_its_target(
    words: list[str], program: Program, lists: Any, far: Any
):
    """The forwarder was killed after the target took its batch."""
    lists.lpush("orders", "a", "b")
    program(*words, "--until-idle")
    lists.lpush("orders", "c", "d")
    lists.lmove("orders", FLIGHT, "RIGHT", "LEFT")
    with far.client() as client:
        client.hset("{copy}:landed", lists.hget(STATE, "epoch"), "3:ab")
    assert program("forward", *words[1:], "--lag").out.startswith(b"lag 1, forwarded 3")
    assert program("forward", *words[1:3], "--lag").out.startswith(b"lag 2, forwarded 2")


def test_the_list_on_another_database_of_the_same_server(
    program: Program, lists: Any, redis_url: str
):
    lists.lpush("orders", "a")
    words = ("--from", f"{redis_url}/0/orders", "--to", f"{redis_url}/1/orders", "--until-idle")
    assert program("forward", *words).code == 0
    assert lists.llen("orders") == 0
    lists.execute_command("SELECT", 1)
    assert lists.lrange("orders", 0, -1) == [b"a"]
    lists.execute_command("SELECT", 0)


# ------------------------------------------------------------------ bad input


@pytest.mark.parametrize(
    ("begin", "end", "said"),
    [
        ("{here}/orders", "{here}/orders", "list orders is both --from and --to"),
        ("{here}/orders", "{here}/0/orders", "list orders is both --from and --to"),
        ("{here}/orders", "{socket}/orders", "list orders is both --from and --to"),
        ("{here}", "{here}/b", "--from names no list"),
        ("{here}/0", "{here}/b", "--from ends in the number 0, and names no list"),
        ("{here}/a", "{here}/", "--to names no list"),
        ("orders", "{here}/b", "--from names no list"),
        ("http://x/a", "{here}/b", "Redis URL"),
        ("{here}/a", "{here}/b{{", "its brace begins no hash tag"),
    ],
)
def test_what_is_refused(
    begin: str, end: str, said: str, program: Program, lists: Any, redis_url: str
):
    path = lists.config_get("unixsocket")["unixsocket"]
    path = path.decode() if isinstance(path, bytes) else path
    given = [one.format(here=redis_url, socket=f"unix://{path}") for one in (begin, end)]
    ended = program("forward", "--from", given[0], "--to", given[1], "--until-idle")
    ended.refused(2, said)
    assert lists.dbsize() == 0


def test_a_lag_needs_no_target_and_a_forward_does(program: Program, redis_url: str):
    program("forward", "--from", f"{redis_url}/a").refused(2, "--to is missing")


def test_a_target_that_is_not_there(program: Program, lists: Any, redis_url: str):
    lists.lpush("orders", "a")
    ended = program("forward", "--from", f"{redis_url}/orders", "--to", f"{NO_SERVER}/copy")
    ended.refused(5, "127.0.0.1:1")
    assert "--redis" not in ended.err  # which this command does not have
    assert rest(lists, "orders") == [b"a"]


def test_a_target_that_holds_no_list_loses_no_message(
    words: list[str], program: Program, lists: Any, far: Any
):
    lists.lpush("orders", "a")
    with far.client() as client:
        client.set("copy", "text")
        ended = program(*words, "--until-idle")
        assert ended.code == 2
        assert "key copy at the target holds no list" in ended.err
        client.delete("copy")
        program(*words, "--until-idle")
        assert rest(client, "copy") == [b"a"]


def test_a_source_that_holds_no_list(words: list[str], program: Program, lists: Any):
    lists.set("orders", "text")
    ended = program(*words, "--until-idle")
    assert ended.code == 2
    assert "key orders at the source holds no list: name another" in ended.err


def test_a_forwarder_that_fails_ends_its_lease(
    words: list[str], program: Program, lists: Any, far: Any
):
    lists.lpush("orders", "a")
    with far.client() as client:
        client.set("copy", "text")
        program(*words, "--until-idle")
    assert lists.hget(STATE, "epoch")
    assert not lists.hexists(STATE, "owner")


@pytest.mark.parametrize("rights", [(">pw", "+@all", "-evalsha"), (">other", "+@all")])
def test_a_target_that_refuses_is_one_sentence_and_loses_no_message(
    rights: tuple[str, ...], program: Program, lists: Any, redis_url: str, far: Any
):
    lists.lpush("orders", "a")
    with far.client() as client:
        client.execute_command("ACL", "SETUSER", "weak", "on", "~*", *rights)
        target = far.url.replace("://", "://weak:pw@")
        words = ("--from", f"{redis_url}/orders", "--to", f"{target}/copy", "--until-idle")
        ended = program("forward", *words)
        assert ended.code == 5
        refusals = [line for line in ended.err.splitlines() if "weak:***@" in line]
        assert "refused" in refusals[-1]
        assert lists.llen("orders") + lists.llen(FLIGHT) == 1
        client.execute_command("ACL", "SETUSER", "weak", "resetpass", ">pw", "+@all", "~*")
        program("forward", *words)
        assert rest(client, "copy") == [b"a"]


def test_a_password_is_not_shown(program: Program):
    ended = program("forward", "--from", "redis://:s3cret@127.0.0.1:1/a", "--to", "redis://x")
    ended.refused(2, "--to names no list")
    assert "s3cret" not in ended.err


# ------------------------------------------------------------------ crashes and clocks set back


def has(client: Any, name: str, count: int) -> bool:
    return int(client.llen(name)) >= count


@pytest.mark.rest
@pytest.mark.slow
def test_forwarders_that_are_killed_lose_and_double_nothing_and_keep_the_order(
    words: list[str], crew: Crew, lists: Any, far: Any
):
    """Of two forwarders the active one is killed repeatedly; the other continues."""
    sent = [b"%d" % (number % 1500) for number in range(10_000)]
    running = [crew.fairlane(*words) for _ in range(2)]
    with far.client() as client:
        for at in range(0, len(sent), 1_000):
            lists.lpush("orders", *sent[at : at + 1_000])
            wait_until(partial(has, client, "copy", at + 150))
            pid = int(lists.hget(STATE, "owner").split(b":")[-2])
            active = next(one for one in running if one.pid == pid)
            active.kill()
            running.remove(active)
            running.append(crew.fairlane(*words))
        wait_until(partial(has, client, "copy", len(sent)))
        wait_until(lambda: not lists.exists("orders", FLIGHT))
        assert rest(client, "copy") == sent


@pytest.mark.rest
@pytest.mark.slow
def test_a_forwarder_that_was_stopped_for_too_long_doubles_nothing(
    words: list[str], crew: Crew, lists: Any, far: Any
):
    """SIGSTOP stops it in the middle; another one has taken over when it continues."""
    first = crew.fairlane(*words)
    sent = [b"%d" % number for number in range(5_000)]
    with far.client() as client:
        for at in range(0, 5_000, 1_000):
            lists.lpush("orders", *sent[at : at + 1_000])
            wait_until(partial(has, client, "copy", at + 50))
            first.send_signal(signal.SIGSTOP)
            second = crew.fairlane(*words)
            wait_until(partial(has, client, "copy", at + 1_000))
            first.send_signal(signal.SIGCONT)
            first, _ = second, first
        assert rest(client, "copy") == sent


@pytest.mark.rest
@pytest.mark.slow
def test_a_target_that_restarts_empty_gets_all_that_is_not_settled(
    words: list[str], crew: Crew, program: Program, lists: Any, far: Any
):
    """What the target had confirmed and lost is gone; the log of the forwarder names it."""
    with program.start(*words) as forwarder, far.client() as client:
        lists.lpush("orders", "a", "b")
        wait_until(partial(has, client, "copy", 2))
        wait_until(lambda: not lists.exists(FLIGHT))
        client.flushall()
        lists.lpush("orders", "c")
        wait_until(partial(has, client, "copy", 1))
        assert rest(client, "copy") == [b"c"]
        forwarder.terminate()
        assert b"the target has lost messages" in forwarder.communicate(timeout=PATIENCE_S)[1]


@pytest.mark.slow
def test_an_outage_of_the_target_ends_and_nothing_is_lost(
    program: Program, crew: Crew, lists: Any, redis_url: str
):
    with run_server("single") as far:
        words = ("--from", f"{redis_url}/orders", "--to", f"{far.url}/copy", "--lease", "1s")
        forwarder = crew.fairlane("forward", *words)
        lists.lpush("orders", "a")
        with far.client() as client:
            wait_until(partial(has, client, "copy", 1))
            client.execute_command("CLIENT", "PAUSE", 1500, "ALL")
        lists.lpush("orders", "b")
        with far.client() as client:
            wait_until(partial(has, client, "copy", 2))
            assert rest(client, "copy") == [b"a", b"b"]
        assert forwarder.poll() is None


@pytest.mark.rest
def test_sigterm_ends_the_lease(words: list[str], crew: Crew, lists: Any):
    forwarder = crew.fairlane(*words)
    wait_until(partial(lists.hexists, STATE, "owner"))
    forwarder.send_signal(signal.SIGTERM)
    assert forwarder.wait(PATIENCE_S) == 0
    assert not lists.hexists(STATE, "owner")


def test_a_forwarder_that_stands_by_does_not_say_that_nothing_waits(
    redis_url: str, far: Any, lists: Any, caplog: pytest.LogCaptureFixture
):
    """Only the active one counts the messages that wait."""
    caplog.set_level("INFO", "fairlane.lists")
    lists.lpush("orders", b"1")
    until = int(time.time() * 1000) + 3_600_000
    state = {"epoch": "e", "sequence": 0, "chain": "", "owner": "another", "until": until}
    lists.hset(STATE, mapping=state)
    here, there = f"{redis_url}/orders", f"{far.url}/copy"
    forwarder = Forwarder(list_address("--from", here), list_address("--to", there), lease_s=3_600)
    running = threading.Thread(target=forwarder.run)
    running.start()
    try:
        wait_until(lambda: "another forwarder is active: waits until it ends" in caplog.messages)
    finally:
        forwarder.stop()
        running.join()
    assert caplog.messages[-1] == "0 messages forwarded, another forwarder is active: ends"
