"""Serves a queue over HTTP until SIGTERM or SIGINT, then ends its streams and its calls."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import ipaddress
import logging
import os
import signal
import socket
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fairlane.aio.queue import Queue
from fairlane.drivers.aio import AsyncDriver
from fairlane.errors import InvalidArgument
from fairlane.web.access.caller import Proxies
from fairlane.web.access.tokens import TokenFile
from fairlane.web.endpoint.site import Site

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import uvicorn

    from fairlane.web.access.rates import CallRates
    from fairlane.web.connections import Door

DRAIN_S = 10  # calls may take so long after a signal; then they get 503
_END_S = 5  # and then so long until their callers have it
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
    # Accepted connections inherit it. Without it each answer waits 40 ms for an ACK, because its
    # head and its content are written apart; asyncio does not set it on such a socket.
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return found


def is_local(host: str) -> bool:
    """Returns True if only programs of this machine reach the address."""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


@dataclass(frozen=True, kw_only=True)
class Serving:
    """What is served to whom, at which address.

    `tokens` is the file of bearer tokens. Unless it `needs_tokens`, every program of this machine
    may do everything until that file is there. A taken message is held for `visible_s` seconds.
    `rates` bounds how often a caller calls, None = not at all. `hooks_to_private` lets webhooks
    call addresses that are not of the Internet. `proxies` name their callers.
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
    for number in _SIGNALS:  # the process ends
        signal.signal(number, signal.SIG_IGN)


async def _serve(wanted: Serving, listening: socket.socket, on_start: Callable[[], None]) -> None:
    import uvicorn

    from fairlane.web.app import make_app
    from fairlane.web.connections import Connection, Door

    # They log each form or call that is none; the caller gets that as a refusal.
    logging.getLogger("python_multipart").setLevel(logging.CRITICAL)
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    queue = Queue(AsyncDriver(wanted.url, patience_s=PATIENCE_S), wanted.queue)
    await queue.driver.check()
    site = Site(
        queue, TokenFile(wanted.tokens, is_needed=wanted.needs_tokens), wanted.visible_s,
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
    """Lets a signal end the streams, and then the server; a second one does not wait for calls.

    In both cases each call that goes on gets a refusal. A signal after the block ends the process.
    """
    loop = asyncio.get_running_loop()
    is_over = False

    def end(drain_s: float, end_s: float) -> None:
        server.should_exit = True
        site.stopping.set()
        loop.call_later(drain_s, site.end_calls)
        loop.call_later(drain_s + end_s, door.close)

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
