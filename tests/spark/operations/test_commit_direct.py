"""Tests rows that are appended directly to an open request: each once, and nothing stays open."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fairlane import settings
from fairlane.errors import RedisFull, RequestEnded, RequestExists, RequestLost
from fairlane.operations.change import cancel
from fairlane.options import Policy
from fairlane.protocol import keys
from fairlane.protocol.steps import Pause
from fairlane.spark.commit import (
    Txn,
    abort_live,
    add,
    append_partition,
    append_unique,
    begin_live,
    end_live,
    pack,
    seal,
    seal_all,
    start_live,
)
from tests.scripts.repair.test_full_and_forgotten import full
from tests.support.operations.stepping import drive
from tests.support.scripts.requests import (
    once,
    settle,
    stored,
    take_slice,
    waiting_bodies,
    work_off,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    import redis

    from fairlane.drivers.sync import SyncDriver
    from fairlane.model import Slice
    from fairlane.protocol.steps import Step
    from fairlane.queue import Queue

DAY = 24 * 3_600_000
LIVE = Txn("t1", seal=True)


def test_rows_join_by_their_place_once(driver: SyncDriver, redis_client: redis.Redis):
    driver.run(begin_live("r1", Policy(), LIVE, by_ids=False))
    driver.run(begin_live("r1", Policy(), LIVE, by_ids=False))
    for _ in range(2):
        call = append_partition("r1", 0, 0, pack([b"a", b"b"]), LIVE)
        driver.run(add("r1", "req", call, LIVE))
    assert driver.run(add("r1", "req", append_partition("r1", 0, 2, pack([b"c"]), LIVE), LIVE)) == 1
    driver.run(seal("r1", "req"))
    driver.run(seal("r1", "req"))
    assert waiting_bodies(redis_client, "r1") == [b"a", b"b", b"c"]
    with pytest.raises(RequestExists, match="request r1 exists"):
        driver.run(begin_live("r1", Policy(), Txn("t2", seal=True), by_ids=False))


def begin(driver: SyncDriver, request_id: str = "r1", bodies: tuple[bytes, ...] = (b"a",)) -> None:
    """Begins a request and adds these rows."""
    driver.run(begin_live(request_id, Policy(), LIVE, by_ids=False))
    if bodies:
        call = append_partition(request_id, 0, 0, pack([*bodies]), LIVE)
        driver.run(add(request_id, "req", call, LIVE))


def hold_and_cancel(driver: SyncDriver) -> Slice:
    """Takes a slice of the request, which is then being cancelled."""
    held = take_slice(driver)
    assert held is not None
    driver.run(cancel("r1", "not needed"))
    return held


def test_a_seal_of_a_cancelled_request_raises(driver: SyncDriver):
    """Otherwise a write whose rows never run would look successful."""
    begin(driver)
    driver.run(cancel("r1", "not needed"))
    for _ in range(2):
        with pytest.raises(RequestEnded, match=r"request r1 ended \(not needed\) before all rows"):
            driver.run(seal("r1", "req"))


def test_a_seal_of_a_cancelling_request_raises(driver: SyncDriver):
    """A slice of it is still leased, so it is not over."""
    begin(driver, bodies=(b"a", b"b"))
    held = hold_and_cancel(driver)
    with pytest.raises(RequestEnded, match="ended"):
        driver.run(seal("r1", "req"))
    settle(driver, held)
    with pytest.raises(RequestEnded, match="ended"):
        driver.run(seal("r1", "req"))


def test_all_requests_are_sealed_before_an_error_is_raised(
    driver: SyncDriver, redis_client: redis.Redis
):
    """The rows of the others run, however often the seal is repeated."""
    for name in ("r1", "r2", "r3"):
        begin(driver, name)
    driver.run(cancel("r1", ""))
    for _ in range(2):
        with pytest.raises(RequestEnded, match=r"request r1 ended \(cancelled\)"):
            driver.run(seal_all(["r1", "r2", "r3"], "req"))
    assert [stored(redis_client, name)["open"] for name in ("r1", "r2", "r3")] == ["0", "0", "0"]
    assert work_off(driver) == [b"a", b"a"]


def before_the_second_step(action: Callable[[Step], object]) -> Callable[[Step], bool]:
    """Returns a `see` for `drive` that acts before the operation's second step."""
    steps: list[Step] = []

    def see(step: Step) -> bool:
        steps.append(step)
        if len(steps) == 2:
            action(step)
        return False

    return see


