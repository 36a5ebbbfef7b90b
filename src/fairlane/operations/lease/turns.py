"""The tokens of requests that name a tenant: added, and taken for placeholders of their lane.

See lua/v1/lib/dispatch/turns.lua for the order in which tenants have their turns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlane.protocol import keys
from fairlane.protocol.scripts import library
from fairlane.protocol.steps import Command

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from fairlane.protocol.steps import Arg, Call, Operation

PLACEHOLDER = b"@"  # in a lane, for one token of a tenant
_MOST = 900  # tokens of one call
_MOST_ROWS = 250
_PAGE = 1000


def add(queue: str, placed: Mapping[bytes, Sequence[Arg]]) -> list[Call]:
    """Returns the calls that add the tokens of each lane; their placeholders follow them."""
    calls: list[Call] = []
    for number, tokens in placed.items():
        shard, lane = divmod(int(number), keys.LANES)
        calls += [
            library().add_turns(
                keys.turns(queue, shard), lane=lane, tokens=tokens[first : first + _MOST]
            )
            for first in range(0, len(tokens), _MOST)
        ]
    return calls


def resolve(queue: str, lane: bytes, popped: list[bytes]) -> Operation[list[bytes]]:
    """Returns the words popped from a lane, with tokens in place of the placeholders.

    There may be fewer tokens than placeholders.
    """
    count = popped.count(PLACEHOLDER)
    if not count:
        return popped
    shard, number = divmod(keys.number_of(lane), keys.LANES)
    call = library().take_turns(keys.turns(queue, shard), lane=number, count=count)
    taken: list[bytes] = yield call
    return [*(word for word in popped if word != PLACEHOLDER), *taken]


def first_of_lane(queue: str, lane: int, most: int) -> Command:
    """Returns the command that reads up to `most` members of a lane, tenant by tenant."""
    shard, number = divmod(lane, keys.LANES)
    bounds = b"[%d|" % number, b"(%d}" % number  # } follows |
    return Command(b"ZRANGEBYLEX", keys.turns(queue, shard)[0], *bounds, b"LIMIT", 0, most)


def token_of(member: bytes) -> bytes:
    """Returns the token in a member."""
    return member.split(b"|", 3)[3]


def lane_of(member: bytes) -> int:
    """Returns the lane of a member, within its shard."""
    return int(member.partition(b"|")[0])


def read(queue: str, lane: int, tenants: Iterable[str]) -> Operation[list[bytes]]:
    """Returns all tokens of these tenants in a lane."""
    shard, number = divmod(lane, keys.LANES)
    key = keys.turns(queue, shard)[0]
    found: list[bytes] = []
    for tenant in tenants:
        name = f"{number}|{tenant}".encode()
        low, page = b"[%b|" % name, list[bytes]()
        while not page or len(page) == _PAGE:
            page = yield Command(
                b"ZRANGEBYLEX", key, low, b"(%b}" % name, b"LIMIT", 0, _PAGE
            )  # in the order of their arrival
            found += map(token_of, page)
            if not page:
                break
            low = b"(" + page[-1]
    return found


def charge(queue: str, costs: Iterable[tuple[int, str, int, int]]) -> list[Call]:
    """Returns the calls that charge what turns have cost.

    Each row is a lane, the turn's share and tenant, the number of turns, and tenths of ms.
    """
    flat: list[Arg] = [part for row in costs for part in row]
    size = 4 * _MOST_ROWS
    tenants = keys.turns(queue)[1:]
    return [
        library().charge_turns(tenants, rows=flat[first : first + size])
        for first in range(0, len(flat), size)
    ]
