"""Packs rows as bodies: columns of Arrow as they are, with no step per row where possible."""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import is_variant
from pyspark.sql.types import VariantVal

from fairlane import settings
from fairlane.errors import InvalidArgument
from fairlane.protocol import keys
from fairlane.spark.commit import joined
from fairlane.spark.sink.plan import check_terms

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fairlane.spark.sink.plan import WritePlan

_KEY_MOST = 1024  # bytes of a row's key
_END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"  # of an Arrow IPC stream: no further message


class Columns:
    """Holds binary values as Arrow does: their lengths, their offsets and all their bytes."""

    def __init__(self, array: Any) -> None:
        wide = pa.types.is_large_binary(array.type)
        _, offsets, data = array.buffers()
        self.count = len(array)
        self.offsets: Any = b""
        self.lengths, self.data = b"", memoryview(b"")
        if self.count == 0:
            return
        numbers = memoryview(offsets).cast("B").cast("q" if wide else "i")
        self.offsets = numbers[array.offset : array.offset + self.count + 1]
        lengths = pc.binary_length(array).cast(pa.int32())
        self.lengths = bytes(memoryview(lengths.buffers()[1]).cast("B")[: 4 * self.count])
        if data is not None:
            self.data = memoryview(data).cast("B")

    def size(self, start: int, end: int) -> int:
        """Returns the bytes of the values from `start` to before `end`."""
        size: int = self.offsets[end] - self.offsets[start]
        return size

    def part(self, start: int, end: int) -> tuple[Any, Any]:
        """Returns the lengths and the bytes of the values from `start` to before `end`."""
        return self.lengths[4 * start : 4 * end], self.data[self.offsets[start] : self.offsets[end]]

    def cuts(self, start: int, end: int, most: int) -> Iterator[tuple[int, int]]:
        """Yields cuts of at most `most` values and a chunk's bytes."""
        while start < end:
            stop = min(end, start + most)
            if self.size(start, stop) > settings.CHUNK_BYTES:
                top = self.offsets[start] + settings.CHUNK_BYTES
                stop = max(start + 1, bisect_right(self.offsets, top, start, stop) - 1)
            yield start, stop
            start = stop


class RowGroup(NamedTuple):
    """Rows `start` to before `end` of these columns, all of one request."""

    request: str
    bodies: Columns
    keys: Columns | None
    start: int
    end: int
    terms: tuple[Any, ...]  # of the columns of the plan's terms


class RowBatch(NamedTuple):
    """Sub-requests on their way to one request: at most a chunk."""

    rows: int
    packed: bytes
    keys: bytes  # packed, too; b"" without keys


def pieces(group: RowGroup, most: int) -> Iterator[RowBatch]:
    """Yields the rows of a group in chunks of at most `most`."""
    for start, end in group.bodies.cuts(group.start, group.end, most):
        own = b"" if group.keys is None else joined(end - start, *group.keys.part(start, end))
        yield RowBatch(end - start, joined(end - start, *group.bodies.part(start, end)), own)


class Reader:
    """Reads the batches of one partition; its errors name the row, counted from 0."""

    def __init__(self, plan: WritePlan, partition: int) -> None:
        self.plan, self.partition = plan, partition
        self.rows = 0

    def groups(self, batch: Any) -> Iterator[RowGroup]:
        """Yields the rows of a batch by request, in the order that they have."""
        plan = self.plan
        if batch.num_rows == 0:
            return
        bodies = self._bodies(batch)
        own = self._text(batch, plan.key_column, _KEY_MOST) if plan.key_column else None
        terms = [self._known(batch, name) for _, name in plan.terms]
        if plan.request:
            bounds = [(plan.request, 0, batch.num_rows)]
        else:
            order, bounds = self._by_request(batch)
            bodies = bodies.take(order)
            own = None if own is None else own.take(order)
            terms = [values.take(order) for values in terms]
        packed = Columns(bodies), None if own is None else Columns(own)
        for request, start, end in bounds:
            edges = [pc.min_max(values[start:end]).as_py() for values in terms]
            given = tuple(edge["min"] for edge in edges)
            check_terms(plan, request, given, [edge["max"] for edge in edges])
            if given:
                plan.policy_of(request, given)
            yield RowGroup(request, *packed, start, end, given)
        self.rows += batch.num_rows

    def _bodies(self, batch: Any) -> Any:
        plan = self.plan
        if plan.body_format:
            make = rows_as_json if plan.body_format == "json" else rows_as_arrow
            return self._checked(pa.array(make(batch), pa.large_binary()), "row", settings.MAX_BODY)
        column = batch.column(plan.columns.index(plan.body_column))
        return self._checked(_binary(column), plan.body_column, settings.MAX_BODY)

    def _text(self, batch: Any, name: str, most: int) -> Any:
        return self._checked(_binary(batch.column(self.plan.columns.index(name))), name, most)

    def _known(self, batch: Any, name: str) -> Any:
        column = batch.column(self.plan.columns.index(name))
        self._no_null(column, name)
        return column

    def _by_request(self, batch: Any) -> tuple[Any, list[tuple[str, int, int]]]:
        """Returns the rows' order by request, and where the rows of each request begin and end."""
        name = self.plan.request_column
        column = batch.column(self.plan.columns.index(name))
        self._no_null(column, name)
        coded = column.dictionary_encode()
        names = [_word(value) for value in coded.dictionary.to_pylist()]
        for code, request in enumerate(names):
            try:
                keys.check_name(f'request id (column "{name}")', request)
            except InvalidArgument as error:
                at = pc.index(coded.indices, pa.scalar(code, coded.indices.type)).as_py()
                raise InvalidArgument(f"{self._row(at)}: {error}") from None
        order = pc.sort_indices(coded.indices)
        counts = {
            pair["values"]: pair["counts"] for pair in pc.value_counts(coded.indices).to_pylist()
        }
        bounds, start = [], 0
        for code in sorted(counts):
            bounds.append((names[code], start, start + counts[code]))
            start += counts[code]
        return order, bounds

    def _checked(self, array: Any, name: str, most: int) -> Any:
        self._no_null(array, name)
        lengths = pc.binary_length(array)
        if len(array) and pc.max(lengths).as_py() > most:
            at = pc.index(pc.greater(lengths, most), pa.scalar(True)).as_py()
            raise InvalidArgument(
                f"{self._place(at, name)} has {lengths[at].as_py():,} bytes: the most is {most:,}"
            )
        return array

    def _no_null(self, array: Any, name: str) -> None:
        if array.null_count:
            at = pc.index(pc.is_null(array), pa.scalar(True)).as_py()
            raise InvalidArgument(
                f"{self._place(at, name)} is null: give every row a value, or filter those out"
            )

    def _place(self, at: int, name: str) -> str:
        return f'{self._row(at)}: "{name}"'

    def _row(self, at: int) -> str:
        return f"row {self.rows + at} of partition {self.partition}"


