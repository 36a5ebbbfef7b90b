"""Rates: at most so many sub-requests start in a time, with a burst."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, NamedTuple

from fairlane.errors import InvalidArgument

if TYPE_CHECKING:
    from fractions import Fraction

OWN = "="  # the bucket of the request itself; others are those of `Shared`, and queue/NAME
_UNITS_US = {"s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000}
_RATE = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)/([smh])")
MOST = 1_000_000  # a burst or a weight; and the most starts of a second
_LONGEST_US = 86_400_000_000  # between two starts, also of the heaviest sub-requests
_FULL_US = 366 * _LONGEST_US  # until a bucket has its whole burst again
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
        """Returns the four values as lua/v1/lib/rates.lua reads them."""
        return f"{self.bucket} {self.interval_us} {self.burst} {self.weight}"

    @property
    def shared(self) -> Shared | None:
        """Returns with whom the rate is shared; None = with no other request."""
        return Shared.of(self.bucket)

    def with_weight(self, weight: int) -> Rate:
        """Returns the rate for sub-requests of another weight. Raises InvalidArgument.

        A burst that no other request shares becomes at least the weight.
        """
        _check_weight(weight, self.interval_us)
        shared = self.shared
        if shared is None:
            return self._replace(weight=weight, burst=max(self.burst, weight))
        _check_burst(weight, shared.burst)
        kept = _kept(weight, shared.burst, self.interval_us)
        return self._replace(weight=weight, burst=kept)

    def in_queue(self, queue: str) -> Rate:
        """Returns the rate of a request that goes to this queue."""
        shared = self.shared
        return self if shared is None else self._replace(bucket=shared._replace(queue=queue).bucket)

    @property
    def words(self) -> str:
        """Returns the rate for people, as `100/s` or `30/m, shared as api`."""
        unit, us = next(
            ((unit, us) for unit, us in _UNITS_US.items() if self.interval_us <= us),
            ("h", _UNITS_US["h"]),
        )
        shared = f", shared as {self.shared.key}" if self.shared is not None else ""
        weight = f", each counts for {self.weight}" if self.weight > 1 else ""
        number = f"{float(_number(us, self.interval_us)):.6f}".rstrip("0").rstrip(".")
        return f"{number}/{unit}{shared}{weight}"

    @property
    def width(self) -> int:
        """Returns how many tokens of a request may be on their way together."""
        return max(1, math.ceil(_WIDTH_US / (self.interval_us * self.weight)))


class Shared(NamedTuple):
    """With whom a rate is shared: requests of one queue, with one rate key, one rate and one burst.

    All four are in the name of the bucket. So a request with another rate for a key has a bucket of
    its own, and cannot delay those that share the first one.
    """

    queue: str
    key: str
    interval_us: int = 0
    burst: int = 0  # as it was given: what is kept of it depends on the weight

    @property
    def bucket(self) -> str:
        """Returns the name of the bucket."""
        return f"key/{self.queue}/{self.key}/{self.interval_us}/{self.burst}"

    @staticmethod
    def of(bucket: str) -> Shared | None:
        """Returns with whom a bucket is shared; None = it has another kind of name."""
        match bucket.split("/"):
            case ["key", queue, key, interval, burst] if (interval + burst).isdecimal():
                return Shared(queue, key, int(interval), int(burst))
        return None


def rate_of(
    text: str, burst: int | None = None, weight: int = 1, shared: Shared | None = None
) -> Rate:
    """Returns the rate for `"100/s"`, `"30/m"` or `"1000/h"`. Raises InvalidArgument.

    The burst is by default what the rate allows in a tenth of a second, and at least one start.
    Requests that share a rate may have different weights, so their burst does not depend on these.
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
    _check_weight(weight, interval)
    if burst is None:
        burst = max(1 if shared else weight, 100_000 // interval)
    _whole("burst", burst)
    _check_burst(weight, burst)
    if burst * interval > _FULL_US:
        raise InvalidArgument(
            f"burst {burst:,} is not valid: at a rate of {text} it takes more than 366 days until "
            f"so many may start together again; give a burst of at most {_FULL_US // interval:,}"
        )
    bucket = shared._replace(interval_us=interval, burst=burst).bucket if shared else OWN
    return Rate(bucket, interval, _kept(weight, burst, interval), weight)


def rate_of_queue(queue: str, interval_us: int, burst: int) -> Rate:
    """Returns the rate that all sub-requests of a queue share."""
    return Rate(f"queue/{queue}", interval_us, burst, 1)


def _kept(weight: int, burst: int, interval_us: int) -> int:
    """Returns the part of a burst that may be taken together."""
    return max(weight, burst - math.ceil(_LAG_US / interval_us))


def _check_weight(weight: int, interval_us: int) -> None:
    _whole("weight", weight)
    if weight * interval_us > _LONGEST_US:
        raise InvalidArgument(
            f"weight {weight:,} is not valid: a sub-request would use up the rate for more than a "
            f"day; give a weight of at most {_LONGEST_US // interval_us:,}, or a faster rate"
        )


def _check_burst(weight: int, burst: int) -> None:
    if burst < weight:
        raise InvalidArgument(
            f"weight {weight} is not valid: with a burst of {burst} a sub-request of this weight "
            "would never start; give it a burst of at least its weight"
        )


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
