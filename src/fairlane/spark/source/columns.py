"""The columns of the views, their record batches, and the conditions that Spark pushes down."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from fairlane.errors import InvalidArgument
from fairlane.operations.completion import place
from fairlane.operations.request_state import completion
from fairlane.spark.stream_ranges import StreamRange

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pyspark.sql.datasource import Filter
    from pyspark.sql.types import DataType

    from fairlane.operations.completion import Entries
    from fairlane.records import Completion, DeadSubRequest, Progress
    from fairlane.spark.stream_ranges import Ended


# ------------------------------------------------------------------ filters
# Checks conditions that Spark pushes down, so that fewer rows travel.


_COMPARE = {
    EqualTo: "equal",
    GreaterThan: "greater",
    GreaterThanOrEqual: "greater_equal",
    LessThan: "less",
    LessThanOrEqual: "less_equal",
}
# The column that is the moment of the stream's entry: it bounds which entries are read at all.
_OF_ENTRY = {"results": "settled", "completions": "logged", "requests": "", "dead": "died"}
_MAX_SEQ = 2**64 - 1


class Condition(NamedTuple):
    """A condition that must hold: a column, how it is compared, and with what."""

    column: str
    compare: str
    value: Any


def accept(view: str, filters: Iterable[Filter], accepted: list[Condition]) -> Iterator[Filter]:
    """Adds the conditions that are checked here to `accepted`; yields Spark's part."""
    kinds = dict(COLUMNS[view])  # the others are of no entry, so Spark checks them
    for pushed in filters:
        condition = _condition(pushed, kinds)
        if condition is None:
            yield pushed
        else:
            accepted.append(condition)


def _condition(pushed: Any, kinds: dict[str, Any]) -> Condition | None:
    column = pushed.attribute[0].lower() if len(getattr(pushed, "attribute", ())) == 1 else ""
    if column not in kinds:
        return None
    kind = kinds[column]
    if isinstance(pushed, In):
        fits = all(_fits(kind, value) for value in pushed.value)
        return Condition(column, "in", tuple(pushed.value)) if fits else None
    if isinstance(pushed, IsNotNull):
        return Condition(column, "known", None)
    compare = _COMPARE.get(type(pushed))
    return (
        Condition(column, compare, pushed.value) if compare and _fits(kind, pushed.value) else None
    )


def _fits(kind: Any, value: Any) -> bool:
    """Returns True for a value whose order is the same here as in Spark."""
    if isinstance(kind, IntegerType | LongType):
        return isinstance(value, int) and not isinstance(value, bool)
    if isinstance(kind, StringType):
        return isinstance(value, str)
    return (
        isinstance(kind, TimestampType) and isinstance(value, datetime) and value.tzinfo is not None
    )


def keep(batch: pa.RecordBatch, conditions: Iterable[Condition]) -> pa.RecordBatch:
    """Returns the rows that meet all conditions; an unknown value meets none."""
    for condition in conditions:
        batch = batch.filter(met(batch.column(condition.column), condition))
    return batch


def met(values: pa.Array, condition: Condition) -> pa.Array:
    """Returns for each value whether it meets a condition; null if it is unknown."""
    if condition.compare == "known":
        return values.is_valid()
    kind = _type_of(condition, values)
    if condition.compare == "in":
        return pc.is_in(values, value_set=pa.array(condition.value, type=kind))
    return getattr(pc, condition.compare)(values, pa.scalar(condition.value, kind))


def _type_of(condition: Condition, values: Any) -> Any:
    # A number of Spark's may be longer than the column.
    return (
        pa.int64()
        if pa.types.is_integer(values.type) and condition.compare != "in"
        else values.type
    )


def narrow(view: str, piece: StreamRange, conditions: Iterable[Condition]) -> StreamRange | None:
    """Returns the part of a stream's piece where entries can meet the conditions; or None."""
    first, last = piece
    for condition in conditions:
        if condition.column != _OF_ENTRY.get(view) or condition.compare == "known":
            continue
        moments = condition.value if condition.compare == "in" else (condition.value,)
        if not moments:
            return None
        # Ids have whole milliseconds; `keep` drops the rows that are too many.
        low = f"{_ms(min(moments))}-0"
        high = f"{_ms(max(moments))}-{_MAX_SEQ}"
        if condition.compare in {"equal", "in", "greater", "greater_equal"}:
            first = max(first, low, key=place)
        if condition.compare in {"equal", "in", "less", "less_equal"}:
            last = min(last, high, key=place)
    return StreamRange(first, last) if place(first) <= place(last) else None


