"""The caller of an endpoint: the name and the scopes of its token."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from fairlane.web.access.tokens import SCOPES, all_scopes

if TYPE_CHECKING:
    from fairlane.web.access.tokens import AccessToken


class Caller(NamedTuple):
    """The name of a token and all scopes that it has, also those that others include."""

    name: str
    scopes: tuple[str, ...]

    @classmethod
    def of(cls, token: AccessToken) -> Caller:
        """Returns the caller that has this token."""
        return cls(token.name, all_scopes(token.scopes))


LOCAL = Caller("local", SCOPES)  # a program of this machine, where there are no tokens
ANYONE = Caller("", ())  # a call that needs no token
