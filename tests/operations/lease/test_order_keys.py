"""Tests order keys: the sub-requests of a key start one at a time, in the order of submission."""

from __future__ import annotations

import random
from collections import defaultdict
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from fairlane.errors import InvalidArgument, RequestEnded
from fairlane.operations.lease import reap
from fairlane.operations.limit_keys import LINE, check_all, names_in_use
from fairlane.operations.tokens import follow_up, place_tokens
from fairlane.operations.workers import promote
from fairlane.protocol import keys
from fairlane.protocol.steps import Batch
from tests.support.run.for_each import for_each
from tests.support.scripts.requests import ask, once
from tests.support.servers import backends

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairlane.queue import Queue
    from fairlane.taken import Taken
    from tests.support.scripts.requests import Lane

pytestmark = pytest.mark.parametrize("redis_server", backends.one(), indirect=True)
HOUR_S = 3600


def take(queue: Queue, count: int = 10) -> list[Taken]:
    return queue.take(count, visible_for=60)


def take_one(queue: Queue) -> Taken:
    (one,) = take(queue)
    return one


def names(taken: list[Taken]) -> list[str]:
    return [one.id for one in taken]


def places(lane: Lane, name: str = "chat") -> list[str]:
    found: Any = lane.client.zrange(keys.limit_key("req", f"!{name}"), 0, -1)
    return [member.decode() for member in found]


def wake(lane: Lane) -> None:
    """Makes each token that is due later due now."""
    delayed: Any = lane.client.zrange(keys.delayed("req"), 0, -1)
    if delayed:
        lane.client.zadd(keys.delayed("req"), dict.fromkeys(delayed, 1))
    lane.run(promote("req", (0,)))


def test_requests_of_a_key_run_one_after_the_other_in_their_order(queue: Queue, lane: Lane):
    for n in range(3):
        queue.submit_request(["a", "b"], id=f"r{n}", order_key="chat", priority=90 - n)
    began = []
    for _ in range(6):
        one = take_one(queue)
        began.append((one.id, one.index))
        one.done(b"")
    assert began == [(f"r{n}", i) for n in range(3) for i in range(2)]


def test_other_keys_and_requests_without_a_key_do_not_wait(queue: Queue, lane: Lane):
    for name, key in (("r1", "a"), ("r2", "a"), ("r3", "b")):
        queue.submit_request(["x"], id=name, order_key=key)
    queue.submit_request(["x"], id="r4")
    assert names(take(queue)) == ["r1", "r3", "r4"]


def test_a_request_that_waits_for_its_turn_is_in_no_lane(queue: Queue, lane: Lane):
    for n in range(20):
        queue.submit_request(["a"], id=f"r{n}", order_key="chat")
    assert lane.client.llen(keys.lanes("req")[queue.request("r1").progress().priority]) == 1


def test_one_that_fails_holds_back_those_behind_it_in_its_pause(queue: Queue, lane: Lane):
    for n in range(2):
        queue.submit_request(["a", "b"], id=f"r{n}", order_key="chat")
    take_one(queue).release(delay_s=60)
    assert take(queue) == []
    lane.client.zadd(
        keys.retries("r0"), dict.fromkeys(lane.client.zrange(keys.retries("r0"), 0, -1), 1)
    )
    wake(lane)
    again = take_one(queue)
    assert (again.id, again.index) == ("r0", 0)


def test_one_that_is_dead_lets_the_others_go_on(queue: Queue, lane: Lane):
    for n in range(2):
        queue.submit_request(["a"], id=f"r{n}", order_key="chat")
    take_one(queue).dead("no")
    assert names(take(queue)) == ["r1"]


def test_one_that_is_dead_stops_the_others_until_they_are_resumed(queue: Queue, lane: Lane):
    for n in range(3):
        queue.submit_request(["a"], id=f"r{n}", order_key="chat", order_on_dead="stop")
    take_one(queue).dead("no")
    assert take(queue) == []
    found = queue.key("chat")
    assert (found.stopped_by, found.waiting, found.holders) == ("r0", 2, ())
    (cause, *_) = [one for one in queue.request("r1").why().causes if one.kind == "key"]
    assert "fairlane key resume chat" in cause.text
    assert queue.resume_key("chat") == "r0"
    assert queue.resume_key("chat") is None
    assert names(take(queue)) == ["r1"]


