"""See Fairlane work: `make demo`.

Three requests over the source files of the standard library, and real workers: the urgent one is
submitted last, overtakes and ends first. Without --redis or FAIRLANE_REDIS it
starts Fairlane's embedded server. Prints a table; writes every request's results, in input order.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from around import cancelled_unless_ended, end_as_by_ctrl_c, near
from demo_requests import SOME, DemoRequest, plan
from table import Finding, findings_of, imported, longest, table, timeline, total
from workers import Workers

from fairlane import FairlaneError, Queue
from fairlane.queue import resolve_url
from fairlane.settings import redis_url
from live import live

if TYPE_CHECKING:
    from live import Bars, Lines

HERE = Path(__file__).resolve().parent
QUEUE = "demo-corpus"  # of its own: it does not mix with other work
HANDLER = "measure:measure"  # importable, as the workers run in this folder
LOOK_S = 0.1


class DemoFailed(Exception):
    """Reports a promise that the demo did not keep."""


def main() -> int:
    options = arguments()
    end_as_by_ctrl_c()
    try:
        return demo(options)
    except KeyboardInterrupt:
        note("interrupted: the requests are cancelled, the workers have drained")
        return 130
    except (DemoFailed, FairlaneError) as error:
        note(str(error))
        return getattr(error, "exit_code", 1)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--redis", metavar="URL", help="default: FAIRLANE_REDIS, else embedded")
    parser.add_argument("--files", type=int, metavar="N", help="at most N files, from all over")
    parser.add_argument("--out", type=Path, default=HERE / "out", metavar="DIR", help="results")
    parser.add_argument("--workers", type=int, default=2, metavar="N")
    parser.add_argument("--processes", type=int, default=2, metavar="N", help="of each worker")
    parser.add_argument("--timeout", type=float, default=300, metavar="S")
    return parser.parse_args()


def demo(options: argparse.Namespace) -> int:
    url = resolve_url(options.redis)
    if redis_url(options.redis) is None:
        note("Redis is the embedded server; it keeps running (to end it: fairlane server stop)")
    options.out.mkdir(parents=True, exist_ok=True)
    requests = plan(options.files)
    # --until-idle: if the demo is killed, its workers end when its requests have ended.
    workers = Workers(
        options.workers, HANDLER, "--processes", str(options.processes), "--until-idle",
        folder=HERE, url=url, queue=QUEUE, log=options.out / "workers.log",
    )  # fmt: skip
    with Queue.from_url(url, name=QUEUE) as queue, cancelled_unless_ended(queue):
        requests[0].submit(queue)  # before the workers, which leave when there is nothing to do
        note(
            f"{options.workers} workers with {options.processes} processes each; "
            f"bulk is submitted: {len(requests[0].paths):,} files"
        )
        note(f"watch it in a browser: fairlane serve --queue {QUEUE} (extra web)")
        with workers, live(requests) as view:
            run(queue, requests, workers, view, options.timeout)
    close(requests, options.out)
    return 0


def run(
    queue: Queue,
    requests: tuple[DemoRequest, ...],
    workers: Workers,
    view: Bars | Lines,
    timeout: float,
) -> None:
    """Submits middle and urgent when it is their turn, and waits until all have ended."""
    bulk, middle, urgent = requests
    until = time.monotonic() + timeout
    while not all(request.ended for request in requests):
        if middle.request is None and bulk.share >= 0.2:
            middle.submit(queue)
            view.say(f"middle is submitted: {len(middle.paths)} files of {', '.join(SOME)}")
        if urgent.request is None and middle.share >= 0.3:
            urgent.submit(queue)
            view.say("urgent is submitted: what is the longest function of asyncio?")
        were_gone = workers.are_gone  # read before the progress: workers leave when all has ended
        for request in requests:
            request.look()
        view.show()
        for request in requests:
            if request.ended and not request.results:
                collect(request, bulk, view)
        if were_gone and not all(request.ended for request in requests):
            raise DemoFailed(
                f"every worker has ended before its time; the end of its log:\n{workers.log_end}"
            )
        if time.monotonic() > until:
            raise DemoFailed(
                f"not ended after {timeout:g} s; the end of the log:\n{workers.log_end}"
            )
        time.sleep(LOOK_S)


def collect(request: DemoRequest, bulk: DemoRequest, view: Bars | Lines) -> None:
    """Reads the results of an ended request, and prints what they show."""
    assert request.request is not None
    request.results = list(request.request.results())
    answer = ""
    if request.name == "urgent":
        answer = f": {', '.join(longest(findings_of(request.results)))}"
    beside = "" if request is bulk else f"  [bulk: {bulk.share:.0%}]"
    view.say(f"{request.name} has ended{answer}{beside}")


def close(requests: tuple[DemoRequest, ...], out: Path) -> None:
    """Writes the results, prints table and findings. Raises DemoFailed for a broken promise."""
    for request in requests:
        write(request, out / f"{request.name}.ndjson")
    rows = sorted((request.row() for request in requests), key=lambda row: row.last)
    print("\n".join(["", *table(rows), "", *timeline(rows), ""]))
    print("\n".join(findings(requests, out)))
    wrong = [sentence for request in requests for sentence in complaints(request, out)]
    bulk, _, urgent = requests
    if ended_ms(urgent) >= ended_ms(bulk):
        wrong.append("urgent did not end before bulk")
    if wrong:
        raise DemoFailed("; ".join(wrong))
    ahead = (ended_ms(bulk) - ended_ms(urgent)) / 1000
    print(f"\nok: urgent was submitted last and ended {ahead:.1f} s before bulk")


def ended_ms(request: DemoRequest) -> int:
    return (request.progress.ended_ms or 0) if request.progress else 0


def write(request: DemoRequest, target: Path) -> None:
    """Writes the results in input order, one JSON object a line."""
    with target.open("wb") as file:
        for result in request.results:
            file.write((result.body or b"null") + b"\n")


def complaints(request: DemoRequest, out: Path) -> list[str]:
    """Returns the promises that a request breaks."""
    row = request.row()
    measured = findings_of(request.results)
    checks = {
        "some are dead": row.dead == 0,
        "the results are not in input order": [finding["path"] for finding in measured]
        == request.paths,
        "more workers than the limit": row.peak <= row.limit,
        "not every result was written": lines_of(out / f"{request.name}.ndjson")
        == len(request.paths),
    }
    return [f"{request.name}: {problem}" for problem, is_well in checks.items() if not is_well]


def lines_of(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else -1


def findings(requests: tuple[DemoRequest, ...], out: Path) -> list[str]:
    bulk, _, urgent = requests
    measured = findings_of(bulk.results)
    facts = {
        "measured": f"{len(measured):,} files, {total(measured, 'lines'):,} lines, "
        f"{total(measured, 'tokens'):,} tokens, {total(measured, 'functions'):,} functions",
        "not parsable": f"{sum(map(has_error, measured))} files (results with an error)",
        "longest": "; ".join(longest(measured, 2)),
        "in asyncio": "; ".join(longest(findings_of(urgent.results))),
        "most imported": ", ".join(imported(measured)),
        "results": f"{near(out)}/{{{','.join(request.name for request in requests)}}}.ndjson",
    }
    return [f"{name:<14} {text}" for name, text in facts.items()]


def has_error(finding: Finding) -> bool:
    return "error" in finding


def note(sentence: str) -> None:
    print(f"demo: {sentence}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
