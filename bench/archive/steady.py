"""Measures whether an archive of two queues keeps up with a steady rate of endings.

`python -m bench.archive.steady [seconds] [endings a second] [backlog] [every_s]`

Server, archiver and feeder share all cores of this machine. The feeder copies two requests of each
queue that a worker ended, a good one and a dead one: their keys, and their entries in the log of
endings. Each copy has an id, bodies and times of its own. The feeder also trims the logs every five
seconds, as the leader of the workers does. Files are merged after a few batches instead of sixty,
so that a short run has merges, too.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import closing
from dataclasses import asdict
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import hiredis
import redis
from bench.harness import support

from fairlane import Queue, Reject, Worker, archive, settings
from fairlane.archive import archiver, manifest
from fairlane.drivers.sync import SyncDriver
from fairlane.operations.completion import trim

_GIVEN = [int(word) for word in sys.argv[1:] if word.isdigit()] + [0] * 4
SECONDS, RATE = _GIVEN[0] or 600, _GIVEN[1] or 5_000
BACKLOG, EVERY_S = _GIVEN[2] or 300_000, _GIVEN[3] or 60
URL = f"redis://127.0.0.1:{support.PORT}"
QUEUES = ("a", "b")
TOGETHER = 5  # batches whose files are merged
DEAD = 50  # one of so many requests died
BODY_BYTES = 100
STEP_S = 0.05  # from one write of the feeder to the next
STEP = 5_000  # requests of one write
TRIM_S = 5.0
LOOK_S = 2.0  # from one look at the manifest to the next
LATE_S = 300  # the archive must be complete so long after the last ending
DAY_MS = 86_400_000
DONE_ID, DEAD_ID = "d" * 19, "f" * 19
HARNESS = 2 * len(QUEUES)  # requests of the feeder that are no copies


def handle(body: bytes) -> bytes:
    """Rejects the sub-request of DEAD_ID, and returns the body of any other."""
    if body.startswith(DEAD_ID.encode()):
        raise Reject("no such account: it was closed before")
    return body


class Copier:
    """Writes copies of one request that ended."""

    def __init__(self, client: redis.Redis, queue: str, request_id: str) -> None:
        log = f"{{{queue}}}:completed".encode()
        self.id = request_id.encode()
        commands: list[tuple[Any, ...]] = []
        for key in sorted(client.scan_iter(f"*:{{{request_id}}}")):
            if client.type(key) == b"hash":
                commands.append(("HSET", key, *_flat(client.hgetall(key))))
            else:
                commands += [("XADD", key, "*", *_flat(one)) for _, one in client.xrange(key)]
            commands.append(("PEXPIRE", key, str(DAY_MS)))
        (ending,) = (one for _, one in client.xrange(log) if one[b"id"] == self.id)
        self.born, self.ended = ending[b"born"], ending[b"ended"]
        most = str(settings.LOG_MOST)
        commands.append(("XADD", log, "MAXLEN", "~", most, "*", *_flat(ending)))
        self.packed = b"".join(map(hiredis.pack_command, commands))

    def at(self, now_ms: int) -> bytes:
        """Returns the commands of a copy that is submitted and ended now."""
        packed = self.packed.replace(self.born, b"%d" % (now_ms - 20))
        return packed.replace(self.ended, b"%d" % now_ms)


def _flat(fields: Any) -> list[bytes]:
    return [word for pair in fields.items() for word in pair]


def make_copiers() -> list[tuple[Copier, Copier]]:
    """Lets a worker end a good and a dead request of each queue; returns what copies them."""
    client = redis.Redis.from_url(URL, protocol=2)
    client.flushall()
    found = []
    for name in QUEUES:
        ids = [f"{one}{name}" for one in (DONE_ID, DEAD_ID)]
        with Queue.from_url(URL, name=name) as queue:
            for request_id in ids:
                body = (request_id * BODY_BYTES)[:BODY_BYTES].encode()
                queue.submit_request([body], id=request_id)
            Worker(queue, handle).run(until_idle=True)
        done, died = (Copier(client, name, request_id) for request_id in ids)
        found.append((done, died))
    return found


def feed(count: int, rate: float, *, trims: bool = True) -> float:
    """Writes `count` ended requests, `rate` a second; returns how long it took.

    Without `trims` the logs keep all of them, although no reader has marked its place.
    """
    copiers = make_copiers()
    line = socket.create_connection(("127.0.0.1", support.PORT))
    line.sendall(hiredis.pack_command(("CLIENT", "REPLY", "OFF")))
    sent, begun, trim_at = 0, time.monotonic(), TRIM_S
    with closing(SyncDriver(URL)) as driver:
        while sent < count:
            passed = time.monotonic() - begun
            due = min(count, int(rate * passed), sent + STEP) - sent
            now_ms = int(time.time() * 1000)
            now = [(done, done.at(now_ms), died, died.at(now_ms)) for done, died in copiers]
            ids = os.urandom(10 * due).hex().encode()
            copies = []
            for at in range(due):
                done, good, died, bad = now[at % len(now)]
                own = ids[20 * at : 20 * at + 20]
                copies.append(
                    good.replace(done.id, own) if at % DEAD else bad.replace(died.id, own)
                )
            line.sendall(b"".join(copies))
            sent += due
            if trims and passed >= trim_at:
                trim_at += TRIM_S
                for queue in QUEUES:
                    driver.run(trim(queue))
            if due < STEP:
                time.sleep(STEP_S)
    # The server replies when it has run everything.
    line.sendall(hiredis.pack_command(("CLIENT", "REPLY", "ON")))
    line.recv(64)
    line.close()
    return time.monotonic() - begun


class Cpu(NamedTuple):
    """Seconds of processor time of each process."""

    archiver: float
    server: float
    feeder: float


def cpu_of(pid: int) -> float:
    """Returns the seconds that a process has used; 0 if it has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0.0
    fields = text.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def mode(name: str, *words: object) -> subprocess.Popen[str]:
    """Starts this file in a process of its own, which prints one line of JSON."""
    command = [sys.executable, "-m", "bench.archive.steady", name, *map(str, words)]
    return subprocess.Popen(command, env=support.importing(), stdout=subprocess.PIPE, text=True)


