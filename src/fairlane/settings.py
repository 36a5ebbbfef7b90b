"""Every number and name that can be set, with its unit, default and danger."""

from __future__ import annotations

import os
import re

from .errors import InvalidArgument

DEFAULT_QUEUE = "req"
DEFAULT_PRIORITY = 5
DEFAULT_LIMIT = 3
DEFAULT_ATTEMPTS = 5
DEFAULT_BACKOFF_MS = (1_000, 300_000)
DEFAULT_LEASE_MS = 30_000  # short: a dead worker's work waits this long; beats extend it
DEFAULT_RETAIN_MS = 24 * 3_600_000
LEAST_RETAIN_MS = (
    600_000  # a call may be repeated for two minutes: a tombstone outlives that by far
)

MAX_BODY = 1 << 20  # bytes of one sub-request or result
CHUNK_ENTRIES = 1_000  # sub-requests of one script call; more would block the server
CHUNK_BYTES = 1 << 20
OPEN_MS = 3_600_000  # an open request without a chunk for so long is abandoned
STAGE_MS = 24 * 3_600_000  # what was staged and never pinned stays for so long
PINNED_MS = 7 * 24 * 3_600_000  # ... and what was, and the record of its transaction
SINK_OPEN_MS = 24 * 3_600_000  # a request that a sink fills may go without rows for so long
STREAM_OPEN_MS = 7 * 24 * 3_600_000  # ... and one that a stream fills
INTENT_GRACE_MS = 5_000  # a producer has this long between its first step and its second
RECOUNT_MS = 1_000  # what waits is not counted again sooner, however many producers are refused
MAX_WAIT_S = 2_400.0  # a wait for room must end well before the open request is abandoned
AUDIT_MS = 5_000  # the shortest time between two looks at an unfinished request
LOOKS_PER_S = 200  # looks at requests of which nothing is expected: of more, each comes later
MARKER_MS = 24 * 3_600_000  # a log marker outlives the tombstone by as long again, at most by this
MARKER_LEAST_MS = 3_600_000  # ... and at least by this: a suspended process may log it late
LOG_ENTRIES = 100_000  # about how many endings the completion log keeps

SLICE_MS = 20.0  # how long one lease's work should take; an urgent request waits that long
SLICE_MOST = 1_000
TOKENS_MOST = 128  # tokens a unit takes at once, when its handler is quick
FLUSH_MS = 250.0  # a slice that takes longer than planned shows its results this often
SLICE_HARD_MS = 1_000.0  # ... and gives the rest back after this
FLUSH_BYTES = 1 << 20  # results of one complete call
BLOCK_MS = 2_000  # one blocking pop; also how long an idle worker takes to drain
REST_S = 5.0  # how long a lenient batch waits for a silent node when others have answered
AWAY_S = 2.0  # a node of a cluster without an answer for so long is away: acquires are given up ...
SHARD_AWAY_S = 10.0  # ... and for so long: pops of its shard, and tokens for it
AWAY_AGAIN_S = (0.5, 5.0)  # seconds between tries of a node that is away, growing
SLOTS_AGAIN_S = 1.0  # while a node is away, a cluster is asked for its slots this often
SHARD_BLOCK_MS = 250  # ... at one of several shards, before the next one
BEAT_MS = 1_000
LATE_MS = 2_000  # a beat older than this is late
KNOCK_MS = 1_250  # ... and its worker's port is knocked at from this age on: only that proves death
WORKER_TTL_MS = 60_000
TAKEN_TTL_MS = 600_000  # what a worker took is known for so long after its last beat
LOCK_MS = 2_500  # the maintenance lock outlives a silent holder by this much
CONFIRM_MS = 1_000  # how long replicas may take to confirm a durable write
SYNC_MS = 2_500  # ... and the disk, where the server can tell: everysec takes up to 2 s
SOCKET_TIMEOUT_S = 10.0  # above BLOCK_MS, or a blocking pop would count as a hung server
FAILOVER_TIMEOUT_S = 3.0  # ... where another node may take over, the silent one is left sooner
SILENT_TIMEOUT_S = 0.5  # ... and is tried for so long, then twice as long, until it answers
AUDIT_S = 4.0  # how often lanes and unfinished requests are compared; recovery takes lease + this
AUDIT_FIRST_S = 1.0  # after a worker begins to lead: until then it starts on its own work
AUDIT_REST = 20  # ... but the pause is so many times as long as the comparison takes
AUDIT_REST_MOST_S = 20.0  # ... and no longer: a comparison that takes longer has waited for Redis
AUDIT_SAMPLE = 400  # requests with a token in a lane whose others are looked for in one audit
AUDIT_PART = 250_000  # unfinished requests of one audit; of more, each audit compares a part
KEEPER_TIMEOUT_S = 2.0  # a supervisor's call to Redis: it must get back to its leases
MAINTAIN_MOST = 300  # requests looked at in one maintenance pass
TOKEN_GRACE_MS = 5_000  # a queued permit's token may be on its way for so long
DEATH_GRACE_MS = 1_000  # ... and for so long when a process just died that may have had some
PROBE_S = 0.3  # how long a late worker's health port may take to answer
CALL_PATIENCE_S = 120.0  # a worker repeats one call for so long; tombstones live longer
HURRY_S = 0.5  # after Ctrl-C, what is left of an operation repeats its calls for so long
ASK_S = 1.0  # ... and the command line waits so long for an answer about what it had submitted
PATIENCE_S = 30.0  # how long one call is repeated while Redis does not answer
REBUILD_S = 3600.0  # a leader looks for requests that nobody looks after this long after it began
WIPED_S = 10.0  # ... or this long after it saw that the dispatch slot was wiped
PRIMARIES_S = 5.0  # how often the leader asks a cluster who its primaries are: one may be new
POLL_S = 5.0  # the slow poll behind every subscription

REDIS_VARIABLE = "FAIRLANE_REDIS"

_UNITS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION = re.compile(r"(\d{1,12}(?:\.\d{1,9})?)(ms|s|m|h|d)?")


def duration_ms(text: str) -> int:
    """Milliseconds in `"500ms"`, `"1.5s"`, `"5m"`, `"24h"` or `"7d"`; a bare number is seconds."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise InvalidArgument(f"{text!r} is not a duration: write 500ms, 30s, 5m, 24h or 7d")
    return int(float(match[1]) * _UNITS[match[2] or "s"])


def duration_range_ms(text: str) -> tuple[int, int]:
    """Milliseconds in `"1s..5m"`, shortest and longest; one duration means both."""
    low, _, high = text.partition("..")
    shortest = duration_ms(low)
    longest = duration_ms(high) if high else shortest
    if longest < shortest:
        raise InvalidArgument(f"{text!r} ends before it begins: write the shorter duration first")
    return shortest, longest


def redis_url(given: str | None = None) -> str | None:
    """The URL named by the caller or by FAIRLANE_REDIS; None means the embedded server."""
    return given or os.environ.get(REDIS_VARIABLE) or None
