"""The rates of requests, of keys and of queues: takes what their buckets allow; changes them."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

from fairlane import settings
from fairlane.common.rate import MOST, OWN, Rate, parse_rates, rate_of, rate_of_queue, rates_text
from fairlane.common.text import of_queue, when
from fairlane.errors import FairlaneError, InvalidArgument, RequestEnded, not_found
from fairlane.operations.request_state import how_it_ended
from fairlane.operations.tokens import follow_up
from fairlane.options import check_whole
from fairlane.protocol import keys, scripts
from fairlane.protocol.request_hash import hmget, parse_fields, read
from fairlane.protocol.steps import Batch, Command, call_each, run_all, run_each_or_error

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fairlane.protocol.scripts import AcquireReply, SetRateReply
    from fairlane.protocol.steps import Call


# ------------------------------------------------------------------ rates
# Acquires for a request with rates: takes an allowance from its buckets, and acquires with it.
#
# Where one server has all keys, exchange.lua does the same in one call.


class Waits(Enum):
    """The place of a caller in the line of a bucket."""

    NOT_YET = ""
    HAS = "1"  # the caller has waited as long as an earlier allowance said
    NEVER = "2"  # it takes no place in the line, because it may never ask again


class Allowance(NamedTuple):
    """How many sub-requests may start now; if none may, the ms until the caller may ask again."""

    allowed: int
    wait_ms: int


async def acquire_rated(
    request_id: str, rated: AcquireReply, ask: Callable[[Allowance], Call[AcquireReply]]
) -> AcquireReply:
    """Takes the allowance that a reply `rated` asks for; returns the reply to `ask` with it.

    The part that the lease does not use is given back. If this stops in the middle, that many
    sub-requests start later, and no rate is exceeded.
    """
    rates = parse_rates(rated.rates.decode())
    allowance = await take(
        rates, rated.size, request_id, waits=Waits.HAS if rated.has_waited else Waits.NOT_YET
    )
    reply = await ask(allowance)
    unused = allowance.allowed - (len(reply.entries) if reply.is_ok else 0)
    if unused:
        await refund([(rate, unused) for rate in rates], request_id)
    return reply


async def take(
    rates: Sequence[Rate], want: int, request_id: str = "", *, waits: Waits
) -> Allowance:
    """Takes up to `want` sub-requests from the buckets of all these rates. Raises NodeAway."""
    taken: list[tuple[Rate, int]] = []
    for rate in rates:
        call = scripts.take(
            (_key(request_id, rate),), want=want, waited=waits.value, **_terms(rate)
        )
        call.away_s = settings.AWAY_S
        reply = await call
        if not reply.taken:
            await refund(taken, request_id)
            return Allowance(0, reply.wait)
        taken.append((rate, reply.taken))
        want = reply.taken
    await refund([(rate, count - want) for rate, count in taken if count > want], request_id)
    return Allowance(want, 0)


async def refund(unused: Sequence[tuple[Rate, int]], request_id: str = "") -> None:
    """Gives unused allowances back to the buckets of these rates.

    The call is sent at most once. If it is lost, that many sub-requests start later.
    """
    if unused:
        await Batch(
            [
                scripts.refund((_key(request_id, rate),), unused=count, **_terms(rate))
                for rate, count in unused
            ],
            lenient=True,  # else what is acquired already would be lost
            away_s=settings.AWAY_S,
        )


async def hold(queue: str, request_id: str, ms: int) -> None:
    """Starts nothing of a request, or of those that share its rates, for so many ms.

    If the node of a key's bucket is unreachable, only the request waits. Raises NodeAway.
    """
    call = scripts.hold(keys.request_keys(request_id), ms=ms)
    call.away_s = settings.AWAY_S
    reply = await call
    calls = follow_up(queue, (request_id, reply))
    if reply.is_ok:
        rates = parse_rates(reply.rates.decode())
        calls += [
            scripts.hold_rate((_key(request_id, rate),), ms=ms, **_terms(rate)) for rate in rates
        ]
    if calls:
        await Batch(calls, lenient=True, away_s=settings.AWAY_S)


async def opens(rate: Rate, now_ms: int, request_id: str = "") -> int:
    """Returns when the bucket of a rate allows the next start, in ms; 0 = now.

    The gate of a request may open earlier, because a request in a long line asks again from time to
    time. The gate opens later if others are before it in the line.
    """
    value: bytes | None = await Command(b"GET", _key(request_id, rate))
    tat_us, _, _, held_us = map(int, value.split(b":")) if value else (0, 0, 0, 0)
    due_us = max(held_us, tat_us - rate.interval_us * (rate.burst - rate.weight))
    return -(-due_us // 1000) if due_us > 1000 * now_ms else 0


def refit(request_id: str, rates: Sequence[Rate]) -> list[Call[Any]]:
    """Returns the calls that bound what the buckets owe, after a request was given these rates.

    Shared rates are left out, because requests share a bucket only at the same rate.
    """
    return [
        scripts.refit((_key(request_id, rate),), **_terms(rate))
        for rate in rates
        if rate.shared is None
    ]


def _key(request_id: str, rate: Rate) -> bytes:
    return keys.bucket(request_id if rate.bucket == OWN else rate.bucket)


def _terms(rate: Rate) -> dict[str, int]:
    return {"interval": rate.interval_us, "burst": rate.burst, "weight": rate.weight}


# ------------------------------------------------------------------ queue rate
# The rate of a whole queue: at most so many of its sub-requests start in a time.
#
# The rate is in the queue's `conf`, and each beat of a worker returns it, as it returns a pause. A
# worker that has popped tokens takes an allowance from the queue's bucket before it acquires, as
# for a request's own rate. If the bucket allows nothing, the tokens return to their lane and the
# worker waits. So the most urgent request starts next. A queue without a rate costs no command.


_MOST_DIGITS = 11


def check_queue_rate(rate: str | None, burst: int | None = None) -> tuple[int, int]:
    """Returns the interval in µs and the burst; (0, 0) for no rate. Raises InvalidArgument."""
    if rate is not None:
        _, interval, most, _ = rate_of(rate, burst)
        return interval, most
    if burst is not None:
        raise InvalidArgument("burst needs a rate: give rate, too, as 100/s")
    return 0, 0


async def set_queue_rate(queue: str, rate: str | None, burst: int | None = None) -> None:
    """Gives a queue this rate; None removes it. Raises InvalidArgument.

    The bucket may owe what a slower rate has taken. The new burst bounds that.
    """
    interval, most = check_queue_rate(rate, burst)
    await scripts.rate_queue((keys.conf(queue),), interval=interval, burst=most)
    if rate is not None:
        await Batch(refit("", [rate_of_queue(queue, interval, most)]))


async def read_queue_rate(queue: str) -> Rate | None:
    """Returns the rate of a queue; None = it has none."""
    value: bytes | None = await Command(b"HGET", keys.conf(queue), b"rate")
    return parse_queue_rate(queue, value)


def parse_queue_rate(queue: str, value: bytes | None) -> Rate | None:
    """Returns the rate in `conf`; None if there is none, or if no release wrote the value."""
    words = (value or b"").split()
    if len(words) != 2 or not all(word.isdigit() for word in words):  # noqa: PLR2004
        return None
    if max(map(len, words)) > _MOST_DIGITS:
        return None
    interval, burst = map(int, words)
    return rate_of_queue(queue, interval, burst) if interval and burst else None


def until_more(queue: str, rate: Rate, opens_ms: int, now_ms: int) -> str:
    """Returns when a queue's rate allows more, and what removes the rate."""
    return (
        f"the rate of queue {queue}, {rate.words}, allows more at {when(opens_ms, now_ms)}: "
        f"fairlane queue rate off{of_queue(queue)} removes it"
    )


