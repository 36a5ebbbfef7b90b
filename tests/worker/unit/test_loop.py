"""Tests the worker's loop, step by step with replies by hand, without Redis."""

from __future__ import annotations

from typing import Any

import pytest

from fairlane import settings
from fairlane.errors import RedisUnreachable
from fairlane.model import Verdict
from fairlane.protocol import keys
from fairlane.protocol.steps import Call, Pause, Popped
from fairlane.worker.board import COUNTS, LeaseRecord
from fairlane.worker.calls import Outcome
from fairlane.worker.settle import serve
from tests.support.processes.worker_units import (
    MORE,
    POPPED,
    SUMMARY,
    TOKENS,
    argument,
    begin,
    done,
    drain,
    names_of,
    not_begun,
    rest_of,
    take,
)
from tests.support.run.for_each import for_each
from tests.worker.parts import entries_of, granted, slice_of, unit_of_its_own, unnoted, work_off

# ------------------------------------------------------------------ popping


def test_a_unit_waits_on_its_own_bell_and_on_all_lanes():
    """It is one blocking pop: the bell first, then the lanes from the most urgent on."""
    unit = unit_of_its_own()
    _, step = begin(unit)
    (pop,) = step.steps
    assert pop.args[0] == b"BRPOP"
    assert pop.args[1] == keys.wake("req", "w:1")
    assert pop.args[2:102] == keys.lanes("req")
    assert pop.args[102:] == (settings.BLOCK_MS / 1000,)


def test_nothing_popped_pops_again():
    """After a timeout nothing else is sent."""
    loop, _ = begin(unit_of_its_own())
    for _ in range(3):
        assert names_of(loop.send([None])) == ["pop"]


def test_a_unit_of_a_paused_queue_waits_without_a_command():
    """It pops again when the queue is resumed."""
    unit = unit_of_its_own()
    unit.record._worker.is_paused = True
    loop = serve(unit)
    for step in (loop.send(None), loop.send(None)):
        assert seconds_of(step) == settings.PAUSED_S
    unit.record._worker.is_paused = False
    assert names_of(loop.send(None)) == ["pop"]


def test_what_was_returned_goes_out_though_the_queue_is_paused():
    """The tokens of a lease that ended after the pause are dispatched, without a pop."""
    unit = unit_of_its_own()
    loop, _ = begin(unit)
    loop.send([POPPED])
    unit.record._worker.is_paused = True
    assert names_of(loop.send([b"empty", MORE])) == ["insert_tokens"]
    assert seconds_of(loop.send([1])) == settings.PAUSED_S


def test_a_unit_whose_queue_has_used_up_its_rate_returns_its_tokens_and_waits():
    """Its next check is when the bucket has named, and then it is the next in line."""
    unit = unit_of_its_own()
    unit.record._worker.set_rate(10_000, 5)
    loop, _ = begin(unit)
    asked = loop.send([POPPED])
    assert asked.keys == (keys.bucket("queue/req"),)
    assert (argument(asked, "want"), argument(asked, "waited")) == (1, "")
    assert names_of(loop.send([0, 500])) == ["push"]
    assert seconds_of(loop.send([1])) == settings.PAUSED_S
    unit.record._worker.set_rate(10_000, 6)  # another rate ends the wait
    assert names_of(loop.send(None)) == ["pop"]
    assert argument(loop.send([POPPED]), "waited") == "1"


def test_what_a_lease_does_not_use_of_the_rate_of_the_queue_is_returned():
    unit = unit_of_its_own()
    unit.record._worker.set_rate(10_000, 5)
    loop, _ = begin(unit)
    loop.send([POPPED])
    assert argument(loop.send([1, 0]), "count") == 1
    assert names_of(loop.send([b"stale"])) == ["refund"]
    assert names_of(loop.send([1])) == ["pop"]


def test_a_bucket_that_is_away_when_the_rest_is_returned_ends_no_unit():
    """Otherwise a lease that was granted in the same step would have no unit."""
    unit = unit_of_its_own()
    unit.record._worker.set_rate(10_000, 5)
    loop, _ = begin(unit)
    loop.send([POPPED])
    loop.send([1, 0])
    assert names_of(loop.send([b"stale"])) == ["refund"]
    assert names_of(loop.throw(RedisUnreachable("no answer"))) == ["pop"]


