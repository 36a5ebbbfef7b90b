"""Runs the checks of the servers, then of the queue, then of each request.

Every check only reads. The checks of servers and queues send plain commands, so they work on a
Redis that is unfit for a queue. If a command is refused, the other checks still run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairlane.common.text import join_names, plural
from fairlane.errors import FairlaneError, RedisUnreachable
from fairlane.operations.diagnosis.finding import BAD, OK, WARN, Finding
from fairlane.operations.diagnosis.queue_checks import QUEUE
from fairlane.operations.diagnosis.server_checks import Facts, judge
from fairlane.operations.diagnosis.walk import Walk
from fairlane.protocol.scripts import Dialect, library
from fairlane.protocol.server_info import read_info, time_ms
from fairlane.protocol.steps import Command, Nodes, OnNode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fairlane.protocol.steps import Operation

_PINGS = 20
_SLOW_MS, _FAST_MS = 100.0, 10.0
_SKEW_MS = 2_000
_SETTINGS = (
    *("maxmemory-policy", "appendfsync", "save", "min-replicas-to-write", "timeout"),
    *("tcp-keepalive", "stream-node-max-bytes"),
)


def examine(
    queue: str, clock: Callable[[], float], wall_ms: Callable[[], int]
) -> Iterator[Operation[list[Finding]]]:
    """Yields the parts of an examination: the servers, the queue, then every page of requests.

    The caller runs each part before it takes the next. `clock` is in seconds, `wall_ms` is this
    machine's time. The first part raises RedisUnreachable if no server answers.
    """
    yield examine_servers(clock, wall_ms)
    yield examine_queue(queue)
    walk = Walk(queue)
    failed: list[Finding] = []
    while not walk.is_over and not failed:
        yield _page(walk, failed)


def examine_servers(
    clock: Callable[[], float], wall_ms: Callable[[], int]
) -> Operation[list[Finding]]:
    """Runs the checks of every server. Raises RedisUnreachable if none answers."""
    found: dict[str, dict[tuple[str, str], tuple[Finding, list[Any]]]] = {}
    nodes = yield Nodes()
    unanswered = 0
    for node in nodes:
        try:
            checks = yield from _node(node, clock, wall_ms)
        except RedisUnreachable as error:
            unanswered += 1
            if unanswered == len(nodes):
                raise
            remedy = "start it again, or fail over to a replica of it"
            checks = [Finding("servers", BAD, f"a primary does not answer: {error}", remedy)]
        for check in checks:
            same = found.setdefault(check.check, {})
            same.setdefault((check.severity, check.what), (check, []))[1].append(node)
    return [
        _of_nodes(check, there, len(nodes))
        for same in found.values()
        for check, there in same.values()
    ]


def examine_queue(queue: str) -> Operation[list[Finding]]:
    """Runs the checks of one queue as a whole; a check that fails is a finding, too."""
    nodes = yield Nodes()
    found = []
    try:
        for check in QUEUE:
            found += yield from check(queue, nodes)
    except FairlaneError as error:
        found.append(_unread("queue", "the queue", error))
    return found


def _page(walk: Walk, failed: list[Finding]) -> Operation[list[Finding]]:
    try:
        found = yield from walk.page()
    except FairlaneError as error:
        failed.append(_unread("requests", f"after {walk.looked:,} requests the others", error))
        return failed
    if walk.is_over:
        shown = f"looked at {plural(walk.looked, 'request')} of the queue"
        none = "the queue has no request here; if it should have some, compare --queue and --redis"
        found.append(Finding("requests", OK, shown if walk.looked else none))
    return found


def _unread(check: str, what: str, error: FairlaneError) -> Finding:
    return Finding(check, BAD, f"{what} can't be read: {error}", "fix what is bad above first")


def _of_nodes(check: Finding, there: list[Any], count: int) -> Finding:
    """Returns a check with the nodes it is about, unless it is about all of them."""
    if len(there) == count:
        return check
    shown = ", ".join(f"{host}:{port}" for host, port in there)
    return Finding(check.check, check.severity, f"{shown}: {check.what}", check.remedy)


def _node(
    node: Any, clock: Callable[[], float], wall_ms: Callable[[], int]
) -> Operation[list[Finding]]:
    text = yield from _ask(node, b"INFO")
    if text is None:
        remedy = "let the user of the URL run INFO"
        return [Finding("version", WARN, "INFO is refused: nothing is known of the server", remedy)]
    info = read_info(text)
    config = yield from _config(node)
    cluster = {}
    if info.get("cluster_enabled") == "1":
        cluster = read_info((yield from _ask(node, b"CLUSTER", b"INFO")) or b"")
    checks = list(judge(Facts(info, config, cluster)))
    if cluster and node is None:
        what = "this is one node of a cluster, and the URL names it as if it were alone"
        checks.append(Finding("address", WARN, what, "name the cluster: redis+cluster://host:port"))
    checks.append((yield from _time(node, wall_ms)))
    checks.append((yield from _latency(node, clock)))
    scripts = yield from _scripts(node, info)
    return [*checks, *scripts]


def _ask(node: Any, *words: bytes) -> Operation[Any]:
    """Returns a node's reply; None if the node refuses. Raises RedisUnreachable."""
    try:
        return (yield OnNode(node, Command(*words)))
    except RedisUnreachable:
        raise
    except FairlaneError:
        return None


