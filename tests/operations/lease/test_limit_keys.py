"""Tests limits by key: never more leases than the limit over all requests, and work that waits."""

from __future__ import annotations

import random
from collections import Counter
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from fairlane.errors import InvalidArgument, RequestEnded
from fairlane.operations.lease import reap
from fairlane.operations.limit_keys import LINE, check_all, names_in_use, waiting_requests
from fairlane.operations.schedules import fire
from fairlane.operations.tokens import follow_up
from fairlane.operations.workers import promote
from fairlane.protocol import keys
from fairlane.protocol.steps import Batch
from tests.support.run.for_each import for_each
from tests.support.scripts.requests import ask, once, permits_of
from tests.support.servers import backends

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairlane.queue import Queue
    from fairlane.taken import Taken
    from tests.support.scripts.requests import Lane


on_one_server = pytest.mark.parametrize("redis_server", backends.one(), indirect=True)


def take(queue: Queue, count: int = 10) -> list[Taken]:
    return queue.take(count, visible_for=3_600)


def names(taken: list[Taken]) -> list[str]:
    return [one.id for one in taken]


def entries(lane: Lane, name: str) -> dict[str, float]:
    found: Any = lane.client.zrange(keys.limit_key("req", name), 0, -1, withscores=True)
    return {member.decode(): score for member, score in found}


def limits(lane: Lane) -> Any:
    found: Any = lane.client.hgetall(keys.of_limits("req")[3])
    return found


def test_no_more_leases_than_the_limit_over_all_requests(queue: Queue, lane: Lane):
    for n in range(4):
        queue.submit_request(["a", "b"], id=f"r{n}", limits={"api": 3})
    first = take(queue)
    assert len(first) == 3
    assert take(queue) == []
    first[0].done(b"")
    assert len(take(queue)) == 1


def test_work_that_waits_for_a_key_is_in_no_lane(queue: Queue, lane: Lane):
    for n in range(20):
        queue.submit_request(["a"], id=f"r{n}", limits={"api": 1}, priority=0)
    queue.submit_request(["a"], id="other", priority=50)
    assert lane.client.llen(keys.lanes("req")[0]) == 1
    assert names(take(queue)) == ["r0", "other"]


def test_a_key_that_is_not_used_leaves_nothing(queue: Queue, lane: Lane):
    queue.submit_request(["a", "b"], id="r1", limits={"api": 1, "db": 2})
    for _ in range(2):
        (one,) = take(queue)
        one.done(b"")
    assert limits(lane) == {}
    assert [*lane.client.scan_iter("*:key:*")] == []


def test_all_keys_are_taken_or_none(queue: Queue, lane: Lane):
    """Whatever their order is: a request that waits for one key holds no other key."""
    queue.submit_request(["a"], id="a", limits={"x": 1})
    queue.submit_request(["a"], id="xy", limits={"x": 1, "y": 1})
    queue.submit_request(["a"], id="yx", limits={"y": 1, "x": 1})
    queue.submit_request(["a"], id="y", limits={"y": 1})
    held = take(queue)
    assert names(held) == ["a", "y"]
    for one in held:
        one.done(b"")
    for name in ("xy", "yx"):
        (one,) = take(queue)
        assert one.id == name
        one.done(b"")


def test_the_most_urgent_request_goes_first(queue: Queue, lane: Lane):
    """It does not wait for a token that was called to a later lane before it."""
    queue.submit_request(["a"], id="late", limits={"x": 1}, priority=90)
    queue.submit_request(["a"], id="urgent", limits={"x": 1}, priority=1)
    (one,) = take(queue)
    assert one.id == "urgent"
    one.done(b"")
    assert names(take(queue)) == ["late"]


def test_the_requests_of_a_lane_take_turns(queue: Queue, lane: Lane):
    for name in ("a", "b"):
        queue.submit_request(["1", "2", "3"], id=name, limits={"x": 1})
    order = []
    for _ in range(6):
        (one,) = take(queue)
        order += names([one])
        one.done(b"")
    assert order == ["a", "b"] * 3


def test_tenants_share_the_lane_of_called_tokens(queue: Queue, lane: Lane):
    for n in range(3):
        queue.submit_request(["a"], id=f"a{n}", limits={"x": 9}, tenant="a")
    queue.submit_request(["b"], id="b0", limits={"x": 9}, tenant="b")
    assert names(take(queue))[:2] == ["a0", "b0"]


