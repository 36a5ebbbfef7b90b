"""Tests short runs of every fault: all that went in came out, once. `make chaos` has long runs."""

from __future__ import annotations

import asyncio
import struct
from collections import Counter
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from tests.chaos import scenes
from tests.chaos.check import Report
from tests.chaos.evidence import journal
from tests.chaos.evidence.journal import BEGAN, ENDED, Execution
from tests.chaos.evidence.overlap import over_limit
from tests.chaos.evidence.stalls import longest_gap, shown
from tests.chaos.producers import dependents, handlers
from tests.chaos.short_run import ON_LINUX, check, small
from tests.worker.parts import ON_SINGLE

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.servers.server_process import Server


# ------------------------------------------------------------------ faults


@pytest.mark.parametrize(
    "redis_server",
    ["single", pytest.param("cluster1", marks=pytest.mark.rest)],
    indirect=True,
)
@pytest.mark.slow
@ON_LINUX
def test_processes_are_killed(redis_server: Server, redis_url: str):
    """Kills handlers' processes, supervisors and whole workers, while they work."""
    report = scenes.kill(small(4_000, 8), redis_server)
    check(report)
    assert sum(report.figures["kills"].values()) == 8


@ON_SINGLE
@pytest.mark.slow
@pytest.mark.rest
@ON_LINUX
def test_processes_are_killed_while_requests_wait_for_each_other(
    redis_server: Server, redis_url: str
):
    """Uses tenants, rates, delays, ageing, `after` and unique ids; pauses the queue at times."""
    check(scenes.varied(small(1_000, 3), redis_server))


@ON_SINGLE
@pytest.mark.slow
@pytest.mark.rest
@ON_LINUX
def test_flows_are_whole_though_workers_are_killed(redis_server: Server, redis_url: str):
    check(dependents.flows(small(2_000, 2), redis_server))


@ON_SINGLE
@pytest.mark.slow
@pytest.mark.rest
@ON_LINUX
def test_every_tick_has_one_request_though_leaders_are_killed(redis_server: Server, redis_url: str):
    check(dependents.schedules(small(200, 2), redis_server))


def test_the_checker_compares_the_ids_of_ticks_and_not_their_number():
    report = Report()
    log = Counter({"req:s:1": 1, "req:s:2": 2, "req:s:9": 1})
    dependents.compare_ids(report, log, ["req:s:1", "req:s:2", "req:s:3", "req:s:4"])
    assert report.wrong == {"lost": 2, "completions other than one": 1, "unexpected": 1}


@ON_SINGLE
@pytest.mark.slow
@pytest.mark.rest
@ON_LINUX
def test_workers_are_stopped_for_three_leases(redis_server: Server, redis_url: str):
    """Stops one worker as a whole, of another a part, in the middle of their work."""
    report = scenes.stop(small(500, 1), redis_server, lease_ms=1_000)
    check(report)
    assert report.figures["faults"] == {"stop": 1}


@ON_SINGLE
@pytest.mark.slow
@pytest.mark.rest
def test_redis_forgets_scripts_and_cuts_its_clients(redis_server: Server, redis_url: str):
    """Checks that nothing even runs twice."""
    check(scenes.scripts(small(4_000, 6), redis_server))


@ON_SINGLE
@pytest.mark.slow
@pytest.mark.rest
def test_the_wire_is_cut_in_the_middle_of_replies(redis_server: Server, redis_url: str):
    """Cuts requests in their middle, too, and loses whole replies."""
    report = scenes.proxy(small(3_000, 5), redis_server, direct=0)
    check(report)
    assert report.figures["wire"]["half or lost"] > 0


@pytest.mark.server
@pytest.mark.slow
@pytest.mark.rest
def test_redis_is_killed_and_restarted():
    """Checks that nothing acknowledged is gone, because the file is synced with every write."""
    report = scenes.always(small(2_000, 2))
    check(report)
    assert report.figures["acknowledged submissions gone after a restart"] == 0


@ON_SINGLE
@pytest.mark.slow
@pytest.mark.rest
def test_clocks_are_an_hour_off(redis_server: Server, redis_url: str):
    """Shifts the clocks of workers, either way; killed ones return with another hour."""
    check(scenes.clocks(small(3_000, 4), redis_server))


