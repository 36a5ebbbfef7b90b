"""Sends odd values to every cursor, header, parameter and field: no answer is an error of ours."""

from __future__ import annotations

import base64
import contextlib
import json
from http.client import HTTPConnection
from typing import TYPE_CHECKING, Any, get_args
from urllib.parse import quote

import msgspec
import pytest

from fairlane.web.app import DESCRIBED
from tests.cli.program import END_S

if TYPE_CHECKING:
    from tests.web.serving import Serving

DIGITS = "9" * 4_500
MANY = base64.urlsafe_b64encode(json.dumps(["the queues", "", DIGITS]).encode()).decode()
PLACES = [
    base64.urlsafe_b64encode(
        json.dumps(["queue req", "", "ended", "0", [0, 0, 0, ""], text]).encode()
    ).decode()
    for text in ("0-0", "18446744073709551615-18446744073709551615", "1-99999999999999999999")
]
HALF = base64.urlsafe_b64encode(b'["\\ud800"]').decode()
TEXTS = ["", "-", "-1", "1-", "0-0", "x", "²", "٣", "٣-٣", "1-1-1", "a\nb", "\0", "é" * 200, DIGITS,
         f"1-{DIGITS}", "18446744073709551616-0", "1-18446744073709551616", MANY, HALF, *PLACES, "=", "[]",  # noqa: E501
         "nan", "1e400", "1e308", "-1e308", "true", "null"]  # fmt: skip
VALUES: list[Any] = [
    *(None, True, -1, 0, 10**18, 10**30, 1.5, 1e308, -1e308, "", "x", DIGITS, "\ud800", "a\0b"),
    *([], [None], ["x"] * 2_000, {}, {"base64": "!"}, [{}], [DIGITS], [10**30], [-1]),
]
ENDLESS = {"/v1/completions", "/v1/live", "/v1/requests/{id}/live"}


def paths_with(path: str, texts: list[str]) -> list[str]:
    if "{" not in path:
        return [path]
    head, _, rest = path.partition("{")
    tail = rest.partition("}")[2]
    return [f"{head}{quote(text, safe='')}{tail}" for text in texts if text]


def statuses(
    line: HTTPConnection, method: str, path: str, value: Any = None, **headers: str
) -> int:
    body = None if value is None else json.dumps(value).encode()
    given = {
        "Content-Type": "application/json",
        **{k.replace("_", "-"): v for k, v in headers.items()},
    }
    line.request(method, path, body, given)
    with line.getresponse() as response:
        response.read()
    return response.status


@pytest.mark.rest
def test_no_odd_value_is_an_error_of_the_server(serving: Serving):  # noqa: C901, PLR0912
    broken: list[tuple[object, ...]] = []
    serving.call("POST", "/v1/requests", {"id": "r1", "bodies": ["a"], "delay": "1h"})

    def check(line: HTTPConnection, *call: Any, **headers: str) -> None:
        status = statuses(line, *call, **headers)
        if status >= 500:
            broken.append((status, *(str(one)[:60] for one in call), *headers.values()))

    host = serving.url.removeprefix("http://")
    with contextlib.closing(HTTPConnection(host, timeout=END_S)) as line:
        for end in DESCRIBED:
            for path in paths_with(end.path, TEXTS):
                if len(path) < 8_000 and end.path not in ENDLESS:
                    check(line, end.method, path)
            path = end.path.replace("{id}", "r1").replace("{name}", "n1").replace("{receipt}", "x")
            for field in msgspec.structs.fields(end.query) if end.query else ():
                for text in TEXTS:
                    if end.path not in ENDLESS or _is_refused(text):
                        check(line, end.method, f"{path}?{field.encode_name}={quote(text)}")
            kinds = [end.takes, *get_args(end.takes)] if end.takes else []
            for kind in kinds:
                needed = {
                    one.encode_name: "n1" if one.type is str else ["a"]
                    for one in msgspec.structs.fields(kind)
                    if one.required
                }
                for field in msgspec.structs.fields(kind):
                    for value in VALUES:
                        check(line, end.method, path, {**needed, field.encode_name: value})
        for text in TEXTS:
            if text.isprintable() and text.isascii():
                for path in ("/v1/requests/r1/results?order=x", "/v1/requests/r2/results"):
                    check(line, "GET", path, Last_Event_ID=text)
                if _is_refused(text):
                    check(line, "GET", "/v1/requests/r1/results", Last_Event_ID=text)
                    check(line, "GET", "/v1/completions", Last_Event_ID=text)
    assert broken == []


def _is_refused(text: str) -> bool:
    return len(text) > 22 or text in {"-", "-1", "1-", "x", "1-1-1", "=", "[]", "nan", "²", "٣"}
