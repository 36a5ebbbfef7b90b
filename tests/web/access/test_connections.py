"""Tests that connections without a call keep no one out, whatever they send or do not read."""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import socket
from typing import TYPE_CHECKING, Any

import pytest
import uvicorn
from starlette.responses import PlainTextResponse
from uvicorn.server import ServerState

from fairlane.web import server as connections
from fairlane.web.answers import SAFE_HEADERS
from fairlane.web.server import Connection, Door
from tests.support.run.for_each import for_each
from tests.support.wait import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from tests.web.serving import Serving

LARGE = 8 << 20  # more than the buffers of two sockets


class Running:
    """Connections in this process, to an application that waits for `go` or sends much."""

    def __init__(self, door: Door, port: int) -> None:
        self.door, self.port = door, port
        self.go = asyncio.Event()
        self.calls = 0
        self.writers: list[asyncio.StreamWriter] = []

    async def app(self, scope: Any, receive: Any, send: Any) -> None:
        self.calls += 1
        if scope["path"] == "/wait":
            await self.go.wait()
        text = "x" * (LARGE if scope["path"] == "/large" else 2)
        await PlainTextResponse(text)(scope, receive, send)

    async def open(self, text: str = "") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self.writers.append(writer)
        writer.write(text.encode())
        return reader, writer

    async def status(self, path: str) -> int:
        reader, _ = await self.open(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n")
        line = await reader.readline()
        return int(line.split()[1])


@contextlib.asynccontextmanager
async def running(door: Door) -> AsyncIterator[Running]:
    made = Running(door, 0)
    config = uvicorn.Config(made.app, log_config=None, lifespan="off", interface="asgi3")
    config.load()
    state = ServerState()

    def connect() -> Connection:
        return Connection(door, config=config, server_state=state, app_state={})

    server = await asyncio.get_running_loop().create_server(connect, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()
        for one in [*door.connections]:
            one.transport.abort()
        for writer in made.writers:
            writer.transport.abort()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110  nothing announces it
            await asyncio.sleep(0)


@pytest.mark.rest
def test_idle_connections_leave_room_for_calls(serving: Serving):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 4_096)), hard))
    place = serving.url.removeprefix("http://").split(":")
    with contextlib.ExitStack() as stack:
        for _ in range(1_200):
            stack.enter_context(socket.create_connection((place[0], int(place[1]))))
        for path in ("/livez", "/readyz", "/v1/me"):
            assert serving.curl(path).status == 200, path


@for_each(
    "text", ["", "GET", "GET /livez HTTP/1.1\r\nHost: x\r\nX-", "GET / HTTP/1.1\r\nHost: x\r\n\r\n"]
)
def test_a_connection_without_a_call_is_closed(text: str, monkeypatch: pytest.MonkeyPatch):
    async def scenario() -> None:
        door = Door()
        async with running(door) as made:
            reader, writer = await made.open(text)
            await until(lambda: len(door.connections) == 1)
            if text.endswith("\r\n\r\n"):
                await reader.readuntil(b"xx")
            door.sweep()
            assert len(door.connections) == 1
            monkeypatch.setattr(connections, "IDLE_S", 0.0)
            writer.write(b"")
            door.sweep()
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read() == b""
            assert not door.connections

    asyncio.run(scenario())


def test_a_call_that_goes_on_is_not_closed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(connections, "IDLE_S", 0.0)

    async def scenario() -> None:
        async with running(Door()) as made:
            calling = asyncio.create_task(made.status("/wait"))
            await until(lambda: made.calls == 1)
            made.door.sweep()
            made.go.set()
            assert await calling == 200

    asyncio.run(scenario())


