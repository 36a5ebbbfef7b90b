"""Tests what the drivers repeat, what they refuse, and how they report errors."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from fairlane import settings
from fairlane.drivers import calls, sync
from fairlane.drivers.error_mapping import check_fitness
from fairlane.errors import InvalidArgument, RedisUnfit, RedisUnreachable
from fairlane.operations import request_state, tokens
from fairlane.operations.submit import submit
from fairlane.options import Policy
from fairlane.protocol import keys, scripts
from fairlane.protocol.lua import Dialect
from fairlane.protocol.steps import (
    Batch,
    Call,
    Command,
    Handle,
    Handled,
    Nodes,
    OnNode,
    Popped,
    UntilHandled,
)
from tests.support.operations.drivers import KINDS, both, perform, run
from tests.support.scripts.requests import listeners, once, work_off
from tests.support.wait import PATIENCE_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    import redis

    from tests.support.scripts.requests import Lane
    from tests.support.servers.backends import Backend
    from tests.support.servers.server_process import Server


@pytest.mark.any_command
@both
def test_a_command_brings_redis_reply_undecoded(kind: str, redis_url: str):
    assert perform(kind, redis_url, Command(b"SET", "{a}:0", "x", "PX", 60_000)) == b"OK"
    assert perform(kind, redis_url, Command(b"GET", "{a}:0")) == b"x"
    assert perform(kind, redis_url, Command(b"GET", "none")) is None


@pytest.mark.any_command
@both
def test_a_batch_brings_its_replies_in_order(kind: str, redis_url: str):
    """The server may lack all scripts, and the keys may be in any slots."""
    names = (keys.active("req"), keys.conf("req"))
    steps: list[Command | Call[Any]] = [
        Command(b"EXISTS", "a"),
        scripts.intend(names, ids=["r1"], grace=1, above=0, named="", now=1),
        Command(b"EXISTS", "b"),
        scripts.intend(names, ids=["r1"], grace=1, above=0, named="", now=100),
        Command(b"TIME"),
    ]
    found = perform(kind, redis_url, Batch(steps))
    assert found[:4] == [0, [0, b"", 2, b"0"], 0, [0, b"", 101, b"2"]]
    assert len(found[4]) == 2


@pytest.mark.any_command
@both
def test_an_error_in_a_batch_is_raised_and_the_line_stays_in_step(kind: str, lane: Lane):
    url = lane.driver.url
    steps = [Command(b"EXISTS", "a"), Command(b"GET", lane.names[5]), Command(b"EXISTS", "b")]
    lane.client.zadd(lane.names[5], {"1-0": 1})

    async def operation():
        with pytest.raises(RedisUnfit, match="WRONGTYPE"):
            await Batch(steps)
        return await Command(b"ZCARD", lane.names[5])

    assert run(kind, url, operation()) == 1
    lane.client.delete(lane.names[5])


@both
def test_an_operation_may_handle_the_error_of_a_step(kind: str, redis_url: str):
    def operation():
        try:
            yield scripts.promote((keys.delayed("req"), *keys.lanes("req")), most=0)
        except InvalidArgument as error:
            return str(error)

    assert run(kind, redis_url, operation()).startswith("BADBATCH")


@both
def test_a_step_that_is_none_of_theirs_is_a_type_error(kind: str, redis_url: str):
    """Only the worker's driver runs Handle."""
    with pytest.raises(TypeError, match="Handle"):
        perform(kind, redis_url, Handle(None))


@both
def test_a_port_without_a_server_is_unreachable_and_named_without_the_password(kind: str):
    with pytest.raises(RedisUnreachable, match=r"redis://:\*\*\*@127.0.0.1:1 ") as raised:
        perform(kind, "redis://:secret@127.0.0.1:1", Command(b"TIME"))
    assert "secret" not in str(raised.value)


@both
def test_a_wrong_password_is_unfit_and_not_repeated(kind: str, redis_server: Backend):
    scheme, _, rest = redis_server.url.partition("://")
    url = f"{scheme}://stranger:wrong@{rest.rpartition('@')[2]}"
    with pytest.raises(RedisUnfit, match="user and password"):
        perform(kind, url, Command(b"TIME"), patience_s=600)


@both
def test_an_evicting_server_is_refused(kind: str, redis_url: str, redis_client: redis.Redis):
    redis_client.config_set("maxmemory-policy", "allkeys-lru")
    try:
        with pytest.raises(RedisUnfit, match="noeviction"):
            perform(kind, redis_url, Command(b"TIME"))
    finally:
        redis_client.config_set("maxmemory-policy", "noeviction")


