"""Tests the script hand_chosen: it adds what results choose for it, and passes the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fairlane.errors import FairlaneError
from fairlane.protocol import keys
from tests.support.run.for_each import for_each
from tests.support.scripts.requests import HOUR, toks, waiting_bodies

if TYPE_CHECKING:
    from tests.support.scripts.requests import Lane


def give(lane: Lane, since: str, upto: str, *choices: str, **changed: Any) -> list[Any]:
    """Hands choices over: `index:place` is its own body, and an index alone is passed."""
    pairs = [word for one in choices for word in (one, f"b{one}" if ":" in one else "")]
    given = {"since": since, "upto": upto, "open_ms": HOUR, "width": 2, "is_joined": "1"}
    names = (*lane.names, keys.of_flow(lane.id), keys.fed(lane.id))
    reply: list[Any] = lane.call("hand_chosen", names, **(given | {"choices": pairs} | changed))
    assert lane.check() == []
    return reply


def origins(lane: Lane, *numbers: int) -> list[int]:
    """Returns where sub-requests come from, as the step that joins them reads it."""
    fields = [word for one in numbers for word in (f"{one}:d:1:0:0", "x")]
    lane.client.xadd(keys.results(lane.id), dict(zip(fields[::2], fields[1::2], strict=True)))
    names = (*lane.names, keys.of_flow(lane.id))
    rows = lane.call("list_chosen", names, after="0-0", count=1)[1]
    lane.client.delete(keys.results(lane.id))
    found: list[int] = rows[0][2]
    return found


@pytest.fixture
def fed(lane: Lane) -> Lane:
    """Makes an open request without a sub-request."""
    assert lane.start(0, limit=2, open_ms=HOUR) == []
    return lane


def test_what_chooses_the_request_is_added_and_the_rest_is_passed(fed: Lane):
    word, tokens, chunks = give(fed, "0-0", "7-1", "0:0", "0:1", "0", "1", "2:1", "2")
    assert (word, len(toks(tokens)), chunks) == (b"ok", 2, 2)
    assert waiting_bodies(fed.client, "r1") == [b"b0:0", b"b0:1", b"b2:1"]
    assert (fed.hash()["handed"], fed.hash()["passed"]) == ("7-1", "3")
    assert give(fed, "7-1", "9-0", "3")[:2] == [b"ok", []]
    assert fed.hash()["passed"] == "4"


def test_a_repeat_adds_nothing_and_returns_what_is_queued(fed: Lane):
    first = give(fed, "0-0", "7-1", "0:0", "0")
    before = fed.dump()
    assert give(fed, "0-0", "7-1", "0:0", "0") == [b"moved", b"7-1", *first[1:]]
    assert give(fed, "3-0", "8-0", "5:0")[:2] == [b"moved", b"7-1"]
    assert fed.dump() == before


def test_a_choice_that_comes_again_with_another_place_is_there_once(fed: Lane):
    """A failover took its result back: its sub-request ran again."""
    give(fed, "0-0", "7-1", "0:0", "0")
    assert give(fed, "7-1", "9-0", "0:0", "0:0", "0", "0", "1:0", "1")[0] == b"ok"
    assert waiting_bodies(fed.client, "r1") == [b"b0:0", b"b1:0"]
    assert fed.hash()["passed"] == "2"
    assert 0 < fed.client.pttl(keys.fed("r1")) <= 31 * 24 * HOUR
    assert 0 < fed.client.pttl(keys.of_flow("r1")) <= 31 * 24 * HOUR


def test_a_result_that_was_passed_may_choose_the_request_when_it_ran_again(fed: Lane):
    give(fed, "0-0", "7-1", "0")
    give(fed, "7-1", "9-0", "0:1", "0")
    assert waiting_bodies(fed.client, "r1") == [b"b0:1"]
    assert fed.hash()["passed"] == "1"


def test_choices_of_one_entry_come_in_several_calls_with_the_same_cursor(fed: Lane):
    give(fed, "0-0", "0-0", "0:0")
    give(fed, "0-0", "0-0", "0:0", "0:1")
    give(fed, "0-0", "7-0", "0")
    assert waiting_bodies(fed.client, "r1") == [b"b0:0", b"b0:1"]
    assert fed.hash()["passed"] == "1"


def test_each_sub_request_has_its_origin(fed: Lane):
    give(fed, "0-0", "7-0", "0:1", "0", "4:0", "4:1", "4")
    assert origins(fed, 2, 0, 1) == [14, 2, 13]  # 3 bits a result: the first one is that it passed


def test_origins_go_on_over_many_calls(fed: Lane):
    for number in range(6):
        names = [f"{100 * number + one}:0" for one in range(100)]
        give(fed, f"{number}-0", f"{number + 1}-0", *names)
    assert origins(fed, 0, 255, 256, 511, 512, 599) == [
        3 * n + 1 for n in (0, 255, 256, 511, 512, 599)
    ]
    assert fed.client.hlen(keys.of_flow("r1")) == 3


def test_origins_that_were_lost_are_not_those_of_others(fed: Lane):
    give(fed, "0-0", "7-0", "0:0", "0:1")
    fed.client.delete(keys.of_flow("r1"))
    give(fed, "7-0", "8-0", "1:0")
    assert origins(fed, 0, 1, 2, 3, 700) == [0, 0, 4, 0, 0]


def test_a_request_that_no_other_joins_keeps_no_origins(fed: Lane):
    give(fed, "0-0", "7-0", "0:0", "0", is_joined="0")
    assert not fed.client.exists(keys.of_flow("r1"))


def test_what_is_sealed_gets_nothing(fed: Lane):
    give(fed, "0-0", "7-1", "0:0", "0")
    assert fed.seal(2)[0] == b"ok"
    before = fed.dump()
    assert give(fed, "7-1", "8-0", "1:0") == [b"closed"]
    assert fed.dump() == before


def test_what_is_being_cancelled_gets_nothing(fed: Lane):
    _, tokens, _ = give(fed, "0-0", "7-1", "0:0", "0:1")
    fed.take(toks(tokens)[0])
    fed.request("cancel", reason="why")
    before = fed.dump()
    assert give(fed, "7-1", "8-0", "1:0")[0] == b"cancelling"
    assert fed.dump() == before


def test_what_has_ended_gets_nothing(fed: Lane):
    fed.request("cancel", reason="why")
    before = fed.dump()
    assert give(fed, "0-0", "8-0", "0:0")[0] == b"ended"
    assert fed.dump() == before


def test_what_does_not_exist_is_gone(lane: Lane):
    assert give(lane, "0-0", "8-0", "0:0") == [b"gone"]
    assert not lane.client.exists(keys.of_flow("r1"), keys.fed("r1"))


def test_another_life_of_the_id_gets_what_the_former_one_had(lane: Lane):
    lane.start(0, limit=2, open_ms=HOUR)
    give(lane, "0-0", "7-1", "0:0", "1:0", "0", "1")
    lane.request("cancel", reason="why")
    lane.client.delete(*lane.names)
    lane.start(0, limit=2, open_ms=HOUR)
    give(lane, "0-0", "7-1", "1:0", "1")
    assert waiting_bodies(lane.client, "r1") == [b"b1:0"]
    assert lane.hash()["passed"] == "1"
    assert origins(lane, 0, 1) == [4, 0]


@for_each("key", [keys.fed("r1"), keys.of_flow("r1")])
def test_a_key_of_another_kind_is_an_error_and_nothing_is_written(fed: Lane, key: bytes):
    give(fed, "0-0", "1-0", "0:0", "0")
    fed.client.delete(key)
    fed.client.lpush(key, "x")
    before = fed.dump()
    with pytest.raises(FairlaneError, match="WRONGTYPE"):
        give(fed, "1-0", "2-0", "1:0", "1")
    assert fed.dump() == before
    fed.client.delete(key)


@pytest.mark.parametrize(
    "changed",
    [
        *({"since": ""}, {"since": "0"}, {"upto": "1-"}, {"upto": "1-0,2-0"}, {"open_ms": ""}),
        *({"width": ""}, {"width": 0}, {"width": 101}, {"choices": ["0:0"]}),
        *({"choices": [name, "a"]} for name in ("", "x", "-1", "0:", ":0", "0:2", "0:x", "0:0:0")),
        *({"choices": ["1431655766", ""]}, {"choices": ["0", ""] * 1001}),
    ],
)
def test_malformed_arguments_are_refused(fed: Lane, changed: dict[str, Any]):
    before = fed.dump()
    given: dict[str, Any] = {"since": "0-0", "upto": "1-0"} | changed
    with fed.refuses("BADARGUMENT"):
        give(fed, given.pop("since"), given.pop("upto"), "0:0", **given)
    assert fed.dump() == before
