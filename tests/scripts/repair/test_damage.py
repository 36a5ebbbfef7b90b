"""Tests the scripts on a request whose keys were deleted: it can still end."""

from __future__ import annotations

from typing import Any

import pytest

from fairlane.errors import RedisUnfit
from tests.support.scripts.requests import HOUR, Lane, Tok, toks

LEASE = 30_000
STREAM, COUNTER, PERMITS, LEASES, DEAD, FEW = 0, 1, 3, 4, 7, 8


@pytest.fixture
def damaged(lane: Lane) -> Lane:
    """Makes a request whose invariants stay broken until the damage is repaired."""
    lane.checked = False
    return lane


def work_off(lane: Lane, tokens: list[Tok]) -> list[bytes]:
    """Completes everything that can be acquired; returns the last reply's word."""
    words = []
    while tokens:
        held = lane.acquire(tokens.pop(0), worker="w:2")
        words.append(held.word.encode())
        tokens += held.tokens
        if held.word == "ok":
            reply = lane.complete(held)
            words.append(reply[0])
            tokens += toks(reply[-1]) if reply[0] == b"ok" else []
    return words


def test_a_request_without_its_permits_ends_by_cancel(damaged: Lane):
    """Its lease has no permit: it is dropped when its time is over, and then nothing is leased."""
    damaged.begin(6)
    damaged.client.delete(damaged.names[PERMITS])
    assert damaged.cancel()[0] == b"ok"
    damaged.later(LEASE)
    word, summary = damaged.reap()
    assert (word, summary[0], summary[2:6]) == (b"ended", b"cancelled", [6, 0, 0, 6])
    assert damaged.check() == []


@pytest.mark.parametrize("held", [0, 1, 2, 3])
def test_a_request_without_its_permits_is_worked_off_all_the_same(damaged: Lane, held: int):
    """The permits are counted anew, and what a dropped lease held returns uncharged."""
    tokens = damaged.start(9)
    slices = [damaged.take(token) for token in tokens[:held]]
    damaged.client.delete(damaged.names[PERMITS])
    assert [damaged.complete(one)[0] for one in slices] == [b"lost"] * held
    damaged.later(LEASE)
    word, _, flat = damaged.reap()
    assert word == b"ok"
    assert damaged.check() == []
    damaged.checked = True
    assert work_off(damaged, toks(flat))[-1] == b"ended"
    assert sorted(damaged.results()) == list(range(9))
    assert {attempt for _, attempt, _ in damaged.results().values()} == {1}


def test_a_permit_is_not_given_away_while_its_lease_may_be_worked_under(damaged: Lane):
    damaged.begin(9, limit=1, count=1)
    damaged.client.delete(damaged.names[PERMITS])
    damaged.later(LEASE - 1)
    assert damaged.reap()[2] == []
    damaged.later(1)
    assert len(toks(damaged.reap()[2])) == 1


def test_the_number_of_a_permit_whose_lease_stands_is_not_given_away(damaged: Lane):
    """All permits are gone: the one that is leased must not be the first to be created again."""
    damaged.begin(9, limit=2, count=1)
    damaged.client.delete(damaged.names[PERMITS])
    damaged.later(LEASE - 1)
    assert damaged.reap()[2] == []


def test_a_sleeping_permit_is_not_counted_among_the_awake(damaged: Lane):
    """What a dropped lease returns wakes the permit, instead of waiting for it."""
    tokens = damaged.start(2, limit=2)
    failed, lost = (damaged.take(token, count=1) for token in tokens)
    damaged.complete(failed, others=[(failed.ids[0], "retry", 10 * LEASE)])
    damaged.client.hdel(damaged.names[PERMITS], lost.k)
    damaged.later(LEASE)
    (token,) = [token for token in toks(damaged.reap()[2]) if not token.delay]
    assert damaged.take(token).ids == lost.ids


def test_permits_are_not_counted_anew_when_none_is_missing(lane: Lane):
    """Otherwise every check of a request would cost as much as its limit."""
    tokens = lane.start(9)
    lane.take(tokens[0])
    lane.checked = False

    def looks() -> int:
        stats: Any = lane.client.info("commandstats")
        return int(stats.get("cmdstat_hgetall", {"calls": 0})["calls"])

    before = looks()
    lane.reap()
    assert looks() == before
    lane.client.hdel(lane.names[PERMITS], tokens[1].k)
    lane.reap()
    assert looks() > before


def test_one_lost_permit_of_several_comes_back(damaged: Lane):
    tokens = damaged.start(9)
    slices = [damaged.take(token) for token in tokens[:2]]
    damaged.client.hdel(damaged.names[PERMITS], slices[0].k)
    damaged.later(LEASE - 1)
    assert damaged.extend(slices[1]) == "ok"
    damaged.later(1)
    _, _, flat = damaged.reap()
    assert damaged.check() == []
    damaged.checked = True
    word, _, more = damaged.complete(slices[1])
    assert word == b"ok"
    assert work_off(damaged, [tokens[2], *toks(flat), *toks(more)])[-1] == b"ended"


