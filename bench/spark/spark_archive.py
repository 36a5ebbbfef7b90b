"""Measures whether `archive` keeps up with a steady rate of endings, and drains a backlog.

`python -m bench.spark.spark_archive [seconds] [endings a second] [backlog] [every_s]`

Server, JVM, Python workers and the feeder share all cores of this machine. The feeder copies two
requests that a worker ended, a good one and a dead one: their keys, and their entries in the
completion log. Each copy has an id, bodies and times of its own. The feeder also trims the log
every five seconds, as the leader of the workers does.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import hiredis
import redis
from bench.harness import support

from fairlane import Queue, Reject, Worker, settings
from fairlane.drivers.sync import SyncDriver
from fairlane.operations.completion import trim
from fairlane.spark import session
from fairlane.spark.archive import archive, read_table

if TYPE_CHECKING:
    from fairlane.spark.archive import Archived

_GIVEN = [int(word) for word in sys.argv[1:] if word.isdigit()] + [0] * 4
SECONDS, RATE = _GIVEN[0] or 300, _GIVEN[1] or 5_000
BACKLOG, EVERY_S = _GIVEN[2] or 300_000, _GIVEN[3] or 60
URL = f"redis://127.0.0.1:{support.PORT}"
QUEUE = "req"
LOG = b"{req}:completed"
DEAD = 50  # one of so many requests died
BODY_BYTES = 100
STEP_S = 0.05  # from one write of the feeder to the next
STEP = 5_000  # requests of one write
TRIM_S = 5.0
DAY_MS = 86_400_000
DONE_ID, DEAD_ID = "d" * 20, "f" * 20
HARNESS = 2  # requests of the feeder that are no copies


def handle(body: bytes) -> bytes:
    """Rejects the sub-request of DEAD_ID, and returns the body of any other."""
    if body.startswith(DEAD_ID.encode()):
        raise Reject("no such account: it was closed before")
    return body


class Copier:
    """Writes copies of one request that ended."""

    def __init__(self, client: redis.Redis, request_id: str) -> None:
        self.id = request_id.encode()
        commands: list[tuple[Any, ...]] = []
        for key in sorted(client.scan_iter(f"*:{{{request_id}}}")):
            if client.type(key) == b"hash":
                commands.append(("HSET", key, *_flat(client.hgetall(key))))
            else:
                commands += [("XADD", key, "*", *_flat(one)) for _, one in client.xrange(key)]
            commands.append(("PEXPIRE", key, str(DAY_MS)))
        (ending,) = (one for _, one in client.xrange(LOG) if one[b"id"] == self.id)
        self.born, self.ended = ending[b"born"], ending[b"ended"]
        most = str(settings.LOG_MOST)
        commands.append(("XADD", LOG, "MAXLEN", "~", most, "*", *_flat(ending)))
        self.packed = b"".join(map(hiredis.pack_command, commands))

    def at(self, now_ms: int) -> bytes:
        """Returns the commands of a copy that is submitted and ended now."""
        packed = self.packed.replace(self.born, b"%d" % (now_ms - 20))
        return packed.replace(self.ended, b"%d" % now_ms)


def _flat(fields: Any) -> list[bytes]:
    return [word for pair in fields.items() for word in pair]


def make_copiers() -> tuple[Copier, Copier]:
    """Lets a worker end a good and a dead request; returns what copies them."""
    client = redis.Redis.from_url(URL, protocol=2)
    client.flushall()
    with Queue.from_url(URL, name=QUEUE) as queue:
        for request_id in (DONE_ID, DEAD_ID):
            body = (request_id * BODY_BYTES)[:BODY_BYTES].encode()
            queue.submit_request([body], id=request_id)
        Worker(queue, handle).run(until_idle=True)
    return Copier(client, DONE_ID), Copier(client, DEAD_ID)


def feed(count: int, rate: float, *, trims: bool = True) -> float:
    """Writes `count` ended requests, `rate` a second; returns how long it took.

    Without `trims` the log keeps all of them, although no reader has marked its place.
    """
    done, died = make_copiers()
    line = socket.create_connection(("127.0.0.1", support.PORT))
    line.sendall(hiredis.pack_command(("CLIENT", "REPLY", "OFF")))
    sent, begun, trim_at = 0, time.monotonic(), TRIM_S
    with closing(SyncDriver(URL)) as driver:
        while sent < count:
            passed = time.monotonic() - begun
            due = min(count, int(rate * passed), sent + STEP) - sent
            now_ms = int(time.time() * 1000)
            good, bad = done.at(now_ms), died.at(now_ms)
            ids = os.urandom(10 * due).hex().encode()
            copies = [
                good.replace(done.id, ids[at : at + 20])
                if at % (20 * DEAD)
                else bad.replace(died.id, ids[at : at + 20])
                for at in range(0, 20 * due, 20)
            ]
            line.sendall(b"".join(copies))
            sent += due
            if trims and passed >= trim_at:
                trim_at += TRIM_S
                driver.run(trim(QUEUE))
            if due < STEP:
                time.sleep(STEP_S)
    # The server replies when it has run everything.
    line.sendall(hiredis.pack_command(("CLIENT", "REPLY", "ON")))
    line.recv(64)
    line.close()
    return time.monotonic() - begun


class Cpu(NamedTuple):
    """Seconds of processor time of each kind of process."""

    driver: float
    jvm: float
    workers: float
    server: float
    feeder: float


def _stat(pid: int) -> tuple[int, float, float]:
    """Returns the parent, the seconds of a process and those of its children that ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0, 0.0, 0.0
    fields = text.rpartition(")")[2].split()
    tick = os.sysconf("SC_CLK_TCK")
    own, ended = (int(fields[at]) + int(fields[at + 1]) for at in (11, 13))
    return int(fields[1]), own / tick, ended / tick


