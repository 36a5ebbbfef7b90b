"""Admits a call by its token; without tokens only calls of this machine's programs."""

from __future__ import annotations

import logging
import math
import re
from typing import TYPE_CHECKING

from fairlane.common import clock
from fairlane.errors import InvalidArgument
from fairlane.web.access.caller import ANYONE, LOCAL, Caller, group_of
from fairlane.web.access.cookie import bearer_of, session_of
from fairlane.web.endpoint.problem import Refusal

if TYPE_CHECKING:
    from starlette.requests import Request

    from fairlane.web.access.tokens import AccessToken
    from fairlane.web.endpoint.site import Site

UNAUTHORIZED = "You are unauthorized to perform this action"
_BEARER = {"WWW-Authenticate": "Bearer"}
_REVOKED = f"{UNAUTHORIZED}: the token was revoked, or has expired"
_log = logging.getLogger(__name__)
# Headers that proxies and load balancers add. A program that calls directly sends none of them.
_FORWARDED = re.compile(
    r"via|forwarded.*|x-forward.*|x-real-.*|x-original-.*|x-client-ip|x-cluster-client-ip"
    r"|true-client-ip|client-ip|(wl-)?proxy-client-ip|x-remote-.*|remote-addr|x-proxy.*|x-nginx-.*"
    r"|x-host|x-scheme|x-url-scheme|x-script-name|front-end-https|cdn-loop|cf-.*|fastly-.*|fly-.*"
    r"|akamai-.*|x-akamai-.*|x-envoy-.*|x-amzn?-.*|x-azure-.*|x-appengine-.*|x-cloud-.*|x-arr-.*"
    r"|x-vercel-.*|x-ssl-.*|ssl-client-.*"
)


def admit(
    site: Site, request: Request, scopes: tuple[str, ...], *, is_page: bool = False,
    cost: float = 1.0,
) -> Caller:  # fmt: skip
    """Returns the caller; () = every caller is admitted. `cost`: as how many calls it counts.

    Raises Refusal unless it has one of these scopes, and if it calls too often.
    """
    request.state.address = site.proxies.address_of(request)
    address = f"at {group_of(request.state.address)}"
    request.state.counted_as = address
    if not site.has_tokens:
        _refuse_strangers(site, request, is_page=is_page)
    if not scopes:
        _bound(site, address, cost)
        return ANYONE if site.has_tokens else LOCAL
    if not site.has_tokens:
        _bound(site, address, cost)
        return LOCAL
    token = token_of(site, request)
    if token is None:
        _bound(site, address, cost)
        raise Refusal(401, UNAUTHORIZED, _BEARER)
    request.state.caller = Caller.of(token)
    request.state.counted_as = token.id
    _bound(site, token.id, cost, is_known=True)
    if not any(map(token.allows, scopes)):
        raise Refusal(403, f"{UNAUTHORIZED}: a token with the scope {' or '.join(scopes)} may")
    return Caller.of(token)


def check_still(site: Site, request: Request, scopes: tuple[str, ...]) -> None:
    """Raises Refusal if a call that goes on would not be admitted any more."""
    if not scopes or not site.has_tokens:
        return
    token = token_of(site, request)
    if token is None or not any(map(token.allows, scopes)):
        raise Refusal(401, _REVOKED, _BEARER)


def token_of(site: Site, request: Request) -> AccessToken | None:
    """Returns the token that a call shows, or that its session began with. Raises Refusal."""
    bearer = bearer_of(request)
    if bearer is not None:
        return find_token(site, bearer)
    session = session_of(request, site.queue.name)
    began = site.sessions.find(session, clock.mono_s()) if session else None
    try:
        return site.tokens.same(began) if site.tokens and began else None
    except (InvalidArgument, OSError) as error:
        raise _unreadable(error) from None


def find_token(site: Site, text: str) -> AccessToken | None:
    """Returns the token with this text, None if there is none. Raises Refusal."""
    try:
        return site.tokens.find(text) if site.tokens and text else None
    except (InvalidArgument, OSError) as error:
        raise _unreadable(error) from None


def _unreadable(error: Exception) -> Refusal:
    _log.error("no token can be checked: %s", error)
    return Refusal(503, "tokens cannot be checked now: the server's log has the details")


def _bound(site: Site, caller: str, cost: float, *, is_known: bool = False) -> None:
    """Counts a call. Raises Refusal if its caller calls too often."""
    if site.rates is None or not cost:
        return
    wait_s = site.rates.wait_s(caller, clock.mono_s(), cost, is_known=is_known)
    if wait_s:
        after = str(math.ceil(wait_s))
        raise Refusal(429, f"too many calls: repeat it after {after} s", {"Retry-After": after})


def _refuse_strangers(site: Site, request: Request, *, is_page: bool) -> None:
    """Refuses calls that a browser makes for a page of another site, or that a proxy passes on.

    A page of any site may call the address of this machine, also by a name of its own. A link may
    lead to the dashboard, whose files have no data. Over plain http browsers send Sec-Fetch-Site
    only to their own machine; Origin says it otherwise.
    """
    if site.hosts is not None:
        if (request.url.hostname or "") not in site.hosts:
            raise Refusal(403, "this server has no tokens: call it as localhost")
        if proxy := _sign_of_a_proxy(request):
            raise Refusal(
                403,
                f"this server has no tokens, and {proxy} says that a proxy passes this call on: "
                "fairlane token create makes a token",
            )
    if not is_page and _is_of_another_site(request):
        raise Refusal(403, "this server has no tokens: pages of other sites may not call it")


def _sign_of_a_proxy(request: Request) -> str:
    """Returns what shows that a proxy passes the call on, "" if nothing does."""
    for name in request.headers:
        if _FORWARDED.fullmatch(name):
            return str(name)
    # This is what nginx sends unless it is configured otherwise.
    is_closing = request.headers.get("connection", "").lower() == "close"
    return "HTTP/1.0" if request.scope.get("http_version") == "1.0" and is_closing else ""


def _is_of_another_site(request: Request) -> bool:
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site not in {"none", "same-origin"}
    origin = request.headers.get("origin")
    host = request.headers.get("host", "").lower()
    return origin is not None and origin.partition("://")[2].lower() != host
