"""Tests `fairlane dead list`, `requeue` and `drop` on dead sub-requests."""

from __future__ import annotations

import base64
import json
import re
from typing import TYPE_CHECKING, NoReturn

import pytest

from fairlane.cli.commands.dead import _ended
from fairlane.operations.workers import register_worker
from fairlane.queue import Queue
from fairlane.records import DeadSubRequest
from fairlane.worker import Reject, Worker
from tests.cli.program import NO_SERVER, Dead, settle
from tests.support.run.for_each import for_each

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.cli.program import Program

RAISED = 'Traceback (most recent call last):\n  File "/own/port.py", line 7, in go\n{}\n'


def refuse(_: int, body: bytes) -> NoReturn:
    if body == b"other":
        raise Dead("no such \x1b[31mhost")
    raise Dead(RAISED.format(f"ValueError: bad port {body!r}"))


def fail_or_reject(body: bytes) -> NoReturn:
    if body == b"1":
        raise ValueError(f"bad port {body!r}")
    raise Reject("no such host")


@pytest.fixture
def dead(program: Program, redis_url: str) -> Callable[[bytes], None]:
    """Returns a call that makes a request `mine` of these lines, all of them dead."""

    def make(lines: bytes) -> None:
        program("submit", "-", "--id", "mine", stdin=lines)
        settle(redis_url, refuse)

    return make


def listed(program: Program, *words: str) -> list[dict]:
    ended = program("dead", "list", *words, "--json")
    assert ended.code == 0
    return [json.loads(line) for line in ended.out.splitlines()]


def test_a_request_without_dead_sub_requests_has_none_to_list_or_requeue(program: Program):
    ended = program("dead", "list")
    assert (ended.code, ended.out) == (0, b"")
    assert ended.err == (
        "fairlane: no request of queue req has dead sub-requests; "
        "dead list ID and --queue NAME show others\n"
    )
    program("submit", "-", "--id", "mine", stdin=b"a\n")
    for words in ((), ("--each",), ("--json",)):
        ended = program("dead", "list", "mine", *words)
        assert (ended.code, ended.out) == (0, b"")
        assert ended.err == "fairlane: request mine has no dead sub-requests\n"
    ended = program("dead", "requeue", "mine", "--all")
    assert (ended.code, ended.out) == (0, b"0\n")
    assert ended.err == "fairlane: request mine has no dead sub-requests\n"
    found = json.loads(program("dead", "requeue", "mine", "--all", "--json").out)
    assert (found["id"], found["requeued"]) == ("mine", 0)
    assert program("dead", "drop", "mine", "--all").out == b"0\n"


def test_a_queues_requests_with_dead_ones(dead: Callable, program: Program):
    dead(b"1\n2\nother\n")
    assert program("dead", "list").out == b"mine  failed  3 kept: 3 rejected\n"
    (row,) = listed(program)
    assert (row["id"], row["state"], row["outcome"]) == ("mine", "done", "failed")
    assert (row["dead"], row["kept"], row["reasons"]) == (3, 3, {"rejected": 3})
    assert listed(program, "--queue", "slow") == []


def test_failures_alike_are_listed_once(dead: Callable, program: Program):
    dead(b"1\nother\n22\n3\n4\n5\n6\n")
    said = program("dead", "list", "mine").out.decode().splitlines()
    assert re.fullmatch(r"[0-9a-f]{10}  6 dead \(rejected\): ValueError: bad port b'1'", said[0])
    assert re.fullmatch(
        r" {12}port.py:7 go; index 0, 2, 3, 4, 5, ...; first .* ago, last .* ago", said[1]
    )
    assert re.fullmatch(
        r"[0-9a-f]{10}  1 dead \(rejected\): no such \\x1b\[31mhost", said[2]
    )  # a control character is shown, not sent
    assert re.fullmatch(r" {12}index 1; .* ago", said[3])
    first, second = listed(program, "mine")
    assert (first["count"], first["where"], first["indexes"]) == (
        6,
        "port.py:7 go",
        [0, 2, 3, 4, 5],
    )
    assert (second["headline"], second["where"]) == ("no such \x1b[31mhost", None)


def test_each_one_with_its_body(dead: Callable, program: Program):
    dead(b"1\n\xff\x00\n" + b"x" * 300 + b"\n")
    said = program("dead", "list", "mine", "--each").out.decode().splitlines()
    assert said[0].startswith("0  ")
    assert said[0].endswith("rejected at attempt 1: ValueError: bad port b'1'  <- 1")
    assert said[1].endswith(r"<- \xff\x00")
    assert said[2].endswith("<- " + "x" * 57 + "...")
    one, two, _ = listed(program, "mine", "--each")
    assert (one["index"], one["attempt"], one["body"]) == (0, 1, "1")
    assert one["error"].startswith("Traceback")
    assert base64.b64decode(two["body_base64"]) == b"\xff\x00"


