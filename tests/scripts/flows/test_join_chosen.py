"""Tests the script join_chosen: the parts that each result chose become one body, once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fairlane.errors import FairlaneError
from fairlane.protocol import keys
from tests.support.scripts.requests import HOUR, toks, waiting_bodies

if TYPE_CHECKING:
    from tests.support.scripts.requests import Lane

START = "0-0,0-0"
Part = tuple[str, bytes]


def join(lane: Lane, since: str, upto: str, *parts: Part, **changed: Any) -> list[Any]:
    names = (*lane.names, keys.of_flow(lane.id), keys.fed(lane.id))
    flat = [word for part in parts for word in part]
    given = {"since": since, "upto": upto, "open_ms": HOUR, "width": 3, "before": "["}
    given |= {"between": ",", "after": "]", "parts": flat}
    reply: list[Any] = lane.call("join_chosen", names, **(given | changed))
    assert lane.check() == []
    return reply


def waiting(lane: Lane) -> dict[bytes, bytes]:
    """Returns the parts that wait for others."""
    found: dict[bytes, bytes] = lane.client.hgetall(keys.of_flow(lane.id))
    return found


@pytest.fixture
def fed(lane: Lane) -> Lane:
    """Makes an open request without a sub-request."""
    assert lane.start(0, limit=2, open_ms=HOUR) == []
    return lane


def test_a_body_is_made_with_its_last_part_in_the_order_of_the_children(fed: Lane):
    assert join(fed, START, "1-0,5-0", ("0:7", b"2"), ("2:7", b"b")) == [b"ok", [], 2, 0]
    assert waiting(fed) == {b"0:7": b"2", b"2:7": b"b"}
    word, tokens, chunks, made = join(fed, "1-0,5-0", "1-0,6-0", ("1:7", b"a"))
    assert (word, len(toks(tokens)), chunks, made) == (b"ok", 1, 3, 1)
    assert waiting_bodies(fed.client, "r1") == [b"[a,b]"]
    assert waiting(fed) == {}
    assert fed.hash()["handed"] == "1-0,6-0"


def test_parts_may_come_before_their_number(fed: Lane):
    join(fed, START, "0-0,5-0", ("1:7", b"a"), ("2:7", b"b"))
    assert join(fed, "0-0,5-0", "1-0,5-0", ("0:7", b"2"))[3] == 1
    assert waiting_bodies(fed.client, "r1") == [b"[a,b]"]


def test_a_result_without_children_makes_an_empty_body(fed: Lane):
    assert join(fed, START, "1-0,0-0", ("0:7", b"0"), ("0:8", b"0"))[3] == 2
    assert waiting_bodies(fed.client, "r1") == [b"[]", b"[]"]
    assert waiting(fed) == {}


def test_a_repeat_adds_nothing(fed: Lane):
    first = join(fed, START, "1-0,0-0", ("0:7", b"1"))
    before = fed.dump()
    assert join(fed, START, "1-0,0-0", ("0:7", b"1")) == [b"moved", b"1-0,0-0", *first[1:3]]
    assert fed.dump() == before


def test_what_is_there_again_is_joined_once(fed: Lane):
    join(fed, START, "1-0,1-0", ("0:7", b"1"), ("1:7", b"a"))
    assert join(fed, "1-0,1-0", "2-0,2-0", ("0:7", b"1"), ("1:7", b"a"))[3] == 0
    assert fed.number("total") == 1
    assert waiting(fed) == {}


def test_a_part_that_ran_again_before_the_join_replaces_the_first_one(fed: Lane):
    join(fed, START, "1-0,1-0", ("0:7", b"2"), ("1:7", b"null"))
    join(fed, "1-0,1-0", "1-0,3-0", ("1:7", b"a"), ("2:7", b"b"), ("1:7", b"late"))
    assert waiting_bodies(fed.client, "r1") == [b"[a,b]"]


@pytest.mark.parametrize(("before", "after", "body"), [(b"3", b"1", b"[a]"), (b"0", b"2", b"[]")])
def test_a_number_that_changed_when_the_parent_ran_again_replaces_the_first_one(
    fed: Lane, before: bytes, after: bytes, body: bytes
):
    join(fed, START, "1-0,1-0", ("0:7", before), ("1:7", b"a"))
    join(fed, "1-0,1-0", "2-0,1-0", ("0:7", after))
    assert waiting_bodies(fed.client, "r1") == [body]


def test_what_is_sealed_gets_nothing(fed: Lane):
    join(fed, START, "1-0,0-0", ("0:7", b"0"))
    assert fed.seal(2)[0] == b"ok"
    before = fed.dump()
    assert join(fed, "1-0,0-0", "1-0,1-0", ("0:8", b"0")) == [b"closed"]
    assert fed.dump() == before


def test_what_is_being_cancelled_gets_nothing(fed: Lane):
    _, tokens, *_ = join(fed, START, "1-0,0-0", ("0:7", b"0"))
    fed.take(toks(tokens)[0])
    fed.request("cancel", reason="why")
    before = fed.dump()
    assert join(fed, "1-0,0-0", "2-0,1-0", ("0:8", b"0"))[0] == b"cancelling"
    assert fed.dump() == before


def test_what_has_ended_gets_nothing(fed: Lane):
    fed.request("cancel", reason="why")
    before = fed.dump()
    assert join(fed, START, "1-0,0-0", ("0:7", b"0"))[0] == b"ended"
    assert fed.dump() == before


def test_what_does_not_exist_is_gone(lane: Lane):
    assert join(lane, START, "1-0,0-0", ("0:7", b"0")) == [b"gone"]
    assert not lane.client.exists(keys.of_flow("r1"))


def test_a_new_life_of_the_id_joins_no_part_of_the_former_one(lane: Lane):
    lane.start(0, limit=2, open_ms=HOUR)
    join(lane, START, "1-0,0-0", ("0:7", b"2"), ("1:7", b"old"))
    lane.request("cancel", reason="why")
    lane.client.delete(*lane.names)
    lane.start(0, limit=2, open_ms=HOUR)
    assert join(lane, START, "0-0,1-0", ("2:7", b"b"))[3] == 0
    assert waiting(lane) == {b"2:7": b"b"}


def test_a_key_of_another_kind_is_an_error_and_nothing_is_written(fed: Lane):
    join(fed, START, "1-0,0-0")
    fed.client.set(keys.of_flow("r1"), "text")
    before = fed.dump()
    with pytest.raises(FairlaneError, match="WRONGTYPE"):
        join(fed, "1-0,0-0", "2-0,0-0", ("1:7", b"a"))
    assert fed.dump() == before
    fed.client.delete(keys.of_flow("r1"))


@pytest.mark.parametrize(
    "changed",
    [
        *({"since": "0-0"}, {"upto": "1-0,a-0"}, {"open_ms": ""}, {"width": ""}, {"width": 0}),
        *({"width": 101}, {"parts": ["1:0"]}, {"parts": ["1:0", "a"] * 1001}),
        *({"parts": [name, "a"]} for name in ("4:0", "1", "1:0:y", "x:0", "1:4294967296")),
        *({"parts": ["0:0", count]} for count in ("", "x", "4", "-1", "1.5")),
    ],
)
def test_malformed_arguments_are_refused(fed: Lane, changed: dict[str, Any]):
    before = fed.dump()
    given: dict[str, Any] = {"since": START, "upto": "1-0,1-0"} | changed
    with fed.refuses("BADARGUMENT"):
        join(fed, given.pop("since"), given.pop("upto"), ("1:0", b"a"), **given)
    assert fed.dump() == before