def test_a_damaged_parked_list_does_not_stop_a_request(damaged: Lane):
    """The head of the list names a permit that has no field."""
    (token,) = damaged.start(2, limit=2, open_ms=HOUR)[:1]
    damaged.complete(damaged.take(token, count=2))
    damaged.client.hdel(damaged.names[PERMITS], damaged.hash()["free"])
    word, flat = damaged.append(4, chunk=2)
    assert word == b"ok"
    damaged.seal(2)
    assert toks(flat)


def test_a_token_of_a_request_without_its_stream_is_gone_and_writes_nothing(damaged: Lane):
    """There is nothing to take, also if a late chunk made a new stream without a group."""
    tokens = damaged.start(6, open_ms=HOUR)
    damaged.client.delete(damaged.names[STREAM])
    with damaged.unchanged():
        assert damaged.acquire(tokens[0]).word == "gone"
    damaged.append(2, chunk=2)
    with damaged.unchanged():
        assert damaged.acquire(tokens[0]).word == "gone"


def test_a_request_without_its_stream_ends_by_cancel(damaged: Lane):
    damaged.start(20)
    damaged.client.delete(damaged.names[STREAM])
    assert damaged.check() == ["not ended, but sub:{r1} is gone"]
    word, summary = damaged.cancel()
    assert (word, summary[0], summary[2:6]) == (b"ended", b"cancelled", [20, 0, 0, 20])
    assert damaged.check() == []


def test_a_request_of_big_bodies_without_its_stream_gives_nothing(damaged: Lane):
    """The stream is read in several steps, and the first of them finds nothing."""
    (token,) = damaged.start([b"x" * 3_000_000] * 3, limit=1)
    damaged.client.delete(damaged.names[STREAM])
    with damaged.unchanged():
        assert damaged.acquire(token).word == "gone"


def test_a_retry_of_a_request_without_its_stream_is_gone_and_writes_nothing(damaged: Lane):
    """The retry is due, and there is no stream to claim it from."""
    held = damaged.begin(1, limit=1)
    _, _, flat = damaged.complete(held, others=[(held.ids[0], "retry", 0)])
    damaged.client.delete(damaged.names[STREAM])
    with damaged.unchanged():
        assert damaged.acquire(toks(flat)[0]).word == "gone"


def test_what_was_never_begun_of_a_request_without_its_stream_is_gone_too(damaged: Lane):
    (token,) = damaged.start(9, limit=1)
    _, _, flat = damaged.complete(damaged.take(token), [], is_unbegun=True)
    damaged.client.delete(damaged.names[STREAM])
    with damaged.unchanged():
        assert damaged.acquire(toks(flat)[0]).word == "gone"


@pytest.mark.parametrize("number", ["seq", "limit"])
def test_numbers_that_cannot_be_read_are_not_written_over(damaged: Lane, number: str):
    """Every script reports this, and a person may repair the numbers that are there."""
    (token,) = damaged.start(20, limit=1)
    damaged.change(number, "many")
    with damaged.unchanged():
        for act in (lambda: damaged.acquire(token), damaged.pause, damaged.cancel, damaged.reap):
            with pytest.raises(RedisUnfit, match="BADSTATE"):
                act()


def test_a_lease_without_its_permit_stays_while_a_worker_is_taken_from(damaged: Lane):
    held = damaged.begin(20, limit=2, count=5)
    damaged.client.hdel(damaged.names[PERMITS], held.k)
    damaged.reap(worker="w:1", started="7")
    assert damaged.client.zrange(damaged.names[LEASES], 0, -1) == [held.k.encode()]


def test_a_count_below_zero_is_still_read(damaged: Lane):
    """After damage to what is queued, pause and resume count it further, and nothing is lost."""
    damaged.start(20)
    damaged.change("queued", 0)
    damaged.pause()
    damaged.resume()
    assert (damaged.number("total"), damaged.number("fresh")) == (20, 20)


def test_a_request_without_its_few_ends_by_cancel(damaged: Lane):
    """The bodies waited in `few`: there never was a stream."""
    tokens = damaged.start(6)
    damaged.client.delete(damaged.names[FEW])
    with damaged.unchanged():
        assert damaged.acquire(tokens[0]).word == "gone"
    word, summary = damaged.cancel()
    assert (word, summary[0], summary[2:6]) == (b"ended", b"cancelled", [6, 0, 0, 6])
    assert damaged.check() == []


