"""Each script as a function with typed arguments, and its reply as a class.

Generated from the headers of lua/ by `make generate`: do not edit it. A function returns a call,
which an operation sends: `reply = await scripts.extend(keys, k=k, fence=fence, op=op)`.
The files of lua/ say what each argument and each reply is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from fairlane.protocol.lua import Reply, library
from fairlane.protocol.steps import Arg, Call

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

R = TypeVar("R")


def _plain(raw: Any) -> Any:
    return raw


def _call(
    name: str, keys: Sequence[bytes], args: Sequence[Arg], reply: Callable[[Any], R]
) -> Call[R]:
    """Returns the call of a script; TypeError for a wrong number of keys."""
    script = library()[name]
    if len(keys) != script.least_keys:
        script.check_keys(keys)
    return Call(script, keys, args, reply)


class AbandonReply(Reply):
    """A reply of abandon."""

    __slots__ = ()
    script = "abandon"
    says = "ok | discarded | over ending | exists"
    is_ok: bool
    is_discarded: bool
    is_over: bool
    is_exists: bool
    ending: bytes


def abandon(keys: Sequence[bytes], *, seen: Arg, ttl: Arg) -> Call[AbandonReply]:
    """Gives up an intent that the auditor found without a request, or with an ended life."""
    return _call("abandon", keys, (seen, ttl), AbandonReply.of)


class AcquireReply(Reply):
    """A reply of acquire."""

    __slots__ = ()
    script = "acquire"
    says = (
        "ok fence attempt policy entries tokens | empty tokens | busy tokens | paused "
        "tokens | stale | ended summary | gone | alone | limited tokens | rated rates "
        "size has_waited | full"
    )
    is_ok: bool
    is_empty: bool
    is_busy: bool
    is_paused: bool
    is_stale: bool
    is_gone: bool
    is_alone: bool
    is_limited: bool
    is_rated: bool
    is_full: bool
    fence: bytes
    attempt: int
    policy: list[Any]
    entries: list[Any]
    rates: bytes
    size: int
    has_waited: int


def acquire(
    keys: Sequence[bytes],
    *,
    k: Arg,
    g: Arg,
    op: Arg,
    worker: Arg,
    started: Arg,
    count: Arg,
    shared: Arg,
    allowance: Arg,
    wait: Arg,
    token: Arg,
    now: Arg = "",
) -> Call[AcquireReply]:
    """Exchanges a token for a permit, a lease and a slice of sub-requests."""
    return _call(
        "acquire",
        keys,
        (now, k, g, op, worker, started, count, shared, allowance, wait, token),
        AcquireReply.of,
    )


def add_stats(
    keys: Sequence[bytes], *, most: Arg, numbers: Iterable[Arg] = (), now: Arg = ""
) -> Call[int]:
    """Adds what one worker process measured to statistics of the queue."""
    return _call("add_stats", keys, (now, most, *numbers), _plain)


def add_turns(keys: Sequence[bytes], *, lane: Arg, tokens: Iterable[Arg] = ()) -> Call[int]:
    """Adds tokens of requests that name a tenant, before their placeholders go to the lane."""
    return _call("add_turns", keys, (lane, *tokens), _plain)


class AdmitReply(Reply):
    """A reply of admit."""

    __slots__ = ()
    script = "admit"
    says = "ok | full waiting max_waiting recount"
    is_ok: bool
    is_full: bool
    waiting: int
    max_waiting: int
    recount: int


def admit(
    keys: Sequence[bytes], *, id: Arg, chunk: Arg, count: Arg, pause: Arg, now: Arg = ""
) -> Call[AdmitReply]:
    """Asks for room for one chunk of a request."""
    return _call("admit", keys, (now, id, chunk, count, pause), AdmitReply.of)


class AnswerReply(Reply):
    """A reply of answer."""

    __slots__ = ()
    script = "answer"
    says = "ok | gone"
    is_ok: bool
    is_gone: bool


def answer(keys: Sequence[bytes], *, order: Arg, text: Arg, ttl: Arg) -> Call[AnswerReply]:
    """Hands over a worker's answer to an order, and removes the order."""
    return _call("answer", keys, (order, text, ttl), AnswerReply.of)


class AppendReply(Reply):
    """A reply of append."""

    __slots__ = ()
    script = "append"
    says = (
        "ok tokens left_out? | dup tokens left_out? | forgotten | conflict | closed | "
        "cancelling summary | ended summary | gone"
    )
    is_ok: bool
    is_dup: bool
    is_forgotten: bool
    is_conflict: bool
    is_closed: bool
    is_cancelling: bool
    is_gone: bool
    left_out: int | None


def append(
    keys: Sequence[bytes],
    *,
    chunk: Arg,
    chain: Arg,
    before: Arg,
    open_ms: Arg,
    bodies: Iterable[Arg] = (),
    now: Arg = "",
) -> Call[AppendReply]:
    """Adds the next chunk to an open request."""
    return _call("append", keys, (now, chunk, chain, before, open_ms, *bodies), AppendReply.of)


class AppendPartitionReply(Reply):
    """A reply of append_partition."""

    __slots__ = ()
    script = "append_partition"
    says = "ok tokens added waiting | closed | ended summary | gone"
    is_ok: bool
    is_closed: bool
    is_gone: bool
    added: int
    waiting: int


def append_partition(
    keys: Sequence[bytes],
    *,
    partition: Arg,
    first: Arg,
    open_ms: Arg,
    ttl: Arg,
    keep: Arg,
    packed: Arg,
    now: Arg = "",
) -> Call[AppendPartitionReply]:
    """Adds the next rows of one partition of a transaction to an open request."""
    return _call(
        "append_partition",
        keys,
        (now, partition, first, open_ms, ttl, keep, packed),
        AppendPartitionReply.of,
    )


class AppendStagedReply(Reply):
    """A reply of append_staged."""

    __slots__ = ()
    script = "append_staged"
    says = (
        "ok tokens position | at tokens position state | unpinned | missing | closed | "
        "ended summary | gone"
    )
    is_ok: bool
    is_at: bool
    is_unpinned: bool
    is_missing: bool
    is_closed: bool
    is_gone: bool
    position: int
    state: bytes


def append_staged(
    keys: Sequence[bytes],
    *,
    position: Arg,
    chunk: Arg,
    link: Arg,
    last: Arg,
    open_ms: Arg,
    ttl: Arg,
    keep: Arg,
    now: Arg = "",
) -> Call[AppendStagedReply]:
    """
    Moves one staged chunk of a pinned transaction into the open request, as append would
    add it.
    """
    return _call(
        "append_staged",
        keys,
        (now, position, chunk, link, last, open_ms, ttl, keep),
        AppendStagedReply.of,
    )