def test_a_unit_of_a_queue_with_a_rate_takes_nothing_ahead():
    unit = unit_of_its_own()
    assert unit.record.takes_ahead
    unit.record._worker.set_rate(86_400_000_000, 1_000_000)
    assert (unit.record.takes_ahead, unit.record.queue_rate) == (False, (86_400_000_000, 1_000_000))


def seconds_of(step: Any) -> float:
    """Returns how long a unit waits without Redis."""
    assert isinstance(step, Pause)
    return step.seconds


@for_each("raw", [b"wake", b"", b"#0.1", b"r1#", b"r1#0", b"r1#a.1", b"r1#0.b", b"\xff"])
def test_what_is_no_token_is_passed_over(raw: bytes):
    """The bell's word, or a foreign word, costs one pop."""
    loop, _ = begin(unit_of_its_own())
    assert names_of(loop.send([Popped(b"{req}:5", [raw])])) == ["pop"]


def test_acquire_sends_the_token_and_its_worker():
    """It sends permit and generation, the worker and its life, one sub-request, and a new op."""
    ops = set()
    for _ in range(2):
        loop, _ = begin(unit_of_its_own())
        call = loop.send([POPPED])
        assert isinstance(call, Call)
        assert call.keys == keys.request_keys("r1")
        shown = {name: argument(call, name) for name in ("k", "g", "worker", "started", "count")}
        assert shown == {"k": "0", "g": "3", "worker": "w:1", "started": "7", "count": 1}
        ops.add(argument(call, "op"))
    assert len(ops) == 2
    assert {len(op) for op in ops} == {32}


# ------------------------------------------------------------------ refusals


@pytest.mark.parametrize("reply", [[b"stale"], [b"gone"]])
def test_a_stale_token_costs_one_round_trip(reply: list[Any]):
    """Nothing is dispatched, nothing is leased: the next pop follows."""
    unit = unit_of_its_own()
    loop, step = take(unit, reply)
    assert names_of(step) == ["pop"]
    assert unit.record.held() is None
    assert names_of(loop.send([None])) == ["pop"]


@pytest.mark.parametrize("word", [b"empty", b"busy", b"paused"])
def test_a_refusals_tokens_go_out_with_the_next_pop(word: bytes):
    """They are sent in the same round trip, before the pop, and only once."""
    unit = unit_of_its_own()
    loop, step = take(unit, [word, MORE])
    assert names_of(step) == ["insert_tokens", "pop"]
    insert = step.steps[0]
    assert list(insert.keys) == [keys.delayed("req"), keys.lanes("req")[5]]
    assert rest_of(insert) == [5, 0, 1, b"r1#2.9", 250]
    assert names_of(loop.send([1, None])) == ["pop"]


def test_a_token_of_an_ended_request_has_the_ending_logged():
    """Each unit that reads `ended` retires, in case the finisher died before."""
    loop, step = take(unit_of_its_own(), [b"ended", SUMMARY])
    assert names_of(step) == ["retire", "pop"]
    call = step.steps[0]
    assert rest_of(call) == ["r1", *SUMMARY]
    assert names_of(loop.send([1, None])) == ["pop"]


# ------------------------------------------------------------------ a slice


def test_the_tokens_of_a_grant_are_dispatched_before_the_handler_runs():
    """Otherwise the request's other permits would wait for as long as this handler takes."""
    loop, step = take(unit_of_its_own(), granted(b"x", tokens=TOKENS))
    assert names_of(step) == ["insert_tokens"]
    assert names_of(loop.send([1])) == ["handle"]


def test_a_grant_without_tokens_goes_straight_to_the_handler():
    """No empty round trip is made."""
    _, step = take(unit_of_its_own(), granted(b"x"))
    assert names_of(step) == ["handle"]
    (lease,) = step.leases.waiting
    assert (lease.position, lease.slice.entries) == (0, entries_of(b"x"))