def test_a_retry_in_its_pause_holds_no_key(queue: Queue, lane: Lane):
    queue.submit_request(["a"], id="r1", limits={"x": 1})
    queue.submit_request(["a"], id="r2", limits={"x": 1})
    (one,) = take(queue)
    one.release(delay_s=60)
    (other,) = take(queue)
    assert other.id == "r2"
    delayed: Any = lane.client.zrange(keys.delayed("req"), 0, -1)
    lane.client.zadd(keys.delayed("req"), dict.fromkeys(delayed, 1))
    lane.run(promote("req", (0,)))
    (waiting,) = [name for name, score in entries(lane, "x").items() if score >= LINE]
    assert waiting.startswith("r1#")


@for_each("end", ["done", "dead", "release", "cancel", "expiry", "death"])
def test_each_end_of_a_lease_gives_the_key_to_the_next(queue: Queue, lane: Lane, end: str):
    queue.submit_request(["a", "b"], id=f"{end}1", limits={end: 1})
    queue.submit_request(["a"], id=f"{end}2", limits={end: 1})
    (one,) = take(queue)
    if end == "done":
        one.done(b"")
    elif end == "dead":
        one.dead("no")
    elif end == "release":
        one.release()
    elif end == "cancel":
        queue.request(f"{end}1").cancel()
        one.done(b"")
    else:
        (field,) = [k for k, text in permits_of(lane.client, f"{end}1").items() if text[0] == "h"]
        worker: Any = {}
        if end == "expiry":
            lane.client.zadd(keys.leases(f"{end}1"), {field: 1})
        else:
            text = permits_of(lane.client, f"{end}1")[field].split(":", 9)
            worker = {"worker": text[9], "started": text[4]}
        reply = lane.run(ask(reap("req", f"{end}1", **worker)))
        lane.driver.run(once(Batch(follow_up("req", (f"{end}1", reply)))))
    assert names(take(queue)) == [f"{end}2"]
    for name in ("1", "2"):
        queue.request(end + name).cancel()
    for raw in entries(lane, end):
        assert raw.startswith(f"{end}2#")  # its lease


def test_a_cancelled_request_leaves_the_line(queue: Queue, lane: Lane):
    for n in range(3):
        queue.submit_request(["a"], id=f"r{n}", limits={"x": 1})
    queue.request("r1").cancel()
    assert not any(name.startswith("r1#") for name in entries(lane, "x"))
    queue.request("r0").cancel()  # it was called: its place goes to the next
    assert names(take(queue)) == ["r2"]


def test_a_higher_limit_starts_what_waits(queue: Queue, lane: Lane):
    for n in range(5):
        queue.submit_request(["a"], id=f"r{n}", limits={"x": 1})
    assert len(take(queue)) == 1
    assert queue.set_key("x", 4) == 1
    assert len(take(queue)) == 3
    assert queue.set_key("x", 2) == 4
    assert queue.key("x").held == 4
    assert take(queue) == []


def test_a_limit_that_a_person_sets_stays_until_it_is_taken_back(queue: Queue, lane: Lane):
    assert queue.set_key("x", 2) is None
    with pytest.raises(InvalidArgument, match=r"key x has the limit 2 .*`fairlane key set x 1 "):
        queue.submit_request(["a"], limits={"x": 1})
    queue.submit_request(["a"], id="r1", limits={"x": 2})
    (one,) = take(queue)
    one.done(b"")
    assert limits(lane) == {b"x": b"2 set"}
    assert queue.set_key("x", None) == 2
    assert limits(lane) == {}


def test_another_limit_for_a_live_key_is_refused_before_anything_is_written(
    queue: Queue, lane: Lane
):
    queue.submit_request(["a"], id="r1", limits={"x": 1})
    for submit in (
        lambda: queue.submit_request(["a"], id="r2", limits={"x": 2}),
        lambda: queue.submit_many([["a"], ["b"]], limits={"x": 2}),
    ):
        with pytest.raises(InvalidArgument, match="key x has the limit 1 in queue req, not 2"):
            submit()
    assert lane.client.zcard(keys.active("req")) == 1
    queue.set_key("x", 5)
    queue.submit_request(["a"], id="r1", limits={"x": 1})  # a repeat finds its request


def test_a_rate_is_not_spent_while_a_key_is_full(queue: Queue, lane: Lane):
    rate: Any = {"rate": "5/h", "burst": 3, "rate_key": "api"}
    queue.submit_request(["a"], id="r1", limits={"x": 1}, **rate)
    queue.submit_request(["a"], id="r2", limits={"x": 1}, **rate)
    (one,) = take(queue)
    assert take(queue) == []
    one.done(b"")
    assert names(take(queue)) == ["r2"]


