"""Posts one event, signed as Standard Webhooks specifies, to an address that may be called."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import ipaddress
import socket
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from fairlane.common.text import exact
from fairlane.operations.webhooks import check_url, key_of

if TYPE_CHECKING:
    import httpx2

    from fairlane.operations.webhooks import Webhook

CALL_S = 15.0  # of one post, with the name's resolution and the answer's head
_ERROR_MOST = 200  # characters
_GONE = 410  # the receiver wants no more events
_SLOW_DOWN = {429, 503}
_LONGEST_AFTER_S = 3_600
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
# The registries of special addresses (IANA): what Python has of them depends on its version.
_SPECIAL4 = [
    ipaddress.IPv4Network(text)
    for text in (
        *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16"),
        *("172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24", "192.31.196.0/24", "192.52.193.0/24"),
        *("192.88.99.0/24", "192.168.0.0/16", "192.175.48.0/24", "198.18.0.0/15"),
        *("198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4"),
    )
]
_PUBLIC6 = ipaddress.IPv6Network("2000::/3")  # all that is assigned
_SPECIAL6 = [
    ipaddress.IPv6Network(text)
    for text in ("2001::/23", "2001:db8::/32", "2002::/16", "2620:4f:8000::/48", "3fff::/20")
]
_ISATAP = {b"\x00\x00\x5e\xfe", b"\x02\x00\x5e\xfe"}


class Posted(NamedTuple):
    """What came of a post: "" = it was delivered. `is_over`: the receiver wants nothing more."""

    error: str = ""
    is_over: bool = False
    again_s: float = 0.0  # the receiver asks for a pause


def headers_of(webhook: Webhook, event_id: str, now_s: int, body: bytes) -> dict[str, str]:
    """Returns the three headers of Standard Webhooks, and the content's type."""
    signed = f"{event_id}.{now_s}.".encode() + body
    digest = hmac.new(key_of(webhook.secret), signed, hashlib.sha256).digest()
    return {
        "content-type": "application/json",
        "user-agent": "fairlane",
        "webhook-id": event_id,
        "webhook-timestamp": str(now_s),
        "webhook-signature": f"v1,{base64.b64encode(digest).decode()}",
    }


async def post(
    client: httpx2.AsyncClient, webhook: Webhook, event_id: str, now_s: int, body: bytes,
    *, to_private: bool,
) -> Posted:  # fmt: skip
    """Posts an event. Redirects are not followed, and the answer's content is not read."""
    import httpx2

    headers = headers_of(webhook, event_id, now_s, body)
    try:
        async with asyncio.timeout(CALL_S):
            parts = urlsplit(check_url(webhook.url))
            host = parts.hostname or ""
            port = parts.port or (443 if parts.scheme == "https" else 80)
            address = await _address(host, port, to_private=to_private)
            named = f"[{address}]" if ":" in address else address
            url = parts._replace(netloc=f"{named}:{port}").geturl()
            headers["host"] = parts.netloc
            extensions = {"sni_hostname": host}
            async with client.stream(
                "POST", url, content=body, headers=headers, extensions=extensions
            ) as response:
                return _outcome(response)
    except TimeoutError:
        return Posted(f"no answer in {exact(CALL_S)} s")
    except (OSError, ValueError, httpx2.HTTPError, httpx2.InvalidURL) as error:
        return Posted((str(error) or type(error).__name__)[:_ERROR_MOST])


def _outcome(response: httpx2.Response) -> Posted:
    if response.is_success:
        return Posted()
    after = response.headers.get("retry-after", "")
    again_s = 0
    if response.status_code in _SLOW_DOWN and after.isdecimal():
        again_s = min(int(after[:9]), _LONGEST_AFTER_S)
    return Posted(f"status {response.status_code}", response.status_code == _GONE, again_s)


async def _address(host: str, port: int, *, to_private: bool) -> str:
    """Returns an address of the host. The post goes to this one, whatever the name is later.

    Raises OSError if it is unknown, or if it is not one of the Internet and must be.
    """
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = [str(one[4][0]) for one in found]
    for address in addresses:
        if to_private or is_public(address):
            return address
    named = host if host in addresses else f"{host} ({', '.join(addresses[:3])})"
    raise OSError(
        f"{named} is not an address of the Internet: "
        "fairlane serve --webhooks-to-private allows that"
    )


def is_public(address: str) -> bool:
    """Returns True for an address of the Internet, also if a gateway (NAT64) leads to it.

    Other IPv6 addresses that have an IPv4 one in them are of none: nothing is called by them.
    """
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address):
        if found not in _NAT64:
            is_isatap = found.packed[8:12] in _ISATAP
            return (
                found in _PUBLIC6 and not is_isatap and not any(found in one for one in _SPECIAL6)
            )
        found = ipaddress.IPv4Address(found.packed[12:])
    return not any(found in one for one in _SPECIAL4)
