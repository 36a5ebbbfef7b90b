"""Tests that the completion log keeps what its readers have not read, and no more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fairlane import settings
from fairlane.errors import DataLost
from fairlane.operations import webhooks
from fairlane.operations.completion import LogReader, mark, trim, unmark
from fairlane.protocol import keys
from fairlane.protocol.steps import Command
from tests.support.both_faces import both_faces
from tests.support.operations.stepping import drive
from tests.support.run.for_each import for_each
from tests.support.scripts.requests import numbered
from tests.support.wait import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    import redis

    from fairlane.queue import Queue

LOG, READERS = keys.completed("req"), keys.log_readers("req")
DAY = 24 * 3_600_000


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch, redis_client: redis.Redis) -> Iterator[None]:
    """Keeps ten endings for everyone; a block of the stream has two, so that a trim is exact."""
    monkeypatch.setattr(settings, "LOG_ENTRIES", 10)
    redis_client.config_set("stream-node-max-entries", 2)
    yield
    redis_client.config_set("stream-node-max-entries", 100)


def log(client: redis.Redis, count: int, first: int = 1) -> None:
    """Adds endings with the ids <n>-0."""
    for n in range(first, first + count):
        fields = {"id": f"r{n}", "state": "done", "priority": 5, "born": 1, "ended": 2}
        counts = dict.fromkeys(("total", "done", "dead", "cancelled"), 0)
        client.xadd(LOG, fields | counts | {"reason": ""}, id=f"{n}-0")  # type: ignore[arg-type]


def first(client: redis.Redis) -> str:
    entries: Any = client.xrange(LOG, count=1)
    return str(entries[0][0].decode())


def test_without_readers_the_newest_endings_stay(queue: Queue, redis_client: redis.Redis):
    log(redis_client, 50)
    assert queue.driver.run(trim("req")) == 40
    assert redis_client.xlen(LOG) == 10
    assert queue.driver.run(trim("req")) == 0


def test_a_log_that_is_not_there_and_a_short_one_are_left(queue: Queue, redis_client: redis.Redis):
    assert queue.driver.run(trim("req")) == 0
    log(redis_client, 10)
    assert queue.driver.run(trim("req")) == 0


def test_the_slowest_reader_holds_what_it_has_not_read(queue: Queue, redis_client: redis.Redis):
    log(redis_client, 50)
    queue.driver.run(mark("req", {"slow": "21-0", "quick": "45-0"}, DAY))
    assert queue.driver.run(trim("req")) == 20
    assert first(redis_client) == "21-0"
    queue.driver.run(mark("req", {"slow": "49-0"}, DAY))
    queue.driver.run(trim("req"))
    assert redis_client.xlen(LOG) == 10, "the newest stay for readers that begin later"


def test_a_lock_of_a_clock_that_went_back_ends_soon(queue: Queue, redis_client: redis.Redis):
    queue.driver.run(webhooks.add_webhook("req", "billing", "https://example.com/"))
    redis_client.set(keys.hooks_lock("req"), "killed", px=DAY)
    assert not queue.driver.run(webhooks.begin_round("req", "other")).is_own
    assert redis_client.pttl(keys.hooks_lock("req")) <= 10_000
    redis_client.pexpire(keys.hooks_lock("req"), 5_000)
    assert not queue.driver.run(webhooks.begin_round("req", "other")).is_own
    assert redis_client.pttl(keys.hooks_lock("req")) <= 5_000, "a lock that holds is left"
    queue.driver.run(webhooks.remove_webhook("req", "billing"))
    redis_client.delete(keys.hooks_lock("req"))


def test_a_reader_that_ends_holds_nothing(queue: Queue, redis_client: redis.Redis):
    log(redis_client, 50)
    queue.driver.run(mark("req", {"one": "1-0"}, DAY))
    queue.driver.run(unmark("req", "one"))
    assert queue.driver.run(trim("req")) == 40


def test_a_dead_reader_holds_until_its_mark_ends(queue: Queue, redis_client: redis.Redis):
    """Its mark is deleted a minute after its end, because it may be late."""
    log(redis_client, 50)
    queue.driver.run(mark("req", {"dead": "1-0"}, -1))
    assert queue.driver.run(trim("req")) == 40
    assert redis_client.hlen(READERS) == 1
    queue.driver.run(mark("req", {"dead": "1-0"}, -120_000))
    queue.driver.run(trim("req"))
    assert not redis_client.exists(READERS)


@for_each("text", ["", "1-0", "x 9", "1-0 99999999999999", "1-0 soon"])
def test_a_mark_that_cannot_be_right_holds_nothing(
    queue: Queue, redis_client: redis.Redis, text: str
):
    """One that ends in a far future is from before the clock was set back."""
    log(redis_client, 50)
    redis_client.hset(READERS, "odd", text)
    assert queue.driver.run(trim("req")) == 40
    assert not redis_client.exists(READERS)


def test_marks_leave_with_their_last_reader(queue: Queue, redis_client: redis.Redis):
    queue.driver.run(mark("req", {"one": "1-0"}, DAY))
    assert 0 < redis_client.pttl(READERS) <= DAY + 60_000


def test_the_log_is_bounded_also_for_a_reader_that_does_not_read(
    queue: Queue, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
):
    """Each ending keeps to this bound, whether a leader lives or not."""
    monkeypatch.setattr(settings, "LOG_MOST", 20)
    queue.driver.run(mark("req", {"dead": "0-0"}, DAY))
    for n in range(60):
        queue.submit_request([b"a"], id=f"r{n}")
        queue.request(f"r{n}").cancel()
    assert redis_client.xlen(LOG) <= 22


@both_faces
def test_a_follower_that_is_slow_gets_every_ending(queue: Queue, redis_client: redis.Redis):
    """While it works on its first ending, far more are logged than the log keeps for everyone."""
    log(redis_client, 20)
    endings = queue.completions("0")
    assert next(endings).id == "r1"
    log(redis_client, 30, first=21)
    queue.driver.run(trim("req"))
    assert [next(endings).id for _ in range(49)] == [f"r{n}" for n in range(2, 51)]


def test_a_follower_marks_its_place_now_and_then(
    queue: Queue, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
):
    log(redis_client, 3)
    reader = LogReader("req", "0")
    for ending in queue.driver.run(reader.page(1)):
        reader.after = ending.log_id
    assert [text.split()[0] for text in redis_client.hvals(READERS)] == [b"0"]
    log(redis_client, 1, first=4)
    queue.driver.run(reader.page(1))
    assert [text.split()[0] for text in redis_client.hvals(READERS)] == [b"0"]
    monkeypatch.setattr(settings, "LOG_MARK_S", 0.0)
    reader._mark_at = 0.0
    queue.driver.run(reader.page(1))
    assert [text.split()[0] for text in redis_client.hvals(READERS)] == [b"3-0"]


def test_a_short_read_leaves_no_mark(queue: Queue, redis_client: redis.Redis):
    log(redis_client, 3)
    assert len(list(queue.completions("0", follow=False))) == 3
    assert not redis_client.exists(READERS)


def test_a_user_that_may_not_write_reads_without_a_mark(queue: Queue, redis_client: redis.Redis):
    log(redis_client, 3)
    redis_client.set(READERS, "of another type")
    endings = queue.completions("0")
    assert [next(endings).id for _ in range(3)] == ["r1", "r2", "r3"]


def test_a_webhook_holds_what_it_has_not_received(queue: Queue, redis_client: redis.Redis):
    """It holds from when it is added; stopped and removed ones hold nothing."""
    log(redis_client, 5)
    queue.driver.run(webhooks.add_webhook("req", "one", "http://example.org/"))
    log(redis_client, 45, first=6)
    queue.driver.run(trim("req"))
    assert first(redis_client) == "5-0"
    (hook,) = queue.driver.run(webhooks.begin_round("req", "server")).hooks
    far = webhooks.Deliveries(id=hook.webhook.id, cursor="21-0")
    queue.driver.run(webhooks.save("req", "one", far))
    queue.driver.run(webhooks.begin_round("req", "server"))
    queue.driver.run(trim("req"))
    assert first(redis_client) == "21-0"
    stopped = webhooks.Deliveries(id=hook.webhook.id, cursor="21-0", stopped="it failed")
    queue.driver.run(webhooks.save("req", "one", stopped))
    queue.driver.run(webhooks.begin_round("req", "server"))
    assert not redis_client.exists(READERS)
    queue.driver.run(webhooks.resume_webhook("req", "one"))
    queue.driver.run(webhooks.begin_round("req", "server"))
    assert redis_client.exists(READERS)
    queue.driver.run(webhooks.remove_webhook("req", "one"))
    assert not redis_client.exists(READERS)


def test_a_program_without_a_worker_trims_the_log(queue: Queue, redis_client: redis.Redis):
    log(redis_client, 50)
    queue.submit_request(numbered(3))
    wait_until(lambda: bool(queue.take(1) or True) and redis_client.xlen(LOG) == 10)


def test_endings_beyond_the_bound_are_an_error_to_the_reader(
    queue: Queue, redis_client: redis.Redis
):
    log(redis_client, 50)
    endings: Any = queue.completions("0")
    next(endings)
    redis_client.xtrim(LOG, minid="30-0", approximate=False)
    log(redis_client, 200, first=51)
    endings = queue.completions("1-0")
    with pytest.raises(DataLost, match="may be missing"):
        next(endings)


def test_a_trim_goes_in_steps(
    queue: Queue, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
):
    """Otherwise the end of a dead reader's mark would hold up all other callers."""
    monkeypatch.setattr("fairlane.operations.completion._TRIM_PAGE", 4)
    log(redis_client, 30)
    trims: list[Any] = []

    def see(step: Any) -> bool:
        if isinstance(step, Command) and step.args[0] == b"XTRIM":
            trims.append(step.args[-1])
        return False

    drive(queue.driver, trim("req"), see)
    assert redis_client.xlen(LOG) == 10
    assert trims == [4] * 5
