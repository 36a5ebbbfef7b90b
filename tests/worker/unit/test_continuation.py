"""A lease that goes on, step by step and without Redis; then with workers of flesh and blood."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fairlane.errors import RedisUnfit, RedisUnreachable
from fairlane.operations.lease import leases
from fairlane.protocol import keys
from fairlane.protocol.steps import Call, Confirm, Handle, Popped, SingleServer
from fairlane.worker.lease_board import LeaseBoard, LeaseRecord
from fairlane.worker.metrics import Metrics
from fairlane.worker.supervisor.lease_keeper import LeaseKeeper
from fairlane.worker.unit.sizing import Sizer
from fairlane.worker.unit.unit import Unit
from tests.support.requests import once, pop_token
from tests.support.requests import work_off as finish
from tests.support.worker_units import (
    LANE,
    MORE,
    SUMMARY,
    TOKENS,
    argument,
    done,
    names_of,
    not_begun,
    rest_of,
    take,
)
from tests.support.workers import broken, check_settled_once
from tests.worker.parts import ON_SINGLE, entries_of, granted, slice_of, unit_of_its_own, work_off

if TYPE_CHECKING:
    import redis

    from fairlane.queue import Queue
    from tests.support.workers import Workers


def asked(unit: Unit, **changed: Any) -> tuple[Any, Any]:
    """A unit whose slice was handled, with five more waiting; at the step after that."""
    loop, step = take(unit, granted(b"x", **({"waiting": 5} | changed)))
    assert isinstance(step, Handle)
    return loop, loop.send(done(1))


def call_of(step: Any) -> Call:
    """What is asked of a server that has all keys."""
    assert isinstance(step, SingleServer)
    assert isinstance(step.step, Call)
    return step.step


# ------------------------------------------------------------------ step by step


def test_a_slice_with_more_behind_it_is_settled_and_goes_on_in_one_round_trip():
    """No pop, no acquire: the next slice is there, and on the board."""
    unit = unit_of_its_own()
    loop, step = asked(unit)
    assert names_of(step) == ["complete_and_acquire"]
    step = loop.send([[b"ok", 3, []], granted(b"y", b"z", fence=9, waiting=1)])
    assert names_of(step) == ["handle"]
    (lease,) = step.leases.waiting
    assert lease.slice.entries == entries_of(b"y", b"z")
    held = unit.record.held()
    assert held is not None
    assert (held.request_id, held.k, held.fence) == ("r1", "0", 9)
    assert unit.record.counts()["done"] == 1


def test_it_says_what_complete_and_acquire_say():
    """Lease, results, who goes on, and for how many: as many as this slice taught."""
    unit = unit_of_its_own()
    _, step = asked(unit)
    call = call_of(step)
    names = ("k", "fence", "done", "id", "lane", "worker", "started", "count")
    named = {name: argument(call, name) for name in names}
    assert named == {
        "k": "0",
        "fence": b"7",
        "done": 1,
        "id": "r1",
        "lane": b"5",
        "worker": "w:1",
        "started": "7",
        "count": 16,
    }
    assert rest_of(call) == [entries_of(b"x")[0][0], b"head", b"body"]
    lanes = [keys.lanes("req")[one] for one in (5, 0, 1, 2, 3, 4)]
    assert list(call.keys) == [*keys.request_keys("r1"), *lanes]


def test_the_lease_and_what_was_asked_for_are_both_on_the_board_meanwhile():
    """Should the process die now: the one is taken back, the other asked for again by its op."""
    unit = unit_of_its_own()
    loop, step = asked(unit)
    held, op = unit.record.held(), argument(call_of(step), "next_op")
    assert held is not None
    assert held.fence == 7
    assert unit.record.pending_acquire() == (b"r1#0.0", op)
    assert op != argument(call_of(step), "op")
    loop.send([[b"ok", 3, []], granted(b"y", fence=9)])
    held = unit.record.held()
    assert held is not None
    assert (held.fence, held.op.encode()) == (9, op)
    assert unit.record.pending_acquire() is None


def test_a_cluster_is_asked_once():
    """No server of it has all keys: then, and from then on, the slice is completed."""
    unit = unit_of_its_own()
    loop, _ = asked(unit)
    assert names_of(loop.send(None)) == ["complete"]
    assert unit.record.pending_acquire() is None
    loop.send([b"ok", 3, MORE])
    loop.send([1, Popped(b"{req}:5", [b"r1#2.9"])])
    assert names_of(loop.send(granted(b"y", waiting=2))) == ["handle"]
    assert names_of(loop.send(done(1))) == ["complete"]


def test_who_may_not_read_the_lanes_completes():
    """Rules written by hand; or one of the lanes is no list. Nothing was done."""
    unit = unit_of_its_own()
    loop, _ = asked(unit)
    assert names_of(loop.throw(RedisUnfit("NOPERM"))) == ["complete"]
    assert (unit.record.pending_acquire(), unit.may_continue) == (None, False)
    assert names_of(loop.send([b"ok", 3, MORE])) == ["insert_tokens", "pop"]


def test_the_board_never_shows_half_of_each_lease(monkeypatch: pytest.MonkeyPatch):
    """The former one is released before the next one is written."""
    unit, seen = unit_of_its_own(), []
    loop, _ = asked(unit)
    hold = LeaseRecord.hold

    def note(record: LeaseRecord, *args: Any, **given: Any) -> None:
        seen.append((record.is_holding, record.pending_acquire() is not None))
        hold(record, *args, **given)

    monkeypatch.setattr(LeaseRecord, "hold", note)
    loop.send([[b"ok", 3, []], granted(b"y", fence=9)])
    assert seen == [(False, True)]


@pytest.mark.parametrize(
    ("waiting", "reply", "is_known"),
    [(5, [b"ok", 3, []], True), (0, [b"ok", 3, []], True), (0, [b"ended", SUMMARY], False)],
)
def test_sizes_of_requests_that_end_are_not_remembered(
    waiting: int, reply: list[Any], *, is_known: bool
):
    """There is room for so many only."""
    unit = unit_of_its_own()
    way = work_off(unit, slice_of(b"x", waiting=waiting))
    next(way)
    way.send(done(1))
    with pytest.raises(StopIteration):
        way.send(reply)
    assert unit.sizer.has_measured("r1") is is_known


def _slow(_: Unit, __: LeaseBoard) -> None: ...


def _drains(_: Unit, board: LeaseBoard) -> None:
    board.drain()


def _quick(unit: Unit, _: LeaseBoard) -> None:
    unit.sizer = Sizer(20, 128)
    unit.sizer.observe_tokens(32, 0.000_32)
    unit.free = [*unit.free, *LeaseBoard(7).records]


def _spread(_: Unit, board: LeaseBoard) -> None:
    board.spread((0, 3))


@pytest.mark.parametrize(
    ("changed", "waiting", "asks"),
    [
        (_slow, 5, "complete_and_acquire"),
        (_slow, 0, "complete"),
        (_drains, 5, "complete"),
        (_quick, 5, "complete"),
        (_spread, 5, "complete"),
    ],
    ids=["else", "nothing waits", "the worker drains", "the handler is quick", "lanes are spread"],
)
def test_a_lease_does_not_go_on_when(changed: Any, waiting: int, asks: str):
    """Quick ones share round trips; of several shards each has its turn."""
    board = LeaseBoard(1)
    unit = Unit("req", "w:1", "7", board.records[0], Sizer(20), Metrics("req"))
    loop, _ = take(unit, granted(b"x", waiting=waiting))
    changed(unit, board)
    assert names_of(loop.send(done(1))) == [asks]


def test_what_was_stopped_does_not_go_on():
    """Its request is cancelled, or its lease is another's."""
    loop, _ = take(unit_of_its_own(), granted(b"x", b"y", waiting=5))
    assert names_of(loop.send(done(1, 1, is_over=True))) == ["complete"]


