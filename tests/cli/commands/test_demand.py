"""Tests `fairlane demand`: a number, or JSON for an autoscaler."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.cli.program import Program


def test_it_prints_a_number(program: Program):
    assert program("demand").out == b"0\n"
    program("submit", "-", "--id", "mine", "--limit", 4, stdin=b"a\n" * 100)
    program("submit", "-", "--id", "late", "--delay", "1h", stdin=b"a\n")
    assert program("demand").out == b"4\n"
    assert program("demand", "--queue", "other").out == b"0\n"


def test_json_has_what_a_scaler_reads(program: Program):
    program("submit", "-", "--id", "mine", "--limit", 4, stdin=b"a\n" * 100)
    assert json.loads(program("demand", "--json").out) == {
        "queue": "req",
        "demand": 4,
        "held": 0,
        "requests": 1,
        "is_paused": False,
        "is_exact": True,
        "age_ms": 0,
        "wanted": 4,
    }
    program("demand", "--queue", "a{b").refused(2, "queue 'a{b' is not valid")
