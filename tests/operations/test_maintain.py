"""The auditor: lost tokens are minted again, every unfinished request is looked at in its time."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest

from fairlane import keys, settings
from fairlane.errors import FairlaneError, RedisUnreachable
from fairlane.operations import maintain
from fairlane.operations.maintain import Suspect
from fairlane.operations.watch import read_completions
from fairlane.queue import Queue
from fairlane.steps import At, Batch, Call, Command, Nodes
from tests.support.requests import HOUR, MINUTE, Lane, Tok, insert, once, pop_token, work_off

if TYPE_CHECKING:
    from collections.abc import Callable

    import redis

    from fairlane.drivers.sync import SyncDriver
    from fairlane.steps import Operation, Step

ACTIVE, DELAYED, WORKERS = keys.active("req"), keys.delayed("req"), keys.workers("req")
HOME = keys.lanes("req")[5]
STEPS = 200  # more than any of these operations may take


def server_ms(client: Any) -> int:
    """The server's own clock, which the operations go by."""
    seconds, micros = client.time()
    return int(seconds) * 1000 + int(micros) // 1000


@pytest.fixture
def lane(lane: Lane) -> Lane:
    """The request `r1`, as of now."""
    lane.now = server_ms(lane.client)
    return lane


@pytest.fixture
def old(lane: Lane) -> Lane:
    """The request `r1`, as of a minute ago: what is queued then has been queued for long."""
    lane.later(-MINUTE)
    return lane


def name_of(step: Step) -> str:
    """A script's name, a command, or the same of a batch and how many."""
    match step:
        case Call():
            return str(step.script.name)
        case Command():
            return bytes(step.args[0]).decode()  # type: ignore[arg-type]
        case Batch():
            return f"{len(step.steps)} {name_of(step.steps[-1])}"
        case At():
            return name_of(step.command)
        case Nodes():
            return "Nodes"
    raise AssertionError(step)


def watch(
    driver: SyncDriver,
    operation: Operation[Any],
    meanwhile: Callable[[str], object] = lambda _: None,
) -> tuple[Any, list[str]]:
    """The result of an operation and its steps; `meanwhile` is called before each."""
    told: list[str] = []
    reply: Any = None
    try:
        while len(told) < STEPS:
            step = operation.send(reply)
            told.append(name_of(step))
            meanwhile(told[-1])
            reply = driver.run(once(step))
    except StopIteration as end:
        return end.value, told
    raise AssertionError(f"it does not end: {told[:9]} ...")


def queued(lane: Lane) -> dict[str, tuple[str, int, int]]:
    """Permit -> (g, lane, due) of those that wait."""
    found = {}
    for k, text in lane.client.hgetall(keys.permits(lane.id)).items():
        if text.startswith(b"q:"):
            _, g, _, number, due = text.decode().split(":")
            found[k.decode()] = (g, int(number), int(due))
    return found


def suspects(lane: Lane) -> list[Suspect]:
    """Every permit that waits."""
    return [Suspect(lane.id, k, g, number) for k, (g, number, _) in queued(lane).items()]


def token(suspect: Suspect | Tok, request_id: str = "r1") -> bytes:
    """What stands in a lane."""
    return f"{request_id}#{suspect.k}.{suspect.g}".encode()


def expected(lane: Lane) -> list[bytes]:
    """The tokens that should be on their way."""
    return sorted(token(one) for one in suspects(lane))


def standing(client: Any) -> list[bytes]:
    """The tokens in the lane."""
    return sorted(client.lrange(HOME, 0, -1))


# ------------------------------------------------------------------ drain or unknown


@pytest.mark.parametrize(
    ("silent_ms", "word"),
    [(0, b"drain"), (59_999, b"drain"), (60_000, b"unknown"), (HOUR, b"unknown")],
)
def test_an_expired_record_is_not_taken_for_a_deleted_one(lane: Lane, silent_ms: int, word: bytes):
    """After a TTL of silence it went by itself, and its worker registers again."""
    names = (WORKERS, keys.worker("req", "w:1"))
    ttl = settings.WORKER_TTL_MS
    lane.call(
        "register",
        (*names, keys.conf("req")),
        id="w:1",
        host="b",
        pid=1,
        started=7,
        ttl=ttl,
        late=2000,
    )
    lane.client.delete(names[1])
    lane.later(silent_ms)
    given = {"id": "w:1", "started": 7, "ttl": ttl, "lock_ms": 5000, "holds": ""}
    assert lane.call("beat", (*names, ACTIVE, DELAYED, keys.conf("req")), **given) == [word]


# ------------------------------------------------------------------ lost tokens


