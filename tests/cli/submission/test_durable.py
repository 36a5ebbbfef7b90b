"""Tests `--durable N`: what replicas have not confirmed is exit 5 and a sentence that names it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.cli.program import Program, finish, settle
from tests.support.servers.replicas import Pair, run_pair

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    """Yields a primary and its replica."""
    with run_pair() as made:
        yield made


@pytest.fixture
def durable(pair: Pair, tmp_path: Path) -> Program:
    """Makes `fairlane` on the primary."""
    return Program(tmp_path, pair.primary.url)


def test_a_confirmed_submission_prints_its_id(durable: Program):
    assert durable("submit", durable.file(b"a\n"), "--durable", 1, "--id", "r1").out == b"r1\n"


def test_a_replica_that_does_not_answer_is_reported(durable: Program, pair: Pair):
    with pair.frozen():
        ended = durable("submit", durable.file(b"b\n"), "--durable", 1, "--id", "r2")
    ended.refused(5, "request r2 is submitted and will run", "only 0 of 1 replica confirmed it")
    assert durable("submit", durable.file(b"b\n"), "--durable", 1, "--id", "r2").out == b"r2\n"


def test_more_replicas_than_there_are_is_exit_5(durable: Program):
    ended = durable("submit", durable.file(b"c\n"), "--durable", 3, "--id", "r3")
    ended.refused(5, "r3 was not submitted", "needs 3 replicas and its Redis has 1")
    durable("status", "r3").refused(3, "r3")


@pytest.mark.rest
@pytest.mark.parametrize("how", ["--wait", "--watch", "--out=results"])
def test_an_end_is_confirmed_before_it_is_reported(durable: Program, pair: Pair, how: str):
    name = f"w{how[2:5]}"
    process = durable.start("submit", durable.file(b"d\n"), "--durable", 1, "--id", name, how)
    assert process.stdout is not None
    assert process.stdout.readline() == f"{name}\n".encode()
    with pair.frozen():
        settle(pair.primary.url, lambda _, body: body)
        ended = finish(process)
    assert ended.code == 5
    last = ended.err.splitlines()[-1]
    assert f"request {name} has ended (done), but only 0 of 1 replica confirmed it" in last
    assert durable("wait", name).code == 0
