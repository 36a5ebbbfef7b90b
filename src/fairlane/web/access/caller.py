"""The caller of an endpoint: the name and the scopes of its token."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from fairlane.web.access.tokens import SCOPES, all_scopes

if TYPE_CHECKING:
    from starlette.requests import Request

    from fairlane.web.access.tokens import AccessToken


class Caller(NamedTuple):
    """The name and the id of a token, and its scopes, also those that others include.

    The id is "" if the caller has no token.
    """

    name: str
    scopes: tuple[str, ...]
    id: str = ""

    @classmethod
    def of(cls, token: AccessToken) -> Caller:
        """Returns the caller that has this token."""
        return cls(token.name, all_scopes(token.scopes), token.id)


def address_of(request: Request) -> str:
    """Returns the address from which a call came, "" if it is not known."""
    return request.client.host if request.client else ""


LOCAL = Caller("local", SCOPES)  # a program of this machine, where there are no tokens
ANYONE = Caller("", ())  # a call that needs no token