class AppendUniqueReply(Reply):
    """A reply of append_unique."""

    __slots__ = ()
    script = "append_unique"
    says = "ok tokens added waiting | closed | ended summary | gone"
    is_ok: bool
    is_closed: bool
    is_gone: bool
    added: int
    waiting: int


def append_unique(
    keys: Sequence[bytes],
    *,
    open_ms: Arg,
    ttl: Arg,
    given: Arg,
    packed: Arg,
    keep: Arg,
    now: Arg = "",
) -> Call[AppendUniqueReply]:
    """
    Adds sub-requests with ids of their own to an open request, each id once: the first one
    stays.
    """
    return _call(
        "append_unique", keys, (now, open_ms, ttl, given, packed, keep), AppendUniqueReply.of
    )


class CancelReply(Reply):
    """A reply of cancel."""

    __slots__ = ()
    script = "cancel"
    says = "ok tokens | ended summary | gone"
    is_ok: bool
    is_gone: bool


def cancel(keys: Sequence[bytes], *, reason: Arg, now: Arg = "") -> Call[CancelReply]:
    """Cancels a request."""
    return _call("cancel", keys, (now, reason), CancelReply.of)


class ChangeShardsReply(Reply):
    """A reply of change_shards."""

    __slots__ = ()
    script = "change_shards"
    says = "ok tokens | ended summary | gone"
    is_ok: bool
    is_gone: bool


def change_shards(keys: Sequence[bytes], *, shards: Arg, now: Arg = "") -> Call[ChangeShardsReply]:
    """
    Queues the queued permits again in lanes of other shards, due as before; their old
    tokens go stale.
    """
    return _call("change_shards", keys, (now, shards), ChangeShardsReply.of)


class ChangeSharedReply(Reply):
    """A reply of change_shared."""

    __slots__ = ()
    script = "change_shared"
    says = "ok text | other text | kind text | full text | late | gone"
    is_ok: bool
    is_other: bool
    is_kind: bool
    is_full: bool
    is_late: bool
    is_gone: bool
    text: bytes


def change_shared(
    keys: Sequence[bytes],
    *,
    caller: Arg,
    number: Arg,
    how: Arg,
    field: Arg,
    value: Arg,
    expected: Arg,
    most_names: Arg,
    most_bytes: Arg,
    now: Arg = "",
) -> Call[ChangeSharedReply]:
    """
    Changes the state that the steps of a flow share, in the hash of its first step's
    request.
    """
    return _call(
        "change_shared",
        keys,
        (now, caller, number, how, field, value, expected, most_names, most_bytes),
        ChangeSharedReply.of,
    )


def charge_turns(keys: Sequence[bytes], *, rows: Iterable[Arg] = ()) -> Call[int]:
    """
    Charges tenants what their turns have really cost, instead of the mean that each turn
    was charged when it was taken.
    """
    return _call("charge_turns", keys, (*rows,), _plain)


def check(keys: Sequence[bytes], *, now: Arg = "") -> Call[list[bytes]]:
    """Reports the invariants of one request that do not hold at this moment."""
    return _call("check", keys, (now,), _plain)


def check_keys(
    keys: Sequence[bytes], *, first: Arg, most: Arg, names: Iterable[Arg] = ()
) -> Call[int]:
    """
    Gives back what keys hold without a lease, gives up tokens that were called and are
    queued no more, and calls what waits where there is room.
    """
    return _call("check_keys", keys, (first, most, *names), _plain)


class ClaimMessagesReply(Reply):
    """A reply of claim_messages."""

    __slots__ = ()
    script = "claim_messages"
    says = "ok messages | wrongtype at"
    is_ok: bool
    is_wrongtype: bool
    messages: list[bytes]
    at: int


def claim_messages(keys: Sequence[bytes], *, most: Arg) -> Call[ClaimMessagesReply]:
    """Moves messages from a list to its pending list, oldest first, until `most` are pending."""
    return _call("claim_messages", keys, (most,), ClaimMessagesReply.of)


class ClaimTicksReply(Reply):
    """A reply of claim_ticks."""

    __slots__ = ()
    script = "claim_ticks"
    says = "(now next watched rows...)"
    now: int
    next: int
    watched: bytes
    rows: tuple[Any, ...]


def claim_ticks(
    keys: Sequence[bytes], *, skip: Arg, most: Arg, now: Arg = ""
) -> Call[ClaimTicksReply]:
    """
    Returns schedules whose tick is due, the earliest first, and notes that the caller
    begins to submit their requests.
    """
    return _call("claim_ticks", keys, (now, skip, most), ClaimTicksReply.of)


class CompleteReply(Reply):
    """A reply of complete."""

    __slots__ = ()
    script = "complete"
    says = "ok left tokens | already tokens | lost | ended summary late? | gone"
    is_ok: bool
    is_already: bool
    is_lost: bool
    is_gone: bool
    left: int
    late: int | None


def complete(
    keys: Sequence[bytes],
    *,
    k: Arg,
    fence: Arg,
    op: Arg,
    keep: Arg,
    done: Arg,
    verdicts: Iterable[Arg] = (),
    now: Arg = "",
) -> Call[CompleteReply]:
    """Settles sub-requests of a lease."""
    return _call("complete", keys, (now, k, fence, op, keep, done, *verdicts), CompleteReply.of)


class ConfirmReply(Reply):
    """A reply of confirm."""

    __slots__ = ()
    script = "confirm"
    says = "ok state chain born open | gone"
    is_ok: bool
    is_gone: bool
    state: bytes
    chain: bytes
    born: int
    open: int


def confirm(keys: Sequence[bytes], *, now: Arg = "") -> Call[ConfirmReply]:
    """Always writes something, so that a WAIT sent after it has a write to wait for."""
    return _call("confirm", keys, (now,), ConfirmReply.of)


class DeleteReply(Reply):
    """A reply of delete."""

    __slots__ = ()
    script = "delete"
    says = "ok | other | alive | gone"
    is_ok: bool
    is_other: bool
    is_alive: bool
    is_gone: bool


def delete(keys: Sequence[bytes], *, ending: Arg, seen: Arg, ttl: Arg) -> Call[DeleteReply]:
    """Removes an ended request with its results and dead sub-requests."""
    return _call("delete", keys, (ending, seen, ttl), DeleteReply.of)


class DiscardReply(Reply):
    """A reply of discard."""

    __slots__ = ()
    script = "discard"
    says = "ok queued | held queued | kept | ended summary | gone"
    is_ok: bool
    is_held: bool
    is_kept: bool
    is_gone: bool
    queued: list[Any]


