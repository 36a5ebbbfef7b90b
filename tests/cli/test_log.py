"""Tests a worker's log: its level, its form, and the settings of a handler's module."""

from __future__ import annotations

import json
import logging
import sys
from typing import TYPE_CHECKING, Any

import pytest

from fairlane.cli.log import JsonLines, StderrHandler
from tests.cli.program import NO_SERVER

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.cli.program import Program

EVERY = {"time", "level", "logger", "message", "pid"}
FAILED = {"request", "index", "attempt", "attempts", "dead", "next_s", "error"}
FAILING = b"def fail(body):\n    raise ValueError(f'no port for {body!r}')\n"
EXITING = b"import os\ndef leave(body):\n    os._exit(7)\n"


def record_of(message: str, *args: Any, **fields: Any) -> logging.LogRecord:
    given = ("mine", logging.INFO, "", 0, message, args, None)
    return logging.getLogger("mine").makeRecord(*given, extra=fields)


def as_object(record: logging.LogRecord) -> dict[str, Any]:
    line = JsonLines().format(record)
    assert "\n" not in line
    found: dict[str, Any] = json.loads(line)
    return found


@pytest.fixture
def work(program: Program) -> Callable[..., list[str]]:
    """Works off the lines a and b with a handler; returns the lines on stderr."""

    def run(source: bytes, function: str, *words: str, attempts: int = 1) -> list[str]:
        program.file(source, "mine.py")
        program("submit", "-", "--id", "r1", "--attempts", str(attempts), stdin=b"a\nb\n")
        given = ("--handler", f"mine:{function}", "--until-idle", *words)
        ended = program("worker", *given)
        assert ended.code == 0, ended.err
        return ended.err.splitlines()

    return run


def test_a_record_is_one_object_with_the_fields_of_its_caller():
    found = as_object(record_of("took %d ms\nin all", 3, user="ada", path=sys.stderr, at={"x": 1}))
    assert found.keys() >= EVERY
    assert found["message"] == "took 3 ms\nin all"
    assert (found["level"], found["logger"]) == ("info", "mine")
    assert (found["user"], found["at"], found["path"]) == ("ada", {"x": 1}, repr(sys.stderr))
    assert found["time"].endswith("Z")


def test_a_field_of_the_caller_does_not_replace_ours():
    found = as_object(record_of("hello", level="high", time=float("nan"), share=float("inf")))
    assert (found["level"], found["share"]) == ("info", "inf")
    assert found["time"].endswith("Z")


def test_an_exception_is_a_field():
    try:
        _ = 1 / 0
    except ZeroDivisionError:
        record = logging.getLogger("mine").makeRecord(
            "mine", logging.ERROR, "", 0, "failed", (), sys.exc_info()
        )
    assert as_object(record)["traceback"].endswith("\nZeroDivisionError: division by zero")


@pytest.mark.parametrize("formatter", [None, JsonLines()], ids=["text", "json"])
def test_a_wrong_log_call_does_not_fail_its_caller(
    formatter: logging.Formatter | None, capsys: pytest.CaptureFixture[str]
):
    StderrHandler(formatter).handle(record_of("%d pieces", "no number"))
    assert "--- Logging error ---" in capsys.readouterr().err


@pytest.mark.rest
def test_each_line_of_a_worker_is_an_object(work: Any):
    """So are the note about what it does, and the lines of a handler's own logger."""
    source = (
        b"import logging\n"
        b"def note(body):\n"
        b"    logging.getLogger('mine').info('x', extra={'n': 1})\n"
    )
    found = [json.loads(line) for line in work(source, "note", "--log-format", "json")]
    assert all(one.keys() >= EVERY for one in found)
    assert [one["n"] for one in found if one["logger"] == "mine"] == [1, 1]
    assert {one["logger"] for one in found} <= {"mine", "fairlane.worker", "fairlane.cli"}


@pytest.mark.rest
def test_a_failed_attempt_has_fields_with_stable_names(work: Any):
    lines = work(FAILING, "fail", "--log-format", "json", attempts=1)
    (first, *later) = [one for line in lines if "error" in (one := json.loads(line))]
    assert FAILED | EVERY | {"traceback"} == first.keys()
    assert (first["request"], first["attempt"], first["attempts"]) == ("r1", 1, 1)
    assert (first["dead"], first["next_s"]) == (True, None)
    assert first["error"].startswith("ValueError: no port for ")
    assert "in fail\n" in first["traceback"]
    (counted,) = later
    assert counted.keys() == EVERY | {"failed", "died", "error"}
    assert (counted["failed"], counted["died"]) == (1, 1)


