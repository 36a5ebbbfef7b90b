"""What the explorer needs of a protocol: its keys, its invariants, its goals."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, NamedTuple

from fairlane import settings
from fairlane.protocol import keys, lua
from fairlane.protocol.request_hash import unpacked
from fairlane.protocol.steps import Command
from tests.support.scripts.called import called

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from tests.explore.machinery.actors import Actor
    from tests.explore.machinery.world import World


QUEUE, REQUEST = "req", "r"
TAKEN_BY = "w:1"  # whose notes are read by the worker that believes it dead
T0 = 1_700_000_000_000  # when all begins, ms
LANES = (0, 5, 9)
FIRST_SEQ = 7_000_000  # so that a fence looks like no other number
# Written once and never read by a decision, or the same in every state.
_DULL = {b"seq", b"last_ms", b"total", b"max_body", b"queue", b"digest", b"since", b"repairs"}
_DEAD = {b"head", b"reason", b"out"}
_OVER = {b"done", b"cancelled"}
_STOPPED = {b"cancelling", b"cancelled"}
_BY_A_PERSON = b"because"  # the reason that the canceller names


class Facts(NamedTuple):
    is_empty: bool
    state: bytes  # of the request; b"" = there is none
    fields: dict[bytes, bytes]
    held: int
    outcomes: tuple[bytes, ...]  # index:status:attempt of each result
    dead: int
    log: tuple[tuple[bytes, bytes], ...]  # name and state of the endings logged
    active: float  # when to check the request next; 0 = it is not listed
    look: float  # ... and at the first of all
    queued: int  # since when the first token is on its way, and due; 0 = none
    due: int  # of the first delayed token; 0 = none
    lanes: tuple[bytes, ...]  # those that hold tokens
    conf: dict[bytes, bytes]
    bodies: tuple[bytes, ...] = ()  # those that wait, or are leased
    dead_ones: tuple[bytes, ...] = ()  # indexes of those that are kept as dead
    others: dict[str, Any] = {}  # noqa: RUF012  Facts of each other request
    extra: tuple[Any, ...] = ()  # what one protocol alone reads

    @property
    def is_over(self) -> bool:
        return self.state in _OVER

    @property
    def life(self) -> bytes:
        """Returns what distinguishes a request from an earlier one of the same id."""
        return self.fields.get(b"born", b"")

    @property
    def reopened(self) -> int:
        """Returns how often the request was opened again after an end."""
        return self.number(b"reopened")

    def ending(self, reopened: int) -> bytes:
        """Returns the name of the ending of an opening of this life."""
        return lua.ending_name(self.life.decode(), reopened).encode()

    @property
    def logged(self) -> tuple[bytes, ...]:
        """Returns the states with which this opening is in the log."""
        name = self.ending(self.reopened)
        return tuple(state for ending, state in self.log if ending == name)

    @property
    def is_undone(self) -> bool:
        """Returns whether the product took it back, and not a person."""
        return self.state in _STOPPED and self.fields.get(b"reason") != _BY_A_PERSON

    def number(self, name: bytes) -> int:
        return int(self.fields.get(name, b"0"))


class Protocol(ABC):
    """The base class of the product's protocol and the naive one: what the explorer calls."""

    declares = True  # a script's KEYS are all that it touches
    one_server = False  # one server has all keys, for every actor
    keys: dict[str, bytes]
    known: Mapping[Any, Any] = {}  # replies to commands, by their first two words
    tolerated: frozenset[str] = frozenset()  # errors with which an operation may end

    def adds(self, word: Any) -> bool:
        """Returns True for a key that was not foreseen: from now on it is one of the keys."""
        return False

    def instrumented(self, source: bytes) -> bytes:
        """Returns a script's text as it is loaded."""
        return source

    def checks(self, world: World, now: int) -> list[bytes]:
        """Returns commands whose replies name, as sentences, what does not hold at a moment."""
        return []

    @abstractmethod
    def read(self, i: int, raw: Any) -> tuple[Any, str]:
        """Returns what key number i holds: what distinguishes it, and its canonical text."""

    @abstractmethod
    def facts(self, said: Sequence[Any]) -> Any:
        """Returns the facts about what Redis holds."""

    def wrong_stand(self, facts: Any) -> tuple[str, ...]:
        """Returns what does not hold, whatever the time is."""
        return ()

    def wrong_move(self, before: Any, after: Any) -> tuple[str, ...]:
        """Returns what a step must not have done."""
        return ()

    def wrong_actors(self, facts: Any, actors: Sequence[Actor]) -> tuple[str, ...]:
        """Returns which conclusions of the actors contradict each other or Redis."""
        return ()

    def refused(self, error: str) -> tuple[str, ...]:
        """Returns what is wrong with an error that a step met."""
        return (error,)

    @abstractmethod
    def pops(self, facts: Any, most: int) -> Iterator[tuple[bytes, Command]]:
        """Returns what a blocking pop of up to `most` tokens may do now: the lane, and the pop.

        None = it waits.
        """

    def errands(self, facts: Any, now: int) -> Iterator[tuple[str, tuple[Any, ...]]]:
        """Returns the operations that maintenance would run now."""
        yield from ()

    @abstractmethod
    def is_goal(self, facts: Any, actors: Sequence[Actor]) -> bool:
        """Returns True if no actor waits for anything any more."""


