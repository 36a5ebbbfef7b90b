"""Tests the health port: a worker's id is its address."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen

import pytest

from fairlane.errors import InvalidArgument, WorkerRefused
from fairlane.records import Demand
from fairlane.worker import health_port
from fairlane.worker.health_port import HealthPort, split_id
from tests.support.run.for_each import for_each
from tests.support.scripts.snapshots import NO_BACKLOG
from tests.support.wait import PATIENCE_S, wait_until
from tests.worker.parts import ON_SINGLE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fairlane.queue import Queue
    from tests.support.processes.workers import Workers

Ask = Callable[[bytes], tuple[bytes, bytes]]
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
    "dead": 13,
}


@pytest.fixture
def report() -> dict[str, Any]:
    """Returns the report of the port's worker."""
    return dict(REPORT)


@pytest.fixture
def selector() -> Iterator[selectors.BaseSelector]:
    """The supervisor's selector."""
    with selectors.DefaultSelector() as made:
        yield made


@pytest.fixture
def port(report: dict[str, Any], selector: selectors.BaseSelector) -> Iterator[HealthPort]:
    """Yields a port on a free address, which a supervisor watches."""
    made = HealthPort("127.0.0.1:0", lambda: report)
    made.watch(selector)
    yield made
    made.close()


def look(port: HealthPort, selector: selectors.BaseSelector) -> None:
    """Does what the supervisor does between two ticks; waits for nothing."""
    for key, _ in selector.select(0):
        key.data()
    port.expire()


def connect(port: HealthPort, request: bytes = b"") -> socket.socket:
    """Connects a client that has sent this."""
    client = socket.create_connection(split_id(port.address), timeout=PATIENCE_S)
    client.sendall(request)
    return client


def accept(port: HealthPort, selector: selectors.BaseSelector) -> None:
    """Serves until there is a client."""

    def accepts() -> bool:
        look(port, selector)
        return bool(port._clients)

    wait_until(accepts)


def read(port: HealthPort, selector: selectors.BaseSelector, client: socket.socket) -> bytes:
    """Returns all that a client receives, while the supervisor serves."""
    client.setblocking(False)
    said = b""

    def ends() -> bool:
        nonlocal said
        look(port, selector)
        with contextlib.suppress(BlockingIOError):
            part = client.recv(1 << 24)
            said += part
            return not part
        return False

    with client:
        wait_until(ends, why="the connection is closed")
    return said


@pytest.fixture
def ask(port: HealthPort, selector: selectors.BaseSelector) -> Ask:
    """Sends a request, and returns the reply's head and body."""

    def ask(request: bytes) -> tuple[bytes, bytes]:
        head, _, body = read(port, selector, connect(port, request)).partition(b"\r\n\r\n")
        return head, body

    return ask


def test_a_free_port_becomes_the_address(port: HealthPort):
    """Port 0 asks the system; the address names what it chose."""
    host, number = split_id(port.address)
    assert host == "127.0.0.1"
    assert number > 0


