"""What is wrong here? The servers, the time, the scripts, the workers, the work.

Everything is only read, by plain commands: it works on a Redis that is not fit for a queue, and one
that refuses some commands is asked the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairlane.errors import FairlaneError, RedisUnreachable
from fairlane.operations.diagnosis.queue_checks import judge_queue
from fairlane.operations.diagnosis.server_checks import BAD, OK, WARN, Check, Facts, judge
from fairlane.operations.diagnosis.size_checks import judge_retention, judge_sizes
from fairlane.protocol.scripts import Dialect, library
from fairlane.protocol.server_info import read_info, time_ms
from fairlane.protocol.steps import Command, Nodes, OnNode

if TYPE_CHECKING:
    from collections.abc import Callable

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
) -> Operation[list[Check]]:
    """Every check, in the order to be read. `clock` is in seconds, `wall_ms` this machine's time.

    Raises RedisUnreachable when no server answers.
    """
    found: dict[str, dict[Check, list[Any]]] = {}
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
            checks = [Check("servers", BAD, f"a primary does not answer: {error}", remedy)]
        for check in checks:
            found.setdefault(check.name, {}).setdefault(check, []).append(node)
    checks = [
        _of_nodes(check, there, len(nodes))
        for same in found.values()
        for check, there in same.items()
    ]
    try:
        checks += yield from judge_queue(queue)
        checks += yield from judge_sizes(queue, nodes[0])
        checks += yield from judge_retention(queue, nodes)
    except FairlaneError as error:
        remedy = "remedy what is bad above first"
        checks.append(Check("queue", BAD, f"the queue can't be read: {error}", remedy))
    return checks


def _of_nodes(check: Check, there: list[Any], count: int) -> Check:
    """The check of some nodes; it names them unless it is true of all."""
    if len(there) == count:
        return check
    shown = ", ".join(f"{host}:{port}" for host, port in there)
    return Check(check.name, check.state, f"{shown}: {check.what}", check.remedy)


def _node(
    node: Any, clock: Callable[[], float], wall_ms: Callable[[], int]
) -> Operation[list[Check]]:
    text = yield from _ask(node, b"INFO")
    if text is None:
        remedy = "let the user of the URL run INFO"
        return [Check("version", WARN, "INFO is refused: nothing is known of the server", remedy)]
    info = read_info(text)
    config = yield from _config(node)
    cluster = {}
    if info.get("cluster_enabled") == "1":
        cluster = read_info((yield from _ask(node, b"CLUSTER", b"INFO")) or b"")
    checks = list(judge(Facts(info, config, cluster)))
    if cluster and node is None:
        what = "this is one node of a cluster, and the URL names it as if it were alone"
        checks.append(Check("address", WARN, what, "name the cluster: redis+cluster://host:port"))
    checks.append((yield from _time(node, wall_ms)))
    checks.append((yield from _latency(node, clock)))
    scripts = yield from _scripts(node, info)
    return [*checks, *scripts]


def _ask(node: Any, *words: bytes) -> Operation[Any]:
    """A node's answer; None when it refuses. Raises RedisUnreachable."""
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


def _time(node: Any, wall_ms: Callable[[], int]) -> Operation[Check]:
    before = wall_ms()
    answer = yield from _ask(node, b"TIME")
    after = wall_ms()
    if answer is None:
        remedy = "let the user of the URL run TIME: every script asks for it"
        return Check("clock", WARN, "TIME is refused: the clock is not readable", remedy)
    theirs = time_ms(answer)
    skew = min(theirs - before, 0) + max(theirs - after, 0)
    if abs(skew) <= _SKEW_MS:
        return Check("clock", OK, f"less than {_SKEW_MS // 1000} s from this machine's")
    what = f"{abs(skew) / 1000:,.1f} s {'ahead of' if skew > 0 else 'behind'} this machine's"
    remedy = "nothing depends on it but what people read; let NTP set both"
    return Check("clock", WARN, what, remedy)


def _latency(node: Any, clock: Callable[[], float]) -> Operation[Check]:
    taken = []
    for _ in range(_PINGS):
        began = clock()
        if (yield from _ask(node, b"PING")) is None:
            what = "PING is refused: how long a round trip takes is not readable"
            return Check("latency", WARN, what, "let the user of the URL run PING")
        taken.append((clock() - began) * 1000)
    taken.sort()
    middle, longest = taken[len(taken) // 2], taken[-1]
    # Rounded to 1 ms, so that equal nodes share one line.
    shown = f"a round trip takes {_ms(middle)}, at most {_ms(longest)}"
    if middle <= _FAST_MS and longest <= _SLOW_MS:
        return Check("latency", OK, shown)
    remedy = "run workers near Redis; SLOWLOG GET and INFO commandstats name what holds it up"
    return Check("latency", WARN, shown, remedy)


def _ms(ms: float) -> str:
    return "under 1 ms" if ms < 1 else f"{ms:.0f} ms"


def _scripts(node: Any, info: dict[str, str]) -> Operation[list[Check]]:
    scripts, dialect = list(library()), Dialect.of(info)
    shas = [script.sha(dialect) for script in scripts]
    reply = yield from _ask(node, b"SCRIPT", b"EXISTS", *shas)
    if reply is None:
        return [Check("scripts", OK, "what is loaded is not readable")]
    missing = [script.name for script, there in zip(scripts, reply, strict=True) if not there]
    if missing and (yield from _ask(node, b"EVAL", b"return 1", b"0")) is None:
        what = f"{len(missing)} of {len(scripts)} are not loaded, and this user may not load them"
        remedy = "run `fairlane scripts load` as a user with that right; --watch keeps them loaded"
        return [Check("scripts", WARN, what, remedy)]
    count = len(scripts) - len(missing)
    rest = f"; not yet: {', '.join(missing)}" if 0 < len(missing) < len(scripts) else ""
    return [Check("scripts", OK, f"{count} of {len(scripts)} loaded{rest} (each at its first use)")]
