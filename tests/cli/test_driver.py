"""Tests what a command prints while Redis is unreachable, and when it answers again."""

from __future__ import annotations

from contextlib import closing

import pytest

from fairlane.cli import driver as command_driver
from fairlane.cli.driver import CommandDriver
from fairlane.cli.exit_status import naming_what_goes_on, wait_for
from fairlane.errors import RedisUnreachable
from fairlane.queue import Queue
from tests.cli.program import Program, finish, next_message, settle
from tests.support.servers.restart import AOF, killed_and_started_again
from tests.support.servers.server_process import free_ports, run_server


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


@pytest.mark.parametrize("word", ["worker", "worker --app mine:app", "serve"])
def test_a_program_that_works_for_long_says_immediately_that_it_waits_for_redis(
    word: str, alone: Program
):
    """It and its Redis may be started together."""
    url = f"redis://127.0.0.1:{free_ports(1)[0]}"
    alone.env["FAIRLANE_REDIS"] = url
    alone.file(b"from fairlane import App\napp = App('a')\n@app.task\ndef f(): ...\n", "mine.py")
    with alone.start(*word.split()) as process:
        line = process.stderr.readline().decode()  # type: ignore[union-attr]
        assert line.startswith(f"fairlane: Redis at {url}")
        assert line.endswith(" does not answer: trying for up to 30 s\n")
        process.kill()


def test_the_wait_for_the_first_contact_ends_with_the_patience(capfd: pytest.CaptureFixture):
    url = f"redis://127.0.0.1:{free_ports(1)[0]}"
    with closing(CommandDriver(url)) as driver:
        driver.patience_s = 0.3
        with pytest.raises(RedisUnreachable) as ended:
            driver.meet()
    assert ended.value.exit_code == 5
    assert capfd.readouterr().err.count("does not answer: trying for up to 0.3 s") == 1
