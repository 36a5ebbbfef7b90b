"""A worker's calls: pop a token -> acquire -> handle -> complete -> dispatch the returned tokens.

If one server has all keys: handle -> exchange (exchange.py) -> handle.
"""

from __future__ import annotations

import os
import secrets
from functools import lru_cache, partial
from itertools import count
from typing import TYPE_CHECKING, Protocol

from fairlane import settings
from fairlane.model import Slice, Token, Verdict
from fairlane.operations.lease.rates import Allowance, acquire_rated
from fairlane.protocol import keys
from fairlane.protocol.scripts import Library, Script, library
from fairlane.protocol.steps import TextCall

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fairlane.protocol.replies import Reply
    from fairlane.protocol.steps import Arg, Call, Operation

    Part = tuple[list[bytes], list[Arg], list[Verdict]]  # ids, (head, body) pairs flat, verdicts


# In the order of their signatures: a unit makes tens of thousands of these calls a second.
_ACQUIRE = (
    *("now", "k", "g", "op", "worker", "started", "count", "shared"),
    *("allowance", "wait"),
)
_COMPLETE = ("now", "k", "fence", "op", "keep", "done")


@lru_cache(maxsize=8)
def signed(scripts: Library, name: str, params: tuple[str, ...]) -> Script:
    """Returns a script whose arguments are given in order. Raises TypeError if these changed."""
    script: Script = getattr(scripts, name)
    if script.params != params:
        raise TypeError(f"{name} takes {', '.join(script.params)}")
    return script


class Ops:
    """Draws ops: the same 88 random bits in one process, and a count."""

    def __init__(self) -> None:
        self.renew()
        os.register_at_fork(after_in_child=self.renew)

    def renew(self) -> None:
        """Draws other bits than the parent's, in a process that was forked."""
        self._prefix = secrets.token_hex(11).encode()
        self._numbers = count()

    def draw(self) -> bytes:
        """Returns an op that was never drawn before."""
        return b"%b%010x" % (self._prefix, next(self._numbers))


_ops = Ops()


def new_op() -> bytes:
    """Returns a name for one acquire: 32 hex digits, different each time."""
    return _ops.draw()


def acquire(
    token: Token, worker: str, started: str, count: int, *, op: bytes | None = None
) -> Operation[tuple[Reply, Slice | None]]:
    """Shows the token; returns the reply, which is to be followed up, and the slice of an `ok`.

    Idempotent by `op`: None makes a new one. Raises NodeAway if the request's node of a cluster has
    not answered for AWAY_S.
    """
    op = op or new_op()
    call = acquire_call(token, worker, started, count, op)
    call.away_s = settings.AWAY_S
    reply = yield from call.run()
    if reply.is_rated:
        again = partial(acquire_call, token, worker, started, count, op)
        reply = yield from acquire_rated(
            token.request_id, reply, lambda allowance: again(allowance=allowance)
        )
    return reply, slice_of(token, op, reply)


def acquire_call(
    token: Token, worker: str, started: str, count: int, op: bytes, *, shared: bool = False,
    allowance: Allowance | None = None,
) -> Call:  # fmt: skip
    """Returns the call that acquires; `shared`: with others by one unit, where no death is charged.

    The death of a retry must be charged: the reply to a shared call is then "alone", and the token
    stays valid. A request with rates needs an `allowance`: without one the reply is "rated", and
    the token stays valid, too.
    """
    script = signed(library(), "acquire", _ACQUIRE)
    is_shared = b"1" if shared else b""
    allowed, wait = (b"", b"") if allowance is None else (b"%d" % number for number in allowance)
    return TextCall(
        script, keys.request_keys(token.request_id),
        (b"", token.k, token.g, op, worker, started, b"%d" % count, is_shared, allowed, wait),
    )  # fmt: skip


