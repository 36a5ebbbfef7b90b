"""Tests the support for test networks: links that are cut one way or both."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.network import lab as labs
from tests.support.network.lab import Lab, make_lab, why_not
from tests.support.wait import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.slow
PLACES = ("a", "b", "c", "here")


@pytest.fixture(scope="module")
def made() -> Iterator[Lab]:
    if reason := why_not():
        pytest.skip(reason)
    with make_lab(["a", "b", "c"]) as lab:
        yield lab


def deaf(lab: Lab) -> set[str]:
    """Returns which machines receive nothing from which others."""
    pairs = [(one, other) for one in PLACES for other in PLACES if one != other]
    return {f"{one}<{other}" for one, other in pairs if not lab.reaches(one, other)}


def test_every_machine_reaches_every_other(made: Lab):
    assert deaf(made) == set()


def test_a_cut_is_of_one_pair_and_heals(made: Lab):
    made.cut(["a"], ["b"])
    assert deaf(made) == {"a<b", "b<a"}
    made.heal(["a"], ["b"])
    assert deaf(made) == set()


@pytest.mark.rest
def test_a_cut_may_be_one_way(made: Lab):
    made.cut(["a"], ["b", "c"], "out")
    assert deaf(made) == {"b<a", "c<a"}
    made.heal(["a"], ["b", "c"])
    made.cut(["a"], ["b"], "in")
    assert deaf(made) == {"a<b"}
    made.heal(["a"], ["b"])


@pytest.mark.rest
def test_a_pulled_cable_cuts_off_from_every_other(made: Lab):
    made.unplug("c")
    alone = {f"c<{other}" for other in "ab"} | {f"{other}<c" for other in "ab"}
    assert deaf(made) == alone | {"c<here", "here<c"}
    made.plug("c")
    wait_until(lambda: deaf(made) == set(), why="the link is up again")


def test_a_process_is_where_it_was_started(made: Lab):
    words = [*made["b"].before, "ip", "-brief", "address", "show", "eth0"]
    said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert f"{made['b'].host}/24" in said


@pytest.mark.rest
def test_what_a_killed_run_has_left_is_removed(made: Lab):
    """The next lab removes it: its namespaces bear the number of its process."""
    program = "from tests.support.network.lab import make_lab\nimport os, signal\n"
    program += "with make_lab(['x']): os.kill(os.getpid(), signal.SIGKILL)"
    root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join([root, *sys.path])
    ended = subprocess.Popen(
        [sys.executable, "-c", program], cwd=root, env={**os.environ, "PYTHONPATH": path}
    )
    ended.wait()
    left = {
        path.name for path in labs.NAMED.iterdir() if path.name.startswith(f"fl{ended.pid:x}a-")
    }
    assert len(left) == 2
    with make_lab(["y"]):
        assert not left & {path.name for path in labs.NAMED.iterdir()}
