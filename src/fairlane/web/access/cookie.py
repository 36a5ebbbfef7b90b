"""The dashboard's sessions: the server keeps them, and the browser has a cookie for its own."""

from __future__ import annotations

import hashlib
import secrets
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from fairlane.web.access.tokens import AccessToken

SIGNED_IN_S = 12 * 3600  # a session ends then: one shift
MAX_SESSIONS = 10_000  # of a server: the oldest one ends first
MAX_SESSIONS_OF_TOKEN = 100
_SAME = "same-origin"


class _Session(NamedTuple):
    token: AccessToken
    ends_s: float


class Sessions:
    """The sessions of one server, in its memory: after a restart people sign in again.

    Only hashes of what the cookies have are kept.
    """

    def __init__(self) -> None:
        self._sessions: dict[str, _Session] = {}  # the oldest first

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(self, token: AccessToken, now_s: float) -> str:
        """Returns the text of a new session, which is kept nowhere."""
        over = [name for name, one in self._sessions.items() if one.ends_s <= now_s]
        own = [name for name, one in self._sessions.items() if one.token.id == token.id]
        over += own[: max(0, len(own) + 1 - MAX_SESSIONS_OF_TOKEN)]
        over += [*self._sessions][: max(0, len(self._sessions) + 1 - MAX_SESSIONS)]
        for name in over:
            self._sessions.pop(name, None)
        text = secrets.token_hex(32)
        self._sessions[_digest(text)] = _Session(token, now_s + SIGNED_IN_S)
        return text

    def find(self, text: str, now_s: float) -> AccessToken | None:
        """Returns the token with which a session began; None if there is none, or it is over.

        The token may have been revoked meanwhile.
        """
        found = self._sessions.get(_digest(text))
        return found.token if found is not None and now_s < found.ends_s else None

    def end(self, text: str) -> None:
        """Ends a session."""
        self._sessions.pop(_digest(text), None)


def _digest(text: str) -> str:
    """Returns the hash of a session. Its 256 random bits need no salt and no slow hash."""
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def is_own_page(request: Request) -> bool:
    """Returns True if the browser says that a page of this server makes the call.

    Browsers say so only over https, and to the address of their own machine.
    """
    return bool(request.headers.get("sec-fetch-site") == _SAME)


def bearer_of(request: Request) -> str | None:
    """Returns the token of the header; "" = it has no token; None = there is no such header."""
    kind, _, text = request.headers.get("authorization", "").partition(" ")
    if not kind:
        return None
    return text.strip() if kind.lower() == "bearer" else ""


def session_of(request: Request, queue: str) -> str:
    """Returns the session that the call's cookie names; "" = none.

    A cookie counts only in calls of the server's own page, because browsers add it to others too.
    """
    return request.cookies.get(_name(queue), "") if is_own_page(request) else ""


def keep(response: Response, request: Request, queue: str, session: str) -> None:
    """Lets the browser keep a session: no script reads it, and no other site's page sends it."""
    response.set_cookie(
        _name(queue), session, SIGNED_IN_S, path=_path(request), secure=_is_encrypted(request),
        httponly=True, samesite="strict",
    )  # fmt: skip


def forget(response: Response, request: Request, queue: str) -> None:
    """Lets the browser forget its session."""
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
