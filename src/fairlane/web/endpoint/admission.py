"""Admits a call by its token; without tokens only calls of this machine's programs."""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING

from fairlane.common import clock
from fairlane.errors import InvalidArgument
from fairlane.web.access.caller import ANYONE, LOCAL, Caller, address_of
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
    """Returns the caller; () = every caller is admitted, as often as it calls.

    Raises Refusal unless it has one of these scopes, and if it calls too often.
    """
    if site.tokens is None:
        _refuse_pages(site, request, is_page=is_page)
    if not scopes:
        return LOCAL if site.tokens is None else ANYONE
    if site.tokens is None:
        bound_address(site, request)
        return LOCAL
    token = find_token(site, token_of(request, site.queue.name))
    if token is None:
        bound_address(site, request)
        raise Refusal(401, UNAUTHORIZED, {"WWW-Authenticate": "Bearer"})
    request.state.caller = Caller.of(token)
    _bound(site, token.id)
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


def bound_address(site: Site, request: Request) -> None:
    """Counts a call without a known token. Raises Refusal if its address calls too often."""
    _bound(site, address_of(request))


def _bound(site: Site, caller: str) -> None:
    if site.rates is None:
        return
    wait_s = site.rates.wait_s(caller, clock.mono_s())
    if wait_s:
        after = str(math.ceil(wait_s))
        raise Refusal(429, f"too many calls: repeat it after {after} s", {"Retry-After": after})


def _refuse_pages(site: Site, request: Request, *, is_page: bool) -> None:
    """Refuses calls that a browser makes for a page of another site.

    A page of any site may call the address of this machine, also by a name of its own. A link may
    lead to the dashboard, whose files have no data. Over plain http browsers send Sec-Fetch-Site
    only to their own machine; Origin says it otherwise.
    """
    if site.hosts is not None and (request.url.hostname or "") not in site.hosts:
        raise Refusal(403, "this server has no tokens: call it as localhost")
    if not is_page and _is_of_another_site(request):
        raise Refusal(403, "this server has no tokens: pages of other sites may not call it")


def _is_of_another_site(request: Request) -> bool:
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site not in {"none", "same-origin"}
    origin = request.headers.get("origin")
    host = request.headers.get("host", "").lower()
    return origin is not None and origin.partition("://")[2].lower() != host