def _config(node: Any) -> Operation[dict[str, str] | None]:
    found: dict[str, str] = {}
    for name in _SETTINGS:
        reply = yield from _ask(node, b"CONFIG", b"GET", name.encode())
        if reply is None:
            return None
        found |= {reply[i].decode(): reply[i + 1].decode() for i in range(0, len(reply), 2)}
    return found


def _time(node: Any, wall_ms: Callable[[], int]) -> Operation[Finding]:
    before = wall_ms()
    answer = yield from _ask(node, b"TIME")
    after = wall_ms()
    if answer is None:
        remedy = "let the user of the URL run TIME: every script asks for it"
        return Finding("clock", WARN, "TIME is refused: the clock is not readable", remedy)
    theirs = time_ms(answer)
    skew = min(theirs - before, 0) + max(theirs - after, 0)
    if abs(skew) <= _SKEW_MS:
        return Finding("clock", OK, f"less than {_SKEW_MS // 1000} s from this machine's")
    what = f"{abs(skew) / 1000:,.1f} s {'ahead of' if skew > 0 else 'behind'} this machine's"
    remedy = "nothing depends on it but what people read; let NTP set both"
    return Finding("clock", WARN, what, remedy)


def _latency(node: Any, clock: Callable[[], float]) -> Operation[Finding]:
    taken = []
    for _ in range(_PINGS):
        began = clock()
        if (yield from _ask(node, b"PING")) is None:
            what = "PING is refused: how long a round trip takes is not readable"
            return Finding("latency", WARN, what, "let the user of the URL run PING")
        taken.append((clock() - began) * 1000)
    taken.sort()
    middle, longest = taken[len(taken) // 2], taken[-1]
    # Rounded to 1 ms, so that nodes with equal values share one line.
    shown = f"a round trip takes {_ms(middle)}, at most {_ms(longest)}"
    if middle <= _FAST_MS and longest <= _SLOW_MS:
        return Finding("latency", OK, shown)
    remedy = "run workers near Redis; SLOWLOG GET and INFO commandstats name what holds it up"
    return Finding("latency", WARN, shown, remedy)


def _ms(ms: float) -> str:
    return "under 1 ms" if ms < 1 else f"{ms:.0f} ms"


def _scripts(node: Any, info: dict[str, str]) -> Operation[list[Finding]]:
    scripts, dialect = list(library()), Dialect.of(info)
    shas = [script.sha(dialect) for script in scripts]
    reply = yield from _ask(node, b"SCRIPT", b"EXISTS", *shas)
    if reply is None:
        return [Finding("scripts", OK, "what is loaded is not readable")]
    missing = [script.name for script, there in zip(scripts, reply, strict=True) if not there]
    if missing and (yield from _ask(node, b"EVAL", b"return 1", b"0")) is None:
        what = f"{len(missing)} of {len(scripts)} are not loaded, and this user may not load them"
        remedy = "run `fairlane scripts load` as a user with that right; --watch keeps them loaded"
        return [Finding("scripts", WARN, what, remedy)]
    count = len(scripts) - len(missing)
    rest = f"; not yet: {join_names(missing)}" if 0 < len(missing) < len(scripts) else ""
    return [
        Finding("scripts", OK, f"{count} of {len(scripts)} loaded{rest} (each at its first use)")
    ]
