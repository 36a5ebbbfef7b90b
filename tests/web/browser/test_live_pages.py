"""Tests the pages that show the present queue, in a real browser."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from fairlane.queue import Queue
from tests.cli.program import Program
from tests.support.processes.beats import beat, beating, make_older
from tests.support.servers.server_process import run_server
from tests.support.wait import wait_until
from tests.web.browser.browser import WAIT_S
from tests.web.browser.test_dashboard import submit, take
from tests.web.serving import Serving

if TYPE_CHECKING:
    from pathlib import Path

    import redis

    from tests.web.browser.browser import Browser

pytestmark = pytest.mark.rest


@pytest.fixture
def busy(serving: Serving) -> Serving:
    """A server with requests of two tenants, of which two sub-requests are taken."""
    submit(serving, "mail", ["a", "b", "c"], priority=3, limit=2, tenant="acme")
    submit(serving, "bulk", ["a"] * 30, priority=40, limit=9, tenant="globex")
    take(serving, 2)
    return serving


def test_the_overview_shows_requests_and_what_waits(browser: Browser, busy: Serving):
    browser.open("#/overview")
    browser.sees("Throughput", "Demand beside capacity", "bulk", "Oldest waiting")
    assert browser.sees("No worker takes from this queue")
    browser.click("td a.id", "bulk")
    wait_until(lambda: browser.hash == "#/requests/bulk", WAIT_S, why=browser.hash)


def test_the_ladder_is_read_by_keys_and_as_a_table(browser: Browser, busy: Serving):
    browser.open("#/priorities")
    browser.sees("Now, as a table", "40")
    browser.run("document.querySelector('canvas.ladder').focus()")
    browser.keys("\ue015", "\ue015")
    browser.sees("tokens wait", "leases are held")
    assert "Priority 40 at" in browser.text
    label = browser.one("canvas.ladder").get_attribute("aria-label")
    assert "priority 40: 9" in label
    browser.click("button", "All 100 priorities")
    browser.sees("Only priorities in use")


def test_fairness_is_by_tenant_or_by_request(browser: Browser, busy: Serving):
    browser.open("#/fairness")
    browser.sees("acme", "100%")
    browser.open("#/fairness?by=3")
    browser.sees("mail", "100%")


def test_a_late_worker_is_marked_in_words(
    browser: Browser, serving: Serving, redis_client: redis.Redis, redis_url: str
):
    holds = "3 leases; 4 units 12.500/s; fairlane 9.8.7"
    with Queue.from_url(redis_url) as queue, beating(queue, "w:1", holds):
        beat(queue, "w:2")
        make_older(redis_client, queue, "w:2", 60_000)
        browser.open("#/workers")
        browser.sees("working", "late: stopped or cut off", "9.8.7", "12.5/s")
        browser.open("#/workers?q=w:1")
        browser.sees("9.8.7")
        assert "stopped or cut off" not in browser.text


def test_redis_shows_memory_and_the_remedies_of_the_doctor(browser: Browser, serving: Serving):
    browser.open("#/redis")
    browser.sees("What the doctor found", "persistence", "Remedy:", "Memory", "primary")


@pytest.mark.server
def test_an_outage_is_shown_and_ends(chromium: Browser, tmp_path: Path):
    with run_server() as server:
        program = Program(tmp_path, server.url)
        with Serving(program) as serving:
            chromium.url = serving.url
            chromium.open("#/overview")
            chromium.sees("Throughput", "No worker is here")
            server.process.send_signal(signal.SIGSTOP)
            chromium.sees("Redis does not answer", "goes on when Redis is back")
            server.process.send_signal(signal.SIGCONT)
            wait_until(lambda: "does not answer" not in chromium.text, WAIT_S, why="it is back")
            chromium.driver.get("about:blank")


def test_an_empty_queue_says_what_is_missing(browser: Browser, serving: Serving):
    browser.open("#/priorities")
    browser.sees("No token waits")
    assert browser.all("canvas") == []
    browser.open("#/requests")
    browser.sees("There is no request", "rq-submit")
    browser.open("#/requests?q=tag:none")
    browser.sees("No request fits")
    assert "There is no request" not in browser.text
    browser.open("#/workers")
    browser.sees("No worker is here", "Oldest heartbeat\n\u2013")


def test_a_request_that_does_not_exist_has_no_panels(chromium: Browser, serving: Serving):
    chromium.url = serving.url
    chromium.open("#/requests/gone")
    chromium.sees("There is no request gone")
    assert chromium.all(".panel") == []
    chromium.click("a.back")
    chromium.sees("There is no request", "Submit one")
    chromium.problems()  # the 404


@pytest.mark.parametrize(
    ("kind", "most", "marks"),
    [
        ("ms", 82_000, [0, 30_000, 60_000, 90_000]),
        ("ms", 7, [0, 2, 4, 6, 8]),
        ("whole", 1, [0, 1]),
        ("bytes", 12 << 20, [0, 4 << 20, 8 << 20, 12 << 20]),
        ("decimal", 0.9, [0, 0.25, 0.5, 0.75, 1]),
    ],
)
def test_an_axis_has_round_marks(
    browser: Browser, serving: Serving, kind: str, most: float, marks: list[float]
):
    browser.open("#/overview")
    browser.one("h1")
    found = browser.run(
        "const [most, kind] = arguments; return import('/dashboard/parts/charts/frame.js')"
        ".then((one) => one.ticks(most, 4, one.STEPS[kind]))",
        most, kind,
    )  # fmt: skip
    assert found == marks


@pytest.mark.parametrize("page", ["overview", "priorities", "fairness", "workers", "redis"])
def test_a_page_fits_a_phone(browser: Browser, busy: Serving, page: str):
    browser.open(f"#/{page}", width=360, height=740)
    browser.one("h1")
    browser.one(".panel")
    assert browser.run("return document.documentElement.scrollWidth") <= 360


@pytest.mark.parametrize("width", [1280, 390])
def test_a_refusal_in_the_audit_trail_has_room(browser: Browser, serving: Serving, width: int):
    name = "a-long-id-" + "x" * 60
    submit(serving, name, ["a"])
    assert serving.call("PATCH", f"/v1/requests/{name}", {"limit": 0}).status == 422
    browser.open("#/audit", width=width)
    outcome = browser.one(".outcome", "limit 0 is not valid")
    scroll = (
        "const box = document.querySelector('.scroll'); return box.scrollWidth - box.clientWidth"
    )
    assert browser.run(scroll) == 0
    assert outcome.size["width"] > 150
    assert outcome.size["height"] < 100
    assert browser.one("td a", "a-long-id").size["height"] < 120
    assert browser.run("return document.documentElement.scrollWidth <= innerWidth")
    what, when = browser.one("td.title", "Changed").rect, browser.one("td.side-cell").rect
    assert abs(what["y"] - when["y"]) < 10
    assert (what["x"] < when["x"]) == (width == 390)


def test_a_box_stands_before_the_name_on_a_phone(browser: Browser, serving: Serving):
    submit(serving, "monday", ["a"])
    browser.open("#/requests", width=390)
    assert browser.one("td.pick").rect["x"] < browser.one("td.title", "monday").rect["x"]