class Watch:
    """Reads the manifest beside its writer: how much is archived, and how many files there were."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.archived, self.listed = folder, 0, 0
        self._paths: set[str] = set()
        self._batches: Counter[str] = Counter()  # of a partition, its files of one batch

    def look(self) -> bool:
        """Looks again; returns True if more is archived."""
        if not (self.folder / manifest.NAME).exists():
            return False
        found = manifest.read(self.folder)
        new = [file for file in found.files if file.path not in self._paths]
        self._paths |= {file.path for file in new}
        self._batches.update(file.path.rpartition("/")[0] for file in new if file.batches == 1)
        before, self.listed = self.archived, len(found.files)
        self.archived = sum(position.requests for position in found.queues.values())
        return self.archived > before

    @property
    def most(self) -> int:
        """Returns how many files of one batch the fullest partition got."""
        return max(self._batches.values())


class Bench:
    """A server, and a folder for archives."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.client = redis.Redis.from_url(URL)
        self.server = int(self.client.info("server")["process_id"])

    def steady(self) -> list[str]:
        """Archives while the feeder writes; returns lines of the page."""
        watch = Watch(Path(self.folder, "steady"))
        self.client.flushall()
        feeder = mode("feed", SECONDS, RATE)
        while self._ended() <= HARNESS:
            time.sleep(STEP_S)
        running = mode("archive", watch.folder, EVERY_S)
        total = SECONDS * RATE + HARNESS
        begun, before = time.monotonic(), Cpu(0, cpu_of(self.server), cpu_of(feeder.pid))
        rows = ["| after | ended | archived | files |", "|---:|---:|---:|---:|"]
        late_at, used, fed_at = float("inf"), before, 0.0
        while watch.archived < total:
            time.sleep(LOOK_S)
            passed = time.monotonic() - begun
            if feeder.poll() is not None and not fed_at:
                fed_at, late_at = passed, passed + LATE_S
            if running.poll() is not None or passed > late_at:
                raise SystemExit(f"the archiver ended or is late: {watch.archived:,} of {total:,}")
            times = map(cpu_of, (running.pid, self.server, feeder.pid))
            used = Cpu(*map(max, times, used))
            if watch.look():
                ended = f"{self._ended():,} | {watch.archived:,}"
                rows.append(f"| {passed:,.0f} s | {ended} | {watch.listed} |")
                print(rows[-1], file=sys.stderr, flush=True)
        took = time.monotonic() - begun
        running.send_signal(signal.SIGINT)
        done = json.loads(running.communicate()[0])
        fed_s = float(feeder.communicate()[0])
        self._check(watch.folder, done, total)
        intervals = ceil(took / EVERY_S) + 1  # the first batch is immediate
        if watch.most > intervals:
            raise SystemExit(f"a partition got {watch.most} files in {intervals} intervals")
        rate = (total - HARNESS) / fed_s
        return [
            f"In {fed_s:,.0f} s {total - HARNESS:,} requests of two queues ended:",
            f"{rate:,.0f} a second. The archive had all of them {max(0.0, took - fed_at):,.0f} s",
            f"after the last one, each once. In {took:,.0f} s a date of a queue got {watch.most}",
            f"files of each table, one for each batch of {EVERY_S} s. {done['merged']} files",
            f"were merged meanwhile, those of {TOGETHER} batches together.",
            "",
            *rows,
            "",
            "Processor time for each ending:",
            "",
            *_table(before, used, total),
        ]

    def backlog(self) -> list[str]:
        """Archives what has ended before; returns lines of the page."""
        feed(BACKLOG, 1e9, trims=False)
        total = BACKLOG + HARNESS
        begun, before = time.monotonic(), Cpu(time.process_time(), cpu_of(self.server), 0)
        done = archive.write(f"{self.folder}/backlog", QUEUES, redis=URL)
        took = time.monotonic() - begun
        after = Cpu(time.process_time(), cpu_of(self.server), 0)
        self._check(Path(self.folder, "backlog"), asdict(done), total)
        return [
            f"A backlog of {BACKLOG:,} endings took {took:,.1f} s: {total / took:,.0f} a second.",
            "Processor time for each ending:",
            "",
            *_table(before, after, total),
        ]

    def _ended(self) -> int:
        logs = [f"{{{queue}}}:completed" for queue in QUEUES]
        there = [log for log in logs if self.client.exists(log)]
        return sum(int(self.client.xinfo_stream(log)["entries-added"]) for log in there)

    def _check(self, out: Path, done: dict[str, int], total: int) -> None:
        """Exits unless the tables have each ending, result and dead sub-request once."""
        rows = {}
        for name, key in (("requests", "id"), ("results", "request"), ("dead", "request")):
            query = f"SELECT count(*), count(DISTINCT {key}) FROM read_parquet(?)"  # noqa: S608
            rows[name] = duckdb.execute(query, [archive.files(out, name)]).fetchall()[0]
        right = {"requests": (total, total), "results": (total, total)}
        right["dead"] = (done["dead"], done["dead"])
        if rows != right or done["missing"] or done["requests"] != total:
            raise SystemExit(f"the tables have {rows}, not {right}: {done}")


