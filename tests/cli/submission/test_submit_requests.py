"""Tests `--format requests`: the sample's format, where every line is a request."""

from __future__ import annotations

import io
import json
import os
import signal
from typing import TYPE_CHECKING

import pytest

from fairlane.cli.commands.submit import SubmitOptions, submit_each
from fairlane.cli.files import Source
from fairlane.operations.create import GROUP
from fairlane.options import Policy
from fairlane.queue import Queue
from tests.cli.program import Program, bodies_of, settle
from tests.support.run.for_each import for_each
from tests.support.servers.server_process import run_server
from tests.support.wait import PATIENCE_S

if TYPE_CHECKING:
    import redis

WORDS = ("--format", "requests")
SAMPLE = b"""# every line of this file is a request: its limit, then its sub-requests

1:request 1-1:request 1-2:request 1-3
  \t
3:request 2-1:request 2-2
# 5:this is:no request
2:request 3-1
"""


@pytest.mark.parametrize("way", ["file", "pipe"])
def test_every_line_is_a_request(way: str, program: Program, redis_client: redis.Redis):
    name = program.file(SAMPLE) if way == "file" else "-"
    ended = program("submit", name, *WORDS, "--json", "--priority", 1, stdin=SAMPLE)
    assert (ended.code, ended.err) == (0, "")
    rows = [json.loads(line) for line in ended.out.splitlines()]
    assert [(row["total"], row["limit"], row["priority"]) for row in rows] == [
        (3, 1, 1), (2, 3, 1), (1, 2, 1),
    ]  # fmt: skip
    assert bodies_of(redis_client, rows[1]["id"]) == [b"request 2-1", b"request 2-2"]


def test_ids_are_numbered_and_waiting_for_all_has_one_timeout(program: Program):
    words = (*WORDS, "--id", "mine", "--wait", "--timeout", "50ms")
    ended = program("submit", program.file(SAMPLE), *words)
    assert (ended.code, ended.out) == (4, b"mine.1\nmine.2\nmine.3\n")


@pytest.mark.rest
def test_waiting_waits_for_all(program: Program, redis_url: str):
    with program.start("submit", program.file(SAMPLE), *WORDS, "--wait") as process:
        assert process.stdout
        assert [len(process.stdout.readline()) for _ in range(3)] == [21, 21, 21]
        assert len(settle(redis_url, lambda _, body: body)) == 6
        assert process.wait(PATIENCE_S) == 0


@pytest.mark.parametrize("content", [b"", b"# nothing\n\n"])
def test_no_requests_are_no_error(content: bytes, program: Program):
    ended = program("submit", program.file(content), *WORDS)
    assert (ended.code, ended.out) == (0, b"")
    assert "has no requests" in ended.err


def test_a_sub_request_may_be_empty(program: Program, redis_client: redis.Redis):
    ended = program("submit", "-", *WORDS, stdin=b"1::a:\n")
    assert bodies_of(redis_client, ended.id) == [b"", b"a", b""]


def test_one_line_may_be_longer_than_one_body(program: Program):
    line = b"9:" + b":".join([b"x" * 1000] * 3000)
    ended = program("submit", program.file(line), *WORDS, "--json")
    assert json.loads(ended.out)["total"] == 3000


@for_each("way", ["file", "pipe"])
@for_each(
    "line, why",
    [
        (b"no limit", "line 9 of"),
        (b"3", "limit:sub-request"),
        (b":a", "line 9 of"),
        (b" 3:a", "line 9 of"),
        (b"-1:a", "line 9 of"),
        (b"0:a", "has the limit 0"),
        (b"10001:a", "1 to 10,000 is expected"),
        (b"9" * 5000 + b":a", "has the limit 999"),
        (b"1:a:" + b"x" * (1 << 20) + b"x", "more than 1,048,576 bytes"),
    ],
)
def test_all_is_checked_before_anything_is_sent(
    line: bytes, why: str, way: str, program: Program, redis_client: redis.Redis
):
    content = SAMPLE + b"\n" + line + b"\n"
    name = program.file(content) if way == "file" else "-"
    program("submit", name, *WORDS, stdin=b"" if way == "file" else content).refused(
        2, "line 9 of", why
    )
    assert redis_client.dbsize() == 0


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--out", "results"), "--out needs --format lines"),
        (("--limit", "3"), "--limit has no meaning"),
        (("--id", "x" * 127), "is not valid"),
        (("--order-key", "k"), "has the limit 3: with --order-key write 1"),
    ],
)
def test_what_has_no_meaning_is_refused(
    words: tuple[str, ...], why: str, program: Program, redis_client: redis.Redis
):
    program("submit", program.file(SAMPLE), *WORDS, *words).refused(2, why)
    assert redis_client.dbsize() == 0


