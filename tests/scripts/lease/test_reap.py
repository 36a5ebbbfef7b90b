"""Tests the script reap: it takes back leases without a holder, and charges only the guilty."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.support.run.for_each import for_each
from tests.support.scripts.requests import HOUR, Held, Lane, Tok, listening, toks

if TYPE_CHECKING:
    import redis

LEASE = 30_000


def reaped(lane: Lane, **which: Any) -> tuple[int, list[Tok]]:
    """Returns the time of the next check and the tokens, of a reap that left the request alive."""
    word, look, flat = lane.reap(**which)
    assert word == b"ok"
    return look, toks(flat)


def test_a_lease_that_stands_is_left_alone(lane: Lane):
    tokens = lane.start(6)
    lane.take(tokens[0])
    lane.later(1)
    lane.take(tokens[1])
    lane.later(LEASE - 2)
    with lane.unchanged():
        assert reaped(lane) == (2, [])  # one ms; but 1 means that there is more to take back now


def test_a_lease_that_ends_later_than_it_can_ends_a_lease_from_now(lane: Lane):
    """The clock went back: a living holder extends the lease, a dead one's work returns."""
    tokens = lane.start(6)
    dead, alive = lane.take(tokens[0]), lane.take(tokens[1])
    lane.later(-600_000)
    assert reaped(lane) == (LEASE, [])
    with lane.unchanged():
        assert reaped(lane) == (LEASE, [])
    lane.later(LEASE - 1)
    assert lane.extend(alive) == "ok"
    lane.later(1)
    look, minted = reaped(lane)
    assert look == LEASE - 1
    assert lane.take(minted[0]).ids == dead.ids[:1]
    assert lane.extend(dead) == "lost"


def test_a_reap_of_a_worker_leaves_the_ends_of_other_leases_alone(lane: Lane):
    """Only a check of expired leases compares them with the clock."""
    other = lane.begin(6)
    before = lane.raw(b"ZSCORE", lane.names[4], other.k)
    lane.later(-600_000)
    reaped(lane, worker="w:9", started="7")
    assert lane.raw(b"ZSCORE", lane.names[4], other.k) == before


def test_an_expired_lease_with_one_entry_charges_it_an_attempt(lane: Lane):
    """The entry was alone, so it is charged; it is delivered again immediately."""
    held = lane.begin(3, limit=1, count=1)
    lane.later(LEASE)
    look, (token,) = reaped(lane)
    assert (look, token.delay) == (0, 0)
    again = lane.take(token)
    assert (again.ids, again.attempt) == (held.ids, 2)


def test_an_expired_lease_of_a_worker_that_held_more_charges_nothing(lane: Lane):
    """Any of them may have killed the worker: the entry returns alone, uncharged."""
    held = lane.begin(3, limit=1, count=1, shared=True)
    lane.later(LEASE)
    _, (token,) = reaped(lane)
    with lane.unchanged():
        assert lane.acquire(token, shared=True).reply == [b"alone"]
    again = lane.take(token)
    assert (again.ids, again.attempt) == (held.ids, 1)


def test_a_shared_lease_whose_supervisor_names_it_is_charged(lane: Lane):
    """The named lease was running when its process died."""
    held = lane.begin(1, limit=1, attempts=1, shared=True)
    word, summary = lane.reap(worker=held.worker, started=held.started, k=held.k, fence=held.fence)
    assert (word, summary[0], summary[2:6]) == (b"ended", b"done", [1, 0, 1, 0])
    ((_, fields),) = lane.client.xrange(lane.names[7])
    assert fields[b"reason"] == b"died"


def test_a_retry_that_is_not_due_keeps_no_lease_from_being_shared(lane: Lane):
    """Only an entry that is delivered now must be alone."""
    held = lane.begin(2, limit=1, count=1)
    word, _, flat = lane.complete(held, others=[(held.ids[0], "retry", 1000)])
    assert word == b"ok"
    assert lane.acquire(toks(flat)[0], shared=True).word == "ok"


def test_an_expired_lease_with_many_charges_nothing(lane: Lane):
    """Any of them may have killed the worker; each returns alone, in its first attempt."""
    held = lane.begin(3, limit=1)
    lane.later(LEASE)
    _, (token,) = reaped(lane)
    seen = []
    for _ in range(3):
        again = lane.take(token)
        assert (len(again.ids), again.attempt) == (1, 1)
        seen += again.ids
        reply = lane.complete(again)
        if reply[0] == b"ok":
            (token,) = toks(reply[2])
    assert seen == held.ids


