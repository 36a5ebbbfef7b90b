"""Compares all requests that went in with all results that came out."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fairlane.errors import RequestNotFound
from fairlane.operations.shards import served
from fairlane.protocol import keys
from fairlane.protocol.steps import Command
from tests.chaos.evidence.journal import read
from tests.chaos.evidence.overlap import Overlap, over_limit
from tests.chaos.producers.handlers import body_of, name_of
from tests.support.processes.workers import broken
from tests.support.run.teardown import _is_stray
from tests.support.scripts.requests import is_sharded, once

if TYPE_CHECKING:
    from collections.abc import Iterator

    import redis

    from fairlane.queue import Queue
    from fairlane.records import Result
    from tests.chaos.evidence.journal import Execution, Journal
    from tests.chaos.faults.fleet import Fleet
    from tests.chaos.producers.load import Load, Submitted

_SHOWN = 5
_PAGE = 500
_TRIED = b"done:{?}"  # where a worker that starts checks its right to publish
_CHANNELS = 2_000  # of the first requests; more than a short run has


class Ear:
    """Counts how often each request's end is published."""

    def __init__(self, client: redis.Redis) -> None:
        self.published: Counter[int] = Counter()
        self._client = client
        self._subscription = client.pubsub()
        if is_sharded(client):  # there a pattern receives nothing
            for number in range(_CHANNELS):
                self._subscription.ssubscribe(keys.done_channel(name_of(number)))
        else:
            self._subscription.psubscribe("done:*")
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        while not self._over.is_set():
            message = self._subscription.get_message(timeout=0.2)
            if not message or message["type"] not in {"pmessage", "smessage"}:
                continue
            channel = message["channel"]
            if channel != _TRIED:
                self.published[int(channel[len("done:{c") : -1])] += 1

    def close(self) -> None:
        """Ends the thread; a repeat is a no-op."""
        self._over.set()
        self._thread.join()
        self._subscription.close()
        self._client.close()


@dataclass
class Report:
    """What was observed; `wrong` counts what must never be."""

    figures: dict[str, Any] = field(default_factory=dict)
    wrong: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    examples: list[str] = field(default_factory=list)

    def fault(self, what: str, example: object = "", count: int = 1) -> None:
        self.wrong[what] += count
        if len(self.examples) < 40 and self.wrong[what] <= _SHOWN:
            self.examples.append(f"{what}: {example}")

    def add(self, **figures: Any) -> Report:
        self.figures |= figures
        return self

    @property
    def is_good(self) -> bool:
        return not any(self.wrong.values())

    def lines(self) -> Iterator[str]:
        for name, value in self.figures.items():
            shown = f"{value:,}" if isinstance(value, int) else str(value)
            yield f"  {name:<46} {shown}"
        for name in WRONG:
            yield f"  {name:<46} {self.wrong.get(name, 0):,}"
        for name in sorted(set(self.wrong) - set(WRONG)):
            yield f"  {name:<46} {self.wrong[name]:,}"
        yield from (f"  ! {example}" for example in self.examples)


WRONG = (
    "lost",
    "unexpected",
    "counted twice",
    "dead",
    "completions other than one",
    "limit overlapped by workers not stopped",
    "requests the script check objects to",
    "keys left without a TTL",
)