def test_lost_tokens_are_minted_again(old: Lane, driver: SyncDriver):
    """With a new generation, into the lane the permits name; the lost ones are stale."""
    lost = old.start(3)
    old.client.zadd(ACTIVE, {"r1": 1})
    assert driver.run(maintain.look_after("req")) == 1
    old.now = server_ms(old.client)
    assert standing(old.client) == expected(old)
    assert len(standing(old.client)) == 3
    assert {old.acquire(one).word for one in lost} == {"stale"}
    assert [old.take(Tok(5, one.k, one.g)).word for one in suspects(old)] == ["ok"] * 3


def test_what_was_queued_just_now_is_not_suspected(lane: Lane, driver: SyncDriver):
    """Its token may be on its way."""
    lane.start(3)
    assert driver.run(maintain.queued_long("r1")) == []


def test_what_sleeps_is_not_suspected_until_it_was_due(old: Lane, driver: SyncDriver):
    """The grace counts from the later of since and due."""
    held = old.take(old.start(1)[0])
    old.complete(held, others=[(held.ids[0], "retry", 2 * MINUTE)])
    assert driver.run(maintain.queued_long("r1")) == []
    assert len(queued(old)) == 1


def test_a_lost_tokens_due_is_kept(lane: Lane, driver: SyncDriver):
    """A retry does not run early because its token was lost."""
    held = lane.take(lane.start(1)[0])
    lane.complete(held, others=[(held.ids[0], "retry", MINUTE)])
    ((g, _, due),) = queued(lane).values()
    assert driver.run(maintain.mint_again("req", suspects(lane))) == 1
    ((again, _, due_again),) = queued(lane).values()
    assert (int(again) > int(g), due_again) == (True, due)
    ((member, score),) = lane.client.zrange(DELAYED, 0, -1, withscores=True)
    assert [member] == [b"5|" + one for one in expected(lane)]
    assert abs(score - due) < 1000
    lane.client.delete(DELAYED)


def test_tokens_that_stand_somewhere_are_left(old: Lane, driver: SyncDriver):
    """One in the lane, one in `delayed`: only the third, which is nowhere, is minted again."""
    here, later, lost = old.start(3)
    old.client.lpush(HOME, token(here))
    old.client.zadd(DELAYED, {b"5|" + token(later): 9e12})
    before = queued(old)
    assert driver.run(maintain.mint_again("req", suspects(old))) == 1
    after = queued(old)
    assert {k for k in before if before[k] != after[k]} == {lost.k}
    assert standing(old.client) == sorted([token(here), token(Tok(5, lost.k, after[lost.k][0]))])
    assert old.client.zcard(DELAYED) == 1
    old.client.delete(DELAYED)


def test_nothing_suspected_asks_nothing(driver: SyncDriver):
    """Not one step."""
    assert watch(driver, maintain.mint_again("req", [])) == (0, [])


def test_a_token_promoted_meanwhile_is_seen(old: Lane, driver: SyncDriver):
    """`delayed` is asked first, as tokens move only from there to the lane."""
    (late,) = old.start(1)
    old.client.zadd(DELAYED, {b"5|" + token(late): 1})
    told: list[str] = []

    def promote(name: str) -> None:
        if told:
            driver.run(maintain.promote("req"))
        told.append(name)

    assert watch(driver, maintain.mint_again("req", suspects(old)), promote)[0] == 0
    assert expected(old) == [token(late)]


def test_a_token_popped_meanwhile_costs_one_stale_token(old: Lane, driver: SyncDriver):
    """It is in a worker's hands: that one is refused, its copy is not, and nothing runs twice."""
    (only,) = old.start(1)
    old.client.lpush(HOME, token(only))
    popped = []

    def pop(name: str) -> None:
        if name == "1 LPOS":
            popped.append(pop_token(driver))

    minted, steps = watch(driver, maintain.mint_again("req", suspects(old)), pop)
    assert (minted, steps) == (1, ["HMGET", "1 ZSCORE", "1 LPOS", "reap", "1 insert_tokens"])
    old.now = server_ms(old.client)
    hand, copy = *popped, pop_token(driver)
    assert hand
    assert copy
    assert old.acquire(Tok(5, hand.k, hand.g)).word == "stale"
    held = old.take(Tok(5, copy.k, copy.g))
    assert old.complete(held)[0] == b"ended"
    assert pop_token(driver) is None


def test_few_tokens_are_asked_for_one_by_one(old: Lane, driver: SyncDriver):
    """Up to twenty, in one round trip."""
    insert(driver, "req", "r1", old.enqueue(20, limit=20)[1])
    asked = maintain.mint_again("req", suspects(old))
    assert watch(driver, asked) == (0, ["HMGET", "20 ZSCORE", "20 LPOS"])


