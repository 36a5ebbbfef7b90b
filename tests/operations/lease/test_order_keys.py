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
from fairlane.settings import DEFAULT_LIMIT
from tests.support.run.for_each import for_each
from tests.support.scripts.requests import ask, once
from tests.support.servers import backends
from tests.support.wait import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairlane.queue import Queue
    from fairlane.taken import Taken
    from tests.support.scripts.requests import Lane

pytestmark = pytest.mark.parametrize("redis_server", backends.one(), indirect=True)
HOUR_S = 3600


def take(queue: Queue, count: int = 10) -> list[Taken]:
    return queue.take(count, visible_for=3_600)


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


def look(lane: Lane, name: str) -> None:
    """Does what maintenance does for a request."""
    reply = lane.run(ask(reap("req", name)))
    lane.driver.run(once(Batch(follow_up("req", (name, reply)))))


def expire(queue: Queue, lane: Lane, name: str) -> None:
    """Lets the deadline of a request that holds nothing pass, which makes it dead."""
    request = queue.request(name)
    request.set_deadline(0.001)

    def has_ended() -> bool:
        look(lane, name)
        return bool(request.progress().ended)

    wait_until(has_ended)


def run_all(queue: Queue) -> list[str]:
    """Runs all that can start; returns the requests in the order of their starts."""
    began = []
    while taken := take(queue):
        for one in taken:
            began.append(one.id)
            one.done(b"")
    return began


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
            look(lane, first)
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


def test_requests_of_an_order_have_the_limit_1_without_being_given_it(queue: Queue, lane: Lane):
    many = queue.submit_many([["a"], [""]], order_key="k")
    many += queue.submit_each([["c"]], order_key="k")
    assert {request.progress().limit for request in many} == {1}
    assert queue.submit_many([["d"]])[0].progress().limit == DEFAULT_LIMIT
    with pytest.raises(InvalidArgument, match="limit 3 is not possible with order_key"):
        queue.submit_many([["e"]], order_key="k", limit=3)
    with pytest.raises(InvalidArgument, match="request 1 of the call: limit 2 is not possible"):
        queue.submit_many([["e"], ["f"]], order_key="k", limit=[1, 2])


def test_an_order_names_the_request_that_has_the_turn_and_why_it_waits(queue: Queue, lane: Lane):
    def text() -> str:
        (cause, *_) = [one for one in queue.request("r2").why().causes if one.kind == "key"]
        return cause.text

    first = queue.submit_request(["a"], id="r1", order_key="chat")
    queue.submit_request(["b"], id="r2", order_key="chat")
    begun = "waits for its turn of key chat: request r1 has it"
    assert text() == f"{begun} and has not started; 1 request is ahead in all"
    first.pause()
    waits = "(paused: fairlane resume r1)"
    assert text() == f"{begun} and has not started {waits}; 1 request is ahead in all"
    first.resume()
    (one,) = take(queue)
    assert text() == f"{begun}; 1 request is ahead in all"
    first.pause()
    assert text() == f"{begun} {waits}; 1 request is ahead in all"
    first.resume()
    one.release(delay_s=60)
    assert text().startswith(f"{begun} (the sub-request that waits is to be tried again at ")


@for_each("ahead", ["delay", "open", "after", "limit"])
def test_an_order_names_what_the_first_request_waits_for(queue: Queue, lane: Lane, ahead: str):
    options: dict[str, Any] = {"id": f"{ahead}1", "order_key": ahead}
    queue.submit_request(["a"], id=f"{ahead}0", limits={"api": 1})
    match ahead:
        case "open":
            queue.open(**options)
        case "limit":
            queue.submit_request(["a"], limits={"api": 1}, **options)
        case "after":
            queue.submit_request(["a"], after=f"{ahead}0", **options)
        case _:
            queue.submit_request(["a"], delay=HOUR_S, **options)
    queue.submit_request(["b"], id=f"{ahead}2", order_key=ahead)
    (cause, *_) = [one for one in queue.request(f"{ahead}2").why().causes if one.kind == "key"]
    begun = f"request {ahead}1 has it and has not started ("
    said = {
        "delay": "starts at ", "open": "open: its producer is still sending",
        "after": "starts after other requests are done: after0", "limit": "waits for key api: ",
    }  # fmt: skip
    assert begun + said[ahead] in cause.text
    assert cause.figures["first"] == f"{ahead}1"
    for n in range(3):
        queue.request(f"{ahead}{n}").cancel()


