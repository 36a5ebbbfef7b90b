"""Computes the tables of a report by DuckDB, from the Parquet files of an archive.

Time is cut into windows of equal width. `tables.sql` and `settled.sql` have the queries.
"""

from __future__ import annotations

import re
from contextlib import closing
from datetime import UTC, datetime
from importlib.resources import files
from string import Template
from typing import TYPE_CHECKING, Any, NamedTuple

from fairlane.archive.manifest import read, torn, why_unreadable
from fairlane.errors import InvalidArgument
from fairlane.report.axes import FAIR_S, Axis, Bands

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from duckdb import DuckDBPyConnection as Connection

    from fairlane.archive.manifest import File

Rows = list[dict[str, Any]]
GRACE_MS = 250  # a take is inverted if a more urgent request was open for so long
MOST = 12  # rows of a table on the page
# The columns that are read, by table of the archive; `since` is about the last one.
COLUMNS = {
    "requests": "log_id VARCHAR, id VARCHAR, state VARCHAR, outcome VARCHAR, priority INTEGER, "
    "limit INTEGER, total BIGINT, done BIGINT, dead BIGINT, cancelled BIGINT, results BIGINT, "
    "reopened INTEGER, submitted TIMESTAMPTZ, ended TIMESTAMPTZ, logged TIMESTAMPTZ",
    "results": "request VARCHAR, priority INTEGER, submitted TIMESTAMPTZ, index BIGINT, "
    "worker VARCHAR, status VARCHAR, attempt INTEGER, waited_ms BIGINT, ran_ms DOUBLE, "
    "total_ms DOUBLE, started TIMESTAMPTZ, settled TIMESTAMPTZ",
    "dead": "request VARCHAR, priority INTEGER, reason VARCHAR, error VARCHAR, "
    "fingerprint VARCHAR, died TIMESTAMPTZ",
}
# The tables that are written as Parquet, and those that only the page needs.
TABLES = (
    *("requests", "states", "windows", "priorities", "tokens", "fairness", "workers"),
    *("longest_waits", "inversions", "inverted", "dead"),
)
_PLOTS = ("windows", "tokens", "fairness", "requests", "dead")
_SHOWN = (  # on the page
    *("latency", "latency_each", "targets", "targets_each", "requests", "tokens"),
    *("inversions", "inverted", "waits", "dead"),
)
# `results` is unknown in part for a sub-request that died before its handler ran (`ran_us`) or
# with its worker (also the others). In Redis these are 0. A deadline ends it when it is taken.
_RESULTS = """
CREATE VIEW results AS
SELECT request, submitted, priority, "index", worker, status, attempt, waited_ms, ran_ms, total_ms,
    targets[priority + 1] AS target_ms, epoch_us(started) AS started_us,
    epoch_us(settled) AS settled_us, status <> 'dead' OR ran_ms > 0 AS has_run,
    has_run OR waited_ms > 0 AS is_known,
    if(is_known, waited_ms * 1000, NULL) AS waited_us,
    if(has_run, round(ran_ms * 1000)::BIGINT, NULL) AS ran_us,
    if(is_known, round(total_ms * 1000)::BIGINT, NULL) AS total_us,
    started_us - (total_us - waited_us - coalesce(ran_us, 0)) AS taken_us
FROM archived_results, (SELECT getvariable('targets') AS targets)
"""
_EXTENT = """
SELECT least(min(low), (SELECT min(started_us) FROM results)),
    greatest(max(low), (SELECT max(settled_us) FROM results))
FROM (SELECT epoch_us(ended) AS low FROM archived_requests)
"""
_PRIORITIES = "SELECT priority FROM archived_requests UNION SELECT priority FROM results"


class Figures(NamedTuple):
    """Holds what the page shows: rows of plots and tables by name, with moments in ms.

    `counts` has the rows of each table, of which `tables` has the first.
    """

    axis: Axis
    bands: Bands
    summary: dict[str, Any]
    plots: dict[str, Rows]
    tables: dict[str, Rows]
    counts: dict[str, int]


