"""Tests the button that shows what the calls of a request do now, and ends one of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fairlane.queue import Queue
from tests.support.processes.answers import answering, call_of
from tests.web.api.test_stacks import hold

if TYPE_CHECKING:
    from tests.web.browser.browser import Browser
    from tests.web.serving import Serving


@pytest.mark.rest
def test_a_person_sees_a_stuck_call_and_ends_it(browser: Browser, serving: Serving, redis_url: str):
    """The dialog names the others of its process; the verdict is that of the choice."""
    answer = serving.call("POST", "/v1/requests", {"id": "monday", "bodies": ["a"] * 9})
    assert answer.status == 201

    def answers(order: Any) -> dict[str, Any]:
        if order.kind == "kill":
            return {"ran_ms": 91_000, "others": 2, "ended_process": True}
        return {"calls": [call_of("monday", beside=2)], "more": 0}

    with Queue.from_url(redis_url) as queue:
        hold(queue, "w:1")
        with answering(queue, "w:1", answers) as seen:
            browser.open("#/requests/monday")
            browser.click(".head button", "Stacks")
            browser.one("dialog pre", 'File "/app/mine.py", line 7 in resize')
            assert browser.sees("Sub-request 7, resize", "attempt 1 of 5, worker w:1, process 41")
            browser.click("dialog button", "End this call")
            browser.one("dialog .effect", "2 other calls in process 41 may be ended, too")
            browser.click("dialog button[type=submit]", "End the call")
            assert browser.sees("Sub-request 7 was ended after")
    kill = next(order for order in seen if order.kind == "kill")
    assert (kill.index, kill.verdict, kill.by) == (7, "charge", "local")
