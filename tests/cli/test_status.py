"""Looking at a queue and at a request, and cancelling one."""

from __future__ import annotations

import json

import pytest

from fairlane.cli.pace import ago
from tests.cli.program import ON_ONE_KIND, Program, hold, settle

on_one_kind = ON_ONE_KIND


@on_one_kind
def test_an_empty_queue(program: Program):
    ended = program("status")
    assert (ended.code, ended.err) == (0, "")
    said = ended.out.decode().splitlines()
    assert said[0].split() == ["queue", "req"]
    assert "requests  none" in said
    assert "lanes     empty" in said


@on_one_kind
def test_a_queue_at_a_glance(program: Program, redis_url: str):
    program("submit", "-", "--id", "early", "--priority", 0, stdin=b"a\nb\n")
    program("submit", "-", "--id", "late", "--limit", 1, stdin=b"a\n")
    hold(redis_url)
    said = program("status").out.decode()
    assert "requests  2 active" in said
    assert "lanes     0: 1 token, 5: 1 token" in said
    rows = [line.split() for line in said.splitlines()[-2:]]
    assert rows == [
        ["early", "active", "0", "0", "0", "2", "1/3"],
        ["late", "active", "5", "0", "0", "1", "0/1"],
    ]
    found = json.loads(program("status", "--json").out)
    assert found["lanes"] == {"0": 1, "5": 1}
    assert found["states"] == {"active": 2}
    assert [request["id"] for request in found["requests"]] == ["early", "late"]


@on_one_kind
def test_another_queue(program: Program):
    program("submit", "-", "--queue", "slow", stdin=b"a\n")
    assert b"requests  none" in program("status").out
    assert b"requests  1 active" in program("status", "--queue", "slow").out


@on_one_kind
def test_many_requests_are_not_all_listed(program: Program):
    lines = b"1:a\n" * 25
    program("submit", "-", "--format", "requests", stdin=lines)
    assert program("status").out.endswith(b"... and 5 more (--json shows them)\n")
    assert len(json.loads(program("status", "--json").out)["requests"]) == 25


@on_one_kind
def test_one_request_in_detail(program: Program, redis_url: str):
    program("submit", "-", "--id", "mine", "--priority", 7, stdin=b"a\nb\nc\n")
    settle(redis_url, lambda _, body: body, most=1)
    hold(redis_url)
    said = program("status", "mine").out.decode()
    assert "state     active\n" in said
    assert "queue     req, priority 7\n" in said
    assert "counts    1 done, 0 dead, 0 cancelled, 2 left of 3\n" in said
    assert "permits   1 held of 3\n" in said
    assert "host:1 holds permit " in said
    assert "5 attempts, backoff 1s..5m, lease 30s, results kept 1d\n" in said
    found = json.loads(program("status", "mine", "--json").out)
    assert [found[name] for name in ("state", "done", "left", "held")] == ["active", 1, 2, 1]
    assert [row["worker"] for row in found["holders"]] == ["host:1"]
    assert found["policy"]["lease_ms"] == 30_000
    assert 0 <= found["age_ms"] < 60_000


@on_one_kind
def test_an_ended_request_says_why(program: Program):
    program("submit", "-", "--id", "mine", stdin=b"a\n")
    program("cancel", "mine", "--reason", "changed my mind")
    said = program("status", "mine").out.decode()
    assert "state     cancelled: changed my mind\n" in said
    assert "ended " in said


@on_one_kind
def test_a_reason_may_be_any_bytes(program: Program):
    program("submit", "-", "--id", "mine", stdin=b"a\n")
    assert program("cancel", "mine", "--reason", "\udcff and \u00fc").out == b"cancelled\n"
    assert "cancelled: \ufffd and \u00fc" in program("status", "mine").out.decode()


@on_one_kind
def test_cancel_says_what_it_did(program: Program, redis_url: str):
    program("submit", "-", "--id", "held", stdin=b"a\n")
    hold(redis_url)
    ended = program("cancel", "held")
    assert (ended.code, ended.out, ended.err) == (0, b"cancelling\n", "")
    program("submit", "-", "--id", "free", stdin=b"a\n")
    found = json.loads(program("cancel", "free", "--json").out)
    assert (found["state"], found["cancelled"]) == ("cancelled", 1)
    again = program("cancel", "free")
    assert (again.code, again.out) == (0, b"cancelled\n")
    assert "had ended before" in again.err


@pytest.mark.parametrize(
    ("ms", "said"),
    [(0, "0 ms"), (999, "999 ms"), (1_000, "1s"), (90_000, "1m 30s"), (300_000, "5m"),
     (86_400_000, "1d"), (90_061_000, "1d 1h"), (86_405_000, "1d")],
)  # fmt: skip
def test_durations_for_people(ms: int, said: str):
    assert ago(ms) == said