def test_the_lease_is_on_the_board_while_it_is_held(now: list[float]):
    """It is there before the tokens are sent, until it is settled, with the acquire's send time."""
    unit = unit_of_its_own()
    loop, _ = begin(unit)
    call = loop.send([POPPED])
    now[0] = 105.0
    loop.send(granted(b"x", tokens=TOKENS, fence=12))
    held = unit.record.held()
    assert held is not None
    assert (held.request_id, held.k, held.fence) == ("r1", "0", 12)
    assert held.op == argument(call, "op").decode()
    assert (held.taken, held.deadline) == (100.0, 130.0)
    loop.send([1])
    settle = loop.send(done(1))
    assert names_of(settle) == ["complete"]
    assert unit.record.held() == held
    loop.send([b"ok", 0, []])
    assert unit.record.held() is None


def test_results_and_verdicts_are_settled_in_one_call():
    """Ids are first, then the (head, body) pairs, then each verdict's five words."""
    verdict = Verdict(b"1-9", "retry", 40, b"9:x:1:0:0", "why")
    loop, _ = take(unit_of_its_own(), granted(b"x", b"y", b"z", fence=12))
    call = loop.send(done(2, 3, verdicts=[verdict]))
    named = {name: argument(call, name) for name in ("k", "fence", "keep", "done")}
    assert named == {"k": "0", "fence": b"12", "keep": b"u", "done": 2}
    ids = [entry_id for entry_id, _ in entries_of(b"x", b"y")]
    assert rest_of(call) == [*ids, *[b"head", b"body"] * 2, *verdict[:2], "40", *verdict[3:]]


@pytest.mark.parametrize(
    ("reply", "follows"),
    [
        pytest.param([b"ok", 5, MORE], ["insert_tokens", "pop"], id="settled"),
        pytest.param([b"already", MORE], ["insert_tokens", "pop"], id="the call was repeated"),
        pytest.param([b"ended", SUMMARY], ["retire", "pop"], id="the request has ended"),
        pytest.param([b"lost"], ["pop"], id="lost"),
        pytest.param([b"gone"], ["pop"], id="gone"),
    ],
)
def test_what_a_settled_slice_returns_goes_out_with_the_next_pop(reply: Any, follows: list[str]):
    """They take one round trip; the result of a lease that another unit has is discarded."""
    unit = unit_of_its_own()
    loop, _ = take(unit, granted(b"x"))
    loop.send(done(1))
    assert names_of(loop.send(reply)) == follows
    assert unit.record.held() is None


def test_the_board_counts_what_was_done():
    """It counts results, failures, slices and the handler's time."""
    verdict = Verdict(b"1-9", "retry", 40, b"9:x:1:0:0", "why")
    unit = unit_of_its_own()
    loop, _ = take(unit, granted(b"x", b"y", b"z"))
    loop.send(done(2, 3, verdicts=[verdict]))
    loop.send([b"ok", 0, []])
    expected = {"done": 2, "failed": 1, "slices": 1, "busy_us": 1000, "retries": 1}
    assert unit.record.counts() == dict.fromkeys(COUNTS, 0) | expected


@for_each(
    "changed, reply, expected",
    [
        ({}, [b"ok", 0, []], {"failed": 4, "retries": 3, "rejected": 1, "dead": 1}),
        ({"attempt": 5}, [b"ok", 0, []], {"failed": 4, "rejected": 1, "dead": 4}),
        ({}, [b"lost"], {"failed": 4, "lost": 1}),
        ({}, [b"gone"], {"failed": 4}),
        ({}, [b"already", []], {"failed": 4, "retries": 3, "rejected": 1, "dead": 1}),
        ({}, [b"ended", SUMMARY], {"failed": 4, "retries": 3, "rejected": 1, "dead": 1}),
    ],
)
def test_the_board_counts_what_became_of_the_verdicts(
    changed: dict[str, Any], reply: list[Any], expected: dict[str, int]
):
    """Retried and rejected ones count if Redis has settled them; the last attempt is dead."""
    words = ("retry", "retry", "timeout", "dead", "release")
    verdicts = [Verdict(b"1-%d" % i, word, 1, b"head", "") for i, word in enumerate(words)]
    unit = unit_of_its_own()
    work = work_off(unit, slice_of(*[b"x"] * 5, **changed))
    work.send(None)
    work.send(Outcome(5, 0.0, verdicts=verdicts, timeouts=1))
    with pytest.raises(StopIteration):
        work.send(reply)
    counts = {name: count for name, count in unit.record.counts().items() if count}
    assert counts == expected | {"slices": 1, "timeouts": 1}


