"""Acquires for a request with rates: takes what its buckets allow, in their slots, and asks again.

Where one server has all keys, exchange.lua does the same in one call.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from fairlane import settings
from fairlane.common.rate import OWN, Rate, parse_rates
from fairlane.operations.lease.follow_up import follow_up
from fairlane.protocol import keys
from fairlane.protocol.scripts import library
from fairlane.protocol.steps import Batch, Command

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fairlane.protocol.replies import Reply
    from fairlane.protocol.steps import Call, Operation


class Waits(Enum):
    """The place of a caller in the line of a bucket."""

    NOT_YET = ""
    HAS = "1"  # it has waited as long as an earlier allowance named
    NEVER = "2"  # it takes no place in the line, because it may never ask again


class Allowance(NamedTuple):
    """How many sub-requests may start now; if none may, the ms until the caller may ask again."""

    allowed: int
    wait_ms: int


def acquire_rated(
    request_id: str, rated: Reply, ask: Callable[[Allowance], Call]
) -> Operation[Reply]:
    """Takes the allowance that a reply `rated` asks for; returns the reply to `ask` with it.

    What the lease does not use is returned. If this stops in the middle, the request starts that
    many sub-requests later; no rate is exceeded.
    """
    rates = parse_rates(rated.rates.decode())
    allowance = yield from take(
        rates, rated.size, request_id, waits=Waits.HAS if rated.has_waited else Waits.NOT_YET
    )
    reply = yield from ask(allowance).run()
    unused = allowance.allowed - (len(reply.entries) if reply.is_ok else 0)
    if unused:
        yield from refund([(rate, unused) for rate in rates], request_id)
    return reply


def take(
    rates: Sequence[Rate], want: int, request_id: str = "", *, waits: Waits
) -> Operation[Allowance]:
    """Takes up to `want` sub-requests from the buckets of all these rates. Raises NodeAway."""
    taken: list[tuple[Rate, int]] = []
    for rate in rates:
        call = library().take(
            (_key(request_id, rate),), want=want, waited=waits.value, **_terms(rate)
        )
        call.away_s = settings.AWAY_S
        reply = yield from call.run()
        if not reply.taken:
            yield from refund(taken, request_id)
            return Allowance(0, reply.wait)
        taken.append((rate, reply.taken))
        want = reply.taken
    yield from refund([(rate, count - want) for rate, count in taken if count > want], request_id)
    return Allowance(want, 0)


def refund(unused: Sequence[tuple[Rate, int]], request_id: str = "") -> Operation[None]:
    """Returns to the buckets of these rates what was taken and not used.

    It is sent at most once. If the call is lost, that many sub-requests start later.
    """
    if unused:
        yield Batch(
            [
                library().refund((_key(request_id, rate),), unused=count, **_terms(rate))
                for rate, count in unused
            ],
            lenient=True,  # else what is acquired already would be lost
            away_s=settings.AWAY_S,
        )


def hold(queue: str, request_id: str, ms: int) -> Operation[None]:
    """Starts nothing of a request, and of those that share its rates, for so many ms.

    The bucket of a key may be on a node that is away; then only the request waits. Raises NodeAway.
    """
    call = library().hold(keys.request_keys(request_id), ms=ms)
    call.away_s = settings.AWAY_S
    reply = yield from call.run()
    calls = follow_up(queue, (request_id, reply))
    if reply.is_ok:
        rates = parse_rates(reply.rates.decode())
        calls += [
            library().hold_rate((_key(request_id, rate),), ms=ms, **_terms(rate)) for rate in rates
        ]
    if calls:
        yield Batch(calls, lenient=True, away_s=settings.AWAY_S)


def opens(rate: Rate, now_ms: int, request_id: str = "") -> Operation[int]:
    """Returns when the bucket of a rate allows the next start, in ms; 0 = now.

    The gate of a request may open before that: a request in a long line asks again from time to
    time. It opens later if others are before it in the line.
    """
    value: bytes | None = yield Command(b"GET", _key(request_id, rate))
    tat_us, _, _, held_us = map(int, value.split(b":")) if value else (0, 0, 0, 0)
    due_us = max(held_us, tat_us - rate.interval_us * (rate.burst - rate.weight))
    return -(-due_us // 1000) if due_us > 1000 * now_ms else 0


def refit(request_id: str, rates: Sequence[Rate]) -> list[Call]:
    """Returns the calls that bound what the buckets owe, after a request was given these rates.

    What other requests share has had no other rate, so it stays.
    """
    return [
        library().refit((_key(request_id, rate),), **_terms(rate))
        for rate in rates
        if rate.shared is None
    ]


def _key(request_id: str, rate: Rate) -> bytes:
    return keys.bucket(request_id if rate.bucket == OWN else rate.bucket)


def _terms(rate: Rate) -> dict[str, int]:
    return {"interval": rate.interval_us, "burst": rate.burst, "weight": rate.weight}