def discard(
    keys: Sequence[bytes],
    *,
    born: Arg,
    chain: Arg,
    before: Arg,
    reason: Arg,
    seen: Arg,
    ttl: Arg,
    now: Arg = "",
) -> Call[DiscardReply]:
    """Deletes an open request that its producer cannot complete."""
    return _call("discard", keys, (now, born, chain, before, reason, seen, ttl), DiscardReply.of)


def drop_active(
    keys: Sequence[bytes], *, id: Arg, seen: Arg, gone: Arg, most: Arg, now: Arg = ""
) -> Call[int]:
    """Removes an entry from `active`, unless its score has changed since the caller read it."""
    return _call("drop_active", keys, (now, id, seen, gone, most), _plain)


def drop_dead(keys: Sequence[bytes], *, ids: Iterable[Arg] = ()) -> Call[int]:
    """
    Forgets dead sub-requests with their bodies, and the texts of their errors; counts and
    results stay.
    """
    return _call("drop_dead", keys, (*ids,), _plain)


def drop_schedule(keys: Sequence[bytes], *, schedule: Arg) -> Call[int]:
    """Removes a schedule."""
    return _call("drop_schedule", keys, (schedule,), _plain)


class DueSchedulesReply(Reply):
    """A reply of due_schedules."""

    __slots__ = ()
    script = "due_schedules"
    says = "(now next rows...)"
    now: int
    next: int
    rows: tuple[Any, ...]


def due_schedules(
    keys: Sequence[bytes], *, skip: Arg, most: Arg, now: Arg = ""
) -> Call[DueSchedulesReply]:
    """
    Returns schedules whose tick is due, the earliest first, and when the next one after
    them is due.
    """
    return _call("due_schedules", keys, (now, skip, most), DueSchedulesReply.of)


class EnqueueReply(Reply):
    """A reply of enqueue."""

    __slots__ = ()
    script = "enqueue"
    says = (
        "ok tokens born left_out? | ended summary | exists chunks chain open summary "
        "tokens left_out? | conflict summary | late seen | abandoned summary | kept "
        "summary"
    )
    is_ok: bool
    is_exists: bool
    is_conflict: bool
    is_late: bool
    is_abandoned: bool
    is_kept: bool
    born: int
    left_out: int | None
    chunks: int
    chain: bytes
    open: int
    seen: int


def enqueue(
    keys: Sequence[bytes],
    *,
    queue: Arg,
    policy: Arg,
    digest: Arg,
    intent: Arg,
    open_ms: Arg,
    extras: Arg,
    shards: Arg,
    over: Arg,
    bodies: Iterable[Arg] = (),
    now: Arg = "",
) -> Call[EnqueueReply]:
    """Creates a request with its first chunk of sub-requests."""
    return _call(
        "enqueue",
        keys,
        (now, queue, policy, digest, intent, open_ms, extras, shards, over, *bodies),
        EnqueueReply.of,
    )


class ExchangeReply(Reply):
    """A reply of exchange."""

    __slots__ = ()
    script = "exchange"
    says = "(settled left unlogged tokens acquired)"
    settled: list[Any]
    left: list[Any]
    unlogged: list[Any]
    acquired: list[Any]


def exchange(
    keys: Sequence[bytes],
    *,
    least: Arg,
    longest: Arg,
    most: Arg,
    place: Arg,
    op: Arg,
    ttl: Arg,
    worker: Arg,
    started: Arg,
    want: Arg,
    shared: Arg,
    measured: Arg,
    sizes: Iterable[Arg] = (),
    now: Arg = "",
) -> Call[ExchangeReply]:
    """
    Completes leases, dispatches what follows, pops the most urgent tokens and acquires
    them, all in one call, where one server has all keys.
    """
    return _call(
        "exchange",
        keys,
        (
            now,
            least,
            longest,
            most,
            place,
            op,
            ttl,
            worker,
            started,
            want,
            shared,
            measured,
            *sizes,
        ),
        ExchangeReply.of,
    )


class ExpireLeftoversReply(Reply):
    """A reply of expire_leftovers."""

    __slots__ = ()
    script = "expire_leftovers"
    says = "tidied key_count | alive"
    is_tidied: bool
    is_alive: bool
    key_count: int


def expire_leftovers(keys: Sequence[bytes], *, ttl: Arg) -> Call[ExpireLeftoversReply]:
    """Gives keys that outlived their request an end, for doctor --repair."""
    return _call("expire_leftovers", keys, (ttl,), ExpireLeftoversReply.of)


def expire_workers(keys: Sequence[bytes], *, ttl: Arg, now: Arg = "") -> Call[list[Any]]:
    """Forgets workers that have not beaten for a whole TTL."""
    return _call("expire_workers", keys, (now, ttl), _plain)


class ExtendReply(Reply):
    """A reply of extend."""

    __slots__ = ()
    script = "extend"
    says = "ok | cancelled | lost | ended | gone"
    is_ok: bool
    is_cancelled: bool
    is_lost: bool
    is_gone: bool


def extend(
    keys: Sequence[bytes], *, k: Arg, fence: Arg, op: Arg, term: Arg, now: Arg = ""
) -> Call[ExtendReply]:
    """Gives the holder of a lease more time."""
    return _call("extend", keys, (now, k, fence, op, term), ExtendReply.of)


class FanOutReply(Reply):
    """A reply of fan_out."""

    __slots__ = ()
    script = "fan_out"
    says = "ok moved | wrongtype at"
    is_ok: bool
    is_wrongtype: bool
    moved: int
    at: int


def fan_out(
    keys: Sequence[bytes],
    *,
    to: Arg,
    count: Arg,
    service: Arg,
    timeout: Arg,
    expire: Arg,
    rows: Iterable[Arg] = (),
    now: Arg = "",
) -> Call[FanOutReply]:
    """Hands pending messages over, each to all lists or to the shortest of them."""
    return _call("fan_out", keys, (now, to, count, service, timeout, expire, *rows), FanOutReply.of)


class GlanceReply(Reply):
    """A reply of glance."""

    __slots__ = ()
    script = "glance"
    says = "ok look_ms late_permits chore? | ended summary | foreign | gone"
    is_ok: bool
    is_foreign: bool
    is_gone: bool
    look_ms: int
    late_permits: list[bytes]
    chore: bytes | None


def glance(keys: Sequence[bytes], *, queue: Arg, grace: Arg, now: Arg = "") -> Call[GlanceReply]:
    """Reports what maintenance a request needs, and changes nothing."""
    return _call("glance", keys, (now, queue, grace), GlanceReply.of)


class HandChosenReply(Reply):
    """A reply of hand_chosen."""

    __slots__ = ()
    script = "hand_chosen"
    says = (
        "ok tokens chunks | moved cursor tokens chunks | closed | cancelling summary | "
        "ended summary | gone"
    )
    is_ok: bool
    is_moved: bool
    is_closed: bool
    is_cancelling: bool
    is_gone: bool
    chunks: int
    cursor: bytes


