"""A consumer of a plain list, as a program: takes a message, and records it in one step.

It works with the commands of Redis only. What it was working on when it died, it finishes first.
"""

from __future__ import annotations

import sys
from typing import Any

import redis


def main() -> None:
    """Consumes `out` and records in `seen`, until it is killed."""
    url, out, seen = sys.argv[1:]
    work = f"{out}:work"
    client: Any = redis.Redis.from_url(url)
    while True:
        left = client.lrange(work, -1, -1)
        message = left[0] if left else client.blmove(out, work, 1, "RIGHT", "LEFT")
        if message is None:
            continue
        with client.pipeline() as both:
            both.lrem(work, -1, message)
            both.lpush(seen, message)
            both.execute()
