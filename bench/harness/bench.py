"""Runs a session of measurements: sends questions to peers, and makes rows of their answers."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import redis
from bench.harness import support
from bench.harness.envs import Env, Missing, prepare

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from bench.harness.registry import Peer

CLIENT_CORES = {support.CORES[-1]}  # shared by one worker process and its client
WORKER_CORES = set(support.CORES[1:] or support.CORES)  # for several worker processes
_CAP_S = 40.0  # limit of one question to a peer
_START_S = 60.0  # more time for the start of its processes


class Failed(Exception):
    """Reports that a peer failed; the message stands in its row."""


@dataclass
class Row:
    """Holds the values of every run for one peer at one point."""

    peer: str
    label: str
    point: str = ""
    setting: str = ""
    values: dict[str, list[float]] = field(default_factory=dict)
    note: str = ""

    def median(self, metric: str) -> float | None:
        values = self.values.get(metric)
        return statistics.median(values) if values else None


@dataclass(frozen=True)
class Case:
    """Describes a row before its measurement."""

    peer: Peer
    label: str
    spec: dict[str, Any]
    point: str = ""
    setting: str = ""


class Bench:
    """Sends questions to peers; `url` is the server of the current workload."""

    def __init__(self, peers: list[Peer], runs: int, scale: float) -> None:
        self.peers, self.runs, self.scale = peers, runs, scale
        self.envs: dict[str, Env] = {}
        self.missing: dict[str, str] = {}
        self.url = ""

    def prepare(self) -> None:
        """Makes every environment first, so that no measurement waits for a download."""
        server = support.program()
        for peer in self.peers:
            try:
                self.envs[peer.name] = prepare(peer, server)
            except Missing as reason:
                self.missing[peer.name] = str(reason)
                print(f"{peer.title}: {reason}", file=sys.stderr)

    def size(self, rate: float, seconds: float = 1.0, least: int = 50) -> int:
        """Returns how many calls take about these seconds at this rate, at the session's scale."""
        wanted = max(least, int(rate * seconds * self.scale))
        step: int = 10 ** max(0, len(str(wanted)) - 2)
        return max(least, wanted // step * step)

    @property
    def redis(self) -> redis.Redis:
        return redis.Redis.from_url(self.url)

    def ask(self, peer: Peer, *, flush: bool = True, spread: bool = False, **spec: Any) -> Any:
        """Returns the peer's answer and its cost on the server; raises Failed."""
        if peer.name in self.missing:
            raise Failed(self.missing[peer.name])
        with self.redis as client:
            if flush:
                client.flushall()
            client.config_resetstat()
            before = client.info("cpu")
            question = {"cap_s": _CAP_S, **peer.best, **spec, "url": self.url}
            answer = self._run(self.envs[peer.name], question, spread=spread)
            after, stats = client.info("cpu"), client.info("commandstats")
            reads = client.info("stats").get("total_reads_processed", 0)
        cpu = [now["used_cpu_user"] + now["used_cpu_sys"] for now in (before, after)]
        answer["cpu_s"] = cpu[1] - cpu[0]
        answer["commands"] = sum(stat["calls"] for stat in stats.values())
        answer["reads"] = reads
        return answer

    def _run(self, env: Env, question: dict[str, Any], *, spread: bool) -> Any:
        ours = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
        command = [*env.command, json.dumps(question)]
        try:
            if ours:  # because the new process inherits the cores
                os.sched_setaffinity(0, WORKER_CORES if spread else CLIENT_CORES)
            process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
        finally:
            if ours:
                os.sched_setaffinity(0, ours)
        try:
            out, errors = process.communicate(timeout=2 * question["cap_s"] + _START_S)
        except subprocess.TimeoutExpired as error:
            raise Failed(f"returned no answer in {error.timeout:.0f} s") from error
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        return _answer(out, errors)

    def measure(
        self, cases: Iterable[Case], once: Callable[[Case], dict[str, Any]], runs: int | None = None
    ) -> list[Row]:
        """Measures all cases in turn, `runs` times, so that a slow moment affects all of them.

        A value is a number or a list of numbers. A case that fails is retried once, in the next
        run.
        """
        cases = list(cases)
        rows = [Row(c.peer.name, c.label, c.point, c.setting or c.peer.setting) for c in cases]
        failures = [0] * len(cases)
        for run in range(runs or self.runs):
            for number, (case, row) in enumerate(zip(cases, rows, strict=True)):
                if failures[number] > (0 if case.peer.name in self.missing else 1):
                    continue
                try:
                    found = once(case)
                except Failed as reason:
                    failures[number] += 1
                    row.note = str(reason)
                else:
                    for metric, value in found.items():
                        values = value if isinstance(value, list) else [value]
                        row.values.setdefault(metric, []).extend(values)
                _log(run + 1, row)
        return rows


def _answer(out: str, errors: str) -> Any:
    lines = out.strip().splitlines()
    try:
        answer = json.loads(lines[-1])
    except (IndexError, ValueError) as error:
        reported = errors.strip().splitlines()
        raise Failed(f"failed: {reported[-1] if reported else 'no output'}") from error
    if "error" in answer:
        raise Failed(answer["error"])
    return answer


def _log(run: int, row: Row) -> None:
    shown = [f"{name} {values[-1]:,.4g}" for name, values in row.values.items() if values]
    where = f"{row.label} {row.point}".strip()
    print(f"run {run}  {where}: {', '.join(shown) or row.note}", file=sys.stderr)
