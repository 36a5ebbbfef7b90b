"""Tests several leases of one unit, step by step with replies by hand, without Redis."""

from __future__ import annotations

from typing import Any

import pytest

from fairlane.errors import FairlaneError, RedisUnfit, RedisUnreachable
from fairlane.protocol import keys
from fairlane.protocol.steps import Batch, Confirm, Confirmed, Popped, SingleServer
from tests.support.processes.worker_units import (
    LANE,
    MORE,
    SUMMARY,
    argument,
    begin,
    echo,
    handle,
    held,
    names_of,
    not_begun,
    quick_unit,
    rest_of,
    show,
    take,
)
from tests.support.run.for_each import for_each
from tests.worker.parts import granted

# ------------------------------------------------------------------ popping


def test_a_quick_unit_pops_as_many_as_it_has_records_for():
    """It does so in one round trip."""
    _, step = begin(quick_unit(spare=3))
    (pop,) = step.steps
    assert (pop.most, pop.keys[0]) == (4, keys.wake("req", "w:1"))


def test_one_token_is_used_by_itself():
    """Its lease is not shared, so that a death in it is charged."""
    _, call = show(quick_unit(), 1)
    assert argument(call, "shared") == b""


def test_the_words_that_wake_others_are_put_back():
    """One was pushed for each unit, and this unit popped several."""
    unit = quick_unit()
    loop, _ = begin(unit)
    bell = keys.wake("req", "w:1")
    step = loop.send([Popped(bell, [b"wake"] * 3)])
    assert names_of(step) == ["push", "pop"]
    assert (step.steps[0].keys, rest_of(step.steps[0])) == ((bell,), [b"wake", b"wake"])
    assert argument(step.steps[0], "ttl") > 0


# ------------------------------------------------------------------ acquired together


def test_tokens_are_shown_in_one_round_trip_and_each_is_on_the_board_meanwhile():
    """Each has an op of its own: if the process dies now, the supervisor acquires again."""
    unit = quick_unit()
    _, step = show(unit, 3)
    calls: Any = step.steps
    wanted = [
        record.pending_acquire()
        for record in (unit.record, *unit.spare)
        if record.pending_acquire()
    ]
    assert {argument(call, "shared") for call in calls} == {b"1"}
    assert sorted(wanted) == sorted(  # type: ignore[type-var]
        (b"r%d#0.3" % i, argument(call, "op")) for i, call in enumerate(calls)
    )


def test_what_is_refused_does_not_hold_up_the_others():
    """Tokens of all replies are sent in one call, ends in another, before the handler runs."""
    unit = quick_unit()
    loop, step = take(
        unit, granted(b"x"), [b"stale"], [b"busy", MORE], [b"ended", SUMMARY],
        granted(b"y", tokens=(b"5", b"1.4", 0)),
    )  # fmt: skip
    assert names_of(step) == ["insert_tokens", "retire"]
    assert rest_of(step.steps[0]) == [5, 1, 1, b"r4#1.4", b"r2#2.9", 250]
    assert held(unit) == ["r0", "r4"]
    assert names_of(loop.send([2, 1])) == ["handle"]


def test_a_request_that_is_broken_does_not_hold_up_the_others(caplog: pytest.LogCaptureFixture):
    """Its error is logged, and no other work waits for it."""
    unit = quick_unit()
    loop, step = take(unit, RedisUnfit("WRONGTYPE"), granted(b"x"), granted(b"y"))
    assert held(unit) == ["r1", "r2"]
    settle = loop.send(handle(step, echo, unit.record))
    assert names_of(loop.send([RedisUnfit("WRONGTYPE"), [b"ok", 0, []]])) == ["pop"]
    assert names_of(settle) == ["complete"] * 2
    assert held(unit) == []
    assert [one.message for one in caplog.records] == [
        "could not show a token of request r0: WRONGTYPE",
        "could not settle a lease of request r1: WRONGTYPE",
    ]


