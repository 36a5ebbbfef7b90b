"""Tests ranges of streams by id: they cover each entry once, whatever happens meanwhile."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from fairlane.arrow import stream_ranges
from fairlane.arrow.columns import batch_of, columns_of, completion_row, ending_columns
from fairlane.arrow.stream_ranges import Ended, EndedOpening, StreamRange
from fairlane.errors import RequestNotFound
from fairlane.operations.request_state import completion
from fairlane.spark.source.columns import arrow_of, struct_of
from tests.spark.worlds import World
from tests.support.scripts.requests import once

if TYPE_CHECKING:
    import redis

    from fairlane.drivers.sync import SyncDriver


@pytest.mark.parametrize("parts", [1, 2, 3, 10, 100])
def test_cut_covers_a_range_once(parts: int):
    pieces = stream_ranges.cut("1000-5", "1040-2", parts)
    assert len(pieces) == min(parts, 41)
    assert (pieces[0].first, pieces[-1].last) == ("1000-5", "1040-2")
    for one, other in itertools.pairwise(pieces):
        assert stream_ranges.after(one.last) == other.first


def test_an_empty_range_has_no_pieces():
    assert stream_ranges.cut("5-1", "5-0", 3) == []
    assert stream_ranges.cut("6-0", "5-9", 1) == []
    assert stream_ranges.cut("5-0", "5-0", 4) == [("5-0", "5-0")]


def test_after_is_the_next_id():
    assert stream_ranges.after("7-3") == "7-4"
    assert stream_ranges.after(f"7-{2**64 - 1}") == "8-0"


def test_pages_cover_a_piece(driver: SyncDriver, redis_client: redis.Redis):
    ids = [
        redis_client.xadd("{req}:completed", {"n": n}, id=f"{n // 3 + 1}-{n}") for n in range(20)
    ]
    rest: stream_ranges.StreamRange | None = stream_ranges.StreamRange("1-1", "7-19")
    seen: list[bytes] = []
    while rest is not None:
        entries, rest = driver.run(stream_ranges.read_page(b"{req}:completed", rest, 4))
        assert len(entries) <= 4
        seen += [entry_id for entry_id, _ in entries]
    assert seen == ids[1:]


def endings_in(driver: SyncDriver, logged: Any) -> list[Any]:
    """Returns the ends in a part of the log."""
    part = stream_ranges.StreamRange(logged.first, logged.last)
    found, _ = driver.run(stream_ranges.endings("req", part))
    return found


def test_a_request_is_unfinished_or_in_the_log(driver: SyncDriver):
    world = World(driver)
    for n in range(4):
        world.submit(f"r{n}", 5, priority=n)
    world.work_off(slices=4, most=2)
    ids, logged = driver.run(stream_ranges.unfinished("req"))
    assert logged is not None
    found = endings_in(driver, logged)
    assert sorted([*ids, *(one.id for one in found)]) == ["r0", "r1", "r2", "r3"]
    assert len(found) == logged.length


def test_a_request_that_ends_during_the_read_is_listed_once(driver: SyncDriver):
    world = World(driver)
    world.submit("r0", 1)
    world.work_off()
    world.submit("r1", 1)
    world.submit("r2", 1, priority=9)
    look = stream_ranges.unfinished("req")
    reply = driver.run(once(look.send(None)))
    world.work_off(slices=1)  # r1 goes from `active` to the log
    ids, logged = driver.run(_rest(look, reply))
    assert ids == ["r2"]
    assert [one.id for one in endings_in(driver, logged)] == ["r0", "r1"]


def _rest(operation: Any, reply: Any):
    """Runs the operation after its first step."""
    while True:
        try:
            step = operation.send(reply)
        except StopIteration as end:
            return end.value
        reply = yield step


def test_records_of_ended_requests(driver: SyncDriver):
    world = World(driver)
    world.submit("r1", 3, limit=7, attempts=2)
    world.work_off()
    world.submit("r2", 3)
    (ending,) = world.queue.completions("0", follow=False)
    lives = [("r1", ending.submitted_ms), ("r1", 5), ("r2", 5), ("absent", 5)]
    openings = [EndedOpening(*life) for life in lives]
    assert driver.run(stream_ranges.ended_requests(openings)) == [Ended(7, False), None, None, None]


def test_whole_streams_are_those_of_the_lives_that_are_named(driver: SyncDriver):
    world = World(driver)
    for name in ("r1", "r2"):
        world.submit(name, 3, limit=7, attempts=2)
        world.work_off(dead=[1])
    born = {one.id: one.submitted_ms for one in world.queue.completions("0", follow=False)}
    named = [("r1", born["r1"]), ("r2", 5), ("absent", 5), ("r2", born["r2"])]
    lives = [EndedOpening(*one) for one in named]
    results = driver.run(stream_ranges.whole_results(lives))
    assert [record for _, record in results] == [Ended(7, False), None, None, Ended(7, False)]
    assert [bool(entries) for entries, _ in results] == [True, False, False, True]
    dead = driver.run(stream_ranges.whole_dead(lives))
    assert [record for _, record in dead] == [Ended(7, False), None, None, Ended(7, False)]
    found = [[(one.index, one.error, one.body) for one in died] for died, _ in dead]
    assert found == [[(1, "it is rejected", b"1")], [], [], [(1, "it is rejected", b"1")]]
    assert driver.run(stream_ranges.whole_results([])) == []
    assert driver.run(stream_ranges.whole_dead([])) == []


def test_endings_as_columns_are_what_they_are_as_rows(
    driver: SyncDriver, redis_client: redis.Redis
):
    world = World(driver)
    world.submit("r1", 3, priority=2)
    world.work_off(dead=[1])
    world.submit("r2", 1)
    world.queue.request("r2").cancel(reason="no longer wanted: ü")
    piece = stream_ranges.StreamRange("-", "+")
    entries, _ = driver.run(stream_ranges.log_entries("req", piece))
    assert len(entries) == 2
    damaged: list[dict[bytes | str, bytes | str]] = [
        {"id": "r3"},
        {**_fields(entries[0]), b"done": b"many"},
        {**_fields(entries[0]), b"reason": b"\xff"},
        {**_fields(entries[0]), b"born": b"0"},
    ]
    for more in [{}, *damaged]:
        if more:
            redis_client.xadd("{req}:completed", more)  # type: ignore[arg-type]
        read, _ = driver.run(stream_ranges.log_entries("req", piece))
        schema = arrow_of(struct_of("completions"))
        rows = [completion_row(completion("req", log_id, fields)) for log_id, fields in read]
        expected = batch_of(columns_of("completions", rows), schema)
        assert batch_of(ending_columns(read), schema).equals(expected)
        if more:
            redis_client.xdel("{req}:completed", read[-1][0])
    assert batch_of(ending_columns([]), schema).num_rows == 0


def _fields(entry: Any) -> dict[bytes | str, bytes | str]:
    return dict(zip(entry[1][::2], entry[1][1::2], strict=True))


def test_a_missing_request_has_no_results(driver: SyncDriver):
    with pytest.raises(RequestNotFound):
        driver.run(stream_ranges.result_span("absent"))


def test_spans_of_streams(driver: SyncDriver):
    world = World(driver)
    world.submit("r1", 30, limit=1)
    world.submit("r2", 3)
    world.submit("r3", 3, limit=1)
    world.work_off(dead=[1])
    died = dict(driver.run(stream_ranges.dead_spans(["r1", "r2", "absent"])))
    assert {one: span.length for one, span in died.items()} == {"r1": 1, "r2": 1}
    found, rest = driver.run(
        stream_ranges.read_dead("r1", stream_ranges.StreamRange(died["r1"].first, "+"))
    )
    assert [one.index for one in found] == [1]
    assert rest is None


def test_each_opening_has_what_was_settled_in_it(driver: SyncDriver):
    world = World(driver)
    world.submit("r1", 3, attempts=2)
    world.work_off(dead=[1, 2])
    for index in (1, 2):
        world.queue.request("r1").requeue_dead(indexes=[index])
        world.work_off()
    entries, _ = driver.run(stream_ranges.log_entries("req", StreamRange("-", "+")))
    openings = [*map(stream_ranges.opening_of, entries)]
    assert [one.reopened for one in openings] == [0, 1, 2]
    found = driver.run(stream_ranges.whole_results(openings))
    heads = [[fields[2].split(b":")[:2] for _, fields in read] for read, _ in found]
    assert heads[1:] == [[[b"1", b"d"]], [[b"2", b"d"]]]
    assert [head for head in heads[0] if head[1] != b"d"] == []
    assert driver.run(stream_ranges.whole_dead(openings))[2][0] == []
