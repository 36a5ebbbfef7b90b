"""Reads files with Spark and splits them into texts, each of a request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

PIECE = 16 << 10  # bytes of a text, about
COLUMNS = "request string, path string, piece int, body binary, priority int, limit int"
URGENT = {"asyncio": 0, "json": 1, "concurrent": 2}
LEVELS = ("INFO", "INFO", "INFO", "INFO", "INFO", "INFO", "WARNING", "ERROR")
SERVICES = ("basket", "billing", "login", "search", "stock")
LINE = 96  # bytes, about
LINES = 1_000  # of a text


def corpus(spark: SparkSession, run: str, most: int | None) -> DataFrame:
    """Returns the standard library: a request for each package, small ones more urgent."""
    from borrowed import STDLIB, sources, spread

    paths = spread(sources(), most)
    rows = [(str(STDLIB / path), *place) for path, place in zip(paths, _places(paths), strict=True)]
    named = spark.createDataFrame(
        [(f"file:{path}", f"{package}-{run}", *place) for path, package, *place in rows],
        "path string, request string, priority int, limit int",
    )  # fmt: skip
    files = spark.read.format("binaryFile").load([path for path, *_ in rows])
    return _split(files.select("path", "content").join(named, "path"))


def _places(paths: list[str]) -> list[tuple[str, int, int]]:
    """Returns (package, priority, limit) of each file."""
    packages = [path.split("/")[0] if "/" in path else "modules" for path in paths]
    sizes: dict[str, int] = {}
    for package in packages:
        sizes[package] = sizes.get(package, 0) + 1
    ranks = {package: rank for rank, package in enumerate(sorted(sizes, key=lambda p: sizes[p]))}
    return [
        (
            package,
            URGENT.get(package, 10 + 80 * ranks[package] // max(1, len(ranks))),
            min(4, 1 + sizes[package] // 25),
        )
        for package in packages
    ]


def make_logs(spark: SparkSession, folder: Path, gigabytes: float) -> None:
    """Writes log lines of some services, the same ones in every run."""
    from pyspark.sql import functions as sql

    count = max(1000, int(gigabytes * (1 << 30) / LINE))
    number = sql.pmod(sql.xxhash64("id"), sql.lit(1 << 40))
    level = sql.element_at(sql.array(*map(sql.lit, LEVELS)), (number % len(LEVELS) + 1).cast("int"))
    service = sql.element_at(
        sql.array(*map(sql.lit, SERVICES)), (number % len(SERVICES) + 1).cast("int")
    )
    event = sql.when(number % 97 == 0, "timeout of the database").otherwise("answered")
    began = sql.timestamp_seconds(sql.lit(1_700_000_000) + sql.col("id") / 100)
    line = sql.format_string(
        "%s %s %s request=%016x user=%d %s in %d ms",
        sql.date_format(began, "yyyy-MM-dd'T'HH:mm:ss.SSS"),
        level, service, number, number % 10_007, event, number % 900,
    )  # fmt: skip
    lines = spark.range(0, count, 1, max(2, count // 500_000))
    made = lines.select(line.alias("value"), service.alias("service"))
    made.write.mode("overwrite").partitionBy("service").text(str(folder))


def logs(spark: SparkSession, run: str, folder: Path) -> DataFrame:
    """Returns the log files: a request for each service, a text for each 1,000 lines."""
    from pyspark.sql import functions as sql

    lines = spark.read.text(str(folder)).select("service", "value")
    request = sql.concat("service", sql.lit(f"-{run}")).alias("request")
    number = sql.array_position(sql.array(*map(sql.lit, SERVICES)), sql.col("service"))
    return lines.mapInArrow(joined, "service string, piece int, body binary").select(
        request, sql.concat(sql.lit("logs of "), "service").alias("path"), "piece", "body",
        (number * 10).cast("int").alias("priority"), sql.lit(3).alias("limit"),
    )  # fmt: skip


def joined(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yields the lines of one service after the other as texts."""
    import pyarrow as pa

    for piece, batch in enumerate(batches):
        by_service: dict[str, list[str]] = {}
        for row in batch.to_pylist():
            by_service.setdefault(row["service"], []).append(row["value"])
        rows = [
            (service, piece, "".join(f"{line}\n" for line in lines[at : at + LINES]).encode())
            for service, lines in by_service.items()
            for at in range(0, len(lines), LINES)
        ]
        columns = [pa.array(column) for column in zip(*rows, strict=True)]
        if columns:
            columns[1] = columns[1].cast(pa.int32())
            yield pa.RecordBatch.from_arrays(columns, ["service", "piece", "body"])


def _split(files: DataFrame) -> DataFrame:
    """Returns each file as texts of about PIECE bytes, cut where a line ends."""

    def pieces(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            for row in batch.to_pylist():
                texts: list[dict[str, Any]] = [
                    {**row, "piece": at, "body": body}
                    for at, body in enumerate(cut(row.pop("content"), PIECE))
                ]
                kinds = {"request": pa.string(), "path": pa.string(), "piece": pa.int32()}
                kinds |= {"body": pa.binary(), "priority": pa.int32(), "limit": pa.int32()}
                yield pa.RecordBatch.from_pylist(texts, schema=pa.schema(kinds))

    return files.mapInArrow(pieces, COLUMNS)


def cut(content: bytes, size: int) -> Iterator[bytes]:
    """Yields pieces that end at the end of a line, or of all."""
    begin = 0
    while begin < len(content):
        end = content.find(b"\n", begin + size - 1) + 1 or len(content)
        yield content[begin:end]
        begin = end