def test_known_requests_share_the_time_of_a_bunch():
    """Ten of 0.5 ms each would be 5 ms; two tokens of it get as many as 10 ms allow."""
    unit = quick_unit()
    for name, each_s in (("r0", 0.0005), ("r1", 0.0005)):
        unit.sizer.observe_slice(name, 500, 500 * each_s)
    _, step = show(unit, 3)
    counts = [argument(call, "count") for call in step.steps]
    assert counts == [20, 20, 1]


@for_each("waiting", [0, 10_000])
@for_each("count", [1, 2])
def test_tokens_are_as_long_as_what_waits_behind_them(
    count: int, waiting: int, monkeypatch: pytest.MonkeyPatch
):
    """At 30 us each, a used-up one is short, and one with many behind it may fill the slice."""
    unit = quick_unit()
    now = [0]
    monkeypatch.setattr("fairlane.worker.calls.perf_counter_ns", lambda: now[0])

    def quick(body: bytes) -> bytes:
        now[0] += 30_000
        return body

    loop, _ = show(unit, count)
    answer = [granted(b"x", waiting=waiting) for _ in range(count)]
    step = loop.send(answer if count > 1 else answer[0])
    if count > 1:
        loop.send(handle(step, quick, unit.record))
        last = loop.send([[b"ok", waiting, MORE]] * count)
    else:
        step = loop.send(handle(step, quick, unit.record))
        if isinstance(step, SingleServer):
            loop.send(None)  # no server has all keys
        last = loop.send([b"ok", waiting, MORE])
    assert last.steps[-1].most == (1 if waiting else 4 * count)


# ------------------------------------------------------------------ handled, settled


def test_leases_are_handled_in_turn_and_settled_in_one_round_trip():
    """The order is that of their tokens; returned tokens are sent with the next pop."""
    unit, order = quick_unit(), []

    def note(body: bytes) -> bytes:
        order.append(body)
        return body.upper()

    loop, step = take(unit, *(granted(body) for body in (b"a", b"b", b"c")))
    settle = loop.send(handle(step, note, unit.record))
    assert order == [b"a", b"b", b"c"]
    assert names_of(settle) == ["complete"] * 3
    assert [rest_of(call)[2] for call in settle.steps] == [b"A", b"B", b"C"]
    assert len(held(unit)) == 3
    last = loop.send([[b"ok", 1, MORE], [b"ended", SUMMARY], [b"lost"]])
    assert names_of(last) == ["insert_tokens", "retire", "pop"]
    assert held(unit) == []
    counts = unit.record.counts()
    assert (counts["done"], counts["slices"], counts["lost"]) == (2, 3, 1)
    assert len(unit.free) == 8


def test_one_lease_at_a_time_has_its_turn():
    """The lease that runs at a death is charged, and the others only waited."""
    unit = quick_unit()
    records = (unit.record, *unit.spare)
    seen = []

    def note(body: bytes) -> None:
        on_board = sorted(
            (one.request_id, one.turn) for record in records if (one := record.held())
        )
        seen.append([turn for _, turn in on_board])

    _, step = take(unit, *(granted(b"x") for _ in range(3)))
    handle(step, note, unit.record)
    assert seen == [[0, 1, 1], [2, 0, 1], [2, 2, 0]]


def test_a_handler_that_turns_slow_keeps_no_lease_waiting(monkeypatch: pytest.MonkeyPatch):
    """What is not begun is released uncharged, in the round trip that settles what is done."""
    unit = quick_unit()
    now = [0]
    monkeypatch.setattr("fairlane.worker.calls.perf_counter_ns", lambda: now[0])

    def slow(body: bytes) -> bytes:
        now[0] += 100_000_000
        return body

    loop, step = take(unit, *(granted(b"x") for _ in range(4)))
    settle = loop.send(handle(step, slow, unit.record))
    assert names_of(settle) == ["complete"] * 4
    assert [argument(call, "done") for call in settle.steps] == [1, 0, 0, 0]
    assert {argument(call, "keep") for call in settle.steps} == {b"u"}
    assert names_of(loop.send([[b"ok", 0, MORE]] * 4)) == ["insert_tokens", "pop"]
    assert held(unit) == []


