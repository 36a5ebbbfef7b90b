"""Sends a whole step of the machine in one round trip, over a unix socket.

It speaks RESP3, so what is published comes along with the replies, and none is ever missed.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

import hiredis

from fairlane.protocol.lua import Dialect, Library, library
from tests.support.scripts.called import called

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.support.servers.server_process import Server


class Wire:
    """A connection to the server, with the product's scripts or those of another folder."""

    def __init__(self, server: Server, root: Path | None = None) -> None:
        self.scripts = Library(root) if root else library()
        self.published: list[tuple[str, str]] = []
        self._shas: dict[str, bytes] = {}
        self._reader = hiredis.Reader()
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(str(server.folder / "redis.sock"))
        self.one("HELLO", 3)
        self.one("FLUSHALL")
        self._socket.sendall(self.pack("PSUBSCRIBE", "done:*"))
        self.one("PING")

    def close(self) -> None:
        """Empties the server."""
        self.one("FLUSHALL")
        self._socket.close()

    @staticmethod
    def pack(*words: Any) -> bytes:
        packed: bytes = hiredis.pack_command(words)
        return packed

    def script(self, name: str, names: Sequence[bytes], **given: Any) -> bytes:
        script = self.scripts[name]
        sha = self._shas.get(name)
        if sha is None:
            source = script.source(Dialect.SINGLE)
            sha = self._shas[name] = self.one("SCRIPT", "LOAD", source)
        call = called(script, names, **given)
        return self.pack("EVALSHA", sha, len(call.keys), *call.keys, *call.args)

    def one(self, *words: Any) -> Any:
        (reply,) = self.ask([self.pack(*words)])
        if isinstance(reply, Exception):
            raise reply
        return reply

    def ask(self, packed: list[bytes]) -> list[Any]:
        """Returns the replies to packed commands; appends what was published to `published`."""
        self._socket.sendall(b"".join(packed))
        replies: list[Any] = []
        while len(replies) < len(packed):
            reply = self._reader.gets()
            if reply is False:
                data = self._socket.recv(1 << 18)
                if not data:
                    raise ConnectionError("the server has gone away")
                self._reader.feed(data)
            elif not isinstance(reply, hiredis.PushNotification):
                replies.append(reply)
            elif reply[0] == b"pmessage":
                self.published.append((reply[2].decode(), reply[3].decode()))
        return replies
