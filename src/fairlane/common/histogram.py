"""Distributions of durations in logarithmic buckets: a few numbers, and quantiles to within 12 %.

Each octave has four buckets, as in HdrHistogram with two significant bits: bucket 4n + s holds the
n-bit values whose next two bits are s. Counts of workers, priorities and times can be added.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_SUB_BITS = 2
_SUBS = 1 << _SUB_BITS


def bucket_of(value: int) -> int:
    """Returns the bucket of a whole number >= 0."""
    bits = value.bit_length()
    if bits <= _SUB_BITS:
        return bits * _SUBS + value  # so small that each value has its own
    return bits * _SUBS + (value >> (bits - 1 - _SUB_BITS)) % _SUBS


def bounds_of(bucket: int) -> tuple[int, int]:
    """Returns the smallest and the largest value of a bucket."""
    bits, sub = divmod(bucket, _SUBS)
    if bits <= _SUB_BITS:
        return sub, sub
    width = 1 << (bits - 1 - _SUB_BITS)
    low = (_SUBS + sub) * width
    return low, low + width - 1


@dataclass(slots=True)
class Distribution:
    """The number of values, their sum, the largest, and bucket -> count."""

    count: int = 0
    sum: int = 0
    max: int = 0
    buckets: Counter[int] = field(default_factory=Counter)

    def add(self, counts: Mapping[int, int]) -> None:
        """Adds values; `counts` has how often each came."""
        for value, times in counts.items():
            self.count += times
            self.sum += value * times
            self.max = max(self.max, value)
            self.buckets[bucket_of(value)] += times

    def merge(self, others: Iterable[Distribution]) -> Distribution:
        """Adds the others to this one, and returns it."""
        for other in others:
            self.count += other.count
            self.sum += other.sum
            self.max = max(self.max, other.max)
            self.buckets.update(other.buckets)
        return self

    @property
    def mean(self) -> float:
        """Returns the arithmetic mean; 0 if there are no values."""
        return self.sum / self.count if self.count else 0.0

    def quantile(self, share: float) -> int:
        """Returns a value that `share` (0..1) of all do not exceed: the upper end of its bucket."""
        wanted, seen = share * self.count, 0
        for bucket in sorted(self.buckets):
            seen += self.buckets[bucket]
            if seen >= wanted:
                return min(bounds_of(bucket)[1], self.max)
        return self.max
