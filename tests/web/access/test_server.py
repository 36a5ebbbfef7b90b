"""Tests the socket on which the server listens, its log, and its end."""

from __future__ import annotations

import contextlib
import select
import signal
import socket
from typing import TYPE_CHECKING

import pytest

from fairlane.web.server import listen
from tests.cli.program import Program
from tests.support.servers.server_process import run_server
from tests.web.serving import Serving

if TYPE_CHECKING:
    from pathlib import Path


def test_an_answer_does_not_wait_for_the_acknowledgement_of_its_head():
    """Nagle's algorithm would hold the content back for 40 ms."""
    with listen("127.0.0.1", 0) as listening, socket.create_connection(listening.getsockname()):
        accepted, _ = listening.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_form_that_is_none_leaves_nothing_in_the_log(serving: Serving):
    kind = "Content-Type: multipart/form-data; boundary=x"
    assert serving.curl("-H", kind, "-d", "rubbish", "/v1/requests").status == 400
    assert "boundary" not in serving.stop().err


def caller_of(serving: Serving, head: str, content: bytes = b"") -> socket.socket:
    """Returns a connection that has sent this; the server reads or answers on."""
    host, port = serving.url.removeprefix("http://").split(":")
    made = socket.create_connection((host, int(port)))
    made.sendall(f"{head} HTTP/1.1\r\nHost: {host}\r\n".encode() + content)
    return made


UPLOAD = (
    b"Content-Type: application/x-ndjson\r\nExpect: 100-continue\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n2\r\na\n\r\n"
)


@pytest.mark.parametrize(
    ("head", "content", "answer"),
    [
        ("POST /v1/requests", UPLOAD, b"HTTP/1.1 503"),
        ("GET /v1/live", b"\r\n", b"event: problem"),
    ],
    ids=["upload", "stream"],
)
def test_a_second_signal_ends_the_server_early_and_each_call_gets_a_refusal(
    serving: Serving, head: str, content: bytes, answer: bytes
):
    with caller_of(serving, head, content) as caller:
        assert caller.recv(64).startswith(b"HTTP/1.1 ")  # the call goes on
        process = serving.running.process
        while process.poll() is None:  # a third one, and one after the end, changes nothing
            process.send_signal(signal.SIGTERM)
            select.select([caller], [], [], 0.2)
        with contextlib.suppress(ConnectionResetError):
            assert answer in b"".join(iter(lambda: caller.recv(1 << 16), b""))
    ended = serving.stop()
    assert (ended.code, "Traceback" in ended.err) == (0, False)


def test_a_caller_that_reads_nothing_does_not_hold_up_the_second_signal(serving: Serving):
    head = "GET /openapi.json"
    host = serving.url.removeprefix("http://")
    more = f"\r\n{head} HTTP/1.1\r\nHost: {host}\r\n" * 200
    with caller_of(serving, head, f"{more}\r\n".encode()) as caller:
        assert caller.recv(1)
        for _ in range(2):
            serving.running.process.send_signal(signal.SIGTERM)
        assert "Traceback" not in serving.stop().err


@pytest.mark.rest
def test_a_server_ends_although_redis_is_away(tmp_path: Path):
    with run_server() as redis:
        program = Program(tmp_path, redis.url)
        token = program("token", "create", "anna", "--scope", "view").id
        bearer = {"Authorization": f"Bearer {token}"}
        with Serving(program) as serving:
            for path in ("pause", "resume") * 2:  # the second ones are counted
                assert serving.call("POST", f"/v1/queue/{path}", **bearer).status == 403
            redis.process.kill()
            assert "not in the audit trail" in serving.stop().err
