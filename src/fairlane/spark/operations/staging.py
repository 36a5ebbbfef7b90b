"""Staging: the rows of many writers wait in areas of the request's slot that no worker reads.

An area has one writer, and a writer that runs again uses another area. Areas that no transaction
pins (commit.py) expire. Sub-requests travel packed: their count, the length of each, then the
bodies. All numbers are little-endian of four bytes.
"""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING, NamedTuple

from fairlane.protocol import keys
from fairlane.protocol.scripts import library
from fairlane.protocol.steps import Batch, Call, Operation

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

AREAS_MOST = 500  # keys of one call
CHECKS = 65_521  # checksums are added modulo this


class Area(NamedTuple):
    """Counts what one writer has staged for one request: chunks and sub-requests.

    `check` is the checksum of all its chunks.
    """

    name: str
    chunks: int
    rows: int
    check: int = 0

    def grown(self, rows: int, packed: bytes) -> Area:
        """Returns the area with one more chunk."""
        check = (self.check + check_of(packed)) % CHECKS
        return Area(self.name, self.chunks + 1, self.rows + rows, check)


def pack(bodies: Sequence[bytes]) -> bytes:
    """Returns one packed chunk of at most 1,000 bodies and 1 MiB of them."""
    return joined(len(bodies), struct.pack(f"<{len(bodies)}I", *map(len, bodies)), b"".join(bodies))


def joined(count: int, lengths: bytes, bodies: bytes) -> bytes:
    """Returns a packed chunk, made of its columns."""
    return b"".join((struct.pack("<I", count), lengths, bodies))


def check_of(packed: bytes) -> int:
    """Returns the checksum of a chunk: the sum of all bytes after its count.

    So the same rows have the same sum over all chunks, whatever their order and partitions are.
    """
    return zlib.adler32(memoryview(packed)[4:], 0) & 0xFFFF


def stage(request_id: str, txn: str, area: str, chunk: int, packed: bytes, ttl_ms: int) -> Call:
    """Returns the call that stages a chunk, numbered from 1, for `ttl_ms`; it is idempotent."""
    name = keys.area(request_id, txn, area)
    return library().stage((name,), chunk=chunk, ttl=ttl_ms, packed=packed)


def stage_all(calls: Sequence[Call]) -> Operation[None]:
    """Sends these calls in one round trip. Raises RedisFull, after which they may be sent again."""
    if calls:
        yield Batch(calls)


def unstage(
    request_id: str, txn: str, areas: Iterable[str], *, is_loser: bool = False
) -> Operation[bool]:
    """Drops areas of a transaction; returns False, and drops none, if it is pinned.

    `is_loser`: the areas are not in its manifest, and are dropped in any case.
    """
    record = keys.transaction(request_id, txn)
    names = [keys.area(request_id, txn, area) for area in areas]
    keep = "1" if is_loser else "0"
    for at in range(0, len(names), AREAS_MOST):
        part = names[at : at + AREAS_MOST]
        reply = yield from library().unstage((record, *part), keep=keep).run()
        if reply.is_pinned:
            return False
    return True
