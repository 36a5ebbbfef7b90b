"""Tests `fairlane topic`, Topic and AsyncTopic."""

from __future__ import annotations

import contextlib
import json
import threading
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from fairlane.errors import InvalidArgument, SubscriberNotFound
from fairlane.protocol import keys, scripts
from fairlane.topics import AsyncTopic, Topic
from tests.cli.lists.running import Crew
from tests.support.both_faces import as_blocking, is_asyncio, on_both
from tests.support.wait import PATIENCE_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cli.program import Program


@pytest.fixture
def topic(request: pytest.FixtureRequest, redis_url: str) -> Iterator[Topic]:
    """The topic `news` with the blocking API; the asyncio one, too, with `on_both`."""
    kind: Any = AsyncTopic if is_asyncio(request) else Topic
    made = kind.from_url("news", redis_url)
    with as_blocking(made) if is_asyncio(request) else made as topic:
        yield topic


def bodies(messages: list[Any]) -> list[bytes]:
    return [message.body for message in messages]


# ------------------------------------------------------------------ the library


@on_both("topic")
def test_every_subscriber_gets_every_message_online_or_not(topic: Topic):
    assert [topic.subscribe("a"), topic.subscribe("b"), topic.subscribe("a")] == [True, True, False]
    assert topic.publish("one") == 1
    assert topic.publish_many([b"two", "three"]) == [2, 3]
    assert bodies(topic.fetch("a")) == [b"one", b"two", b"three"]
    assert topic.fetch("a") == []
    assert [message.number for message in topic.fetch("b", 2)] == [1, 2]


@on_both("topic")
def test_the_lag_of_each_subscriber(topic: Topic):
    for name in "ab":
        topic.subscribe(name)
    topic.publish_many(str(number) for number in range(10))
    taken = topic.fetch("a", 4)
    assert topic.ack("a", taken[:3]) == 3
    assert topic.ack("a", [taken[0].id]) == 0
    state = topic.overview()
    assert (state.messages, state.published) == (10, 10)
    a, b = state.subscribers
    assert (a.name, a.lag, a.waiting, a.pending, a.missed) == ("a", 7, 6, 1, 0)
    assert (b.name, b.lag, b.waiting, b.pending, b.seen_ms) == ("b", 10, 10, 0, 0)
    assert a.seen_ms >= taken[0].published_ms


def test_a_subscriber_that_never_comes_misses_what_the_retention_deletes(topic: Topic):
    topic.subscribe("never")
    topic.set_retention(count=3)
    topic.publish_many(str(number) for number in range(10))
    (one,) = topic.overview().subscribers
    assert (one.waiting, one.missed) == (3, 7)
    assert bodies(topic.fetch("never")) == [b"7", b"8", b"9"]
    (one,) = topic.overview().subscribers
    assert (one.waiting, one.pending, one.missed) == (0, 3, 7)


def test_what_is_not_acknowledged_in_time_comes_again(topic: Topic):
    topic.subscribe("a")
    topic.publish("one")
    assert [message.is_repeat for message in topic.fetch("a")] == [False]
    assert topic.fetch("a") == []
    (again,) = topic.fetch("a", redeliver_s=0)
    assert again.is_repeat
    topic.ack("a", [again])
    assert topic.fetch("a", redeliver_s=0) == []


def test_very_many_messages_are_acknowledged_in_several_calls(topic: Topic, redis_client: Any):
    topic.subscribe("a")
    topic.publish_many(str(number) for number in range(2_500))
    taken = [one for _ in range(3) for one in topic.fetch("a", 1_000)]
    redis_client.config_resetstat()
    assert topic.ack("a", taken) == 2_500
    assert redis_client.info("commandstats")["cmdstat_xack"]["calls"] == 3
    assert topic.overview().subscribers[0].lag == 0


def test_a_message_whose_work_raises_comes_again(topic: Topic):
    topic.subscribe("a")
    topic.publish_many(["one", "two"])
    done: list[bytes] = []

    def work() -> None:
        for message in topic.consume("a", redeliver_s=0):
            if len(done) == 1:
                raise ZeroDivisionError
            done.append(message.body)

    with pytest.raises(ZeroDivisionError):
        work()
    done += [message.body for message in topic.consume("a", redeliver_s=0, follow=False)]
    assert done == [b"one", b"two"]


def test_a_take_that_waits_returns_when_a_message_comes(topic: Topic, redis_url: str):
    topic.subscribe("a")
    found: list[Any] = []

    def consume() -> None:
        with contextlib.suppress(SubscriberNotFound):
            found.extend(topic.consume("a"))

    waiting = threading.Thread(target=consume, daemon=True)
    waiting.start()
    with Topic.from_url("news", redis_url) as other:
        other.publish("one")
        wait_until(lambda: bodies(found) == [b"one"])
        other.publish("two")
        wait_until(lambda: bodies(found) == [b"one", b"two"])
        other.unsubscribe("a")  # ends the other thread
    waiting.join(10)
    assert not waiting.is_alive()


