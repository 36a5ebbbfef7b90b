"""Spark at both ends of a queue, and as its workers. Needs the extra `spark`.

`register(spark)` makes the format "fairlane" known: rows become sub-requests (`df.write`,
`df.writeStream`), results, requests and the completion log become rows (`spark.read`,
`spark.readStream`). `run_fleet` works off a queue on Spark's executors, `queue_udf` sends the rows
of a DataFrame through a queue and joins the results. Names are loaded at first use: importing this
package needs neither Spark nor Java.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .fleet import run_fleet, stop_fleet
    from .handlers import arrow_handler, pandas_handler, row_handler
    from .sessions import session
    from .source import FairlaneSource, register
    from .stream_errors import ours
    from .udf import queue_udf

_HOMES = {
    "FairlaneSource": ".source",
    "arrow_handler": ".handlers",
    "ours": ".stream_errors",
    "pandas_handler": ".handlers",
    "queue_udf": ".udf",
    "register": ".source",
    "row_handler": ".handlers",
    "run_fleet": ".fleet",
    "session": ".sessions",
    "stop_fleet": ".fleet",
}

__all__ = [
    "FairlaneSource",
    "arrow_handler",
    "ours",
    "pandas_handler",
    "queue_udf",
    "register",
    "row_handler",
    "run_fleet",
    "session",
    "stop_fleet",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .need import need_spark

    need_spark()
    return getattr(import_module(_HOMES[name], __name__), name)
