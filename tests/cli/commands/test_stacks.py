"""Tests `fairlane stacks` and `fairlane kill` against a worker that only answers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from fairlane.queue import Queue
from tests.support.processes.answers import answering, call_of
from tests.support.processes.beats import beat, make_older

if TYPE_CHECKING:
    from collections.abc import Iterator

    import redis

    from tests.cli.program import Program


@pytest.fixture
def held(redis_url: str, program: Program) -> Iterator[Queue]:
    """Yields a queue whose request `mine` is held by the worker w:1."""
    with Queue.from_url(redis_url) as queue:
        queue.submit_request([b"x"] * 9, id="mine")
        with Queue.from_url(redis_url) as taker:
            from fairlane.operations.lease import acquire
            from fairlane.operations.tokens import parse, pop

            popped = taker.driver.run(_taken(pop("req", 10)))
            token = parse(popped.tokens[0])
            assert token is not None
            taker.driver.run(acquire(token, "w:1", "7", 1))
        yield queue


async def _taken(step: Any) -> Any:
    return await step


def test_the_calls_of_a_worker_and_of_a_request_are_listed(program: Program, held: Queue):
    """Each with what is known of it, and the lines of the user's code."""
    row = call_of("mine")
    with answering(held, "w:1", lambda _: {"calls": [row], "more": 2}) as seen:
        for name in ("w:1", "mine"):
            ended = program("stacks", name)
            assert ended.code == 0, ended
            head, line, more = ended.out.decode().splitlines()
            assert head == (
                "mine sub-request 7 (resize(size=3)): for 1m 30s, attempt 1 of 5, worker w:1, "
                "process 41, thread 42"
            )
            assert line == '    File "/app/mine.py", line 7 in resize'
            assert more == "and 2 more calls"
        shown = json.loads(program("stacks", "w:1", "--json").out)
    assert shown["calls"] == [row | {"worker": "w:1"}]
    assert [order.request_id for order in seen] == ["", "mine", ""]


def test_what_cannot_be_asked_is_one_sentence(
    program: Program, held: Queue, redis_client: redis.Redis
):
    """A name that is neither, a bad name, a worker that does not beat, and no calls."""
    ended = program("stacks", "nothing")
    assert ended.code == 3
    assert "queue req has no worker nothing, and there is no request of that id" in ended.err
    assert program("stacks", "a b").code == 2
    beat(held, "w:1")
    make_older(redis_client, held, "w:1", 60_000)
    ended = program("stacks", "mine")
    assert ended.code == 3
    assert b"worker w:1 has not beaten for" in ended.out
    with answering(held, "w:1", lambda _: {"calls": [], "more": 0}):
        ended = program("stacks", "mine")
    assert (ended.code, ended.out) == (0, b"")
    assert "mine runs no call now" in ended.err


def test_a_call_is_ended_with_the_verdict_of_the_option(program: Program, held: Queue):
    """The order names the call that was found; --json has the same facts."""

    def answer(order: Any) -> dict[str, Any]:
        if order.kind == "calls":
            return {"calls": [call_of("mine")], "more": 0}
        return {"ran_ms": 91_000, "others": 0, "ended_process": True}

    with answering(held, "w:1", answer) as seen:
        ended = program("kill", "mine", "--index", 7)
        assert ended.out.decode() == (
            "sub-request 7 of request mine was ended after 1m 31s: attempt 1 of 5 is charged; "
            "process 41 was killed\n"
        )
        assert b"it is dead" in program("kill", "mine", "--index", 7, "--dead").out
        found = json.loads(program("kill", "mine", "--index", 7, "--free", "--json").out)
    assert (found["verdict"], found["ended_process"]) == ("free", True)
    kills = [order for order in seen if order.kind == "kill"]
    assert [order.verdict for order in kills] == ["charge", "dead", "free"]
    assert {(order.index, order.k, order.fence, order.attempt) for order in kills} == {
        (7, "0", "9", 1)
    }


def test_a_call_beside_others_is_ended_only_with_yes(program: Program, held: Queue):
    def answer(order: Any) -> dict[str, Any]:
        if order.kind == "calls":
            return {"calls": [call_of("mine", beside=3)], "more": 0}
        return {"ran_ms": 91_000, "others": 3, "ended_process": True}

    with answering(held, "w:1", answer) as seen:
        refused = program("kill", "mine", "--index", 7)
        assert (refused.code, refused.out) == (2, b"")
        assert "3 other calls in process 41 of worker w:1 may be ended, too" in refused.err
        assert [order.kind for order in seen] == ["calls"]
        assert b"and 3 other calls run again" in program("kill", "mine", "--index", 7, "--yes").out


def test_what_does_not_run_is_refused_in_one_sentence(program: Program, held: Queue):
    """It has just ended, is no sub-request, or another index runs."""
    with answering(held, "w:1", lambda _: {"calls": [call_of("mine")], "problem": "it is over"}):
        for words, code, text in [
            (("mine", "--index", 3), 3, "no worker runs sub-request 3 of request mine now"),
            (("mine", "--index", 7), 3, "it is over"),
            (("mine", "--index", 9), 2, "has 9 sub-requests, from 0: there is no index 9"),
            (("none", "--index", 0), 3, "there is no request none"),
            (("mine",), 2, "--index"),
            (("mine", "--index", "x"), 2, "--index"),
        ]:
            ended = program("kill", *words)
            assert (ended.code, text in ended.err) == (code, True), ended