def test_the_next_slice_has_the_size_that_this_one_measured():
    """1 ms for one sub-request at 20 ms a slice allows 16, the most a slice may grow."""
    loop, _ = take(unit_of_its_own(), granted(b"x"))
    loop.send(done(1))
    loop.send([b"ok", 5, MORE])
    call = loop.send([1, Popped(b"{req}:5", [b"r1#2.9"])])
    assert argument(call, "count") == 16


@pytest.mark.parametrize(
    ("error", "is_held"),
    [(RedisUnreachable("no answer"), False), (RuntimeError("broken runner"), True)],
    ids=["Redis is away", "anything else"],
)
def test_a_lease_stays_on_the_board_when_its_process_must_end(*, error: Exception, is_held: bool):
    """The supervisor takes it back immediately, and charges it; one whose Redis is away expires."""
    unit = unit_of_its_own()
    loop, _ = take(unit, granted(b"x"))
    with pytest.raises(type(error)):
        loop.throw(error)
    assert (unit.record.held() is not None) is is_held


@pytest.mark.parametrize("reply", [granted(b"x"), [b"busy", [*TOKENS]], [b"ended", SUMMARY]])
def test_an_acquire_is_on_the_board_while_it_is_on_its_way(reply: list[Any]):
    """The op is there, too: a repeat with it gets the same reply."""
    unit = unit_of_its_own()
    loop, _ = begin(unit)
    before = unit.record.pending_acquire()
    call = loop.send([POPPED])
    assert (before, unit.record.pending_acquire()) == (None, (b"r1#0.3", argument(call, "op")))
    loop.send(reply)
    assert unit.record.pending_acquire() is None


def test_an_acquire_leaves_the_board_when_its_lease_is_there(monkeypatch: pytest.MonkeyPatch):
    """It does not leave before: a process that dies in between would strand the lease."""
    unit, seen = unit_of_its_own(), []
    end_acquire = LeaseRecord.end_acquire

    def note(record: LeaseRecord, **given: bool) -> None:
        seen.append(record.held() is not None)
        end_acquire(record, **given)

    monkeypatch.setattr(LeaseRecord, "end_acquire", note)
    take(unit, granted(b"x"))
    assert seen == [True]


@pytest.mark.parametrize(("bodies", "index"), [([b"x"], 0), ([b"x", b"y"], -2)])
def test_the_only_sub_request_of_a_lease_is_on_the_board(bodies: list[bytes], index: int):
    """So a death is logged with the index of its sub-request."""
    unit = unit_of_its_own()
    take(unit, granted(*bodies))
    held = unit.record.held()
    assert held is not None
    assert held.index == index


# ------------------------------------------------------------------ in parts


def test_a_slice_that_takes_long_is_settled_in_parts():
    """Something left means keep; tokens of a part are sent before the handler continues."""
    unit = unit_of_its_own()
    work = work_off(unit, slice_of(b"1", b"2", b"3"))
    first = work.send(None).leases.waiting[0]
    position = first.position
    part = work.send(done(1))
    assert (names_of(part), argument(part, "keep")) == (["complete"], b"1")
    assert names_of(work.send([b"ok", 2, MORE])) == ["insert_tokens"]
    (again,) = work.send([1]).leases.waiting
    assert (position, again.position) == (0, 1)
    assert again.slice is first.slice
    last = work.send(done(2, 3))
    assert (names_of(last), argument(last, "keep")) == (["complete"], b"u")
    with pytest.raises(StopIteration) as end:
        work.send([b"ok", 0, []])
    assert end.value.value == []
    assert unit.record.counts()["done"] == 3
    assert unit.record.counts()["slices"] == 1


def test_a_part_without_tokens_goes_straight_on():
    """No empty round trip is made here, either."""
    work = work_off(unit_of_its_own(), slice_of(b"1", b"2"))
    work.send(None)
    work.send(done(1))
    assert names_of(work.send([b"ok", 1, []])) == ["handle"]


