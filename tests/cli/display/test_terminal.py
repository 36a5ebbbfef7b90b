"""Tests that output can't command a terminal, whatever is stored in Redis."""

from __future__ import annotations

import json
import re
import subprocess
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from fairlane.cli.program import COMMANDS
from fairlane.common import text as terminal
from fairlane.operations.limit_keys import LINE
from fairlane.operations.schedules import define
from fairlane.protocol import keys
from fairlane.queue import Queue
from tests.cli.program import Dead, settle
from tests.support.run.params import rest_but

if TYPE_CHECKING:
    from collections.abc import Iterator

    import redis

    from tests.cli.program import Ended, Program

# A window's title by C0, a colour by C1, DEL, a line that is written over, text from right to left.
EVIL = "\x1b]0;owned\x07\x9b31m\x7f\rgone\nfairlane: all is well\u202eowned\u2066\u061c\u2028\t"
COMMANDING = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f"
    "\ufeff\ufff9-\ufffb\ud800-\udfff]"
)


def refuse(_: int, body: bytes) -> NoReturn:
    raise Dead(f"{EVIL}\n{body!r}")


def answer(_: int, body: bytes) -> bytes:
    return body.replace(b"\n", b"") + EVIL.replace("\n", "").encode()


@pytest.fixture
def poisoned(redis_url: str, redis_client: redis.Redis) -> Iterator[None]:
    """Makes a Redis that has EVIL in every field which a user of it can write."""
    raw: Any = redis_client
    with Queue.from_url(redis_url) as queue:
        queue.submit_request([EVIL.encode()], id="dead")
        settle(redis_url, refuse)
        queue.submit_request([b"a"], id="done")
        settle(redis_url, answer)
        queue.submit_request([b"a"], id="cancelled").cancel(EVIL)
        for name in ("held", "paused", "strange"):
            queue.submit_request([b"a"], id=name)
        queue.request("paused").pause()
    raw.hset(keys.request_hash("paused"), mapping=dict.fromkeys(("by", "tags", "tenant"), EVIL))
    raw.hset(keys.request_hash("strange"), "state", EVIL)
    raw.hset(keys.permits("held"), "0", f"h:1:1:ab:7:1::::{EVIL}")
    raw.zadd(keys.leases("held"), {"0": 9e12})
    raw.zadd(keys.active("req"), {EVIL: 1.5})
    raw.zadd(keys.delayed("req"), {EVIL: 1, f"5|{EVIL}": 1})
    raw.lpush(keys.lanes("req")[5], EVIL)
    raw.zadd(keys.workers("req"), {EVIL: 1})
    recurring = define(cron="* * * * *", bodies=[b"a"]).encode()
    raw.hset(keys.schedules("req")[0], EVIL, recurring)
    raw.zadd(keys.schedules("req")[1], {EVIL: 1})
    record = dict.fromkeys(("host", "pid", "started", "renewed", "holds"), EVIL)
    raw.hset(keys.worker("req", EVIL), mapping=record)
    raw.hset(keys.conf("req"), mapping={"lock": EVIL, "left": EVIL})
    raw.xadd(keys.completed("req"), dict.fromkeys(("id", "state", "reason", "dead"), EVIL))
    given_up = dict.fromkeys(("reason", "error", "worker", "body"), EVIL)
    raw.hset(keys.of_limits("req")[3], EVIL, "3")
    raw.zadd(keys.limit_key("req", EVIL), {EVIL: -1, f"held#0.1%1%{EVIL}": LINE + 1})
    raw.xadd(keys.dead("dead"), {"head": "1:x:1:0:0", **given_up})
    yield
    raw.flushall()


# The word EVIL stands for the text.
SHOWING = (
    *("schedule list", "flow show EVIL"),  # what the fixture wrote, or their argument
    *("status", "status cancelled", "status held", "status paused", "status strange"),
    *("why cancelled", "why held", "why strange", "why EVIL"),
    *("status EVIL", "wait cancelled", "results cancelled", "pause strange", "resume strange"),
    *("dead list", "dead list dead", "dead list dead --each"),
    *("dead requeue dead --fingerprint EVIL", "dead drop dead --fingerprint EVIL"),
    *("list", "list --after EVIL", "workers", "completions", "completions --since EVIL"),
    *("errors dead", "errors EVIL", "list --tag EVIL", "delete EVIL"),
    *("queue show --queue EVIL", "doctor", "doctor --repair", "submit EVIL", "acl EVIL"),
    *("fanout --in EVIL --out EVIL", "balance --out EVIL --out EVIL", "topic show EVIL"),
    *(
        "archive out --queue EVIL",
        "completion EVIL",
        "scripts load --watch EVIL",
        "worker --id EVIL",
        "worker --handler EVIL",
        "key list",
        "key show EVIL",
        "stacks EVIL",
        "kill EVIL --index 0",
    ),
)
HIDING = (
    "forward --from EVIL --to EVIL",
    *("results dead", "cancel cancelled", "cancel held --reason EVIL", "set strange --limit 2"),
    *("delete cancelled", "webhook list"),
    *("stats", "tasks", "demand", "queue show", "queues", "scripts verify"),
)


