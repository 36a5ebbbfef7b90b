"""The checks of requests, lanes and messages: each returns a finding for each damage."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from fairlane import settings
from fairlane.common.text import format_duration, join_names, of_queue, plural
from fairlane.errors import FairlaneError, RedisUnreachable, TopicNotFound
from fairlane.model import ENDED_STATES
from fairlane.operations import lists, tokens
from fairlane.operations.after import circle_text, find_circles, is_unended, waiting_lives
from fairlane.operations.check_result import BAD, NOTE, OK, WARN, Finding
from fairlane.operations.estimate import read_queue, read_request
from fairlane.operations.find import list_workers
from fairlane.operations.flow_hand_over import Feed, hand_over
from fairlane.operations.long_calls import long_calls_of, words
from fairlane.operations.pause import read_pause
from fairlane.operations.rates import read_queue_rate
from fairlane.operations.server_checks import retention, small_requests
from fairlane.operations.shards import read_shards
from fairlane.operations.starved import starved
from fairlane.operations.tokens import are_queued, drop_active, parse, seen_to_exist, was_seen
from fairlane.operations.topics import read_topic
from fairlane.operations.why import causes_of
from fairlane.operations.workers import is_late, look_at, reap_all
from fairlane.protocol import keys, scripts
from fairlane.protocol.lua import ending_name
from fairlane.protocol.request_hash import hmget, parse_fields, read
from fairlane.protocol.server_info import time_ms
from fairlane.protocol.steps import Batch, Command, run_all, run_each

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fairlane.operations.lists import ForwardState
    from fairlane.operations.topics import Subscriber, TopicState
    from fairlane.records import Cause


# ------------------------------------------------------------------ dispatch checks
# Finds, page by page, what should not be in the dispatch slot: the second half of a `Walk`.


_PAGE = 1000
_MEMBER = re.compile(rb"(\d{1,2})\|(.+)")


class Dispatch:
    """Checks `active`, `delayed` and the lanes of one queue."""

    def __init__(self, queue: str) -> None:
        self.queue = queue
        self._cursor = b"0"
        self._lane = self._first = self._tokens = 0
        self._shards: list[int] | None = None  # shards not checked yet, once they are known
        self._phases = [self._active, self._delayed, self._lanes]

    @property
    def is_over(self) -> bool:
        """Returns True if there is nothing left to check."""
        return not self._phases

    async def page(self) -> list[Finding]:
        """Checks the next page."""
        found: list[Finding] = []
        is_done = await self._phases[0](found)
        if is_done:
            self._phases.pop(0)
        return found

    async def _scan(self, key: bytes) -> tuple[list[Any], int]:
        """Returns the next page of a sorted set, members and scores in turn, and the time in ms."""
        asked = [Command(b"ZSCAN", key, self._cursor, b"COUNT", _PAGE), Command(b"TIME")]
        (cursor, found), (seconds, _) = await Batch(asked)
        self._cursor = bytes(cursor)
        return found, int(seconds) * 1000

    async def _active(self, findings: list[Finding]) -> bool:
        """Finds entries that belong to no unfinished request."""
        found, now = await self._scan(keys.active(self.queue))
        late = [
            (name, score)
            for name, score in zip(found[::2], found[1::2], strict=True)
            if now - float(score) > GRACE_MS  # otherwise a leader handles it now, or soon
        ]
        ids = [name.decode("utf-8", "replace") for name, _ in late]
        asked = [Command(b"HMGET", keys.request_hash(one), b"state", b"queue") for one in ids]
        rows = await run_each(asked)
        for (name, score), request_id, row in zip(late, ids, rows, strict=True):
            if isinstance(row, FairlaneError):
                findings.append(unreadable(request_id, row))
                continue
            what = self._why(row, score)
            if what is None:
                continue
            repair = partial(self._take_out, name, score.decode(), now)
            remedy = "take it out of `active`"
            findings.append(Finding("no request", BAD, what, remedy, request_id, repair))
        return self._cursor == b"0"

    def _why(self, row: list[bytes | None], score: bytes) -> str | None:
        state, queue = ((value or b"").decode("utf-8", "replace") for value in row)
        if state in {"", "abandoned"}:
            return (
                "was there and is gone" if was_seen(score) else "was announced and never submitted"
            )
        if queue != self.queue:
            return f"is in `active` of {self.queue} and belongs to queue {queue}"
        return "has ended and still is in `active`" if state in ENDED_STATES else None

    async def _take_out(self, name: bytes, score: str, now: int) -> None:
        try:
            request_id = keys.check_name("request id", name.decode("utf-8", "replace"))
        except FairlaneError:
            await drop_active(self.queue, name, score)
            return
        await look_at(self.queue, request_id, score, now)

    async def _delayed(self, findings: list[Finding]) -> bool:
        """Finds members that a promoter cannot read, because they would stop it, and stale ones."""
        if self._shards is None:
            self._shards = list((await read_shards(self.queue)).served)
        delayed = keys.delayed(self.queue, self._shards[0])
        found, _ = await self._scan(delayed)
        tokens = []
        for member in found[::2]:
            match = _MEMBER.fullmatch(member)
            if match:
                tokens.append(match[2])
                continue
            shown = member[:80].decode("utf-8", "replace")
            repair, what = partial(Command, b"ZREM", delayed, member), "in `delayed` is no token"
            findings.append(Finding("unreadable", BAD, what, "remove it", shown, repair))
        await self._count(tokens)
        if self._cursor == b"0":
            self._report(findings, "delayed")
        return self._cursor == b"0"

    async def _lanes(self, findings: list[Finding]) -> bool:
        """Finds tokens of requests that are gone, or of permits that have other tokens now."""
        shards = self._shards or [0]
        lane = keys.lanes(self.queue, shards[0])[self._lane]
        page = await Command(b"LRANGE", lane, self._first, self._first + _PAGE - 1)
        words = [word for word in page if word != tokens.PLACEHOLDER]
        if not self._first:  # checks only the first of those that wait for their tenant's turn
            number = shards[0] * keys.LANES + self._lane
            members = await tokens.first_of_lane(self.queue, number, _PAGE)
            words += map(tokens.token_of, members)
        await self._count(words)
        self._first += _PAGE
        if len(page) < _PAGE:
            shown = f"shard {shards[0]}, " if shards[0] else ""
            self._report(findings, f"{shown}lane {self._lane}")
            self._lane, self._first = self._lane + 1, 0
        if self._lane < keys.LANES:
            return False
        self._lane, self._shards = 0, shards[1:]
        if self._shards:
            self._phases[1:1] = [self._delayed, self._lanes]
        return True

    async def _count(self, tokens: list[bytes]) -> None:
        """Counts the stale tokens."""
        read = [token for token in map(parse, tokens) if token is not None]
        fresh = await are_queued(read, run_each)
        self._tokens += len(tokens) - sum(fresh)

    def _report(self, findings: list[Finding], where: str) -> None:
        if self._tokens:
            what = f"{plural(self._tokens, 'token')} that no permit waits for"
            findings.append(Finding("stale", NOTE, what, subject=where))
        self._tokens = 0


# ------------------------------------------------------------------ queue checks
# The checks of a whole queue: its workers, what is due, what was lost. Their cost is bounded.


_ENDINGS = 100
_OVERDUE_MS = 30_000  # a leader handles what is due within seconds


async def workers(queue: str, _: Sequence[Any]) -> list[Finding]:
    """Finds a queue that no worker serves, and workers whose last heartbeat is old."""
    key = keys.workers(queue)
    beats, waiting, time = await Batch(
        [
            Command(b"ZRANGE", key, 0, -1, b"WITHSCORES"),
            Command(b"ZCARD", keys.active(queue)),
            Command(b"TIME"),
        ]
    )
    pairs = zip(beats[::2], beats[1::2], strict=True)
    ages = {
        name.decode("utf-8", "replace"): time_ms(time) - float(beaten) for name, beaten in pairs
    }
    late = [name for name, age in ages.items() if is_late(age)]
    gone = [name for name in late if ages[name] > settings.WORKER_TTL_MS]
    count = len(ages) - len(late)
    if not count and waiting:
        what = f"no worker beats, and {plural(waiting, 'unfinished request')} waiting"
        remedy = f"start one: fairlane worker --queue {queue} --handler module:function"
        found = [Finding("workers", BAD, what, remedy)]
    elif late:
        remedy = "look whether they run; what they held goes to others"
        found = [Finding("workers", WARN, f"{count} beat, late: {join_names(late)}", remedy)]
    else:
        what = f"{count} beat" if count else "none, and no unfinished request is listed"
        found = [Finding("workers", OK, what)]
    if gone:
        expire = partial(scripts.expire_workers, (key,), ttl=settings.WORKER_TTL_MS)
        what = f"no beat for a minute, still registered: {join_names(gone)}"
        found.append(Finding("late", NOTE, what, "remove them from the registry", repair=expire))
    return found


async def pause(queue: str, _: Sequence[Any]) -> list[Finding]:
    """Finds that the queue is paused."""
    found = await read_pause(queue)
    if not found.is_paused:
        return []
    what, resumes = f"the queue is {found.text}", f"fairlane queue resume{of_queue(queue)}"
    return [Finding("pause", WARN, what, f"{resumes} lets workers take from it")]


async def rate(queue: str, _: Sequence[Any]) -> list[Finding]:
    """Finds that the queue has a rate."""
    found = await read_queue_rate(queue)
    if found is None:
        return []
    what = f"the queue starts at most {found.words}"
    remedy = f"fairlane queue rate off{of_queue(queue)} removes the rate"
    return [Finding("rate", NOTE, what, remedy)]


async def upkeep(queue: str, _: Sequence[Any]) -> list[Finding]:
    """Finds that no leader handles what is due in `active`, or in a `delayed`."""
    spread = await read_shards(queue)
    due_keys = [keys.active(queue), *(keys.delayed(queue, shard) for shard in spread.served)]
    asked = [Command(b"ZRANGE", key, 0, 0, b"WITHSCORES") for key in due_keys]
    *firsts, time = await Batch([*asked, Command(b"TIME")])
    behind = time_ms(time) - min((float(first[1]) for first in firsts if first), default=9e15)
    if behind <= _OVERDUE_MS:
        return [Finding("upkeep", OK, "what is due is looked after")]
    what = f"no leader has looked after what was due {format_duration(int(behind))} ago"
    return [Finding("upkeep", WARN, what, "start a worker: each of them may lead")]


async def endings(queue: str, _: Sequence[Any]) -> list[Finding]:
    """Finds requests that vanished recently."""
    log = await Command(b"XREVRANGE", keys.completed(queue), b"+", b"-", b"COUNT", _ENDINGS)
    lost = []
    for _entry, fields in log:
        text = dict(zip(fields[::2], fields[1::2], strict=True))
        if text.get(b"state") == b"lost":
            lost.append(text.get(b"id", b"?").decode("utf-8", "replace"))
    if not lost:
        return [Finding("endings", OK, f"none lost among the last {len(log)}")]
    what = f"{len(lost)} of the last {len(log)} requests were lost: {join_names(lost)}"
    remedy = "submit them again; see persistence and replicas above for how not to lose the next"
    return [Finding("endings", WARN, what, remedy)]


_MOST_CALLS = 10  # that run unusually long and are named


async def unusual_calls(queue: str, _: list[Any]) -> list[Finding]:
    """Finds calls that run unusually long: a lock, a dead peer, a body that is too large."""
    found = await list_workers(queue)
    now_ms = time_ms(await Command(b"TIME")) if any(one.slow for one in found.workers) else 0
    calls = await long_calls_of(queue, found.workers)
    return [
        Finding("calls", WARN, words(call, now_ms), call.remedy, call.id)
        for call in calls[:_MOST_CALLS]
    ]


async def units(queue: str, _: list[Any]) -> list[Finding]:
    """Finds units that all wait for calls of their own queue, which none is left to run."""
    found = await starved(queue)
    return [] if found is None else [Finding("units", BAD, found.text, found.remedy)]


QUEUE = (workers, pause, rate, upkeep, endings, small_requests, retention, unusual_calls, units)


# ------------------------------------------------------------------ message checks
# Checks topics and forwarded lists, which belong to no queue: are messages unread or lost?
#
# The checks only read. A `Walk` over requests finds the keys of topics and lists, too.


_IDLE_MS = 3_600_000  # a subscriber that has read nothing for so long has no consumer
_NEAR = 0.8  # of the retention: an older message may be deleted soon


async def check_messages(found: Iterable[bytes], now_ms: int) -> list[Finding]:
    """Finds what is wrong with the topics and forwarded lists whose keys are among these."""
    findings: list[Finding] = []
    for key in found:
        if (topic := keys.topic_of(key)) is not None:
            findings += await _topic(topic, now_ms)
        elif (source := keys.forwarded_list(key)) is not None:
            findings += await _forwarded(source, now_ms)
    return findings


async def _topic(topic: str, now_ms: int) -> list[Finding]:
    try:
        state = await read_topic(topic)
    except RedisUnreachable:
        raise
    except TopicNotFound:  # it was deleted meanwhile
        return []
    except FairlaneError as error:
        return [_unread("topics", f"topic {topic}", "topics", error)]
    found = []
    if state.messages and not state.subscribers:
        what = f"{plural(state.messages, 'message')} and no subscriber"
        found.append(Finding("topics", NOTE, what, subject=f"topic {topic}"))
    for one in state.subscribers:
        problem = _problem(state, one, now_ms)
        if problem is not None:
            what, remedy = problem
            subject = f"topic {topic}, subscriber {one.name}"
            found.append(Finding("topics", WARN, what, remedy, subject))
    return found


def _problem(state: TopicState, one: Subscriber, now_ms: int) -> tuple[str, str] | None:
    """Returns the worst problem of a subscriber and its remedy; None if it has none."""
    if not one.lag:
        return None
    age_ms = now_ms - one.oldest_ms if one.oldest_ms else 0
    idle_ms = now_ms - one.seen_ms
    start = f"start its consumer, or fairlane topic unsubscribe {state.name} {one.name}"
    read = f"has not read for {format_duration(idle_ms)}" if one.seen_ms else "has never read"
    waits = f"{plural(one.lag, 'message')} not acknowledged"
    if one.missed and one.waiting == state.messages:
        what = f"has missed {plural(one.missed, 'message')}: the retention deleted them unread"
        longer = f"keep more: fairlane topic retain {state.name} --age or --count; or {start}"
        return f"{what}; it {read}, {waits}", longer
    if one.waiting > _NEAR * state.retain_count or age_ms > _NEAR * state.retain_ms:
        oldest = format_duration(age_ms)
        what = f"is close to the end of the retention: {waits}, the oldest for {oldest}"
        return what, f"keep more: fairlane topic retain {state.name} --age or --count; or {start}"
    if idle_ms > _IDLE_MS and age_ms > _IDLE_MS:
        return f"{read}: {waits}, the oldest for {format_duration(age_ms)}", start
    return None


async def _forwarded(source: str, now_ms: int) -> list[Finding]:
    try:
        state = await lists.read_state(source)
    except RedisUnreachable:
        raise
    except FairlaneError as error:
        return [_unread("forward", f"list {source}", "lists", error)]
    subject, found = f"list {source}", []
    if state.lag and state.until_ms < now_ms:
        what = f"{plural(state.lag, 'message')} not forwarded, and no forwarder is active"
        remedy = f"start one: fairlane forward --from URL/{source} --to URL/LIST"
        found.append(Finding("forward", WARN, what, remedy, subject))
    if state.restarts:
        found.append(Finding("forward", NOTE, _restarted(state, now_ms), subject=subject))
    return found


def _restarted(state: ForwardState, now_ms: int) -> str:
    ago = format_duration(max(0, now_ms - state.restarted_ms))
    times = plural(state.restarts, "time")
    return f"its numbers began again {times}, last {ago} ago: {lists.REASONS[state.reason]}"


def _unread(check: str, subject: str, role: str, error: FairlaneError) -> Finding:
    what = f"can't be read: {error}"
    return Finding(check, NOTE, what, f"a user with the role {role} may read it", subject)


# ------------------------------------------------------------------ request checks
# The checks of requests: each takes a page of requests, and returns a finding for each damage.
#
# Lost tokens are not checked here, because the lanes are read once for many requests: see `Walk`.


GRACE_MS = 60_000  # if a worker runs, maintenance repairs sooner
_LONG_MS = 600_000  # a request without progress for so long is a finding
FIELDS = (
    *("state", "queue", "born", "reopened", "ended", "open", "last_ms", "fresh", "failure"),
    *("opens", "after", "feed", "handed"),
)


class Row(NamedTuple):
    """A request as its hash describes it."""

    id: str
    state: str
    queue: str
    values: dict[str, str]

    @property
    def ending(self) -> str:
        """Returns the name of the ending, as its marker in the log has it."""
        return ending_name(self.values["born"], self.values["reopened"])

    @property
    def is_over(self) -> bool:
        """Returns True if the request has ended."""
        return self.state in ENDED_STATES

    def number(self, name: str) -> int:
        """Returns a number of the hash; 0 if it is missing."""
        return int(self.values[name] or 0)


class RequestRows(NamedTuple):
    """Some requests of a queue, and their server's time in ms."""

    queue: str
    now: int
    rows: list[Row]

    @property
    def live(self) -> list[Row]:
        """Returns the requests that have not ended."""
        return [row for row in self.rows if not row.is_over]


