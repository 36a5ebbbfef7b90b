"""Tests that every call may be repeated after a lost reply, with the same outcome.

A reply is lost as a driver loses it: the step is done, its reply is lost, and it is done again.
Each scenario runs once as it is, once with every reply lost, and once for each single reply.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from fairlane.common.rate import OWN, Rate
from fairlane.errors import FairlaneError, RequestEnded
from fairlane.model import Slice, Verdict, result_head
from fairlane.operations import (
    admission,
    apart_keys,
    audit_trail,
    change,
    completion,
    dead_letters,
    lease,
    limit_keys,
    orders,
    pause,
    rates,
    shards,
    stats,
    tokens,
    topics,
    workers,
)
from fairlane.operations import schedules as change_schedule
from fairlane.operations import take as pull
from fairlane.operations.change import Change, apply, select, select_ids
from fairlane.operations.doctor import Walk
from fairlane.operations.find import RequestFilter
from fairlane.operations.flow_branches import Fan, packed
from fairlane.operations.flow_hand_over import DONE, Feed, hand_over
from fairlane.operations.flow_shared import add_to_value, read_shared, set_value
from fairlane.operations.flows import Flow, flow_state, submit_flow
from fairlane.operations.lease import exchange, exchange_unit
from fairlane.operations.rates import set_rate
from fairlane.operations.schedules import define, fire
from fairlane.operations.shards import Shards
from fairlane.operations.submit import Many, submit
from fairlane.operations.take import Taker
from fairlane.operations.take import take as pull_some
from fairlane.options import Policy
from fairlane.protocol import keys, scripts
from fairlane.protocol.lua import library
from fairlane.protocol.steps import Batch
from fairlane.queue import Queue
from fairlane.spark.commit import (
    Area,
    Txn,
    TxnShare,
    add,
    append_partition,
    append_unique,
    begin_live,
    commit,
    pack,
    seal,
    stage,
    stage_all,
    unstage,
)
from tests.support.operations.list_scenarios import balances, fans_out, forwards, places, publishes
from tests.support.operations.lost_replies import (
    ON_SINGLE,
    Forgetful,
    Twice,
    expire,
    heal,
    lose_tokens,
    outcome,
    play,
    put,
    settle,
    slice_of_a_token,
    take,
    work_on,
)
from tests.support.operations.stepping import apart
from tests.support.processes.workers import broken
from tests.support.scripts.requests import insert, numbered
from tests.support.servers.replicas import run_pair
from tests.support.wait import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fairlane.drivers.sync import SyncDriver
    from fairlane.operations.take import Receipt

    Scenario = Callable[[Any], None]

TWO = [[b"a", b"b"], [b"c"]]

# ------------------------------------------------------------------ the scenarios


def submits(driver: Any) -> None:
    put(driver)


def submits_in_three_steps(driver: Any) -> None:
    driver.run(apart(submit("r1", Policy())), iter(TWO))


def submits_nothing(driver: Any) -> None:
    driver.run(submit("r1", Policy()), iter([]))


def submits_a_stream(driver: Any) -> None:
    driver.run(submit("r1", Policy()), iter(TWO))


def submits_twice(driver: Any) -> None:
    for _ in range(2):
        driver.run(submit("r1", Policy()), iter(TWO))


def submits_many(driver: Any) -> None:
    for ids in (["r1", "r2"], ["r1", "r2", "r3"]):
        many = Many(Policy(limit=2))
        for name in ids:
            many.add(name, numbered(2) if name != "r2" else [])
        driver.run(many.rest())


def submits_bounded(driver: Any) -> None:
    driver.run(admission.set_max_waiting("req", 10))
    driver.run(submit("r1", Policy()), iter(TWO))
    settle(driver, take(driver))
    driver.run(admission.report_backlog("req"))


def is_refused_by_the_bound(driver: Any) -> None:
    driver.run(admission.set_max_waiting("req", 3))
    put(driver, 3)
    with contextlib.suppress(FairlaneError):
        put(driver, 1, "r2")
    with contextlib.suppress(FairlaneError):
        driver.run(submit("r3", Policy()), iter(TWO))
    heal(driver)  # an intent without a request may be left


def takes_back_a_stream(driver: Any) -> None:
    def failing() -> Iterator[list[bytes]]:
        yield from TWO
        raise ZeroDivisionError

    with contextlib.suppress(ZeroDivisionError):
        driver.run(submit("r1", Policy()), failing())


def takes_back_what_is_held(driver: Any) -> None:
    """Cancels while a slice is leased; the request ends with that slice."""
    held: list[Slice] = []

    def failing() -> Iterator[list[bytes]]:
        yield from TWO
        held.append(take(driver, 2))
        raise ZeroDivisionError

    with contextlib.suppress(ZeroDivisionError):
        driver.run(submit("r1", Policy(limit=1)), failing())
    settle(driver, held[0])


def begins_a_new_life(driver: Any) -> None:
    """Submits an id again whose first life was abandoned by its producer."""
    for bodies in ([b"a", b"b"], [b"a"]):
        operation = submit("r1", Policy())
        with contextlib.suppress(ZeroDivisionError):
            driver.run(operation, left_open(driver, bodies))
    driver.run(submit("r1", Policy()), iter(TWO))


def left_open(driver: Any, bodies: list[bytes]) -> Iterator[list[bytes]]:
    """Leaves a request open: the auditor finds its open time over."""
    yield bodies
    yield bodies
    driver.client.hset(keys.request_hash("r1"), "open_until", 1)
    heal(driver)
    raise ZeroDivisionError


def cancels(driver: Any) -> None:
    put(driver)
    held = take(driver)
    driver.run(change.cancel("r1", "why"))
    settle(driver, held)
    driver.run(change.cancel("r1", "why"))


def works(driver: Any) -> None:
    put(driver)
    first, second = take(driver), take(driver)
    assert driver.do(lease.extend("r1", first.k, first.fence.decode(), first.op.decode()))
    settle(driver, first, keep=True)
    settle(driver, first)
    settle(driver, second)


def goes_on(driver: Any) -> None:
    put(driver, 6, limit=1)
    held: Slice | None = take(driver, 2)
    while held is not None:
        held = go_on(driver, held)


def go_on(driver: Any, held: Slice) -> Slice | None:
    """Settles a slice; returns the next lease, if one server has all keys."""
    ids = [entry_id for entry_id, _ in held.entries]
    heads = [result_head(one.rpartition(b"-")[2], b"d", held.attempt, 0, 0) for one in ids]
    part: Any = (ids, [word for head in heads for word in (head, b"result")], [])
    op, lanes = lease.new_op(), keys.lanes("req")[: Policy().priority + 1]
    unit = exchange_unit("req", "w:1", "7", 0)
    step = exchange(unit, op, [(held, part)], lanes=lanes, want=1, sizes=[("r1", 2)])
    raw = driver.do(step)
    if raw is None:
        settle(driver, held)
        return None
    reply = scripts.ExchangeReply.of(raw)
    if not reply.tokens:
        return None
    token = tokens.parse(reply.tokens[0])
    assert token is not None
    return lease.slice_of(token, op, scripts.AcquireReply.of(reply.acquired[0]))


def fails(driver: Any) -> None:
    put(driver)
    for verdict in ("retry", "dead", "release", "timeout", "retry", "retry"):
        settle(driver, take(driver), verdict=verdict)


def gives_back(driver: Any) -> None:
    put(driver)
    held = take(driver)
    reply = driver.do(lease.give_back("r1", held.k, held.fence.decode(), held.op.decode()))
    insert(driver, "req", "r1", reply[-1])


def expires(driver: Any) -> None:
    put(driver)
    expire(driver, take(driver))
    heal(driver)


def dies(driver: Any) -> None:
    driver.run(workers.register_worker("req", "w:1", "box", 1, "7"))
    driver.run(workers.heartbeat("req", "w:1", "7", "nothing"))
    put(driver)
    held = take(driver)
    driver.client.hset(keys.taken("req", "w:1"), "0.1", f"r1#{held.k}.1 r1#1.2")
    driver.client.expire(keys.taken("req", "w:1"), 600)
    driver.client.zadd(keys.workers("req"), {"w:1": 1})
    for late in driver.run(workers.late_workers("req")) or [None]:
        driver.run(workers.take_over("req", "w:1", late.started if late else "7"))


def lives(driver: Any) -> None:
    driver.run(workers.register_worker("req", "w:1", "box", 1, "7"))
    assert driver.run(workers.register_worker("req", "w:1", "box", 1, "8"))[0].is_taken
    driver.run(workers.wake("req", "w:1", 2))
    assert driver.run(workers.heartbeat("req", "w:1", "7", "nothing", died=True)).died > 0
    driver.run(workers.unregister_worker("req", "w:1", "7"))


def loses_its_tokens(driver: Any) -> None:
    put(driver)
    lose_tokens(driver)
    heal(driver)


def is_late(driver: Any) -> None:
    put(driver, backoff_ms=(3_600_000, 3_600_000), limit=1)
    held = take(driver, 4)
    settle_late(driver, held)
    driver.client.zadd(keys.request_keys("r1")[5], {held.entries[0][0]: 1})
    for member in driver.client.zrange(keys.delayed("req"), 0, -1):
        driver.client.zadd(keys.delayed("req"), {member: 1})
    driver.run(workers.promote("req"))


def settle_late(driver: Any, held: Slice) -> None:
    """Leaves a retry that is due in an hour; its token waits in `delayed`."""
    first = held.entries[0][0]
    verdict = Verdict(first, "retry", 3_600_000, result_head(b"0", b"x", 1, 0, 0), "why")
    reply = driver.do(lease.complete(held, [], [], [verdict], keep=False))
    insert(driver, "req", "r1", reply[-1])


def leaves_an_intent(driver: Any) -> None:
    names = (keys.active("req"), keys.conf("req"))
    driver.do(scripts.intend(names, ids=["r1"], grace=1, above=0, named=""))
    driver.client.zadd(keys.active("req"), {"r1": 1})
    driver.run(workers.look_after("req"))
    put(driver)


def vanishes(driver: Any) -> None:
    put(driver)
    driver.client.zadd(keys.active("req"), {"r1": tokens.seen_to_exist(1)})
    driver.client.delete(*keys.request_keys("r1"))
    lose_tokens(driver)
    driver.run(workers.look_after("req"))


def ends_unlogged(driver: Any) -> None:
    put(driver)
    driver.do(scripts.cancel(keys.request_keys("r1"), reason="why"))
    heal(driver)


def changes(driver: Any) -> None:
    put(driver)
    driver.run(change.pause("r1"))
    driver.run(change.resume("r1"))
    driver.run(change.set_limit("r1", 3))
    driver.run(change.set_priority("r1", 7))
    driver.run(change.set_limit("r1", 1))
    driver.run(change.cancel("r1", "why"))
    with contextlib.suppress(RequestEnded):
        driver.run(change.pause("r1"))


def holds(driver: Any) -> None:
    put(driver)
    driver.run(rates.hold("req", "r1", 1))


def has_rates(driver: Any) -> None:
    """Takes from two buckets; a repeat takes again, and what is returned is returned once."""
    slow = Rate("key/req/api/3600000000/100", 3_600_000_000, 100, 1)
    put(driver, 2, rates=(Rate(OWN, 1_000, 1_000, 1), slow))
    for _ in range(2):
        settle(driver, take(driver, 5))
    before = owed(driver, slow)
    driver.run(rates.refund([(slow, 1)]))
    assert 3_599 < before - owed(driver, slow) < 3_601


def owed(driver: Any, rate: Rate) -> float:
    """Returns for how many seconds the bucket of a rate has given already."""
    tat, _, seen, _ = driver.client.get(keys.bucket(rate.bucket)).split(b":")
    return (int(tat) - int(seen)) / 1e6


def measures(driver: Any) -> None:
    """Adds measurements, each once."""
    driver.do(Batch(stats.add_stats("req", 5, {7: 3}, {9: 3}, {"failed": 2})))
    driver.do(Batch(stats.add_stats("req", 5, {7: 1}, {9: 1}, {"failed": 1})))
    assert driver.client.hget(keys.stats("req"), "5:failed") == b"3"


def takes_turns(driver: Any) -> None:
    """Lets two tenants share a lane."""
    put(driver, 4, tenant="acme", share=2)
    put(driver, 2, "r2", tenant="other")
    for _ in range(6):
        settle(driver, take(driver))


def charges_turns(driver: Any) -> None:
    """Charges a tenant once for two turns that cost more than it was charged for them."""
    tenants, base = keys.turns("req")[1], 105 * 2**44  # see lua/v1/lib/turns.lua
    driver.client.zadd(tenants, {"-5|acme": base + 400})
    for call in tokens.charge_turns("req", [(5, "1:acme", 2, 500)]):
        driver.do(call)
    assert driver.client.zscore(tenants, "-5|acme") == base + 500


def has_rates_and_is_held(driver: Any) -> None:
    put(driver, 1, rates=(Rate("key/req/api/1000/1000", 1_000, 1_000, 1),))
    driver.run(rates.hold("req", "r1", 1))


def is_given_another_rate(driver: Any) -> None:
    put(driver, 1, rates=(Rate("key/req/api/1000/1000", 1_000, 1_000, 1),))
    driver.run(set_rate("r1", "100000/s", 10_000))


def is_given_another_share(driver: Any) -> None:
    put(driver, 1, tenant="acme")
    driver.run(change.set_share("r1", 3))


def names_keys(driver: Any) -> None:
    """Two requests share a key, whose limit is raised and taken back; one of them fails once."""
    for name in ("r1", "r2"):
        put(driver, 1, name, limits=(("x", 1),))
    settle(driver, take(driver), verdict="retry")
    driver.run(limit_keys.set_key("req", "x", 2))
    driver.run(limit_keys.check_all("req", ["x"]))
    driver.run(limit_keys.set_key("req", "x", None))
    work_on(driver)


def names_keys_of_a_cluster(driver: Any) -> None:
    """Takes the keys of two requests before their leases; one lease goes back, one is looked at."""
    policy = Policy(limit=2, attempts=2, backoff_ms=(0, 0), lease_ms=60_000, limits=(("x", 1),))
    for name in ("r1", "r2"):
        driver.run(apart(submit(name, policy)), iter([numbered(1)]))
    driver.run(pull.release(pull_one(driver), 0))
    receipt = pull_one(driver)
    driver.run(apart_keys.look_at("req", ["x"], {f"{receipt.request_id}#{receipt.k}.2"}))
    driver.run(pull.done(receipt, "result", 1))


def runs_in_order(driver: Any) -> None:
    """The first request of an order key ends with a dead sub-request, and stops the others."""
    for name in ("r1", "r2"):
        put(driver, 1, name, limit=1, order_key="x", order_on_dead="stop")
    settle(driver, take(driver), verdict="dead")
    assert driver.run(limit_keys.resume_key("req", "x")) in {"r1", None}
    work_on(driver)


def is_given_another_time_limit(driver: Any) -> None:
    put(driver, 1)
    driver.run(change.set_time_limit("r1", 5_000))


def answers_an_order(driver: Any) -> None:
    """Leaves an order for a worker, which carries it out once and answers it once."""
    names = (keys.orders("req", "w:1"), keys.conf("req"), keys.answer("req", "ab"))
    order = orders.WorkerOrder("ab", "calls").text
    driver.do(scripts.order(names, order="ab", text=order, ttl=60_000, most=10))
    assert driver.client.hget(keys.conf("req"), "orders") == b"1"
    driver.do(orders.answer_call("req", "w:1", "ab", "{}"))
    assert driver.client.xlen(names[2]) == 1


def ages(driver: Any) -> None:
    put(driver, ageing_ms=1_000)
    reply = driver.do(scripts.hasten(keys.request_keys("r1"), now=2_000_000_000_000))
    insert(driver, "req", "r1", reply[1] if reply[0] == b"ok" else [])


def follows_another(driver: Any) -> None:
    put(driver, 0, name="r0")
    put(driver, after=("r0",))
    driver.client.zadd(keys.active("req"), {"r1": 1.5})
    driver.run(workers.look_after("req"))


def requeues(driver: Any) -> None:
    put(driver)
    settle(driver, take(driver), verdict="dead")
    driver.run(dead_letters.requeue_dead("r1"))


def requeues_after_the_end(driver: Any) -> None:
    put(driver, 1)
    settle(driver, take(driver), verdict="dead")
    driver.run(dead_letters.requeue_dead("r1"))


def drops_the_dead(driver: Any) -> None:
    put(driver, 1)
    settle(driver, take(driver), verdict="dead")
    driver.run(dead_letters.drop_dead("r1"))


def changes_many(driver: Any) -> None:
    for name in ("r1", "r2"):
        put(driver, name=name)
    changed = (Change.pause(), Change.resume(), Change.set(limit=3, priority=7, deadline=3600))
    for change_of_all in (*changed, Change.cancel("why")):
        chosen = driver.run(select("req", change_of_all, RequestFilter()))
        assert driver.run(apply(chosen)).reached == 2


def deletes(driver: Any) -> None:
    """Deletes an ended request without a log entry, and a cancelled one; then begins a new life."""
    for name in ("r1", "r2"):
        put(driver, name=name)
    driver.do(scripts.cancel(keys.request_keys("r1"), reason="why"))
    chosen = driver.run(select_ids(Change.delete(cancel=True), ["r1", "r2"]))
    assert driver.run(apply(chosen)).changed == 2
    put(driver, name="r1")


def spreads(driver: Any) -> None:
    """Spreads the queue and back: the rest is taken from the queue's own lanes."""
    put(driver)
    for wanted in (Shards((3, 7)), Shards()):
        driver.run(shards.set_shards("req", wanted))
        driver.run(shards.move("req"))


