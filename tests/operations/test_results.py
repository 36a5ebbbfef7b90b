"""Tests results in input or completion order: each once, in bounded memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlane.errors import InvalidArgument, RequestLost, RequestNotFound, WaitTimeout
from fairlane.operations import completion as completion_module
from fairlane.operations import lease, tokens
from fairlane.operations import results as results_module
from fairlane.operations.completion import parse_results, read_entries
from fairlane.operations.results import InputOrder, flow
from fairlane.protocol import keys
from fairlane.records import Result
from tests.support.both_faces import both_faces
from tests.support.run.for_each import for_each
from tests.support.scripts.dead_letters import ended
from tests.support.scripts.requests import (
    dead,
    head_of,
    next_slice,
    numbered,
    once,
    settle,
    take_slice,
    work_off,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairlane.drivers.sync import SyncDriver
    from fairlane.queue import Queue
    from tests.support.scripts.requests import Lane


def result(index: int) -> Result:
    return Result(index, "done", 1, b"%d" % index, None, "w:1", 0, 0.0)


# ------------------------------------------------------------------ the window


@st.composite
def disorder(draw: st.DrawFn) -> list[list[int]]:
    """Draws indexes in any order, cut into any entries; some never come (cancelled)."""
    count = draw(st.integers(0, 60))
    order = draw(st.permutations(range(count)))
    kept = [index for index in order if draw(st.integers(0, 9)) or count < 5]
    entries = []
    while kept:
        size = draw(st.integers(1, 9))
        entries.append(kept[:size])
        kept = kept[size:]
    return entries


def replay(window: InputOrder, entries: list[list[int]]) -> tuple[list[int], int]:
    """Uses a window as the API does: returns the order of indexes, and the most it held back."""
    store = {b"%d-0" % i: [result(index) for index in part] for i, part in enumerate(entries)}
    out: list[int] = []
    held = 0

    def drain() -> None:
        nonlocal held
        while True:
            out.extend(found.index for found in window.ready())
            held = max(held, len(window._early))
            wanted = window.wanted()
            if wanted is None:
                return
            window.refill(store[wanted])

    for entry_id, found in store.items():
        window.add(entry_id, found)
        held = max(held, len(window._early))
        drain()
    while gap := window.gap():
        window.skip(gap)
        drain()
    return out, held


@pytest.mark.rest
@given(disorder(), st.integers(0, 12))
def test_any_disorder_comes_out_in_order_exactly_once(entries: list[list[int]], most: int):
    out, held = replay(InputOrder(most=most), entries)
    assert out == sorted(index for part in entries for index in part)
    assert held <= most + max(map(len, entries), default=0)


@given(disorder())
def test_the_window_is_bounded_in_bytes_too(entries: list[list[int]]):
    """Large results spill even if they are few."""
    window = InputOrder(most_bytes=1)
    out, held = replay(window, entries)
    assert out == sorted(index for part in entries for index in part)
    assert held <= 1 + max(map(len, entries), default=0)
    assert window._bytes == 0


@given(disorder(), st.integers(0, 12))
def test_a_result_stored_twice_is_handed_out_once(entries: list[list[int]], most: int):
    """After a failover an index may be in `out` twice."""
    out, _ = replay(InputOrder(most=most), entries + entries[::-1])
    assert out == sorted(index for part in entries for index in part)


def test_what_comes_in_order_is_handed_out_immediately():
    window = InputOrder(most=2)
    for index in range(9):
        window.add(b"1-0", [result(index)])
        assert [found.index for found in window.ready()] == [index]


# ------------------------------------------------------------------ on a server


def shuffled(queue: Queue, count: int = 12, limit: int = 4) -> None:
    """Makes request r1, done in the reverse order of its slices."""
    queue.submit_request(numbered(count), id="r1", limit=limit)
    slices = []
    while (held := take_slice(queue.driver, count=2)) is not None:
        slices.append(held)
    assert len(slices) == limit
    for held in reversed(slices):
        settle(queue.driver, held)
    work_off(queue.driver, count=1)


@both_faces
def test_results_come_in_input_order_or_in_the_order_they_were_done(queue: Queue):
    shuffled(queue)
    found = list(queue.request("r1").results())
    assert [one.index for one in found] == list(range(12))
    assert [one.body for one in found] == [b"done " + body for body in numbered(12)]
    indexes = [one.index for one in queue.request("r1").results("done")]
    assert sorted(indexes) == list(range(12))
    assert indexes[:8] == [6, 7, 4, 5, 2, 3, 0, 1]


def test_a_window_below_the_disorder_reads_again(queue: Queue, monkeypatch: pytest.MonkeyPatch):
    """What did not fit is read from Redis when its turn comes."""
    read = []

    def watched(request_id: str, entry_ids: list[bytes]) -> Any:
        read.extend(entry_ids)
        return original(request_id, entry_ids)

    original = read_entries
    monkeypatch.setattr(results_module, "read_entries", watched)
    monkeypatch.setattr(results_module, "InputOrder", lambda: InputOrder(most=2))
    shuffled(queue)
    assert [one.index for one in queue.request("r1").results()] == list(range(12))
    assert read


def test_a_result_has_all_that_is_known(queue: Queue):
    queue.submit_request(["a"], id="r1")
    work_off(queue.driver)
    (found,) = queue.request("r1").results()
    assert found == Result(0, "done", 1, b"done a", None, "w:1", 0, 1.5)


@both_faces
def test_dead_and_cancelled_are_distinguished(queue: Queue):
    queue.submit_request(numbered(4), id="r1", limit=1)
    held = next_slice(queue.driver, count=2)
    first, second = (entry_id for entry_id, _ in held.entries)
    queue.request("r1").cancel()
    call = lease.complete(held, [first], [head_of(first), b"ok"], [dead(second)], keep=False)
    reply = queue.driver.run(once(call))
    queue.driver.run(once(tokens.retire("req", "r1", reply[1])))
    found = list(queue.request("r1").results())
    assert [(one.index, one.status, one.body, one.error) for one in found] == [
        (0, "done", b"ok", None),
        (1, "dead", None, "bad port"),
    ]
    assert queue.request("r1").progress().cancelled == 2


def test_a_result_of_none_is_none():
    """The handler returned nothing, which is not an empty body."""
    none, empty = parse_results([b"w", b"x:1", b"0:n:1:5:0", b"", b"1:d:2:6:1500", b""])
    assert (none.body, none.status, none.waited_ms) == (None, "done", 5)
    assert (empty.body, empty.attempt, empty.ran_ms, empty.worker) == (b"", 2, 1.5, "x:1")


def test_results_of_a_running_request_come_as_they_are_made(queue: Queue):
    queue.submit_request(numbered(4), id="r1", limit=1)
    reader = queue.request("r1").results()
    found = []
    for _ in range(4):
        held = next_slice(queue.driver, count=1)
        settle(queue.driver, held)
        found.append(next(reader).index)
    assert list(reader) == []
    assert found == [0, 1, 2, 3]


@pytest.mark.rest
@both_faces
@pytest.mark.parametrize("order", ["input", "done"])
def test_many_pages_of_results_come_once_each(queue: Queue, order: str):
    queue.submit_request(numbered(200), id="r1", limit=3)
    work_off(queue.driver, count=1)
    found = [one.index for one in queue.request("r1").results(order)]
    assert sorted(found) == list(range(200))
    assert order == "done" or found == list(range(200))


def test_results_of_an_empty_or_a_missing_request(queue: Queue):
    queue.submit_request([], id="r1")
    assert list(queue.request("r1").results()) == []
    with pytest.raises(RequestNotFound, match="r0"):
        list(queue.request("r0").results())
    with pytest.raises(InvalidArgument, match="order"):
        list(flow("r1", "random"))


@both_faces
def test_a_timeout_of_results_reports_how_far_the_request_is(queue: Queue):
    queue.submit_request([b"a", b"b"], id="r1")
    with pytest.raises(WaitTimeout, match=r"r1 had not ended after 0\.01 s; .*: 0/2 done"):
        list(queue.request("r1").results(timeout=0.01))
    with pytest.raises(InvalidArgument, match="seconds are expected"):
        list(queue.request("r1").results(timeout="soon"))  # type: ignore[arg-type]


@both_faces
def test_a_request_that_vanishes_before_its_time_is_over_is_lost(queue: Queue, redis_client: Any):
    queue.submit_request([b"a"], id="r1")
    reads: list[int] = []

    def flush() -> None:
        reads.append(len(reads))
        if len(reads) == 2:
            redis_client.flushall()

    with pytest.raises(RequestLost, match="is gone from Redis"):
        list(queue.request("r1").results(timeout=0.0, before_read=flush))


@both_faces
def test_an_error_before_a_read_leaves_no_operation_behind(queue: Queue):
    """`fairlane results | head` ends like this."""
    queue.submit_request([b"a"], id="r1")

    def broken() -> None:
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        list(queue.request("r1").results(before_read=broken))


def test_an_ended_request_is_read_whole_however_short_the_timeout(queue: Queue):
    shuffled(queue)
    whole = list(queue.request("r1").results())
    reads: list[int] = []
    timed = queue.request("r1").results(timeout=0.0, before_read=lambda: reads.append(1))
    assert list(timed) == whole
    assert reads


def test_a_window_of_the_default_size_holds_a_normal_disorder(queue: Queue, lane: Lane):
    lane.client.config_resetstat()
    shuffled(queue)
    list(queue.request("r1").results())
    assert "cmdstat_xrange" not in lane.client.info("commandstats")


# ------------------------------------------------------------------ results that are gone


@pytest.mark.rest
@for_each("order", ["input", "done"])
@for_each("part", ["out", "all"])
def test_results_that_vanish_while_they_are_read_are_an_error(
    queue: Queue, lane: Lane, order: str, part: str
):
    queue.submit_request(numbered(200), id="r1", limit=1)
    work_off(queue.driver, count=1)
    reader = queue.request("r1").results(order)
    assert next(reader).index == 0
    lane.client.delete(*([keys.results("r1")] if part == "out" else lane.names))
    with pytest.raises(RequestLost, match="r1"):
        list(reader)


@for_each("order", ["input", "done"])
@for_each("lost", [0, 7, 11])
def test_one_result_that_is_gone_is_an_error(queue: Queue, lane: Lane, order: str, lost: int):
    queue.submit_request(numbered(12), id="r1", limit=1)
    work_off(queue.driver, count=1)
    entries = lane.client.xrange(keys.results("r1"))
    lane.client.xdel(keys.results("r1"), entries[lost][0])
    seen: list[int] = []
    with pytest.raises(RequestLost, match="has 12 results"):
        seen.extend(one.index for one in queue.request("r1").results(order))
    others = [index for index in range(12) if index != lost]
    assert seen == (others[:lost] if order == "input" else others)


def test_a_result_gone_before_its_second_read_is_an_error(
    queue: Queue, lane: Lane, monkeypatch: pytest.MonkeyPatch
):
    """It did not fit into the window; no later result takes its place."""
    monkeypatch.setattr(results_module, "InputOrder", lambda: InputOrder(most=2))
    shuffled(queue)
    reader = queue.request("r1").results()
    seen = [next(reader).index]
    lane.client.delete(keys.results("r1"))
    with pytest.raises(RequestLost, match=r"only [0-9]+ of them"):
        seen.extend(one.index for one in reader)
    assert seen == list(range(len(seen)))


def test_a_cancelled_sub_request_does_not_stand_for_a_lost_result(queue: Queue, lane: Lane):
    queue.submit_request(numbered(9), id="r1", limit=1)
    for _ in range(6):
        held = next_slice(queue.driver, count=1)
        settle(queue.driver, held)
    queue.request("r1").cancel()
    assert len(list(queue.request("r1").results())) == 6
    lane.client.xdel(keys.results("r1"), lane.client.xrange(keys.results("r1"))[2][0])
    for order in ("input", "done"):
        with pytest.raises(RequestLost, match="has 6 results, but only 5"):
            list(queue.request("r1").results(order))


def test_an_outcome_that_was_requeued_does_not_stand_for_a_lost_result(queue: Queue, lane: Lane):
    """In the order "done" an index may occur twice; it is counted once."""
    queue.submit_request(numbered(4), id="r1", limit=1)
    held = next_slice(queue.driver)
    queue.driver.run(once(lease.complete(held, [], [], [dead(held.entries[0][0])], keep=True)))
    reader = queue.request("r1").results("done")
    assert next(reader).status == "dead"
    queue.request("r1").requeue_dead()
    held.entries = held.entries[1:]
    settle(queue.driver, held)
    work_off(queue.driver, count=1)
    assert queue.request("r1").state() == "done"
    lane.client.xdel(keys.results("r1"), lane.client.xrange(keys.results("r1"), count=1)[0][0])
    with pytest.raises(RequestLost, match="has 4 results, but only 1"):
        list(reader)


def reads(
    driver: SyncDriver, order: str, before: Callable[[], None], timeout_s: float | None = None
) -> list[Result]:
    """Reads all results; `before` runs before each step to Redis."""
    items, found, reply = flow("r1", order, timeout_s), list[Result](), None
    while True:
        try:
            item = items.send(reply)
        except StopIteration:
            return found
        reply = None
        if isinstance(item, list):
            found += item
            continue
        while True:
            try:
                step = item.send(reply)
            except StopIteration as end:
                reply = end.value
                break
            before()
            reply = driver.run(once(step))


@for_each("order", ["input", "done"])
@for_each("steps", range(1, 9))
def test_a_reader_whose_request_is_reopened_between_any_two_reads_gets_all(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, order: str, steps: int
):
    """The hash says that it has ended, and the results of the dead have gone meanwhile."""
    monkeypatch.setattr(completion_module, "PAGE", 2)
    monkeypatch.setattr(results_module, "InputOrder", lambda: InputOrder(most=1))
    ended(queue, numbered(5), limit=1)
    left = steps

    def reopen() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            queue.request("r1").requeue_dead()
        elif left == -2:
            work_off(queue.driver, count=1)

    found = reads(queue.driver, order, reopen)
    last = {one.index: one.status for one in found}
    assert sorted(last) == [0, 1, 2, 3, 4]
    if order == "input":
        assert [one.index for one in found] == [0, 1, 2, 3, 4]
    if left <= 0:
        while (held := take_slice(queue.driver)) is not None:
            settle(queue.driver, held)
        assert {one.status for one in queue.request("r1").results()} == {"done"}


def test_a_reader_waits_for_a_repair_within_its_own_time(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(completion_module, "PAGE", 1)
    request = ended(queue, numbered(3))
    left = 3

    def reopen() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            request.requeue_dead()

    with pytest.raises(WaitTimeout, match="0/3 done"):
        reads(queue.driver, "input", reopen, 0.01)


def test_a_later_request_of_the_same_id_is_not_read_for_it(queue: Queue, lane: Lane):
    queue.submit_request(numbered(4), id="r1", limit=1)
    held = next_slice(queue.driver, count=1)
    settle(queue.driver, held)
    reader = queue.request("r1").results()
    assert next(reader).index == 0
    born = lane.number("born")
    lane.client.delete(*lane.names)
    lane.client.zrem(keys.active("req"), "r1")
    queue.submit_request(numbered(4), id="r1", limit=1)
    lane.change("born", born + 1)
    with pytest.raises(RequestLost, match="another request has its id"):
        list(reader)
    queue.request("r1").cancel()
