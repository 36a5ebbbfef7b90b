"""Tests /v1/keys, and which keys a token may name in `limits` and set."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fairlane.errors import InvalidArgument
from fairlane.web.access import SCOPES, AccessToken, Caller, check_patterns
from fairlane.web.answers import Refusal
from tests.support.run.for_each import for_each
from tests.support.servers import backends
from tests.web.calls import is_problem, submit
from tests.web.serving import Serving

if TYPE_CHECKING:
    import redis

    from tests.cli.program import Program

ON_ONE = pytest.mark.parametrize("redis_server", backends.one(), indirect=True)


def put(serving: Serving, name: str, limit: Any, **headers: str) -> Any:
    return serving.call("PUT", f"/v1/keys/{name}", {"limit": limit}, **headers)


@pytest.mark.parametrize("redis_server", backends.every(), indirect=True)
def test_keys_are_listed_shown_set_and_unset(serving: Serving):
    submit(serving, id="r1", bodies=["a"], limits={"api": 1})
    submit(serving, id="r2", bodies=["a"], limits={"api": 1})
    submit(serving, id="r3", bodies=["a"], limits={"task/resize": 2}, priority=50)
    serving.call("POST", "/v1/take", {"count": 1, "visible_for": 60})
    page = serving.curl("/v1/keys").json
    assert [(one["name"], one["limit"], one["held"]) for one in page["keys"]] == [
        ("api", 1, 1),
        ("task/resize", 2, 0),
    ]
    assert serving.curl("/v1/keys?limit=1").json["more"] is True
    api = serving.curl("/v1/keys/api").json
    assert (api["holders"], api["next_requests"], api["waiting"]) == (["r1"], ["r2"], 1)
    assert api["waits_ms"] >= 0
    assert put(serving, "api", 5).json == {"name": "api", "limit": 5, "former": 1}
    shown = serving.curl("/v1/keys").json["keys"][0]
    assert (shown["limit"], shown["is_set"], shown["waiting"]) == (5, True, 0)
    assert put(serving, "api", None).json == {"name": "api", "limit": 5, "former": 5}
    assert put(serving, "task/resize", 9).json["former"] == 2
    assert serving.curl("/v1/keys/task/resize").json["limit"] == 9
    assert put(serving, "new", 4).json == {"name": "new", "limit": 4, "former": None}
    assert put(serving, "new", None).json == {"name": "new", "limit": None, "former": 4}
    assert is_problem(serving.curl("/v1/keys/new"), 404)


@ON_ONE
@for_each(
    "limit, sentence",
    [
        (0, "limit of key api 0 is not valid: a whole number from 1 to 10000 is expected"),
        (10_001, "limit of key api 10001 is not valid"),
        ("many", "limit"),
    ],
)
def test_a_bad_limit_is_refused_in_one_sentence(serving: Serving, limit: Any, sentence: str):
    refused = put(serving, "api", limit)
    assert refused.status == 422
    assert sentence in refused.json["detail"]


@ON_ONE
@for_each(
    "limits, sentence",
    [
        ({"api": 0}, "limit of key api 0 is not valid"),
        ({"a" * 200: 1}, "(200 characters) is not valid"),
        (dict.fromkeys("abcd", 1), "4 keys are too many: a request names at most 3"),
        ({"a{b}": 1}, "key 'a{b}' is not valid"),
        ({"task/": 1}, "key task/ '' is not valid"),
    ],
)
def test_bad_limits_of_a_submission_are_refused_before_anything_is_written(
    serving: Serving, redis_client: redis.Redis, limits: Any, sentence: str
):
    refused = serving.call("POST", "/v1/requests", {"bodies": ["a"], "id": "r1", "limits": limits})
    assert refused.status == 422
    assert sentence in refused.json["detail"]
    assert not redis_client.exists("req:{r1}")


@ON_ONE
@for_each(
    "raw, name",
    [
        ('{"bodies": ["a"], "limits": {"a": 1, "a": 2}}', "a"),
        ('{"bodies": ["a"], "id": "r1", "id": "r2"}', "id"),
        ('{"bodies": ["a"], "task": {"send": 1, "resize": 1, "send": 1}}', "send"),
        ('{"bodies": [{"base64": "aa==", "base64": "bb=="}]}', "base64"),
        ('{"bodies": ["a"], "id": "r1", "\\u0069d": "r1"}', "id"),
    ],
)
def test_a_name_that_is_twice_in_an_object_is_refused(
    serving: Serving, redis_client: redis.Redis, raw: str, name: str
):
    """Else a reader before this one, such as a proxy, may have checked the other value."""
    refused = serving.call("POST", "/v1/requests", raw.encode())
    assert refused.status == 422
    assert refused.json["detail"] == f"name '{name}' is twice in an object: give it once"
    assert not redis_client.exists("{req}:active")


@ON_ONE
def test_an_order_of_a_name_is_not_the_limit_of_that_name(serving: Serving):
    submit(serving, id="r1", bodies=["a"], order_key="k")
    assert put(serving, "k", None).json == {"name": "k", "limit": None, "former": None}


# ------------------------------------------------------------------ rights


@for_each(
    "patterns, key, is_allowed",
    [
        (["acme-*"], "acme-1", True),
        (["acme-*"], "acme-", True),
        (["acme-*"], "acme", False),
        (["acme-*"], "globex-1", False),
        (["acme-*", "api"], "api", True),
        (["api"], "api-2", False),
        (["*"], "task/resize", True),
        (["task/*"], "task/resize", True),
        (["task/*"], "resize", False),
    ],
)
def test_a_token_with_keys_may_name_those(patterns: list[str], key: str, is_allowed: bool):
    for scope in SCOPES:
        token: Any = AccessToken("0" * 8, "t", (scope,), "0" * 64, None, keys=tuple(patterns))  # type: ignore[arg-type]
        if is_allowed:
            Caller.of(token).check_keys([key])
        else:
            with pytest.raises(Refusal, match=f"key {key} is none of this token's keys"):
                Caller.of(token).check_keys([key])


@for_each("scope", SCOPES)
def test_a_token_without_keys_may_name_all_if_it_may_operate_and_else_none(scope: str):
    caller = Caller.of(AccessToken("0" * 8, "t", (scope,), "0" * 64, None))  # type: ignore[arg-type]
    if scope in {"operate", "admin"}:
        caller.check_keys(["api"])
    else:
        with pytest.raises(Refusal, match="it has none"):
            caller.check_keys(["api"])


@for_each(
    "wrong", [[""], ["a b"], ["*a"], ["a**"], ["other/a"], ["a"] * 1 + [str(n) for n in range(20)]]
)
def test_wrong_keys_of_a_token_are_refused(wrong: list[str]):
    with pytest.raises(InvalidArgument, match="key"):
        check_patterns(wrong)


@ON_ONE
def test_each_way_over_http_looks_at_the_keys_of_the_token(
    program: Program, redis_client: redis.Redis
):
    words = ("--scope", "submit", "--scope", "operate", "--key", "acme-*")
    acme = program("token", "create", "acme", *words).id
    plain = program("token", "create", "plain", "--scope", "submit").id
    named = program("token", "list", "--json").out.decode()
    assert '"keys": ["acme-*"]' in named
    with Serving(program) as serving:
        as_acme, as_plain = ({"Authorization": f"Bearer {one}"} for one in (acme, plain))
        ours, theirs = {"acme-1": 3}, {"globex-1": 3}
        new = {"bodies": ["a"], "limits": ours}
        assert serving.call("POST", "/v1/requests", new, **as_acme).status == 201
        assert put(serving, "acme-1", 4, **as_acme).status == 200
        nightly = {"name": "nightly", "cron": "0 3 * * *", "bodies": ["a"], "limits": ours}
        assert serving.call("POST", "/v1/schedules", nightly, **as_acme).status == 200
        assert serving.call("GET", "/v1/me", **as_acme).json["keys"] == ["acme-*"]
        rate, own_rate = ({"rate": "9/s", "rate_key": name} for name in ("globex-1", "acme-1"))
        lines = {"Content-Type": "application/x-ndjson"}
        shared = serving.call("POST", "/v1/requests", {"bodies": ["a"], **own_rate}, **as_acme)
        assert shared.status == 201
        assert (
            serving.call("POST", "/v1/schedules", {**nightly, **own_rate}, **as_acme).status == 200
        )
        before = sorted(redis_client.scan_iter("{req}:key*"))
        refusals = [
            serving.call("POST", "/v1/requests", {"bodies": ["a"], "limits": theirs}, **as_acme),
            serving.call("POST", "/v1/requests", {"bodies": ["a"], "limits": ours}, **as_plain),
            serving.call("POST", "/v1/schedules", {**nightly, "limits": theirs}, **as_acme),
            serving.call("POST", "/v1/requests", {"bodies": ["a"], "order_key": "x"}, **as_acme),
            serving.call("POST", "/v1/schedules", {**nightly, "order_key": "x"}, **as_acme),
            serving.call("POST", "/v1/requests", {"bodies": ["a"], **rate}, **as_acme),
            serving.call("POST", "/v1/requests", {"bodies": ["a"], **own_rate}, **as_plain),
            serving.call("POST", "/v1/requests?rate=9/s&rate_key=x", b"a\n", **lines, **as_acme),
            serving.call("POST", "/v1/schedules", {**nightly, **rate}, **as_acme),
            put(serving, "globex-1", 4, **as_acme),
        ]
        for refused in refusals:
            assert is_problem(refused, 403)
            assert "is none of this token's keys" in refused.json["detail"]
        assert put(serving, "acme-1", 4, **as_plain).status == 403
        assert sorted(redis_client.scan_iter("{req}:key*")) == before
        serving.call("DELETE", "/v1/schedules/nightly", None, **as_acme)
    redis_client.flushall()


# ------------------------------------------------------------------ orders


def stop_an_order(serving: Serving, *names: str, **headers: str) -> None:
    """Submits requests of the order key `chat`; the first one ends with a dead sub-request."""
    for name in names:
        new = {"id": name, "bodies": ["a"], "order_key": "chat", "order_on_dead": "stop"}
        assert serving.call("POST", "/v1/requests", new, **headers).status == 201
    first = serving.call("POST", "/v1/take", {"count": 1, "wait_s": 10}, **headers)
    path = f"/v1/taken/{first.json['taken'][0]['receipt']}/dead"
    assert serving.call("POST", path, {"reason": "no such account"}, **headers).status == 204


@ON_ONE
def test_an_order_that_a_dead_one_stopped_goes_on_when_a_person_says_so(serving: Serving):
    stop_an_order(serving, "r1", "r2", "r3")
    assert serving.curl("/v1/keys/chat").json["stopped_by"] == "r1"
    resumed = serving.call("POST", "/v1/keys/chat/resume")
    assert (resumed.status, resumed.json) == (200, {"name": "chat", "resumed": "r1"})
    assert serving.curl("/v1/keys").json["keys"][0]["stopped_by"] is None
    (taken,) = serving.call("POST", "/v1/take", {"count": 1, "wait_s": 10}).json["taken"]
    assert taken["id"] == "r2"
    again = serving.call("POST", "/v1/keys/chat/resume")
    assert (again.status, again.json) == (200, {"name": "chat", "resumed": None})
    put(serving, "chat", 5)
    assert serving.curl("/v1/keys/chat").json["limit"] == 5
    assert serving.curl("/v1/keys/chat?order=true").json["holders"] == ["r2"]
    put(serving, "chat", None)


@ON_ONE
def test_a_key_without_an_order_has_none_that_goes_on(serving: Serving):
    submit(serving, id="r1", bodies=["a"], limits={"api": 1})
    for name in ("api", "new", "a%7Bb%7D"):
        assert is_problem(serving.call("POST", f"/v1/keys/{name}/resume"), 404)
    assert put(serving, "task/resume", 3).json["limit"] == 3
    assert serving.curl("/v1/keys/task/resume").json["limit"] == 3
    put(serving, "task/resume", None)


@ON_ONE
def test_only_a_token_with_the_key_lets_its_order_go_on(
    program: Program, redis_client: redis.Redis
):
    words = {
        "theirs": ("--scope", "operate", "--key", "acme-*"),
        "ours": ("--scope", "operate", "--key", "chat"),
        "looks": ("--scope", "view"),
        "root": ("--scope", "admin"),
    }
    tokens = {name: program("token", "create", name, *given).id for name, given in words.items()}
    caller = {name: {"Authorization": f"Bearer {token}"} for name, token in tokens.items()}
    with Serving(program) as serving:
        stop_an_order(serving, "r1", "r2", **caller["root"])
        for name in ("theirs", "looks"):
            refused = serving.call("POST", "/v1/keys/chat/resume", **caller[name])
            assert is_problem(refused, 403)
        shown = serving.call("GET", "/v1/keys/chat", **caller["looks"])
        assert shown.json["stopped_by"] == "r1"
        resumed = serving.call("POST", "/v1/keys/chat/resume", **caller["ours"])
        assert resumed.json == {"name": "chat", "resumed": "r1"}
    redis_client.flushall()
