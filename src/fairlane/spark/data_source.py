"""The format "fairlane": passes each request of Spark to the part that performs it."""

from __future__ import annotations

import functools
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource
from pyspark.sql.readwriter import DataFrameReader, DataFrameWriter
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamReader, DataStreamWriter
from pyspark.sql.utils import is_remote

from fairlane import settings
from fairlane.errors import FairlaneError, InvalidArgument
from fairlane.spark.spark_session import ours

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from pyspark.sql.types import StructType


COMMON = ("redis", "queue")
NO_CATALOG = (
    "a table in Spark's catalog keeps no options, so use save(), load() or CREATE TEMPORARY VIEW, "
    "and not saveAsTable, CREATE TABLE or INSERT"
)
_FLAGS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


class SparkOptions:
    """Holds options by name, in any case of letters, as Spark passes them.

    `names` are those that this use of the format takes, besides `redis` and `queue`. Raises
    InvalidArgument for any other, with the nearest valid name.
    """

    def __init__(self, spark_options: Mapping[str, str], names: Iterable[str]) -> None:
        right = {name.lower(): name for name in (*COMMON, *names)}
        self._values: dict[str, str] = {}
        # CREATE TABLE prefixes the names of options.
        if any(name.startswith("option.") for name in spark_options):
            raise InvalidArgument(f"the format fairlane makes no tables: {NO_CATALOG}")
        for name, value in spark_options.items():
            if name.lower() == "path":
                raise InvalidArgument(
                    f"the format fairlane has no path, and {str(value)!r} was given as one: call "
                    'save(), load() or start() without it, and name a request by option("request")'
                )
            if name.lower() not in right:
                raise InvalidArgument(_unknown(name, sorted(right.values())))
            self._values[right[name.lower()]] = str(value)

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def text(self, name: str, default: str = "") -> str:
        """Returns the value, or `default`."""
        return self._values.get(name, default)

    def required(self, name: str, why: str) -> str:
        """Returns the value. Raises InvalidArgument with `why` if it is missing."""
        value = self._values.get(name, "")
        if not value:
            raise InvalidArgument(f'option "{name}" is missing: {why}')
        return value

    def number(self, name: str, default: int, low: int = 0, high: int = 2**53) -> int:
        """Returns the value as an integer from `low` to `high`. Raises InvalidArgument."""
        text = self._values.get(name)
        if text is None:
            return default
        try:
            value = int(text)
        except ValueError:
            value = low - 1
        if not low <= value <= high:
            raise InvalidArgument(
                f'option "{name}" is {text!r}: a whole number from {low:,} to {high:,} is expected'
            )
        return value

    def flag(self, name: str, default: bool) -> bool:
        """Returns the value as a bool. Raises InvalidArgument."""
        text = self._values.get(name)
        if text is None:
            return default
        if text.lower() not in _FLAGS:
            raise InvalidArgument(f'option "{name}" is {text!r}: true or false is expected')
        return _FLAGS[text.lower()]

    def choice(self, name: str, choices: tuple[str, ...], default: str) -> str:
        """Returns the value, one of `choices`. Raises InvalidArgument."""
        text = self._values.get(name, default)
        if text not in choices:
            near = _nearest(text, choices)
            raise InvalidArgument(
                f'option "{name}" is {text!r}: one of {", ".join(choices)} is expected{near}'
            )
        return text

    @property
    def redis(self) -> str:
        """Returns the URL of Redis: the option, else FAIRLANE_REDIS. Raises InvalidArgument.

        The embedded server is never a default, because executors may be on other machines.
        """
        url = settings.redis_url(self._values.get("redis"))
        if not url:
            raise InvalidArgument(
                f'option "redis" is missing: name a URL, or set {settings.REDIS_VARIABLE}'
            )
        return url

    @property
    def queue(self) -> str:
        """Returns the queue's name."""
        return self._values.get("queue", settings.DEFAULT_QUEUE)


def _unknown(name: str, right: list[str]) -> str:
    near = _nearest(name, right)
    return f'option "{name}" is not known{near or "."} The options are {", ".join(right)}'


def _nearest(text: str, right: Iterable[str]) -> str:
    by_lower = {option.lower(): option for option in right}
    matches = get_close_matches(text.lower(), by_lower, 1, 0.5)
    return f": did you mean {by_lower[matches[0]]}?" if matches else ""


