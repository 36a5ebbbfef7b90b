"""Sends commands to Redis without a peer's client, so that all counts have the same source."""

from __future__ import annotations

import socket
from typing import Any
from urllib.parse import urlsplit


class Resp:
    """Sends a command by `redis("LLEN", "key")`; raises an error reply."""

    def __init__(self, url: str) -> None:
        place = urlsplit(url)
        self._socket = socket.create_connection((place.hostname, place.port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._file = self._socket.makefile("rb")

    def __call__(self, *words: str | float) -> Any:
        parts = [str(word).encode() for word in words]
        sent = b"*%d\r\n" % len(parts)
        self._socket.sendall(sent + b"".join(b"$%d\r\n%s\r\n" % (len(p), p) for p in parts))
        return self._read()

    def _read(self) -> Any:
        line = self._file.readline()
        kind, rest = line[:1], line[1:-2]
        if kind == b"-":
            raise RuntimeError(rest.decode())
        if kind == b":":
            return int(rest)
        if kind == b"$":
            return self._file.read(int(rest) + 2)[:-2].decode() if int(rest) >= 0 else None
        if kind == b"*":
            return [self._read() for _ in range(int(rest))] if int(rest) >= 0 else None
        return rest.decode()
