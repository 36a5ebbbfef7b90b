"""The guide's pipeline at a size that matters: `make demo-spark`.

Spark makes a lake of orders, submits them, and streams more into the queue meanwhile. A fleet on
Spark and a plain worker add them up. A program submits urgent orders in the middle, and a worker of
the fleet is killed. Orders that cannot be read are quarantined, repaired and run again. The results
are joined to the orders by key, archived, and compared with what Spark alone computes. Needs Java
only: without --redis or FAIRLANE_REDIS it starts Fairlane's embedded server.
"""

from __future__ import annotations

import argparse
import logging
import os
import secrets
import shutil
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from borrowed import Workers, cancelled_unless_ended, end_as_by_ctrl_c, near
from helping import HERE, Fleet, Till, View, kill_one, stderr_in
from lake import COUNTRIES, ORDER, Shares, alone, answered, differing, make_lake, repaired

from fairlane import FairlaneError, Queue
from fairlane.queue import resolve_url
from fairlane.spark.commands.session import in_one_sentence

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

QUEUE = "demo-spark"  # of its own: it does not mix with other work
FLEET, FEWEST = 2, 1_000
RETAIN = "1h"  # of the results, because the next run archives again what is there
LOOK_S = 0.05
KILL_AT, URGENT_AT = 0.25, 0.5  # of the orders of the files
# In a minute Java has no time to gain from compiling its code well.
CONF = {
    "spark.log.level": "OFF",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
TARGETS = {0: "1s", 20: "10s"}  # an urgent order, and one of the till, should not take longer


class DemoFailed(Exception):
    """Reports a promise that the demo did not keep."""


@dataclass
class Found:
    """Holds what is shown at the end."""

    shares: Shares
    worked_s: float = 0
    killed: str = ""
    killed_at: float = 0
    urgent_s: float = 0
    urgent_at: float = 0
    dead: int = 0


def main() -> int:
    options = arguments()
    end_as_by_ctrl_c()
    try:
        with in_one_sentence():
            return demo(options)
    except KeyboardInterrupt:
        print("demo: interrupted: the requests are cancelled", file=sys.stderr)
        return 130
    except (DemoFailed, FairlaneError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return getattr(error, "exit_code", 1)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--redis", metavar="URL", help="default: FAIRLANE_REDIS, else embedded")
    parser.add_argument("--rows", type=int, default=200_000, metavar="N", help="orders in all")
    parser.add_argument("--out", type=Path, default=HERE / "out", metavar="DIR")
    parser.add_argument("--timeout", type=float, default=900, metavar="S")
    options = parser.parse_args()
    if options.rows < FEWEST:
        parser.error(f"--rows {options.rows} is too few: at least {FEWEST:,} orders are needed")
    return options


def demo(options: argparse.Namespace) -> int:
    from fairlane.spark import session

    view, url = View(), resolve_url(options.redis)
    os.environ["PYSPARK_PYTHON"] = sys.executable  # all of it is on this machine
    # The fleet warns that it waits for the stream's open request, as it is meant to.
    logging.getLogger("fairlane.spark").setLevel(logging.ERROR)
    shutil.rmtree(options.out, ignore_errors=True)
    options.out.mkdir(parents=True)
    view.say("Spark starts on this machine")
    # The fleet holds two cores of Spark, and the stream needs others. A failed Spark task is
    # retried three times, because a worker will be killed.
    with stderr_in(options.out / "spark.log"):
        spark = session(f"local[{FLEET + 2},4]", "fairlane demo", CONF)
    for name in ("orders.py", "lake.py"):  # executors import them
        spark.sparkContext.addPyFile(str(HERE / name))
    with Queue.from_url(url, name=QUEUE) as queue, cancelled_unless_ended(queue):
        return Pipeline(spark, queue, options, view).run()


class Pipeline:
    """Runs the pipeline once, step by step."""

    def __init__(
        self, spark: SparkSession, queue: Queue, options: argparse.Namespace, view: View
    ) -> None:
        self.spark, self.queue, self.out, self.view = spark, queue, options.out, view
        self.began = datetime.now(UTC)
        self.until, self.run_id = time.monotonic() + options.timeout, secrets.token_hex(3)
        self.found = Found(Shares.of(options.rows))
        self.countries = [f"{name}-{self.run_id}" for name in COUNTRIES]

    def run(self) -> int:
        """Runs all steps. Raises DemoFailed for a broken promise."""
        shares = self.found.shares
        self.view.say(f"Spark makes a lake of {shares.files:,} orders, and {shares.stream:,} more")
        urgent = make_lake(self.spark, self.out, shares)
        till = Till(self.out / "till", self.out / "incoming")
        stream = self.begin_stream()
        self.submit()
        self.work(urgent, till, stream)
        self.repair()
        return self.close(urgent)

    # ------------------------------------------------------------------ into the queue

    def target(self, request: str, **others: Any) -> dict[str, str]:
        """Returns the sink's options for orders of a request."""
        given = {"redis": self.queue.driver.url, "queue": QUEUE, "bodyColumn": "text"}
        given |= {"keyColumn": "id", "request": f"{request}-{self.run_id}", "retain": RETAIN}
        return given | {name: str(value) for name, value in others.items()}

    def begin_stream(self) -> Any:
        """Starts the stream, whose micro-batches fill one open request."""
        reader = self.spark.readStream.schema(ORDER).option("maxFilesPerTrigger", 1)
        late = reader.parquet(str(self.out / "incoming"))
        writer = late.writeStream.format("fairlane").options(**self.target("till", priority=20))
        return writer.option("checkpointLocation", str(self.out / "checkpoint")).start()

    def submit(self) -> None:
        """Submits the lake: a request for each country, with its priority and its limit."""
        from pyspark.sql import functions as sql

        lake = self.spark.read.parquet(str(self.out / "lake"))
        request = sql.concat("country", sql.lit(f"-{self.run_id}"))
        options = self.target("") | {"requestColumn": "request", "limitColumn": "limit"}
        del options["request"]
        options["priorityColumn"] = "priority"
        began = time.monotonic()
        rows = lake.select("id", "text", "priority", "limit", request.alias("request"))
        rows.write.format("fairlane").options(**options).mode("append").save()
        seconds, count = time.monotonic() - began, len(self.countries)
        self.view.say(f"the lake is submitted in {count} requests ({seconds:.1f} s)")

    # ------------------------------------------------------------------ the work

    def work(self, urgent: list[str], till: Till, stream: Any) -> None:
        """Runs workers until all requests have ended; kills one, and submits urgent orders."""
        log = self.out / "workers.log"
        url = self.queue.driver.url
        with (
            Fleet(self.spark, self.queue, FLEET) as fleet,
            Workers(1, "orders:add_up", folder=HERE, url=url, queue=QUEUE, log=log) as others,
        ):
            began = time.monotonic()
            till.start()
            self.view.say(f"{FLEET} workers on Spark and a plain one begin; the till goes on")
            self.watch(urgent, fleet, others, log)
            self.found.worked_s = time.monotonic() - began
            till.join()
            stream.processAllAvailable()
            self.seal(stream)
            self.wait_for([f"till-{self.run_id}"], fleet, log)
        self.view.say("all requests have ended")

    def watch(self, urgent: list[str], fleet: Fleet, others: Workers, log: Path) -> None:
        """Waits for the lake's requests; kills a worker and submits urgent orders meanwhile."""
        found = self.found
        while (share := self.done(self.countries)) < 1 or not found.killed or not found.urgent_s:
            self.view.now_and_then(f"{share:4.0%} done")
            if share >= KILL_AT and not found.killed:
                found.killed, found.killed_at = kill_one(self.queue, others.pids), share
                self.view.say(f"{share:4.0%} done, and kill -9 of worker {found.killed}")
            if share >= URGENT_AT and not found.urgent_s:
                found.urgent_s, found.urgent_at = self.hurry(urgent), share
                back = f"{len(urgent)} urgent orders are back after {found.urgent_s:.3f} s"
                self.view.say(f"{share:4.0%} done, and {back}")
            self.check(fleet, log)
            time.sleep(LOOK_S)

    def hurry(self, texts: list[str]) -> float:
        """Submits urgent orders as a web program does; returns the seconds until all are back."""
        began = time.monotonic()
        request = self.queue.submit_request(
            texts, id=f"urgent-{self.run_id}", priority=0, limit=3, retain=RETAIN
        )
        results = list(request.results(timeout=60))
        if len(results) != len(texts):
            raise DemoFailed(f"{len(texts)} urgent orders have {len(results)} results")
        return time.monotonic() - began

    def seal(self, stream: Any) -> None:
        """Ends the stream, and seals its request by a write without rows."""
        stream.stop()
        nothing = self.spark.createDataFrame([], ORDER)
        target = self.target("till", priority=20)
        nothing.write.format("fairlane").options(**target).mode("append").save()

    def wait_for(self, names: list[str], fleet: Fleet, log: Path) -> None:
        """Waits until these requests have ended."""
        while self.done(names) < 1:
            self.check(fleet, log)
            time.sleep(LOOK_S)

    def check(self, fleet: Fleet, log: Path) -> None:
        """Raises what ended the fleet, and after the timeout."""
        fleet.check()
        if time.monotonic() > self.until:
            raise DemoFailed(f"the requests had not ended in time; see {log}")

    def done(self, names: list[str]) -> float:
        """Returns how much of these requests is settled; 1 when all have ended."""
        requests = [self.queue.request(name).progress() for name in names]
        total = sum(progress.total for progress in requests)
        left = sum(progress.left for progress in requests)
        if total and not left and not all(progress.ended for progress in requests):
            return 0.999
        return 1 - left / total if total else 1.0

    # ------------------------------------------------------------------ out of the queue

    def results(self) -> DataFrame:
        """Returns the results of all requests of this run, with the id of each order."""
        from pyspark.sql import functions as sql

        reader = self.spark.read.format("fairlane").option("redis", self.queue.driver.url)
        rows = reader.options(queue=QUEUE, request=f"*-{self.run_id}").load()
        first = self.found.shares.files + self.found.shares.stream
        by_place = sql.col("index") + first  # of the urgent orders, which were not Spark's
        return rows.withColumn("id", sql.coalesce(sql.col("key").cast("long"), by_place))

    def repair(self) -> None:
        """Puts the dead orders into quarantine, repairs them by Spark, and runs them again."""
        place = str(self.out / "quarantine")
        dead = self.results().where("status = 'dead'").select("id", "request", "error")
        dead.join(self.orders(), "id").write.parquet(place)
        quarantine = self.spark.read.parquet(place)
        self.found.dead = quarantine.count()
        self.view.say(f"{self.found.dead:,} dead orders are in {near(Path(place))}")
        fixed = quarantine.select("id", repaired(quarantine.text).alias("text"))
        target = self.target("repaired", priority=1)
        fixed.write.format("fairlane").options(**target).mode("append").save()
        with Fleet(self.spark, self.queue, FLEET) as fleet:
            self.wait_for([f"repaired-{self.run_id}"], fleet, self.out / "workers.log")
        self.view.say("they are repaired and have run again")

    def orders(self) -> DataFrame:
        """Returns id and text of the orders of the lake and of the till."""
        lake = self.spark.read.parquet(str(self.out / "lake")).select("id", "text")
        return lake.unionAll(
            self.spark.read.parquet(str(self.out / "incoming")).select("id", "text")
        )

    def close(self, urgent: list[str]) -> int:
        """Archives, reports, compares with Spark alone, and prints the table."""
        from fairlane import archive, report

        results = self.results().persist()
        kept = archive.write(self.out / "archive", [QUEUE], redis=self.queue.driver.url)
        made = report.make(
            self.out / "archive", self.out / "report", since=self.began, targets=TARGETS
        )
        self.view.say(f"{kept.results:,} results are in {near(self.out / 'archive')}")
        first = self.found.shares.files + self.found.shares.stream
        hurried = self.spark.createDataFrame(list(enumerate(urgent, first)), "id long, text string")
        answers = answered(results).persist()
        expected = alone(self.orders().unionAll(hurried)).persist()
        different = differing(answers, expected)
        sums = [totals(frame) for frame in (answers, expected)]
        print("\n".join(["", *self.table(results, sums, different), ""]))
        print(f"report   {near(made.page)}")
        if different or sums[0] != sums[1]:
            raise DemoFailed(f"Spark alone computes another answer: {different:,} rows differ")
        return 0

    def table(self, results: DataFrame, sums: list[dict[str, int]], different: int) -> list[str]:
        """Returns the lines of the table."""
        from pyspark.sql import functions as sql

        found, shares = self.found, self.found.shares
        slow = results.request.isin(self.countries)
        retried, median_ms = results.agg(
            sql.count_if(results.attempt > 1),
            sql.percentile_approx(sql.when(slow, results.total_ms), 0.5),
        ).first()
        rows = sum(shares)
        again = sums[0]["rows"] - (rows - found.dead)
        parts = f"{shares.files:,} of files, {shares.stream:,} by a stream, {shares.urgent} urgent"
        killed = f"kill -9 of one of {FLEET} workers on Spark, at {found.killed_at:.0%}"
        urgent = f"all {shares.urgent} back, submitted at {found.urgent_at:.0%}; a row of the files"
        notes = {
            "rows": (f"{rows:,}", parts),
            "seconds": (
                f"{self.view.seconds:.1f}",
                f"in all; {found.worked_s:.1f} of work on the files",
            ),
            "killed": ("1", killed),
            "urgent": (f"{found.urgent_s:.3f} s", f"{urgent}: {median_ms / 1000:.1f} s (median)"),
            "retried": (f"{retried:,}", "failed at the first attempt, as calls do"),
            "dead": (f"{found.dead:,}", "quarantined with key, text and error"),
            "repaired": (f"{again:,}", "rewritten by Spark, and run again"),
        }
        shown = [f"{name:<10}{value:>12}   {note}" for name, (value, note) in notes.items()]
        shown += [f"{'':<10}{'queue':>16}{'Spark alone':>16}{'difference':>13}"]
        for name, value in sums[0].items():
            other = sums[1][name]
            shown.append(f"{name:<10}{value:>16,}{other:>16,}{value - other:>13,}")
        return [*shown, f"{'rows that are not equal':<42}{different:>13,}"]


def totals(answers: DataFrame) -> dict[str, int]:
    """Returns the number of orders, of items and of cents."""
    row = answers.selectExpr("count(*) AS rows", "sum(items) AS items", "sum(cents) AS cents")
    return {name: int(value or 0) for name, value in row.first().asDict().items()}


if __name__ == "__main__":
    sys.exit(main())
