"""Runs the checks of the servers, then of the queue, then of each request.

Every check only reads. The checks of servers and queues send plain commands, so they work on a
Redis that is unfit for a queue. If a command is refused, the other checks still run.
"""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Any

from fairlane import settings
from fairlane.common.text import join_names, plural
from fairlane.errors import FairlaneError, RedisUnreachable
from fairlane.operations.audit import Suspect, queued_long, remint_lost, still_lost
from fairlane.operations.check_result import BAD, NOTE, OK, WARN, Finding
from fairlane.operations.incident_checks import INCIDENTS
from fairlane.operations.request_checks import (
    FIELDS,
    QUEUE,
    REBUILD,
    REQUEST,
    Dispatch,
    RequestRows,
    Row,
    check_messages,
)
from fairlane.operations.server_checks import Facts, judge
from fairlane.operations.shards import read_shards
from fairlane.protocol import keys, scripts
from fairlane.protocol.lua import Dialect, library
from fairlane.protocol.request_hash import hmget, parse_fields
from fairlane.protocol.server_info import read_info, time_ms
from fairlane.protocol.steps import Batch, Command, Nodes, OnNode, Operation, run_all, run_each

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


# ------------------------------------------------------------------ walk
# Checks all requests and keys of a queue, page by page.
#
# `Walk` reads every key of every primary, then the dispatch slot. It keeps no more than a page in
# memory, and may run while workers do.


PAGE = 1000  # keys of one SCAN
_LONG = 20_000  # permits whose tokens are looked for in one call
_PERMIT = re.compile(rb"[qh]:\d+:.*|p:\d*", re.DOTALL)
_ENTRY = re.compile(rb"\d{12,}-\d+")
_FEW = re.compile(rb"\d{1,4}:")


async def primaries() -> list[Any]:
    """Returns the addresses of a cluster's primaries now; for a single server [None]."""
    found: list[Any] = await Nodes()
    return found


class Walk:
    """One walk over everything that belongs to a queue.

    Without `thorough` it checks only what the dispatch slot must have of the requests: `active` and
    the completion log. A walk repairs nothing: `Finding.apply` does.
    """

    def __init__(self, queue: str, *, thorough: bool = True) -> None:
        self.queue, self.thorough = queue, thorough
        self.looked = 0  # how many requests of this queue were checked
        self._nodes: list[Any] | None = None
        self._walked: list[Any] = []
        self._cursor = b"0"
        self._suspects: list[Suspect] = []
        self._dispatch = Dispatch(queue)

    @property
    def is_over(self) -> bool:
        """Returns True if there is nothing left to check."""
        return self._nodes == [] and (not self.thorough or self._dispatch.is_over)

    async def page(self) -> list[Finding]:
        """Checks the next page. After RedisUnreachable, the next call checks the same page."""
        if self._nodes != []:
            return await self._requests()
        return await self._dispatch.page()

    # The keys of all requests.

    async def _requests(self) -> list[Finding]:
        node, cursor, keys_there = await self._scan()
        found: list[Finding] = []
        live: list[Row] = []
        parts: dict[str, set[str]] = {}
        for part, request_id in filter(None, map(keys.part_and_id, keys_there)):
            parts.setdefault(request_id, set()).add(part)
        seconds, _ = await OnNode(node, Command(b"TIME")) if keys_there else (0, 0)
        if self.thorough:
            found += await _endless([key for key in keys_there if keys.beside(key)])
            found += await check_messages(keys_there, int(seconds) * 1000)
        if parts:
            rows, strays = await _rows([name for name in parts if "req" in parts[name]])
            mine = [row for row in rows if row.queue == self.queue]
            page = RequestRows(self.queue, int(seconds) * 1000, mine)
            live = page.live
            found += strays
            for check in REQUEST if self.thorough else REBUILD:
                found += await check(page)
            if self.thorough:
                found += await _orphans(parts, {row.id for row in rows})
            self.looked += len(mine)
        if cursor is not None:
            self._step(node, cursor)
        if self.thorough:
            found += await self._lost_tokens(live)
        return found

    async def _scan(self) -> tuple[Any, bytes | None, list[bytes]]:
        """Returns a node, its next cursor, and a page of its keys; skips former primaries."""
        if self._nodes is None:
            self._nodes = await Nodes()
        pattern = keys.EVERY_TAGGED_KEY if self.thorough else keys.EVERY_REQUEST_HASH
        node = self._nodes[0]
        words = (b"SCAN", self._cursor, b"MATCH", pattern, b"COUNT", PAGE)
        try:
            cursor, found = await OnNode(node, Command(*words))
        except RedisUnreachable:
            present = await Nodes()
            if node in present:
                raise
            self._walked.append(node)
            self._nodes = [other for other in present if other not in self._walked]
            self._cursor = b"0"
            return node, None, []
        return node, bytes(cursor), found

    def _step(self, node: Any, cursor: bytes) -> None:
        """Ends a page: moves on to the next page, or to the next node."""
        self._cursor = cursor
        if cursor == b"0":
            self._walked.append(node)
            self._nodes = [other for other in self._nodes or [] if other != node]

    # Tokens.

    async def _lost_tokens(self, live: Iterable[Row]) -> list[Finding]:
        """Finds permits whose tokens are nowhere; reads when there are many, and at the end."""
        for row in live:
            try:
                self._suspects += await queued_long(row.id)
            except RedisUnreachable:
                raise
            except FairlaneError:  # a finding of `unsound`
                continue
        if not self._suspects or (len(self._suspects) < _LONG and self._nodes != []):
            return []
        suspects, self._suspects = self._suspects, []
        spread = await read_shards(self.queue)
        astray: dict[str, list[Suspect]] = {}
        for one in suspects:
            if one.shard not in spread.served:
                astray.setdefault(one.request_id, []).append(one)
        rest = [one for one in suspects if one.request_id not in astray]
        what = "has tokens in shards that its queue does not have (any more)"
        remedy = "move them to where they are looked for"
        found = [self._reminted("astray", name, what, remedy, astray[name]) for name in astray]
        for name, lost in (await still_lost(self.queue, rest)).items():
            what = f"waits for {plural(len(lost), 'token')} nowhere to be found"
            found.append(self._reminted("lost tokens", name, what, "mint them again", lost))
        return found

    def _reminted(
        self, check: str, name: str, what: str, remedy: str, permits: list[Suspect]
    ) -> Finding:
        return Finding(check, BAD, what, remedy, name, partial(remint_lost, self.queue, permits))


