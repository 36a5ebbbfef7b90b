"""Makes requests that have dead sub-requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairlane.operations import lease, tokens
from tests.support.scripts.requests import (
    dead,
    head_of,
    insert,
    next_slice,
    numbered,
    once,
    take_slice,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from fairlane.drivers.sync import SyncDriver
    from fairlane.model import Slice, Verdict
    from fairlane.queue import Queue
    from fairlane.request import Request


def refuse(
    driver: SyncDriver, held: Slice, is_bad: Callable[[bytes], bool], error: str = "bad port"
) -> None:
    """Settles a slice: `bad` bodies die, all others are done."""
    ids: list[bytes] = []
    pairs: list[Any] = []
    verdicts: list[Verdict] = []
    for entry_id, (_, body) in held.entries:
        if is_bad(body):
            verdicts.append(dead(entry_id, error, held.attempt))
        else:
            ids.append(entry_id)
            pairs += [head_of(entry_id, attempt=held.attempt), b"done " + body]
    reply = driver.run(once(lease.complete(held, ids, pairs, verdicts, keep=False)))
    if reply[0] == b"ended":
        driver.run(once(tokens.retire("req", held.request_id, reply[1])))
    else:
        insert(driver, "req", held.request_id, reply[2])


def work_badly(
    driver: SyncDriver, is_bad: Callable[[bytes], bool] = lambda _: True, error: str = "bad port"
) -> None:
    """Works until no token is left."""
    while (held := take_slice(driver)) is not None:
        refuse(driver, held, is_bad, error)


def ended(queue: Queue, bodies: Iterable[bytes] = (b"a", b"b", b"c"), **options: Any) -> Request:
    """Yields a request r1 that ended with all of its sub-requests dead."""
    request = queue.submit_request(bodies, id="r1", **options)
    work_badly(queue.driver)
    assert request.state() == "done"
    return request


def running(queue: Queue, count: int = 3) -> tuple[Request, Slice]:
    """Yields a request r1 whose first sub-request is dead, while the others are leased."""
    request = queue.submit_request(numbered(count), id="r1", limit=1)
    held = next_slice(queue.driver)
    queue.driver.run(once(lease.complete(held, [], [], [dead(held.entries[0][0])], keep=True)))
    return request, held