def test_a_queue_that_had_an_order_gets_no_shards_because_a_request_may_be_repaired(
    queue: Queue, lane: Lane
):
    queue.submit_request(["a"], id="r1", order_key="chat")
    for _ in range(2):
        with pytest.raises(InvalidArgument, match="limits by key or an order, or had some"):
            queue.set_shards(2)
        queue.request("r1").cancel()


class Play:
    """Random changes of requests that share two order keys and two limits."""

    def __init__(self, queue: Queue, lane: Lane, seed: int) -> None:
        self.queue, self.lane, self.rng = queue, lane, random.Random(seed)
        self.begun, self.late = set[str](), set[str]()
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
            order_on_dead=self.rng.choice(["go_on", "stop"]),
        )  # fmt: skip

    def take(self) -> None:
        """Takes some: none may start behind a stop, before the ones ahead, or beside another."""
        for one in take(self.queue, self.rng.randint(1, 3)):
            ((key, of_key),) = [row for row in self.order.items() if one.id in row[1]]
            ahead = of_key[: of_key.index(one.id)]
            assert [name for name in ahead if not self.has_ended(name)] == []
            stops = [name.partition(":")[2] for name in places(self.lane, key) if name[0] == "!"]
            assert one.id in self.begun or not {*stops} & {*ahead}
            self.begun.add(one.id)
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
            changes += [partial(request.set_deadline, 0.001), self.resume_key]
            with suppress(RequestEnded):
                done = self.rng.choice(changes)
                done()
                self.late |= {request.id} if isinstance(done, partial) else set()

    def resume_key(self) -> None:
        self.queue.resume_key(self.rng.choice("ab"))

    def maintain(self) -> None:
        wake(self.lane)
        for name in [*self.late]:
            look(self.lane, name)

    def end(self) -> None:
        while live := [name for name in self.ids if not self.has_ended(name)]:
            for name in live:
                with suppress(RequestEnded):
                    self.queue.request(name).resume()
            self.resume_key()
            self.maintain()
            for one in [*self.held, *take(self.queue)]:
                one.done(b"")
            self.held = []


@for_each("seed", range(3))
def test_the_order_holds_after_random_changes(queue: Queue, lane: Lane, seed: int):
    """None starts before the one ahead has ended, whatever fails, waits or is cancelled."""
    lane.client.flushdb()
    play = Play(queue, lane, seed)
    steps: list[Callable[[], None]] = [play.submit, play.take, play.settle] * 3
    steps.append(play.change)
    for _ in range(120):
        play.rng.choice(steps)()
        play.maintain()
        for key, of_key in play.order.items():
            live = [name for name in of_key if not play.has_ended(name)]
            assert [
                name for name in places(lane, key) if name[0] != "!" and "#" not in name
            ] == live
    play.end()
    while queue.resume_key("a") or queue.resume_key("b"):
        pass
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


# ------------------------------------------------------------------ stops beside others