def compute(
    archive: Path, folder: Path, since: datetime | None, targets: Mapping[int | None, int]
) -> Figures:
    """Writes every table to a Parquet file in `folder`, and returns what the page shows.

    Raises InvalidArgument if the archive cannot be read or has nothing of that time.
    """
    import duckdb

    folder.mkdir(parents=True)
    with closing(duckdb.connect()) as db:
        db.execute("SET enable_progress_bar = false; SET TimeZone = 'UTC'")
        db.execute("SET preserve_insertion_order = false")
        db.execute(f"SET temp_directory = {_text(folder / '.spill')}")
        try:
            there = read(archive).files
            for table in COLUMNS:
                _read(db, archive, [file for file in there if file.table == table], table, since)
            return _figures(db, archive, folder, targets)
        except duckdb.InterruptException:
            raise KeyboardInterrupt from None
        except duckdb.Error as error:
            # If the disk is full, the error names the folder: the archive is not the cause.
            if not _is_of_a_file(error) or str(folder) in str(error):
                raise _failed(error) from error
            raise _blamed(db, archive, there, error) from error


def _figures(
    db: Connection, archive: Path, folder: Path, targets: Mapping[int | None, int]
) -> Figures:
    goals = [targets.get(priority, targets.get(None)) for priority in range(100)]
    db.execute("SET VARIABLE targets = ?::DOUBLE[]", [goals])
    db.execute(_RESULTS)
    low, high = _rows(db, _EXTENT)[0].values()
    if low is None:
        raise InvalidArgument(f"the archive {archive} holds nothing of that time")
    axis = Axis.spanning(low, high)
    even = axis.at_least(FAIR_S)
    bands = Bands(row["priority"] for row in _rows(db, _PRIORITIES))
    variables = {
        **axis._asdict(),
        "even_us": even.width_us,
        "evens": even.windows,
        "band": bands.size,
        "grace_us": GRACE_MS * 1000,
    }
    for name, value in variables.items():
        db.execute(f"SET VARIABLE {name} = {value}")
    here = files(__package__)
    db.execute(here.joinpath("tables.sql").read_text())
    _settle(db, Template(here.joinpath("settled.sql").read_text()))
    db.execute(here.joinpath("page.sql").read_text())
    for name in TABLES:
        db.execute(f"COPY {name} TO {_text(folder / f'{name}.parquet')} (FORMAT parquet)")
    plots = {name: _rows(db, _in_ms(db, f"plot_{name}")) for name in _PLOTS}
    tables, counts = {}, {}
    for name in _SHOWN:
        most = 100 if name.endswith("_each") else MOST  # all priorities
        tables[name] = _rows(db, f"{_in_ms(db, f'table_{name}')} LIMIT {most}")
        counts[name] = _rows(db, f"SELECT count(*) AS n FROM table_{name}")[0]["n"]  # noqa: S608
    return Figures(axis, bands, _summary(db, axis), plots, tables, counts)


def _settle(db: Connection, query: Template) -> None:
    """Makes the tables of settled sub-requests, one after the other to save memory."""
    window = "window_of(settled_us, getvariable('width_us'))::INTEGER"
    nothing = "NULL::INTEGER"
    for name, at, priorities in (
        ("windows", window, ("priority",)),
        ("priorities", nothing, ("priority", nothing)),
        ("band_windows", window, ("band(priority)",)),
        ("bands", nothing, ("band(priority)", nothing)),
    ):
        parts = [f"({query.substitute(window=at, priority=one)})" for one in priorities]
        columns = 'EXCLUDE ("window", "at")' if at == nothing else ""
        source = " UNION ALL ".join(parts)
        db.execute(f"CREATE TABLE {name} AS SELECT * {columns} FROM ({source}) ORDER BY ALL")  # noqa: S608


def _summary(db: Connection, axis: Axis) -> dict[str, Any]:
    (found,) = _rows(db, "FROM summary")
    digits = "seconds" if axis.width_us >= 1_000_000 else "milliseconds"  # noqa: PLR2004
    edges = {"from": axis.start_us, "to": axis.end_us}
    return {
        **{
            name: datetime.fromtimestamp(micros / 1e6, UTC).isoformat(timespec=digits)
            for name, micros in edges.items()
        },
        "window_s": axis.width_us / 1e6,
        "windows": axis.windows,
        **{name: value for name, value in found.items() if found["finished"] or value is not None},
    }


def _rows(db: Connection, query: str) -> Rows:
    found = db.execute(query)
    names = [column[0] for column in found.description or ()]
    return [dict(zip(names, row, strict=True)) for row in found.fetchall()]


