"""Moves this process's wall clock by FAIRLANE_CHAOS_SHIFT seconds, if it is on PYTHONPATH."""

from __future__ import annotations

import os
import time

_SHIFT = int(os.environ.get("FAIRLANE_CHAOS_SHIFT", "0"))
_time, _time_ns = time.time, time.time_ns

time.time = lambda: _time() + _SHIFT
time.time_ns = lambda: _time_ns() + _SHIFT * 1_000_000_000
