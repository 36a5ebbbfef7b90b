"""Tests numbers for people: never with an exponent."""

from __future__ import annotations

import re
from pathlib import Path

import fairlane
from fairlane.cli.commands.stats import _shown
from fairlane.common.text import exact, figure
from tests.support.run.for_each import for_each


@for_each(
    "value, shown",
    [
        *((20_600.4, "20,600"), (1_234_567, "1,230,000"), (999.7, "1,000"), (99.96, "100")),
        *((12.34, "12.3"), (5.0, "5"), (0.0123456, "0.0123"), (0.00001, "0.00001"), (0, "0")),
    ],
)
def test_a_measured_number_has_three_digits(value: float, shown: str):
    assert figure(value) == shown


@for_each(
    "value, shown",
    [
        *((31_622_400, "31,622,400"), (86_400.5, "86,400.5"), (0.25, "0.25"), (1, "1")),
        *((0.0001, "0.0001"), (0.00001, "0.00001"), (0, "0"), (-0.0, "0")),
    ],
)
def test_an_exact_number_is_written_in_full(value: float, shown: str):
    assert exact(value) == shown


def test_a_measured_time_is_in_its_unit():
    assert [_shown(one) for one in (0.0009997, 0.9997, 999.7, 20_600)] == [
        *("1,000 us", "1,000 ms", "1,000 s", "20,600 s")
    ]


def test_no_sentence_has_a_number_with_an_exponent():
    """The formats g and e write 2.06e+04; a drawing may have them."""
    found = [
        f"{path.name}: {match[0]}"
        for path in Path(fairlane.__file__).parent.rglob("*.py")
        if path.name != "flow_svg.py"
        for match in re.finditer(
            r"\{[^{}\n]*:[-+,0-9.]*[ge]\}|%[-+0-9.]*[ge](?![a-z])", path.read_text(encoding="utf-8")
        )
    ]
    assert found == []
