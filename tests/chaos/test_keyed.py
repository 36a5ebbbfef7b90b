"""Tests short runs of requests with keys beside faults, and the checker of what they promise."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.chaos.evidence.journal import Execution
from tests.chaos.evidence.key_holders import (
    Lease,
    Limit,
    above,
    gaps,
    leases,
    most_at_a_time,
    out_of_order,
)
from tests.chaos.producers import keyed
from tests.chaos.short_run import ON_LINUX, check, small
from tests.worker.parts import ON_SINGLE

if TYPE_CHECKING:
    from tests.support.servers.server_process import Server

SECOND = 1_000_000_000


@ON_SINGLE
@pytest.mark.slow
@pytest.mark.rest
@ON_LINUX
def test_no_key_has_more_than_its_limit_though_workers_are_killed_and_limits_change(
    redis_server: Server, redis_url: str
):
    """Loses replies and flushes the scripts, too."""
    report = keyed.keyed(small(600, 4), redis_server)
    check(report)
    assert report.figures["changes of limits"] == 4
    assert report.figures["wire"]["half or lost"] > 0


@ON_SINGLE
@pytest.mark.slow
@pytest.mark.rest
@ON_LINUX
def test_no_key_has_more_than_its_limit_beside_workers_that_were_stopped(
    redis_server: Server, redis_url: str
):
    check(keyed.keyed_stopped(small(300, 1), redis_server))


@pytest.mark.server
@pytest.mark.slow
@pytest.mark.rest
def test_no_key_has_more_than_its_limit_after_redis_was_killed():
    check(keyed.keyed_restarted(small(600, 2)))


@ON_SINGLE
@pytest.mark.slow
@pytest.mark.rest
@ON_LINUX
def test_the_calls_of_each_order_key_run_in_their_order_though_workers_are_killed(
    redis_server: Server, redis_url: str
):
    """Four producers submit the calls, and a tenth of them fails once."""
    report = keyed.ordered(small(500, 3), redis_server)
    check(report)
    assert report.figures["... that raised, as they should"] > 0


@pytest.mark.server
@pytest.mark.slow
@pytest.mark.rest
def test_the_calls_of_each_order_key_run_in_their_order_after_redis_was_killed():
    check(keyed.ordered_restarted(small(500, 2)))


@ON_SINGLE
@pytest.mark.slow
@pytest.mark.rest
def test_as_many_leases_of_a_key_as_its_limit_run_at_a_time(redis_server: Server, redis_url: str):
    report = keyed.reached(small(200, 0), redis_server)
    check(report)
    for limit in keyed.REACHED.values():
        assert report.figures[f"limit {limit}: most at a time"] == limit


# ------------------------------------------------------------------ the checker itself


def ran(began: int, ended: int, fence: int = 1, place: int = 0) -> Execution:
    return Execution(place, fence, 1, began, ended, False, False, 1, 2)


def test_the_checker_finds_a_lease_that_was_granted_above_the_limit():
    """A lease that is granted when another one ends is within the limit."""
    first, second, third = Lease(1, 1, 0, 10), Lease(2, 1, 10, 20), Lease(3, 1, 15, 25)
    assert above([first, second], Limit(1)) == []
    assert above([first, second, third], Limit(1)) == [(third, 2, 1)]
    assert above([first, second, third], Limit(2)) == []
    assert most_at_a_time([(0, 10), (10, 20), (15, 25)]) == 2


def test_the_checker_takes_each_limit_that_may_be_in_force_at_a_moment():
    """A change is in force somewhere between its call and its answer."""
    limit = Limit(2, [(5 * SECOND, 6 * SECOND, 4), (8 * SECOND, 9 * SECOND, 1)])
    found = [limit.at(second * SECOND // 2) for second in (9, 11, 13, 17, 19)]
    assert found == [2, 4, 4, 4, 1]


def test_the_checker_makes_one_lease_of_the_calls_of_a_fence():
    """Without a fence that is a time, a lease begins with its first handler."""
    far = 10**18
    found = leases(7, [ran(10, 20, far), ran(20, 30, far, 1), ran(40, 50, far + 1)])
    assert found == [Lease(7, far, 10, 30), Lease(7, far + 1, 40, 50)]


def test_the_checker_measures_how_long_a_place_waits_for_work_that_is_there():
    """The call that comes later has not kept a place waiting."""
    assert gaps([(0, 1, 10), (0, 13, 20), (30, 31, 40)], 1) == [3]
    assert gaps([(0, 1, 10), (0, 1, 12), (0, 14, 20)], 2) == [4]


def test_the_checker_finds_a_call_that_began_before_the_one_ahead_had_ended():
    """The one ahead ends with its last attempt."""
    calls = [("a", [ran(0, 5), ran(7, 10)]), ("b", [ran(10, 20)]), ("c", [ran(19, 21)])]
    assert out_of_order(calls[:2]) == []
    assert out_of_order([("a", [ran(0, 5), ran(7, 10)]), ("b", [ran(6, 7)])]) == [
        "b began 0.000 ms before a had ended"
    ]
    assert len(out_of_order(calls)) == 1
