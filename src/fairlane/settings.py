"""Every number and name that can be set, with its unit and default, and the danger of a change."""

from __future__ import annotations

import os
import re

from fairlane.errors import InvalidArgument

# ------------------------------------------------------------------ defaults of a request

DEFAULT_QUEUE = "req"
DEFAULT_PRIORITY = 5
DEFAULT_LIMIT = 3
# A call may be repeated for two minutes: a tombstone must outlive that by far, also with a shorter
# retention. lua/v1/lib/finish.lua has the same number.
LEAST_TOMBSTONE_MS = 600_000

# ------------------------------------------------------------------ submission

MAX_BODY = 1 << 20  # bytes of one sub-request or result
MAX_ERROR = 4_000  # bytes of an error's text; lua/v1/lib/dead_letters.lua has the same number
CHUNK_ENTRIES = 1_000  # sub-requests of one script call; more would block the server
CHUNK_BYTES = 1 << 20
OPEN_MS = 3_600_000  # an open request without a chunk for so long is abandoned
INTENT_GRACE_MS = 5_000  # a producer has this long between its first step and its second
RECOUNT_MS = 1_000  # the shortest time between two counts of a backlog
MAX_WAIT_S = 2_400.0  # a wait for room must end well before the open request is abandoned

# ------------------------------------------------------------------ Spark sinks and streams

STAGE_MS = 24 * 3_600_000  # staged rows that were never pinned expire after this
# Pinned rows and the record of their transaction expire after this, or after `openFor` if that is
# longer: while the request is open, a repeat without its record would add its rows again.
PINNED_MS = 7 * 24 * 3_600_000
SINK_OPEN_MS = 24 * 3_600_000  # a request that a sink fills may stay open so long without rows
STREAM_OPEN_MS = 7 * 24 * 3_600_000  # ... and a request that a stream fills

# ------------------------------------------------------------------ endings

LOG_ENTRIES = 100_000  # about how many endings the completion log keeps when all readers are there
# About how many it keeps at most for readers that fall behind: 150 MB.
LOG_MOST = 2_000_000
LOG_TRIM_S = 5.0  # how often the leader trims the log
LOG_MARK_S = 10.0  # how often a reader renews its mark
LOG_READER_MS = 24 * 3_600_000  # a webhook or a stream of Spark that does not read is dead then
LOG_FOLLOWER_MS = 600_000  # ... and a program that follows the log
# A log marker outlives the tombstone by as long again, within these bounds. The least one is for a
# suspended process, which may log the ending late.
MARKER_MS = 24 * 3_600_000
MARKER_LEAST_MS = 3_600_000
AUDIT_ENTRIES = 10_000  # about how many changes by one token the audit trail keeps
AUDIT_BYTES = 32 << 20  # of the entries of one token
POLL_S = 5.0  # the slow poll behind every subscription

# ------------------------------------------------------------------ tokens and leases of a unit

BLOCK_MS = 2_000  # one blocking pop; also how long an idle worker takes to drain
PAUSED_S = 0.2  # how often a unit checks whether its queue is still paused; costs no command
SHARD_BLOCK_MS = 250  # one blocking pop at one of several shards, before the next shard
CANCEL_GRACE_S = 30.0  # a handler may go on for so long after its request was cancelled
TOKENS_MOST = 128  # tokens that a unit pops in one call, when its handler is quick
SLICE_MS = 20.0  # how long one lease's work should take; an urgent request waits that long
SLICE_MOST = 1_000
SLICE_HARD_MS = 1_000.0  # if a slice takes longer, its unit returns the rest
FLUSH_MS = 250.0  # if a slice takes longer than planned, its results are sent this often
FLUSH_BYTES = 1 << 20  # results of one complete call

# ------------------------------------------------------------------ programs that take sub-requests

TAKE_MOST = 100  # sub-requests of one take
TAKE_VISIBLE_S = 30.0  # how long a taken sub-request is held without a call of its holder
# A lease may last so long without a call of its holder. lua/v1/lib/reap.lua has the number.
LONGEST_TERM_MS = 86_400_000

# ------------------------------------------------------------------ connections