def _in_ms(db: Connection, name: str) -> str:
    """Returns a query for the rows of a table, with its moments as ms."""
    columns = [
        f'epoch_ms("{column}") AS "{column}"' if kind.startswith("TIMESTAMP") else f'"{column}"'
        for column, kind in _columns(db, name).items()
    ]
    return f"SELECT {', '.join(columns)} FROM {name}"  # noqa: S608  names of this file


def _columns(db: Connection, name: str) -> dict[str, str]:
    return {row["column_name"]: row["column_type"] for row in _rows(db, f"DESCRIBE {name}")}


# ------------------------------------------------------------------ the archive


def _read(
    db: Connection, archive: Path, there: Sequence[File], table: str, since: datetime | None
) -> None:
    """Makes the view `archived_<table>`, empty without files. Raises InvalidArgument."""
    columns = dict(column.split(" ") for column in COLUMNS[table].split(", "))
    day = since.date().isoformat() if since else ""
    there = [file for file in there if file.date >= day]
    for file in there:
        if why := why_unreadable(archive, file):
            raise InvalidArgument(why)
    if not there:
        if table == "requests":
            what = "of that time" if since else "yet: nothing had ended when it was written"
            raise InvalidArgument(f"the archive {archive} holds nothing {what}")
        empty = ", ".join(f'"{name}" {kind}' for name, kind in columns.items())
        db.execute(f"CREATE TABLE archived_{table} ({empty}, queue VARCHAR, date VARCHAR)")
        return
    names = ", ".join(_pattern(archive / file.path) for file in there)
    schemas = f"SELECT file_name, list(name) AS names FROM parquet_schema([{names}]) GROUP BY ALL"  # noqa: S608
    for row in _rows(db, schemas):
        if lacking := [name for name in columns if name not in row["names"]]:
            raise InvalidArgument(
                f"the archive {archive} is of another version of Fairlane: {row['file_name']} has "
                f"no column {lacking[0]}; use the version that wrote the archive"
            )
    same = ", ".join(f'"{name}"::{kind} AS "{name}"' for name, kind in columns.items())
    moment = f"epoch_us({list(columns)[-1]}) >= {since.timestamp():.6f} * 1e6" if since else "true"
    # Of a request that was reopened, the last end counts. A lost one has no time of submission.
    last = "row_number() OVER (PARTITION BY id, submitted ORDER BY reopened DESC) = 1"
    which = f" QUALIFY submitted IS NULL OR {last}" if table == "requests" else ""
    # A folder above the archive may be called `queue=a` or `priority=9` as well.
    db.execute(
        f"CREATE VIEW archived_{table} AS SELECT * EXCLUDE (file) REPLACE ({same}), "  # noqa: S608
        "regexp_extract(file, 'queue=([^/]*)/[^/]*/[^/]*$', 1) AS queue, "
        "regexp_extract(file, 'date=([^/]*)/[^/]*$', 1) AS date "
        f"FROM read_parquet([{names}], hive_partitioning = false, filename = 'file') WHERE {moment}"
        f"{which}"
    )


def _blamed(
    db: Connection, archive: Path, there: Iterable[File], error: Exception
) -> InvalidArgument:
    """Returns an error that names the file that cannot be read; DuckDB's own text if none."""
    import duckdb

    for file in there:
        path = archive / file.path
        if why := why_unreadable(archive, file):
            return InvalidArgument(why)
        try:
            db.execute(f"SELECT max(hash(COLUMNS(*))) FROM read_parquet({_pattern(path)})")  # noqa: S608
        except duckdb.Error as found:
            return InvalidArgument(torn(path)) if _is_of_a_file(found) else _failed(found)
    return _failed(error)


def _is_of_a_file(error: Exception) -> bool:
    """Returns False if memory or a query is the cause. An error of Thrift has no class."""
    import duckdb

    kinds = (duckdb.InvalidInputException, duckdb.IOException)
    return isinstance(error, kinds) or type(error) is duckdb.Error


def _failed(error: Exception) -> InvalidArgument:
    return InvalidArgument(f"DuckDB failed: {str(error).splitlines()[0]}")


def _pattern(path: Path) -> str:
    """Returns a pattern as text of SQL that only this path matches."""
    return _text(re.sub(r"([\[*?])", r"[\1]", str(path)))


def _text(path: str | Path) -> str:
    """Returns a path as text of SQL."""
    return "'" + str(path).replace("'", "''") + "'"