def hand_chosen(
    keys: Sequence[bytes],
    *,
    since: Arg,
    upto: Arg,
    open_ms: Arg,
    width: Arg,
    is_joined: Arg,
    choices: Iterable[Arg] = (),
    now: Arg = "",
) -> Call[HandChosenReply]:
    """
    Adds what the results of another request choose for this open request, and moves the
    cursor over them in the same call.
    """
    return _call(
        "hand_chosen",
        keys,
        (now, since, upto, open_ms, width, is_joined, *choices),
        HandChosenReply.of,
    )


class HandOverReply(Reply):
    """A reply of hand_over."""

    __slots__ = ()
    script = "hand_over"
    says = (
        "ok tokens chunks | moved cursor tokens chunks | closed | cancelling summary | "
        "ended summary | gone"
    )
    is_ok: bool
    is_moved: bool
    is_closed: bool
    is_cancelling: bool
    is_gone: bool
    chunks: int
    cursor: bytes


def hand_over(
    keys: Sequence[bytes],
    *,
    since: Arg,
    upto: Arg,
    open_ms: Arg,
    bodies: Iterable[Arg] = (),
    now: Arg = "",
) -> Call[HandOverReply]:
    """
    Adds what other requests have finished to an open request, and moves the cursor over it
    in the same call.
    """
    return _call("hand_over", keys, (now, since, upto, open_ms, *bodies), HandOverReply.of)


class HastenReply(Reply):
    """A reply of hasten."""

    __slots__ = ()
    script = "hasten"
    says = "ok tokens | early | ended summary | gone"
    is_ok: bool
    is_early: bool
    is_gone: bool


def hasten(keys: Sequence[bytes], *, now: Arg = "") -> Call[HastenReply]:
    """
    Moves one waiting permit of a request to the most urgent lane, if nothing of the request
    has started for as long as its `ageing`, and if one waits in another lane.
    """
    return _call("hasten", keys, (now,), HastenReply.of)


class HeartbeatReply(Reply):
    """A reply of heartbeat."""

    __slots__ = ()
    script = "heartbeat"
    says = (
        "ok leads now active_due delayed_due oldest_beat shards left died tick_due "
        "paused_until rate orders | drain | unknown | replaced"
    )
    is_ok: bool
    is_drain: bool
    is_unknown: bool
    is_replaced: bool
    leads: int
    now: int
    active_due: int
    delayed_due: int
    oldest_beat: int
    shards: bytes
    left: bytes
    died: int
    tick_due: int
    paused_until: int
    rate: bytes
    orders: int


def heartbeat(
    keys: Sequence[bytes],
    *,
    id: Arg,
    started: Arg,
    ttl: Arg,
    lock_ms: Arg,
    holds: Arg,
    taken_ttl: Arg,
    died: Arg,
    now: Arg = "",
) -> Call[HeartbeatReply]:
    """
    Renews a worker's record, renews or passes on the maintenance lock, and returns what is
    due next.
    """
    return _call(
        "heartbeat",
        keys,
        (now, id, started, ttl, lock_ms, holds, taken_ttl, died),
        HeartbeatReply.of,
    )


class HoldReply(Reply):
    """A reply of hold."""

    __slots__ = ()
    script = "hold"
    says = "ok tokens rates | ended summary | gone"
    is_ok: bool
    is_gone: bool
    rates: bytes


def hold(keys: Sequence[bytes], *, ms: Arg, now: Arg = "") -> Call[HoldReply]:
    """Starts no sub-request of a request for a time."""
    return _call("hold", keys, (now, ms), HoldReply.of)


def hold_rate(
    keys: Sequence[bytes], *, interval: Arg, burst: Arg, weight: Arg, ms: Arg, now: Arg = ""
) -> Call[int]:
    """Closes the bucket of a rate for a time: the other side has asked to be called later."""
    return _call("hold_rate", keys, (now, interval, burst, weight, ms), _plain)


def insert_tokens(keys: Sequence[bytes], *, tokens: Iterable[Arg] = (), now: Arg = "") -> Call[int]:
    """Dispatches the tokens that mint returned, for one request or many."""
    return _call("insert_tokens", keys, (now, *tokens), _plain)


class IntendReply(Reply):
    """A reply of intend."""

    __slots__ = ()
    script = "intend"
    says = "(max_waiting shards scores...)"
    max_waiting: int
    shards: bytes
    scores: tuple[Any, ...]


def intend(
    keys: Sequence[bytes],
    *,
    grace: Arg,
    above: Arg,
    named: Arg,
    ids: Iterable[Arg] = (),
    now: Arg = "",
) -> Call[IntendReply]:
    """The producer's first step."""
    return _call("intend", keys, (now, grace, above, named, *ids), IntendReply.of)


class JoinReply(Reply):
    """A reply of join."""

    __slots__ = ()
    script = "join"
    says = (
        "ok tokens chunks made | moved cursor tokens chunks | closed | cancelling "
        "summary | ended summary | gone"
    )
    is_ok: bool
    is_moved: bool
    is_closed: bool
    is_cancelling: bool
    is_gone: bool
    chunks: int
    made: int
    cursor: bytes


def join(
    keys: Sequence[bytes],
    *,
    since: Arg,
    upto: Arg,
    open_ms: Arg,
    width: Arg,
    before: Arg,
    between: Arg,
    after: Arg,
    parts: Iterable[Arg] = (),
    now: Arg = "",
) -> Call[JoinReply]:
    """
    Hands results of several other requests over to an open request that joins them, and
    moves the cursor over them in the same call.
    """
    return _call(
        "join",
        keys,
        (now, since, upto, open_ms, width, before, between, after, *parts),
        JoinReply.of,
    )


class JoinChosenReply(Reply):
    """A reply of join_chosen."""

    __slots__ = ()
    script = "join_chosen"
    says = (
        "ok tokens chunks made | moved cursor tokens chunks | closed | cancelling "
        "summary | ended summary | gone"
    )
    is_ok: bool
    is_moved: bool
    is_closed: bool
    is_cancelling: bool
    is_gone: bool
    chunks: int
    made: int
    cursor: bytes


def join_chosen(
    keys: Sequence[bytes],
    *,
    since: Arg,
    upto: Arg,
    open_ms: Arg,
    width: Arg,
    before: Arg,
    between: Arg,
    after: Arg,
    parts: Iterable[Arg] = (),
    now: Arg = "",
) -> Call[JoinChosenReply]:
    """
    Hands results of children over to the open request that joins them, if each result of
    the parent chose its own children.
    """
    return _call(
        "join_chosen",
        keys,
        (now, since, upto, open_ms, width, before, between, after, *parts),
        JoinChosenReply.of,
    )


