"""Gives requests another rate or weight. Each keeps its rate key, and what is not given.

Requests share a rate if they have the same key and the same rate. So a request that is given
another rate leaves those that shared its former one, and joins those that have the new one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from fairlane.common.rate import MOST, OWN, Rate, parse_rates, rate_of, rates_text
from fairlane.errors import FairlaneError, InvalidArgument, RequestEnded
from fairlane.operations.batching import call_each, run_all, run_each_or_error
from fairlane.operations.control.request_state import not_found
from fairlane.operations.lease.follow_up import follow_up
from fairlane.operations.lease.rates import refit
from fairlane.options import check_whole
from fairlane.protocol import keys
from fairlane.protocol.request_hash import hmget, parse_fields, read
from fairlane.protocol.scripts import library

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fairlane.protocol.replies import Reply
    from fairlane.protocol.steps import Operation

Replies = dict[str, "Reply | FairlaneError"]


class NewRate(NamedTuple):
    """What requests are given; None = each keeps its own."""

    rate: str | None
    burst: int | None = None
    weight: int | None = None


def check_rate(new: NewRate) -> None:
    """Raises InvalidArgument unless requests can be given this; all None = nothing else."""
    rate, burst, weight = new
    if weight is not None:
        check_whole("weight", weight, 1, MOST)
    if rate is not None:
        rate_of(rate, burst, weight or 1)
    elif burst is not None:
        raise InvalidArgument("burst needs a rate: give rate, too, as 100/s")


def set_rate(
    request_id: str, rate: str | None, burst: int | None = None, weight: int | None = None
) -> Operation[None]:
    """Lets at most so many sub-requests start from now on, as 100/s, each counted so often.

    Raises InvalidArgument, RequestNotFound, RequestEnded.
    """
    new = NewRate(rate, burst, weight)
    check_rate(new)
    if rate is None and weight is None:
        raise InvalidArgument("there is nothing to set: give a rate, as 100/s, or a weight")
    (queue,) = yield from read(request_id, "queue")
    reply = (yield from set_rates(queue, [request_id], new))[request_id]
    if isinstance(reply, FairlaneError):
        raise reply
    if reply.is_gone:
        raise not_found(request_id)
    if reply.is_ended:
        state = reply.summary.state.decode()
        raise RequestEnded(
            f"request {request_id} has ended ({state}): it cannot be given another rate"
        )


def set_rates(queue: str, ids: Sequence[str], new: NewRate) -> Operation[Replies]:
    """Gives requests of one queue this rate; returns the reply or the error of each.

    The tokens go to their lanes last, because the buckets may owe what a slower rate has taken. A
    repeat after an error does what is left.
    """
    replies: Replies = {}
    wanted: dict[str, tuple[Rate, ...]] = {}
    rows = yield from run_each_or_error([hmget(name, "born", "rates") for name in ids])
    for name, row in zip(ids, rows, strict=True):
        try:
            wanted[name] = _another(name, row, new)
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


def _another(name: str, row: object, new: NewRate) -> tuple[Rate, ...]:
    """Returns the rates of a request with the first one replaced; `row` is what hmget read."""
    if isinstance(row, FairlaneError):
        raise row
    born, stored = parse_fields(("born", "rates"), row)  # type: ignore[arg-type]
    former = parse_rates(stored)
    first = former[0] if former else Rate(OWN, 0, 0, 1)
    weight = new.weight or first.weight
    if new.rate is not None:
        return (rate_of(new.rate, new.burst, weight, first.shared), *former[1:])
    if not born:
        raise not_found(name)
    if not former:
        raise no_rate(name)
    return (first.with_weight(weight), *former[1:])


def no_rate(request_id: str) -> InvalidArgument:
    """Returns the error of a weight for a request without a rate."""
    return InvalidArgument(
        f"request {request_id} has no rate, so its weight has no use: give rate, too, as 100/s"
    )


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
