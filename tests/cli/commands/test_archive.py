"""Tests `fairlane archive`: what it prints, and how it ends."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyarrow")

from fairlane.archive import manifest
from tests.archive.kept import check, ended
from tests.spark.worlds import World
from tests.support.wait import PATIENCE_S

if TYPE_CHECKING:
    import redis

    from fairlane.drivers.sync import SyncDriver
    from tests.cli.program import Program


def test_it_archives_queues_and_prints_counts(program: Program, driver: SyncDriver):
    ended(World(driver), 0, 2)
    World(driver, "shop").submit("s", 3)
    World(driver, "shop").work_off()
    done = program("archive", "kept", "--queue", "req", "--queue", "sh*", "--keep", "90d")
    assert (done.code, done.out) == (0, b"")
    assert "archived to kept: 3 endings, 43 results, 4 dead" in done.err
    done = program("archive", "kept", "--json")
    assert (done.code, json.loads(done.out)["requests"]) == (0, 0)
    found = manifest.read(Path(program.folder) / "kept").queues
    assert {name: one.requests for name, one in found.items()} == {"req": 2, "shop": 1}


def test_it_goes_on_after_a_loss_with_skip_lost(
    program: Program, driver: SyncDriver, redis_client: redis.Redis
):
    """The error names the option."""
    world = World(driver)
    for n in range(3):
        ended(world, n, n + 1)
        if not n:
            assert program("archive", "kept", "--no-results").code == 0
    redis_client.xtrim("{req}:completed", maxlen=1, approximate=False)
    program("archive", "kept").refused(1, "has lost entries of queue req", "--skip-lost")
    done = program("archive", "kept", "--skip-lost", "--json")
    assert (done.code, json.loads(done.out)["requests"]) == (0, 1)


def test_a_mistyped_queue_is_noted(program: Program, driver: SyncDriver):
    ended(World(driver, "invoices"), 0, 1)
    done = program("archive", "kept", "--queue", "invoice")
    assert done.code == 0
    hint = "queue invoice has never been used on this Redis; did you mean invoices?"
    assert done.err.startswith(f"fairlane: {hint}\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--every soon", "--every: 'soon' is not a duration"),
        ("--every 10ms", "--every 10ms is too short"),
        ("--keep 3h", "--keep 3h is too short: an archive keeps whole days"),
        ("--every 99999999999d", "--every 99999999999d is too long"),
        ("--keep 800000d", "--keep 800000d is too long: name 36500d or less"),
        ("--batch 0", "x>=1"),
        ("--queue a/b", "queue 'a/b' is not valid"),
    ],
)
def test_bad_input_is_one_sentence(program: Program, words: str, said: str):
    program("archive", "kept", *words.split()).refused(2, said)
    assert not (Path(program.folder) / "kept").exists()


@pytest.mark.rest
def test_it_follows_until_an_interrupt_and_a_second_one_is_refused(
    program: Program, driver: SyncDriver
):
    world, folder = World(driver), Path(program.folder) / "kept"
    ended(world, 0, 1)
    running = program.start("archive", "kept", "--follow", "--every", "1s")

    assert running.stderr is not None
    assert running.stderr.readline() == b"fairlane: so far 1 endings, 20 results, 2 dead\n"
    program("archive", "kept").refused(2, "kept is written by another archiver")
    ended(world, 1, 2)
    assert running.stderr.readline() == b"fairlane: so far 2 endings, 40 results, 4 dead\n"
    running.send_signal(signal.SIGINT)
    _, said = running.communicate(timeout=PATIENCE_S)
    assert running.returncode == 0, said
    assert said == b"fairlane: archived to kept: 2 endings, 40 results, 4 dead\n"
    check(folder, 2)