def pauses_the_queue(driver: Any) -> None:
    """Pauses the queue and resumes it."""
    driver.run(pause.pause_queue("req", 60))
    driver.run(pause.resume_queue("req"))


def limits_the_queue(driver: Any) -> None:
    """Gives the queue a rate and removes it."""
    driver.run(rates.set_queue_rate("req", "100/s"))
    driver.run(rates.set_queue_rate("req", None))


def checks_everything(driver: Any) -> None:
    put(driver)
    driver.client.delete(keys.active("req"))
    lose_tokens(driver)
    walk = Walk("req")
    while not walk.is_over:
        for finding in driver.run(walk.page()):
            driver.run(finding.apply())


def tidies(driver: Any) -> None:
    driver.client.set("counter:{stray}", 1)
    driver.do(scripts.expire_leftovers(keys.request_keys("stray"), ttl=3_600_000))


def rolls(driver: Any) -> None:
    """Appends two requests of one transaction; drops what lost, and abandons another one."""
    txn = Txn("t", seal=True)
    shares = []
    for name in ("r1", "r2"):
        for area in ("0:1", "1:2", "1:3"):
            calls = [stage(name, "t", area, at, pack(numbered(3)), 60_000) for at in (1, 2)]
            driver.run(stage_all(calls))
        shares.append(TxnShare(name, Policy(limit=2), [Area("0:1", 2, 6), Area("1:2", 2, 6)]))
        driver.run(unstage(name, "t", ["1:3"]))
    assert sum(one.pinned for one in driver.run(commit(shares, txn))) == 24


