"""The columns of what a queue holds, and how endings and dead sub-requests become columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from fairlane.model import outcome_of
from fairlane.operations.request_state import completion

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from fairlane.operations.completion import Entries
    from fairlane.records import Completion, DeadSubRequest

TEXT, BYTES, INT, LONG = pa.string(), pa.binary(), pa.int32(), pa.int64()
DOUBLE, FLAG, MOMENT = pa.float64(), pa.bool_(), pa.timestamp("us", tz="UTC")
_COUNTS = (("total", LONG), ("done", LONG), ("dead", LONG), ("cancelled", LONG))
COLUMNS: Mapping[str, tuple[tuple[str, pa.DataType], ...]] = {
    "results": (
        *(("index", LONG), ("status", TEXT), ("result", BYTES), ("attempt", INT)),
        *(("worker", TEXT), ("waited_ms", LONG), ("ran_ms", DOUBLE)),
        # The others are computed: see results.py.
        *(("total_ms", DOUBLE), ("error", TEXT), ("started", MOMENT), ("settled", MOMENT)),
    ),
    "requests": (
        *(("id", TEXT), ("state", TEXT), ("outcome", TEXT), ("priority", INT), ("limit", INT)),
        *_COUNTS,
        *(("held", INT), ("is_open", FLAG), ("submitted", MOMENT), ("ended", MOMENT)),
        ("reason", TEXT),
    ),
    "dead": (
        *(("request", TEXT), ("index", LONG), ("reason", TEXT), ("error", TEXT)),
        *(("fingerprint", TEXT), ("attempt", INT), ("worker", TEXT), ("body", BYTES)),
        ("died", MOMENT),
    ),
    "workers": (
        *(("worker", TEXT), ("host", TEXT), ("pid", INT), ("started", MOMENT)),
        *(("renewed", MOMENT), ("holds", TEXT)),
    ),
    "completions": (
        *(("log_id", TEXT), ("id", TEXT), ("state", TEXT), ("outcome", TEXT), ("priority", INT)),
        *_COUNTS,
        *(("submitted", MOMENT), ("ended", MOMENT), ("reason", TEXT), ("logged", MOMENT)),
        ("reopened", INT),
    ),
}


def batch_of(columns: Mapping[str, Any], schema: pa.Schema) -> pa.RecordBatch:
    """Returns the columns that `schema` names, in any case of letters, of arrays or lists."""
    arrays = []
    for field in schema:
        values = columns[field.name.lower()]
        if not isinstance(values, pa.Array):
            values = pa.array(values, type=field.type)
        arrays.append(values if values.type == field.type else values.cast(field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def columns_of(view: str, rows: Iterable[Sequence[Any]]) -> dict[str, list[Any]]:
    """Returns rows as columns, in the order of the view's."""
    names = [name for name, _ in COLUMNS[view]]
    turned = list(zip(*rows, strict=True))
    return {name: list(turned[at]) if turned else [] for at, name in enumerate(names)}


def completion_row(ending: Completion) -> tuple[Any, ...]:
    """Returns one row of the view `completions`."""
    logged_ms = int(ending.log_id.partition("-")[0])
    return (
        *(ending.log_id, ending.id, ending.state, ending.outcome, ending.priority),
        *(ending.total, ending.done, ending.dead, ending.cancelled),
        *(
            moment(ending.submitted_ms),
            moment(ending.ended_ms),
            ending.reason,
            moment(logged_ms),
            ending.reopened,
        ),
    )


_LOGGED = (
    *(b"id", b"state", b"priority", b"total", b"done", b"dead", b"cancelled"),
    *(b"born", b"ended", b"reason"),
)


def ending_columns(entries: Entries) -> dict[str, Any]:
    """Returns entries of the completion log as columns of the view `completions`."""
    named = [name for _, fields in entries for name in fields[::2]]
    if named == [*_LOGGED] * len(entries):
        try:
            return _usual_endings(entries)
        except pa.ArrowInvalid:
            pass  # a text that is no UTF-8, or no number
    rows = (completion_row(completion("", log_id, fields)) for log_id, fields in entries)
    return columns_of("completions", rows)


def _usual_endings(entries: Entries) -> dict[str, Any]:
    """Returns the columns of entries that have all fields in their order. Raises ArrowInvalid."""
    ids = pa.array([log_id for log_id, _ in entries], pa.binary()).cast(pa.string())
    texts = {
        name.decode(): pa.array([fields[at] for _, fields in entries], pa.binary()).cast(
            pa.string()
        )
        for at, name in zip(range(1, 2 * len(_LOGGED), 2), _LOGGED, strict=True)
    }
    numbers = ("priority", "total", "done", "dead", "cancelled", "born", "ended")
    found = {name: texts[name].cast(pa.int64()) for name in numbers}
    logged = pc.list_element(pc.split_pattern(ids, "-"), 0).cast(pa.int64())
    ways = zip(
        *(one.to_pylist() for one in (texts["state"], found["done"], found["dead"])), strict=True
    )
    return {
        **{name: texts[name] for name in ("id", "state")},
        "outcome": pa.array([outcome_of(*way) for way in ways], TEXT),
        "reason": pc.if_else(pc.equal(texts["reason"], ""), None, texts["reason"]),
        **{name: found[name] for name in numbers[:5]},
        "log_id": ids,
        "submitted": _moments(found["born"]),
        "ended": _moments(found["ended"]),
        "logged": _moments(logged),
        "reopened": [0] * len(entries),  # else an entry has more fields
    }


def _moments(ms: Any) -> Any:
    """Returns milliseconds as timestamps; null for 0, which is no moment."""
    micros = pc.if_else(pc.equal(ms, 0), pa.scalar(None, pa.int64()), pc.multiply(ms, 1000))
    return micros.cast(pa.timestamp("us", tz="UTC"))


def dead_row(request_id: str, dead: DeadSubRequest) -> tuple[Any, ...]:
    """Returns one row of the view `dead`."""
    return (
        *(request_id, dead.index, dead.reason, dead.error, dead.fingerprint),
        *(dead.attempt, dead.worker, dead.body, moment(dead.died_ms)),
    )


def moment(ms: int | None) -> int | None:
    """Returns milliseconds as a timestamp's microseconds; None for 0, which is no moment."""
    return ms * 1000 if ms else None
