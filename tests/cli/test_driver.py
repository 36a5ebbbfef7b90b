"""Tests what a command prints while Redis is unreachable, and when it answers again."""

from __future__ import annotations

import re
import signal
from contextlib import closing

import pytest

from fairlane.cli import driver as command_driver
from fairlane.cli.driver import CommandDriver
from fairlane.cli.exit_status import naming_what_goes_on, wait_for
from fairlane.errors import RedisUnreachable
from fairlane.queue import Queue
from tests.cli.program import END_S, NO_SERVER, Program, Running, finish, next_message, settle
from tests.drivers.test_first_contact import Starting
from tests.support.run.for_each import for_each
from tests.support.servers.clusters import run_cluster
from tests.support.servers.restart import AOF, killed_and_started_again
from tests.support.servers.server_process import free_ports, run_server
from tests.support.wait import wait_until


def until_it_waits(running: Running) -> None:
    """Returns when a program says that it waits for Redis."""
    wait_until(
        lambda: "trying for up to 30 s" in running.said(), END_S, why="it says that it waits"
    )


@pytest.mark.server
@pytest.mark.slow
@pytest.mark.parametrize("word", ["wait", pytest.param("results", marks=pytest.mark.rest)])
def test_a_command_prints_one_line_when_redis_goes_and_one_when_it_is_back(
    word: str, alone: Program
):
    options = (*AOF, "always")
    with run_server("single", *options) as server:
        alone.env["FAIRLANE_REDIS"] = server.url
        alone("submit", "-", "--id", "mine", stdin=b"a\n")
        with alone.start(word, "mine") as process:
            assert "active with 0/1 done; no worker" in process.stderr.readline().decode()  # type: ignore[union-attr]
            server.process.kill()
            assert next_message(process, "no worker") == (
                f"fairlane: Redis at {server.url} does not answer: trying for up to 30 s\n"
            )
            with killed_and_started_again(server, options):
                assert next_message(process, "no worker") == "fairlane: Redis answers again\n"
                settle(server.url, lambda _, body: body)
                ended = finish(process)
    assert (ended.code, ended.err) == (0, "")


@pytest.mark.server
def test_an_outage_that_lasts_names_the_command_that_resumes(
    capfd: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(command_driver, "AWAY_S", 0.0)
    with run_server() as server, closing(CommandDriver(server.url)) as driver:
        driver.patience_s = 0.3
        request = Queue(driver).submit_request([b"a"], id="mine")
        server.process.kill()
        server.process.wait()
        expected = r"does not answer: .*; no longer waiting: when Redis answers, fairlane wait mine"
        with pytest.raises(RedisUnreachable, match=expected), naming_what_goes_on("mine"):
            wait_for(request, None)
    assert capfd.readouterr().err == (
        f"fairlane: Redis at {server.url} does not answer: trying for up to 0.3 s\n"
    )


@pytest.mark.rest
@for_each(
    "word",
    [
        *("worker", "worker --app mine:app", "serve", "fanout --in a --out b", "forward --lag"),
        *("submit mine.py", "list", "wait x", "topic list", "topic publish a mine.py"),
        *("balance mine.py --out a", "submit lines --format requests"),
    ],
)
def test_every_command_says_immediately_that_it_waits_for_redis(word: str, alone: Program):
    """It and its Redis may be started together."""
    url = f"redis://127.0.0.1:{free_ports(1)[0]}"
    alone.env["FAIRLANE_REDIS"] = url
    alone.file(b"1:a\n", "lines")
    word = word.replace("--lag", f"--lag --from {url}/0/a")
    alone.file(b"from fairlane import App\napp = App('a')\n@app.task\ndef f(): ...\n", "mine.py")
    running = alone.run(*word.split())
    until_it_waits(running)
    (line,) = running.said().splitlines()
    assert re.fullmatch(rf"fairlane: Redis at {url}(/0)? does not answer: trying for .* 30 s", line)
    running.process.send_signal(signal.SIGINT)
    ended = running.finish()
    assert ended.code == (0 if "fanout --in" in word else 130)  # a signal ends a fan-out as usual
    assert ended.out == b""


def test_the_wait_for_the_first_contact_ends_with_the_patience(capfd: pytest.CaptureFixture):
    url = f"redis://127.0.0.1:{free_ports(1)[0]}"
    with closing(CommandDriver(url)) as driver:
        driver.patience_s = 0.3
        with pytest.raises(RedisUnreachable) as ended:
            driver.greet()
    assert ended.value.exit_code == 5
    assert capfd.readouterr().err.count("does not answer: trying for up to 0.3 s") == 1


def test_the_first_contact_names_what_it_waits_for_and_that_it_has_come(
    capfd: pytest.CaptureFixture,
):
    with closing(Starting()) as server:
        url = f"redis://127.0.0.1:{server.port}"
        with closing(CommandDriver(url)) as driver:
            driver.greet()
    assert capfd.readouterr().err.splitlines() == [
        f"fairlane: Redis at {url} does not answer: trying for up to 30 s",
        "fairlane: Redis answers again",
    ]


def test_doctor_reports_a_redis_that_is_away_instead_of_waiting(alone: Program):
    alone.env["FAIRLANE_REDIS"] = NO_SERVER
    for words in (("doctor",), ("doctor", "--repair")):
        ended = alone(*words)
        ended.refused(5, "does not answer")
        assert "trying" not in ended.err


@pytest.mark.rest
@pytest.mark.slow
@pytest.mark.parametrize("word", ["worker --until-idle", "queue pause"])
def test_what_starts_while_the_one_primary_of_its_queue_is_away_waits_for_it(
    word: str, alone: Program
):
    with run_cluster(3, 0) as cluster:
        url = alone.env["FAIRLANE_REDIS"] = cluster.url
        home = cluster.owner("{req}")
        cluster.kill(home)
        running = alone.run(*word.split())
        line = f"fairlane: Redis at {url} does not answer: trying for up to 30 s"
        until_it_waits(running)
        cluster.restart(home)
        ended = running.finish()
    assert (ended.code, ended.err.count(line)) == (0, 1)
    assert "Redis answers again" in ended.err
