"""The scale of a short run, and what must hold of its report."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from tests.chaos.scenes import Scale

if TYPE_CHECKING:
    from tests.chaos.check import Report

ON_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="children are found in /proc")
SEED = 7


def small(sub_requests: int, faults: int, seconds: float = 0.0) -> Scale:
    return Scale(sub_requests, faults, seconds, SEED, workers=3, loud=False)


def check(report: Report) -> None:
    assert report.is_good, "\n".join(report.lines())
