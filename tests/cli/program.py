"""Runs `python -m fairlane` as a user does, and settles requests without a worker."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import fairlane
from fairlane import settings
from fairlane.errors import InvalidArgument
from fairlane.model import Token, Verdict
from fairlane.operations import lease, tokens
from fairlane.operations.submit import submit
from fairlane.operations.tokens import follow_up
from fairlane.options import Policy
from fairlane.protocol import keys
from fairlane.protocol.steps import Batch, forward
from fairlane.queue import Queue
from tests.support.processes import in_process
from tests.support.processes.prepared import PATIENCE, Forked
from tests.support.processes.workers import has_own_traceback
from tests.support.scripts.requests import waiting_bodies
from tests.support.servers import backends
from tests.support.wait import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import redis

    from fairlane.protocol.steps import Step

ON_EVERY_KIND = pytest.mark.parametrize("redis_server", backends.every(), indirect=True)
NO_SERVER = "redis://127.0.0.1:1"  # no server listens on this port, so a program waits briefly
NO_SERVER_S = 0.2
_IS_NO_SERVER = re.compile(rf"{NO_SERVER}(?:/.*)?").fullmatch
END_S = PATIENCE_S


@dataclass(frozen=True)
class Ended:
    """What a process left: its exit code, its data, its messages."""

    code: int
    out: bytes
    err: str

    @property
    def id(self) -> str:
        """The id, which is the only line of data."""
        (line,) = self.out.decode().splitlines()
        return line

    def refused(self, code: int, *words: str) -> None:
        """Asserts that it printed one sentence with these words, no data, and this exit code.

        Before the sentence it may have printed that it waits for Redis.
        """
        *before, said = self.err.splitlines()
        assert [line for line in before if "does not answer: trying for up to" not in line] == []
        assert said.startswith("fairlane: ")
        for word in words:
            assert word in said
        assert self.out == b""
        assert self.code == code


class Started(subprocess.Popen[bytes]):
    """A program that runs; if the test fails in its `with` block, it is killed."""

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is not None and self.poll() is None:
            self.kill()
        super().__exit__(kind, *rest)  # type: ignore[arg-type]


class Program:
    """`fairlane` with an environment of its own, in a folder of its own.

    `close` kills what still runs: a test that fails leaves no worker to the tests after it.
    """

    def __init__(self, folder: Path, url: str | None) -> None:
        self.folder = folder
        self._started: list[Started] = []
        self.env = {
            name: value for name, value in os.environ.items() if not name.startswith("FAIRLANE_")
        }
        self.env["PYTHONPATH"] = str(Path(fairlane.__file__).parents[1])
        self.env["FAIRLANE_HOME"] = str(folder / "home")
        if url:
            self.env["FAIRLANE_REDIS"] = url

    def __call__(self, *words: object, stdin: bytes = b"") -> Ended:
        """Runs it to its end, which must not be a traceback.

        Most commands run in the process of the tests; see `in_process`.
        """
        texts = list(map(str, words))
        if not in_process.can_run(texts, self.env, stdin):
            return self.fork(*words, stdin=stdin)
        wait_s = NO_SERVER_S if names_no_server(words, self.env) else None
        ended = Ended(
            *in_process.run(texts, env=self.env, cwd=self.folder, stdin=stdin, patience_s=wait_s)
        )
        assert not has_own_traceback(ended.err), ended.err
        return ended

    def fork(self, *words: object, stdin: bytes = b"") -> Ended:
        """Runs it to its end in a process of its own."""
        given, input_end = os.pipe()
        running = Running(self, words, given)
        os.close(given)
        with os.fdopen(input_end, "wb") as stream, contextlib.suppress(BrokenPipeError):
            stream.write(stdin)
        return running.finish()

    def run(self, *words: object) -> Running:
        """Starts it without input. Unlike `start`, it imports nothing again."""
        with Path(os.devnull).open("rb") as nothing:
            return Running(self, words, nothing.fileno())

    def words(self, *words: object) -> list[str]:
        """Returns the words of the command line."""
        return [sys.executable, "-m", "fairlane", *map(str, words)]

    def start(self, *words: object, **options: Any) -> Started:
        """Starts it; the pipes are unbuffered, so that a line can be waited for."""
        given: Mapping[str, Any] = {
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
        }
        options = {**given, **options}
        started = Started(self.words(*words), cwd=self.folder, env=self.env, **options)
        self._started.append(started)
        return started

    def close(self) -> None:
        """Kills the programs that run, and closes their pipes."""
        for one in self._started:
            if one.poll() is None:
                one.kill()
            for stream in (one.stdin, one.stdout, one.stderr):
                if stream is not None:
                    stream.close()
            one.wait()

    def file(self, content: bytes, name: str = "input") -> Path:
        """Returns a file in its folder."""
        path = self.folder / name
        path.write_bytes(content)
        return path


class Running:
    """A forked program that runs."""

    def __init__(self, program: Program, words: Sequence[object], given: int) -> None:
        """Starts it with these words, and the file descriptor of its standard input."""
        env = dict(program.env)
        if names_no_server(words, env):
            env[PATIENCE] = str(NO_SERVER_S)
        self._log = os.memfd_create("stderr")
        output_end, output = os.pipe()
        self.process = Forked(
            "fairlane.cli:main",
            list(map(str, words)),
            env=env,
            cwd=program.folder,
            fds=(given, output, self._log),
        )
        os.close(output)
        self._out = os.fdopen(output_end, "rb")

    def line(self) -> str:
        """Waits for its next line of data."""
        return self._out.readline().decode().strip()

    def said(self) -> str:
        """Returns its messages so far."""
        size = os.fstat(self._log).st_size
        return os.pread(self._log, size, 0).decode()

    def finish(self) -> Ended:
        """Waits for its end, which must not be a traceback. Returns what was not read yet."""
        with self._out:
            out = self._out.read()
        code = self.process.wait(END_S)
        with os.fdopen(self._log, "rb") as stream:
            stream.seek(0)
            said = stream.read().decode()
        assert not has_own_traceback(said), said
        return Ended(code, out, said)


def names_no_server(words: Sequence[object], env: Mapping[str, str]) -> bool:
    """Returns whether a program is to call NO_SERVER."""
    return any(_IS_NO_SERVER(word) for word in (*map(str, words), *env.values()))


def finish(process: subprocess.Popen[bytes]) -> Ended:
    """Waits for a started process."""
    out, err = process.communicate(timeout=END_S)
    said = err.decode()
    assert not has_own_traceback(said)
    return Ended(process.returncode, out or b"", said)


def next_message(process: subprocess.Popen[bytes], without: str) -> str:
    """Returns the next line of a started process's messages without these words."""
    assert process.stderr
    return next(line for line in map(bytes.decode, process.stderr) if without not in line)


