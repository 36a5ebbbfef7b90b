"""Tests the commands of `fairlane spark`: files in, files out, one sentence for each failure."""

from __future__ import annotations

import csv
import io
import json
import logging
import os
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fairlane.cli.program import run
from fairlane.common import clock
from fairlane.errors import InvalidArgument
from fairlane.protocol import keys
from fairlane.queue import Queue
from fairlane.spark.commands.session import hushed, must_be_there, redis_for, spark_session
from fairlane.spark.fleet import KEPT_MS, stop_fleet
from fairlane.spark.spark_session import master_of
from tests.cli.program import NO_SERVER, Ended, Program, settle
from tests.spark.fleet import fleet_handlers as handlers
from tests.spark.processes import having, is_java, skip_without_java, workers_of
from tests.support.processes.workers import is_alive
from tests.support.wait import wait_until

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable

    import redis


ON_ONE_KIND = pytest.mark.parametrize("redis_server", ["single"], indirect=True)
ROOT = Path(__file__).resolve().parents[3]
END_S = 300.0  # Java starts slowly on a machine that is busy
pytestmark = [pytest.mark.timeout(2 * END_S), pytest.mark.slow]
STARTS_JAVA = pytest.mark.spark
LOCAL = ("--master", "local[2]")
UPPER = ("--handler", "tests.spark.fleet.fleet_handlers:upper")


@pytest.fixture
def program(redis_url: str, tmp_path: Path) -> Program:
    return made(tmp_path, redis_url)


@pytest.fixture
def alone(tmp_path: Path) -> Program:
    return made(tmp_path, None)


def made(folder: Path, url: str | None) -> Program:
    skip_without_java()
    program = Program(folder, url)
    program.env["PYTHONPATH"] = os.pathsep.join([program.env["PYTHONPATH"], str(ROOT)])
    return program


def finish(process: subprocess.Popen[bytes]) -> Ended:
    try:
        out, err = process.communicate(timeout=END_S)
    finally:
        process.kill()
    return quiet(Ended(process.returncode, out, err.decode()))


def quiet(ended: Ended) -> Ended:
    """Asserts that stderr has neither a traceback nor messages of Java."""
    assert [line for line in ended.err.splitlines() if not line.startswith("fairlane: ")] == []
    return ended


def refused(ended: Ended, code: int, *words: str) -> None:
    assert (ended.code, ended.out) == (code, b""), ended.err
    last = ended.err.splitlines()[-1]
    assert [word for word in words if word not in last] == []


class Here:
    """Runs `fairlane spark ...` in this process, which has a session already."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, capture: Any) -> None:
        self.folder, self._monkeypatch, self._capture = folder, monkeypatch, capture

    def __call__(self, *words: object) -> Ended:
        self._capture.readouterr()
        self._monkeypatch.setattr(sys, "argv", ["fairlane", "spark", *map(str, words)])
        code = run("fairlane")
        out, err = self._capture.readouterr()
        return quiet(Ended(code, out, err.decode()))

    def file(self, content: bytes, name: str) -> str:
        """Returns a file's path; Java reads it, whose current folder is another."""
        path = self.folder / name
        path.write_bytes(content)
        return str(path)

    def path(self, name: str) -> str:
        return str(self.folder / name)

    def text_of(self, name: str) -> bytes:
        """Returns the content of a folder's parts, in their order."""
        return b"".join(path.read_bytes() for path in sorted((self.folder / name).glob("part-*")))


@pytest.fixture
def here(
    spark: Any,
    redis_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsysbinary: pytest.CaptureFixture[bytes],
) -> Here:
    del spark
    monkeypatch.setenv("FAIRLANE_REDIS", redis_url)
    return Here(tmp_path, monkeypatch, capsysbinary)


# ------------------------------------------------------------------ files in, files out


def one_to_thousand(form: bytes) -> bytes:
    return b"".join(form % i for i in range(1000))


