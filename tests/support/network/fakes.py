"""Fake servers that send the replies a test chooses, when a real server cannot be made to."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import TYPE_CHECKING, Any

import hiredis

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Answer = Callable[[list[bytes]], Any]

INFO = b"redis_version:%b\r\nredis_mode:%b\r\nmaxmemory_policy:noeviction\r\n"


class Refusal(str):
    """An error reply: its code and its text."""

    __slots__ = ()


def resp(reply: Any) -> bytes:
    """Encodes a reply as a server writes it; a str is a status."""
    match reply:
        case None:
            return b"$-1\r\n"
        case Refusal():
            return b"-%b\r\n" % reply.encode()
        case str():
            return b"+%b\r\n" % reply.encode()
        case bytes():
            return b"$%d\r\n%b\r\n" % (len(reply), reply)
        case int():
            return b":%d\r\n" % reply
    return b"*%d\r\n" % len(reply) + b"".join(map(resp, reply))


class FakeServer:
    """Listens at 127.0.0.1, with a thread for each connection; `say` answers a command.

    If `say` raises an error, the connection is cut. A driver's first commands are answered here,
    as are those about slots: `slots` has pairs of the last slot and the server, in order. With
    `is_cluster` it has all slots from its first answer on.
    """

    def __init__(
        self,
        say: Answer = lambda _: 1,
        version: str = "7.0.15",
        port: int = 0,
        *,
        is_cluster: bool = False,
    ) -> None:
        self.say = say
        self.version = version
        self.received: list[list[bytes]] = []
        self.connections = 0
        self.delay_s = 0.0  # before each answer
        self.slots: list[tuple[int, FakeServer]] | None = None  # None = no cluster
        if is_cluster:
            self.slots = [(16_383, self)]
        self._listener = socket.create_server(("127.0.0.1", port))
        self.port: int = self._listener.getsockname()[1]
        self._lines: list[socket.socket] = []
        threading.Thread(target=self._listen, daemon=True).start()

    def times(self, *words: bytes) -> int:
        """Returns how often a command that begins so was received."""
        return sum(words_of[: len(words)] == list(words) for words_of in self.received)

    def close(self) -> None:
        for one in (self._listener, *self._lines):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _listen(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                line, _ = self._listener.accept()
                self.connections += 1
                self._lines.append(line)
                threading.Thread(target=self._serve, args=(line,), daemon=True).start()

    def _serve(self, line: socket.socket) -> None:
        reader, pause = hiredis.Reader(), threading.Event()
        with line, contextlib.suppress(OSError):
            while data := line.recv(65_536):
                reader.feed(data)
                while (words := reader.gets()) is not False:
                    self.received.append(words)
                    pause.wait(self.delay_s)
                    line.sendall(resp(self._answer(words)))

    def _answer(self, words: list[bytes]) -> Any:
        match words[0]:
            case b"CLIENT" | b"ASKING":
                return "OK"
            case b"PING":
                return "PONG"
            case b"INFO":
                mode = b"standalone" if self.slots is None else b"cluster"
                return INFO % (self.version.encode(), mode)
            case b"CLUSTER":
                return self._slots()
        return self.say(words)

    def _slots(self) -> list[Any]:
        rows, first = [], 0
        for last, server in self.slots or ():
            name = b"%040d" % server.port
            rows.append([first, last, [b"127.0.0.1", server.port, name]])
            first = last + 1
        return rows


@contextlib.contextmanager
def fake_servers(count: int) -> Iterator[list[FakeServer]]:
    """Yields such servers; each answers 1 to everything. The first of several serves all slots."""
    made = [FakeServer() for _ in range(count)]
    for server in made if count > 1 else ():
        server.slots = [(16_383, made[0])]
    try:
        yield made
    finally:
        for server in made:
            server.close()
