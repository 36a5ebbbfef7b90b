"""The small systems, explored wholly: what must hold does, and the end stays in reach."""

from __future__ import annotations

import contextlib
import shutil
from typing import TYPE_CHECKING

import pytest
import redis

from fairlane.scripts import library
from tests.explore.actors import install
from tests.explore.explorer import Explorer, System, Violation
from tests.explore.systems import BY_NAME, SMALL
from tests.explore.world import World

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.servers import Server

pytestmark = pytest.mark.parametrize("redis_server", ["single"], indirect=True)


@pytest.fixture
def client(redis_server: Server, redis_url: str) -> Iterator[redis.Redis]:
    """A client that speaks RESP2, as the product does; the world is left empty."""
    with contextlib.closing(redis.Redis.from_url(redis_url, protocol=2)) as made:
        yield made
        made.flushall()


@pytest.mark.parametrize("system", SMALL, ids=lambda system: system.name)
def test_a_small_system_holds_in_every_state(
    client: redis.Redis, system: System, monkeypatch: pytest.MonkeyPatch
):
    """Every interleaving and every fault of its budget, on the real scripts."""
    world = World(client)
    install(world.library, monkeypatch)
    report = Explorer(world, system).run()
    assert report.states > 100
    assert report.ends > 10


def mutant(folder: Path, script: str, old: str, new: str) -> Path:
    """A copy of the scripts with one change."""
    root = folder / "v1"
    shutil.copytree(library().root, root)
    path = root / script
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    return root


@pytest.mark.parametrize(
    ("script", "old", "new"),
    [
        ("lib/mint.lua", "local want = math.min(state.limit - state.held, work)", "local want = 0"),
        ("lib/finish.lua", "left > 0 and not cancelled", "false"),
        ("lib/settle.lua", 'redis.call("DECRBY", counter, acked)', ""),
    ],
    ids=["nothing is minted", "ends too early", "done is not counted"],
)
def test_the_explorer_catches_a_broken_guard(
    client: redis.Redis,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    script: str,
    old: str,
    new: str,
):
    """A test of the test: it is no use if it can't fail."""
    world = World(client, mutant(tmp_path, script, old, new))
    install(world.library, monkeypatch)
    with pytest.raises(Violation):
        Explorer(world, BY_NAME["one worker"]).run()
