"""The plan of a write: checks the options and the columns before anything is written.

`writeMode=staged` shows no row before all are there. With `dedupe` and `pipelined`
workers begin while Spark still writes (writers.py).
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    CalendarIntervalType,
    DataType,
    GeographyType,
    GeometryType,
    IntegralType,
    MapType,
    StringType,
    StructType,
    TimestampType,
    YearMonthIntervalType,
)

from fairlane import settings
from fairlane.drivers.sync import SyncDriver
from fairlane.errors import InvalidArgument
from fairlane.options import Policy, read_option
from fairlane.options_table import BY_NAME, WHOLE, field_of, options_of
from fairlane.protocol import keys
from fairlane.spark.commit import Txn
from fairlane.spark.data_source import NO_CATALOG

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fairlane.options_table import Option
    from fairlane.spark.data_source import SparkOptions

MODES = ("staged", "dedupe", "pipelined")
FORMATS = ("json", "arrow")
OPTIONS = (
    *("request", "requestColumn", "bodyColumn", "bodyFormat", "keyColumn", "priority"),
    *("priorityColumn", "limit", "limitColumn", "writeMode", "txn", "batchSize", "finalize"),
    *("maxWaiting", "keepBodies", "openFor", "stageTtl", "attempts", "backoff", "lease", "retain"),
    *("deadline", "timeLimit", "patience", "delay", "delayColumn", "runAt", "runAtColumn"),
    *("deadlineColumn", "limits"),
)
# Options of a request that a column may hold, with the types of that column.
_TERMS: dict[str, tuple[tuple[type[DataType], ...], str]] = {
    "priority": ((IntegralType,), "a whole number"),
    "limit": ((IntegralType,), "a whole number"),
    "delay": ((StringType,), "a text such as 90s"),
    "run_at": ((TimestampType,), "a timestamp"),
    "deadline": ((StringType,), "a text such as 90s"),
}
# Options of Spark's streaming, which Spark passes together with ours.
STREAM_OPTIONS = ("checkpointLocation", "queryName")
_BODY = "body"


@dataclass(frozen=True, slots=True, kw_only=True)
class WritePlan:
    """Holds the settings of one write. Spark pickles it to executors, so it holds no connection."""

    redis: str
    queue: str
    request: str  # "" = by the column
    request_column: str
    body_column: str  # "" = the whole row, in `body_format`
    body_format: str
    key_column: str  # "" = rows have no keys
    keeps_bodies: bool
    terms: tuple[tuple[str, str], ...]  # options of a request and their columns
    mode: str
    txn: str
    batch_size: int
    finalize: bool
    max_waiting: int
    open_ms: int
    stage_ms: int
    patience_s: float  # how long a call is repeated while Redis is unreachable
    policy: Policy
    columns: list[str] = field(default_factory=list)

    def driver(self) -> SyncDriver:
        """Returns a new driver; nothing is connected yet."""
        return SyncDriver(self.redis, patience_s=self.patience_s)

    def transaction(self, name: str) -> Txn:
        """Returns the transaction of this name for the operations."""
        return Txn(name, self.finalize, self.open_ms, self.keeps_bodies)

    def policy_of(self, request_id: str, values: Sequence[Any]) -> Policy:
        """Returns the policy of a request whose rows have these values in the columns of `terms`.

        Raises InvalidArgument.
        """
        chosen: dict[str, Any] = {}
        try:
            for (name, column), value in zip(self.terms, values, strict=True):
                where = f'{name} (column "{column}")'
                chosen[field_of(BY_NAME[name])] = read_option(name, value, where)
            return replace(self.policy, **chosen)
        except InvalidArgument as error:
            raise InvalidArgument(f"request {request_id}: {error}") from None


def plan_of(options: SparkOptions, schema: StructType, *, is_stream: bool) -> WritePlan:
    """Returns the plan of a write. Raises InvalidArgument."""
    mode = options.choice("writeMode", MODES, "staged")
    request, request_column = _target(options, schema)
    body_column, body_format = _body(options, schema)
    _check_kind(schema, "", body_format)
    plan = WritePlan(
        redis=options.redis,
        queue=options.queue,
        request=request,
        request_column=request_column,
        body_column=body_column,
        body_format=body_format,
        key_column=_column(options, schema, "keyColumn"),
        keeps_bodies=options.flag("keepBodies", default=False),
        terms=tuple(
            (name, column)
            for name in _TERMS
            if (column := _column(options, schema, _column_option(name)))
        ),
        mode=mode,
        txn=_txn(options, is_stream=is_stream),
        batch_size=options.number(
            "batchSize", settings.CHUNK_ENTRIES, low=1, high=settings.CHUNK_ENTRIES
        ),
        finalize=options.flag("finalize", not is_stream),
        max_waiting=options.number("maxWaiting", 0),
        open_ms=_duration(
            options, "openFor", settings.STREAM_OPEN_MS if is_stream else settings.SINK_OPEN_MS
        ),
        stage_ms=_duration(options, "stageTtl", settings.STAGE_MS),
        patience_s=_duration(options, "patience", int(settings.PATIENCE_S * 1000)) / 1000,
        policy=_policy(options),
        columns=schema.fieldNames(),
    )
    _check_columns(plan, schema)
    _check_together(plan, is_stream=is_stream)
    return plan


def _check_together(plan: WritePlan, *, is_stream: bool) -> None:
    """Raises InvalidArgument if two options exclude each other."""
    if plan.mode == "dedupe" and not plan.key_column:
        raise InvalidArgument(
            "writeMode dedupe needs the column that identifies a row: give keyColumn"
        )
    if plan.mode == "staged" and plan.max_waiting:
        raise InvalidArgument('option "maxWaiting" is for writeMode dedupe and pipelined')
    if is_stream and plan.finalize and plan.request:
        raise InvalidArgument(
            f'option "finalize" would seal request {plan.request} with the first micro-batch, and '
            "the next could add nothing: leave it out and seal the request with a last batch "
            "write, or give requestColumn"
        )


def _target(options: SparkOptions, schema: StructType) -> tuple[str, str]:
    request, column = options.text("request"), _column(options, schema, "requestColumn")
    if bool(request) == bool(column):
        hint = "" if request else f" ({NO_CATALOG})"
        raise InvalidArgument(
            'name where the rows go: option "request" is the id of one request, "requestColumn" '
            f"the column with the id of each row's; one of them is expected{hint}"
        )
    if request:
        keys.check_name("request id", request)
    return request, column


def _txn(options: SparkOptions, *, is_stream: bool) -> str:
    if "txn" not in options:
        return keys.new_id()
    if is_stream:
        raise InvalidArgument('option "txn" is not for streams: each micro-batch is a transaction')
    return keys.check_name("txn", options.text("txn"))


def _body(options: SparkOptions, schema: StructType) -> tuple[str, str]:
    """Returns the column that is the body, or the format in which a row becomes a body."""
    if "bodyFormat" in options:
        if "bodyColumn" in options:
            raise InvalidArgument("bodyColumn and bodyFormat exclude each other: choose one")
        return "", options.choice("bodyFormat", FORMATS, FORMATS[0])
    name = _column(options, schema, "bodyColumn") or column_of(_BODY, schema.fieldNames())
    if not name:
        raise InvalidArgument(
            f'there is no column "{_BODY}" (the columns are {", ".join(schema.fieldNames())}): '
            "name the one that holds the bodies with bodyColumn, or make bodies of whole rows with "
            "bodyFormat json or arrow"
        )
    kind = schema[name].dataType
    if not isinstance(kind, (StringType, BinaryType)):
        raise InvalidArgument(
            f'column "{name}" is {kind.simpleString()}: a body is a string or binary column'
        )
    return name, ""


def _check_kind(kind: DataType, column: str, body_format: str) -> None:
    """Raises InvalidArgument for a type that Python cannot read, or that a body cannot hold."""
    if isinstance(kind, YearMonthIntervalType):
        raise InvalidArgument(
            f'column "{column}" holds {kind.simpleString()}, which Spark cannot hand to Python: '
            "cast it to string, or leave it out"
        )
    if body_format and isinstance(kind, CalendarIntervalType):
        raise InvalidArgument(
            f'column "{column}" holds {kind.simpleString()}, which no program can read back from '
            "a body: cast it to string, or leave it out"
        )
    if body_format == "json" and isinstance(kind, (GeographyType, GeometryType)):
        raise InvalidArgument(
            f'column "{column}" holds {kind.simpleString()}, which bodyFormat json has no form '
            "for: make binary or text of it, or choose bodyFormat arrow"
        )
    if isinstance(kind, StructType):
        for part in kind.fields:
            _check_kind(part.dataType, column or part.name, body_format)
    elif isinstance(kind, ArrayType):
        _check_kind(kind.elementType, column, body_format)
    elif isinstance(kind, MapType):
        _check_map(kind, column, body_format)


def _check_map(kind: MapType, column: str, body_format: str) -> None:
    if body_format == "json" and isinstance(kind.keyType, (StructType, ArrayType)):
        raise InvalidArgument(
            f'column "{column}" has a map whose keys are {kind.keyType.simpleString()}: '
            "bodyFormat json has text keys only; choose bodyFormat arrow, or make a text of "
            "the keys"
        )
    _check_kind(kind.keyType, column, body_format)
    _check_kind(kind.valueType, column, body_format)


def _policy(options: SparkOptions) -> Policy:
    policy: dict[str, Any] = {}
    for option in options_of("sink"):
        name = spark_name(option)
        if option.kind == WHOLE:
            given = options.number(name, option.default, option.least, option.most)
            policy[option.name] = given
        elif name in options:
            policy[field_of(option)] = read_option(
                option.name, options.text(name), f'option "{name}"'
            )
    return Policy(queue=options.queue, **policy)


def _column_option(name: str) -> str:
    return f"{spark_name(BY_NAME[name])}Column"


def spark_name(option: Option) -> str:
    """Returns the name of an option among those of Spark: `timeLimit`."""
    first, *others = option.name.split("_")
    return first + "".join(map(str.capitalize, others))


def _duration(options: SparkOptions, name: str, default: int) -> int:
    if name not in options:
        return default
    try:
        duration_ms = settings.duration_ms(options.text(name))
    except InvalidArgument as error:
        raise InvalidArgument(f'option "{name}": {error}') from None
    if name in ("openFor", "stageTtl") and duration_ms < 60_000:  # noqa: PLR2004
        raise InvalidArgument(f'option "{name}" is {options.text(name)!r}: at least 1m is expected')
    return duration_ms


def _check_columns(plan: WritePlan, schema: StructType) -> None:
    texts = (StringType, BinaryType, IntegralType)
    wanted: list[tuple[str, str, tuple[Any, ...], str]] = [
        ("requestColumn", plan.request_column, texts, "a string or a whole number"),
        ("keyColumn", plan.key_column, (StringType, IntegralType), "a string or a whole number"),
        *((_column_option(name), column, *_TERMS[name]) for name, column in plan.terms),
    ]
    for option, name, kinds, words in wanted:
        if name:
            kind = schema[name].dataType
            if not isinstance(kind, kinds):
                raise InvalidArgument(
                    f'column "{name}" ({option}) is {kind.simpleString()}: {words} is expected'
                )


def _column(options: SparkOptions, schema: StructType, option: str) -> str:
    """Returns the column that an option names, as the schema writes it; "" without the option."""
    if option not in options or not (name := options.text(option)):
        return ""
    column = column_of(name, schema.fieldNames())
    if not column:
        raise InvalidArgument(
            f'option "{option}" names the column "{name}", and there is none: the columns are '
            f"{', '.join(schema.fieldNames())}"
        )
    return column


def column_of(name: str, columns: Sequence[str]) -> str:
    """Returns the column of this name, "" if there is none.

    As in Spark, the case of letters does not matter, unless columns differ only in case. Then one
    of them must have exactly this name, else InvalidArgument is raised.
    """
    if name in columns:
        return name
    matches = [column for column in columns if column.lower() == name.lower()]
    if len(matches) > 1:
        raise InvalidArgument(
            f'the column "{name}" may be {" or ".join(matches)}: write it as one of them'
        )
    return matches[0] if matches else ""


def check_terms(
    plan: WritePlan, request_id: str, before: Sequence[Any], now: Sequence[Any]
) -> None:
    """Raises InvalidArgument if rows of one request have different values in a column."""
    for (_, column), one, other in zip(plan.terms, before, now, strict=True):
        if one != other:
            raise InvalidArgument(
                f'request {request_id} has rows with {one} and with {other} in column "{column}": '
                "all rows of a request have one"
            )


def run(plan: WritePlan, operation: Any) -> Any:
    """Runs one operation on connections of its own."""
    with closing(operation), closing(plan.driver()) as driver:
        return driver.run(operation)