# ------------------------------------------------------------------ spark calls
# Wraps Spark's own `load`, `save`, `start` and `awaitTermination` for this format.
#
# Spark looks up a format written in Python in the session that is active in the calling thread. A
# thread that did not make the session has none, or has another one of several. So a write raises
# DATA_SOURCE_NOT_FOUND. Spark also passes on a FairlaneError as the text of a traceback. The
# wrappers repair both.


_CALLS: tuple[tuple[type, str], ...] = (
    (DataFrameReader, "load"),
    (DataStreamReader, "load"),
    (DataFrameWriter, "save"),
    (DataStreamWriter, "start"),
    (StreamingQuery, "awaitTermination"),
)
_MARK = "fairlane_repaired"


def repair_calls() -> None:
    """Wraps the calls, once in a process. Spark Connect has classes of its own, left as they are.

    A wrapped call makes the frame's session the active one, and afterwards the one that was active
    before. It raises the FairlaneError that a Spark error carries, in place of the Spark error.
    """
    for kind, name in _CALLS:
        method = getattr(kind, name)
        if not hasattr(method, _MARK):
            setattr(kind, name, _repaired(method))


def is_wrapped() -> bool:
    """Returns True if the calls are wrapped in this process."""
    return all(hasattr(getattr(kind, name), _MARK) for kind, name in _CALLS)


def make_active(spark: SparkSession) -> None:
    """Makes this session the active one of the calling thread."""
    spark.createDataFrame([], "fairlane int")


def _repaired(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(self: Any, *args: Any, **options: Any) -> Any:
        spark = getattr(self, "_spark", None)  # of a reader or writer; a query has none
        before = _activated(spark) if isinstance(spark, SparkSession) else None
        try:
            return method(self, *args, **options)
        except Exception as error:
            carried = ours(error)
            if carried is None or carried is error:
                raise
        finally:
            if before is not None:
                make_active(before)
        raise carried

    setattr(call, _MARK, True)
    return call


def _activated(spark: SparkSession) -> SparkSession | None:
    """Makes this session the active one; returns the other session that was active, or None."""
    active = SparkSession.getActiveSession()
    if active is not None and spark._jsparkSession.equals(active._jsparkSession):  # noqa: SLF001
        return None
    make_active(spark)
    return active


FORMAT = "fairlane"


def register(spark: SparkSession, *, wrap_calls: bool = True) -> None:
    """Adds the format "fairlane" and its functions of SQL to this session, active from then on.

    One call is enough for all threads of the program. With `wrap_calls` it wraps five methods of
    pyspark in this process, for every format: they then work in any thread, and raise Fairlane's
    own errors. Methods that are wrapped stay so. On Spark Connect a session does not belong to a
    thread, and nothing is wrapped.
    """
    if not is_remote():
        # Spark looks for the format in the active session, and refuses a second one.
        make_active(spark)
        if wrap_calls:
            repair_calls()
    spark.dataSource.register(FairlaneSource)
    from fairlane.spark.sql_functions import register_functions

    register_functions(spark)


class FairlaneSource(DataSource):
    """Writes requests, and reads results and completions; options in docs/how-to/connect/spark.md.

    Spark makes an instance wherever it plans, writes, reads or commits. It sends what the
    methods return to the executors, so nothing here holds a connection.
    """

    @classmethod
    def name(cls) -> str:
        """Returns the name of the format."""
        return FORMAT

    def schema(self) -> StructType:
        """Returns the columns to read, by `view` and `request`. Raises InvalidArgument."""
        from fairlane.spark.source.views import schema_of

        return schema_of(self.options)

    def reader(self, schema: StructType) -> Any:
        """Returns the reader of one view. Raises InvalidArgument."""
        from fairlane.spark.source.views import reader_of

        return reader_of(self.options, schema)

    def streamReader(self, schema: StructType) -> Any:  # noqa: N802  Spark's name
        """Returns the reader of the completion log, or of a request's results, as they come."""
        from fairlane.spark.source.stream import Refused, reader_of

        try:
            return reader_of(self.options, schema)
        except FairlaneError as error:
            return Refused(error)

    # The names of the next two methods' parameters are Spark's: it passes them by keyword, too.

    def writer(self, schema: StructType, overwrite: bool) -> Any:
        """Returns the writer that makes sub-requests of rows. Raises InvalidArgument."""
        from fairlane.spark.sink import writer_of

        return writer_of(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:  # noqa: N802  Spark's name
        """Returns the writer that makes sub-requests of the rows of each micro-batch."""
        from fairlane.spark.sink import stream_writer_of

        return stream_writer_of(self.options, schema, overwrite)