def test_a_durable_request_has_each_slice_confirmed():
    """WAIT stands behind its complete."""
    unit = unit_of_its_own()
    way = work_off(unit, slice_of(b"x", waiting=5, durable=1), LANE)
    next(way)
    assert isinstance(way.send(done(1)), Confirm)


@pytest.mark.parametrize(
    ("reply", "follows"),
    [
        pytest.param([[b"ok", 3, MORE]], ["insert_tokens", "pop"], id="a request had its turn"),
        pytest.param([[b"ended", SUMMARY]], ["retire", "pop"], id="the request has ended"),
        pytest.param([[b"ok", 3, []], [b"empty", MORE]], ["insert_tokens", "pop"], id="empty"),
        pytest.param([[b"ok", 3, []], [b"busy", MORE]], ["insert_tokens", "pop"], id="busy"),
        pytest.param([[b"ok", 3, []], [b"paused", MORE]], ["insert_tokens", "pop"], id="paused"),
        pytest.param([[b"already", []], granted(b"y")], ["handle"], id="the call was repeated"),
        pytest.param([[b"lost"]], ["pop"], id="lost"),
        pytest.param([[b"gone"]], ["pop"], id="gone"),
    ],
)
def test_what_a_reply_returns_is_dispatched_with_the_next_pop(reply: Any, follows: list[str]):
    """No token is lost, and no lease is held unless one was granted."""
    unit = unit_of_its_own()
    loop, _ = asked(unit)
    assert names_of(loop.send(reply)) == follows
    assert (unit.record.held() is not None) is (follows == ["handle"])