async def forgotten(page: RequestRows) -> list[Finding]:
    """Finds requests that are missing in `active`, so that no leader looks after them."""
    live = [row.id for row in page.live]
    scores = await run_all([Command(b"ZSCORE", keys.active(page.queue), name) for name in live])
    missing = [name for name, score in zip(live, scores, strict=True) if score is None]
    asked = [Command(b"HGET", keys.request_hash(name), b"state") for name in missing]
    states = await run_all(asked)  # a request may have ended meanwhile
    return [
        Finding(
            *("forgotten", BAD, "is not in `active`", "put it there", name),
            partial(_restore_active, page.queue, name),
        )
        for name, state in zip(missing, states, strict=True)
        if state is not None and state.decode() not in ENDED_STATES
    ]


async def _restore_active(queue: str, name: str) -> None:
    active = keys.active(queue)
    # TIME goes to the node of the step with a key: `active` uses that node's clock.
    _, (seconds, _) = await Batch([Command(b"EXISTS", active), Command(b"TIME")])
    await scripts.restore_active((active,), id=name, due=seen_to_exist(int(seconds) * 1000))


async def unlogged(page: RequestRows) -> list[Finding]:
    """Finds ended requests without a marker, because the completion log lacks their ends."""
    ended = [row for row in page.rows if row.is_over]
    old = [row for row in ended if page.now - row.number("ended") > settings.TOKEN_GRACE_MS]
    logged = keys.logged(page.queue)
    asked = [Command(b"ZSCORE", logged, f"{row.id}|{row.ending}") for row in old]
    markers = await run_all(asked)
    return [
        Finding(
            *("unlogged", BAD, f"is {row.state}, unlogged", "log its end", row.id),
            partial(reap_all, page.queue, row.id),  # it logs the end, too
        )
        for row, marker in zip(old, markers, strict=True)
        if marker is None
    ]


