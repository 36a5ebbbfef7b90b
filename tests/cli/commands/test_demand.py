"""Tests `fairlane demand`: a number, or JSON for an autoscaler."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.cli.program import Program


def test_it_prints_what_waits_and_what_could_start(program: Program):
    nothing = b"waiting   0\ndemand    0 more leases could start\n"
    assert program("demand").out == nothing
    program("submit", "-", "--id", "mine", "--limit", 4, stdin=b"a\n" * 100)
    program("submit", "-", "--id", "late", "--delay", "1h", stdin=b"a\n")
    waits = b"waiting   101; nothing works on them now\ndemand    4 more leases could start\n"
    assert program("demand").out == waits
    assert program("demand", "--queue", "other").out == nothing


def test_json_has_what_a_scaler_reads(program: Program):
    program("submit", "-", "--id", "mine", "--limit", 4, stdin=b"a\n" * 100)
    assert json.loads(program("demand", "--json").out) == {
        "queue": "req",
        "backlog": {
            "waiting": 100,
            "empty_ms": None,
            "grows_per_s": 0.0,
            "came_per_s": 0.0,
            "done_per_s": 0.0,
            "lanes": {"5": 100},
            "is_exact": True,
            "is_paused": False,
        },
        "demand": 4,
        "held": 0,
        "requests": 1,
        "is_paused": False,
        "is_exact": True,
        "age_ms": 0,
        "wanted": 4,
    }
    program("demand", "--queue", "a{b").refused(2, "queue 'a{b' is not valid")
