"""Handlers that work on a whole slice at once: as an Arrow table, a pandas frame or rows.

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
    """A handler of Arrow tables, as a worker takes it.

    `function` gets a pyarrow Table and returns one with as many rows in the same order: column
    `result` (binary or text; numbers become text; null = no result), and if it likes `error`: a
    text there means that this row failed and is tried again. An array is a column `result` alone.
    What it raises fails the slice, whose sub-requests then come back one by one.
    """
    return _Arrow(function)


def pandas_handler(function: Callable[[Any], Any]) -> Vectorised:
    """The same for pandas: a DataFrame in, a DataFrame or the Series `result` out."""
    return _Pandas(function)


def row_handler(function: Callable[[dict[str, Any]], Any]) -> Vectorised:
    """The same row by row: a dict in, the result out; what it raises fails this row alone."""
    return _Rows(function)


def adapted(handler: Callable[..., Any], given: str) -> Callable[..., Any]:
    """A handler for the Worker, of one that takes what `given` says, one of INPUTS.

    Raises InvalidArgument.
    """
    kinds: dict[str, Callable[..., Vectorised]]
    kinds = {"table": _Arrow, "pandas": _Pandas, "rows": _Rows}
    if given not in INPUTS:
        raise InvalidArgument(f"input {given!r} is not valid: {', '.join(INPUTS)} are known")
    if given == "bytes" or isinstance(handler, Vectorised):
        return handler
    return kinds[given](handler)


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
        """The results of one slice, one for each body."""
        return self.results(_table(bodies, context))

    @abc.abstractmethod
    def results(self, table: pa.Table) -> list[Any]:
        """What the function makes of one table, as the worker wants it."""


class _Arrow(Vectorised):
    def results(self, table: pa.Table) -> list[Any]:
        found = self.function(table)
        if isinstance(found, (pa.Array, pa.ChunkedArray)):
            return _values(found)
        if not isinstance(found, (pa.Table, pa.RecordBatch)):
            raise TypeError(f"the handler returned {type_of(found)}: {_EXPECTED}")
        if "result" not in found.schema.names:
            raise TypeError(f"the handler returned {_columns(found.schema.names)}: {_EXPECTED}")
        results = _values(found.column("result"))
        if "error" in found.schema.names:
            _mark(results, found.column("error").to_pylist())
        return results


class _Pandas(Vectorised):
    def results(self, table: pa.Table) -> list[Any]:
        found = self.function(table.to_pandas())
        columns = getattr(found, "columns", None)
        if columns is None:
            if not hasattr(found, "tolist"):
                raise TypeError(f"the handler returned {type_of(found)}: {_EXPECTED}")
            return [_plain(value) for value in found.tolist()]
        if "result" not in columns:
            raise TypeError(f"the handler returned {_columns(map(str, columns))}: {_EXPECTED}")
        results = [_plain(value) for value in found["result"].tolist()]
        if "error" in columns:
            _mark(results, [_plain(value) for value in found["error"].tolist()])
        return results


class _Rows(Vectorised):
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
    """A column as bytes, text and None. Raises TypeError for what is no text."""
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
    """Bytes, text and exceptions as they are, None for NaN, NA and nothing, the rest as text."""
    if value is None or isinstance(value, (bytes, bytearray, memoryview, str, BaseException)):
        return value
    return None if _is_nothing(value) else str(value)


def _is_nothing(value: Any) -> bool:
    """True for NaN, NaT, and for the NA of pandas' nullable types."""
    pandas = sys.modules.get("pandas")
    if pandas is not None and value is pandas.NA:
        return True
    try:
        return bool(value != value)  # noqa: PLR0124  as only NaN and NaT are
    except ValueError:  # an array is many values
        return False


def _mark(results: list[Any], errors: list[Any]) -> None:
    """A row with an error's text has failed."""
    for at, error in enumerate(errors[: len(results)]):
        if error is not None:
            results[at] = Retry(reason=str(error))


def _columns(names: Any) -> str:
    return f"the columns {', '.join(names) or '(none)'}"