PATIENCE_S = 30.0  # how long one call is repeated while Redis does not answer
CALL_PATIENCE_S = 120.0  # a worker repeats one call for so long; tombstones live longer
SOCKET_TIMEOUT_S = 10.0  # above BLOCK_MS: otherwise a blocking pop would look like a hung server
HURRY_S = 0.5  # after Ctrl-C, the rest of an operation repeats its calls for so long
ASK_S = 1.0  # how long a command, after Ctrl-C, checks whether its request was submitted
KEEPER_TIMEOUT_S = 2.0  # of a supervisor's call: it must soon extend its other leases
FAILOVER_TIMEOUT_S = 3.0  # instead of SOCKET_TIMEOUT_S, where another node may take over
FIRST_RETRY_TIMEOUT_S = 0.5  # of the first retry at a node that did not answer; then it doubles
CONFIRM_MS = 1_000  # how long replicas may take to confirm a durable write
SYNC_MS = 2_500  # how long the disk may take to confirm, if it does: everysec takes 2 s

# ------------------------------------------------------------------ nodes that are away

AWAY_S = 2.0  # a node without an answer for so long is away: acquires are given up
SHARD_AWAY_S = 10.0  # pops of its shard and tokens for it are given up after this
AWAY_AGAIN_S = (0.5, 5.0)  # seconds between tries of a node that is away, growing
SLOTS_AGAIN_S = 1.0  # seconds between two reads of a cluster's slots while a node is away
BATCH_REST_S = 5.0  # how long a lenient batch waits for the other replies after the first ones

# ------------------------------------------------------------------ beats and deaths

BEAT_MS = 1_000
LATE_MS = 2_000  # a beat older than this is late
# The port of a worker is tried when its beat is older than this: only that proves its death.
PROBE_AFTER_MS = 1_250
PROBE_S = 0.3  # how long a late worker's health port may take to answer
WORKER_TTL_MS = 60_000
TAKEN_TTL_MS = 600_000  # the notes of what a worker took outlive its last beat by this
LOCK_MS = 2_500  # the leader's lock outlives its last beat by this
# How long the token of a queued permit may be on its way. DEATH: the same after the death of a
# process that may have held tokens.
TOKEN_GRACE_MS = 5_000
KEY_LOOK_MS = 5_000  # in a cluster: how often a key asks a request whether it has the lease
DEATH_GRACE_MS = 1_000

# ------------------------------------------------------------------ calls that run unusually long

SLOW_CALL_S = 10.0  # a worker names calls that run for longer; none below it is unusual
UNUSUAL_FACTOR = 10  # a call is unusual that runs for so many times the p99 of its task
UNUSUAL_SAMPLES = 100  # calls of a task, or else of its queue, that make a p99
UNUSUAL_S = 600.0  # ... without so many calls, one that runs for longer is unusual
PROGRESS_S = 60.0  # a call that reports its progress this often is not unusual

# ------------------------------------------------------------------ maintenance

AUDIT_MS = 5_000  # the shortest time between two checks of an unfinished request
LOOKS_PER_S = 200  # checks of requests that need nothing; with more requests each is checked later
MAINTAIN_MOST = 300  # requests checked in one maintenance pass
AUDIT_S = 4.0  # how often lanes and unfinished requests are compared; recovery takes lease + this
AUDIT_FIRST_S = 1.0  # from when a worker becomes the leader to its first audit
# The pause after an audit is so many times as long as the audit, up to a maximum: an audit that
# takes very long has waited for Redis.
AUDIT_REST_FACTOR = 20
AUDIT_REST_MOST_S = 20.0
AUDIT_SAMPLE = 400  # requests with a token in a lane that one audit checks for further lost tokens
AUDIT_PART = 250_000  # unfinished requests of one audit; if there are more, each takes a part
# A leader walks over all requests this long after it began, or after it found the slot wiped.
REBUILD_S = 3600.0
WIPED_S = 10.0
PRIMARIES_S = 5.0  # how often the leader reads the primaries of a cluster: one may be new

