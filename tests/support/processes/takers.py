"""Takes sub-requests in the test itself, and expires leases without a wait."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from fairlane.protocol import keys

if TYPE_CHECKING:
    from fairlane.queue import Queue
    from fairlane.taken import Taken

HOUR = 3_600


def bodies_of(taken: list[Taken]) -> list[bytes | None]:
    """Returns the bodies in the order they were taken."""
    return [one.body for one in taken]


def take_one(queue: Queue, **options: Any) -> Taken:
    """Takes the only sub-request that waits."""
    (taken,) = queue.take(2, **options)
    return taken


def let_expire(client: Any, request_id: str) -> None:
    """Expires all leases of the request, so that its check is due."""
    leases = keys.leases(request_id)
    for k in client.zrange(leases, 0, -1):
        client.zadd(leases, {k: 1})
    client.zadd(keys.active("req"), {request_id: 1.5})


def take_again(queue: Queue, client: Any, taken: Taken, **options: Any) -> Taken:
    """Takes the same sub-request again after its lease has expired."""
    let_expire(client, taken.id)
    again = take_one(queue, **options)
    assert (again.id, again.index) == (taken.id, taken.index)
    return again


def main() -> int:
    """Takes sub-requests until it is killed, and settles half of them, as a program.

    The words are the URL and how long each sub-request is held, in seconds.
    """
    from fairlane.queue import Queue

    url, visible_for = sys.argv[1:]
    with Queue.from_url(url) as queue:
        while True:
            taken = queue.take(4, visible_for=float(visible_for), wait_s=1)
            for one in taken[::2]:
                one.done(one.body)
