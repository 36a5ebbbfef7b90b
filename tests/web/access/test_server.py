"""Tests the socket on which the server listens, and the log of the server."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from fairlane.web.server import listen

if TYPE_CHECKING:
    from tests.web.serving import Serving


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
