"""The checks of requests: each takes a page of requests, and returns a finding for each damage.

Lost tokens are not checked here, because the lanes are read once for many requests: see `Walk`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from fairlane import settings
from fairlane.common.text import format_duration, plural
from fairlane.errors import FairlaneError, RedisUnreachable
from fairlane.model import ENDED_STATES
from fairlane.operations.batching import run_all, run_each
from fairlane.operations.blockers.causes import causes_of
from fairlane.operations.blockers.facts import read_queue, read_request
from fairlane.operations.create.intents import seen_to_exist
from fairlane.operations.create.lives import circle_text, find_circles, waiting_lives
from fairlane.operations.diagnosis.finding import BAD, WARN, Finding
from fairlane.operations.maintenance.registry import reap_all
from fairlane.protocol import keys
from fairlane.protocol.scripts import library
from fairlane.protocol.steps import Batch, Command

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fairlane.found import Cause
    from fairlane.protocol.steps import Operation

GRACE_MS = 60_000  # if a worker runs, maintenance repairs sooner
_LONG_MS = 600_000  # so long without progress
FIELDS = (
    *("state", "queue", "born", "ended", "open", "last_ms", "fresh", "failure"),
    *("opens", "after", "feed", "handed"),
)


class Row(NamedTuple):
    """A request as its hash describes it."""

    id: str
    state: str
    queue: str
    values: dict[str, str]

    @property
    def is_over(self) -> bool:
        """Returns True for a tombstone."""
        return self.state in ENDED_STATES

    def number(self, name: str) -> int:
        """Returns a number of the hash; 0 if it is missing."""
        return int(self.values[name] or 0)


class Page(NamedTuple):
    """Some requests of a queue, and their server's time in ms."""

    queue: str
    now: int
    rows: list[Row]

    @property
    def live(self) -> list[Row]:
        """Returns the requests that have not ended."""
        return [row for row in self.rows if not row.is_over]


def forgotten(page: Page) -> Operation[list[Finding]]:
    """Finds requests that are missing in `active`, so that no leader looks after them."""
    live = [row.id for row in page.live]
    scores = yield from run_all(
        [Command(b"ZSCORE", keys.active(page.queue), name) for name in live]
    )
    missing = [name for name, score in zip(live, scores, strict=True) if score is None]
    asked = [Command(b"HGET", keys.request_hash(name), b"state") for name in missing]
    states = yield from run_all(asked)  # a request may have ended meanwhile
    return [
        Finding(
            *("forgotten", BAD, "is not in `active`", "put it there", name),
            _restore(page.queue, name),
        )
        for name, state in zip(missing, states, strict=True)
        if state is not None and state.decode() not in ENDED_STATES
    ]


def _restore(queue: str, name: str) -> Operation[None]:
    active = keys.active(queue)
    # TIME goes to the node of the step with a key: `active` uses that node's clock.
    _, (seconds, _) = yield Batch([Command(b"EXISTS", active), Command(b"TIME")])
    yield library().restore_active((active,), id=name, due=seen_to_exist(int(seconds) * 1000))


def unlogged(page: Page) -> Operation[list[Finding]]:
    """Finds ends without a marker, which the completion log does not have."""
    ended = [row for row in page.rows if row.is_over]
    old = [row for row in ended if page.now - row.number("ended") > settings.TOKEN_GRACE_MS]
    logged = keys.logged(page.queue)
    asked = [Command(b"ZSCORE", logged, f"{row.id}|{row.number('born')}") for row in old]
    markers = yield from run_all(asked)
    return [
        Finding(
            *("unlogged", BAD, f"is {row.state}, unlogged", "log its end", row.id),
            reap_all(page.queue, row.id),  # reports the end, too
        )
        for row, marker in zip(old, markers, strict=True)
        if marker is None
    ]


def unsound(page: Page) -> Operation[list[Finding]]:
    """Finds requests whose invariants do not hold, also those that nothing would continue."""
    asked = [library().check(keys.request_keys(row.id)) for row in page.rows]
    replies = yield from run_each(asked)
    found = []
    for row, broken in zip(page.rows, replies, strict=True):
        if isinstance(broken, FairlaneError):
            found.append(unreadable(row.id, broken))
        elif broken:
            what = "; ".join(part.decode() for part in broken)
            is_left = row.is_over and "accounted" not in what
            names = ("left over", "tidy its keys") if is_left else ("unsound", "reap and mint")
            found.append(
                Finding(names[0], BAD, what, names[1], row.id, _make_sound(page.queue, row))
            )
    return found


def unreadable(name: str, error: FairlaneError) -> Finding:
    """Returns the finding for a request that no script can read, and so no repair can."""
    return Finding("unreadable", BAD, f"can't be read: {error}", "look at its keys", name)


def _make_sound(queue: str, row: Row) -> Operation[None]:
    names = keys.request_keys(row.id)
    if row.is_over:
        yield library().expire_leftovers(names, ttl=settings.MARKER_MS)
    else:
        yield from reap_all(queue, row.id)
    if (yield library().check(names)):
        raise FairlaneError("cancel it and submit it anew under another id")


