"""Pushes messages to the shortest of several lists.

Where one script reaches all lists, it decides by their lengths at that moment. In a cluster, lists
in several slots are compared by a bounded look, and one script for each list pushes.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from fairlane.errors import FairlaneError, InvalidArgument, RedisUnreachable
from fairlane.protocol import keys, list_keys
from fairlane.protocol.scripts import library
from fairlane.protocol.steps import Batch, Command, SingleServer

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from fairlane.protocol.replies import Reply
    from fairlane.protocol.steps import Call, Operation

LOOKS = 8  # lists of one look
MOST_LISTS = 1_000
_MARKER_MS = 600_000  # a call is repeated for two minutes at most


def check_lists(names: Iterable[str]) -> tuple[str, ...]:
    """Returns the names of 1 to 1,000 different lists. Raises InvalidArgument."""
    return keys.check_names("list", names, MOST_LISTS, list_keys.check_list)


def push_shortest(names: Sequence[str], messages: Sequence[bytes]) -> Operation[dict[str, int]]:
    """Pushes up to 1,000 messages, each to the shortest list; returns how many each list got.

    A repeat of a call with a lost reply pushes nothing again. Raises InvalidArgument if a key holds
    no list; nothing is pushed then, except in a cluster to lists in other slots.
    """
    op = keys.new_id()
    call = _call(names, messages, op)
    raw = yield SingleServer(call)
    if raw is None and len({list_keys.tag_of(name) for name in names}) == 1:
        raw = yield call
    if raw is not None:
        return _counts(names, call.reply(raw))
    plan = yield from _look(names, messages)
    calls = [_call([name], part, op) for name, part in plan.items()]
    counts: dict[str, int] = {}
    for name, each, reply in zip(plan, calls, (yield Batch(calls)), strict=True):
        counts |= _counts([name], each.reply(reply))
    return counts


def _call(names: Sequence[str], messages: Sequence[bytes], op: str) -> Call:
    marker = list_keys.balanced(names[0], op)
    lists = [list_keys.raw(name) for name in names]
    return library().push_shortest([marker, *lists], ttl=_MARKER_MS, messages=messages)


def _look(names: Sequence[str], messages: Sequence[bytes]) -> Operation[Mapping[str, list[bytes]]]:
    """Returns which messages go to which list, by the lengths of at most 8 of them.

    A list whose node does not answer gets none. Raises the error of the first list if no node
    answers, and any other error.
    """
    looked = names if len(names) <= LOOKS else random.sample(names, LOOKS)
    looks = [Command(b"LLEN", list_keys.raw(name)) for name in looked]
    found = yield Batch(looks, lenient=True)
    lengths: dict[str, int] = {}
    for name, length in zip(looked, found, strict=True):
        if isinstance(length, FairlaneError) and not isinstance(length, RedisUnreachable):
            raise length
        if not isinstance(length, FairlaneError):
            lengths[name] = length
    if not lengths:
        raise found[0]
    plan: dict[str, list[bytes]] = {}
    for message in messages:
        best = min(lengths, key=lambda name: lengths[name])
        lengths[best] += 1
        plan.setdefault(best, []).append(message)
    return plan


def _counts(names: Sequence[str], reply: Reply) -> dict[str, int]:
    if reply.is_wrongtype:
        raise InvalidArgument(
            f"key {names[reply.at]} holds no list: name another, or delete what it holds"
        )
    return {name: count for name, count in zip(names, reply.counts, strict=True) if count}