@for_each("begun", ["not", "held", "in a pause", "repaired"])
def test_a_stop_holds_back_only_those_behind_it(queue: Queue, lane: Lane, begun: str):
    """The request ahead of it runs to its end, whether or not it had started before."""
    key = begun.replace(" ", "-")
    first, second, third = ids = [f"{key}{n}" for n in range(3)]
    for name in ids:
        does = "stop" if name == second else "go_on"
        queue.submit_request(["a"], id=name, order_key=key, order_on_dead=does)
    held = [] if begun == "not" else take(queue)
    if begun == "in a pause":
        held.pop().release(delay_s=60)
    elif begun == "repaired":
        held.pop().dead("no")
    expire(queue, lane, second)
    if begun == "repaired":
        assert queue.request(first).requeue_dead() == 1
    elif begun == "in a pause":
        retries = keys.retries(first)
        lane.client.zadd(retries, dict.fromkeys(lane.client.zrange(retries, 0, -1), 1))
        wake(lane)
    assert queue.key(key).stopped_by == second
    for one in held:
        one.done(b"")
    assert run_all(queue) == ([] if begun == "held" else [first])
    cause = next(one for one in queue.request(third).why().causes if one.kind == "key")
    assert f"which request {second} has stopped" in cause.text
    assert queue.resume_key(key) == second
    assert run_all(queue) == [third]
    assert names_in_use_now(queue) == []


def test_why_names_a_stop_only_to_those_behind_it(queue: Queue, lane: Lane):
    for name in "ABCD":
        queue.submit_request(["a"], id=name, order_key="chat", order_on_dead="stop")
    expire(queue, lane, "C")
    texts = [
        next(one.text for one in queue.request(name).why().causes if one.kind == "key")
        for name in "BD"
    ]
    assert "request A has it and has not started" in texts[0]
    assert "which request C has stopped" in texts[1]
    assert run_all(queue) == ["A", "B"]


def test_a_stop_may_be_lifted_before_the_requests_ahead_of_it_have_ended(queue: Queue, lane: Lane):
    for name in "ABC":
        queue.submit_request(["a"], id=name, order_key="chat", order_on_dead="stop")
    expire(queue, lane, "B")
    assert queue.resume_key("chat") == "B"
    assert run_all(queue) == ["A", "C"]


def test_a_repair_of_the_request_that_stopped_the_others_lets_it_run_again(
    queue: Queue, lane: Lane
):
    for name in "ABC":
        queue.submit_request(["a"], id=name, order_key="chat", order_on_dead="stop")
    expire(queue, lane, "B")
    assert queue.request("B").requeue_dead() == 1
    assert run_all(queue) == ["A", "B", "C"]
    assert names_in_use_now(queue) == []


@for_each("how", ["replace", "delete"])
def test_a_new_request_with_the_id_of_the_one_that_stopped_lifts_no_stop(
    queue: Queue, lane: Lane, how: str
):
    given: Any = {"order_key": how, "order_on_dead": "stop", "on_duplicate": "replace"}
    first, second = f"{how}1", f"{how}2"
    for name in (first, second):
        queue.submit_request(["a"], id=name, **given)
    take_one(queue).dead("no")
    if how == "delete":
        lane.client.delete(*keys.request_keys(first))
    queue.submit_request(["b"], id=first, **given)
    assert take(queue) == []
    expire(queue, lane, first)
    assert [queue.resume_key(how) for _ in range(3)] == [first, first, None]
    assert run_all(queue) == [second]
    assert names_in_use_now(queue) == []


def test_a_stop_without_others_behind_it_lasts_as_long_as_its_request(queue: Queue, lane: Lane):
    queue.submit_request(["a"], id="A", order_key="chat")
    queue.submit_request(["a"], id="B", order_key="chat", order_on_dead="stop")
    expire(queue, lane, "B")
    assert lane.run(check_all("req", names_in_use_now(queue))) == 0
    lane.client.delete(*keys.request_keys("B"))
    assert lane.run(check_all("req", names_in_use_now(queue))) == 1
    assert run_all(queue) == ["A"]
    assert names_in_use_now(queue) == []


def test_a_stop_with_others_behind_it_outlasts_its_request(queue: Queue, lane: Lane):
    for name in "AB":
        queue.submit_request(["a"], id=name, order_key="chat", order_on_dead="stop")
    take_one(queue).dead("no")
    lane.client.delete(*keys.request_keys("A"))
    assert lane.run(check_all("req", names_in_use_now(queue))) == 0
    assert take(queue) == []
    assert queue.resume_key("chat") == "A"