@pytest.mark.parametrize("version", ["6.0.9", "6.2.20"])
def test_a_server_too_old_is_refused_in_one_sentence(version: str):
    with pytest.raises(RedisUnfit) as refused:
        check_fitness({"redis_version": version}, "here")
    assert str(refused.value) == (
        f"Redis at here is version {version}, which is too old: "
        "upgrade it to Redis 7.0, Valkey 7.2 or newer"
    )


def test_a_server_is_spoken_with_by_its_mode():
    version = {"redis_version": "7.0.15"}
    with pytest.raises(RedisUnfit, match="32-bit"):
        check_fitness(version | {"arch_bits": "32"}, "here")
    assert check_fitness(version | {"redis_mode": "standalone"}, "here") is Dialect.SINGLE
    assert check_fitness(version | {"redis_mode": "cluster"}, "here") is Dialect.CLUSTER


@both
def test_a_call_is_repeated_while_its_connection_is_killed(
    kind: str, redis_url: str, redis_client: redis.Redis
):
    async def operation():
        await Command(b"TIME")
        redis_client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        return await scripts.intend(
            (keys.active("req"), keys.conf("req")), ids=["r1"], grace=1, above=0, named="", now=1
        )

    assert run(kind, redis_url, operation(), patience_s=10).scores == (2, b"0")


@both
def test_a_demoted_primary_is_waited_for_and_then_named_unreachable(
    kind: str, redis_server: Server, redis_url: str, redis_client: redis.Redis
):
    """A demoted primary refuses writes, inside scripts, too: that passes, so it is repeated."""
    if redis_server.kind.startswith("cluster"):
        pytest.skip("a cluster's node is demoted by its cluster only")
    if redis_server.kind == "sentinel":
        pytest.skip("past sentinels the master is looked for anew: test_sentinel.py")

    demoted = threading.Event()

    async def operation() -> scripts.IntendReply:
        await Command(b"TIME")  # the driver saw a primary; else it would refuse immediately
        redis_client.execute_command("REPLICAOF", "127.0.0.1", "1")
        demoted.set()
        names = (keys.active("req"), keys.conf("req"))
        return await scripts.intend(names, ids=["r1"], grace=1, above=0, named="", now=1)

    got: list[scripts.IntendReply] = []
    try:
        with pytest.raises(RedisUnreachable, match="is a replica and can't be written to"):
            run(kind, redis_url, operation(), patience_s=0.1)
        redis_client.execute_command("REPLICAOF", "NO", "ONE")
        patient = threading.Thread(
            target=lambda: got.append(run(kind, redis_url, operation(), patience_s=20))
        )
        demoted.clear()
        patient.start()
        assert demoted.wait(PATIENCE_S)
        refused = errors(redis_client)
        wait_until(lambda: errors(redis_client) > refused, why="it was refused")
    finally:
        redis_client.execute_command("REPLICAOF", "NO", "ONE")
    patient.join(20)
    assert [reply.scores for reply in got] == [(2, b"0")]


def errors(client: redis.Redis) -> int:
    """Returns how many commands were refused until now."""
    return sum(
        row["failed_calls"] + row["rejected_calls"] for row in client.info("commandstats").values()
    )


