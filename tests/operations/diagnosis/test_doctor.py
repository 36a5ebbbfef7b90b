"""Tests doctor's checks of servers and queues: each fault has its remedy."""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Any

import pytest
import redis

from fairlane.common import clock
from fairlane.drivers.sync import SyncDriver
from fairlane.errors import RedisUnfit, RedisUnreachable
from fairlane.operations.doctor import examine, examine_servers
from fairlane.operations.server_checks import Facts, Left, judge
from fairlane.operations.shards import Shards, set_shards
from fairlane.protocol import keys
from fairlane.protocol.server_info import read_info
from fairlane.protocol.steps import Nodes, OnNode
from fairlane.queue import Queue
from tests.support.operations.upkeep import ACTIVE, WORKERS, server_ms
from tests.support.run.for_each import for_each
from tests.support.scripts.requests import HOUR, MINUTE, Lane

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fairlane.operations.check_result import Finding

HEALTHY = {
    "redis_version": "7.2.11",
    "maxmemory_policy": "noeviction",
    "used_memory": "1000000",
    "maxmemory": "0",
    "aof_enabled": "1",
    "role": "master",
    "connected_slaves": "0",
}
SETTINGS = {
    "appendfsync": "everysec",
    "save": "3600 1",
    "min-replicas-to-write": "0",
    "timeout": "0",
    "tcp-keepalive": "300",
    "stream-node-max-bytes": "4096",
}


def judged(name: str, config: dict[str, str] | None = None, **info: str) -> Finding:
    """Returns the one finding about a healthy server with this difference."""
    facts = Facts(HEALTHY | info, SETTINGS | (config or {}))
    return next(check for check in judge(facts) if check.check == name)


def examined(driver: Lane | SyncDriver, queue: str = "req") -> dict[str, Finding]:
    """Returns every check of a real server and a queue, by name."""
    parts = examine(queue, clock.mono_s, clock.wall_ms)
    checks = [check for part in parts for check in driver.run(part)]
    # The nodes of a cluster are one line where they are alike.
    assert len({(check.check, check.subject, check.what) for check in checks}) == len(checks)
    for check in checks:
        assert bool(check.remedy) or check.severity in {"ok", "note"}, check
    return {check.check: check for check in checks}


@pytest.fixture
def lane(lane: Lane) -> Lane:
    """Makes the request `r1`, as of now."""
    lane.now = server_ms(lane.client)
    return lane


# ------------------------------------------------------------------ servers


def test_a_healthy_server_has_nothing_to_be_repaired():
    checks = list(judge(Facts(HEALTHY, SETTINGS)))
    assert {check.severity for check in checks} == {"ok"}
    assert all(check.what and not check.remedy for check in checks)


@for_each(
    "version, state, remedy",
    [
        ("6.2.20", "bad", "upgrade to Redis 7.0, Valkey 7.2 or newer"),
        ("7.0.15", "warn", "Redis 7.2.11"),
        ("7.2.10", "warn", "Redis 7.2.11"),
        ("7.2.11", "ok", ""),
        ("7.4.5", "warn", "Redis 7.4.6"),
        ("8.0.3", "warn", "Redis 8.0.4"),
        ("8.2.2", "ok", ""),
        ("8.4.0", "ok", ""),
        ("9.0.0", "ok", ""),
    ],
)
def test_old_versions_and_holes_in_lua_are_named(version: str, state: str, remedy: str):
    check = judged("version", redis_version=version)
    assert check.severity == state
    assert remedy in check.remedy
    assert f"Redis {version}" in check.what


@for_each(
    "version, state",
    [("7.2.10", "warn"), ("7.2.11", "ok"), ("8.0.5", "warn"), ("8.1.4", "ok"), ("9.0.0", "ok")],
)
def test_valkey_has_versions_of_its_own(version: str, state: str):
    check = judged("version", redis_version="7.2.4", valkey_version=version)  # it has both
    assert (check.severity, check.what.startswith(f"Valkey {version}")) == (state, True)