ELSEWHERE = {
    "serve": "it prints its address, and runs on",
    "token": "it prints names that were checked, and has no Redis",
    "top": "its view is tested with such texts in tests/cli/top",
    "server": "it prints what the embedded server reports, and no data",
    "report": "it prints numbers and the path of its page, and has no Redis",
    "spark": "its commands print through the same function, and need Spark",
}


def test_every_command_has_a_case():
    tried = {line.split()[0] for line in (*SHOWING, *HIDING)}
    assert tried | set(ELSEWHERE) == set(COMMANDS)


def commanding(ended: Ended) -> list[str]:
    """Returns the parts of its output that could command a terminal."""
    return COMMANDING.findall(ended.out.decode("utf-8", "surrogateescape") + ended.err)


@pytest.mark.rest
@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("line", rest_but(14, zip([*SHOWING, *HIDING])))
def test_no_command_prints_what_commands_a_terminal(program: Program, line: str):
    """Text and JSON are checked; each line of stderr is one of ours."""
    words = [EVIL if word == "EVIL" else word for word in line.split()]
    plain = program(*words)
    assert commanding(plain) == []
    assert [said for said in plain.err.splitlines() if not said.startswith("fairlane: ")] == []
    assert "\nfairlane: all is well" not in plain.err
    assert ("owned" in plain.out.decode() + plain.err) is (line in SHOWING)
    if words[0] not in {"worker", "submit"}:
        assert commanding(program(*words, "--json")) == []


@pytest.mark.usefixtures("poisoned")
def test_json_has_the_same_value_as_before_it_was_escaped(program: Program):
    """An escape in JSON is the character that it stands for."""
    assert json.loads(program("status", "cancelled", "--json").out)["reason"] == EVIL
    (row,) = map(json.loads, program("results", "done", "--json").out.splitlines())
    assert row["result"].encode() == answer(0, b"a")
    rows = map(json.loads, program("dead", "list", "dead", "--each", "--json").out.splitlines())
    assert [row["body"] for row in rows] == [EVIL, EVIL]


def test_a_worker_prints_bodies_and_logs_without_commands(program: Program, redis_url: str):
    """The default handler prints each body as JSON, and log lines may have names from Redis."""
    with Queue.from_url(redis_url) as queue:
        queue.submit_request([EVIL.encode()], id="r1")
        ended = program("worker", "--until-idle")
        assert commanding(ended) == []
        assert json.loads(ended.out)["body"] == EVIL
        (result,) = queue.request("r1").results()
        assert json.loads(result.body or b"")["body"] == EVIL


def test_log_lines_are_one_line_each(alone: Program):
    """A message with a newline does not look like two, and a traceback has no escapes."""
    code = (
        "import logging; from fairlane.cli.log import log_to_stderr; log_to_stderr();"
        f"log = logging.getLogger('fairlane.x'); log.warning('%s', {EVIL!r})\n"
        f"try: raise ValueError({EVIL!r})\n"
        "except ValueError: log.exception('failed')\n"
    )
    words = [alone.words()[0], "-c", code]
    done = subprocess.run(words, capture_output=True, check=True, env=alone.env)
    said = done.stderr.decode()
    assert COMMANDING.findall(said) == []
    assert said.startswith(r"fairlane: \x1b]0;owned")
    ours = [line for line in said.splitlines() if line.startswith("fairlane: ")]
    assert [line.partition(" ")[2][:4] for line in ours] == [r"\x1b", "fail"]
    assert "\n  ValueError: " in said


@pytest.mark.parametrize("text", ["Straße 東京 \U0001f468‍\U0001f469 a b", "", "a\\b 'c'"])
def test_harmless_text_is_not_escaped(text: str):
    """Letters of all scripts, emoji that are joined, spaces that do not break."""
    assert terminal.printable(text) == text
    assert json.loads(terminal.as_json(text)) == text
    assert text.replace("\\", "\\\\") in terminal.as_json(text)


def test_every_character_that_commands_is_escaped():
    """It checks them one by one, in text and in JSON; nothing else is escaped."""
    for number in range(0x3000):
        one = chr(number)
        shown = terminal.printable(one)
        assert (shown != one) == bool(COMMANDING.match(one) or one == "\n"), hex(number)
        assert not COMMANDING.search(shown + terminal.as_json(one))
        assert json.loads(terminal.as_json(one)) == one
