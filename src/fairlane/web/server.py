"""Serves a queue over HTTP until SIGTERM or SIGINT, then ends its streams and its calls."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import ipaddress
import logging
import os
import resource
import signal
import socket
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import h11
import msgspec
from uvicorn.protocols.http.h11_impl import H11Protocol

from fairlane.aio.queue import Queue
from fairlane.common import clock
from fairlane.drivers.aio import AsyncDriver
from fairlane.errors import InvalidArgument
from fairlane.web.access import LOCAL_HOSTS, Proxies, TokenFile
from fairlane.web.answers import MEDIA, SAFE_HEADERS, Refusal, as_problem
from fairlane.web.app import Site

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import uvicorn
    from starlette.types import Receive, Scope, Send

    from fairlane.web.access import CallRates


# ------------------------------------------------------------------ connections
# The connections of the server: how long one may be without a call, and which one makes room.
#
# A connection without a call is *idle*, whether it never sent a head, sends one slowly, keeps a
# connection for its next call, or does not read the end of an answer. Idle connections never keep
# others out: the oldest one makes room.


MAX_CALLS = 1_000  # concurrent ones; further ones get 503, unless they ask for the health
MAX_SPARE = 64  # connections above that, for calls that ask for the health
MAX_IDLE_OF_ADDRESS = 200
IDLE_S = 10.0  # a connection may be idle for so long, so a head must be whole by then
STUCK_S = 60.0  # a caller that reads nothing of a stream for so long is cut off
HEALTH = ("/livez", "/readyz")
_YOUNG_S = 1.0  # a younger connection is not closed, because its head may be on the way
_FILES = 256  # files that the process opens beside its connections


class Door:
    """All connections of a server. `group_of` returns an address's group; None = it has none."""

    def __init__(self, group_of: Callable[[str], str | None] = lambda address: address) -> None:
        self.connections: set[Connection] = set()
        self.max_calls = _bounded_by_files()
        self._group_of = group_of
        self._idle: dict[Connection, float] = {}  # since when, the oldest first
        self._groups: dict[str, dict[Connection, None]] = {}  # idle ones, the oldest first
        self._stuck: dict[Connection, tuple[float, int]] = {}  # since when, and how much is unread

    @property
    def is_full(self) -> bool:
        """Returns True if another call is refused."""
        return len(self.connections) - len(self._idle) >= self.max_calls

    def enter(self, made: Connection) -> None:
        """Adds a new connection, and closes an older one if there are too many."""
        made.group = self._group_of(made.client[0] if made.client else "")
        self.connections.add(made)
        self.rest(made)
        group = self._groups.get(made.group) if made.group is not None else None
        if group and len(group) > MAX_IDLE_OF_ADDRESS:
            oldest = next(iter(group))
            if clock.mono_s() - self._idle[oldest] > _YOUNG_S:
                self.cut(oldest)
        if len(self.connections) > self.max_calls + MAX_SPARE:
            self.cut(next(iter(self._idle)))

    def rest(self, one: Connection) -> None:
        """Notes that a connection has no call from now on."""
        self.work(one)
        if one not in self.connections:
            return
        self._idle[one] = clock.mono_s()
        if one.group is not None:
            self._groups.setdefault(one.group, {})[one] = None

    def work(self, one: Connection) -> None:
        """Notes that a connection has a call."""
        if self._idle.pop(one, None) is None or one.group is None:
            return
        group = self._groups[one.group]
        del group[one]
        if not group:
            del self._groups[one.group]

    def stall(self, one: Connection) -> None:
        """Notes that the caller reads more slowly than the server writes."""
        self._stuck[one] = clock.mono_s(), one.unread

    def flow(self, one: Connection) -> None:
        """Notes that the caller has read what was written."""
        self._stuck.pop(one, None)

    def leave(self, one: Connection) -> None:
        """Removes a connection that has ended."""
        self.connections.discard(one)
        self.work(one)
        self.flow(one)

    def cut(self, one: Connection) -> None:
        """Ends a connection immediately, whatever is still to be sent."""
        self.leave(one)
        one.transport.abort()

    def close(self) -> None:
        """Ends all connections immediately."""
        for one in [*self.connections]:
            self.cut(one)

    def sweep(self) -> None:
        """Ends the connections that were idle or stuck for too long; to be called often."""
        now = clock.mono_s()
        while self._idle:
            oldest, since = next(iter(self._idle.items()))
            if now - since < IDLE_S:
                break
            if 0 < oldest.unread < oldest.seen_unread:  # it still reads its last answer
                oldest.seen_unread = oldest.unread
                self.rest(oldest)
            else:
                self.cut(oldest)
        for one, (since, unread) in [*self._stuck.items()]:
            if now - since >= STUCK_S:
                if one.unread < unread:
                    self.stall(one)
                else:
                    self.cut(one)