def test_results_do_not_wait_for_the_end_of_a_bunch_that_takes_longer(
    monkeypatch: pytest.MonkeyPatch,
):
    """After a slice's time they are settled, and the rest continues if it fits another one."""
    unit = quick_unit()
    now = [0]
    monkeypatch.setattr("fairlane.worker.calls.perf_counter_ns", lambda: now[0])

    def medium(body: bytes) -> bytes:
        now[0] += 11_000_000
        return body

    loop, step = take(unit, *(granted(b"x") for _ in range(3)))
    settle = loop.send(handle(step, medium, unit.record))
    assert [argument(call, "done") for call in settle.steps] == [1, 1]
    assert names_of(loop.send([[b"ok", 0, MORE]] * 2)) == ["insert_tokens"]
    again = loop.send([2])
    assert argument(loop.send(handle(again, medium, unit.record)), "done") == 1


def test_a_drain_gives_back_what_is_not_begun():
    """It is uncharged; what is in the handler is finished."""
    unit = quick_unit()

    def drain(body: bytes) -> bytes:
        unit.record._worker.is_draining = True
        return body

    loop, step = take(unit, *(granted(b"x") for _ in range(3)))
    settle = loop.send(handle(step, drain, unit.record))
    assert [argument(call, "done") for call in settle.steps] == [1, 0, 0]
    assert names_of(loop.send([[b"ok", 0, MORE]] * 3)) == ["insert_tokens", "add_stats"]
    with pytest.raises(StopIteration):
        loop.send([3, 1])


def test_a_grant_that_comes_too_late_is_given_back(now: list[float]):
    """No handler could be sure to be alone."""
    loop, _ = show(quick_unit(), 2)
    now[0] += 28.0
    step = loop.send([granted(b"x"), granted(b"y")])
    step = loop.send(not_begun(step))
    assert names_of(step) == ["complete"] * 2
    assert {argument(call, "done") for call in step.steps} == {0}


def test_a_lease_that_the_supervisor_took_back_is_not_begun():
    """It waited for too long, or was lost: the others continue."""
    unit = quick_unit()
    seen: list[bytes] = []
    records = (unit.record, *unit.spare)
    _, step = take(unit, *(granted(b"%d" % i) for i in range(3)))
    (stopped,) = [r for r in records if (one := r.held()) and one.request_id == "r1"]
    one = stopped.held()
    assert one is not None
    stopped.stop(one)
    handle(step, seen.append, unit.record)
    assert seen == [b"0", b"2"]


# ------------------------------------------------------------------ alone


def test_a_retry_is_worked_on_by_itself_after_the_bunch():
    """It is acquired again, unshared; of several retries the others go back to their lane."""
    unit = quick_unit()
    loop, step = take(unit, [b"alone"], granted(b"x"), [b"alone"])
    loop.send(handle(step, echo, unit.record))
    step = loop.send([b"ok", 1, MORE])
    assert names_of(step) == ["push", "insert_tokens"]
    assert (step.steps[0].keys, rest_of(step.steps[0])) == ((LANE,), ["r2#0.3"])
    assert argument(step.steps[0], "ttl") == 0
    assert rest_of(step.steps[1]) == [5, 0, 1, b"r1#2.9", 250]
    call = loop.send([1, 1])
    assert names_of(call) == ["acquire"]
    assert (argument(call, "shared"), argument(call, "g")) == (b"", "3")
    assert names_of(loop.send(granted(b"x"))) == ["handle"]


def test_after_retries_tokens_are_taken_one_by_one_for_a_while():
    """Otherwise many retries would be refused again and again."""
    unit = quick_unit()
    loop, step = take(unit, [b"alone"], [b"alone"])
    assert names_of(step) == ["push"]
    loop.send([1])
    pops = [loop.send([b"stale"]), *(loop.send([None]) for _ in range(2))]
    assert [step.steps[-1].most for step in pops] == [1, 1, 8]


