"""Tests a URL that names a replica: reads are answered, writes are refused with a sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fairlane.common import clock
from fairlane.drivers import error_mapping
from fairlane.errors import RedisUnfit, RedisUnreachable
from fairlane.protocol import keys, scripts
from fairlane.protocol.steps import Batch, Command
from tests.cli.program import Program
from tests.drivers.test_retries import refusing
from tests.support.operations.drivers import both, perform
from tests.support.run.for_each import for_each
from tests.support.servers import server_process
from tests.support.servers.replicas import Pair, in_step, run_pair
from tests.support.wait import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.server
NAMES = keys.request_keys("r1")
SENTENCE = "is a replica and can't be written to: name the primary, or redis"
WRITES = {
    "command": Command(b"LPUSH", keys.lanes("req")[5], b"r1#0.1"),
    "batch": Batch([Command(b"TIME"), Command(b"LPUSH", keys.lanes("req")[5], b"r1#0.1")]),
    "script": scripts.cancel(NAMES, reason="no more"),
    "inside": Command(b"EVAL", "return redis.call('SET', KEYS[1], 1)", b"1", b"a"),
}


@pytest.fixture(scope="module", params=["single", "system_redis"])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    """Yields a primary and its replica."""
    server_process.skip_unless_there(request.param)
    with run_pair(request.param) as made:
        yield made


@both
@pytest.mark.parametrize("write", WRITES)
def test_a_write_is_refused_immediately(kind: str, write: str, pair: Pair):
    """The caller's patience does not matter: this is no failover."""
    before = clock.mono_s()
    with pytest.raises(RedisUnfit, match=SENTENCE):
        perform(kind, pair.replica.url, WRITES[write], patience_s=600)
    assert clock.mono_s() - before < 60


@pytest.mark.any_command
@both
def test_a_primary_that_is_demoted_is_waited_for(kind: str, redis_url: str):
    """After the timeout the same sentence is raised, as the condition may still pass."""
    if redis_url.startswith("redis+sentinel"):
        pytest.skip("past sentinels the master is looked for anew: test_sentinel.py")
    with pytest.raises(RedisUnreachable, match=SENTENCE):
        perform(kind, redis_url, refusing("READONLY You can't write"), patience_s=0)


@pytest.mark.rest
def test_the_command_line_reads_a_replica_and_does_not_write_to_it(pair: Pair, tmp_path: Path):
    """Status, results and stats are answered; submit, pause, cancel and a worker end with 5."""
    there = Program(tmp_path, pair.primary.url)
    request_id = there("submit", there.file(b"a\nb\n")).id
    with pair.primary.client() as client:
        wait_until(lambda: in_step(client), why="the replica has the request")
    here = Program(tmp_path, pair.replica.url)
    assert here("status", request_id).code == 0
    assert here("status").code == here("stats").code == here("dead", "list").code == 0
    for words in (
        ("submit", here.file(b"c\n")),
        ("pause", request_id),
        ("cancel", request_id),
        ("set", request_id, "--limit", 2),
        ("queue", "set", "--max-waiting", 9),
        ("worker", "--until-idle", "--handler", "builtins:repr"),
    ):
        here(*words).refused(5, SENTENCE, str(pair.replica.port))


@for_each(
    "role, url, found",
    [
        ("slave", "redis://h", True),
        ("master", "redis://h", False),
        ("slave", "unix:///s", True),
        ("slave", "redis+sentinel://h:1/m", False),
        ("slave", "redis+cluster://h:1", False),
    ],
)
def test_only_a_plain_url_names_a_replica(role: str, url: str, found: bool):
    assert error_mapping.names_replica({"role": role}, url) is found
