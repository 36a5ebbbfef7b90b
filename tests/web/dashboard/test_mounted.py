"""Tests the application of a queue, mounted under a path of another application."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

from fairlane.errors import InvalidArgument
from fairlane.web import asgi
from fairlane.web.access import TokenFile

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path


def client_of(redis_url: str, tokens: Path | None) -> TestClient:
    """Returns a client of an application that has the one of a queue under /queue."""
    inner = asgi(url=redis_url, tokens=tokens)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with inner.router.lifespan_context(inner):
            yield

    return TestClient(Starlette(routes=[Mount("/queue", inner)], lifespan=lifespan))


@pytest.fixture
def client(redis_url: str) -> Iterator[TestClient]:
    with client_of(redis_url, None) as running:
        yield running


def test_it_serves_under_a_path(client: TestClient):
    made = client.post("/queue/v1/requests", json={"bodies": ["a"], "id": "r1"})
    assert (made.status_code, made.json()["id"]) == (201, "r1")
    (taken,) = client.post("/queue/v1/take", json={}).json()["taken"]
    assert client.post(f"/queue/v1/taken/{taken['receipt']}/done", json={}).status_code == 204
    assert client.get("/queue/v1/requests/r1").json()["state"] == "done"
    assert client.get("/queue/v1/nothing").json()["status"] == 404
    assert client.get("/v1/requests/r1").status_code == 404


def test_its_description_and_its_page_name_the_path(client: TestClient):
    document = client.get("/queue/openapi.json").json()
    assert document["servers"] == [{"url": "/queue"}]
    assert 'href="docs.css"' in client.get("/queue/docs").text
    assert client.get("/queue/docs.css").status_code == 200


def test_a_page_of_another_site_may_not_call_it(client: TestClient):
    refused = client.get("/queue/v1/requests", headers={"Sec-Fetch-Site": "cross-site"})
    assert refused.status_code == 403


@pytest.mark.rest
@pytest.mark.parametrize(
    ("origin", "status"),
    [
        *(("http://a.example", 403), ("null", 403), ("http://testserver:8080", 403)),
        *(("http://testserver", 200), ("https://testserver", 200)),
    ],
)
def test_a_page_of_another_site_may_not_call_over_plain_http(
    client: TestClient, origin: str, status: int
):
    headers = {"Origin": origin}  # without Sec-Fetch-Site
    assert client.post("/queue/v1/take", json={}, headers=headers).status_code == status
    assert client.get("/queue/dashboard/icon.svg", headers=headers).status_code == 200


def test_with_tokens_each_call_needs_one(redis_url: str, tmp_path: Path):
    path = tmp_path / "tokens.json"
    _, text = TokenFile(path).create("ci", ["view"])
    with client_of(redis_url, path) as client:
        assert client.get("/queue/v1/me").status_code == 401
        mine = client.get("/queue/v1/me", headers={"Authorization": f"Bearer {text}"}).json()
        assert (mine["name"], mine["has_tokens"]) == ("ci", True)


def test_a_bad_argument_is_refused_when_it_is_made(redis_url: str):
    with pytest.raises(InvalidArgument, match="rate 'fast'"):
        asgi(url=redis_url, tokens=None, rate="fast")