class Fairlane(Protocol):
    """The protocol of the product."""

    goes_back = False  # a failover may take back what nothing confirmed
    tolerated = frozenset(
        {"RequestEnded", "RequestNotFound", "DeadNotFound", "SourceFailed", "RedisFull"}
    )

    def __init__(self, root: Path | None = None, *, in_stream: bool = False) -> None:
        """Sets up the keys. `in_stream`: small requests, too, wait in a stream from the start."""
        self._in_stream = in_stream
        self.library = lua.Library(root or lua.library().root)
        self.keys = {
            "active": keys.active(QUEUE),
            "logged": keys.logged(QUEUE),
            "delayed": keys.delayed(QUEUE),
            "completed": keys.completed(QUEUE),
            "workers": keys.workers(QUEUE),
            "conf": keys.conf(QUEUE),
            "taken": keys.taken(QUEUE, TAKEN_BY),
            "turns": keys.turns(QUEUE)[0],
            "tenants": keys.turns(QUEUE)[1],
        }
        # How many requests there are decides nothing for one; no shards are set, and no keys named.
        self.known = {
            (b"ZCARD", keys.active(QUEUE)): 1,
            (b"HMGET", keys.conf(QUEUE)): (None,) * 4,
            (b"ZRANGE", keys.workers(QUEUE)): (),
        }
        self._names = [(name, "") for name in self.keys]
        self._lanes: list[tuple[bytes, str]] = []
        for lane in LANES:
            self.add_lane(keys.lanes(QUEUE)[lane])
        self.requests: list[str] = []
        for part, key in zip(keys.REQUEST_PARTS, keys.request_keys(REQUEST), strict=True):
            self.adds(key)
            self.keys[part] = key

    def _add(self, name: str, key: bytes) -> None:
        self.keys[name] = key
        self._names.append((name, ""))

    def add_lane(self, key: bytes) -> None:
        """Adds one lane; the more urgent lanes of a shard come first."""
        self._add(f"lane {key.decode()}", key)
        self._lanes.append((key, f"lane {key.decode()}"))

    def adds(self, word: Any) -> bool:
        """Accepts a key of another request than the first, or a bucket."""
        found = keys.part_and_id(word) if isinstance(word, bytes) else None
        if word == keys.bucket(REQUEST):
            found = ("rate", REQUEST)
        if word == keys.bucket(f"queue/{QUEUE}"):
            self._names.append(("rate", ""))
            return True
        if found is None:
            return False
        self._names.append(found)
        if found[1] not in self.requests:
            self.requests.append(found[1])
        return True

    def instrumented(self, source: bytes) -> bytes:
        """Makes a script start at FIRST_SEQ, count every publish, and use the model's time for ids.

        The virtual time of a tenant does not change: it decides nothing for one.
        """
        source = source.replace(b'above(SEQ, "seq", 0) + 1', b"1")
        source = source.replace(
            b"local ends = time + math.max(1, ", b"local ends = time + math.min(0, "
        )
        for stream in (b"dead", b"results"):
            source = source.replace(
                b'"XADD", %b, "*"' % stream, b'"XADD", %b, ARGV[1] .. "-*"' % stream
            )
        source = source.replace(b"seq = 0,", b"seq = %d," % FIRST_SEQ)
        source = source.replace(b"local FIRST = 1 ", b"local FIRST = %d " % (FIRST_SEQ + 1))
        if self._in_stream:
            source = source.replace(b"local FEW, FEW_BYTES = 10,", b"local FEW, FEW_BYTES = -1,")
        counted = b'redis.call("HINCRBY", request, "published", 1)\n  redis.call("PUBLISH"'
        return source.replace(b'redis.call("PUBLISH"', counted)

    def checks(self, world: World, now: int) -> list[bytes]:
        """Returns calls of the product's own script `check`, one for each request."""
        calls = [
            called(self.library["check"], keys.request_keys(one), now=now) for one in self.requests
        ]
        return [world.doing(call).packed(now) for call in calls]

    def read(self, i: int, raw: Any) -> tuple[Any, str]:
        """Reads a key by its kind; a hash is a dict."""
        return _READERS.get(self._names[i][0], _read_plain)(raw)

    def facts(self, said: Sequence[Any]) -> Facts:
        by_id: dict[str, dict[str, Any]] = {"": {}, REQUEST: {}}
        for (part, request_id), content in zip(self._names, said, strict=False):
            by_id.setdefault(request_id, {})[part] = content
        queue = by_id.pop("")
        names, scores = (queue.get("active") or ())[::2], (queue.get("active") or ())[1::2]
        active = dict(zip(map(bytes.decode, names), map(float, scores), strict=True))
        delayed = [int(one[1]) for name, one in queue.items() if name.startswith("delayed") and one]
        common: dict[str, Any] = {
            "is_empty": not any(said),
            "look": min(active.values(), default=0),
            "due": min(delayed, default=0),
            "lanes": tuple(key for key, name in self._lanes if queue.get(name)),
            "conf": queue.get("conf") or {},
        }
        log = queue.get("completed") or ()
        found = {
            one: Facts(
                active=active.get(one, 0),
                log=tuple((born, state) for name, state, born in log if name == one.encode()),
                **_of_request(of),
                **common,
            )
            for one, of in by_id.items()
        }
        others = {one: facts for one, facts in found.items() if one != REQUEST}
        return found[REQUEST]._replace(others=others)

    def wrong_stand(self, facts: Facts) -> tuple[str, ...]:
        """Checks that results, log entry and signal exist exactly once."""
        wrong = []
        indexes = [head.split(b":")[0] for head in facts.outcomes]
        if len(indexes) != len(set(indexes)):
            wrong.append(f"a sub-request has two results: {facts.outcomes}")
        if len(facts.log) > len(dict(facts.log)):
            wrong.append("the ending was logged twice")
        if b"lost" in dict(facts.log).values() and not self.goes_back:
            wrong.append("the request is logged as lost")
        if facts.logged and facts.state not in facts.logged and not self.goes_back:
            wrong.append(f"logged as {facts.logged[0]!r}, but it is {facts.state!r}")
        if facts.number(b"published") != facts.is_over + facts.reopened:
            wrong.append(f"{facts.state!r}: {facts.number(b'published')} signals were sent")
        if missing := [n for n in range(facts.reopened) if facts.ending(n) not in dict(facts.log)]:
            wrong.append(f"endings {missing} are not in the log")
        counted = facts.number(b"done") + facts.number(b"dead")
        if facts.state and len(indexes) != counted:
            wrong.append(f"{len(indexes)} results, but {counted} are counted")
        if facts.state and facts.dead != facts.number(b"dead"):
            wrong.append(f"{facts.dead} are kept as dead, {facts.number(b'dead')} are counted")
        if facts.state == b"done" and counted != facts.number(b"total"):
            wrong.append(f"done, but {counted} of {facts.number(b'total')} are accounted for")
        return tuple(wrong)

    def wrong_move(self, before: Facts, after: Facts) -> tuple[str, ...]:
        """Checks the limit where a lease is granted, and that an end stays as it is."""
        wrong = []
        if after.held > before.held and after.held > after.number(b"limit"):
            wrong.append(f"{after.held} hold a permit, the limit is {after.number(b'limit')}")
        is_same = not before.is_undone or after.life == before.life
        if after.life == before.life and after.reopened > before.reopened:
            return (*wrong, *_wrong_opening(before, after))
        if is_same and before.is_over and _kept(after) != _kept(before):
            changed = dict(set(after.fields.items()) - set(before.fields.items()))
            wrong.append(f"changed after its end: {changed}, {after.outcomes}")
        return tuple(wrong)

    def wrong_actors(self, facts: Facts, actors: Sequence[Actor]) -> tuple[str, ...]:
        """Checks that each lease is held once, and that a completed submission is not lost."""
        wrong = []
        fences = [fence for actor in actors for fence in actor.fences]
        if len(fences) != len(set(fences)) and not self.goes_back:
            wrong.append("the same lease is held twice, by one worker or by two")
        for actor in actors:
            if actor.result is not None and actor.role.is_producer:
                wrong += self._wrong_submission(facts, actor)
        return tuple(wrong)

    def _wrong_submission(self, facts: Facts, actor: Actor) -> Iterator[str]:
        """Returns what does not hold of a submission that returned normally."""
        name = f"{actor.role.name} returned normally"
        if not facts.state:
            yield f"{name}, and there is no request"
        elif facts.number(b"total") != actor.result:
            yield f"submitted {actor.result}, stored {facts.number(b'total')}"
        if facts.is_undone:
            yield f"{name}, and the request is {facts.state!r}: {facts.fields.get(b'reason')!r}"
        if facts.state and not facts.is_over and not facts.active and not self.goes_back:
            yield f"{name}, and the request is not in active"
        if _last_word(actor.replies) == b"cancelled":
            yield f"{name} after a reply that the request is cancelled"

    def pops(self, facts: Facts, most: int) -> Iterator[tuple[bytes, Command]]:
        """Pops the most urgent lane that holds a token."""
        for lane in facts.lanes[:1]:
            yield lane, Command(b"RPOP", lane, most)

    def errands(self, facts: Facts, now: int) -> Iterator[tuple[str, tuple[Any, ...]]]:
        """Returns the leader's checks of what is due, and the promotion of due tokens."""
        if facts.look and facts.look <= now + 1000:
            yield "keeper looks", ("look",)
        if facts.due and facts.due <= now:
            yield "keeper promotes", ("promote", *self.due_shards(facts))
        # An audit is of use once a token has been on its way for a grace and is in no lane: it is
        # lost, or popped by a worker, which is a wrong guess.
        is_away = not facts.lanes and not facts.due
        if facts.active and is_away and 0 < facts.queued < now - settings.TOKEN_GRACE_MS:
            yield "keeper audits", ("audit",)

    def due_shards(self, facts: Facts) -> tuple[int, ...]:
        """Returns the shards where tokens may be due."""
        return (0,)

    def is_goal(self, facts: Facts, actors: Sequence[Actor]) -> bool:
        """Returns True if the request ended and is logged, never existed, or waits for others."""
        if facts.is_over:
            return bool(facts.logged) and not facts.active
        if not facts.state and facts.active:
            return False
        if facts.state and (facts.number(b"open") or any(actor.role.works for actor in actors)):
            return False  # it waits for its producer, or for a worker, if there are any
        return all(actor.ends for actor in actors if actor.role.is_producer)


