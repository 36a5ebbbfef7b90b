"""Measures what a message to 1, 10 and 100 subscribers costs: topics, plain lists, raw Redis.

`python -m bench.patterns.fanout [runs] [messages]`: so many messages go to one subscriber, and
fewer to more of them. Raw Redis adds each message to a stream, or a list, for each subscriber.
mpush's own commands take and push one message at a time. The second table has the other side: how
fast one subscriber reads and acknowledges.
"""

from __future__ import annotations

import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import redis
from bench.harness import support

from fairlane.lists.fanout import Fanout
from fairlane.lists.service import FanoutOptions
from fairlane.topics import Topic

if TYPE_CHECKING:
    from collections.abc import Callable

RUNS = int(sys.argv[1]) if len(sys.argv) > 1 else 5
COUNT = int(sys.argv[2]) if len(sys.argv) > 2 else 40_000
SUBSCRIBERS = (1, 10, 100)
BODY = b"x" * 100
TOGETHER = 1_000  # commands of one raw pipeline
PAGE = 100  # messages of one read
XADD, XADD_EACH, MPUSH = (
    "raw XADD to n streams, pipelines of 1,000",
    "raw XADD to n streams, one message a round trip",
    "mpush: BRPOPLPUSH, then MULTI, n LPUSH, LREM, EXEC",
)
PUBLISH, PUBLISH_EACH, LISTS = (
    "topic, publish_many",
    "topic, publish one by one",
    "fairlane fanout, plain lists",
)
READ, TAKE = f"raw XREADGROUP COUNT {PAGE} + XACK", f"topic, fetch of {PAGE} and ack"


def fresh(url: str) -> Any:
    client: Any = redis.Redis.from_url(url, protocol=2)
    client.execute_command("FLUSHALL", "SYNC")  # nothing is freed during the measurement
    return client