@for_each("end", ["done", "dead", "cancel", "cancelled while held", "expiry", "empty"])
def test_each_end_of_a_request_gives_the_turn_to_the_next(queue: Queue, lane: Lane, end: str):
    name = end[:9]
    first, second = f"{name}1", f"{name}2"
    bodies = [] if end == "empty" else ["a"]
    queue.submit_request(bodies, id=first, order_key=name, attempts=1)
    queue.submit_request(["a"], id=second, order_key=name)
    if end == "cancel":
        queue.request(first).cancel()
    elif end != "empty":
        one = take_one(queue)
        if end == "dead":
            one.dead("no")
        elif end == "expiry":
            lane.client.zadd(keys.leases(first), {"0": 1})
            reply = lane.run(ask(reap("req", first)))
            lane.driver.run(once(Batch(follow_up("req", (first, reply)))))
        else:
            if end != "done":
                queue.request(first).cancel()
            one.done(b"")
    assert names(take(queue)) == [second]
    queue.request(second).cancel()


def test_one_that_starts_later_holds_its_place(queue: Queue, lane: Lane):
    queue.submit_request(["a"], id="r1", order_key="chat", delay=HOUR_S)
    queue.submit_request(["a"], id="r2", order_key="chat")
    assert take(queue) == []
    queue.request("r1").cancel()
    assert names(take(queue)) == ["r2"]


def test_a_paused_request_holds_its_place(queue: Queue, lane: Lane):
    queue.submit_request(["a"], id="r1", order_key="chat")
    queue.submit_request(["a"], id="r2", order_key="chat")
    queue.request("r1").pause()
    assert take(queue) == []
    queue.request("r1").resume()
    assert names(take(queue)) == ["r1"]


def test_a_new_priority_keeps_the_place(queue: Queue, lane: Lane):
    for n in range(3):
        queue.submit_request(["a"], id=f"r{n}", order_key="chat")
    queue.request("r2").set_priority(0)
    queue.request("r1").set_priority(99)
    began = []
    for _ in range(3):
        one = take_one(queue)
        began.append(one.id)
        one.done(b"")
    assert began == ["r0", "r1", "r2"]


def test_its_limit_stays_one(queue: Queue, lane: Lane):
    request = queue.submit_request(["a", "b"], id="r1", order_key="chat")
    request.set_limit(1)
    with pytest.raises(InvalidArgument, match="limit 4 is not possible: the request has an order"):
        request.set_limit(4)
    assert names(take(queue)) == ["r1"]


def test_a_limit_beside_an_order_is_not_held_by_those_that_wait(queue: Queue, lane: Lane):
    for name, key in (("r1", "a"), ("r2", "a"), ("r3", "b")):
        queue.submit_request(["x"], id=name, order_key=key, limits={"api": 1})
    first = take_one(queue)
    assert first.id == "r1"
    first.done(b"")
    began = []
    for _ in range(2):
        one = take_one(queue)
        began.append(one.id)
        one.done(b"")
    assert sorted(began) == ["r2", "r3"]
    assert names_in_use_now(queue) == []


def names_in_use_now(queue: Queue) -> list[str]:
    return queue.driver.run(names_in_use("req"))


def test_what_has_no_turn_is_in_the_line_of_its_order_alone(queue: Queue, lane: Lane):
    """Otherwise each end of a lease would move all of them from line to line."""
    queue.submit_request(["a"], id="other", limits={"api": 1})
    for n in range(3):
        queue.submit_request(["a"], id=f"r{n}", order_key="chat", limits={"api": 1})
    members: Any = lane.client.zrange(keys.limit_key("req", "api"), 0, -1)
    assert {one.partition(b"#")[0] for one in members} == {b"other", b"r0"}