def test_lines_go_in_and_come_out_in_order(here: Here, redis_url: str):
    """A line ends at a newline only."""
    content = b"a\rb\nc\r\n" + one_to_thousand(b"line %d\n")
    ended = here("submit", here.file(content, "lines.txt"), "--id", "r1", "--limit", 2)
    assert (ended.code, ended.out) == (0, b"r1\n"), ended.err
    assert "submitted 1,002 sub-requests in 1 request in" in ended.err
    settle(redis_url, lambda _, body: body.upper())
    out = here.path("out")
    ended = here("collect", "r1", "--out", out, "--format", "text")
    assert (ended.code, ended.out) == (0, f"{out}\n".encode()), ended.err
    assert here.text_of("out") == content.upper()
    refused(here("collect", "r1", "--out", out), 2, "out is there already")


@STARTS_JAVA
@pytest.mark.heavy
@ON_ONE_KIND
def test_a_command_in_a_process_of_its_own_is_quiet(program: Program):
    """Each starts a Java, whose start messages are not shown."""
    program.file(one_to_thousand(b"line %d\n"), "lines.txt")
    ended = finish(program.start("spark", "submit", "lines.txt", "--id", "r1", *LOCAL))
    assert (ended.code, ended.out) == (0, b"r1\n"), ended.err
    process = program.start("spark", "work", *UPPER, "--until-idle", "--json", *LOCAL)
    ended = finish(process)
    assert ended.code == 0, ended.err
    assert sum(json.loads(line)["done"] for line in ended.out.splitlines()) == 1000
    words = ("collect", "r1", "--out", "out", "--format", "text", *LOCAL)
    ended = finish(program.start("spark", *words))
    assert (ended.code, ended.out) == (0, b"out\n"), ended.err
    parts = sorted((program.folder / "out").glob("part-*"))
    assert b"".join(part.read_bytes() for part in parts) == one_to_thousand(b"LINE %d\n")


@STARTS_JAVA
@pytest.mark.heavy
@ON_ONE_KIND
def test_ctrl_c_in_a_process_of_its_own_is_one_sentence(
    program: Program, redis_client: redis.Redis
):
    """It comes while rows are written; no row is visible, and no Java is left."""
    program.file(b"line\n" * 5_000_000, "lines.txt")
    program.env["SPARK_CONF_DIR"] = str(program.folder)
    process = program.start("spark", "submit", "lines.txt", "--id", "r1", *LOCAL)
    wait_until(lambda: redis_client.dbsize() > 1, END_S, why="rows are staged")
    process.send_signal(signal.SIGINT)
    ended = finish(process)
    assert (ended.code, ended.out) == (130, b""), ended.err
    assert ended.err.splitlines()[-1] == "fairlane: interrupted"
    assert not redis_client.exists(keys.request_hash("r1"))
    wait_until(lambda: not having(mark_of(program)), why="nothing of it is left")
    redis_client.flushdb()  # staged rows would be there for a day


@pytest.mark.rest
def test_a_result_of_several_lines_is_no_text(here: Here, redis_url: str):
    source = here.file(b"a\nb\nc\n", "lines.txt")
    assert here("submit", source, "--id", "r1").code == 0
    settle(redis_url, lambda _, body: body + (b"\n!" if body != b"a" else b""))
    out = here.path("out")
    ended = here("collect", "r1", "--out", out, "--format", "text")
    refused(ended, 2, "the result of sub-request 1 has more than one line", "--format json")
    assert here("collect", "r1", "--out", out, "--format", "json").code == 0
    found = [json.loads(line)["result"] for line in here.text_of("out").splitlines()]
    assert found == ["a", "b\n!", "c\n!"]