@dataclass
class Check:
    """Checks the end of a run, when nothing works any more and nothing is left to do."""

    queue: Queue
    client: Any
    load: Load
    fleet: Fleet
    report: Report = field(default_factory=Report)
    ear: Ear | None = None
    must_run_once: bool = False  # no fault: no sub-request may run twice
    moments: dict[int, list[int]] = field(default_factory=dict)  # request -> when it completed, ms

    def run(self) -> Report:
        journal = read(self.fleet.journal, self.fleet.deaths)
        counted = {
            number: self._results(one)
            for number, one in self.load.requests.items()
            if number not in self.load.forgotten
        }
        self._executions(journal, counted)
        self._completions()
        self._keys()
        for problem in [*self.fleet.problems, *self.load.problems]:
            self.report.fault("problems of workers and producers", problem)
        return self.report

    # ------------------------------------------------------------------ results

    def _results(self, one: Submitted) -> dict[int, int]:
        """Returns index -> the fence under which its counted result was made."""
        request = self.queue.request(name_of(one.number))
        try:
            progress = request.progress()
        except RequestNotFound:
            self.report.fault("lost", f"request {one}", one.plan.size)
            return {}
        if (progress.state, progress.total) != ("done", one.plan.size):
            self.report.fault("lost", f"{progress} of {one}", one.plan.size)
            return {}
        if progress.done + progress.dead != progress.total:
            self.report.fault("counted twice", progress)
        self._count_stored(one.number)
        found = {}
        expected = 0
        for result in request.results():
            if result.index != expected:
                self.report.fault("lost", f"{one.number}.{expected}", result.index - expected)
            expected = result.index + 1
            fence = self._look_at(one, result)
            if fence is not None:
                found[result.index] = fence
        if expected < one.plan.size:
            self.report.fault("lost", f"{one.number} ends at {expected}", one.plan.size - expected)
        return found

    def _count_stored(self, number: int) -> None:
        """Counts the stored results, because the product's reader would hide a second one."""
        seen: Counter[bytes] = Counter()
        moments = self.moments[number] = []
        first = b"-"
        while page := self._raw(b"XRANGE", keys.results(name_of(number)), first, b"+"):
            first = b"(" + page[-1][0]
            for entry, fields in page:
                moments.append(int(entry.partition(b"-")[0]))
                seen.update(head.partition(b":")[0] for head in fields[::2] if head != b"w")
        for index, times in seen.items():
            if times > 1:
                self.report.fault("counted twice", f"{number}.{index.decode()}", times - 1)

    def _raw(self, *words: Any) -> Any:
        return self.queue.driver.run(once(Command(*words, b"COUNT", _PAGE)))

    def _look_at(self, one: Submitted, result: Result) -> int | None:
        if result.status != "done":
            self.report.fault("dead", f"{one.number}: {result}")
            return None
        body, _, fence = (result.body or b"").rpartition(b" ")
        if body != body_of(one.plan.kind, one.number, result.index):
            self.report.fault("unexpected", f"{one.number}: {result}")
            return None
        return int(fence)

    # ------------------------------------------------------------------ executions

    def _executions(self, journal: Journal, counted: dict[int, dict[int, int]]) -> None:
        """Compares the executions with the counted results and with the limits."""
        raised = cut = cancelled = extra = late_refused = late_counted = attempts = 0
        stopped_overlap, overlap = Overlap(), Overlap()
        for number, fences in counted.items():
            one = self.load.requests[number]
            ran = journal.by_request.get(number, [])
            raised += sum(run.raised for run in ran)
            cut += sum(run.cut for run in ran)
            cancelled += sum(run.cancelled for run in ran)
            extra += sum(not run.raised for run in ran) - len(fences)
            attempts = max(attempts, max((run.attempt for run in ran), default=0))
            finished = {(run.place, run.fence) for run in ran if not run.cut and not run.cancelled}
            for index, fence in fences.items():
                if (index, fence) not in finished:
                    self.report.fault("unexpected", f"{number}.{index} has a result, but never ran")
            awake = []
            for run in ran:
                stopped = self.stopped(run)
                if not stopped:
                    awake.append(run)
                elif stopped == "through" and not run.cut:
                    is_counted = fences.get(run.place) == run.fence
                    late_counted += is_counted
                    late_refused += not is_counted
            stopped_overlap.add(over_limit(ran, one.plan.limit))
            above = over_limit(awake, one.plan.limit)
            overlap.add(above)
            if above.times:
                example = f"request {number}, limit {one.plan.limit}: {above}"
                self.report.fault("limit overlapped by workers not stopped", example, above.times)
        if journal.unexplained:
            self.report.fault("executions that vanished", count=journal.unexplained)
        if self.must_run_once and extra:
            self.report.fault("executed again though nothing was hurt", count=extra)
        total = sum(map(len, counted.values()))
        self.report.figures |= {
            "requests": len(self.load.requests),
            "sub-requests": sum(one.plan.size for one in self.load.requests.values()),
            "kills": dict(self.fleet.kills),
            "results": total,
            "executions": journal.count,
            "... that raised, as they should": raised,
            "... cut by a kill": cut,
            "... cancelled, as the lease was lost": cancelled,
            "... again, uncounted": extra,
            "... again, per sub-request": f"{extra / max(1, total):.5%}",
            "highest attempt": attempts,
            "over the limit: times, most, ms, longest": _shown(stopped_overlap),
            "... without what was stopped": _shown(overlap),
            "executions stopped in the middle: late, refused": late_refused,
            "executions stopped in the middle: counted": late_counted,
        }

    def stopped(self, run: Execution) -> str:
        """Returns whether this worker was stopped: "through" the whole of a stop, or "partly"."""
        found = ""
        for stop in self.fleet.stops:
            if stop.supervisor != run.supervisor:
                continue
            through = run.began_ns <= stop.since_ns and run.ended_ns >= stop.until_ns
            if through and stop.part not in {"supervisor", "cut"}:
                return "through"
            if run.began_ns <= stop.until_ns and run.ended_ns >= stop.since_ns:
                found = "partly"
        return found

    # ------------------------------------------------------------------ ends

    def _completions(self) -> None:
        """Checks that each request has one entry in the log, and one message."""
        log = Counter(int(one.id[1:]) for one in self.queue.completions("0", follow=False))
        for number in self.load.requests:
            if log[number] != 1 and number not in self.load.forgotten:
                self.report.fault(
                    "completions other than one", f"{number} is logged {log[number]} x"
                )
            if self.ear is not None and self.ear.published[number] != 1:
                example = f"{number} was published {self.ear.published[number]} x"
                self.report.fault("completions other than one", example)
        for number in set(log) - set(self.load.requests):
            self.report.fault("unexpected", f"the end of a request {number}")
        self.report.figures["completions"] = sum(log.values())

    def _keys(self) -> None:
        for key in self.client.scan_iter(count=1000):
            if _is_stray(self.client, key):
                self.report.fault("keys left without a TTL", key)
        for number in self.load.requests:
            objections = broken(self.queue, name_of(number))
            if objections and number not in self.load.forgotten:
                self.report.fault("requests the script check objects to", objections)
        left = leftovers(self.client, self.queue.name)
        if left:
            self.report.fault("tokens and intents left over", left)


def _shown(overlap: Overlap) -> str:
    found = f"{overlap.times:,}, +{overlap.most}, {overlap.ns / 1e6:,.1f}"
    return f"{found}, {overlap.longest / 1e6:,.1f}"


def leftovers(client: Any, queue: str) -> dict[str, int]:
    """Returns what an idle queue must not hold: unfinished requests, delayed tokens, tokens."""
    found = {"active": client.zcard(keys.active(queue))}
    present, left = client.hmget(keys.conf(queue), b"shards", b"left")
    for shard in served(present or b"", left or b""):
        found[f"delayed, shard {shard}"] = client.zcard(keys.delayed(queue, shard))
        for priority, lane in enumerate(keys.lanes(queue, shard)):
            found[f"lane {priority}, shard {shard}"] = client.llen(lane)
    return {name: count for name, count in found.items() if count}