@pytest.mark.parametrize(("others", "pages"), [(0, 1), (980, 2), (2400, 3)])
def test_for_many_tokens_the_lane_is_read_page_by_page(
    old: Lane, driver: SyncDriver, others: int, pages: int
):
    """A thousand a page, and nobody asks for each; the one that is missing is found out."""
    insert(driver, "req", "r1", old.enqueue(21, limit=21)[1])
    assert pop_token(driver)
    if others:
        old.client.rpush(HOME, *[b"other#0.%d" % i for i in range(others)])
    minted, steps = watch(driver, maintain.mint_again("req", suspects(old)))
    assert (minted, steps[1:2], steps[-2:]) == (1, ["21 ZSCORE"], ["reap", "1 insert_tokens"])
    assert steps[2:-2] == ["LRANGE"] * 2 * pages, "twice, for the one that is missing"
    assert set(expected(old)) <= set(standing(old.client))


def test_tokens_that_change_ends_meanwhile_are_looked_for_again(old: Lane, driver: SyncDriver):
    """A lease goes on in place of the next one, which slips past the reader; but hardly twice."""
    insert(driver, "req", "r1", old.enqueue(30, limit=30)[1])
    old.client.lpush(HOME, *[b"other#0.%d" % i for i in range(1500)])
    turns = 0

    def change(name: str) -> None:
        nonlocal turns
        if name == "LRANGE" and (turns := turns + 1) == 2:
            for _ in range(5):
                old.client.rpoplpush(HOME, HOME)

    minted, steps = watch(driver, maintain.mint_again("req", suspects(old)), change)
    assert (minted, steps[2:]) == (0, ["LRANGE"] * 3)


def test_tokens_that_come_in_meanwhile_hide_none(old: Lane, driver: SyncDriver):
    """They push the others towards the reader, not past it; and pops take from the far end."""
    flat = old.enqueue(21, limit=21)[1]
    old.client.lpush(HOME, *[b"other#0.%d" % i for i in range(1060)])
    insert(driver, "req", "r1", flat)
    old.client.lpush(HOME, *[b"other#1.%d" % i for i in range(990)])

    def push(name: str) -> None:
        if name == "LRANGE":
            old.client.lpush(HOME, *[b"other#2.%d" % i for i in range(50)])
            old.client.rpop(HOME, 50)

    minted, steps = watch(driver, maintain.mint_again("req", suspects(old)), push)
    assert (minted, steps) == (0, ["HMGET", "21 ZSCORE", *["LRANGE"] * 2])


# ------------------------------------------------------------------ bounds


def test_one_pass_looks_at_a_bounded_number(
    lane: Lane, driver: SyncDriver, monkeypatch: pytest.MonkeyPatch
):
    """The earliest first; the others' turn is the next pass."""
    monkeypatch.setattr(settings, "MAINTAIN_MOST", 5)
    lane.client.zadd(ACTIVE, {f"lost{i}": i + 1 for i in range(8)})
    assert driver.run(maintain.look_after("req")) == 5
    assert lane.client.zrange(ACTIVE, 0, -1) == [b"lost5", b"lost6", b"lost7"]
    assert driver.run(maintain.look_after("req")) == 3


def test_one_pass_looks_for_a_bounded_number_of_tokens(
    old: Lane, driver: SyncDriver, monkeypatch: pytest.MonkeyPatch
):
    """Whole requests, until there are enough; without `audit` for none."""
    monkeypatch.setattr(settings, "AUDIT_MOST", 4)
    names = ["r1", "r2", "r3"]
    for name in names:
        other = Lane(driver, old.client, request_id=name)
        other.now = old.now
        other.start(3)
    for audit, looked_for in ((False, 0), (True, 2)):
        old.client.zadd(ACTIVE, {name: i + 1 for i, name in enumerate(names)})
        count, steps = watch(driver, maintain.look_after("req", audit=audit))
        assert count == steps.count("reap") - looked_for == 3
        assert steps.count("2 TIME") == looked_for
        assert len(standing(old.client)) == 3 * looked_for


def test_what_is_not_due_is_not_looked_at(lane: Lane, driver: SyncDriver):
    """Its score lies ahead."""
    lane.client.zadd(ACTIVE, {"later": lane.now + MINUTE})
    assert watch(driver, maintain.look_after("req")) == (0, ["2 ZRANGE"])


# ------------------------------------------------------------------ one look