@pytest.mark.rest
def test_the_same_txn_again_adds_nothing_and_new_rows_are_counted_apart(here: Here, redis_url: str):
    """This works without a request id, too, because a transaction belongs to its request."""
    source = here.file(b"a\nb\nc\n", "lines.txt")
    for words, names in (((), b"t1\n"), (("--id", "r2"), b"r2\n")):
        first = here("submit", source, "--txn", "t1", *words)
        again = here("submit", source, "--txn", "t1", *words)
        assert (first.code, first.out) == (again.code, again.out) == (0, names), again.err
        assert "submitted 3 sub-requests" in first.err
        assert "submitted 0 sub-requests" in again.err
    assert len(settle(redis_url, lambda _, body: body)) == 6
    summaries = []
    for _ in range(2):
        ended = here("submit", source, "--id", "r3", "--open", "--json")
        assert ended.code == 0, ended.err
        summaries.append(json.loads(ended.out))
    assert [(row["sub_requests"], row["added"]) for row in summaries] == [(3, 3), (6, 3)]
    assert "submitted 3 sub-requests in 1 request" in ended.err
    assert ": 6 with the earlier ones" in ended.err


@pytest.mark.rest
def test_a_request_for_each_key_and_a_column_as_body(here: Here, redis_url: str):
    rows = [("a", "x"), ("b", "y"), ("a", "z")]
    text = io.StringIO()
    csv.writer(text).writerows([("key", "text"), *rows])
    source = here.file(text.getvalue().encode(), "rows.csv")
    words = ("submit", source, "--format", "csv", "--request-column", "key", "--body", "text")
    ended = here(*words, "--json", "--priority", 7)
    assert ended.code == 0, ended.err
    assert [json.loads(line) for line in ended.out.splitlines()] == [
        {"id": "a", "sub_requests": 2, "added": 2, "priority": 7, "limit": 3},
        {"id": "b", "sub_requests": 1, "added": 1, "priority": 7, "limit": 3},
    ]
    settled = settle(redis_url, lambda _, body: body)
    assert sorted(settled) == [b"x", b"y", b"z"]


@pytest.mark.rest
def test_whole_rows_and_what_is_not_done(here: Here, redis_url: str):
    lines = (json.dumps({"n": n, "t": f"t{n}"}) for n in range(3))
    source = here.file("\n".join(lines).encode(), "rows.json")
    words = ("submit", source, "--format", "json", "--body-format", "json", "--id", "r1")
    assert here(*words).code == 0
    settled = settle(redis_url, lambda _, body: body, most=2)
    with Queue.from_url(redis_url) as queue:
        queue.request("r1").cancel("enough")
    assert {"n", "t"} == set(json.loads(settled[0]))
    ended = here("collect", "r1", "--out", here.path("o"), "--format", "json", "--json")
    assert ended.code == 1
    summary = json.loads(ended.out)
    assert (summary["sub_requests"], summary["done"], summary["state"]) == (3, 2, "cancelled")
    found = [json.loads(line) for line in here.text_of("o").splitlines()]
    assert [row["index"] for row in found] == [0, 1, 2]
    assert sorted(row["status"] for row in found) == ["cancelled", "done", "done"]


# ------------------------------------------------------------------ fleets and signals


@pytest.mark.rest
def test_a_fleet_works_until_idle_and_reports_its_counts(here: Here, redis_url: str):
    with Queue.from_url(redis_url) as queue:
        request = queue.submit_request(b"a%d" % i for i in range(500))
        ended = here("work", *UPPER, "--until-idle", "--workers", 1, "--json")
        assert ended.code == 0, ended.err
        assert [one.body for one in request.results()] == [b"A%d" % i for i in range(500)]
    (row,) = [json.loads(line) for line in ended.out.splitlines()]
    assert (row["done"], row["failed"], row["ended"]) == (500, 0, "idle")


class Later(threading.Thread):
    """Does something when the fleet works."""

    def __init__(self, client: redis.Redis, what: Callable[[], Any]) -> None:
        super().__init__()
        self.client, self.what = client, what
        self.start()

    def run(self) -> None:
        wait_until(lambda: self.client.zcard(keys.workers("req")), END_S, why="it works")
        self.what()