@pytest.mark.parametrize(
    "outcome",
    [done(1, is_over=True), Outcome(1, settings.SLICE_HARD_MS / 1000)],
    ids=["stopped", "a second long"],
)
def test_the_rest_of_a_slice_is_given_back(outcome: Outcome):
    """The unit must stop, or has worked on one lease for long enough."""
    work = work_off(unit_of_its_own(), slice_of(b"1", b"2"))
    work.send(None)
    call = work.send(outcome)
    assert argument(call, "keep") == b"u"
    with pytest.raises(StopIteration) as end:
        work.send([b"ok", 1, MORE])
    assert [names_of(step) for step in end.value.value] == [["insert_tokens"]]


def test_the_time_of_all_parts_counts():
    """Four parts of a quarter of a second are a second: then others have their turn."""
    work = work_off(unit_of_its_own(), slice_of(*[b"x"] * 9))
    work.send(None)
    keeps = []
    for position in range(1, 5):
        call = work.send(Outcome(position, 0.25))
        assert isinstance(call, Call)
        keeps.append(argument(call, "keep"))
        if keeps[-1] == b"1":
            assert names_of(work.send([b"ok", 1, []])) == ["handle"]
    assert keeps == [b"1", b"1", b"1", b"u"]


@for_each("reply", [[b"lost"], [b"already", MORE], [b"ended", SUMMARY], [b"gone"]])
def test_a_part_that_is_refused_ends_the_slice(reply: list[Any]):
    """The handler does not continue with another worker's sub-requests."""
    unit = unit_of_its_own()
    work = work_off(unit, slice_of(b"1", b"2", b"3"))
    work.send(None)
    work.send(done(1))
    with pytest.raises(StopIteration) as end:
        work.send(reply)
    expected = {b"already": [["insert_tokens"]], b"ended": [["retire"]]}.get(reply[0], [])
    assert [names_of(step) for step in end.value.value] == expected
    assert unit.record.held() is None


# ------------------------------------------------------------------ draining


def test_a_draining_unit_pops_no_more():
    """It ends where it would pop."""
    unit = unit_of_its_own()
    loop, _ = begin(unit)
    drain(unit)
    with pytest.raises(StopIteration):
        loop.send([None])


def test_a_unit_that_drains_dispatches_what_its_last_slice_returned():
    """No pop follows."""
    unit = unit_of_its_own()
    loop, _ = take(unit, granted(b"x"))
    drain(unit)
    loop.send(done(1))
    assert names_of(loop.send([b"ok", 5, MORE])) == ["insert_tokens"]
    with pytest.raises(StopIteration):
        loop.send([1])


def test_a_token_popped_while_it_drains_is_still_used():
    """It is out of its lane already: to drop it would cost a recount."""
    unit = unit_of_its_own()
    loop, _ = begin(unit)
    drain(unit)
    assert names_of(loop.send([POPPED])) == ["acquire"]
    assert names_of(loop.send(granted(b"x"))) == ["handle"]


def test_a_unit_that_drains_before_it_began_does_nothing():
    """It does not even pop once."""
    unit = unit_of_its_own()
    drain(unit)
    with pytest.raises(StopIteration):
        unnoted(serve(unit)).send(None)


def test_a_token_names_the_queue_its_tokens_return_to():
    """The lane in the reply counts, not the lane popped."""
    unit = unit_of_its_own()
    _, step = take(unit, [b"empty", [b"77", b"0.4", 0]])
    assert names_of(step) == ["insert_tokens", "pop"]
    assert list(step.steps[0].keys)[1] == keys.lanes("req")[77]


def test_a_grant_that_comes_when_its_lease_has_all_but_expired_is_given_back(
    now: list[float],
):
    """Its handler could not be sure to be alone: it is not called."""
    loop, _ = begin(unit_of_its_own())
    assert names_of(loop.send([POPPED])) == ["acquire"]
    now[0] += 28.0
    step = loop.send(granted(b"x", tokens=(5, b"1.8", 0)))
    assert names_of(step) == ["insert_tokens"]
    step = loop.send([1])
    step = loop.send(not_begun(step))
    assert names_of(step) == ["complete"]
    assert argument(step, "done") == 0
    assert names_of(loop.send([b"lost"])) == ["pop"]