def test_what_waits_for_a_rate_holds_no_key(queue: Queue, lane: Lane):
    queue.submit_request(["a"] * 2, id="r1", limits={"x": 1}, rate="1/h", burst=1)
    queue.submit_request(["a"], id="r2", limits={"x": 1})
    (one,) = take(queue)
    one.done(b"")
    assert names(take(queue)) == ["r2"]


def test_a_new_priority_moves_what_waits_to_its_new_lane(queue: Queue, lane: Lane):
    for n in range(3):
        queue.submit_request(["a"], id=f"r{n}", limits={"x": 1})
    (one,) = take(queue)
    queue.request("r2").set_priority(0)
    one.done(b"")
    assert names(take(queue)) == ["r2"]


def test_why_names_the_key_and_who_holds_it(queue: Queue, lane: Lane):
    for n in range(3):
        queue.submit_request(["a"], id=f"r{n}", limits={"x": 1})
    take(queue)
    (cause,) = [one for one in queue.why("r2").causes if one.kind == "key"]
    assert cause.text == "waits for key x: 1 of 1 is held, by request r0; 1 in its line are ahead"


def test_why_names_what_is_called_or_kept_beside_what_is_held(queue: Queue, lane: Lane):
    for n in range(5):
        queue.submit_request(["a"], id=f"r{n}", limits={"x": 3})
    take(queue, 1)
    (cause,) = [one for one in queue.why("r4").causes if one.kind == "key"]
    held = "waits for key x: 1 of 3 is held, by request r0, and 2 are called or kept"
    assert cause.text == f"{held}; 1 in its line are ahead"


def test_why_counts_the_place_in_a_very_long_line(queue: Queue, lane: Lane):
    for name in ("r1", "r2"):
        queue.submit_request(["a"], id=name, limits={"x": 1}, tenant="acme")
    waiting = {f"other#{n}.7%x=1": LINE + n for n in range(12_000)}
    lane.client.zadd(keys.limit_key("req", "x"), waiting)
    (cause,) = [one for one in queue.why("r2").causes if one.kind == "key"]
    assert cause.text.endswith("; 12,000 in its line are ahead")
    lane.client.zrem(keys.limit_key("req", "x"), *waiting)


def test_a_tick_of_a_schedule_uses_the_limit_in_force(queue: Queue, lane: Lane):
    queue.schedules.add("s", cron="0 7 * * *", bodies=["a"], limits={"x": 1})
    queue.set_key("x", 5)
    lane.client.zadd(keys.schedules("req")[1], {"s": 1_000})
    fired = lane.run(fire("req"))
    assert (fired.waiting, fired.requests) == ({}, 1)
    assert queue.key("x").called == 1
    queue.schedules.remove("s")


def test_a_request_that_is_reopened_takes_its_keys_again(queue: Queue, lane: Lane):
    """It takes them at acquire, with the limit in force; at its next end it gives them back."""
    request = queue.submit_request(["a", "b"], id="r1", limits={"x": 1}, attempts=1)
    for _ in range(2):
        take(queue)[0].dead("no")
    queue.set_key("x", 2)
    assert queue.key("x").holders == ()
    assert request.requeue_dead() == 2
    queue.submit_request(["c"], id="r2", limits={"x": 2})
    held = [*take(queue), *take(queue)]
    assert len(names(held)) == 2
    assert take(queue) == []
    for one in held:
        one.done()
    for one in take(queue):
        one.done()
    assert request.progress().outcome == "repaired"
    assert queue.key("x").holders == ()


@on_one_server
def test_the_audit_checks_many_entries_in_several_calls(queue: Queue, lane: Lane):
    """It checks 1,000 in a call, also of one key."""
    for name in ("x", "y", "z"):
        left = {f"gone#{n}.7": -1 for n in range(2_500 if name == "x" else 600)}
        lane.client.zadd(keys.limit_key("req", name), left)
        lane.client.hset(keys.of_limits("req")[3], name, "1")
    before = lane.client.info("commandstats")
    assert lane.run(check_all("req", ["x", "y", "z"])) == 3_700
    after = lane.client.info("commandstats")
    calls = [sum(one[f"cmdstat_{name}"]["calls"] for name in ("evalsha", "fcall", "fcall_ro")
                 if f"cmdstat_{name}" in one) for one in (before, after)]  # fmt: skip
    assert calls[1] - calls[0] == 5


