"""Tests a unit that exchanges leases, step by step without Redis; then workers with Redis."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fairlane.errors import RedisUnfit, RedisUnreachable
from fairlane.operations import lease as leases
from fairlane.operations.lease import exchange, exchange_unit
from fairlane.protocol import keys
from fairlane.protocol.steps import (
    Call,
    Confirm,
    Handle,
    Handled,
    Popped,
    SingleServer,
    UntilHandled,
)
from fairlane.worker.board import LeaseBoard
from fairlane.worker.calls import Runner
from fairlane.worker.handlers import shape_of
from fairlane.worker.lease_keeper import LeaseKeeper
from tests.support.processes.worker_units import (
    LANE,
    MORE,
    SUMMARY,
    argument,
    begin,
    done,
    drain,
    echo,
    held,
    names_of,
    not_begun,
    popped,
    quick_unit,
    rest_of,
    take,
)
from tests.support.processes.workers import broken, check_settled_once
from tests.support.run.for_each import for_each
from tests.support.scripts.requests import once, pop_token
from tests.support.scripts.requests import work_off as finish
from tests.worker.parts import (
    ON_ONE_SERVER,
    ON_SINGLE,
    entries_of,
    granted,
    slice_of,
    unit_of_its_own,
    work_off,
)

if TYPE_CHECKING:
    import redis

    from fairlane.queue import Queue
    from fairlane.worker.unit import Unit
    from tests.support.processes.workers import Workers


def asked(unit: Unit, **changed: Any) -> tuple[Any, Any]:
    """Makes a unit whose slice was handled, with five more waiting; at the step after that."""
    loop, step = take(unit, granted(b"x", **({"waiting": 5} | changed)))
    assert isinstance(step, Handle)
    return loop, loop.send(done(1))


def call_of(step: Any) -> Call[Any]:
    """Returns the call that is sent to a server that has all keys."""
    assert isinstance(step, SingleServer)
    assert isinstance(step.step, Call)
    return step.step


def one_server(**changed: Any) -> Unit:
    unit = unit_of_its_own(**changed)
    unit.has_one_server = True
    return unit


def reply(
    *settled: bytes, left: Any = (), unlogged: Any = (), acquired: dict[bytes, Any] | None = None
) -> list[Any]:
    """Returns the reply of exchange: a word for each lease, and each token's exchange."""
    acquired = acquired or {}
    words = [[word] if word else b"" for word in settled]
    return [words, [*left], [*unlogged], [*acquired], [*acquired.values()]]


# ------------------------------------------------------------------ step by step


def test_a_lease_is_settled_and_the_next_one_acquired_in_one_round_trip():
    """There is no pop, no acquire: the next slice is there, and on the board."""
    unit = one_server()
    loop, step = asked(unit)
    assert names_of(step) == ["exchange"]
    step = loop.send(reply(b"ok", acquired={b"r2#1.8": granted(b"y", b"z", fence=9, waiting=1)}))
    assert names_of(step) == ["handle"]
    (lease,) = step.leases.waiting
    assert lease.slice.entries == entries_of(b"y", b"z")
    on_board = unit.record.held()
    assert on_board is not None
    assert (on_board.request_id, on_board.k, on_board.fence) == ("r2", "1", 9)
    assert unit.record.counts()["done"] == 1


def test_leases_that_the_supervisor_gives_back_are_not_begun():
    """The reply was read late, because a call kept the process."""
    unit = one_server()
    loop, step = asked(unit)
    assert names_of(step) == ["exchange"]
    assert unit.record.revoke_exchange() is not None
    step = loop.send(reply(b"ok", acquired={b"r2#1.8": granted(b"y", fence=9)}))
    assert names_of(step) == ["complete"]
    (call,) = step.steps
    words = [argument(call, name) for name in ("fence", "keep", "done")]
    assert words == [b"9", b"u", 0]
    step = loop.send([[b"already", []]])
    assert "handle" not in names_of(step)
    assert held(unit) == []


def test_it_sends_what_exchange_takes():
    """It sends the lease, its results, how many tokens, and sizes of measured requests."""
    unit = one_server()
    loop, _ = take(unit, granted(b"x", waiting=5))
    on_board = unit.record.held()
    assert on_board is not None
    call = call_of(loop.send(done(1)))
    names = ("place", "worker", "started", "want", "shared", "measured")
    assert [argument(call, name) for name in names] == [b"x0", "w:1", "7", 1, b"", 1]
    rest = rest_of(call)
    assert rest[:2] == ["r1", 16]
    assert rest[2:8] == ["r1", "0", b"7", on_board.op.encode(), 1, 0]
    assert rest[8:] == [entries_of(b"x")[0][0], b"head", b"body"]
    assert list(call.keys[8:]) == list(keys.lanes("req")[:6])


