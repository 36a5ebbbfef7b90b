"""See Fairlane work: `make demo`.

Three requests over the source files of the standard library, and real workers: the urgent one is
submitted last, overtakes and ends first. Needs nothing: without --redis or FAIRLANE_REDIS it
starts Fairlane's embedded server. Prints a table; writes every request's results, in input order.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from around import cancelled_unless_ended, end_as_by_ctrl_c, near
from asked import SOME, Asked, plan
from live import live
from table import findings_of, imported, longest, table, timeline, total
from workers import Workers

from fairlane import FairlaneError, Queue
from fairlane.queue import resolve_url
from fairlane.settings import redis_url

if TYPE_CHECKING:
    from live import Bars, Lines

HERE = Path(__file__).resolve().parent
QUEUE = "demo-corpus"  # of its own: it does not mix with anybody's work
HANDLER = "measure:measure"  # importable, as the workers run in this folder
LOOK_S = 0.1


class DemoFailed(Exception):
    """The demo did not show what it promises."""


def main() -> int:
    given = arguments()
    end_as_by_ctrl_c()
    try:
        return demo(given)
    except KeyboardInterrupt:
        tell("interrupted: the requests are cancelled, the workers have drained")
        return 130
    except (DemoFailed, FairlaneError) as error:
        tell(str(error))
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


def demo(given: argparse.Namespace) -> int:
    url = resolve_url(given.redis)
    if redis_url(given.redis) is None:
        tell("Redis is the embedded server; it keeps running (to end it: fairlane server stop)")
    given.out.mkdir(parents=True, exist_ok=True)
    asked = plan(given.files)
    # Should the demo be killed, they end by themselves when its requests have: --until-idle.
    workers = Workers(
        given.workers, HANDLER, "--processes", str(given.processes), "--until-idle",
        folder=HERE, url=url, queue=QUEUE, log=given.out / "workers.log",
    )  # fmt: skip
    with Queue.from_url(url, name=QUEUE) as queue, cancelled_unless_ended(queue):
        asked[0].submit(queue)  # before the workers, which leave when there is nothing to do
        tell(
            f"{given.workers} workers with {given.processes} processes each; "
            f"bulk is submitted: {len(asked[0].paths):,} files"
        )
        with workers, live(asked) as view:
            run(queue, asked, workers, view, given.timeout)
    close(asked, given.out)
    return 0


def run(
    queue: Queue, asked: tuple[Asked, ...], workers: Workers, view: Bars | Lines, timeout: float
) -> None:
    """Submits middle and urgent when it is their turn, and looks until all have ended."""
    bulk, middle, urgent = asked
    until = time.monotonic() + timeout
    while not all(one.ended for one in asked):
        if middle.request is None and bulk.share >= 0.2:
            middle.submit(queue)
            view.say(f"middle is submitted: {len(middle.paths)} files of {', '.join(SOME)}")
        if urgent.request is None and middle.share >= 0.3:
            urgent.submit(queue)
            view.say("urgent is submitted: what is the longest function of asyncio?")
        were_gone = workers.are_gone  # known before the look: they leave when all has ended
        for one in asked:
            one.look()
        view.show()
        for one in asked:
            if one.ended and not one.results:
                collect(one, bulk, view)
        if were_gone and not all(one.ended for one in asked):
            raise DemoFailed(f"every worker has ended before its time; they said:\n{workers.said}")
        if time.monotonic() > until:
            raise DemoFailed(f"not ended after {timeout:g} s; the workers said:\n{workers.said}")
        time.sleep(LOOK_S)


def collect(one: Asked, bulk: Asked, view: Bars | Lines) -> None:
    """A request has ended: its results, and what they say."""
    assert one.request is not None
    one.results = list(one.request.results())
    answer = ""
    if one.name == "urgent":
        answer = f": {', '.join(longest(findings_of(one.results)))}"
    beside = "" if one is bulk else f"  [bulk: {bulk.share:.0%}]"
    view.say(f"{one.name} has ended{answer}{beside}")


def close(asked: tuple[Asked, ...], out: Path) -> None:
    """Writes the results, prints the table and the findings, and holds the demo to its promises."""
    for one in asked:
        write(one, out / f"{one.name}.ndjson")
    rows = sorted((one.row() for one in asked), key=lambda row: row.last)
    print("\n".join(["", *table(rows), "", *timeline(rows), ""]))
    print("\n".join(findings(asked, out)))
    wrong = [sentence for one in asked for sentence in complaints(one, out)]
    bulk, _, urgent = asked
    if ended_ms(urgent) >= ended_ms(bulk):
        wrong.append("urgent did not end before bulk")
    if wrong:
        raise DemoFailed("; ".join(wrong))
    ahead = (ended_ms(bulk) - ended_ms(urgent)) / 1000
    print(f"\nok: urgent was submitted last and ended {ahead:.1f} s before bulk")


def ended_ms(one: Asked) -> int:
    return one.progress.ended_ms if one.progress else 0


def write(one: Asked, target: Path) -> None:
    """The results in input order, one JSON object a line."""
    with target.open("wb") as file:
        for result in one.results:
            file.write((result.body or b"null") + b"\n")


def complaints(one: Asked, out: Path) -> list[str]:
    """What is not as it should be."""
    row = one.row()
    found = findings_of(one.results)
    checks = {
        "some are dead": row.dead == 0,
        "the results are not in input order": [each["path"] for each in found] == one.paths,
        "more workers than the limit": row.at_once <= row.limit,
        "not every result was written": lines_of(out / f"{one.name}.ndjson") == len(one.paths),
    }
    return [f"{one.name}: {what}" for what, is_well in checks.items() if not is_well]


def lines_of(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else -1


def findings(asked: tuple[Asked, ...], out: Path) -> list[str]:
    bulk, _, urgent = asked
    found = findings_of(bulk.results)
    facts = {
        "measured": f"{len(found):,} files, {total(found, 'lines'):,} lines, "
        f"{total(found, 'tokens'):,} tokens, {total(found, 'functions'):,} functions",
        "not parsable": f"{sum('error' in one for one in found)} files (results with an error)",
        "longest": "; ".join(longest(found, 2)),
        "in asyncio": "; ".join(longest(findings_of(urgent.results))),
        "most imported": ", ".join(imported(found)),
        "results": f"{near(out)}/{{{','.join(one.name for one in asked)}}}.ndjson",
    }
    return [f"{name:<14} {text}" for name, text in facts.items()]


def tell(sentence: str) -> None:
    print(f"demo: {sentence}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