def test_only_what_a_partial_completion_left_is_taken_back(lane: Lane):
    """Two of three are done: the third was alone when the worker died, and is charged."""
    held = lane.begin(3, limit=1)
    lane.complete(held, held.ids[:2], keep=True)
    lane.later(LEASE)
    _, (token,) = reaped(lane)
    again = lane.take(token)
    assert (again.bodies, again.attempt) == ([b"b2"], 2)
    assert lane.number("done") == 2


def die(lane: Lane, token: Tok) -> list[Tok]:
    """Takes the token's slice and lets the lease expire."""
    lane.take(token)
    lane.later(LEASE)
    reply = lane.reap()
    return toks(reply[2]) if reply[0] == b"ok" else []


def test_a_second_death_waits_for_the_backoff(lane: Lane):
    """A body that kills its workers must not do so as fast as they can be started."""
    (token,) = lane.start(1, attempts=5, backoff_min=1_000, backoff_max=3_000)
    delays = []
    for _ in range(4):
        (token,) = die(lane, token)
        delays.append(token.delay)
        lane.later(token.delay)
    assert delays == [0, 1_000, 2_000, 3_000]


def test_a_death_in_the_last_attempt_is_dead_with_its_reason(lane: Lane, redis_client: redis.Redis):
    (token,) = lane.start([b"poison"], attempts=2)
    (token,) = die(lane, token)
    with listening(redis_client, "done:{r1}") as published:
        assert die(lane, token) == []
        assert published() == [b"done"]
    (dead,) = lane.dead()
    assert (dead["reason"], dead["body"], dead["worker"]) == ("died", "poison", "w:1")
    assert lane.results()[0][:2] == ("x", 2)
    assert lane.number("dead") == 1


def test_reap_twice_takes_back_once(lane: Lane):
    lane.begin(1)
    lane.later(LEASE)
    _, (token,) = reaped(lane)
    with lane.unchanged():
        assert reaped(lane) == (0, [])
    assert lane.take(token).attempt == 2


def test_reap_of_a_worker_takes_all_its_leases_and_no_other(lane: Lane):
    tokens = lane.start(6)
    lane.take(tokens[0], worker="w:1")
    other = lane.take(tokens[1], worker="w:2")
    lane.take(tokens[2], worker="w:1")
    look, minted = reaped(lane, worker="w:1", started="7")
    assert look == LEASE
    assert len(minted) == 2
    assert lane.client.zrange(lane.names[4], 0, -1) == [b"1"]
    assert lane.complete(other)[0] == b"ok"


@for_each("which", [{"fence": "99"}, {"started": "8"}, {"worker": "w:2"}, {"k": "2"}, {"k": "9"}])
def test_reap_of_one_permit_wants_every_proof(lane: Lane, which: dict[str, str]):
    held = lane.begin(6)
    with lane.unchanged():
        named = {"worker": "w:1", "started": "7", "k": held.k, "fence": held.fence} | which
        assert reaped(lane, **named) == (LEASE, [])


def test_reap_of_one_permit_leaves_the_workers_other_permits(lane: Lane):
    tokens = lane.start(6)
    dead, alive = lane.take(tokens[0]), lane.take(tokens[1])
    reaped(lane, worker="w:1", started="7", k=dead.k, fence=dead.fence)
    assert lane.complete(dead) == [b"lost"]
    assert lane.complete(alive)[0] == b"ok"


def test_reap_deletes_the_consumer_that_holds_nothing(lane: Lane):
    lane.begin(3, limit=1)
    lane.later(LEASE)
    lane.reap()
    assert lane.pending() == {"-": 3}


def test_reap_takes_back_a_bounded_number_a_call(lane: Lane):
    """Over about 1,000 entries the rest is left to the next call, for which the reply asks."""
    first = lane.enqueue(900, limit=4, open_ms=HOUR)
    tokens = toks(first[1])
    for chunk in (2, 3, 4):
        lane.append(900, chunk=chunk)
    for token in tokens:
        lane.take(token, count=900)
    held = lane.client.zcard(lane.names[4])
    assert held == 4
    lane.later(LEASE)
    looks = [reaped(lane)[0]]
    assert looks == [1]
    while lane.client.zcard(lane.names[4]):
        looks.append(reaped(lane)[0])
    assert len(looks) == 2
    assert looks[-1] == 0


