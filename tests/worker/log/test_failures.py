"""Tests the worker's log of failed attempts: the first of a kind whole, later ones counted."""

from __future__ import annotations

import logging
import os
import threading
from typing import TYPE_CHECKING, Any

import pytest

from fairlane.cli.log import StderrHandler
from fairlane.common import clock
from fairlane.worker import Reject, Retry, Worker
from fairlane.worker.calls import Runner
from fairlane.worker.handlers import shape_of
from fairlane.worker.log import Failures
from fairlane.worker.measures import Metrics
from tests.worker.parts import ON_SINGLE, record_of_its_own, slice_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fairlane.queue import Queue

NAMES = ("apple", "pear", "plum", "fig", "lime", "date", "kiwi", "nut", "bean", "pea", "rye", "oat")


@pytest.fixture
def made() -> Iterator[Failures]:
    """Makes a log of failures."""
    made = Failures()
    yield made
    made.close()


@pytest.fixture
def work(made: Failures) -> Callable[..., None]:
    """Calls a handler for each body of a slice, also if the slice takes longer than planned."""

    def run(handler: Callable[[bytes], Any], *bodies: bytes, **terms: Any) -> None:
        runner, position = Runner(shape_of(handler), record_of_its_own(), made), 0
        taken = slice_of(*bodies, **terms)
        while position < len(bodies):
            position = runner.run_slice(taken, position).position

    return run


def fail(body: bytes) -> bytes:
    raise ValueError(f"bad port {body!r}")


def fail_each_its_way(body: bytes) -> bytes:
    raise ValueError(body.decode())


def fill(made: Failures) -> None:
    """Leaves no room in the pipe."""
    while made._write(["other", 0, 0]):
        pass


def text_of(record: logging.LogRecord) -> str:
    return StderrHandler().format(record)


def test_the_first_failure_of_a_kind_is_logged_with_its_traceback(
    made: Failures, work: Any, caplog: pytest.LogCaptureFixture
):
    work(fail, b"x")
    made.look()
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    first, *lines = text_of(record).split("\n")
    assert "sub-request 0 of request r1 failed at attempt 1 of 5, the next is due in " in first
    assert first.endswith(" s: ValueError: bad port b'x'")
    assert lines[0] == "  Traceback (most recent call last):"
    assert 'raise ValueError(f"bad port {body!r}")' in lines[2]
    assert lines[-1] == "  ValueError: bad port b'x'"


@pytest.mark.parametrize("terms", [{"attempt": 5}, {"attempts": 1}])
def test_the_last_attempt_is_logged_as_dead(
    terms: dict[str, int], made: Failures, work: Any, caplog: pytest.LogCaptureFixture
):
    work(fail, b"x", **terms)
    made.look()
    assert ", it is dead: ValueError" in caplog.messages[0]


def test_what_a_handler_rejects_or_asks_again_is_logged_in_one_line(
    made: Failures, work: Any, caplog: pytest.LogCaptureFixture
):
    def ask(_: bytes) -> bytes:
        raise Retry(after=5, reason="the bank is closed")

    def reject(_: bytes) -> bytes:
        raise Reject("no such account")

    work(ask, b"x")
    work(reject, b"x")
    made.look()
    began, at = "sub-request 0 of request r1", "at attempt 1 of 5"
    assert [text_of(record).rpartition("fairlane: ")[2] for record in caplog.records] == [
        f"{began} failed {at}, the next is due in 5.0 s: the bank is closed",
        f"{began} was rejected by the handler {at}, it is dead: no such account",
    ]


def test_later_failures_of_a_kind_are_counted(
    made: Failures, work: Any, caplog: pytest.LogCaptureFixture
):
    work(fail, *[b"%d" % i for i in range(100)])
    work(fail, b"x", attempts=1)
    made.look()
    assert len(caplog.messages) == 1
    made.look(is_last=True)
    counted = "100 more attempts failed and made 1 sub-request dead"
    assert caplog.messages[1:] == [f"{counted}: ValueError: bad port b'0'"]
    made.look(is_last=True)
    assert len(caplog.messages) == 2