def rate(count: int, work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return count / (time.perf_counter() - began)


def streams(subscribers: int) -> list[str]:
    return [f"stream:{number}" for number in range(subscribers)]


def xadd(client: Any, count: int, names: list[str], together: int) -> None:
    """Adds each message to each stream, `together` commands in a pipeline."""
    pipe = client.pipeline(transaction=False)
    for _ in range(count):
        for name in names:
            pipe.execute_command("XADD", name, "*", "m", BODY)
        if len(pipe) >= together:
            pipe.execute()
    pipe.execute()


def raw(url: str, count: int, subscribers: int, together: int) -> float:
    client = fresh(url)
    return rate(count, partial(xadd, client, count, streams(subscribers), together))


def mpush(url: str, count: int, subscribers: int) -> float:
    """Does what mpush does for each message; the messages are in its list already."""
    client, outs = fresh(url), [f"out:{number}" for number in range(subscribers)]
    fill(client, count)

    def run() -> None:
        while (message := client.brpoplpush("in", "in:pending", 1)) is not None:
            with client.pipeline(transaction=True) as multi:
                for out in outs:
                    multi.lpush(out, message)
                multi.lrem("in:pending", -1, message)
                multi.execute()
            if not client.llen("in"):
                break

    found = rate(count, run)
    check(client.llen(outs[-1]), count)
    return found


def fill(client: Any, count: int) -> None:
    for _ in range(0, count, TOGETHER):  # a multiple of it
        client.lpush("in", *[BODY] * TOGETHER)


def fan_out(url: str, count: int, subscribers: int) -> float:
    client, outs = fresh(url), tuple(f"out:{number}" for number in range(subscribers))
    fill(client, count)
    service = Fanout(url, FanoutOptions("in", outs))
    found = rate(count, partial(service.run, until_idle=True))
    check(client.llen(outs[-1]), count)
    return found


def opened(url: str, subscribers: int) -> Topic:
    fresh(url)
    topic = Topic.from_url("news", url)
    for number in range(subscribers):
        topic.subscribe(f"subscriber-{number}")
    return topic


def publish(url: str, count: int, subscribers: int) -> float:
    with opened(url, subscribers) as topic:
        found = rate(count, partial(topic.publish_many, (BODY for _ in range(count))))
        check(min(one.lag for one in topic.overview().subscribers), count)
        return found


def publish_each(url: str, count: int, subscribers: int) -> float:
    with opened(url, subscribers) as topic:
        return rate(count, lambda: [topic.publish(BODY) for _ in range(count)])


def raw_read(url: str, count: int) -> float:
    client = fresh(url)
    xadd(client, count, ["s"], TOGETHER)
    client.xgroup_create("s", "g", "0")

    def run() -> None:
        left = count
        while left:
            words = ("GROUP", "g", "c", "COUNT", PAGE, "STREAMS", "s", ">")
            ids = [entry[0] for entry in client.execute_command("XREADGROUP", *words)[0][1]]
            client.execute_command("XACK", "s", "g", *ids)
            left -= len(ids)

    return rate(count, run)


def take(url: str, count: int) -> float:
    with opened(url, 1) as topic:
        topic.publish_many(BODY for _ in range(count))

        def run() -> None:
            while found := topic.fetch("subscriber-0", PAGE):
                topic.ack("subscriber-0", found)

        found = rate(count, run)
        check(topic.overview().subscribers[0].lag, 0)
        return found


def check(found: int, expected: int) -> None:
    """Ends the measurement if a subscriber has not what it should have."""
    if found != expected:
        raise SystemExit(f"{found:,} messages at a subscriber instead of {expected:,}")


def bytes_each(url: str, subscribers: int, write: Callable[[int], object]) -> float:
    """Returns how much memory of Redis a message takes while no subscriber has read it."""
    count = sized(subscribers)
    write(count)
    client: Any = redis.Redis.from_url(url)
    used = client.info("memory")["used_memory"]
    client.execute_command("FLUSHALL", "SYNC")
    found: float = (used - client.info("memory")["used_memory"]) / count
    return found


def sized(subscribers: int) -> int:
    """Returns how many messages go to so many subscribers: ten times the subscribers, a fifth."""
    steps = SUBSCRIBERS.index(subscribers)
    return max(TOGETHER, COUNT // 5**steps // TOGETHER * TOGETHER)


def measures(url: str, subscribers: int) -> dict[str, Callable[[], float]]:
    count = sized(subscribers)
    few = max(TOGETHER, count // 10)
    return {
        XADD: partial(raw, url, count, subscribers, TOGETHER),
        XADD_EACH: partial(raw, url, few, subscribers, subscribers),
        MPUSH: partial(mpush, url, few, subscribers),
        PUBLISH: partial(publish, url, count, subscribers),
        PUBLISH_EACH: partial(publish_each, url, few, subscribers),
        LISTS: partial(fan_out, url, count, subscribers),
    }


def table(found: dict[int, dict[str, float]], sizes: dict[str, list[float]]) -> list[str]:
    heads = [f"{n} subscriber{'s'[: n > 1]}" for n in SUBSCRIBERS]
    lines = [
        "| messages per second | " + " | ".join(f"{head} | of raw" for head in heads) + " |",
        "|---|" + "---:|" * (2 * len(heads)),
    ]
    for name in found[1]:
        cells = [f"{found[n][name]:,.0f} | {found[n][name] / found[n][XADD]:.2f}" for n in found]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    lines += ["", "| bytes of Redis for each message | " + " | ".join(heads) + " |"]
    lines += ["|---|" + "---:|" * len(heads)]
    for name, each in sizes.items():
        lines.append(f"| {name} | " + " | ".join(f"{size:,.0f}" for size in each) + " |")
    return lines


def main() -> None:
    """Measures all of them in turn, and writes the page."""
    with support.server() as url:
        found = {
            n: {
                name: support.median(rates)
                for name, rates in support.median_of(RUNS, measures(url, n)).items()
            }
            for n in SUBSCRIBERS
        }
        reads = support.median_of(
            RUNS, {READ: partial(raw_read, url, COUNT), TAKE: partial(take, url, COUNT)}
        )
        sizes = {
            "a stream for each subscriber": [
                bytes_each(url, n, partial(raw, url, subscribers=n, together=TOGETHER))
                for n in SUBSCRIBERS
            ],
            "a list for each subscriber (mpush, fairlane fanout)": [
                bytes_each(url, n, partial(fan_out, url, subscribers=n)) for n in SUBSCRIBERS
            ],
            "a topic": [
                bytes_each(url, n, partial(publish, url, subscribers=n)) for n in SUBSCRIBERS
            ],
        }
    counts = ", ".join(f"{sized(n):,}" for n in SUBSCRIBERS)
    base = support.median(reads[READ])
    lines = [
        (
            f"{counts} messages of 100 bytes go to 1, 10 and 100 subscribers; a tenth of that one "
            f"by one. All are medians of {RUNS} runs. Each message is counted once, however many "
            'subscribers get it; "of raw" compares with the first line. A fan-out and mpush find '
            "the messages in a list, and check that the last list has all of them. A topic stores "
            "a message once."
        ),
        "",
        *table(found, sizes),
        "",
        "One subscriber reads what waits for it:",
        "",
        "| messages per second | | of raw |",
        "|---|---:|---:|",
        *(
            f"| {name} | {support.median(rates):,.0f} | {support.median(rates) / base:.2f} |"
            for name, rates in reads.items()
        ),
    ]
    support.write("fanout", "Fan-out to 1, 10 and 100 subscribers", lines)


if __name__ == "__main__":
    main()
