"""Tests the script join: parts of several requests become one body, once, and the cursor moves."""

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


def join(
    lane: Lane, since: str, upto: str, *parts: Part, width: int = 2, **changed: Any
) -> list[Any]:
    names = (*lane.names, keys.of_flow(lane.id), keys.fed(lane.id))
    flat = [word for part in parts for word in part]
    given = {"since": since, "upto": upto, "open_ms": HOUR, "width": width, "before": "["}
    given |= {"between": ",", "after": "]", "parts": flat}
    reply: list[Any] = lane.call("join", names, **(given | changed))
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
    assert join(fed, START, "0-0,5-0", ("2:0", b"b0"), ("2:1", b"b1")) == [b"ok", [], 2, 0]
    assert waiting(fed) == {b"2:0": b"b0", b"2:1": b"b1"}
    word, tokens, chunks, made = join(fed, "0-0,5-0", "7-1,5-0", ("1:1", b"a1"))
    assert (word, len(toks(tokens)), chunks, made) == (b"ok", 1, 3, 1)
    assert waiting_bodies(fed.client, "r1") == [b"[a1,b1]"]
    assert waiting(fed) == {b"2:0": b"b0"}
    assert fed.hash()["handed"] == "7-1,5-0"


def test_parts_of_one_call_make_bodies_together(fed: Lane):
    parts = [("1:0", b"a"), ("2:0", b"b"), ("2:1", b"d"), ("1:1", b"c")]
    assert join(fed, START, "1-0,1-0", *parts)[3] == 2
    assert waiting_bodies(fed.client, "r1") == [b"[a,b]", b"[c,d]"]
    assert waiting(fed) == {}
    assert not fed.client.exists(keys.of_flow("r1"))


def test_a_repeat_adds_nothing(fed: Lane):
    first = join(fed, START, "1-0,0-0", ("1:0", b"a"))
    before = fed.dump()
    assert join(fed, START, "1-0,0-0", ("1:0", b"a")) == [b"moved", b"1-0,0-0", *first[1:3]]
    assert fed.dump() == before


def test_what_waits_has_an_end(fed: Lane):
    join(fed, START, "1-0,0-0", ("1:0", b"a"))
    assert fed.client.pttl(keys.of_flow("r1")) > 0


def test_a_part_that_is_none_counts(fed: Lane):
    assert join(fed, START, "1-0,1-0", ("1:0", b"null"), ("2:0", b"b"))[3] == 1
    assert waiting_bodies(fed.client, "r1") == [b"[null,b]"]
    assert waiting(fed) == {}


def test_a_dead_one_that_ran_again_is_not_joined_twice(fed: Lane):
    join(fed, START, "1-0,1-0", ("1:0", b"null"), ("2:0", b"b"))
    assert join(fed, "1-0,1-0", "2-0,1-0", ("1:0", b"a"))[3] == 0
    assert fed.number("total") == 1
    assert waiting(fed) == {}


def test_a_dead_one_that_ran_again_before_the_join_counts(fed: Lane):
    join(fed, START, "1-0,0-0", ("1:0", b"null"))
    join(fed, "1-0,0-0", "2-0,0-0", ("1:0", b"a"))
    join(fed, "2-0,0-0", "2-0,1-0", ("2:0", b"b"))
    assert waiting_bodies(fed.client, "r1") == [b"[a,b]"]


def test_a_dead_one_in_the_call_of_its_second_result_counts_once(fed: Lane):
    parts = [("1:0", b"null"), ("1:0", b"a"), ("2:0", b"b"), ("1:0", b"late")]
    assert join(fed, START, "1-0,1-0", *parts)[3] == 1
    assert waiting_bodies(fed.client, "r1") == [b"[a,b]"]


def test_one_child_makes_bodies_of_one_part(fed: Lane):
    join(fed, "0-0", "1-0", ("1:0", b"a"), ("1:1", b"b"), width=1)
    assert waiting_bodies(fed.client, "r1") == [b"[a]", b"[b]"]


def test_all_results_of_one_request_make_one_body(fed: Lane):
    join(fed, "0-0", "1-0", ("3:0", b"c"), ("1:0", b"a"), width=3)
    join(fed, "1-0", "2-0", ("2:0", b"b"), width=3)
    assert waiting_bodies(fed.client, "r1") == [b"[a,b,c]"]