def test_counts_are_logged_every_half_minute(
    made: Failures, work: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    work(fail, b"1", b"2")
    now = clock.mono_s()
    monkeypatch.setattr("fairlane.common.clock.mono_s", lambda: now + 29)
    made.look()
    assert len(caplog.messages) == 1
    monkeypatch.setattr("fairlane.common.clock.mono_s", lambda: now + 31)
    made.look()
    assert caplog.messages[1:] == ["1 more attempt failed: ValueError: bad port b'1'"]


def test_many_kinds_do_not_flood_the_log(
    made: Failures, work: Any, caplog: pytest.LogCaptureFixture
):
    work(fail_each_its_way, *[name.encode() for name in NAMES * 2])
    made.look()
    assert len(caplog.messages) == 10
    made.look(is_last=True)
    said = caplog.messages[10:]
    assert len(said) == 11
    assert said[:3] == [
        "2 more attempts failed: ValueError: rye",
        "2 more attempts failed: ValueError: oat",
        "1 more attempt failed: ValueError: apple",
    ]
    assert said[-1] == "2 more attempts failed: failures of other kinds"


def test_a_kind_that_came_when_many_did_is_named_later(
    made: Failures, work: Any, caplog: pytest.LogCaptureFixture
):
    """Its process sends its text once only, so the supervisor keeps the headline."""
    work(fail_each_its_way, *[name.encode() for name in NAMES])
    made.look(is_last=True)
    caplog.clear()
    work(fail_each_its_way, *[NAMES[-1].encode()] * 3)
    made.look(is_last=True)
    assert caplog.messages == ["3 more attempts failed: ValueError: oat"]


def test_a_pipe_that_is_full_stops_no_handler_and_loses_no_count(
    made: Failures, work: Any, caplog: pytest.LogCaptureFixture
):
    work(fail, b"x")
    fill(made)
    work(fail, *[b"x"] * 50)
    made.look()
    work(fail, b"x")
    made.look(is_last=True)
    assert caplog.messages[-1].startswith("51 more attempts failed: ")


def test_what_found_no_room_goes_with_the_next_flush(
    made: Failures, work: Any, caplog: pytest.LogCaptureFixture
):
    """Also the first failure of a kind, with its traceback."""
    work(fail, b"x")
    fill(made)
    work(fail, *[b"x"] * 50)
    work(fail_each_its_way, b"apple", b"apple")
    made.flush()  # there is no room yet
    made.look()
    made.flush()
    made.flush()
    made.look(is_last=True)
    assert [message.partition(" of request")[0] for message in caplog.messages] == [
        "sub-request 0",
        "sub-request 1",
        "50 more attempts failed: ValueError: bad port b'x'",
        "1 more attempt failed: ValueError: apple",
    ]
    assert "in fail_each_its_way" in text_of(caplog.records[1])


def test_a_process_that_ends_waits_for_room(
    made: Failures, work: Any, caplog: pytest.LogCaptureFixture
):
    """The supervisor reads several times a second; but without a reader it does not wait."""
    work(fail, b"x")
    fill(made)
    work(fail, b"x")
    ending = threading.Thread(target=made.flush_last)
    ending.start()
    while ending.is_alive():
        made.look()
        ending.join(0.01)
    made.look(is_last=True)
    assert caplog.messages[-1].startswith("1 more attempt failed: ValueError: bad port")
    fill(made)
    work(fail, b"x")
    made.flush_last()


def test_measures_that_are_looked_at_flush_the_failures(
    made: Failures, work: Any, caplog: pytest.LogCaptureFixture
):
    """A unit does so after each pop, also after one that returned nothing."""
    work(fail, b"x")
    fill(made)
    work(fail, b"x")
    made.look()
    assert Metrics("req", made).due() == []
    made.look(is_last=True)
    assert caplog.messages[-1].startswith("1 more attempt failed: ")


def test_a_long_text_fits_into_one_write(
    made: Failures, work: Any, caplog: pytest.LogCaptureFixture
):
    def shout(_: bytes) -> bytes:
        raise ValueError("\u00e9" * 5000 + "\nthe end")

    work(shout, b"x")
    made.look()
    (record,) = caplog.records
    assert text_of(record).endswith("\n  the end")


@pytest.mark.parametrize("letter", ["x", "\u00e9", "\x00", "\U0001f600"])
def test_a_long_message_is_logged_with_the_type_of_its_error(
    letter: str, made: Failures, work: Any, caplog: pytest.LogCaptureFixture
):
    """Its middle is cut out, also where a character takes many bytes of the line."""

    def shout(_: bytes) -> bytes:
        raise ValueError("no such port: " + letter * 9000)

    work(shout, b"x")
    made.look()
    (record,) = caplog.records
    assert ": ValueError: no such port: " in record.getMessage()
    assert "in shout" in text_of(record)


def test_no_character_of_an_error_commands_a_terminal(
    made: Failures, work: Any, caplog: pytest.LogCaptureFixture
):
    def colour(_: bytes) -> bytes:
        raise ValueError("\x1b[31mred\x1b[0m\nand\x07more")

    work(colour, b"x")
    made.look()
    text = text_of(caplog.records[0])
    assert "\x1b" not in text
    assert "\x07" not in text


def test_success_writes_nothing(made: Failures, work: Any):
    work(bytes.upper, b"x")
    with pytest.raises(BlockingIOError):
        os.read(made._out, 1)


@ON_SINGLE
@pytest.mark.parametrize("is_async", [False, True])
def test_a_worker_logs_why_its_handler_fails(
    is_async: bool, queue: Queue, caplog: pytest.LogCaptureFixture
):
    """One kind is logged once, though each of two processes may have been the first."""

    async def fail_later(body: bytes) -> bytes:
        return fail(body)

    caplog.set_level(logging.INFO)
    request = queue.submit_request([b"a"] * 6, limit=6, attempts=2, backoff=(0.001, 0.002))
    Worker(queue, fail_later if is_async else fail, processes=2).run(until_idle=True)
    said = [message for message in caplog.messages if "ValueError: bad port b'a'" in message]
    assert request.progress().dead == 6
    assert said[0].startswith("sub-request ")
    assert f" of request {request.id} failed at attempt " in said[0]
    counted = "11 more attempts failed and made 6 sub-requests dead"
    assert said[1:] == [f"{counted}: ValueError: bad port b'a'"]
    (last,) = [message for message in caplog.messages if " has stopped: " in message]
    assert last.endswith(" has stopped: 0 sub-requests done, 12 attempts failed, 6 dead")