def test_healthz_returns_all_of_the_report(ask: Ask):
    """It is JSON, with its length, and 200."""
    head, body = ask(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
    assert head.startswith(b"HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n")
    assert f"Content-Length: {len(body)}\r\n".encode() in head + b"\r\n"
    assert json.loads(body) == REPORT


def test_healthz_of_a_worker_that_lost_redis_is_503(ask: Ask, report: dict[str, Any]):
    """So a balancer can use the status alone."""
    report["healthy"] = False
    head, body = ask(b"GET /healthz HTTP/1.1\r\n\r\n")
    assert head.startswith(b"HTTP/1.0 503 Service Unavailable\r\n")
    assert json.loads(body)["healthy"] is False


def test_metrics_are_in_prometheus_form(ask: Ask):
    """Each has HELP and TYPE, counters have _total, and all have the queue."""
    head, body = ask(b"GET /metrics HTTP/1.1\r\n\r\n")
    assert head.startswith(b"HTTP/1.0 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\n")
    lines = body.decode().splitlines()
    samples = [line for line in lines if not line.startswith("#")]
    assert 'fairlane_worker_done_total{queue="req"} 40' in samples
    assert 'fairlane_worker_held{queue="req"} 3' in samples
    for name in ("retries", "rejected", "timeouts", "lost", "crashes", "dead"):
        assert f'fairlane_worker_{name}_total{{queue="req"}} {REPORT[name]}' in samples
    assert 'fairlane_worker_healthy{queue="req"} 1' in samples
    for sample in samples:
        name = sample.partition("{")[0]
        kind = "counter" if name.endswith("_total") else "gauge"
        assert f"# TYPE {name} {kind}" in lines
        assert any(line.startswith(f"# HELP {name} ") for line in lines)
    assert body.endswith(b"\n")
    assert b"fairlane_queue" not in body  # it does not lead


def test_the_demand_of_the_queue_is_among_the_metrics_of_the_leader(
    report: dict[str, Any], selector: selectors.BaseSelector
):
    """The health does not read it, because probes are frequent."""
    asked = []

    def demand() -> Demand:
        asked.append(1)
        return Demand("req", NO_BACKLOG, 7, 2, 3, is_paused=False, is_exact=True)

    port = HealthPort("127.0.0.1:0", lambda: report, demand)
    port.watch(selector)
    assert b"demand" not in read(port, selector, connect(port, b"GET /healthz HTTP/1.1\r\n\r\n"))
    assert asked == []
    body = read(port, selector, connect(port, b"GET /metrics HTTP/1.1\r\n\r\n")).decode()
    port.close()
    assert '# TYPE fairlane_queue_demand gauge\nfairlane_queue_demand{queue="req"} 7\n' in body
    assert 'fairlane_queue_wanted{queue="req"} 9\n' in body


def test_another_path_is_404_with_a_hint(ask: Ask):
    """The hint names the two that exist."""
    head, body = ask(b"GET /favicon.ico HTTP/1.1\r\n\r\n")
    assert head.startswith(b"HTTP/1.0 404 Not Found\r\n")
    assert body == b"try /healthz or /metrics\n"


@pytest.mark.parametrize("request_", [b"\r\n", b"x\n", b"\xff\x00\xfe\n"])
def test_what_is_no_request_gets_the_health(ask: Ask, request_: bytes):
    """A bare probe is answered, too."""
    assert json.loads(ask(request_)[1]) == REPORT


def test_a_request_is_answered_when_its_head_is_whole(
    port: HealthPort, selector: selectors.BaseSelector
):
    """Its parts come one by one; what came so far is no other path, and gets no answer."""
    client = connect(port)
    accept(port, selector)
    (served,) = port._clients.values()
    for part in (b"GET /met", b"rics HTTP/1.1\r\nHo", b"st: x\r\n", b"\r"):
        client.sendall(part)
        while not served.asked.endswith(part):
            look(port, selector)
        assert served.left == b""
    client.sendall(b"\n")
    reply = read(port, selector, client)
    assert reply.startswith(b"HTTP/1.0 200 OK\r\nContent-Type: text/plain; version")


def test_a_head_that_never_ends_is_answered_when_it_is_too_long(ask: Ask):
    """It is bounded, and only its first line counts."""
    head = b"GET /healthz HTTP/1.1\r\nX: " + b"x" * health_port._REQUEST_MOST
    assert ask(head[: health_port._REQUEST_MOST])[0].startswith(b"HTTP/1.0 200 OK")


def test_head_has_no_content(ask: Ask):
    """Its length is that of GET."""
    head, body = ask(b"HEAD /healthz HTTP/1.1\r\n\r\n")
    assert (b"Content-Length: " in head, body) == (True, b"")


def test_a_caller_with_many_connections_closes_none_of_another(
    port: HealthPort, selector: selectors.BaseSelector, monkeypatch: pytest.MonkeyPatch
):
    """Each address of a loopback network is a caller; no deadline passes meanwhile."""
    monkeypatch.setattr("fairlane.common.clock.mono_s", lambda: 100.0)
    with contextlib.ExitStack() as stack:
        other = socket.socket()
        other.bind(("127.0.0.2", 0))
        other.connect(split_id(port.address))
        accept(port, selector)
        for _ in range(3 * health_port._CLIENTS_MOST):
            stack.enter_context(connect(port))
            look(port, selector)
        other.sendall(b"GET /healthz\r\n")
        assert json.loads(read(port, selector, other).partition(b"\r\n\r\n")[2]) == REPORT


def test_a_network_of_ipv6_is_one_caller():
    """Its owner chooses the last 64 bits."""
    one, two = "2001:db8::1", "2001:db8::ffff:0:0:2%eth0"
    assert health_port._group_of(one) == health_port._group_of(two)
    assert health_port._group_of(one) != health_port._group_of("2001:db8:0:1::1")


def test_a_request_is_answered_while_many_connections_send_none(
    port: HealthPort, ask: Ask, selector: selectors.BaseSelector, monkeypatch: pytest.MonkeyPatch
):
    """No deadline passes meanwhile; the oldest connections are closed for new ones."""
    monkeypatch.setattr("fairlane.common.clock.mono_s", lambda: 100.0)
    with contextlib.ExitStack() as stack:
        for _ in range(300):
            stack.enter_context(connect(port))
            look(port, selector)
        assert json.loads(ask(b"GET /healthz\r\n")[1]) == REPORT
        assert len(port._clients) <= health_port._CLIENTS_MOST


def test_a_connection_without_a_request_is_closed_after_its_time(
    port: HealthPort, selector: selectors.BaseSelector, now: list[float]
):
    """It is not closed before, and gets no reply; the supervisor does not wait for it."""
    client = connect(port)
    accept(port, selector)
    now[0] += health_port._CLIENT_S
    look(port, selector)
    assert port._clients
    now[0] += 0.1
    assert read(port, selector, client) == b""


def test_an_answer_that_is_not_read_keeps_no_thread_waiting(
    port: HealthPort, report: dict[str, Any], selector: selectors.BaseSelector, ask: Ask,
    monkeypatch: pytest.MonkeyPatch,
):  # fmt: skip
    """It is larger than the buffers of a socket; it arrives whole when it is read."""
    monkeypatch.setattr("fairlane.common.clock.mono_s", lambda: 100.0)
    report["worker"] = "w" * (16 << 20)
    client = connect(port, b"GET /healthz\r\n")
    accept(port, selector)
    assert ask(b"GET /favicon.ico\r\n")[0].startswith(b"HTTP/1.0 404")
    body = read(port, selector, client).partition(b"\r\n\r\n")[2]
    assert json.loads(body) == report


def test_a_connection_that_gave_way_is_not_served(
    port: HealthPort, selector: selectors.BaseSelector
):
    """Its request came in the same turn as those that took its place."""
    oldest = connect(port)
    accept(port, selector)
    with contextlib.ExitStack() as stack:
        for _ in range(health_port._CLIENTS_MOST):
            stack.enter_context(connect(port))
        oldest.sendall(b"GET /healthz\r\n")
        with pytest.raises(ConnectionResetError):
            read(port, selector, oldest)


def test_a_process_that_is_forked_leaves_the_parents_clients(
    port: HealthPort, selector: selectors.BaseSelector
):
    """It closes its copies, and the parent's selector still reports them."""
    client = connect(port)
    accept(port, selector)
    pid = os.fork()
    if not pid:
        port.close()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    client.sendall(b"GET /healthz\r\n")
    assert read(port, selector, client).startswith(b"HTTP/1.0 200 OK\r\n")


def test_a_client_that_closed_its_connection_is_no_error(
    port: HealthPort, ask: Ask, selector: selectors.BaseSelector
):
    """Nor is a turn without any client."""
    connect(port).close()
    look(port, selector)
    look(port, selector)
    assert json.loads(ask(b"GET /healthz\r\n")[1]) == REPORT


def test_a_port_that_is_taken_is_refused_with_a_sentence(port: HealthPort):
    """The error names the port, and the remedy."""
    number = split_id(port.address)[1]
    with pytest.raises(WorkerRefused, match=f"port {number} of 127.0.0.1 is taken: give this work"):
        HealthPort(port.address, dict)


def test_a_closed_port_refuses(port: HealthPort):
    """So others detect that the worker is dead."""
    port.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(split_id(port.address), timeout=PATIENCE_S)


@for_each("worker", ["0.0.0.0:7101", "[::]:7101", "0:7101", "::0:7101"])
def test_an_address_that_others_cannot_reach_is_refused(worker: str):
    """Each machine takes it for itself, so a refused port would prove nothing."""
    with pytest.raises(InvalidArgument, match=f"reached.* as in {socket.gethostname()}:7101"):
        HealthPort(worker, dict)


def test_a_port_of_an_ipv6_address_answers(report: dict[str, Any]):
    """Its id is without brackets, and others find its port by that id."""
    try:
        port = HealthPort("[::1]:0", lambda: report)
    except WorkerRefused:
        pytest.skip("this machine has no IPv6")
    with contextlib.closing(port), selectors.DefaultSelector() as selector:
        port.watch(selector)
        host, number = split_id(port.address)
        assert host == "::1"
        with socket.create_connection((host, number), timeout=PATIENCE_S) as client:
            client.sendall(b"GET /healthz\r\n")
            assert json.loads(read(port, selector, client).partition(b"\r\n\r\n")[2]) == REPORT


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid"])
def test_an_address_of_another_machine_is_refused_with_a_sentence(host: str):
    """A worker can listen only on its own machine."""
    with pytest.raises(WorkerRefused, match=f"worker id {host}:0 can't be listened on: "):
        HealthPort(f"{host}:0", dict)


@pytest.mark.rest
@ON_SINGLE
def test_a_worker_answers_while_many_connections_send_nothing(queue: Queue, workers: Workers):
    """Each of these connections stands until the worker closes it."""
    worker = workers.start("echo")
    address = split_id(worker.id)
    with contextlib.ExitStack() as stack:
        for _ in range(300):
            stack.enter_context(socket.create_connection(address, timeout=PATIENCE_S))
        with urlopen(f"http://{worker.id}/healthz", timeout=PATIENCE_S) as answer:
            assert json.load(answer)["healthy"] is True


# ------------------------------------------------------------------ split_id


@for_each(
    "worker, expected",
    [
        ("127.0.0.1:7101", ("127.0.0.1", 7101)),
        ("a.host-name_1:0", ("a.host-name_1", 0)),
        ("h:65535", ("h", 65_535)),
        ("[::1]:7101", ("::1", 7101)),
        ("::1:7101", ("::1", 7101)),
        ("[fe80::2]:0", ("fe80::2", 0)),
    ],
)
def test_an_id_is_a_host_and_a_port(worker: str, expected: tuple[str, int]):
    """It is split at the last colon."""
    assert split_id(worker) == expected


@for_each(
    "worker",
    [
        *("host", "host:", ":7101", "host:port", "host:65536", "h:-1"),
        *("::1", "[::1]:", "[::1]:x", "[1:2]:7101", "a:b:1"),
    ],
)
def test_an_id_that_is_no_address_is_refused(worker: str):
    """The error shows one."""
    with pytest.raises(InvalidArgument, match=r"host:port is expected, as in 127\.0\.0\.1:7101"):
        split_id(worker)


@for_each(
    "worker",
    [
        *("", "h{x}:1", "h :1", "h" * 127 + ":1", "[h]:1", "[::1", "[[::1]]:1", "[fe80::1%eth0]:1"),
    ],
)
def test_an_id_that_cannot_be_in_a_key_is_refused(worker: str):
    """A brace would move the worker's key to another slot."""
    with pytest.raises(InvalidArgument, match=r"worker id .* is not valid: use 1 to 128 letters"):
        split_id(worker)