def _of_request(of: dict[str, Any]) -> dict[str, Any]:
    """Returns the facts from the keys of one request."""
    fields = of.get("req") or {}
    state = fields.get(b"state", b"")
    dead, *_ = of.get("dead") or ((),)
    entries, *_ = of.get("sub") or ((),)
    few = of.get("few")
    few_bodies = re.findall(rb"1:(\d)", few) if isinstance(few, bytes) else ()
    return {
        "queued": _first_queued(fields, of.get("tok") or {}),
        "state": state if state != b"abandoned" else b"",
        "fields": fields,
        "held": len(of.get("lease") or ()) // 2,
        "outcomes": tuple(head for heads, _ in of.get("out") or () for head in heads),
        "dead": len(dead),
        "bodies": (*(body for _, body in entries), *few_bodies),
        "dead_ones": tuple(dict(one)[b"head"].partition(b":")[0] for one, _ in dead),
    }


def _first_queued(fields: dict[bytes, bytes], permits: dict[bytes, bytes]) -> int:
    moments = [int(fields[b"born"])] if _is_first_waiting(fields) else []
    for text in permits.values():
        kind, *rest = text.split(b":")
        if kind == b"q":
            _, since, _, due = map(int, rest)
            moments.append(max(since, due))
    return min(moments, default=0)


