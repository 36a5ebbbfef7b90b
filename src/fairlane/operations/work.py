"""A worker's way: pop a token -> acquire -> handle -> complete -> dispatch what comes back."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

from .. import keys
from ..model import Slice, Token, Verdict
from ..scripts import library

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ..steps import Arg, Call, Operation


def new_op() -> bytes:
    """What tells one acquire from every other: 32 hex digits."""
    return secrets.token_hex(16).encode()


def acquire(
    token: Token,
    worker: str,
    started: str,
    count: int,
    *,
    op: bytes | None = None,
    shared: bool = False,
) -> Operation[tuple[str, Slice | None, list[Any]]]:
    """Shows the token: (word, slice when the word is "ok", what else the reply brings).

    The third is the tokens to dispatch before anything else, or for "ended" the summary. The same
    `op` again gets the same answer again; None makes a new one.
    """
    op = op or new_op()
    reply = yield library().acquire(
        keys.request_keys(token.request_id),
        k=token.k, g=token.g, op=op, worker=worker, started=started, count=count,
        shared=b"1" if shared else b"",
    )  # fmt: skip
    word = reply[0].decode()
    if word != "ok":
        return word, None, reply[1] if len(reply) > 1 else []
    _, fence, attempt, policy, raw, tokens = reply
    now, _, lease_ms, attempts, backoff_min, backoff_max, priority, limit_ms, durable = policy
    taken = Slice(
        request_id=token.request_id,
        k=token.k,
        fence=fence,
        op=op,
        attempt=attempt,
        attempts=attempts,
        backoff_ms=(backoff_min, backoff_max),
        lease_ms=lease_ms,
        priority=priority,
        taken_ms=now,
        entries=raw,
        time_limit_ms=limit_ms,
        durable=durable,
    )
    return "ok", taken, tokens


def complete(
    held: Slice, ids: list[bytes], results: list[Arg], verdicts: list[Verdict], *, keep: bool
) -> Call:
    """The call that settles entries of a slice.

    `ids` are the done ones, `results` their (head, body) pairs, flat.
    """
    rest: list[Arg] = [*ids, *results, *_flat(verdicts)]
    return library().complete(
        keys.request_keys(held.request_id),
        k=held.k,
        fence=held.fence,
        op=held.op,
        keep=b"1" if keep else b"0",
        done=len(ids),
        verdicts=rest,
    )


def give_back(
    request_id: str, k: str, fence: str, op: str, verdicts: Sequence[Verdict] = ()
) -> Call:
    """The call that returns a lease with all it owes, uncharged: what runs now is done again.

    But for the entries with a verdict.
    """
    return library().complete(
        keys.request_keys(request_id),
        k=k,
        fence=fence,
        op=op,
        keep=b"0",
        done=0,
        verdicts=_flat(verdicts),
    )


def _flat(verdicts: Iterable[Verdict]) -> Iterator[Arg]:
    """Each verdict's five words."""
    for one in verdicts:
        yield from (one.entry_id, one.verdict, one.delay_ms, one.head, one.error)


def extend(request_id: str, k: str, fence: str, op: str) -> Call:
    """The call that asks for more time: ok | cancelled | lost | ended | gone."""
    return library().extend(keys.request_keys(request_id), k=k, fence=fence, op=op)


def reap(
    queue: str,
    request_id: str,
    *,
    worker: str = "",
    started: str = "",
    k: str = "",
    fence: str = "",
    missing: list[str] | None = None,
) -> Call:
    """The call that takes leases back: expired ones, a dead worker's, or the one named."""
    return library().reap(
        keys.request_keys(request_id),
        worker=worker,
        started=started,
        k=k,
        fence=fence,
        queue=queue,
        missing=missing or (),
    )
