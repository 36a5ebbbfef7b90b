"""Tests due ticks: exactly one request for each, despite missed ticks, crashes and repeats."""

from __future__ import annotations

from datetime import datetime
from functools import partial
from itertools import combinations, product
from typing import TYPE_CHECKING, Any

import pytest

from fairlane import Change, settings
from fairlane.errors import InvalidArgument, QueueFull
from fairlane.operations import admission, schedules
from fairlane.operations.schedules import Fired, define, fire, owed, plan, request_id
from fairlane.protocol import keys, scripts
from fairlane.protocol.steps import Batch, Call, SingleServer, forward
from fairlane.queue import Queue
from tests.support.operations.stepping import apart, cut_off
from tests.support.operations.upkeep import server_ms
from tests.support.scripts.requests import once
from tests.support.servers import backends

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fairlane.drivers.sync import SyncDriver
    from fairlane.operations.schedules import Definition
    from fairlane.protocol.steps import Operation

BERLIN = "Europe/Berlin"
SCHEDULES, TICKS = keys.schedules("req")
DAY, HOUR, MINUTE = 86_400_000, 3_600_000, 60_000


def ms(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1000)


def iso(tick: int) -> str:
    return request_id("q", "n", tick).rpartition(":")[2]


def daily(missed: str = "one", **given: Any) -> Definition:
    given = {"cron": "30 2 * * *", "tz": BERLIN, "bodies": [b"go"], "missed": missed} | given
    return define(**given)


async def at(now: int, operation: Operation[Any]) -> Any:
    """Runs the operation while the clock of the dispatch slot is at this time for its schedules."""
    reply: Any = None
    while True:
        try:
            step = operation.send(reply)
        except StopIteration as end:
            return end.value
        for call in step.steps if isinstance(step, Batch) else [step]:
            if isinstance(call, Call) and call.script.name in {
                "due_schedules",
                "claim_ticks",
                "move_tick",
                "put_schedule",
            }:
                call.args = (now, *call.args[1:])
        reply = await forward(step)


class Ticking:
    """The schedules of a queue, at the time `now`."""

    def __init__(self, driver: SyncDriver, client: Any) -> None:
        self.driver, self.client = driver, client
        self.now = ms("2026-11-23T12:00+01:00")

    def run(self, operation: Operation[Any]) -> Any:
        return self.driver.run(at(self.now, operation))

    def put(self, name: str = "s", **given: Any) -> None:
        self.run(schedules.put_schedule("req", name, daily(**given)))

    def fire(self, skip: int = 0) -> Fired:
        fired = self.run(fire("req", skip))
        assert isinstance(fired, Fired)
        return fired

    def requests(self) -> list[str]:
        """Returns the ids of all requests."""
        found = [name.decode() for name in self.client.scan_iter(match=b"req:{*}", count=1000)]
        return sorted(name.removeprefix("req:{").removesuffix("}") for name in found)

    def tick(self, name: str = "s") -> float | None:
        return self.client.zscore(TICKS, name)  # type: ignore[no-any-return]


@pytest.fixture
def ticking(driver: SyncDriver, redis_client: Any) -> Iterator[Ticking]:
    """Yields a queue whose schedules have a clock of their own."""
    yield Ticking(driver, redis_client)
    redis_client.flushall()


# ------------------------------------------------------------------ which ticks are owed


def test_a_tick_of_a_few_seconds_ago_was_not_missed():
    tick = ms("2026-11-23T02:30+01:00")
    for missed in ("skip", "one", "all"):
        assert owed(daily(missed), tick, tick + settings.LATE_TICK_MS) == [tick]


def test_of_missed_ticks_each_policy_has_its_own():
    tick, now = ms("2026-11-20T02:30+01:00"), ms("2026-11-23T12:00+01:00")
    assert owed(daily("skip"), tick, now) == []
    assert owed(daily("one"), tick, now) == [tick + 3 * DAY]
    assert owed(daily("all"), tick, now) == [tick + day * DAY for day in range(4)]
    assert owed(daily("all", most=2), tick, now) == [tick + 2 * DAY, tick + 3 * DAY]


