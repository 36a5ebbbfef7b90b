"""Conditions that Spark hands to a source, so that what does not meet them need not travel."""

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

from fairlane.operations.control.completion_log import place
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
    """One of the conditions, all of which must hold: a column, how it is compared, and to what."""

    column: str
    compare: str
    value: Any


def accept(view: str, filters: Iterable[Filter], accepted: list[Condition]) -> Iterator[Filter]:
    """Adds what we can check to `accepted`; yields what Spark must check itself."""
    kinds = dict(COLUMNS[view])
    for one in filters:
        found = _condition(one, kinds)
        if found is None:
            yield one
        else:
            accepted.append(found)


def _condition(one: Any, kinds: dict[str, Any]) -> Condition | None:
    column = one.attribute[0].lower() if len(getattr(one, "attribute", ())) == 1 else ""
    if column not in kinds:
        return None
    kind = kinds[column]
    if isinstance(one, In):
        fits = all(_fits(kind, value) for value in one.value)
        return Condition(column, "in", tuple(one.value)) if fits else None
    if isinstance(one, IsNotNull):
        return Condition(column, "known", None)
    compare = _COMPARE.get(type(one))
    return Condition(column, compare, one.value) if compare and _fits(kind, one.value) else None


def _fits(kind: Any, value: Any) -> bool:
    """Only values whose order is the same here as in Spark."""
    if isinstance(kind, IntegerType | LongType):
        return isinstance(value, int) and not isinstance(value, bool)
    if isinstance(kind, StringType):
        return isinstance(value, str)
    return (
        isinstance(kind, TimestampType) and isinstance(value, datetime) and value.tzinfo is not None
    )


def keep(batch: pa.RecordBatch, conditions: Iterable[Condition]) -> pa.RecordBatch:
    """The rows that meet all conditions; an unknown value meets none."""
    for one in conditions:
        values = batch.column(one.column)
        if one.compare == "known":
            met = values.is_valid()
        elif one.compare == "in":
            met = pc.is_in(values, value_set=pa.array(one.value, type=_type_of(one, values)))
        else:
            met = getattr(pc, one.compare)(values, pa.scalar(one.value, _type_of(one, values)))
        batch = batch.filter(met)
    return batch


def _type_of(one: Condition, values: Any) -> Any:
    # A number of Spark's may be longer than the column.
    return pa.int64() if pa.types.is_integer(values.type) and one.compare != "in" else values.type


def narrow(view: str, piece: StreamRange, conditions: Iterable[Condition]) -> StreamRange | None:
    """The part of a piece of the view's stream in which entries can meet them; None = nowhere."""
    first, last = piece
    for one in conditions:
        if one.column != _OF_ENTRY.get(view) or one.compare == "known":
            continue
        moments = one.value if one.compare == "in" else (one.value,)
        if not moments:
            return None
        # Whole milliseconds, as ids have them; what is too much is left out row by row.
        low = f"{_ms(min(moments))}-0"
        high = f"{_ms(max(moments))}-{_MAX_SEQ}"
        if one.compare in {"equal", "in", "greater", "greater_equal"}:
            first = max(first, low, key=place)
        if one.compare in {"equal", "in", "less", "less_equal"}:
            last = min(last, high, key=place)
    return StreamRange(first, last) if place(first) <= place(last) else None


def _ms(moment: datetime) -> int:
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return max(0, since.days * 86_400_000 + since.seconds * 1000 + since.microseconds // 1000)
