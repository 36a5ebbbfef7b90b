"""Tests submissions under an id in use: the other request is kept, replaced, or debounced."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fairlane import InvalidArgument, RequestExists
from fairlane.operations import create
from tests.support.operations.lost_replies import Forgetful, settle, take
from tests.support.run.for_each import for_each

if TYPE_CHECKING:
    from fairlane import Queue
    from tests.support.scripts.requests import Lane


def test_keep_submits_nothing_while_the_other_one_runs(queue: Queue):
    first = queue.submit_request(["a", "b"], id="report", on_duplicate="keep")
    again = queue.submit_request(["c"], id="report", on_duplicate="keep")
    assert (again.id, again.total) == ("report", 2)
    assert first.progress().total == 2


def test_keep_submits_anew_after_the_end(queue: Queue):
    queue.submit_request(["a"], id="report", on_duplicate="keep").cancel()
    queue.submit_request(["c", "d"], id="report", on_duplicate="keep")
    assert queue.request("report").progress().total == 2
    assert queue.request("report").state() == "active"


def test_what_began_within_the_window_is_kept_after_its_end(queue: Queue):
    queue.submit_request([], id="report", on_duplicate="keep", window=60)
    assert queue.request("report").state() == "done"
    again = queue.submit_request(["c"], id="report", on_duplicate="keep", window=60)
    assert again.total == 0
    assert queue.submit_request(["c"], id="report", on_duplicate="keep").total == 1


def test_replace_cancels_what_runs(queue: Queue):
    queue.submit_request(["a", "b"], id="report", on_duplicate="replace", window=60)
    queue.submit_request(["c"], id="report", on_duplicate="replace", window=60)
    assert queue.request("report").progress().total == 1
    assert queue.request("report").state() == "active"


def test_a_debounced_request_begins_its_delay_anew_with_the_last_content(queue: Queue):
    given: dict[str, Any] = {"id": "report", "on_duplicate": "debounce", "delay": "1h"}
    queue.submit_request(["a", "b"], **given)
    first = queue.request("report").progress()
    queue.submit_request(["c"], **given)
    found = queue.request("report").progress()
    assert (found.total, found.state) == (1, "active")
    assert (found.opens_ms or 0) >= (first.opens_ms or 0) > 0


def test_a_request_of_which_an_attempt_failed_is_not_put_off(lane: Lane, queue: Queue):
    given: dict[str, Any] = {"id": "report", "on_duplicate": "debounce", "delay": 0.001}
    queue.submit_request(["a", "b"], **given)
    held = take(Forgetful(queue.driver, lane.client))
    settle(Forgetful(queue.driver, lane.client), held, verdict="retry")
    assert queue.submit_request(["c"], **given).total == 2


@for_each("how", [{"on_duplicate": "keep"}, {"on_duplicate": "replace"}])
def test_what_is_being_cancelled_is_never_kept(
    lane: Lane, queue: Queue, how: Any, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(create, "_PAUSES_S", (0.001,))
    queue.submit_request(["a", "b"], id="report", **how)
    held = take(Forgetful(queue.driver, lane.client))
    assert not queue.request("report").cancel()
    with pytest.raises(RequestExists, match="workers or programs still hold a part of it"):
        queue.submit_request(["c"], id="report", **how)
    settle(Forgetful(queue.driver, lane.client), held)
    assert queue.submit_request(["c"], id="report", **how).total == 1


@for_each("submit", ["submit_request", "submit_chunks", "open"])
def test_without_an_id_there_is_no_other_request(queue: Queue, submit: str):
    given: list[Any] = [] if submit == "open" else [["a"]]
    with pytest.raises(InvalidArgument, match="on_duplicate needs an id"):
        getattr(queue, submit)(*given, on_duplicate="keep")


def test_many_requests_keep_those_that_are_there(queue: Queue):
    queue.submit_many([["a"], ["b"]], ids=["r1", "r2"], on_duplicate="keep")
    found = queue.submit_many([["x", "y"], ["z", "z"]], ids=["r2", "r3"], on_duplicate="keep")
    assert [(one.id, one.total) for one in found] == [("r2", 1), ("r3", 2)]


def test_other_content_is_still_refused_without_the_option(queue: Queue):
    queue.submit_request(["a"], id="report", on_duplicate="keep")
    with pytest.raises(RequestExists, match="exists with other content"):
        queue.submit_request(["b"], id="report")


@for_each(
    "wrong, sentence",
    [
        ({"on_duplicate": "drop"}, "on_duplicate 'drop' is not valid: write keep, repl"),
        ({"window": 5}, "window needs on_duplicate"),
        ({"on_duplicate": "keep", "window": 7_200, "retain": 3_600}, "is longer than"),
        ({"on_duplicate": "keep", "window": -1}, "window -1 s is not valid"),
        ({"on_duplicate": "debounce"}, "debounce needs a delay"),
    ],
)
def test_bad_options_are_refused_before_anything_is_written(
    queue: Queue, redis_client: Any, wrong: dict[str, Any], sentence: str
):
    with pytest.raises(InvalidArgument, match=sentence):
        queue.submit_request(["a"], id="report", **wrong)
    assert redis_client.dbsize() == 0