@ON_SINGLE
@pytest.mark.slow
@pytest.mark.rest
def test_without_a_fault_nothing_runs_twice(redis_server: Server, redis_url: str):
    report = scenes.calm(small(10_000, 0), redis_server)
    check(report)
    raised = report.figures["... that raised, as they should"]
    assert report.figures["executions"] == 10_000 + raised


@pytest.mark.rest
@ON_SINGLE
@pytest.mark.slow
@ON_LINUX
def test_a_dead_workers_sub_request_runs_again_soon(redis_server: Server, redis_url: str):
    """Measures a refused port: soon after the last heartbeat. A stopped one: when its lease ends.

    And what the stopped one makes of it in the end is refused.
    """
    report = scenes.recover(small(0, 2), redis_server, died=("group", "stopped"), lease_ms=2_000)
    check(report)
    after = {name: text for name, text in report.figures.items() if name.startswith("runs again")}
    (killed,) = (float(text.split()[-1]) for name, text in after.items() if "group" in name)
    (stopped,) = (float(text.split()[-1]) for name, text in after.items() if "stopped" in name)
    assert killed < 3
    assert 1 < stopped < 2 + 6
    assert report.figures["executions stopped in the middle: late, refused"] == 1


# ------------------------------------------------------------------ the checker itself


def ran(began: int, ended: int, place: int = 0) -> Execution:
    return Execution(place, 1, 1, began, ended, False, False, 1, 2)


def test_the_checker_counts_concurrent_handlers_above_the_limit():
    """Two of three overlap beyond a limit of one; touching is no overlap."""
    found = over_limit([ran(0, 10), ran(10, 20), ran(15, 25)], 1)
    assert (found.times, found.most, found.ns, found.longest) == (1, 1, 5, 5)
    assert over_limit([ran(0, 10), ran(10, 20)], 1).times == 0
    assert over_limit([ran(0, 10), ran(2, 8), ran(4, 6)], 1).most == 2


def test_the_checker_finds_the_longest_gap():
    """A gap is between completions; before the first or after the last, it is to the edge."""
    moments = [10, 20, 60, 70, 300]
    assert longest_gap(moments, 15, 65) == 40
    assert longest_gap(moments, 62, 68) == 10
    assert longest_gap(moments, 0, 30) == 40
    assert longest_gap(moments, 290, 500) == 230
    assert longest_gap([], 5, 25) == 20
    assert shown([3, 1, 2]) == "2 / 3 / 3"


def test_an_async_handler_whose_lease_is_lost_is_written_down_as_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The worker cancels it, so it neither returns nor raises, and its process lives on."""
    monkeypatch.setenv(journal.FOLDER, str(tmp_path))
    monkeypatch.setattr(handlers, "_journal", journal.Writer())
    context: Any = SimpleNamespace(id="c5", index=0, fence=7, attempt=1)

    async def lose_the_lease() -> None:
        call = asyncio.create_task(handlers.work_async(b"w5.0", context))
        await asyncio.sleep(0)  # it has begun
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)

    asyncio.run(lose_the_lease())
    found = journal.read(tmp_path, {})
    (run,) = found.by_request[5]
    assert (found.unexplained, run.cut, run.cancelled) == (0, False, True)


def test_an_execution_ends_with_the_process_that_was_killed(tmp_path: Path):
    """An execution ends at the kill of its process or of its supervisor; else it is unexplained."""
    record = struct.Struct("<IIQHHQ")
    data = record.pack(5, 0, 1, 1, BEGAN, 100) + record.pack(5, 0, 1, 1, ENDED, 150)
    (tmp_path / "10-11-90").write_bytes(data + record.pack(5, 1, 1, 1, BEGAN, 160) + b"torn")
    for deaths, ended, unexplained in (
        ({10: [50, 300]}, 300, 0),
        ({11: [200]}, 200, 0),
        ({}, 160, 1),
    ):
        found = journal.read(tmp_path, deaths)
        assert [run.ended_ns for run in found.by_request[5]] == [150, ended]
        assert [run.cut for run in found.by_request[5]] == [False, True]
        assert found.unexplained == unexplained