def test_beside_a_tick_of_now_no_older_one_is_owed_by_one():
    tick, now = ms("2026-11-20T02:30+01:00"), ms("2026-11-23T02:30:05+01:00")
    assert owed(daily("one"), tick, now) == [tick + 3 * DAY]
    assert owed(daily("skip"), tick, now) == [tick + 3 * DAY]


def test_ticks_that_are_not_missed_do_not_count_as_missed_ones():
    each = define(cron="* * * * * *", bodies=[b"x"], missed="all", most=1)
    assert owed(each, 1_000, 5_000) == [1_000, 2_000, 3_000, 4_000, 5_000]


@pytest.mark.parametrize(
    ("tick", "now", "expected"),
    [
        ("2026-03-28T02:30+01:00", "2026-03-30T12:00+02:00", ["0328T013000Z", "0329T010000Z"]),
        ("2026-10-24T02:30+02:00", "2026-10-26T01:00+01:00", ["1024T003000Z", "1025T003000Z"]),
    ],
    ids=["spring", "autumn"],
)
def test_missed_ticks_are_right_where_clocks_change(tick: str, now: str, expected: list[str]):
    """02:30 does not occur in spring, and occurs twice in autumn."""
    found = [iso(one) for one in owed(daily("all"), ms(tick), ms(now))]
    assert found[:2] == [f"2026{one}" for one in expected]
    assert len(found) == (3 if "03-30" in now else 2)


def test_a_tick_that_a_leader_saw_in_time_was_not_missed_however_late_it_is_submitted():
    each = define(cron="* * * * *", bodies=[b"x"], missed="skip")
    seen = [(2 * MINUTE + 9_000, 4 * MINUTE)]
    assert owed(each, MINUTE, 9 * MINUTE + 30_000, seen) == [2 * MINUTE, 3 * MINUTE, 4 * MINUTE]
    one = define(cron="* * * * *", bodies=[b"x"], missed="one")
    assert owed(one, MINUTE, 9 * MINUTE + 30_000, seen) == [
        *(2 * MINUTE, 3 * MINUTE, 4 * MINUTE, 9 * MINUTE)
    ]


def test_of_ticks_that_wait_very_long_the_latest_thousand_are_owed():
    each = define(cron="* * * * * *", bodies=[b"x"], missed="one")
    found = owed(each, 0, 5_000_000, [(0, 5_000_000)])
    assert (found[0], found[-1], len(found)) == (4_001_000, 5_000_000, settings.MISSED_MOST)


def test_many_missed_ticks_are_submitted_part_by_part():
    """A leader that ends continues at the next part."""
    definition = define(cron="* * * * *", bodies=[b"x"], missed="all", most=1000)
    moves = plan("req", "s", definition.encode(), 0, 999 * MINUTE)
    assert [len(move.ticks) for move in moves] == [400, 400, 200]
    assert [move.expected for move in moves] == [0, 400 * MINUTE, 800 * MINUTE]
    assert [move.next for move in moves] == [400 * MINUTE, 800 * MINUTE, 1000 * MINUTE]


def test_a_part_has_no_more_bytes_than_one_call_carries():
    large = define(cron="* * * * *", bodies=[b"x" * 65_536], missed="all", most=40)
    moves = plan("req", "s", large.encode(), 0, 39 * MINUTE)
    assert [len(move.ticks) for move in moves] == [15, 15, 10]


# ------------------------------------------------------------------ one request a tick


def test_a_due_tick_submits_one_request_and_the_next_tick_is_set(ticking: Ticking):
    ticking.put(priority=3, limit=2)
    assert ticking.fire().requests == 0
    ticking.now = ms("2026-11-24T02:30:01+01:00")
    fired = ticking.fire()
    assert (fired.requests, fired.waiting) == (1, {})
    assert ticking.requests() == ["req:s:20261124T013000Z"]
    assert ticking.tick() == ms("2026-11-25T02:30+01:00")
    assert ticking.fire().next_ms == ticking.tick()
    progress = Queue(ticking.driver).request("req:s:20261124T013000Z").progress()
    assert (progress.limit, progress.priority, progress.total) == (2, 3, 1)


