"""Starts, watches and kills workers in processes of their own, always by their own process id."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairlane.protocol import keys, scripts
from fairlane.protocol.steps import Command
from tests.support.processes.prepared import ROOT, Forked
from tests.support.scripts.requests import once
from tests.support.wait import PATIENCE_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    import redis

    from fairlane.queue import Queue
    from fairlane.request import Request

FOLDER = "FAIRLANE_TEST_FOLDER"  # where a handler finds its notes and gates
END_S = PATIENCE_S


class Folder:
    """What a test and its handlers share: notes in the order they were made, and gates."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def of_handler(cls) -> Folder:
        """Returns its test's folder, in a handler."""
        return cls(Path(os.environ[FOLDER]))

    def note(self, *words: object) -> None:
        """Appends one line; the line stays whole, also if many processes append."""
        line = " ".join(map(str, words)) + "\n"
        file = os.open(self.path / "notes", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(file, line.encode())
        finally:
            os.close(file)

    def notes(self) -> list[list[str]]:
        try:
            text = (self.path / "notes").read_text()
        except FileNotFoundError:
            return []
        return [line.split(" ") for line in text.splitlines()]

    def noted(self, first: str) -> list[list[str]]:
        """Returns the rest of the lines that begin with this word."""
        return [rest for word, *rest in self.notes() if word == first]

    def wait_noted(self, first: str, count: int = 1) -> list[list[str]]:
        """Returns the same as soon as there are so many."""
        wait_until(lambda: len(self.noted(first)) >= count, END_S, why=f"{count} x {first!r} noted")
        return self.noted(first)

    def open_gate(self, name: str = "gate") -> None:
        """Opens a gate: the handlers that wait at it continue."""
        (self.path / name).touch()

    def is_open(self, name: str = "gate") -> bool:
        return (self.path / name).exists()

    def pass_gate(self, name: str = "gate") -> None:
        """Waits, in a handler, until the test opens the gate."""
        wait_until(lambda: self.is_open(name), 2 * END_S, why=f"gate {name!r} opens")


@dataclass
class Running:
    """A worker's supervisor process, and with it its children."""

    process: Forked
    log: Path
    queue: str
    client: Any  # a raw redis.Redis: its types allow for decoded replies, which ours are not
    folder: Folder
    name: str = ""
    hurt: bool = False  # killed on purpose: its exit code means nothing

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def id(self) -> str:
        """Its name in the registry, as soon as the worker is registered."""
        if not self.name:
            self.name = wait_until(self._find, END_S, why="the worker registers")
        return self.name

    def _find(self) -> str:
        assert self.process.poll() is None, f"the worker has ended:\n{self.said()}"
        for found in self.client.zrange(keys.workers(self.queue), 0, -1):
            record = keys.worker(self.queue, found.decode())
            if self.client.hget(record, "pid") == str(self.pid).encode():
                return str(found.decode())
        return ""

    def health(self) -> dict[str, Any]:
        """The present report of its health port."""
        with urllib.request.urlopen(f"http://{self.id}/healthz", timeout=END_S) as answer:
            found: dict[str, Any] = json.load(answer)
            return found

    def wait_health(self, **expected: Any) -> dict[str, Any]:
        """Returns the health report as soon as it has all of these values."""
        report: dict[str, Any] = {}

        def holds() -> bool:
            report.update(self.health())
            return report | expected == report

        wait_until(holds, END_S, why=f"{expected} in the health of {self.id}")
        return report

    def said(self) -> str:
        return self.log.read_text()

    def send(self, number: signal.Signals) -> None:
        """Signals the supervisor alone."""
        self.hurt |= number == signal.SIGKILL
        self.process.send_signal(number)

    def send_all(self, number: signal.Signals) -> None:
        """Signals the supervisor and its children: each is in a process group of its own."""
        for pid in [self.pid, *children_of(self.pid)]:
            os.kill(pid, number)

    def wait(self) -> int:
        """Returns the exit code as soon as the process has ended."""
        return self.process.wait(END_S)

    def stop(self) -> None:
        """Drains the worker and expects exit code 0; kills it if it does not end."""
        try:
            if self.process.poll() is None:
                self.send(signal.SIGTERM)
            code = self.wait()
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the worker does not drain:\n{self.said()}") from None
        finally:
            self.end()
        assert self.hurt or code == 0, f"exit {code}:\n{self.said()}"

    def end(self) -> None:
        """Kills it if it still runs; its children end with it."""
        if self.process.poll() is None:
            self.hurt = True
            self.process.kill()
            self.process.wait()


@dataclass
class Workers:
    """Starts workers of one queue."""

    queue: Queue
    client: Any
    folder: Folder
    running: list[Running] = field(default_factory=list)

    def start(self, handler: str, **options: Any) -> Running:
        """Starts a worker with a handler of tests/worker/handlers.py; options as Worker and run.

        With `audit_s` it audits as rarely as that.
        """
        log = self.folder.path / f"worker{len(self.running)}.log"
        words = [self.queue.driver.url, f"tests.worker.handlers:{handler}"]
        words.append(json.dumps({"queue": self.queue.name} | options))
        env = os.environ | {FOLDER: str(self.folder.path)}
        with log.open("ab") as out, Path(os.devnull).open("rb") as nothing:
            fds = (nothing.fileno(), out.fileno(), out.fileno())
            process = Forked(f"{__name__}:main", words, env=env, cwd=ROOT, fds=fds)
        made = Running(process, log, self.queue.name, self.client, self.folder)
        self.running.append(made)
        return made

    def run(self, handler: str, **options: Any) -> Running:
        """Runs a worker until idle; returns when it has ended well."""
        made = self.start(handler, until_idle=True, **options)
        assert made.wait() == 0, made.said()
        return made

    def hurry(self) -> None:
        """Makes the leader check every unfinished request at its next heartbeat.

        Any worker may lead then: the lock of a stopped leader would last for 2.5 s.
        """
        active = keys.active(self.queue.name)
        for name in self.client.zrange(active, 0, -1):
            self.client.zadd(active, {name: 1}, xx=True)
        self.client.hdel(keys.conf(self.queue.name), "lock", "lock_until")


def has_own_traceback(said: str) -> bool:
    """Returns True if a log holds a traceback, other than those of a handler that raised."""
    lines = said.splitlines()
    return any(
        "Traceback (most recent call last)" in line and " at attempt " not in before + line
        for before, line in zip(["", *lines], lines, strict=False)
    )


@contextlib.contextmanager
def workers_of(queue: Queue, client: redis.Redis, path: Path) -> Iterator[Workers]:
    """Yields workers: at the end all must drain, and all are ended even if the test fails."""
    made = Workers(queue, client, Folder(path))
    try:
        yield made
        for one in made.running:
            one.stop()
    except BaseException:
        for one in made.running:
            one.end()
            sys.stderr.write(f"--- {one.log.name} (exit {one.process.returncode})\n{one.said()}")
        raise


def check_requests(queue: Queue, client: redis.Redis) -> None:
    """Asserts that every request is whole, nothing is leased and no worker is registered."""
    for key in client.scan_iter("req:{*}", count=1000):
        request_id = key.decode()[5:-1]
        assert broken(queue, request_id) == [], request_id
        assert client.zcard(keys.leases(request_id)) == 0, f"{request_id} is held"
    assert client.zrange(keys.workers(queue.name), 0, -1) == []


def broken(queue: Queue, request_id: str) -> list[str]:
    """Returns what the script `check` now finds in a request."""
    found = queue.driver.run(once(scripts.check(keys.request_keys(request_id))))
    return [sentence.decode() for sentence in found]


def check_settled_once(request: Request) -> None:
    """Asserts that an ended request has one result of each sub-request, as its counts say."""
    progress = request.progress()
    entries = request.queue.driver.run(
        once(Command(b"XRANGE", keys.results(request.id), b"-", b"+"))
    )
    heads = [head for _, fields in entries for head in fields[::2] if head != b"w"]
    assert sorted(int(head.partition(b":")[0]) for head in heads) == list(range(progress.total))
    assert progress.state == "done"
    assert (progress.done + progress.dead, progress.left) == (progress.total, 0)


def children_of(pid: int) -> list[int]:
    """Returns the child processes of a process; none if it is gone."""
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:
        return []
    return [int(word) for word in text.split()]


def is_alive(pid: int) -> bool:
    """Returns True if a process runs; a zombie does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in {"Z", "X"}


def main() -> int:
    """Runs a worker: the words are the URL, the handler and the options."""
    import logging

    from fairlane import settings
    from fairlane.queue import Queue
    from fairlane.worker import Worker
    from fairlane.worker.handlers import load

    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    url, handler, options = sys.argv[1:]
    given = json.loads(options)
    until_idle = given.pop("until_idle", False)
    settings.AUDIT_S = given.pop("audit_s", settings.AUDIT_S)
    with Queue.from_url(url, name=given.pop("queue")) as queue:
        return Worker(queue, load(handler), **given).run(until_idle=until_idle)