async def unsound(page: RequestRows) -> list[Finding]:
    """Finds requests whose invariants do not hold, or that nothing would continue."""
    asked = [scripts.check(keys.request_keys(row.id)) for row in page.rows]
    replies = await run_each(asked)
    found = []
    for row, broken in zip(page.rows, replies, strict=True):
        if isinstance(broken, FairlaneError):
            found.append(unreadable(row.id, broken))
        elif broken:
            what = "; ".join(part.decode() for part in broken)
            is_left = row.is_over and "accounted" not in what
            names = ("left over", "tidy its keys") if is_left else ("unsound", "reap and mint")
            found.append(
                Finding(
                    *(names[0], BAD, what, names[1], row.id),
                    partial(_make_sound, page.queue, row),
                )
            )
    return found


def unreadable(name: str, error: FairlaneError) -> Finding:
    """Returns the finding for a request that no script can read, so that none can repair it."""
    return Finding("unreadable", BAD, f"can't be read: {error}", "look at its keys", name)


async def _make_sound(queue: str, row: Row) -> None:
    names = keys.request_keys(row.id)
    if row.is_over:
        await scripts.expire_leftovers(names, ttl=settings.MARKER_MS)
    else:
        await reap_all(queue, row.id)
    if await scripts.check(names):
        raise FairlaneError("cancel it and submit it anew under another id")


