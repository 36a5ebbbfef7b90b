"""Tests `fairlane status` of a queue and of a request, and `fairlane cancel`."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from fairlane.protocol import keys
from tests.cli.program import Dead, Program, begin_submission, hold, settle

if TYPE_CHECKING:
    import redis


@pytest.mark.parametrize(("words", "submits"), [((), "FILE"), (("--queue", "q"), "FILE --queue q")])
def test_an_empty_queue_is_one_line_that_names_the_next_command(
    words: tuple[str, ...], submits: str, program: Program
):
    ended = program("status", *words)
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.decode() == (
        f"queue {words[-1] if words else 'req'} is empty: nothing was submitted to it yet, or none "
        f"of it is left; rq-submit {submits} submits to it, and --queue NAME shows another queue\n"
    )
    assert json.loads(program("status", *words, "--json").out)["requests"] == []


def register(redis_client: redis.Redis, *names: str, queue: str = "req", age_ms: int = 0) -> None:
    """Registers workers of a queue whose last heartbeat is so old."""
    seconds, _ = redis_client.time()
    beaten = int(seconds) * 1000 - age_ms
    redis_client.zadd(keys.workers(queue), dict.fromkeys(names, beaten))


@pytest.mark.parametrize("has", ["worker", "bound", "ended request"])
def test_a_queue_with_more_to_show_has_its_rows(has: str, program: Program, redis_client: Any):
    if has == "worker":
        register(redis_client, "host:1")
    elif has == "bound":
        program("queue", "set", "--max-waiting", "10")
    else:
        program("submit", "-")
    said = program("status").out.decode().splitlines()
    assert said[0].split() == ["queue", "req"]
    assert "requests  none" in said
    assert "tokens    none" in said


def test_a_request_that_no_worker_serves_is_reported_as_such(program: Program, redis_client: Any):
    program("submit", "-", "--id", "mine", "--queue", "lonely", stdin=b"a\n")
    row = (
        "workers   no worker takes from queue lonely: "
        "start one with rq-worker --app module:app, or --handler module:function --queue lonely"
    )
    assert row in program("status", "mine").out.decode().splitlines()
    register(redis_client, "host:1", queue="lonely")
    assert "no worker" not in program("status", "mine").out.decode()
    program("pause", "mine")
    row = "paused    fairlane resume mine lets it go on"
    assert row in program("status", "mine").out.decode().splitlines()


def test_a_retention_of_zero_is_shown_as_no_results(program: Program):
    program("submit", "-", "--id", "mine", "--retain", "0s", stdin=b"a\n")
    policy = "policy    5 attempts, backoff 1s..5m, lease 30s, results not kept"
    assert policy in program("status", "mine").out.decode().splitlines()


def test_a_queue_at_a_glance(program: Program, redis_url: str):
    program("submit", "-", "--id", "early", "--priority", 0, stdin=b"a\nb\n")
    program("submit", "-", "--id", "late", "--limit", 1, stdin=b"a\n")
    hold(redis_url)
    said = program("status").out.decode()
    assert "requests  2 active" in said
    assert "waiting   2; nothing works on them now\n          1 in lane 0, 1 in lane 5\n" in said
    assert "tokens    0: 1 token, 5: 1 token" in said
    rows = [line.split() for line in said.splitlines()[-2:]]
    assert rows == [
        ["early", "active", "0", "0", "0", "2", "1/3"],
        ["late", "active", "5", "0", "0", "1", "0/1"],
    ]
    found = json.loads(program("status", "--json").out)
    assert found["lanes"] == {"0": 1, "5": 1}
    assert found["states"] == {"active": 2}
    assert [request["id"] for request in found["requests"]] == ["early", "late"]


def test_a_request_whose_producer_still_submits_is_listed_as_submitting(
    program: Program, redis_url: str
):
    begin_submission(redis_url)
    said = program("status").out.decode()
    assert "requests  1 submitting\n" in said
    assert said.splitlines()[-1].split()[:2] == ["mine", "submitting"]
    assert "state     submitting\n" in program("status", "mine").out.decode()
    found = json.loads(program("status", "--json").out)
    assert (found["states"], found["requests"][0]["is_open"]) == ({"active": 1}, True)
    program("pause", "mine")
    assert "requests  1 paused\n" in program("status").out.decode()
    assert "state     paused (still being submitted)\n" in program("status", "mine").out.decode()


def test_another_queue_is_shown_by_its_name(program: Program):
    program("submit", "-", "--queue", "slow", stdin=b"a\n")
    assert b"queue req is empty" in program("status").out
    assert b"requests  1 active" in program("status", "--queue", "slow").out


@pytest.mark.rest
def test_urgent_requests_are_listed_before_many_others(program: Program):
    program("submit", "-", "--format", "requests", "--priority", 7, stdin=b"1:a\n" * 1_100)
    program("submit", "-", "--format", "requests", "--priority", 0, stdin=b"1:a\n" * 21)
    said = program("status").out.decode().splitlines()
    assert "requests  1,000 active, and 121 more" in said
    assert said[-1].endswith(" more (--json shows them)")
    rows = [line.split() for line in said[said.index("") + 2 : -1]]
    assert {(row[1], row[2]) for row in rows} == {("active", "0")}
    assert len(rows) == 20
    others = len(json.loads(program("status", "--json").out)["requests"]) - 20
    assert said[-1] == f"... and {others:,} more (--json shows them)"


def test_tokens_of_a_cancelled_request_are_no_demand(program: Program):
    program("submit", "-", "--id", "mine", "--limit", 12, stdin=b"a\n" * 12)
    program("cancel", "mine")
    said = program("status").out.decode()
    assert "tokens    none\n" in said
    assert "stale     12 tokens are left over: workers discard them\n" in said
    found = json.loads(program("status", "--json").out)
    assert (found["lanes"], found["stale"]) == ({}, 12)


def test_workers_are_listed_with_the_age_of_their_last_beat(
    program: Program, redis_client: redis.Redis
):
    register(redis_client, "late:1", age_ms=9_500)
    register(redis_client, "gone:1", age_ms=90_000)
    said = program("status").out.decode()
    assert re.search(r"\nworkers   late:1, no beat for (9|1\d)s: stopped or dead\n", said)
    assert "gone:1" not in said
    register(redis_client, "fresh:1", age_ms=-60_000)
    lines = program("status").out.decode().splitlines()
    assert "workers   fresh:1, beat 0 ms ago" in lines
    assert re.fullmatch(r" {10}late:1, no beat for \d+s: stopped or dead", lines[6])
    assert json.loads(program("status", "--json").out)["workers"] == ["fresh:1"]


def test_no_more_than_twenty_workers_are_listed(program: Program, redis_client: redis.Redis):
    register(redis_client, *(f"w:{number}" for number in range(23)), age_ms=-60_000)
    said = program("status").out.decode()
    assert said.count(", beat 0 ms ago") == 20
    assert "          and 3 more (--json shows them)\n" in said


def test_a_request_that_failed_names_the_next_command(program: Program, redis_url: str):
    def die(_: int, __: bytes) -> bytes:
        raise Dead("it cannot be")

    program("submit", "-", "--id", "mine", stdin=b"a\nb\n")
    settle(redis_url, die)
    said = program("status", "mine").out.decode()
    assert "state     failed, 2 of 2 dead: fairlane dead list mine\n" in said


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
    assert found["lease_ms"] == 30_000


@pytest.mark.parametrize(
    ("reason", "shown"),
    [("changed my mind", "changed my mind"), ("\udcff and \u00fc", "\ufffd and \u00fc")],
    ids=["text", "bytes that are no text"],
)
def test_an_ended_request_reports_why(reason: str, shown: str, program: Program):
    program("submit", "-", "--id", "mine", stdin=b"a\n")
    assert program("cancel", "mine", "--reason", reason).out == b"cancelled\n"
    said = program("status", "mine").out.decode()
    assert f"state     cancelled: {shown}\n" in said
    assert "ended " in said


def test_cancel_reports_what_it_did(program: Program, redis_url: str):
    program("submit", "-", "--id", "held", stdin=b"a\n")
    hold(redis_url)
    ended = program("cancel", "held")
    assert (ended.code, ended.out) == (0, b"cancelling\n")
    assert "request held waits for what runs under 1 permit, of " in ended.err
    assert "ends it 30 s after" in ended.err
    program("submit", "-", "--id", "free", stdin=b"a\n")
    found = json.loads(program("cancel", "free", "--json").out)
    assert (found["state"], found["cancelled"]) == ("cancelled", 1)
    again = program("cancel", "free")
    assert (again.code, again.out) == (0, b"cancelled\n")
    assert "had ended before" in again.err
