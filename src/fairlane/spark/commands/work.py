"""`fairlane spark work`: Spark's executors work on a queue until it is idle or a signal comes."""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any

import click

from fairlane.cli.options import json_option, queue_option, redis_option, time_limit_ms, time_ms
from fairlane.cli.output import note, write_json, write_line
from fairlane.errors import FairlaneError
from fairlane.spark.commands.session import in_one_sentence, master_option, redis_for, spark_session

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

_INPUTS = ("bytes", "table", "pandas", "rows")
_LOOK_S = 0.2


@click.command("work", short_help="Let Spark's executors work on a queue.")
@click.option(
    "--handler", metavar="MODULE:FUNCTION", required=True,
    help="What is called; executors must be able to import it, too.",
)  # fmt: skip
@click.option(
    "--input", "input_kind", type=click.Choice(_INPUTS), default="bytes", show_default=True,
    help="bytes: one body; table, pandas: a slice per call; rows: dicts.",
)  # fmt: skip
@click.option("--workers", type=int, metavar="N", help="Spark tasks.  [default: its cores]")
@click.option("--name", metavar="NAME", default="fleet", show_default=True, help="For spark stop.")
@click.option("--until-idle", is_flag=True, help="End when nothing is left to do.")
@click.option(
    "--max-idle", metavar="TIME", default="30s", show_default=True,
    help="A worker without work for so long ends; `never` is possible.",
)  # fmt: skip
@click.option("--max-runtime", metavar="TIME", help="A worker ends after so long.")
@click.option("--slice", "slice_", metavar="TIME", help="How long a lease's work should take.")
@click.option("--time-limit", metavar="TIME", help="A call of the handler may take so long.")
@queue_option
@master_option
@json_option
@redis_option
def command(
    handler: str,
    input_kind: str,
    master: str | None,
    redis: str | None,
    as_json: bool,
    **chosen: Any,
) -> int:
    """Work on a queue with Spark. SIGTERM or Ctrl-C finishes what is held and ends.

    Prints a line for each worker: what it took, done and failed, and its time in the handler.
    """
    from fairlane.protocol.keys import check_name

    check_name("fleet", chosen["name"])
    check_name("queue", chosen["queue"])
    function = _find(handler)
    options = _options(**chosen)
    url = redis_for(master, redis)
    with spark_session(master, f"work {chosen['queue']}") as spark:
        rows = Run(spark, function, {"redis": url, "input": input_kind, **options}).wait()
    for row in rows:
        if as_json:
            write_json(row)
        else:
            write_line("  ".join(f"{name} {value}" for name, value in row.items()))
    note(f"the fleet has ended: {sum(row['done'] for row in rows):,} done")
    return 0


def _options(
    *, workers: int | None, name: str, until_idle: bool, max_idle: str, max_runtime: str | None,
    slice_: str | None, time_limit: str | None, queue: str,
) -> dict[str, Any]:  # fmt: skip
    idle = None if max_idle == "never" else time_ms("--max-idle", max_idle, "1s", "366d") / 1000
    options: dict[str, Any] = {"workers": workers, "name": name, "queue": queue}
    options |= {"until_idle": until_idle, "max_idle_s": idle}
    if max_runtime is not None:
        options["max_runtime_s"] = time_ms("--max-runtime", max_runtime, "1s", "366d") / 1000
    if slice_ is not None:
        options["slice_s"] = time_ms("--slice", slice_, "0s", "10s") / 1000
    if time_limit is not None:
        options["time_limit_s"] = time_limit_ms(time_limit) / 1000
    return options


def _find(handler: str) -> Callable[..., Any]:
    """Imports the handler, also from the current directory. Raises HandlerNotFound."""
    here = os.getcwd()  # noqa: PTH109  sys.path holds text
    if here not in sys.path:
        sys.path.insert(0, here)
    from fairlane.worker import handlers

    return handlers.load(handler)


class Run:
    """Runs a fleet in a thread of its own, while the main thread handles signals."""

    def __init__(
        self, spark: SparkSession, handler: Callable[..., Any], options: dict[str, Any]
    ) -> None:
        self._spark, self._handler, self._options = spark, handler, options
        self._rows: list[dict[str, Any]] = []
        self._error: BaseException | None = None
        self._signals = 0

    def wait(self) -> list[dict[str, Any]]:
        """Returns the workers' summaries. Raises what the fleet raised."""
        before = [
            (number, signal.signal(number, self._count))
            for number in (signal.SIGTERM, signal.SIGINT)
        ]
        thread = threading.Thread(target=self._work)
        thread.start()
        try:
            self._look(thread)
        finally:
            for number, handler in before:
                signal.signal(number, handler)
        if self._signals > 1:
            raise KeyboardInterrupt("the fleet was stopped") from None
        if self._error is not None:
            with in_one_sentence():
                raise self._error
        return self._rows

    def _work(self) -> None:
        from fairlane.spark.fleet import run_fleet

        try:
            summaries = run_fleet(self._spark, self._handler, **self._options)
            self._rows = [row.asDict() for row in summaries.collect()]
        except BaseException as error:  # noqa: BLE001  raised in the thread that waits
            self._error = error

    def _count(self, *_: object) -> None:
        self._signals += 1

    def _look(self, thread: threading.Thread) -> None:
        handled = 0
        while thread.is_alive():
            thread.join(_LOOK_S)
            if self._signals == handled:
                continue
            handled += 1
            if handled == 1:
                self._stop()
            else:
                from fairlane.spark.fleet import cancel_fleet

                note(
                    "the fleet stops now; what it held goes to other workers when its leases expire"
                )
                cancel_fleet(self._spark, self._options["name"])

    def _stop(self) -> None:
        from fairlane.spark.fleet import stop_fleet

        name = self._options["name"]
        note(f"fleet {name} drains: it finishes what it holds; a second signal stops it now")
        try:
            stop_fleet(name, redis=self._options["redis"], queue=self._options["queue"])
        except FairlaneError as error:
            note(f"{error}; a second signal stops it")