def cpu_now(server: int, feeder: int = 0) -> Cpu:
    """Returns the processor time that each kind of process has used."""
    rows = {int(one.name): _stat(int(one.name)) for one in Path("/proc").glob("[0-9]*")}
    me = os.getpid()
    java = {pid for pid, row in rows.items() if row[0] == me and pid != feeder}
    below = set(java)
    for _ in range(4):
        below |= {pid for pid, row in rows.items() if row[0] in below}
    none = (0, 0.0, 0.0)
    return Cpu(
        driver=rows[me][1],
        jvm=sum(rows[pid][1] for pid in java),
        workers=sum(rows[pid][1] + rows[pid][2] for pid in below - java),
        server=rows.get(server, none)[1],
        feeder=rows.get(feeder, none)[1],
    )


class Bench:
    """A session, a server, and a folder for archives."""

    def __init__(self, spark: Any, folder: str) -> None:
        self.spark, self.folder = spark, folder
        self.client = redis.Redis.from_url(URL)
        self.server = int(self.client.info("server")["process_id"])

    def steady(self) -> list[str]:
        """Archives while the feeder writes; returns lines of the page."""
        command = [sys.executable, "-m", "bench.spark.spark_archive", "feed", str(SECONDS)]
        self.client.flushall()
        feeder = subprocess.Popen(
            [*command, str(RATE)], env=support.importing(), stdout=subprocess.PIPE, text=True
        )
        total = SECONDS * RATE + HARNESS
        while not self.client.exists(LOG) or self.client.xlen(LOG) <= HARNESS:
            time.sleep(STEP_S)
        begun, before = time.monotonic(), cpu_now(self.server, feeder.pid)
        rows = ["| after | ended | archived | not yet archived |", "|---:|---:|---:|---:|"]
        took: list[float] = []
        cpus = [before]
        is_over = threading.Event()

        def note(done: Archived) -> None:
            ended = int(self.client.xinfo_stream(LOG)["entries-added"])
            cpus.append(cpu_now(self.server, feeder.pid))
            took.append(time.monotonic() - begun)
            rows.append(
                f"| {took[-1]:,.0f} s | {ended:,} | {done.requests:,} | {ended - done.requests:,} |"
            )
            print(rows[-1], _each(cpus[-2], cpus[-1], 1), file=sys.stderr, flush=True)
            if done.requests >= total:
                is_over.set()

        def stop() -> None:
            is_over.wait()
            for query in self.spark.streams.active:
                query.stop()

        threading.Thread(target=stop, daemon=True).start()
        out = f"{self.folder}/steady"
        done = archive(self.spark, URL, out, follow=True, every_s=EVERY_S, on_batch=note)
        fed_s = float((feeder.communicate()[0] or "0").strip() or 0)
        self._check(out, done, total)
        rate = (total - HARNESS) / fed_s
        return [
            f"In {fed_s:,.0f} s {total - HARNESS:,} requests ended: {rate:,.0f} a second.",
            f"The archive had all of them {took[-1] - fed_s:,.0f} s after the last one, in",
            f"{done.batches} batches, {EVERY_S} s from one to the next. None was lost.",
            "",
            *rows,
            "",
            "Processor time for each ending, with the start of Spark's first batch:",
            "",
            *_each_table(before, cpus[-1], total),
        ]

    def backlog(self) -> list[str]:
        """Archives what has ended before; returns lines of the page."""
        feed(BACKLOG, 1e9, trims=False)
        total = BACKLOG + HARNESS
        begun, before = time.monotonic(), cpu_now(self.server)
        done = archive(self.spark, URL, f"{self.folder}/backlog")
        took = time.monotonic() - begun
        after = cpu_now(self.server)
        self._check(f"{self.folder}/backlog", done, total)
        return [
            f"A backlog of {BACKLOG:,} endings took {took:,.1f} s in the same session:",
            f"{total / took:,.0f} a second. Processor time for each ending:",
            "",
            *_each_table(before, after, total),
        ]

    def _check(self, out: str, done: Archived, total: int) -> None:
        """Exits unless the tables have each ending, result and dead sub-request once."""
        rows = {}
        for name, key in (("requests", "id"), ("results", "request"), ("dead", "request")):
            table = read_table(self.spark, out, name)
            if table is None:
                raise SystemExit(f"{out} has no table {name}")
            rows[name] = (table.count(), table.select(key).distinct().count())
        right = {"requests": (total, total), "results": (total, total)}
        right["dead"] = (done.dead, done.dead)
        if rows != right or done.missing or done.requests != total:
            raise SystemExit(f"the tables have {rows}, not {right}: {done}")


