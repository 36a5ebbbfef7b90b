"""The lives of other requests after which a request starts: how they ended, and circles of them.

The field `after` of a waiting request names each other request with its life, because an id may be
used again. What is gone is never taken for done. If the other request's hash is gone, the
completion log of its queue shows how that life ended. If the log does not show it either, the
request must not start: `after` fails closed.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from fairlane.errors import FairlaneError, RedisUnreachable
from fairlane.model import ENDED_STATES
from fairlane.protocol import keys
from fairlane.protocol.request_hash import hmget, parse_fields
from fairlane.protocol.steps import Command, run_each_or_error

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


NEVER_MS = 2**53 - 1  # when the gate of a request opens that waits for others
DONE = "done"  # the mode in which the others must be done; in any other one, any end is enough
_OVER = "over"  # instead of the life: it has ended as it should
_FIELDS = ("state", "born", "dead", "total", "was", "over")
_OF_WAITING = ("state", "born", "opens", "after", "feed")
_PAGE = 1_000  # entries of the completion log in one read
_MOST_LINKS = 1_000  # requests that are read to find a circle
_UNKNOWN = "is no longer kept, and the completion log does not show how it ended"


class Life(NamedTuple):
    """One life of an id: when it began, by the clock of its slot, and its queue.

    `born` is 0 if it is not known, because the request was gone already.
    """

    id: str
    born: int = 0
    queue: str = ""
    is_over: bool = False

    @property
    def text(self) -> str:
        """Returns the life as the field `after` has it."""
        return f"{self.id}|{_OVER}" if self.is_over else f"{self.id}|{self.born}|{self.queue}"


def read_lives(after: str) -> tuple[str, list[Life]]:
    """Returns the mode of a field `after`, and the lives in it; "" and [] for an empty field."""
    mode, _, text = after.partition(":")
    return mode, [_read_life(one) for one in text.split(",") if one]


def lives_text(lives: Iterable[Life]) -> str:
    """Returns what the field `after` has behind its mode."""
    return ",".join(life.text for life in lives)


def _read_life(text: str) -> Life:
    name, _, rest = text.partition("|")
    born, _, queue = rest.partition("|")
    return Life(name, int(born) if born.isdecimal() else 0, queue, is_over=born == _OVER)


# ------------------------------------------------------------------ how they ended


async def endings_of(lives: Sequence[Life]) -> list[str | None]:
    """Returns how each life failed, "" if it is done, None if it goes on or cannot be read now."""
    rows = await run_each_or_error([hmget(life.id, *_FIELDS) for life in lives])
    endings: list[str | None] = []
    gone: dict[int, Life] = {}
    for place, (life, row) in enumerate(zip(lives, rows, strict=True)):
        endings.append(None)
        if life.is_over:
            endings[place] = ""
        elif not isinstance(row, FairlaneError):
            found = dict(zip(_FIELDS, parse_fields(_FIELDS, row), strict=True))
            if _is_of(life, found["born"]) and found["state"] != "abandoned":
                endings[place] = _ending(found)
            elif _is_of(life, found["over"]):  # the marker of a deleted or withdrawn life
                endings[place] = _failure(found["was"])
            else:
                gone[place] = life
    for place, ending in (await _logged(gone)).items():
        endings[place] = ending
    return endings


def _is_of(life: Life, born: str) -> bool:
    return bool(life.born) and born == str(life.born)


def _ending(found: Mapping[str, str]) -> str | None:
    if found["state"] not in ENDED_STATES:
        return None
    if found["state"] == "cancelled":
        return _failure("cancelled")
    is_whole = found.get("dead", "") in {"", "0"}
    return "" if is_whole else _failure(f"{found['dead']} of {found.get('total')} dead")


def _failure(was: str) -> str:
    """Returns `was cancelled`, or `has 1 of 2 dead`."""
    return f"{'has' if was.endswith('dead') else 'was'} {was}" if was else ""


async def _logged(gone: Mapping[int, Life]) -> dict[int, str | None]:
    """Returns how these lives ended by the completion logs of their queues."""
    found: dict[int, str | None] = {}
    for queue in {life.queue for life in gone.values()}:
        lives = {life: place for place, life in gone.items() if life.queue == queue}
        endings = await _read_log(queue, lives) if queue else {}
        for life, place in lives.items():
            found[place] = endings.get(life, _UNKNOWN) if endings is not None else None
    return found


async def _read_log(queue: str, wanted: Iterable[Life]) -> dict[Life, str] | None:
    """Returns how lives of a queue ended, as far as its log shows it; None if it is away.

    This is rare: the other request's hash stays for ten minutes at least, and while a worker leads
    the queue of the request that waits, it reads that hash every few seconds.
    """
    left = {(life.id, str(life.born)): life for life in wanted if life.born}
    lost = {life.id: life for life in left.values()}  # the log does not know when those began
    found: dict[Life, str] = {}
    at = b"-"
    while left:
        page = await _page(queue, at)
        if page is None:
            return None
        for _, fields in page:
            entry = _entry(fields)
            name, state = entry.get("id", ""), entry.get("state", "")
            key = (name, entry.get("born", ""))
            if key in left and state in ENDED_STATES:
                found[left[key]] = _ending(entry) or ""
                if entry.get("dead") == "0":  # else it may have been reopened: its last end counts
                    del left[key]
            elif state == "lost" and name in lost:
                found.setdefault(lost[name], "was lost")
        if len(page) < _PAGE:
            break
        at = b"(" + page[-1][0]
    return found


async def logged_states(queue: str, ids: Iterable[str], since_ms: int = 0) -> dict[str, str]:
    """Returns the first ending of each id in the log from a time on, be it that it was lost."""
    left, found = {*ids}, dict[str, str]()
    at = b"%d" % since_ms
    while left:
        page = await Command(b"XRANGE", keys.completed(queue), at, b"+", b"COUNT", _PAGE)
        for _, fields in page:
            entry = _entry(fields)
            if (name := entry.get("id", "")) in left:
                found[name] = entry.get("state", "")
                left.remove(name)
        if len(page) < _PAGE:
            break
        at = b"(" + page[-1][0]
    return found


def _entry(fields: Sequence[bytes]) -> dict[str, str]:
    return {
        name.decode("utf-8", "replace"): value.decode("utf-8", "replace")
        for name, value in zip(fields[::2], fields[1::2], strict=False)
    }


async def _page(queue: str, at: bytes) -> list[tuple[bytes, Any]] | None:
    """Returns a page of a log; None if its node is away, [] if it may not be read."""
    (page,) = await run_each_or_error(
        [Command(b"XRANGE", keys.completed(queue), at, b"+", b"COUNT", _PAGE)]
    )
    if isinstance(page, FairlaneError):
        return None if isinstance(page, RedisUnreachable) else []
    return page  # type: ignore[no-any-return]


# ------------------------------------------------------------------ circles


def waiting_lives(state: str, opens: str, after: str, feed: str = "") -> list[Life]:
    """Returns what an unfinished request waits for: the lives in `after`, and what feeds it."""
    if not is_unended(state) or state == "cancelling":
        return []
    found: list[Life] = []
    if opens == str(NEVER_MS):
        found = [life for life in read_lives(after)[1] if not life.is_over]
    words = feed.split(" ")
    return found + [Life(name) for name in (words[1].split(",") if len(words) > 1 else ())]


def is_unended(state: str) -> bool:
    """Returns True if this is the state of a request that goes on."""
    return bool(state) and state not in ENDED_STATES and state != "abandoned"


class _Link(NamedTuple):
    """A request that another one waits for, as its hash is now."""

    born: str = ""
    goes_on: bool = False
    waits_for: Sequence[Life] = ()

    def is_of(self, life: Life) -> bool:
        """Returns True if the request is of the life that is meant."""
        return self.goes_on and (not life.born or self.born == str(life.born))


async def find_circles(waiting: Mapping[str, Sequence[Life]]) -> list[list[str]]:
    """Returns circles of requests that wait for each other; the first id is also the last one.

    It finds those among the first thousand requests. `waiting` names what the first ones wait for.
    What they wait for is followed through the hashes of the lives that are meant.
    """
    links: dict[str, list[str]] = {}
    known: dict[str, _Link] = {}
    pending = dict(waiting)
    while pending and len(links) < _MOST_LINKS:
        wanted = {life.id for lives in pending.values() for life in lives} - known.keys()
        known |= await _read_links(sorted(wanted)[:_MOST_LINKS])
        following: dict[str, Sequence[Life]] = {}
        for name, lives in pending.items():
            there = [life.id for life in lives if known.get(life.id, _Link()).is_of(life)]
            links[name] = there
            following |= {one: known[one].waits_for for one in there if one not in waiting}
        pending = {name: lives for name, lives in following.items() if name not in links}
    return circles_in(links)


async def _read_links(ids: Sequence[str]) -> dict[str, _Link]:
    found: dict[str, _Link] = {}
    rows = await run_each_or_error([hmget(name, *_OF_WAITING) for name in ids])
    for name, row in zip(ids, rows, strict=True):
        found[name] = _Link()
        if not isinstance(row, FairlaneError):
            state, born, *rest = parse_fields(_OF_WAITING, row)
            found[name] = _Link(born, is_unended(state), waiting_lives(state, *rest))
    return found


def circles_in(links: Mapping[str, Sequence[str]]) -> list[list[str]]:
    """Returns circles of these links, each with its first name again at its end.

    No two have a name in common.
    """
    done: set[str] = set()
    circles: list[list[str]] = []
    for start in links:
        if start in done:
            continue
        path, branches = [start], [iter(links[start])]
        while branches:
            name = next(branches[-1], None)
            if name is None:
                branches.pop()
                done.add(path.pop())
            elif name in path:
                circles.append([*path[path.index(name) :], name])
                done.update(path)
                break
            elif name in links and name not in done:
                path.append(name)
                branches.append(iter(links[name]))
    return circles


def circle_text(circle: Sequence[str]) -> str:
    """Returns `a starts after b, and b starts after a`."""
    steps = [f"{one} starts after {other}" for one, other in pairwise(circle)]
    return ", and ".join(steps)