def test_missing_tokens_are_made_again(lane: Lane):
    """The auditor names permits without a token: they are queued with a new generation."""
    tokens = lane.start(6)
    _, again = reaped(lane, missing=["1", tokens[1].g, "2", tokens[2].g])
    assert [(token.k, token.lane, token.delay) for token in again] == [("1", 5, 0), ("2", 5, 0)]
    assert lane.acquire(tokens[1]).word == "stale"
    assert lane.take(again[0]).word == "ok"
    assert lane.take(tokens[0]).word == "ok"


def test_a_missing_sleeper_keeps_its_due(lane: Lane):
    held = lane.begin(1)
    (sleeper,) = toks(lane.complete(held, others=[(held.ids[0], "retry", 5_000)])[2])
    lane.later(1_000)
    _, (again,) = reaped(lane, missing=[sleeper.k, sleeper.g])
    assert (again.k, again.delay) == (sleeper.k, 4_000)
    assert lane.acquire(sleeper).word == "stale"


def test_a_wrong_guess_of_the_auditor_is_ignored(lane: Lane):
    held = lane.begin(6)
    guesses = ["0", held.g, "1", "99", "9", "1"]
    with lane.unchanged():
        assert reaped(lane, missing=guesses)[1] == []


def test_a_guess_that_names_another_permit_than_the_waiting_one_is_ignored(lane: Lane):
    (first,) = lane.start(1)
    with lane.unchanged():
        assert reaped(lane, missing=["7", first.g])[1] == []


def test_a_request_open_past_its_time_is_abandoned(lane: Lane, redis_client: redis.Redis):
    lane.start(4, open_ms=HOUR)
    lane.later(HOUR)
    assert lane.reap()[0] == b"ok"
    lane.later(1)
    with listening(redis_client, "done:{r1}") as published:
        word, summary = lane.reap()
        assert published() == [b"cancelled"]
    assert word == b"ended"
    assert (summary[0], summary[2:6], summary[8]) == (b"cancelled", [4, 0, 0, 4], b"abandoned")


def test_an_abandoned_request_waits_for_the_holder_of_a_slice(lane: Lane):
    held = lane.begin(6, open_ms=1_000)
    lane.later(1_001)
    word, _, flat = lane.reap()
    assert (word, flat) == (b"stopped", [])
    assert lane.hash()["state"] == "cancelling"
    word, summary = lane.complete(held)
    assert (word, summary[2:6]) == (b"ended", [6, 2, 0, 4])


def test_a_sealed_request_is_never_abandoned(lane: Lane):
    lane.start(2, open_ms=HOUR)
    lane.seal()
    lane.later(100 * HOUR)
    assert lane.reap()[0] == b"ok"
    assert lane.hash()["state"] == "active"


def test_reap_ends_a_cancelled_request_whose_last_holder_died(lane: Lane):
    lane.begin(6)
    lane.cancel()
    lane.later(LEASE)
    word, summary = lane.reap()
    assert (word, summary[0], summary[2:6]) == (b"ended", b"cancelled", [6, 0, 0, 6])


def test_every_lease_expires_and_all_is_accounted_for(lane: Lane):
    """This repeats until all are dead or done: the counts are right, and no body runs too often."""
    tokens = lane.start(7, attempts=2, limit=2, backoff_min=0, backoff_max=0)
    deliveries: dict[bytes, int] = {}
    while tokens:
        held: list[Held] = [lane.take(token) for token in tokens]
        for one in held:
            for body in one.bodies:
                deliveries[body] = deliveries.get(body, 0) + 1
        lane.later(LEASE)
        reply = lane.reap()
        tokens = toks(reply[2]) if reply[0] == b"ok" else []
        tokens = [token for token in tokens if not token.delay]
    assert lane.hash()["state"] == "done"
    assert lane.number("dead") == 7
    assert set(deliveries.values()) <= {2, 3}


def test_reap_ignores_requests_of_another_queue(lane: Lane):
    """An old intent must not make this queue's workers run that queue's request."""
    lane.begin(1)
    lane.later(60_000)
    with lane.unchanged():
        assert lane.reap(queue="other") == [b"foreign"]
