"""Tests keys in another slot than their requests: each crash between the two slots is found.

A test drops the reply of a step, and goes on as if its process had died.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fairlane.operations import apart_keys, workers
from fairlane.operations.audit import Audit
from fairlane.operations.change import Chosen, delete_each
from fairlane.operations.lease import acquire_call, complete, new_op, reap, slice_of
from fairlane.operations.limit_keys import LINE, names_in_use
from fairlane.operations.take import Taker, exchange_tokens
from fairlane.operations.tokens import parse, pop_ahead
from fairlane.protocol import keys
from tests.support.operations.stepping import cut_off_after
from tests.support.run.for_each import for_each
from tests.support.scripts.requests import ask, once, permits_of, stored
from tests.support.servers import backends

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fairlane.model import Token
    from fairlane.queue import Queue
    from fairlane.taken import Taken
    from tests.support.scripts.requests import Lane

IS_CLUSTER = [kind for kind in backends.chosen() if kind.startswith("cluster")]
pytestmark = pytest.mark.parametrize("redis_server", IS_CLUSTER, indirect=True)


def take(queue: Queue, count: int = 10) -> list[Taken]:
    return queue.take(count, visible_for=60)


def held(lane: Lane, name: str = "x") -> list[str]:
    """Returns the requests that hold a key."""
    found: Any = lane.client.zrangebyscore(keys.limit_key("req", name), "-inf", "(0")
    return [member.partition(b"#")[0].decode() for member in found]


def look(lane: Lane, name: str = "x") -> int:
    """Looks at a key when all its entries are due."""
    zset = keys.limit_key("req", name)
    for member in lane.client.zrangebyscore(zset, "-inf", "(0"):
        lane.client.zadd(zset, {member: -1})
    count: int = lane.run(apart_keys.look_at("req", [name]))
    return count


def pop(lane: Lane) -> Any:
    return lane.driver.run(once(pop_ahead("req", 99, 1)))


def exchange(queue: Queue, lane: Lane) -> Any:
    return exchange_tokens(Taker("req", lambda: "taker:a"), pop(lane), 60_000)


def show(lane: Lane, token: Token, op: bytes) -> Any:
    """Acquires with a token."""
    return lane.run(ask(acquire_call(token, "w:1", "1", 1, op)))


def take_keys(lane: Lane, token: Token, op: bytes) -> list[int]:
    (call,) = apart_keys.take("req", keys.lanes("req")[5], [(token, op)])
    taken: list[int] = lane.driver.run(once(call))
    return taken


# ------------------------------------------------------------------ crashes between the slots


def test_a_token_whose_keys_were_taken_and_that_was_not_acquired_is_minted_again(
    queue: Queue, lane: Lane
):
    queue.submit_request(["a"], id="r1", limits={"x": 1})
    cut_off_after(lane.driver, exchange(queue, lane), "take_keys")
    queue.submit_request(["a"], id="r2", limits={"x": 1})
    assert held(lane) == ["r1"]
    assert take(queue) == []
    assert look(lane) == 1
    assert sorted(one.id for one in [*take(queue), *take(queue)]) in (["r1"], ["r2"])


def test_a_look_makes_the_token_stale_before_it_gives_the_key_to_another(queue: Queue, lane: Lane):
    """Without that, an acquire that arrives late starts beside its successor."""
    queue.submit_request(["a"], id="r1", limits={"x": 1})
    token, op = parse(pop(lane).tokens[0]), new_op()
    assert token is not None
    assert token.is_apart
    assert take_keys(lane, token, op) == [1]
    queue.submit_request(["a"], id="r2", limits={"x": 1})
    assert look(lane) == 1
    assert show(lane, token, op).is_stale
    assert len(take(queue)) == 1


def test_a_lease_keeps_its_keys_however_often_they_are_looked_at(queue: Queue, lane: Lane):
    queue.submit_request(["a"], id="r1", limits={"x": 1})
    queue.submit_request(["a"], id="r2", limits={"x": 1})
    (one,) = take(queue)
    assert [look(lane) for _ in range(3)] == [0, 0, 0]
    assert held(lane) == ["r1"]
    one.done(b"")
    assert [one.id for one in take(queue)] == ["r2"]


@for_each("sub_requests", [1, 2])
def test_keys_of_a_lease_that_was_settled_by_a_process_that_died_are_given_back(
    queue: Queue, lane: Lane, sub_requests: int
):
    """The request has ended, or goes on."""
    queue.submit_request(["a"] * sub_requests, id=f"a{sub_requests}", limits={"x": 1})
    queue.submit_request(["a"], id=f"b{sub_requests}", limits={"x": 1})
    token, op = parse(pop(lane).tokens[0]), new_op()
    assert token is not None
    take_keys(lane, token, op)
    taken = slice_of(token, op, show(lane, token, op))
    assert taken is not None
    ids = [entry for entry, _ in taken.entries]
    call = complete(taken, ids, [b"0:k:1:0:0", b""] * len(ids), [], keep=False)
    lane.driver.run(once(call))
    assert held(lane) == [f"a{sub_requests}"]
    assert take(queue) == []
    assert look(lane) == 1
    (one,) = take(queue)
    assert one.id == f"b{sub_requests}"
    one.done(b"")
    queue.request(f"a{sub_requests}").cancel()
    look(lane)


def test_an_expired_lease_gives_its_keys_to_the_next(queue: Queue, lane: Lane):
    queue.submit_request(["a"], id="r1", limits={"x": 1})
    queue.submit_request(["a"], id="r2", limits={"x": 1})
    take(queue)
    (field,) = [k for k, text in permits_of(lane.client, "r1").items() if text[0] == "h"]
    lane.client.zadd(keys.leases("r1"), {field: 1})
    reply = lane.run(ask(reap("req", "r1")))
    lane.run(workers.settle_reap("req", "r1", reply))
    assert [one.id for one in take(queue)] == ["r2"]


def test_a_dead_workers_tokens_are_looked_at_immediately(queue: Queue, lane: Lane):
    queue.submit_request(["a"], id="r1", limits={"x": 1})
    queue.submit_request(["a"], id="r2", limits={"x": 1})
    (raw,) = pop(lane).tokens
    token = parse(raw)
    assert token is not None
    lane.client.hset(keys.taken("req", "w:1"), "0.0", raw)
    lane.client.hset(keys.worker("req", "w:1"), mapping={"started": "1"})
    take_keys(lane, token, new_op())
    lane.run(workers.take_over("req", "w:1", "1"))
    assert held(lane) == []
    (one,) = take(queue)
    one.done(b"")
    assert len(take(queue)) == 1


def test_a_called_token_that_is_lost_is_minted_again_and_its_call_given_up(
    queue: Queue, lane: Lane
):
    queue.submit_request(["a"], id="r1", limits={"x": 1})
    (lost,) = pop(lane).tokens
    queue.submit_request(["a"], id="r2", limits={"x": 1})
    audit = Audit("req")
    for _ in range(2):
        lane.run(audit.run(-1))
    zset: Any = lane.client.zrange(keys.limit_key("req", "x"), 0, -1)
    assert lost not in zset
    ids = []
    for _ in range(2):
        (one,) = take(queue)
        ids.append(one.id)
        one.done(b"")
    assert sorted(ids) == ["r1", "r2"]


# ------------------------------------------------------------------ lives of an id


def begin_again(lane: Lane, queue: Queue) -> None:
    """Ends r1 and deletes it, and submits another request with its id."""
    queue.request("r1").cancel()
    born = int(stored(lane.client, "r1")["born"])
    lane.run(delete_each("req", [Chosen("r1", "req", born)]))
    queue.submit_request(["new"], id="r1", limits={"x": 1})


def test_an_acquire_of_an_earlier_life_is_refused(queue: Queue, lane: Lane):
    """Its worker hung; meanwhile the look dropped what it had taken, and another took the key."""
    queue.submit_request(["a"], id="r1", limits={"x": 1})
    token, op = parse(pop(lane).tokens[0]), new_op()
    assert token is not None
    assert take_keys(lane, token, op) == [1]
    begin_again(lane, queue)
    assert look(lane) == 1
    queue.submit_request(["b"], id="r2", limits={"x": 1})
    assert not show(lane, token, op).is_ok
    assert len(held(lane)) == 0
    assert {one.id for one in take(queue)} == {"r1"}


def test_what_an_earlier_life_gives_up_late_leaves_the_call_of_the_next(queue: Queue, lane: Lane):
    queue.submit_request(["a"], id="r1", limits={"x": 1})
    token = parse(pop(lane).tokens[0])
    assert token is not None
    begin_again(lane, queue)
    before: Any = lane.client.zrange(keys.limit_key("req", "x"), 0, -1)
    lane.run(_dispatch([("r1", [b"-", token.permit.encode(), 0])]))
    assert lane.client.zrange(keys.limit_key("req", "x"), 0, -1) == before
    assert [one.id for one in take(queue)] == ["r1"]


# ------------------------------------------------------------------ look


def test_a_look_at_one_lease_leaves_the_time_of_the_others(queue: Queue, lane: Lane):
    for name in ("r1", "r2"):
        queue.submit_request(["a"], id=name, limits={"x": 2})
    cut_off_after(lane.driver, exchange(queue, lane), "take_keys")
    zset = keys.limit_key("req", "x")
    (member,) = lane.client.zrangebyscore(zset, "-inf", "(0")
    lane.client.zadd(zset, {member: -1})
    (raw,) = pop(lane).tokens
    token = parse(raw)
    assert token is not None
    lane.run(apart_keys.look_at_tokens("req", [token]))
    assert lane.client.zscore(zset, member) == -1
    assert lane.run(apart_keys.look_at("req", ["x"])) == 1


def test_of_very_many_entries_those_due_for_longest_are_looked_at_first(queue: Queue, lane: Lane):
    zset = keys.limit_key("req", "x")
    lane.client.zadd(zset, {f"gone{n}#0.7~ab": -1 - n for n in range(1_001)})
    assert lane.run(apart_keys.look_at("req", ["x"])) == 1_000
    assert lane.client.zrange(zset, 0, -1) == [b"gone1000#0.7~ab"]
    assert lane.run(apart_keys.look_at("req", ["x"])) == 1


def test_a_request_that_cannot_be_read_stops_no_look_at_the_others(queue: Queue, lane: Lane):
    """Its entries stay."""
    queue.submit_request(["a"], id="r1", limits={"x": 2})
    cut_off_after(lane.driver, exchange(queue, lane), "take_keys")
    lane.client.zadd(keys.limit_key("req", "x"), {"r3#0.7~ab": -1, "r3#0.7%%x=2": 1})
    lane.client.set(keys.permits("r3"), "damage")
    assert look(lane) == 1
    assert held(lane) == ["r3"]
    lane.client.delete(keys.permits("r3"))
    assert look(lane) == 2


# ------------------------------------------------------------------ withdrawn tokens


def test_a_paused_request_waits_for_no_key(queue: Queue, lane: Lane):
    for name in ("r1", "r2"):
        queue.submit_request(["a"], id=name, limits={"x": 1})
    (one,) = take(queue)
    other = "r2" if one.id == "r1" else "r1"
    for _ in range(2):
        queue.request(other).pause()
        assert lane.client.zcard(keys.limit_key("req", "x")) == 1
        queue.request(other).resume()
        assert lane.client.zcard(keys.limit_key("req", "x")) == 2


def test_a_submission_that_is_taken_back_waits_for_no_key(queue: Queue, lane: Lane):
    def bodies() -> Iterator[bytes]:
        yield from [b"a" * 100] * 30_000
        raise ValueError

    queue.submit_request(["a"], id="r1", limits={"x": 1})
    take(queue)
    with pytest.raises(ValueError):
        queue.submit_request(bodies(), id="r2", limits={"x": 1})
    assert lane.client.zcard(keys.limit_key("req", "x")) == 1


# ------------------------------------------------------------------ copies


def test_a_second_copy_of_a_token_gives_back_only_what_it_took(queue: Queue, lane: Lane):
    queue.submit_request(["a"], id="r1", limits={"x": 2})
    token = parse(pop(lane).tokens[0])
    assert token is not None
    first, second = new_op(), new_op()
    assert take_keys(lane, token, first) == [1]
    assert show(lane, token, first).is_ok
    assert take_keys(lane, token, second) == [1]
    assert held(lane) == ["r1", "r1"]
    assert show(lane, token, second).is_stale
    lane.run(_dispatch([apart_keys.given_back(token, second)]))
    assert held(lane) == ["r1"]


def test_a_copy_of_a_call_takes_the_keys_once(queue: Queue, lane: Lane):
    queue.submit_request(["a"], id="r1", limits={"x": 1, "y": 1})
    token, op = parse(pop(lane).tokens[0]), new_op()
    assert token is not None
    assert [take_keys(lane, token, op) for _ in range(2)] == [[1], [1]]
    assert (held(lane), held(lane, "y")) == (["r1"], ["r1"])
    assert take_keys(lane, token, new_op()) == [0]


def test_a_late_copy_of_a_call_holds_a_key_until_it_is_looked_at(queue: Queue, lane: Lane):
    queue.submit_request(["a"], id="r1", limits={"x": 1})
    token, op = parse(pop(lane).tokens[0]), new_op()
    assert token is not None
    take_keys(lane, token, op)
    queue.request("r1").cancel()
    lane.run(_dispatch([apart_keys.given_back(token, op)]))
    assert held(lane) == []
    take_keys(lane, token, op)
    assert held(lane) == ["r1"]
    assert look(lane) == 1
    assert lane.run(names_in_use("req")) == []


def test_tokens_of_a_tenant_give_back_their_keys(queue: Queue, lane: Lane):
    for name in ("r1", "r2"):
        queue.submit_request(["a", "b"], id=name, limits={"x": 1}, tenant="acme")
    for _ in range(4):
        (one,) = take(queue)
        one.done(b"")
    assert lane.run(names_in_use("req")) == []


def test_a_lease_is_looked_at_later_when_the_look_was_lost(queue: Queue, lane: Lane):
    queue.submit_request(["a"], id="r1", limits={"x": 1})
    cut_off_after(lane.driver, exchange(queue, lane), "take_keys")
    zset = keys.limit_key("req", "x")
    (member,) = lane.client.zrangebyscore(zset, "-inf", "(0")
    first = lane.client.zscore(zset, member)
    lane.client.zadd(zset, {member: -1})
    cut_off_after(lane.driver, apart_keys.look_at("req", ["x"]), "look_at_keys")
    assert lane.client.zscore(zset, member) <= first
    assert lane.run(apart_keys.look_at("req", ["x"])) == 0
    assert look(lane) == 1


def test_an_entry_from_before_the_clock_went_back_is_looked_at(queue: Queue, lane: Lane):
    queue.submit_request(["a"], id="r1", limits={"x": 1})
    cut_off_after(lane.driver, exchange(queue, lane), "take_keys")
    zset = keys.limit_key("req", "x")
    (member,) = lane.client.zrangebyscore(zset, "-inf", "(0")
    lane.client.zadd(zset, {member: -LINE})
    assert lane.run(apart_keys.look_at("req", ["x"])) == 1


def test_a_token_without_keys_is_taken_by_the_same_commands_as_ever(queue: Queue, lane: Lane):
    queue.submit_request(["a"], id="r1")
    sent = list[str]()
    operation = exchange(queue, lane)
    step = operation.send(None)
    while True:
        sent += [getattr(getattr(one, "script", None), "name", "") for one in _steps(step)]
        try:
            step = operation.send(lane.driver.run(once(step)))
        except StopIteration:
            break
    assert sent == ["acquire", "extend"]


def _steps(step: Any) -> list[Any]:
    return list(getattr(step, "steps", [step]))


async def _dispatch(minted: Any) -> None:
    from fairlane.operations.tokens import insert_tokens
    from fairlane.protocol.steps import run_all

    await run_all(insert_tokens("req", minted))
