"""Spark at both ends of a queue and as its workers: `make demo-spark`.

Spark reads the standard library's sources (and, with --log-lines, as many GB of log lines as you
like) and splits them; every package becomes a request with its own priority and limit. Plain
workers and a Spark fleet share the work; Spark reads the archive in order and adds up. At the end
Spark computes the same alone: both answers must be equal to the row. Needs Java only:
without --redis or FAIRLANE_REDIS it starts Fairlane's embedded server.
"""

from __future__ import annotations

import argparse
import secrets
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from borrowed import Workers, cancelled_unless_ended, end_as_by_ctrl_c, near
from comparing import answered, by_request, differing, plain
from counting import WORDS
from helping import HERE, Fleet, View, kill_one
from reading import corpus, logs, make_logs

from fairlane import FairlaneError, Queue
from fairlane.queue import resolve_url

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

QUEUE = "demo-spark"  # of its own: it does not mix with other work
LOOK_S = 0.1
KILL_AT = 0.25  # of all texts
TARGETS = {0: "2s", 1: "2s", 2: "2s"}  # urgent texts should not wait for longer


class DemoFailed(Exception):
    """Reports a promise that the demo did not keep."""


def main() -> int:
    options = arguments()
    end_as_by_ctrl_c()
    try:
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
    parser.add_argument("--files", type=int, metavar="N", help="at most N files, from all over")
    parser.add_argument(
        "--log-lines", type=float, metavar="GB", help="so many GB of log lines, too"
    )
    parser.add_argument("--kill", action="store_true", help="kill a worker of the fleet half-way")
    parser.add_argument("--fleet", type=int, default=2, metavar="N", help="workers on Spark")
    parser.add_argument("--workers", type=int, default=1, metavar="N", help="plain workers")
    parser.add_argument("--out", type=Path, default=HERE / "out", metavar="DIR")
    parser.add_argument("--timeout", type=float, default=1800, metavar="S")
    return parser.parse_args()


def demo(options: argparse.Namespace) -> int:
    from fairlane.spark import session
    from fairlane.spark.spark_session import quiet_java

    view, url, run = View(), resolve_url(options.redis), secrets.token_hex(3)
    options.out.mkdir(parents=True, exist_ok=True)
    for name in ("archive", "report", "checkpoint"):
        shutil.rmtree(options.out / name, ignore_errors=True)
    view.say("Spark starts on this machine")
    # A failed Spark task is retried three times, because a worker may be killed.
    with quiet_java():
        spark = session(f"local[{options.fleet},4]", "fairlane demo", {"spark.log.level": "OFF"})
    for name in ("counting.py", "reading.py"):  # executors import them
        spark.sparkContext.addPyFile(str(HERE / name))
    with Queue.from_url(url, name=QUEUE) as queue, cancelled_unless_ended(queue):
        texts = read(spark, options, run, view).persist()
        ids = submit(texts, url, view)
        summary = work(spark, queue, ids, options, view)
        collected = collect(spark, url, options.out, ids, view)
        return close(texts, collected, queue, ids, summary, options.out, view)


def read(spark: SparkSession, options: argparse.Namespace, run: str, view: View) -> DataFrame:
    """Returns all texts, of the standard library and of log files."""
    texts = corpus(spark, run, options.files)
    if options.log_lines:
        folder = options.out / f"logs-{options.log_lines:g}"
        if not (folder / "_SUCCESS").exists():
            view.say(f"Spark makes {options.log_lines:g} GB of log lines")
            make_logs(spark, folder, options.log_lines)
        texts = texts.unionByName(logs(spark, run, folder))
    return texts


def submit(texts: DataFrame, url: str, view: View) -> list[str]:
    """Submits a request for each package; returns their ids."""
    view.say("Spark reads, splits and submits")
    began = time.monotonic()
    options = {"redis": url, "queue": QUEUE, "requestColumn": "request", "bodyColumn": "body"}
    options |= {"priorityColumn": "priority", "limitColumn": "limit"}
    sent = texts.select("request", "body", "priority", "limit")
    sent.write.format("fairlane").options(**options).mode("append").save()
    ids = [name for (name,) in texts.select("request").distinct().orderBy("request").collect()]
    seconds = time.monotonic() - began
    view.say(f"{texts.count():,} texts are submitted in {len(ids)} requests ({seconds:.1f} s)")
    return ids