# ------------------------------------------------------------------ limits beside an order


def hold_api(queue: Queue, count: int = 1) -> list[Taken]:
    """Lets other requests hold the limit `api`, or one of several limits."""
    for n in range(count):
        queue.submit_request(["a"], id=f"H{n}", limits={f"api{n or ''}": 1})
    return take(queue)


def spend_tickets(lane: Lane) -> None:
    """Makes what waits now old enough to keep its place in a key."""
    lane.client.hincrby(keys.conf("req"), "ticket", 1_000)


def test_a_limit_and_an_order_do_not_block_each_other_after_a_repair(queue: Queue, lane: Lane):
    queue.submit_request(["a"], id="A", order_key="chat", limits={"api": 1})
    take_one(queue).dead("no")
    (holder,) = hold_api(queue)
    queue.submit_request(["a"], id="R", order_key="chat", limits={"api": 1})
    assert queue.request("A").requeue_dead() == 1
    queue.submit_request(["a"], id="O", limits={"api": 1})
    spend_tickets(lane)
    holder.done(b"")
    assert sorted(run_all(queue)) == ["A", "O", "R"]
    assert names_in_use_now(queue) == []


def test_a_request_that_loses_its_turn_keeps_no_place_in_a_limit(queue: Queue, lane: Lane):
    queue.submit_request(["a"], id="A", order_key="chat", limits={"api": 1})
    take_one(queue).dead("no")
    one, other = hold_api(queue, 2)
    queue.submit_request(["a"], id="R", order_key="chat", limits={"api": 1, "api1": 1})
    spend_tickets(lane)
    one.done(b"")
    kept: Any = lane.client.zrange(keys.limit_key("req", "api"), 0, -1)
    assert [member.partition(b"#")[0] for member in kept] == [b"R"]
    assert queue.request("A").requeue_dead() == 1
    queue.submit_request(["a"], id="O", limits={"api": 1})
    other.done(b"")
    assert {*run_all(queue)} == {"A", "O", "R"}
    assert names_in_use_now(queue) == []


def test_a_token_that_is_placed_again_without_its_turn_leaves_its_limits(queue: Queue, lane: Lane):
    """It was called before a repair took the turn, and its first copy was lost."""
    queue.submit_request(["a"], id="A", order_key="chat")
    take_one(queue).dead("no")
    queue.submit_request(["a"], id="R", order_key="chat", limits={"api": 1})
    queue.submit_request(["a"], id="O", limits={"api": 1})
    own = keys.lanes("req")[queue.request("R").progress().priority]
    (token,) = lane.client.lrange(own, 0, -1)
    lane.client.delete(own)
    assert queue.request("A").requeue_dead() == 1
    lane.driver.run(once(Batch(place_tokens("req", [(b"50", token)]))))
    assert sorted(names(take(queue))) == ["A", "O"]


def test_many_that_lose_their_turn_do_not_hide_the_one_that_has_it(queue: Queue, lane: Lane):
    """One look at a line is bounded: the rest is looked at in the same call or the next audit."""
    count = 101  # more than one look
    for n in range(count):
        queue.submit_request(["a"], id=f"A{n}", order_key=f"o{n}", limits={f"k{n}": 1})
    for most in (100, 1):
        for one in queue.take(most, visible_for=3_600):
            one.dead("no")
    (holder,) = hold_api(queue)
    for n in range(count):
        queue.submit_request(["a"], id=f"R{n}", order_key=f"o{n}", limits={"api": 1})
    for n in range(count):
        queue.request(f"A{n}").requeue_dead()
    queue.submit_request(["a"], id="O", limits={"api": 1})
    holder.done(b"")
    assert "O" in [name for _ in range(3) for name in names(queue.take(100, visible_for=3_600))]