@pytest.mark.parametrize("in_cluster", [False, True], ids=["usual", "as in a cluster"])
def test_a_leader_that_dies_anywhere_leaves_one_request_a_tick(ticking: Ticking, in_cluster: bool):
    """Its successor repeats the pass; the ticks of three schedules, one of them missed twice."""

    def passes() -> Operation[Any]:
        operation = at(ticking.now, fire("req"))
        return apart(operation) if in_cluster else operation

    for steps in range(1, 30):
        ticking.client.flushall()
        ticking.now = ms("2026-11-23T12:00+01:00")
        ticking.put("a")
        ticking.put("b", missed="all", cron="0 */12 * * *", tz="UTC")
        ticking.put("c", cron="30 4 * * *")
        ticking.now = ms("2026-11-24T12:00:01+00:00")
        was_over = cut_off(ticking.driver, passes(), steps)
        ticking.driver.run(passes())
        assert ticking.requests() == [
            "req:a:20261124T013000Z",
            "req:b:20261123T120000Z",
            "req:b:20261124T000000Z",
            "req:b:20261124T120000Z",
            "req:c:20261124T033000Z",
        ]
        assert not ticking.fire().has_moved
        assert [ticking.tick(name) for name in "abc"] == [
            *(ms("2026-11-25T02:30+01:00"), ms("2026-11-25T00:00+00:00")),
            ms("2026-11-25T04:30+01:00"),
        ]
        if was_over:
            break
    assert was_over
    assert steps > 2


MOST_STEPS = 5  # of one pass with one schedule, in a cluster


def orders() -> Iterator[str]:
    """Yields every order of the first steps of leaders a and b, each of which may end anywhere."""
    for ours, theirs in product(range(MOST_STEPS + 1), repeat=2):
        for places in combinations(range(ours + theirs), ours):
            yield "".join("a" if place in places else "b" for place in range(ours + theirs))


@pytest.mark.slow
@pytest.mark.rest  # the explorer's two leaders are in `make test`
@pytest.mark.parametrize("redis_server", backends.one(), indirect=True)
def test_two_leaders_in_any_order_give_each_tick_one_request(ticking: Ticking):
    """The clock of the second one is a day ahead, so that another tick is due. A third one follows.

    Each may end at any step, with the reply lost.
    """
    ticks = ["2026-11-24T02:30+01:00", "2026-11-25T02:30+01:00", "2026-11-26T02:30+01:00"]
    before, first, second = ms("2026-11-23T12:00+01:00"), *(ms(tick) + 1_000 for tick in ticks[:2])
    played = 0
    for order in orders():
        ticking.client.flushall()
        ticking.now = before
        ticking.put(missed="all")
        leaders = {
            name: Stepped(ticking.driver, partial(beginning, now))
            for name, now in (("a", first), ("b", second))
        }
        if not all(leaders[name].step() for name in order):
            continue  # a leader had ended before: another order has the same steps
        played += 1
        ticking.now = second
        while ticking.fire().has_moved:
            pass
        assert ticking.requests() == [request_id("req", "s", ms(tick)) for tick in ticks[:2]], order
        assert ticking.tick() == ms(ticks[2]), order
    assert played > 200


class Stepped:
    """A pass that runs step by step; `begins` makes it at its first step."""

    def __init__(self, driver: SyncDriver, begins: Callable[[], Operation[Any]]) -> None:
        self._driver, self._begins = driver, begins
        self._operation: Operation[Any] | None = None
        self._reply: Any = None

    def step(self) -> bool:
        """Runs a step; returns False if there is none."""
        self._operation = self._operation or self._begins()
        try:
            step = self._operation.send(self._reply)
        except StopIteration:
            return False
        self._reply = self._driver.run(once(step))
        return True


def beginning(now: int) -> Operation[Any]:
    """Returns a pass of a leader whose clock shows this time."""
    return apart_steps(at(now, fire("req")))


async def apart_steps(operation: Operation[Any]) -> Any:
    """Returns the steps of the operation in a cluster, where the creation takes three."""
    reply: Any = None
    while True:
        try:
            step = operation.send(reply)
        except StopIteration:
            return
        reply = None if isinstance(step, SingleServer) else await forward(step)


