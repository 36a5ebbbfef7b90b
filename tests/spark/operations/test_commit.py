"""Tests the commit of staged rows: all of them once, also after it was cut off anywhere."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest

from fairlane import settings
from fairlane.errors import QueueFull, RequestEnded, RequestExists, RequestLost
from fairlane.operations import admission
from fairlane.operations.change import cancel
from fairlane.options import Policy
from fairlane.protocol import keys
from fairlane.protocol.steps import Batch, Call, Pause, SingleServer
from fairlane.spark import commit as commit_module
from fairlane.spark import commit as manifest
from fairlane.spark.commit import (
    Area,
    Txn,
    TxnShare,
    commit,
    look,
    pack,
    seal,
    stage,
    stage_all,
    unstage,
)
from tests.support.operations.stepping import cut_off, cut_off_after, drive
from tests.support.scripts.requests import once, stored, take_slice, waiting_bodies, work_off
from tests.support.wait import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator

    import redis

    from fairlane.drivers.sync import SyncDriver
    from fairlane.model import Slice
    from fairlane.protocol.steps import Operation, Step
    from fairlane.queue import Queue

DAY = 24 * 3_600_000
Bodies = list[bytes]


class Writer:
    """A run of a write: it stages under names of its own, then commits."""

    def __init__(
        self, driver: SyncDriver, txn: str = "t1", *, final: bool = True, runs: int = 0
    ) -> None:
        """Names the areas; with `runs` they differ from those of a writer without."""
        self.driver, self.txn, self.runs = driver, Txn(txn, final), runs

    def stage(self, request_id: str, partitions: list[Bodies], size: int = 3) -> TxnShare:
        """Stages each partition in chunks of `size`."""
        self.runs += 1
        areas = []
        for number, bodies in enumerate(partitions):
            name = f"{number}:{self.runs}"
            cut = [bodies[at : at + size] for at in range(0, len(bodies), size)]
            calls = [
                stage(request_id, self.txn.name, name, at, pack(chunk), DAY)
                for at, chunk in enumerate(cut, 1)
            ]
            self.driver.run(stage_all(calls))
            if bodies:
                area = Area(name, 0, 0)
                for chunk in cut:
                    area = area.grown(len(chunk), pack(chunk))
                areas.append(area)
        return TxnShare(request_id, Policy(), areas)

    def commit(self, *shares: TxnShare) -> int:
        """Commits to the end; returns how many rows were added now."""
        return sum(one.added for one in self.driver.run(commit(shares, self.txn)))


@pytest.fixture
def writer(driver: SyncDriver) -> Writer:
    """Returns a write of the transaction t1, which seals."""
    return Writer(driver)


def test_the_checksum_of_rows_with_keys_does_not_depend_on_their_chunks():
    bodies, own = numbered("row ", 6), numbered("k", 6)
    whole = Area("a", 0, 0).grown(6, pack(bodies), pack(own))
    parts = Area("b", 0, 0)
    for at in (0, 2, 4):
        parts = parts.grown(2, pack(bodies[at : at + 2]), pack(own[at : at + 2]))
    assert whole.check == parts.check != Area("c", 0, 0).grown(6, pack(bodies)).check


def numbered(name: str, count: int) -> Bodies:
    return [f"{name}{i}".encode() for i in range(count)]


PARTITIONS = [numbered("a", 7), [], numbered("b", 4)]
EXPECTED = [*PARTITIONS[0], *PARTITIONS[2]]


def left(client: redis.Redis) -> list[bytes]:
    """Returns the areas that are still there."""
    return [*client.scan_iter(match=b"stage:*", count=1000)]


def half_done(driver: SyncDriver, txn: str = "t1") -> tuple[Writer, TxnShare]:
    """Returns a writer and its share, whose commit was cut off behind the pin."""
    writer = Writer(driver, txn)
    share = writer.stage("r1", PARTITIONS)
    cut_off_after(driver, commit([share], writer.txn), "pin_manifest")
    return writer, share


def runs_cut_off(
    driver: SyncDriver, client: redis.Redis, *, final: bool = True
) -> Iterator[tuple[Writer, TxnShare, int]]:
    """Yields a write whose commit was cut off behind 1, 2, ... steps, in an empty Redis."""
    steps, is_over = 0, False
    while not is_over:
        steps += 1
        client.flushall()
        writer = Writer(driver, final=final)
        share = writer.stage("r1", PARTITIONS)
        is_over = cut_off(driver, commit([share], writer.txn), steps)
        yield writer, share, steps
    assert steps > 6


def test_all_partitions_come_in_their_order_and_the_request_is_sealed(
    writer: Writer, redis_client: redis.Redis
):
    assert writer.commit(writer.stage("r1", PARTITIONS)) == 11
    assert waiting_bodies(redis_client, "r1") == EXPECTED
    found = stored(redis_client, "r1")
    assert (found["total"], found["open"]) == ("11", "0")
    assert left(redis_client) == []


def test_committed_rows_are_worked_off_once(writer: Writer, queue: Queue):
    writer.commit(writer.stage("r1", PARTITIONS))
    assert work_off(queue.driver) == EXPECTED
    assert queue.request("r1").wait(timeout=PATIENCE_S) == "done"
    assert [one.index for one in queue.request("r1").results()] == [*range(11)]


def test_no_row_is_visible_before_the_commit(writer: Writer, redis_client: redis.Redis):
    writer.stage("r1", PARTITIONS)
    assert {*redis_client.scan_iter()} == {*left(redis_client)}


def test_a_commit_without_rows_makes_a_request_that_is_done(writer: Writer, queue: Queue):
    share = writer.stage("r1", [[], []])
    assert writer.commit(share) == 0
    assert queue.request("r1").state() == "done"
    assert writer.commit(share) == 0


def test_a_commit_cut_off_anywhere_is_completed_by_another_run_of_the_write(
    driver: SyncDriver, redis_client: redis.Redis
):
    """The rows of that run are in another order."""
    for _, _, steps in runs_cut_off(driver, redis_client):
        again = Writer(driver, runs=7)
        again.commit(again.stage("r1", [bodies[::-1] for bodies in PARTITIONS]))
        found = waiting_bodies(redis_client, "r1")
        assert sorted(found) == sorted(EXPECTED), f"cut off behind step {steps}"
        assert stored(redis_client, "r1")["open"] == "0"
        kept = [area for area in left(redis_client) if b":8" in area]
        assert kept == [], "the losers of the second run go"


def test_a_commit_cut_off_anywhere_is_completed_by_a_repeat(
    driver: SyncDriver, redis_client: redis.Redis
):
    """It is the same staging, as in a repeated commit of a stream."""
    for writer, share, _ in runs_cut_off(driver, redis_client, final=False):
        before = len(waiting_bodies(redis_client, "r1"))
        assert writer.commit(share) == 11 - before
        assert waiting_bodies(redis_client, "r1") == EXPECTED
        assert stored(redis_client, "r1")["open"] == "1"


def test_two_concurrent_commits_bring_the_rows_in_once(
    driver: SyncDriver, redis_client: redis.Redis
):
    """Their steps alternate."""
    writers = Writer(driver), Writer(driver, runs=5)
    running = [commit([one.stage("r1", PARTITIONS)], one.txn) for one in writers]
    replies: dict[Any, Any] = dict.fromkeys(running)
    while running:
        for operation in [*running]:
            try:
                replies[operation] = driver.run(once(operation.send(replies[operation])))
            except StopIteration:
                running.remove(operation)
    assert waiting_bodies(redis_client, "r1") == EXPECTED


@pytest.mark.parametrize("size", [3, 1])
def test_a_commit_that_another_one_overtook_goes_on_and_adds_nothing(
    driver: SyncDriver, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch, size: int
):
    """It stops anywhere, another one commits its own staging, and then the first continues."""
    monkeypatch.setattr(manifest, "WINDOW", size)
    steps, is_over = 0, False
    while not is_over:
        steps += 1
        redis_client.flushall()
        one, other = Writer(driver), Writer(driver, runs=5)
        slow = commit([one.stage("r1", PARTITIONS)], one.txn)
        try:
            reply = driver.run(once(slow.send(None)))
            for _ in range(steps - 1):
                reply = driver.run(once(slow.send(reply)))
        except StopIteration:
            is_over = True
        other.commit(other.stage("r1", PARTITIONS))
        if not is_over:
            finish(driver, slow, reply)
        assert waiting_bodies(redis_client, "r1") == EXPECTED, f"it stopped behind step {steps}"
    assert steps > 6


def finish(driver: SyncDriver, operation: Operation[Any], reply: Any) -> None:
    """Runs an operation from the reply to a step on to its end."""
    with contextlib.suppress(StopIteration):
        while True:
            reply = driver.run(once(operation.send(reply)))


def test_a_run_after_the_end_changes_nothing(writer: Writer, redis_client: redis.Redis):
    writer.commit(writer.stage("r1", PARTITIONS))
    before = redis_client.dump(keys.request_hash("r1"))
    assert writer.commit(writer.stage("r1", [numbered("z", 50)])) == 0
    assert redis_client.dump(keys.request_hash("r1")) == before
    assert left(redis_client) == []


@pytest.mark.parametrize(
    ("partitions", "priority", "expected"),
    [
        ([PARTITIONS[2][::-1], PARTITIONS[0]], 5, (11, 11, 0, True, True)),
        ([numbered("a", 3)], 5, (3, 11, 0, False, True)),
        ([numbered("z", 11)], 5, (11, 11, 0, False, True)),
        (PARTITIONS, 9, (11, 11, 0, True, False)),
    ],
    ids=["same rows in other partitions", "fewer rows", "other rows", "another priority"],
)
def test_a_repeat_reports_whether_it_is_the_same_write(
    writer: Writer, partitions: list[Bodies], priority: int, expected: tuple[Any, ...]
):
    share = writer.stage("r1", PARTITIONS)
    (first,) = writer.driver.run(commit([share], writer.txn))
    assert first == ("r1", 11, 11, 11, True, True)
    again = writer.stage("r1", partitions, size=2)
    again.policy = Policy(priority=priority)
    (second,) = writer.driver.run(commit([again], writer.txn))
    assert second == ("r1", *expected)


def test_a_repeat_that_completes_a_commit_counts_what_it_added(
    driver: SyncDriver, redis_client: redis.Redis
):
    half_done(driver)
    before = len(waiting_bodies(redis_client, "r1"))
    assert 0 <= before < 11
    again = Writer(driver, runs=7)
    (brought,) = driver.run(commit([again.stage("r1", [numbered("z", 2)])], again.txn))
    assert brought == ("r1", 2, 11, 11 - before, False, True)
    assert waiting_bodies(redis_client, "r1") == EXPECTED


def test_a_manifest_of_a_version_without_checksums_is_rolled(
    driver: SyncDriver, redis_client: redis.Redis
):
    first, _ = half_done(driver)
    record = keys.transaction("r1", "t1")
    manifest: Any = redis_client.hget(record, "manifest")
    lines = [line.rpartition(b",")[0] for line in manifest.splitlines()]
    redis_client.hset(record, "manifest", b"\n".join(lines))
    first.commit(first.stage("r1", PARTITIONS))
    assert waiting_bodies(redis_client, "r1") == EXPECTED


def test_a_run_after_the_tombstone_expired_changes_nothing(
    writer: Writer, redis_client: redis.Redis
):
    """The record of the transaction outlives the request."""
    writer.commit(writer.stage("r1", PARTITIONS))
    redis_client.unlink(*keys.request_keys("r1"))
    assert writer.commit(writer.stage("r1", PARTITIONS)) == 0
    assert redis_client.exists(*keys.request_keys("r1")) == 0


def test_transactions_of_a_stream_fill_one_request(driver: SyncDriver, redis_client: redis.Redis):
    expected = []
    for number in range(3):
        writer = Writer(driver, f"q:{number}", final=False)
        rows = numbered(f"{number}-", 5)
        writer.commit(writer.stage("r1", [rows]))
        expected += rows
    assert waiting_bodies(redis_client, "r1") == expected
    last = Writer(driver, "last")
    last.commit(last.stage("r1", [[b"end"]]))
    assert waiting_bodies(redis_client, "r1") == [*expected, b"end"]
    assert stored(redis_client, "r1")["open"] == "0"


def test_an_empty_micro_batch_gives_the_request_more_time(
    driver: SyncDriver, redis_client: redis.Redis
):
    writer = Writer(driver, "q:0", final=False)
    writer.commit(writer.stage("r1", [[]]))
    redis_client.hset(keys.request_hash("r1"), "open_until", 1)
    again = Writer(driver, "q:1", final=False)
    again.commit(again.stage("r1", [[]]))
    assert int(stored(redis_client, "r1")["open_until"]) > settings.SINK_OPEN_MS


# ------------------------------------------------------------------ refusals


def test_a_commit_raises_for_a_request_that_was_cancelled_meanwhile(
    writer: Writer, driver: SyncDriver
):
    """A slice was leased, so it was not over, and all rows were added. But the rest never runs."""
    share = writer.stage("r1", [numbered("a", 60)])
    held: list[Slice | None] = []

    def see(step: Step) -> bool:
        calls = step.steps if isinstance(step, Batch) else [step]
        if any(isinstance(call, Call) and call.script.name == "append_staged" for call in calls):
            held.append(take_slice(driver))  # the first tokens are sent beside the second rolls
        if len(held) == 3:
            driver.run(cancel("r1", "not needed"))
        return False

    with pytest.raises(RequestEnded, match=r"r1 ended \(not needed\) before all rows were in it"):
        drive(driver, commit([share], writer.txn), see)
    assert len(held) == 3
    assert held[2] is not None


def test_a_foreign_request_is_refused_before_any_write(writer: Writer, queue: Queue):
    queue.submit_request([b"x"], id="r1")
    share = writer.stage("r1", PARTITIONS)
    with pytest.raises(RequestExists, match="request r1 exists"):
        writer.commit(share)
    with pytest.raises(RequestExists, match="request r1 exists"):
        queue.driver.run(look(TxnShare("r1", Policy(), []), writer.txn))


def test_another_transaction_is_refused(driver: SyncDriver, redis_client: redis.Redis):
    """This holds also while the first one is half done: its rows would join the others."""
    first, _ = half_done(driver)
    other = Writer(driver, "t2")
    with pytest.raises(RequestExists, match=r"r1 exists.*same txn \(t1\) to go on"):
        other.commit(other.stage("r1", PARTITIONS))
    shared = Writer(driver, "t3", final=False)
    with pytest.raises(RequestExists, match="request r1 exists"):
        shared.commit(shared.stage("r1", PARTITIONS))
    first.commit(first.stage("r1", PARTITIONS))
    assert waiting_bodies(redis_client, "r1") == EXPECTED


def look_as_another(driver: SyncDriver) -> None:
    """Reads the request as a write of another transaction does."""
    driver.run(look(TxnShare("r1", Policy(), []), Txn("t2", seal=True)))


def test_the_owner_of_a_request_is_recorded_before_it_exists(
    driver: SyncDriver, redis_client: redis.Redis
):
    """A driver dies anywhere: a write that finds the open request reports the present txn."""
    found = 0
    for _ in runs_cut_off(driver, redis_client):
        if stored(redis_client, "r1").get("open") == "1":
            found += 1
            with pytest.raises(RequestExists, match=r"\(t1\)"):
                look_as_another(driver)
    assert found > 1
    with pytest.raises(RequestExists, match="other content"):  # complete: no continuation
        look_as_another(driver)


def test_the_owner_of_another_life_is_not_named(driver: SyncDriver, redis_client: redis.Redis):
    half_done(driver)
    redis_client.set(keys.owner("r1"), "another", px=DAY)
    with pytest.raises(RequestExists, match="or give the same txn to go on"):
        look_as_another(driver)


def test_of_two_concurrent_begins_the_winner_is_recorded(
    driver: SyncDriver, redis_client: redis.Redis
):
    other = Writer(driver, "other")
    slow = commit([other.stage("r1", PARTITIONS)], other.txn)
    step, reply = slow.send(None), None
    while not isinstance(step, SingleServer):
        reply = driver.run(once(step))
        step = slow.send(reply)
    one, share = half_done(driver, "one")
    with pytest.raises(RequestExists):
        finish(driver, slow, driver.run(once(step)))
    one.commit(share)
    assert redis_client.get(keys.owner("r1")) == b"one"


@pytest.mark.parametrize("is_final", [False, True], ids=["a stream", "a write"])
def test_an_abandoned_request_is_refused_with_the_reason(
    driver: SyncDriver, queue: Queue, *, is_final: bool
):
    if is_final:
        half_done(driver)
    else:
        first = Writer(driver, "q:0", final=False)
        first.commit(first.stage("r1", PARTITIONS))
    queue.request("r1").cancel("abandoned")  # as the auditor does
    again = Writer(driver, "t1" if is_final else "q:1", final=is_final)
    with pytest.raises(RequestEnded, match="raise openFor, and choose another id"):
        again.commit(again.stage("r1", PARTITIONS))


def test_a_sealed_request_takes_no_more(driver: SyncDriver):
    one = Writer(driver, "q:0", final=False)
    one.commit(one.stage("r1", [[b"a"]]))
    driver.run(seal("r1", "req"))
    two = Writer(driver, "q:1", final=False)
    with pytest.raises(RequestExists, match="takes no more rows"):
        two.commit(two.stage("r1", [[b"b"]]))


def test_a_request_that_was_cancelled_meanwhile_raises_request_ended(
    driver: SyncDriver, queue: Queue, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(manifest, "WINDOW", 1)
    writer = Writer(driver)
    share = writer.stage("r1", PARTITIONS)
    assert not cut_off(driver, commit([share], writer.txn), 9)
    queue.request("r1").cancel("a person said so")
    with pytest.raises(RequestEnded, match="a person said so"):
        writer.commit(share)


def test_an_incomplete_area_is_refused_before_any_row_is_visible(
    writer: Writer, redis_client: redis.Redis
):
    share = writer.stage("r1", PARTITIONS)
    redis_client.unlink(keys.area("r1", "t1", "0:1"))
    with pytest.raises(RequestLost, match="write it again"):
        writer.commit(share)
    share = writer.stage("r1", PARTITIONS)
    share.areas[0] = share.areas[0]._replace(rows=8)
    with pytest.raises(RequestLost, match="write it again"):
        writer.commit(share)
    assert {*redis_client.scan_iter()} == {*left(redis_client)}


def test_an_area_that_is_lost_after_the_pin_raises(driver: SyncDriver, redis_client: Any):
    writer, share = half_done(driver)
    assert redis_client.exists(keys.transaction("r1", "t1"))
    redis_client.unlink(*left(redis_client))
    with pytest.raises(RequestLost, match="write it again"):
        writer.commit(share)


def test_abort_drops_what_was_staged_and_refuses_once_it_is_pinned(
    writer: Writer, driver: SyncDriver, redis_client: redis.Redis
):
    share = writer.stage("r1", PARTITIONS)
    assert driver.run(unstage("r1", "t1", [area.name for area in share.areas]))
    assert left(redis_client) == []
    writer, share = half_done(driver)
    assert redis_client.exists(keys.transaction("r1", "t1"))
    assert not driver.run(unstage("r1", "t1", [area.name for area in share.areas]))
    writer.commit(share)
    assert waiting_bodies(redis_client, "r1") == EXPECTED


# ------------------------------------------------------------------ many requests, bounds


def test_many_requests_come_in_together(
    driver: SyncDriver, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
):
    """There are more of them than one group, and the commit is cut off anywhere."""
    monkeypatch.setattr(commit_module, "GROUP", 3)
    names = [f"k{i}" for i in range(7)]
    rows = {name: [numbered(name, 4), numbered(f"{name}-", 2)] for name in names}
    steps, is_over = 0, False
    while not is_over:
        steps += 3
        redis_client.flushall()
        writer = Writer(driver)
        shares = [writer.stage(name, rows[name]) for name in names]
        is_over = cut_off(driver, commit(shares, writer.txn), steps)
        again = Writer(driver, runs=50)
        again.commit(*(again.stage(name, rows[name]) for name in names))
        for name in names:
            assert waiting_bodies(redis_client, name) == [*rows[name][0], *rows[name][1]]


def test_a_commit_of_many_chunks_keeps_several_in_flight(writer: Writer):
    share = writer.stage("r1", [numbered("a", 60)])
    sizes = []

    def see(step: Step) -> bool:
        if isinstance(step, Batch):
            calls = [one.script.name for one in step.steps if isinstance(one, Call)]
            sizes.append(calls.count("append_staged"))
        return False

    drive(writer.driver, commit([share], writer.txn), see)
    assert max(sizes) == manifest.WINDOW


def test_a_commit_waits_for_room_in_a_queue_with_a_bound(driver: SyncDriver, queue: Queue):
    queue.set_max_waiting(5)
    writer = Writer(driver)
    pauses = []

    def see(step: Step) -> bool:
        if isinstance(step, Pause):
            pauses.append(step.seconds)
            work_off(driver)
            driver.run(admission.report_backlog("req"))
        return isinstance(step, Pause)

    share = writer.stage("r1", PARTITIONS)
    drive(driver, commit([share], writer.txn), see)
    assert pauses
    work_off(driver)
    assert len([*queue.request("r1").results()]) == len(EXPECTED)


def test_a_queue_that_stays_full_raises_in_the_end(
    driver: SyncDriver, queue: Queue, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(settings, "MAX_WAIT_S", 0.0)
    queue.set_max_waiting(2)
    queue.submit_request([b"x", b"y"], id="other")
    writer = Writer(driver)
    with pytest.raises(QueueFull, match="waiting sub-requests"):
        writer.commit(writer.stage("r1", PARTITIONS))


@pytest.mark.parametrize("final", [True, False])
def test_the_record_of_a_commit_stays_as_long_as_its_request_may_be_open(
    writer: Writer, redis_client: redis.Redis, final: bool
):
    """Otherwise a micro-batch that is repeated after a week would be added twice."""
    writer.txn = Txn("t1", final, open_ms=30 * DAY)
    share = writer.stage("r1", [numbered("a", 5), numbered("b", 5)])
    assert writer.commit(share) == 10
    assert redis_client.pttl(keys.transaction("r1", "t1")) > 29 * DAY
    if final:
        assert redis_client.pttl(keys.owner("r1")) > 29 * DAY


def test_what_is_pinned_and_not_rolled_yet_stays_as_long_as_its_request(
    writer: Writer, redis_client: redis.Redis
):
    writer.txn = Txn("t1", True, open_ms=30 * DAY)
    share = writer.stage("r1", [numbered("a", 5)])
    writer.driver.run(look(share, writer.txn))
    area = keys.area("r1", "t1", share.areas[0].name)
    assert redis_client.pttl(area) > 29 * DAY
