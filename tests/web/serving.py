"""Runs `fairlane serve` as a process of its own, and calls it with curl."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.cli.program import END_S

if TYPE_CHECKING:
    from tests.cli.program import Ended, Program


class Answer(NamedTuple):
    """The reply that curl received: `headers` have lower-case names."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """Returns the content."""
        return json.loads(self.body)

    @property
    def lines(self) -> list[Any]:
        """Returns the content's lines of JSON."""
        return [json.loads(line) for line in self.body.splitlines()]


class Serving(contextlib.AbstractContextManager["Serving"]):
    """A running server; at the end it must end within seconds of a signal, with exit code 0."""

    def __init__(self, program: Program, *options: object) -> None:
        self.program = program
        self.running = program.run("serve", "--port", 0, *options)
        self.url = self.running.line()
        assert self.url.startswith("http://"), self.running.finish()
        self._ended: Ended | None = None

    def curl(self, *words: object) -> Answer:
        """Calls curl with these words; the last one is a path."""
        *options, path = map(str, words)
        done = subprocess.run(
            ["curl", "-s", "-i", "-m", "30", *options, f"{self.url}{path}"],
            capture_output=True, check=True, timeout=END_S,
        )  # fmt: skip
        head, _, body = done.stdout.partition(b"\r\n\r\n")
        while head.startswith(b"HTTP/1.1 100"):
            head, _, body = body.partition(b"\r\n\r\n")
        first, *rest = head.decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in rest)
        return Answer(int(first.split()[1]), headers, body)

    def call(self, method: str, path: str, value: Any = None, **headers: str) -> Answer:
        """Sends JSON, or bytes as they are."""
        raw = value if isinstance(value, bytes) else json.dumps(value).encode()
        given = {"Content-Type": "application/json", **headers}
        words = [word for name in given.items() for word in ("-H", ": ".join(name))]
        content = [] if value is None else ["--data-binary", raw.decode()]
        return self.curl("-X", method, *words, *content, path)

    def stop(self) -> Ended:
        """Sends SIGTERM; returns what the server left."""
        if self._ended is None:
            self.running.process.send_signal(signal.SIGTERM)
            self._ended = self.running.finish()
        return self._ended

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            with contextlib.suppress(Exception):
                self.running.process.kill()
        ended = self.stop()
        if kind is None:
            assert ended.code == 0, ended.err
        else:
            print(ended.err)  # noqa: T201  shown with the failure