def test_all_lanes_are_read_when_nothing_waits_behind_the_lease():
    """Its request mints no token, so any lane may be the next."""
    _, step = asked(one_server(), waiting=0)
    assert call_of(step).keys[8:] == keys.lanes("req")


def test_the_exchange_is_on_the_board_until_its_reply_was_read():
    """If the process dies meanwhile, the supervisor sends it again."""
    unit = one_server()
    loop, step = asked(unit)
    assert unit.record.pending_acquire() == (b"", argument(call_of(step), "op"))
    loop.send(reply(b"ok", acquired={b"r1#0.4": granted(b"y", fence=9)}))
    assert unit.record.pending_acquire() is None


def test_a_cluster_gets_exchange_once():
    """No server of it has all keys: from then on, the steps are single ones."""
    unit = one_server()
    loop, _ = asked(unit)
    assert names_of(loop.send(None)) == ["complete"]
    assert unit.record.pending_acquire() is None
    loop.send([b"ok", 3, MORE])
    loop.send([1, Popped(b"{req}:5", [b"r1#2.9"])])
    assert names_of(loop.send(granted(b"y", waiting=2))) == ["handle"]
    assert names_of(loop.send(done(1))) == ["complete"]


def test_a_user_that_may_not_read_the_lanes_takes_single_steps():
    """Its rules were written by hand; or one of the lanes is no list."""
    unit = one_server()
    loop, _ = asked(unit)
    assert names_of(loop.throw(RedisUnfit("NOPERM"))) == ["complete"]
    assert (unit.record.pending_acquire(), unit.has_one_server) == (None, False)


@for_each(
    "word, acquired, follows",
    [
        (b"ok", {}, ["pop"]),
        (b"ended", {}, ["pop"]),
        (b"lost", {}, ["pop"]),
        (b"gone", {}, ["pop"]),
        (b"ok", {b"r2#0.1": [b"stale"]}, ["pop"]),
        (b"ok", {b"r2#0.1": [b"busy"], b"nonsense": [b"gone"]}, ["pop"]),
        (b"already", {b"r2#0.1": granted(b"y")}, ["handle"]),
    ],
)
def test_without_a_lease_the_unit_waits_at_its_pop(word: bytes, acquired: Any, follows: list[str]):
    """The script has dispatched and logged all that follows."""
    unit = one_server()
    loop, _ = asked(unit)
    assert names_of(loop.send(reply(word, acquired=acquired))) == follows
    assert (unit.record.held() is not None) is (follows == ["handle"])


def test_what_the_script_left_is_dispatched_before_the_next_handler():
    """They are tokens that are due later, and an end that the log refused."""
    loop, _ = asked(one_server())
    left, unlogged = [b"r1", b"5", b"1.4", 250], [b"r1", SUMMARY]
    step = loop.send(
        reply(b"ok", left=left, unlogged=unlogged, acquired={b"r1#0.5": granted(b"y")})
    )
    assert names_of(step) == ["insert_tokens", "retire"]
    assert rest_of(step.steps[0]) == [5, 0, 1, b"r1#1.4", 250]
    assert names_of(loop.send([1, 1])) == ["handle"]


def test_a_step_that_was_refused_is_repeated_alone():
    """So its own error is reported, and the others are not affected."""
    unit = one_server()
    loop, _ = asked(unit)
    step = loop.send(reply(b"", acquired={b"r2#0.1": b""}))
    assert names_of(step) == ["complete"]
    step = loop.send([[b"ended", SUMMARY]])
    assert names_of(step) == ["retire", "acquire"]
    assert unit.record.counts()["done"] == 1


def test_retries_that_must_be_acquired_alone_are_taken_one_by_one():
    """The script has put their tokens back."""
    unit = quick_unit(has_one_server=True)
    loop, _ = begin(unit)
    loop.send([popped(2)])
    step: Any = loop.send([granted(b"x"), granted(b"x")])
    step = loop.send(_both(unit, step))
    assert argument(call_of(step), "want") > 1
    loop.send(reply(b"ok", b"ok", acquired={b"r5#0.1": [b"alone"], b"r6#0.1": [b"alone"]}))
    assert [unit.sizer.tokens(8) for _ in range(2)] == [1, 8]


@pytest.mark.parametrize(
    ("count", "size", "expected"),
    [(1_000, 0, "exchange"), (1_001, 0, "complete"), (1, 1 << 20, "complete")],
)
def test_many_results_are_settled_by_single_calls(count: int, size: int, expected: str):
    """Otherwise one call would keep Redis busy for long: 2,000 results, or 1 MiB, are enough."""
    unit = quick_unit(has_one_server=True)
    loop, _ = begin(unit)
    loop.send([popped(2)])
    step: Any = loop.send([granted(*[b"x"] * count)] * 2)
    for lease in (taken := [*step.leases.waiting]):
        lease.note(done(count, size=size))
    step.leases.waiting.clear()
    assert set(names_of(loop.send(Handled(taken)))) - {"pop"} == {expected}