def test_a_note_in_an_order_key_is_worked_off(queue: Queue, lane: Lane):
    """It says that the line of another key was not looked at to its end."""
    for n in range(2):
        queue.submit_request(["a"], id=f"r{n}", order_key="chat")
    lane.client.zadd(keys.limit_key("req", "!chat"), {"%api": LINE - 1})
    for name in ("r0", "r1"):
        one = take_one(queue)
        assert one.id == name
        one.done(b"")
    assert names_in_use_now(queue) == []
    assert [*lane.client.scan_iter("*:key:*")] == []


def test_a_key_that_is_not_used_leaves_nothing(queue: Queue, lane: Lane):
    queue.submit_request(["a"], id="r1", order_key="chat")
    take_one(queue).done(b"")
    assert names_in_use_now(queue) == []
    assert [*lane.client.scan_iter("*:key:*")] == []


def test_a_limit_and_an_order_of_one_name_are_two_keys(queue: Queue, lane: Lane):
    queue.submit_request(["a"], id="r1", order_key="x", limits={"x": 2})
    assert not queue.key("x").is_order
    assert queue.key("x", order=True).next_requests == ("r1",)


def test_the_audit_gives_up_the_place_of_a_request_that_is_gone(queue: Queue, lane: Lane):
    for n in range(2):
        queue.submit_request(["a"], id=f"r{n}", order_key="chat")
    lane.client.delete(*keys.request_keys("r0"))
    lane.client.delete(keys.lanes("req")[queue.request("r1").progress().priority])
    assert lane.run(check_all("req", names_in_use_now(queue))) == 1
    assert names(take(queue)) == ["r1"]


@for_each(
    "given, said",
    [
        ({"order_key": "chat", "limit": 2}, "limit 2 is not possible with order_key"),
        ({"order_on_dead": "stop"}, "order_on_dead needs order_key"),
        ({"order_key": "chat", "order_on_dead": "wait"}, "order_on_dead 'wait' is not valid"),
        ({"order_key": "a" * 200}, "order_key"),
        ({"order_key": "a b"}, "order_key"),
    ],
)
def test_bad_input_is_refused_before_anything_is_written(
    queue: Queue, lane: Lane, given: dict[str, Any], said: str
):
    with pytest.raises(InvalidArgument, match=said):
        queue.submit_request(["a"], id="r1", **given)
    assert lane.client.dbsize() == 0


class Play:
    """Random changes of requests that share two order keys and two limits."""

    def __init__(self, queue: Queue, seed: int) -> None:
        self.queue, self.rng = queue, random.Random(seed)
        self.order = defaultdict[str, list[str]](list)
        self.held: list[Taken] = []
        self.ended: set[str] = set()

    @property
    def ids(self) -> list[str]:
        return [name for of_key in self.order.values() for name in of_key]

    def has_ended(self, name: str) -> bool:
        if name not in self.ended and self.queue.request(name).progress().ended:
            self.ended.add(name)
        return name in self.ended

    def submit(self) -> None:
        key, name = self.rng.choice("ab"), f"r{len(self.ids)}"
        self.order[key].append(name)
        self.queue.submit_request(
            ["a"] * self.rng.randint(1, 3), id=name, order_key=key, attempts=2, backoff=0,
            priority=self.rng.randint(0, 99),
            limits=self.rng.choice([{}, {"api": 1}, {"api": 1, "db": 1}]),
        )  # fmt: skip

    def take(self) -> None:
        """Takes some: none may start before the ones ahead have ended, or beside another one."""
        for one in take(self.queue, self.rng.randint(1, 3)):
            (of_key,) = [of_key for of_key in self.order.values() if one.id in of_key]
            ahead = of_key[: of_key.index(one.id)]
            assert [name for name in ahead if not self.has_ended(name)] == []
            assert one.id not in names(self.held)
            self.held.append(one)

    def settle(self) -> None:
        if self.held:
            one = self.held.pop(self.rng.randrange(len(self.held)))
            ends: list[Callable[[], object]]
            ends = [partial(one.done, b""), partial(one.dead, "no"), one.release]
            self.rng.choice(ends)()

    def change(self) -> None:
        if self.ids:
            request = self.queue.request(self.rng.choice(self.ids))
            changes: list[Callable[[], object]] = [request.cancel, request.pause, request.resume]
            with suppress(RequestEnded):
                self.rng.choice(changes)()

    def end(self, lane: Lane) -> None:
        while live := [name for name in self.ids if not self.has_ended(name)]:
            for name in live:
                self.queue.request(name).resume()
            wake(lane)
            for one in [*self.held, *take(self.queue)]:
                one.done(b"")
            self.held = []


