"""The health port: a worker's id is its address. A port that refuses means the worker is dead."""

from __future__ import annotations

import errno
import json
import socket
from typing import TYPE_CHECKING, Any

from ..errors import InvalidArgument, WorkerRefused
from ..keys import check_name

if TYPE_CHECKING:
    from collections.abc import Callable

_WAIT_S = 0.2  # for a client's request; one that says nothing must not hold the supervisor

_LAST_PORT = 65_535


def split_id(worker: str) -> tuple[str, int]:
    """`host:port` as (host, port). Raises InvalidArgument."""
    check_name("worker id", worker)
    host, _, port = worker.rpartition(":")
    if not host or not port.isdigit() or not 0 <= int(port) <= _LAST_PORT:
        raise InvalidArgument(
            f"worker id {worker!r} is not valid: host:port is expected, as in 127.0.0.1:7101"
        )
    return host, int(port)


class HealthPort:
    """Answers GET /healthz and /metrics on the worker's own address."""

    def __init__(self, worker: str, report: Callable[[], dict[str, Any]]) -> None:
        host, port = split_id(worker)
        self._report = report
        try:
            self.socket = socket.create_server((host, port), backlog=64)
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

    def answer(self) -> None:
        """Serves one waiting client, in bounded time; never raises."""
        try:
            client, _ = self.socket.accept()
        except OSError:
            return
        with client:
            try:
                client.settimeout(_WAIT_S)
                asked = client.recv(4096).split(b" ")
                client.sendall(self._page(asked[1] if len(asked) > 1 else b"/healthz"))
            except OSError:
                return

    def close(self) -> None:
        """Stops listening."""
        self.socket.close()

    def _page(self, path: bytes) -> bytes:
        report = self._report()
        if path.startswith(b"/metrics"):
            return _http("200 OK", "text/plain; version=0.0.4", _metrics(report))
        if path.startswith(b"/healthz"):
            status = "200 OK" if report["healthy"] else "503 Service Unavailable"
            return _http(status, "application/json", json.dumps(report) + "\n")
        return _http("404 Not Found", "text/plain", "try /healthz or /metrics\n")


def _http(status: str, kind: str, text: str) -> bytes:
    body = text.encode()
    head = [f"HTTP/1.0 {status}", f"Content-Type: {kind}", f"Content-Length: {len(body)}"]
    return "\r\n".join([*head, "Connection: close", "", ""]).encode() + body


_HELP = {
    "done": ("counter", "Sub-requests completed with a result."),
    "failed": ("counter", "Handler calls that failed."),
    "slices": ("counter", "Leases worked off."),
    "busy_us": ("counter", "Microseconds spent in handlers."),
    "unconfirmed": ("counter", "Durable settlements that too few replicas confirmed."),
    "retries": ("counter", "Sub-requests that failed and will run again."),
    "rejected": ("counter", "Sub-requests that the handler rejected."),
    "timeouts": ("counter", "Handler calls whose time ran out."),
    "lost": ("counter", "Results refused because their lease was somebody else's by then."),
    "crashes": ("counter", "Processes that died by themselves."),
    "held": ("gauge", "Leases held now."),
    "processes": ("gauge", "Processes running."),
    "restarts": ("counter", "Processes started again after they died or were killed."),
    "healthy": ("gauge", "1 while Redis answers the beats."),
}


def _metrics(report: dict[str, Any]) -> str:
    lines = []
    for name, (kind, text) in _HELP.items():
        metric = f"fairlane_worker_{name}" + ("_total" if kind == "counter" else "")
        lines += [f"# HELP {metric} {text}", f"# TYPE {metric} {kind}"]
        lines.append(f'{metric}{{queue="{report["queue"]}"}} {int(report[name])}')
    return "\n".join(lines) + "\n"
