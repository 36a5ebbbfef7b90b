"""Tests the file of `--out`: a regular file, whole or absent, with its former permissions."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import pytest

from fairlane.cli.files import open_results
from fairlane.errors import InvalidArgument
from tests.cli.program import Program, finish, settle
from tests.support.run.for_each import for_each

if TYPE_CHECKING:
    from pathlib import Path

    import redis

SPECIAL = ("/dev/stdout", "/dev/fd/1", "/proc/self/fd/1", "/dev/null")


def write(path: Path, content: bytes) -> None:
    with open_results(str(path)) as stream:
        assert stream is not None
        stream.write(content)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.rest
@for_each("name", SPECIAL)
@for_each("command", ["submit", "results"])
def test_a_stream_is_refused_and_stays_what_it_is(
    command: str, name: str, program: Program, redis_client: redis.Redis
):
    """Standard output may be a regular file, which a rename would replace."""
    program.file(b"a\n")
    target = program.folder / "stdout"
    words = (command, "input", "--out", name)
    with target.open("wb") as stream, program.start(*words, stdout=stream) as process:
        before = os.fstat(stream.fileno()).st_ino
        finish(process).refused(2, f"--out {name} is not a regular file", "fairlane results ID")
    assert (target.stat().st_ino, target.read_bytes()) == (before, b"")
    assert sorted(path.name for path in program.folder.iterdir()) == ["input", "stdout"]
    assert redis_client.dbsize() == 0


@for_each("name", [*SPECIAL, "pipe"])
def test_a_link_to_a_stream_or_a_pipe_is_refused(name: str, tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "second").symlink_to(name)
    (tmp_path / "first").symlink_to("second")
    refused = pytest.raises(InvalidArgument, match="is not a regular file")
    with refused, open_results(str(tmp_path / "first")):
        pass


def test_a_file_named_part_is_left_alone(tmp_path: Path):
    (tmp_path / "out.part").write_bytes(b"mine")
    write(tmp_path / "out", b"results")
    assert (tmp_path / "out.part").read_bytes() == b"mine"
    assert (tmp_path / "out").read_bytes() == b"results"


def test_two_commands_with_the_same_out_share_nothing(tmp_path: Path):
    name = str(tmp_path / "out")
    with open_results(name) as first:
        assert first is not None
        first.write(b"first")
        with open_results(name) as second:
            assert second is not None
            second.write(b"2nd")
        assert (tmp_path / "out").read_bytes() == b"2nd"
    assert (tmp_path / "out").read_bytes() == b"first"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_name_as_long_as_can_be(tmp_path: Path):
    path = tmp_path / ("ü" * 127)
    write(path, b"results")
    assert path.read_bytes() == b"results"


def test_a_failure_leaves_what_there_was(tmp_path: Path):
    path = tmp_path / "out"
    path.write_bytes(b"before")
    with pytest.raises(ZeroDivisionError), open_results(str(path)):
        raise ZeroDivisionError
    assert path.read_bytes() == b"before"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@for_each("mode", [0o600, 0o640, 0o666, 0o755])
def test_a_file_keeps_its_permissions(mode: int, tmp_path: Path):
    path = tmp_path / "out"
    path.write_bytes(b"before")
    path.chmod(mode)
    write(path, b"after")
    assert (mode_of(path), path.read_bytes()) == (mode, b"after")


def test_a_private_file_stays_private_while_it_is_written(tmp_path: Path):
    path = tmp_path / "out"
    path.touch(0o600)
    with open_results(str(path)):
        assert {mode_of(one) for one in tmp_path.iterdir()} == {0o600}


def test_a_new_file_has_the_permissions_of_any_new_file(tmp_path: Path):
    (tmp_path / "other").write_bytes(b"")
    write(tmp_path / "out", b"results")
    assert mode_of(tmp_path / "out") == mode_of(tmp_path / "other")


def test_a_read_only_file_is_refused_before_anything_is_submitted(
    program: Program, redis_client: redis.Redis
):
    program.file(b"before\n", "results").chmod(0o444)
    words = ("submit", program.file(b"a\n"), "--out", "results")
    program(*words).refused(2, "--out results cannot be written: it is read-only")
    assert (program.folder / "results").read_bytes() == b"before\n"
    assert redis_client.dbsize() == 0


@pytest.mark.rest
def test_a_submission_keeps_the_permissions(program: Program, redis_url: str):
    program.file(b"before\n", "results").chmod(0o600)
    with program.start("submit", program.file(b"a\n"), "--out", "results") as process:
        assert process.stdout
        process.stdout.readline()
        settle(redis_url, lambda _, body: body)
        assert finish(process).code == 0
    assert (program.folder / "results").read_bytes() == b"a\n"
    assert mode_of(program.folder / "results") == 0o600
