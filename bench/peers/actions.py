"""Measures a peer: reads a question as one line of JSON, and prints the answer as one line.

    python rq_peer.py '{"action": "drain", "url": "redis://…", "n": 1000, "fill": true}'

Workers are forked, count their handler calls on a page of memory, and are killed at the end.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import logging
import os
import signal
import sys
import time
import traceback
from typing import TYPE_CHECKING, Any

import handlers
from board import Board
from peer import Spec
from resp import Resp

if TYPE_CHECKING:
    from collections.abc import Callable

    from peer import Peer

_TICK_S = 0.002
_PAUSE_S = 0.01  # between two calls for an idle worker
_WARM = 10  # calls that do not count
_CHUNK = 5_000
_now = time.monotonic


class TooSlow(Exception):
    """Reports that an action reached its time limit."""


class Run:
    """Holds a peer, its board and its worker processes."""

    def __init__(self, make: Callable[[Spec], Peer], spec: Spec) -> None:
        self.spec = spec
        self.peer = make(spec)
        self.board = Board(max(sum(spec.sizes), spec.samples and spec.samples + _WARM))
        pair = handlers.choose(spec.handler, self.board, spec.ms)
        self.peer.handler, self.peer.handler_async = pair
        self.redis = Resp(spec.url)
        self.workers: list[int] = []
        self.until = _now() + spec.cap_s

    def start(self) -> None:
        """Forks the workers, which must happen before this process connects to a server."""
        for _ in range(1 if self.peer.many_processes else self.spec.processes):
            self.workers.append(_fork(self.peer.work))

    def fill(self, put: Callable[[], None] | None = None) -> int:
        """Submits in another process; returns how many calls wait."""
        os.waitpid(_fork(put or self._fill), 0)
        return self.peer.left(self.redis)

    def _fill(self) -> None:
        self.peer.open()
        began, left = _now(), self.spec.n
        while left > 0 and _now() - began < self.spec.fill_s:
            count = left if self.spec.fill_s > 1e6 else min(left, _CHUNK)
            self.peer.put([handlers.BODY] * count)
            left -= count

    def wait(self, reached: Callable[[], bool], tick_s: float = _TICK_S) -> None:
        while not reached():
            if _now() > self.until:
                raise TooSlow(f"not done after {self.spec.cap_s:.0f} s")
            if self.workers and os.waitpid(self.workers[0], os.WNOHANG)[0]:
                self.workers.pop(0)
                raise RuntimeError("a worker process ended early")
            time.sleep(tick_s)

    def stop(self) -> None:
        for pid in self.workers:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        self.workers.clear()


def _fork(call: Callable[[], None]) -> int:
    """Forks a process that leads a group of its own and dies with this one."""
    parent = os.getpid()
    pid = os.fork()
    if pid:
        with contextlib.suppress(OSError):
            os.setpgid(pid, pid)
        return pid
    code = 1
    try:
        os.setpgid(0, 0)
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)
        if os.getppid() == parent:
            call()
            code = 0
    except BaseException:  # noqa: BLE001  because the process ends here
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


# ------------------------------------------------------------------ actions


def submit(run: Run) -> dict[str, Any]:
    """Submits n bodies; returns the seconds, and how many calls Redis holds."""
    run.peer.open()
    began = _now()
    run.peer.submit()
    seconds = _now() - began
    return {"seconds": seconds, "n": run.peer.left(run.redis)}


def drain(run: Run) -> dict[str, Any]:
    """Drains all calls; returns the times of the first handler call and of the end in Redis."""
    spec, board, peer = run.spec, run.board, run.peer
    waiting = run.fill() if spec.fill else spec.n
    many = spec.concurrency * spec.processes  # calls may run after the board has counted them
    seen: list[tuple[float, int, float]] = []

    def reached() -> bool:
        seen.append((_now(), board.count(), board.busy()))
        if spec.partly:
            return seen[-1][1] >= spec.n
        return seen[-1][1] >= spec.n - 2 * many and peer.settled(run.redis)

    run.start()
    run.wait(reached)
    end = _now()
    count = seen[-1][1] if spec.partly else spec.n
    stored = peer.stored(run.redis) if spec.results and not spec.partly else None
    run.stop()
    if stored is not None and stored < spec.n:
        raise RuntimeError(f"{stored} results for {spec.n}")
    thin = seen[:: max(1, len(seen) // 1_000)]
    return {
        "first": board.first(),
        "end": end,
        "n": count,
        "waiting": waiting,
        "stored": stored,
        "seen": thin,
    }


def latency(run: Run) -> dict[str, Any]:
    """Submits calls one after the other; returns the times of submission, start and result."""
    run.start()
    run.peer.open()
    for _ in range(_WARM):
        run.peer.clocked_ask(_now)
    times = []
    for _ in range(run.spec.samples):
        time.sleep(_PAUSE_S)
        times.append(run.peer.clocked_ask(_now))
        run.wait(lambda: True)
    starts = [record.start for record in run.board.records()[_WARM:]]
    run.stop()
    return {"asked": times, "starts": starts}


def urgent(run: Run) -> dict[str, Any]:
    """Submits urgent calls while a worker is busy; returns the times of submission and start."""
    waiting = run.fill()
    run.start()
    run.wait(lambda: run.board.count() >= min(50, waiting // 4))
    run.peer.open()
    asked: list[float] = []
    run.until = _now() + run.spec.cap_s
    for sample in range(run.spec.samples):
        asked.append(_now())
        run.peer.put_urgent(handlers.URGENT)
        try:
            run.wait(lambda: run.board.recorded() > sample, 0.0005)  # noqa: B023  called now
        except TooSlow:
            break
        time.sleep(_PAUSE_S)
    starts = [record.start for record in run.board.records()]
    left = run.peer.left(run.redis)
    run.stop()
    return {"asked": asked, "starts": starts, "waiting": waiting, "left": left}


def fairness(run: Run) -> dict[str, Any]:
    """Submits requests, the biggest first; returns the handler calls until one request ends."""
    spec, board = run.spec, run.board

    def put() -> None:
        run.peer.open()
        for tag, size in enumerate(spec.sizes):
            run.peer.put([handlers.body_of(tag)] * size, tag)

    run.fill(put)
    run.start()

    def one_has_ended() -> bool:
        counts = [0] * len(spec.sizes)
        for record in board.records():
            counts[record.tag] += 1
        return any(count >= size for count, size in zip(counts, spec.sizes, strict=True))

    run.wait(one_has_ended, 0.2)
    run.stop()
    return {"records": board.records()}


ACTIONS = {action.__name__: action for action in (submit, drain, latency, urgent, fairness)}


def main(make: Callable[[Spec], Peer]) -> None:
    """Runs the action of the first argument; prints one line of JSON, with `error` if it fails."""
    logging.disable(logging.WARNING)
    spec = Spec(**json.loads(sys.argv[1]))
    run: Run | None = None
    try:
        run = Run(make, spec)
        answer = ACTIONS[spec.action](run)
    except Exception as error:  # noqa: BLE001  the reason stands in the row
        traceback.print_exc()
        answer = {"error": f"{type(error).__name__}: {error}"}
    if run:
        run.stop()
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()
    os._exit(0)  # because some clients leave threads that do not end