async def overdue(page: RequestRows) -> list[Finding]:
    """Finds leases that expired long ago and that no leader has taken back."""
    live = [row.id for row in page.live]
    asked = [Command(b"ZCOUNT", keys.leases(name), b"-inf", page.now - GRACE_MS) for name in live]
    found = []
    for name, count in zip(live, await run_each(asked), strict=True):
        if isinstance(count, int) and count:  # an error is a finding of `unsound`
            what = f"has {plural(count, 'lease')} that expired more than a minute ago"
            repair = partial(reap_all, page.queue, name)
            found.append(Finding("overdue", BAD, what, "take them back", name, repair))
    return found


async def idle(page: RequestRows) -> list[Finding]:
    """Finds requests without progress for long, whose producer or handler may be gone.

    The diagnosis of `fairlane why` says what holds up each of them. A request that is delayed or
    waits for others is no finding. A queue without workers is a finding of `workers`.
    """
    found = _left_open(page)
    before = page.now - _LONG_MS
    old = [row for row in page.live if row.state == "active" and row.number("born") < before]
    asked = [Command(b"XRANGE", keys.results(row.id), before, b"+", b"COUNT", 1) for row in old]
    replies = await run_each(asked)
    quiet = [row.id for row, recent in zip(old, replies, strict=True) if recent == []]
    for name, causes in await _explained(page.queue, quiet):
        cause = causes[0]
        if cause.kind in _REMEDIES:
            check, remedy = _REMEDIES[cause.kind]
            what = f"nothing was done for {format_duration(_LONG_MS)}: {cause.text}"
            found.append(Finding(check, WARN, what, remedy, name))
    return found