@pytest.mark.rest
@pytest.mark.parametrize("how", ["signal", "command"])
def test_a_fleet_drains_after_a_signal(
    how: str, here: Here, redis_url: str, redis_client: redis.Redis
):
    def stop() -> None:
        if how == "signal":
            os.kill(os.getpid(), signal.SIGTERM)
        else:
            stop_fleet("fleet", redis=redis_url)

    stopping = Later(redis_client, stop)
    ended = here("work", *UPPER, "--workers", 1, "--max-idle", "never", "--json")
    stopping.join()
    assert ended.code == 0, ended.err
    assert json.loads(ended.out)["ended"] == "stopped"
    assert 0 < redis_client.pttl(keys.fleets("req")) <= KEPT_MS


@pytest.mark.rest
def test_a_second_ctrl_c_ends_a_fleet_that_holds_a_slice(
    here: Here, redis_url: str, redis_client: redis.Redis
):
    """Its handler waits for a gate that stays closed."""
    with Queue.from_url(redis_url) as queue:
        request = queue.submit_request([b"0"], lease=1)

        def interrupt() -> None:
            wait_until(lambda: request.progress().held, END_S, why="it is held")
            os.kill(os.getpid(), signal.SIGINT)
            wait_until(lambda: redis_client.zcard(keys.fleets("req")), END_S, why="it drains")
            os.kill(os.getpid(), signal.SIGINT)

        interrupting = Later(redis_client, interrupt)
        words = ("--handler", "tests.spark.fleet.fleet_handlers:never", "--workers", 1)
        began = clock.mono_s()
        ended = here("work", *words, "--max-idle", "never")
        interrupting.join()
        assert clock.mono_s() - began < 40
        refused(ended, 130, "the fleet was stopped")
        assert "the fleet stops now" in ended.err
        (worker,) = workers_of(redis_client)
        wait_until(lambda: not is_alive(worker), END_S, why="Spark has killed it")
        request.cancel("enough")


@pytest.mark.rest
def test_ctrl_c_in_a_job_is_one_sentence(spark: Any, here: Here):
    """No traceback of the interrupted call is shown; and Spark stays usable."""
    source = here.file(b"a\n", "lines.txt")
    tracker = spark.sparkContext.statusTracker()
    seen: list[Any] = []

    def interrupt() -> None:
        wait_until(lambda: seen or tracker.getActiveStageIds(), END_S, why="a job runs")
        os.kill(os.getpid(), signal.SIGINT)

    interrupting = threading.Thread(target=interrupt)

    def work() -> None:
        with spark_session(None, "test") as session:
            interrupting.start()
            slow = session.range(0, 2, 1, 2).mapInArrow(handlers.slowly, "id long")
            seen.append(slow.collect())

    with pytest.raises(KeyboardInterrupt):
        work()
    interrupting.join()
    assert seen == []
    assert here("submit", source, "--id", "r1").code == 0


@STARTS_JAVA
@pytest.mark.rest
@ON_ONE_KIND
def test_ctrl_c_while_spark_starts_leaves_no_java(program: Program):
    program.file(b"a\n", "lines.txt")
    program.env["SPARK_CONF_DIR"] = str(program.folder)
    process = program.start("spark", "submit", "lines.txt", *LOCAL)
    mark = mark_of(program)
    # Before the exec, the child is a fork: Python loses an interrupt during the fork.
    wait_until(lambda: any(map(is_java, having(mark))), END_S, why="its Java runs")
    process.send_signal(signal.SIGINT)
    ended = finish(process)
    assert (ended.code, ended.out) == (130, b"")
    assert ended.err.splitlines()[-1] == "fairlane: interrupted"
    wait_until(lambda: not having(mark), why="nothing of it is left")


def mark_of(program: Program) -> bytes:
    return f"SPARK_CONF_DIR={program.env['SPARK_CONF_DIR']}".encode()


# ------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("submit no.txt", "there is no such file"),
        ("submit r.txt --limit 0", "limit"),
        ("submit r.txt --priority 100", "priority"),
        ("submit r.txt --id a{b", "request id"),
        ("submit r.txt --id a --request-column b", "--request-column"),
        ("submit r.txt --format xml", "xml"),
        ("collect a{b --out o", "request id"),
        ("work --handler no.such:thing", "no.such"),
        ("work --handler json:loads --max-idle x", "--max-idle"),
    ],
)
def test_a_wrong_argument_is_one_sentence_and_needs_no_spark(words: str, said: str, alone: Program):
    alone.file(b"a\n", "r.txt")
    alone.env["FAIRLANE_REDIS"] = NO_SERVER
    alone.env["JAVA_HOME"] = str(alone.folder)  # a start of Java would be reported
    alone("spark", *words.split()).refused(2, said)