async def _rows(ids: list[str]) -> tuple[list[Row], list[Finding]]:
    """Returns the requests of these ids, whatever their queue, and findings for broken hashes.

    An intent that was given up is neither.
    """
    replies = await run_each([hmget(name, *FIELDS) for name in ids])
    rows, strays = [], []
    for name, reply in zip(ids, replies, strict=True):
        if isinstance(reply, FairlaneError):
            # If other keys show that this is a request of ours, it is reported as an orphan, too.
            what = f"req:{{{name}}} can't be read: another program's, maybe"
            strays.append(Finding("stray", NOTE, what, subject=name))
            continue
        values = dict(zip(FIELDS, parse_fields(FIELDS, reply), strict=True))
        if values["state"] and values["queue"]:
            rows.append(Row(name, values["state"], values["queue"], values))
    return rows, strays


# Keys without a request.


async def _endless(staged: list[bytes]) -> list[Finding]:
    """Finds keys of a sink without a TTL: they must expire, with or without their request."""
    ttls = await run_all([Command(b"PTTL", key) for key in staged])
    found = []
    for key, ttl in zip(staged, ttls, strict=True):
        if ttl == -1:
            what, name = f"{key.decode()} has no end", keys.beside(key) or ""
            repair = partial(Command, b"PEXPIRE", key, settings.PINNED_MS)
            found.append(Finding("orphan", BAD, what, "let it expire in a week", name, repair))
    return found


async def _orphans(parts: dict[str, set[str]], known: set[str]) -> list[Finding]:
    away = [name for name in parts if "req" not in parts[name]]  # the hash came on another page
    asked = [Command(b"HGET", keys.request_hash(name), b"state") for name in away]
    states = await run_each(asked)
    known |= {
        name
        for name, state in zip(away, states, strict=True)
        if isinstance(state, bytes) and state != b"abandoned"
    }
    found = []
    for name in [name for name in parts if name not in known]:
        names = keys.request_keys(name)
        rest = [key for key in names if key != keys.request_hash(name)]
        ttls = await Batch([Command(b"PTTL", key) for key in rest])
        stray = [key for key, ttl in zip(rest, ttls, strict=True) if ttl == -1]
        here = {keys.request_keys(name)[keys.REQUEST_PARTS.index(p)] for p in parts[name]}
        if not stray or stray[0] not in here:  # it is reported on the page of its first key
            continue
        shown = ", ".join(key.decode() for key in stray)
        if not await _are_ours(name):
            what = f"{shown}: no request, and maybe another program's"
            found.append(Finding("stray", NOTE, what, subject=name))
            continue
        repair = partial(scripts.expire_leftovers, names, ttl=settings.MARKER_MS)
        what, remedy = f"{shown}: no request", "let them expire in a day"
        found.append(Finding("orphan", BAD, what, remedy, name, repair))
    return found