def test_a_schedule_that_is_paused_submits_nothing_and_owes_nothing_later(ticking: Ticking):
    ticking.put(missed="all")
    paused = ticking.run(schedules.pause("req", "s"))
    assert (paused.state, paused.next(5)) == ("paused", [])
    ticking.now += 3 * DAY
    assert not ticking.fire().has_moved
    resumed = ticking.run(schedules.resume("req", "s"))
    assert resumed.next()[0].isoformat() == "2026-11-27T02:30:00+01:00"
    assert not ticking.fire().has_moved
    assert ticking.requests() == []


def test_a_leader_that_read_a_schedule_before_it_was_paused_does_not_resume_it(ticking: Ticking):
    ticking.put()
    ticking.now += DAY
    first = at(ticking.now, fire("req"))
    reply = ticking.driver.run(once(first.send(None)))
    ticking.run(schedules.pause("req", "s"))
    try:
        while True:
            reply = ticking.driver.run(once(first.send(reply)))
    except StopIteration:
        pass
    assert ticking.tick() is None


def test_a_thousand_schedules_of_one_second_are_submitted_in_bounded_passes(ticking: Ticking):
    for number in range(250):
        ticking.put(f"s{number}")
    ticking.now += DAY
    passes = []
    while (fired := ticking.fire()).has_moved:
        passes.append(fired.requests)
    assert passes == [100, 100, 50]
    assert len(ticking.requests()) == 250


# ------------------------------------------------------------------ what can't be submitted


def test_without_room_a_tick_waits_and_is_submitted_later(ticking: Ticking):
    ticking.driver.run(admission.set_max_waiting("req", 1))
    Queue(ticking.driver).submit_request([b"there before"], id="r1")
    ticking.put("a")
    ticking.put("b")
    ticking.now += DAY
    fired = ticking.fire()
    assert fired.full is not None
    assert isinstance(fired.waiting["a"], QueueFull)
    ticking.driver.run(admission.set_max_waiting("req", 0))
    ticking.fire()
    assert ticking.requests() == ["r1", "req:a:20261124T013000Z", "req:b:20261124T013000Z"]


@pytest.mark.parametrize("missed", ["skip", "one", "all"])
def test_a_tick_that_a_leader_saw_gets_its_request_when_there_is_room(
    ticking: Ticking, missed: str
):
    """All leaders may be away for an hour in between."""
    ticking.driver.run(admission.set_max_waiting("req", 1))
    Queue(ticking.driver).submit_request([b"there before"], id="r1")
    ticking.put("a", missed=missed)
    ticking.now = ms("2026-11-24T02:30:01+01:00")
    assert ticking.fire().full is not None
    ticking.now += HOUR
    assert ticking.fire().full is not None
    ticking.driver.run(admission.set_max_waiting("req", 0))
    assert ticking.fire().requests == 1
    assert ticking.requests() == ["r1", "req:a:20261124T013000Z"]


@pytest.mark.rest
@pytest.mark.parametrize("missed", ["skip", "one", "all"])
def test_no_tick_is_dropped_while_the_leader_needs_long_for_all_that_is_due(
    ticking: Ticking, missed: str
):
    for number in range(250):
        ticking.put(f"s{number}", missed=missed)
    ticking.now = ms("2026-11-24T02:30:09+01:00")
    for _ in range(3):
        assert ticking.fire().requests
        ticking.now += HOUR
    assert len(ticking.requests()) == 250


@pytest.mark.parametrize("missed", ["skip", "one", "all"])
def test_ticks_that_come_while_there_is_no_room_are_all_submitted_later(
    ticking: Ticking, missed: str
):
    ticking.driver.run(admission.set_max_waiting("req", 1))
    Queue(ticking.driver).submit_request([b"there before"], id="r1")
    ticking.put("a", cron="* * * * * *", missed=missed)
    for _ in range(5):
        ticking.now += 5_000
        ticking.fire()
    ticking.driver.run(admission.set_max_waiting("req", 0))
    ticking.fire()
    assert len(ticking.requests()) == 1 + 25