async def circles(page: RequestRows) -> list[Finding]:
    """Finds requests that wait for each other, so that none of them ever starts."""
    fields = ("state", "opens", "after", "feed")
    waits = {row.id: waiting_lives(*(row.values[name] for name in fields)) for row in page.live}
    waiting = {name: lives for name, lives in waits.items() if lives}
    remedy = "cancel one of them: fairlane cancel ID"
    return [
        Finding("circle", BAD, f"waits in a circle: {circle_text(circle)}", remedy, min(circle))
        for circle in await find_circles(waiting)
        if min(circle) in waiting  # else it is a finding of the page with that request
    ]


_SLOW = ("slow", "fairlane status ID names the calls that report progress; a handler may hang")
_WAITING = ("waiting", "workers are busy with more urgent lanes: fairlane why ID; add workers")
_REMEDIES = {"limit": _SLOW, "held": _SLOW, "lanes": _WAITING, "token": _WAITING}


async def _explained(queue: str, names: Sequence[str]) -> list[tuple[str, list[Cause]]]:
    """Returns what holds up requests, without those that ended or that can't be read.

    A request that can't be read is a finding of `unsound`.
    """
    if not names:
        return []
    home = await read_queue(queue)
    found = []
    for name in names:
        try:
            facts = await read_request(name)
        except RedisUnreachable:
            raise
        except (FairlaneError, ValueError):
            continue
        if facts is not None and (causes := causes_of(facts, home)):
            found.append((name, causes))
    return found


