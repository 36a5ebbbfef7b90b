"""The dashboard's files: they come from the package, with tags by which browsers keep them."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from starlette.responses import Response

from fairlane.web.answers import Refusal
from fairlane.web.route import Endpoint

if TYPE_CHECKING:
    from starlette.requests import Request as Call

    from fairlane.web.app import Site

FOLDER = Path(__file__).with_name("static")
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
_COST = 0.02  # a page has some forty files, and each of them is sent from memory
_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


class _File(NamedTuple):
    content: bytes
    media: str
    tag: str


@cache
def files() -> dict[str, _File]:
    """Returns the files by their path below the folder; read once, so no path leads elsewhere."""
    found = {}
    for path in sorted(FOLDER.rglob("*.*")):
        content = path.read_bytes()
        tag = f'"{hashlib.sha256(content).hexdigest()[:20]}"'
        found[path.relative_to(FOLDER).as_posix()] = _File(content, _TYPES[path.suffix], tag)
    return found


async def index(_: Site, request: Call) -> Response:
    """Returns the page."""
    return _answer(request, "index.html")


async def file(_: Site, request: Call) -> Response:
    """Returns a script, a style or the icon of the page."""
    return _answer(request, request.path_params["file"])


def _answer(request: Call, name: str) -> Response:
    found = files().get(name)
    if found is None:
        raise Refusal(404, f"the dashboard has no file {name}")
    headers = {
        "ETag": found.tag,
        "Cache-Control": "no-cache",  # a browser keeps it, and asks whether it has changed
        "Content-Security-Policy": POLICY,
        "Content-Type": found.media,
    }
    known = {one.strip().removeprefix("W/") for one in _known(request).split(",")}
    if found.tag in known or "*" in known:
        return Response(status_code=304, headers=headers)
    return Response(found.content, headers=headers)


def _known(request: Call) -> str:
    return str(request.headers.get("if-none-match", ""))


ENDPOINTS = (
    Endpoint(
        method="GET", path="/", handle=index, summary="", group="", is_page=True, cost=_COST,
    ),
    Endpoint(
        method="GET", path="/dashboard/{file:path}", handle=file, summary="", group="",
        is_page=True, cost=_COST,
    ),
)  # fmt: skip
