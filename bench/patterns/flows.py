"""Measures a flow of four steps beside four requests and BullMQ's flows, and kills workers.

`python -m bench.patterns.flows [runs] [sub-requests of a step] [the same under kills] [kills]`. The
flow and the separate requests have the same handler, worker and number of sub-requests. Under kills
four workers run, and each second the oldest one is killed with SIGKILL and replaced. Flows follow
each other until so many workers were killed; 0 = one flow.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import redis
from bench.harness import envs, support
from bench.harness.registry import PEERS, Peer

from fairlane import Flow, Queue

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_GIVEN = sys.argv[1:] if __name__ == "__main__" else []  # a worker imports this file, too
RUNS = int(_GIVEN[0]) if _GIVEN else 5
COUNT = int(_GIVEN[1]) if len(_GIVEN) > 1 else 100_000
KILLED = int(_GIVEN[2]) if len(_GIVEN) > 2 else COUNT
LEAST_KILLS = int(_GIVEN[3]) if len(_GIVEN) > 3 else 0
STEPS = 4
LIMIT = 4
_BODY = b"x" * 100
_WORKER = ("--id", "127.0.0.1:0", "--handler", "bench.patterns.flows:echo")
_KILL_S = 1.0
_CAP_S = 3600.0
_NODE_PART = 10  # BullMQ gets a tenth of the sub-requests, because it takes longer
BULLMQ = Peer(
    name="bullmq", title="BullMQ", script="bullmq_flow.mjs", setting="concurrency 100",
    packages=PEERS["bullmq"].packages, kind="node",
)  # fmt: skip


class Killed(NamedTuple):
    """What came of the flows whose workers were killed; `steps`: name, total and done of each."""

    flows: int
    seconds: float
    kills: int
    steps: list[tuple[str, int, int]]
    ends: int

    def with_next(self, other: Killed) -> Killed:
        """Returns the sums of both."""
        pairs = zip(self.steps, other.steps, strict=True)
        return Killed(
            self.flows + other.flows,
            self.seconds + other.seconds,
            self.kills + other.kills,
            [(name, total + more, done + ran) for (name, total, done), (_, more, ran) in pairs],
            self.ends + other.ends,
        )


def echo(body: bytes) -> bytes:
    """Returns the body."""
    return body


def chain() -> Flow:
    flow = Flow("bench")
    for number in range(1, STEPS + 1):
        flow = flow.step(f"step{number}", limit=LIMIT)
    return flow


def start(url: str, log: Path) -> subprocess.Popen[bytes]:
    """Starts a worker in a process group of its own."""
    with log.open("ab") as out:
        return subprocess.Popen(
            [Path(sys.executable).with_name("rq-worker"), "--redis", url, *_WORKER],
            stdout=out, stderr=out, env=support.importing(), start_new_session=True,
        )  # fmt: skip


@contextmanager
def worker(url: str) -> Iterator[None]:
    """Runs one worker, which leads by the time that this returns."""
    client = redis.Redis.from_url(url)
    client.flushall()
    with tempfile.TemporaryDirectory() as folder:
        process = start(url, Path(folder, "log"))
        try:
            while not client.hget("{req}:conf", "lock"):
                if process.poll() is not None:
                    raise SystemExit(Path(folder, "log").read_text())
                time.sleep(0.02)
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)


def of_flow(url: str) -> float:
    """Returns how many sub-requests all steps together finish in a second."""
    with worker(url), Queue.from_url(url) as queue:
        before = time.perf_counter()
        run = queue.submit_flow(chain(), [_BODY] * COUNT)
        run.wait()
        took = time.perf_counter() - before
        checked([one.progress.done for one in run.progress().steps])
    return STEPS * COUNT / took


def of_requests(url: str) -> float:
    """Returns the same for one request after the other."""
    with worker(url), Queue.from_url(url) as queue:
        before, done = time.perf_counter(), []
        for _ in range(STEPS):
            request = queue.submit_request([_BODY] * COUNT, limit=LIMIT)
            request.wait()
            done.append(request.progress().done)
        took = time.perf_counter() - before
        checked(done)
    return STEPS * COUNT / took


def of_bullmq(url: str, env: envs.Env, *, separate: bool) -> float:
    redis.Redis.from_url(url).flushall()
    count = max(100, COUNT // _NODE_PART)
    question = {"url": url, "n": count, "steps": STEPS, "concurrency": 100, "separate": separate}
    done = subprocess.run(
        [*env.command, json.dumps(question)],
        capture_output=True, text=True, check=True, timeout=_CAP_S,
    )  # fmt: skip
    return STEPS * count / float(json.loads(done.stdout.splitlines()[-1])["seconds"])


def checked(done: list[int]) -> None:
    if done != [COUNT] * STEPS:
        raise SystemExit(f"the steps have finished {done}, not {COUNT:,} each")


def under_kills(url: str) -> Killed:
    """Kills the oldest of four workers each second until the flow has ended."""
    redis.Redis.from_url(url).flushall()
    with tempfile.TemporaryDirectory() as folder, Queue.from_url(url) as queue:
        log = Path(folder, "log")
        fleet = deque(start(url, log) for _ in range(LIMIT))
        before, kills = time.perf_counter(), 0
        run = queue.submit_flow(chain(), (b"%d" % n for n in range(KILLED)))
        try:
            while run.state() == "active":
                if time.perf_counter() - before > _CAP_S:
                    raise SystemExit("the flow does not end")
                time.sleep(_KILL_S)
                oldest = fleet.popleft()
                os.killpg(oldest.pid, signal.SIGKILL)
                oldest.wait()
                kills += 1
                fleet.append(start(url, log))
            took = time.perf_counter() - before
        finally:
            for one in fleet:
                one.send_signal(signal.SIGTERM)
            for one in fleet:
                one.wait(60)
        steps = run.progress().steps
        bodies = {result.body for result in run.results()}
        if len(bodies) != KILLED:
            raise SystemExit(f"{len(bodies):,} bodies came out of {KILLED:,}")
        ids = {one.progress.id for one in steps}
        ends = sum(end.id in ids for end in queue.completions("0", follow=False))
        return Killed(1, took, kills, [_total(one) for one in steps], ends)


def _total(one: object) -> tuple[str, int, int]:
    return one.step, one.progress.total, one.progress.done  # type: ignore[attr-defined]


def main() -> None:
    with support.server() as url:
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, support.CORES)
        measures: dict[str, Callable[[], float]] = {
            "Fairlane: a flow": lambda: of_flow(url),
            "Fairlane: separate requests": lambda: of_requests(url),
        }
        version = ""
        try:
            env = envs.prepare(BULLMQ, support.program())
        except envs.Missing as reason:
            print(f"BullMQ is missing: {reason}", file=sys.stderr)
        else:
            version = f" BullMQ {env.version}."
            for separate, name in ((False, "a flow"), (True, "separate jobs")):
                measures[f"BullMQ: {name}"] = lambda env=env, separate=separate: of_bullmq(
                    url, env, separate=separate
                )
        rates = support.median_of(RUNS, measures)
        killed = under_kills(url)
        while killed.kills < LEAST_KILLS:
            killed = killed.with_next(under_kills(url))
    support.write("flows", "A flow of four steps", _table(rates, killed, version), "all shared")


def _table(rates: dict[str, list[float]], killed: Killed, version: str) -> list[str]:
    flow, alone = (support.median(rates[f"Fairlane: {one}"]) for one in _OURS)
    lines = [
        f"{STEPS} steps of {COUNT:,} sub-requests (of BullMQ {max(100, COUNT // _NODE_PART):,}),",
        f"bodies of 100 bytes, a handler that returns them. Medians of {RUNS} runs, from before",
        f"the submission to the end of the last step. One worker process each.{version}",
        "",
        "| what | sub-requests per second | lowest | highest | its time ÷ that of separate ones |",
        "|---|---:|---:|---:|---:|",
    ]
    for name, values in rates.items():
        who = name.partition(":")[0]
        own = support.median(values)
        base = next(value for one, value in rates.items() if one.startswith(f"{who}: separate"))
        lines.append(
            f"| {name} | {own:,.0f} | {min(values):,.0f} | {max(values):,.0f} "
            f"| {support.median(base) / own:.2f} |"
        )
    return [
        *lines,
        "",
        f"A step of a flow costs {alone / flow:.2f} times what a separate request costs.",
        "",
        *lines_of_kills(killed),
    ]


def lines_of_kills(killed: Killed) -> list[str]:
    totals = ", ".join(f"{step} {done:,} of {total:,}" for step, total, done in killed.steps)
    flows = "one flow" if killed.flows == 1 else f"{killed.flows} flows, one after the other"
    return [
        f"With kills: {flows}, {KILLED:,} sub-requests in each step, {LIMIT} workers. Each second",
        f"the oldest worker was killed: {killed.kills} kills in {killed.seconds:,.0f} s. Done were",
        f"{totals}.",
        f"Ends logged for {killed.flows * STEPS} steps: {killed.ends}.",
    ]


_OURS = ("a flow", "separate requests")


if __name__ == "__main__":
    main()
