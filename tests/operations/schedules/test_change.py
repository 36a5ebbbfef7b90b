"""Tests how schedules are added, changed, listed, paused and removed, and what is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fairlane.errors import InvalidArgument, ScheduleNotFound
from fairlane.operations import schedules as change
from fairlane.operations.schedules import check_schedule_name, define
from fairlane.protocol import keys
from tests.support.both_faces import both_faces
from tests.support.operations.lost_replies import Forgetful
from tests.support.run.for_each import for_each
from tests.support.scripts.requests import once

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fairlane.protocol.steps import Operation
    from fairlane.queue import Queue

SCHEDULES, TICKS = keys.schedules("req")


@pytest.fixture
def tidy(queue: Queue, redis_client: Any) -> Iterator[Queue]:
    """Yields a queue; removes its schedules at the end."""
    yield queue
    redis_client.flushall()


def add(queue: Queue, name: str = "daily", **given: Any) -> Any:
    given = {"cron": "0 7 * * *", "bodies": [b"x"]} | given
    return queue.schedules.add(name, **given)


@both_faces
def test_a_schedule_is_added_listed_and_removed(tidy: Queue):
    made = add(tidy, tz="Europe/Berlin", missed="all", most=7, priority=2, backoff=(1.0, 2.0))
    assert made.state == "active"
    assert [moment.hour for moment in made.next(5)] == [7] * 5
    assert made.next(2) == sorted(made.next(2))
    (listed,) = tidy.schedules.list()
    assert (listed.name, listed.queue, listed.cron, listed.tz) == (
        *("daily", "req", "0 7 * * *", "Europe/Berlin"),
    )
    assert (listed.bodies, listed.missed, listed.most) == ((b"x",), "all", 7)
    assert listed.options == {"priority": 2, "backoff": [1.0, 2.0]}
    tidy.schedules.remove("daily")
    assert tidy.schedules.list() == []


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_removal_whose_replies_are_lost_finds_the_schedule(tidy: Queue, lost: int):
    add(tidy)
    Forgetful(tidy.driver, None, lost).run(change.drop_schedule("req", "daily"))
    with pytest.raises(ScheduleNotFound):
        Forgetful(tidy.driver, None, lost).run(change.drop_schedule("req", "daily"))


def test_schedules_are_listed_next_one_first_and_paused_ones_last(tidy: Queue):
    add(tidy, "late", cron="0 0 1 1 *")
    add(tidy, "paused", cron="* * * * *")
    add(tidy, "soon", cron="* * * * *")
    tidy.schedules.pause("paused")
    assert [one.name for one in tidy.schedules.list()] == ["soon", "late", "paused"]


def test_the_same_schedule_again_keeps_a_tick_that_was_missed(tidy: Queue, redis_client: Any):
    """A worker that starts registers it, and must keep the ticks that were missed before."""
    add(tidy)
    redis_client.zadd(TICKS, {"daily": 1_000})
    assert add(tidy).state == "overdue"
    assert add(tidy, bodies=[b"other"], priority=1).next_ms == 1_000
    assert add(tidy, cron="0 8 * * *").next_ms > 1_000


@both_faces
def test_a_change_does_not_resume_a_paused_schedule(tidy: Queue):
    add(tidy)
    tidy.schedules.pause("daily")
    assert add(tidy, cron="0 8 * * *").state == "paused"
    assert tidy.schedules.resume("daily").next()[0].hour == 8
    assert tidy.schedules.resume("daily").state == "active"


def test_a_put_that_another_caller_overtakes_begins_again(tidy: Queue):
    """The other caller changes the schedule between the read and the write."""
    wanted = define(cron="0 9 * * *", bodies=[b"mine"])
    operation = change.put_schedule("req", "daily", wanted)
    reply = tidy.driver.run(once(operation.send(None)))
    add(tidy, cron="0 1 * * *")
    assert rest_of(tidy, operation, reply).cron == "0 9 * * *"
    assert tidy.schedules.list()[0].next()[0].hour == 9


def rest_of(queue: Queue, operation: Operation[Any], reply: Any) -> Any:
    """Runs the rest of an operation, from this reply on; returns its result."""
    while True:
        try:
            step = operation.send(reply)
        except StopIteration as end:
            return end.value
        reply = queue.driver.run(once(step))


def test_schedules_of_apps_that_no_app_names_are_found(tidy: Queue):
    add(tidy, "by-hand")
    mine = define(cron="* * * * *", bodies=[b"x"], app=True)
    assert tidy.driver.run(change.register("req", {"old": mine, "new": mine})) == []
    assert tidy.driver.run(change.register("req", {"new": mine})) == ["old"]
    assert len(tidy.schedules.list()) == 3


# ------------------------------------------------------------------ refusals

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"cron": "0 0 31 2 *"}, "is never due"),
    ({"tz": "Mars/Base"}, "time zone 'Mars/Base' does not exist"),
    ({"bodies": []}, "a schedule has no body"),
    ({"bodies": [b"x" * 65_537]}, "bodies of the schedule are too many or too large"),
    ({"bodies": [b""] * 1001}, "bodies of the schedule are too many or too large"),
    ({"bodies": [7]}, "sub-request 0 is an int"),
    ({"missed": "some"}, "missed 'some' is not valid: write skip, one, all"),
    ({"most": 0}, "most 0 is not valid"),
    ({"most": True}, "most True is not valid"),
    ({"priority": 100}, "priority 100 is not valid"),
    ({"distinct": True}, "distinct has no meaning in a schedule"),
    ({"retain": -1}, "retain -1 s is not valid"),
    ({"name": "a b"}, "schedule 'a b' is not valid"),
    ({"name": "a:b"}, "schedule 'a:b' is not valid"),
    ({"name": "x" * 108}, "have room for 107"),
]


@for_each("given, sentence", REFUSED)
def test_a_wrong_schedule_is_refused_before_anything_is_written(
    queue: Queue, redis_client: Any, given: dict[str, Any], sentence: str
):
    with pytest.raises(InvalidArgument, match=sentence):
        add(queue, **given)
    assert redis_client.dbsize() == 0


def test_a_wrong_option_is_named(queue: Queue):
    with pytest.raises(TypeError, match="did you mean priority"):
        add(queue, priorty=1)


def test_the_longest_name_makes_a_valid_id():
    assert check_schedule_name("req", "x" * 107)


@pytest.mark.parametrize("action", ["pause", "resume", "remove"])
def test_a_schedule_that_is_not_there_is_named_with_the_closest_one(tidy: Queue, action: str):
    with pytest.raises(ScheduleNotFound, match="is not in queue req: it has no schedules"):
        getattr(tidy.schedules, action)("dayly")
    add(tidy)
    with pytest.raises(ScheduleNotFound, match=r"did you mean daily\?"):
        getattr(tidy.schedules, action)("dayly")
    with pytest.raises(ScheduleNotFound, match="fairlane schedule list --queue req"):
        getattr(tidy.schedules, action)("zzz")


def test_a_count_of_ticks_out_of_range_is_refused(tidy: Queue):
    made = add(tidy)
    with pytest.raises(InvalidArgument, match="count -1 is not valid"):
        made.next(-1)