def _left_open(page: RequestRows) -> list[Finding]:
    what = f"is open, and no chunk has come for {format_duration(_LONG_MS)}"
    remedy = "submit the same again to go on, or fairlane cancel ID; after an hour it is cancelled"
    return [
        Finding("open", WARN, what, remedy, row.id)
        for row in page.live
        if row.values["open"] == "1"
        and not row.values["feed"]  # `unfed` checks a request that is fed
        and page.now - max(row.number("last_ms"), row.number("born")) > _LONG_MS
    ]


async def unfed(page: RequestRows) -> list[Finding]:
    """Finds steps of flows that get nothing, because no leader hands over or a source is gone.

    A step with a bound is left out, because it may have to wait for the step that joins it.
    """
    steps: list[tuple[Row, list[str]]] = []
    for row in page.live:
        names = [life.id for life in waiting_lives(row.state, "", "", row.values["feed"])]
        if row.values["open"] == "1" and names:
            steps.append((row, names))
    sources = sorted({name for _, names in steps for name in names})
    rows = await run_all([hmget(name, "state", "ended") for name in sources])
    fields = [parse_fields(("state", "ended"), values) for values in rows]
    known = dict(zip(sources, fields, strict=True))
    found = []
    for row, names in steps:
        gone = [name for name in names if known[name][0] in {"", "abandoned"}]
        ends = [int(known[name][1] or 0) for name in names if known[name][0] in ENDED_STATES]
        last = max(row.number("born"), row.number("last_ms"), *ends)
        if gone:
            found += _orphaned(page, row, gone[0])
        elif len(ends) == len(names) and page.now - last > GRACE_MS and not _bound_of(row):
            what = f"gets nothing: request {names[0]} has ended, and no leader hands it over"
            found.append(_unfed(page, row, what, "hand its results over, as a leader does"))
    return found