@pytest.mark.rest
def test_at_debug_every_failure_is_logged_with_its_traceback(work: Any):
    lines = work(FAILING, "fail", "--log-format", "json", "--log-level", "debug")
    found = [one for line in lines if "traceback" in (one := json.loads(line))]
    assert [(one["index"], one["level"]) for one in found] == [(0, "warning"), (1, "debug")]


def test_an_error_that_ends_a_worker_is_an_object_of_its_level(alone: Program):
    """It is logged at every level."""
    words = ("--redis", NO_SERVER, "--log-format", "json", "--log-level", "error")
    ended = alone("worker", *words)
    (line,) = map(json.loads, ended.err.splitlines())
    assert (ended.code, line["level"], line["logger"]) == (5, "error", "fairlane.cli")
    assert "does not answer" in line["message"]


@pytest.mark.rest
def test_a_level_hides_what_is_less_important(work: Any):
    lines = work(FAILING, "fail", "--log-level", "error")
    assert lines == []


@pytest.mark.rest
def test_a_process_that_ends_is_logged_with_how_it_ended(work: Any, program: Program):
    lines = work(EXITING, "leave", "--log-format", "json", "--slice", "0")
    found = [one for line in lines if "ended" in (one := json.loads(line))]
    assert {(one["request"], one["index"], one["ended"], one["dead"]) for one in found} == {
        ("r1", 0, "exit 7", True),
        ("r1", 1, "exit 7", True),
    }
    listed = program("dead", "list", "r1")
    assert b"exit 7" in listed.out
    (group,) = map(json.loads, program("dead", "list", "r1", "--json").out.splitlines())
    assert "exit 7" in group["headline"]
    each = map(json.loads, program("dead", "list", "r1", "--each", "--json").out.splitlines())
    assert all("exit 7" in one["error"] for one in each)


@pytest.mark.rest
def test_a_handlers_module_may_configure_logging_with_dict_config(work: Any):
    """That disables the loggers that it does not name: ours are enabled again."""
    source = (
        b"import logging.config\n"
        b"logging.config.dictConfig({'version': 1,\n"
        b"  'formatters': {'f': {'format': 'mine says %(message)s'}},\n"
        b"  'handlers': {'h': {'class': 'logging.StreamHandler', 'formatter': 'f'}},\n"
        b"  'root': {'level': 'INFO', 'handlers': ['h']}})\n"
        b"def note(body):\n"
        b"    logging.info('hello')\n"
    )
    lines = work(source, "note")
    assert lines.count("mine says hello") == 2
    assert [line for line in lines if line.startswith("fairlane: worker ")] != []
    assert [line for line in lines if line.startswith("mine says worker ")] == []


@pytest.mark.rest
def test_a_level_and_a_logger_that_a_program_configured_stay(work: Any):
    source = (
        b"import logging\n"
        b"logging.getLogger().setLevel('ERROR')\n"
        b"ours = logging.getLogger('fairlane')\n"
        b"ours.addHandler(logging.StreamHandler())\n"
        b"ours.handlers[0].setFormatter(logging.Formatter('theirs: %(message)s'))\n"
        b"ours.setLevel('INFO')\n"
        b"ours.propagate = False\n"
        b"def note(body):\n"
        b"    logging.info('hidden')\n"
        b"    logging.error('shown')\n"
    )
    lines = work(source, "note")
    assert [line for line in lines if "hidden" in line] == []
    assert len([line for line in lines if line.endswith(" ERROR root: shown")]) == 2
    assert [line for line in lines if line.startswith("fairlane: ")] == []
    assert lines[0].startswith("theirs: worker ")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--log-level", "loud"), "'loud' is not one of 'debug', 'info', 'warning', 'error'"),
        (("--log-format", "xml"), "'xml' is not one of 'text', 'json'"),
    ],
)
def test_another_level_or_form_is_refused(words: tuple[str, ...], sentence: str, alone: Program):
    alone("worker", *words).refused(2, sentence)
