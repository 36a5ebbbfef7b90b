"""Tests that the explorer finds the faults of the naive protocol that Fairlane grew from."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest

from tests.explore.machinery.explorer import Explorer, Violation
from tests.explore.machinery.world import World
from tests.explore.naive import Naive, system
from tests.support.run.params import rest_but

if TYPE_CHECKING:
    from tests.support.servers.server_process import Server

pytestmark = pytest.mark.parametrize("redis_server", ["single"], indirect=True)
NONE, CRASH, LOST, COPY = (0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)


def explore(server: Server, promise: str, faults: tuple[int, int, int], workers: int = 1) -> None:
    with contextlib.closing(World(f"{server.folder}/redis.sock", Naive(promise))) as world:
        Explorer(world, system(promise or "the end", faults, workers)).run()


@pytest.mark.parametrize("promise", rest_but(2, zip(["", "limit", "complete", "once"])))
def test_without_a_fault_it_works(redis_server: Server, promise: str):
    explore(redis_server, promise, NONE, workers=2)


@pytest.mark.rest
@pytest.mark.parametrize(
    ("promise", "faults", "workers", "sentence", "steps"),
    rest_but(
        3,
        [
            ("", CRASH, 1, "the end can't be reached", 1),
            ("complete", LOST, 1, "complete, but 1 of 2 were handled", 7),
            ("limit", LOST, 2, "2 work, the limit is 1", 7),
            ("complete", COPY, 1, "complete, but 1 of 2 were handled", 7),
            ("limit", COPY, 2, "2 work, the limit is 1", 7),
        ],
    ),
    ids=["stuck", "too early", "limit", "too early by a copy", "limit by a copy"],
)
def test_one_fault_breaks_a_promise(
    redis_server: Server,
    promise: str,
    faults: tuple[int, int, int],
    workers: int,
    sentence: str,
    steps: int,
):
    with pytest.raises(Violation) as found:
        explore(redis_server, promise, faults, workers)
    print(found.value)  # noqa: T201  the way there, for readers with -s
    assert sentence in found.value.wrong[0]
    assert len(found.value.way) <= steps
