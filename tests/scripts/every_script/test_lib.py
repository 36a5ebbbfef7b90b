"""Tests the functions of lua/v1/lib in a Lua interpreter, without a server."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.support.scripts.lua_lib import Lib

NOW = 1_700_000_000_000


def minting() -> Lib:
    functions = ("ready", "mint", "queued_tokens", "park", "unpark", "unqueue", "read_permit")
    return Lib(("permits",), functions)


def state_of(lib: Lib, **given: Any) -> Any:
    fields = {
        "state": "active",
        "limit": 3,
        "held": 0,
        "queued": 0,
        "fresh": 0,
        "seq": 0,
        "high": 0,
        "priority": 5,
        "free": "",
        "sleeper": "",
        "sleep_due": 0,
        "deadline": 0,
        "shards": "",
        "gate": lib.table(opens=0, rates="", turn="", keys=""),
    }
    return lib.table(**(fields | given))


# ------------------------------------------------------------------ now_ms


def test_now_is_the_servers_time_in_ms():
    lib = Lib(("core",), ("now_ms",))
    lib.redis.time = (1_700_000_000, 999_999)
    assert lib.now_ms("") == 1_700_000_000_999


# ------------------------------------------------------------------ permits


def test_a_held_permit_reads_back_as_it_was_written():
    lib = Lib(("permits",), ("read_permit", "write_held", "consumer_of"))
    fields = {"fence": "12", "g": "9", "op": "0aff", "started": "7", "owed": 3}
    fields |= {"shared": "1", "first": "5-0", "last": "5-2"}
    lib.write_held("4", lib.table(worker="[::1]:8080", **fields))
    found = lib.read_permit("4")
    assert dict(found.items()) == {**fields, "kind": "h", "worker": "[::1]:8080"}
    assert lib.consumer_of(found, "4") == "[::1]:8080/4"


# ------------------------------------------------------------------ mint


@given(limit=st.integers(1, 30), held=st.integers(0, 30), fresh=st.integers(0, 60))
def test_mint_queues_as_many_as_there_is_work_and_room_for(limit: int, held: int, fresh: int):
    """min(limit - held, ready) are awake, each with a number of its own below the limit."""
    held = min(held, limit)
    lib = minting()
    state = state_of(lib, limit=limit, held=held, high=held, fresh=fresh, seq=held)
    tokens = lib.rows(lib.mint(state, NOW))
    wanted = min(limit - held, fresh)
    assert (state.queued, len(tokens)) == (wanted, 3 * wanted)
    numbers = [int(token.split(".")[0]) for token in tokens[1::3]]
    assert numbers == list(range(held, held + wanted))
    assert lib.rows(lib.mint(state, NOW)) == []


@given(st.integers(1, 10_000))
def test_mint_costs_what_it_mints(limit: int):
    """No scan over the limit is made: one free permit is one write, whatever the limit."""
    lib = minting()
    state = state_of(lib, limit=limit, held=limit - 1, high=limit - 1, fresh=10_000)
    lib.mint(state, NOW)
    assert lib.redis.calls.count("HSET") == 1
    assert len(lib.redis.calls) <= 3


# ------------------------------------------------------------------ entries and deaths


@given(st.lists(st.integers(-5, 5), min_size=1, max_size=8))
def test_entry_ids_grow_whatever_the_clock_does(steps: list[int]):
    lib = Lib(("entries",), ("add_entries",))
    bodies = lib.runtime.table("a", "bb")
    state = lib.table(last_ms=0, total=0, fresh=0, max_body=0)
    now = NOW
    for step in steps:
        now += step
        assert lib.add_entries(state, now, bodies, 1, 2) == 2
    ids = [tuple(map(int, entry_id.split("-"))) for _, entry_id, _ in lib.redis.added]
    assert ids == sorted(set(ids))
    assert [index for _, index in ids] == list(range(2 * len(steps)))
    assert (state.max_body, state.fresh) == (2, 2 * len(steps))


def test_a_chunk_of_a_thousand_is_no_error_and_one_more_is():
    lib = Lib(("entries",), ("entry_error",))
    for count in (0, 1000):
        assert lib.entry_error(3, 2 + count) is None
    assert lib.entry_error(3, 1_003).err.startswith("BADCHUNK 1001 ")


def test_the_first_death_waits_for_nothing_later_ones_for_the_backoff():
    """The backoff doubles up to its maximum; no attempt overflows it."""
    lib = Lib(("reap",), ("death_delay",))
    state = lib.table(backoff_min=1_000, backoff_max=5_000)
    assert [lib.death_delay(state, n) for n in (0, 1, 2, 3, 4, 5, 1000)] == [
        *(0, 0, 1_000, 2_000, 4_000, 5_000, 5_000)
    ]


# ------------------------------------------------------------------ census


def test_the_census_counts_what_permits_really_are():
    lib = Lib(("check",), ("count_permits",))
    lib.redis.hashes["tok"] = {
        "0": "h:3:1:a:1:4::::w",
        "1": f"q:4:{NOW}:5:0",
        "2": f"q:5:{NOW}:5:{NOW + 9}",
        "3": "p:4",
        "4": "p:",
        "last3": "2",
    }
    seen = lib.count_permits(lib.table(sleeper="2", high=6, limit=9, free="3"))
    assert dict(seen.items()) == {
        "held": 1,
        "owed": 4,
        "queued": 1,
        "sleeping": 1,
        "parked": 2,
        "listed": 2,
        "lost": 1,
    }


def test_the_census_ends_in_a_parked_list_that_goes_in_a_circle():
    lib = Lib(("check",), ("count_permits",))
    lib.redis.hashes["tok"] = {"0": "p:1", "1": "p:0"}
    seen = lib.count_permits(lib.table(sleeper="", high=2, limit=2, free="0"))
    assert (seen.parked, seen.listed) == (2, 3)
