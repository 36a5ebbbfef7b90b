"""Rates: at most so many sub-requests start in a time, with a burst."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, NamedTuple

from fairlane.errors import InvalidArgument

if TYPE_CHECKING:
    from fractions import Fraction

OWN = "="  # the bucket of the request itself; others are key/NAME and queue/NAME
_UNITS_US = {"s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000}
_RATE = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)/([smh])")
MOST = 1_000_000  # a burst or a weight; and the most starts of a second
_LONGEST_US = 86_400_000_000  # between two starts
# A sub-request starts a little after Redis has granted it. So many starts of this time are kept
# back from the burst, so that the handlers' own clocks see no more than burst + rate x time.
_LAG_US = 50_000
_WIDTH_US = 10_000  # so many tokens may be on their way as sub-requests may start in this time


class Rate(NamedTuple):
    """One rate: a sub-request counts for `weight`, and one unit may start each `interval_us`.

    `burst` units may start together after a pause. Requests with the same `bucket` share it.
    """

    bucket: str
    interval_us: int
    burst: int
    weight: int

    @property
    def text(self) -> str:
        """Returns the four values as lua/v1/lib/rates/take_all.lua reads them."""
        return f"{self.bucket} {self.interval_us} {self.burst} {self.weight}"

    @property
    def words(self) -> str:
        """Returns the rate for people, as `100/s` or `30/m, shared as api`."""
        unit, us = next(
            ((unit, us) for unit, us in _UNITS_US.items() if self.interval_us <= us),
            ("h", _UNITS_US["h"]),
        )
        kind, _, name = self.bucket.partition("/")
        shared = f", shared as {name}" if kind == "key" else ""
        weight = f", each counts for {self.weight}" if self.weight > 1 else ""
        return f"{float(_number(us, self.interval_us)):.15g}/{unit}{shared}{weight}"

    @property
    def width(self) -> int:
        """Returns how many tokens of a request may be on their way together."""
        return max(1, math.ceil(_WIDTH_US / (self.interval_us * self.weight)))


def rate_of(text: str, burst: int | None = None, bucket: str = OWN, weight: int = 1) -> Rate:
    """Returns the rate for `"100/s"`, `"30/m"` or `"1000/h"`. Raises InvalidArgument.

    The burst is by default what the rate allows in a tenth of a second, at least one sub-request.
    """
    match = _RATE.fullmatch(text) if isinstance(text, str) else None
    whole, _, part = match[1].partition(".") if match else ("", "", "")
    number, scale = int(f"{whole}{part}" or 0), 10 ** len(part)  # number / scale starts
    if match is None or not number:
        raise InvalidArgument(
            f"rate {text!r} is not valid: write a rate such as 100/s, 30/m or 5/h"
        )
    us = scale * _UNITS_US[match[2]]
    interval = -(-us // number)  # rounded up: never faster than was asked for
    if us < number or interval > _LONGEST_US:
        raise InvalidArgument(f"rate {text!r} is not valid: 1/24h to 1,000,000/s is expected")
    _whole("weight", weight)
    if burst is None:
        burst = max(weight, 100_000 // interval)
    _whole("burst", burst)
    if burst < weight:
        raise InvalidArgument(
            f"weight {weight} is not valid: with a burst of {burst} a sub-request of this weight "
            "would never start; give it a burst of at least its weight"
        )
    kept = max(weight, burst - math.ceil(_LAG_US / interval))
    return Rate(bucket, interval, kept, weight)


def rate_of_queue(queue: str, interval_us: int, burst: int) -> Rate:
    """Returns the rate that all sub-requests of a queue share."""
    return Rate(f"queue/{queue}", interval_us, burst, 1)


def _number(us: int, interval_us: int) -> Fraction:
    """Returns the roundest number of starts in `us` that has this interval."""
    from fractions import Fraction  # costs an import of 2 ms

    exact = Fraction(us, interval_us)
    for place in range(7, -7, -1):  # 10,000,000s to 0.000001s
        number = math.ceil(exact / Fraction(10) ** place) * Fraction(10) ** place
        if math.ceil(us / number) == interval_us:
            return number
    return exact


def _whole(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST:
        raise InvalidArgument(
            f"{name} {value!r} is not valid: a whole number from 1 to {MOST:,} is expected"
        )


def rates_text(rates: tuple[Rate, ...]) -> str:
    """Returns the rates of a request as its gate holds them."""
    width = min(rate.width for rate in rates)
    return " ".join([str(width), *(rate.text for rate in rates)])


def parse_rates(text: str) -> tuple[Rate, ...]:
    """Returns the rates that `rates_text` wrote."""
    words = text.split()[1:]
    rows = zip(*(iter(words),) * 4, strict=True)
    return tuple(Rate(bucket, *map(int, numbers)) for bucket, *numbers in rows)
