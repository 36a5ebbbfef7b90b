"""Tests the sign-in with a token, in a real browser: it shows and changes what the scope allows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.cli.program import Dead, settle
from tests.support.wait import wait_until
from tests.web.browser.browser import WAIT_S
from tests.web.browser.test_dashboard import submit
from tests.web.serving import Serving

if TYPE_CHECKING:
    from tests.cli.program import Program
    from tests.web.browser.browser import Browser

pytestmark = pytest.mark.rest


def sign_in(browser: Browser, token: str) -> None:
    field = browser.one("#token")
    field.clear()
    field.send_keys(token)
    browser.click("button[type=submit]")


def test_a_token_with_the_scope_view_sees_all_and_changes_nothing(
    guarded: Browser, program: Program
):
    token = program("token", "create", "night-watch", "--scope", "view").id
    program("submit", "--id", "monday", "-", stdin=b"a\nb\n")
    guarded.open("#/requests/monday")
    sign_in(guarded, "fl_00000000_wrong")
    guarded.one(".notice", "is not known here, or has expired")
    sign_in(guarded, token)
    guarded.one("h1", "monday")  # the page that was asked for
    guarded.one(".head", "You may look, not change.")
    guarded.one(".foot", "night-watch")
    assert [one.text for one in guarded.all(".head button")] == ["Stacks"]
    assert "Audit trail" not in guarded.one(".side").text
    cookies = guarded.run("return document.cookie")
    assert cookies == ""  # no script reads the token
    guarded.open("#/requests")
    guarded.one("td a", "monday")
    assert guarded.all("td input") == []
    guarded.click("[aria-label='Sign out']")
    guarded.one("#token")
    guarded.open("#/requests")
    sign_in(guarded, token)
    guarded.one("td a", "monday")
    guarded.click("[aria-label='Sign out']")
    sign_in(guarded, token)  # without a new page
    guarded.one("td a", "monday")


def test_a_token_with_the_scope_counts_sees_every_page_without_data(
    guarded: Browser, program: Program, redis_url: str
):
    def refuse(_: int, __: bytes) -> bytes:
        raise Dead("ValueError: no hunter2")

    token = program("token", "create", "night-watch", "--scope", "counts").id
    program("submit", "--id", "monday", "-", stdin=b"hunter2\n")
    settle(redis_url, refuse)
    guarded.open("#/requests/monday")
    sign_in(guarded, token)
    guarded.one(".foot", "may see counts, and no data")
    guarded.one(".failure-line", "ValueError")
    guarded.open("#/dead?request=monday")
    guarded.one("pre", "ValueError")
    for page in ("overview", "requests", "workers", "priorities", "fairness", "keys", "dead"):
        guarded.open(f"#/{page}")
        guarded.one("h1")
        assert guarded.all("#main .notice.bad") == [], page
        assert "hunter2" not in guarded.one("body").text


@pytest.mark.parametrize("scope", ["submit", "consume"])
def test_a_token_that_may_not_look_sees_why(guarded: Browser, program: Program, scope: str):
    token = program("token", "create", "website", "--scope", scope).id
    guarded.open("#/overview")
    sign_in(guarded, token)
    guarded.one(".notice", f"The token website may only {scope}")
    guarded.one(".notice", "needs a token with the scope view")
    assert "No answer" not in guarded.text
    guarded.click("button", "Sign in with another token")
    sign_in(guarded, program("token", "create", "watch", "--scope", "view").id)
    guarded.one("h1", "Overview")


def test_a_token_that_is_revoked_leads_back_to_the_form(guarded: Browser, program: Program):
    token = program("token", "create", "operator", "--scope", "operate").id
    guarded.open("#/requests")
    sign_in(guarded, token)
    guarded.one(".empty", "There is no request")
    program("token", "revoke", token.split("_")[1])
    wait_until(lambda: guarded.all("#token"), WAIT_S, every=0.05)
    sign_in(guarded, program("token", "create", "next", "--scope", "view").id)
    guarded.one(".empty", "There is no request")


def test_a_page_that_only_listens_leads_back_to_the_form(guarded: Browser, program: Program):
    token = program("token", "create", "operator", "--scope", "view").id
    guarded.open("#/fairness")
    sign_in(guarded, token)
    guarded.one("h1", "Fair")
    program("token", "revoke", token.split("_")[1])
    guarded.run("location.hash = '#/workers'")  # its stream is refused
    guarded.one("#token")


def test_a_page_whose_server_has_ended_shows_that(chromium: Browser, program: Program):
    with Serving(program) as running:
        chromium.url = running.url
        submit(running, "monday", ["a"])
        chromium.open("#/requests")
        chromium.one("td a", "monday")
    chromium.one(".notice", "The server does not answer")
    chromium.one(".link", "No answer, trying again")
    chromium.driver.get("about:blank")
    chromium.problems()