def test_a_seal_raises_for_a_cancellation_during_the_seal(driver: SyncDriver):
    """It comes after the check and before the seal, while a slice is leased."""
    begin(driver, bodies=(b"a", b"b"))
    held: list[Slice] = []
    see = before_the_second_step(lambda _: held.append(hold_and_cancel(driver)))
    with pytest.raises(RequestEnded, match="not needed"):
        drive(driver, seal("r1", "req"), see)
    settle(driver, held[0])
    with pytest.raises(RequestEnded, match="not needed"):
        driver.run(seal("r1", "req"))


def test_a_seal_whose_reply_was_lost_is_no_failure_when_a_cancellation_follows(driver: SyncDriver):
    begin(driver)

    def lose_the_reply_and_cancel(step: Step) -> None:
        driver.run(once(step))  # `drive` sends the step again
        driver.run(cancel("r1", "not needed"))

    drive(driver, seal("r1", "req"), before_the_second_step(lose_the_reply_and_cancel))


def test_a_cancellation_behind_the_seal_does_not_fail_a_repeat_of_the_seal(driver: SyncDriver):
    """A restarted stream seals again what it has sealed; its request may be over by then."""
    begin(driver)
    driver.run(seal("r1", "req"))
    driver.run(cancel("r1", "not needed"))
    driver.run(seal("r1", "req"))


def test_rows_join_by_their_id_once_from_any_transaction(
    driver: SyncDriver, redis_client: redis.Redis
):
    for name in ("t1", "t2"):
        txn = Txn(name, seal=True)
        driver.run(begin_live("r1", Policy(), txn, by_ids=True))
        call = append_unique("r1", pack([b"1", b"2"]), pack([b"a", name.encode()]), txn, DAY)
        driver.run(add("r1", "req", call, txn))
    driver.run(seal("r1", "req"))
    assert waiting_bodies(redis_client, "r1") == [b"a", b"t1"]
    call = append_unique("r1", pack([b"3"]), pack([b"c"]), LIVE, DAY)
    with pytest.raises(RequestExists, match="takes no more rows"):
        driver.run(add("r1", "req", call, LIVE))


def test_an_add_waits_while_too_many_sub_requests_wait_and_keeps_the_request_open(
    driver: SyncDriver, redis_client: redis.Redis
):
    """However long it waits, the auditor must not take it for abandoned."""
    begin(driver, bodies=())
    call = append_partition("r1", 0, 0, pack([b"a"] * 9), LIVE)
    waits = []

    def see(step: Step) -> bool:
        if isinstance(step, Pause):
            waits.append(int(stored(redis_client, "r1")["open_until"]))
            redis_client.hset(keys.request_hash("r1"), "open_until", 1)
            if len(waits) == 3:
                work_off(driver)
        return isinstance(step, Pause)

    assert drive(driver, add("r1", "req", call, LIVE, max_waiting=3), see) == 9
    assert len(waits) == 3
    assert min(waits) > settings.SINK_OPEN_MS


def test_a_wait_for_room_ends_when_the_request_is_cancelled(driver: SyncDriver, queue: Queue):
    begin(driver, bodies=())
    operation = add(
        "r1", "req", append_partition("r1", 0, 0, pack([b"a"] * 9), LIVE), LIVE, max_waiting=3
    )

    def see(step: Step) -> bool:
        if isinstance(step, Pause):
            queue.request("r1").cancel("enough")
        return isinstance(step, Pause)

    assert drive(driver, operation, see) == 9


NOTED = {"by_ids": False, "is_noted": True}