class KeepServiceReply(Reply):
    """A reply of keep_service."""

    __slots__ = ()
    script = "keep_service"
    says = "ok | gone"
    is_ok: bool
    is_gone: bool


def keep_service(
    keys: Sequence[bytes],
    *,
    id: Arg,
    is_new: Arg,
    expire: Arg,
    capacity: Arg,
    host: Arg,
    pid: Arg,
    now: Arg = "",
) -> Call[KeepServiceReply]:
    """Registers a service under its namespace, or renews its registration."""
    return _call(
        "keep_service", keys, (now, id, is_new, expire, capacity, host, pid), KeepServiceReply.of
    )


class LandReply(Reply):
    """A reply of land."""

    __slots__ = ()
    script = "land"
    says = "ok pushed | gap | diverged | wrongtype"
    is_ok: bool
    is_gap: bool
    is_diverged: bool
    is_wrongtype: bool
    pushed: int


def land(
    keys: Sequence[bytes],
    *,
    epoch: Arg,
    before: Arg,
    chain: Arg,
    messages: Iterable[Arg] = (),
    now: Arg = "",
) -> Call[LandReply]:
    """Pushes a batch of numbered messages to the target list, each number once."""
    return _call("land", keys, (now, epoch, before, chain, *messages), LandReply.of)


class ListChosenReply(Reply):
    """A reply of list_chosen."""

    __slots__ = ()
    script = "list_chosen"
    says = "ok rows more"
    is_ok: bool
    rows: list[Any]
    more: int


def list_chosen(keys: Sequence[bytes], *, after: Arg, count: Arg) -> Call[ListChosenReply]:
    """
    Returns the next entries of `out` of a request whose sub-requests were chosen, with the
    origin of each of their results.
    """
    return _call("list_chosen", keys, (after, count), ListChosenReply.of)


def list_dead(keys: Sequence[bytes], *, after: Arg, count: Arg) -> Call[list[Any]]:
    """
    Returns the next dead sub-requests after the one in `after`, without their bodies, which
    may be big.
    """
    return _call("list_dead", keys, (after, count), _plain)


def look_at_keys(
    keys: Sequence[bytes], *, look_ms: Arg, count: Arg, wanted: Iterable[Arg] = (), now: Arg = ""
) -> Call[list[Any]]:
    """
    Returns what keys hold for requests in other slots and should be looked at, and what was
    called.
    """
    return _call("look_at_keys", keys, (now, look_ms, count, *wanted), _plain)


def measure_stream(keys: Sequence[bytes]) -> Call[list[Any]]:
    """
    Returns where a stream of results or of dead sub-requests begins and ends, and about how
    large it is.
    """
    return _call("measure_stream", keys, (), _plain)


class MoveTickReply(Reply):
    """A reply of move_tick."""

    __slots__ = ()
    script = "move_tick"
    says = "ok | moved | gone"
    is_ok: bool
    is_moved: bool
    is_gone: bool


def move_tick(
    keys: Sequence[bytes], *, schedule: Arg, found: Arg, expected: Arg, tick: Arg, now: Arg = ""
) -> Call[MoveTickReply]:
    """Sets when a schedule is due next, if nothing has changed since the caller read it."""
    return _call("move_tick", keys, (now, schedule, found, expected, tick), MoveTickReply.of)


class NextForwardReply(Reply):
    """A reply of next_forward."""

    __slots__ = ()
    script = "next_forward"
    says = "ok epoch sequence chain waiting messages | held left | wrongtype"
    is_ok: bool
    is_held: bool
    is_wrongtype: bool
    epoch: bytes
    sequence: int
    chain: bytes
    waiting: int
    messages: list[bytes]
    left: int


def next_forward(
    keys: Sequence[bytes],
    *,
    owner: Arg,
    lease: Arg,
    most: Arg,
    fresh: Arg,
    epoch: Arg,
    before: Arg,
    count: Arg,
    chain: Arg,
    now: Arg = "",
) -> Call[NextForwardReply]:
    """
    Settles a batch that is in the target list, and returns the next one to the forwarder
    that holds the lease.
    """
    return _call(
        "next_forward",
        keys,
        (now, owner, lease, most, fresh, epoch, before, count, chain),
        NextForwardReply.of,
    )


class OpenGateReply(Reply):
    """A reply of open_gate."""

    __slots__ = ()
    script = "open_gate"
    says = "ok tokens | other | ended summary | gone"
    is_ok: bool
    is_other: bool
    is_gone: bool


def open_gate(
    keys: Sequence[bytes], *, found: Arg, left: Arg, reason: Arg, now: Arg = ""
) -> Call[OpenGateReply]:
    """
    Lets a request start that has waited for others, notes which of them have ended, or
    cancels the request because one of them failed.
    """
    return _call("open_gate", keys, (now, found, left, reason), OpenGateReply.of)


class OrderReply(Reply):
    """A reply of order."""

    __slots__ = ()
    script = "order"
    says = "ok | full | answered"
    is_ok: bool
    is_full: bool
    is_answered: bool


def order(keys: Sequence[bytes], *, order: Arg, text: Arg, ttl: Arg, most: Arg) -> Call[OrderReply]:
    """Leaves an order for one worker, which reads it when the count of orders has grown."""
    return _call("order", keys, (order, text, ttl, most), OrderReply.of)


class PauseReply(Reply):
    """A reply of pause."""

    __slots__ = ()
    script = "pause"
    says = "ok state tokens | ended summary | gone"
    is_ok: bool
    is_gone: bool
    state: bytes


def pause(keys: Sequence[bytes], *, now: Arg = "") -> Call[PauseReply]:
    """
    Starts no further slice of this request until resume; slices that workers hold are
    finished.
    """
    return _call("pause", keys, (now,), PauseReply.of)


class PauseQueueReply(Reply):
    """A reply of pause_queue."""

    __slots__ = ()
    script = "pause_queue"
    says = "(now paused_until)"
    now: int
    paused_until: int


def pause_queue(
    keys: Sequence[bytes], *, period: Arg, longest: Arg, now: Arg = ""
) -> Call[PauseQueueReply]:
    """Pauses a queue until a time or until it is resumed, or resumes it."""
    return _call("pause_queue", keys, (now, period, longest), PauseQueueReply.of)


class PinManifestReply(Reply):
    """A reply of pin_manifest."""

    __slots__ = ()
    script = "pin_manifest"
    says = "pinned manifest position rolled state | closed | ended summary | gone"
    is_pinned: bool
    is_closed: bool
    is_gone: bool
    manifest: bytes
    position: bytes
    rolled: bytes
    state: bytes


