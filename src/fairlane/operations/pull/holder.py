"""Finds the lease of a sub-request that a program took, by the name of the sub-request.

It is for callers that keep no receipt: a user who may read the keys of the request finds the lease.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlane.operations.pull.receipt import Receipt
from fairlane.protocol import keys, permit_fields
from fairlane.protocol.request_hash import as_text, hmget, parse_fields
from fairlane.protocol.steps import Batch, Command

if TYPE_CHECKING:
    from fairlane.protocol.steps import Operation

TAKER = "taker:"  # how the names of programs that take begin
_FIELDS = ("queue", "durable")


def find_receipt(queue: str, request_id: str, index: int) -> Operation[Receipt | None]:
    """Returns the receipt of the program that holds this sub-request now.

    None: no program holds it, or the request is not in this queue. A worker is no such program.
    Raises RedisError.
    """
    stream = keys.request_keys(request_id)[0]
    row, fields, is_stream = yield Batch(
        [
            hmget(request_id, *_FIELDS),
            Command(b"HGETALL", keys.permits(request_id)),
            Command(b"EXISTS", stream),
        ]
    )
    home, durable = parse_fields(_FIELDS, row)
    if home != queue:
        return None
    for one in permit_fields.held(as_text(fields)):
        if one.worker.startswith(TAKER) and one.first.endswith(f"-{index}"):
            attempt = (yield from _attempt(stream, one.first)) if is_stream else 1
            return Receipt(
                queue, request_id, one.k, one.fence.encode(), one.op.encode(), one.first.encode(),
                attempt, int(one.fence) // 1000, int(durable or 0),
            )  # fmt: skip
    return None


def _attempt(stream: bytes, entry_id: str) -> Operation[int]:
    """Returns which attempt at a leased entry of the stream this is."""
    rows = yield Command(b"XPENDING", stream, stream, entry_id, entry_id, 1)
    return int(rows[0][3]) if rows else 1
