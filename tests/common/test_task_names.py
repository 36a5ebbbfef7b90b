"""Tests the text of a request's tasks, and the task that is read from the beginning of a body."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fairlane.common.task_names import (
    START,
    read_tasks,
    some_tasks,
    task_names,
    task_of,
    tasks_text,
    tasks_words,
    without_counts,
)
from fairlane.errors import InvalidArgument
from tests.support.run.for_each import for_each


@for_each(
    "given, total, tasks, words",
    [
        ("resize", 7, {"resize": 7}, "resize"),
        (["resize"], 7, {"resize": 7}, "resize"),
        ({"resize": 3}, 3, {"resize": 3}, "resize"),
        ({"resize": 3}, 4, {"resize": 3, "other": 1}, "resize (3), other (1)"),
        ({"a": 1, "b": 4}, 5, {"b": 4, "a": 1}, "b (4), a (1)"),
        ({"a": 1, "b": 4}, 9, {"b": 4, "a": 1, "other": 4}, "b (4), a (1), other (4)"),
        (("a", "b"), 9, {"a": None, "b": None}, "a, b"),
        ("", 9, {}, ""),
    ],
)
def test_tasks_come_back_from_their_text(given: Any, total: int, tasks: Any, words: str):
    found = read_tasks(tasks_text(given), total)
    assert (found, tasks_words(found)) == (tasks, words)


def test_of_many_tasks_twenty_are_named_and_the_others_counted_together():
    text = tasks_text({f"t{number:05}": 1 + (number == 7) for number in range(10_000)})
    found = read_tasks(text, 10_001)
    assert len(found) == 21
    assert (next(iter(found.items())), found["other"]) == (("t00007", 2), 9_980)
    assert tasks_words(found) == "t00007 (2), t00000 (1), t00001 (1) and 18 more"
    assert len(task_names(some_tasks(f"t{number}" for number in range(10_000)))) == 20


def test_a_part_of_a_request_has_the_names_without_the_counts():
    assert read_tasks(without_counts(tasks_text({"a": 1, "b": 4})), 2) == {"a": None, "b": None}
    assert read_tasks(without_counts("resize"), 2) == {"resize": 2}


@for_each(
    "given, sentence",
    [
        ("a\nb", "task name 'a\\\\nb' is not valid: 1 to 200 printable characters"),
        ("x" * 201, "task name 'xxx"),
        ({"a": 0}, "task a has the count 0: a whole number from 1 is expected"),
        ({"a": True}, "task a has the count True"),
        (7, "task 7 is not valid: give its name, or several names"),
        (b"a", "task b'a' is not valid"),
    ],
)
def test_what_is_no_task_is_refused_by_a_sentence(given: Any, sentence: str):
    with pytest.raises(InvalidArgument, match=sentence):
        tasks_text(given)


@for_each("name", ["resize", 'send mail, "now"\\', "größe", "ü" * 200, "a" * 32, "x" * 200])
def test_the_task_of_a_call_is_read_from_its_beginning(name: str):
    call = (1, name, {"text": "x" * 5_000})
    for body in (msgspec.json.encode(call), msgspec.msgpack.encode(call)):
        assert task_of(body[:START]) == name
    traced: tuple[Any, ...] = (1, name, {}, "00-1-2-01")
    assert task_of(msgspec.msgpack.encode(traced)) == name


@for_each(
    "body", [b"", b"[", b"[1", b"line", b'["a","b"]', b"{}", b"\x93", b"\x93\x01\xa5ab", b"\xff"]
)
def test_what_is_no_call_has_no_task(body: bytes):
    assert task_of(body) == ""
