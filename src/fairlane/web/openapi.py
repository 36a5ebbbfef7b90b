"""OpenAPI 3.1 of the endpoints, from their types, with the page that shows it."""

from __future__ import annotations

import json
import re
from functools import cache, lru_cache
from html import escape
from http import HTTPStatus
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.responses import Response

from fairlane.web.answers import EVENTS, JSON, MEDIA, Problem
from fairlane.web.route import FORM, UPLOAD, Endpoint
from fairlane.web.wonderq import ENDPOINTS as WONDERQ
from fairlane.web.wonderq import Error

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from starlette.requests import Request as Call

    from fairlane.web.app import Site


_REF = "#/components/schemas/{name}"
_PARAMETER = re.compile(r"\{(\w+)\}")
_ALWAYS = (429, 500, 503)
_OF_CONTENT = (400, 408, 413, 415, 422)
_EACH_LINE = "Each line is the body of a sub-request."


def make_document(
    endpoints: Sequence[Endpoint], *, has_tokens: bool, root: str = ""
) -> dict[str, Any]:
    """Returns the document; with tokens it says which scope a call needs.

    `root` is the path under which the application is mounted.
    """
    from fairlane import __version__

    types = {id(one): one for end in endpoints for one in (end.takes, end.query, end.gives) if one}
    types |= {id(one): one for one in (Problem, Error)}
    found, components = msgspec.json.schema_components(types.values(), ref_template=_REF)
    schemas = dict(zip(types, found, strict=True))
    _close_tuples(components)
    paths: dict[str, dict[str, Any]] = {}
    for end in endpoints:
        for path in (end.path, *end.also):
            operation = _operation(end, path, schemas, components, has_tokens=has_tokens)
            paths.setdefault(path, {})[end.method.lower()] = operation
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {
            "title": "Fairlane",
            "version": __version__,
            "description": "A queue over HTTP.",
            "license": {"name": "MIT", "identifier": "MIT"},
        },
        "servers": [{"url": root or "/"}],
        "paths": paths,
        "components": {"schemas": components},
    }
    if has_tokens:
        scheme = {"type": "http", "scheme": "bearer", "description": "fairlane token create"}
        document["components"]["securitySchemes"] = {"token": scheme}
    return document


def _close_tuples(schema: Any) -> None:
    """Lets a number of items end a tuple: generators of clients refuse `"items": false`."""
    if isinstance(schema, dict):
        if schema.get("items") is False:
            del schema["items"]
            count = len(schema.get("prefixItems", ()))
            schema |= {"minItems": count, "maxItems": count}
        for part in schema.values():
            _close_tuples(part)
    elif isinstance(schema, list):
        for part in schema:
            _close_tuples(part)


def _operation(
    end: Endpoint, path: str, schemas: dict[int, Any], components: dict[str, Any], *,
    has_tokens: bool,
) -> dict[str, Any]:  # fmt: skip
    operation: dict[str, Any] = {
        "operationId": re.sub(r"\W+", "_", f"{end.method.lower()}{path}").strip("_"),
        "summary": end.summary,
        "description": " ".join((end.handle.__doc__ or "").split()),
        "tags": [end.group],
        "parameters": _parameters(end, path, schemas, components),
        "responses": _responses(end, schemas, has_tokens=has_tokens),
    }
    if has_tokens and end.scopes:
        operation["security"] = [{"token": [scope]} for scope in end.scopes]
    if end.takes:
        media = {JSON: {"schema": schemas[id(end.takes)]}}
        media |= {
            other: {"schema": _content(other, schemas[id(end.takes)])} for other in end.accepts
        }
        operation["requestBody"] = {"content": media}
    return operation


def _content(media: str, takes: dict[str, Any]) -> dict[str, Any]:
    """Returns the schema of content that is no JSON; a form has the fields of the JSON."""
    if media == FORM:
        return takes
    if media == UPLOAD:
        file = {"type": "string", "format": "binary", "description": _EACH_LINE}
        return {"type": "object", "properties": {"file": file}, "required": ["file"]}
    return {"type": "string", "description": _EACH_LINE}


def _parameters(
    end: Endpoint, path: str, schemas: dict[int, Any], components: dict[str, Any]
) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in _PARAMETER.findall(path)
    ]
    if end.query:
        name = schemas[id(end.query)]["$ref"].rpartition("/")[2]
        found += [
            {"name": field, "in": "query", "schema": schema}
            for field, schema in components[name]["properties"].items()
        ]
    return found


def _lines(media: str, schema: dict[str, Any]) -> dict[str, Any]:
    """Returns the description of a stream: text, whose lines or events are of a schema."""
    if "$ref" not in schema:
        return {"schema": schema}
    name = schema["$ref"].rpartition("/")[2]
    each = "The data of each event" if media == EVENTS else "Each line"
    what = f"{each} is JSON of the schema {name}."
    return {"schema": {"type": "string", "description": what, "contentSchema": schema}}


def _responses(end: Endpoint, schemas: dict[int, Any], *, has_tokens: bool) -> dict[str, Any]:
    answer: dict[str, Any] = {"description": HTTPStatus(end.status).phrase}
    if end.gives:
        schema = schemas[id(end.gives)]
        lines = {media: _lines(media, schema) for media in end.streams}
        answer["content"] = lines or {JSON: {"schema": schema}}
    found = {str(end.status): answer}
    kind, media = (Error, JSON) if end in WONDERQ else (Problem, MEDIA)
    refuses = {*end.refuses, *_ALWAYS, *(_OF_CONTENT if end.takes else ())}
    refuses |= {401, 403} if has_tokens and end.scopes else {403}
    for status in sorted(refuses):
        content = {media: {"schema": schemas[id(kind)]}}
        found[str(status)] = {"description": HTTPStatus(status).phrase, "content": content}
    return found


_MAX_ROOTS = 8  # paths of one process under which applications are mounted
_STYLE = Path(__file__).with_name("openapi.css")
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
