"""`fairlane webhook`: where `fairlane serve` posts the endings of requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from fairlane.cli.options import json_option, open_queue, queue_option, redis_option
from fairlane.cli.output import State, note, table, write_json, write_line, write_styled
from fairlane.cli.program import CommandGroup
from fairlane.model import ENDINGS

if TYPE_CHECKING:
    from fairlane.operations.webhooks import Hook

_HEAD = ("NAME", "STATE", "DELIVERED", "ATTEMPTS", "URL", "LAST ERROR")


@click.group(
    "webhook", cls=CommandGroup, short_help="Add, list, resume or remove webhooks of serve."
)
def command() -> None:
    """Add, list, resume or remove webhooks: fairlane serve posts the endings of requests to them.

    An event is posted until the receiver answers 2xx, with growing pauses. A webhook that failed
    for 24 hours is stopped until it is resumed.
    """


@command.command("add", short_help="Add a webhook, and print its secret once.")
@click.argument("name")
@click.argument("url")
@click.option("--state", "states", type=click.Choice(ENDINGS), multiple=True,
              metavar="STATE", help=f"Only requests that end so: {', '.join(ENDINGS)}; done also "
              "has the failed, partly_failed and repaired; may be given again.")  # fmt: skip
@click.option("--tag", "tags", multiple=True, metavar="TAG",
              help="Only requests with this tag; may be given again.")  # fmt: skip
@queue_option
@json_option
@redis_option
def add(
    name: str, url: str, states: tuple[str, ...], tags: tuple[str, ...], queue: str,
    as_json: bool, redis: str | None,
) -> int:  # fmt: skip
    """Add the webhook NAME, which posts to URL from now on. Print the secret of its signatures."""
    from fairlane.operations.webhooks import add_webhook

    with open_queue(redis, queue) as opened:
        made = opened.driver.run(add_webhook(queue, name, url, states, tags))
    if as_json:
        write_json({**_fields(made), "secret": made.webhook.secret})
    else:
        write_line(made.webhook.secret)
    return 0


@command.command("list", short_help="List the webhooks, and how far each one is.")
@queue_option
@json_option
@redis_option
def list_(queue: str, as_json: bool, redis: str | None) -> int:
    """List the webhooks of a queue. A failing one waits for the next attempt."""
    from fairlane.operations.webhooks import list_webhooks

    with open_queue(redis, queue) as opened:
        found = opened.driver.run(list_webhooks(queue))
    if as_json:
        for hook in found:
            write_json(_fields(hook))
    elif found:
        for line in table(_HEAD, [_cells(hook) for hook in found]):
            write_styled(line)
    else:
        note(f"queue {queue} has no webhooks")
    return 0


@command.command("resume", short_help="Post a failed event again now, or skip it.")
@click.argument("name")
@click.option("--skip", is_flag=True, help="Go on behind the event that failed.")
@queue_option
@redis_option
def resume(name: str, skip: bool, queue: str, redis: str | None) -> int:
    """Resume the webhook NAME, which fails or is stopped. Exit code 3: there is none."""
    from fairlane.operations.webhooks import resume_webhook

    with open_queue(redis, queue) as opened:
        opened.driver.run(resume_webhook(queue, name, skip=skip))
    write_line("resumed")
    return 0


@command.command("remove", short_help="Remove a webhook.")
@click.argument("name")
@queue_option
@redis_option
def remove(name: str, queue: str, redis: str | None) -> int:
    """Remove the webhook NAME. Exit code 3: there is none."""
    from fairlane.operations.webhooks import remove_webhook

    with open_queue(redis, queue) as opened:
        opened.driver.run(remove_webhook(queue, name))
    write_line("removed")
    return 0


def _cells(hook: Hook) -> tuple[str | State, ...]:
    far = hook.deliveries
    error = far.stopped or far.last_error
    return (
        *(hook.name, State(hook.state), f"{far.delivered:,}", str(far.attempts)),
        *(hook.webhook.url, error),
    )


def _fields(hook: Hook) -> dict[str, Any]:
    made, far = hook.webhook, hook.deliveries
    return {
        "name": hook.name,
        "url": made.url,
        "states": made.states,
        "tags": made.tags,
        "state": hook.state,
        "delivered": far.delivered,
        "cursor": far.cursor,
        "attempts": far.attempts,
        "failing_since_ms": far.failing_since_ms or None,
        "next_ms": far.next_ms or None,
        "last_error": far.last_error,
        "stopped": far.stopped,
        "created_ms": made.created_ms,
    }
