"""The work of bench/speed/executor.py: pure Python, nothing but CPU."""

from __future__ import annotations

PRIMES = {7_000: 900, 200: 46}  # below these numbers; a call takes about 5 ms, and 0.1 ms


def count_primes(most: int) -> int:
    """Returns how many primes are below a number, by trial division."""
    found = 0
    for number in range(2, most):
        for divisor in range(2, int(number**0.5) + 1):
            if number % divisor == 0:
                break
        else:
            found += 1
    return found
