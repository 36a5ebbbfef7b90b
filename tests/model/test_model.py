"""Redis and a plain Python model are asked the same in any order, and say the same."""

from __future__ import annotations

import contextlib
import shutil
from itertools import count
from typing import TYPE_CHECKING

import pytest

from fairlane.protocol.scripts import library
from tests.model.runs import FIND_ONLY, play
from tests.model.wire import Wire
from tests.model.words import Disagreement

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.servers.server_process import Server

pytestmark = pytest.mark.timeout(400)  # a failure takes its time to become short
only = pytest.mark.parametrize("redis_server", ["single"], indirect=True)


@pytest.fixture
def wire(redis_server: Server, redis_url: str) -> Iterator[Wire]:
    """A connection to the server; the world is left empty."""
    with contextlib.closing(Wire(redis_server)) as made:
        yield made


@pytest.mark.rest
@only
def test_ten_thousand_steps_agree_with_the_model(wire: Wire):
    """The same ones each time; a failure prints the fewest steps that lead to it."""
    steps, seeds = 0, count()
    while steps < 10_000:
        steps += play(wire, next(seeds))["steps"]


@pytest.mark.parametrize("redis_server", ["system_redis", "cluster1"], indirect=True)
def test_other_servers_agree_with_the_model(wire: Wire):
    """A short run: the scripts are the same, what runs them is not."""
    assert play(wire, 1, examples=25)["steps"] > 500


def mutant(folder: Path, script: str, old: str, new: str) -> Path:
    """A copy of the scripts with one change."""
    root = folder / "v1"
    shutil.copytree(library().root, root)
    path = root / script
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    return root


@only
@pytest.mark.parametrize(
    ("script", "old", "new"),
    [
        ("lib/lease/take_back.lua", "#owed == 1 and (permit", "#owed >= 1 and (permit"),
        pytest.param(
            *("lib/lease/settle_verdicts.lua", "math.max(0, attempt - 1)", "attempt"),
            marks=pytest.mark.rest,
        ),
        (
            "lib/lease/acquire.lua",
            "permit.op == op and permit.g == g",
            "permit.g == g",
        ),
        ("lib/lease/complete.lua", "permit.fence ~= lease.fence or permit.op ~= lease.op", "false"),
        pytest.param(
            *("request/append.lua", "chunk == chunks and chain ~= last", "false"),
            marks=pytest.mark.rest,
        ),
        ("lib/permits/resize.lua", "  relink_parked(state)\n", ""),
        (
            "dispatch/reschedule_active.lua",
            ' and tonumber(redis.call("ZSCORE", active, id)) == seen',
            "",
        ),
        ("request/hasten.lua", " or aged_at(state, row[1], row[2]) > now", ""),
        ("request/open_gate.lua", "  set_gate(state, 0)\n", ""),
        ("lib/ids/distinct.lua", " and known[i] ~= 1", ""),
    ],
    ids=[
        "innocents are charged",
        "a release is charged",
        "a token is good for two",
        "any worker may settle",
        "other content is a repeat",
        "a limit is lowered and raised",
        "an entry that was moved is moved back",
        "what is young is hastened",
        "a gate stays closed",
        "a repeat is taken",
    ],
)
def test_the_model_finds_a_broken_guard(
    redis_server: Server, redis_url: str, tmp_path: Path, script: str, old: str, new: str
):
    """A test of the test: it is no use if it can't fail."""
    broken = mutant(tmp_path, script, old, new)
    with contextlib.closing(Wire(redis_server, broken)) as wire, pytest.raises(Disagreement):
        play(wire, 1, examples=500, phases=FIND_ONLY)