def _orphaned(page: RequestRows, row: Row, source: str) -> list[Finding]:
    """Returns the finding for a step whose source is not there, once that is certain."""
    what, age = f"gets nothing: request {source} is not there", page.now - row.number("born")
    if row.values["handed"]:
        remedy = "cancel its flow, as a leader does"
        return [_unfed(page, row, what, remedy)] if age > GRACE_MS else []
    if age > settings.UNFED_OPEN_MS:
        return [_unfed(page, row, what, "give the step up, as a leader does")]
    # If there is no cursor, the producer may not have sent the first step yet.
    remedy = "submit the same flow again, or fairlane cancel ID; after an hour it is cancelled"
    return [Finding("unfed", WARN, what, remedy, row.id)] if age > _LONG_MS else []


def _unfed(page: RequestRows, row: Row, what: str, remedy: str) -> Finding:
    return Finding("unfed", WARN, what, remedy, row.id, partial(_feed, page.queue, row.id))


async def _feed(queue: str, name: str) -> None:
    """Hands over as long as there is something. A step that was given up is ended here, too."""
    before: str | None = None
    while not (done := await hand_over(name)).is_over:
        (handed,) = await read(name, "handed")
        if handed == before and not done.bodies:  # dead sub-requests move it without a body
            break
        before = handed
    if not done.is_over:
        await reap_all(queue, name)
        (state,) = await read(name, "state")
        if is_unended(state):
            raise FairlaneError("nothing could be handed over: fairlane why ID")


def _bound_of(row: Row) -> str:
    """Returns the request that joins a step; "" if none does, or if its feed can't be read."""
    try:
        feed = Feed.parse(row.values["feed"])
    except FairlaneError:
        return ""
    return feed.bound if feed else ""


async def given_back(page: RequestRows) -> list[Finding]:
    """Finds requests whose sub-requests workers gave back, because none has what they need."""
    named = [row.id for row in page.live if _is_given_back(row.values["failure"])]
    remedy = "start a worker that can make the call, or fairlane cancel ID; it is dead in 3 days"
    return [
        Finding("given back", WARN, cause.text, remedy, name)
        for name, causes in await _explained(page.queue, named)
        for cause in causes
        if cause.kind == "task"
    ]


def _is_given_back(note: str) -> bool:
    """Returns True if note_failure (lib/state.lua) noted sub-requests that were given back."""
    return ":g:" in note.partition(" ")[2].partition(" ")[0]


REBUILD = (forgotten, unlogged)  # what the dispatch slot must have
REQUEST = (*REBUILD, unsound, overdue, circles, idle, unfed, given_back)
