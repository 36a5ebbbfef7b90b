"""Tests the scripts of plain lists: claim_messages, fan_out, keep_service, settle_messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.support.scripts.requests import T0

if TYPE_CHECKING:
    from tests.support.scripts.requests import Lane

SECOND = T0 // 1000
SOURCE, PENDING, A, B, IDS, DONE = (
    f"{{lists}}:{name}".encode() for name in ("in", "pending", "a", "b", "ids", "done")
)
DONE_METRICS, TIMEOUT_METRICS = b"{lists}:metrics:done", b"{lists}:metrics:timeout"
SETTLED = b"{lists}:message:settled"


def record(number: int) -> bytes:
    return b"{lists}:message:%d" % number


def of_xid(name: str) -> bytes:
    return f"{{lists}}:xid:{name}".encode()


def push(lane: Lane, key: bytes, *messages: str) -> None:
    """Pushes as a program does: the newest is at the head."""
    lane.client.lpush(key, *messages)


def rest(lane: Lane, key: bytes) -> list[bytes]:
    """Returns the messages of a list, oldest first."""
    return [*reversed(lane.client.lrange(key, 0, -1))]


def claim(lane: Lane, most: int = 10) -> list[bytes]:
    word, found = lane.call("claim_messages", (SOURCE, PENDING), most=most)
    assert word == b"ok"
    return list(found)


def fan_out(lane: Lane, *rows: Any, to: str = "all", tracked: bool = False) -> list[Any]:
    names = [PENDING, A, B]
    if tracked:
        names += [IDS]
        for at in range(0, len(rows), 4):
            names += [record(rows[at + 1]), of_xid(rows[at + 2])]
    given = {"to": to, "count": 2, "service": "7" if tracked else "", "timeout": 10, "expire": 60}
    found: list[Any] = lane.call("fan_out", names, **given, rows=rows)
    return found


# ------------------------------------------------------------------ claim_messages


@pytest.mark.parametrize(("key", "at"), [(SOURCE, 0), (PENDING, 1)])
def test_a_claim_where_a_key_holds_no_list_changes_nothing(lane: Lane, key: bytes, at: int):
    other = PENDING if key == SOURCE else SOURCE
    push(lane, other, "a")
    lane.client.set(key, "text")
    assert lane.call("claim_messages", (SOURCE, PENDING), most=10) == [b"wrongtype", at]
    assert rest(lane, other) == [b"a"]
    lane.client.delete(key)


def test_a_claim_moves_the_oldest_messages_and_returns_them_oldest_first(lane: Lane):
    push(lane, SOURCE, "a", "b", "c")
    assert claim(lane, 2) == [b"a", b"b"]
    assert rest(lane, PENDING) == [b"a", b"b"]
    assert rest(lane, SOURCE) == [b"c"]


def test_a_repeated_claim_returns_what_is_pending_and_moves_no_more(lane: Lane):
    push(lane, SOURCE, "a", "b", "c")
    assert claim(lane, 2) == claim(lane, 2) == [b"a", b"b"]
    assert rest(lane, SOURCE) == [b"c"]


def test_a_claim_begins_with_what_another_process_has_left(lane: Lane):
    push(lane, PENDING, "old", "older-than-new")
    push(lane, SOURCE, "new")
    assert claim(lane) == [b"old", b"older-than-new", b"new"]


def test_a_claim_of_more_pending_messages_than_wanted_returns_the_oldest(lane: Lane):
    push(lane, PENDING, *"abcde")
    assert claim(lane, 2) == [b"a", b"b"]


def test_a_claim_returns_no_more_than_a_mebibyte_but_one_message_of_any_size(lane: Lane):
    half, large = "h" * (1 << 19), "l" * (1 << 21)
    push(lane, SOURCE, half, half, "small", large)
    assert claim(lane) == [half.encode()] * 2
    fan_out(lane, half, half)
    assert claim(lane) == [b"small"]
    fan_out(lane, "small")
    assert claim(lane) == [large.encode()]


def test_a_claim_of_nothing_is_empty(lane: Lane):
    assert claim(lane) == []


# ------------------------------------------------------------------ fan_out


def test_every_list_gets_each_message_in_order(lane: Lane):
    push(lane, PENDING, "a", "b")
    assert fan_out(lane, "a", "b") == [b"ok", 2]
    assert rest(lane, A) == rest(lane, B) == [b"a", b"b"]
    assert rest(lane, PENDING) == []


def test_a_repeat_pushes_nothing(lane: Lane):
    push(lane, PENDING, "a")
    assert fan_out(lane, "a") == [b"ok", 1]
    assert fan_out(lane, "a") == [b"ok", 0]
    assert rest(lane, A) == [b"a"]


def test_two_equal_messages_are_both_pushed(lane: Lane):
    push(lane, PENDING, "a", "a")
    assert fan_out(lane, "a", "a", "a") == [b"ok", 2]
    assert rest(lane, B) == [b"a", b"a"]


def test_a_message_that_another_process_has_handed_over_is_not_pushed_again(lane: Lane):
    push(lane, PENDING, "a", "b")
    fan_out(lane, "a")
    assert fan_out(lane, "a", "b") == [b"ok", 1]
    assert rest(lane, A) == [b"a", b"b"]


def test_the_shortest_list_gets_each_message(lane: Lane):
    push(lane, A, "x", "y")
    push(lane, PENDING, *"abcd")
    assert fan_out(lane, *"abcd", to="shortest") == [b"ok", 4]
    assert rest(lane, A) == [b"x", b"y", b"c"]
    assert rest(lane, B) == [b"a", b"b", b"d"]


@pytest.mark.parametrize("key", [A, B, IDS])
def test_a_key_that_holds_no_list_is_refused_before_anything_is_written(lane: Lane, key: bytes):
    push(lane, PENDING, "a")
    lane.client.set(key, "text")
    before = snapshot(lane)
    at = [A, B, IDS].index(key)
    assert fan_out(lane, "a", 1, "x", "sha1", tracked=True) == [b"wrongtype", at]
    assert snapshot(lane) == before


def snapshot(lane: Lane) -> dict[bytes, bytes]:
    return {key: lane.client.dump(key) for key in lane.client.keys("*")}


def test_an_untracked_message_leaves_no_record(lane: Lane):
    push(lane, PENDING, "a")
    fan_out(lane, "a")
    assert set(lane.client.keys("*")) == {A, B}


def test_a_tracked_message_has_its_time_its_deadline_and_its_xid(lane: Lane):
    push(lane, PENDING, "12345")
    fan_out(lane, "12345", 3, "12345", "number", tracked=True)
    assert lane.client.hgetall(record(3)) == {
        b"timestamp": b"%d" % SECOND,
        b"xid": b"12345",
        b"deadline": b"%d" % (SECOND + 10),
        b"service": b"7",
    }
    assert lane.client.hgetall(of_xid("12345")) == {b"id": b"3", b"type": b"number"}
    assert rest(lane, IDS) == [b"3"]
    assert 0 < lane.client.ttl(record(3)) <= 60
    assert 0 < lane.client.ttl(of_xid("12345")) <= 60


def test_a_message_that_was_not_pushed_is_not_tracked(lane: Lane):
    push(lane, PENDING, "b")
    fan_out(lane, "a", 1, "xa", "sha1", "b", 2, "xb", "sha1", tracked=True)
    assert rest(lane, IDS) == [b"2"]
    assert not lane.client.exists(record(1), of_xid("xa"))


def test_a_repeat_does_not_track_an_equal_message_under_the_same_id(lane: Lane):
    push(lane, PENDING, "a", "a")
    assert fan_out(lane, "a", 1, "xa", "sha1", tracked=True) == [b"ok", 1]
    assert fan_out(lane, "a", 1, "xa", "sha1", tracked=True) == [b"ok", 0]
    assert rest(lane, PENDING) == [b"a"]
    assert fan_out(lane, "a", 2, "xa", "sha1", tracked=True) == [b"ok", 1]
    assert rest(lane, IDS) == [b"1", b"2"]


def test_an_id_whose_record_exists_is_given_to_no_message(lane: Lane):
    push(lane, PENDING, "a")
    lane.client.set(record(1), "text")
    assert fan_out(lane, "a", 1, "xa", "sha1", tracked=True) == [b"ok", 0]
    assert rest(lane, PENDING) == [b"a"]
    assert lane.client.get(record(1)) == b"text"


def test_a_key_of_another_kind_at_the_place_of_an_xid_is_replaced(lane: Lane):
    push(lane, PENDING, "a")
    lane.client.set(of_xid("xa"), "text")
    assert fan_out(lane, "a", 1, "xa", "sha1", tracked=True) == [b"ok", 1]
    assert lane.client.hget(of_xid("xa"), "id") == b"1"


# ------------------------------------------------------------------ keep_service


def keep(lane: Lane, number: int = 9, *, is_new: bool = False, capacity: int = 10) -> bytes:
    given = {"id": number, "expire": 60, "capacity": capacity, "host": "box", "pid": 42}
    key = b"{lists}:%d" % number
    (word,) = lane.call("keep_service", (key, IDS), **given, is_new="1" if is_new else "")
    return bytes(word)


def test_a_registered_service_has_its_host_process_and_times(lane: Lane):
    assert keep(lane, is_new=True) == b"ok"
    assert lane.client.hgetall("{lists}:9") == {
        b"host": b"box",
        b"pid": b"42",
        b"started": b"%d" % SECOND,
        b"renewed": b"%d" % SECOND,
    }
    assert 0 < lane.client.ttl("{lists}:9") <= 60
    assert rest(lane, IDS) == [b"9"]


def test_a_registration_that_is_repeated_is_listed_once(lane: Lane):
    keep(lane, is_new=True)
    assert keep(lane, is_new=True) == b"ok"
    assert rest(lane, IDS) == [b"9"]


def test_a_renewal_keeps_when_the_service_started(lane: Lane):
    keep(lane, is_new=True)
    lane.later(15_000)
    lane.client.expire("{lists}:9", 5)
    assert keep(lane, capacity=0) == b"ok"
    assert lane.client.hmget("{lists}:9", "started", "renewed") == [
        b"%d" % SECOND,
        b"%d" % (SECOND + 15),
    ]
    assert lane.client.ttl("{lists}:9") > 5


def test_a_registration_that_a_person_deleted_is_gone(lane: Lane):
    keep(lane, is_new=True)
    lane.client.delete("{lists}:9")
    assert keep(lane) == b"gone"
    assert not lane.client.exists("{lists}:9")


def test_the_list_of_services_is_bounded(lane: Lane):
    for number in range(1, 6):
        keep(lane, number, is_new=True, capacity=2)
    assert rest(lane, IDS) == [b"3", b"4", b"5"]


# ------------------------------------------------------------------ settle_messages


def track(lane: Lane, number: int) -> None:
    push(lane, PENDING, "m")
    fan_out(lane, "m", number, f"x{number}", "sha1", tracked=True)


def settle(lane: Lane) -> list[int]:
    """Settles all that is in both lists, oldest first."""
    finished, tracked = rest(lane, DONE), rest(lane, IDS)
    return settle_these(lane, finished, tracked)


def settle_these(lane: Lane, finished: list[bytes], tracked: list[bytes]) -> list[int]:
    wanted = [*finished, *tracked]
    names = [IDS, DONE, DONE_METRICS, TIMEOUT_METRICS, SETTLED]
    names += [record(int(one)) for one in wanted]
    found: list[int] = lane.call("settle_messages", names, ended=len(finished), wanted=wanted)
    return found


def test_a_message_that_is_neither_done_nor_late_stays(lane: Lane):
    track(lane, 1)
    lane.later(9_999)
    assert settle(lane) == [0, 0]
    assert rest(lane, IDS) == [b"1"]


def test_a_done_message_is_counted_with_its_time_once(lane: Lane):
    for number, took in ((1, 3), (2, 5), (3, 1)):
        track(lane, number)
        lane.later(took * 1000)
        push(lane, DONE, str(number))
        assert settle(lane) == [1, 0]
        assert settle(lane) == [0, 0]
    assert lane.client.hgetall(DONE_METRICS) == {b"count": b"3", b"sum": b"9", b"max": b"5"}
    assert not lane.client.exists(IDS, DONE, TIMEOUT_METRICS)


def test_a_message_past_its_deadline_is_counted_as_timed_out_once(lane: Lane):
    track(lane, 1)
    lane.later(10_000)
    assert settle(lane) == [0, 1]
    assert settle(lane) == [0, 0]
    push(lane, DONE, "1")
    assert settle(lane) == [0, 0]
    assert lane.client.hgetall(TIMEOUT_METRICS) == {b"count": b"1"}
    assert not lane.client.exists(IDS, DONE, DONE_METRICS)


def test_a_message_that_was_done_late_but_before_the_look_is_done(lane: Lane):
    track(lane, 1)
    push(lane, DONE, "1", "1")
    lane.later(11_000)
    assert settle(lane) == [1, 0]
    assert not lane.client.exists(DONE)


def test_a_message_whose_record_has_expired_is_counted_as_timed_out(lane: Lane):
    track(lane, 1)
    lane.client.delete(record(1))
    push(lane, DONE, "1")
    assert settle(lane) == [0, 1]
    assert not lane.client.exists(IDS, DONE, SETTLED)


def test_more_than_a_thousand_ids_are_refused(lane: Lane):
    with lane.refuses("BADARGUMENT"):
        settle_these(lane, [], [b"%d" % number for number in range(1_001)])


def test_an_id_that_was_never_tracked_is_dropped(lane: Lane):
    push(lane, DONE, "77")
    assert settle(lane) == [0, 0]
    assert not lane.client.exists(DONE, DONE_METRICS, TIMEOUT_METRICS)


def test_what_is_done_before_older_ones_leaves_the_list_with_them_and_counts_once(lane: Lane):
    for number in (1, 2, 3):
        track(lane, number)
    push(lane, DONE, "3", "2")
    assert settle(lane) == [2, 0]
    assert rest(lane, IDS) == [b"1", b"2", b"3"]
    push(lane, DONE, "3")
    assert settle(lane) == [0, 0]
    lane.later(10_000)
    assert settle(lane) == [0, 1]
    assert not lane.client.exists(IDS, DONE, SETTLED)
    push(lane, DONE, "2")
    assert settle(lane) == [0, 0]
    assert not lane.client.exists(DONE, SETTLED)


def test_a_call_that_is_repeated_takes_nothing_else_from_the_lists(lane: Lane):
    for number in (1, 2):
        track(lane, number)
    push(lane, DONE, "1")
    assert settle_these(lane, [b"1"], [b"1", b"2"]) == [1, 0]
    push(lane, DONE, "2")
    assert settle_these(lane, [b"1"], [b"1", b"2"]) == [0, 0]
    assert rest(lane, DONE) == [b"2"]
    assert rest(lane, IDS) == [b"2"]
    assert not lane.client.exists(SETTLED)
