"""What the explorer must know about a protocol: its keys, its invariants, its ends."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, NamedTuple

from fairlane import keys, scripts
from fairlane.operations.fields import unpacked
from fairlane.steps import Command

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from .actors import Actor
    from .world import World

QUEUE, REQUEST = "req", "r"
LANES = (5, 9)
FIRST_SEQ = 7_000_000  # so that a fence is told from every other number by its looks
# Written once and never read by a decision, or the same in every state.
_DULL = {b"seq", b"last_ms", b"total", b"max_body", b"born", b"queue", b"digest"}
_DEAD = {b"head", b"reason", b"out"}
_OVER = {b"done", b"cancelled"}


class Facts(NamedTuple):
    """What the explorer asks of one stand."""

    is_empty: bool
    state: bytes  # of the request; b"" = there is none
    fields: dict[bytes, bytes]
    held: int
    outcomes: tuple[bytes, ...]  # index:status:attempt of each result
    dead: int
    log: tuple[bytes, ...]  # states of the endings logged
    active: float  # when to look at the request next; 0 = it is not listed
    due: int  # of the first delayed token; 0 = none
    lane: bytes | None  # the first that holds a token

    @property
    def is_over(self) -> bool:
        """The request has ended."""
        return self.state in _OVER

    def number(self, name: bytes) -> int:
        """A field of the request."""
        return int(self.fields.get(name, b"0"))


class Protocol(ABC):
    """The base of both: what the explorer calls."""

    declares = True  # a script's KEYS are all that it touches
    keys: dict[str, bytes]
    tolerated: frozenset[str] = frozenset()  # errors with which an operation may end

    def instrumented(self, source: bytes, *, is_modern: bool) -> bytes:
        """A script's text as it is loaded."""
        return source

    def checks(self, world: World, now: int) -> list[bytes]:
        """Commands that say what does not hold at a moment, as sentences."""
        return []

    @abstractmethod
    def read(self, i: int, raw: Any) -> tuple[Any, str]:
        """What key number i holds: all that tells it from others, and its canonical text."""

    @abstractmethod
    def facts(self, said: Sequence[Any]) -> Any:
        """What is asked of a stand."""

    def wrong_stand(self, facts: Any) -> tuple[str, ...]:
        """What does not hold, whatever the time is."""
        return ()

    def wrong_move(self, before: Any, after: Any) -> tuple[str, ...]:
        """What a step must not have done."""
        return ()

    def wrong_actors(self, facts: Any, actors: Sequence[Actor]) -> tuple[str, ...]:
        """What the actors must not believe at the same time."""
        return ()

    def refused(self, error: str) -> tuple[str, ...]:
        """What is wrong with an error that a step met."""
        return (error,)

    @abstractmethod
    def pop(self, facts: Any) -> tuple[bytes, Command] | None:
        """What a blocking pop over all lanes does now: the lane, and the pop; None = it waits."""

    def errands(self, facts: Any, now: int) -> Iterator[tuple[str, tuple[Any, ...]]]:
        """What maintenance would do now."""
        yield from ()

    @abstractmethod
    def is_goal(self, facts: Any, actors: Sequence[Actor]) -> bool:
        """Nobody waits for anything any more."""