def slice_of(token: Token, op: bytes, reply: Reply) -> Slice | None:
    """Returns the slice that an acquire with this op was granted; None if it was not."""
    if not reply.is_ok:
        return None
    _, fence, attempt, policy, entries, _ = reply
    now, _, lease_ms, attempts, backoff_min, backoff_max, priority, *others = policy
    limit_ms, durable, more, trace = others
    return Slice(
        token.request_id, token.k, fence, op, attempt, attempts, (backoff_min, backoff_max),
        lease_ms, priority, now, entries, limit_ms, durable, more, token.turn, trace.decode(),
    )  # fmt: skip


class LeaseProof(Protocol):
    """What proves that the caller holds a lease: a Slice, or a receipt."""

    @property
    def request_id(self) -> str:
        """Returns the request's id."""

    @property
    def k(self) -> str:
        """Returns the permit."""

    @property
    def fence(self) -> bytes:
        """Returns the lease's fence."""

    @property
    def op(self) -> bytes:
        """Returns the op of the acquire."""


def complete(
    held: LeaseProof, ids: list[bytes], results: list[Arg], verdicts: list[Verdict], *, keep: bool
) -> Call:
    """Returns the call that settles entries of a slice.

    `ids` are the done ones, `results` their (head, body) pairs, flat. Without `keep` the others
    go back, not begun.
    """
    lease = (held.k, held.fence, held.op)
    return _complete(held.request_id, lease, ids, results, verdicts, b"1" if keep else b"u")


def give_back(
    request_id: str,
    k: str,
    fence: str,
    op: str,
    verdicts: Sequence[Verdict] = (),
    *,
    is_unbegun: bool = False,
) -> Call:
    """Returns the call that gives a lease back, uncharged: its entries are delivered again.

    Entries with a verdict are settled by it. If the others are known to be `is_unbegun`, they need
    not be delivered alone.
    """
    how = b"u" if is_unbegun else b"0"
    return _complete(request_id, (k, fence, op), [], [], verdicts, how)


def settle_part(
    request_id: str,
    k: str,
    fence: str,
    op: str,
    ids: list[bytes],
    results: Sequence[Arg],
    verdicts: Sequence[Verdict],
    *,
    keep: bool,
) -> Call:
    """Returns the call that settles entries of a lease beside a slow call of its unit.

    With `keep` the lease goes on with the others.
    """
    how = b"1" if keep else b"u"
    return _complete(request_id, (k, fence, op), ids, results, verdicts, how)


def _complete(
    request_id: str,
    lease: tuple[Arg, Arg, Arg],
    ids: list[bytes],
    results: Sequence[Arg],
    verdicts: Sequence[Verdict],
    keep: bytes,
) -> Call:
    args: list[Arg] = [b"", *lease, keep, b"%d" % len(ids), *ids, *results]
    args += words_of(verdicts)
    return TextCall(signed(library(), "complete", _COMPLETE), keys.request_keys(request_id), args)


def words_of(verdicts: Sequence[Verdict]) -> list[Arg]:
    """Returns the verdicts as the scripts take them, five words each."""
    words: list[Arg] = []
    for one in verdicts:
        words += (one.entry_id, one.verdict, str(one.delay_ms), one.head, one.error)
    return words


def extend(request_id: str, k: str, fence: str, op: str, term_ms: int | None = None) -> Call:
    """Returns the call that asks for more time: ok | cancelled | lost | ended | gone.

    The lease lasts `term_ms` from then on; None = as long as the request's leases do.
    """
    term = "" if term_ms is None else term_ms
    return library().extend(keys.request_keys(request_id), k=k, fence=fence, op=op, term=term)


def reap(
    queue: str,
    request_id: str,
    *,
    worker: str = "",
    started: str = "",
    k: str = "",
    fence: str = "",
    how: str = "",
    missing: list[str] | None = None,
) -> Call:
    """Returns the call that takes leases back: expired ones, a dead worker's, or the one named.

    `how` the process ended becomes the error of the charged entries; "" = not known.
    """
    return library().reap(
        keys.request_keys(request_id),
        worker=worker,
        started=started,
        k=k,
        fence=fence,
        queue=queue,
        how=how,
        missing=missing or (),
    )
