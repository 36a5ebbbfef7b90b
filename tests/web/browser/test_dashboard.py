"""Tests the dashboard in a real browser: what an operator does there."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.cli import program
from tests.support.wait import wait_until
from tests.web.browser.browser import WAIT_S

if TYPE_CHECKING:
    from tests.cli.program import Program
    from tests.web.browser.browser import Browser
    from tests.web.serving import Serving

SCRIPT = "<script>document.title='run'</script><img src=x onerror=\"document.title='run'\">"
PAGES = (
    *("overview", "requests", "tasks", "workers", "priorities", "fairness"),
    *("keys", "dead", "flows", "schedules", "redis", "audit"),
)


def submit(serving: Serving, name: str, bodies: list[str], **options: Any) -> None:
    answer = serving.call("POST", "/v1/requests", {"id": name, "bodies": bodies, **options})
    assert answer.status == 201, answer.body


def take(serving: Serving, count: int = 1) -> list[str]:
    taken = serving.call("POST", "/v1/take", {"count": count, "wait_s": 10}).json["taken"]
    return [one["receipt"] for one in taken]


def settle(serving: Serving, receipt: str, **verdict: Any) -> None:
    word = "dead" if "reason" in verdict else "done"
    assert serving.call("POST", f"/v1/taken/{receipt}/{word}", verdict).status == 204


def state(serving: Serving, name: str) -> dict[str, Any]:
    found: dict[str, Any] = serving.curl(f"/v1/requests/{name}").json
    return found


def until(serving: Serving, name: str, **wanted: Any) -> None:
    def is_so() -> bool:
        found = state(serving, name)
        return all(found[key] == value for key, value in wanted.items())

    wait_until(is_so, WAIT_S, every=0.05, why=f"{name} is {wanted}: {state(serving, name)}")


def confirm(browser: Browser, effect: str) -> None:
    """Confirms a dialog that first names what will happen."""
    browser.one("dialog .effect", effect)
    browser.click("dialog button[type=submit]")


@pytest.mark.rest
@pytest.mark.slow
def test_a_person_follows_and_changes_a_request(browser: Browser, serving: Serving):
    submit(serving, "monday", ["a", "b", "c", "d"], limit=2)
    browser.open("#/requests")
    browser.click("td a", "monday")
    assert browser.sees("Why it waits", "0%")
    assert browser.hash == "#/requests/monday"
    settle(serving, take(serving)[0], result="A")
    assert browser.sees("25%", "1 of 4")  # nothing was clicked: the page follows

    browser.click("button", "Pause")
    confirm(browser, "Nothing more of it starts until it is resumed")
    until(serving, "monday", state="paused")
    browser.one(".badge", "paused")
    browser.click("button", "Resume")
    confirm(browser, "Workers take its 3 sub-requests again")
    until(serving, "monday", state="active")
    browser.one(".head .badge", "waiting")

    browser.click("summary", "Change")
    (lease,) = take(serving)
    browser.one(".head .badge", "working")
    browser.click("button", "Limit")  # the menu stays open although the state has changed
    settle(serving, lease, result="B")
    field = browser.one("dialog input")
    field.clear()
    field.send_keys("7")
    confirm(browser, "Workers above a lower limit finish")
    until(serving, "monday", limit=7)
    assert browser.sees("50%", "2 of 4")

    browser.click(".head button", "Cancel")
    confirm(browser, "2 of its 4 sub-requests have not ended and will not run")
    until(serving, "monday", state="cancelled", reason="cancelled in the dashboard")
    assert browser.sees("Cancelled", "cancelled in the dashboard")


@pytest.mark.rest
def test_a_request_shows_how_many_repeats_were_left_out(browser: Browser, serving: Serving):
    submit(serving, "once", ["a", "b", "a", "a"], distinct=True)
    browser.open("#/requests/once")
    assert browser.sees("Left out", "repeats")
    submit(serving, "plain", ["a", "a"])
    browser.open("#/requests/plain")
    assert browser.sees("0 of 2")
    assert not browser.run("return document.body.innerText.includes('Left out')")


@pytest.mark.rest
def test_a_request_that_is_open_has_no_share_yet(
    browser: Browser, serving: Serving, redis_url: str
):
    program.begin_submission(redis_url)
    count = len(program.settle(redis_url, lambda _, body: body))
    browser.open("#/requests/mine")
    browser.sees(f"{count} of {count} so far: more may come")
    assert "100%" not in browser.text
    meter = browser.one(".meter.large").get_attribute("aria-label")
    assert meter == f"{count} done of {count} so far"
    browser.open("#/requests")
    browser.sees("mine", "so far")
    assert "100%" not in browser.text


@pytest.mark.rest
def test_what_a_page_shows_is_never_run(browser: Browser, serving: Serving):
    submit(serving, "evil", [SCRIPT, SCRIPT, SCRIPT], attempts=1)
    done, dead, _ = take(serving, 3)
    settle(serving, done, result=SCRIPT)
    settle(serving, dead, reason=SCRIPT)
    assert serving.call("POST", "/v1/requests/evil/cancel", {"reason": SCRIPT}).status == 200
    title = "document.title='run'"
    browser.open("#/requests/evil")
    browser.click("button", "Show the first")
    browser.one(".results .content", title)
    browser.one(".failures", title)
    browser.open("#/dead?request=evil")
    browser.one("pre", title)
    browser.open("#/dead")
    browser.one(".failures", title)
    browser.open("#/audit")
    browser.one("table", title)
    browser.open(f"#/requests?q={SCRIPT}")
    browser.one("#filter-problem")
    assert browser.run("return document.title") != "run"
    assert browser.problems() == []
    browser.open("#/requests/%3Cscript%3Ealert(1)%3C%2Fscript%3E")
    browser.one("h1", "<script>alert(1)</script>")
    browser.one(".notice")
    assert all("404" in one for one in browser.problems())  # there is no such request


@pytest.mark.rest
def test_the_filter_completes_refuses_and_finds(browser: Browser, serving: Serving):
    submit(serving, "bulk", ["a"], priority=50, tags=["nightly"])
    submit(serving, "urgent", ["a"], priority=1)
    browser.open("#/requests")
    browser.one("td a", "bulk")
    browser.keys("/")
    browser.keys("pri")
    browser.one("#hints li", "priority:")
    browser.keys("down", "enter")
    browser.keys("0..9")
    browser.keys("enter")
    wait_until(lambda: [one.text for one in browser.all("td a.mono")] == ["urgent"], WAIT_S)
    assert browser.hash == "#/requests?q=priority%3A0..9"
    browser.keys(" statt:active")
    browser.keys("enter")
    browser.one("#filter-problem", "did you mean state:")
    assert browser.run("return document.querySelector('[data-filter]').ariaInvalid") == "true"
    browser.open("#/requests?q=tag:nightly")
    browser.one("td a", "bulk")
    assert [one.text for one in browser.all("td a.mono")] == ["bulk"]


@pytest.mark.rest
def test_a_keyboard_is_enough(browser: Browser, serving: Serving):
    submit(serving, "first", ["a"])
    submit(serving, "second", ["a"])
    browser.open("#/overview")
    browser.one("nav")
    browser.keys("?")
    browser.one("dialog", "Go to")
    browser.keys("escape")
    browser.keys("g", "r")
    wait_until(lambda: browser.hash == "#/requests", WAIT_S)
    browser.one("td a", "first")
    browser.keys("j", "j")
    browser.one("tr.at", "second")
    browser.keys("k")
    browser.one("tr.at", "first")
    browser.keys("enter")
    wait_until(lambda: browser.hash == "#/requests/first", WAIT_S)
    browser.one("button", "Pause")
    browser.keys("p")
    browser.one("dialog .effect", "Nothing more of it starts")
    browser.keys("enter")
    until(serving, "first", state="paused")
    theme = "return document.documentElement.dataset.theme"
    before = browser.run(theme)
    browser.keys("t")
    chosen = browser.run(theme)
    assert chosen in {"light", "dark"} - {before}
    browser.open("#/requests")
    browser.one("td a", "first")
    assert browser.run(theme) == chosen


@pytest.mark.rest
def test_many_requests_are_changed_after_they_were_counted(browser: Browser, serving: Serving):
    for name in ("one", "two", "three"):
        submit(serving, name, ["a"])
    browser.open("#/requests")
    browser.click("[aria-label='Choose one']")
    browser.click("[aria-label='Choose two']")
    browser.one(".bulk", "2 requests chosen")
    browser.click(".bulk button", "Pause")
    confirm(browser, "2 requests will be paused")
    for name, wanted in (("one", "paused"), ("two", "paused"), ("three", "active")):
        until(serving, name, state=wanted)
    browser.click("[aria-label='Choose three']")
    browser.click(".bulk button", "Choose all that fit")
    browser.click(".bulk button", "Cancel")
    confirm(browser, "3 requests will be cancelled")
    for name in ("one", "two", "three"):
        until(serving, name, state="cancelled")


@pytest.mark.rest
def test_dead_sub_requests_are_grouped_and_run_again(browser: Browser, serving: Serving):
    submit(serving, "mail", ["a", "b"], attempts=1)
    for receipt in take(serving, 2):
        settle(serving, receipt, reason="no address")
    until(serving, "mail", state="done")
    browser.open("#/dead")
    browser.one(".failure", "no address")
    browser.click("td a", "mail")
    browser.one("article", "no address")
    browser.click("article button", "Drop")
    confirm(browser, "1 dead sub-request of mail will be deleted")
    # The list is drawn again; a button that goes during a click is not pressed.
    wait_until(lambda: len(browser.all("article")) == 1, WAIT_S, why="the dropped one is gone")
    browser.click("article button", "Requeue")
    confirm(browser, "1 dead sub-request of mail will run again")
    browser.one(".toast", "1 sub-request will run again.")
    browser.open("#/dead")
    assert browser.sees("Nothing has failed for good", "No request has dead sub-requests")


@pytest.mark.rest
def test_counts_of_dead_letters_agree_in_every_view(
    browser: Browser, serving: Serving, program: Program
):
    submit(serving, "mail", ["a", "b", "c"], attempts=1)
    for receipt in take(serving, 3):
        settle(serving, receipt, reason="no address")
    until(serving, "mail", state="done")
    for left, index in ((3, 0), (2, 1), (1, 2), (0, None)):
        errors = serving.curl("/v1/errors").json
        (listed,) = serving.curl("/v1/queues").json["queues"]
        lines = program("dead", "list", "--json").out.splitlines()
        groups = program("dead", "list", "mail", "--json").out.splitlines()
        counts = [
            sum(one["kept"] for one in errors["requests"]),
            sum(one["count"] for one in errors["groups"]),
            sum(json.loads(line)["kept"] for line in lines),
            sum(json.loads(line)["count"] for line in groups),
            listed["dead"],
        ]
        assert counts == [left] * 5
        browser.open("#/dead")
        word = "failed" if left == 3 else "mail"  # it is opened again with the first requeue
        words = (word, f"{left}") if left else ("No request has dead sub-requests",)
        assert browser.sees(*words)
        if index is not None:
            wanted = {"indexes": [index]}
            answer = serving.call("POST", "/v1/requests/mail/dead/requeue", wanted)
            assert answer.status == 200
            program("cancel", "mail")


@pytest.mark.rest
def test_a_hidden_tab_rests(browser: Browser, serving: Serving):
    submit(serving, "monday", ["a"])
    browser.open("#/requests")
    browser.one("td a", "monday")
    hide = """
        Object.defineProperty(document, 'hidden', {configurable: true, get: () => arguments[0]});
        document.dispatchEvent(new Event('visibilitychange'));
        window.calls = 0;
        window.real = window.real || window.fetch;
        window.fetch = (...given) => { window.calls += 1; return window.real(...given); };
    """.replace("arguments[0]", "window.isHidden")
    browser.run("window.isHidden = true;" + hide)
    browser.one(".link", "Paused")
    submit(serving, "tuesday", ["a"])
    browser.run("window.isHidden = false;" + hide)
    browser.one("td a", "tuesday")
    browser.one(".link", "Live")


@pytest.mark.rest
@pytest.mark.parametrize("page", PAGES)
def test_a_phone_shows_every_page_without_scrolling_sideways(
    browser: Browser, serving: Serving, page: str
):
    submit(serving, "a-request-with-quite-a-long-name-" + "x" * 60, ["a"], tags=["nightly"])
    browser.open(f"#/{page}", width=360, height=740)
    browser.one("h1")
    browser.one(".link")
    widths = browser.run("return [document.documentElement.scrollWidth, window.innerWidth]")
    assert widths[0] <= widths[1] == 360
    browser.click(".bar button")
    browser.one(".side a", "Dead letters")


@pytest.mark.rest
def test_no_call_goes_to_another_host(browser: Browser, serving: Serving):
    submit(serving, "monday", ["a"])
    for page in (*PAGES, "requests/monday"):
        browser.open(f"#/{page}")
        browser.one("h1")
        read = "return JSON.stringify(performance.getEntriesByType('resource').map(e => e.name))"
        assert [one for one in json.loads(browser.run(read)) if serving.url not in one] == []


@pytest.mark.rest
def test_marks_of_direction_are_shown_as_their_numbers(browser: Browser, serving: Serving):
    """They would let a text be read in another order, or look like another one."""
    submit(serving, "odd", ["safe\u202egpj.exe"])
    (receipt,) = take(serving)
    settle(serving, receipt, reason="bad \u2066name\u2069 \x1b[31m a\u200b\ufeffb")
    browser.open("#/requests/odd")
    browser.sees("bad \\u2066name\\u2069 \\u001b[31m a\\u200b\\ufeffb")
    browser.open("#/dead")
    browser.sees("bad \\u2066name\\u2069")
    assert not {*"\u202e\u2066\u2069\x1b\u200b\ufeff"} & {
        *browser.run("return document.body.textContent")
    }


@pytest.mark.rest
def test_a_dialog_that_counts_has_the_focus_and_ends_by_keyboard(
    browser: Browser, serving: Serving
):
    submit(serving, "one", ["a"])
    browser.open("#/requests")
    browser.click("td input")
    browser.click(".bulk button", "Cancel")
    browser.one("dialog .effect", "1 request")
    focus = "return document.activeElement.closest('dialog') && document.activeElement.tagName"
    assert browser.run(focus) == "BUTTON"
    browser.keys("escape")
    wait_until(lambda: not browser.all("dialog"), WAIT_S, why="the dialog closes")
    assert state(serving, "one")["state"] == "active"


@pytest.mark.rest
def test_a_tenant_keeps_its_colour_and_unwatched_time_is_no_line(
    browser: Browser, serving: Serving
):
    browser.open("#/overview")
    browser.one("h1", "Overview")
    colours = """
        const { shareChart } = await import(`${location.origin}/dashboard/parts/charts/shares.js`);
        const chart = shareChart();
        const read = () => Object.fromEntries([...chart.node.querySelectorAll(".legend li")]
          .map((one) => [one.innerText || one.textContent, one.className]));
        const parts = [[0, new Map([["b", 5], ["a", 1]])]];
        chart.update({ parts, names: ["b", "a"] });
        const before = read();
        chart.update({ parts, names: ["c", "a", "b"] });
        return [before, read()];
    """
    before, after = browser.run(f"return (async () => {{{colours}}})()")
    assert before == {name: after[name] for name in "ab"}
    assert len(set(after.values())) == 3
    lines = """
        const { lineChart } = await import(`${location.origin}/dashboard/parts/charts/lines.js`);
        const chart = lineChart({ title: "x", gapMs: 5000 });
        document.body.append(chart.node);
        const points = [0, 1, 2, 60, 61, 62].map((s) => [s * 1000, s]);
        chart.update({ names: ["x"], points });
        await new Promise((then) => setTimeout(then, 0));
        for (let n = 0; n < 100 && !chart.node.querySelector("path.stroke"); n++) {
          await new Promise(requestAnimationFrame);
        }
        const count = chart.node.querySelectorAll("path.stroke").length;
        chart.node.remove();
        return count;
    """
    assert browser.run(f"return (async () => {{{lines}}})()") == 2