def test_tokens_for_others_go_out_before_the_handler_runs():
    """Those of complete, and those of acquire."""
    loop, _ = asked(unit_of_its_own())
    step = loop.send([[b"ok", 3, MORE], granted(b"y", tokens=TOKENS)])
    assert names_of(step) == ["insert_tokens"]
    assert rest_of(step.steps[0]) == [5, 1, 1, b"r1#1.4", b"r1#2.9", 250]
    assert names_of(loop.send([1])) == ["handle"]


def test_a_slice_that_comes_too_late_is_given_back(now: list[float]):
    """Redis was away for nine tenths of the lease: nothing of it is begun."""
    loop, _ = asked(unit_of_its_own())
    now[0] += 27.5
    step = loop.send([[b"ok", 3, []], granted(b"y", fence=9)])
    step = loop.send(not_begun(step))
    assert names_of(step) == ["complete"]
    assert (argument(step, "fence"), argument(step, "done")) == (b"9", 0)
    assert names_of(loop.send([b"ok", 3, MORE])) == ["insert_tokens", "pop"]


def test_when_redis_is_away_the_lease_expires():
    """Nothing is held any more; the leader takes it back."""
    unit = unit_of_its_own()
    loop, _ = asked(unit)
    with pytest.raises(RedisUnreachable):
        loop.throw(RedisUnreachable("no answer"))
    assert unit.record.held() is None


def test_what_is_measured_is_reported_while_it_goes_on(monkeypatch: pytest.MonkeyPatch):
    """Though it never comes back to the pop."""
    now, sent = [100.0], []
    monkeypatch.setattr("fairlane.common.clock.mono_s", lambda: now[0])
    loop, _ = asked(unit_of_its_own())
    for fence in range(9, 20):
        now[0] += 5.0
        step = loop.send([[b"ok", 3, []], granted(b"y", fence=fence, waiting=5)])
        if names_of(step) != ["handle"]:
            sent += names_of(step)
            step = loop.send([1] * len(step.steps))
        assert names_of(step) == ["handle"]
        assert names_of(loop.send(done(1, waited_ms=[5], ran_us=[900]))) == ["complete_and_acquire"]
    assert set(sent) == {"add_stats"}


