"""Signs the dashboard in and out: exchanges a token for a cookie."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from starlette.responses import Response

from fairlane.web.access import cookie
from fairlane.web.access.caller import Caller
from fairlane.web.endpoint.admission import UNAUTHORIZED, bound_address, find_token
from fairlane.web.endpoint.problem import Refusal
from fairlane.web.endpoint.reading import document
from fairlane.web.endpoint.route import Endpoint

if TYPE_CHECKING:
    from starlette.requests import Request

    from fairlane.web.endpoint.site import Site

PATH = "/dashboard/session"
_PLAIN = "sign in over https, or at localhost: elsewhere a browser does not say which page calls"


class SignIn(msgspec.Struct, forbid_unknown_fields=True):
    """A bearer token."""

    token: str


async def sign_in(site: Site, request: Request) -> Response:
    """Sets the cookie. Raises Refusal unless the server's own page calls with a valid token."""
    bound_address(site, request)
    given = await document(request, SignIn)
    if site.tokens is None:
        raise Refusal(409, "this server has no tokens: nothing is to be signed in to")
    if not cookie.is_own_page(request):
        raise Refusal(403, _PLAIN)
    token = find_token(site, given.token)
    if token is None:
        raise Refusal(401, f"{UNAUTHORIZED}: the token is not known here, or has expired")
    response = Response(status_code=204)
    cookie.keep(response, request, site.queue.name, given.token)
    request.state.caller = Caller.of(token)
    await site.tally.signed_in(request, f"POST {PATH}")
    return response


async def sign_out(site: Site, request: Request) -> Response:
    """Deletes the cookie."""
    response = Response(status_code=204)
    cookie.forget(response, request, site.queue.name)
    return response


ENDPOINTS = (
    Endpoint(method="POST", path=PATH, handle=sign_in, summary="", group=""),
    Endpoint(method="DELETE", path=PATH, handle=sign_out, summary="", group=""),
)
