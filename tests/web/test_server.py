"""Tests the socket on which the server listens."""

from __future__ import annotations

import socket

from fairlane.web.server import listen


def test_an_answer_does_not_wait_for_the_acknowledgement_of_its_head():
    """Nagle's algorithm would hold the content back for 40 ms."""
    with listen("127.0.0.1", 0) as listening, socket.create_connection(listening.getsockname()):
        accepted, _ = listening.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
