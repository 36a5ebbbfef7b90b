"""Tests enqueue, append and seal: a request is created once, whatever is repeated."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fairlane.operations.create import policy_text
from fairlane.options import Policy
from tests.support.scripts.requests import (
    HOUR,
    MINUTE,
    Lane,
    Tok,
    listening,
    numbered,
    stored,
    toks,
)

if TYPE_CHECKING:
    import redis


# ------------------------------------------------------------------ enqueue


def test_enqueue_stores_every_body_and_mints_as_many_tokens_as_may_run(lane: Lane):
    """Many bodies and limit 3 make three tokens, due now, in the request's lane."""
    tokens = lane.start(20, priority=7)
    assert tokens == [Tok(7, "0", "1"), Tok(7, "1", "2"), Tok(7, "2", "3")]
    entries = lane.client.xrange(lane.names[0])
    assert [fields[b"b"] for _, fields in entries] == numbered(20)
    assert [entry_id.split(b"-")[1] for entry_id, _ in entries] == [b"%d" % i for i in range(20)]
    assert lane.client.get(lane.names[1]) == b"20"
    assert lane.hash()["state"] == "active"


def test_enqueue_mints_no_more_tokens_than_there_is_work(lane: Lane):
    """Two bodies and limit 9 make two tokens."""
    assert len(lane.start(2, limit=9)) == 2


def test_enqueue_keeps_bodies_as_they_are(lane: Lane):
    """Empty bodies and arbitrary bytes are returned as they were sent."""
    bodies = [b"", b"\x00\xff\r\n", "ü".encode()]
    (token,) = lane.start(bodies, limit=1)
    assert lane.take(token).bodies == bodies


def test_enqueue_stores_the_policy_as_its_producer_sends_it(lane: Lane):
    """The deadline becomes a moment; the birth and the shards follow."""
    policy = Policy(limit=3, priority=7, attempts=2, deadline_ms=5_000, durable=1)
    given = {"queue": lane.queue, "digest": "d1", "intent": lane.now, "open_ms": 0, "extras": ""}
    text = policy_text(policy)
    lane.request("enqueue", policy=text, shards="1,2", over=0, bodies=[b"a"], **given)
    terms, deadline = text.rsplit(":", 1)
    stored = lane.client.hget(lane.names[2], "policy").decode()
    assert stored == f"{terms}:{lane.now + int(deadline)}:{lane.now}:1,2"


def test_chunks_of_a_thousand_are_taken(lane: Lane):
    assert lane.enqueue(1000, open_ms=HOUR)[0] == b"ok"
    assert lane.append(1000, chunk=2)[0] == b"ok"


def test_enqueue_twice_exists_and_repeats_all_queued_tokens(lane: Lane):
    """A repeat writes nothing and returns the tokens of the lost reply."""
    tokens = lane.start(6)
    with lane.unchanged():
        word, chunks, chain, is_open, summary, again = lane.enqueue(6)
        assert (word, chunks, chain, is_open) == (b"exists", 1, b"d1", 0)
        assert summary[:3] == [b"active", lane.now, 6]
        assert sorted(toks(again)) == sorted(tokens)


def test_enqueue_twice_repeats_no_token_of_a_held_permit(lane: Lane):
    """A permit that a worker holds has no token."""
    tokens = lane.start(6)
    lane.take(tokens[0])
    assert sorted(toks(lane.enqueue(6)[5])) == sorted(tokens[1:])


def test_enqueue_of_other_content_is_a_conflict(lane: Lane):
    """The same id with another digest is refused, and nothing is written."""
    lane.start(6)
    with lane.unchanged():
        assert lane.enqueue(2, digest="d2")[0] == b"conflict"


def test_enqueue_after_the_end_still_exists(lane: Lane):
    """The tombstone answers a late repeat: nothing runs twice, no token is made."""
    (token,) = lane.start(1)
    lane.complete(lane.take(token))
    word, _, _, is_open, summary, tokens = lane.enqueue(1)
    assert (word, is_open, summary[0], tokens) == (b"exists", 0, b"done", [])
    assert lane.enqueue(1, digest="d2")[0] == b"conflict"


def test_an_empty_sealed_request_ends_with_one_publish(lane: Lane, redis_client: redis.Redis):
    """There is nothing to do: the request is done."""
    with listening(redis_client, "done:{r1}") as published:
        word, summary = lane.enqueue([])
        assert (word, summary[0], summary[2]) == (b"ended", b"done", 0)
        assert published() == [b"done"]
    assert set(lane.dump()) == {b"req:{r1}"}


def test_an_open_request_counts_one_more_than_it_has(lane: Lane):
    """The counter is one above the work while chunks may come, so it can't end early."""
    (token,) = lane.start(1, open_ms=HOUR)
    assert lane.client.get(lane.names[1]) == b"2"
    assert lane.complete(lane.take(token))[:2] == [b"ok", 0]
    assert lane.hash()["state"] == "active"


