"""`fairlane topic`: publishes messages to subscribers, and reads them as one of these."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

import click

from fairlane import settings
from fairlane.cli.options import FILE, json_option, redis_option, time_ms, url_of
from fairlane.cli.output import note, stdout, table, write_json, write_line, write_styled
from fairlane.cli.program import CommandGroup
from fairlane.common.text import plural
from fairlane.errors import InvalidArgument, SubscriberNotFound

if TYPE_CHECKING:
    from fairlane.topics import Subscriber, Topic, TopicMessage

_HEAD = ("SUBSCRIBER", "LAG", "WAITING", "PENDING", "MISSED", "BEHIND", "LAST READ")
_PAGE = 100


@click.group(
    "topic", cls=CommandGroup, short_help="Publish messages to all subscribers of a topic."
)
def command() -> None:
    """Publish messages to a topic. Each of its subscribers gets every message, online or not.

    Several consumers may share the name of a subscriber; each message then goes to one of them.
    """


def _open(redis: str | None, name: str) -> Topic:
    from fairlane.cli.driver import CommandDriver
    from fairlane.topics import Topic

    driver = CommandDriver(url_of(redis))
    topic = Topic(driver, name)
    driver.greet()
    return topic


@command.command("publish", short_help="Publish each line as a message.")
@click.argument("name", metavar="TOPIC")
@click.argument("file", metavar="[FILE]", type=FILE, default="-")
@redis_option
def publish(name: str, file: str, redis: str | None) -> int:
    """Publish each line of FILE (- is stdin) as a message; print how many there were."""
    from fairlane.cli.files import open_source

    with _open(redis, name) as topic, open_source(file) as source:
        numbers = topic.publish_many(chain.from_iterable(source.blocks()))
        if numbers and not topic.overview().subscribers:
            note(f"topic {name} has no subscribers: fairlane topic subscribe {name} NAME adds one")
    write_line(str(len(numbers)))
    return 0


@command.command("subscribe", short_help="Add a subscriber.")
@click.argument("name", metavar="TOPIC")
@click.argument("subscriber", metavar="SUBSCRIBER")
@click.option(
    "--from",
    "start",
    type=click.Choice(["new", "first"]),
    default="new",
    show_default=True,
    help="It gets messages from now on, or also those that the topic still has.",
)
@redis_option
def subscribe(name: str, subscriber: str, start: Any, redis: str | None) -> int:
    """Add a subscriber to TOPIC. One that is there keeps its place."""
    with _open(redis, name) as topic:
        is_new = topic.subscribe(subscriber, start=start)
    write_line("subscribed" if is_new else "already subscribed")
    return 0


@command.command("unsubscribe", short_help="Remove a subscriber and what waits for it.")
@click.argument("name", metavar="TOPIC")
@click.argument("subscriber", metavar="SUBSCRIBER")
@redis_option
def unsubscribe(name: str, subscriber: str, redis: str | None) -> int:
    """Remove a subscriber of TOPIC. The messages stay for the others."""
    with _open(redis, name) as topic:
        if not topic.unsubscribe(subscriber):
            topic.overview()  # raises if there is no such topic
            raise SubscriberNotFound(
                f"topic {name} has no subscriber {subscriber}: "
                f"fairlane topic show {name} lists them"
            )
    write_line("removed")
    return 0


@command.command("read", short_help="Print the messages of a subscriber.")
@click.argument("name", metavar="TOPIC")
@click.argument("subscriber", metavar="SUBSCRIBER")
@click.option("--count", type=click.IntRange(1), metavar="N", help="End after N messages.")
@click.option("--follow", is_flag=True, help="Wait for more messages, until Ctrl-C.")
@click.option("--no-ack", is_flag=True, help="Leave it to fairlane topic ack.")
@click.option(
    "--redeliver",
    metavar="TIME",
    default=f"{settings.REDELIVER_S:.0f}s",
    show_default=True,
    help="Print messages again that were not acknowledged in this time.",
)
@json_option
@redis_option
def read(
    name: str,
    subscriber: str,
    *,
    count: int | None,
    follow: bool,
    no_ack: bool,
    redeliver: str,
    as_json: bool,
    redis: str | None,
) -> int:
    """Print the messages that wait for a subscriber of TOPIC, one a line, and acknowledge them.

    A message is acknowledged when its line is written. With --json a line has the id, too.
    """
    redeliver_s = time_ms("--redeliver", redeliver, "0s", "7d") / 1000
    left = count
    with _open(redis, name) as topic:
        while left is None or left > 0:
            most = _PAGE if left is None else min(left, _PAGE)
            wait_s = 1.0 if follow else 0.0
            found = topic.fetch(subscriber, most, redeliver_s=redeliver_s, wait_s=wait_s)
            _write(found, as_json=as_json)
            if not no_ack:
                topic.ack(subscriber, found)
            left = None if left is None else left - len(found)
            if not follow and (not found or no_ack):
                break
    return 0


def _write(messages: list[TopicMessage], *, as_json: bool) -> None:
    for message in messages:
        if as_json:
            write_json(
                {
                    "id": message.id,
                    "number": message.number,
                    "published_ms": message.published_ms,
                    "is_repeat": message.is_repeat,
                    "body": message.body.decode("utf-8", "replace"),
                }
            )
        else:
            stdout().write(message.body + b"\n")
    stdout().flush()


@command.command("ack", short_help="Acknowledge messages by their ids.")
@click.argument("name", metavar="TOPIC")
@click.argument("subscriber", metavar="SUBSCRIBER")
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@redis_option
def ack(name: str, subscriber: str, ids: tuple[str, ...], redis: str | None) -> int:
    """Acknowledge messages, so that they are not delivered again; print how many there were."""
    with _open(redis, name) as topic:
        write_line(str(topic.ack(subscriber, ids)))
    return 0


@command.command("show", short_help="Show a topic's subscribers and their lag.")
@click.argument("name", metavar="TOPIC")
@json_option
@redis_option
def show(name: str, *, as_json: bool, redis: str | None) -> int:
    """Show how many messages TOPIC has, and how far each subscriber is.

    LAG: not acknowledged. WAITING: not read. PENDING: read, not acknowledged. MISSED: deleted by
    the retention before they were acknowledged. BEHIND: the age of the oldest of LAG. Exit code 3:
    there is no such topic.
    """
    from fairlane.cli.output import ago

    with _open(redis, name) as topic:
        state = topic.overview()
    if as_json:
        head = {"topic": state.name} | state._asdict()
        del head["name"]
        write_json(head | {"subscribers": [_fields(one) for one in state.subscribers]})
        return 0
    counts = f"{plural(state.messages, 'message')}, {state.published:,} published"
    kept = f"keeps {state.retain_count:,} for {ago(state.retain_ms)}"
    write_line(f"topic {state.name}: {counts}; {kept}")
    if not state.subscribers:
        note(f"topic {name} has no subscribers")
        return 0
    for line in table(_HEAD, [_row(one) for one in state.subscribers]):
        write_styled(line)
    return 0


def _fields(one: Subscriber) -> dict[str, Any]:
    return one._asdict() | {"lag": one.lag}


def _row(one: Subscriber) -> tuple[str, ...]:
    from fairlane.cli.output import ago
    from fairlane.common import clock

    now = clock.wall_ms()
    behind = ago(max(0, now - one.oldest_ms)) if one.oldest_ms else "-"
    seen = f"{ago(max(0, now - one.seen_ms))} ago" if one.seen_ms else "never"
    counts = (one.lag, one.waiting, one.pending, one.missed)
    return (one.name, *(f"{count:,}" for count in counts), behind, seen)


@command.command("list", short_help="List the topics of a Redis.")
@redis_option
def list_(redis: str | None) -> int:
    """List the names of all topics. It scans all keys of the Redis, a page at a time."""
    from fairlane.cli.driver import CommandDriver
    from fairlane.topics import topic_names

    driver = CommandDriver(url_of(redis))
    driver.greet()
    for name in topic_names(driver):
        write_line(name)
    return 0


@command.command("retain", short_help="Set how long a topic keeps messages.")
@click.argument("name", metavar="TOPIC")
@click.option("--age", metavar="TIME", help="Delete messages that are older, such as 7d.")
@click.option("--count", type=int, metavar="N", help="Keep no more than N messages.")
@redis_option
def retain(name: str, age: str | None, count: int | None, redis: str | None) -> int:
    """Set the retention of TOPIC: 7 days and 1,000,000 messages, unless it is set.

    Messages beyond it are deleted at the next publication, also if a subscriber has not read them.
    """
    if age is None and count is None:
        raise InvalidArgument("a retention is missing: name --age, --count or both")
    age_s = None if age is None else time_ms("--age", age, "1s", "366d") / 1000
    with _open(redis, name) as topic:
        topic.set_retention(age_s=age_s, count=count)
    write_line("set")
    return 0


@command.command("delete", short_help="Delete a topic, its messages and its subscribers.")
@click.argument("name", metavar="TOPIC")
@click.option("--yes", is_flag=True, help="Delete it; without this the command only counts.")
@redis_option
def delete(name: str, *, yes: bool, redis: str | None) -> int:
    """Delete TOPIC with its messages and subscribers. Without --yes it only counts them.

    Exit code 3: there is no such topic.
    """
    with _open(redis, name) as topic:
        state = topic.overview()
        subscribers = plural(len(state.subscribers), "subscriber")
        counts = f"{plural(state.messages, 'message')}, {subscribers}"
        if not yes:
            note(f"topic {name} has {counts}: --yes deletes it")
            return 0
        topic.delete()
    write_line("deleted")
    return 0
