"""Runs a receiver of webhooks on this machine; a test chooses its replies."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator


class Received(NamedTuple):
    headers: dict[str, str]
    body: bytes

    @property
    def id(self) -> str:
        return str(json.loads(self.body)["data"]["id"])

    def is_signed_with(self, secret: str) -> bool:
        """Checks the signature as a receiver does, by the specification of Standard Webhooks."""
        signed = f"{self.headers['webhook-id']}.{self.headers['webhook-timestamp']}.".encode()
        key = base64.b64decode(secret.removeprefix("whsec_"))
        digest = hmac.new(key, signed + self.body, hashlib.sha256).digest()
        return self.headers["webhook-signature"] == f"v1,{base64.b64encode(digest).decode()}"


class Receiver:
    """Keeps what came; replies with the statuses of `answers` in turn, the last one for ever."""

    def __init__(self) -> None:
        self.received: list[Received] = []
        self.answers = [204]
        self.url = ""

    @property
    def ids(self) -> list[str]:
        return [one.id for one in self.received]


@contextlib.contextmanager
def receiving(port: int = 0) -> Iterator[Receiver]:
    """Runs a receiver at this port, 0 = a free one."""
    found = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            status = found.answers.pop(0) if len(found.answers) > 1 else found.answers[0]
            found.received.append(Received(headers, body))
            self.send_response(status)
            if status in {301, 302}:
                self.send_header("location", found.url)
            self.send_header("set-cookie", "of=this-receiver")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Writes nothing."""

    with ThreadingHTTPServer(("127.0.0.1", port), Handler) as server:
        found.url = f"http://127.0.0.1:{server.server_address[1]}/hook?a=b"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield found
        finally:
            server.shutdown()
            thread.join()