# ------------------------------------------------------------------ append


def test_append_goes_on_where_the_chunk_before_ended(lane: Lane):
    """Indexes grow over the chunks, and tokens are made up to the limit only."""
    assert len(lane.start(2, open_ms=HOUR)) == 2
    word, tokens = lane.append([b"x", b"y"], chunk=2)
    assert (word, len(tokens)) == (b"ok", 3)
    indexes = [entry_id.split(b"-")[1] for entry_id, _ in lane.client.xrange(lane.names[0])]
    assert indexes == [b"0", b"1", b"2", b"3"]
    assert (lane.number("total"), lane.number("chunks")) == (4, 2)


def test_append_works_when_the_clock_has_gone_back(lane: Lane):
    """Stream ids must grow, whatever the server's clock does."""
    lane.start(1, open_ms=HOUR)
    lane.later(-5_000)
    assert lane.append(1, chunk=2)[0] == b"ok"


def test_append_twice_is_a_dup_that_repeats_the_tokens(lane: Lane):
    """A repeat writes nothing."""
    tokens = lane.start(1, open_ms=HOUR)
    tokens += toks(lane.append(1, chunk=2)[1])
    with lane.unchanged():
        word, again = lane.append(1, chunk=2)
        assert word == b"dup"
        assert sorted(toks(again)) == sorted(tokens)


def test_append_of_an_earlier_chunk_is_a_dup(lane: Lane):
    """A chunk that is there already is not written again."""
    lane.start(1, open_ms=HOUR)
    lane.append(1, chunk=2)
    lane.append(1, chunk=3)
    assert lane.append(1, chunk=2)[0] == b"dup"
    assert lane.number("total") == 3


def test_append_of_the_last_chunk_with_other_content_is_a_conflict(lane: Lane):
    """The chain over the content differs: nothing is written."""
    lane.start(1, open_ms=HOUR)
    lane.append(1, chunk=2)
    with lane.unchanged():
        assert lane.append(1, chunk=2, chain="other") == [b"conflict"]


def test_append_after_seal_is_closed_but_a_repeat_of_the_last_is_a_dup(lane: Lane):
    """The repeat of the last append may arrive after the seal: it must not be an error."""
    lane.start(1, open_ms=HOUR)
    lane.append(1, chunk=2)
    lane.seal(2)
    assert lane.append(1, chunk=3) == [b"closed"]
    assert lane.append(1, chunk=2)[0] == b"dup"
    assert lane.number("total") == 2


def test_append_renews_the_time_a_request_may_stay_open(lane: Lane):
    """A slow producer is not abandoned while it is sending."""
    lane.start(1, open_ms=HOUR)
    lane.later(HOUR - 1)
    lane.append(1, chunk=2)
    lane.later(HOUR - 1)
    lane.reap()
    assert lane.hash()["state"] == "active"


# ------------------------------------------------------------------ seal


def test_seal_gives_back_what_the_counter_held_for_the_open_request(lane: Lane):
    """After it the counter is the work that is left."""
    lane.start(2, open_ms=HOUR)
    assert lane.seal() == [b"ok", []]
    assert lane.client.get(lane.names[1]) == b"2"
    assert lane.number("open") == 0
    assert "open_until" not in stored(lane.client, lane.id)  # who has it was never sealed


def test_seal_twice_counts_once_and_repeats_the_tokens(lane: Lane):
    """A repeat writes nothing: counting down twice would end the request too early."""
    tokens = lane.start(2, open_ms=HOUR)
    lane.seal()
    with lane.unchanged():
        word, again = lane.seal()
        assert (word, sorted(toks(again))) == (b"ok", sorted(tokens))


def test_seal_of_a_request_that_is_worked_off_ends_it_with_one_publish(
    lane: Lane, redis_client: redis.Redis
):
    """An open request waits for its seal as the last thing."""
    (token,) = lane.start(1, open_ms=HOUR)
    lane.complete(lane.take(token))
    with listening(redis_client, "done:{r1}") as published:
        assert lane.seal()[0] == b"ended"
        assert lane.seal()[0] == b"ended"
        assert published() == [b"done"]


@pytest.mark.parametrize(("chunks", "chain"), [(1, "c2"), (3, "c2"), (2, "other")])
def test_seal_of_something_else_is_a_conflict(lane: Lane, chunks: int, chain: str):
    """Two producers use one id: the seal of one must not end what the other still sends."""
    lane.start(1, open_ms=HOUR)
    lane.append(1, chunk=2)
    with lane.unchanged():
        assert lane.seal(chunks, chain) == [b"conflict"]


# ------------------------------------------------------------------ abandon