def test_a_line_whose_id_is_taken_does_not_keep_the_others_of_its_group(program: Program):
    """Other lines are submitted and printed, and a repeat of what fits changes nothing."""
    name = program.file(SAMPLE)
    program("submit", "-", "--id", "mine.2", stdin=b"other")
    ended = program("submit", name, *WORDS, "--id", "mine")
    assert (ended.code, ended.out) == (2, b"mine.1\nmine.3\n")
    assert "mine.2 exists" in ended.err
    assert program("submit", name, *WORDS, "--id", "its").out == b"its.1\nits.2\nits.3\n"
    assert program("submit", name, *WORDS, "--id", "its").out == b"its.1\nits.2\nits.3\n"


class Interrupted(io.BytesIO):
    """A file whose second reading Ctrl-C interrupts after so many lines."""

    readings = 0
    is_begun = False

    def seek(self, at: int, whence: int = 0) -> int:
        self.readings += 1
        self.is_begun = False
        return super().seek(at, whence)

    def read(self, size: int | None = -1) -> bytes:
        if self.readings > 1 and self.is_begun:
            raise KeyboardInterrupt
        self.is_begun = True
        return super().read(size)


@pytest.mark.usefixtures("redis_server")
def test_ctrl_c_while_redis_hangs_sends_none_of_the_others(monkeypatch: pytest.MonkeyPatch):
    """There is one short try in all: a sent request may be there or not."""
    monkeypatch.setattr("fairlane.settings.ASK_S", 0.05)
    monkeypatch.setattr("fairlane.cli.files.BLOCK", 4 * (GROUP + 7))
    wish = SubmitOptions(Policy(limit=1), None, False, False, False, None, None)
    with run_server() as server, Queue.from_url(server.url) as queue:
        source = Source("lines", Hanging(b"1:a\n" * (2 * GROUP)), is_file=True)
        source.stream.pid = server.pid  # type: ignore[attr-defined]
        try:
            with pytest.raises(KeyboardInterrupt) as caught:
                submit_each(wish, source, lambda: queue)
        finally:
            os.kill(server.pid, signal.SIGCONT)
    said = str(caught.value)
    assert f"{GROUP} of the requests were submitted and go on; whether up to 7 others are" in said
    assert said.endswith("when Redis answers again, fairlane status shows those that are")


class Hanging(Interrupted):
    """A file whose reading is interrupted just after Redis began to hang."""

    pid = 0

    def read(self, size: int | None = -1) -> bytes:
        try:
            return super().read(size)
        except KeyboardInterrupt:
            os.kill(self.pid, signal.SIGSTOP)
            raise


@pytest.mark.rest
@pytest.mark.parametrize("xid", [None, "mine"])
def test_ctrl_c_keeps_what_was_printed(
    xid: str | None,
    redis_url: str,
    redis_client: redis.Redis,
    capsysbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
):
    """Whole groups are submitted and printed; nothing of the others is left."""
    line, queue = b"1:a\n", Queue.from_url(redis_url)
    monkeypatch.setattr("fairlane.cli.files.BLOCK", len(line) * (GROUP + 7))
    source = Source("lines", Interrupted(line * (2 * GROUP)), is_file=True)
    wish = SubmitOptions(Policy(limit=1), xid, False, False, False, None, None)
    with pytest.raises(KeyboardInterrupt, match=f"{GROUP} of the requests were submitted"):
        submit_each(wish, source, lambda: queue)
    printed = capsysbinary.readouterr().out.split()
    assert len(printed) == GROUP
    assert sorted(redis_client.zrange("{req}:active", 0, -1)) == sorted(printed)
    assert redis_client.llen("{req}:5") == GROUP
