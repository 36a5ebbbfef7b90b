"""Gives requests another rate. Each keeps its rate key and its weight, which its tasks chose."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlane.common.rate import OWN, Rate, parse_rates, rate_of, rates_text
from fairlane.errors import FairlaneError, InvalidArgument, RequestEnded
from fairlane.operations.batching import call_each, run_all, run_each_or_error
from fairlane.operations.control.request_state import not_found
from fairlane.operations.lease.follow_up import follow_up
from fairlane.operations.lease.rates import refit
from fairlane.protocol import keys
from fairlane.protocol.request_hash import hmget, parse_fields, read
from fairlane.protocol.scripts import library

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fairlane.protocol.replies import Reply
    from fairlane.protocol.steps import Operation

Replies = dict[str, "Reply | FairlaneError"]


def check_rate(rate: str | None, burst: int | None) -> None:
    """Raises InvalidArgument unless requests can be given this; both None = no other rate."""
    if rate is not None:
        rate_of(rate, burst)
    elif burst is not None:
        raise InvalidArgument("burst needs a rate: give rate, too, as 100/s")


def set_rate(request_id: str, rate: str, burst: int | None = None) -> Operation[None]:
    """Lets at most so many sub-requests start from now on, as 100/s.

    Raises InvalidArgument, RequestNotFound, RequestEnded.
    """
    rate_of(rate, burst)
    (queue,) = yield from read(request_id, "queue")
    reply = (yield from set_rates(queue, [request_id], rate, burst))[request_id]
    if isinstance(reply, FairlaneError):
        raise reply
    if reply.is_gone:
        raise not_found(request_id)
    if reply.is_ended:
        state = reply.summary.state.decode()
        raise RequestEnded(
            f"request {request_id} has ended ({state}): it cannot be given another rate"
        )


def set_rates(queue: str, ids: Sequence[str], rate: str, burst: int | None) -> Operation[Replies]:
    """Gives requests of one queue this rate; returns the reply or the error of each.

    The tokens go to their lanes last, because the buckets may owe what a slower rate has taken. A
    repeat after an error does what is left.
    """
    replies: Replies = {}
    wanted: dict[str, tuple[Rate, ...]] = {}
    rows = yield from run_each_or_error([hmget(name, "rates") for name in ids])
    for name, row in zip(ids, rows, strict=True):
        try:
            wanted[name] = _another(row, rate, burst)
        except FairlaneError as error:
            replies[name] = error
    answers = yield from call_each(
        [
            library().set_rate(keys.request_keys(name), rates=rates_text(rates))
            for name, rates in wanted.items()
        ]
    )
    replies.update(zip(wanted, answers, strict=True))
    yield from _refit(wanted, replies)
    good = [(name, one) for name, one in replies.items() if not isinstance(one, FairlaneError)]
    yield from run_all(follow_up(queue, *good))
    return replies


def _another(row: object, rate: str, burst: int | None) -> tuple[Rate, ...]:
    """Returns the rates of a request with the first one replaced; `row` is what hmget read."""
    if isinstance(row, FairlaneError):
        raise row
    (stored,) = parse_fields(("rates",), row)  # type: ignore[arg-type]
    former = parse_rates(stored)
    bucket, weight = (former[0].bucket, former[0].weight) if former else (OWN, 1)
    return (rate_of(rate, burst, bucket, weight), *former[1:])


def _refit(wanted: dict[str, tuple[Rate, ...]], replies: Replies) -> Operation[None]:
    """Bounds what the buckets owe. An error of a bucket becomes that of its request."""
    calls, owners = [], []
    for name, rates in wanted.items():
        reply = replies[name]
        if not isinstance(reply, FairlaneError) and reply.is_ok:
            for call in refit(name, rates):
                calls.append(call)
                owners.append(name)
    for name, answer in zip(owners, (yield from run_each_or_error(calls)), strict=True):
        if isinstance(answer, FairlaneError):
            replies[name] = answer
