"""Tests the scripts of the dispatch slot: intend, drop, postpone, readmit, promote, retire, ..."""

from __future__ import annotations

from typing import Any

import pytest

from fairlane.errors import FairlaneError, InvalidArgument
from fairlane.operations.request_state import completion
from fairlane.protocol import keys
from tests.scripts.repair.test_full_and_forgotten import full
from tests.support.run.for_each import for_each
from tests.support.scripts.requests import HOUR, Lane

ACTIVE, DELAYED = keys.active("req"), keys.delayed("req")
LANES = keys.lanes("req")
TURNS = keys.turns("req")
CONF, LOADS = keys.bound("req")
LOG = (ACTIVE, keys.logged("req"), keys.completed("req"), CONF, LOADS)


def intend(lane: Lane, request_id: str = "r1", grace: Any = 30_000, **given: Any) -> int:
    return int(intend_all(lane, [request_id], grace=grace, **given)[2])


def intend_all(lane: Lane, ids: list[str], **given: Any) -> list[Any]:
    given = {"above": 0, "grace": 30_000, "named": ""} | given
    return list(lane.call("intend", (ACTIVE, CONF), ids=ids, **given))


def insert(lane: Lane, *tokens: tuple[int, str, Any]) -> int:
    """Inserts tokens with their lane and delay."""
    names, flat = [DELAYED], list[Any]()
    for lane_of in dict.fromkeys(priority for priority, _, _ in tokens):
        own = [(text, delay) for priority, text, delay in tokens if priority == lane_of]
        now = [text for text, delay in own if not delay]
        later = [part for pair in own if pair[1] for part in pair]
        names.append(LANES[lane_of])
        flat += [lane_of, len(now), len(later) // 2, *now, *later]
    return int(lane.call("insert_tokens", names, tokens=flat))


def promote(lane: Lane, most: Any = 1000) -> list[int]:
    return list(lane.call("promote", (DELAYED, *TURNS, *LANES), most=most))


def ending(
    request_id: str = "r1", born: int = 7, retain_ms: Any = HOUR, opened: str = ""
) -> list[Any]:
    """Returns a request and its summary, as the reply `ended` has it."""
    return [request_id, "done", born, 3, 2, 1, 0, 9, 5, "why", retain_ms, opened]


def retire(lane: Lane, *several: list[Any], **given: Any) -> int:
    given = {"least": 1_000, "longest": 1_000, "most": 1000} | given
    flat = [value for one in several or [ending()] for value in one]
    return int(lane.call("retire", LOG, endings=flat, **given))


def drop(lane: Lane, seen: Any, request_id: str = "r1", **given: Any) -> int:
    given = {"gone": "1", "most": 1000} | given
    return int(
        lane.call("drop_active", (ACTIVE, LOG[2], CONF, LOADS), id=request_id, seen=seen, **given)
    )


def postpone(lane: Lane, seen: Any, due: Any, request_id: str = "r1") -> int:
    return postpone_all(lane, request_id, seen, due)


def postpone_all(lane: Lane, *rows: Any) -> int:
    """Postpones rows of three: a request, the score that was read, when to check it."""
    return int(lane.call("reschedule_active", (ACTIVE,), rows=rows))


def readmit(lane: Lane, due: Any, request_id: str = "r1") -> int:
    return int(lane.call("restore_active", (ACTIVE,), id=request_id, due=due))


# ------------------------------------------------------------------ intend and drop


def test_an_intent_is_newer_than_the_one_the_auditor_gave_up(lane: Lane):
    """A producer that received `late` is admitted at its next try, whatever the clock does."""
    assert intend(lane, above=lane.now + HOUR) == lane.now + HOUR + 1


def test_an_intent_stands_in_active_until_the_auditor_looks(lane: Lane):
    assert intend(lane) == lane.now + 30_000
    assert lane.client.zscore(ACTIVE, "r1") == lane.now + 30_000


def test_intend_twice_is_newer_each_time(lane: Lane):
    first = intend(lane)
    second = intend(lane)
    lane.later(-60_000)
    third = intend(lane)
    assert first < second < third
    assert lane.client.zcard(ACTIVE) == 1


def test_many_intents_are_returned_in_their_order(lane: Lane):
    lane.client.zadd(ACTIVE, {"r2": f"{lane.now + HOUR}.5"})
    lane.client.hset(CONF, "max_waiting", 7)
    soon, late = lane.now + 30_000, lane.now + HOUR
    first = intend_all(lane, ["r1", "r2", "r3"])
    assert first == [7, b"", soon, b"0", late + 1, b"%d.5" % late, soon, b"0"]
    assert lane.client.zrange(ACTIVE, 0, -1) == [b"r1", b"r3", b"r2"]
    again = intend_all(lane, ["r3", "r1"])
    assert again == [7, b"", soon + 1, b"%d" % soon, soon + 1, b"%d" % soon]


@pytest.mark.parametrize("seen", [1, "", "x"])
def test_drop_leaves_an_intent_it_has_not_seen(lane: Lane, seen: Any):
    intend(lane)
    with lane.unchanged():
        assert drop(lane, seen) == 0


def test_drop_leaves_an_intent_that_was_renewed(lane: Lane):
    seen = intend(lane)
    intend(lane)
    assert drop(lane, seen) == 0
    assert lane.client.zcard(ACTIVE) == 1


@for_each("gone", ["0", "1"])
@for_each("mark", ["", ".5"])
def test_drop_logs_a_request_that_was_seen_to_exist_as_lost(lane: Lane, mark: str, gone: str):
    seen = f"{lane.now}{mark}"
    lane.client.zadd(ACTIVE, {"r1": seen})
    assert drop(lane, seen, gone=gone) == 1
    logged = lane.client.xrange(LOG[2])
    assert len(logged) == int(mark == ".5" and gone == "1")
    for log_id, fields in logged:
        entry = completion("req", log_id, dict(fields))
        assert (entry.id, entry.state, entry.total, entry.ended_ms) == ("r1", "lost", 0, lane.now)


def test_drop_logs_nothing_when_the_entry_was_renewed(lane: Lane):
    lane.client.zadd(ACTIVE, {"r1": lane.now + 30_000.5})
    renewed = intend(lane)
    assert renewed == lane.now + 30_001
    assert drop(lane, f"{lane.now + 30_000}.5") == 0
    assert lane.client.zscore(ACTIVE, "r1") == renewed
    assert lane.client.xlen(LOG[2]) == 0


# ------------------------------------------------------------------ postpone


@pytest.mark.parametrize("seen", [1, "", "x"])
def test_postpone_leaves_an_entry_it_has_not_seen(lane: Lane, seen: Any):
    intend(lane)
    with lane.unchanged():
        assert postpone(lane, seen, lane.now + 7) == 0


def test_postpone_moves_each_entry_that_is_as_it_was_seen(lane: Lane):
    seen = [intend(lane, name) for name in ("r1", "r2", "r3")]
    rows = ["r1", seen[0], 1.5, "r2", seen[1] + 1, 2.5, "r3", seen[2], 3, "r4", 0, 4]
    assert postpone_all(lane, *rows) == 2
    found = lane.client.zrange(ACTIVE, 0, -1, withscores=True)
    assert found == [(b"r1", 1.5), (b"r3", 3), (b"r2", seen[1])]
    assert postpone_all(lane, *rows) == 0


def test_postpone_takes_three_hundred_rows(lane: Lane):
    lane.client.zadd(ACTIVE, {f"r{i}": i for i in range(300)})
    rows = [part for i in range(300) for part in (f"r{i}", i, 7)]
    assert postpone_all(lane, *rows) == 300
    assert lane.client.zcount(ACTIVE, 7, 7) == 300
    lane.client.delete(ACTIVE)


# ------------------------------------------------------------------ readmit


def test_readmit_puts_a_forgotten_request_back(lane: Lane):
    """It works on a full Redis, too, which could never be drained otherwise, and only once."""
    due = f"{lane.now}.5"
    with full(lane.client):
        assert readmit(lane, due) == 1
    with lane.unchanged():
        assert lane.client.zscore(ACTIVE, "r1") == lane.now + 0.5
        assert readmit(lane, due) == readmit(lane, lane.now + 9) == 0


def test_readmit_leaves_what_is_there(lane: Lane):
    intend(lane)
    with lane.unchanged():
        assert readmit(lane, 7) == 0


# ------------------------------------------------------------------ insert_tokens


def test_a_delayed_token_waits_by_this_slots_own_clock(lane: Lane):
    """Its due time is this server's present time plus the delay; its lane is kept."""
    assert insert(lane, (7, "r1#0.1", 5_000), (7, "r1#1.2", 0)) == 2
    assert lane.client.zrange(DELAYED, 0, -1, withscores=True) == [(b"7|r1#0.1", lane.now + 5_000)]
    assert lane.client.lrange(LANES[7], 0, -1) == [b"r1#1.2"]


def test_insert_takes_tokens_of_many_requests_and_lanes(lane: Lane):
    tokens = [(5, "a#0.1", 0), (7, "b#0.1", 0), (5, "c#0.1", 400), (5, "d#0.1", 0), (7, "e#0.1", 9)]
    assert insert(lane, *tokens) == 5
    assert lane.client.lrange(LANES[5], 0, -1) == [b"d#0.1", b"a#0.1"]
    assert lane.client.lrange(LANES[7], 0, -1) == [b"b#0.1"]
    waiting = lane.client.zrange(DELAYED, 0, -1, withscores=True)
    assert waiting == [(b"7|e#0.1", lane.now + 9), (b"5|c#0.1", lane.now + 400)]


def test_insert_without_tokens_is_nothing(lane: Lane):
    assert insert(lane) == lane.call("insert_tokens", [DELAYED, LANES[5]], tokens=[5, 0, 0]) == 0
    assert lane.dump() == {}


@for_each(
    "names, tokens",
    [
        ([LANES[5]], []),
        ([LANES[5]], [5, "r1#0.1", 0]),
        ([LANES[5]], [5, 1, 0]),
        ([LANES[5]], [5, "", 0, "r1#0.1"]),
        ([LANES[5]], [5, 1, "", "r1#0.1"]),
        ([LANES[5]], [5, 1000, 0, *["r1#0.1"] * 1000]),
        ([LANES[5]], [5, "1.0", 0, "r1#0.1"]),
        ([LANES[5]], [5, 1, 0, "r1#0.1", "r1#1.2"]),
        ([], [5, 1, 0, "r1#0.1"]),
        ([LANES[5], LANES[6]], [5, 1, 0, "r1#0.1"]),
        ([LANES[5], LANES[6]], [5, 1, 0, "r1#0.1", 6, 0, 1, "r1#1.2", "soon"]),
        ([LANES[5], LANES[6]], [5, 1, 0, "r1#0.1", 6, 0, 2, "r1#1.2", 9]),
    ],
)
def test_insert_refuses_tokens_that_do_not_fit_their_lanes(
    lane: Lane, names: list[bytes], tokens: list
):
    with lane.refuses("BADTOKENS"):
        lane.call("insert_tokens", [DELAYED, *names], tokens=tokens)


# ------------------------------------------------------------------ promote


def test_promote_moves_due_tokens_only(lane: Lane):
    insert(lane, (3, "a#0.1", 100), (9, "b#0.1", 200), (3, "c#0.1", 300))
    lane.later(200)
    assert promote(lane) == [2, lane.now + 100]
    assert lane.client.lrange(LANES[3], 0, -1) == [b"a#0.1"]
    assert lane.client.lrange(LANES[9], 0, -1) == [b"b#0.1"]
    assert lane.client.zrange(DELAYED, 0, -1) == [b"3|c#0.1"]


def test_promote_moves_no_more_than_it_was_asked_for(lane: Lane):
    insert(lane, *((3, f"a#{i}.1", 10 + i) for i in range(5)))
    lane.later(1_000)
    assert promote(lane, 2) == [2, lane.now - 1_000 + 12]
    assert lane.client.lrange(LANES[3], 0, -1) == [b"a#1.1", b"a#0.1"]
    assert promote(lane, 1000)[0] == 3


def test_a_damaged_lane_delays_no_token_of_another_lane(lane: Lane):
    insert(lane, (3, "a#0.1%x=1", 100), (9, "b#0.1%y=1", 200), (9, "c#0.1", 300))
    lane.client.set(LANES[3], "damage")
    lane.later(1_000)
    with pytest.raises(FairlaneError, match="WRONGTYPE"):
        promote(lane)
    assert lane.client.lrange(LANES[9], 0, -1) == [b"c#0.1", b"b#0.1%y=1"]
    assert lane.client.zrange(DELAYED, 0, -1) == [b"3|a#0.1%x=1"]
    lane.client.delete(LANES[3])
    assert promote(lane) == [1, 0]
    assert lane.client.lrange(LANES[3], 0, -1) == [b"a#0.1%x=1"]
    used = keys.limit_key("req", "x"), keys.limit_key("req", "y"), keys.of_limits("req")[3]
    lane.client.delete(*used)


def test_promote_wants_all_the_lanes(lane: Lane):
    with pytest.raises(InvalidArgument, match="BADBATCH"):
        lane.call("promote", (DELAYED, *TURNS, *LANES[:99]), most=10)


# ------------------------------------------------------------------ retire


def test_retire_moves_an_ending_from_active_into_the_log(lane: Lane):
    intend(lane)
    assert retire(lane) == 1
    ((_, fields),) = lane.client.xrange(LOG[2])
    assert list(fields.items()) == [
        (b"id", b"r1"), (b"state", b"done"), (b"priority", b"5"), (b"total", b"3"), (b"done", b"2"),
        (b"dead", b"1"), (b"cancelled", b"0"), (b"born", b"7"), (b"ended", b"9"),
        (b"reason", b"why"),
    ]  # fmt: skip
    marker = lane.now + HOUR + 1_000
    assert lane.client.zrange(LOG[1], 0, -1, withscores=True) == [(b"r1|7", marker)]
    assert lane.client.zcard(ACTIVE) == 0


def test_retire_twice_logs_once(lane: Lane):
    assert retire(lane) == 1
    marker = lane.client.zscore(LOG[1], "r1|7")
    lane.later(1_000)
    assert [retire(lane), retire(lane)] == [0, 0]
    assert lane.client.xlen(LOG[2]) == 1
    assert lane.client.zscore(LOG[1], "r1|7") == marker


def test_each_opening_of_a_request_has_one_entry(lane: Lane):
    """Only the entry of an opening after the first one says so: the others have no such fields."""
    for opened in ("", "1:9-0", "2:11-1"):
        assert [retire(lane, ending(opened=opened)), retire(lane, ending(opened=opened))] == [1, 0]
    entries = [fields for _, fields in lane.client.xrange(LOG[2])]
    assert [entry.get(b"reopened") for entry in entries] == [None, b"1", b"2"]
    assert [entry.get(b"since") for entry in entries] == [None, b"9-0", b"11-1"]
    assert lane.client.zrange(LOG[1], 0, -1) == [b"r1|7", b"r1|7|1", b"r1|7|2"]


def test_retire_without_an_active_entry_logs_all_the_same(lane: Lane):
    """The marker decides, not the ZREM: a crash between the two loses no end."""
    assert retire(lane) == 1


def test_retire_twice_leaves_a_new_life_of_the_id_in_active(lane: Lane):
    """A late copy must not remove the next request of this id from `active`."""
    retire(lane)
    intend(lane)
    assert retire(lane) == 0
    assert lane.client.zcard(ACTIVE) == 1


def test_an_intent_returns_the_score_that_was_there(lane: Lane):
    """With it a refused submission can restore the score."""
    first = intend(lane)
    assert intend_all(lane, ["r1"]) == [0, b"", first + 1, b"%d" % first]


def test_another_life_of_the_same_id_is_logged_again(lane: Lane):
    """The id was submitted again after its tombstone was gone: born differs."""
    assert [retire(lane, ending(born=7)), retire(lane, ending(born=8))] == [1, 1]
    assert lane.client.xlen(LOG[2]) == 2


def test_many_endings_are_logged_in_one_call(lane: Lane):
    intend_all(lane, ["r1", "r2", "r3", "r4"])
    assert retire(lane, ending("r2")) == 1
    intend(lane, "r2")  # a new life of it
    assert retire(lane, ending("r3"), ending("r2"), ending("r1"), ending("r1", 8)) == 3
    logged = [fields[b"id"] for _, fields in lane.client.xrange(LOG[2])]
    assert logged == [b"r2", b"r3", b"r1", b"r1"]
    assert lane.client.zrange(ACTIVE, 0, -1) == [b"r2", b"r4"]
    assert retire(lane, ending("r3"), ending("r2")) == 0


def test_an_ending_that_the_log_refuses_is_an_error_whatever_follows_it(lane: Lane):
    assert retire(lane, ending("r1")) == 1
    lane.client.set(LOG[2], "a key of another type")
    with pytest.raises(FairlaneError, match="WRONGTYPE"):
        retire(lane, ending("r2"), ending("r1"))
    lane.client.delete(LOG[2])
    assert retire(lane, ending("r2"), ending("r1")) == 1


def test_markers_go_when_their_time_is_over(lane: Lane):
    for i in range(3):
        retire(lane, ending(f"old{i}", retain_ms=0))
    lane.later(1_001)
    retire(lane, ending("new"))
    assert lane.client.zrange(LOG[1], 0, -1) == [b"new|7"]


def test_more_markers_go_than_come(lane: Lane):
    for start in (0, 75):
        retire(lane, *(ending(f"old{i}", retain_ms=0) for i in range(start, start + 75)))
    lane.later(1_001)
    retire(lane, *(ending(f"new{i}") for i in range(65)))
    assert lane.client.zcard(LOG[1]) == 150 - 140 + 65


def test_the_log_is_capped(lane: Lane):
    """The log keeps about as many ends as `most`; whole nodes of 100 are removed."""
    for i in range(450):
        retire(lane, ending(f"r{i}"), most=100)
    assert 100 <= lane.client.xlen(LOG[2]) <= 250
