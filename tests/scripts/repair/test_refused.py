"""Tests each script with each of its commands refused: nothing is lost, the request can end."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from fairlane.drivers.sync import SyncDriver
from fairlane.errors import FairlaneError, RedisUnfit
from fairlane.protocol import acl, keys
from fairlane.protocol.lua import library
from tests.scripts.lease.test_exchange import Exchanged, dispatch, exchange, lease
from tests.spark.staging import Sink
from tests.support.scripts.distinct import Distinct
from tests.support.scripts.requests import HOUR, Lane, Tok, numbered, toks
from tests.support.servers import backends

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import redis

LEASE = 30_000
MANY = 20  # sub-requests: too many to wait without a stream
ON_SINGLE = pytest.mark.parametrize("redis_server", backends.one(), indirect=True)


class Case(NamedTuple):
    """A script at work: why it is called, and how many sub-requests there are then.

    `is_worker`: no caller need repeat a call that was refused; else its caller does.
    """

    script: str
    prepare: Callable[[Lane], Callable[[], Any]]
    total: int = MANY
    is_worker: bool = True


def few_done(lane: Lane) -> Callable[[], Any]:
    held = lane.begin(3, limit=1)
    return lambda: lane.complete(held)


def few_in_part(lane: Lane) -> Callable[[], Any]:
    held = lane.begin(3, limit=1)
    return lambda: lane.complete(held, held.ids[:1], [(held.ids[1], "retry", 0)])


def few_taken(lane: Lane) -> Callable[[], Any]:
    token = lane.start(3, limit=1)[0]
    return lambda: lane.acquire(token)


def few_poured(lane: Lane) -> Callable[[], Any]:
    token = lane.start(3, limit=1)[0]
    return lambda: lane.acquire(token, count=1)


def slice_of(lane: Lane, count: int, **options: Any) -> Any:
    return lane.take(lane.start(MANY, **({"limit": 2} | options))[0], count=count)


def slice_done(lane: Lane) -> Callable[[], Any]:
    held = slice_of(lane, 5)
    return lambda: lane.complete(held)


def last_done(lane: Lane) -> Callable[[], Any]:
    held = slice_of(lane, MANY, limit=1)
    return lambda: lane.complete(held)


def part_done(lane: Lane) -> Callable[[], Any]:
    held = slice_of(lane, 5)
    return lambda: lane.complete(held, held.ids[:2], keep=True)


def nothing_begun(lane: Lane) -> Callable[[], Any]:
    held = slice_of(lane, 5)
    return lambda: lane.complete(held, [], is_unbegun=True)


def verdicts(lane: Lane) -> Callable[[], Any]:
    held = slice_of(lane, 5)
    others = [
        (one, verdict, 0)
        for one, verdict in zip(held.ids[1:], ("dead", "retry", "release", "timeout"), strict=True)
    ]
    return lambda: lane.complete(held, held.ids[:1], others)


def all_dead(lane: Lane) -> Callable[[], Any]:
    held = slice_of(lane, 2)
    return lambda: lane.complete(held, others=[(one, "dead", 0) for one in held.ids])


def exchanged(lane: Lane) -> Callable[[], Any]:
    first, other = lane.start(MANY, limit=2)
    held = lane.take(first, count=5)
    dispatch(lane, [other])
    op = lane.new_op()
    return lambda: whole(exchange(lane, lease(held), op=op, want=2, sizes={"r1": 5}))


def exchanged_last(lane: Lane) -> Callable[[], Any]:
    held = lane.begin(3, limit=1)
    return lambda: whole(exchange(lane, lease(held)))


def whole(reply: Exchanged) -> None:
    """Fails as a single call does if an error refused one of the steps."""
    if b"" in reply.settled or "" in reply.words:
        raise RedisUnfit("a step was refused alone")


def slice_taken(lane: Lane) -> Callable[[], Any]:
    token = lane.start(MANY, limit=2)[0]
    return lambda: lane.acquire(token, count=5)


def retry_taken(lane: Lane) -> Callable[[], Any]:
    held = slice_of(lane, 1, limit=1)
    reply = lane.complete(held, others=[(held.ids[0], "retry", 0)])
    (token,) = toks(reply[-1])
    return lambda: lane.acquire(token)


def unbegun_taken(lane: Lane) -> Callable[[], Any]:
    held = slice_of(lane, 5, limit=1)
    (token,) = toks(lane.complete(held, [], is_unbegun=True)[-1])
    return lambda: lane.acquire(token)


def extended(lane: Lane) -> Callable[[], Any]:
    held = slice_of(lane, 5)
    return lambda: lane.extend(held)


def expired(lane: Lane) -> Callable[[], Any]:
    slice_of(lane, 5)
    lane.later(LEASE)
    return lane.reap


def died(lane: Lane) -> Callable[[], Any]:
    held = slice_of(lane, 1, attempts=1)
    return lambda: lane.reap(worker=held.worker, started=held.started)


def few_expired(lane: Lane) -> Callable[[], Any]:
    lane.begin(3, limit=1)
    lane.later(LEASE)
    return lane.reap


def overdue(lane: Lane) -> Callable[[], Any]:
    slice_of(lane, 1, deadline_ms=HOUR)
    lane.later(HOUR)
    return lane.reap


def started(name: str, act: str, *args: Any, size: int = MANY, **given: Any) -> Any:
    """Yields a request that has just been submitted, and one call of it."""

    def prepare(lane: Lane) -> Callable[[], Any]:
        lane.start(size, open_ms=2 * HOUR if act in {"append", "seal"} else 0)
        return lambda: getattr(lane, act)(*args, **given)

    prepare.__name__ = name
    return prepare


def resumed(lane: Lane) -> Callable[[], Any]:
    lane.start(MANY)
    lane.pause()
    return lane.resume


def limited(lane: Lane) -> Callable[[], Any]:
    slice_of(lane, 1, limit=3)
    return lambda: lane.set_limit(2)


def raised(lane: Lane) -> Callable[[], Any]:
    slice_of(lane, 1, limit=2)
    return lambda: lane.set_limit(5)


def submitted(lane: Lane) -> Callable[[], Any]:
    return lambda: lane.enqueue(MANY)


def few_submitted(lane: Lane) -> Callable[[], Any]:
    return lambda: lane.enqueue(3)


def submitted_late(lane: Lane) -> Callable[[], Any]:
    lane.abandon(1)
    return lambda: lane.enqueue(MANY)


def distinct_submitted(lane: Lane) -> Callable[[], Any]:
    return lambda: Distinct(lane).enqueue([*numbered(MANY), b"b0"])


def distinct_appended(lane: Lane) -> Callable[[], Any]:
    made = Distinct(lane)
    made.enqueue(MANY)
    given: dict[str, Any] = {"before": lane.hash()["chain"]}
    return lambda: made.append([b"b0", *numbered(MANY + 5)], **given)


def distinct_sealed(lane: Lane) -> Callable[[], Any]:
    made = Distinct(lane)
    made.enqueue(MANY)
    return made.seal


def requeued(lane: Lane) -> Callable[[], Any]:
    held = slice_of(lane, 3)
    lane.complete(held, others=[(one, "dead", 0) for one in held.ids])
    found = lane.dead_ids()
    return lambda: lane.requeue(found)


def joined(lane: Lane) -> Callable[[], Any]:
    sink = Sink(lane)
    sink.open()
    return lambda: sink.add_part(0, [b"x"] * 3)


def joined_by_id(lane: Lane) -> Callable[[], Any]:
    sink = Sink(lane)
    sink.open()
    return lambda: sink.add_unique({b"%d" % i: b"x" for i in range(3)})


def rolled(lane: Lane) -> Callable[[], Any]:
    sink = Sink(lane)
    sink.open()
    sink.stage([b"x"] * 3)
    sink.pin(("0:1", 1, 3))
    return lambda: sink.roll(0, last="area")


CASES = [
    *(Case("complete", made, 3) for made in (few_done, few_in_part)),
    *(Case("complete", made) for made in (slice_done, last_done, part_done, nothing_begun)),
    *(Case("complete", made) for made in (verdicts, all_dead)),
    *(Case("acquire", made, 3) for made in (few_taken, few_poured)),
    *(Case("acquire", made) for made in (slice_taken, retry_taken, unbegun_taken)),
    Case("exchange", exchanged),
    Case("exchange", exchanged_last, 3),
    Case("extend", extended),
    *(Case("reap", made) for made in (expired, died, overdue)),
    Case("reap", few_expired, 3),
    Case("cancel", started("cancelled", "cancel")),
    Case("cancel", started("few_cancelled", "cancel", size=3), 3),
    Case("pause", started("paused", "pause")),
    Case("resume", resumed),
    *(Case("set_limit", made) for made in (limited, raised)),
    Case("set_deadline", started("dated", "request", "set_deadline", deadline_ms=86_400_000)),
    Case("set_priority", started("urgent", "set_priority", 0)),
    Case("change_shards", started("spread", "request", "change_shards", shards="1,2")),
    *(Case("enqueue", made, is_worker=False) for made in (submitted, submitted_late)),
    Case("enqueue", few_submitted, 3, is_worker=False),
    Case("append", started("appended", "append", 5, chunk=2), MANY + 5, is_worker=False),
    Case("seal", started("sealed", "seal"), is_worker=False),
    Case("enqueue", distinct_submitted, is_worker=False),
    Case("append", distinct_appended, MANY + 5, is_worker=False),
    Case("seal", distinct_sealed, is_worker=False),
    Case("requeue_dead", requeued, is_worker=False),
    Case("append_partition", joined, 3, is_worker=False),
    Case("append_unique", joined_by_id, 3, is_worker=False),
    Case("append_staged", rolled, 3, is_worker=False),
]


class Guard:
    """A user of Redis who may do anything but what is refused."""

    def __init__(self, client: Any, url: str) -> None:
        self._client = client
        self.allow()
        self.driver = SyncDriver(url.replace("://", "://weak:word@"), patience_s=0)
        self.driver.check()

    def allow(self) -> None:
        self._rules("~*", "&*", "+@all")

    def refuse(self, command: str) -> None:
        self._rules("~*", "&*", "+@all", f"-{command.partition('|')[0]}")

    def _rules(self, *words: str) -> None:
        self._client.execute_command("ACL", "SETUSER", "weak", "reset", "on", ">word", *words)


@pytest.fixture
def guard(redis_client: redis.Redis, redis_url: str) -> Iterator[Guard]:
    if not redis_url.startswith("redis://") or "@" in redis_url:
        pytest.skip("it needs a user of its own")
    made = Guard(redis_client, redis_url)
    with contextlib.closing(made.driver):
        yield made
    redis_client.execute_command("ACL", "DELUSER", "weak")


def work_off(lane: Lane) -> None:
    """Takes back, mints again and completes what is left, as a worker with all rights."""
    for _ in range(100):
        lane.later(2 * LEASE)
        found = lane.hash()
        if found["state"] in {"done", "cancelled"}:
            lane.call("expire_leftovers", lane.names, ttl=HOUR)  # as doctor does
            return
        if found["state"] == "paused":
            lane.resume()
        elif int(found["open"]):
            lane.seal(int(found.get("chunks", "1")), found.get("chain"))
        lane.reap()
        queued = [(k, text) for k, text in lane.permits().items() if text.startswith("q:")]
        for k, text in queued:
            held = lane.acquire(Tok(0, k, text.split(":")[1]), worker="w:9")
            if held.word == "ok":
                lane.complete(held)
    raise AssertionError(f"it does not end: {lane.hash()} {lane.check()}")


def account(lane: Lane, total: int) -> None:
    """Checks that every sub-request ended once."""
    stored, results = lane.hash(), lane.results()
    counts = [int(stored[name]) for name in ("done", "dead", "cancelled")]
    statuses = [status for status, _, _ in results.values()]
    assert (int(stored["total"]), sum(counts)) == (total, total), stored
    assert [statuses.count("d"), statuses.count("x")] == counts[:2]
    assert set(results) <= set(range(total))
    assert len(lane.dead_ids()) == counts[1]
    assert lane.check() == []


@ON_SINGLE
@pytest.mark.any_command
@pytest.mark.parametrize(
    ("case", "repeated"),
    [
        pytest.param(
            case,
            repeated,
            id=f"{case.script}-{case.prepare.__name__}-{'' if repeated else 'not '}repeated",
        )
        for case in CASES
        for repeated in (True, *([False] if case.is_worker else []))  # a producer repeats
    ],
)
def test_a_command_that_is_refused_loses_nothing(
    case: Case, guard: Guard, redis_client: Any, *, repeated: bool
):
    """With the right restored the request ends, and each sub-request is counted once."""

    def begun() -> tuple[Lane, Callable[[], Any]]:
        redis_client.flushall()
        fresh = Lane(guard.driver, redis_client)
        fresh.checked = False
        return fresh, case.prepare(fresh)

    def end(lane: Lane, act: Callable[[], Any]) -> None:
        if repeated:
            act()
        work_off(lane)
        account(lane, case.total)

    lane, act = begun()
    redis_client.config_resetstat()
    act()
    sent = {name.removeprefix("cmdstat_") for name in redis_client.info("commandstats")}
    end(lane, act)
    refused = []
    wrong = []
    for command in sorted(acl.commands_of(library()[case.script]) & sent):
        lane, act = begun()
        guard.refuse(command)
        try:
            act()
        except RedisUnfit:
            refused.append(command)
        finally:
            guard.allow()
        try:
            end(lane, act)
        except (AssertionError, FairlaneError, KeyError) as error:
            wrong.append(f"{command}: {str(error)[:200]}")
    redis_client.flushall()
    assert "hmget" in refused
    assert wrong == []


def handed_over(lane: Lane) -> Any:
    names, given = (*lane.names, keys.fed(lane.id)), {"since": "0-0", "upto": "7-0"}
    return lane.call("hand_over", names, open_ms=HOUR, bodies=[b"0", b"a", b"1", b"b"], **given)


def put_together(lane: Lane) -> Any:
    names = (*lane.names, keys.of_flow(lane.id), keys.fed(lane.id))
    wrap = {"before": "[", "between": ",", "after": "]"}
    given = {"since": "0-0,0-0", "upto": "7-0,7-0", "open_ms": HOUR, "width": 2} | wrap
    return lane.call("join", names, parts=[b"1:0", b"a", b"2:0", b"b"], **given)


def chosen(lane: Lane) -> Any:
    names = (*lane.names, keys.of_flow(lane.id), keys.fed(lane.id))
    given = {"since": "0-0", "upto": "7-0", "open_ms": HOUR, "width": 2, "is_joined": "1"}
    return lane.call("hand_chosen", names, choices=[b"0:0", b"a", b"0", b"", b"1", b""], **given)


def chosen_put_together(lane: Lane) -> Any:
    names = (*lane.names, keys.of_flow(lane.id), keys.fed(lane.id))
    wrap = {"before": "[", "between": ",", "after": "]"}
    given = {"since": "0-0,0-0", "upto": "7-0,7-0", "open_ms": HOUR, "width": 2} | wrap
    return lane.call("join_chosen", names, parts=[b"0:0", b"1", b"1:0", b"a"], **given)


@ON_SINGLE
@pytest.mark.any_command
@pytest.mark.parametrize("hand", [handed_over, put_together, chosen, chosen_put_together])
def test_bodies_whose_indexes_cannot_be_kept_are_not_added(
    hand: Callable[[Lane], Any], guard: Guard, redis_client: redis.Redis
):
    """The cursor would move over them, and the same results would be added again later."""
    lane = Lane(guard.driver, redis_client)
    lane.start(0, limit=2, open_ms=HOUR)
    before = lane.dump()
    guard.refuse("setbit")
    with pytest.raises(RedisUnfit):
        hand(lane)
    guard.allow()
    assert lane.dump() == before
    assert hand(lane)[0] == b"ok"
