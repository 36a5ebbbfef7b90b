"""Computes the same answer by Spark alone, and compares both row by row."""

from __future__ import annotations

from typing import TYPE_CHECKING

from counting import WORDS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ANSWER = "sha1 string, lines long, words long, known map<string, long>"


def plain(texts: DataFrame) -> DataFrame:
    """Returns lines, words and some words' counts of each text, by Spark's own functions."""
    from pyspark.sql import functions as sql

    # A byte is a character, so bytes that are no UTF-8 count, too.
    text = sql.decode("body", "ISO-8859-1")
    sign = "[A-Za-z0-9_]"
    return texts.select(
        "request",
        sql.sha1("body").alias("sha1"),
        sql.regexp_count(text, sql.lit("\n")).alias("lines"),
        sql.regexp_count(text, sql.lit(f"{sign}+")).alias("words"),
        *(
            sql.regexp_count(text, sql.lit(f"(?<!{sign}){word}(?!{sign})")).alias(word)
            for word in WORDS
        ),
    )  # fmt: skip


def answered(results: DataFrame) -> DataFrame:
    """Returns the same columns from the workers' results: `request` and `result`."""
    from pyspark.sql import functions as sql

    answer = sql.from_json(sql.col("result").cast("string"), ANSWER).alias("answer")
    return results.select("request", answer).select(
        "request", "answer.sha1", "answer.lines", "answer.words",
        *(sql.coalesce(sql.col("answer.known")[word], sql.lit(0)).alias(word) for word in WORDS),
    )  # fmt: skip


def by_request(rows: DataFrame) -> DataFrame:
    """Returns the sums of each request."""
    from pyspark.sql import functions as sql

    sums = [sql.sum(name).alias(name) for name in ("lines", "words", *WORDS)]
    return rows.groupBy("request").agg(sql.count("*").alias("texts"), *sums)


def differing(first: DataFrame, second: DataFrame) -> int:
    """Counts the rows that only one frame has; duplicates count as often as they differ."""
    names = first.columns
    first_rows = first.selectExpr(*(f"cast(`{name}` as string) as `{name}`" for name in names))
    second_rows = second.selectExpr(*(f"cast(`{name}` as string) as `{name}`" for name in names))
    return first_rows.exceptAll(second_rows).count() + second_rows.exceptAll(first_rows).count()
