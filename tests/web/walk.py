"""Makes every call of the API's description, and returns what it answers."""

from __future__ import annotations

import contextlib
import json
import re
from http.client import HTTPConnection
from typing import TYPE_CHECKING, Any, NamedTuple

from fairlane.web.app import DESCRIBED
from fairlane.web.openapi import make_document

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tests.web.serving import Serving

STREAMS = {"/v1/live", "/v1/completions", "/v1/requests/{id}/live"}  # they have no end
QUERIES = {"/v1/completions": "?since=0"}
WAIT_S = 30


class Answered(NamedTuple):
    status: int
    text: str  # the headers and the content


class Caller:
    """Calls a server with one token; of a stream without an end it reads the first events.

    `last` is the id of the request whose end is the last one in the completion log.
    """

    def __init__(self, serving: Serving, token: str, last: str) -> None:
        self.host, self.last = serving.url.removeprefix("http://"), last
        self.headers = {"Authorization": f"Bearer {token}"} if token else {}

    def __call__(self, method: str, path: str, content: Any = None, **more: str) -> Answered:
        headers = {**self.headers, **more}
        if content is not None:
            headers["Content-Type"] = "application/json"
        line = HTTPConnection(self.host, timeout=WAIT_S)
        with contextlib.closing(line):
            text = None if content is None else json.dumps(content)
            line.request(method, path, text, headers)
            response = line.getresponse()
            heads = "".join(f"{name}: {value}\n" for name, value in response.getheaders())
            is_stream = response.headers["Content-Type"].startswith("text/event-stream")
            read = self._events(response) if is_stream else response.read().decode()
            return Answered(response.status, heads + read)

    def _events(self, response: Any) -> str:
        found: list[str] = []
        for raw in response:
            line = raw.decode()
            found.append(line)
            is_data = line.startswith("data:")
            is_last = '"now_ms"' in line or '"frames"' in line or f'"{self.last}"' in line
            if line.startswith("event: end") or (is_data and is_last):
                break
        return "".join(found)


def walk(
    caller: Caller, scopes: Sequence[str], objects: Mapping[str, Sequence[str]],
    unfinished: Sequence[str] = (),
) -> Iterator[tuple[str, Answered]]:  # fmt: skip
    """Yields each call that these scopes allow, once for each of the objects of its path.

    Results of requests that are `unfinished` have no end, and are left out.
    """
    document = make_document(DESCRIBED, has_tokens=True)
    for path, methods in document["paths"].items():
        kind, is_task = path.split("/")[2:3], "{task}" in path
        names = objects.get(kind[0] if kind else "", ("x",)) if "{" in path else ("",)
        for method, described in methods.items():
            needs = {scope for one in described.get("security", ()) for scope in one["token"]}
            for name in () if is_task or not needs & {*scopes} else names:
                if path.endswith("/results") and name in unfinished:
                    continue
                made = re.sub(r"\{\w+\}", name, path) + QUERIES.get(path, "")
                content: Any = {} if method in {"post", "put", "patch"} else None
                for accept in ("*/*", "text/event-stream"):
                    if accept == "*/*" and path in STREAMS:
                        continue
                    answered = caller(method.upper(), made, content, Accept=accept)
                    assert answered.status in {200, 404}, (made, answered)
                    yield f"{method} {path}", answered
