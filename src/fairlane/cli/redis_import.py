"""Imports redis-py for a short command, without OpenTelemetry, which saves a quarter of its start.

redis-py imports the SDK of OpenTelemetry where it is installed, for metrics that a program must
switch on. A command that imports no code of its user cannot switch them on.
"""

from __future__ import annotations

import os
import sys

HIDDEN = "opentelemetry"


def import_redis() -> None:
    """Imports redis-py; hides OpenTelemetry from redis-py, unless this process uses it."""
    is_named = any(name.startswith("OTEL_") for name in os.environ)  # then spans are sent
    if is_named or HIDDEN in sys.modules or "redis" in sys.modules:
        return
    sys.modules[HIDDEN] = None  # type: ignore[assignment]  # each import of it raises ImportError
    try:
        import redis  # noqa: F401
    finally:
        del sys.modules[HIDDEN]