def work(
    spark: SparkSession, queue: Queue, ids: list[str], options: argparse.Namespace, view: View
) -> list[dict[str, Any]]:
    """Runs plain workers and the fleet until all requests have ended; returns the summary."""
    url, log = queue.driver.url, options.out / "workers.log"
    with (
        Fleet(spark, url, QUEUE, options.fleet) as fleet,
        fleet.begun(queue),  # plain workers start faster, so they wait for the fleet
        Workers(
            options.workers, "counting:count", folder=HERE, url=url, queue=QUEUE, log=log
        ) as others,
    ):
        view.say(f"{options.workers} plain workers and {options.fleet} on Spark begin")
        until, to_kill = time.monotonic() + options.timeout, options.kill
        while (share := done(queue, ids)) < 1:
            view.now_and_then(f"{share:4.0%} done")
            if to_kill and share >= KILL_AT and (killed := kill_one(queue, others.pids)):
                to_kill = False
                view.say(f"{share:4.0%} done, and killed: kill -9 of {killed}")
            if time.monotonic() > until:
                raise DemoFailed(f"not ended after {options.timeout:g} s; see {log}")
            if fleet.error is not None:
                raise fleet.error
            time.sleep(LOOK_S)
        view.say("all requests have ended")
    if options.kill and to_kill:
        raise DemoFailed("the work ended before a worker was killed: give more, as --log-lines 0.2")
    return fleet.summary


def done(queue: Queue, ids: list[str]) -> float:
    """Returns how much of all is settled, 0 to 1."""
    requests = [queue.request(name).progress() for name in ids]
    total = sum(progress.total for progress in requests)
    left = sum(progress.left for progress in requests)
    if total and not left and not all(progress.ended for progress in requests):
        return 0.999
    return 1 - left / total if total else 1.0


def collect(spark: SparkSession, url: str, out: Path, ids: list[str], view: View) -> DataFrame:
    """Archives endings and results to Parquet; returns the results of this run, in order."""
    from fairlane import archive

    archive.write(out / "archive", [QUEUE], redis=url)
    view.say(f"archived to {near(out / 'archive')}")
    results = spark.read.parquet(*archive.files(out / "archive", "results"))
    return results.where(results["request"].isin(ids)).orderBy("request", "index")


def close(
    texts: DataFrame, collected: DataFrame, queue: Queue, ids: list[str],
    summary: list[dict[str, Any]], out: Path, view: View,
) -> int:  # fmt: skip
    """Prints the findings. Raises DemoFailed for a broken promise."""
    from fairlane import report

    answers, alone = answered(collected).persist(), plain(texts).persist()
    rows = differing(answers, alone)
    sums = differing(by_request(answers), by_request(alone))
    view.say("computed again by Spark alone, and compared")
    made = report.make(out / "archive", out / "report", targets=TARGETS)
    print("\n".join(["", *table(queue, ids, by_request(answers)), ""]))
    by_fleet = {row["worker"] for row in summary}
    shares = collected.groupBy("worker").count().collect()
    for worker, count in sorted(shares, key=lambda row: -row[1]):
        kind = "fleet" if worker in by_fleet else "plain, or killed"
        print(f"  {count:>8,} texts by {worker} ({kind})")
    print(f"\nreport   {near(made.page)}")
    wrong = {"texts": rows, "sums of requests": sums}
    if any(wrong.values()):
        differences = ", ".join(f"{count:,} {name}" for name, count in wrong.items() if count)
        raise DemoFailed(f"Spark alone computes another answer: {differences} differ")
    print(f"equal    {answers.count():,} rows and {len(ids)} sums, by the queue and by Spark alone")
    return 0


def table(queue: Queue, ids: list[str], sums: DataFrame) -> list[str]:
    """Returns the lines of the biggest requests, with their counts."""
    sums_of = {row["request"]: row for row in sums.collect()}
    rows = sorted(ids, key=lambda name: -sums_of[name]["lines"])
    shown = ("def", "class", "import", "ERROR")
    head = f"{'request':<28}{'priority':>9}{'limit':>7}{'texts':>8}{'lines':>12}{'words':>12}"
    lines = [head + "".join(f"{word:>9}" for word in shown)]
    for name in rows[:12]:
        progress, row = queue.request(name).progress(), sums_of[name]
        lines.append(
            f"{name:<28}{progress.priority:>9}{progress.limit:>7}{row['texts']:>8,}{row['lines']:>12,}"
            f"{row['words']:>12,}" + "".join(f"{row[word]:>9,}" for word in shown)
        )
    left_out = len(rows) - 12
    total = {
        name: sum(row[name] for row in sums_of.values())
        for name in ("texts", "lines", "words", *WORDS)
    }
    lines.append(f"... and {left_out} more requests" if left_out > 0 else "")
    lines.append(
        f"{'all':<44}{total['texts']:>8,}{total['lines']:>12,}{total['words']:>12,}"
        + "".join(f"{total[word]:>9,}" for word in shown)
    )
    return lines


if __name__ == "__main__":
    sys.exit(main())