@on_one_server
def test_the_audit_checks_each_entry_of_a_key_whose_entries_are_right(queue: Queue, lane: Lane):
    queue.submit_many([["a"]] * 2_100, limit=1, limits={"x": 10_000})
    lane.client.zadd(keys.limit_key("req", "x"), {"gone#0.7%x=1": LINE - 2})
    assert lane.run(check_all("req", ["x"])) == 1
    assert queue.key("x").called == 2_100


def test_the_audit_finds_each_waiting_request_of_a_long_line(queue: Queue, lane: Lane):
    line = {f"r{n}#0.7%x=1": LINE + 7 for n in range(3_000)}
    lane.client.zadd(keys.limit_key("req", "x"), line | {"held#0.1": -1, "called#0.1%x=1": 5})
    found = lane.run(waiting_requests("req", ["x"]))
    assert sorted(found) == sorted(f"r{n}".encode() for n in range(3_000))
    lane.client.delete(keys.limit_key("req", "x"))


@on_one_server
def test_the_audit_corrects_what_damage_has_left(queue: Queue, lane: Lane):
    queue.submit_request(["a"], id="r1", limits={"x": 1})
    lane.client.zadd(keys.limit_key("req", "x"), {"gone#0.7": -1, "r1#0.9%x=1": 3})
    lane.client.hset(keys.of_limits("req")[3], "unused", "3")
    assert lane.run(check_all("req", lane.run(names_in_use("req")))) == 2
    assert limits(lane) == {b"x": b"1"}
    assert names(take(queue)) == ["r1"]


@for_each(
    "given, sentence",
    [
        ({"a": 0}, "limit of key a 0 is not valid: a whole number from 1 to 10000"),
        ({"a": 10_001}, "limit of key a 10001 is not valid"),
        ({"a" * 200: 1}, r"\(200 characters\) is not valid: use 1 to 128"),
        (("a=1", "a=2"), "key a has two limits, 1 and 2: name it once"),
        (dict.fromkeys("abcd", 1), "4 keys are too many: a request names at most 3"),
        ({"a": 1, 2: 3}, r"limits \(2, 3\) is not valid: write a key and its limit"),
        ([("a", 1, 2)], r"limits \('a', 1, 2\) is not valid: write a key and its limit"),
        ([("a",)], r"limits \('a',\) is not valid: write a key and its limit"),
        ([(["a"], 1)], r"limits \(\['a'\], 1\) is not valid: write a key and its limit"),
        ("a=1,", "limits 'a=1,' is not valid: write a key and its limit"),
        ("a", "limits 'a' is not valid: write a key and its limit, as customer-42=3"),
        ({"a b": 1}, "key 'a b' is not valid"),
    ],
)
def test_bad_input_is_refused_before_anything_is_written(
    queue: Queue, lane: Lane, given: Any, sentence: str
):
    with pytest.raises(InvalidArgument, match=sentence):
        queue.submit_request(["a"], limits=given)
    assert lane.client.dbsize() == 0


@pytest.mark.parametrize("seed", [1, 2])
def test_every_key_agrees_with_all_requests_after_random_changes(
    queue: Queue, lane: Lane, seed: int
):
    """Held is what leases hold; the rest is queued; if there is room, nothing waits uncalled."""
    draw, count, held = random.Random(seed), 0, []
    ids, lowered = list[str](), Counter[str]()
    for name in "xyz":
        queue.set_key(name, draw.randint(1, 3))
    for _ in range(200):
        what = draw.randrange(10)
        if what < 4:
            chosen = draw.sample("xyz", draw.randint(0, 3))
            now = {one.name: one.limit for one in queue.keys().keys}
            ids.append(f"r{(count := count + 1)}")
            queue.submit_request(
                ["a"] * draw.randint(1, 3), id=ids[-1], limits={name: now[name] for name in chosen},
                priority=draw.randrange(3), limit=draw.randint(1, 3), attempts=2, backoff=0,
            )  # fmt: skip
        elif what < 6:
            held += take(queue, draw.randint(1, 4))
        elif what < 8 and held:
            one = held.pop(draw.randrange(len(held)))
            ends: list[Callable[[], object]] = [one.done, partial(one.dead, "no"), one.release]
            draw.choice(ends)()
        elif what == 8 and ids:
            request = queue.request(draw.choice(ids))
            changes: list[Callable[[], object]]
            changes = [request.pause, request.resume, request.resume, request.cancel]
            changes.append(partial(request.set_priority, draw.randrange(3)))
            with suppress(RequestEnded):
                draw.choice(changes)()
        else:
            name = draw.choice("xyz")
            queue.set_key(name, draw.randint(1, 3))
            lowered[name] = max(lowered[name], queue.key(name).held)
        agree(queue, lane, ids, lowered)
    for name in ids:
        queue.request(name).cancel()
    for one in held:
        one.done(b"")
    while in_use(queue) and lane.driver.is_cluster:  # a token may be there twice
        assert take(queue) == []
    assert not in_use(queue)


