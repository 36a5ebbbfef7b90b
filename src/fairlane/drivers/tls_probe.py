"""Detects a server that answers without TLS. One with TLS refuses a plain PING, or hangs up.

A Redis without TLS reads the beginning of a TLS handshake as the beginning of a command, and
waits for its end. So the first handshake has a short timeout, after which a plain PING decides.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Any

import redis

from fairlane.drivers.error_hints import NO_TLS

GREETING_S = 1.0  # of the first handshake, and of the reply to the plain PING
_PING = b"PING\r\n"
_REPLIES = (b"+", b"-")


def greeting_options(options: dict[str, Any]) -> dict[str, Any]:
    """Returns the options of a connection whose handshake has a short timeout."""
    timeout_s = min(GREETING_S, options.get("socket_timeout") or GREETING_S)
    return options | dict.fromkeys(("socket_timeout", "socket_connect_timeout"), timeout_s)


def refuse_plain(options: dict[str, Any]) -> None:
    """Raises ConnectionError if the server answers a plain PING."""
    place, timeout_s = _place(options)
    reply = b""
    with contextlib.suppress(OSError), socket.create_connection(place, timeout_s) as line:
        line.sendall(_PING)
        reply = line.recv(1)
    _judge(reply)


async def refuse_plain_async(options: dict[str, Any]) -> None:
    """Raises ConnectionError if the server answers a plain PING."""
    place, timeout_s = _place(options)
    reply, writer = b"", None
    try:
        with contextlib.suppress(OSError):
            async with asyncio.timeout(timeout_s):
                reader, writer = await asyncio.open_connection(*place)
                writer.write(_PING)
                reply = await reader.read(1)
    finally:
        if writer is not None:
            writer.transport.abort()
    _judge(reply)


def _place(options: dict[str, Any]) -> tuple[tuple[str, int], float]:
    place = options.get("host", "localhost"), int(options.get("port", 6379))
    return place, greeting_options(options)["socket_timeout"]


def _judge(reply: bytes) -> None:
    if reply in _REPLIES:
        raise redis.exceptions.ConnectionError(NO_TLS)