def look(lane: Lane, driver: SyncDriver, score: float = 1) -> bool:
    """One look at `r1`, whose score in `active` is this."""
    lane.client.zadd(ACTIVE, {"r1": score})
    lane.now = server_ms(lane.client)
    return driver.run(maintain.look_at("req", "r1", str(score), lane.now))


def test_an_intent_without_a_request_is_abandoned_and_dropped(lane: Lane, driver: SyncDriver):
    """Marked first: a producer that is only slow starts over instead of being forgotten."""
    score = lane.now + 100
    assert look(lane, driver, score) is False
    assert lane.client.zcard(ACTIVE) == 0
    assert lane.hash() == {"state": "abandoned", "seen": str(score)}
    assert 0 < lane.client.pttl("req:{r1}") <= settings.MARKER_MS
    assert lane.enqueue(1, intent=score)[0] == b"late"
    assert lane.enqueue(1, intent=score + 1)[0] == b"ok"


@pytest.mark.parametrize("what", ["renewed", "submitted"])
def test_an_intent_that_is_alive_after_all_is_not_dropped(
    lane: Lane, driver: SyncDriver, what: str
):
    """The producer came back between the look and the verdict."""

    def come_back(name: str) -> None:
        if name == "abandon" and what == "renewed":
            lane.client.zadd(ACTIVE, {"r1": 700})
        elif name == "abandon":
            lane.start(1, intent=500)

    lane.client.zadd(ACTIVE, {"r1": 500})
    assert watch(driver, maintain.look_at("req", "r1", "500", lane.now), come_back)[0] is False
    assert lane.client.zscore(ACTIVE, "r1") == (700 if what == "renewed" else 500)


def test_an_ending_is_logged_once_and_dropped(lane: Lane, driver: SyncDriver):
    """Its finisher died before; a second look finds the marker."""
    lane.complete(lane.take(lane.start(1)[0]))
    for _ in range(2):
        assert look(lane, driver) is False
        assert lane.client.zcard(ACTIVE) == 0
        assert lane.client.xlen(keys.completed("req")) == 1


def test_another_queues_request_is_dropped_and_left_alone(
    lane: Lane, driver: SyncDriver, redis_client: redis.Redis
):
    """Its own queue looks after it: not even its expired lease is touched here."""
    other = Lane(driver, redis_client, queue="other")
    other.now = lane.now - MINUTE
    other.take(other.start(3)[0])
    before = other.dump()
    assert look(lane, driver) is False
    assert other.dump() == before


def test_an_expired_lease_is_taken_back(old: Lane, driver: SyncDriver):
    """And its token dispatched, as the next attempt."""
    old.take(old.start(1)[0])
    assert look(old, driver) is True
    assert old.client.zcard(keys.leases("r1")) == 0
    assert standing(old.client) == expected(old)
    old.now = server_ms(old.client)
    (again,) = suspects(old)
    assert old.take(Tok(5, again.k, again.g)).attempt == 2


@pytest.mark.parametrize(("lease_ms", "least", "most"), [(3000, 1000, 3000), (30_000, 5000, 5000)])
def test_the_next_look_is_when_a_lease_expires_or_soon(
    lane: Lane, driver: SyncDriver, lease_ms: int, least: int, most: int
):
    """The earlier of the two."""
    lane.take(lane.start(3, lease_ms=lease_ms)[0])
    assert look(lane, driver) is True
    assert least <= lane.client.zscore(ACTIVE, "r1") - lane.now <= most + 0.5


def test_a_request_nobody_holds_is_looked_at_soon_again(lane: Lane, driver: SyncDriver):
    """Its tokens may have been lost."""
    lane.start(3)
    assert look(lane, driver) is True
    assert lane.client.zscore(ACTIVE, "r1") - lane.now == settings.AUDIT_MS + 0.5


@pytest.mark.parametrize("open_ms", [HOUR, 3 * HOUR])
def test_a_request_left_open_is_cancelled(lane: Lane, driver: SyncDriver, open_ms: int):
    """Once its time is over, and not before; the log says why."""
    lane.later(-2 * HOUR)
    lane.start(2, open_ms=open_ms)
    is_over = open_ms == HOUR
    assert look(lane, driver) is not is_over
    ended = lane.client.xrange(keys.completed("req"))
    told = [(entry[b"state"], entry[b"reason"]) for _, entry in ended]
    assert told == ([(b"cancelled", b"abandoned")] if is_over else [])
    assert lane.hash()["state"] == ("cancelled" if is_over else "active")


# ------------------------------------------------------------------ what can't be read, is lost