def test_abandon_leaves_a_marker_with_a_ttl(lane: Lane):
    """The marker is all that is left of an intent without a request, and it expires."""
    assert lane.abandon(lane.now) == [b"ok"]
    assert lane.hash() == {"state": "abandoned", "seen": str(lane.now)}
    assert 0 < lane.client.pttl(lane.names[2]) <= HOUR


def test_enqueue_after_abandon_is_late_until_the_intent_is_newer(lane: Lane):
    """The producer of the abandoned intent starts over, with a newer one."""
    lane.abandon(lane.now)
    with lane.unchanged():
        assert lane.enqueue(1, intent=lane.now - 1) == [b"late", lane.now]
        assert lane.enqueue(1, intent=lane.now) == [b"late", lane.now]
    assert lane.enqueue(1, intent=lane.now + 1)[0] == b"ok"
    assert "seen" not in lane.hash()
    assert lane.client.pttl(lane.names[2]) == -1


def test_abandon_twice_never_forgets_the_higher_score(lane: Lane):
    """A late copy of an older abandon must not admit an abandoned producer."""
    lane.abandon(lane.now)
    lane.abandon(lane.now - 100)
    assert lane.number("seen") == lane.now


def test_abandon_renews_the_time_of_a_marker(lane: Lane):
    """The higher score must be there for as long as its own producer may be late."""
    lane.abandon(lane.now, ttl=MINUTE)
    lane.abandon(lane.now + 100, ttl=HOUR)
    assert lane.number("seen") == lane.now + 100
    assert MINUTE < lane.client.pttl(lane.names[2]) <= HOUR


def test_abandon_leaves_a_request_alone(lane: Lane):
    """The auditor was too slow: there is a request. After its end only the mark is added."""
    (token,) = lane.start(1)
    with lane.unchanged():
        assert lane.abandon(lane.now) == [b"exists"]
    lane.complete(lane.take(token))
    ended, left_ms = lane.hash(), lane.client.pttl(lane.names[2])
    assert lane.abandon(lane.now) == [b"over", lane.hash()["born"].encode()]
    assert lane.hash() == ended | {"seen": str(lane.now)}
    assert 0 < lane.client.pttl(lane.names[2]) <= left_ms


def test_abandon_names_the_opening_that_has_ended(lane: Lane):
    """The auditor may have seen the end of an earlier one: this one may not be logged."""
    lane.complete(lane.take(lane.start(1)[0]))
    lane.client.hset(lane.names[2], "opened", "3:9-0:0::")
    assert lane.abandon(lane.now) == [b"over", b"%d|3" % lane.number("born")]


def test_a_new_life_follows_only_the_ending_that_was_logged(lane: Lane):
    lane.start(1, open_ms=1)
    lane.later(2)
    lane.reap()
    born = lane.number("born")
    lane.client.hset(lane.names[2], "opened", "1:9-0:0::")
    for other in (born, f"{born}|2"):
        assert lane.enqueue(2, over=other)[0] == b"abandoned"
    assert lane.enqueue(2, over=f"{born}|1")[0] == b"ok"


def test_abandon_marks_an_abandoned_life(lane: Lane):
    """A new life of the id must be announced after the auditor has read `active`."""
    lane.start(1, open_ms=1)
    lane.later(2)
    summary = lane.reap()[1]
    assert summary[0] == b"cancelled"
    assert lane.abandon(lane.now) == [b"ok"]
    assert lane.hash()["state"] == "cancelled"
    assert lane.enqueue(1, intent=lane.now, over=summary[1]) == [b"late", lane.now]
    assert lane.enqueue(1, intent=lane.now + 1, over=summary[1])[0] == b"ok"


def test_abandon_names_a_life_that_a_person_cancelled_over(lane: Lane):
    """Another life may follow it only after a deletion, which keeps the mark."""
    lane.start(1)
    lane.cancel("because")
    assert lane.abandon(lane.now) == [b"over", lane.hash()["born"].encode()]
    assert lane.number("seen") == lane.now


def test_enqueue_creates_a_request_if_only_the_hash_of_another_life_is_gone(lane: Lane):
    """What is left of that life belongs to no request: neither entries nor results are kept."""
    (token,) = lane.start(2, limit=1)
    held = lane.take(token, count=1)
    lane.complete(held, keep=False)
    lane.client.delete("req:{r1}")
    for name in lane.names:
        lane.client.pexpire(name, HOUR)
    assert lane.enqueue(30)[0] == b"ok"
    assert lane.results() == {}
    assert lane.client.xlen(lane.names[0]) == 30
    assert {lane.client.pttl(name) for name in lane.names[:2]} == {-1}


# ------------------------------------------------------------------ an abandoned life


def abandoned(lane: Lane) -> int:
    """Makes a request that was left open for too long; returns when it began."""
    lane.start(9, open_ms=HOUR)
    lane.later(HOUR + 1)
    assert lane.reap()[0] == b"ended"
    return lane.number("born")


