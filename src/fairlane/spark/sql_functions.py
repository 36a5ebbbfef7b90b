"""The table functions of SQL: `fairlane_results`, `fairlane_dead` and `fairlane_submit`.

Spark plans a call with `analyze` in a process beside its driver, and runs it in one task. What
`analyze` returns travels to the task, so the options are checked when the call is planned.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions as sql
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import LongType, StringType, StructType
from pyspark.sql.udtf import AnalyzeArgument, AnalyzeResult, SelectedColumn

from fairlane.errors import InvalidArgument
from fairlane.spark.data_source import SparkOptions
from fairlane.spark.sink.plan import OPTIONS, plan_of
from fairlane.spark.sink.writers import StagedMessage, Stager, commit_staged
from fairlane.spark.source.columns import table_of
from fairlane.spark.source.views import reader_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from fairlane.spark.sink.plan import WritePlan

_BATCH = 10_000  # rows of one batch
_ADDED = StructType().add("request", StringType()).add("rows", LongType())
_NO_ROWS = (
    "fairlane_submit takes the rows first: SELECT * FROM fairlane_submit(TABLE(orders), request => "
    "'r1')"
)


def register_functions(spark: SparkSession) -> None:
    """Adds the functions to this session. A second call replaces them."""
    for name, kind in (
        ("results", ResultsFunction),
        ("dead", DeadFunction),
        ("submit", SubmitFunction),
    ):
        # Arrow is quicker for the rows that come out, and slower for a table that goes in.
        function: Any = sql.udtf(kind, useArrow=kind is not SubmitFunction)
        spark.udtf.register(f"fairlane_{name}", function)


def _in_utc(moment: datetime | None) -> datetime | None:
    """Returns a moment that Spark passes in the zone of the machine, and without its name."""
    return None if moment is None else moment.astimezone(UTC)


def _given(options: dict[str, AnalyzeArgument]) -> dict[str, str]:
    """Returns the options of a call as the format takes them. Raises InvalidArgument."""
    for name, option in options.items():
        if option.isTable or not option.isConstantExpression:
            raise InvalidArgument(f'option "{name}" depends on a row: give a constant')
    return {
        name: json.dumps(option.value)
        if isinstance(option.value, (bool, list))
        else str(option.value)
        for name, option in options.items()
        if option.value is not None
    }


@dataclass
class _Planned(AnalyzeResult):
    """Holds what travels to the task: the reader of a view, or the plan of a write."""

    what: Any = None
    kinds: Any = None  # the columns that a write reads


class _View:
    view = ""

    def __init__(self, planned: _Planned) -> None:
        self.reader = planned.what

    @classmethod
    def plan(cls, options: dict[str, AnalyzeArgument]) -> _Planned:
        schema = table_of(cls.view)
        given = _given(options) | {"view": cls.view}
        return _Planned(schema=schema, what=reader_of(given, schema))

    def eval(self, *_: Any, **__: Any) -> Iterator[tuple[Any, ...]]:
        """Yields the rows, all in this task."""
        for part in self.reader.partitions():
            for batch in self.reader.read(part):
                yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


class ResultsFunction(_View):
    """Returns the view `results` of some requests."""

    view = "results"

    @staticmethod
    def analyze(request: AnalyzeArgument, **options: AnalyzeArgument) -> _Planned:
        """Checks the options. Raises InvalidArgument."""
        return ResultsFunction.plan({"request": request, **options})


class DeadFunction(_View):
    """Returns the view `dead` of some requests, or of all."""

    view = "dead"

    @staticmethod
    def analyze(*request: AnalyzeArgument, **options: AnalyzeArgument) -> _Planned:
        """Checks the options. Raises InvalidArgument."""
        return DeadFunction.plan(dict(zip(("request",), request, strict=False)) | options)


class SubmitFunction:
    """Writes the rows of a table as the format does with `staged`; returns the requests.

    All rows come to one task, because only its end can commit. The plan has the name of the
    transaction. So a task that Spark repeats adds nothing: an ORDER BY runs the function twice.
    Spark does not call it for a table without rows; then no request is created.
    """

    def __init__(self, planned: _Planned) -> None:
        self.plan: WritePlan = planned.what
        self.schema = to_arrow_schema(planned.kinds, timezone="UTC")
        self.rows: list[Any] = []
        self.stager: Stager | None = None

    @staticmethod
    def analyze(*rows: AnalyzeArgument, **options: AnalyzeArgument) -> _Planned:
        """Plans the write. Raises InvalidArgument."""
        if len(rows) != 1 or not isinstance(rows[0].dataType, StructType):
            raise InvalidArgument(_NO_ROWS)
        names = [name for name in OPTIONS if name not in {"writeMode", "maxWaiting", "bodyFormat"}]
        given = SparkOptions(_given(options), names)
        kinds = rows[0].dataType
        plan = plan_of(given, kinds, is_stream=False)
        wanted = {column for _, column in plan.terms}
        wanted |= {plan.request_column, plan.body_column, plan.key_column}
        kinds = StructType([field for field in kinds if field.name in wanted])
        return _Planned(
            schema=_ADDED,
            withSinglePartition=True,
            select=[SelectedColumn("`{}`".format(name.replace("`", "``"))) for name in kinds.names],
            what=replace(plan, columns=kinds.names),
            kinds=kinds,
        )

    def eval(self, row: Any, **_: Any) -> None:
        """Takes one row. Raises as the sink does."""
        self.rows.append(row)
        if len(self.rows) == _BATCH:
            self._stage()

    def _stage(self) -> None:
        columns = zip(*self.rows, strict=True)
        arrays = [
            pa.array(map(_in_utc, one) if pa.types.is_timestamp(kind) else one, kind)
            for one, kind in zip(columns, self.schema.types, strict=True)
        ]
        self.rows = []
        if self.stager is None:
            self.stager = Stager(self.plan, self.plan.driver(), self.plan.txn, 0, 0)
        self.stager.add(pa.RecordBatch.from_arrays(arrays, schema=self.schema))

    def terminate(self) -> Iterator[tuple[str, int]]:
        """Commits the rows; yields each request and how many rows it has of them."""
        if self.rows:
            self._stage()
        parts = []
        if self.stager is not None:
            parts = self.stager.finish()
            self.stager.driver.close()
        for brought in commit_staged(self.plan, self.plan.txn, [StagedMessage(parts)]):
            yield brought.request, brought.pinned