def _each(before: Cpu, after: Cpu, count: int) -> dict[str, float]:
    pairs = zip(Cpu._fields, before, after, strict=True)
    return {name: round((late - early) / count, 1) for name, early, late in pairs}


def _each_table(before: Cpu, after: Cpu, count: int) -> list[str]:
    used = [1e6 * (late - early) / count for early, late in zip(before, after, strict=True)]
    return [
        "| driver | JVM | Python workers | server | feeder | together |",
        "|---:|---:|---:|---:|---:|---:|",
        "| " + " | ".join(f"{one:,.0f} µs" for one in [*used, sum(used)]) + " |",
    ]


def _let_go(pid: int) -> None:
    """Allows a process to run on every core again."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(pid, set(support.CORES))


def main() -> None:
    """Measures both and writes docs/benchmarks/spark_archive.md."""
    with support.server(), tempfile.TemporaryDirectory() as folder:
        _let_go(int(redis.Redis.from_url(URL).info("server")["process_id"]))
        _let_go(0)
        spark = session(conf={"spark.log.level": "OFF"})
        try:
            bench = Bench(spark, folder)
            lines = [*bench.steady(), "", *bench.backlog(), "", *NOTES]
        finally:
            spark.stop()
    title = "Archiving a steady stream of endings"
    support.write("spark_archive", title, lines, "server, JVM, Python and the feeder share them")


NOTES = [
    f"- Each request has one sub-request and a result of {BODY_BYTES} bytes. One of {DEAD} died.",
    "- *feeder* copies requests that a worker ended, because submitting and working at this rate",
    "  would need both cores. Its commands are part of the server's time.",
    "- A copy has an id, bodies and times of its own, so the columns do not compress better.",
]


if __name__ == "__main__":
    if sys.argv[1:2] == ["feed"]:
        print(feed(SECONDS * RATE, RATE))
    else:
        main()
