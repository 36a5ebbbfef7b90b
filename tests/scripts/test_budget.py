"""Tests what a call of each script that runs often may cost the server.

The figures do not depend on the machine: instructions of Lua, commands, bytes. If a change makes a
call dearer by a twentieth, the test fails. If it makes one cheaper, its budget is lowered.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

from fairlane.model import Slice, Token
from fairlane.operations.create import Digest, NewRequest, submit_call
from fairlane.operations.lease import (
    acquire_call,
    complete,
    exchange,
    exchange_unit,
    extend,
    slice_of,
)
from fairlane.operations.tokens import parse
from fairlane.options import policy_of
from fairlane.protocol import keys, scripts
from fairlane.protocol.steps import SingleServer
from tests.support.scripts.lua_host import Cost, LuaHost
from tests.support.scripts.requests import head_of
from tests.worker.parts import ON_SINGLE

if TYPE_CHECKING:
    from collections.abc import Callable

    import redis

    from fairlane.protocol.steps import Call

SLACK = 0.05
QUEUE, WORKER, STARTED = "req", "10.0.0.1:4711", "1700000000000"
RESULT = b"y" * 20


class Player:
    """Makes the calls of producers and workers, and notes what each costs."""

    def __init__(self, client: redis.Redis) -> None:
        self.host = LuaHost(client)
        self.unit = exchange_unit(QUEUE, WORKER, STARTED, 0)
        self._ids, self._ops = count(), count()

    def run(self, call: Call[Any] | SingleServer[Any]) -> tuple[Any, Cost]:
        step: Any = call.step if isinstance(call, SingleServer) else call
        raw, cost = self.host.run(step)
        return step.read(raw), cost

    def op(self) -> bytes:
        return b"%032x" % next(self._ops)

    def submit(self, requests: int, bodies: int = 1, **options: Any) -> tuple[list[str], Cost]:
        """Submits requests with bodies of 20 bytes."""
        policy, group = policy_of(QUEUE, **options), list[NewRequest]()
        for _ in range(requests):
            group.append(NewRequest(f"{next(self._ids):020x}", policy, Digest(policy), []))
            group[-1].begin([b"x" * 20] * bodies)
        reply, cost = self.run(submit_call(group))
        assert [type(born) for born in reply.submitted] == [int] * requests
        return [new.id for new in group], cost

    def exchange(self, settled: list[Slice], want: int) -> tuple[list[Slice], Cost]:
        """Settles all of these, and takes up to so many tokens of all lanes."""
        op = self.op()
        done: list[Any] = [
            (held, ([entry for entry, _ in held.entries], results_of(held), [])) for held in settled
        ]
        call = exchange(self.unit, op, done, lanes=keys.lanes(QUEUE), want=want, shared=want > 1)
        reply, cost = self.run(call)
        assert (len(reply.settled), reply.left, reply.unlogged) == (len(settled), [], [])
        return [
            self.slice(parse(token), op, raw)
            for token, raw in zip(reply.tokens, reply.acquired, strict=True)
        ], cost

    def slice(self, token: Token | None, op: bytes, raw: Any) -> Slice:
        assert token is not None
        found = slice_of(token, op, scripts.AcquireReply.of(raw))
        assert found is not None
        return found

    def acquire(self, request_id: str, permit: str, most: int) -> tuple[Slice, Cost]:
        op, token = self.op(), Token(request_id, *permit.split("."))
        reply, cost = self.run(acquire_call(token, WORKER, STARTED, most, op))
        return self.slice(token, op, reply), cost


def results_of(held: Slice) -> list[Any]:
    """Returns head and body of a result for each entry of a slice."""
    return [word for entry, _ in held.entries for word in (head_of(entry), RESULT)]


def submitted(requests: int, **options: Any) -> Callable[[Player], Cost]:
    return lambda player: player.submit(requests, **options)[1].each(requests)


def taken_and_settled(requests: int, **options: Any) -> Callable[[Player], Cost]:
    """Returns what a request of one costs in a call that settles so many and takes as many."""

    def play(player: Player) -> Cost:
        for _ in range(2):
            for first in range(0, requests, 50):
                player.submit(min(50, requests - first), **options)
        held, _ = player.exchange([], requests)
        held, cost = player.exchange(held, requests)
        assert len(held) == requests
        return cost.each(requests)

    return play


def of_full_keys(keys_of_limits: int, waiting: int = 20) -> Callable[[Player], Cost]:
    """Returns what a request of one costs when so many keys are full, and others wait for each."""

    def play(player: Player) -> Cost:
        for n in range(keys_of_limits):
            player.submit(1 + waiting, limits={f"x{n}": 1})
        held, _ = player.exchange([], keys_of_limits)
        held, cost = player.exchange(held, keys_of_limits)
        assert len(held) == keys_of_limits
        return cost.each(keys_of_limits)

    return play


def of_orders(orders: int) -> Callable[[Player], Cost]:
    """Returns what a request of one costs when so many order keys have others that wait."""

    def play(player: Player) -> Cost:
        for n in range(orders):
            player.submit(5, order_key=f"x{n}")
        held, _ = player.exchange([], orders)
        held, cost = player.exchange(held, orders)
        assert len(held) == orders
        return cost.each(orders)

    return play


def of_a_large_request(which: str) -> Callable[[Player], Cost]:
    """Returns what a sub-request costs when a slice of 100 is taken, or settled."""

    def play(player: Player) -> Cost:
        (name,), _ = player.submit(1, 1000, limit=2)
        held, taken = player.acquire(name, "0.1", 100)
        assert len(held.entries) == 100
        ids = [entry for entry, _ in held.entries]
        _, settled = player.run(complete(held, ids, results_of(held), [], keep=False))
        return {"take": taken, "settle": settled}[which].each(100)

    return play


def extended(player: Player) -> Cost:
    (name,), _ = player.submit(1, 100, limit=2)
    held, _ = player.acquire(name, "0.1", 10)
    return player.run(extend(name, held.k, held.fence.decode(), held.op.decode()))[1]


ROOM, TWO = {"x": 10_000}, {"x": 10_000, "y": 10_000}
# Instructions of Lua, commands, bytes of the call, bytes of its commands: see Cost.
BUDGETS: dict[str, tuple[Callable[[Player], Cost], Cost]] = {
    "a request of one, 50 in a call of submit": (submitted(50), Cost(688, 4, 81, 616)),
    "a request of one, alone in a call of submit": (submitted(1), Cost(1130, 9, 178, 703)),
    "a request of one, 50 in a call of submit, that names its task": (
        submitted(50, task="send_mail"),
        Cost(676, 4, 81, 629),
    ),
    "a request of one, alone in a call of submit, that names its task": (
        submitted(1, task="send_mail"),
        Cost(1118, 9, 192, 716),
    ),
    "a request of 1,000": (
        lambda player: player.submit(1, 1000)[1],
        Cost(29403, 1013, 20161, 68861),
    ),
    "a request of one, 100 in an exchange": (taken_and_settled(100), Cost(1668, 18, 125, 1305)),
    "a request of one, alone in an exchange": (taken_and_settled(1), Cost(2301, 25, 1103, 2296)),
    "a request of one with a key that has room, 50 in a call of submit": (
        submitted(50, limits=ROOM),
        Cost(1392, 14, 81, 909),
    ),
    "a request of one with a key that has room, alone in a call of submit": (
        submitted(1, limits=ROOM),
        Cost(1967, 19, 192, 1006),
    ),
    "a request of one with two keys that have room, 50 in a call of submit": (
        submitted(50, limits=TWO),
        Cost(1624, 19, 81, 1089),
    ),
    "a request of one with a key that has room, 100 in an exchange": (
        taken_and_settled(100, limits=ROOM),
        Cost(2349, 25, 125, 1556),
    ),
    "a request of one with a key that has room, alone in an exchange": (
        taken_and_settled(1, limits=ROOM),
        Cost(2979, 32, 1103, 2535),
    ),
    "a request of one with two keys that have room, 100 in an exchange": (
        taken_and_settled(100, limits=TWO),
        Cost(2581, 31, 125, 1778),
    ),
    "a request of one with a full key, 100 in an exchange": (
        of_full_keys(100),
        Cost(2851, 36, 125, 2009),
    ),
    "a request of one with a full key, alone in an exchange": (
        of_full_keys(1),
        Cost(3481, 43, 1103, 2969),
    ),
    "a request of one of an order, 100 in an exchange": (of_orders(100), Cost(2892, 34, 125, 2032)),
    "one of 100 that are taken": (of_a_large_request("take"), Cost(9, 0, 3, 6)),
    "one of 100 that are settled": (of_a_large_request("settle"), Cost(20, 0, 49, 71)),
    "a lease that is extended": (extended, Cost(358, 5, 320, 173)),
}


@ON_SINGLE
@pytest.mark.parametrize("what", BUDGETS)
def test_a_call_costs_what_its_budget_says(redis_client: redis.Redis, what: str):
    play, budget = BUDGETS[what]
    player = Player(redis_client)
    found = play(player)
    player.host.close()
    assert all(map(is_near, found, budget)), f"{what} costs {found}, and its budget is {budget}"


def is_near(found: int, budget: int) -> bool:
    return abs(found - budget) <= max(SLACK * budget, 0.5)