def joins(driver: Any) -> None:
    """Appends rows to a request immediately, by their ids and by their places."""
    txn = Txn("t", seal=True)
    for name, is_by_id in (("r1", True), ("r2", False)):
        driver.run(begin_live(name, Policy(), txn, by_ids=is_by_id))
        for at in (0, 3):
            rows = pack(numbered(3))
            ids = pack([b"%d" % (at + i) for i in range(3)])
            call = append_unique(name, ids, rows, txn, 60_000)
            place = append_partition(name, 0, at, rows, txn)
            driver.run(add(name, "req", call if is_by_id else place, txn))
        driver.run(seal(name, "req"))


def recurs(driver: Any) -> None:
    """Adds, changes, pauses and resumes a schedule until it is due; removes another one."""
    for cron in ("0 0 1 1 *", "0 0 1 2 *"):
        driver.run(change_schedule.put_schedule("req", "s", define(cron=cron, bodies=[b"a", b"b"])))
    driver.run(change_schedule.put_schedule("req", "t", define(cron="0 0 1 1 *", bodies=[b"a"])))
    driver.run(change_schedule.pause("req", "s"))
    driver.run(change_schedule.resume("req", "s"))
    driver.client.zadd(keys.schedules("req")[1], {"s": 1})  # the latest February
    driver.run(fire("req"))
    driver.client.zadd(keys.schedules("req")[1], {"s": 1})
    driver.run(fire("req"))
    driver.run(change_schedule.drop_schedule("req", "t"))
    driver.run(change_schedule.pause("req", "s"))
    work_on(driver)