async def _are_ours(name: str) -> bool:
    """Returns True if these keys are ours. Other programs may name theirs counter:{x} as well."""
    stream, _, _, permits, _, retries, results, dead, few, _ = keys.request_keys(name)
    asked = [
        Command(b"XINFO", b"GROUPS", stream),
        Command(b"HSCAN", permits, 0, b"COUNT", 5),
        Command(b"ZRANGE", retries, 0, 0),
        Command(b"XRANGE", results, b"-", b"+", b"COUNT", 1),
        Command(b"XRANGE", dead, b"-", b"+", b"COUNT", 1),
        Command(b"GETRANGE", few, 0, 5),
    ]
    groups, found, waiting, out, buried, bodies = [
        [] if isinstance(reply, FairlaneError) else reply for reply in await run_each(asked)
    ]
    return bool(
        any(stream in group for group in groups)
        or (found and any(_PERMIT.fullmatch(text) for text in found[1][1::2]))
        or any(_ENTRY.fullmatch(entry) for entry in waiting)
        or any(fields[0] == b"w" for _, fields in out)
        or any(fields[0] == b"head" for _, fields in buried)
        or _FEW.match(bytes(bodies))
    )


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


async def examine_servers(clock: Callable[[], float], wall_ms: Callable[[], int]) -> list[Finding]:
    """Runs the checks of every server. Raises RedisUnreachable if none answers."""
    found: dict[str, dict[tuple[str, str], tuple[Finding, list[Any]]]] = {}
    nodes = await Nodes()
    unanswered = 0
    for node in nodes:
        try:
            checks = await _node(node, clock, wall_ms)
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


async def examine_queue(queue: str) -> list[Finding]:
    """Runs the checks of one queue as a whole; a check that fails is a finding, too."""
    nodes = await Nodes()
    found: list[Finding] = []
    failed: dict[str, FairlaneError] = {}
    for check in (*QUEUE, *INCIDENTS):
        try:
            found += await check(queue, nodes)
        except FairlaneError as error:
            failed.setdefault(str(error), error)
            if isinstance(error, RedisUnreachable):
                break
    return found + [_unread("queue", "the queue", error) for error in failed.values()]


async def _page(walk: Walk, failed: list[Finding]) -> list[Finding]:
    try:
        found = await walk.page()
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


async def _node(node: Any, clock: Callable[[], float], wall_ms: Callable[[], int]) -> list[Finding]:
    text = await _ask(node, b"INFO")
    if text is None:
        remedy = "let the user of the URL run INFO"
        return [Finding("version", WARN, "INFO is refused: nothing is known of the server", remedy)]
    info = read_info(text)
    config = await _config(node)
    cluster = {}
    if info.get("cluster_enabled") == "1":
        cluster = read_info(await _ask(node, b"CLUSTER", b"INFO") or b"")
    checks = list(judge(Facts(info, config, cluster)))
    if cluster and node is None:
        what = "this is one node of a cluster, and the URL names it as if it were alone"
        checks.append(Finding("address", WARN, what, "name the cluster: redis+cluster://host:port"))
    checks.append(await _time(node, wall_ms))
    checks.append(await _latency(node, clock))
    scripts = await _scripts(node, info)
    return [*checks, *scripts]


async def _ask(node: Any, *words: bytes) -> Any:
    """Returns a node's reply; None if the node refuses. Raises RedisUnreachable."""
    try:
        return await OnNode(node, Command(*words))
    except RedisUnreachable:
        raise
    except FairlaneError:
        return None


async def _config(node: Any) -> dict[str, str] | None:
    found: dict[str, str] = {}
    for name in _SETTINGS:
        reply = await _ask(node, b"CONFIG", b"GET", name.encode())
        if reply is None:
            return None
        found |= {reply[i].decode(): reply[i + 1].decode() for i in range(0, len(reply), 2)}
    return found


async def _time(node: Any, wall_ms: Callable[[], int]) -> Finding:
    before = wall_ms()
    answer = await _ask(node, b"TIME")
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


async def _latency(node: Any, clock: Callable[[], float]) -> Finding:
    taken = []
    for _ in range(_PINGS):
        began = clock()
        if await _ask(node, b"PING") is None:
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


async def _scripts(node: Any, info: dict[str, str]) -> list[Finding]:
    scripts, dialect = list(library()), Dialect.of(info)
    shas = [script.shas[dialect] for script in scripts]
    reply = await _ask(node, b"SCRIPT", b"EXISTS", *shas)
    if reply is None:
        return [Finding("scripts", OK, "what is loaded is not readable")]
    missing = [script.name for script, there in zip(scripts, reply, strict=True) if not there]
    if missing and await _ask(node, b"EVAL", b"return 1", b"0") is None:
        what = f"{len(missing)} of {len(scripts)} are not loaded, and this user may not load them"
        remedy = "run `fairlane scripts load` as a user with that right; --watch keeps them loaded"
        return [Finding("scripts", WARN, what, remedy)]
    count = len(scripts) - len(missing)
    rest = f"; not yet: {join_names(missing)}" if 0 < len(missing) < len(scripts) else ""
    return [
        Finding("scripts", OK, f"{count} of {len(scripts)} loaded{rest} (each at its first use)")
    ]
