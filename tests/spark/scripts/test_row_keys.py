"""Tests what the scripts keep of rows for readers of results: keys, and wanted bodies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fairlane.arrow.stream_ranges import RowKeys, kept_bodies
from fairlane.protocol import keys
from fairlane.spark.commit import pack
from tests.spark.staging import Sink, bodies_of
from tests.support.scripts.requests import numbered, toks

if TYPE_CHECKING:
    from fairlane.drivers.sync import SyncDriver
    from tests.support.scripts.requests import Lane


def shown(driver: SyncDriver, lane: Lane, *indexes: int) -> list[str | None]:
    return driver.run(RowKeys().read([(lane.id, indexes)]))


def staged(sink: Sink, own: list[bytes], **given: Any) -> list[Any]:
    """Brings rows by a transaction of its own, whose bodies are their keys."""
    packed = pack(own) + pack(own)
    sink.stage(0, packed=packed)
    sink.pin(("0:1", 1, len(own)))
    reply = sink.roll(**given)
    assert reply[0] == b"ok"
    return reply


def test_keys_that_follow_the_bodies_of_a_chunk_are_kept(sink: Sink, driver: SyncDriver):
    staged(sink, [b"anna", b"", "ü".encode()])
    assert bodies_of(sink.lane) == [b"anna", b"", "ü".encode()]
    assert shown(driver, sink.lane, 2, 0, 1, 3) == ["ü", "anna", "", None]
    assert driver.run(kept_bodies([(sink.lane.id, [0])])) == [None]
    assert sink.lane.hash()["keyed"] == "1"


def test_rows_without_keys_cost_nothing(sink: Sink):
    sink.stage(3)
    sink.pin(("0:1", 1, 3))
    sink.roll()
    sink.add_part(0, [b"a"])
    assert sink.lane.client.exists(keys.errors(sink.lane.id)) == 0
    assert "keyed" not in sink.lane.hash()


def test_each_key_has_its_index_whatever_the_chunks_are(sink: Sink, driver: SyncDriver):
    """Keys are kept in parts of a thousand; rows of other writes have none."""
    lane = sink.lane
    for n in range(3):
        own = [b"%d.%d" % (n, i) for i in range(700)]
        staged(Sink(lane, f"t{n}"), own)
        sink.add_part(n, [b"plain"])
    assert sorted(lane.client.hkeys(keys.errors(lane.id))) == [b"k0", b"k1", b"k2"]
    found = shown(driver, lane, *range(2104))
    assert found[:702] == [*(f"0.{i}" for i in range(700)), None, "1.0"]
    assert found[1400:] == ["1.699", None, *(f"2.{i}" for i in range(700)), None, None]


def test_of_two_rows_with_one_key_the_first_is_kept(sink: Sink, driver: SyncDriver):
    assert sink.add_unique({b"i0": b"a", b"i1": b"b"})[2] == 2
    assert sink.add_unique({b"i1": b"c", b"i2": b"d"}, keep="1")[2] == 1
    assert shown(driver, sink.lane, 0, 1, 2, 3) == ["i0", "i1", "i2", None]
    assert driver.run(kept_bodies([(sink.lane.id, range(4))])) == [None, None, b"d", None]


def test_bodies_are_kept_if_they_are_wanted(sink: Sink, driver: SyncDriver):
    staged(sink, [b"a", b"b"], keep="1")
    sink.add_part(0, [b"c", b"d"], keep="1")
    assert driver.run(kept_bodies([(sink.lane.id, [3, 0])])) == [b"d", b"a"]


def test_they_stay_as_long_as_the_results(sink: Sink):
    """They are beside the texts of errors, and a requeue deletes the last text."""
    lane = sink.lane
    reply = staged(sink, [b"a", b"b"], keep="1")
    held = lane.take(toks(reply[1])[0])
    lane.complete(held, held.ids[1:], [(held.ids[0], "dead", 0)])
    lane.requeue()
    kept = keys.errors(lane.id)
    assert sorted(lane.client.hkeys(kept)) == [b"b0", b"b1", b"bytes", b"k0"]
    assert lane.client.pttl(kept) == -1
    lane.cancel()
    assert lane.client.pttl(kept) == pytest.approx(lane.client.pttl(keys.results(lane.id)), abs=999)


@pytest.mark.parametrize(
    "own", [pack([b"a"]), pack([b"a"] * 3), pack([b"a", b"b"]) + b"x", b"\1\0"], ids=repr
)
def test_keys_that_do_not_fit_the_rows_are_refused(sink: Sink, own: bytes):
    sink.stage(0, packed=pack([b"a", b"b"]) + own)
    sink.pin(("0:1", 1, 2))
    with sink.lane.refuses("BADCHUNK"):
        sink.roll()


def test_a_chunk_of_a_thousand_keys_is_one_part(sink: Sink):
    staged(sink, numbered(1000))
    assert sink.lane.client.hlen(keys.errors(sink.lane.id)) == 1
