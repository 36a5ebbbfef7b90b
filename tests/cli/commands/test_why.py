"""Tests `fairlane why`: what holds up one request, in sentences and as JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from fairlane.queue import Queue
from tests.cli.program import settle
from tests.support.processes.beats import beat

if TYPE_CHECKING:
    from tests.cli.program import Program

NO_WORKER = (
    "no worker takes from queue req: start one with rq-worker --app module:app, or --handler "
    "module:function"
)


def served(redis_url: str) -> None:
    """Registers a worker of four idle units."""
    with Queue.from_url(redis_url) as queue:
        beat(queue, "w:9", "0 leases; 4 units 20.000/s")


def test_the_causes_stand_below_each_other(program: Program):
    program("submit", "-", "--id", "mine", "--priority", 3, stdin=b"a\nb\n")
    program("pause", "mine")
    ended = program("why", "mine")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.decode().splitlines() == [
        "request   mine, in queue req with priority 3",
        "state     paused: 0 done, 0 dead of 2",
        "waits     paused: fairlane resume mine",
        f"          {NO_WORKER}",
        "estimate  none: a paused request has no time to start",
    ]


def test_the_place_and_the_estimate_have_figures(program: Program, redis_url: str):
    program("submit", "-", "--id", "urgent", "--priority", 0, "--limit", 4, stdin=b"a\n" * 100)
    program("submit", "-", "--id", "mine", "--limit", 4, stdin=b"a\n" * 20)
    served(redis_url)  # last, because a beat is late after four seconds
    *_, waits, place, starts, ends, measured = program("why", "mine").out.decode().splitlines()
    assert waits == "waits     4 tokens of 1 request are ahead of it: 4 in lane 0"
    assert place == "place     5 in line"
    assert starts.startswith("starts    about ")
    assert starts.endswith(" UTC (in 5 s)")
    assert ends.endswith(" UTC (in 6 s), if nothing more urgent comes")
    assert measured == "measured  20 sub-requests a second by 4 units"


def test_json_has_all_figures(program: Program, redis_url: str):
    program("submit", "-", "--id", "urgent", "--priority", 0, "--limit", 4, stdin=b"a\n" * 100)
    program("submit", "-", "--id", "mine", "--limit", 4, stdin=b"a\n" * 20)
    served(redis_url)  # last, because a beat is late after four seconds
    found = json.loads(program("why", "mine", "--json").out)
    assert [found["request"][name] for name in ("id", "state", "total")] == ["mine", "active", 20]
    (cause,) = found["causes"]
    assert (cause["kind"], cause["until_ms"]) == ("lanes", None)
    assert (cause["figures"]["lanes"], cause["figures"]["requests"]) == ({"0": 4}, 1)
    assert (found["lane_place"]["place"], found["lane_place"]["is_exact"]) == (5, True)
    assert found["workers"] == {}
    assert found["estimate"]["starts_ms"] == found["now_ms"] + 5_000
    assert (found["estimate"]["per_s"], found["estimate"]["why_not"]) == (20.0, None)


def test_an_ended_request_and_an_unknown_one(program: Program, redis_url: str):
    program("submit", "-", "--id", "mine", stdin=b"a\n")
    settle(redis_url, lambda _, body: body)
    ended = program("why", "mine")
    assert ended.code == 0
    assert ended.out.decode().splitlines() == [
        "request   mine, in queue req with priority 5",
        "state     done: 1 done, 0 dead of 1",
    ]
    program("why", "absent").refused(3, "there is no request absent")
    program("why", "a{b").refused(2, "request id 'a{b' is not valid")