def pin_manifest(
    keys: Sequence[bytes], *, manifest: Arg, open_ms: Arg, ttl: Arg, now: Arg = ""
) -> Call[PinManifestReply]:
    """
    Fixes which staging areas a transaction adds to its open request: the first manifest
    stays.
    """
    return _call("pin_manifest", keys, (now, manifest, open_ms, ttl), PinManifestReply.of)


class PlaceReply(Reply):
    """A reply of place."""

    __slots__ = ()
    script = "place"
    says = "(at score)"
    at: int
    score: bytes


def place(
    keys: Sequence[bytes], *, id: Arg, grace: Arg, queues: Iterable[Arg] = (), now: Arg = ""
) -> Call[PlaceReply]:
    """
    Announces a request in the queue that has the fewest unfinished requests, the first one
    of those with as few, where one server has all keys.
    """
    return _call("place", keys, (now, id, grace, *queues), PlaceReply.of)


def place_tokens(keys: Sequence[bytes], *, rows: Iterable[Arg] = ()) -> Call[int]:
    """
    Dispatches tokens that name keys: each goes to its lane if all its keys have room, else
    it waits for one of them.
    """
    return _call("place_tokens", keys, (*rows,), _plain)


class PromoteReply(Reply):
    """A reply of promote."""

    __slots__ = ()
    script = "promote"
    says = "(moved next_due)"
    moved: int
    next_due: int


def promote(keys: Sequence[bytes], *, most: Arg, now: Arg = "") -> Call[PromoteReply]:
    """Moves a bounded number of due tokens to their lanes."""
    return _call("promote", keys, (now, most), PromoteReply.of)


class PublishReply(Reply):
    """A reply of publish."""

    __slots__ = ()
    script = "publish"
    says = "(first last)"
    first: int
    last: int


def publish(
    keys: Sequence[bytes],
    *,
    ttl: Arg,
    retain_ms: Arg,
    retain_count: Arg,
    messages: Iterable[Arg] = (),
    now: Arg = "",
) -> Call[PublishReply]:
    """Adds messages to a topic, all or none, and deletes those that are past its retention."""
    return _call("publish", keys, (now, ttl, retain_ms, retain_count, *messages), PublishReply.of)


def push(keys: Sequence[bytes], *, ttl: Arg, words: Iterable[Arg] = ()) -> Call[int]:
    """Puts words at the end of a list that the next pop takes from."""
    return _call("push", keys, (ttl, *words), _plain)


class PushShortestReply(Reply):
    """A reply of push_shortest."""

    __slots__ = ()
    script = "push_shortest"
    says = "ok counts | wrongtype at"
    is_ok: bool
    is_wrongtype: bool
    counts: list[int]
    at: int


def push_shortest(
    keys: Sequence[bytes], *, ttl: Arg, messages: Iterable[Arg] = ()
) -> Call[PushShortestReply]:
    """
    Pushes each message to the list that is the shortest at that moment, the first one of
    those that are equally short.
    """
    return _call("push_shortest", keys, (ttl, *messages), PushShortestReply.of)


class PutScheduleReply(Reply):
    """A reply of put_schedule."""

    __slots__ = ()
    script = "put_schedule"
    says = "ok | changed"
    is_ok: bool
    is_changed: bool


def put_schedule(
    keys: Sequence[bytes], *, schedule: Arg, found: Arg, definition: Arg, tick: Arg, now: Arg = ""
) -> Call[PutScheduleReply]:
    """Writes the definition of a schedule, if it is still the one that the caller read."""
    return _call(
        "put_schedule", keys, (now, schedule, found, definition, tick), PutScheduleReply.of
    )


def rate_queue(keys: Sequence[bytes], *, interval: Arg, burst: Arg) -> Call[int]:
    """Gives a queue a rate, or removes it."""
    return _call("rate_queue", keys, (interval, burst), _plain)


def read_heads(keys: Sequence[bytes], *, first: Arg, last: Arg, count: Arg) -> Call[list[Any]]:
    """Returns a page of a request's results without their bodies, which may be big."""
    return _call("read_heads", keys, (first, last, count), _plain)


class ReapReply(Reply):
    """A reply of reap."""

    __slots__ = ()
    script = "reap"
    says = "ok look_ms tokens | stopped look_ms tokens | ended summary | foreign | gone"
    is_ok: bool
    is_foreign: bool
    is_gone: bool
    look_ms: int


def reap(
    keys: Sequence[bytes],
    *,
    worker: Arg,
    started: Arg,
    k: Arg,
    fence: Arg,
    queue: Arg,
    how: Arg,
    missing: Iterable[Arg] = (),
    now: Arg = "",
) -> Call[ReapReply]:
    """
    Takes back leases: all expired ones, or those of one dead worker, or the one lease that
    a supervisor names.
    """
    return _call("reap", keys, (now, worker, started, k, fence, queue, how, *missing), ReapReply.of)


def refit(
    keys: Sequence[bytes], *, interval: Arg, burst: Arg, weight: Arg, now: Arg = ""
) -> Call[int]:
    """Bounds what the bucket of a rate owes to its burst, after the rate was changed."""
    return _call("refit", keys, (now, interval, burst, weight), _plain)


def refund(
    keys: Sequence[bytes], *, interval: Arg, burst: Arg, weight: Arg, unused: Arg, now: Arg = ""
) -> Call[int]:
    """Returns to the bucket of a rate what was taken and not used."""
    return _call("refund", keys, (now, interval, burst, weight, unused), _plain)


class RegisterWorkerReply(Reply):
    """A reply of register_worker."""

    __slots__ = ()
    script = "register_worker"
    says = "ok | taken host pid"
    is_ok: bool
    is_taken: bool
    host: bytes
    pid: bytes


def register_worker(
    keys: Sequence[bytes],
    *,
    id: Arg,
    host: Arg,
    pid: Arg,
    started: Arg,
    ttl: Arg,
    late: Arg,
    release: Arg,
    now: Arg = "",
) -> Call[RegisterWorkerReply]:
    """Registers a worker."""
    return _call(
        "register_worker",
        keys,
        (now, id, host, pid, started, ttl, late, release),
        RegisterWorkerReply.of,
    )


def report_backlog(keys: Sequence[bytes], *, rows: Iterable[Arg] = ()) -> Call[int]:
    """
    Stores how much of each request is settled, as the caller has just read in the requests'
    own slots.
    """
    return _call("report_backlog", keys, (*rows,), _plain)


class RequeueDeadReply(Reply):
    """A reply of requeue_dead."""

    __slots__ = ()
    script = "requeue_dead"
    says = (
        "ok looked moved tokens | over looked moved summary | ending | ended summary | "
        "late seen | expired | abandoned | gone"
    )
    is_ok: bool
    is_over: bool
    is_ending: bool
    is_late: bool
    is_expired: bool
    is_abandoned: bool
    is_gone: bool
    looked: int
    moved: int
    seen: int