class Fairlane(Protocol):
    """The product's."""

    def __init__(self, root: Path | None = None, *, in_stream: bool = False) -> None:
        """`in_stream`: small requests, too, wait in a stream from the beginning."""
        self._in_stream = in_stream
        self.library = scripts.Library(root or scripts.library().root)
        names = (
            "sub",
            "counter",
            "request",
            "permits",
            "leases",
            "retries",
            "results",
            "dead",
            "few",
        )
        self.keys = dict(zip(names, keys.request_keys(REQUEST), strict=True))
        self.keys |= {
            "active": keys.active(QUEUE),
            "logged": keys.logged(QUEUE),
            "delayed": keys.delayed(QUEUE),
            "completed": keys.completed(QUEUE),
            "workers": keys.workers(QUEUE),
            "conf": keys.conf(QUEUE),
            **{f"lane {lane}": keys.lanes(QUEUE)[lane] for lane in LANES},
        }
        self._names = tuple(self.keys)
        self._lanes = [(keys.lanes(QUEUE)[lane], f"lane {lane}") for lane in LANES]
        self.tolerated = frozenset({"RequestEnded", "RequestNotFound", "DeadNotFound"})

    def instrumented(self, source: bytes, *, is_modern: bool) -> bytes:
        """Numbering begins at FIRST_SEQ, every publish is counted, ids have the model's time."""
        for stream in (b"dead", b"results") if is_modern else ():
            source = source.replace(
                b'"XADD", %b, "*"' % stream, b'"XADD", %b, ARGV[1] .. "-*"' % stream
            )
        source = source.replace(b"seq = 0,", b"seq = %d," % FIRST_SEQ)
        if self._in_stream:
            source = source.replace(b"local FEW, FEW_BYTES = 10,", b"local FEW, FEW_BYTES = -1,")
        counted = b'redis.call("HINCRBY", request, "published", 1)\n  redis.call("PUBLISH"'
        return source.replace(b'redis.call("PUBLISH"', counted)

    def checks(self, world: World, now: int) -> list[bytes]:
        """The product's own `check`."""
        call = self.library.check(keys.request_keys(REQUEST), now=now)
        return [world.doing(call).packed(now)]

    def read(self, i: int, raw: Any) -> tuple[Any, str]:
        """By the key; a hash is a dict."""
        return _READERS.get(self._names[i], _read_plain)(raw)

    def facts(self, said: Sequence[Any]) -> Facts:
        """One pass over the keys."""
        of = dict(zip(self._names, said, strict=True))
        fields = of["request"] or {}
        state = fields.get(b"state", b"")
        return Facts(
            is_empty=not any(said),
            state=state if state != b"abandoned" else b"",
            fields=fields,
            held=len(of["leases"] or ()) // 2,
            outcomes=tuple(head for heads, _ in of["results"] or () for head in heads),
            dead=len(of["dead"] or ()),
            log=tuple(state for _, state in of["completed"] or ()),
            active=float(of["active"][1]) if of["active"] else 0,
            due=int(of["delayed"][1]) if of["delayed"] else 0,
            lane=next((key for key, name in self._lanes if of[name]), None),
        )

    def wrong_stand(self, facts: Facts) -> tuple[str, ...]:
        """Results, log and signal: each exactly once."""
        wrong = []
        indexes = [head.split(b":")[0] for head in facts.outcomes]
        if len(indexes) != len(set(indexes)):
            wrong.append(f"a sub-request has two results: {facts.outcomes}")
        if len(facts.log) > 1:
            wrong.append("the ending was logged twice")
        if facts.log and facts.state not in {b"", *facts.log}:
            wrong.append(f"logged as {facts.log[0]!r}, but it is {facts.state!r}")
        if facts.number(b"published") != facts.is_over:
            wrong.append(f"{facts.state!r}: {facts.number(b'published')} signals were sent")
        counted = facts.number(b"done") + facts.number(b"dead")
        if facts.state and len(indexes) != counted:
            wrong.append(f"{len(indexes)} results, but {counted} are counted")
        if facts.state and facts.dead != facts.number(b"dead"):
            wrong.append(f"{facts.dead} are kept as dead, {facts.number(b'dead')} are counted")
        if facts.state == b"done" and counted != facts.number(b"total"):
            wrong.append(f"done, but {counted} of {facts.number(b'total')} are accounted for")
        return tuple(wrong)

    def wrong_move(self, before: Facts, after: Facts) -> tuple[str, ...]:
        """The limit holds where a lease is given; an end stays as it is."""
        wrong = []
        if after.held > before.held and after.held > after.number(b"limit"):
            wrong.append(f"{after.held} hold a permit, the limit is {after.number(b'limit')}")
        if before.is_over and (after.fields, after.outcomes) != (before.fields, before.outcomes):
            changed = dict(set(after.fields.items()) - set(before.fields.items()))
            wrong.append(f"changed after its end: {changed}, {after.outcomes}")
        return tuple(wrong)

    def wrong_actors(self, facts: Facts, actors: Sequence[Actor]) -> tuple[str, ...]:
        """One fence, one holder; what a producer was told stays true."""
        wrong = []
        fences = [actor.fence for actor in actors if actor.fence]
        if len(fences) != len(set(fences)):
            wrong.append("two workers hold the same fence")
        for actor in actors:
            if actor.result is not None and actor.role.kind == "producer":
                if not facts.state:
                    wrong.append("the producer was told that all is well, and there is no request")
                elif facts.number(b"total") != actor.result:
                    wrong.append(f"submitted {actor.result}, stored {facts.number(b'total')}")
        return tuple(wrong)

    def pop(self, facts: Facts) -> tuple[bytes, Command] | None:
        """The most urgent lane that holds a token."""
        return None if facts.lane is None else (facts.lane, Command(b"RPOP", facts.lane))

    def errands(self, facts: Facts, now: int) -> Iterator[tuple[str, tuple[Any, ...]]]:
        """The leading worker looks at what is due, and promotes what is due."""
        if facts.active and facts.active <= now + 1000:
            yield "keeper looks", ("look",)
        if facts.due and facts.due <= now:
            yield "keeper promotes", ("promote",)

    def is_goal(self, facts: Facts, actors: Sequence[Actor]) -> bool:
        """The request ended and is logged, or never came to be."""
        if facts.is_empty or facts.active:
            return False
        return bool(facts.is_over and facts.log) or facts.fields.get(b"state") == b"abandoned"


def _read_plain(raw: Any) -> tuple[Any, str]:
    return raw, repr(raw)


def _read_stream(raw: Any) -> tuple[Any, str]:
    entries = [entry_id for entry_id, _ in raw[0]]
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
    if b"seen" in said:
        canonical[b"seen"] = b"S" + said[b"seen"]
    return said, repr(canonical)


def _read_results(raw: Any) -> tuple[Any, str]:
    """How long each waited and ran is left out, and who did it."""
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
    return said, repr(sorted(said))


def _read_log(raw: Any) -> tuple[Any, str]:
    said = [(_pairs(flat)[b"id"], _pairs(flat)[b"state"]) for _, flat in raw[0]]
    return said, repr(said)


def _read_active(raw: Any) -> tuple[Any, str]:
    return raw, repr([raw[0], b"S" + raw[1], *raw[2:]])


def _read_markers(raw: Any) -> tuple[Any, str]:
    return raw, str(len(raw))


_READERS = {
    "sub": _read_stream,
    "request": _read_request,
    "permits": _read_hash,
    "results": _read_results,
    "dead": _read_dead,
    "active": _read_active,
    "logged": _read_markers,
    "completed": _read_log,
    "conf": _read_hash,
}


def _pairs(flat: Any) -> dict[bytes, bytes]:
    return dict(zip(flat[::2], flat[1::2], strict=True))