def test_an_abort_cancels_the_begun_requests_that_are_not_sealed(
    driver: SyncDriver, queue: Queue, redis_client: redis.Redis
):
    for name, policy in (("r1", Policy()), ("r2", Policy(priority=9)), ("r3", Policy())):
        driver.run(begin_live(name, policy, LIVE, **NOTED))
    with pytest.raises(RequestExists, match=r"\(t1\)"):
        driver.run(begin_live("r1", Policy(), Txn("t2", seal=True), **NOTED))
    driver.run(begin_live("other", Policy(), Txn("t2", seal=True), **NOTED))
    driver.run(add("r3", "req", append_partition("r3", 0, 0, pack([b"a"]), LIVE), LIVE))
    driver.run(seal("r3", "req"))
    assert redis_client.pttl(keys.begun("t1")) > 0
    driver.run(abort_live(LIVE))
    driver.run(abort_live(LIVE))
    states = [str(queue.request(name).state()) for name in ("r1", "r2", "r3", "other")]
    assert states == ["cancelled", "cancelled", "active", "active"]
    assert "failed" in (queue.request("r2").progress().reason or "")


@pytest.mark.any_command
def test_an_abort_on_a_full_redis_cancels_and_raises_for_the_mark(
    driver: SyncDriver, queue: Queue, redis_client: redis.Redis
):
    """A write often fails because Redis is full."""
    for name in ("r1", "r2"):
        driver.run(begin_live(name, Policy(), LIVE, **NOTED))
    with full(redis_client), pytest.raises(RedisFull):
        driver.run(abort_live(LIVE))
    states = [str(queue.request(name).state()) for name in ("r1", "r2")]
    assert states == ["cancelled", "cancelled"]


def test_a_task_slower_than_the_abort_cancels_the_request_it_begins(
    driver: SyncDriver, queue: Queue, redis_client: redis.Redis
):
    """The abort may come between any two of its steps."""
    steps, is_over = 0, False
    while not is_over:
        redis_client.flushall()
        driver.run(start_live(LIVE))
        seen = [0]

        def see(step: Step, seen: list[int] = seen, at: int = steps) -> bool:
            if seen[0] == at:
                driver.run(abort_live(LIVE))
            seen[0] += 1
            return False

        try:
            drive(driver, begin_live("r1", Policy(), LIVE, **NOTED), see)
        except RequestEnded:
            assert queue.request("r1").state() == "cancelled", f"aborted before step {steps}"
        else:
            is_over = True
        steps += 1
    assert steps > 4
    driver.run(abort_live(LIVE))
    assert queue.request("r1").state() == "cancelled"


def test_a_write_that_is_run_again_is_not_aborted_any_more(
    driver: SyncDriver, queue: Queue, redis_client: redis.Redis
):
    driver.run(abort_live(LIVE))
    driver.run(start_live(LIVE))
    driver.run(begin_live("r1", Policy(), LIVE, **NOTED))
    assert queue.request("r1").state() == "active"
    driver.run(end_live(LIVE))
    assert redis_client.exists(keys.begun("t1")) == 0


def test_rows_for_a_deleted_request_are_refused(driver: SyncDriver, queue: Queue):
    with pytest.raises(RequestLost, match="vanished"):
        driver.run(add("r1", "req", append_partition("r1", 0, 0, pack([b"a"]), LIVE), LIVE))
    with pytest.raises(RequestLost, match="vanished"):
        driver.run(seal("r1", "req"))
    driver.run(begin_live("r1", Policy(), LIVE, by_ids=False))
    queue.request("r1").cancel("enough")
    with pytest.raises(RequestEnded, match="enough"):
        driver.run(add("r1", "req", append_partition("r1", 0, 0, pack([b"a"]), LIVE), LIVE))


def test_the_records_of_rows_by_place_stay_as_long_as_their_request_may_be_open(
    driver: SyncDriver, redis_client: redis.Redis
):
    txn = Txn("t1", True, open_ms=30 * DAY)
    driver.run(begin_live("r1", Policy(), txn, by_ids=False, is_noted=True))
    driver.run(add("r1", "req", append_partition("r1", 0, 0, pack([b"a"]), txn), txn))
    for key in (keys.transaction("r1", "t1"), keys.owner("r1"), keys.begun("t1")):
        assert redis_client.pttl(key) > 29 * DAY