def _is_first_waiting(fields: Mapping[bytes, bytes]) -> bool:
    """As is_first_waiting in lua/v1/lib/permits.lua."""
    return fields.get(b"seq") == b"%d" % (FIRST_SEQ + 1) and fields.get(b"queued") == b"1"


def _wrong_opening(before: Facts, after: Facts) -> Iterator[str]:
    """Returns what is wrong with a step that opened a request again."""
    if not before.is_over or after.state != b"active":
        yield f"opened again, but it was {before.state!r} and is {after.state!r}"
    if after.reopened != before.reopened + 1:
        yield f"opening {after.reopened} follows opening {before.reopened}"
    if gone := {one for one in before.outcomes if one.split(b":")[1] == b"d"} - {*after.outcomes}:
        yield f"results are gone: {gone}"
    if not after.bodies:
        yield "opened again without work"


def _kept(facts: Facts) -> Any:
    """Returns the fields that must stay after the end: all but notes."""
    notes = (b"confirm", b"seen")
    return {k: v for k, v in facts.fields.items() if not k.startswith(notes)}, facts.outcomes


def _last_word(replies: tuple[Any, ...]) -> bytes:
    """Returns the state of the request in the last reply that had its summary."""
    for reply in reversed(replies):
        if isinstance(reply, tuple) and reply and reply[0] in _SUMMARY:
            state: bytes = reply[_SUMMARY[reply[0]]][0]
            return state
        if isinstance(reply, tuple) and reply and reply[0] in {b"ok", b"dup"}:
            return b""
    return b""