def test_consumers_of_one_subscriber_share_its_messages(redis_url: str, topic: Topic):
    topic.subscribe("a")
    sent = [b"%d" % number for number in range(300)]
    topic.publish_many(sent)
    done: list[bytes] = []

    def consume() -> None:
        with Topic.from_url("news", redis_url) as mine:
            done.extend(message.body for message in mine.consume("a", follow=False))

    threads = [threading.Thread(target=consume) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert Counter(done) == Counter(sent)


def test_what_is_refused(topic: Topic, redis_url: str, lists: Any):
    for wrong in ("", "a b", "a}b"):
        with pytest.raises(InvalidArgument, match="is not valid"):
            Topic.from_url(wrong, redis_url)
        with pytest.raises(InvalidArgument, match="subscriber"):
            topic.subscribe(wrong)
    with pytest.raises(InvalidArgument, match="start 'old'"):
        topic.subscribe("a", start="old")  # type: ignore[arg-type]
    for count in (0, 1_001, True, "1"):
        with pytest.raises(InvalidArgument, match="count"):
            topic.fetch("a", count)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="redelivery after -1"):
        topic.fetch("a", redeliver_s=-1)
    for wrong_id in ("1", "a-b", ""):
        with pytest.raises(InvalidArgument, match="message id"):
            topic.ack("a", [wrong_id])
    for retention in ({"age_s": 0}, {"count": 0}, {"count": True}, {"age_s": "7d"}):
        with pytest.raises(InvalidArgument, match="retention of"):
            topic.set_retention(**retention)
    assert lists.dbsize() == 0


def test_a_subscriber_that_is_not_there(topic: Topic):
    with pytest.raises(SubscriberNotFound, match="fairlane topic subscribe news billing adds it"):
        topic.fetch("billing")
    topic.subscribe("billing")
    with pytest.raises(SubscriberNotFound, match="did you mean billing"):
        topic.fetch("biling")
    assert topic.unsubscribe("billing")
    assert not topic.unsubscribe("billing")


async def begin_removal() -> None:
    await scripts.unsubscribe(keys.topic("news"), subscriber="billing")


def test_a_subscription_ends_the_removal_that_broke_off_before_it(topic: Topic):
    topic.subscribe("billing")
    topic.publish_many([b"m"] * 1_500)
    topic.fetch("billing", 1_000)
    topic.fetch("billing", 1_000)
    topic.driver.run(begin_removal())
    assert not topic.overview().subscribers
    assert topic.subscribe("billing")
    assert [one.lag for one in topic.overview().subscribers] == [0]


def test_a_key_of_a_topic_that_holds_something_else_is_one_sentence(program: Program, lists: Any):
    lists.set("topic:{news}", "text")
    ended = program("topic", "publish", "news", stdin=b"one\n")
    assert ended.code != 0
    assert ended.err.count("\n") == 1
    assert lists.get("topic:{news}") == b"text"


# ------------------------------------------------------------------ the command line


def test_the_life_of_a_topic(program: Program):
    assert program("topic", "subscribe", "news", "a").out == b"subscribed\n"
    assert program("topic", "subscribe", "news", "a").out == b"already subscribed\n"
    assert program("topic", "publish", "news", stdin=b"one\ntwo\nthree\n").out == b"3\n"
    assert program("topic", "read", "news", "a", "--count", 1).out == b"one\n"
    assert program("topic", "subscribe", "news", "b", "--from", "first").out == b"subscribed\n"
    assert program("topic", "list").out == b"news\n"
    shown = program("topic", "show", "news").out.decode().splitlines()
    assert shown[0] == "topic news: 3 messages, 3 published; keeps 1,000,000 for 7d"
    assert [line.split()[:5] for line in shown[2:]] == [
        ["a", "2", "2", "0", "0"],
        ["b", "3", "3", "0", "0"],
    ]
    assert shown[3].endswith("never")
    assert program("topic", "read", "news", "a").out == b"two\nthree\n"
    assert program("topic", "read", "news", "a").out == b""
    assert program("topic", "retain", "news", "--count", 2, "--age", "1h").out == b"set\n"
    assert program("topic", "unsubscribe", "news", "a").out == b"removed\n"
    asked = program("topic", "delete", "news")
    assert "topic news has 3 messages, 1 subscriber: --yes deletes it" in asked.err
    assert program("topic", "delete", "news", "--yes").out == b"deleted\n"
    assert program("topic", "list").out == b""
    gone = program("topic", "delete", "news", "--yes")
    assert (gone.code, gone.out) == (3, b"")
    assert "topic news does not exist" in gone.err


