"""Tests lists and a request's page over time: sorting, dead letters, and calls while idle."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fairlane.queue import Queue
from tests.support.wait import wait_until
from tests.web.browser.browser import WAIT_S
from tests.web.browser.test_dashboard import confirm, settle, submit, take

if TYPE_CHECKING:
    from tests.web.browser.browser import Browser
    from tests.web.serving import Serving

ROWS = "return [...document.querySelectorAll('tbody td a.mono')].map((one) => one.textContent)"
CALLS = "return performance.getEntriesByType('resource').map((one) => new URL(one.name).pathname)"


def rows(browser: Browser) -> list[str]:
    return list(browser.run(ROWS))


def shows(browser: Browser, *names: str) -> None:
    wait_until(lambda: rows(browser) == [*names], WAIT_S, every=0.05, why=f"{names} are shown")


def left(browser: Browser, before: str) -> None:
    wait_until(lambda: browser.hash != before, WAIT_S, why=f"another part than {before}")


def sort_of(browser: Browser, label: str) -> str | None:
    heading = browser.one(f"th button[title='Sort by {label}']")
    found = browser.run("return arguments[0].closest('th').ariaSort", heading)
    return None if found is None else str(found)


@pytest.mark.slow
@pytest.mark.rest
def test_requests_are_sorted_by_click_and_by_keyboard(browser: Browser, serving: Serving):
    submit(serving, "few", ["a"], priority=1)
    submit(serving, "many", ["a", "b", "c"], priority=9)
    submit(serving, "some", ["a", "b"], priority=5)
    browser.open("#/requests")
    shows(browser, "few", "some", "many")
    assert sort_of(browser, "waiting") == "none"
    browser.click("th button", "Waiting")
    shows(browser, "many", "some", "few")
    assert sort_of(browser, "waiting") == "descending"
    assert browser.hash == "#/requests?sort=-waiting"
    browser.keys("enter")  # the focus stays on the button
    shows(browser, "few", "some", "many")
    assert sort_of(browser, "waiting") == "ascending"
    browser.click("th button", "Submitted")
    shows(browser, "few", "many", "some")
    assert (sort_of(browser, "submitted"), sort_of(browser, "waiting")) == ("ascending", "none")
    browser.open("#/requests?sort=-priority")
    shows(browser, "many", "some", "few")
    assert sort_of(browser, "priority") == "descending"
    browser.open("#/requests", width=390, height=800)
    field = browser.one("select[aria-label=Order]")
    field.send_keys("Most waiting")
    shows(browser, "many", "some", "few")


@pytest.mark.slow
@pytest.mark.rest
def test_the_dead_of_a_failure_are_dropped_in_all_requests(browser: Browser, serving: Serving):
    for name in ("monday", "tuesday"):
        submit(serving, name, ["a", "b"])
        for receipt in take(serving, 2):
            settle(serving, receipt, reason="bad host")
    browser.open("#/dead")
    browser.click(".failure-tools button", "Drop")
    confirm(browser, "2 requests with 4 dead sub-requests")
    assert browser.sees("4 sub-requests dropped", "Nothing has failed for good")
    assert serving.curl("/v1/errors").json["groups"] == []


@pytest.mark.slow
@pytest.mark.rest
def test_requests_and_dead_letters_are_found_by_task(browser: Browser, serving: Serving):
    for name, task in (("monday", "send_mail"), ("tuesday", "resize image")):
        submit(serving, name, [f'[1,"{task}",{{"to":"ann"}}]'], task=task)
    browser.open("#/requests?q=task:send_mail")
    shows(browser, "monday")
    browser.open("#/requests?q=task:%22resize%20image%22")
    shows(browser, "tuesday")
    assert browser.sees('resize image(to="ann")')
    browser.click(".task-line a", "resize image")
    shows(browser, "tuesday")
    browser.open("#/requests/monday")
    assert browser.sees("Task", 'send_mail(to="ann")')
    for receipt in take(serving, 2):
        settle(serving, receipt, reason="bad host")
    browser.open("#/dead?q=task:send_mail")
    assert browser.sees('send_mail(to="ann")', "bad host")
    assert "tuesday" not in browser.one("main").text
    browser.click(".failure-tools button", "Drop")
    confirm(browser, "1 request with 1 dead sub-request")
    assert browser.sees("1 sub-request dropped", "No dead letter fits")
    browser.click(".chip", "Last hour")
    assert browser.sees("tuesday", "resize image")
    browser.open("#/dead?q=since:soon")
    assert browser.sees("since:soon is no time: write 10m, 1h or 2d")


@pytest.mark.slow
@pytest.mark.rest
def test_dead_letters_of_an_ended_request_are_shown_behind_many_that_run(
    browser: Browser, serving: Serving, redis_url: str
):
    submit(serving, "monday", ["a"])
    settle(serving, take(serving)[0], reason="bad host")
    with Queue.from_url(redis_url) as queue:
        queue.submit_many([[b"x"]] * 2_100)
    browser.open("#/dead")
    shows(browser, "monday")


@pytest.mark.slow
@pytest.mark.rest
def test_the_page_of_a_request_makes_no_call_while_nothing_changes(
    browser: Browser, serving: Serving
):
    submit(serving, "monday", ["a", "b"], limit=2)
    browser.open("#/requests/monday")
    assert browser.sees("Why it waits", "0%", "No sub-request has failed")
    calm = [one for one in browser.run(CALLS) if "/v1/requests/monday" in one]
    settle(serving, take(serving)[0], result="A")
    assert browser.sees("50%", "1 of 2")  # nothing was clicked: the page follows
    after = [one for one in browser.run(CALLS) if "/v1/requests/monday" in one][len(calm) :]
    assert set(after) <= {"/v1/requests/monday/leases", "/v1/requests/monday/live"}
