"""Tests the API's rate limits: by token, else by address; and that their memory is bounded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fairlane.errors import InvalidArgument
from fairlane.web import access
from fairlane.web.access import CallRates
from tests.cli.program import NO_SERVER
from tests.web.calls import is_problem
from tests.web.serving import Serving

if TYPE_CHECKING:
    from tests.cli.program import Program


def test_a_burst_and_then_one_each_interval():
    found = CallRates("10/s", 3)
    assert [found.wait_s("a", 0.0) for _ in range(3)] == [0.0] * 3
    assert found.wait_s("a", 0.0) == pytest.approx(0.1)
    assert found.wait_s("b", 0.0) == 0.0
    assert found.wait_s("a", 0.1) == 0.0
    assert found.wait_s("a", 0.1) > 0
    assert [found.wait_s("a", 100.0) for _ in range(4)] == [0.0] * 3 + [pytest.approx(0.1)]


def test_a_refused_call_does_not_count():
    found = CallRates("1/s", 1)
    assert found.wait_s("a", 0.0) == 0.0
    assert [found.wait_s("a", 0.5) for _ in range(9)] == [0.5] * 9
    assert found.wait_s("a", 1.0) == 0.0


def test_no_number_of_addresses_resets_a_count(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(access, "MOST_CALLERS", 100)
    found = CallRates("1/h", 2)
    for caller in ("token", "at 192.0.2.1"):
        assert [found.wait_s(caller, 0.0) for _ in range(3)] == [0.0, 0.0, 3600.0]
    others = [found.wait_s(f"at {i}", 1.0) for i in range(1_000)]
    assert others.count(0.0) == 98 + 2  # those without a place share one count
    for caller in ("token", "at 192.0.2.1"):
        assert found.wait_s(caller, 1.0) == 3599.0
    assert found.wait_s("another token", 1.0, is_known=True) == 0.0
    assert len(found) == 102


def test_a_count_that_is_over_makes_room(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(access, "MOST_CALLERS", 100)
    found = CallRates("1/s", 2)
    for second in range(1_000):
        assert found.wait_s(f"caller {second}", float(second)) == 0.0
    assert len(found) < 5


def test_a_bad_rate_is_refused():
    for rate, burst in (("fast", None), ("0/s", None), ("1/s", 0)):
        with pytest.raises(InvalidArgument):
            CallRates(rate, burst)


@pytest.mark.rest
def test_a_caller_that_calls_too_often_is_429(program: Program):
    tokens = [program("token", "create", name, "--scope", "view").id for name in ("a", "b")]
    with Serving(program, "--rate", "1/h", "--burst", 2) as serving:

        def me(token: str) -> int:
            return serving.curl("-H", f"Authorization: Bearer {token}", "/v1/me").status

        assert [me(tokens[0]) for _ in range(3)] == [200, 200, 429]
        assert [me(tokens[1]) for _ in range(2)] == [200, 200]
        assert [me("wrong") for _ in range(3)] == [401, 401, 429]
        refused = serving.curl("-H", f"Authorization: Bearer {tokens[0]}", "/v1/me")
        assert is_problem(refused, 429, "too many calls")
        assert int(refused.headers["retry-after"]) > 1_000
        assert {serving.curl("/livez").status for _ in range(5)} == {200}


@pytest.mark.rest
def test_calls_without_a_scope_are_counted_by_address(program: Program):
    with Serving(program, "--rate", "1/h", "--burst", 2) as serving:
        assert [serving.curl("/docs").status for _ in range(3)] == [200, 200, 429]
        assert serving.curl("/openapi.json").status == 429
        assert serving.curl("/").status == 429
        for path in ("/livez", "/readyz"):
            assert {serving.curl(path).status for _ in range(5)} == {200}
    with Serving(program, "--rate", "1/h", "--burst", 2) as serving:
        assert {serving.curl("/dashboard/icon.svg").status for _ in range(40)} == {200}
        assert 429 in {serving.curl("/").status for _ in range(40)}


@pytest.mark.rest
def test_callers_behind_a_trusted_proxy_are_counted_apart(program: Program):
    program("token", "create", "a", "--scope", "view")

    def statuses(serving: Serving, *addresses: str) -> list[int]:
        words = [("-H", f"X-Forwarded-For: {one}") for one in addresses]
        return [serving.curl(*one, "/v1/me").status for one in words]

    rate = ("--rate", "1/h", "--burst", 1)
    with Serving(program, *rate, "--trusted-proxy", "127.0.0.0/8") as serving:
        assert statuses(serving, "1.1.1.1", "2.2.2.2", "1.1.1.1") == [401, 401, 429]
        assert statuses(serving, "9.9.9.9, 1.1.1.1, 127.0.0.7", "x") == [429, 401]
        assert statuses(serving, "2001:db8::1", "2001:db8::2", "::ffff:1.1.1.1") == [401, 429, 429]
    with Serving(program, *rate) as serving:  # anyone may write the header
        assert statuses(serving, "1.1.1.1", "2.2.2.2") == [401, 429]
    program("serve", "--trusted-proxy", "proxy").refused(2, "trusted proxy 'proxy'")


def test_guesses_at_the_dashboards_form_are_bounded(program: Program):
    program("token", "create", "a", "--scope", "view")
    page = {"Sec-Fetch-Site": "same-origin"}
    with Serving(program, "--rate", "1/h", "--burst", 2) as serving:
        guesses = [
            serving.call("POST", "/dashboard/session", {"token": "x"}, **page) for _ in "123"
        ]
        assert [one.status for one in guesses] == [401, 401, 429]


def test_words_that_are_no_rate_are_refused(program: Program):
    """This is before a server of Redis that is off is noticed."""
    program("serve", "--rate", "fast", "--redis", NO_SERVER).refused(2, "rate 'fast' is not valid")
    program("serve", "--burst", "2").refused(2, "--burst needs --rate")
