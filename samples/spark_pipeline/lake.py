"""Makes the orders, the same ones in every run, and adds them up by Spark alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import Column, DataFrame, SparkSession

COUNTRIES = ("at", "be", "ch", "cz", "de", "dk", "es", "fi", "fr", "gr", "hu", "ie", "it", "nl",
             "no", "pl", "pt", "ro", "se", "sk")  # fmt: skip
URGENT = 20
FILES = 5  # of the stream
BAD = 200  # of so many orders one has a comma in its amounts
ORDER = "id long, country string, priority int, limit int, text string"
ANSWER = "items long, cents long"


class Shares(NamedTuple):
    """Says how many of all orders come from files, by the stream, and urgently."""

    files: int
    stream: int
    urgent: int

    @classmethod
    def of(cls, rows: int) -> Shares:
        """Returns a tenth for the stream, and URGENT urgent ones."""
        stream = rows // 10 - URGENT
        return cls(rows - rows // 10, stream, URGENT)


def orders(spark: SparkSession, first: int, count: int) -> DataFrame:
    """Returns orders by their ids. A country has one priority and one limit."""
    from pyspark.sql import functions as sql

    number = sql.pmod(sql.xxhash64("id"), sql.lit(1 << 40))
    place = sql.col("id") % len(COUNTRIES)
    positions = sql.transform(
        sql.sequence(sql.lit(1), 4 + number % 8),
        lambda at: sql.format_string(
            "%dx%d.%02d",
            1 + (number + at) % 5, 1 + (number * at) % 200, (number + 7 * at) % 100,
        ),
    )  # fmt: skip
    text = sql.concat_ws(" ", positions)
    is_bad = sql.col("id") % BAD == 7
    return spark.range(first, first + count, 1, 4).select(
        "id",
        sql.element_at(sql.array(*map(sql.lit, COUNTRIES)), (place + 1).cast("int"))
        .alias("country"),
        (10 + 4 * place).cast("int").alias("priority"),
        sql.lit(2).alias("limit"),
        sql.when(is_bad, sql.replace(text, sql.lit("."), sql.lit(","))).otherwise(text)
        .alias("text"),
    )  # fmt: skip


def make_lake(spark: SparkSession, folder: Path, shares: Shares) -> list[str]:
    """Writes the lake, and the stream's files beside it; returns the urgent texts."""
    orders(spark, 0, shares.files).write.parquet(str(folder / "lake"))
    late = orders(spark, shares.files, shares.stream).repartition(FILES, "id")
    late.write.parquet(str(folder / "till"))
    urgent = orders(spark, shares.files + shares.stream, shares.urgent).orderBy("id").collect()
    return [row.text for row in urgent]


def repaired(text: Column) -> Column:
    """Returns the texts with a dot in each amount."""
    from pyspark.sql import functions as sql

    return sql.replace(text, sql.lit(","), sql.lit("."))


def alone(texts: DataFrame) -> DataFrame:
    """Returns id, items and cents of each order, by Spark's own functions."""
    from pyspark.sql import functions as sql

    positions = sql.transform(
        sql.split(repaired(sql.col("text")), " "), lambda one: sql.split(one, "[x.]")
    )
    numbers = sql.transform(positions, lambda parts: sql.transform(parts, lambda n: n.cast("long")))
    items = sql.aggregate(numbers, sql.lit(0).cast("long"), lambda total, n: total + n[0])
    cents = sql.aggregate(
        numbers, sql.lit(0).cast("long"), lambda total, n: total + n[0] * (n[1] * 100 + n[2])
    )
    return texts.select("id", items.alias("items"), cents.alias("cents"))


def answered(results: DataFrame) -> DataFrame:
    """Returns the same columns from results that have `id` and `result`."""
    from pyspark.sql import functions as sql

    answer = sql.from_json(sql.col("result").cast("string"), ANSWER).alias("answer")
    return results.where("status = 'done'").select("id", answer).select("id", "answer.*")


def differing(first: DataFrame, second: DataFrame) -> int:
    """Counts the rows that only one of the two has; duplicates count as often as they differ."""
    from pyspark.sql import functions as sql

    both = first.withColumn("n", sql.lit(1)).unionAll(second.withColumn("n", sql.lit(-1)))
    counts = both.groupBy(*first.columns).agg(sql.sum("n").alias("n"))
    return int(counts.agg(sql.sum(sql.abs("n"))).first()[0] or 0)
