"""Tests the page of the limits by key, and the keys of a request, as a person uses them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.servers import backends
from tests.web.browser.test_dashboard import confirm, settle, submit, take
from tests.web.browser.test_sign_in import sign_in

if TYPE_CHECKING:
    from tests.cli.program import Program
    from tests.web.browser.browser import Browser
    from tests.web.serving import Serving

pytestmark = [
    pytest.mark.rest,
    pytest.mark.parametrize("redis_server", backends.one(), indirect=True),
]


def test_a_person_sees_what_holds_a_key_and_lets_the_next_one_start(
    browser: Browser, serving: Serving
):
    for name in ("first", "second"):
        submit(serving, name, ["a"], limits={"api": 1})
    submit(serving, "other", ["a"], limits={"task/resize": 9}, priority=90)
    take(serving)
    browser.open("#/keys")
    browser.sees("api", "1 of 1", "full", "first", "second", "task/resize", "0 of 9")
    browser.open("#/requests/second")
    browser.sees("Waits for key api: 1 of 1 is held, by request first")
    browser.click(".own-facts a", "api")
    browser.sees("api", "1 of 1")
    assert browser.hash == "#/keys?q=api"
    browser.click("td button", "Set")
    field = browser.one("dialog input")
    field.clear()
    field.send_keys("2")
    confirm(browser, "A higher limit starts work that waits")
    browser.sees("1 of 2", "set by hand", "has room")
    assert serving.curl("/v1/keys/api").json["waiting"] == 0
    browser.open("#/requests/first")
    browser.click(".own-facts a", "api")
    browser.click("td button", "Set")
    browser.one("dialog input").clear()
    confirm(browser, "Empty: the limit is that of its task")
    browser.sees("of its first request")


def test_a_person_lets_an_order_go_on_that_a_dead_one_stopped(browser: Browser, serving: Serving):
    for name in ("first", "second"):
        submit(serving, name, ["a"], order_key="chat", order_on_dead="stop")
    settle(serving, take(serving)[0], reason="no such account")
    browser.open("#/keys")
    browser.sees("chat", "stopped", "stopped by the dead of first", "second")
    browser.click("td button", "Resume")
    confirm(browser, "Request first ended with dead sub-requests, and 1 behind it")
    browser.sees("The next request of the key starts", "an order: one request at a time")
    assert serving.curl("/v1/keys/chat").json["stopped_by"] is None


def test_a_person_who_only_looks_sets_nothing(guarded: Browser, program: Program):
    program("key", "set", "api", 3)
    token = program("token", "create", "night", "--scope", "view").id
    guarded.open("#/keys")
    sign_in(guarded, token)
    guarded.sees("api", "0 of 3", "set by hand")
    assert guarded.all("td button") == []
