"""Tests the scripts of keys, and how acquire and exchange refuse a full key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fairlane.errors import FairlaneError
from fairlane.operations.limit_keys import LINE
from fairlane.protocol import keys
from tests.scripts.lease.test_exchange import exchange
from tests.support.run.for_each import for_each
from tests.support.scripts.called import called
from tests.support.scripts.requests import once
from tests.support.servers import backends

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fairlane.queue import Queue
    from tests.support.scripts.requests import Lane

pytestmark = pytest.mark.parametrize("redis_server", backends.one(), indirect=True)

LIMITS = keys.of_limits("req")
KEY = keys.limit_key("req", "x")
OWN = keys.lanes("req")[5]
HELD = -1.0


@pytest.fixture(autouse=True)
def _clean(lane: Lane) -> Iterator[None]:
    """Removes the tokens of requests that never were."""
    yield
    for key in (*lane.client.scan_iter("{req}:key:*"), LIMITS[3]):
        lane.client.delete(key)


def run(lane: Lane, script: str, keys_named: tuple[bytes, ...], **given: Any) -> Any:
    return lane.driver.run(once(called(lane.scripts[script], keys_named, **given)))


def place(lane: Lane, *rows: Any) -> Any:
    return run(lane, "place_tokens", LIMITS[:3], rows=list(rows))


def set_limit(lane: Lane, limit: Any, name: str = "x", by: str = "set") -> Any:
    names = (*LIMITS, keys.limit_key("req", name))
    reply: Any = run(lane, "set_key_limit", names, name=name, limit=limit, by=by)
    assert reply[0] == b"ok"
    return reply[1]


def check(lane: Lane, *names: str) -> Any:
    return run(lane, "check_keys", LIMITS, first=0, most=1_000, names=list(names))


def zones(lane: Lane, name: str = "x") -> dict[str, str]:
    """Returns whether each member of a key is held, called, noted, or waits."""
    found: Any = lane.client.zrange(keys.limit_key("req", name), 0, -1, withscores=True)
    words = {}
    for member, score in found:
        word = "held" if score < 0 else "called" if score < LINE - 1 else "waits"
        words[member.decode()] = "noted" if score == LINE - 1 else word
    return words


def in_lane(lane: Lane) -> list[str]:
    """Returns the tokens of the lane, the next one first."""
    found: Any = lane.client.lrange(OWN, 0, -1)
    return [token.decode() for token in reversed(found)]


def limits(lane: Lane) -> Any:
    return lane.client.hgetall(LIMITS[3])


def token(number: int, keys_named: str = "x=1") -> str:
    return f"r{number}#0.1%{keys_named}"


# ------------------------------------------------------------------ place_tokens


def test_a_token_with_room_goes_to_its_lane_and_the_next_one_waits(one: Lane):
    assert place(one, 5, token(1), 5, token(2)) == 2
    assert in_lane(one) == [token(1)]
    assert zones(one) == {token(1): "called", token(2): "waits"}
    assert limits(one) == {b"x": b"1"}


def test_a_token_that_waits_for_one_key_is_in_no_other(one: Lane):
    place(one, 5, token(1), 5, token(2, "y=1,x=1"))
    assert zones(one) == {token(1): "called", token(2, "y=1,x=1"): "waits"}
    assert zones(one, "y") == {}


def test_a_token_that_is_placed_twice_is_in_its_lane_twice_and_counted_once(one: Lane):
    """Its first copy may be lost; the second acquire is stale."""
    place(one, 5, token(1))
    place(one, 5, token(1))
    assert in_lane(one) == [token(1)] * 2
    assert zones(one) == {token(1): "called"}


def test_a_token_that_waits_and_is_placed_again_keeps_its_place(one: Lane):
    place(one, 5, token(1), 5, token(2), 5, token(3))
    place(one, 5, token(2))
    assert [*zones(one)] == [token(1), token(2), token(3)]
    assert in_lane(one) == [token(1)]


def test_a_full_key_calls_a_more_urgent_token_beside_the_called_one(one: Lane):
    place(one, 9, token(1))
    place(one, 5, token(2))
    assert zones(one) == {token(1): "called", token(2): "called"}
    assert in_lane(one) == [token(2)]


@for_each(
    "rows",
    [
        [],
        [5],
        [5, "r1#0.1"],
        [5, "r1#0.1%"],
        [5, "r1#0.1%x"],
        [5, "r1#0.1%x=a"],
        [5, "r1%x=1"],
        [5, "#0.1%x=1"],
        [100, "r1#0.1%x=1"],
        ["a", "r1#0.1%x=1"],
        [5, "r1#0.1%x=1", 5, "r2"],
        [5, "r1#0.1%x=1"] * 451,
    ],
)
def test_malformed_tokens_are_refused_before_any_is_placed(one: Lane, rows: list[Any]):
    with pytest.raises(FairlaneError, match="BADTOKENS"):
        place(one, *rows)
    assert one.client.dbsize() == 0


# ------------------------------------------------------------------ set_key_limit


def test_a_higher_limit_calls_as_many_as_it_has_room_for(one: Lane):
    place(one, *(word for n in range(4) for word in (5, token(n))))
    assert set_limit(one, 3) == b"1"
    assert in_lane(one) == [token(0), token(1), token(2)]
    assert limits(one) == {b"x": b"3 set"}
    assert set_limit(one, 3) == b"3"  # a repeat
    assert len(in_lane(one)) == 3


def test_a_token_that_came_lately_keeps_no_place_while_another_key_is_full(one: Lane):
    place(one, 5, token(1), 5, token(2, "y=1"), 5, token(3, "x=1,y=1"), 5, token(4))
    set_limit(one, 2)
    assert zones(one) == {token(1): "called", token(4): "called"}
    assert zones(one, "y") == {token(2, "y=1"): "called", token(3, "x=1,y=1"): "waits"}


def test_a_place_is_kept_by_another_one_when_its_keeper_waits_for_the_key_again(one: Lane):
    keeper, urgent = token(3, "x=1,y=1"), token(4, "x=1,z=1")
    place(one, 0, token(1), 0, token(2, "z=1"), 5, keeper, 0, urgent)
    one.client.hset(LIMITS[0], mapping={"ticket": 500, "kept:x": keeper})
    set_limit(one, 2)
    assert zones(one) == {token(1): "called", urgent: "called", keeper: "waits"}
    assert zones(one, "z") == {token(2, "z=1"): "called", urgent: "waits"}
    one.client.hdel(LIMITS[0], "kept:x")


def test_a_line_that_a_call_did_not_work_off_is_noted_in_that_of_the_other_key(one: Lane):
    """A call looks at 100 tokens; the next change of the other key goes on."""
    rows = [word for n in range(150) for word in (5, token(n + 3, "x=1,y=1"))]
    place(one, 5, token(1), 5, token(2, "y=1"), *rows)
    reply: Any = run(one, "set_key_limit", (*LIMITS, KEY), name="x", limit=3, by="set")
    assert reply == [b"more", b"1"]
    assert zones(one, "y")["%x"] == "noted"
    assert len(zones(one)) == 2 + 50  # one of them keeps its place
    set_limit(one, 2, name="y")
    assert "%x" not in zones(one, "y")


def test_a_lower_limit_takes_nothing_back(one: Lane):
    place(one, 5, token(1, "x=2"), 5, token(2, "x=2"))
    assert set_limit(one, 1) == b"2"
    assert [*zones(one).values()] == ["called", "called"]


def test_the_limit_of_a_key_that_is_not_in_use_waits_for_its_first_token(one: Lane):
    assert set_limit(one, 2) == b""
    place(one, 5, token(1), 5, token(2), 5, token(3))
    assert in_lane(one) == [token(1), token(2)]


def test_a_limit_is_taken_back_twice(one: Lane):
    set_limit(one, 2)
    assert set_limit(one, 0) == b"2"
    assert set_limit(one, 0) == b""
    assert one.client.dbsize() == 0


def test_a_limit_that_is_taken_back_stays_while_the_key_is_in_use(one: Lane):
    set_limit(one, 2)
    place(one, 5, token(1))
    assert set_limit(one, 0) == b"2"
    assert limits(one) == {b"x": b"2"}


@for_each("limit", ["", "many", -1, 10_001, 1.5, "nan"])
def test_a_malformed_limit_is_refused(one: Lane, limit: Any):
    with pytest.raises(FairlaneError, match="BADLIMIT"):
        set_limit(one, limit)
    assert one.client.dbsize() == 0


def test_a_limit_by_hand_is_in_force_until_it_is_taken_back(one: Lane):
    """Then the last number that a worker has registered for its task is in force again."""
    for number, by, text in (
        (3, "task", b"3 task"), (3, "task", b"3 task"), (9, "set", b"9 set 3"),
        (4, "task", b"9 set 4"), (9, "set", b"9 set 4"), (0, "set", b"4 task"),
        (0, "set", b"4 task"), (9, "set", b"9 set 4"), (0, "task", b"9 set"),
        (5, "task", b"9 set 5"),
    ):  # fmt: skip
        set_limit(one, number, by=by)
        assert limits(one) == {b"x": text}
    set_limit(one, 0, by="set")
    set_limit(one, 0, by="task")
    assert one.client.dbsize() == 0


def test_the_limit_of_a_task_stays_without_calls_and_changes_with_them(one: Lane):
    set_limit(one, 2, by="task")
    place(one, *(word for n in range(4) for word in (5, token(n, "x=9"))))
    assert in_lane(one) == [token(0, "x=9"), token(1, "x=9")]
    assert set_limit(one, 3, by="task") == b"2"
    assert len(in_lane(one)) == 3
    assert set_limit(one, 0, by="task") == b"3"
    assert limits(one) == {b"x": b"3"}


@for_each("by", ["", "both", 1])
def test_a_limit_of_neither_a_person_nor_a_task_is_refused(one: Lane, by: Any):
    with pytest.raises(FairlaneError, match="BADLIMIT"):
        set_limit(one, 1, by=by)
    assert one.client.dbsize() == 0


def test_the_limit_of_a_key_without_a_name_is_refused(one: Lane):
    with pytest.raises(FairlaneError, match="BADLIMIT"):
        set_limit(one, 1, name="")


# ------------------------------------------------------------------ check_keys


def test_what_has_no_lease_and_no_permit_is_corrected_once(queue: Queue, lane: Lane):
    queue.submit_request(["a"], id="r1", limits={"x": 1})
    queue.submit_request(["a"], id="r2", limits={"x": 1})
    (own,) = in_lane(lane)
    queued = own.partition("%")[0]
    wrong = {"gone#0.7": HELD, "r1#0.9": HELD, queued: HELD, "r1#0.9%x=1": 3}
    lane.client.zadd(KEY, wrong)
    assert check(lane, "x") == 4
    assert check(lane, "x") == 0
    assert zones(lane) == {own: "called", own.replace("r1", "r2"): "waits"}


def test_a_key_that_was_full_by_damage_calls_the_next(queue: Queue, lane: Lane):
    lane.client.zadd(KEY, {"gone#0.7": HELD})
    queue.submit_request(["a"], id="r1", limits={"x": 1})
    assert in_lane(lane) == []
    assert check(lane, "x") == 1
    assert len(in_lane(lane)) == 1


def test_a_lease_of_a_request_keeps_its_key(queue: Queue, lane: Lane):
    queue.submit_request(["a", "b"], id="r1", limits={"x": 1})
    (one,) = queue.take(1, visible_for=60)
    assert check(lane, "x") == 0
    assert [*zones(lane).values()][:1] == ["held"]
    one.done(b"")


def test_what_an_ended_request_has_left_is_corrected(queue: Queue, lane: Lane):
    queue.submit_request(["a"], id="r1", limits={"x": 1})
    (one,) = queue.take(1, visible_for=60)
    (member,) = zones(lane)
    one.done(b"")
    lane.client.zadd(KEY, {member: HELD})
    lane.client.hset(LIMITS[3], "x", "1")
    assert check(lane, "x") == 1
    assert limits(lane) == {}
    assert not lane.client.exists(KEY)


def test_a_limit_without_users_is_forgotten_unless_it_was_set(one: Lane):
    one.client.hset(LIMITS[3], mapping={"x": "1", "y": "2 set"})
    assert check(one, "x", "y", "unknown") == 0
    assert limits(one) == {b"y": b"2 set"}


@for_each("first, most", [(-1, 9), ("x", 9), (0, 0), (0, 1_001), (0, "x")])
def test_a_malformed_part_of_the_entries_is_refused(one: Lane, first: Any, most: Any):
    with pytest.raises(FairlaneError, match="BADARGUMENT"):
        run(one, "check_keys", LIMITS, first=first, most=most, names=["x"])


@for_each("count", [0, 101])
def test_no_keys_and_too_many_keys_are_refused(one: Lane, count: int):
    with pytest.raises(FairlaneError, match="BADARGUMENT"):
        check(one, *["x"] * count)


# ------------------------------------------------------------------ resume_key


def resume(lane: Lane, name: str = "!x") -> Any:
    return run(lane, "resume_key", (*LIMITS, keys.limit_key("req", name)), name=name)


def stop(queue: Queue, lane: Lane) -> None:
    """Ends the first of two requests with a dead sub-request, which stops the other one."""
    for name in ("r1", "r2"):
        queue.submit_request(["a"], id=name, order_key="x", order_on_dead="stop")
    (taken,) = queue.take(9, visible_for=60)
    taken.dead("no")
    assert in_lane(lane) == []


def test_a_stop_of_an_order_is_lifted_once(queue: Queue, lane: Lane):
    stop(queue, lane)
    assert resume(lane) == b"r1"
    assert [token.partition("#")[0] for token in in_lane(lane)] == ["r2"]
    assert resume(lane) == b""
    assert len(in_lane(lane)) == 1


def test_a_stop_that_nothing_waits_for_is_forgotten_when_it_is_lifted(queue: Queue, lane: Lane):
    stop(queue, lane)
    queue.request("r2").cancel()
    assert resume(lane) == b"r1"
    assert limits(lane) == {}


@for_each("name", ["x", "!", "!a b", "", "!x=1"])
def test_what_is_no_order_key_is_not_resumed(one: Lane, name: str):
    with pytest.raises(FairlaneError, match="BADARGUMENT"):
        resume(one, name)
    assert one.client.dbsize() == 0


# ------------------------------------------------------------------ acquire and exchange


def fill(lane: Lane) -> None:
    """Lets a lease that is none of these requests hold the key."""
    lane.client.zadd(KEY, {"other#0.1": HELD})


def test_acquire_leaves_the_permit_queued_and_the_token_in_line(queue: Queue, lane: Lane):
    queue.submit_request(["a"], id="r1", limits={"x": 1})
    (own,) = in_lane(lane)
    lane.client.delete(OWN)
    fill(lane)
    k, _, g = own.partition("%")[0].partition("#")[2].partition(".")
    before = lane.hash()
    given: dict[str, Any] = {
        "worker": "w:1",
        "started": "7",
        "shared": "",
        "allowance": "",
        "wait": "",
    }
    given |= {"k": k, "g": g, "op": lane.new_op(), "count": 1, "token": own}
    for _ in range(2):
        assert lane.request("acquire", **given) == [b"full"]
        assert lane.hash() == before
        assert zones(lane) == {"other#0.1": "held", own: "waits"}
    lane.client.zrem(KEY, "other#0.1")
    check(lane, "x")
    assert in_lane(lane) == [own]
    assert lane.request("acquire", **given)[0] == b"ok"


def test_a_token_with_two_full_keys_waits_for_the_first_of_them(queue: Queue, lane: Lane):
    for name in ("r1", "r2"):
        queue.submit_request(["a"], id=name, limits={"x": 2, "y": 2})
    assert len(queue.take(1, visible_for=60)) == 1
    set_limit(lane, 1)
    set_limit(lane, 1, name="y")
    assert queue.take(1, visible_for=60) == []
    assert [*zones(lane).values()] == ["held", "waits"]
    assert [*zones(lane, "y").values()] == ["held"]


def test_a_token_that_is_refused_gives_its_other_keys_to_others(queue: Queue, lane: Lane):
    queue.submit_request(["a"], id="r1", limits={"y": 1, "x": 1})
    queue.submit_request(["a"], id="r2", limits={"y": 1})
    fill(lane)
    assert exchange(lane).words == ["full"]
    assert [*zones(lane, "y").values()] == ["called"]
    assert [*zones(lane).values()] == ["held", "waits"]
    assert exchange(lane).words == ["ok"]


@for_each("end", ["stale", "ended", "gone"])
def test_a_token_that_cannot_start_gives_its_key_to_the_next(queue: Queue, lane: Lane, end: str):
    queue.submit_request(["a"], id="r1", limits={"x": 1})
    queue.submit_request(["a"], id="r2", limits={"x": 1})
    (own,) = in_lane(lane)
    lane.checked = False
    if end == "gone":
        lane.client.delete(*keys.request_keys("r1"))
    else:
        request = queue.request("r1")
        request.set_priority(6) if end == "stale" else request.cancel()
        lane.client.zadd(KEY, {own: 1})
        lane.client.rpush(OWN, own)
    words = exchange(lane).words
    assert own not in zones(lane)
    assert words == [end]
    assert len(in_lane(lane)) >= 1
