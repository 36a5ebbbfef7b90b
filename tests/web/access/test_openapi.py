"""Tests the description of the API: it names every call, is OpenAPI 3.1, and has a page."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from fairlane.web.app import DESCRIBED, ENDPOINTS
from fairlane.web.openapi import make_document

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.web.serving import Serving

NOT_DESCRIBED = {
    *(("GET", path) for path in ("/openapi.json", "/docs", "/docs.css")),
    *(("GET", path) for path in ("/", "/dashboard/{file:path}")),
    *((method, "/dashboard/session") for method in ("POST", "DELETE")),
}


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from ([value["$ref"]] if "$ref" in value else [])
        for one in value.values():
            yield from references(one)
    elif isinstance(value, list):
        for one in value:
            yield from references(one)


def test_every_call_is_described_once():
    document = make_document(DESCRIBED, has_tokens=True)
    described = {
        (method.upper(), path) for path, one in document["paths"].items() for method in one
    }
    served = {(end.method, path) for end in ENDPOINTS for path in (end.path, *end.also)}
    assert served - described == NOT_DESCRIBED
    assert described <= served
    operations = [one for path in document["paths"].values() for one in path.values()]
    ids = [one["operationId"] for one in operations]
    assert len(set(ids)) == len(ids)
    assert [one["operationId"] for one in operations if not one["description"]] == []


def test_every_reference_leads_to_a_schema():
    document = make_document(DESCRIBED, has_tokens=True)
    schemas = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    queries = {f"#/components/schemas/{end.query.__name__}" for end in DESCRIBED if end.query}
    assert schemas - queries <= set(references(document)) <= schemas


def test_calls_with_scopes_need_a_token_where_there_are_tokens():
    guarded = make_document(DESCRIBED, has_tokens=True)["paths"]["/v1/take"]["post"]
    assert guarded["security"] == [{"token": ["consume"]}]
    assert "401" in guarded["responses"]
    assert "security" not in make_document(DESCRIBED, has_tokens=False)["paths"]["/v1/take"]["post"]


@pytest.mark.rest
def test_the_page_comes_from_the_server_without_scripts(serving: Serving):
    document = serving.curl("/openapi.json").json
    assert (document["openapi"], json.dumps(document).count("bearer")) == ("3.1.0", 0)
    page = serving.curl("/docs")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert page.headers["content-security-policy"].startswith("default-src 'none'")
    text = page.body.decode()
    assert all(f"<code>{path}</code>" in text for path in document["paths"])
    assert re.findall(r"<script|style=|https?://", text) == []
    assert serving.curl("/docs.css").headers["content-type"] == "text/css; charset=utf-8"
