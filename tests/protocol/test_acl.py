"""Tests the ACL roles: their rules allow exactly what their commands send."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fairlane.cli.program import SHARED
from fairlane.errors import InvalidArgument
from fairlane.protocol import acl, keys
from fairlane.protocol.lua import Dialect, library
from tests.support.network.reach import (
    FACES,
    Sent,
    commands_in,
    modules,
    sent_by,
    tree_of,
    used_by,
)
from tests.support.run.for_each import for_each
from tests.support.servers.users import servers_of, version_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    import redis

ROLES = sorted(acl.ROLES)
STEPS = {"Call": acl.CALL, "Confirm": acl.CONFIRM, "Pop": acl.POP, "Subscribe": acl.SUBSCRIBE}
# What the library offers and no command of the command line does.
API = {
    "producer": {"submit_many", "submit_flow", "completions", "state"},
    "maintenance": {
        *("submit_many", "submit_flow", "completions", "state"),
        *(
            "set_limit",
            "set_priority",
            "set_deadline",
            "set_share",
            "set_time_limit",
        ),  # `fairlane set` makes several
    },
    "monitor": {"completions", "state", "snapshot", "leases"},
    "worker": {"take", "_taker"},
}
# `cancel` of many goes through the module that makes every change of many requests.
OTHER_CHANGES = {
    "producer": {
        *("delete", "drop_dead", "glance", "list_dead", "refit", "requeue_dead"),
        *("set_rate", "set_limit", "set_priority", "set_share", "set_deadline", "pause", "resume"),
        "set_time_limit",
    }
}
# What `fairlane serve` sends besides a person's commands.
SERVED = {
    "server": [
        *(("web.trail", "*"), ("web.webhooks", "*")),
        ("web.audit", "*"),
    ]
}
OTHER_COMMANDS = {
    # A command waits for the node of a queue with it, and takes a refusal as an answer.
    "deployer": {"exists"},
    "server": {"exists", "hmget"},  # hmget: of requests, which it reads as a producer
    "topics": {"exists"},
    "worker": {"xpending"},  # its walk reads no topic: only doctor's does
}
# Other names of a `fairlane` command in its file.
PARTS = {
    "dead list": ("cli.commands.dead", "list_"),
    "flow list": ("cli.commands.flow", "list_"),
    "key list": ("cli.commands.key", "list_"),
    "key show": ("cli.commands.key", "show"),
    "flow show": ("cli.commands.flow", "show"),
    "schedule add": ("cli.commands.schedule", "add"),
    "schedule list": ("cli.commands.schedule", "list_"),
    "scripts load": ("cli.commands.scripts", "load"),
}
PARTS |= {name: (f"cli.commands.{file}", part) for name, (file, part) in SHARED.items()}
PARTS["scripts verify"] = ("cli.commands.scripts", "verify")
PARTS |= {
    f"spark {name}": (f"spark.commands.{name}", "*")
    for name in ("submit", "collect", "report_backlog", "stop")
}
# These use no Redis, or only their own.
OPEN_TO_ALL = {"acl", "server", "completion", "token", "report"}
SEVERAL_ROLES = {"serve"}  # it runs as producer+worker+maintenance+server


@pytest.fixture
def server(redis_server: Any) -> Iterator[redis.Redis]:
    """Returns one of the servers, as an admin."""
    servers = servers_of(redis_server)
    yield servers[0]
    for one in servers:
        one.close()


@cache
def what_it_sends(role: str) -> Sent:
    entries = [PARTS.get(name, (f"cli.commands.{name}", "*")) for name in acl.ROLES[role].runs]
    entries += [(face, f".{name}") for name in API.get(role, ()) for face in FACES]
    return sent_by(*entries, *SERVED.get(role, ()))


def commands_of(found: Sent) -> set[str]:
    sent = found.steps | ({"Call"} if found.scripts else set())  # a script is sent by a Call
    steps = {command for step in sent for command in STEPS[step]}
    return (found.commands | steps) - acl.CONNECTION - acl.WITHHELD


# ------------------------------------------------------------------ the source


@for_each("role", sorted({*ROLES} - {"monitor"}))
def test_a_role_has_the_scripts_and_commands_that_its_part_of_the_source_sends(role: str):
    """What is new in the source and not in ROLES is on the left."""
    found, stated = what_it_sends(role), acl.ROLES[role]
    assert found.scripts - stated.scripts == OTHER_CHANGES.get(role, set())
    assert stated.scripts - found.scripts == set()
    assert commands_of(found) - stated.commands == OTHER_COMMANDS.get(role, set())
    assert stated.commands - commands_of(found) == set()


@pytest.mark.rest
def test_a_monitor_has_of_them_what_only_reads(server: redis.Redis):
    """Its commands have ways to write, too, which it may not use."""
    found, stated = what_it_sends("monitor"), acl.ROLES["monitor"]
    reading = {name for name in found.scripts if library()[name].flag == "no-writes"}
    assert stated.scripts == reading
    assert stated.commands == commands_of(found) - writing(server)


def writing(server: redis.Redis) -> set[str]:
    """Returns the commands that write, as the server reports them."""
    rows = server.execute_command("COMMAND").values()
    return {row["name"] for row in rows if "write" in row["flags"]}


def test_the_drivers_add_only_what_is_known_of_them():
    """EVAL is one of them, which is unused if a deployer loads the scripts."""
    sent = {word for module in modules("drivers") for word in commands_in(tree_of(module))}
    by_redis_py = {"client|setinfo", "client|setname", "select"}
    known = acl.CONNECTION - by_redis_py | acl.CALL | acl.CONFIRM | acl.POP | acl.SUBSCRIBE
    assert sent - known == {"eval"}
    assert known - sent == acl.POP  # they are the step's own words


def test_every_command_of_fairlane_is_for_some_role():
    from fairlane.cli.program import COMMANDS

    runs = {name.split()[0] for role in acl.ROLES.values() for name in role.runs}
    assert set(COMMANDS) - runs == OPEN_TO_ALL | SEVERAL_ROLES


def test_every_operation_that_the_api_offers_is_for_some_role():
    faces = [*FACES, "aio", *modules("cli")]
    offered = {place for face in faces for place in used_by(face) if is_operation(place[0])}
    reached = set().union(*(what_it_sends(role).seen for role in ROLES))
    assert {place for place in offered - reached if sends(place)} == set()


@for_each("role", ROLES)
def test_the_page_on_security_lists_the_commands_of_every_role(role: str):
    page = Path(__file__).parents[2].joinpath("docs", "concepts", "security.md").read_text()
    (row,) = (line for line in page.splitlines() if line.startswith(f"| {role} |"))
    runs = row.split("|")[2]
    inherited = acl.ROLES["producer"].runs if "what a producer runs" in runs else ()
    for name in set(acl.ROLES[role].runs) - set(inherited):
        assert f"`{name}" in runs


def sends(place: tuple[str, str]) -> bool:
    found = sent_by(place)
    return bool(found.scripts or found.commands or found.steps)


def is_operation(module: str) -> bool:
    return module in operations()


@cache
def operations() -> frozenset[str]:
    return frozenset(modules("operations"))


# ------------------------------------------------------------------ the Lua


def test_what_a_script_calls_is_read_from_its_text():
    found = acl.commands_of(library()["enqueue"])
    assert {"xadd", "xgroup|create", "hset", "time"} <= found
    assert "xack" not in found


def test_both_ways_to_publish_are_allowed():
    assert {"publish", "spublish"} <= acl.commands_of(library()["complete"])


def test_a_script_that_only_reads_calls_nothing_that_writes(server: redis.Redis):
    """Though it includes functions that do."""
    for script in library():
        is_reader = script.flag == "no-writes"
        assert (not acl.commands_of(script) & writing(server)) is is_reader, script


@for_each("script", library(), lambda script: script.name)
def test_every_call_in_a_script_names_its_command(script: Any):
    """Otherwise the check would not find it."""
    text = script.source(Dialect.SINGLE).decode()
    assert len(re.findall(r"redis\.p?call\(", text)) == len(acl._CALL.findall(text))
    assert len(re.findall(r"redis\.p?call", text)) == len(acl._CALL.findall(text))


def test_a_command_of_two_words_is_named_by_both(server: redis.Redis):
    """What else has subcommands, no script calls."""
    texts = [script.source(Dialect.SINGLE).decode() for script in library()]
    called = {name.lower() for text in texts for name, _ in acl._CALL.findall(text)}
    for name in called - acl._CONTAINERS:
        (row,) = server.execute_command("COMMAND", "INFO", name).values()
        assert not row.get("subcommands"), name


# ------------------------------------------------------------------ the rules


@pytest.mark.parametrize("role", [*ROLES, "producer+worker"])
def test_every_rule_is_one_that_the_server_takes(role: str, server: redis.Redis):
    server.execute_command(
        "ACL", "SETUSER", "fairlane-test", *acl.rules(role, "req", server=version_of(server))
    )
    server.execute_command("ACL", "DELUSER", "fairlane-test")


@for_each("role", ROLES)
def test_no_role_may_eval_read_settings_or_empty_the_server(role: str):
    allowed = set(acl.rules(role))
    for name in ("eval", "eval_ro", "config|get", "config", "flushall", "keys", "acl", "debug"):
        assert f"+{name}" not in allowed
    assert not any(rule.startswith(("+@", "~*", "&*", "allkeys")) for rule in allowed)
    assert ("+script|load" in allowed) is (role == "deployer")


def test_a_queue_that_is_named_is_the_only_one():
    assert "~{req}:*" in acl.rules("worker", "req")
    assert "~{req/[0-9]*}:*" in acl.rules("worker", "req")  # its shards
    assert "~{*}:*" not in acl.rules("worker", "req")
    assert "~{*}:*" in acl.rules("worker")
    with pytest.raises(InvalidArgument, match="queue"):
        acl.rules("worker", "a b")


@pytest.mark.parametrize("queue", ["q", None])
def test_the_patterns_cover_every_key_and_channel(queue: str | None):
    patterns = keys.every_key(queue)
    named = [*keys.request_keys("a:b"), keys.active("q"), keys.conf("q"), keys.stats("q")]
    named += [keys.area("a", "t", "0:1"), keys.transaction("a", "t"), keys.unique_ids("a")]
    named += [keys.owner("a"), keys.begun("t:0")]
    for shard in (0, 3, 12):
        named += [*keys.lanes("q", shard), keys.delayed("q", shard), keys.wake("q", "h:1", shard)]
    for key in named:
        assert any(fnmatchcase(key.decode(), pattern) for pattern in patterns), key
    assert keys.done_channel("x").decode() == keys.EVERY_DONE_CHANNEL.replace("*", "x")


@for_each("pattern", ["*", "a*", "audit:*", "hooks:{q}", "?eq:*", "[a-z]*", "t*", "{*", "{*}:*"])
def test_a_pattern_of_lists_reaches_no_key_of_queues_and_topics(pattern: str):
    with pytest.raises(InvalidArgument, match=r"it also reaches .*, which is no list of yours"):
        acl.rules("lists", patterns=[pattern])


def test_a_pattern_of_lists_reaches_not_the_queue_that_is_named():
    with pytest.raises(InvalidArgument, match=r"it also reaches \{images\}:active"):
        acl.rules("lists+worker", "images", patterns=["{images}:*"])
    with pytest.raises(InvalidArgument, match=r"it also reaches \{req\}:active"):
        acl.rules("lists", patterns=["{req}:*"])


@for_each("pattern", ["orders", "orders:*", "{orders}:*", "or*", "req", "x{a}*"])
def test_a_pattern_of_lists_alone_is_taken(pattern: str):
    every = [*keys.every_key(None), "audit:{q}", "hooks:{q}", "topic:{t}:conf"]
    assert f"~{pattern}" in acl.rules("lists", patterns=[pattern])
    assert not any(fnmatchcase(one, pattern) for one in every)


def test_a_deployer_has_no_keys_and_no_channels():
    assert not any(rule.startswith(("~", "&")) for rule in acl.rules("deployer"))


def test_roles_can_be_joined():
    both = set(acl.rules("producer")) | set(acl.rules("worker"))
    assert set(acl.rules("producer+worker")) == both
    with pytest.raises(InvalidArgument, match=r"'boss'.*producer, worker, maintenance, monitor"):
        acl.rules("worker+boss")


@for_each("text", ["", "7", "seven", "7.0.0.0", "7.x"])
def test_what_is_no_version_is_refused(text: str):
    with pytest.raises(InvalidArgument, match=r"such as 7\.0 or 7\.2"):
        acl.version(text)


def test_a_newer_server_gets_more_rules():
    assert "+waitaof" in acl.rules("producer", server=(7, 2, 1))
    assert "+waitaof" not in acl.rules("producer", server=(7, 0, 15))


def test_a_server_that_fairlane_does_not_run_on_is_refused():
    with pytest.raises(InvalidArgument, match=r"Redis 6\.2 is too old.*name 7\.0 or newer"):
        acl.version("6.2")
