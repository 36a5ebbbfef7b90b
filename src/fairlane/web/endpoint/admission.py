"""Admits a call by its token; without tokens only calls of this machine's programs."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from fairlane.errors import InvalidArgument
from fairlane.web.access.caller import ANYONE, LOCAL, Caller
from fairlane.web.access.cookie import token_of
from fairlane.web.endpoint.problem import Refusal

if TYPE_CHECKING:
    from starlette.requests import Request

    from fairlane.web.access.tokens import AccessToken
    from fairlane.web.endpoint.site import Site

UNAUTHORIZED = "You are unauthorized to perform this action"
_log = logging.getLogger(__name__)


def admit(
    site: Site, request: Request, scopes: tuple[str, ...], *, is_page: bool = False
) -> Caller:
    """Returns the caller; () = every caller is admitted.

    Raises Refusal unless it has one of these scopes.
    """
    if site.tokens is None:
        _refuse_pages(site, request, is_page=is_page)
        return LOCAL
    if not scopes:
        return ANYONE
    token = find_token(site, token_of(request, site.queue.name))
    if token is None:
        raise Refusal(401, UNAUTHORIZED, {"WWW-Authenticate": "Bearer"})
    if not any(map(token.allows, scopes)):
        raise Refusal(403, f"{UNAUTHORIZED}: a token with the scope {' or '.join(scopes)} may")
    return Caller.of(token)


def find_token(site: Site, text: str) -> AccessToken | None:
    """Returns the token with this text, None if there is none. Raises Refusal."""
    try:
        return site.tokens.find(text) if site.tokens and text else None
    except (InvalidArgument, OSError) as error:
        _log.error("no token can be checked: %s", error)
        raise Refusal(
            503, "tokens cannot be checked now: the server's log has the details"
        ) from None


def _refuse_pages(site: Site, request: Request, *, is_page: bool) -> None:
    """Refuses calls that a browser makes for a page of another site.

    A page of any site may call the address of this machine, also by a name of its own. A link may
    lead to the dashboard, whose files have no data.
    """
    if (request.url.hostname or "") not in site.hosts:
        raise Refusal(403, "this server has no tokens: call it as localhost")
    if not is_page and request.headers.get("sec-fetch-site", "none") not in {"none", "same-origin"}:
        raise Refusal(403, "this server has no tokens: pages of other sites may not call it")
