"""Tests `fairlane tasks`: the tasks of a queue, and its calls that run unusually long."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from fairlane import Queue
from fairlane.operations.workers import register_worker
from tests.operations.observe.test_task_states import holding, measure, quick, slow_call
from tests.support.processes.beats import beat

if TYPE_CHECKING:
    from tests.cli.program import Program


def test_the_task_that_needs_a_person_comes_first(program: Program, redis_url: str):
    with Queue.from_url(redis_url) as queue:
        measure(queue, resize=quick(5000), send_mail=quick(100, failed=2))
        queue.submit_request(["a"] * 9, id="monday", task="send_mail")
        beat(queue, "w:1", holding(slow_call("monday", 613)))
    ended = program("tasks")
    head, mail, resize = ended.out.decode().splitlines()
    assert head.split()[:5] == ["TASK", "WAITING", "RUNNING", "DEAD", "PER"]
    assert mail.split()[:4] == ["send_mail", "9", "0", "0"]
    assert mail.endswith("1 call runs unusually long, 2 of 102 calls failed lately")
    assert resize.split()[0] == "resize"
    assert resize.split()[5:11] == ["5,000", "0", "20", "ms", "20", "ms"]
    assert "sub-request 7 (send_mail) of request monday has run for 10m 13s" in ended.err
    assert "`fairlane kill monday --index 7` ends it" in ended.err
    shown = program("status").out.decode()
    assert "hangs     sub-request 7 (send_mail) of request monday has run for 10m 13s" in shown


def test_json_has_the_page_and_the_releases(program: Program, redis_url: str):
    with Queue.from_url(redis_url) as queue:
        queue.driver.run(register_worker("req", "w:1", "here", 1, "7", "2026.11"))
        measure(queue, "2026.11", send_mail=quick(3))
    found = json.loads(program("tasks", "--json").out)
    assert (found["queue"], found["by"], found["more"]) == ("req", "task", 0)
    assert [(one["task"], one["release"]) for one in found["tasks"]] == [("send_mail", None)]
    assert [one["name"] for one in found["releases"]] == ["2026.11"]
    found = json.loads(program("tasks", "--by", "release", "--json").out)
    assert [(one["task"], one["release"]) for one in found["tasks"]] == [("send_mail", "2026.11")]
    ended = program("tasks", "--by", "release")
    assert ended.out.decode().splitlines()[1].split()[:2] == ["send_mail", "2026.11"]
    assert re.search(r"the newest release is 2026.11, since [0-9:]+ UTC \(\d+ s ago\)", ended.err)


def test_calls_that_hang_are_named_also_if_nothing_was_measured(program: Program, redis_url: str):
    with Queue.from_url(redis_url) as queue:
        queue.submit_request(["a"] * 9, id="monday", task="send_mail")
        beat(queue, "w:1", holding(slow_call("monday", 613)))
    ended = program("tasks", "--by", "release")
    assert ended.out == b""
    assert "nothing was measured by release of queue req" in ended.err
    assert "sub-request 7 (send_mail) of request monday has run for 10m 13s" in ended.err


def test_a_queue_without_tasks_says_so(program: Program):
    ended = program("tasks", "--queue", "mail")
    assert (ended.code, ended.out) == (0, b"")
    assert "queue mail has no call of a task, and none was measured" in ended.err
