"""Handlers that work on a whole slice per call: as an Arrow table, a pandas frame or rows.

Each takes the columns `index` (of the sub-request in its request), `body` (binary) and `request`.
"""

from __future__ import annotations

import abc
import inspect
import sys
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from fairlane.errors import HandlerNotFound, InvalidArgument, type_of
from fairlane.worker import Retry

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairlane.worker import Context


INPUTS = ("bytes", "table", "pandas", "rows")


def arrow_handler(function: Callable[[pa.Table], Any]) -> Vectorised:
    """Returns a handler of Arrow tables, as a worker takes it.

    `function` gets a pyarrow Table and returns a table or an array with as many rows in the
    same order. The column `result` is binary or text; numbers become text, and null is no
    result. A text in the optional column `error` fails that row, which is retried. An array is
    the column `result` alone. An exception fails the slice, and its sub-requests then come back
    one by one.
    """
    return _Arrow(function)


def pandas_handler(function: Callable[[Any], Any]) -> Vectorised:
    """Returns a handler of pandas frames: DataFrame in, DataFrame or Series `result` out."""
    return _Pandas(function)


def row_handler(function: Callable[[dict[str, Any]], Any]) -> Vectorised:
    """Returns a handler of rows: a dict in, the result out; an exception fails this row alone."""
    return _SparkRows(function)


def adapted(handler: Callable[..., Any], input_kind: str) -> Callable[..., Any]:
    """Returns a handler for the Worker, of one that takes `input_kind`, one of INPUTS.

    Raises InvalidArgument.
    """
    kinds: dict[str, Callable[..., Vectorised]]
    kinds = {"table": _Arrow, "pandas": _Pandas, "rows": _SparkRows}
    if input_kind not in INPUTS:
        raise InvalidArgument(f"input {input_kind!r} is not valid: {', '.join(INPUTS)} are known")
    if input_kind == "bytes" or isinstance(handler, Vectorised):
        return handler
    return kinds[input_kind](handler)


class Vectorised(abc.ABC):
    """A batch handler around a function of tables."""

    fairlane_batch = True

    def __init__(self, function: Callable[..., Any]) -> None:
        if not callable(function):
            raise HandlerNotFound(f"handler {function!r} is not something to call")
        if inspect.iscoroutinefunction(function):
            raise HandlerNotFound(
                "an async handler works on one sub-request a call: leave input at bytes"
            )
        self.function = function
        self.fairlane_time_limit_s = getattr(function, "fairlane_time_limit_s", 0.0)

    def __call__(self, bodies: list[bytes], context: Context) -> list[Any]:
        """Returns the results of one slice, one for each body."""
        return self.results(_table(bodies, context))

    @abc.abstractmethod
    def results(self, table: pa.Table) -> list[Any]:
        """Returns the function's results for one table, as the worker takes them."""


class _Arrow(Vectorised):
    def results(self, table: pa.Table) -> list[Any]:
        returned = self.function(table)
        if isinstance(returned, (pa.Array, pa.ChunkedArray)):
            return _values(returned)
        if not isinstance(returned, (pa.Table, pa.RecordBatch)):
            raise TypeError(f"the handler returned {type_of(returned)}: {_EXPECTED}")
        if "result" not in returned.schema.names:
            raise TypeError(f"the handler returned {_columns(returned.schema.names)}: {_EXPECTED}")
        results = _values(returned.column("result"))
        if "error" in returned.schema.names:
            _mark(results, returned.column("error").to_pylist())
        return results


class _Pandas(Vectorised):
    def results(self, table: pa.Table) -> list[Any]:
        returned = self.function(table.to_pandas())
        columns = getattr(returned, "columns", None)
        if columns is None:
            if not hasattr(returned, "tolist"):
                raise TypeError(f"the handler returned {type_of(returned)}: {_EXPECTED}")
            return [_plain(value) for value in returned.tolist()]
        if "result" not in columns:
            raise TypeError(f"the handler returned {_columns(map(str, columns))}: {_EXPECTED}")
        results = [_plain(value) for value in returned["result"].tolist()]
        if "error" in columns:
            _mark(results, [_plain(value) for value in returned["error"].tolist()])
        return results


class _SparkRows(Vectorised):
    def results(self, table: pa.Table) -> list[Any]:
        return [self._one(row) for row in table.to_pylist()]

    def _one(self, row: dict[str, Any]) -> Any:
        try:
            return _plain(self.function(row))
        except Exception as error:  # noqa: BLE001  the worker settles this row by it
            return error


_EXPECTED = "a table with the column `result` is expected"


def _table(bodies: list[bytes], context: Context) -> pa.Table:
    return pa.table(
        {
            "index": pa.array(context.indexes, pa.int64()),
            "body": pa.array(bodies, pa.binary()),
            "request": pa.repeat(context.id, len(bodies)),
        }
    )


def _values(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Returns a column as bytes, text and None. Raises TypeError for other types."""
    kind = column.type
    if not (_is_bytes(kind) or _is_text(kind)):
        try:
            column = pc.cast(column, pa.string())
        except pa.ArrowNotImplementedError:
            raise TypeError(
                f"the handler's results are {kind}: binary, text or numbers are expected"
            ) from None
    values: list[Any] = column.to_pylist()
    return values


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _plain(value: Any) -> Any:
    """Returns bytes, text and exceptions unchanged, None for missing values, else text."""
    if value is None or isinstance(value, (bytes, bytearray, memoryview, str, BaseException)):
        return value
    return None if _is_nothing(value) else str(value)


def _is_nothing(value: Any) -> bool:
    """Returns True for NaN, NaT, and for the NA of pandas' nullable types."""
    pandas = sys.modules.get("pandas")
    if pandas is not None and value is pandas.NA:
        return True
    try:
        return bool(value != value)  # noqa: PLR0124  as only NaN and NaT are
    except ValueError:  # an array is many values
        return False


def _mark(results: list[Any], errors: list[Any]) -> None:
    """Replaces the result of each row that has an error's text by a Retry."""
    for at, error in enumerate(errors[: len(results)]):
        if error is not None:
            results[at] = Retry(reason=str(error))


def _columns(names: Any) -> str:
    return f"the columns {', '.join(names) or '(none)'}"