def _binary(column: Any) -> Any:
    """Returns the column as binary, without a copy if it is text."""
    kind = column.type
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return column
    if pa.types.is_integer(kind):
        column = column.cast(pa.string())
    large = pa.types.is_large_string(column.type)
    return column.cast(pa.large_binary() if large else pa.binary())


def _word(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


# ------------------------------------------------------------------ whole rows


def rows_as_json(batch: Any) -> Iterator[bytes]:
    """Yields each row as one object of JSON, in the order of its columns; a null value is null."""
    encoder = json.JSONEncoder(
        ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_as_json
    )
    variants = [field for field in batch.schema if _holds_variant(field.type)]
    for row in batch.to_pylist(maps_as_pydicts="lossy"):
        for field in variants:
            row[field.name] = _opened(row[field.name], field.type)
        try:
            yield encoder.encode(row).encode()
        except (TypeError, ValueError):  # a number or a key that JSON cannot hold
            yield encoder.encode(_plain(row)).encode()


def _holds_variant(kind: Any) -> bool:
    """Returns True for a type that is a Variant of Spark, or has one inside."""
    if pa.types.is_struct(kind):
        return is_variant(kind) or any(_holds_variant(field.type) for field in kind)
    if pa.types.is_map(kind):
        return _holds_variant(kind.item_type)
    return pa.types.is_nested(kind) and any(
        _holds_variant(kind.field(at).type) for at in range(kind.num_fields)
    )


def _opened(value: Any, kind: Any) -> Any:
    """Returns the value with what each Variant in it stands for, in place of its encoding."""
    if value is None or not _holds_variant(kind):
        return value
    if pa.types.is_map(kind):
        return {key: _opened(part, kind.item_type) for key, part in value.items()}
    if not pa.types.is_struct(kind):
        return [_opened(part, kind.value_type) for part in value]
    if is_variant(kind):
        return _as_numbers(VariantVal(value["value"], value["metadata"]).toPython())
    return {field.name: _opened(value[field.name], field.type) for field in kind}


def _as_numbers(value: Any) -> Any:
    """Returns a Variant's value with its decimals as numbers, as its own JSON has them.

    A decimal that a double cannot hold stays one: `_as_json` makes a text of it.
    """
    if isinstance(value, Decimal):
        number = float(value)
        return number if Decimal(repr(number)) == value else value
    if isinstance(value, dict):
        return {key: _as_numbers(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_as_numbers(part) for part in value]
    return value


def _as_json(value: Any) -> Any:
    """Returns times in ISO 8601, decimals as text, bytes in base64."""
    if isinstance(value, (datetime, date, time)):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, bytes):
        from base64 import b64encode

        return b64encode(value).decode()
    raise TypeError(f"{type(value).__name__} has no place in JSON")


def _plain(value: Any) -> Any:
    """Returns the value with NaN and infinities as text, as Spark writes them, and text keys."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {_key(key): _plain(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_plain(part) for part in value]
    return value


def _key(key: Any) -> Any:
    """Returns a key of a map as JSON has it: text, as a value of its type."""
    plain = _plain(key)
    return plain if isinstance(plain, (str, int, float)) else str(_as_json(plain))


def rows_as_arrow(batch: Any) -> Iterator[bytes]:
    """Yields each row as an Arrow IPC stream of one batch with one row.

    `take` copies a row. A slice of a row without elements has the elements of all other rows.
    """
    schema = batch.schema.serialize().to_pybytes()
    for at in range(batch.num_rows):
        row = batch.take(pa.array([at]))
        yield b"".join((schema, row.serialize(), _END_OF_STREAM))