def test_the_cursor_moves_over_what_has_no_part(fed: Lane):
    assert join(fed, START, "5-0,0-0") == [b"ok", [], 2, 0]
    assert fed.hash()["handed"] == "5-0,0-0"


def test_what_is_sealed_gets_nothing(fed: Lane):
    join(fed, START, "1-0,0-0", ("1:0", b"a"))
    assert fed.seal(2)[0] == b"ended"
    assert join(fed, "1-0,0-0", "1-0,1-0", ("2:0", b"b"))[0] == b"ended"


def test_what_is_sealed_and_unfinished_gets_nothing(fed: Lane):
    join(fed, START, "1-0,1-0", ("1:0", b"a"), ("2:0", b"b"))
    assert fed.seal(2)[0] == b"ok"
    before = fed.dump()
    assert join(fed, "1-0,1-0", "2-0,1-0", ("1:1", b"b")) == [b"closed"]
    assert fed.dump() == before


def test_what_is_being_cancelled_gets_nothing(fed: Lane):
    _, tokens, *_ = join(fed, START, "1-0,1-0", ("1:0", b"a"), ("2:0", b"b"))
    fed.take(toks(tokens)[0])
    fed.request("cancel", reason="why")
    before = fed.dump()
    assert join(fed, "1-0,1-0", "2-0,1-0", ("1:1", b"b"))[0] == b"cancelling"
    assert fed.dump() == before


def test_what_does_not_exist_is_gone(lane: Lane):
    assert join(lane, START, "1-0,0-0", ("1:0", b"a")) == [b"gone"]
    assert not lane.client.exists(keys.of_flow("r1"))


def test_a_new_life_of_the_id_joins_no_part_of_the_former_one(lane: Lane):
    """A person has cancelled the former life alone, and its tombstone has expired."""
    lane.start(0, limit=2, open_ms=HOUR)
    join(lane, START, "1-0,0-0", ("1:0", b"old"), ("1:1", b"old"))
    lane.request("cancel", reason="why")
    lane.client.delete(*lane.names)
    lane.start(0, limit=2, open_ms=HOUR)
    assert join(lane, START, "0-0,1-0", ("2:0", b"b"))[3] == 0
    assert waiting(lane) == {b"2:0": b"b"}


def test_a_key_of_another_kind_is_an_error_and_nothing_is_written(fed: Lane):
    join(fed, START, "1-0,0-0")
    fed.client.set(keys.of_flow("r1"), "text")
    before = fed.dump()
    with pytest.raises(FairlaneError, match="WRONGTYPE"):
        join(fed, "1-0,0-0", "2-0,0-0", ("1:0", b"a"))
    assert fed.dump() == before
    fed.client.delete(keys.of_flow("r1"))


@pytest.mark.parametrize(
    "changed",
    [
        {"since": "0-0"},
        {"since": "0-0,"},
        {"since": "x0-0,0-0"},
        {"upto": "1-0"},
        {"upto": "1-0,a-0"},
        {"upto": "1-0,1-0 "},
        {"upto": "1-0,x1-0"},
        {"upto": "1-0,-1-0"},
        {"since": "0-0," * 50 + "0-0", "upto": "0-0," * 50 + "0-0"},
        {"open_ms": ""},
        {"width": ""},
        {"width": 0},
        {"width": 0, "parts": []},
        {"width": 101},
        {"parts": ["1:0"]},
        {"parts": ["0:0", "a"]},
        {"parts": ["3:0", "a"]},
        {"parts": ["1", "a"]},
        {"parts": ["1:0:y", "a"]},
        {"parts": ["1:0", "a"] * 1001},
    ],
)
def test_malformed_arguments_are_refused(fed: Lane, changed: dict[str, Any]):
    before = fed.dump()
    given: dict[str, Any] = {"since": START, "upto": "1-0,1-0"} | changed
    with fed.refuses("BADARGUMENT"):
        join(fed, given.pop("since"), given.pop("upto"), ("1:0", b"a"), **given)
    assert fed.dump() == before