# How long a step of a flow may stay open while no worker serves its queue. A leader gives up a step
# whose source is not there after UNFED_OPEN_MS: its producer died, or is slow to begin.
FED_OPEN_MS = 31 * 24 * 3_600_000
UNFED_OPEN_MS = OPEN_MS
FED_RETAIN_MS = (
    4 * 24 * 3_600_000
)  # results that another step reads: a long weekend without workers
JOIN_WINDOW = 10_000  # results of a step whose children have them and whose join has not
FED_MOST = 1_000  # steps of flows that the leader feeds in turn; others wait for these
FEED_S = 0.1  # the shortest pause between two turns; it is as long as the turn took

SHARED_NAMES = 1_000  # values that the steps of one run share
SHARED_BYTES = 256 * 1024  # of their names and values
SHARED_VALUE = 64 * 1024  # bytes of one value

# ------------------------------------------------------------------ schedules

MAX_SCHEDULE = 64 * 1024  # bytes of all bodies of one schedule: the leader reads many schedules
LATE_TICK_MS = 10_000  # a tick that is later than this was missed: no worker lived
MISSED_MOST = 1_000  # missed ticks that one schedule may submit
SCHEDULES_PAGE = 100  # schedules of one pass; between two passes the leader may end
SCHEDULES_AGAIN_S = (
    5.0  # a tick for which there was no room, or an error, is tried again after this
)

# ------------------------------------------------------------------ topics

TOPIC_RETAIN_MS = 7 * 24 * 3_600_000  # a message stays in its topic for so long
TOPIC_RETAIN_COUNT = 1_000_000  # ... and at most so many messages do
REDELIVER_S = 60.0  # a message that is not acknowledged in this time is delivered again
MOST_SUBSCRIBERS = 1_000  # of one topic

# ------------------------------------------------------------------ the environment

REDIS_VARIABLE = "FAIRLANE_REDIS"
RELEASE_VARIABLE = "FAIRLANE_RELEASE"

_UNITS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_RELEASE = re.compile(r"[A-Za-z0-9._+@/-]{1,64}")
_DURATION = re.compile(r"(\d{1,12}(?:\.\d{1,9})?)(ms|s|m|h|d)?")


def duration_ms(text: str) -> int:
    """Returns ms for `"500ms"`, `"1.5s"`, `"5m"`, `"24h"` or `"7d"`; a bare number is seconds.

    As a number of seconds is, it is rounded, and at least 1 unless it is 0.
    """
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise InvalidArgument(f"{text!r} is not a duration: write 500ms, 30s, 5m, 24h or 7d")
    exact = float(match[1]) * _UNITS[match[2] or "s"]
    return (round(exact) or 1) if exact else 0


def duration_range_ms(text: str) -> tuple[int, int]:
    """Returns ms for `"1s..5m"`, shortest and longest; one duration means both."""
    low, mark, high = text.partition("..")
    if mark and not (low.strip() and high.strip()):
        raise InvalidArgument(
            f"{text!r} is no range: write the shortest and the longest time, as 1s..5m"
        )
    shortest = duration_ms(low)
    longest = duration_ms(high) if high else shortest
    if longest < shortest:
        raise InvalidArgument(f"{text!r} ends before it begins: write the shorter duration first")
    return shortest, longest


def redis_url(given: str | None = None) -> str | None:
    """Returns the URL of the caller or of FAIRLANE_REDIS; None means the embedded server."""
    return given or os.environ.get(REDIS_VARIABLE) or None


def release(given: str | None = None) -> str:
    """Returns the release of the users' code: of the caller or of FAIRLANE_RELEASE, else "".

    Raises InvalidArgument.
    """
    found = os.environ.get(RELEASE_VARIABLE, "") if given is None else given
    if found and not (isinstance(found, str) and _RELEASE.fullmatch(found)):
        where = f" of {RELEASE_VARIABLE}" if given is None else ""
        raise InvalidArgument(
            f"release {found!r:.80}{where} is not valid: up to 64 letters, digits and characters "
            "of . _ + @ / - are expected"
        )
    return found


def version() -> str:
    """Returns the installed version, or `0+unknown` if the package runs from its sources."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("fairlane")
    except PackageNotFoundError:
        return "0+unknown"