@for_each("seed", range(3))
def test_the_order_holds_after_random_changes(queue: Queue, lane: Lane, seed: int):
    """None starts before the one ahead has ended, whatever fails, waits or is cancelled."""
    lane.client.flushdb()
    play = Play(queue, seed)
    steps: list[Callable[[], None]] = [play.submit, play.take, play.settle] * 3
    steps.append(play.change)
    for _ in range(120):
        play.rng.choice(steps)()
        wake(lane)
        for key, of_key in play.order.items():
            live = [name for name in of_key if not play.has_ended(name)]
            assert [name for name in places(lane, key) if "#" not in name] == live
    play.end(lane)
    assert names_in_use_now(queue) == []


def test_a_token_of_an_ended_request_holds_no_other_back(queue: Queue, lane: Lane):
    """It is dispatched after the end, because a reply was late."""
    for n in range(3):
        queue.submit_request(["a"], id=f"r{n}", order_key="chat")
    gate: Any = lane.client.hget(keys.request_hash("r0"), "gate")
    queue.request("r0").cancel()
    late = f"r0#0.9%{gate.decode().partition('%')[2]}"
    lane.driver.run(once(Batch(place_tokens("req", [(b"5", late.encode())]))))
    assert places(lane)[:2] == ["r1", "r2"]
    for name in ("r1", "r2"):
        one = take_one(queue)
        assert one.id == name
        one.done(b"")
    assert take(queue) == []
    assert names_in_use_now(queue) == []


def test_a_request_that_lost_its_place_takes_it_again(queue: Queue, lane: Lane):
    for n in range(2):
        queue.submit_request(["a"], id=f"r{n}", order_key="chat")
    lane.client.zrem(keys.limit_key("req", "!chat"), "r0")
    assert names(take(queue)) == ["r0"]
    assert places(lane)[0] == "r0"


def test_a_request_that_lost_its_place_waits_for_the_one_that_runs(queue: Queue, lane: Lane):
    for n in range(2):
        queue.submit_request(["a"], id=f"r{n}", order_key="chat")
    queue.request("r0").pause()
    lane.client.zrem(keys.limit_key("req", "!chat"), "r0")
    assert lane.run(check_all("req", ["!chat"])) == 0
    running = take_one(queue)
    assert running.id == "r1"
    queue.request("r0").resume()
    assert take(queue) == []
    assert places(lane)[:2] == ["r1", "r0"]
    running.done(b"")
    assert names(take(queue)) == ["r0"]


@for_each("on_dead", ["go_on", "stop"])
def test_a_request_that_is_repaired_has_its_former_place(queue: Queue, lane: Lane, on_dead: str):
    """So it comes before those that have not started; one that runs ends first."""
    ids = [f"{on_dead}{n}" for n in range(3)]
    for name in ids:
        queue.submit_request(["a"], id=name, order_key=on_dead, order_on_dead=on_dead)
    take_one(queue).dead("no")
    running = take(queue)
    assert names(running) == ([ids[1]] if on_dead == "go_on" else [])
    assert queue.request(ids[0]).requeue_dead() == 1
    for one in running:
        assert take(queue) == []
        one.done(b"")
    began = []
    while one_more := take(queue):
        began += names(one_more)
        one_more[0].done(b"")
    assert began == [name for name in ids if name not in names(running)]
    assert names_in_use_now(queue) == []