def _both(unit: Unit, step: Any) -> Handled:
    return Handled(Runner(shape_of(echo), unit.record).run(step.leases))


@pytest.mark.parametrize("case", ["drains", "spread", "stopped"])
def test_no_next_lease_is_acquired(case: str):
    """A draining worker takes nothing; shards take turns; a stopped lease needs one call."""
    unit = one_server()
    loop, _ = take(unit, granted(b"x", b"y", waiting=5))
    if case == "drains":
        drain(unit)
    elif case == "spread":
        unit.record._worker.shards[0], unit.record._worker.shards[1] = 0, 3
        unit.record._worker.shard_count = 2
    step = loop.send(done(1, 1, is_over=True) if case == "stopped" else done(2))
    assert names_of(step) == (["complete"] if case == "spread" else ["exchange"])
    if case == "drains":
        assert argument(call_of(step), "want") == 0


def test_a_durable_request_has_each_slice_confirmed():
    """WAIT follows its complete."""
    way = work_off(one_server(), slice_of(b"x", waiting=5, durable=1), LANE)
    way.send(None)
    assert isinstance(way.send(done(1)), Confirm)


def test_a_lease_that_comes_too_late_is_given_back(now: list[float]):
    """Redis was unreachable for nine tenths of the lease: nothing of it is begun."""
    loop, _ = asked(one_server())
    now[0] += 27.5
    step = loop.send(reply(b"ok", acquired={b"r1#0.4": granted(b"y", fence=9)}))
    step = loop.send(not_begun(step))
    assert names_of(step) == ["exchange"]
    *_, fence, _, count, others = rest_of(call_of(step))
    assert (fence, count, others) == (b"9", 0, 0)


def test_when_redis_is_away_the_lease_expires():
    """Nothing is leased any more; the leader takes it back."""
    unit = one_server()
    loop, _ = asked(unit)
    with pytest.raises(RedisUnreachable):
        loop.throw(RedisUnreachable("no answer"))
    assert unit.record.held() is None


def test_what_is_measured_is_reported_though_the_unit_never_waits(now: list[float]):
    sent = []
    loop, _ = asked(one_server())
    for fence in range(9, 20):
        now[0] += 5.0
        acquired = {b"r1#0.4": granted(b"y", fence=fence, waiting=5)}
        step = loop.send(reply(b"ok", acquired=acquired))
        if names_of(step) != ["handle"]:
            sent += names_of(step)
            step = loop.send([1] * len(step.steps))
        assert names_of(step) == ["handle"]
        assert names_of(loop.send(done(1, waited_ms=[5], ran_us=[900]))) == ["exchange"]
    assert set(sent) == {"add_stats"}


def test_one_bunch_is_exchanged_while_the_next_is_handled():
    """One round trip settles the batch before and acquires the one after."""
    unit = quick_unit(spare=7, is_alone=True, each_s=0.0025, has_one_server=True)
    loop, pop = begin(unit)
    assert pop.steps[-1].most == 4
    loop.send([popped(4)])
    first: Any = loop.send([granted(b"x") for _ in range(4)])
    step = first.meanwhile.send(None)
    assert names_of(step) == ["exchange"]
    assert (argument(call_of(step), "want"), argument(call_of(step), "shared")) == (4, b"1")
    assert call_of(step).keys[8:] == keys.lanes("req")[:6]
    more = {b"r%d#0.3" % i: granted(b"y") for i in range(4, 8)}
    assert isinstance(first.meanwhile.send(reply(acquired=more)), UntilHandled)
    assert len(held(unit)) == 8
    with pytest.raises(StopIteration) as end:
        first.meanwhile.send(True)
    second = loop.send(_with(unit, first, end.value.value))
    step = second.meanwhile.send(None)
    assert len(rest_of(call_of(step))) == 4 * 9
    second.meanwhile.send(reply(*[b"ended"] * 4))
    assert len(held(unit)) == 4
    assert unit.record.counts()["done"] == 4


def _with(unit: Unit, step: Any, result: Any) -> Handled:
    return Handled(Runner(shape_of(echo), unit.record).run(step.leases), result, None)


# ------------------------------------------------------------------ with Redis


