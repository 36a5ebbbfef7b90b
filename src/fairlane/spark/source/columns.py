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
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from fairlane.arrow import columns
from fairlane.arrow.columns import moment
from fairlane.arrow.stream_ranges import StreamRange
from fairlane.errors import InvalidArgument
from fairlane.operations.completion import place

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pyspark.sql.datasource import Filter
    from pyspark.sql.types import DataType

    from fairlane.arrow.stream_ranges import Ended
    from fairlane.records import Completion, Progress


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


TEXT, BYTES = StringType(), BinaryType()
# ------------------------------------------------------------------ columns
# The columns of the views, and how rows become record batches of them.


COLUMNS: Mapping[str, tuple[tuple[str, DataType], ...]] = {
    view: tuple((name, from_arrow_type(kind)) for name, kind in fields)
    for view, fields in columns.COLUMNS.items()
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


def ended_row(ending: Completion, record: Ended | None) -> tuple[Any, ...]:
    """Returns one row of the view `requests`, of a request that has ended."""
    return (
        *(ending.id, ending.state, ending.outcome, ending.priority),
        record.limit if record else None,
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
        *(progress.id, progress.state, progress.outcome, progress.priority, progress.limit),
        *(progress.total, progress.done, progress.dead, progress.cancelled),
        *(
            progress.held,
            progress.is_open,
            moment(progress.submitted_ms),
            moment(progress.ended_ms),
            progress.reason,
        ),
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


def _number(fields: Mapping[str, str], name: str) -> int | None:
    try:
        return int(fields[name])
    except (KeyError, ValueError):
        return None
