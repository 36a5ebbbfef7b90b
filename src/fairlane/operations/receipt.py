"""The receipt of a sub-request that a program took: the proof of its lease, and what it settles."""

from __future__ import annotations

import hashlib
import re
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fairlane import settings
from fairlane.common.clock import ms_of
from fairlane.common.text import shortened
from fairlane.errors import InvalidArgument, NotDurable, ReceiptExpired, type_of
from fairlane.model import Verdict, result_head
from fairlane.operations.completion import is_place, parse_results
from fairlane.operations.durability import confirm_settled
from fairlane.operations.follow_up import follow_up
from fairlane.operations.lease import complete, extend, give_back
from fairlane.protocol import keys
from fairlane.protocol.steps import Batch, Command

if TYPE_CHECKING:
    from fairlane.common.chunking import Body
    from fairlane.model import Slice
    from fairlane.protocol.replies import Reply
    from fairlane.protocol.steps import Call


# ------------------------------------------------------------------ receipt
# The receipt of a sub-request that a program took: the proof that it holds the lease, as text.
#
# The text has no character that a URL would have to quote. Its op is random, so no program can
# make the receipt of another one. The op also has a mark of its queue, so the text of a receipt
# cannot be changed to name another queue, whose log would get the ending.


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


def check_visible(visible_for: float) -> int:
    """Returns how long a lease lasts, in ms. Raises InvalidArgument."""
    is_number = isinstance(visible_for, (int, float)) and not isinstance(visible_for, bool)
    if not is_number or not 0.001 <= visible_for <= settings.LONGEST_TERM_MS / 1000:  # noqa: PLR2004
        raise InvalidArgument(
            f"visible_for {visible_for!r} is not valid: more than 0 seconds and at most a day are "
            "expected"
        )
    return int(visible_for * 1000)


# ------------------------------------------------------------------ settle
# Settles what a program took, by its receipt: done, dead, released, or more time.
#
# A repeat of a call finds that its lease is over, because the first one ended it. Then the result
# that the first one wrote is looked for among those since the sub-request was taken. So a repeat
# succeeds, and a receipt whose lease another program ended is refused.


_PAGE = 500  # entries of `out` that are read in one call


async def done(receipt: Receipt, result: Body | None, ran_us: int) -> None:
    """Stores the result of a sub-request and counts it as done.

    Raises ReceiptExpired, InvalidArgument, and NotDurable: then it is done, but too few replicas
    have confirmed that.
    """
    status, body = stored(result)
    head = receipt.head(status, ran_us)
    call = complete(receipt, [receipt.entry_id], [head, body], [], keep=False)
    await _settle(receipt, call, is_dead=False)


async def dead(receipt: Receipt, reason: str, ran_us: int) -> None:
    """Makes a sub-request dead: it is kept with its body. Raises as `done` does."""
    text = _check_reason(reason)
    verdict = Verdict(receipt.entry_id, "dead", 0, receipt.head(b"x", ran_us), text)
    await _settle(receipt, complete(receipt, [], [], [verdict], keep=False), is_dead=True)


async def release(receipt: Receipt, delay_s: float) -> None:
    """Returns a sub-request, uncharged; it may be taken again after `delay_s` seconds.

    Changes nothing if the sub-request was settled by this receipt before, or if its request has
    ended. Raises ReceiptExpired, InvalidArgument.
    """
    delay_ms = ms_of("delay_s", delay_s)
    if not 0 <= delay_ms <= settings.LONGEST_TERM_MS:
        raise InvalidArgument(f"delay_s {delay_s!r} is not valid: 0 seconds to a day are expected")
    verdict = Verdict(receipt.entry_id, "release", delay_ms, receipt.head(b"g", 0), "")
    proof = (receipt.k, receipt.fence.decode(), receipt.op.decode())
    call = give_back(receipt.request_id, *proof, [verdict])
    reply = await call
    if reply.is_lost or reply.is_gone:
        raise receipt.expired()
    await _dispatch(receipt, reply)


async def extend_term(receipt: Receipt, visible_for: float) -> bool:
    """Holds a sub-request for `visible_for` seconds from now; False = its result is not wanted.

    False: the request was cancelled, or its deadline has passed. Raises ReceiptExpired,
    InvalidArgument.
    """
    term = check_visible(visible_for)
    proof = (receipt.k, receipt.fence.decode(), receipt.op.decode())
    call = extend(receipt.request_id, *proof, term)
    reply = await call
    if not reply.is_ok and not reply.is_cancelled:
        raise receipt.expired()
    return bool(reply.is_ok)


def stored(result: Body | None) -> tuple[bytes, bytes]:
    """Returns the status and the bytes of a result as `out` has them. Raises InvalidArgument."""
    if result is None:
        return b"n", b""
    if isinstance(result, str):
        try:
            body = result.encode()
        except UnicodeEncodeError as error:
            raise InvalidArgument(f"the result is not text: {error}") from None
    elif isinstance(result, (bytes, bytearray, memoryview)):
        body = bytes(result)
    else:
        raise InvalidArgument(f"the result is {type_of(result)}: bytes, str or None is expected")
    if len(body) > settings.MAX_BODY:
        raise InvalidArgument(
            f"the result has {len(body):,} bytes: the most is {settings.MAX_BODY:,}"
        )
    return b"d", body


def _check_reason(reason: str) -> str:
    if not isinstance(reason, str) or not reason.strip():
        raise InvalidArgument(
            f"reason {reason!r} is not valid: say why the sub-request is given up"
        )
    return shortened(reason, settings.MAX_ERROR)


async def _settle(receipt: Receipt, call: Call[Any], *, is_dead: bool) -> None:
    if receipt.durable:
        reply, missing = await confirm_settled(call, receipt.request_id, receipt.durable)
    else:
        reply, missing = await call, ""
    if reply.is_lost or reply.is_gone:
        raise receipt.expired()
    await _dispatch(receipt, reply)
    is_repeat = reply.is_already or (reply.is_ended and reply.late)
    if is_repeat and not await _is_settled(receipt, reply, is_dead=is_dead):
        raise receipt.expired()
    if missing:
        raise NotDurable(
            f"sub-request {receipt.index} of request {receipt.request_id} is settled, but {missing}"
        )


async def _dispatch(receipt: Receipt, reply: Reply) -> None:
    if calls := follow_up(receipt.queue, (receipt.request_id, reply)):
        await Batch(calls)


async def _is_settled(receipt: Receipt, reply: Reply, *, is_dead: bool) -> bool:
    """Returns True if this receipt has settled its sub-request, and in the same way.

    Without a retention an ended request has no results. Then the repeat counts as such.
    """
    if reply.is_ended:
        if reply.summary.born > receipt.taken_ms:  # a later life of the id
            return False
        if not reply.summary.retain_ms:
            return True
    status = "dead" if is_dead else "done"
    wanted = (receipt.index, receipt.attempt, receipt.waited_ms, status)
    after = b"%d" % receipt.taken_ms
    while True:
        page = await Command(
            b"XRANGE", keys.results(receipt.request_id), after, b"+", b"COUNT", _PAGE
        )
        for _, fields in page:
            for one in parse_results(fields):
                if (one.index, one.attempt, one.waited_ms, one.status) == wanted:
                    return True
        if len(page) < _PAGE:
            return False
        after = b"(" + page[-1][0]
