"""`fairlane key`: shows and sets the limits by key of a queue."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from fairlane.cli.options import json_option, limit_option, open_queue, queue_option, redis_option
from fairlane.cli.output import ago, note, note_unknown, write_json, write_line
from fairlane.cli.program import CommandGroup
from fairlane.errors import InvalidArgument

if TYPE_CHECKING:
    from fairlane.queue import Queue
    from fairlane.records import KeyState

_LIMIT = 10_000


@click.group("key", cls=CommandGroup, short_help="Show and set the limits by key.")
def command() -> None:
    """Show what holds the keys of a queue and what waits for them, and set a key's limit."""


@command.command("list", short_help="List the keys that are used or set.")
@limit_option(1_000)
@queue_option
@json_option
@redis_option
def list_(redis: str | None, queue: str, limit: int, as_json: bool) -> int:
    """List the keys of a queue by name: what each holds, its limit, and what waits for it."""
    with open_queue(redis, queue) as opened:
        page = opened.keys(limit)
        if not page.keys:
            note_unknown(opened)
    if as_json:
        write_json(
            {"queue": queue, "keys": [_as_json(one) for one in page.keys], "more": page.more}
        )
        return 0
    if not page.keys:
        note(f"no key of queue {queue} is used or set")
    width = max((len(one.name) for one in page.keys), default=0)
    for one in page.keys:
        write_line(f"{one.name:<{width}}  {_words(one)}")
    if page.more:
        note("there are more keys: raise --limit, or name one to `fairlane key show`")
    return 0


@command.command("show", short_help="Show what holds a key, and what waits for it.")
@click.argument("name")
@click.option("--order", is_flag=True, help="The order of this name, if a limit has it, too.")
@queue_option
@json_option
@redis_option
def show(redis: str | None, queue: str, name: str, order: bool, as_json: bool) -> int:
    """Show a key: its limit, the requests that hold it, and those that come next."""
    with open_queue(redis, queue) as opened:
        found = opened.key(name, order=order)
    _show(found, as_json=as_json)
    return 0


@command.command("set", short_help="Set the limit of a key, or take it back.")
@click.argument("name")
@click.argument("limit", metavar="LIMIT|unset")
@queue_option
@json_option
@redis_option
def set_(redis: str | None, queue: str, name: str, limit: str, as_json: bool) -> int:
    """Set the limit of a key to 1 to 10,000 leases, for good; `unset` leaves it to the requests.

    A higher limit starts work that waits. Leases above a lower limit end as ever. Submissions that
    name another limit for the key are refused. After `unset`, a key in use keeps its limit until
    nothing uses it.
    """
    wanted = None
    if limit != "unset":
        if not limit.isdecimal() or not 1 <= int(limit) <= _LIMIT:
            raise InvalidArgument(
                f"LIMIT {limit} is not valid: a whole number from 1 to {_LIMIT:,}, or unset, is "
                "expected"
            )
        wanted = int(limit)
    with open_queue(redis, queue) as opened:
        former = opened.set_key(name, wanted)
        now = wanted or _limit_now(opened, name)
    if as_json:
        write_json({"queue": queue, "name": name, "limit": now, "former": former})
        return 0
    before = "" if former is None else f", before {former:,}"
    if wanted:
        says = f"has the limit {wanted:,}{before}"
    elif now is not None:
        says = f"keeps the limit {now:,} until nothing uses it, then that of the first request"
    else:
        says = f"gets the limit of the first request that names it{before}"
    write_line(f"key {name} of queue {queue} {says}")
    return 0


@command.command("resume", short_help="Let those behind a stop of an order key go on.")
@click.argument("name")
@queue_option
@json_option
@redis_option
def resume(redis: str | None, queue: str, name: str, as_json: bool) -> int:
    """Let the requests of an order key go on behind one that ended with dead sub-requests.

    With `--order-on-dead stop` such a request stops those behind it until then.
    """
    with open_queue(redis, queue) as opened:
        resumed = opened.resume_key(name)
    if as_json:
        write_json({"queue": queue, "name": name, "resumed": resumed})
    elif resumed is None:
        note(f"nothing stops the order of key {name} in queue {queue}")
    else:
        write_line(f"key {name} of queue {queue} goes on behind request {resumed}")
    return 0


def _limit_now(queue: Queue, name: str) -> int | None:
    """Returns the limit of a key in use, else None. An order has none that can be set."""
    try:
        found = queue.key(name)
    except InvalidArgument:
        return None
    return None if found.is_order else found.limit


def _words(one: KeyState) -> str:
    if one.is_order:
        return _order_words(one)
    waits = f", the oldest for {ago(one.waits_ms)}" if one.waits_ms is not None else ""
    by_hand = " (set)" if one.is_set else " (of the task)" if one.of_task else ""
    return (
        f"{one.held:,} of {one.limit:,}{by_hand} held, {one.called:,} called, "
        f"{one.waiting:,} waiting{waits}"
    )


def _order_words(one: KeyState) -> str:
    waits = f", the oldest for {ago(one.waits_ms)}" if one.waits_ms is not None else ""
    runs = f"request {one.holders[0]} has it" if one.holders else "no request has it"
    if one.stopped_by:
        runs = f"stopped by the dead of request {one.stopped_by}"
    return f"order: {runs}, {one.waiting:,} waiting{waits}"


def _show(one: KeyState, *, as_json: bool) -> None:
    if as_json:
        write_json(_as_json(one))
        return
    write_line(f"{'key':<8} {one.name}")
    write_line(f"{'state':<8} {_words(one)}")
    if one.holders:
        write_line(f"{'held by':<8} {', '.join(one.holders)}")
    if one.next_requests:
        write_line(f"{'next':<8} {', '.join(one.next_requests)}")


def _as_json(one: KeyState) -> dict[str, Any]:
    return asdict(one)
