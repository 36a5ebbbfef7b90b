"""Tests `fairlane acl`: rules that a server accepts, and no password in readable form."""

from __future__ import annotations

import hashlib
import json
import shlex
import socket
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
import redis

from fairlane.cli.commands.acl import PLACEHOLDER
from fairlane.protocol import acl
from tests.support.run.for_each import for_each
from tests.support.servers.server_process import run_server
from tests.support.wait import PATIENCE_S

if TYPE_CHECKING:
    from tests.cli.program import Program

SECRETS = b"producer=first secret\n# a comment\n\nworker=a=b#c\n"


def users_in(lines: bytes) -> dict[str, list[str]]:
    """Returns name -> rules, of an aclfile."""
    rows = [line.split() for line in lines.decode().splitlines()]
    assert {row[0] for row in rows} <= {"user"}
    return {row[1]: row[2:] for row in rows}


def test_without_arguments_every_role_is_printed(alone: Program):
    ended = alone("acl")
    assert ended.code == 0
    assert [*users_in(ended.out)] == [f"fairlane-{role}" for role in acl.ROLES]
    assert (
        "no password for producer, worker, maintenance, monitor, lists, topics, server, deployer"
        in ended.err
    )
    assert "the user default stays as it is" in ended.err
    rows = [json.loads(line) for line in alone("acl", "--json", "--server", "7.2").out.splitlines()]
    assert [row["role"] for row in rows] == [*acl.ROLES]
    assert rows[0]["user"] == "fairlane-producer"
    assert rows[0]["rules"] == ["on", PLACEHOLDER, *acl.rules("producer", server=(7, 2))]


@pytest.mark.rest
def test_roles_are_users_of_the_given_queue_and_name(alone: Program):
    ended = alone("acl", "worker", "--queue", "mail", "--user-prefix", "app1.")
    assert users_in(ended.out) == {
        "app1.worker": ["on", PLACEHOLDER, *acl.rules("worker", "mail")],
    }
    ((name, found),) = users_in(alone("acl", "producer+worker").out).items()
    assert name == "fairlane-producer-worker"
    assert found[2:] == acl.rules("producer+worker")


# ------------------------------------------------------------------ passwords


def digest(password: bytes) -> str:
    return "#" + hashlib.sha256(password).hexdigest()


def test_passwords_come_from_a_file_and_leave_as_hashes(alone: Program):
    ended = alone("acl", "--password-file", alone.file(SECRETS))
    found = users_in(ended.out)
    assert found["fairlane-producer"][1] == digest(b"first secret")
    assert found["fairlane-worker"][1] == digest(b"a=b#c")
    assert found["fairlane-monitor"][1] == PLACEHOLDER
    assert "secret" not in ended.out.decode() + ended.err
    assert "no password for maintenance, monitor, lists, topics, server, deployer" in ended.err


def test_passwords_come_from_the_environment(alone: Program):
    alone.env["FAIRLANE_PASSWORD_MONITOR"] = "seen"
    alone.env["FAIRLANE_PASSWORD_PRODUCER_WORKER"] = "both"
    found = users_in(alone("acl", "monitor", "producer+worker").out)
    assert found["fairlane-monitor"][1] == digest(b"seen")
    assert found["fairlane-producer-worker"][1] == digest(b"both")


@for_each(
    "content, why",
    [
        (b"producer=x\nsecret\n", "line 2: ROLE=PASSWORD is expected"),
        (b"boss=secret\n", "line 1: ROLE=PASSWORD is expected"),
        (b"producer=\n", "line 1"),
        (b"producer=secret\nproducer=secret2\n", "line 2: role producer is given twice"),
        (b"producer=\xff\n", "no UTF-8 text"),
        (None, "No such file"),
    ],
)
def test_a_password_file_that_is_wrong_or_missing_is_refused(
    content: bytes | None, why: str, alone: Program
):
    path = alone.folder / "nothing" if content is None else alone.file(content)
    ended = alone("acl", "--password-file", path)
    ended.refused(2, why)
    assert "secret" not in ended.err


# ------------------------------------------------------------------ refused


@for_each(
    "words, why",
    [
        ("boss", "there is no role 'boss'"),
        ("worker+", "there is no role ''"),
        ("--queue a{b", "queue 'a{b' is not valid"),
        ("--server new", "'new' is no version of Redis"),
        ("--user-prefix 'a b'", "--user-prefix 'a b' is not valid"),
        ("--format yaml", "--format"),
        ("lists --key *", "key pattern '*' is not valid: it also reaches sub:{req}"),
    ],
)
def test_wrong_arguments_are_refused_in_one_sentence(words: str, why: str, alone: Program):
    alone("acl", *shlex.split(words)).refused(2, why)


# ------------------------------------------------------------------ on a server


@pytest.mark.server
def test_the_lines_are_an_aclfile_that_a_server_starts_with(alone: Program):
    alone.env["FAIRLANE_PASSWORD_MONITOR"] = "seen"
    lines = alone("acl", "monitor").out
    path = alone.file(b"user default on nopass ~* &* +@all\n" + lines, "users.acl")
    with run_server("single", "--aclfile", str(path)) as server:
        login = redis.Redis(port=server.port, username="fairlane-monitor", password="seen")
        with closing(login):
            assert login.exists("{req}:active") == 0
            with pytest.raises(redis.exceptions.NoPermissionError):
                login.set("{req}:active", 1)


@pytest.mark.rest
@pytest.mark.server
def test_the_commands_are_what_redis_cli_takes(alone: Program):
    """They create a user anew: nothing it had before stays."""
    alone.env["FAIRLANE_PASSWORD_WORKER"] = "busy"
    (line,) = alone("acl", "worker", "--format", "commands").out.decode().splitlines()
    with run_server("single") as server, closing(server.client()) as client:
        client.execute_command("ACL", "SETUSER", "fairlane-worker", "on", ">old", "~*", "+@all")
        assert spoken(server.port, line) == b"+OK\r\n"
        found: Any = client.acl_getuser("fairlane-worker")
        assert len(found["passwords"]) == 1
        assert "~*" not in found["keys"]
        assert "+@all" not in found["commands"]


@pytest.mark.server
def test_a_server_refuses_a_placeholder_as_a_password(alone: Program):
    (line,) = alone("acl", "worker", "--format", "commands").out.decode().splitlines()
    with run_server("single") as server, closing(server.client()) as client:
        assert spoken(server.port, line).startswith(b"-ERR Error in ACL SETUSER modifier")
        assert client.acl_getuser("fairlane-worker") is None


def spoken(port: int, line: str) -> bytes:
    """Returns the reply to a line of words, quoted as redis-cli takes them."""
    words = [word.encode() for word in shlex.split(line, comments=False)]
    sent = b"*%d\r\n" % len(words)
    sent += b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as caller:
        caller.sendall(sent)
        return caller.recv(4096)