def test_one_of_several_leases_is_completed():
    """Settled by itself, it came from no lane of its own."""
    way = work_off(unit_of_its_own(), slice_of(b"x", waiting=5))
    next(way)
    assert names_of(way.send(done(1))) == ["complete"]


# ------------------------------------------------------------------ with Redis


@ON_SINGLE
@pytest.mark.parametrize("reached", [True, False], ids=["executed", "never sent"])
def test_a_process_that_dies_in_it_strands_nothing(
    queue: Queue, redis_client: redis.Redis, *, reached: bool
):
    """Both leases go back, uncharged; a call of the dead that arrives now takes nothing."""
    request = queue.submit_request([b"x"] * 6, limit=1, lease_ms=30_000)
    board = LeaseBoard(1)
    keeper, record = LeaseKeeper(queue.driver, "req", "w:1", "7", board), board.records[0]
    token = pop_token(queue.driver)
    assert token is not None
    _, taken = queue.driver.run(leases.acquire(token, "w:1", "7", 2))
    assert taken is not None
    record.hold(request.id, taken.k, int(taken.fence), taken.op, 0.0, 30.0)
    op, ids = leases.new_op(), [entry_id for entry_id, _ in taken.entries]
    part: Any = (ids, [b"0:d:1:0:0", b"", b"1:d:1:0:0", b""], [])
    call = leases.complete_and_acquire(taken, part, keys.lanes("req")[5], op, "w:1", "7", 2)
    record.begin_acquire(leases.going_on(taken), op)
    if reached:
        assert len(queue.driver.run(once(call))) == 2
    keeper.give_back([held for held in [record.held()] if held])
    keeper.unanswered.put_back(board.records)
    assert record.pending_acquire() is None
    assert redis_client.zcard(keys.leases(request.id)) == 0
    assert broken(queue, request.id) == []
    settled, *more = queue.driver.run(once(call))
    assert (settled[0] in {b"already", b"lost"}, more) == (True, [])
    assert len(finish(queue.driver)) == (4 if reached else 6)
    check_settled_once(request)


@ON_SINGLE
@pytest.mark.parametrize("handler", ["slow_noted", "slow_noted_async"])
def test_a_worker_goes_on_while_no_other_request_waits(
    handler: str, queue: Queue, redis_client: Any, workers: Workers
):
    """It asks the lanes far less often than it settles; every result is there once."""
    request = queue.submit_request([b""] * 60, limit=1)
    redis_client.config_resetstat()
    workers.run(handler, slice_ms=5)
    stats = redis_client.info("commandstats")
    pops = sum(stats.get(f"cmdstat_{name}", {}).get("calls", 0) for name in ("brpop", "blmpop"))
    assert stats["cmdstat_lrange"]["calls"] > 20
    assert pops < 20
    check_settled_once(request)


@ON_SINGLE
def test_requests_of_one_priority_take_turns_all_the_same(queue: Queue, workers: Workers):
    """One unit, slices of one: neither has two while the other waits, but for the first pop."""
    for name in ("r1", "r2"):
        queue.submit_request([b""] * 12, limit=1, id=name)
    workers.run("slow_noted", slice_ms=1)
    order = [request for request, *_ in workers.folder.noted("began")]
    assert order == ["r1", "r2"] * 12


@ON_SINGLE
def test_a_more_urgent_request_has_the_next_slice(queue: Queue, workers: Workers):
    """It comes while one goes on that has been going on for a while."""
    bodies = [b"gate" if i == 10 else b"" for i in range(30)]
    queue.submit_request(bodies, limit=1, priority=50, id="slow")
    worker = workers.start("slow_noted", slice_ms=1, until_idle=True)
    workers.folder.wait_noted("began", 11)
    queue.submit_request([b""], priority=0, id="urgent")
    workers.folder.open_gate()
    assert worker.wait() == 0
    order = [request for request, *_ in workers.folder.noted("began")]
    assert order == ["slow"] * 11 + ["urgent"] + ["slow"] * 19