def _ms(moment: datetime) -> int:
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return max(0, since.days * 86_400_000 + since.seconds * 1000 + since.microseconds // 1000)


TEXT, BYTES, INT, LONG = StringType(), BinaryType(), IntegerType(), LongType()
DOUBLE, FLAG, MOMENT = DoubleType(), BooleanType(), TimestampType()
# ------------------------------------------------------------------ columns
# The columns of the views, and how rows become record batches of them.


_COUNTS = (("total", LONG), ("done", LONG), ("dead", LONG), ("cancelled", LONG))
COLUMNS: Mapping[str, tuple[tuple[str, DataType], ...]] = {
    "results": (
        *(("index", LONG), ("status", TEXT), ("result", BYTES), ("attempt", INT)),
        *(("worker", TEXT), ("waited_ms", LONG), ("ran_ms", DOUBLE)),
        # The others are computed: see views.py.
        *(("total_ms", DOUBLE), ("error", TEXT), ("started", MOMENT), ("settled", MOMENT)),
    ),
    "requests": (
        *(("id", TEXT), ("state", TEXT), ("priority", INT), ("limit", INT), *_COUNTS),
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
        *(("log_id", TEXT), ("id", TEXT), ("state", TEXT), ("priority", INT), *_COUNTS),
        *(("submitted", MOMENT), ("ended", MOMENT), ("reason", TEXT), ("logged", MOMENT)),
    ),
}


# Columns of results beside those that an entry of `out` has. A schema must name `body`.
_OF_RESULTS = (("request", TEXT), ("key", TEXT), ("body", BYTES))


def struct_of(view: str) -> StructType:
    """Returns the columns of a view that its entries in Redis have."""
    return StructType([StructField(name, kind) for name, kind in COLUMNS[view]])


def table_of(view: str, *, whole: bool = False) -> StructType:
    """Returns the columns of a view that Spark reads; with `whole` also those to be named."""
    if view != "results":
        return struct_of(view)
    (request, key, body), (index, *others) = _OF_RESULTS, COLUMNS[view]
    rows = (request, index, key, *((body,) if whole else ()), *others)
    return StructType([StructField(name, kind) for name, kind in rows])


def check_schema(view: str, schema: StructType) -> None:
    """Raises InvalidArgument when `schema` has columns that the view has not, or other types."""
    right = {field.name: field.dataType for field in table_of(view, whole=True)}
    for field in schema.fields:
        kind = right.get(field.name.lower())
        if kind is None:
            raise InvalidArgument(
                f'the view {view} has no column "{field.name}"; there are {", ".join(right)}'
            )
        if field.dataType != kind:
            raise InvalidArgument(
                f'column "{field.name}" is {kind.simpleString()}, '
                f"not {field.dataType.simpleString()}"
            )


def arrow_of(schema: StructType) -> pa.Schema:
    """Returns the schema in Arrow, exactly as Spark expects it."""
    return to_arrow_schema(schema, timezone="UTC")


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
        *(ending.log_id, ending.id, ending.state, ending.priority),
        *(ending.total, ending.done, ending.dead, ending.cancelled),
        *(
            moment(ending.submitted_ms),
            moment(ending.ended_ms),
            ending.reason,
            moment(logged_ms),
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
    return {
        **{name: texts[name] for name in ("id", "state")},
        "reason": pc.if_else(pc.equal(texts["reason"], ""), None, texts["reason"]),
        **{name: found[name] for name in numbers[:5]},
        "log_id": ids,
        "submitted": _moments(found["born"]),
        "ended": _moments(found["ended"]),
        "logged": _moments(logged),
    }


def _moments(ms: Any) -> Any:
    """Returns milliseconds as timestamps; null for 0, which is no moment."""
    micros = pc.if_else(pc.equal(ms, 0), pa.scalar(None, pa.int64()), pc.multiply(ms, 1000))
    return micros.cast(pa.timestamp("us", tz="UTC"))


def ended_row(ending: Completion, record: Ended | None) -> tuple[Any, ...]:
    """Returns one row of the view `requests`, of a request that has ended."""
    return (
        *(ending.id, ending.state, ending.priority, record.limit if record else None),
        *(ending.total, ending.done, ending.dead, ending.cancelled),
        *(
            0,
            False,
            moment(ending.submitted_ms),
            moment(ending.ended_ms),
            ending.reason,
        ),
    )


def progress_row(progress: Progress) -> tuple[Any, ...]:
    """Returns one row of the view `requests`, of a request that is not in the completion log."""
    return (
        *(progress.id, progress.state, progress.priority, progress.limit),
        *(progress.total, progress.done, progress.dead, progress.cancelled),
        *(
            progress.held,
            progress.is_open,
            moment(progress.submitted_ms),
            moment(progress.ended_ms),
            progress.reason,
        ),
    )


def dead_row(request_id: str, dead: DeadSubRequest) -> tuple[Any, ...]:
    """Returns one row of the view `dead`."""
    return (
        *(request_id, dead.index, dead.reason, dead.error, dead.fingerprint),
        *(dead.attempt, dead.worker, dead.body, moment(dead.died_ms)),
    )


def worker_row(worker: Mapping[str, str]) -> tuple[Any, ...]:
    """Returns one row of the view `workers`."""
    return (
        *(worker["worker"], worker.get("host", "").partition(" ")[0], _number(worker, "pid")),
        *(
            moment(_number(worker, "started")),
            moment(_number(worker, "renewed")),
            worker.get("holds", ""),
        ),
    )


def moment(ms: int | None) -> int | None:
    """Returns milliseconds as a timestamp's microseconds; None for 0, which is no moment."""
    return ms * 1000 if ms else None


def _number(fields: Mapping[str, str], name: str) -> int | None:
    try:
        return int(fields[name])
    except (KeyError, ValueError):
        return None
