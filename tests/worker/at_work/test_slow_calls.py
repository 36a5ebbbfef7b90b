"""Tests that a slow call holds nothing that is beside it in its slice or in its unit."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.processes.workers import check_settled_once
from tests.support.wait import PATIENCE_S, wait_until

if TYPE_CHECKING:
    from fairlane.queue import Queue
    from fairlane.request import Request
    from tests.support.processes.workers import Folder, Workers

BEFORE, AFTER = 6, 30
BODIES = [b"%d" % i for i in (*range(BEFORE), 999, *range(BEFORE + 1, BEFORE + 1 + AFTER))]


def begin(queue: Queue, folder: Folder, limit: int = 3, **options: Any) -> Request:
    """Submits quick calls with a slow one among them, and waits for the slow one."""
    request = queue.submit_request(BODIES, id="mixed", limit=limit, **options)
    folder.wait_noted("began")
    return request


def let_go(folder: Folder) -> None:
    """Lets the slow call end."""
    folder.open_gate()
    if (pipe := folder.path / "lock").exists():
        os.close(os.open(pipe, os.O_WRONLY))


def wait_done(request: Request, count: int) -> None:
    """Waits until so many are done while the slow call goes on."""
    wait_until(lambda: request.progress().done >= count, why=f"{count} are done")
    wait_until(lambda: owed(request) == [1], why="one lease has the slow call alone")
    assert request.progress().done == count


def owed(request: Request) -> list[int]:
    """Returns how many sub-requests each lease has."""
    return [held.owed for held in request.leases().held]


def check_all(request: Request) -> None:
    """Asserts that each was done once, at its first attempt."""
    assert request.wait(timeout=PATIENCE_S) == "done"
    results = [*request.results()]
    assert [result.body for result in results] == BODIES
    assert {result.attempt for result in results} == {1}
    check_settled_once(request)


@pytest.mark.rest
@pytest.mark.parametrize(
    ("handler", "options"),
    [
        ("hold_999", {"processes": 3}),
        ("hold_999", {"processes": 2, "tokens": 1}),
        ("hold_999", {"concurrency": 2}),
        ("hold_999_async", {"concurrency": 2}),
        ("hold_999_async", {"processes": 2}),
        ("deaf_999", {"processes": 2}),
        ("deaf_999_async", {"processes": 2}),
    ],
    ids=["processes", "one token", "threads", "tasks", "loops", "lock kept", "loop blocked"],
)
def test_results_beside_a_slow_call_are_stored_and_the_rest_is_done_by_others(
    handler: str, options: dict[str, Any], queue: Queue, workers: Workers, folder: Folder
):
    """Also if the call keeps the interpreter lock, or blocks the event loop."""
    workers.start(handler, **options)
    request = begin(queue, folder)
    wait_done(request, BEFORE + AFTER)
    let_go(folder)
    check_all(request)


@pytest.mark.rest
@pytest.mark.parametrize("options", [{}, {"tokens": 1}], ids=["many tokens", "one token"])
@pytest.mark.parametrize("handler", ["hold_999", "hold_999_async", "deaf_999"])
def test_the_only_unit_stores_what_it_has_done_before_a_slow_call(
    handler: str, options: dict[str, Any], queue: Queue, workers: Workers, folder: Folder
):
    workers.start(handler, **options)
    request = begin(queue, folder)
    wait_until(lambda: request.progress().done >= BEFORE, why="they are stored")
    wait_until(lambda: 1 in owed(request), why="a lease has the slow call alone")
    let_go(folder)
    check_all(request)


@pytest.mark.rest
def test_what_waited_beside_a_slow_call_may_be_started_by_another_worker(
    queue: Queue, workers: Workers, folder: Folder
):
    """Of a request with limit 1, nothing else may start."""
    workers.start("hold_999")
    request = begin(queue, folder, limit=1)
    wait_done(request, BEFORE)
    request.set_limit(2)
    workers.start("hold_999")
    wait_done(request, BEFORE + AFTER)
    let_go(folder)
    check_all(request)


@pytest.mark.rest
def test_requests_of_one_before_a_slow_one_are_done_while_it_runs(
    queue: Queue, workers: Workers, folder: Folder
):
    """The unit has many leases; those before the slow one were handled."""
    for i in range(200):
        queue.submit_request([b"%d" % i], id=f"quick{i}")
    workers.run("deaf_999")
    names = [b"%d" % i for i in (*range(20), 999, *range(21, 40))]
    requests = [queue.submit_request([body], id=f"one{i}") for i, body in enumerate(names)]
    workers.start("deaf_999")
    folder.wait_noted("began")
    for request in requests[:20]:
        wait_until(lambda: request.progress().ended, why="it is done")  # noqa: B023
    assert not requests[20].progress().ended
    let_go(folder)
    assert requests[20].wait(timeout=PATIENCE_S) == "done"


@pytest.mark.rest
def test_a_batch_beside_which_nothing_waits_is_not_split(
    queue: Queue, workers: Workers, folder: Folder
):
    """All of its sub-requests have begun."""
    workers.start("hold_999_batch", processes=2)
    request = begin(queue, folder)

    def has_only_the_batch() -> bool:
        return len(owed(request)) == 1 and request.progress().done == len(BODIES) - owed(request)[0]

    wait_until(has_only_the_batch, why="the others are done")
    let_go(folder)
    check_all(request)


def test_a_death_in_a_slow_call_is_charged_to_that_call_alone(
    queue: Queue, workers: Workers, folder: Folder
):
    """By then its lease owes nothing else."""
    workers.start("die_at_999", processes=2)
    request = begin(queue, folder, attempts=1)
    wait_done(request, BEFORE + AFTER)
    folder.open_gate()
    request.wait(timeout=PATIENCE_S)
    assert [result.index for result in request.results() if result.status == "dead"] == [BEFORE]
    check_settled_once(request)


@pytest.mark.rest
def test_a_death_soon_after_the_call_began_is_charged_to_none(
    queue: Queue, workers: Workers, folder: Folder
):
    """The slice had several, and each of them then comes alone."""
    folder.open_gate()
    workers.start("die_at_999")
    request = queue.submit_request(BODIES, id="mixed", limit=1, attempts=1)
    request.wait(timeout=PATIENCE_S)
    assert len(folder.noted("began")) == 2
    assert [result.index for result in request.results() if result.status == "dead"] == [BEFORE]
    check_settled_once(request)