def test_a_beat_of_the_leader_counts_as_a_look(ticking: Ticking):
    """Its scheduler may be in a long call."""
    ticking.put(missed="skip")
    ticking.now = ms("2026-11-24T02:30:05+01:00")
    names = (keys.workers("req"), keys.worker("req", "w:1"), keys.conf("req"))
    same: dict[str, Any] = {"id": "w:1", "started": 7, "ttl": 60_000, "now": ticking.now}
    home = (*names, keys.task_stats("req"))
    call = scripts.register_worker(home, host="b", pid=1, late=2_000, release="", **same)
    ticking.driver.run(once(call))
    slot = (*names[:2], keys.active("req"), keys.delayed("req"), names[2])
    every = (*slot, keys.taken("req", "w:1"), TICKS, keys.firing("req"))
    given: dict[str, Any] = {"lock_ms": 2_500, "holds": "", "taken_ttl": 600_000, "died": ""}
    ticking.driver.run(once(scripts.heartbeat(every, **same, **given)))
    ticking.now += HOUR
    assert ticking.fire().requests == 1


# ------------------------------------------------------------------ a leader that died


def die_before_the_move(ticking: Ticking) -> None:
    """Fires as a leader that ends after the submission."""
    operation = at(ticking.now, fire("req"))
    step = operation.send(None)
    while not is_move(step.steps[0] if isinstance(step, Batch) else step):
        step = operation.send(ticking.driver.run(once(step)))


def is_move(step: object) -> bool:
    return isinstance(step, Call) and step.script.name == "move_tick"


def end_of(ticking: Ticking, request_id: str, how: str) -> None:
    """Ends the request of a tick, and lets its tombstone expire."""
    request = Queue(ticking.driver).request(request_id)
    if how == "cancelled":
        request.cancel("no")
    elif how == "lost":
        ticking.client.zadd(keys.active("req"), {request_id: 5.5})
    ticking.client.delete(*keys.request_keys(request_id))


@pytest.mark.parametrize("how", ["cancelled", "lost"])
def test_a_tick_whose_request_has_expired_is_not_submitted_again(ticking: Ticking, how: str):
    ticking.put()
    ticking.now = ms("2026-11-24T02:30:01+01:00")
    die_before_the_move(ticking)
    (made,) = ticking.requests()
    end_of(ticking, made, how)
    ticking.now += HOUR
    fired = ticking.fire()
    assert (fired.requests, fired.has_moved, ticking.requests()) == (0, True, [])
    assert ticking.tick() == ms("2026-11-25T02:30+01:00")
    ticking.now += DAY
    assert ticking.fire().requests == 1


def test_a_tick_whose_request_a_person_deleted_is_not_submitted_again(ticking: Ticking):
    ticking.put()
    ticking.now = ms("2026-11-24T02:30:01+01:00")
    die_before_the_move(ticking)
    (made,) = ticking.requests()
    queue = Queue(ticking.driver)
    queue.change(queue.select(Change.delete(cancel=True), made))
    assert ticking.fire().requests == 0


def test_a_tick_that_a_leader_began_with_and_never_submitted_is_submitted(ticking: Ticking):
    """The leader died between its note and the request, and none lived for an hour."""
    ticking.put(missed="skip")
    ticking.now = ms("2026-11-24T02:30:01+01:00")
    ticking.driver.run(once(at(ticking.now, fire("req")).send(None)))
    ticking.now += HOUR
    assert ticking.fire().requests == 1


@pytest.mark.parametrize("others", [0, 100])
def test_a_full_queue_forgets_no_tick_that_a_dead_leader_submitted(ticking: Ticking, others: int):
    """Other schedules, which are due earlier, may be the ones that find no room."""
    ticking.put(cron="0 3,4 * * *", missed="all")
    ticking.now = ms("2026-11-24T03:00:01+01:00")
    die_before_the_move(ticking)
    (made,) = ticking.requests()
    end_of(ticking, made, "cancelled")
    ticking.driver.run(admission.set_max_waiting("req", 1))
    Queue(ticking.driver).submit_request([b"there before"], id="r1")
    for number in range(others):
        ticking.put(f"o{number}")
        ticking.client.zadd(TICKS, {f"o{number}": ticking.now - DAY})
    ticking.now += HOUR
    assert ticking.fire(max(0, others - 50)).full is not None
    Queue(ticking.driver).request("r1").cancel()
    ticking.driver.run(admission.set_max_waiting("req", 0))
    for _ in range(3):
        ticking.fire()
    mine = [name for name in ticking.requests() if name.startswith("req:s:")]
    assert mine == ["req:s:20261124T030000Z"]


