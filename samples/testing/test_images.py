"""The tests of the project: each shows one way to test tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import images
import pytest
from images import Size, notify, publish, resize

from fairlane import TaskError
from fairlane.testing import eager, run_tasks

if TYPE_CHECKING:
    from fairlane import App


def test_a_task_is_a_function() -> None:
    assert resize("a.png", width=100) == Size(100, 50)


def test_the_program_without_a_worker() -> None:
    images.sent.clear()
    with eager(images.app):
        assert publish(["a.png", "b.jpg"], "anna") == [Size(200, 100)] * 2
    assert images.sent == ["anna"]


def test_calls_that_wait_in_the_queue(fairlane_app: App) -> None:
    batch = resize.map(["a.png", "b.txt"])
    assert batch.progress().done == 0
    assert run_tasks(fairlane_app) == 2
    good, bad = batch.outcomes()
    assert good == Size(200, 100)
    assert isinstance(bad, TaskError)
    assert bad.message == "b.txt is no picture"


def test_a_pause_between_attempts_takes_no_time(fairlane_app: App) -> None:
    images.sent.clear()
    notify.submit("bert")
    assert run_tasks(fairlane_app) == 2
    assert images.sent == ["bert"]


def test_a_deadline_that_has_passed(fairlane_app: App) -> None:
    call = notify.submit("carla")
    run_tasks(fairlane_app, skip="2h")
    with pytest.raises(TaskError, match="deadline"):
        call.result()