def pulls(driver: Any) -> None:
    """Takes four sub-requests as a program, and settles each in another way."""
    put(driver, limit=4)
    settled = [
        lambda receipt: pull.done(receipt, "result", 1),
        lambda receipt: pull.dead(receipt, "why", 1),
        lambda receipt: pull.release(receipt, 0),
        lambda receipt: pull.extend_term(receipt, 60),
    ]
    for settle_one in settled:
        receipt = pull_one(driver)
        driver.run(settle_one(receipt))
    driver.run(pull.done(receipt, "result", 1))  # this one was extended


def pull_one(driver: Any) -> Receipt:
    """Returns the receipt of a sub-request, even if tokens are lost before."""
    taker = Taker("req", lambda: "taker:t:1")
    for _ in range(10):
        for delivery in driver.run(pull_some(taker, 1, 60)):
            receipt: Receipt = delivery.receipt
            return receipt
        heal(driver)
    raise AssertionError("nothing to be had")


def flows(driver: Any) -> None:
    """Runs two steps, of which the second is fed twice, and sealed."""
    steps = Flow("f").step("one", limit=2).step("two").plan("req", "f", {})
    first, second = (step._replace(id=name) for step, name in zip(steps, ("r1", "r2"), strict=True))
    feed = Feed(DONE, ("r1",), ("continue",)).text
    second = second._replace(policy=replace(second.policy, feed=feed))
    driver.run(submit_flow([first, second]), iter([numbered(3)]))
    for _ in range(2):
        settle(driver, take(driver))
        driver.run(hand_over("r2"))
    while driver.client.hget(keys.request_hash("r1"), "state") == b"active":
        settle(driver, take(driver))
    driver.run(hand_over("r2"))


