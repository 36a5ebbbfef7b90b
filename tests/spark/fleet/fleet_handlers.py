"""The handlers of the fleet tests, which Spark's Python processes import."""

from __future__ import annotations

import os
import signal
import threading
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import redis

from fairlane.worker import Reject
from tests.support.wait import wait_until

if TYPE_CHECKING:
    from pathlib import Path


def upper(body: bytes) -> bytes:
    return body.upper()


def table_of_all(table: pa.Table) -> pa.Table:
    text = pc.binary_join_element_wise(
        table.column("request"),
        pc.cast(table.column("index"), pa.string()),
        pc.cast(table.column("body"), pa.string()),
        "|",
    )
    return pa.table({"result": text})


def lengths(table: pa.Table) -> pa.ChunkedArray:
    return pc.binary_length(table.column("body"))


def frame_of_all(frame: Any) -> Any:
    frame["result"] = frame["body"].str.decode("utf-8") + "!" + frame["index"].astype(str)
    return frame


def row_of_all(row: dict[str, Any]) -> str:
    if row["body"] == b"bad":
        raise ValueError("a bad row")
    return f"{row['request']} {row['index']} {row['body'].decode()}"


def one_fails(table: pa.Table) -> pa.Table:
    bodies = table.column("body").to_pylist()
    errors = ["it is bad" if body == b"bad" else None for body in bodies]
    return pa.table({"result": bodies, "error": pa.array(errors, pa.string())})


def no_result(table: pa.Table) -> pa.Table:
    return table.select(["body"])


class Crowd:
    """Counts concurrent calls of a handler, in Redis; a result is the count."""

    def __init__(self, url: str) -> None:
        self.url = url

    def __call__(self, body: bytes) -> str:
        with redis.Redis.from_url(self.url) as client:
            try:
                return str(client.incr(CROWD))
            finally:
                client.decr(CROWD)


CROWD = "crowd"


def crowd(body: bytes) -> str:
    return Crowd(os.environ["FAIRLANE_REDIS"])(body)


class Gated:
    """Notes which process works, and waits at a gate with the first body."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, body: bytes) -> bytes:
        if body == b"0":
            (self.folder / f"in-{os.getppid()}-{os.getpid()}").touch()
            wait_until((self.folder / "open").exists, why="the gate opens")
        return body


class Killing(Gated):
    """Does the same, and kills the worker that calls it for `kill`, as many times as are left."""

    def __init__(self, folder: Path, times: int) -> None:
        super().__init__(folder)
        self.times = times

    def __call__(self, body: bytes) -> bytes:
        if body == b"kill" and len([*self.folder.glob("kill-*")]) < self.times:
            (self.folder / f"kill-{os.getppid()}").touch()
            os.kill(os.getppid(), signal.SIGKILL)
            threading.Event().wait(60)
        return super().__call__(body)


def rejects_bad(body: bytes) -> bytes:
    if body == b"bad":
        raise Reject("it is bad")
    return body


def raises(body: bytes) -> bytes:
    """Fails for one body, and does not return for another."""
    if body == b"raise":
        raise ValueError("it is bad")
    return never(body) if body == b"never" else body


def never(body: bytes) -> bytes:
    """Does not return as long as a test may take."""
    threading.Event().wait(120)
    return body


def slowly(batches: Any) -> Any:
    """Does the same for the rows of a Spark task."""
    threading.Event().wait(120)
    yield from batches
