"""Tests the creation of one request in one step or in three, with lost replies between."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fairlane import settings
from fairlane.errors import RedisFull
from fairlane.operations.create import Digest, NewRequest, create_each
from fairlane.operations.intents import intend
from fairlane.operations.submit import submit
from fairlane.options import Policy
from fairlane.protocol import keys
from fairlane.protocol.steps import Command, NextChunk, Pause
from tests.support.network.fakes import FakeServer, Refusal, fake_servers
from tests.support.operations.drivers import both, run
from tests.support.operations.stepping import script_of
from tests.support.run.for_each import for_each
from tests.support.scripts.requests import dump, once, work_off

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairlane.drivers.sync import SyncDriver
    from fairlane.operations.intents import Intent
    from fairlane.queue import Queue
    from tests.support.scripts.requests import Lane

FULL = RedisFull("Redis is full")


def refused(
    driver: SyncDriver, operation: Any, script: str, *, times: int = 1, is_lost: bool = False
) -> tuple[Any, list[str]]:
    """Runs an operation on a server that is full when this script is called, so many times.

    `is_lost`: an earlier try succeeded, but its reply was lost. Returns the result, and the
    names of the steps since the refusal.
    """
    reply: Any = None
    error: Exception | None = None
    names: list[str] = []
    while True:
        try:
            step = operation.send(reply) if error is None else operation.throw(error)
        except StopIteration as end:
            return end.value, names
        reply = error = None
        names.append(script_of(step) or word_of(step))
        if not isinstance(step, Pause):
            is_it = times > 0 and script_of(step) == script
            if not is_it or is_lost:
                reply = driver.run(once(step))
            if is_it:
                error, times, names = FULL, times - 1, []


def word_of(step: Any) -> str:
    """Returns the name of a step that calls no script."""
    args = getattr(step, "args", None)
    return args[0].decode() if args else type(step).__name__.lower()


async def chunk_of(
    request_id: str, policy: Policy, *, max_wait_s: float = 0.0, announced: Intent | None = None
) -> int:
    """Creates a request of two sub-requests; returns their number, or raises its error."""
    digest = Digest(policy)
    digest.add([b"a", b"b"])
    new = NewRequest(request_id, policy, digest, [b"a", b"b"])
    for error in (await create_each([(new, announced)], max_wait_s)).values():
        raise error
    assert new.is_complete
    return len(new.bodies)


def way_of(driver: SyncDriver) -> str:
    """Returns the script that writes a request here."""
    driver.check()
    return "enqueue" if driver.is_cluster else "submit"


def test_what_was_written_though_its_reply_was_lost_is_found_on_a_full_redis(lane: Lane):
    """It is not refused, because its caller would submit it again under another id."""
    total, names = refused(lane.driver, chunk_of("r1", Policy()), way_of(lane.driver), is_lost=True)
    assert (total, names) == (2, ["confirm"])
    assert lane.hash()["state"] == "active"
    assert lane.client.zscore(keys.active("req"), "r1") is not None


def test_what_a_full_redis_refused_leaves_nothing(lane: Lane):
    with pytest.raises(RedisFull):
        refused(lane.driver, chunk_of("r1", Policy()), way_of(lane.driver))
    assert dump(lane.client) == {}


@for_each("times", [1, 2])
def test_an_intent_that_was_taken_back_is_not_used_again(lane: Lane, times: int):
    """Each try is announced again, because the auditor needs an intent for what is written."""
    policy = Policy()
    _, (intent,) = lane.run(intend([NewRequest("r1", policy, Digest(policy), [b"a"])]))
    operation = chunk_of("r1", policy, max_wait_s=60, announced=intent)
    total, names = refused(lane.driver, operation, "enqueue")
    first = ["confirm", "drop_active", "pause"]
    rest = ["submit", "intend", "enqueue"] if lane.driver.is_cluster else ["submit"]
    assert (total, names[: len(first) + len(rest)]) == (2, [*first, *rest])
    assert lane.client.zscore(keys.active("req"), "r1") is not None
    assert sorted(work_off(lane.driver)) == [b"a", b"b"]
    lane.client.flushall()
    total, names = refused(
        lane.driver, chunk_of("r1", policy, max_wait_s=60), way_of(lane.driver), times=times
    )
    assert total == 2
    assert lane.client.zscore(keys.active("req"), "r1") is not None


GRACE_MS = settings.INTENT_GRACE_MS


@for_each(
    "options, grace_ms",
    [
        ({}, GRACE_MS),
        ({"deadline": 0.01}, GRACE_MS // 5),
        ({"deadline": GRACE_MS / 2000}, GRACE_MS // 2),
        ({"deadline": GRACE_MS * 9 / 1000}, GRACE_MS),
        ({"ageing": GRACE_MS / 2000}, GRACE_MS // 2),
        ({"ageing": 2, "deadline": 60}, 2_000),
        ({"after": ["other"]}, GRACE_MS // 5),
    ],
)
def test_the_auditors_first_look_is_no_later_than_what_it_must_do(
    queue: Queue, lane: Lane, options: dict[str, Any], grace_ms: int
):
    """So what is late dies soon, what ages is hastened, and what waits for others starts."""
    queue.submit_request([b"z"], id="other")
    seconds, micros = lane.client.time()
    before = int(seconds) * 1000 + int(micros) // 1000
    queue.submit_request([b"a"], id="r1", **options)
    seconds, micros = lane.client.time()
    after = int(seconds) * 1000 + int(micros) // 1000
    due = lane.client.zscore(keys.active("req"), "r1")
    assert before + grace_ms <= due <= after + grace_ms


# ------------------------------------------------------------------ where no server has all keys


def refusing(fake: FakeServer, mode: str) -> Callable[[list[bytes]], Any]:
    """Makes a node report its mode, and refuse scripts for keys of several slots."""

    def say(words: list[bytes]) -> Any:
        if words[0] in {b"EVAL", b"EVALSHA"} and len({*map(slot_of, keys_of(words))}) > 1:
            return Refusal("CROSSSLOT Keys in request don't hash to the same slot")
        return [1]

    answer = fake._answer

    def answering(words: list[bytes]) -> Any:
        if words[0] == b"INFO":
            return b"redis_version:7.2.4\r\n%b\r\nmaxmemory_policy:noeviction\r\n" % mode.encode()
        return answer(words)

    fake._answer = answering  # type: ignore[method-assign]
    return say


def keys_of(words: list[bytes]) -> list[bytes]:
    return words[3 : 3 + int(words[2])]


def slot_of(key: bytes) -> bytes:
    """Returns the key or step that decides on the slot."""
    return key.partition(b"{")[2].partition(b"}")[0]


@both
@pytest.mark.parametrize(
    ("mode", "asked"),
    [
        ("redis_mode:cluster", 0),
        ("server_mode:cluster", 0),  # Valkey
        ("redis_mode:standalone", 1),  # a proxy before one, or an address that became one
    ],
)
def test_a_node_of_a_cluster_is_known_by_its_mode_or_its_refusal(kind: str, mode: str, asked: int):
    """The URL does not decide this; the node is asked once."""
    with fake_servers(1) as (fake,):
        fake.say = refusing(fake, mode)
        url = f"redis://127.0.0.1:{fake.port}"
        seen: list[Any] = []

        async def operation() -> Any:
            for name in ("r1", "r2"):
                submission = submit(name, Policy())
                assert isinstance(submission.send(None), NextChunk)
                assert isinstance(submission.send([b"a"]), NextChunk)
                seen.append(await submission.send(None))
            seen.append(await Command(b"ECHO", b"x"))

        run(kind, url, operation())
        assert seen == [None, None, [1]]
        scripts = [words for words in fake.received if words[0] in {b"EVAL", b"EVALSHA"}]
        assert len(scripts) == asked
