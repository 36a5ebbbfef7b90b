"""Checks conditions that Spark pushes down, so that fewer rows travel."""

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
from pyspark.sql.types import IntegerType, LongType, StringType, TimestampType

from fairlane.operations.completion import place
from fairlane.spark.operations.stream_ranges import StreamRange
from fairlane.spark.source.columns import COLUMNS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql.datasource import Filter

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
    kinds = dict(COLUMNS[view])
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