# ------------------------------------------------------------------ set rate
# Gives requests another rate or weight. Each keeps its rate key, and the values not given.
#
# Requests share a rate if they have the same key and the same rate. So a request with a new rate
# no longer shares its former rate, and shares the new one.


Replies = dict[str, "SetRateReply | FairlaneError"]


class NewRate(NamedTuple):
    """The new rate of requests. None = each keeps its own value."""

    rate: str | None
    burst: int | None = None
    weight: int | None = None


def check_rate(new: NewRate) -> None:
    """Raises InvalidArgument unless requests can be given this."""
    rate, burst, weight = new
    if weight is not None:
        check_whole("weight", weight, 1, MOST)
    if rate is not None:
        rate_of(rate, burst, weight or 1)
    elif burst is not None:
        raise InvalidArgument("burst needs a rate: give rate, too, as 100/s")


async def set_rate(
    request_id: str, rate: str | None, burst: int | None = None, weight: int | None = None
) -> None:
    """Lets at most `rate` sub-requests start from now on (as 100/s); each counts `weight` times.

    Raises InvalidArgument, RequestNotFound, RequestEnded.
    """
    new = NewRate(rate, burst, weight)
    check_rate(new)
    if rate is None and weight is None:
        raise InvalidArgument("there is nothing to set: give a rate, as 100/s, or a weight")
    (queue,) = await read(request_id, "queue")
    reply = (await set_rates(queue, [request_id], new))[request_id]
    if isinstance(reply, FairlaneError):
        raise reply
    if reply.is_gone:
        raise not_found(request_id)
    if reply.is_ended:
        shown = how_it_ended(reply.summary)
        raise RequestEnded(
            f"request {request_id} has ended ({shown}): it cannot be given another rate"
        )


async def set_rates(queue: str, ids: Sequence[str], new: NewRate) -> Replies:
    """Gives requests of one queue this rate; returns the reply or the error of each.

    The tokens go to their lanes last, because the buckets may owe what a slower rate has taken. A
    repeat after an error does what is left.
    """
    replies: Replies = {}
    wanted: dict[str, tuple[Rate, ...]] = {}
    rows = await run_each_or_error([hmget(name, "born", "rates") for name in ids])
    for name, row in zip(ids, rows, strict=True):
        try:
            wanted[name] = _another(name, row, new)
        except FairlaneError as error:
            replies[name] = error
    answers = await call_each(
        [
            scripts.set_rate(keys.request_keys(name), rates=rates_text(rates))
            for name, rates in wanted.items()
        ]
    )
    replies.update(zip(wanted, answers, strict=True))
    await _refit(wanted, replies)
    good = [(name, one) for name, one in replies.items() if not isinstance(one, FairlaneError)]
    await run_all(follow_up(queue, *good))
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
    """Returns the error for a weight without a rate."""
    return InvalidArgument(
        f"request {request_id} has no rate, so its weight has no use: give rate, too, as 100/s"
    )


async def _refit(wanted: dict[str, tuple[Rate, ...]], replies: Replies) -> None:
    """Bounds what the buckets owe. An error of a bucket becomes its request's error."""
    calls, owners = [], []
    for name, rates in wanted.items():
        reply = replies[name]
        if not isinstance(reply, FairlaneError) and reply.is_ok:
            for call in refit(name, rates):
                calls.append(call)
                owners.append(name)
    for name, answer in zip(owners, await run_each_or_error(calls), strict=True):
        if isinstance(answer, FairlaneError):
            replies[name] = answer
