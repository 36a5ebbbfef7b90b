"""`fairlane spark ...` as a person calls it: files in, files out, one sentence for what fails."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fairlane import keys
from fairlane.errors import SparkMissing
from fairlane.queue import Queue
from fairlane.spark import need
from tests.cli.program import NOBODY, Ended, Program, settle
from tests.support.wait import wait_until

if TYPE_CHECKING:
    import subprocess

    import redis

ON_ONE_KIND = pytest.mark.parametrize("redis_server", ["single"], indirect=True)
ROOT = Path(__file__).resolve().parents[2]
END_S = 300.0  # Java starts slowly on a machine that is busy
pytestmark = pytest.mark.timeout(2 * END_S)
LOCAL = ("--master", "local[2]")


@pytest.fixture
def program(redis_url: str, tmp_path: Path) -> Program:
    return made(tmp_path, redis_url)


@pytest.fixture
def alone(tmp_path: Path) -> Program:
    return made(tmp_path, None)


def made(folder: Path, url: str | None) -> Program:
    try:
        need.need_spark()
        need.need_java()
    except SparkMissing as missing:
        pytest.skip(str(missing))
    program = Program(folder, url)
    program.env["PYTHONPATH"] = os.pathsep.join([program.env["PYTHONPATH"], str(ROOT)])
    return program


def call(program: Program, *words: object) -> Ended:
    return finish(program.start("spark", *words))


def finish(process: subprocess.Popen[bytes]) -> Ended:
    try:
        out, err = process.communicate(timeout=END_S)
    finally:
        process.kill()
    ended = Ended(process.returncode, out, err.decode())
    # Nobody is shown a traceback, nor what Java says of itself.
    assert [line for line in ended.err.splitlines() if not line.startswith("fairlane: ")] == []
    return ended


def refused(ended: Ended, code: int, *words: str) -> None:
    assert ended.code == code, ended.err
    assert ended.out == b""
    last = ended.err.splitlines()[-1]
    for word in words:
        assert word in last


@ON_ONE_KIND
def test_lines_go_in_and_come_out_in_order(program: Program, redis_url: str):
    program.file(b"".join(b"line %d\n" % i for i in range(1000)), "lines.txt")
    ended = call(program, "submit", "lines.txt", "--id", "r1", "--limit", 2, *LOCAL)
    assert (ended.code, ended.out) == (0, b"r1\n"), ended.err
    assert "1,000 sub-requests" in ended.err
    settle(redis_url, lambda _, body: body.upper())
    ended = call(program, "collect", "r1", "--out", "out", "--format", "text", *LOCAL)
    assert (ended.code, ended.out) == (0, b"out\n"), ended.err
    parts = sorted((program.folder / "out").glob("part-*"))
    written = b"".join(part.read_bytes() for part in parts)
    assert written == b"".join(b"LINE %d\n" % i for i in range(1000))
    refused(call(program, "collect", "r1", "--out", "out", *LOCAL), 2, "out is there already")


@ON_ONE_KIND
def test_a_request_for_each_key_and_a_column_as_body(program: Program, redis_url: str):
    rows = [("a", "x"), ("b", "y"), ("a", "z")]
    text = io.StringIO()
    csv.writer(text).writerows([("who", "what"), *rows])
    program.file(text.getvalue().encode(), "rows.csv")
    words = ("submit", "rows.csv", "--format", "csv", "--key", "who", "--body", "what")
    ended = call(program, *words, "--json", "--priority", 7, *LOCAL)
    assert ended.code == 0, ended.err
    told = [json.loads(line) for line in ended.out.splitlines()]
    assert told == [
        {"id": "a", "sub_requests": 2, "priority": 7, "limit": 3},
        {"id": "b", "sub_requests": 1, "priority": 7, "limit": 3},
    ]
    settled = settle(redis_url, lambda _, body: body)
    assert sorted(settled) == [b"x", b"y", b"z"]


@ON_ONE_KIND
def test_whole_rows_and_what_is_not_done(program: Program, redis_url: str):
    lines = (json.dumps({"n": n, "t": f"t{n}"}) for n in range(3))
    program.file("\n".join(lines).encode(), "rows.json")
    words = ("submit", "rows.json", "--format", "json", "--body-format", "json", "--id", "r1")
    assert call(program, *words, *LOCAL).code == 0
    settled = settle(redis_url, lambda _, body: body, most=2)
    with Queue.from_url(redis_url) as queue:
        queue.request("r1").cancel("enough")
    assert {"n", "t"} == set(json.loads(settled[0]))
    ended = call(program, "collect", "r1", "--out", "o", "--format", "json", "--json", *LOCAL)
    assert ended.code == 1
    summary = json.loads(ended.out)
    assert (summary["sub_requests"], summary["done"], summary["state"]) == (3, 2, "cancelled")
    parts = sorted((program.folder / "o").glob("part-*"))
    found = [json.loads(line) for part in parts for line in part.read_text().splitlines()]
    assert [row["index"] for row in found] == [0, 1, 2]
    assert sorted(row["status"] for row in found) == ["cancelled", "done", "done"]


@ON_ONE_KIND
def test_a_fleet_works_until_idle_and_says_what_it_did(program: Program, redis_url: str):
    with Queue.from_url(redis_url) as queue:
        request = queue.submit_request(b"a%d" % i for i in range(500))
        words = ("--handler", "tests.spark.fleet_handlers:upper", "--until-idle", "--workers", 1)
        ended = call(program, "work", *words, "--json", *LOCAL)
        assert ended.code == 0, ended.err
        assert [one.body for one in request.results()] == [b"A%d" % i for i in range(500)]
    (row,) = [json.loads(line) for line in ended.out.splitlines()]
    assert (row["done"], row["failed"], row["ended"]) == (500, 0, "idle")


@ON_ONE_KIND
@pytest.mark.parametrize("how", ["signal", "command"])
def test_a_fleet_drains_when_it_is_told(
    how: str, program: Program, redis_url: str, redis_client: redis.Redis
):
    words = ("--handler", "tests.spark.fleet_handlers:upper", "--workers", 1)
    process = program.start("spark", "work", *words, "--max-idle", "never", "--json", *LOCAL)
    wait_until(lambda: redis_client.zcard(keys.workers("req")), END_S, why="it works")
    if how == "signal":
        process.send_signal(signal.SIGTERM)
    else:
        ended = call(program, "stop", "fleet")
        assert (ended.code, ended.out) == (0, b"")
    ended = finish(process)
    assert ended.code == 0, ended.err
    assert json.loads(ended.out)["ended"] == "stopped"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("submit", "no.txt"), 2, "there is no such file"),
        (("submit", "r.txt", "--limit", 0), 2, "limit"),
        (("submit", "r.txt", "--priority", 100), 2, "priority"),
        (("submit", "r.txt", "--id", "a b"), 2, "request id"),
        (("submit", "r.txt", "--id", "a", "--key", "b"), 2, "--key"),
        (("submit", "r.txt", "--format", "xml"), 2, "xml"),
        (("collect", "a b", "--out", "o"), 2, "request id"),
        (("work", "--handler", "no.such:thing"), 2, "no.such"),
        (("work", "--handler", "json:loads", "--max-idle", "x"), 2, "--max-idle"),
        (("report", "no", "--out", "o"), 2, "there is no such file"),
        (("report", "r.txt", "--out", "o", "--targets", "x:5s"), 2, "priority"),
        (("report", "r.txt", "--out", "o", "--since", "soon"), 2, "soon"),
    ],
)
def test_what_is_wrong_is_one_sentence_and_needs_no_spark(
    words: tuple, code: int, said: str, alone: Program
):
    alone.file(b"a\n", "r.txt")
    alone.env["FAIRLANE_REDIS"] = NOBODY
    alone.env["JAVA_HOME"] = str(alone.folder)  # whoever starts Java says so
    alone("spark", *words).refused(code, said)


def test_without_java_it_says_what_to_install(alone: Program):
    alone.file(b"a\n", "r.txt")
    alone.env["FAIRLANE_REDIS"] = NOBODY
    alone.env["JAVA_HOME"] = str(alone.folder)
    refused(alone("spark", "submit", "r.txt"), 2, "JAVA_HOME")


@ON_ONE_KIND
def test_a_column_that_is_not_there_names_those_that_are(program: Program):
    program.file(b"a,b\n1,2\n", "r.csv")
    for words in (("--body", "c"), ("--body", "a", "--key", "c")):
        ended = call(program, "submit", "r.csv", "--format", "csv", *words, *LOCAL)
        refused(ended, 2, "r.csv has no such column, it has a, b")
    ended = call(program, "submit", "r.csv", "--format", "csv", *LOCAL)
    refused(ended, 2, "--body COL", "--body-format json", "r.csv has a, b")


@ON_ONE_KIND
def test_a_request_that_is_not_there_is_exit_3(program: Program):
    refused(call(program, "collect", "nobody", "--out", "o"), 3, "nobody")


def test_no_redis_is_exit_5(alone: Program):
    alone.env["FAIRLANE_REDIS"] = NOBODY
    refused(call(alone, "collect", "r1", "--out", "o", *LOCAL), 5, "127.0.0.1:1")


def test_the_group_names_its_commands_without_spark(alone: Program):
    said = alone("spark", "--help").out.decode()
    for name in ("submit", "work", "stop", "collect", "archive", "report"):
        assert f"\n  {name} " in said
        assert alone("spark", name, "--help").code == 0