def joins_children(driver: Any) -> None:
    """Runs a step with two children, one of which has a dead one; a third request joins them."""
    flow = Flow("f").step("one", limit=2).children("a", "b", attempts=1).step("end")
    steps = flow.plan("req", "f", {})
    driver.run(submit_flow(steps), iter([numbered(2)]))
    driver.run(set_value("f", "key", 1))
    driver.run(add_to_value("f", "count", 2))
    while driver.run(flow_state("f")) == "active":
        while (held := slice_of_a_token(driver, 1)) is not None:
            is_bad = held.request_id == "f.3" and held.entries[0][0].endswith(b"-0")
            settle(driver, held, verdict="dead" if is_bad else "")
        for step in steps[1:]:
            driver.run(hand_over(step.id))
        heal(driver)
    assert driver.run(read_shared("f")) == {"count": 2, "key": 1}


def chooses_children(driver: Any) -> None:
    """Runs a step whose results choose none, one and two children, and a step that joins these."""
    flow = Flow("f").step("one", limit=3).children("a", chosen=2).step("end")
    steps = flow.plan("req", "f", {})
    driver.run(submit_flow(steps), iter([numbered(3)]))
    while driver.run(flow_state("f")) == "active":
        while (held := slice_of_a_token(driver, 1)) is not None:
            index = int(held.entries[0][0].rpartition(b"-")[2])
            fan = Fan([b"child"] * index) if held.request_id == "f.1" else None
            settle(driver, held, chosen=packed(fan, ("a",)) if fan is not None else None)
        for step in steps[1:]:
            driver.run(hand_over(step.id))
        heal(driver)


