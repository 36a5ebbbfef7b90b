"""Imports parts of the other sample, `samples/corpus`. Only the driver's program needs them."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "corpus"))

from around import cancelled_unless_ended, end_as_by_ctrl_c, near
from workers import Workers

__all__ = [
    "Workers",
    "cancelled_unless_ended",
    "end_as_by_ctrl_c",
    "near",
]
