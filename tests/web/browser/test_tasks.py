"""Tests the page of the tasks, and where calls that run unusually long are named."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fairlane.operations.workers import register_worker
from fairlane.queue import Queue
from tests.operations.observe.test_task_states import holding, measure, quick, slow_call
from tests.support.processes.beats import beating
from tests.web.browser.test_dashboard import settle, submit, take

if TYPE_CHECKING:
    from tests.web.browser.browser import Browser
    from tests.web.serving import Serving


@pytest.mark.rest
def test_a_person_finds_the_task_that_hangs_and_the_release_that_fails(
    browser: Browser, serving: Serving, redis_url: str
):
    with Queue.from_url(redis_url) as queue:
        submit(serving, "ill", ["a"], attempts=1, task="resize")
        settle(serving, *take(serving), reason="no such file")
        submit(serving, "monday", ["a"] * 9, task="send_mail")
        for release, measured in (("1.0", quick(100)), ("1.1", quick(4, failed=3))):
            worker = f"w:{release}"
            queue.driver.run(register_worker(queue.name, worker, "here", 1, "7", release))
            measure(queue, release, send_mail=measured)
        with beating(queue, "w:1", holding(slow_call("monday", 613))):
            browser.open("#/tasks")
            browser.one(".panel", "Calls that run unusually long")
            assert browser.sees(
                "runs for 10 min", "sub-request 7 (send_mail) of monday", "on worker w:1",
                "99 of 100 calls of its task take up to 20 ms",
                "fairlane stacks monday", "fairlane kill monday --index 7",
                "1 call runs unusually long", "3 of 107", "The newest release is 1.1",
            )  # fmt: skip
            first, second = browser.all("tbody tr")
            assert first.text.startswith("send_mail")
            assert second.text.startswith("resize")
            browser.click("button", "By release")
            assert browser.sees("Release", "1.0", "1.1", "3 of 7")
            browser.open("#/requests")
            browser.one("tbody tr", "long call")
            browser.open("#/overview")
            browser.one(".panel", "sub-request 7 (send_mail) of monday")


@pytest.mark.rest
def test_failures_that_are_new_since_the_last_release_are_marked(
    browser: Browser, serving: Serving, redis_url: str
):
    with Queue.from_url(redis_url) as queue:
        submit(serving, "old", ["a"], attempts=1)
        settle(serving, *take(serving), reason="no such file")
        queue.driver.run(register_worker(queue.name, "w:0", "here", 1, "7", "1.1"))
        submit(serving, "new", ["a"], attempts=1)
        settle(serving, *take(serving), reason="no locale")
    browser.open("#/dead")
    assert browser.sees("no such file", "no locale")
    (marked,) = [one.text for one in browser.all(".failure") if "new since" in one.text]
    assert "no locale" in marked
    browser.click(".chip", "Since the last release")
    browser.one(".chip[aria-pressed=true]", "Since the last release")
    assert browser.sees("no locale")