SCENARIOS: list[Scenario] = [
    submits, submits_in_three_steps, submits_nothing, submits_a_stream, submits_twice,
    submits_many, submits_bounded, is_refused_by_the_bound, takes_back_a_stream,
    takes_back_what_is_held, begins_a_new_life, cancels, works, goes_on, fails, gives_back,
    expires, dies, lives, loses_its_tokens, is_late, leaves_an_intent, vanishes, ends_unlogged,
    changes, holds, has_rates, has_rates_and_is_held, takes_turns, charges_turns, measures,
    is_given_another_rate, is_given_another_share, is_given_another_time_limit, answers_an_order,
    names_keys, names_keys_of_a_cluster, runs_in_order, ages, follows_another, fans_out,
    forwards, balances, publishes,
    places, pauses_the_queue, spreads, requeues, requeues_after_the_end, drops_the_dead,
    limits_the_queue,
    checks_everything, tidies, rolls, joins, recurs, changes_many, deletes, pulls, flows,
    joins_children, chooses_children,
]  # fmt: skip
LONG = {  # of many steps
    begins_a_new_life, recurs, takes_turns, is_refused_by_the_bound, changes_many, pulls, joins,
    flows, joins_children, chooses_children, checks_everything,
}  # fmt: skip
PLAYED = [pytest.param(one, marks=pytest.mark.rest if one in LONG else ()) for one in SCENARIOS]


# The scripts' own tests run each of them twice on every kind of server.
@ON_SINGLE
@pytest.mark.parametrize("scenario", PLAYED, ids=lambda scenario: scenario.__name__)
def test_a_lost_reply_changes_nothing(scenario: Scenario, driver: SyncDriver, redis_client: Any):
    steps = play(scenario, driver, redis_client, -1).steps
    expected = outcome(driver, redis_client)
    assert steps > 0
    for lose in range(steps + 1):
        play(scenario, driver, redis_client, lose)
        assert outcome(driver, redis_client) == expected, f"reply {lose or 'every one'} was lost"


