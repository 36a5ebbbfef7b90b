"""Tests QueueBalancer, AsyncQueueBalancer, and `rq-submit` with several queues."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from fairlane import Queue
from fairlane.errors import InvalidArgument, QueueFull, RedisUnreachable
from fairlane.lists.balancer import AsyncQueueBalancer, QueueBalancer
from fairlane.operations.admission import LOOKS
from fairlane.protocol import keys
from tests.support.both_faces import as_blocking, is_asyncio, on_both

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cli.program import Program

CLUSTER = pytest.mark.parametrize("redis_server", ["cluster1"], indirect=True)
NAMES = ("north", "south")


@pytest.fixture
def balancer(request: pytest.FixtureRequest, redis_url: str) -> Iterator[QueueBalancer]:
    kind: Any = AsyncQueueBalancer if is_asyncio(request) else QueueBalancer
    made = kind.from_url(NAMES, redis_url)
    with as_blocking(made) if is_asyncio(request) else made as balancer:
        yield balancer


def lengths(lists: Any, names: tuple[str, ...] = NAMES) -> list[int]:
    return [int(lists.zcard(keys.active(name))) for name in names]


@on_both("balancer")
def test_each_request_goes_to_the_shortest_queue(
    balancer: QueueBalancer, lists: Any, redis_url: str
):
    with Queue.from_url(redis_url, name="north") as north:
        north.post("a")
        north.post("b")
    assert [balancer.post("x").queue.name for _ in range(4)] == ["south", "south", "north", "south"]
    assert lengths(lists) == [3, 3]
    request = balancer.submit_request(["a", "b"], limit=1, priority=0)
    assert (request.queue.name, request.progress().total) == ("north", 2)


def test_what_is_taken_and_done_counts_no_more(balancer: QueueBalancer, redis_url: str):
    balancer.post("x")
    balancer.post("y")
    with Queue.from_url(redis_url, name="south") as south:
        for taken in south.take():
            taken.done()
    assert balancer.post("z").queue.name == "south"


def test_a_repeat_under_an_id_finds_the_same_request(balancer: QueueBalancer, lists: Any):
    first = balancer.post("x", id="mine")
    balancer.post("y")
    balancer.post("z")
    assert first.queue.name == "north"
    assert balancer.post("x", id="mine").queue.name == "north"
    assert lengths(lists) == [2, 1]


def test_producers_that_share_the_queues_keep_them_equally_long(lists: Any, redis_url: str):
    """Each has a connection of its own; a read and a push would let several choose one queue."""

    def submit() -> None:
        with QueueBalancer.from_url(NAMES, redis_url) as mine:
            for _ in range(25):
                mine.post("x")

    threads = [threading.Thread(target=submit) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert lengths(lists) == [50, 50]


@on_both("balancer")
def test_a_request_that_is_refused_does_not_count(
    balancer: QueueBalancer, lists: Any, redis_url: str
):
    with Queue.from_url(redis_url, name="north") as north:
        north.set_max_waiting(1)
        north.post("x")
    with Queue.from_url(redis_url, name="south") as south:
        south.submit_many([["x"], ["y"]])
    with pytest.raises(QueueFull):
        balancer.post("x", id="more")
    with pytest.raises(InvalidArgument):
        balancer.post("x", priority=1_000)
    with pytest.raises(ZeroDivisionError):
        balancer.submit_request((1 // 0 for _ in "x"), id="broken")  # type: ignore[misc]
    assert lengths(lists) == [1, 2]


def test_what_is_refused(redis_url: str):
    for wrong in ([], "a", ["a", "a"], ["a b"], [1], [f"q{number}" for number in range(101)]):
        with pytest.raises(InvalidArgument):
            QueueBalancer.from_url(wrong, redis_url)  # type: ignore[arg-type]


def test_a_redis_that_is_not_there():
    with (
        QueueBalancer.from_url(NAMES, "redis://127.0.0.1:1", patience_s=0) as balancer,
        pytest.raises(RedisUnreachable),
    ):
        balancer.post("x")


# ------------------------------------------------------------------ the command line


def test_the_lines_of_a_file_go_to_the_shortest_queue(program: Program, lists: Any):
    words = ("submit", program.file(b"one\ntwo\n"), "--queue", "north", "--queue", "south")
    for expected in ("north", "south", "north"):
        ended = program(*words)
        assert ended.code == 0
        assert ended.err.endswith(f" goes to queue {expected}\n")
    assert lengths(lists) == [2, 1]


def test_a_pipe_with_an_id(program: Program, lists: Any):
    words = ("submit", "-", "--id", "mine", "--queue", "north", "--queue", "south")
    for _ in range(2):
        ended = program(*words, stdin=b"one\n")
        assert (ended.code, b"mine" in ended.out) == (0, True)
    assert lengths(lists) == [1, 0]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--queue", "a", "--queue", "a"), 2, "queue a is named twice"),
        (("--queue", "a", "--queue", "b c"), 2, "queue 'b c' is not valid"),
        (("--queue", "a", "--queue", "b", "--once"), 2, "--once needs one queue"),
        (("--queue", "a", "--queue", "b", "--format", "requests"), 2, "requests needs one queue"),
        (
            ("--queue", "a", "--queue", "b", "--redis", "redis://127.0.0.1:1"),
            *(5, "127.0.0.1:1"),
        ),
    ],
)
def test_what_the_command_refuses(
    words: tuple[str, ...], code: int, said: str, program: Program, lists: Any
):
    program("submit", program.file(b"one\n"), *words).refused(code, said)
    assert lists.dbsize() == 0


# ------------------------------------------------------------------ on a cluster


@CLUSTER
def test_a_cluster_is_compared_by_a_look(balancer: QueueBalancer, lists: Any):
    first = balancer.post("x", id="mine")
    assert balancer.post("y").queue.name != first.queue.name
    assert balancer.post("x", id="mine").queue.name == first.queue.name
    assert lengths(lists) == [1, 1]


@CLUSTER
def test_a_look_is_bounded(lists: Any, redis_url: str):
    names = tuple(f"queue-{number}" for number in range(50))
    with QueueBalancer.from_url(names, redis_url) as balancer:
        balancer.post("x")
        lists.config_resetstat()
        balancer.post("x")
    assert lists.info("commandstats")["cmdstat_zcard"]["calls"] == LOOKS