def requeue_dead(
    keys: Sequence[bytes],
    *,
    op: Arg,
    ending: Arg,
    intent: Arg,
    shards: Arg,
    holder: Arg,
    more: Arg,
    by: Arg,
    ids: Iterable[Arg] = (),
    now: Arg = "",
) -> Call[RequeueDeadReply]:
    """Makes dead sub-requests wait again, with their old index and with all attempts."""
    return _call(
        "requeue_dead",
        keys,
        (now, op, ending, intent, shards, holder, more, by, *ids),
        RequeueDeadReply.of,
    )


def reschedule_active(keys: Sequence[bytes], *, rows: Iterable[Arg] = ()) -> Call[int]:
    """Sets when to look at requests next."""
    return _call("reschedule_active", keys, (*rows,), _plain)


def restart_forward(
    keys: Sequence[bytes], *, epoch: Arg, fresh: Arg, reason: Arg, now: Arg = ""
) -> Call[int]:
    """Begins another epoch, because the two servers do not agree about the present one."""
    return _call("restart_forward", keys, (now, epoch, fresh, reason), _plain)


def restore_active(keys: Sequence[bytes], *, id: Arg, due: Arg) -> Call[int]:
    """Adds a request that is missing in `active` again."""
    return _call("restore_active", keys, (id, due), _plain)


class ResumeReply(Reply):
    """A reply of resume."""

    __slots__ = ()
    script = "resume"
    says = "ok state tokens | ended summary | gone"
    is_ok: bool
    is_gone: bool
    state: bytes


def resume(keys: Sequence[bytes], *, now: Arg = "") -> Call[ResumeReply]:
    """Continues a paused request."""
    return _call("resume", keys, (now,), ResumeReply.of)


def resume_key(keys: Sequence[bytes], *, name: Arg) -> Call[bytes]:
    """
    Lets the requests behind the first stop of an order key go on: a request that had it
    ended with dead sub-requests.
    """
    return _call("resume_key", keys, (name,), _plain)


def retire(
    keys: Sequence[bytes],
    *,
    least: Arg,
    longest: Arg,
    most: Arg,
    endings: Iterable[Arg] = (),
    now: Arg = "",
) -> Call[int]:
    """Moves ended requests from `active` to the completion log."""
    return _call("retire", keys, (now, least, longest, most, *endings), _plain)


class SealReply(Reply):
    """A reply of seal."""

    __slots__ = ()
    script = "seal"
    says = "ok tokens | conflict | cancelling summary | ended summary | gone"
    is_ok: bool
    is_conflict: bool
    is_cancelling: bool
    is_gone: bool


def seal(keys: Sequence[bytes], *, chunks: Arg, chain: Arg, now: Arg = "") -> Call[SealReply]:
    """Ends the submission: no more chunks will come."""
    return _call("seal", keys, (now, chunks, chain), SealReply.of)


class SetDeadlineReply(Reply):
    """A reply of set_deadline."""

    __slots__ = ()
    script = "set_deadline"
    says = "ok tokens | ending | ended summary | gone"
    is_ok: bool
    is_ending: bool
    is_gone: bool


def set_deadline(
    keys: Sequence[bytes], *, deadline_ms: Arg, now: Arg = ""
) -> Call[SetDeadlineReply]:
    """No sub-request starts later than `deadline_ms` from now; 0 = no deadline any more."""
    return _call("set_deadline", keys, (now, deadline_ms), SetDeadlineReply.of)


class SetKeyLimitReply(Reply):
    """A reply of set_key_limit."""

    __slots__ = ()
    script = "set_key_limit"
    says = "ok former | more former"
    is_ok: bool
    is_more: bool
    former: bytes


def set_key_limit(
    keys: Sequence[bytes], *, name: Arg, limit: Arg, by: Arg
) -> Call[SetKeyLimitReply]:
    """Sets the limit of a key until it is taken back, or takes it back."""
    return _call("set_key_limit", keys, (name, limit, by), SetKeyLimitReply.of)


class SetLimitReply(Reply):
    """A reply of set_limit."""

    __slots__ = ()
    script = "set_limit"
    says = "ok tokens | ended summary | gone"
    is_ok: bool
    is_gone: bool


def set_limit(keys: Sequence[bytes], *, limit: Arg, now: Arg = "") -> Call[SetLimitReply]:
    """Sets how many leases the request may have from now on."""
    return _call("set_limit", keys, (now, limit), SetLimitReply.of)


def set_max_waiting(keys: Sequence[bytes], *, most: Arg) -> Call[int]:
    """Sets or removes the bound on what waits in this queue."""
    return _call("set_max_waiting", keys, (most,), _plain)


class SetPriorityReply(Reply):
    """A reply of set_priority."""

    __slots__ = ()
    script = "set_priority"
    says = "ok tokens | ended summary | gone"
    is_ok: bool
    is_gone: bool


def set_priority(keys: Sequence[bytes], *, priority: Arg, now: Arg = "") -> Call[SetPriorityReply]:
    """
    Queues the queued permits again in the new lane, due as before; their old tokens go
    stale.
    """
    return _call("set_priority", keys, (now, priority), SetPriorityReply.of)


class SetRateReply(Reply):
    """A reply of set_rate."""

    __slots__ = ()
    script = "set_rate"
    says = "ok tokens | ended summary | gone"
    is_ok: bool
    is_gone: bool


def set_rate(keys: Sequence[bytes], *, rates: Arg, now: Arg = "") -> Call[SetRateReply]:
    """Gives a request other rates."""
    return _call("set_rate", keys, (now, rates), SetRateReply.of)


class SetShardsReply(Reply):
    """A reply of set_shards."""

    __slots__ = ()
    script = "set_shards"
    says = "ok shards left since | keyed"
    is_ok: bool
    is_keyed: bool
    shards: bytes
    left: bytes
    since: bytes


def set_shards(
    keys: Sequence[bytes], *, shards: Arg, since: Arg, now: Arg = ""
) -> Call[SetShardsReply]:
    """Sets the shards for the tokens of requests that are submitted from now on."""
    return _call("set_shards", keys, (now, shards, since), SetShardsReply.of)


class SetShareReply(Reply):
    """A reply of set_share."""

    __slots__ = ()
    script = "set_share"
    says = "ok tokens | plain | ended summary | gone"
    is_ok: bool
    is_plain: bool
    is_gone: bool


def set_share(keys: Sequence[bytes], *, share: Arg, now: Arg = "") -> Call[SetShareReply]:
    """Gives the tenant of a request another share of the workers' time."""
    return _call("set_share", keys, (now, share), SetShareReply.of)