def overdue(page: Page) -> Operation[list[Finding]]:
    """Finds leases that expired long ago and that no leader has taken back."""
    live = [row.id for row in page.live]
    asked = [Command(b"ZCOUNT", keys.leases(name), b"-inf", page.now - GRACE_MS) for name in live]
    found = []
    for name, count in zip(live, (yield from run_each(asked)), strict=True):
        if isinstance(count, int) and count:  # an error is a finding of `unsound`
            what = f"has {plural(count, 'lease')} that expired more than a minute ago"
            repair = reap_all(page.queue, name)
            found.append(Finding("overdue", BAD, what, "take them back", name, repair))
    return found


def idle(page: Page) -> Operation[list[Finding]]:
    """Finds requests without progress for long, whose producer or handler may be gone.

    The diagnosis of `fairlane why` says what holds up each of them. What is delayed, or waits for
    others, is no finding; a queue without workers is one of `queue_checks.py`.
    """
    found = _left_open(page)
    before = page.now - _LONG_MS
    old = [row for row in page.live if row.state == "active" and row.number("born") < before]
    asked = [Command(b"XRANGE", keys.results(row.id), before, b"+", b"COUNT", 1) for row in old]
    replies = yield from run_each(asked)
    quiet = [row.id for row, recent in zip(old, replies, strict=True) if recent == []]
    for name, causes in (yield from _explained(page.queue, quiet)):
        cause = causes[0]
        if cause.kind in _REMEDIES:
            check, remedy = _REMEDIES[cause.kind]
            what = f"nothing was done for {format_duration(_LONG_MS)}: {cause.text}"
            found.append(Finding(check, WARN, what, remedy, name))
    return found


def circles(page: Page) -> Operation[list[Finding]]:
    """Finds requests that wait for each other, so that none of them ever starts."""
    fields = ("state", "opens", "after", "feed")
    waits = {row.id: waiting_lives(*(row.values[name] for name in fields)) for row in page.live}
    waiting = {name: lives for name, lives in waits.items() if lives}
    remedy = "cancel one of them: fairlane cancel ID"
    return [
        Finding("circle", BAD, f"waits in a circle: {circle_text(circle)}", remedy, min(circle))
        for circle in (yield from find_circles(waiting))
        if min(circle) in waiting  # else it is a finding of the page with that request
    ]


_SLOW = ("slow", "fairlane status ID names the calls that report progress; a handler may hang")
_WAITING = ("waiting", "workers are busy with more urgent lanes: fairlane why ID; add workers")
_REMEDIES = {"limit": _SLOW, "held": _SLOW, "lanes": _WAITING, "token": _WAITING}


def _explained(queue: str, names: Sequence[str]) -> Operation[list[tuple[str, list[Cause]]]]:
    """Returns what holds up requests, without those that ended or that can't be read.

    A request that can't be read is a finding of `unsound`.
    """
    if not names:
        return []
    home = yield from read_queue(queue)
    found = []
    for name in names:
        try:
            facts = yield from read_request(name)
        except RedisUnreachable:
            raise
        except (FairlaneError, ValueError):
            continue
        if facts is not None and (causes := causes_of(facts, home)):
            found.append((name, causes))
    return found


def _left_open(page: Page) -> list[Finding]:
    what = f"is open, and no chunk has come for {format_duration(_LONG_MS)}"
    remedy = "submit the same again to go on, or fairlane cancel ID; after an hour it is cancelled"
    return [
        Finding("open", WARN, what, remedy, row.id)
        for row in page.live
        if row.values["open"] == "1"
        and not row.values["feed"]  # such a request is one of `unfed`
        and page.now - max(row.number("last_ms"), row.number("born")) > _LONG_MS
    ]


def unfed(page: Page) -> Operation[list[Finding]]:
    """Finds steps of flows that get nothing, because a step before them is gone or never came."""
    fed = {
        row.id: [life.id for life in waiting_lives(row.state, "", "", row.values["feed"])]
        for row in page.live
        if row.values["open"] == "1"
        and row.values["feed"]
        # Without a cursor the producer has perhaps not sent the first step yet.
        and page.now - row.number("born") > (GRACE_MS if row.values["handed"] else _LONG_MS)
    }
    sources = sorted({name for names in fed.values() for name in names})
    asked = [Command(b"HGET", keys.request_hash(name), b"state") for name in sources]
    states = dict(zip(sources, (yield from run_all(asked)), strict=True))
    remedy = "submit the same flow again, or fairlane cancel ID; after an hour it is cancelled"
    return [
        Finding("unfed", WARN, f"gets nothing: request {names[0]} is not there", remedy, step)
        for step, those in fed.items()
        if (names := [name for name in those if states[name] in {None, b"abandoned"}])
    ]


def given_back(page: Page) -> Operation[list[Finding]]:
    """Finds requests whose sub-requests workers gave back, because none has what they need."""
    named = [row.id for row in page.live if _is_given_back(row.values["failure"])]
    remedy = "start a worker that can make the call, or fairlane cancel ID; it is dead in 3 days"
    return [
        Finding("given back", WARN, cause.text, remedy, name)
        for name, causes in (yield from _explained(page.queue, named))
        for cause in causes
        if cause.kind == "task"
    ]


def _is_given_back(note: str) -> bool:
    """Returns True for a note of lib/core/note_failure.lua that is of no failure."""
    return ":g:" in note.partition(" ")[2].partition(" ")[0]


REBUILD = (forgotten, unlogged)  # what the dispatch slot must have
REQUEST = (*REBUILD, unsound, overdue, circles, idle, unfed, given_back)
