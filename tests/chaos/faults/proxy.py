"""A TCP proxy that fails on demand, as a process: `python -m tests.chaos.faults.proxy PORT`.

It prints its own port, then takes one command a line and answers each with a line:
`cut` every connection · `reply` each connection's next reply is cut in its middle · `request` the
same of what goes in · `lose` the next request goes in and its reply never comes out · `stall S`
nothing moves for so long · `delay S` everything takes so much longer, until `delay 0`.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.output import say
from tests.support.servers.server_process import HOST, _die_with_parent

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[3]
_CHUNK = 1 << 16


@dataclass(eq=False)
class Line:
    """One connection through the proxy, both halves of it."""

    ends: tuple[asyncio.StreamWriter, asyncio.StreamWriter]
    broken: str = ""  # what happens to the next bytes: "reply", "request" or "lose"

    def cut(self) -> None:
        """Cuts the connection without the usual close: what is not sent is lost."""
        for end in self.ends:
            end.transport.abort()


@dataclass
class Proxy:
    """All connections, and the faults that are applied to them."""

    port: int
    lines: set[Line] = field(default_factory=set)
    delay_s: float = 0.0
    hurt: int = 0

    def __post_init__(self) -> None:
        self._open = asyncio.Event()
        self._open.set()

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Accepts a client: connects it, and carries bytes both ways until one side ends."""
        try:
            there, out = await asyncio.open_connection(HOST, self.port)
        except OSError:
            writer.transport.abort()
            return
        line = Line((writer, out))
        self.lines.add(line)
        try:
            ways = (
                self._carry(line, reader, out, "request"),
                self._carry(line, there, writer, "reply"),
            )
            await asyncio.gather(*ways)
        finally:
            self.lines.discard(line)
            line.cut()

    async def _carry(
        self, line: Line, source: asyncio.StreamReader, sink: asyncio.StreamWriter, way: str
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(_CHUNK):
                await self._open.wait()
                if self.delay_s:
                    await _pass(self.delay_s)
                if line.broken == way:
                    self.hurt += 1
                    sink.write(data[: len(data) // 2])
                    with contextlib.suppress(OSError):
                        await sink.drain()
                    await _pass(0.01)  # the half has arrived before the line ends
                    break
                if line.broken == "lose" and way == "reply":
                    self.hurt += 1
                    break
                sink.write(data)
                await sink.drain()
        line.cut()

    async def obey(self, command: str) -> str:
        """Runs one command; returns its reply."""
        word, _, number = command.partition(" ")
        touched = len(self.lines)
        match word:
            case "cut":
                for line in list(self.lines):
                    line.cut()
            case "reply" | "request" | "lose":
                for line in self.lines:
                    line.broken = word
            case "stall":
                self._open.clear()
                asyncio.get_running_loop().call_later(float(number), self._open.set)
            case "delay":
                self.delay_s = float(number)
        return f"{touched} {self.hurt}"


async def _pass(seconds: float) -> None:
    over = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_later(seconds, over.set_result, None)
    await over


async def _main(port: int) -> None:
    proxy = Proxy(port)
    server = await asyncio.start_server(proxy.accept, HOST, 0, backlog=512)
    loop = asyncio.get_running_loop()
    say(str(server.sockets[0].getsockname()[1]))
    while command := await loop.run_in_executor(None, sys.stdin.readline):
        say(await proxy.obey(command.strip()))


# ------------------------------------------------------------------ the caller's side


@dataclass
class Running:
    """A proxy in a process of its own."""

    process: subprocess.Popen[str]
    port: int
    done: dict[str, int] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"redis://{HOST}:{self.port}"

    def do(self, command: str) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        _, hurt = map(int, self.process.stdout.readline().split())
        self.done[command] = self.done.get(command, 0) + 1
        self.done["half or lost"] = hurt


@contextlib.contextmanager
def run_proxy(port: int) -> Iterator[Running]:
    """Runs a proxy in front of the server at a port of this machine."""
    process = subprocess.Popen(
        [sys.executable, "-m", __name__, str(port)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=_die_with_parent,  # noqa: PLW1509 - runs one system call, no Python lock
    )
    try:
        assert process.stdout is not None
        yield Running(process, int(process.stdout.readline()))
    finally:
        process.kill()
        process.communicate()


if __name__ == "__main__":
    asyncio.run(_main(int(sys.argv[1])))