_LIFE = re.compile(rb"(?<=\|)(\d+)(?=\|)")  # when a life began, in `after`
_SUMMARY = {b"ended": 1, b"exists": 4, b"conflict": 1}  # where it stands in the reply


def _life(born: bytes) -> str:
    """Returns a birth as a name: compared for equality, never ordered."""
    return f"{int(born):032x}"


def _read_plain(raw: Any) -> tuple[Any, str]:
    return raw, repr(raw)


def _read_stream(raw: Any) -> tuple[Any, str]:
    entries = [(entry_id, flat[1]) for entry_id, flat in raw[0]]
    pending = [(entry_id, consumer, count) for entry_id, consumer, _, count in raw[1]]
    groups = [_pairs(group)[b"last-delivered-id"] for group in raw[2]]
    said = (entries, pending, groups)
    return said, repr(said)


def _read_hash(raw: Any) -> tuple[Any, str]:
    said = dict(sorted(_pairs(raw).items()))
    return said, repr(said)


def _read_request(raw: Any) -> tuple[Any, str]:
    stored = {name.decode(): value.decode() for name, value in _pairs(raw).items()}
    said = {name.encode(): value.encode() for name, value in sorted(unpacked(stored).items())}
    canonical = {name: value for name, value in said.items() if name not in _DULL}
    canonical[b"first"] = b"%d" % _is_first_waiting(said)
    if b"seen" in said:
        canonical[b"seen"] = b"S" + said[b"seen"]
    if b"over" in said:
        canonical[b"over"] = _life(said[b"over"]).encode()
    if b"after" in said:
        canonical[b"after"] = _LIFE.sub(lambda one: _life(one[1]).encode(), said[b"after"])
    if b"born" in said:
        canonical[b"born"] = _life(said[b"born"]).encode()
    return said, repr(canonical)


