"""The health port: a worker's id is its address."""

from __future__ import annotations

import json
import socket
import time
from typing import TYPE_CHECKING, Any

import pytest

from fairlane.errors import InvalidArgument, WorkerRefused
from fairlane.worker import health
from fairlane.worker.health import HealthPort, split_id

if TYPE_CHECKING:
    from collections.abc import Iterator

REPORT: dict[str, Any] = {
    "worker": "w:1",
    "queue": "req",
    "pid": 12,
    "healthy": True,
    "draining": False,
    "processes": 2,
    "restarts": 1,
    "held": 3,
    "done": 40,
    "failed": 5,
    "slices": 6,
    "busy_us": 7,
    "unconfirmed": 0,
    "retries": 8,
    "rejected": 9,
    "timeouts": 10,
    "lost": 11,
    "crashes": 12,
}


@pytest.fixture
def report() -> dict[str, Any]:
    """What the port's worker says of itself."""
    return dict(REPORT)


@pytest.fixture
def port(report: dict[str, Any]) -> Iterator[HealthPort]:
    """A port on a free address."""
    made = HealthPort("127.0.0.1:0", lambda: report)
    yield made
    made.close()


def ask(port: HealthPort, request: bytes) -> tuple[bytes, bytes]:
    """The answer's head and body; the client writes before the port looks."""
    with socket.create_connection(split_id(port.address), timeout=5) as client:
        client.sendall(request)
        port.answer()
        said = b""
        while part := client.recv(4096):
            said += part
    head, _, body = said.partition(b"\r\n\r\n")
    return head, body


def test_a_free_port_becomes_the_address(port: HealthPort):
    """Port 0 asks the system; the address names what it chose."""
    host, number = split_id(port.address)
    assert host == "127.0.0.1"
    assert number > 0


def test_healthz_says_all_of_the_report(port: HealthPort):
    """As JSON, with its length, and 200."""
    head, body = ask(port, b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
    assert head.startswith(b"HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n")
    assert f"Content-Length: {len(body)}\r\n".encode() in head + b"\r\n"
    assert json.loads(body) == REPORT


def test_healthz_of_a_worker_that_lost_redis_is_503(port: HealthPort, report: dict[str, Any]):
    """So that whoever balances or restarts can go by the status alone."""
    report["healthy"] = False
    head, body = ask(port, b"GET /healthz HTTP/1.1\r\n\r\n")
    assert head.startswith(b"HTTP/1.0 503 Service Unavailable\r\n")
    assert json.loads(body)["healthy"] is False


def test_metrics_are_in_prometheus_form(port: HealthPort):
    """Each with HELP and TYPE, counters with _total, all with the queue."""
    head, body = ask(port, b"GET /metrics HTTP/1.1\r\n\r\n")
    assert head.startswith(b"HTTP/1.0 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\n")
    lines = body.decode().splitlines()
    samples = [line for line in lines if not line.startswith("#")]
    assert 'fairlane_worker_done_total{queue="req"} 40' in samples
    assert 'fairlane_worker_held{queue="req"} 3' in samples
    for name in ("retries", "rejected", "timeouts", "lost", "crashes"):
        assert f'fairlane_worker_{name}_total{{queue="req"}} {REPORT[name]}' in samples
    assert 'fairlane_worker_healthy{queue="req"} 1' in samples
    for sample in samples:
        name = sample.partition("{")[0]
        kind = "counter" if name.endswith("_total") else "gauge"
        assert f"# TYPE {name} {kind}" in lines
        assert any(line.startswith(f"# HELP {name} ") for line in lines)
    assert body.endswith(b"\n")


def test_another_path_is_404_with_a_hint(port: HealthPort):
    """It names the two that exist."""
    head, body = ask(port, b"GET /favicon.ico HTTP/1.1\r\n\r\n")
    assert head.startswith(b"HTTP/1.0 404 Not Found\r\n")
    assert body == b"try /healthz or /metrics\n"


@pytest.mark.parametrize("request_", [b"\r\n", b"x", b"\xff\x00\xfe"])
def test_what_is_no_request_gets_the_health(port: HealthPort, request_: bytes):
    """A bare probe is answered, too."""
    assert json.loads(ask(port, request_)[1]) == REPORT


def test_a_silent_client_does_not_hold_the_supervisor(port: HealthPort):
    """It is let go after a fifth of a second, and the next one is served."""
    with socket.create_connection(split_id(port.address), timeout=5) as silent:
        before = time.monotonic()
        port.answer()
        assert time.monotonic() - before < 10 * health._WAIT_S
        assert silent.recv(1) == b""
    assert json.loads(ask(port, b"GET /healthz\r\n")[1]) == REPORT


def test_a_client_that_went_away_is_no_error(port: HealthPort):
    """Nor is a call without any client."""
    socket.create_connection(split_id(port.address), timeout=5).close()
    port.answer()
    port.answer()
    assert json.loads(ask(port, b"GET /healthz\r\n")[1]) == REPORT


def test_a_port_that_is_taken_is_refused_with_a_sentence(port: HealthPort):
    """It says which, and what to do."""
    number = split_id(port.address)[1]
    with pytest.raises(WorkerRefused, match=f"port {number} of 127.0.0.1 is taken: give this work"):
        HealthPort(port.address, dict)


def test_a_closed_port_refuses(port: HealthPort):
    """Which is how others know that the worker is dead."""
    port.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(split_id(port.address), timeout=5)


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid"])
def test_an_address_of_another_machine_is_refused_with_a_sentence(host: str):
    """A worker can only listen where it is."""
    with pytest.raises(WorkerRefused, match=f"worker id {host}:0 can't be listened on: "):
        HealthPort(f"{host}:0", dict)


# ------------------------------------------------------------------ split_id


@pytest.mark.parametrize(
    ("worker", "expected"),
    [
        ("127.0.0.1:7101", ("127.0.0.1", 7101)),
        ("a.host-name_1:0", ("a.host-name_1", 0)),
        ("h:65535", ("h", 65_535)),
    ],
)
def test_an_id_is_a_host_and_a_port(worker: str, expected: tuple[str, int]):
    """Split at the last colon."""
    assert split_id(worker) == expected


@pytest.mark.parametrize("worker", ["host", "host:", ":7101", "host:port", "host:65536", "h:-1"])
def test_an_id_that_is_no_address_is_refused(worker: str):
    """With a sentence that shows one."""
    with pytest.raises(InvalidArgument, match=r"host:port is expected, as in 127\.0\.0\.1:7101"):
        split_id(worker)


@pytest.mark.parametrize("worker", ["", "h{x}:1", "h :1", "h" * 127 + ":1"])
def test_an_id_that_cannot_be_in_a_key_is_refused(worker: str):
    """A brace would move the worker's key to another slot."""
    with pytest.raises(InvalidArgument, match=r"worker id .* is not valid: use 1 to 128 letters"):
        split_id(worker)
