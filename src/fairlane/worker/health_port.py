"""The health port. A worker's id is its address; a port that refuses proves the worker dead."""

from __future__ import annotations

import errno
import ipaddress
import json
import re
import secrets
import selectors
import socket
import sys
from collections import Counter
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairlane.common import clock
from fairlane.drivers import urls
from fairlane.errors import InvalidArgument, WorkerRefused
from fairlane.metrics import DEMAND, MEDIA, WANTED, WORKER, text_of
from fairlane.protocol.keys import check_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairlane.records import Demand


_CLIENT_S = 1.0  # a connection's time, from its first moment to the end of its answer
_CLIENTS_MOST = 64  # connections that are open, and as many that wait to be accepted
_REQUEST_MOST = 1 << 13  # bytes of a request that are read
_HEAD_END = b"\r\n\r\n"
_LAST_PORT = 65_535
_BRACKETED = re.compile(r"\[([^\[\]]*:[^\[\]]*)\]:(.*)")


def split_id(worker: str) -> tuple[str, int]:
    """Returns the host and port of `host:port` or `[host]:port`. Raises InvalidArgument.

    An IPv6 address may have brackets here. A worker's registered id has none.
    """
    bracketed = _BRACKETED.fullmatch(worker) if isinstance(worker, str) else None
    name = check_name("worker id", f"{bracketed[1]}:{bracketed[2]}" if bracketed else worker)
    host, _, port = name.rpartition(":")
    if not _is_host(host) or not port.isdigit() or not 0 <= int(port) <= _LAST_PORT:
        raise InvalidArgument(
            f"worker id {worker!r} is not valid: host:port is expected, as in 127.0.0.1:7101 "
            "or [::1]:7101"
        )
    return host, int(port)


def _is_host(text: str) -> bool:
    """Returns False if `text` is empty, or has colons and is no IPv6 address."""
    if ":" not in text:
        return bool(text)
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True


def own_address(worker: str) -> tuple[str, int]:
    """Returns the host and port that a worker with this id listens on. Raises InvalidArgument.

    Other workers connect to that address to find out whether the worker lives. So 0.0.0.0 and ::
    are refused, because on each machine they mean that machine.
    """
    host, port = split_id(worker)
    if not host.strip("0.:"):
        raise InvalidArgument(
            f"worker id {worker} cannot be reached from other machines: give an address or a name "
            f"of this machine, as in {socket.gethostname()}:{port}"
        )
    return host, port


@dataclass(slots=True)
class _Client:
    """One connection. `left` is the rest of its answer; empty until it has sent a request."""

    socket: socket.socket
    group: bytes  # what counts as one caller
    until: float  # in seconds of clock.mono_s
    asked: bytes = b""
    left: bytes = b""


class HealthPort:
    """Answers GET /healthz and /metrics on the worker's own address.

    No client delays the worker. A connection that sends no request is closed after a second. If
    there are too many connections, the caller that has most of them loses its oldest one.
    """

    def __init__(
        self,
        worker: str,
        report: Callable[[], dict[str, Any]],
        demand: Callable[[], Demand | None] = lambda: None,
    ) -> None:
        host, port = own_address(worker)
        self._report, self._demand = report, demand
        self._selector: selectors.BaseSelector  # set by `watch`
        self._clients: dict[int, _Client] = {}  # by file descriptor, the oldest first
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            self.socket = socket.create_server((host, port), family=family, backlog=_CLIENTS_MOST)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise WorkerRefused(
                    f"port {port} of {host} is taken: give this worker another --id"
                ) from None
            raise WorkerRefused(
                f"worker id {worker} can't be listened on: {error.strerror or error}"
            ) from None
        self.socket.setblocking(False)
        self.address = f"{host}:{self.socket.getsockname()[1]}"

    def watch(self, selector: selectors.BaseSelector) -> None:
        """Registers the port, and later its clients; the data of each key is a callback."""
        self._selector = selector
        selector.register(self.socket, selectors.EVENT_READ, self._accept)

    def expire(self) -> None:
        """Closes the connections whose time is over; to be called often."""
        now = clock.mono_s()
        for client in [one for one in self._clients.values() if one.until < now]:
            self._drop(client)

    def close(self) -> None:
        """Stops listening and closes all connections, in a child or at the end.

        Leaves the selector as it is: a child shares the parent's.
        """
        self.socket.close()
        for client in self._clients.values():
            client.socket.close()
        self._clients.clear()

    def _accept(self) -> None:
        """Accepts connections, a bounded number, and answers requests that have arrived already."""
        for _ in range(_CLIENTS_MOST):
            try:
                made, (address, *_) = self.socket.accept()
            except OSError:
                return
            if len(self._clients) >= _CLIENTS_MOST:
                self._make_room()
            made.setblocking(False)
            client = _Client(made, _group_of(address), clock.mono_s() + _CLIENT_S)
            self._clients[made.fileno()] = client
            self._selector.register(made, selectors.EVENT_READ, partial(self._serve, client))
            self._serve(client)

    def _make_room(self) -> None:
        """Closes the oldest connection of the caller that has most of them."""
        groups = Counter(one.group for one in self._clients.values())
        ((most, _),) = groups.most_common(1)
        self._drop(next(one for one in self._clients.values() if one.group == most))

    def _serve(self, client: _Client) -> None:
        """Reads a request, or writes what is left of its answer; never raises, never blocks."""
        if client.socket.fileno() < 0:  # it was dropped after it was selected
            return
        try:
            if not client.left:
                part = client.socket.recv(_REQUEST_MOST)
                client.asked += part
                if part and not _is_whole(client.asked):
                    return
                client.left = self._answer(client.asked)
                again = partial(self._serve, client)
                self._selector.modify(client.socket, selectors.EVENT_WRITE, again)
            client.left = client.left[client.socket.send(client.left) :]
        except BlockingIOError:
            return
        except OSError:
            client.left = b""
        if not client.left:
            self._drop(client)

    def _drop(self, client: _Client) -> None:
        del self._clients[client.socket.fileno()]
        self._selector.unregister(client.socket)
        client.socket.close()

    def _answer(self, asked: bytes) -> bytes:
        """Returns the answer to a request; to a bare probe the health."""
        method, _, rest = asked.partition(b"\n")[0].strip().partition(b" ")
        head, _, body = self._page(rest.partition(b" ")[0] or b"/healthz").partition(_HEAD_END)
        return head + _HEAD_END + (b"" if method == b"HEAD" else body)

    def _page(self, path: bytes) -> bytes:
        report = self._report()
        if path.startswith(b"/metrics"):
            return _http("200 OK", MEDIA, _metrics(report, self._demand()))
        if path.startswith(b"/healthz"):
            status = "200 OK" if report["healthy"] else "503 Service Unavailable"
            return _http(status, "application/json", json.dumps(report) + "\n")
        return _http("404 Not Found", "text/plain", "try /healthz or /metrics\n")