def _read_results(raw: Any) -> tuple[Any, str]:
    """Reads results without how long each waited and ran, and without their worker."""
    said = [
        ([head.rsplit(b":", 2)[0] for head in flat[::2] if head != b"w"], entry_id)
        for entry_id, flat in raw[0]
    ]
    return said, repr(sorted(said))


def _read_dead(raw: Any) -> tuple[Any, str]:
    said = [
        (sorted(field for field in _pairs(flat).items() if field[0] in _DEAD), entry_id)
        for entry_id, flat in raw[0]
    ]
    claims = [(entry_id, consumer) for entry_id, consumer, *_ in raw[1]]
    return (said, claims, len(raw[2])), repr((sorted(said), claims, len(raw[2])))


def _read_log(raw: Any) -> tuple[Any, str]:
    entries = [_pairs(flat) for _, flat in raw[0]]
    found = [
        (entry[b"id"], entry[b"state"], entry[b"born"], entry.get(b"reopened", b""))
        for entry in entries
    ]
    said = [
        (name, state, lua.ending_name(born.decode(), reopened.decode()).encode())
        for name, state, born, reopened in found
    ]
    return said, repr([(name, state, _life(born), again) for name, state, born, again in found])


def _read_active(raw: Any) -> tuple[Any, str]:
    pairs = sorted(zip(raw[::2], raw[1::2], strict=True))
    return raw, repr([(name, b"S" + score) for name, score in pairs])


def _read_markers(raw: Any) -> tuple[Any, str]:
    members = [member.rpartition(b"|") for member in sorted(raw[::2])]
    return raw, repr([(name, _life(born)) for name, _, born in members])


def _read_bucket(raw: Any) -> tuple[Any, str]:
    """Reads when the next sub-request may start, when the last in line asks again, and the hold.

    No bucket here has a burst above one. So nothing depends on more than whether these have passed.
    """
    tat, line, _, held = (-(-int(us) // 1000) for us in raw.split(b":"))
    return raw, repr((tat, line, held))


def _read_ticks(raw: Any) -> tuple[Any, str]:
    """Keeps two ticks distinct, whether they have passed or not."""
    pairs = zip(raw[::2], raw[1::2], strict=True)
    return raw, repr([(name, int(float(tick)) // 1000 - T0 // 1000, tick) for name, tick in pairs])


def _read_firing(raw: Any) -> tuple[Any, str]:
    """Keeps which tick a leader has begun with; when it did is of use after minutes only."""
    said = _pairs(raw)
    begun = {name: text.partition(b":")[0] for name, text in said.items() if name[:1] != b":"}
    return said, repr(sorted(begun.items()))


_READERS = {
    "sub": _read_stream,
    "req": _read_request,
    "tok": _read_hash,
    "out": _read_results,
    "dead": _read_dead,
    "active": _read_active,
    "logged": _read_markers,
    "completed": _read_log,
    "conf": _read_hash,
    "taken": _read_hash,
    "ticks": _read_ticks,
    "firing": _read_firing,
    "rate": _read_bucket,
}


def _pairs(flat: Any) -> dict[bytes, bytes]:
    return dict(zip(flat[::2], flat[1::2], strict=True))