def test_a_request_without_its_stream_ends_when_its_last_lease_ends(damaged: Lane):
    tokens = damaged.start(6)
    done, dead = damaged.take(tokens[0]), damaged.take(tokens[1])
    damaged.client.delete(damaged.names[STREAM])
    assert damaged.cancel()[0] == b"ok"
    assert damaged.complete(done)[0] == b"ok"
    assert damaged.reap(worker=dead.worker, started=dead.started)[0] == b"ended"
    assert damaged.hash()["state"] == "cancelled"


def test_a_request_without_its_stream_passes_its_deadline_and_can_be_cancelled(damaged: Lane):
    """A lost stream's sub-requests cannot die: the state stays `expiring` until a cancel."""
    damaged.start(20, deadline_ms=60_000)
    damaged.client.delete(damaged.names[STREAM])
    damaged.later(60_000)
    assert damaged.reap()[0] == b"stopped"
    assert damaged.hash()["state"] == "expiring"
    assert damaged.cancel()[0] == b"ended"


def test_a_sub_request_that_cannot_be_kept_as_dead_is_not_over(damaged: Lane):
    """Another program has written to the key of the dead: no result is left; a repeat succeeds."""
    held = damaged.begin(20, limit=1)
    rejected = [(held.ids[0], "dead", 0)]
    damaged.client.set(damaged.names[DEAD], "text")
    with pytest.raises(RedisUnfit, match="WRONGTYPE"):
        damaged.complete(held, others=rejected)
    assert damaged.results() == {}
    damaged.client.delete(damaged.names[DEAD])
    assert damaged.complete(held, held.ids[1:], rejected)[0] == b"ended"
    assert len(damaged.dead_ids()) == 1
    assert damaged.check() == []


def test_a_request_without_its_counter_is_worked_off_all_the_same(damaged: Lane):
    """The stream shows what is left."""
    held = damaged.begin(20, limit=1, count=1)
    damaged.client.delete(damaged.names[COUNTER])
    assert damaged.reap()[0] == b"ok"
    reply = damaged.complete(held)
    assert work_off(damaged, toks(reply[2]))[-1] == b"ended"
    assert len(damaged.results()) == 20
    assert damaged.check() == []


# ------------------------------------------------------------------ counts that drifted


def drained(lane: Lane, count: int) -> None:
    """Makes a request of 20 that wait in a stream, and completes so many of them."""
    (token, *_) = lane.start(20, limit=1)
    lane.complete(lane.take(token, count=count))


def queued(lane: Lane) -> list[Tok]:
    """Returns the token that is on its way."""
    return [Tok(5, k, text.split(":")[1]) for k, text in lane.permits().items() if text[0] == "q"]


def test_a_count_of_results_that_was_lost_is_found_at_the_end(damaged: Lane):
    """The counter and the stream are right; only the hash has the numbers of before."""
    drained(damaged, 20 - 1)
    damaged.change("done", 17)
    (token,) = queued(damaged)
    word, summary = damaged.complete(damaged.take(token))
    assert (word, summary[2:6]) == (b"ended", [20, 20, 0, 0])
    assert damaged.check() == []


def test_a_counter_that_is_too_low_is_not_the_end(damaged: Lane):
    """A torn script had counted a sub-request that it did not acknowledge."""
    drained(damaged, 5)
    damaged.client.decr(damaged.names[COUNTER])
    tokens = queued(damaged)
    words = []
    while tokens:
        held = damaged.take(tokens.pop(), count=5)
        reply = damaged.complete(held)
        words.append(reply[0])
        tokens += toks(reply[2]) if reply[0] == b"ok" else []
    assert words[-1] == b"ended"
    assert damaged.number("done") == len(damaged.results()) == 20
    assert damaged.check() == []


@pytest.mark.parametrize(("name", "value"), [("done", 3), ("fresh", 0)])
def test_counts_that_drifted_are_noticed_and_corrected_before_the_end(
    damaged: Lane, name: str, value: int
):
    drained(damaged, 5)
    damaged.pause()
    damaged.change(name, value)
    damaged.resume()
    assert damaged.request("glance", queue="", grace="")[1] == 1
    reply = damaged.reap()
    assert damaged.check() == []
    assert (damaged.number("done"), damaged.number("dead")) == (5, 0)
    assert damaged.number("fresh") == 15
    assert damaged.request("glance", queue="", grace="")[1] != 1
    assert len(toks(reply[2])) <= 1


def test_counts_that_cannot_be_corrected_are_not_looked_at_again_and_again(damaged: Lane):
    drained(damaged, 5)
    damaged.client.set(damaged.names[COUNTER], 50)
    damaged.reap()
    assert damaged.request("glance", queue="", grace="")[1] != 1


def test_the_cancelled_are_what_is_left_though_a_count_was_lost(damaged: Lane):
    drained(damaged, 5)
    damaged.change("done", 3)
    word, summary = damaged.cancel()
    assert (word, summary[2:6]) == (b"ended", [20, 5, 0, 15])
    assert damaged.check() == []