def test_a_publication_that_no_subscriber_gets_is_noted(program: Program):
    program("topic", "subscribe", "news", "a")
    assert program("topic", "publish", "news", stdin=b"one\n").err == ""
    typo = program("topic", "publish", "nwes", stdin=b"one\n")
    assert (typo.code, typo.out) == (0, b"1\n")
    assert "topic nwes has no subscribers: fairlane topic subscribe nwes NAME adds" in typo.err


def test_messages_that_are_acknowledged_by_hand(program: Program):
    program("topic", "subscribe", "news", "a")
    program("topic", "publish", "news", stdin=b"one\ntwo\n")
    read = ("topic", "read", "news", "a", "--no-ack", "--json", "--redeliver", "0s")
    first, second = map(json.loads, program(*read).out.splitlines())
    assert (first["number"], first["body"], first["is_repeat"]) == (1, "one", False)
    assert program("topic", "ack", "news", "a", first["id"]).out == b"1\n"
    (again,) = map(json.loads, program(*read).out.splitlines())
    assert (again["id"], again["is_repeat"]) == (second["id"], True)
    state = json.loads(program("topic", "show", "news", "--json").out)
    assert state["published"] == 2
    assert [(one["name"], one["lag"]) for one in state["subscribers"]] == [("a", 1)]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("read", "news", "a"), 3, "topic news has no subscriber a"),
        (("unsubscribe", "news", "a"), 3, "topic news does not exist: fairlane topic list lists"),
        (("show", "news"), 3, "topic news does not exist: fairlane topic list lists the topics"),
        (("show", "news", "--json"), 3, "topic news does not exist"),
        (("delete", "news"), 3, "topic news does not exist"),
        (("delete", "news", "--yes"), 3, "topic news does not exist"),
        (("publish", "a b"), 2, "topic 'a b' is not valid"),
        (("subscribe", "news", "a b"), 2, "subscriber 'a b' is not valid"),
        (("retain", "news"), 2, "a retention is missing"),
        (("retain", "news", "--age", "0s"), 2, "--age 0s"),
        (("ack", "news", "a", "x"), 2, "message id 'x' is not valid"),
        (("ack", "news", "a", "1-1"), 3, "topic news has no subscriber a"),
        (("read", "news", "a", "--redeliver", "8d"), 2, "--redeliver 8d"),
        (("show", "news", "--redis", "redis://127.0.0.1:1"), 5, "127.0.0.1:1"),
    ],
)
def test_what_the_command_refuses(
    words: tuple[str, ...], code: int, said: str, program: Program, lists: Any
):
    program("topic", *words).refused(code, said)
    assert lists.dbsize() == 0


def test_a_mistyped_topic_gets_the_closest_name(program: Program):
    program("topic", "subscribe", "orders", "a")
    program("topic", "show", "order").refused(3, "topic order does not exist: did you mean orders?")
    program("topic", "unsubscribe", "orders", "b").refused(3, "topic orders has no subscriber b")


def test_a_topic_with_only_a_retention_is_there(program: Program):
    program("topic", "retain", "news", "--count", 5)
    assert program("topic", "show", "news").out.startswith(b"topic news: 0 messages, 0 published")


# ------------------------------------------------------------------ crashes


@pytest.mark.rest
@pytest.mark.slow
def test_readers_that_are_killed_lose_nothing(program: Program, topic: Topic, tmp_path: Any):
    """A reader is killed repeatedly; what it had not acknowledged is delivered again."""
    sent = [b"%d" % number for number in range(3_000)]
    topic.subscribe("a")
    topic.publish_many(sent)
    path = tmp_path / "read"
    read = ("topic", "read", "news", "a", "--follow", "--redeliver", "1s")
    for number in range(1, 7):
        with path.open("ab") as out, program.start(*read, stdout=out) as reader:
            wait_until(partial(is_read, topic, min(len(sent), 400 * number)))
            reader.kill()
    with path.open("ab") as out, program.start(*read, stdout=out) as reader:
        wait_until(lambda: topic.overview().subscribers[0].lag == 0)
        reader.terminate()
    found = Counter(path.read_bytes().split())
    assert set(found) >= set(sent)


def is_read(topic: Topic, count: int) -> bool:
    (one,) = topic.overview().subscribers
    return topic.overview().published - one.waiting >= count


@pytest.mark.slow
def test_publishers_that_are_killed_publish_each_chunk_whole_or_not_at_all(
    program: Program, topic: Topic
):
    topic.subscribe("a")
    lines = program.file(b"".join(b"%d\n" % number for number in range(100_000)))
    with Crew(program) as crew:
        for _ in range(3):
            before = topic.overview().published
            publisher = crew.fairlane("topic", "publish", "news", lines)
            wait_until(partial(has_published, topic, before))
            publisher.kill()
            publisher.wait(PATIENCE_S)
            assert (topic.overview().published - before) % 1_000 == 0


def has_published(topic: Topic, more_than: int) -> bool:
    return topic.overview().published > more_than
