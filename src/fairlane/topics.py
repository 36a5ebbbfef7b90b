# Generated from aio/topics.py by `make generate`: do not edit it.
"""Topics in the blocking API: `from fairlane.topics import Topic`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from fairlane import settings
from fairlane.aio.topics import AsyncTopic
from fairlane.common.chunking import Body, chunks
from fairlane.default_redis import resolve_url
from fairlane.drivers.sync import SyncDriver
from fairlane.operations import topics
from fairlane.operations.topics import Subscriber, TopicMessage, TopicState, check_driver
from fairlane.protocol import keys

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from fairlane.operations.topics import Start

__all__ = [
    "AsyncTopic",
    "Subscriber",
    "Topic",
    "TopicMessage",
    "TopicState",
    "topic_names",
]


def topic_names(driver: SyncDriver) -> list[str]:
    """Returns the names of all topics on a Redis; it scans all keys, a page at a time."""
    return driver.run(topics.list_topics())


class Topic:
    """A named topic: each subscriber gets every message, online or not. Any thread may use it.

    Several programs may share the name of a subscriber: each message goes to one of them. Messages
    stay for 7 days and up to 1,000,000 of them, unless `set_retention` changes that.
    """

    def __init__(self, driver: SyncDriver, name: str) -> None:
        check_driver(driver)
        self.name = keys.check_name("topic", name)
        self.driver = driver

    @classmethod
    def from_url(
        cls, name: str, url: str | None = None, *, patience_s: float = settings.PATIENCE_S
    ) -> Self:
        """Returns a topic on the Redis at `url`; see Queue.from_url. Raises InvalidArgument."""
        return cls(SyncDriver(resolve_url(url), patience_s=patience_s), name)

    def publish(self, message: Body) -> int:
        """Publishes one message to all subscribers; returns its number. Raises RedisError."""
        (number,) = self.publish_many([message])
        return number

    def publish_many(self, messages: Iterable[Body]) -> list[int]:
        """Publishes messages in chunks of at most 1,000 and 1 MiB, each chunk all or none.

        Returns their numbers. After an error the chunks before it are published. Raises
        InvalidArgument, RedisError.
        """
        numbers: list[int] = []
        for chunk in chunks(messages):
            numbers += self.driver.run(topics.publish(self.name, chunk))
        return numbers

    def subscribe(self, subscriber: str, *, start: Start = "new") -> bool:
        """Adds a subscriber, which gets every message from now on, or all that are kept ("first").

        Returns False if it was there; it keeps its place then. Raises InvalidArgument.
        """
        return self.driver.run(topics.subscribe(self.name, subscriber, start))

    def unsubscribe(self, subscriber: str) -> bool:
        """Removes a subscriber and what waits for it; returns False if there was none."""
        return self.driver.run(topics.unsubscribe(self.name, subscriber))

    def fetch(
        self,
        subscriber: str,
        count: int = 100,
        *,
        redeliver_s: float = settings.REDELIVER_S,
        wait_s: float = 0.0,
    ) -> list[TopicMessage]:
        """Returns up to `count` messages (1 to 1,000), oldest first; waits up to 2 s for one.

        Acknowledge each with `ack`. A message that is not acknowledged in `redeliver_s` seconds is
        delivered again, so let that be longer than your work. With `wait_s` 0 it does not wait.
        Raises SubscriberNotFound, InvalidArgument, RedisError.
        """
        found = topics.fetch(self.name, subscriber, count, redeliver_s, wait_s)
        return self.driver.run(found)

    def ack(self, subscriber: str, messages: Iterable[TopicMessage | str]) -> int:
        """Acknowledges messages, or their ids; returns how many were not acknowledged before."""
        ids = [one if isinstance(one, str) else one.id for one in messages]
        return self.driver.run(topics.acknowledge(self.name, subscriber, ids))

    def consume(
        self, subscriber: str, *, redeliver_s: float = settings.REDELIVER_S, follow: bool = True
    ) -> Iterator[TopicMessage]:
        """Yields messages one by one, and acknowledges each when the next one is asked for.

        A message whose work raises, or is interrupted, is delivered again. Without `follow` it ends
        when no message waits. Raises as `fetch`.
        """
        wait_s = 1.0 if follow else 0.0
        while True:
            found = self.fetch(subscriber, 1, redeliver_s=redeliver_s, wait_s=wait_s)
            for message in found:
                yield message
                self.ack(subscriber, [message])
            if not found and not follow:
                return

    def overview(self) -> TopicState:
        """Returns the counts of the topic, and of each subscriber what waits for it.

        Raises TopicNotFound.
        """
        return self.driver.run(topics.read_topic(self.name))

    def set_retention(self, *, age_s: float | None = None, count: int | None = None) -> None:
        """Sets how long messages stay, and how many, also those that a subscriber has not read.

        It applies from the next publication on. Raises InvalidArgument.
        """
        self.driver.run(topics.set_retention(self.name, age_s, count))

    def delete(self) -> bool:
        """Deletes the topic with its messages and subscribers; returns False if there was none."""
        return self.driver.run(topics.delete_topic(self.name))

    def close(self) -> None:
        """Closes the idle connections."""
        self.driver.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