def test_a_full_queue_forgets_no_tick_that_had_room(ticking: Ticking):
    """Of two ticks of a schedule, the first one had room."""
    ticking.driver.run(admission.set_max_waiting("req", 1))
    ticking.put(cron="0 3,4 * * *", missed="all")
    ticking.now = ms("2026-11-24T04:00:01+01:00")
    fired = ticking.fire()
    assert (fired.requests, fired.full is None) == (1, False)
    (made,) = ticking.requests()
    end_of(ticking, made, "cancelled")
    ticking.driver.run(admission.set_max_waiting("req", 0))
    ticking.now += HOUR
    ticking.fire()
    assert ticking.requests() == ["req:s:20261124T030000Z"]


def test_nothing_is_left_of_a_tick_that_was_submitted(ticking: Ticking):
    ticking.put()
    ticking.now += DAY
    ticking.fire()
    assert b"s" not in ticking.client.hgetall(keys.firing("req"))
    ticking.run(schedules.drop_schedule("req", "s"))
    assert not ticking.client.exists(keys.firing("req"))


# ------------------------------------------------------------------ the clock of Redis


def test_a_tick_that_was_set_while_the_clock_was_ahead_is_void(ticking: Ticking):
    right = ticking.now
    ticking.put("a", cron="*/5 * * * *", tz="UTC", missed="skip")
    ticking.put("b", cron="0 0 1 1 *", tz="UTC")
    later = ticking.tick("b")
    ticking.now = right + 2 * HOUR
    ticking.put("c", cron="*/5 * * * *", tz="UTC")
    ticking.fire()
    assert ticking.tick("a") == right + 2 * HOUR + 5 * MINUTE
    ticking.now = right
    while ticking.fire().has_moved:
        pass
    assert [ticking.tick(name) for name in "abc"] == [
        *(right + 5 * MINUTE, later, right + 5 * MINUTE)
    ]
    before = ticking.requests()
    ticking.now += 5 * MINUTE + 1
    assert ticking.fire().requests == 2
    assert len(ticking.requests()) == len(before) + 2


def test_a_clock_that_goes_back_a_little_moves_no_tick(ticking: Ticking):
    ticking.put("a", cron="*/5 * * * *", tz="UTC")
    tick = ticking.tick("a")
    ticking.now -= 900
    assert not ticking.fire().has_moved
    assert ticking.tick("a") == tick


# ------------------------------------------------------------------ what can't be read


def test_a_definition_that_cannot_be_read_does_not_stop_the_others(ticking: Ticking):
    ticking.put("a")
    ticking.put("b")
    ticking.put("later")
    ticking.client.hset(SCHEDULES, "a", b'{"cron":7}')
    newer = daily().encode().replace(b'"options":{}', b'"options":{"later_s":1}')
    ticking.client.hset(SCHEDULES, "later", newer)
    ticking.now += DAY
    fired = ticking.fire()
    assert "option later_s is not valid" in str(fired.waiting["later"])
    assert str(fired.waiting["a"]) == (
        "its definition cannot be read (Expected `str`, got `int` - at `$.cron`): "
        "a newer release may have written it"
    )
    assert ticking.requests() == ["req:b:20261124T013000Z"]
    assert not ticking.fire(skip=2).has_moved
    with pytest.raises(InvalidArgument, match="schedule a: its definition cannot be read"):
        ticking.run(schedules.list_schedules("req"))


def test_a_tick_whose_request_a_person_cancelled_is_not_submitted_again(ticking: Ticking):
    ticking.put()
    ticking.now += DAY
    ticking.fire()
    Queue(ticking.driver).request("req:s:20261124T013000Z").cancel("no")
    ticking.client.zadd(TICKS, {"s": ms("2026-11-24T02:30+01:00")})
    fired = ticking.fire()
    assert (fired.requests, fired.waiting, fired.has_moved) == (0, {}, True)
    assert ticking.tick() == ms("2026-11-25T02:30+01:00")


def test_the_clock_is_that_of_the_server(driver: SyncDriver, redis_client: Any):
    before = server_ms(redis_client)
    fired = driver.run(fire("req"))
    assert before <= fired.now_ms <= server_ms(redis_client)
