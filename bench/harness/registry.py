"""Lists the peers: their versions, best settings, features and promises."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

FAST = ("redis[hiredis]", "uvloop==0.23.0")


@dataclass(frozen=True)
class Peer:
    """Describes one competitor. Its rough rates only set the amount of work."""

    name: str
    title: str
    script: str
    setting: str  # text for the pages: the best setting for no-ops
    packages: tuple[str, ...] = ()  # the first one is the peer; () = our environment
    kind: str = "python"  # or node, ruby
    language: str = "Python"
    modes: tuple[str, ...] = ("sync",)
    best: dict[str, Any] = field(default_factory=dict)  # its best settings for a drain of no-ops
    bulk: float = 10_000  # rough rate of submission in bulk, per second
    single: float = 2_000  # rough rate of submission one by one, per second
    rate: float = 4_000  # rough rate of a drain, per second
    results: bool = True  # stores results
    acknowledges: bool = True  # a killed worker loses nothing
    proof: str = ""  # where its source acknowledges
    needs: tuple[int, int] = (0, 0)  # oldest version of Redis, for commands that Valkey lacks
    priority: str = ""  # how an urgent call overtakes others; "" = not possible
    shares: str = ""  # how requests share workers; "" = first come, first served
    most: int = 1000  # highest concurrency in one worker
    tries: tuple[int, ...] = ()  # concurrencies that the settings workload compares
    is_limit: bool = False  # not a queue but an upper limit for queues


PEERS = {
    peer.name: peer
    for peer in (
        Peer(
            "fairlane",
            "Fairlane",
            "fairlane_peer.py",
            "one request, slices of 20 ms, one worker process",
            modes=("sync", "async"),
            bulk=300_000,
            single=2_000,
            rate=90_000,
            priority="a lane of a lower number",
            shares="tokens rotate",
        ),
        Peer(
            "raw",
            "raw Redis (redis-py)",
            "raw_peer.py",
            "XADD in pipelines of 1,000; XREADGROUP COUNT 100 + XACK; no results",
            bulk=200_000,
            single=8_000,
            rate=200_000,
            results=False,
            is_limit=True,
            most=1,
        ),
        Peer(
            "rq",
            "RQ",
            "rq_peer.py",
            "SimpleWorker (no fork), JSON, enqueue_many of 1,000; concurrency = processes",
            ("rq==2.12.0", "redis[hiredis]==8.1.0"),
            bulk=20_000,
            single=1_000,
            rate=500,
            priority="a queue listed first",
            shares="one queue per request, dequeue_strategy round_robin",
            most=16,
        ),
        Peer(
            "celery",
            "Celery",
            "celery_peer.py",
            "solo pool, prefetch 64, no gossip, mingle or heartbeat; acknowledges before the call",
            ("celery==5.7.0", "redis[hiredis]", "packaging"),
            tries=(1, 4, 16),
            bulk=3_500,
            single=2_000,
            rate=1_800,
            acknowledges=False,
            priority="priority steps, prefetch 1",
            shares="one queue per request, round_robin, prefetch 1",
        ),
        Peer(
            "dramatiq",
            "Dramatiq",
            "dramatiq_peer.py",
            "32 threads, middleware Retries and Results only",
            ("dramatiq[redis]==2.2.1", "redis[hiredis]"),
            modes=("sync", "async"),
            best={"concurrency": 32},
            tries=(4, 8, 32),
            bulk=8_000,
            single=5_000,
            rate=5_000,
            priority="an actor of priority 0 on a queue of its own",
            shares="one queue per request",
        ),
        Peer(
            "saq",
            "SAQ",
            "saq_peer.py",
            "async handler, uvloop, concurrency 100, no time limit",
            ("saq[redis]==0.26.4", "typing_extensions", *FAST),
            modes=("async", "sync"),
            best={"concurrency": 100, "mode": "async"},
            tries=(10, 30, 100),
            bulk=14_000,
            single=2_500,
            rate=3_500,
        ),
        Peer(
            "arq",
            "arq",
            "arq_peer.py",
            "uvloop, concurrency 100, poll_delay 10 ms",
            ("arq==0.28.0", *FAST),
            modes=("async",),
            best={"concurrency": 100, "mode": "async"},
            tries=(10, 100, 300),
            bulk=9_000,
            single=1_500,
            rate=3_500,
        ),
        Peer(
            "taskiq",
            "taskiq (streams)",
            "taskiq_peer.py",
            "RedisStreamBroker, async handler, uvloop, concurrency 100",
            ("taskiq-redis==1.2.4", "taskiq==0.13.0", *FAST),
            modes=("async", "sync"),
            best={"concurrency": 100, "mode": "async"},
            tries=(10, 100, 300),
            bulk=8_000,
            single=3_000,
            rate=4_000,
        ),
        Peer(
            "huey",
            "huey",
            "huey_peer.py",
            "one thread; notifies of results in the latency run; loses the calls of a dead worker",
            ("huey==3.5.4", "redis[hiredis]"),
            tries=(1, 2, 8),
            bulk=11_000,
            single=8_000,
            rate=8_000,
            acknowledges=False,
            priority="PriorityRedisHuey",
        ),
        Peer(
            "streaq",
            "streaq",
            "streaq_peer.py",
            "async handler, uvloop, concurrency 100, enqueue_many of 1,000",
            ("streaq==7.2.0", "uvloop==0.23.0"),
            modes=("async", "sync"),
            best={"concurrency": 100, "mode": "async"},
            tries=(16, 100, 300),
            bulk=18_000,
            single=2_000,
            rate=2_000,
            priority="priorities=[low, high]",
        ),
        Peer(
            "chasquimq",
            "ChasquiMQ",
            "chasquimq_peer.py",
            "Rust engine, async handler, uvloop, concurrency 100, add_bulk of 1,000; "
            "no events; acknowledges jobs in batches, 5 ms after the last one; "
            "a job that runs for more than 30 s starts a second time meanwhile",
            ("chasquimq==1.3.0", "uvloop==0.23.0"),
            language="Rust, bound to Python",
            modes=("async",),
            best={"concurrency": 100, "mode": "async"},
            tries=(16, 100, 300),
            bulk=150_000,
            single=8_000,
            rate=50_000,
            proof="https://github.com/jotarios/chasquimq/blob/main/chasquimq/src/ack.rs",
            needs=(8, 6),
        ),
        Peer(
            "fastq",
            "FastQ (fastq-redis)",
            "fastq_peer.py",
            "one thread; no call for many jobs; no results; loses the calls of a dead worker",
            ("fastq-redis==1.1.1",),  # its licence permits noncommercial use only
            bulk=20_000,
            single=20_000,
            rate=6_000,
            results=False,
            acknowledges=False,
            priority="PRIORITY_HIGH before PRIORITY_NORMAL",
            proof="https://github.com/OxoGhost01/FastQ/blob/main/src/queue.c",
            most=1,
        ),
        Peer(
            "bullmq-py",
            "BullMQ (Python)",
            "bullmq_py_peer.py",
            "uvloop, concurrency 16, addBulk of 1,000",
            ("bullmq==3.4.4", *FAST),
            modes=("async",),
            best={"concurrency": 16, "mode": "async"},
            tries=(4, 16, 100),
            bulk=30_000,
            single=3_000,
            rate=4_000,
            priority="priority 1 before 10",
        ),
        Peer(
            "bullmq",
            "BullMQ (Node)",
            "bullmq_peer.mjs",
            "concurrency 100, addBulk of 1,000",
            ("bullmq@6.7.0", "ioredis@5.11.1"),
            kind="node",
            language="Node",
            modes=("async",),
            best={"concurrency": 100, "mode": "async"},
            tries=(20, 100, 300),
            bulk=40_000,
            single=5_000,
            rate=25_000,
            priority="priority 1 before 10",
        ),
        Peer(
            "sidekiq",
            "Sidekiq 6 (Debian)",
            "sidekiq_peer.rb",
            "10 threads, push_bulk of 1,000; no results; loses the calls of a dead worker",
            ("ruby-sidekiq",),
            kind="ruby",
            language="Ruby",
            best={"concurrency": 10},
            tries=(5, 10, 25),
            bulk=150_000,
            single=6_000,
            rate=15_000,
            results=False,
            acknowledges=False,
            priority="a queue listed first, strict",
            shares="one queue per request, weighted at random",
        ),
    )
}


@dataclass(frozen=True)
class Absent:
    """Describes a peer that no package registry delivers, so that it has no script."""

    title: str
    reason: str
    promise: str  # how it acknowledges, from its source
    proof: str


ABSENT = (
    Absent(
        "glide-mq (Node)",
        "the npm registry answers 404 for `glide-mq` and for the client that it needs, "
        "`@glidemq/speedkey`, and has only the prebuilt binary of that client",
        "keeps the jobs of a killed worker in a stream, and takes them back with XAUTOCLAIM",
        "https://github.com/avifenesh/glide-mq/blob/main/docs/ARCHITECTURE.md",
    ),
)

VARIANTS = {
    "fairlane": {
        "": "Fairlane",
        "count1": "Fairlane, slices off (COUNT 1)",
        "single": "Fairlane, requests of one",
    },
    "raw": {
        "": "raw Redis (redis-py)",
        "count1": "raw Redis, COUNT 1",
        "script": "raw Redis, one script: XACK and the next",
    },
}


def fairlane_and(peers: list[Peer], *variants: str) -> Iterator[tuple[Peer, str, str]]:
    """Yields every peer with its label, and again in those of these variants that it has."""
    for peer in peers:
        known = VARIANTS.get(peer.name, {"": peer.title})
        for variant in ("", *variants):
            if variant in known:
                yield peer, known[variant], variant
