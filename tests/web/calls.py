"""Calls of the API that several tests share, and checks of their replies."""

from __future__ import annotations

import contextlib
import subprocess
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.web.serving import Answer, Serving

PROBLEM = "application/problem+json"


def submit(serving: Serving, **given: Any) -> str:
    answer = serving.call("POST", "/v1/requests", given)
    assert answer.status == 201, answer.body
    return str(answer.json["id"])


def take(serving: Serving, **given: Any) -> list[dict[str, Any]]:
    return list(serving.call("POST", "/v1/take", given).json["taken"])


def is_problem(answer: Answer, status: int, words: str = "") -> bool:
    """Checks that the reply is one sentence of problem details."""
    assert (answer.status, answer.headers["content-type"]) == (status, PROBLEM), answer
    assert answer.json["status"] == status
    assert words in answer.json["detail"], answer.json
    return True


@contextlib.contextmanager
def listening(serving: Serving, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """Starts a curl that reads a stream."""
    *options, path = words
    with subprocess.Popen(
        ["curl", "-sN", "-m", "60", *options, f"{serving.url}{path}"], stdout=subprocess.PIPE
    ) as reader:
        try:
            yield reader
        finally:
            reader.kill()


def end_one(serving: Serving, name: str) -> None:
    submit(serving, bodies=["x"], id=name)
    (taken,) = take(serving)
    serving.call("POST", f"/v1/taken/{taken['receipt']}/done")


def next_event(reader: subprocess.Popen[bytes]) -> dict[str, str]:
    """Returns the fields of the next event."""
    assert reader.stdout
    lines = iter(reader.stdout.readline, b"\n")
    fields = dict(line.decode().rstrip("\n").split(": ", 1) for line in lines if line[:1] != b":")
    return fields or next_event(reader)