def _group_of(address: str) -> bytes:
    """Returns what counts as one caller: of IPv6 a network, whose owner chooses the rest."""
    if ":" not in address:
        return address.encode()
    return socket.inet_pton(socket.AF_INET6, address.partition("%")[0])[:8]


def _is_whole(asked: bytes) -> bool:
    """Returns True if no more is to be read. A line without a version has no headers behind it."""
    line, end, _ = asked.partition(b"\n")
    is_head = b" HTTP/1." not in line or b"\n\r\n" in asked or b"\n\n" in asked
    return len(asked) >= _REQUEST_MOST or (bool(end) and is_head)


def _http(status: str, kind: str, text: str) -> bytes:
    body = text.encode()
    head = [f"HTTP/1.0 {status}", f"Content-Type: {kind}", f"Content-Length: {len(body)}"]
    return "\r\n".join([*head, "Connection: close"]).encode() + _HEAD_END + body


def _metrics(report: dict[str, Any], demand: Demand | None) -> str:
    known = {**report, "busy_seconds": report["busy_us"] / 1e6}
    values = [(metric, known[name]) for name, metric in WORKER.items()]
    if demand is not None:
        values += [(DEMAND, demand.demand), (WANTED, demand.wanted)]
    return text_of(report["queue"], values)


# ------------------------------------------------------------------ host identity
# Where this worker runs: on which machine, since which boot, and in which network namespace.
#
# Two containers may have the same hostname, and each has a loopback interface of its own. So a
# refused port at a loopback address proves a death only if all three are equal.


_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_NETWORK = Path("/proc/self/ns/net")  # a link to `net:[<number>]`, unique since the boot
_UNKNOWN = secrets.token_hex(8)  # differs from that of every other worker


def whereabouts() -> str:
    """Returns `<hostname> <boot id> <network namespace>`; not on Linux, only the hostname."""
    hostname = socket.gethostname()
    if sys.platform != "linux":
        return hostname
    try:
        return f"{hostname} {_BOOT_ID.read_text().strip()} {_NETWORK.readlink()}"
    except OSError:
        return f"{hostname} {_UNKNOWN}"


def hostname_of(place: str) -> str:
    """Returns the hostname of what `whereabouts` returned, for people."""
    return place.partition(" ")[0]


def is_loopback(worker: str) -> bool:
    """Returns True if the address in a worker's id means a different worker on each machine.

    A hostname may have such an address, too: many systems give their own name to 127.0.1.1. Raises
    OSError for a name that is unknown, InvalidArgument.
    """
    host, port = split_id(worker)
    found = [ipaddress.ip_address(info[4][0]) for info in socket.getaddrinfo(host, port)]
    return any(address.is_loopback or address.is_unspecified for address in found)


def address_towards(url: str) -> str:
    """Returns the address of this machine in Redis's network. Sends nothing."""
    target = urls.read(url)
    host, port = "127.0.0.1", 6379
    if target.hosts:
        host, port = target.hosts[0]
    elif not target.rest.startswith("unix"):
        from urllib.parse import urlsplit

        parts = urlsplit(target.rest)
        host, port = parts.hostname or host, parts.port or port
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, port))
            return str(probe.getsockname()[0])
    except OSError:
        return "127.0.0.1"


def full_id(worker: str | None, url: str) -> str:
    """Returns a worker's id with a host: `:7101` gets the address of this machine towards Redis."""
    if worker is None:
        return "127.0.0.1:0"
    is_port = isinstance(worker, str) and worker[:1] == ":" and worker[1:].isdigit()
    return f"{address_towards(url)}{worker}" if is_port else worker