def bodies_of(redis_client: Any, request_id: str) -> list[bytes]:
    """Returns the bodies that wait, in input order."""
    return waiting_bodies(redis_client, request_id)


# ------------------------------------------------------------------ a worker by hand


class Dead(Exception):
    """Raised by an answer: the sub-request is dead for this reason."""


class Failed(Exception):
    """Raised by an answer: the attempt failed for this reason, the next is due in a minute."""


def settle(
    url: str,
    answer: Callable[[int, bytes], bytes | None],
    *,
    most: int | None = None,
    queue: str = settings.DEFAULT_QUEUE,
) -> list[bytes]:
    """Does what a worker does, one sub-request a lease, until no token (or `most`) is left."""
    settled: list[bytes] = []
    with Queue.from_url(url, name=queue) as opened:
        while most is None or len(settled) < most:
            popped = opened.driver.run(_once(tokens.pop(queue, 50)))
            if popped is None:
                break
            token = tokens.parse(popped.tokens[0])
            assert token is not None
            settled += opened.driver.run(_settle_one(token, queue, answer))
    return settled


def hold(url: str) -> None:
    """Takes one permit and keeps it, as a busy worker does."""
    with Queue.from_url(url) as opened:
        popped = opened.driver.run(_once(tokens.pop(opened.name, 50)))
        token = tokens.parse(popped.tokens[0])
        assert token is not None
        reply, _ = opened.driver.run(lease.acquire(token, "host:1", "1", 1))
        assert reply.is_ok


def beat(redis_client: redis.Redis, queue: str) -> None:
    """Sends a worker's heartbeat, by a clock that is ahead."""
    seconds, _ = redis_client.time()
    redis_client.zadd(keys.workers(queue), {"host:1": int(seconds) * 1000 + 60_000})


def begin_submission(redis_url: str) -> None:
    """Leaves the open request `mine`, as a producer does that ends in the middle."""

    def chunks() -> Iterator[list[bytes]]:
        yield [b"a"]
        yield [b"b"]
        raise InvalidArgument("no more")

    with Queue.from_url(redis_url) as queue, pytest.raises(InvalidArgument):
        queue.driver.run(submit("mine", Policy(), takes_back=False), chunks())


async def _once(step: Step) -> Any:
    return await forward(step)


async def _settle_one(
    token: Token, queue: str, answer: Callable[[int, bytes], bytes | None]
) -> list[bytes]:
    acquired, held = await lease.acquire(token, "host:1", "1", 1)
    if calls := follow_up(queue, (token.request_id, acquired)):
        await Batch(calls)
    if held is None:
        return []
    ((entry_id, (_, given)),) = held.entries
    index = entry_id.partition(b"-")[2]
    try:
        body = answer(int(index), given)
    except (Dead, Failed) as reason:
        word, delay = ("dead", 0) if isinstance(reason, Dead) else ("retry", 60_000)
        verdict = Verdict(entry_id, word, delay, index + b":x:1:0:0", str(reason))
        reply = await lease.complete(held, [], [], [verdict], keep=False)
    else:
        head = index + (b":n:1:0:0" if body is None else b":d:1:0:0")
        reply = await lease.complete(held, [entry_id], [head, body or b""], [], keep=False)
    if reply[0] == b"ended":
        await tokens.retire(queue, token.request_id, reply[1])
    elif calls := tokens.insert(queue, token.request_id, reply[-1]):
        await Batch(calls)
    return [given]