@for_each(
    "name, info, config, state, words",
    [
        ("eviction", {"maxmemory_policy": "allkeys-lru"}, {}, "bad", "allkeys-lru"),
        ("memory", {"maxmemory": "2000000"}, {}, "ok", "50%"),
        ("memory", {"maxmemory": "1200000"}, {}, "warn", "83%"),
        ("memory", {"maxmemory": "1010000"}, {}, "bad", "99%"),
        ("memory", {"total_system_memory": "1100000"}, {}, "warn", "of the machine"),
        ("persistence", {}, {"appendfsync": "no"}, "warn", "appendfsync no"),
        ("persistence", {"aof_enabled": "0"}, {}, "warn", "snapshots only"),
        ("persistence", {"aof_enabled": "0"}, {"save": ""}, "warn", "every request"),
        ("restart", {"aof_enabled": "0", "uptime_in_seconds": "40"}, {}, "warn", "40 s ago"),
        ("disk", {"rdb_last_bgsave_status": "err"}, {}, "bad", "rdb_last_bgsave_status"),
        ("disk", {"aof_last_write_status": "err"}, {}, "bad", "MISCONF"),
        ("replicas", {"role": "slave"}, {}, "bad", "replica"),
        ("replicas", {"connected_slaves": "2"}, {}, "warn", "min-replicas-to-write is 0"),
        ("replicas", {"connected_slaves": "2"}, {"min-replicas-to-write": "1"}, "ok", "2, "),
        ("timeouts", {}, {"timeout": "5"}, "warn", "5 s"),
        ("timeouts", {}, {"timeout": "300"}, "ok", "300 s"),
        ("timeouts", {}, {"tcp-keepalive": "0"}, "warn", "tcp-keepalive"),
        ("streams", {}, {"stream-node-max-bytes": "1024"}, "ok", "less memory"),
    ],
)
def test_settings_are_judged(name: str, info: dict, config: dict, state: str, words: str):
    check = judged(name, config, **info)
    assert check.severity == state
    assert words in check.what
    assert bool(check.remedy) == (state != "ok")


def test_the_remedy_of_a_full_server_names_the_commands_that_make_room():
    info = HEALTHY | {"maxmemory": "1010000"}
    (check,) = [one for one in judge(Facts(info, SETTINGS)) if one.check == "memory"]
    for command in ("fairlane delete --state ended", "fairlane dead drop", "fairlane dead requeue"):
        assert command in check.remedy


@pytest.mark.parametrize("aof", ["0", "1"])
def test_settings_that_may_not_be_read_are_reported_so(aof: str):
    """A managed Redis refuses CONFIG, which alone is no fault."""
    info = HEALTHY | {"aof_enabled": aof, "connected_slaves": "1"}
    checks = {check.check: check for check in judge(Facts(info, None))}
    for name in ("persistence", "replicas", "timeouts"):
        assert "not readable" in checks[name].what
    assert "bad" not in {check.severity for check in checks.values()}


@for_each(
    "said, state",
    [("ok 16384", "ok"), ("fail 16384", "bad"), ("ok 16000", "warn"), ("fail 0", "bad")],
)
def test_a_cluster_is_judged(said: str, state: str):
    word, slots = said.split()
    cluster = {"cluster_state": word, "cluster_slots_ok": slots}
    check = list(judge(Facts(HEALTHY, SETTINGS, cluster)))[-1]
    assert (check.check, check.severity) == ("cluster", state)


@for_each("info", [{"uptime_in_seconds": "40"}, {"aof_enabled": "0", "uptime_in_seconds": "3600"}])
def test_a_restart_that_lost_nothing_or_is_long_ago_is_no_finding(info: dict):
    facts = Facts(HEALTHY | info, SETTINGS)
    assert "restart" not in {check.check for check in judge(facts)}


def test_info_is_read_as_it_is_sent():
    assert read_info(b"# Server\r\nos:a:b\r\n\r\nempty:\r\n") == {"os": "a:b", "empty": ""}


# ------------------------------------------------------------------ checks of servers


def test_an_idle_queue_on_a_real_server(driver: SyncDriver):
    checks = examined(driver)
    assert "bad" not in {check.severity for check in checks.values()}
    assert {"version", "eviction", "clock", "latency", "scripts", "workers"} <= set(checks)


def test_it_only_reads(lane: Lane):
    lane.later(-HOUR)
    lane.take(lane.start(3)[0])
    lane.client.zadd(ACTIVE, {"r1": 1, "gone": 1})
    before = lane.dump()
    examined(lane)
    assert lane.dump() == before


@pytest.mark.any_command
def test_scripts_that_are_loaded_are_counted(driver: SyncDriver, redis_client: redis.Redis):
    """They are counted by the text that would be sent to the server."""
    redis_client.script_flush()
    assert examined(driver)["scripts"].what.startswith("0 of ")
    Queue(driver).submit_request([b"x"])
    assert "; not yet: " in examined(driver)["scripts"].what
    redis_client.flushall()


