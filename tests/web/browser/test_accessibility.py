"""Tests that no page has a serious problem for keyboards, screen readers or few colours."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.web.browser.test_dashboard import PAGES, settle, submit, take

if TYPE_CHECKING:
    from tests.web.browser.browser import Browser
    from tests.web.serving import Serving

pytestmark = pytest.mark.rest
SERIOUS = {"serious", "critical"}
SHOWN = {  # what is on a page as soon as it has read what it shows
    "requests": "mail",
    "dead": "no address",
    "keys": "api",
    "schedules": "0 7 * * *",
    "audit": "Put a schedule",
    "requests/mail": "Token lanes",
    "dead?request=mail": "no address",
}


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_no_serious_problem(browser: Browser, serving: Serving, theme: str):
    from axe_core_python.selenium import Axe

    submit(serving, "mail", ["a", "b", "c"], attempts=1, tags=["nightly"], tenant="acme")
    serving.call("PUT", "/v1/keys/api", {"limit": 3})
    first, second = take(serving, 2)
    settle(serving, first, result="A")
    settle(serving, second, reason="no address")
    serving.call("POST", "/v1/schedules", {"name": "daily", "cron": "0 7 * * *", "bodies": ["a"]})
    axe = Axe()
    found = {}
    for page in (*PAGES, "requests/mail", "dead?request=mail"):
        browser.open(f"#/{page}")
        browser.run("document.documentElement.dataset.theme = arguments[0]", theme)
        browser.one("h1")
        browser.sees(SHOWN.get(page, ""))
        problems = axe.run(browser.driver)["violations"]
        found[page] = [
            (one["id"], node["html"][:200])
            for one in problems
            if one["impact"] in SERIOUS
            for node in one["nodes"]
        ]
    assert {page: some for page, some in found.items() if some} == {}