def test_the_reason_of_a_death_is_a_phrase(program: Program, redis_url: str):
    """JSON has the word that is stored."""
    program(
        "submit", "-", "--id", "mine", "--attempts", "3", "--backoff", "1ms..1ms", stdin=b"1\n2\n"
    )
    with Queue.from_url(redis_url, name="req") as queue:
        Worker(queue, fail_or_reject).run(until_idle=True)
    line = b"mine  failed  2 kept: 1 failed every attempt, 1 rejected\n"
    assert program("dead", "list").out == line
    groups = program("dead", "list", "mine").out.decode()
    assert "  1 dead (failed every attempt): ValueError: bad port b'1'\n" in groups
    first, second = program("dead", "list", "mine", "--each").out.decode().splitlines()
    assert "  failed 3 of 3 attempts: ValueError: bad port b'1'  <- 1" in first + second
    assert "  rejected at attempt 1: no" in first + second
    assert listed(program)[0]["reasons"] == {"attempts": 1, "rejected": 1}
    for reason, attempt, words in (
        ("attempts", 1, "failed 1 of 1 attempt"),
        ("timeout", 2, "timed out at attempt 2"),
        ("died", 2, "died at attempt 2 on w:1"),
        ("deadline", 0, "past the deadline"),
    ):
        assert _ended(DeadSubRequest(0, attempt, reason, "why", "w:1", b"", "1-0")) == words


def test_requeued_after_the_end_they_run_again_in_their_own_request(
    dead: Callable, program: Program, redis_url: str
):
    dead(b"1\n2\nother\n")
    ended = program("dead", "requeue", "mine", "--index", 0, "--index", 2)
    assert (ended.code, ended.out) == (0, b"2\n")
    assert ended.err == (
        "fairlane: 2 sub-requests will run again in request mine: index 0, 2; it had ended, and is "
        "open again: fairlane wait mine\n"
    )
    assert "reopened  2 dead requeued, " in program("status", "mine").out.decode()
    assert settle(redis_url, lambda _, body: body) == [b"1", b"other"]
    assert program("wait", "mine").code == 1
    (left,) = listed(program, "mine")
    found = json.loads(
        program("dead", "requeue", "mine", "--fingerprint", left["fingerprint"], "--json").out
    )
    assert found == {"id": "mine", "requeued": 1, "indexes": [1]}
    assert settle(redis_url, lambda _, body: body) == [b"2"]
    assert program("wait", "mine").code == 0
    assert program("results", "mine").out == b"1\n2\nother\n"
    assert "state     done, repaired\n" in program("status", "mine").out.decode()


def test_all_that_is_requeued_is_not_dead_any_more(dead: Callable, program: Program):
    dead(b"1\n2\nother\n")
    program("dead", "requeue", "mine", "--all")
    assert "0 done, 0 dead, 0 cancelled, 3 left of 3" in program("status", "mine").out.decode()
    assert program("dead", "list").out == b""
    again = program("dead", "requeue", "mine", "--all")
    assert (again.code, again.out) == (0, b"0\n")
    assert again.err == "fairlane: request mine has no dead sub-requests\n"


def test_some_dead_dropped_after_the_end_are_counted(dead: Callable, program: Program):
    dead(b"1\n2\nother\n")
    program("dead", "drop", "mine", "--index", 0)
    said = program("status", "mine").out.decode()
    assert "3 of 3 dead: 1 dropped since; the others: fairlane dead list mine\n" in said
    listed = program("dead", "list", "mine")
    assert b"1 dead (rejected): no such" in listed.out
    assert listed.err == (
        "fairlane: request mine: 3 of 3 dead, 1 dropped since\n"
        "fairlane: to run them again: fairlane dead requeue mine --all\n"
    )
    program("dead", "drop", "mine", "--all")
    ended = program("dead", "requeue", "mine", "--all")
    assert (ended.code, ended.out) == (0, b"0\n")
    assert ended.err.endswith("no dead sub-requests left: 3 of 3 dead, all dropped since\n")


def test_more_than_twenty_requeued_are_not_all_named(dead: Callable, program: Program):
    dead(b"other\n" * 23)
    ended = program("dead", "requeue", "mine", "--all")
    assert f"index {', '.join(map(str, range(20)))} and 3 more; it had ended" in ended.err


def test_requeued_before_the_end_they_run_in_their_own(program: Program, redis_url: str):
    program("submit", "-", "--id", "mine", "--limit", 1, stdin=b"1\n2\n3\n")
    settle(redis_url, refuse, most=1)
    ended = program("dead", "requeue", "mine", "--all")
    assert (ended.code, ended.out) == (0, b"1\n")
    assert ended.err == "fairlane: 1 sub-request will run again in request mine: index 0\n"
    assert sorted(settle(redis_url, lambda _, body: body)) == [b"1", b"2", b"3"]
    assert program("results", "mine").out == b"1\n2\n3\n"


def test_dropped_ones_are_forgotten_and_still_counted(dead: Callable, program: Program):
    dead(b"1\n2\nother\n")
    assert program("dead", "drop", "mine", "--index", 1).out == b"1\n"
    found = json.loads(program("dead", "drop", "mine", "--all", "--json").out)
    assert found == {"id": "mine", "dropped": 2}
    assert program("dead", "list", "mine").out == b""
    assert json.loads(program("status", "mine", "--json").out)["dead"] == 3