def test_without_java_the_error_names_what_to_install(alone: Program):
    alone.file(b"a\n", "r.txt")
    alone.env |= {"FAIRLANE_REDIS": NO_SERVER, "JAVA_HOME": str(alone.folder)}
    refused(alone("spark", "submit", "r.txt"), 2, "JAVA_HOME")


@pytest.mark.rest
def test_an_unknown_column_is_refused_with_the_existing_ones(here: Here):
    source = here.file(b"a,b\n1,2\n", "r.csv")
    for words in (("--body", "c"), ("--body", "a", "--request-column", "c")):
        ended = here("submit", source, "--format", "csv", *words)
        refused(ended, 2, "r.csv has no such column, it has a, b")
    ended = here("submit", source, "--format", "csv")
    refused(ended, 2, "--body COL", "--body-format json", "r.csv has a, b")


@pytest.mark.rest
def test_under_spark_submit_the_error_names_the_master_that_must_reach_redis(
    spark: Any, monkeypatch: pytest.MonkeyPatch
):
    """Only this machine reaches the embedded server."""
    monkeypatch.delenv("FAIRLANE_REDIS", raising=False)
    assert master_of(None) == "local[*]"
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")  # as spark-submit does
    java = spark._jvm.java.lang.System
    before = java.getProperty("spark.master")
    java.setProperty("spark.master", "spark://far:7077")
    try:
        with pytest.raises(InvalidArgument, match="a Redis that spark://far:7077 can reach"):
            redis_for(None, None)
        assert redis_for(None, NO_SERVER) == NO_SERVER
        must_be_there("no.txt", None)  # it may be a file of theirs
    finally:
        if before is None:
            java.clearProperty("spark.master")
        else:
            java.setProperty("spark.master", before)


@ON_ONE_KIND
def test_a_missing_request_is_exit_3_and_no_redis_exit_5(program: Program):
    program("spark", "collect", "absent", "--out", "o").refused(3, "absent")
    program.env["FAIRLANE_REDIS"] = NO_SERVER
    program("spark", "collect", "r1", "--out", "o", *LOCAL).refused(5, "127.0.0.1:1")


def test_a_file_or_a_pattern_that_matches_nothing_is_refused_before_spark_starts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a1.txt").touch()
    for there in ("a1.txt", "a*.txt", "a?.txt", "a[0-9].txt", "b[0-9].txt", "s3a://bucket/*"):
        must_be_there(there, "local[2]")  # Spark checks a set of characters
    with pytest.raises(InvalidArgument, match="there is no such file or folder"):
        must_be_there("b1.txt", "local[2]")
    with pytest.raises(InvalidArgument, match=r"b\*.txt cannot be read: no file or folder matches"):
        must_be_there("b*.txt", "local[2]")


def test_the_group_names_its_commands_without_spark(alone: Program):
    said = alone("spark", "--help").out.decode()
    for name in ("submit", "work", "stop", "collect"):
        assert f"\n  {name} " in said
        assert alone("spark", name, "--help").code == 0


def test_warnings_of_fairlane_are_lines_of_the_command(capfd: pytest.CaptureFixture[str]):
    """It does so only while it runs: the level of a program's logger is restored."""
    ours, logger = logging.getLogger("fairlane"), logging.getLogger("fairlane.spark")
    before = ours.level, list(ours.handlers)
    with hushed():
        logger.warning("txn monday: 0 of 3 rows were added")
        logger.info("txn monday: 3 of 3 rows were added")
        logging.getLogger("py4j").error("a traceback")
    assert capfd.readouterr().err == "fairlane: txn monday: 0 of 3 rows were added\n"
    assert (ours.level, list(ours.handlers)) == before