def test_a_slice_without_entries_is_settled_like_any_other():
    """Its entries were deleted by hand, which must not end the process."""
    unit = quick_unit()
    loop, step = take(unit, granted(), granted(b"x"))
    settle = loop.send(handle(step, echo, unit.record))
    assert names_of(settle) == ["complete"] * 2
    assert names_of(loop.send([[b"ok", 0, []]] * 2))[-1] == "pop"
    assert held(unit) == []


def test_a_durable_lease_is_confirmed_by_itself():
    """The others are settled together, and do not wait for replicas."""
    unit = quick_unit()
    durable = granted(b"x")
    durable[3] = [*durable[3][:-3], 2, 0, b""]
    loop, step = take(unit, granted(b"a"), durable, granted(b"b"))
    settle = loop.send(handle(step, echo, unit.record))
    assert names_of(settle) == ["complete"] * 2
    step = loop.send([[b"ok", 0, []]] * 2)
    assert isinstance(step, Confirm)
    assert names_of(loop.send(Confirmed([b"ok", 0, MORE], 2, is_synced=True))) == [
        "insert_tokens",
        "pop",
    ]
    assert held(unit) == []


@pytest.mark.parametrize("given_back", [[b"ok", 1, []], RedisUnfit("a damaged key")], ids=str)
def test_a_slice_that_overstays_goes_on_in_parts_and_no_lease_waits_for_it(
    given_back: Any, monkeypatch: pytest.MonkeyPatch
):
    """Finished results are settled, the leases behind it are released, and then it continues.

    If one of them cannot be released, no result of the slice is lost.
    """
    unit = quick_unit()
    now = [0]
    monkeypatch.setattr("fairlane.worker.calls.perf_counter_ns", lambda: now[0])

    def slow(body: bytes) -> bytes:
        now[0] += 300_000_000
        return body

    loop, step = take(unit, granted(b"1", b"2"), granted(b"x"))
    (back,) = loop.send(handle(step, slow, unit.record)).steps
    assert (argument(back, "done"), argument(back, "keep")) == (0, b"u")
    part = loop.send([given_back])
    assert (argument(part, "done"), argument(part, "keep")) == (1, b"1")
    again = loop.send([b"ok", 1, []])
    (lease,) = again.leases.waiting
    assert (lease.position, lease.slice.request_id) == (1, "r0")
    last = loop.send(handle(again, slow, unit.record))
    assert (argument(last, "done"), argument(last, "keep")) == (1, b"u")
    assert names_of(loop.send([b"ended", SUMMARY])) == ["retire", "pop"]
    assert held(unit) == []


# ------------------------------------------------------------------ failures


@pytest.mark.parametrize("at", ["shown", "dispatched", "settled"])
def test_when_redis_is_away_no_lease_stays_on_the_board(at: str):
    """They expire, and the leader takes them back; and all records can be used again."""
    unit = quick_unit()
    loop, step = show(unit, 3)
    if at != "shown":
        step = loop.send([granted(b"x", tokens=(b"5", b"1.4", 0)), granted(b"y"), [b"stale"]])
    if at == "settled":
        step = loop.send([1])
        step = loop.send(handle(step, echo, unit.record))
    assert isinstance(step, Batch)
    with pytest.raises(RedisUnreachable):
        loop.throw(RedisUnreachable("no answer"))
    assert held(unit) == []
    assert sorted(record.unit for record in unit.free) == list(range(8))


def test_what_the_runner_raises_leaves_the_leases_on_the_board():
    """The process ends, and the supervisor takes them back."""
    unit = quick_unit()
    loop, _ = take(unit, granted(b"x"), granted(b"y"))
    with pytest.raises(RuntimeError, match="broken runner"):
        loop.throw(RuntimeError("broken runner"))
    assert len(held(unit)) == 2
    assert not issubclass(RuntimeError, FairlaneError)