@for_each("name", ["requeue", "drop"])
@for_each(
    "words, said",
    [
        ((), "none is chosen: give --all, or --index I, or some of --fingerprint, --task"),
        (("--all", "--index", "1"), "two kinds of choice: give --all, or --index I, or"),
        (("--fingerprint", "0123456789", "--index", "1"), "two kinds of choice"),
        (("--fingerprint", "xyz"), "fingerprint 'xyz' is not valid"),
        (("--index", "-1"), "index -1 is not valid"),
        (("--index", "one"), "not a valid integer"),
    ],
)
def test_a_choice_that_is_not_one_is_refused(
    name: str, words: tuple[str, ...], said: str, program: Program
):
    program("dead", name, "mine", *words, "--redis", NO_SERVER).refused(2, said)


def test_an_id_that_is_missing_unknown_or_not_valid_is_refused(program: Program):
    for words in (("list", "mien"), ("requeue", "mien", "--all"), ("drop", "mien", "--all")):
        program("dead", *words).refused(3, "there is no request mien")
    program("dead", "list", "m{e").refused(2, "request id 'm{e' is not valid")
    program("dead", "list", "--each", "--redis", NO_SERVER).refused(2, "--each needs the ID")


@pytest.mark.parametrize("name", ["requeue", "drop"])
def test_an_index_or_fingerprint_that_is_not_dead_is_named(
    name: str, dead: Callable, program: Program
):
    dead(b"1\n")
    program("dead", name, "mine", "--index", 0, "--index", 9).refused(3, "with index 9")
    program("dead", name, "mine", "--fingerprint", "0123456789").refused(3, "0123456789")
    assert len(listed(program, "mine", "--each")) == 1


def test_the_dead_are_listed_and_chosen_by_task_error_and_time(program: Program, redis_url: str):
    call = b'[1,"send_mail",{"to":"ann"}]\n'
    program("submit", "-", "--id", "mail", "--task", "send_mail", stdin=call)
    program("submit", "-", "--id", "line", stdin=b"a\n")

    def fail(_: int, __: bytes) -> NoReturn:
        raise Dead("it cannot be")

    settle(redis_url, fail)
    for words in (("--task", "send_mail"), ("--task", "send_mail", "--error", "CANNOT")):
        (row,) = program("dead", "list", *words).out.decode().splitlines()
        assert re.fullmatch(r"mail  failed  1 kept: 1 rejected  send_mail", row)
    assert b'send_mail(to="ann"); ' in program("dead", "list", "mail").out
    assert b'<- send_mail(to="ann")\n' in program("dead", "list", "mail", "--each").out
    assert b"send_mail; in 1 request" in program("errors", "--task", "send_mail").out
    none = program("dead", "list", "--until", "1h")
    assert (none.out, "no request of queue req has such dead" in none.err) == (b"", True)
    counted = program("dead", "requeue", "--task", "send_mail", "--since", "1h", "--json")
    assert json.loads(counted.out)["dead"] == 1
    assert program("dead", "requeue", "--task", "send_mail", "--since", "1h", "--yes").code == 0
    assert program("dead", "drop", "--error", "nothing like it", "--yes").code == 3
    assert [line.split()[0] for line in program("dead", "list").out.splitlines()] == [b"line"]
    for wrong in ("soon", "relese", "yesterday", "0", "", "10 minutes"):
        program("dead", "list", "--since", wrong).refused(
            2, f"since '{wrong}' is not valid: give how long ago, such as 10m, or a time with a",
            "or `release`: since the newest release of your code",
        )  # fmt: skip
    for way in ("list", "requeue"):
        none = program("dead", way, "line", "--task", "send_mail")
        assert none.err.endswith("request line has no such dead sub-requests\n")


def test_the_newest_release_is_that_of_the_queue_of_the_request(program: Program, redis_url: str):
    program("submit", "-", "--id", "mine", "--queue", "shop", "--attempts", "1", stdin=b"a\n")
    for words in (
        ("list", "mine"), ("requeue", "mine"), ("drop", "mine"), ("list", "--queue", "shop"),
        ("requeue", "--queue", "shop", "--yes"), ("drop", "--queue", "shop", "--yes"),
    ):  # fmt: skip
        program("dead", *words, "--since", "release").refused(2, "queue shop has no release: name")
    with Queue.from_url(redis_url) as queue:
        queue.driver.run(register_worker("shop", "w:1", "here", 1, "1", "1.0"))
    with Queue.from_url(redis_url, name="shop") as queue:
        queue.take(1)[0].dead("no")
        queue.driver.run(register_worker("req", "w:2", "here", 1, "1", "2.0"))
    assert len(listed(program, "mine", "--since", "release")) == 1
    assert program("dead", "requeue", "mine", "--since", "release").out == b"1\n"
