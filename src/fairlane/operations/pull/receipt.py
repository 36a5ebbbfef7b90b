"""The receipt of a sub-request that a program took: the proof that it holds the lease, as text.

The text has no character that a URL would have to quote. Its op is random, so no program can make
the receipt of another one. The op also has a mark of its queue, so the text of a receipt cannot be
changed to name another queue, whose log would get the ending.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fairlane.errors import InvalidArgument, ReceiptExpired
from fairlane.model import result_head
from fairlane.operations.control.completion_log import is_place

if TYPE_CHECKING:
    from fairlane.model import Slice

_NAME = r"[A-Za-z0-9_.:-]{1,128}"
_RECEIPT = re.compile(
    rf"({_NAME})~({_NAME})~([0-9]{{1,5}})\.([0-9]{{1,20}})\.([0-9a-f]{{32}})"
    r"\.([0-9]{1,20}-[0-9]{1,20})\.([0-9]{1,10})\.([0-9]{1,18})\.([0-9]{1,2})"
)
_SEED = 24  # digits of an op that are random: 96 bits; the other 8 are the mark
_SHOWN_MOST = 60  # characters of a refused receipt


@dataclass(frozen=True, slots=True)
class Receipt:
    """One lease of one sub-request. `taken_ms` is when it was taken, by the request's Redis."""

    queue: str
    request_id: str
    k: str
    fence: bytes
    op: bytes
    entry_id: bytes
    attempt: int
    taken_ms: int
    durable: int

    @property
    def text(self) -> str:
        """Returns what `parse_receipt` reads."""
        permit = f"{self.k}.{self.fence.decode()}.{self.op.decode()}.{self.entry_id.decode()}"
        return (
            f"{self.queue}~{self.request_id}~{permit}.{self.attempt}.{self.taken_ms}.{self.durable}"
        )

    @property
    def index(self) -> int:
        """Returns the place of the sub-request in its request."""
        return int(self.entry_id.partition(b"-")[2])

    @property
    def waited_ms(self) -> int:
        """Returns how long the sub-request waited until it was taken."""
        return max(0, self.taken_ms - int(self.entry_id.partition(b"-")[0]))

    def head(self, status: bytes, ran_us: int) -> bytes:
        """Returns the header of a result of this lease."""
        index = self.entry_id.partition(b"-")[2]
        return result_head(index, status, self.attempt, self.waited_ms, ran_us)

    def expired(self) -> ReceiptExpired:
        """Returns the error for a receipt whose lease is over."""
        return ReceiptExpired(
            f"the receipt of sub-request {self.index} of request {self.request_id} is too old: its "
            "lease is over, so take the sub-request again if it still waits"
        )


def receipt_of(queue: str, taken: Slice) -> Receipt:
    """Returns the receipt of a slice of one sub-request."""
    return Receipt(
        queue,
        taken.request_id,
        taken.k,
        bytes(taken.fence),
        bytes(taken.op),
        taken.entries[0][0],
        taken.attempt,
        taken.taken_ms,
        taken.durable,
    )


def new_proof(queue: str) -> bytes:
    """Returns a new op for a lease in this queue."""
    seed = secrets.token_hex(_SEED // 2)
    return f"{seed}{_mark(queue, seed)}".encode()


def _mark(queue: str, seed: str) -> str:
    return hashlib.sha256(f"{queue}~{seed}".encode()).hexdigest()[:8]


def parse_receipt(queue: str, text: str) -> Receipt:
    """Reads a receipt of this queue. Raises InvalidArgument."""
    match = _RECEIPT.fullmatch(text) if isinstance(text, str) else None
    if match is None or not is_place(match[6]):
        shown = repr(text)
        if isinstance(text, str) and len(text) > _SHOWN_MOST:
            shown = f"{text[:_SHOWN_MOST]!r}... ({len(text):,} characters)"
        raise InvalidArgument(
            f"receipt {shown} is not valid: pass the `receipt` of a sub-request that was taken"
        )
    home, request_id, k, fence, op, entry_id, attempt, taken_ms, durable = match.groups()
    if home != queue:
        raise InvalidArgument(
            f"receipt {text[:_SHOWN_MOST]!r}... is of queue {home}, not of {queue}: "
            "use a Queue of that name"
        )
    if op[_SEED:] != _mark(queue, op[:_SEED]):
        raise InvalidArgument(
            f"receipt {text[:_SHOWN_MOST]!r}... was changed: pass it as it was when it was taken"
        )
    return Receipt(
        queue, request_id, k, fence.encode(), op.encode(), entry_id.encode(),
        int(attempt), int(taken_ms), int(durable),
    )  # fmt: skip
