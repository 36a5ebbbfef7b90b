"""Tests that requests are shown and found by the tasks that they call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from fairlane import Change
from fairlane.errors import InvalidArgument
from fairlane.operations.call_words import SHORT, call_words
from fairlane.protocol import keys
from tests.operations.find.test_failures import fail
from tests.support.run.for_each import for_each
from tests.support.scripts.requests import work_off

if TYPE_CHECKING:
    import redis

    from fairlane.queue import Queue


def body(task: str, **arguments: Any) -> bytes:
    return msgspec.json.encode((1, task, arguments))


@for_each(
    "arguments, words",
    [
        ({}, "t()"),
        ({"to": "ann", "size": 3, "ok": True, "no": None}, 't(to="ann", size=3, ok=true, no=null)'),
        ({"a": [1, 2.5, {"b": "c"}]}, 't(a=[1, 2.5, {b: "c"}])'),
        ({"a": [[[[1]]]]}, "t(a=[[[[…]]]])"),
        ({"a": list(range(9))}, "t(a=[0, 1, 2, 3, 4, …])"),
        ({"a": "x" * 50}, 't(a="' + "x" * 37 + '…")'),
    ],
)
def test_a_call_has_a_short_form(arguments: Any, words: str):
    assert call_words(msgspec.json.encode((1, "t", arguments)), ()) == words
    assert call_words(msgspec.msgpack.encode((1, "t", arguments)), ()) == words


def test_a_short_form_is_bounded_and_needs_no_whole_body():
    long = body("t", **{f"a{number}": "y" * 30 for number in range(99)})
    assert len(call_words(long, ())) == SHORT
    assert call_words(long[:-5], ()) == "t"
    assert call_words(b"a line", ()) == ""
    assert call_words(msgspec.msgpack.encode((1, "t", {"a": b"12"})), ()) == "t(a=<2 bytes>)"


def test_a_single_call_is_shown_while_its_body_is_kept(queue: Queue):
    """It waits, is to be tried again, or is dead; a result takes its place."""
    options: Any = {"attempts": 2, "backoff": "1ms", "task": "send_mail"}
    for name in ("ill", "well"):
        queue.submit_request([body("send_mail", to="ann")], id=name, **options)
    words = 'send_mail(to="ann")'

    def shown() -> dict[str, str | None]:
        return {one.id: one.call for one in queue.list_requests().requests}

    assert shown() == {"ill": words, "well": words}
    assert queue.why("ill").request.call == words
    fail(queue, [("retry", "ValueError: not now")])
    assert shown() == {"ill": words, "well": words}
    work_off(queue.driver)
    assert shown() == {"ill": words, "well": None}
    queue.submit_request([body("send_mail", to="ann")], id="worse", **options)
    fail(queue, [("dead", "ValueError: never")])
    assert shown() == {"worse": words, "ill": words, "well": None}
    queue.request("ill").cancel()
    assert shown() == {"worse": words, "ill": None, "well": None}


def test_a_body_that_is_too_large_to_read_leaves_the_name_alone(queue: Queue):
    large = body("resize", data="x" * 5_000)
    queue.submit_request([large], task="resize", id="r1")
    (row,) = queue.list_requests().requests
    assert (row.tasks, row.call, row.shown_tasks) == ({"resize": 1}, None, "resize")


def test_the_name_of_a_task_keeps_the_cheap_form_of_a_small_request(
    queue: Queue, redis_client: redis.Redis
):
    queue.submit_request(["a"], id="plain")
    queue.submit_request(["a"], id="named", task="send_mail")
    for name in ("plain", "named"):
        kinds = [keys.part_and_id(key) for key in redis_client.scan_iter(f"*{{{name}}}*")]
        assert sorted(filter(None, kinds)) == [("few", name), ("req", name)]


def test_the_same_content_is_the_same_request_whatever_its_tasks_are_called(queue: Queue):
    queue.submit_request(["a"], id="r1", task="send_mail")
    queue.submit_request(["a"], id="r1")
    queue.submit_request(["a"], id="r1", task={"a": 1, "b": 2})
    assert queue.request("r1").progress().tasks == {"send_mail": 1}


def test_requests_are_found_by_task_while_they_run_and_after_their_end(queue: Queue):
    queue.submit_request(["a"], id="over", task="resize")
    work_off(queue.driver)
    queue.submit_request(["a"], id="mail", task="send_mail")
    queue.submit_request(["a", "b", "c"], id="both", task={"resize": 2, "send_mail": 1})
    queue.submit_request(["a"], id="none")

    def found(*tasks: str) -> set[str]:
        return {one.id for one in queue.list_requests(tasks=tasks).requests}

    assert found("resize") == {"over", "both"}
    assert found("send_mail", "resize") == {"over", "both", "mail"}
    assert found("never_seen") == found(*(f"t{number}" for number in range(10_000))) == set()
    assert {*queue.select(Change.cancel(), tasks="send_mail").ids} == {"mail", "both"}
    with pytest.raises(InvalidArgument, match=r"task name .* is not valid"):
        queue.list_requests(tasks="a\nb")


def test_ten_thousand_tasks_are_a_bounded_field_and_a_bounded_answer(queue: Queue):
    many = {f"task_{number}" * 9: 1 for number in range(10_000)}
    queue.submit_request(["a"] * 10_000, id="r1", task=many)
    tasks = queue.request("r1").progress().tasks
    assert (len(tasks), tasks["other"]) == (21, 9_980)