def in_use(queue: Queue) -> bool:
    return any(one.held or one.called or one.waiting for one in queue.keys().keys)


def agree(queue: Queue, lane: Lane, ids: list[str], lowered: Counter[str]) -> None:
    permits = {name: permits_of(lane.client, name) for name in ids}
    for key in queue.keys().keys:
        zone = entries(lane, key.name)
        for member, score in zone.items():
            name, _, rest = member.partition("#")
            k, _, g = rest.partition("%")[0].partition("~")[0].partition(".")
            text = permits[name].get(k, "").split(":")
            if score >= 0 and "%%" in rest:  # its pop finds whether it is stale
                continue
            wanted = ["h", g] if score < 0 else ["q", g]
            assert [text[0], text[2 if score < 0 else 1]] == wanted, (member, text)
            assert "~" not in rest or rest.partition("~")[2] == text[3]
        held = sum(
            text.startswith("h:") and key.name in dict.fromkeys(limits_of(lane, name))
            for name in ids
            for text in permits[name].values()
        )
        assert key.held == held
        assert held <= max(key.limit, lowered[key.name])
        lowered[key.name] = held if held > key.limit else 0
        if key.held + key.called < key.limit:
            assert key.waiting == 0


def limits_of(lane: Lane, name: str) -> list[str]:
    gate: Any = lane.client.hget(keys.request_hash(name), "gate") or b""
    named = gate.decode().partition("%")[2].removeprefix("%")
    return [part.partition("=")[0] for part in named.split(",") if part]


def test_a_queue_that_is_spread_over_shards_refuses_keys(queue: Queue, lane: Lane):
    lane.client.hset(keys.conf("req"), "shards", "1,2")
    with pytest.raises(InvalidArgument, match="not possible in a queue that is spread over shards"):
        queue.submit_request(["a"], limits={"x": 1})
    assert not lane.client.exists(keys.active("req"))


def test_a_backlog_of_another_key_leaves_room_to_others(queue: Queue, lane: Lane):
    """Tokens that have waited for long keep one place in a key, not each of them one."""
    queue.submit_many((["b"] for _ in range(10)), limits={"api": 10, "a": 10})
    first = take(queue)
    queue.submit_many((["b"] for _ in range(200)), limits={"api": 10, "b": 3})
    queue.submit_many((["b"] for _ in range(50)), limits={"api": 10, "a": 10})
    for one in first:
        one.done(b"")
    assert len(take(queue)) == 9  # three of b; one place is kept for the next of them
    field = lane.client.hget(keys.conf("req"), "kept:api")
    assert 0 <= entries(lane, "api")[field.decode()] < LINE


def test_what_waits_for_two_keys_starts_beside_a_steady_load_of_each(queue: Queue, lane: Lane):
    """The keys are never free at the same time unless a place in one of them is kept."""
    queue.submit_many([["b"]] * 2, limits={"x": 1})
    queue.submit_many([["b"]] * 2, limits={"y": 1})
    held = take(queue)
    queue.submit_request(["b"], id="both", limits={"x": 1, "y": 1})
    for n in range(300):
        queue.submit_request(["b"], limits={"xy"[n % 2]: 1})
        if "both" in names(held):
            return
        held.pop(0).done(b"")
        held += take(queue)
    pytest.fail("it never started")


def test_a_higher_limit_starts_all_that_there_is_room_for(queue: Queue, lane: Lane):
    queue.submit_many((["b"] for _ in range(500)), limits={"x": 1})
    assert len(take(queue)) == 1
    assert queue.set_key("x", 400) == 1
    assert sum(score < LINE for score in entries(lane, "x").values()) == 400


def test_a_queue_whose_requests_have_named_keys_gets_no_shards(queue: Queue, lane: Lane):
    queue.submit_request(["b"], id="r", limits={"x": 1}, delay=60)
    with pytest.raises(InvalidArgument, match="has requests with limits by key"):
        queue.set_shards(2)


def test_another_share_is_one_walk_over_the_permits_of_a_request_with_keys(
    queue: Queue, lane: Lane
):
    queue.submit_request(["b"] * 300, id="r", limits={"x": 300}, limit=300, tenant="t")
    lane.client.config_resetstat()
    queue.request("r").set_share(5)
    assert lane.client.info("commandstats")["cmdstat_hgetall"]["calls"] < 10