def _table(before: Cpu, after: Cpu, count: int) -> list[str]:
    used = [1e6 * (late - early) / count for early, late in zip(before, after, strict=True)]
    return [
        "| archiver | server | feeder | together |",
        "|---:|---:|---:|---:|",
        "| " + " | ".join(f"{one:,.0f} µs" for one in [*used, sum(used)]) + " |",
    ]


def _let_go(pid: int) -> None:
    """Allows a process to run on every core again."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(pid, set(support.CORES))


def main() -> None:
    """Measures both and writes docs/benchmarks/archive.md."""
    with support.server(), tempfile.TemporaryDirectory() as folder:
        _let_go(int(redis.Redis.from_url(URL).info("server")["process_id"]))
        _let_go(0)
        bench = Bench(folder)
        lines = [*bench.steady(), "", *bench.backlog(), "", *NOTES]
    title = "Archiving a steady stream of endings"
    support.write("archive", title, lines, "server, archiver and feeder share them")


NOTES = [
    f"- Each request has one sub-request and a result of {BODY_BYTES} bytes. One of {DEAD} died.",
    "- *feeder* copies requests that a worker ended, because submitting and working at this rate",
    "  would need both cores. Its commands are part of the server's time.",
    "- A copy has an id, bodies and times of its own, so the columns do not compress better.",
]


if __name__ == "__main__":
    if sys.argv[1:2] == ["feed"]:
        print(feed(SECONDS * RATE, RATE))
    elif sys.argv[1:2] == ["archive"]:
        archiver.TOGETHER = TOGETHER
        out, every_s = sys.argv[2], float(sys.argv[3])
        kept = archive.write(out, QUEUES, redis=URL, follow=True, every_s=every_s)
        print(json.dumps(asdict(kept)))
    else:
        main()