def test_enqueue_of_an_abandoned_id_brings_the_summary_and_writes_nothing(lane: Lane):
    """Its end must be logged before a new life begins, whatever the content is."""
    abandoned(lane)
    with lane.unchanged():
        for digest in ("d1", "d2"):
            word, summary = lane.enqueue(2, digest=digest)
            assert (word, summary[0], summary[8]) == (b"abandoned", b"cancelled", b"abandoned")
        assert lane.enqueue(2, over=1)[0] == b"abandoned"


def test_enqueue_replaces_the_abandoned_life_that_it_names(lane: Lane):
    """Nothing of it is left, and the new one begins later, also if the clock stood still."""
    born = abandoned(lane)
    lane.client.xadd(lane.names[6], {"w": "old"})
    lane.now = born
    word, tokens, began = lane.enqueue(2, digest="d2", over=born)
    assert (word, began, lane.number("born")) == (b"ok", born + 1, born + 1)
    assert (lane.hash()["state"], lane.number("total"), lane.number("done")) == ("active", 2, 0)
    assert "abandoned" not in lane.hash()
    assert lane.client.pttl(lane.names[2]) == -1
    assert lane.client.exists(lane.names[6]) == 0
    assert min(int(token.g) for token in toks(tokens)) > 3


def test_enqueue_stores_whose_dead_sub_requests_these_were(lane: Lane):
    lane.start(3, extras="by=r0")
    assert lane.hash()["by"] == "r0"


@pytest.mark.parametrize("task", ["send_mail", "größe + x", "a\t3\tb\t", "x" * 9_000])
def test_enqueue_stores_the_tasks_as_their_producer_names_them(lane: Lane, task: str):
    lane.start(3, extras=f"task={task}")
    assert lane.hash()["task"] == task
    other = Lane(lane.driver, lane.client, request_id="r2")
    other.start(3, extras=f"task={task}\nby=0a1b")
    assert (other.hash()["task"], other.hash()["by"]) == (task, "0a1b")


@pytest.mark.parametrize("extras", ["task=", "task=\ta", "task=\x1b", "task=a\n", "task=a\ntask=b"])
def test_enqueue_refuses_what_is_no_text_of_tasks(lane: Lane, extras: str):
    with lane.refuses("BADARGUMENT"):
        lane.enqueue(1, extras=extras)


def test_enqueue_stores_for_whom_a_server_submits(lane: Lane):
    lane.start(3, extras="by=0a1b2c3d")
    assert lane.hash()["by"] == "0a1b2c3d"


def test_enqueue_replaces_no_abandoned_life_of_which_a_slice_is_held(lane: Lane):
    """The life ends with its last slice."""
    held = lane.take(lane.start(9, open_ms=HOUR)[0])
    lane.later(HOUR - 1)
    assert lane.extend(held) == "ok"
    lane.later(2)
    assert lane.reap()[0] == b"stopped"
    with lane.unchanged():
        assert lane.enqueue(9, over=lane.number("born"))[0] == b"exists"
    assert lane.complete(held)[0] == b"ended"


def test_enqueue_twice_over_an_abandoned_life_exists(lane: Lane):
    """A repeat after a lost reply finds the new life."""
    born = abandoned(lane)
    lane.enqueue(2, over=born)
    with lane.unchanged():
        assert lane.enqueue(2, over=born)[0] == b"exists"


def test_enqueue_names_no_life_that_a_person_cancelled(lane: Lane):
    """Also if that person's reason is the same word."""
    lane.start(9, open_ms=HOUR)
    lane.cancel("abandoned")
    assert lane.enqueue(9, over=lane.number("born"))[0] == b"exists"
    assert lane.enqueue(9, digest="d2", over=lane.number("born"))[0] == b"conflict"


# ------------------------------------------------------------------ while it is cancelled


def test_append_and_seal_report_that_the_request_is_being_cancelled(lane: Lane):
    """A slice is still held, and nothing that comes now would run."""
    first, *_ = lane.start(9, open_ms=HOUR)
    held = lane.take(first, count=1)
    lane.cancel("enough")
    with lane.unchanged():
        for reply in (lane.append(1, chunk=2), lane.seal()):
            assert (reply[0], reply[1][0], reply[1][8]) == (b"cancelling", b"cancelling", b"enough")
    assert lane.complete(held)[0] == b"ended"


def test_append_behind_other_content_is_a_conflict(lane: Lane):
    """The id has begun a new life since this producer sent the chunks before."""
    lane.start(1, open_ms=HOUR)
    before = lane.dump()
    assert lane.append(1, chunk=2, before="d0") == [b"conflict"]
    assert lane.dump() == before
    assert lane.append(1, chunk=2, before="d1")[0] == b"ok"
