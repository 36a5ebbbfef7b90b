"""Tests that every view has the same word for how a request came out."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from fairlane import Queue
from tests.cli.program import Dead, settle
from tests.support.wait import wait_until
from tests.web.calls import is_problem
from tests.web.receiver import receiving
from tests.web.serving import Serving

if TYPE_CHECKING:
    from tests.cli.program import Program
    from tests.web.browser.browser import Browser

WORDS = {  # request -> outcome, the word for people, the colour of its badge
    "all-good": ("done", "done", "good"),
    "in-part": ("partly_failed", "done, 1 dead", "warn"),
    "all-dead": ("failed", "failed", "bad"),
    "given-up": ("cancelled", "cancelled", ""),
}
OUTCOMES = {name: outcome for name, (outcome, *_) in WORDS.items()}


def fill(program: Program, redis_url: str) -> None:
    def work(_: int, body: bytes) -> bytes:
        if body == b"bad":
            raise Dead("it cannot be")
        return body

    for name, bodies in (("all-good", b"x\ny\n"), ("in-part", b"x\nbad\n"), ("all-dead", b"bad\n")):
        program("submit", "-", "--id", name, stdin=bodies)
    settle(redis_url, work)
    program("submit", "-", "--id", "given-up", stdin=b"x\n")
    program("cancel", "given-up")


def outcomes(rows: list[dict[str, Any]]) -> dict[str, str]:
    return {row["id"]: row["outcome"] for row in rows}


def listed(program: Program, *words: str) -> set[str]:
    rows = json.loads(program("list", "--json", *words).out)["requests"]
    return {row["id"] for row in rows}


@pytest.mark.rest
def test_every_view_has_the_same_word_for_a_request(
    chromium: Browser, program: Program, redis_url: str
):
    with receiving() as receiver:
        program("webhook", "add", "all", receiver.url)
        program("webhook", "add", "bad", receiver.url, "--state", "failed")
        fill(program, redis_url)
        with Serving(program, "--webhooks-to-private") as serving:
            wait_until(lambda: len(receiver.received) == len(WORDS) + 1)
            posted = [json.loads(one.body)["data"] for one in receiver.received]
            http = serving.curl("/v1/requests").json["requests"]
            failed = serving.curl("/v1/requests?state=failed&state=partly_failed").json["requests"]
            refused = serving.curl("/v1/requests?state=faild")
            chromium.url = serving.url
            for width in (1280, 390):
                chromium.open("#/requests", width=width)
                for name, (_, words, colour) in WORDS.items():
                    badge = chromium.one(f"tr:has([href='#/requests/{name}']) .badge", words)
                    assert badge.get_attribute("class") == f"badge {colour}".strip()
            for name, (_, words, colour) in WORDS.items():
                chromium.open(f"#/requests/{name}")
                badge = chromium.one(".head .badge", words)
                assert badge.get_attribute("class") == f"badge {colour}".strip()
            chromium.open("#/dead")
            assert chromium.sees("done, 1 dead", "failed")
            chromium.driver.get("about:blank")
            assert chromium.problems() == []
    assert [one["id"] for one in posted].count("all-dead") == 2
    with Queue.from_url(redis_url) as queue:
        library = queue.list_requests().requests
        single = {name: queue.request(name).progress().outcome for name in WORDS}
        endings = {one.id: one.outcome for one in queue.completions("0", follow=False)}
    command = json.loads(program("list", "--json").out)["requests"]
    for rows in (http, posted, command):
        assert outcomes(rows) == OUTCOMES
    assert {one.id: one.outcome for one in library} == single == endings == OUTCOMES
    table = program("list").out.decode()
    for name, (_, words, _) in WORDS.items():
        assert any(line.startswith(name) and f"  {words}  " in line for line in table.splitlines())
        assert f"state     {words}" in program("status", name).out.decode()
        assert program("wait", name).out.decode() == f"{words}\n"
        assert program("wait", name).code == (words != "done")
    assert {one["id"] for one in failed} == {"in-part", "all-dead"}
    assert listed(program, "--state", "failed") == {"all-dead"}
    assert listed(program, "--state", "done") == {"all-good", "in-part", "all-dead"}
    assert is_problem(refused, 422, "state 'faild' is not valid: did you mean failed?")
    assert "'faild' is not one of" in program("list", "--state", "faild").err
    spark = spark_rows(redis_url)
    for rows in spark:
        assert outcomes(rows) == OUTCOMES


def spark_rows(redis_url: str) -> list[list[dict[str, Any]]]:
    """Returns the rows of both views of Spark's data source, as its reader reads them."""
    pytest.importorskip("pyspark")
    from tests.spark.source.test_views import read

    return [read(redis_url, view=view) for view in ("requests", "completions")]
