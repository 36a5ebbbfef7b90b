"""`fairlane queues`: the queues on a Redis, and what is in them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from fairlane.cli.options import after_option, json_option, open_queue, redis_option
from fairlane.cli.output import note, table, write_json, write_styled

if TYPE_CHECKING:
    from fairlane.records import QueueBacklog, QueueSummary

_HEAD = ("QUEUE", "WAITING", "TREND", "REQUESTS", "WORKERS", "TOKENS", "ENDED", "DEAD")


@click.command("queues", short_help="List the queues on a Redis, and what is in them.")
@after_option
@json_option
@redis_option
def command(redis: str | None, after: str, as_json: bool) -> int:
    """List the queues on a Redis, by name.

    WAITING are sub-requests that wait for their first delivery, an estimate in a queue with
    more than 100 requests; TREND is when the queue is empty at this pace, or that it grows.
    REQUESTS are those that have not ended, WORKERS those that are alive, TOKENS how many more
    leases workers could take now, ENDED the endings that the completion log keeps, DEAD the
    dead sub-requests of up to 100 of the REQUESTS and of the last 100 endings. If a queue is
    paused, PAUSED is until when. The names are found among the names of all keys, about
    1,000,000 keys a page.
    """
    from fairlane.operations.queues import list_queues

    with open_queue(redis) as opened:
        page = opened.driver.run(list_queues(after))
    if as_json:
        write_json(page)
        return 0
    if page.queues:
        is_any_paused = any(queue.is_paused for queue in page.queues)
        head = (*_HEAD, "PAUSED") if is_any_paused else _HEAD
        for line in table(head, (_row(queue)[: len(head)] for queue in page.queues)):
            write_styled(line)
    elif not page.after:
        note("no queue was used on this Redis yet; --redis URL names another one")
    if page.after:
        note(f"not all keys were read: repeat the command with --after {page.after}")
    return 0


def _row(queue: QueueSummary) -> tuple[str, ...]:
    counts = (queue.requests, queue.workers, queue.tokens, queue.ended, queue.dead)
    shown = ("-" if count is None else f"{count:,}" for count in counts)
    waits = ("-", "") if queue.backlog is None else (queue.backlog.count, _trend(queue.backlog))
    return queue.name, *waits, *shown, _paused(queue)


def _trend(backlog: QueueBacklog) -> str:
    return backlog.trend.partition(":")[0]


def _paused(queue: QueueSummary) -> str:
    """Returns until when a queue is paused; "" if it is not."""
    if not queue.is_paused:
        return ""
    from fairlane.operations.pause import time_text

    return "yes" if queue.paused_until_ms is None else f"until {time_text(queue.paused_until_ms)}"
