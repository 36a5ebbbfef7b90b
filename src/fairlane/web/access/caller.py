"""The caller of an endpoint: the name and the scopes of its token, and its address."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, NamedTuple

from fairlane.errors import InvalidArgument
from fairlane.web.access.tokens import SCOPES, all_scopes

if TYPE_CHECKING:
    from collections.abc import Iterable

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


LOCAL = Caller("local", SCOPES)  # a program of this machine, where there are no tokens
ANYONE = Caller("", ())  # a call that needs no token

_ONE_SITE = 64  # bits of an IPv6 address that a network gets: the rest is the caller's choice
_MAX_HOPS = 32  # addresses that a proxy's header may name


class Proxies:
    """The proxies whose X-Forwarded-For names the caller; a caller may write that of any other.

    Raises InvalidArgument.
    """

    def __init__(self, networks: Iterable[str] = ()) -> None:
        self._networks = [_network(text) for text in networks]

    def has(self, address: str) -> bool:
        """Returns True if this is the address of a proxy."""
        found = _parse(address)
        return found is not None and any(found in network for network in self._networks)

    def address_of(self, request: Request) -> str:
        """Returns the address of the caller: behind proxies the last one that is no proxy."""
        peer = request.client.host if request.client else ""
        if not self._networks or not self.has(peer):
            return peer
        named = ",".join(request.headers.getlist("x-forwarded-for"))
        for hop in reversed(named.rsplit(",", _MAX_HOPS)[-_MAX_HOPS:]):
            address = hop.strip()
            if _parse(address) is None:
                break
            if not self.has(address):
                return address
        return peer

    def group_of(self, address: str) -> str | None:
        """Returns what counts as one address; None for a proxy, which has many callers."""
        return None if self.has(address) else group_of(address)


def group_of(address: str) -> str:
    """Returns what counts as one address: all of one network of IPv6 have one owner."""
    found = _parse(address)
    if isinstance(found, ipaddress.IPv6Address):
        return str(ipaddress.IPv6Network((found, _ONE_SITE), strict=False))
    return address if found is None else str(found)


def _parse(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        found = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return getattr(found, "ipv4_mapped", None) or found


def _network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    try:
        return ipaddress.ip_network(text.strip(), strict=False)
    except ValueError:
        raise InvalidArgument(
            f"trusted proxy {text!r} is not valid: give an address or a network, as 10.0.0.0/8"
        ) from None
