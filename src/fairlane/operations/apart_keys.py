"""Limits by key where a key is in another slot than the request: takes keys, and gives them back.

A key is in the dispatch slot. In a cluster no script has it and the request, so the keys of a token
are taken before its acquire. What a key then holds names the acquire: `<id>#<k>.<g>~<op>`. If a
process dies between the two slots, an entry is left without a lease, or a lease was returned whose
entry is still there. `look_at` finds both.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from fairlane import settings
from fairlane.errors import FairlaneError
from fairlane.operations.lease import reap
from fairlane.operations.tokens import (
    GIVEN,
    Minted,
    are_queued,
    follow_up,
    insert_tokens,
    parse,
)
from fairlane.protocol import keys, scripts
from fairlane.protocol.steps import Command, call_each, run_all, run_each_or_error

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from fairlane.model import Token
    from fairlane.protocol.steps import Call


_TAKEN = 300  # tokens of one call
_LOOKED_AT = 10  # keys of one call
_LEASES = 300  # of one look

Taking = tuple["Token", bytes]  # a token, and the op of the acquire that follows


def take(queue: str, lane: bytes, wanted: Sequence[Taking]) -> list[Call[list[int]]]:
    """Returns the calls that take all keys of each token or none: 1, or 0 if it waits.

    `lane` is the key of the list that the tokens came from.
    """
    number = keys.number_of(lane) % keys.LANES
    return [
        scripts.take_keys(
            keys.of_limits(queue)[:3],
            look_ms=settings.KEY_LOOK_MS,
            rows=[
                part
                for token, op in wanted[first : first + _TAKEN]
                for part in (number, token.text, op)
            ],
        )
        for first in range(0, len(wanted), _TAKEN)
    ]


def given_back(token: Token, op: bytes) -> Minted:
    """Returns the entry that gives back, with the next tokens, what an acquire did not use.

    The caller must be sure that the acquire is not granted any more.
    """
    permit = f"{token.k}.{token.g}~{op.decode()}%{token.keys}"
    return token.request_id, [GIVEN, permit.encode(), 0]


async def make_stale(queue: str, tokens: Sequence[Token]) -> None:
    """Queues the permits of these tokens again, so that no acquire with such a token is granted.

    A permit that is not queued for its token is left as it is. Raises the error of a request that
    cannot be asked, after the others.
    """
    missing = dict[str, list[str]]()
    for token in tokens:
        missing.setdefault(token.request_id, []).extend((token.k, token.g))
    calls = [reap(queue, name, missing=pairs) for name, pairs in missing.items()]
    replies = await call_each(calls)
    settled = [
        (name, reply)
        for name, reply in zip(missing, replies, strict=True)
        if not isinstance(reply, FairlaneError)
    ]
    await run_all(follow_up(queue, *settled))
    for reply in replies:
        if isinstance(reply, FairlaneError):
            raise reply


# ------------------------------------------------------------------ look


class _Entry(NamedTuple):
    """What a key holds for an acquire, or has called; `op` is "" of a called token."""

    key: str
    token: Token
    op: str = ""

    @property
    def leaving(self) -> Minted:
        """Returns the entry that removes it from its key."""
        if self.op:
            return given_back(self.token, self.op.encode())
        return self.token.request_id, [GIVEN, self.token.permit.encode(), 0]


async def look_at(queue: str, names: Sequence[str], only: Collection[str] = ()) -> int:
    """Removes from keys what no request holds or waits for; returns how many entries.

    Each entry has a time when it is looked at. `only`: looks now at these leases, `<id>#<k>.<g>`,
    at most 1000; the others keep their time.
    An entry is removed when its request replies that the permit is neither held by the entry's op
    nor queued for its token, because then it never will be. If it is queued, it is queued again
    first. A request that cannot be asked keeps what it has.
    """
    count = 0
    for first in range(0, len(names), _LOOKED_AT):
        part = names[first : first + _LOOKED_AT]
        call = scripts.look_at_keys(
            keys.of_limits(queue),
            look_ms=settings.KEY_LOOK_MS,
            count=len(part),
            wanted=[*part, *only],
        )
        entries = list(_read(await call))
        over, queued = await _judge(entries)
        if queued:
            with suppress(FairlaneError):  # else the next look finds it queued again
                await make_stale(queue, [one.token for one in queued])
            over += (await _judge(queued))[0]
        await run_all(insert_tokens(queue, [one.leaving for one in over]))
        count += len(over)
    return count


async def look_at_tokens(queue: str, tokens: Sequence[Token]) -> None:
    """Looks now at what these tokens' keys hold for them."""
    for first in range(0, len(tokens), _LEASES):
        part = tokens[first : first + _LEASES]
        leases = {f"{one.request_id}#{one.k}.{one.g}" for one in part}
        names = dict.fromkeys(name for one in part for name in one.key_names)
        await look_at(queue, list(names), leases)


def _read(flat: Sequence[Any]) -> Iterator[_Entry]:
    for name, word in zip(flat[::2], flat[1::2], strict=True):
        lease, is_held, op = word.partition(b"~")
        keyed = b"%b%%%%%b=1" % (lease, name) if is_held and b"%" not in lease else word
        if (token := parse(keyed)) is not None and token.is_apart:
            yield _Entry(name.decode(), token, op.decode() if keyed is not word else "")


async def _judge(entries: Sequence[_Entry]) -> tuple[list[_Entry], list[_Entry]]:
    """Returns the entries that are over, and those that are held and whose permits are queued.

    A permit that is queued for a token becomes held or over, and one that is held becomes over. So
    whether it is queued is read before whether it is held.
    """
    asked = [Command(b"HGET", keys.permits(one.token.request_id), one.token.k) for one in entries]
    first = await run_each_or_error(asked)
    there = [
        one for one, text in zip(entries, first, strict=True) if not isinstance(text, FairlaneError)
    ]
    waits = await are_queued([one.token for one in there], run_each_or_error)
    queued = [one for one, is_queued in zip(there, waits, strict=True) if is_queued and one.op]
    rest = [one for one, is_queued in zip(there, waits, strict=True) if not is_queued]
    texts = await run_each_or_error(
        [Command(b"HGET", keys.permits(one.token.request_id), one.token.k) for one in rest]
    )
    over = [
        one
        for one, text in zip(rest, texts, strict=True)
        if not isinstance(text, FairlaneError) and not _is_held(one, text)
    ]
    return over, queued


def _is_held(entry: _Entry, text: bytes | None) -> bool:
    """Returns True if this is the text of a permit that is held by the entry's acquire."""
    parts = (text or b"").decode().split(":", 4)
    return parts[0] == "h" and parts[2:4] == [entry.token.g, entry.op]