def test_an_answer_without_a_reader_is_cut(monkeypatch: pytest.MonkeyPatch):
    async def scenario() -> None:
        async with running(Door()) as made:
            await made.open("GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
            await until(lambda: made.calls == 1)
            (one,) = made.door.connections
            await until(lambda: one.unread > 0)
            monkeypatch.setattr(connections, "IDLE_S", 0.0)
            monkeypatch.setattr(connections, "STUCK_S", 0.0)
            made.door.sweep()
            made.door.sweep()
            assert not made.door.connections

    asyncio.run(scenario())


def test_while_all_places_have_calls_the_health_is_answered(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(connections, "MAX_CALLS", 3)

    async def scenario() -> None:
        async with running(Door()) as made:
            waiting = [asyncio.create_task(made.status("/wait")) for _ in range(3)]
            await until(lambda: made.calls == 3)
            assert await made.status("/other") == 503
            assert await made.status("/livez") == 200
            made.go.set()
            assert await asyncio.gather(*waiting) == [200] * 3
            assert await made.status("/other") == 200

    asyncio.run(scenario())


def test_the_oldest_idle_connection_makes_room(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(connections, "MAX_CALLS", 2)
    monkeypatch.setattr(connections, "MAX_SPARE", 1)

    async def scenario() -> None:
        async with running(Door()) as made:
            calling = asyncio.create_task(made.status("/wait"))
            await until(lambda: made.calls == 1)
            lines = []
            for count in range(3):
                lines.append(await made.open())
                await until(lambda count=count: len(made.door.connections) == min(3, count + 2))  # type: ignore[misc]
            assert await lines[0][0].read() == b""
            made.go.set()
            assert await calling == 200

    asyncio.run(scenario())


def test_one_address_keeps_few_idle_connections(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(connections, "MAX_IDLE_OF_ADDRESS", 5)

    async def opened(door: Door, young_s: float) -> int:
        monkeypatch.setattr(connections, "_YOUNG_S", young_s)
        async with running(door) as made:
            lines = [await made.open() for _ in range(9)]
            await asyncio.gather(*(made.status("/livez") for _ in range(2)))
            assert len(lines) == 9
            return len(door.connections)

    assert asyncio.run(opened(Door(), -1.0)) <= 6
    assert asyncio.run(opened(Door(), 60.0)) >= 9  # their heads may be on the way
    assert asyncio.run(opened(Door(lambda _: None), -1.0)) >= 9  # a proxy has many callers


@pytest.mark.rest
@pytest.mark.parametrize(
    "head",
    ["Content-Length: 2\r\nTransfer-Encoding: chunked", "Transfer-Encoding: chunked"],
    ids=["both", "old"],
)
def test_a_call_whose_end_is_not_clear_ends_its_connection(serving: Serving, head: str):
    version = "1.1" if "Length" in head else "1.0"
    host, port = serving.url.removeprefix("http://").split(":")
    second = "GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as line:
        line.sendall(
            f"POST /messages HTTP/{version}\r\nHost: localhost\r\n{head}\r\n\r\n0\r\n\r\n"
            f"{second}".encode()
        )
        found = b"".join(iter(lambda: line.recv(65_536), b""))
    assert found.startswith(b"HTTP/1.1 400 ")
    assert found.count(b"HTTP/1.1 ") == 1


def test_every_answer_forbids_other_origins_to_read_it(serving: Serving):
    for path in ("/", "/v1/me", "/livez", "/docs", "/nothing", "/dashboard/icon.svg"):
        headers = serving.curl(path).headers
        assert headers["cross-origin-resource-policy"] == "same-origin", path


def test_what_is_no_http_is_a_problem_with_the_headers_of_all_answers(serving: Serving):
    place = serving.url.removeprefix("http://").split(":")
    for text in (b"GET\r\n\r\n", b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"):
        with socket.create_connection((place[0], int(place[1]))) as caller:
            caller.sendall(text)
            head, _, body = b"".join(iter(lambda: caller.recv(4_096), b"")).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400 ")
        for name, value in SAFE_HEADERS.items():
            assert f"\r\n{name.lower()}: {value}".encode() in head
        assert json.loads(body)["status"] == 400
    assert serving.curl("-H", "Upgrade: websocket", "-H", "Connection: Upgrade", "/").status == 200
    assert len(serving.stop().err.splitlines()) == 1  # that there are no tokens


def test_a_content_that_breaks_after_its_answer_leaves_nothing_in_the_log(serving: Serving):
    place = serving.url.removeprefix("http://").split(":")
    with socket.create_connection((place[0], int(place[1]))) as caller:
        head = b"POST /v1/nothing HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        caller.sendall(head)
        assert b"404" in caller.recv(4_096)
        caller.sendall(b"no chunk\r\n")
        with contextlib.suppress(ConnectionResetError):
            assert b"400" not in b"".join(iter(lambda: caller.recv(4_096), b""))
    assert "Traceback" not in serving.stop().err