@ON_ONE_SERVER
@pytest.mark.parametrize("reached", [True, False], ids=["executed", "never sent"])
def test_a_process_that_dies_in_it_strands_nothing(
    queue: Queue, redis_client: redis.Redis, *, reached: bool
):
    """All leases are released, uncharged; a late call of the dead process takes nothing."""
    request = queue.submit_request([b"x"] * 6, limit=2, lease=30)
    board = LeaseBoard(1)
    keeper, record = LeaseKeeper(queue.driver, "req", "w:1", "7", board), board.records[0]
    token = pop_token(queue.driver)
    assert token is not None
    _, taken = queue.driver.run(leases.acquire(token, "w:1", "7", 2))
    assert taken is not None
    record.hold(request.id, taken.k, int(taken.fence), taken.op, 0.0, 30.0)
    ids = [entry_id for entry_id, _ in taken.entries]
    part: Any = (ids, [b"0:d:1:0:0", b"", b"1:d:1:0:0", b""], [])
    op, unit = leases.new_op(), exchange_unit("req", "w:1", "7", 0)
    lanes = keys.lanes("req")[:6]
    call = exchange(unit, op, [(taken, part)], lanes=lanes, want=5, shared=True)
    record.begin_exchange(op)
    if reached:
        assert len(queue.driver.run(once(call))[3]) == 2
    keeper.give_back([held for held in [record.held()] if held])
    keeper.unanswered.put_back(board.records)
    assert record.pending_acquire() is None
    assert redis_client.zcard(keys.leases(request.id)) == 0
    assert broken(queue, request.id) == []
    settled, _, _, tokens, acquired = queue.driver.run(once(call))
    assert settled[0][0] in {b"already", b"lost"}
    assert {word[0] for word in acquired} <= {b"stale"}
    assert len(tokens) == (2 if reached else 0)
    assert len(finish(queue.driver)) == (4 if reached else 6)
    check_settled_once(request)


@ON_ONE_SERVER
@pytest.mark.parametrize("reached", [True, False], ids=["executed", "on its way"])
def test_what_a_blocked_process_acquires_in_it_goes_back(
    queue: Queue, redis_client: redis.Redis, *, reached: bool
):
    """Its event loop is blocked, so the reply is not read. Others take the leases meanwhile."""
    request = queue.submit_request([b"x"] * 6, limit=2)
    board = LeaseBoard(1)
    keeper, record = LeaseKeeper(queue.driver, "req", "w:1", "7", board), board.records[0]
    op, unit = leases.new_op(), exchange_unit("req", "w:1", "7", 0)
    call = exchange(unit, op, (), lanes=keys.lanes("req")[:6], want=5, shared=True)
    assert keeper.unanswered.take_back_unread(record), "there is none"
    record.begin_exchange(op)
    if reached:
        assert len(queue.driver.run(once(call))[3]) == 2
    assert keeper.unanswered.take_back_unread(record)
    assert redis_client.zcard(keys.leases(request.id)) == 0
    assert broken(queue, request.id) == []
    assert len(finish(queue.driver)) == 6
    acquired = queue.driver.run(once(call))[4]
    assert {word[0] for word in acquired} <= {b"stale", b"ended"}
    record.end_acquire()
    assert record.is_revoked(op)
    assert keeper.unanswered.take_back_unread(record), "it has ended"
    check_settled_once(request)


@pytest.mark.rest
@ON_ONE_SERVER
@pytest.mark.parametrize("handler", ["slow_noted", "slow_noted_async"])
def test_a_worker_goes_on_while_no_other_request_waits(
    handler: str, queue: Queue, redis_client: Any, workers: Workers
):
    """It waits at its lanes far less often than it settles; every result is there once."""
    request = queue.submit_request([b""] * 60, limit=1)
    redis_client.config_resetstat()
    workers.run(handler, slice_s=0.005)
    stats = redis_client.info("commandstats")
    pops = sum(stats.get(f"cmdstat_{name}", {}).get("calls", 0) for name in ("brpop", "blmpop"))
    assert stats["cmdstat_lmpop"]["calls"] > 20
    assert pops < 20
    check_settled_once(request)


@pytest.mark.rest
@ON_SINGLE
def test_requests_of_one_priority_take_turns(queue: Queue, workers: Workers):
    """One unit has slices of one: neither has two while the other waits, except at first."""
    for name in ("r1", "r2"):
        queue.submit_request([b""] * 12, limit=1, id=name)
    workers.run("slow_noted", slice_s=0.001)
    order = [request for request, *_ in workers.folder.noted("began")]
    assert order == ["r1", "r2"] * 12


@ON_SINGLE
def test_a_more_urgent_request_has_the_next_slice(queue: Queue, workers: Workers):
    """It is submitted while another one has been running for a while."""
    bodies = [b"gate" if i == 10 else b"" for i in range(30)]
    queue.submit_request(bodies, limit=1, priority=50, id="slow")
    worker = workers.start("slow_noted", slice_s=0.001, until_idle=True)
    workers.folder.wait_noted("began", 11)
    queue.submit_request([b""], priority=0, id="urgent")
    workers.folder.open_gate()
    assert worker.wait() == 0
    order = [request for request, *_ in workers.folder.noted("began")]
    assert order == ["slow"] * 11 + ["urgent"] + ["slow"] * 19