@pytest.fixture
def limited(driver: SyncDriver, redis_client: redis.Redis) -> Iterator[SyncDriver]:
    """Makes a driver whose user may only do what a worker must."""
    rules = ("on", ">secret", "~*", "&*", "+@all", "-config", "-info", "-script", "-ping")
    redis_client.execute_command("ACL", "SETUSER", "few", *rules)
    scheme, _, rest = driver.url.partition("://")
    url = f"{scheme}://few:secret@{rest.rpartition('@')[2]}"
    with contextlib.closing(SyncDriver(url, patience_s=0, checks_fitness=False)) as made:
        yield made
    redis_client.execute_command("ACL", "DELUSER", "few")


def test_a_refusal_is_reported_and_the_rest_is_checked(limited: SyncDriver):
    checks = examined(limited)
    assert "INFO is refused" in checks["version"].what
    assert checks["workers"].severity == "ok"


def test_a_queue_that_cannot_be_read_is_bad(lane: Lane):
    lane.client.set(ACTIVE, "text")
    checks = examined(lane)
    assert (checks["queue"].severity, "eviction" in checks) == ("bad", True)


def answer(step: Any, clock_ms: int, version: str) -> Any:
    """Returns the reply of a fake node; one without a clock refuses TIME and PING."""
    words = step.command.args
    if not clock_ms and words[0] in {b"TIME", b"PING"}:
        return RedisUnfit("NOPERM this user has no permissions to run the command")
    if words[0] == b"INFO":
        lines = HEALTHY | {"redis_version": version}
        return "\r\n".join(f"{name}:{value}" for name, value in lines.items()).encode()
    if words[0] == b"CONFIG":
        return [words[2], SETTINGS.get(words[2].decode(), "noeviction").encode()]
    if words[0] == b"TIME":
        return [b"%d" % (clock_ms // 1000), b"0"]
    return [1] * 100 if words[0] == b"SCRIPT" else b"PONG"


def ask(nodes: dict[Any, Any], *, pings: float = 0.0) -> list[Finding]:
    """Returns the checks of fake nodes, each with its clock and version, or the error it raises."""
    times = iter(range(10_000))
    operation = examine_servers(lambda: next(times) * pings, lambda: 1_000_000)
    step = operation.send(None)
    assert isinstance(step, Nodes)
    reply: Any = list(nodes)
    try:
        while True:
            fails = isinstance(reply, Exception)
            step = operation.throw(reply) if fails else operation.send(reply)
            assert isinstance(step, OnNode)
            given = nodes[step.node]
            if isinstance(given, Exception):
                reply = given
            else:
                reply = answer(step, *given)
                if isinstance(reply, list) and len(reply) == 100:
                    reply = reply[: len(step.command.args) - 2]
    except StopIteration as end:
        return list(end.value)


FINE = (1_000_000, "7.2.11")


def test_what_is_true_of_all_nodes_is_reported_once():
    checks = ask({("a", 1): FINE, ("b", 2): FINE, ("c", 3): (1_000_000, "7.2.10")})
    versions = [check for check in checks if check.check == "version"]
    assert [(check.severity, check.what.partition(": ")[0]) for check in versions] == [
        ("ok", "a:1, b:2"),
        ("warn", "c:3"),
    ]
    assert len([check for check in checks if check.check == "eviction"]) == 1


def test_a_primary_that_does_not_answer_is_bad_and_the_others_are_judged():
    away = RedisUnreachable("Redis at b:2 does not answer")
    checks = ask({("a", 1): FINE, ("b", 2): away})
    assert [check.check for check in checks if check.severity == "bad"] == ["servers"]
    with pytest.raises(RedisUnreachable):
        ask({("a", 1): away, ("b", 2): away})


def test_a_server_that_refuses_time_and_ping_is_judged_all_the_same():
    checks = {check.check: check for check in ask({None: (0, "7.2.11")})}
    for name in ("clock", "latency"):
        assert (checks[name].severity, "not readable" in checks[name].what) == ("warn", True)
        assert "let the user of the URL run" in checks[name].remedy
    assert {"version", "eviction", "scripts"} <= set(checks)


@pytest.mark.parametrize(
    ("theirs", "words"), [(1_000_000, ""), (1_060_000, "ahead of"), (940_000, "behind")]
)
def test_clocks_are_compared(theirs: int, words: str):
    (check,) = [check for check in ask({None: (theirs, "7.2.11")}) if check.check == "clock"]
    assert check.severity == ("warn" if words else "ok")
    assert words in check.what


@pytest.mark.parametrize(("seconds", "state"), [(0.0001, "ok"), (0.02, "warn")])
def test_round_trips_are_measured(seconds: float, state: str):
    """A distant server is unsuitable for short slices."""
    checks = ask({None: FINE}, pings=seconds)
    assert [check.severity for check in checks if check.check == "latency"] == [state]


# ------------------------------------------------------------------ the queue


def test_work_without_workers_is_bad(lane: Lane):
    Queue(lane.driver, "slow").submit_request([b"x"])
    check = examined(lane, "slow")["workers"]
    assert (check.severity, "--queue slow" in check.remedy) == ("bad", True)
    assert examined(lane)["workers"].severity == "ok"
    lane.client.flushall()


@pytest.mark.parametrize(("late_ms", "state"), [(0, "ok"), (MINUTE, "warn")])
def test_late_workers_are_named(lane: Lane, late_ms: int, state: str):
    lane.client.zadd(WORKERS, {"w:1": lane.now, "w:2": lane.now - late_ms})
    check = examined(lane)["workers"]
    assert (check.severity, "w:2" in check.what) == (state, state == "warn")


def test_workers_that_are_gone_are_removed_by_a_repair(lane: Lane):
    lane.client.zadd(WORKERS, {"w:1": lane.now, "w:2": 1})
    finding = examined(lane)["late"]
    assert (finding.severity, finding.is_left) == ("note", False)
    assert lane.client.zcard(WORKERS) == 2
    lane.run(finding.apply())
    assert (finding.is_fixed, lane.client.zcard(WORKERS)) == (True, 1)
    assert "late" not in examined(lane)


def test_a_request_that_no_leader_looks_after_is_reported(lane: Lane):
    lane.later(-3 * MINUTE)
    lane.take(lane.start(3)[0])
    lane.client.zadd(ACTIVE, {"r1": lane.now - 5000})
    checks = examined(lane)
    assert (checks["overdue"].severity, checks["upkeep"].severity) == ("bad", "warn")
    assert "3 min ago" in checks["upkeep"].what


@pytest.mark.parametrize(
    ("shards", "shard"),
    [((), 0), ((2, 3), 0), ((2, 3), 2)],
    ids=["a queue", "a queue's own lanes that are still served", "a shard"],
)
def test_delayed_tokens_that_are_not_promoted_are_reported(lane: Lane, shards: Any, shard: int):
    lane.run(set_shards("req", Shards(shards)))
    delayed = keys.delayed("req", shard)
    lane.client.zadd(delayed, {"5|r1#0.1": lane.now - MINUTE})
    assert examined(lane)["upkeep"].severity == "warn"
    lane.client.delete(delayed)


@pytest.mark.parametrize(("ago", "is_reported"), [(MINUTE, False), (HOUR // 2, True)])
def test_a_request_left_open_is_reported(lane: Lane, ago: int, is_reported: bool):
    lane.later(-ago)
    lane.start(1, open_ms=HOUR)
    lane.client.zadd(ACTIVE, {"r1": server_ms(lane.client)})
    assert ("open" in examined(lane)) is is_reported


@pytest.mark.parametrize(
    ("ago", "handed", "is_there", "is_reported"),
    [
        (HOUR // 2, "", False, True),
        (MINUTE, "", False, False),
        (2 * MINUTE, "0-0", False, True),
        (HOUR // 2, "0-0", True, False),
    ],
    ids=["never submitted", "perhaps not yet", "lost", "slow"],
)
def test_a_step_of_a_flow_that_gets_nothing_is_reported(
    lane: Lane, ago: int, handed: str, is_there: bool, is_reported: bool
):
    lane.later(-ago)
    lane.start(1, open_ms=24 * HOUR)
    feed = "done r0 continue - 1"
    lane.client.hset(lane.names[2], mapping={"feed": feed, "handed": handed})
    if is_there:
        lane.client.hset(keys.request_hash("r0"), mapping={"state": "1|active"})
    checks = examined(lane)
    assert "open" not in checks
    assert ("unfed" in checks) is is_reported
    if is_reported:
        assert checks["unfed"].what == "gets nothing: request r0 is not there"


@pytest.mark.parametrize("is_held", [True, False])
def test_requests_of_which_nothing_is_done_are_reported(lane: Lane, is_held: bool):
    lane.later(-HOUR)
    (token,) = lane.start(2, limit=1, lease_ms=24 * HOUR)
    if is_held:
        held = lane.take(token)
    lane.client.zadd(ACTIVE, {"r1": server_ms(lane.client)})
    lane.client.zadd(WORKERS, {"w:1": server_ms(lane.client)})
    name = "slow" if is_held else "waiting"
    assert examined(lane)[name].severity == "warn"
    if is_held:
        lane.complete(held, held.ids[:1], keep=True)
        assert name not in examined(lane)


@pytest.mark.parametrize(("verdict", "is_reported"), [("release", True), ("retry", False)])
def test_a_request_that_was_given_back_is_reported_with_the_reason(
    lane: Lane, verdict: str, is_reported: bool
):
    held = lane.begin(1)
    lane.client.zadd(ACTIVE, {"r1": server_ms(lane.client)})
    lane.complete(
        held, others=[(held.ids[0], verdict, 60_000)], reason="no worker has had the task"
    )
    check = examined(lane).get("given back")
    assert (check is not None) is is_reported
    if check is not None:
        assert (check.severity, check.subject) == ("warn", "r1")
        assert check.what.startswith("workers gave back 1 sub-request until ")
        assert check.what.endswith(": no worker has had the task")


def test_lost_requests_are_reported(lane: Lane):
    lane.client.xadd(keys.completed("req"), {"id": "r9", "state": "lost"})
    lane.client.xadd(keys.completed("req"), {"id": "r8", "state": "done"})
    check = examined(lane)["endings"]
    assert (check.severity, check.what) == ("warn", "1 of the last 2 requests were lost: r9")


def test_a_request_that_cannot_be_read_is_bad(lane: Lane):
    lane.client.set("req:{r9}", "text")
    lane.client.zadd(ACTIVE, {"r9": lane.now - 2 * MINUTE})
    checks = examined(lane)
    assert (checks["unreadable"].severity, checks["unreadable"].subject) == ("bad", "r9")
    lane.client.delete("req:{r9}")


# ------------------------------------------------------------------ sizes


@pytest.mark.any_command
@pytest.mark.parametrize(
    ("size", "requests", "bodies", "is_reported"),
    [(4096, 100, 15, True), (4096, 99, 15, False), (4096, 100, 21, False), (2048, 100, 15, False)],
)
def test_many_small_streams_are_worth_smaller_blocks(
    lane: Lane, size: int, requests: int, bodies: int, is_reported: bool
):
    """There is one sentence if it helps: a request of many sub-requests fills its own."""
    before = lane.client.config_get("stream-node-max-bytes")["stream-node-max-bytes"]
    lane.client.config_set("stream-node-max-bytes", size)
    try:
        Queue(lane.driver).submit_many([b"x" * 100] * bodies for _ in range(requests))
        check = examined(lane).get("small requests")
    finally:
        lane.client.config_set("stream-node-max-bytes", before)
    lane.client.flushall()
    assert (check is not None) == is_reported
    if check is not None:
        assert (check.severity, check.what[:19]) == ("warn", "100 of 100 requests")
        assert "stream-node-max-bytes 2048" in check.remedy


GIB = 1 << 30


@pytest.mark.any_command
@pytest.mark.parametrize(
    ("memory", "retain_ms", "is_warned"),
    [(48 << 20, 24 * HOUR, True), (48 << 20, 10 * MINUTE, False), (4 * GIB, 24 * HOUR, False)],
)
def test_results_above_the_memory_are_warned_of(
    lane: Lane, memory: int, retain_ms: int, is_warned: bool
):
    """A hundred requests a minute take 100 MiB before the first of them expires."""
    is_cluster = isinstance(lane.client, redis.RedisCluster)
    servers = len(lane.client.get_primaries()) if is_cluster else 1
    lane.client.config_set("maxmemory", memory // servers)
    try:
        for request in Queue(lane.driver).submit_many([[b"x"]] * 100, retain=retain_ms / 1000):
            request.cancel()
        check = examined(lane).get("retention")
    finally:
        lane.client.config_set("maxmemory", 0)
    lane.client.flushall()
    assert (check is not None) == is_warned
    if check is not None:
        assert check.severity == "warn"
        assert re.fullmatch(
            r"1\.7 requests end a second, and each keeps 0\.\d KiB for 24 h: "
            r"that grows to 1?\d\d MiB, and the memory is \d+ MiB",
            check.what,
        )
        assert "--retain" in check.remedy


def test_a_log_whose_requests_have_expired_gives_no_estimate_of_their_size(lane: Lane):
    for i in range(200):
        lane.client.xadd("{req}:completed", {"id": f"r{i}", "state": "done"})
    assert "retention" not in examined(lane)


def test_the_need_of_a_retention_counts_its_markers():
    """One request a second keeps an hour of results, and two hours of markers."""
    assert Left(HOUR, 1_000).byte_seconds == 3_600 * 1_000 + 7_200 * 150
    assert Left(24 * HOUR, 0).byte_seconds == 48 * 3_600 * 150
