"""Tests commands for many requests: counted first, changed with --yes, and reported."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from fairlane.cli.commands.change import Wish, change_many
from fairlane.errors import RedisUnreachable
from fairlane.operations import change as applying
from fairlane.operations.change import Change
from fairlane.protocol import keys
from tests.cli.commands.test_dead import refuse
from tests.cli.program import NO_SERVER, hold, settle
from tests.support.run.for_each import for_each

if TYPE_CHECKING:
    import redis

    from fairlane.queue import Queue
    from tests.cli.program import Program

COMMANDS = [
    *(("cancel",), ("pause",), ("resume",), ("set", "--limit", "2"), ("delete",)),
    *(("dead", "requeue", "--all"), ("dead", "drop", "--all")),
]
each_command = pytest.mark.parametrize("command", COMMANDS, ids=" ".join)


def submit(queue: Queue, count: int, **options: Any) -> None:
    ids = [f"r{number}" for number in range(1, count + 1)]
    queue.submit_many([[b"x"]] * count, ids=ids, **options)


def test_requests_are_counted_first_and_changed_with_yes(program: Program, queue: Queue):
    submit(queue, 5)
    would = "5 requests would be cancelled: r1, r2, r3 and 2 more; give --yes to do it"
    for _ in range(2):
        ended = program("cancel", "--state", "running")
        assert (ended.code, ended.out, ended.err) == (2, b"", f"fairlane: {would}\n")
    ended = program("cancel", "--state", "running", "--yes", "--reason", "enough")
    assert (ended.code, ended.out, ended.err) == (0, b"5 requests cancelled\n", "")
    assert queue.request("r1").progress().reason == "enough"
    ended = program("cancel", "--state", "running", "--yes")
    assert (ended.code, ended.out) == (3, b"")
    assert "no request of queue req matches: nothing is cancelled" in ended.err


def test_programs_get_json(program: Program, queue: Queue):
    submit(queue, 2)
    found = {"change": "pause", "matched": 2, "ids": ["r1", "r2"]}
    ended = program("pause", "--all", "--json")
    assert (ended.code, json.loads(ended.out)) == (2, found)
    ended = program("pause", "--all", "--json", "--yes")
    assert json.loads(ended.out) == found | {"changed": 2, "ended": 0, "failed": {}}
    ended = program("pause", "--all", "--json", "--yes")
    assert (ended.code, json.loads(ended.out)) == (3, {"change": "pause", "matched": 0, "ids": []})


def test_filters_choose_among_them(program: Program, queue: Queue, redis_client: redis.Redis):
    submit(queue, 2)
    queue.submit_request([b"x"], id="urgent", priority=0)
    redis_client.hset(keys.request_hash("urgent"), mapping={"tags": "a,b", "tenant": "acme"})
    ended = program("set", "--at-priority", "1..9", "--limit", 7, "--deadline", "1h", "--yes")
    assert ended.out == b"2 requests changed\n"
    assert {name: queue.request(name).progress().limit for name in ("r1", "urgent")} == {
        "r1": 7,
        "urgent": 3,
    }
    for words in (["--tag", "a"], ["--tenant", "acme"], ["--priority", "0..4"], ["--id", "urg"]):
        assert "1 request would be cancelled: urgent; " in program("cancel", *words).err
        assert program("list", *words).out.splitlines()[1].startswith(b"urgent ")


def test_several_ids_are_changed_immediately(program: Program, queue: Queue):
    submit(queue, 3)
    assert program("cancel", "r1", "r2").out == b"2 requests cancelled\n"
    ended = program("delete", "r1", "r2", "r3")
    assert (ended.code, ended.out) == (1, b"2 requests deleted; 1 request could not be deleted\n")
    assert ended.err.startswith("fairlane: request r3 has not ended: cancel it first")
    assert program("delete", "r3", "--cancel").out == b"1 request deleted\n"
    program("delete", "r3").refused(3, "there is no request r3")


def test_an_unknown_id_among_several_changes_nothing(program: Program, queue: Queue):
    submit(queue, 2)
    program("cancel", "r1", "typo", "r2").refused(3, "there is no request typo")
    assert queue.request("r1").state() == "active"
    program("cancel", "r1", "r2", "--queue", "other").refused(3, "request r1 is in queue req")


def test_one_that_workers_hold_is_deleted_later(program: Program, redis_url: str):
    program("submit", "-", "--id", "mine", stdin=b"a\nb\n")
    hold(redis_url)
    ended = program("delete", "--all", "--cancel", "--yes")
    assert (ended.code, ended.out) == (1, b"1 request could not be deleted\n")
    assert program("status", "mine").out.splitlines()[1] == b"state     cancelling"


def test_the_dead_of_many_requests_are_requeued(program: Program, queue: Queue, redis_url: str):
    submit(queue, 2, attempts=1)
    settle(redis_url, refuse)
    ended = program("dead", "requeue", "--all")
    assert ended.code == 2
    assert "2 requests with 2 dead sub-requests would be requeued: " in ended.err
    done = program("dead", "requeue", "--all", "--yes").out
    assert done == b"2 requests requeued (2 dead sub-requests)\n"
    program("dead", "requeue", "--index", 0, "--yes").refused(2, "--index needs the ID of one")


def test_the_dead_of_many_requests_are_dropped(program: Program, queue: Queue, redis_url: str):
    submit(queue, 3, attempts=1)
    settle(redis_url, refuse)
    ended = program("dead", "drop", "--all")
    assert (ended.code, ended.out) == (2, b"")
    assert "3 requests with 3 dead sub-requests would be relieved of dead" in ended.err
    assert program("dead", "drop", "r1", "r2", "--all").out.endswith(b" (2 dead sub-requests)\n")
    done = json.loads(program("dead", "drop", "--all", "--yes", "--json").out)
    assert (done["change"], done["matched"], done["dead"]) == ("drop_dead", 1, 1)
    assert program("dead", "list").out == b""
    assert program("dead", "drop", "--all", "--yes").code == 3
    program("dead", "drop", "--index", 0, "--yes").refused(2, "--index needs the ID of one")


def test_a_deadline_is_set_and_taken_away(program: Program, queue: Queue):
    submit(queue, 1)
    assert program("set", "r1", "--deadline", "2h").out == (
        b"limit 3, priority 5, deadline in 2 h\n"
    )
    assert b"deadline  in 1h 59m" in program("status", "r1").out
    assert program("set", "r1", "--deadline", "0s").out == b"limit 3, priority 5, no deadline\n"
    assert queue.request("r1").progress().deadline_ms is None


@each_command
def test_a_command_without_a_choice_is_refused(program: Program, command: tuple[str, ...]):
    if command[0] == "dead":
        program(*command[:2], "--yes").refused(2, "none is chosen: give --all")
    else:
        program(*command, "--yes").refused(2, "no request is chosen: give IDs, or filters")


@each_command
def test_nothing_that_matches_is_reported(program: Program, command: tuple[str, ...]):
    ended = program(*command, "--id", "x", "--yes")
    assert (ended.code, ended.out) == (3, b"")
    assert ended.err.startswith("fairlane: no request of queue req matches: nothing is ")


@for_each(
    "words, problem",
    [
        ("cancel r1 --all", "two ways of choice"),
        ("cancel --state running --all", "two ways of choice"),
        ("cancel --older 0s", "no request is chosen"),
        ("cancel --state runing", "'runing' is not one of"),
        ("cancel --state done", "state done is not valid: only requests in state active"),
        ("cancel --priority 9..5", "--priority 9..5 is not valid: a number from 0 to 99"),
        ("cancel --priority 100", "--priority 100 is not valid"),
        ("cancel --priority high", "--priority high is not valid"),
        ("cancel --priorty 5", "Did you mean --priority?"),
        ("cancel --older soon", "--older: 'soon' is not a duration"),
        ("cancel --older 2h --newer 1h", "exclude each other"),
        ("cancel --tag a,b", "tag 'a,b' is not valid"),
        ("set --all", "there is nothing to set"),
        ("set --all --deadline 400d", "--deadline 400d is not valid"),
        ("set --all --limit 0", "limit 0 is not valid"),
        ("set --at-priority 7..100 --limit 1", "--at-priority 7..100 is not valid"),
        ("delet --all", "Did you mean delete"),
    ],
)
def test_a_typo_is_one_sentence(program: Program, words: str, problem: str):
    program(*words.split()).refused(2, problem)


@each_command
def test_without_a_server_nothing_is_counted(alone: Program, command: tuple[str, ...]):
    alone(*command, "--id", "x", "--yes", "--redis", NO_SERVER).refused(5, "Connection refused")


@pytest.mark.parametrize("error", [KeyboardInterrupt, RedisUnreachable("no answer")])
def test_what_ends_the_command_in_the_middle_reports_how_far_it_came(
    queue: Queue,
    redis_url: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: Any,
):
    submit(queue, 150)
    batches = []

    def cancel(*given: Any) -> Any:
        batches.append(given)
        if len(batches) > 1:
            raise error
        return applying._cancel(*given)

    monkeypatch.setitem(applying._KINDS, "cancel", cancel)
    wish = Wish(redis_url, None, False, (), True, True, {})
    with pytest.raises(error if isinstance(error, type) else type(error)) as raised:
        change_many(Change.cancel(), wish)
    said = f"{raised.value} {capsys.readouterr().err}"
    assert "100 of 150 requests were cancelled, and up to 100 more may be; the same" in said
    assert len(queue.select(Change.cancel(), everything=True)) == 50
