"""Signs the dashboard in and out: exchanges a token for a session."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from starlette.responses import Response

from fairlane.common import clock
from fairlane.web import access
from fairlane.web.access import UNAUTHORIZED, Caller, find_token
from fairlane.web.answers import Refusal, counted_as
from fairlane.web.route import Endpoint, document

if TYPE_CHECKING:
    from starlette.requests import Request as Call

    from fairlane.web.app import Site

PATH = "/dashboard/session"
_MAX_BYTES = 1 << 10
_WHOLE_S = 5.0
_MAX_OF_ADDRESS = 8  # sign-ins that go on: their callers have shown no token
_PLAIN = "sign in over https, or at localhost: elsewhere a browser does not say which page calls"


class SignIn(msgspec.Struct, forbid_unknown_fields=True):
    """A bearer token."""

    token: str


async def sign_in(site: Site, request: Call) -> Response:
    """Begins a session. Raises Refusal unless the server's own page calls with a valid token."""
    if not site.has_tokens:
        raise Refusal(409, "this server has no tokens: nothing is to be signed in to")
    if not access.is_own_page(request):
        raise Refusal(403, _PLAIN)
    caller = f"sign-in {counted_as(request)}"
    if site.long_calls[caller] >= _MAX_OF_ADDRESS:
        raise Refusal(429, "too many sign-ins go on: repeat it", {"Retry-After": "1"})
    with site.long_call(caller):
        given = await document(request, SignIn, _MAX_BYTES, whole_s=_WHOLE_S)
    token = find_token(site, given.token)
    if token is None:
        raise Refusal(401, f"{UNAUTHORIZED}: the token is not known here, or has expired")
    response = Response(status_code=204)
    session = site.sessions.begin(token, clock.mono_s())
    access.keep(response, request, site.queue.name, session)
    request.state.caller = Caller.of(token)
    await site.tally.signed(request, f"POST {PATH}")
    return response


async def sign_out(site: Site, request: Call) -> Response:
    """Ends the session, and deletes its cookie."""
    session = access.session_of(request, site.queue.name)
    token = site.sessions.find(session, clock.mono_s())
    site.sessions.end(session)
    if token is not None:
        request.state.caller = Caller.of(token)
        await site.tally.signed(request, f"DELETE {PATH}")
    response = Response(status_code=204)
    access.forget(response, request, site.queue.name)
    return response


ENDPOINTS = (
    Endpoint(method="POST", path=PATH, handle=sign_in, summary="", group=""),
    Endpoint(method="DELETE", path=PATH, handle=sign_out, summary="", group=""),
)
