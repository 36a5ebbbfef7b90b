"""Tests workers at work: every sub-request once, in order, within the limit."""

from __future__ import annotations

from itertools import groupby
from time import monotonic_ns
from typing import TYPE_CHECKING

import pytest

from tests.support.processes.workers import check_settled_once
from tests.support.wait import PATIENCE_S
from tests.worker.parts import ON_SINGLE

if TYPE_CHECKING:
    from fairlane.queue import Queue
    from tests.support.processes.workers import Folder, Workers


def numbers(count: int) -> list[bytes]:
    """Returns bodies 0, 1, 2 ..."""
    return [b"%d" % i for i in range(count)]


# ------------------------------------------------------------------ every handler


def test_two_processes_of_two_threads_work_off_a_request(queue: Queue, workers: Workers):
    """Four units have a share each; every result is there once, in the order of the input."""
    request = queue.submit_request([b"4"] * 400, limit=4)
    workers.run("meet", processes=2, concurrency=2)
    results = list(request.results())
    assert [result.index for result in results] == list(range(400))
    assert {(result.status, result.attempt) for result in results} == {("done", 1)}
    units = {(result.body or b"").decode() for result in results}
    assert len(units) == 4
    assert len({unit.partition("/")[0] for unit in units}) == 2
    check_settled_once(request)


@pytest.mark.rest
def test_an_async_handler_runs_as_ten_tasks(queue: Queue, workers: Workers):
    """They are all in one process."""
    request = queue.submit_request([b"10"] * 300, limit=10)
    workers.run("meet_async", concurrency=10)
    results = list(request.results())
    assert [result.index for result in results] == list(range(300))
    units = {(result.body or b"").decode() for result in results}
    assert len(units) == 10
    assert len({unit.partition("/")[0] for unit in units}) == 1
    check_settled_once(request)


@pytest.mark.rest
@pytest.mark.parametrize("handler", ["number_batch", "number_batch_async"])
def test_a_batch_handler_gets_slices(handler: str, queue: Queue, workers: Workers):
    """It gets one body at first, and many once it is measured as fast; results match bodies."""
    request = queue.submit_request(numbers(3000), limit=2)
    workers.run(handler, concurrency=2)
    found = [(result.body or b"").split(b" of ") for result in request.results()]
    assert [body for body, _ in found] == numbers(3000)
    lengths = {int(length) for _, length in found}
    assert min(lengths) == 1
    assert 16 <= max(lengths) <= 1000
    check_settled_once(request)


def test_the_context_describes_the_sub_request(queue: Queue, workers: Workers):
    """The request's id, the place in the input, the attempt, a fence, and a deadline ahead."""
    request = queue.submit_request(numbers(20), id="its.own:id-1")
    workers.run("describe")
    found = [(result.body or b"").decode().split() for result in request.results()]
    assert [(one[0], one[1], one[2]) for one in found] == [
        ("its.own:id-1", str(i), "1") for i in range(20)
    ]
    assert all(int(one[3]) > 0 for one in found)
    assert {(one[4], one[5]) for one in found} == {("False", "True")}


def test_results_name_their_worker(queue: Queue, workers: Workers):
    """The name is the id that is also its address."""
    request = queue.submit_request(numbers(3))
    worker = workers.start("echo")
    assert request.wait(timeout=PATIENCE_S) == "done"
    assert {result.worker for result in request.results()} == {worker.id}


# ------------------------------------------------------------------ the limit


def most_concurrent(intervals: list[tuple[int, int]]) -> int:
    """Returns the most that ran at one instant."""
    changes = [(end, -1) for _, end in intervals] + [(began, 1) for began, _ in intervals]
    most = now = 0
    for _, change in sorted(changes):
        now += change
        most = max(most, now)
    return most


@ON_SINGLE
@pytest.mark.parametrize("limit", [1, 3, 7])
def test_no_more_run_concurrently_than_the_limit_and_as_many_do(
    limit: int, queue: Queue, workers: Workers
):
    """Eight processes of two workers take from one request; the handlers' own clocks count."""
    request = queue.submit_request([b"%d" % limit] * 150, limit=limit)
    pair = [workers.start("interval", processes=4, until_idle=True) for _ in range(2)]
    assert [worker.wait() for worker in pair] == [0, 0]
    intervals = []
    for result in request.results():
        assert (result.status, result.attempt) == ("done", 1)
        began, ended = map(int, (result.body or b"").split())
        intervals.append((began, ended))
    assert len(intervals) == 150
    assert most_concurrent(intervals) == limit
    check_settled_once(request)


# ------------------------------------------------------------------ the order


@ON_SINGLE
def test_an_urgent_request_waits_for_one_slice_at_most(
    queue: Queue, workers: Workers, folder: Folder
):
    """However much of lower priority waits, the order proves it, and no time.

    What the one unit may still begin after the submission has returned: the rest of the slice
    it is in, or, had it popped the next token already, all of that one.
    """
    bulk = queue.submit_request([b""] * 50_000, priority=50, id="bulk")
    workers.start("busy_noted")
    folder.wait_noted("bulk", 3000)
    urgent = queue.submit_request([b""], priority=0, id="urgent")
    returned = monotonic_ns()
    assert urgent.wait(timeout=PATIENCE_S) == "done"
    seen = folder.notes()
    began = int(folder.noted("urgent")[0][0])
    between = [at for name, at in seen if name == "bulk" and returned < int(at) < began]
    assert len(between) <= 1000
    behind = folder.wait_noted("bulk", len(seen) + 1)
    assert int(behind[-1][0]) > began, "the unit was busy before and after"
    bulk.cancel()
    bulk.wait(timeout=PATIENCE_S)


@ON_SINGLE
def test_requests_of_one_priority_take_turns(queue: Queue, workers: Workers, folder: Folder):
    """One unit has one sub-request a lease: they alternate from the first to the last."""
    for name in ("a", "b"):
        queue.submit_request(numbers(40), id=name, limit=1)
    workers.run("echo_noted", slice_s=0)
    order = [name for _, _, name in folder.noted("ran")]
    assert len(order) == 80
    assert [len(list(run)) for _, run in groupby(order)] == [1] * 80


@pytest.mark.rest
@ON_SINGLE
def test_neither_of_two_requests_waits_for_the_other_to_end(
    queue: Queue, workers: Workers, folder: Folder
):
    """With slices and more permits than units, too, each begins before the other ends."""
    for name in ("a", "b"):
        queue.submit_request([b""] * 5000, id=name, limit=4)
    workers.run("busy_noted", processes=2)
    first = {name: int(folder.noted(name)[0][0]) for name in "ab"}
    last = {name: int(folder.noted(name)[-1][0]) for name in "ab"}
    assert first["a"] < last["b"]
    assert first["b"] < last["a"]
    assert len(folder.notes()) == 10_000
