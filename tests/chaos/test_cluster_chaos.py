"""Tests short runs on a real cluster: primaries are killed or stopped, slots move, links break."""

from __future__ import annotations

import pytest

from tests.chaos.cluster import cluster_scenes, dead_primary, partition
from tests.chaos.evidence.stalls import shown
from tests.chaos.short_run import ON_LINUX, check, small
from tests.support.network.lab import why_not

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.heavy]
PATIENT_S = 20.0  # of a machine that does other work, too: the long runs measure how long


@pytest.fixture
def lab() -> None:
    """Skips the test if no lab is possible here."""
    if reason := why_not():
        pytest.skip(reason)


@ON_LINUX
def test_primaries_are_killed_and_stopped():
    """Checks that waiters for an acknowledged request that is gone receive that error."""
    report = cluster_scenes.failover(small(1_500, 2, 30), soon_s=PATIENT_S)
    check(report)
    assert report.figures["faults"] == {"kill": 1, "stop": 1}


@ON_LINUX
def test_what_a_replica_confirmed_is_never_lost():
    """Checks that nothing acknowledged is lost."""
    report = cluster_scenes.failover(small(1_500, 2, 30), durable=1, soon_s=PATIENT_S)
    check(report)
    assert report.figures["acknowledged submissions gone"] == 0
    assert report.figures["... ends taken back, and run again"] == 0


def test_slots_move_under_load():
    """Moves the dispatch slots and those of requests: nothing is lost, nothing waits for long."""
    report = cluster_scenes.reshard(small(1_500, 24, 15))
    check(report)
    assert report.figures["faults"]["moved, request"] == 24
    assert report.figures["faults"]["moved, dispatch"] == 8


@pytest.mark.parametrize("durable", [0, 1])
def test_a_primary_is_cut_off_with_a_worker_and_a_client(lab: None, durable: int):
    """Cuts once in both directions; once it may send but receives nothing."""
    report = partition.partition(
        small(1_000, 2, 40), durable=durable, ways=("both", "in"), soon_s=PATIENT_S
    )
    check(report)
    assert report.figures["promoted after, ms (median / 95 % / most)"] != shown([])
    assert (report.figures["... and gone"] > 0) == (not durable)  # the checker has something to see


def test_one_link_is_cut(lab: None):
    """Cuts a worker from a primary: the others do its work, and the cluster does not change."""
    report = partition.partition(small(800, 1, 24), ways=("one link",), soon_s=PATIENT_S)
    check(report)
    assert report.figures["promoted after, ms (median / 95 % / most)"] == shown([])


@ON_LINUX
def test_a_primary_without_a_replica_stays_dead():
    """Checks that requests elsewhere run, with retries; those of the dead primary wait and end."""
    report = dead_primary.dead_primary(small(0, 1, 25))
    check(report)
    assert report.figures["faults"] == {"kill": 1}
    assert report.figures["retries elsewhere, by phase"] != [0, 0]
