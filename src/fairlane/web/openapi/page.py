"""The page that shows the document: plain HTML, without scripts."""

from __future__ import annotations

import json
from functools import cache, lru_cache
from html import escape
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.responses import Response

from fairlane.web.answers import JSON
from fairlane.web.openapi.document import make_document
from fairlane.web.route import Endpoint

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from starlette.requests import Request as Call

    from fairlane.web.app import Site

_MAX_ROOTS = 8  # paths of one process under which applications are mounted
_STYLE = Path(__file__).with_name("page.css")
_Call = tuple[str, str, dict[str, Any]]


def endpoints_for(described: Sequence[Endpoint]) -> tuple[Endpoint, ...]:
    """Returns the endpoints that describe these ones."""

    @lru_cache(maxsize=_MAX_ROOTS)
    def made(root: str, *, has_tokens: bool) -> tuple[bytes, bytes]:
        found = make_document(described, has_tokens=has_tokens, root=root)
        return msgspec.json.encode(found), "".join(_page(found)).encode()

    def texts(site: Site, call: Call) -> tuple[bytes, bytes]:
        return made(call.scope.get("root_path", ""), has_tokens=site.has_tokens)

    async def document(site: Site, call: Call) -> Response:
        """Returns the OpenAPI document."""
        return Response(texts(site, call)[0], media_type=JSON)

    async def page(site: Site, call: Call) -> Response:
        """Returns the page."""
        return Response(texts(site, call)[1], media_type="text/html")

    async def style(_: Site, __: Call) -> Response:
        """Returns the page's style."""
        return Response(_style(), media_type="text/css")

    ways = (("/openapi.json", document), ("/docs", page), ("/docs.css", style))
    return tuple(
        Endpoint(method="GET", path=path, handle=handle, summary="", group="")
        for path, handle in ways
    )


@cache
def _style() -> str:
    return _STYLE.read_text()


def _page(document: dict[str, Any]) -> Iterator[str]:
    title = escape(document["info"]["title"])
    yield '<!doctype html><html lang="en"><meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width">'
    yield f'<title>{title}: calls</title><link rel="stylesheet" href="docs.css">'
    yield f"<main><h1>{title} <small>{escape(document['info']['version'])}</small></h1>"
    yield '<p>The calls of this server. <a href="openapi.json">openapi.json</a> describes them '
    yield "for programs.</p>"
    calls: list[_Call] = [
        (path, method, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    calls.sort(key=lambda call: call[2]["tags"][0])
    for group, several in groupby(calls, key=lambda call: call[2]["tags"][0]):
        yield f"<h2>{escape(group)}</h2>"
        for call in several:
            yield from _call(*call)
    yield "<h2>Types</h2>"
    for name, schema in document["components"]["schemas"].items():
        yield f'<details id="{escape(name)}"><summary><code>{escape(name)}</code> '
        yield f"{escape(schema.get('description', ''))}</summary>{_json(schema)}</details>"
    yield "</main></html>"


def _call(path: str, method: str, operation: dict[str, Any]) -> Iterator[str]:
    yield f"<details><summary><b>{escape(method.upper())}</b> <code>{escape(path)}</code> "
    yield f"{escape(operation['summary'])}</summary><p>{escape(operation['description'])}</p>"
    scopes = [scope for one in operation.get("security", ()) for scope in one["token"]]
    if scopes:
        yield f"<p>Needs a token with the scope {escape(' or '.join(scopes))}.</p>"
    parts = {"Parameters": operation["parameters"], "Content": operation.get("requestBody")}
    for name, part in {**parts, "Answers": operation["responses"]}.items():
        if part:
            yield f"<h3>{name}</h3>{_json(part)}"
    yield "</details>"


def _json(value: Any) -> str:
    return f"<pre>{escape(json.dumps(value, indent=2))}</pre>"
