"""The cookie by which the dashboard's page shows a token, and when a call may use it."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

SIGNED_IN_S = 12 * 3600  # a browser forgets the cookie then: one shift
_SAME = "same-origin"


def is_own_page(request: Request) -> bool:
    """Returns True if the browser says that a page of this server makes the call.

    Browsers say so only over https, and to the address of their own machine.
    """
    return bool(request.headers.get("sec-fetch-site") == _SAME)


def token_of(request: Request, queue: str) -> str:
    """Returns the token that a call shows; "" = none.

    A cookie counts only in calls of the server's own page, because browsers add it to others too.
    """
    kind, _, text = request.headers.get("authorization", "").partition(" ")
    if kind:
        return text.strip() if kind.lower() == "bearer" else ""
    return request.cookies.get(_name(queue), "") if is_own_page(request) else ""


def keep(response: Response, request: Request, queue: str, token: str) -> None:
    """Lets the browser keep a token: no script reads it, and no page of another site sends it."""
    response.set_cookie(
        _name(queue), token, SIGNED_IN_S, path=_path(request), secure=_is_encrypted(request),
        httponly=True, samesite="strict",
    )  # fmt: skip


def forget(response: Response, request: Request, queue: str) -> None:
    """Lets the browser forget the token."""
    response.delete_cookie(
        _name(queue), _path(request), secure=_is_encrypted(request), httponly=True,
        samesite="strict",
    )  # fmt: skip


def _name(queue: str) -> str:
    """Returns a name for each queue: servers at other ports of one host share their cookies."""
    return f"fairlane-{hashlib.sha256(queue.encode()).hexdigest()[:8]}"


def _path(request: Request) -> str:
    return f"{request.scope.get('root_path', '')}/"


def _is_encrypted(request: Request) -> bool:
    """Returns True if the page came by https, also through a proxy that ends it."""
    is_page_secure = request.headers.get("origin", "").startswith("https://")
    return request.url.scheme == "https" or is_page_secure