# Why a repeat of these may write, although a driver repeats them. A script whose repeat would do
# harm is marked @once, and a driver sends it at most once.
WRITES_AGAIN = {
    "add_turns": "a token that is added twice costs one stale acquire",
    "insert_tokens": "a token that is inserted twice costs one stale acquire",
    "exchange": "the same, for the tokens that it dispatches",
    "intend": "the intent is looked at a ms later",
    "submit": "the same, for the intent of each request",
    "place_tokens": "as insert_tokens",
    "look_at_keys": "what is called is returned again",
    "push": "as insert_tokens; the word that wakes a worker's units is there twice, and expires",
    "take": "a bucket gives twice, so that many sub-requests start later, and never too many",
    "take_messages": "Redis counts another delivery",
    "take_turns": "the next tokens are taken, and the auditor mints those that were lost",
}
# Not repeated: reads; confirm (below); what is sent once.
APART = {
    *("check", "confirm", "due_schedules", "list_chosen", "list_dead", "measure_stream"),
    "read_heads",
}


@ON_SINGLE
@pytest.mark.parametrize("scenario", PLAYED, ids=lambda scenario: scenario.__name__)
def test_a_repeat_of_a_script_writes_nothing_unless_it_is_named(
    scenario: Scenario, driver: SyncDriver, redis_client: Any
):
    """Every script of every scenario is sent again with the same time."""
    twice = Twice(driver, redis_client)
    scenario(twice)
    writes = {name: keys for name, keys in twice.writes.items() if name not in WRITES_AGAIN}
    redis_client.flushall()
    assert writes == {}


def test_the_scripts_that_are_sent_once_are_these():
    """Each of them loses little if it is not sent again, and its header says what."""
    found = {script.name.rpartition("/")[2] for script in library() if script.is_once}
    assert found == {"refund", "charge_turns", "add_stats"}
    assert not found & WRITES_AGAIN.keys()


@ON_SINGLE
def test_a_repeat_of_these_commands_reports_only_what_was_left(
    driver: SyncDriver, redis_client: Any
):
    """They are no scripts. Their effect is there once, but an entry of a trail is there twice."""
    driver.run(topics.subscribe("t", "a", "first"))
    driver.run(topics.publish("t", numbered(2)))
    found = driver.run(topics.fetch("t", "a", 2, 0, 0))
    losing = Forgetful(driver, redis_client, 0)
    assert losing.run(topics.acknowledge("t", "a", [one.id for one in found])) == 0
    assert redis_client.xpending(keys.topic("t")[0], "a")["pending"] == 0
    assert losing.run(topics.delete_topic("t")) is False
    assert not redis_client.exists(*keys.topic("t"))
    losing.run(audit_trail.begin("req", audit_trail.AuditEntry("me", "pause")))
    assert redis_client.xlen(keys.audit_part("req", "local")) == 2
    redis_client.flushall()


@ON_SINGLE
def test_every_script_is_repeated_by_some_scenario(driver: SyncDriver, redis_client: Any):
    """A new script needs a scenario, or an entry with the reason."""
    seen = set().union(*(play(one, driver, redis_client, -1).scripts for one in SCENARIOS))
    redis_client.flushall()
    assert {script.name.rpartition("/")[2] for script in library()} - APART - names(seen) == set()


def names(scripts: set[str]) -> set[str]:
    return {name.rpartition("/")[2].removesuffix(".lua") for name in scripts}


@pytest.mark.slow
def test_a_durable_submission_and_its_work_lose_every_reply():
    """A repeat is confirmed like the first call."""
    with (
        run_pair() as pair,
        Queue.from_url(pair.primary.url) as queue,
        contextlib.closing(pair.primary.client()) as client,
    ):
        for lose in range(40):
            forgetful = play(durable, queue.driver, client, lose)
            request = queue.request("r1")
            assert (request.wait(PATIENCE_S), request.progress().done) == ("done", 3)
            assert broken(queue, "r1") == []
            assert "confirm" in names(forgetful.scripts)


def durable(driver: Any) -> None:
    driver.run(submit("r1", Policy(durable=1)), iter(TWO))  # as a stream
    work_on(driver)
    assert driver.run(completion.wait("r1", lambda: 0.0, 10)) == "done"
