"""Looks through all of Redis for damage, page by page, and repairs it; safe while workers run.

`Walk` goes over every key of every primary, then over the dispatch slot. It keeps no more than a
page in memory. Each repair may run twice, and while other processes do the same.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from fairlane import settings
from fairlane.common.text import plural
from fairlane.errors import FairlaneError, RedisUnreachable
from fairlane.model import ENDED_STATES
from fairlane.operations.batching import run_all, run_each
from fairlane.operations.diagnosis.finding import Finding, FindingCounts, apply_repair
from fairlane.operations.diagnosis.fsck_dispatch import GRACE_MS, Dispatch
from fairlane.operations.lease.shards import move_one, read_shards
from fairlane.operations.maintenance.lost_tokens import Suspect, find_lost, queued_long, remint
from fairlane.operations.maintenance.registry import reap_all
from fairlane.operations.submit.intents import seen_to_exist
from fairlane.protocol import keys
from fairlane.protocol.request_hash import hmget, parse_fields
from fairlane.protocol.scripts import library
from fairlane.protocol.steps import Batch, Command, Nodes, OnNode, Operation

if TYPE_CHECKING:
    from collections.abc import Iterable

PAGE = 1000  # keys of one SCAN
_LONG = 20_000  # permits whose tokens are looked for in one call
_PERMIT = re.compile(rb"[qh]:\d+:.*|p:\d*", re.DOTALL)
_ENTRY = re.compile(rb"\d{12,}-\d+")
_FEW = re.compile(rb"\d{1,4}:")
_FIELDS = ("state", "queue", "born", "ended")


def primaries() -> Operation[list[Any]]:
    """The primaries of a cluster now, by their addresses; one server: [None]."""
    found: list[Any] = yield Nodes()
    return found


class Row(NamedTuple):
    """A request as its hash describes it."""

    id: str
    state: str
    queue: str
    values: dict[str, str]

    @property
    def is_over(self) -> bool:
        """True for a tombstone."""
        return self.state in ENDED_STATES

    def number(self, name: str) -> int:
        """A number of the hash; 0 when it is missing."""
        return int(self.values[name] or 0)


class Walk:
    """One way through everything that belongs to a queue, and what was found on it.

    With `repair` it repairs what it finds. Without `thorough` it only rebuilds what the dispatch
    slot should know of the requests: `active` and the completion log.
    """

    def __init__(self, queue: str, *, repair: bool, thorough: bool = True) -> None:
        self.queue, self.repair, self.thorough = queue, repair, thorough
        self.looked = 0  # requests of this queue
        self._nodes: list[Any] | None = None
        self._walked: list[Any] = []
        self._cursor = b"0"
        self._suspects: list[Suspect] = []
        self._dispatch = Dispatch(queue, repair=repair)

    @property
    def is_over(self) -> bool:
        """True once there is nothing left to look at."""
        return self._nodes == [] and (not self.thorough or self._dispatch.is_over)

    def page(self) -> Operation[list[Finding]]:
        """Looks at the next page. Raises RedisUnreachable; the same page is next then."""
        if self._nodes != []:
            return (yield from self._requests())
        return (yield from self._dispatch.page())

    # The keys of all requests.

    def _requests(self) -> Operation[list[Finding]]:
        node, cursor, found = yield from self._scan()
        live: list[Row] = []
        parts: dict[str, set[str]] = {}
        for part, request_id in filter(None, map(keys.part_and_id, found)):
            parts.setdefault(request_id, set()).add(part)
        tally = FindingCounts(self.repair)
        if self.thorough:
            yield from self._endless([key for key in found if keys.staging_of(key)], tally)
        if parts:
            seconds, _ = yield OnNode(node, Command(b"TIME"))
            now = int(seconds) * 1000
            rows = yield from self._rows([name for name in parts if "req" in parts[name]], tally)
            mine = [row for row in rows if row.queue == self.queue]
            live = [row for row in mine if not row.is_over]
            yield from self._forgotten(live, tally)
            yield from self._unlogged([row for row in mine if row.is_over], now, tally)
            if self.thorough:
                yield from self._unsound(mine, now, tally)
                yield from self._orphans(parts, {row.id for row in rows}, tally)
            self.looked += len(mine)
        if cursor is not None:
            self._step(node, cursor)
        if self.thorough:
            yield from self._lost_tokens(live, tally)
        return tally.findings

    def _scan(self) -> Operation[tuple[Any, bytes | None, list[bytes]]]:
        """A node, its next cursor, a page of its keys. A primary that is one no more is left."""
        if self._nodes is None:
            self._nodes = yield Nodes()
        pattern = keys.EVERY_REQUEST_KEY if self.thorough else keys.EVERY_REQUEST_HASH
        node = self._nodes[0]
        words = (b"SCAN", self._cursor, b"MATCH", pattern, b"COUNT", PAGE)
        try:
            cursor, found = yield OnNode(node, Command(*words))
        except RedisUnreachable:
            present = yield Nodes()
            if node in present:
                raise
            self._walked.append(node)
            self._nodes = [other for other in present if other not in self._walked]
            self._cursor = b"0"
            return node, None, []
        return node, bytes(cursor), found

    def _step(self, node: Any, cursor: bytes) -> None:
        """The page is done: on with the next one, or the next node."""
        self._cursor = cursor
        if cursor == b"0":
            self._walked.append(node)
            self._nodes = [other for other in self._nodes or [] if other != node]

    def _rows(self, ids: list[str], tally: FindingCounts) -> Operation[list[Row]]:
        """The requests of these ids, whatever their queue; an intent given up is none."""
        asked = [hmget(name, *_FIELDS) for name in ids]
        replies = yield from run_each(asked)
        rows = []
        for name, reply in zip(ids, replies, strict=True):
            if isinstance(reply, FairlaneError):
                # If other keys show that it is a request of ours, it is reported as an orphan, too.
                tally.note("stray", name, f"req:{{{name}}} can't be read: another program's, maybe")
                continue
            values = dict(zip(_FIELDS, parse_fields(_FIELDS, reply), strict=True))
            if values["state"] and values["queue"]:
                rows.append(Row(name, values["state"], values["queue"], values))
        return rows

    # What the dispatch slot should know.

    def _forgotten(self, live: list[Row], tally: FindingCounts) -> Operation[None]:
        """Finds a request that is missing in `active`, so that no leader looks after it."""
        active = keys.active(self.queue)
        scores = yield from run_all([Command(b"ZSCORE", active, row.id) for row in live])
        missing = [row for row, score in zip(live, scores, strict=True) if score is None]
        asked = [Command(b"HGET", keys.request_hash(row.id), b"state") for row in missing]
        states = yield from run_all(asked)  # it may have ended meanwhile
        score = (yield from self._now()) if missing and tally.repair else ""
        for row, state in zip(missing, states, strict=True):
            if state is None or state.decode() in ENDED_STATES:
                continue
            found = tally.add("forgotten", row.id, "is not in `active`", "put it there")
            if tally.repair:
                again = library().restore_active((active,), id=row.id, due=score)
                yield from apply_repair(found, again)

    def _now(self) -> Operation[str]:
        """The score of a request that is to be looked at now."""
        # TIME goes where the step with a key goes: it is that clock which counts in `active`.
        asked = [Command(b"EXISTS", keys.active(self.queue)), Command(b"TIME")]
        _, (seconds, _) = yield Batch(asked)
        return seen_to_exist(int(seconds) * 1000)

    def _unlogged(self, ended: list[Row], now: int, tally: FindingCounts) -> Operation[None]:
        """An ending whose marker is missing while the tombstone stands is not in the log."""
        old = [row for row in ended if now - row.number("ended") > settings.TOKEN_GRACE_MS]
        logged = keys.logged(self.queue)
        asked = [Command(b"ZSCORE", logged, f"{row.id}|{row.number('born')}") for row in old]
        markers = yield from run_all(asked)
        for row, marker in zip(old, markers, strict=True):
            if marker is None:
                found = tally.add("unlogged", row.id, f"is {row.state}, unlogged", "log its ending")
                if tally.repair:
                    yield from apply_repair(
                        found, reap_all(self.queue, row.id)
                    )  # it reads the end, too

    # The request's own slot.

    def _unsound(self, rows: list[Row], now: int, tally: FindingCounts) -> Operation[None]:
        """Invariants that do not hold, and leases that should have been taken back."""
        replies = yield from run_each([library().check(keys.request_keys(row.id)) for row in rows])
        for row, broken in zip(rows, replies, strict=True):
            if isinstance(broken, FairlaneError):
                tally.unreadable(row.id, broken)
            elif broken:
                yield from self._broken(row, "; ".join(part.decode() for part in broken), tally)
        live = [row for row in rows if not row.is_over]
        late = now - GRACE_MS
        asked = [Command(b"ZCOUNT", keys.leases(row.id), b"-inf", late) for row in live]
        for row, count in zip(live, (yield from run_each(asked)), strict=True):
            if isinstance(count, int) and count:
                what = f"has {plural(count, 'lease')} that expired more than a minute ago"
                found = tally.add("overdue", row.id, what, "take them back")
                if tally.repair:
                    yield from apply_repair(found, reap_all(self.queue, row.id))

    def _broken(self, row: Row, sentence: str, tally: FindingCounts) -> Operation[None]:
        is_left = row.is_over and "accounted" not in sentence
        remedies = "tidy its keys" if is_left else "take back, mint"
        found = tally.add("left over" if is_left else "unsound", row.id, sentence, remedies)
        if not tally.repair:
            return
        names = keys.request_keys(row.id)
        if row.is_over:
            yield from apply_repair(
                found, library().expire_leftovers(names, ttl=settings.MARKER_MS)
            )
        else:
            yield from apply_repair(found, reap_all(self.queue, row.id))
        (broken,) = yield from run_each([library().check(names)])
        if isinstance(broken, FairlaneError) or broken:
            found.is_repaired, found.is_by_hand = False, True
            found.remedy = "cancel it and submit it anew under another id"

    def _lost_tokens(self, live: Iterable[Row], tally: FindingCounts) -> Operation[None]:
        """Permits whose tokens are nowhere; looked for when there are many, and at the end."""
        for row in live:
            try:
                self._suspects += yield from queued_long(row.id)
            except RedisUnreachable:
                raise
            except FairlaneError:  # said already
                continue
        if len(self._suspects) < _LONG and self._nodes != []:
            return
        suspects, self._suspects = self._suspects, []
        suspects = yield from self._astray(suspects, tally)
        lost = yield from still_lost(self.queue, suspects)
        for name, permits in lost.items():
            what = f"waits for {plural(len(permits), 'token')} nowhere to be found"
            found = tally.add("lost tokens", name, what, "mint them again")
            if tally.repair:
                yield from apply_repair(found, self._remint(name, permits))

    def _remint(self, name: str, permits: list[Suspect]) -> Operation[None]:
        reply = (yield from remint(self.queue, {name: permits}))[name]
        if isinstance(reply, FairlaneError):
            raise reply

    def _astray(self, suspects: list[Suspect], tally: FindingCounts) -> Operation[list[Suspect]]:
        """Reports tokens in shards that no worker pops; returns the suspects that are not there."""
        if not suspects:
            return []
        spread = yield from read_shards(self.queue)
        names = dict.fromkeys(one.request_id for one in suspects if one.shard not in spread.served)
        for name in names:
            what = "has tokens in shards that its queue does not have (any more)"
            found = tally.add("astray", name, what, "move them to where they are looked for")
            if tally.repair:
                yield from apply_repair(found, move_one(self.queue, name, spread.present))
        return [one for one in suspects if one.request_id not in names]

    # Keys without a request.

    def _endless(self, found: list[bytes], tally: FindingCounts) -> Operation[None]:
        """What a sink keeps is to expire, whether its request is there or not."""
        ttls = yield from run_all([Command(b"PTTL", key) for key in found])
        for key, ttl in zip(found, ttls, strict=True):
            if ttl == -1:
                shown, name = key.decode(), keys.staging_of(key) or ""
                what = f"{shown} has no end"
                one = tally.add("orphan", name, what, "let it expire in a week")
                if tally.repair:
                    yield from apply_repair(one, Command(b"PEXPIRE", key, settings.PINNED_MS))

    def _orphans(
        self, parts: dict[str, set[str]], known: set[str], tally: FindingCounts
    ) -> Operation[None]:
        away = [name for name in parts if "req" not in parts[name]]  # it came on another page
        asked = [Command(b"HGET", keys.request_hash(name), b"state") for name in away]
        states = yield from run_each(asked)
        known |= {
            name
            for name, state in zip(away, states, strict=True)
            if isinstance(state, bytes) and state != b"abandoned"
        }
        for name in [name for name in parts if name not in known]:
            names = keys.request_keys(name)
            rest = [key for key in names if key != keys.request_hash(name)]
            ttls = yield Batch([Command(b"PTTL", key) for key in rest])
            stray = [key for key, ttl in zip(rest, ttls, strict=True) if ttl == -1]
            here = {keys.request_keys(name)[keys.REQUEST_PARTS.index(p)] for p in parts[name]}
            if not stray or stray[0] not in here:  # it is reported on the page of its first key
                continue
            shown = ", ".join(key.decode() for key in stray)
            if not (yield from self._are_ours(name)):
                tally.note("stray", name, f"{shown}: no request, and maybe another program's")
                continue
            found = tally.add("orphan", name, f"{shown}: no request", "let them expire in a day")
            if tally.repair:
                yield from apply_repair(
                    found, library().expire_leftovers(names, ttl=settings.MARKER_MS)
                )

    def _are_ours(self, name: str) -> Operation[bool]:
        """Do these keys look like ours? Other programs may name theirs counter:{x} as well."""
        stream, _, _, permits, _, retries, results, dead, few = keys.request_keys(name)
        asked = [
            Command(b"XINFO", b"GROUPS", stream),
            Command(b"HSCAN", permits, 0, b"COUNT", 5),
            Command(b"ZRANGE", retries, 0, 0),
            Command(b"XRANGE", results, b"-", b"+", b"COUNT", 1),
            Command(b"XRANGE", dead, b"-", b"+", b"COUNT", 1),
            Command(b"GETRANGE", few, 0, 5),
        ]
        groups, found, waiting, out, buried, bodies = [
            [] if isinstance(reply, FairlaneError) else reply
            for reply in (yield from run_each(asked))
        ]
        return bool(
            any(stream in group for group in groups)
            or (found and any(_PERMIT.fullmatch(text) for text in found[1][1::2]))
            or any(_ENTRY.fullmatch(entry) for entry in waiting)
            or any(fields[0] == b"w" for _, fields in out)
            or any(fields[0] == b"head" for _, fields in buried)
            or _FEW.match(bytes(bodies))
        )


def still_lost(queue: str, suspects: list[Suspect]) -> Operation[dict[str, list[Suspect]]]:
    """Those of the suspects whose tokens are nowhere, by request.

    Each is checked a second time at the end: a worker that had its token has shown it by then.
    """
    lost, errors = yield from find_lost(queue, suspects)
    if errors:
        raise errors[0]
    missing = [one for permits in lost.values() for one in permits]
    asked = [Command(b"HGET", keys.permits(one.request_id), one.k) for one in missing]
    found: dict[str, list[Suspect]] = {}
    for one, text in zip(missing, (yield from run_all(asked)), strict=True):
        if (text or b"").startswith(f"q:{one.g}:".encode()):
            found.setdefault(one.request_id, []).append(one)
    return found
