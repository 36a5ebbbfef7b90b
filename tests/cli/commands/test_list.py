"""Tests `fairlane list`: its table, pages and filters, and refused input."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from tests.cli.program import NO_SERVER, Dead, hold, settle
from tests.support.run.for_each import for_each

if TYPE_CHECKING:
    from tests.cli.program import Program


def die(_: int, __: bytes) -> bytes:
    raise Dead("it cannot be")


def fill(program: Program, redis_url: str) -> None:
    """Makes a request with a dead sub-request, one that is leased, one that is cancelled."""
    program("submit", "-", "--id", "ill", stdin=b"a\nb\n")
    settle(redis_url, die)
    program("submit", "-", "--id", "held", "--priority", 1, stdin=b"a\n")
    hold(redis_url)
    program("submit", "-", "--id", "off", stdin=b"a\n")
    program("cancel", "off", "--reason", "enough")


def test_a_table_of_running_and_ended_requests(program: Program, redis_url: str):
    fill(program, redis_url)
    ended = program("list")
    assert (ended.code, ended.err) == (0, "")
    head, *rows = ended.out.decode().splitlines()
    assert head.split() == [
        *("REQUEST", "STATE", "PRIORITY", "DONE", "DEAD", "TOTAL", "HELD/LIMIT"),
        *("SUBMITTED", "ENDED"),
    ]
    assert rows[0].split()[:7] == ["held", "active", "1", "0", "0", "1", "1/3"]
    assert rows[1].split()[:6] == ["off", "cancelled", "5", "0", "0", "1"]
    assert rows[2].split()[:6] == ["ill", "failed", "5", "0", "2", "2"]
    assert re.search(r" \d+(s|\d ms) ago +\d+(s|\d* ms) ago$", rows[2])


def test_json_is_one_page_with_its_cursor(program: Program, redis_url: str):
    fill(program, redis_url)
    first = json.loads(program("list", "--limit", 2, "--json").out)
    assert (first["requests"][0]["queue"], [one["id"] for one in first["requests"]]) == (
        "req",
        ["held", "off"],
    )
    held, off = first["requests"]
    assert (held["held"], held["limit"], held["ended_ms"]) == (1, 3, None)
    assert (off["held"], off["limit"], off["reason"]) == (0, None, "enough")
    rest = json.loads(program("list", "--after", first["after"], "--json").out)
    assert ([one["id"] for one in rest["requests"]], rest["after"]) == (["ill"], None)


def test_json_has_the_tags_and_the_tenant_of_running_and_ended_requests(program: Program):
    program(
        "submit", "-", "--id", "on", "--tag", "eu", "--tag", "b", "--tenant", "acme", stdin=b"a"
    )
    program("submit", "-", "--id", "off", "--tag", "eu", "--tenant", "zoo", stdin=b"a")
    program("submit", "-", "--id", "plain", stdin=b"a")
    program("cancel", "off")
    for words in ((), ("--tag", "eu")):
        found = json.loads(program("list", "--json", *words).out)["requests"]
        labels = {one["id"]: (one["tags"], one["tenant"]) for one in found}
        assert labels.pop("plain", ([], None)) == ([], None)
        assert labels == {"on": (["eu", "b"], "acme"), "off": (["eu"], "zoo")}


def test_the_next_page_is_named_as_a_command(program: Program, redis_url: str):
    fill(program, redis_url)
    ended = program("list", "--limit", 1)
    named = re.fullmatch(
        r"fairlane: there may be more: repeat the command with --after (\S+)\n", ended.err
    )
    assert named
    assert b"off" in program("list", "--limit", 1, "--after", named[1]).out


@for_each(
    "words, found",
    [
        (["--state", "running"], ["held"]),
        (["--state", "done", "--state", "cancelled"], ["off", "ill"]),
        (["--priority", "1"], ["held"]),
        (["--id", "o"], ["off"]),
        (["--newer", "1h"], ["held", "off", "ill"]),
        (["--older", "1h"], []),
    ],
)
def test_filters(words: list[str], found: list[str], program: Program, redis_url: str):
    fill(program, redis_url)
    rows = json.loads(program("list", *words, "--json").out)["requests"]
    assert [one["id"] for one in rows] == found


def test_nothing_to_list_is_a_note(program: Program):
    program("submit", "-", stdin=b"a\n")
    ended = program("list", "--state", "ended")
    assert (ended.code, ended.out) == (0, b"")
    assert ended.err == "fairlane: no request of queue req is listed\n"


@for_each(
    "words, sentence",
    [
        (["--state", "actve"], "Invalid value for '--state': 'actve' is not one of 'running'"),
        (["--older", "soon"], "--older: 'soon' is not a duration: write 500ms, 30s, 5m"),
        (["--newer", "0"], "--newer 0 is no time"),
        (["--older", "2h", "--newer", "1h"], "exclude each other"),
        (["--priority", "100"], "priority 100 is not valid"),
        (["--limit", "0"], "'--limit': 0 is not in the range 1<=x<=1000"),
        (["--after", "x"], "cursor 'x' is not valid"),
        (["--id", "a b"], "beginning of an id 'a b' is not valid"),
        (["--queue", "a b"], "queue 'a b' is not valid"),
        (["extra"], "unexpected extra argument"),
    ],
)
def test_bad_input_is_one_sentence(words: list[str], sentence: str, program: Program):
    program("list", *words).refused(2, sentence)


def test_a_cursor_of_another_queue_is_refused(program: Program):
    program("submit", "-", "--format", "requests", "--queue", "mail", stdin=b"1:a\n" * 3)
    page = json.loads(program("list", "--queue", "mail", "--limit", 1, "--json").out)
    program("list", "--after", page["after"]).refused(2, "is of queue mail, not of queue req")


@for_each("name", ["list", "workers", "queues", "completions", "errors x"])
def test_without_a_redis_the_command_reports_that(name: str, alone: Program):
    """The timeout of one second is for a port without a server."""
    alone(*name.split(), "--redis", NO_SERVER).refused(5, "127.0.0.1:1", "does not answer")