def test_a_request_that_was_there_and_is_gone_is_logged_as_lost(lane: Lane, driver: SyncDriver):
    """By the look after the one that saw it; and only once."""
    lane.start(1)
    assert look(lane, driver) is True
    lane.client.delete(*lane.names)
    score = lane.client.zscore(ACTIVE, "r1")
    for _ in range(2):
        assert driver.run(maintain.look_at("req", "r1", str(score), lane.now)) is False
    (ending,) = driver.run(read_completions("req", "0", 0))
    assert (ending.id, ending.state, ending.total) == ("r1", "lost", 0)
    assert lane.client.zcard(ACTIVE) == 0


def test_a_lost_request_may_be_submitted_again(lane: Lane, driver: SyncDriver):
    """Its id is free, whether it was told to be lost or not yet."""
    for is_told in (False, True):
        lane.start(1)
        look(lane, driver)
        lane.client.delete(*lane.names)
        if is_told:
            look(lane, driver, lane.now + 7.5)
        Queue(driver).submit_request([b"x"], id="r1")
        assert lane.client.zscore(ACTIVE, "r1") % 1 == 0
        assert work_off(driver) == [b"x"]
        lane.client.flushall()


def test_a_request_that_cannot_be_read_does_not_stop_the_others(lane: Lane, driver: SyncDriver):
    """It is put off like them, and told."""
    for name in ("r1", "r2", "r3"):
        other = Lane(driver, lane.client, request_id=name)
        other.now = lane.now - MINUTE
        other.start(1)
    lane.client.delete("tok:{r2}")
    lane.client.set("tok:{r2}", "text")
    lane.client.zadd(ACTIVE, {"r1": 1, "r2": 2.5, "r3": 3, b"a b": 4})
    failed: dict[str, FairlaneError] = {}
    assert driver.run(maintain.look_after("req", failed=failed)) == 4
    assert list(failed) == ["r2"]
    assert "WRONGTYPE" in str(failed["r2"])
    assert len(standing(lane.client)) == 2
    scores = dict(lane.client.zrange(ACTIVE, 0, -1, withscores=True))
    assert set(scores) == {b"r1", b"r2", b"r3"}
    assert all(score % 1 == 0.5 and score > lane.now for score in scores.values())
    lane.client.delete(*keys.request_keys("r2"))


def test_an_unread_intent_stays_an_intent(lane: Lane, driver: SyncDriver):
    """Nobody knows whether there is a request: its score stays whole."""
    lane.client.set("req:{r1}", "text")
    lane.client.zadd(ACTIVE, {"r1": 1})
    driver.run(maintain.look_after("req"))
    assert lane.client.zscore(ACTIVE, "r1") % 1 == 0
    lane.client.delete("req:{r1}")


def test_what_was_renewed_meanwhile_is_not_put_off(lane: Lane, driver: SyncDriver):
    """A producer's new intent is newer than what the look has seen."""
    lane.start(1)
    lane.client.zadd(ACTIVE, {"r1": 1})

    def renew(name: str) -> None:
        if name == "postpone":
            lane.client.zadd(ACTIVE, {"r1": 700})

    assert watch(driver, maintain.look_at("req", "r1", "1", lane.now), renew)[0] is True
    assert lane.client.zscore(ACTIVE, "r1") == 700


def test_requests_that_do_not_answer_end_a_pass_after_a_few(lane: Lane):
    """Each costs the patience of a driver; they are put off, so the next pass is about others."""
    operation = maintain.look_after("req")
    due = [part for i in range(9) for part in (b"r%d" % i, b"%d" % i)]
    reply: Any = [[b"100", b"0"], due]
    step, told = operation.send(None), []
    with contextlib.suppress(RedisUnreachable):
        while True:
            told.append(name_of(step))
            away = told[-1] == "reap"
            step = operation.throw(RedisUnreachable("")) if away else operation.send(reply)
            reply = 1
    assert told == ["2 ZRANGE", *["reap", "postpone"] * 3]


@pytest.mark.parametrize(("bites", "reaps"), [(1, 1), (3, 3), (1000, 20)])
def test_one_look_takes_back_all_of_a_request_in_bounded_bites(bites: int, reaps: int):
    """While the reply says that there is more to do now."""
    operation = maintain.look_at("req", "r1", "1", 5)
    step, told = operation.send(None), []
    with contextlib.suppress(StopIteration):
        while True:
            told.append(name_of(step))
            more = told.count("reap") < bites
            step = operation.send([b"ok", 1 if more else 0, [b"5", b"0.1", 0]])
    assert told == ["reap", "1 insert_tokens"] * reaps + ["postpone"]