class Connection(H11Protocol):
    """One connection, whose door notes whether it has a call."""

    def __init__(self, door: Door, **given: Any) -> None:
        super().__init__(**given)
        self.group: str | None = None
        self.seen_unread = 0
        self._door = door
        self._whole, self._health = self.app, _only_health(self.app)

    @property
    def unread(self) -> int:
        """Returns how many bytes of answers the caller has not read."""
        return int(self.transport.get_write_buffer_size())

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Adds this connection to the door."""
        super().connection_made(transport)
        self._door.enter(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Removes this connection from the door."""
        self._door.leave(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Reads a part of a call."""
        self._admit()
        super().data_received(data)
        self._note()

    def on_response_complete(self) -> None:
        """Reads the next call, if it has come."""
        self.seen_unread = self.unread
        self._door.rest(self)
        self._admit()
        super().on_response_complete()
        self._note()

    def send_400_response(self, msg: str) -> None:
        """Refuses bytes that are no HTTP; only ends the connection if an answer has begun."""
        if self.conn.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
            content = msgspec.json.encode(Refusal(400, msg).problem)
            headers = {**SAFE_HEADERS, "Content-Type": MEDIA, "Connection": "close"}
            named = [(name.lower().encode(), text.encode()) for name, text in headers.items()]
            for event in (
                h11.Response(status_code=400, headers=named, reason=b"Bad Request"),
                h11.Data(data=content),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _admit(self) -> None:
        """Chooses the app for the next call: only the health if the server is full."""
        self.app = self._health if self._door.is_full else self._whole

    def _note(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self._door.work(self)

    def pause_writing(self) -> None:
        """Lets the call wait until its caller has read."""
        super().pause_writing()
        self._door.stall(self)

    def resume_writing(self) -> None:
        """Lets the call go on."""
        super().resume_writing()
        self._door.flow(self)


def _only_health(app: Any) -> Any:
    async def call(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] in HEALTH:
            await app(scope, receive, send)
            return
        again = {"Retry-After": "1", "Connection": "close"}
        again |= SAFE_HEADERS
        refusal = Refusal(503, "too many calls are going on: try again later", again)
        await as_problem(refusal)(scope, receive, send)

    return call


def _bounded_by_files() -> int:
    """Raises the limit of open files if needed; returns how many calls it has files for."""
    wanted = MAX_CALLS + MAX_SPARE + _FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
            soft = most
    if soft == resource.RLIM_INFINITY:
        return MAX_CALLS
    return max(1, min(MAX_CALLS, soft - MAX_SPARE - _FILES))


DRAIN_S = 10  # calls may take so long after a signal; then they get 503
_END_S = 5  # then their callers may take so long to read it
_HASTE_S = 1  # the same after a second signal
PATIENCE_S = 10.0  # of a call while Redis does not answer; then its caller gets 503
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_BACKLOG = 256
_SWEEP_S = 1.0


def listen(host: str, port: int) -> socket.socket:
    """Returns a socket that listens. Raises InvalidArgument."""
    try:
        found = socket.create_server(
            (host, port),
            family=socket.AF_INET6 if ":" in host else socket.AF_INET,
            backlog=_BACKLOG,
        )
    except (OSError, OverflowError) as error:
        raise InvalidArgument(f"{host}:{port} cannot be served ({error}): name another") from None
    # Accepted connections inherit this option, which asyncio does not set on such a socket. Without
    # it each answer waits 40 ms for an ACK, because its head and its content are written apart.
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return found


def is_local(host: str) -> bool:
    """Returns True if only programs of this machine reach the address."""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


@dataclass(frozen=True, kw_only=True)
class Serving:
    """The queue to serve, its address, and who may call.

    `tokens` is the file of bearer tokens. Unless `needs_tokens`, every program of this machine
    may do everything until that file exists. A taken message is held for `visible_s` seconds.
    `rates` bounds how often a caller calls, None = not at all. `hooks_to_private` lets webhooks
    call addresses that are not of the Internet. `proxies` may name their callers.
    """

    url: str
    queue: str
    host: str
    port: int
    tokens: Path
    needs_tokens: bool
    visible_s: float
    rates: CallRates | None = None
    hooks_to_private: bool = False
    proxies: Proxies = field(default_factory=Proxies)


def serve(wanted: Serving, on_start: Callable[[str], None]) -> None:
    """Serves a queue; `on_start` is called with the address. Raises InvalidArgument."""
    host = wanted.host
    if not wanted.needs_tokens and not is_local(host):
        raise InvalidArgument(
            f"host {host} is reached from elsewhere, and there are no tokens: create one with "
            "fairlane token create"
        )
    TokenFile(wanted.tokens).all()
    listening = listen(host, wanted.port)
    shown = f"[{host}]" if ":" in host else host
    address = f"http://{shown}:{listening.getsockname()[1]}"
    with listening:
        asyncio.run(_serve(wanted, listening, lambda: on_start(address)))
    for number in _SIGNALS:  # the process ends now
        signal.signal(number, signal.SIG_IGN)


async def _serve(wanted: Serving, listening: socket.socket, on_start: Callable[[], None]) -> None:
    import uvicorn

    from fairlane.web.app import make_app

    # These libraries log each malformed form or call, which its caller gets as a refusal.
    logging.getLogger("python_multipart").setLevel(logging.CRITICAL)
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    queue = Queue(AsyncDriver(wanted.url, patience_s=PATIENCE_S), wanted.queue)
    await queue.driver.check()
    site = Site(
        queue, TokenFile(wanted.tokens, is_needed=wanted.needs_tokens), wanted.visible_s,
        hosts=LOCAL_HOSTS | ({wanted.host} if is_local(wanted.host) else set()),
        rates=wanted.rates, hooks_to_private=wanted.hooks_to_private, proxies=wanted.proxies,
    )  # fmt: skip
    door = Door(wanted.proxies.group_of)
    protocol: Any = functools.partial(Connection, door)
    config = uvicorn.Config(
        make_app(site), log_config=None, access_log=False, server_header=False, lifespan="on",
        timeout_graceful_shutdown=DRAIN_S + 2 * _END_S, ws="none", proxy_headers=False,
        http=protocol, loop="asyncio", backlog=_BACKLOG,
    )  # fmt: skip
    server = uvicorn.Server(config)
    sweeping = asyncio.create_task(_sweep(door))
    with _ends_on_signals(server, site, door):
        on_start()
        await server._serve(sockets=[listening])  # noqa: SLF001  serve() also sends the signal on
    sweeping.cancel()


async def _sweep(door: Door) -> None:
    while True:
        await asyncio.sleep(_SWEEP_S)
        door.sweep()


@contextlib.contextmanager
def _ends_on_signals(server: uvicorn.Server, site: Site, door: Door) -> Iterator[None]:
    """Lets a signal end the streams, and then the server. A second one does not wait for calls.

    In both cases a call that still runs gets a refusal. A signal after the block ends the process.
    """
    loop = asyncio.get_running_loop()
    is_over = False

    def end(drain_s: float, end_s: float) -> None:
        server.should_exit = True
        site.stopping.set()
        loop.call_later(drain_s, end_calls, end_s)

    def end_calls(end_s: float) -> None:
        site.end_calls()
        loop.call_later(end_s, door.close)  # counted from here: a late loop still answers

    def on_signal(*_: object) -> None:
        if is_over:
            os._exit(0)
        times = (0, _HASTE_S) if site.stopping.is_set() else (DRAIN_S, _END_S)
        loop.call_soon_threadsafe(end, *times)

    for number in _SIGNALS:
        signal.signal(number, on_signal)
    try:
        yield
    finally:
        is_over = True