class SetTimeLimitReply(Reply):
    """A reply of set_time_limit."""

    __slots__ = ()
    script = "set_time_limit"
    says = "ok tokens | ended summary | gone"
    is_ok: bool
    is_gone: bool


def set_time_limit(
    keys: Sequence[bytes], *, time_limit_ms: Arg, now: Arg = ""
) -> Call[SetTimeLimitReply]:
    """Sets how long one call of the handler may take from now on; 0 = no limit."""
    return _call("set_time_limit", keys, (now, time_limit_ms), SetTimeLimitReply.of)


class SettleMessagesReply(Reply):
    """A reply of settle_messages."""

    __slots__ = ()
    script = "settle_messages"
    says = "(done timed_out)"
    done: int
    timed_out: int


def settle_messages(
    keys: Sequence[bytes], *, ended: Arg, wanted: Iterable[Arg] = (), now: Arg = ""
) -> Call[SettleMessagesReply]:
    """
    Counts tracked messages as done or timed out, each once, and takes them off the list of
    ids.
    """
    return _call("settle_messages", keys, (now, ended, *wanted), SettleMessagesReply.of)


class StageReply(Reply):
    """A reply of stage."""

    __slots__ = ()
    script = "stage"
    says = "ok | dup"
    is_ok: bool
    is_dup: bool


def stage(keys: Sequence[bytes], *, chunk: Arg, ttl: Arg, packed: Arg) -> Call[StageReply]:
    """Stores one packed chunk of sub-requests in a staging area in the slot of its request."""
    return _call("stage", keys, (chunk, ttl, packed), StageReply.of)


class StandInReply(Reply):
    """A reply of stand_in."""

    __slots__ = ()
    script = "stand_in"
    says = "ok leads now active_due delayed_due tick_due shards left paused_until audits rate"
    is_ok: bool
    leads: int
    now: int
    active_due: int
    delayed_due: int
    tick_due: int
    shards: bytes
    left: bytes
    paused_until: int
    audits: int
    rate: bytes


def stand_in(
    keys: Sequence[bytes], *, id: Arg, lock_ms: Arg, rest_ms: Arg, now: Arg = ""
) -> Call[StandInReply]:
    """Returns how a queue stands, for a program that takes sub-requests itself."""
    return _call("stand_in", keys, (now, id, lock_ms, rest_ms), StandInReply.of)


class SubmitReply(Reply):
    """A reply of submit."""

    __slots__ = ()
    script = "submit"
    says = "(max_waiting shards submitted...)"
    max_waiting: int
    shards: bytes
    submitted: tuple[Any, ...]


def submit(
    keys: Sequence[bytes],
    *,
    queue: Arg,
    policy: Arg,
    extras: Arg,
    grace: Arg,
    open_ms: Arg,
    contents: Iterable[Arg] = (),
    now: Arg = "",
) -> Call[SubmitReply]:
    """
    Intend, enqueue and insert_tokens for requests with the same terms in one script, where
    one server has all keys: no other client sees a state between them.
    """
    return _call(
        "submit", keys, (now, queue, policy, extras, grace, open_ms, *contents), SubmitReply.of
    )


class SubscribeReply(Reply):
    """A reply of subscribe."""

    __slots__ = ()
    script = "subscribe"
    says = "ok | already | full | leaving"
    is_ok: bool
    is_already: bool
    is_full: bool
    is_leaving: bool


def subscribe(
    keys: Sequence[bytes], *, subscriber: Arg, start: Arg, most: Arg
) -> Call[SubscribeReply]:
    """Adds a subscriber to a topic."""
    return _call("subscribe", keys, (subscriber, start, most), SubscribeReply.of)


class TakeReply(Reply):
    """A reply of take."""

    __slots__ = ()
    script = "take"
    says = "(taken wait)"
    taken: int
    wait: int


def take(
    keys: Sequence[bytes],
    *,
    interval: Arg,
    burst: Arg,
    weight: Arg,
    want: Arg,
    waited: Arg,
    now: Arg = "",
) -> Call[TakeReply]:
    """Takes sub-requests from the bucket of a rate."""
    return _call("take", keys, (now, interval, burst, weight, want, waited), TakeReply.of)


def take_keys(
    keys: Sequence[bytes], *, look_ms: Arg, rows: Iterable[Arg] = (), now: Arg = ""
) -> Call[list[int]]:
    """
    Takes all keys of each token, or none, for the acquire with its op, where the keys are
    in another slot than the request.
    """
    return _call("take_keys", keys, (now, look_ms, *rows), _plain)


class TakeMessagesReply(Reply):
    """A reply of take_messages."""

    __slots__ = ()
    script = "take_messages"
    says = "ok last again fresh | gone"
    is_ok: bool
    is_gone: bool
    last: bytes
    again: list[bytes]
    fresh: list[bytes]


def take_messages(
    keys: Sequence[bytes], *, subscriber: Arg, most: Arg, redeliver: Arg, now: Arg = ""
) -> Call[TakeMessagesReply]:
    """
    Delivers messages to a consumer of a subscriber: first those that were delivered and not
    acknowledged in time, then new ones.
    """
    return _call("take_messages", keys, (now, subscriber, most, redeliver), TakeMessagesReply.of)


def take_turns(keys: Sequence[bytes], *, lane: Arg, count: Arg) -> Call[list[Any]]:
    """Takes the tokens whose turn it is, for placeholders that were popped from a lane."""
    return _call("take_turns", keys, (lane, count), _plain)


def unregister_worker(keys: Sequence[bytes], *, id: Arg, started: Arg) -> Call[int]:
    """Deletes the record of a worker that ends."""
    return _call("unregister_worker", keys, (id, started), _plain)


class UnstageReply(Reply):
    """A reply of unstage."""

    __slots__ = ()
    script = "unstage"
    says = "ok area_count | pinned"
    is_ok: bool
    is_pinned: bool
    area_count: int


def unstage(keys: Sequence[bytes], *, keep: Arg) -> Call[UnstageReply]:
    """
    Deletes staging areas that are not needed, unless their transaction is pinned: then
    nothing happens.
    """
    return _call("unstage", keys, (keep,), UnstageReply.of)


class UnsubscribeReply(Reply):
    """A reply of unsubscribe."""

    __slots__ = ()
    script = "unsubscribe"
    says = "removed | more | gone"
    is_removed: bool
    is_more: bool
    is_gone: bool


def unsubscribe(keys: Sequence[bytes], *, subscriber: Arg) -> Call[UnsubscribeReply]:
    """
    Removes a subscriber, and at most 1000 of the messages that it has not acknowledged,
    because all would hold Redis for long.
    """
    return _call("unsubscribe", keys, (subscriber,), UnsubscribeReply.of)
