"""Settles what a program took, by its receipt: done, dead, released, or more time.

A repeat of a call finds that its lease is over, because the first one ended it. Then the result
that the first one wrote is looked for among those since the sub-request was taken. So a repeat
succeeds, and a receipt whose lease another program ended is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlane import settings
from fairlane.common.clock import ms_of
from fairlane.common.text import shortened
from fairlane.errors import InvalidArgument, NotDurable, type_of
from fairlane.model import Verdict
from fairlane.operations.control.completion import parse_results
from fairlane.operations.lease.follow_up import follow_up
from fairlane.operations.lease.leases import complete, extend, give_back
from fairlane.operations.pull.take import check_visible
from fairlane.operations.submit.durability import confirm_settled
from fairlane.protocol import keys
from fairlane.protocol.steps import Batch, Command

if TYPE_CHECKING:
    from fairlane.common.chunking import Body
    from fairlane.operations.pull.receipt import Receipt
    from fairlane.protocol.replies import Reply
    from fairlane.protocol.steps import Call, Operation

_PAGE = 500  # entries of `out` that are read in one call


def done(receipt: Receipt, result: Body | None, ran_us: int) -> Operation[None]:
    """Stores the result of a sub-request and counts it as done.

    Raises ReceiptExpired, InvalidArgument, and NotDurable: then it is done, but too few replicas
    have confirmed that.
    """
    status, body = stored(result)
    head = receipt.head(status, ran_us)
    call = complete(receipt, [receipt.entry_id], [head, body], [], keep=False)
    yield from _settle(receipt, call, is_dead=False)


def dead(receipt: Receipt, reason: str, ran_us: int) -> Operation[None]:
    """Makes a sub-request dead: it is kept with its body. Raises as `done` does."""
    text = _check_reason(reason)
    verdict = Verdict(receipt.entry_id, "dead", 0, receipt.head(b"x", ran_us), text)
    yield from _settle(receipt, complete(receipt, [], [], [verdict], keep=False), is_dead=True)


def release(receipt: Receipt, delay_s: float) -> Operation[None]:
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
    reply = call.reply((yield call))
    if reply.is_lost or reply.is_gone:
        raise receipt.expired()
    yield from _dispatch(receipt, reply)


def extend_term(receipt: Receipt, visible_for: float) -> Operation[bool]:
    """Holds a sub-request for `visible_for` seconds from now; False = its result is not wanted.

    False: the request was cancelled, or its deadline has passed. Raises ReceiptExpired,
    InvalidArgument.
    """
    term = check_visible(visible_for)
    proof = (receipt.k, receipt.fence.decode(), receipt.op.decode())
    call = extend(receipt.request_id, *proof, term)
    reply = call.reply((yield call))
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


def _settle(receipt: Receipt, call: Call, *, is_dead: bool) -> Operation[None]:
    if receipt.durable:
        raw, missing = yield from confirm_settled(call, receipt.request_id, receipt.durable)
    else:
        raw, missing = (yield call), ""
    reply = call.reply(raw)
    if reply.is_lost or reply.is_gone:
        raise receipt.expired()
    yield from _dispatch(receipt, reply)
    is_repeat = reply.is_already or (reply.is_ended and reply.late)
    if is_repeat and not (yield from _is_settled(receipt, reply, is_dead=is_dead)):
        raise receipt.expired()
    if missing:
        raise NotDurable(
            f"sub-request {receipt.index} of request {receipt.request_id} is settled, but {missing}"
        )


def _dispatch(receipt: Receipt, reply: Reply) -> Operation[None]:
    if calls := follow_up(receipt.queue, (receipt.request_id, reply)):
        yield Batch(calls)


def _is_settled(receipt: Receipt, reply: Reply, *, is_dead: bool) -> Operation[bool]:
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
        page = yield Command(
            b"XRANGE", keys.results(receipt.request_id), after, b"+", b"COUNT", _PAGE
        )
        for _, fields in page:
            for one in parse_results(fields):
                if (one.index, one.attempt, one.waited_ms, one.status) == wanted:
                    return True
        if len(page) < _PAGE:
            return False
        after = b"(" + page[-1][0]