@pytest.mark.rest
def test_one_driver_serves_many_threads(lane: Lane):
    driver, count = lane.driver, 8

    def work(name: str) -> None:
        for i in range(20):
            driver.run(submit(f"{name}.{i}", Policy()), iter([[name.encode()]]))

    threads = [threading.Thread(target=work, args=(f"t{n}",)) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    seen = work_off(driver)
    assert sorted(seen) == sorted([b"t%d" % n for n in range(count)] * 20)


@both
def test_an_operation_that_subscribes_leaves_no_subscription(kind: str, redis_url: str, lane: Lane):
    from fairlane.errors import WaitTimeout
    from fairlane.operations.completion import wait

    lane.start(1)
    with pytest.raises(WaitTimeout):
        run(kind, redis_url, wait("r1", lambda: 0.0, 0))
    wait_until(lambda: listeners(lane.client, "done:{r1}") == 0)


def test_progress_by_both_drivers_is_the_same(redis_url: str, lane: Lane):
    lane.start(3)
    first, second = (run(kind, redis_url, request_state.progress("r1")) for kind in KINDS)
    assert first == second
    assert first.total == 3


@pytest.mark.parametrize("whole", [True, False])
def test_no_number_reaches_the_packing_of_a_command(*, whole: bool):
    """hiredis crashes the process when Ctrl-C comes while it asks Python for a number's text."""
    call = scripts.intend(
        (keys.active("req"), keys.conf("req")), ids=["r1"], grace=1, above=2.0, named="", now=3
    )
    for step in (call, Command(b"BRPOP", "a", 0.5), Command(b"ZADD", "a", 7, "b")):
        assert {type(word) for word in calls.words(step, Dialect.SINGLE, whole=whole)} <= {
            bytes,
            str,
        }


@both
def test_each_primary_can_be_called_by_name(kind: str, redis_url: str, lane: Lane):
    async def ask() -> Any:
        nodes = await Nodes()
        found = []
        for node in nodes:
            _, names = await OnNode(node, Command(b"SCAN", 0, b"MATCH", b"req:*", b"COUNT", 100))
            found += names
        return nodes, found

    lane.start(1)
    nodes, found = run(kind, redis_url, ask())
    assert found == [b"req:{r1}"]
    if not redis_url.startswith("redis+cluster"):
        assert nodes == [None]
        return
    named = redis_url.partition("://")[2].split(",")
    assert {f"{host}:{port}" for host, port in nodes} <= set(named)
    assert len(nodes) == (len(named) + 1) // 2  # of six, three are replicas
    with pytest.raises(RedisUnreachable, match="no primary"):
        run(kind, redis_url, once(OnNode(("127.0.0.1", 1), Command(b"PING"))))


# ------------------------------------------------------------------ several tokens in one pop


def push(client: redis.Redis, lane: int, *tokens: str) -> bytes:
    """Pushes tokens to a lane, one after the other; returns its name."""
    name = keys.lanes("req")[lane]
    client.lpush(name, *tokens)
    return name


@both
@pytest.mark.parametrize("in_batch", [True, False])
def test_a_pop_brings_the_oldest_tokens_of_the_most_urgent_lane(
    kind: str, redis_url: str, redis_client: redis.Redis, *, in_batch: bool
):
    push(redis_client, 9, "later")
    lane = push(redis_client, 3, "a", "b", "c")

    async def take(most: int) -> Any:
        pop = tokens.pop("req", 1000, "w:1", most)
        return (await Batch([pop]))[0] if in_batch else await pop

    assert run(kind, redis_url, take(2)) == Popped(lane, [b"a", b"b"])
    assert run(kind, redis_url, take(1)) == Popped(lane, [b"c"])
    assert redis_client.llen(lane) == 0
    redis_client.delete(keys.lanes("req")[9])


@both
def test_a_pop_that_does_not_wait_brings_what_is_there(
    kind: str, redis_url: str, redis_client: redis.Redis
):
    """It searches a lane or a more urgent one, but no later lane."""
    push(redis_client, 9, "later")
    assert perform(kind, redis_url, tokens.pop_ahead("req", 5, 3)) is None
    lane = push(redis_client, 2, "a")
    found = perform(kind, redis_url, tokens.pop_ahead("req", 5, 3))
    assert (found.lane, found.tokens) == (lane, [b"a"])
    redis_client.delete(keys.lanes("req")[9])


@pytest.mark.any_command
@both
def test_a_pop_that_does_not_wait_brings_as_many_as_wanted(
    kind: str, redis_url: str, redis_client: redis.Redis
):
    """Another step is beside it; never BRPOP, whose shortest wait takes a tenth of a second."""
    redis_client.config_resetstat()
    lane = push(redis_client, 5, "a", "b", "c")
    steps = [Command(b"LLEN", lane), tokens.pop_ahead("req", 9, 2), Command(b"TIME")]
    _, found, _ = perform(kind, redis_url, Batch(steps))
    assert (found.lane, len(found.tokens)) == (lane, 2)
    assert len(perform(kind, redis_url, tokens.pop_ahead("req", 9, 5)).tokens) == 1
    assert perform(kind, redis_url, tokens.pop_ahead("req", 99, 5)) is None
    assert "cmdstat_brpop" not in redis_client.info("commandstats")


@both
def test_a_lenient_batch_has_errors_for_replies(kind: str, lane: Lane):
    lane.client.zadd(lane.names[5], {"1-0": 1})
    one, other = (keys.request_hash(name) for name in ("a", "b"))
    steps = [Command(b"HLEN", one), Command(b"HLEN", lane.names[5]), Command(b"HLEN", other)]
    found = perform(kind, lane.driver.url, Batch(steps, lenient=True))
    assert (found[0], type(found[1]), found[2]) == (0, RedisUnfit, 0)
    lane.client.delete(lane.names[5])


@pytest.mark.any_command
@both
def test_a_forgotten_script_of_a_lenient_batch_has_its_error_for_a_reply(kind: str, lane: Lane):
    lane.client.set(lane.names[2], "text")  # req:{id}, that is a hash
    sound = keys.request_keys("another")
    lane.client.script_flush()
    steps = [scripts.check(lane.names), scripts.check(sound)]
    found = perform(kind, lane.driver.url, Batch(steps, lenient=True))
    assert (type(found[0]), found[1]) == (RedisUnfit, [])
    lane.client.delete(lane.names[2])


@pytest.mark.any_command
@both
def test_a_large_batch_is_sent_in_pieces(kind: str, redis_url: str, redis_client: redis.Redis):
    steps = [Command(b"SET", f"{{a}}:{i}", "x" * 5000, "PX", 60_000) for i in range(40)]
    steps += [Command(b"STRLEN", f"{{a}}:{i}") for i in range(40)]
    assert perform(kind, redis_url, Batch(steps)) == [b"OK"] * 40 + [5000] * 40
    redis_client.delete(*[f"{{a}}:{i}" for i in range(40)])


# ------------------------------------------------------------------ beside a handler


def beside(kind: str, url: str, meanwhile: Any, handler: Callable[[], Any]) -> Handled:
    """Returns the outcome of a Handle whose handler does this."""
    step = Handle("leases", meanwhile)
    found: Handled = run(
        kind, url, once(step), patience_s=settings.PATIENCE_S, handle=lambda _: handler()
    )
    return found


@pytest.mark.any_command
@both
def test_an_operation_runs_while_the_handler_does(kind: str, redis_url: str):
    """Each sees what the other did; the handler of the blocking driver stays in its thread."""
    there, seen = threading.Event(), []

    async def meanwhile() -> Any:
        await Command(b"EXISTS", "a")
        seen.append(await UntilHandled(0.01))
        there.set()
        seen.append(await UntilHandled(20))
        return "fetched"

    def handler() -> str:
        assert there.wait(PATIENCE_S)
        return threading.current_thread().name

    found = beside(kind, redis_url, meanwhile(), handler)
    assert (found.result, found.error, seen) == ("fetched", None, [False, True])
    assert kind == "async" or found.leases == threading.current_thread().name


@pytest.mark.any_command
@both
@pytest.mark.parametrize("made_of", [lambda pop: pop, lambda pop: Batch([pop])])
def test_a_handler_starts_as_soon_as_the_first_step_is_sent(
    kind: str,
    redis_url: str,
    redis_client: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
    made_of: Callable[[Command], Command | Batch],
):
    """That step is one call or a batch. It waits here for what the handler pushes."""
    monkeypatch.setattr(sync, "_SENT_S", 20)

    async def meanwhile() -> Any:
        return await made_of(Command(b"BLPOP", "{a}:0", 5))

    found = beside(kind, redis_url, meanwhile(), lambda: redis_client.rpush("{a}:0", "x"))
    assert (found.leases, found.error) == (1, None)
    assert found.result in ([b"{a}:0", b"x"], [[b"{a}:0", b"x"]])


@pytest.mark.any_command
@both
def test_an_error_beside_a_handler_does_not_take_its_outcome_along(kind: str, redis_url: str):
    async def meanwhile() -> Any:
        await Command(b"EXISTS", "a")
        raise RedisUnreachable("no answer")

    found = beside(kind, redis_url, meanwhile(), lambda: "done")
    assert (found.leases, type(found.error)) == ("done", RedisUnreachable)


@both
def test_what_a_handlers_runner_raises_is_raised_immediately(kind: str, redis_url: str):
    async def meanwhile() -> Any:
        await UntilHandled(20)

    def broken() -> None:
        raise RuntimeError("broken runner")

    with pytest.raises(RuntimeError, match="broken runner"):
        beside(kind, redis_url, meanwhile(), broken)


@both
def test_without_an_operation_beside_it_a_bunch_is_just_handled(kind: str, redis_url: str):
    assert beside(kind, redis_url, None, lambda: "done") == Handled("done")
