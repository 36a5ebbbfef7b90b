"""Tests what a request's hash keeps of failed attempts: a count, and the last bounded text."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.scripts.requests import toks

if TYPE_CHECKING:
    from tests.support.scripts.requests import Lane


def test_a_failed_attempt_is_counted_with_its_text(lane: Lane):
    held = lane.begin(1, attempts=3)
    lane.later(50)
    lane.complete(held, others=[(held.ids[0], "retry", 1_000)])
    assert lane.number("failures") == 1
    assert lane.hash()["failure"] == f"{lane.now} 0:x:1:0:0 why retry"


def test_a_completion_that_comes_twice_counts_a_failed_attempt_once(lane: Lane):
    held = lane.begin(1, attempts=3)
    others = [(held.ids[0], "retry", 0)]
    assert lane.complete(held, others=others)[0] == b"ok"
    assert lane.complete(held, others=others)[0] == b"already"
    assert lane.number("failures") == 1


def test_a_sub_request_that_is_named_twice_has_failed_once(lane: Lane):
    held = lane.begin(1, attempts=3)
    lane.complete(held, others=[(held.ids[0], "retry", 0), (held.ids[0], "dead", 0)])
    assert lane.number("failures") == 1
    assert lane.hash()["failure"].endswith("why retry")


def test_a_sub_request_that_is_named_twice_and_released_first_has_not_failed(lane: Lane):
    held = lane.begin(1, attempts=3)
    lane.complete(held, others=[(held.ids[0], "release", 0), (held.ids[0], "retry", 0)])
    assert not {"failures", "failure"} & set(lane.hash())


def test_every_failed_attempt_counts_and_the_last_one_is_kept(lane: Lane):
    held = lane.begin(3, limit=1, attempts=1)
    verdicts = zip(held.ids, ("retry", "timeout", "dead"), strict=True)
    lane.complete(held, others=[(one, word, 0) for one, word in verdicts])
    assert lane.number("failures") == 3
    assert lane.hash()["failure"].endswith(" 2:x:1:0:0 why dead")


def test_success_and_what_is_given_back_leave_no_trace_of_failure(lane: Lane):
    held = lane.begin(2, limit=1)
    lane.complete(held, done=held.ids[:1], others=[(held.ids[1], "release", 0)])
    assert not {"failures", "failure"} & set(lane.hash())


def test_the_reason_of_a_release_is_kept_and_is_no_failure(lane: Lane):
    held = lane.begin(2, limit=1)
    lane.complete(held, done=held.ids[:1], others=[(held.ids[1], "release", 0)], reason="no task")
    assert lane.number("failures") == 0
    assert lane.hash()["failure"] == f"{lane.now} 1:g:1:0:0 no task"


def test_the_text_of_a_failure_is_bounded(lane: Lane):
    held = lane.begin(1)
    text = "a" * 1_000 + "b" * 5_000 + "c" * 700
    row = [held.ids[0], "retry", 0, b"0:x:1:0:0", text]
    lane.complete(held, done=[], verdicts=row)
    kept = lane.hash()["failure"].split(" ", 2)[2]
    assert kept == "a" * 768 + "\n[...]\n" + "b" * 68 + "c" * 700


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ("", "the worker died or let its lease expire"),
        ("signal 9 (SIGKILL)", "the process of the handler ended by signal 9 (SIGKILL)"),
    ],
)
def test_a_death_is_a_failed_attempt_with_the_exit_of_its_process(lane: Lane, how: str, text: str):
    (token,) = lane.start(1, attempts=2)
    for attempt in (1, 2):
        held = lane.take(token)
        reply = lane.reap(worker="w:1", started="7", k=held.k, fence=held.fence, how=how)
        assert lane.number("failures") == attempt
        assert lane.hash()["failure"] == f"{lane.now} 0:x:{attempt}:0:0 {text}"
        if attempt == 1:
            (token,) = toks(reply[2])
    (dead,) = lane.dead()
    assert (dead["reason"], dead["error"]) == ("died", text)


def test_a_death_that_charges_no_sub_request_is_no_failed_attempt(lane: Lane):
    held = lane.begin(3, limit=1)
    lane.reap(worker="w:1", started="7", k=held.k, fence=held.fence, how="exit 7")
    assert "failures" not in lane.hash()
