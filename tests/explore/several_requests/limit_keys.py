"""Explores two requests that share keys: no key has more leases than its limit, and none is left.

One server has all keys, so a permit of a key is taken and given back with its lease, in one step.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from fairlane.errors import FairlaneError
from fairlane.operations import limit_keys
from fairlane.operations.create import Digest, NewRequest, create
from fairlane.operations.limit_keys import LINE, STOPS
from fairlane.options import Policy
from fairlane.protocol import keys
from tests.explore.machinery.actors import Role, kind
from tests.explore.machinery.protocol import QUEUE, REQUEST, Facts
from tests.explore.several_requests.groups import OTHER, each
from tests.explore.several_requests.several import Several

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from tests.explore.machinery.actors import Actor

_RANKS = 2**42  # of one lane, as in lua/v1/lib/limit_keys.lua
_LANES = 128  # as there
_TICKETS = 1_600_000_000_000  # the ticket 0 in a state's text: only the order of tickets counts


class Zones(NamedTuple):
    """What one key holds."""

    limit: int  # 0 = the key is not in use
    is_set: bool  # by a person
    held: frozenset[bytes]
    called: frozenset[bytes]
    waiting: frozenset[bytes]

    @property
    def is_empty(self) -> bool:
        return not (self.held or self.called or self.waiting or (self.limit and not self.is_set))


def keyed_producer(
    first: dict[str, int], other: dict[str, int] | None = None, attempts: int = 2, order: str = ""
) -> Role:
    """Submits one request, then another one, each of one sub-request, with these limits by key.

    `order`: both have an order key, and do this (`go_on` or `stop`) if one ends with a dead one.
    """
    named = tuple((first if other is None else other).items())
    return Role("p", "keyed producer", (
        ("attempts", attempts), ("limits", ((REQUEST, tuple(first.items())), (OTHER, named))),
        ("order", order),
    ))  # fmt: skip


@kind("keyed producer")
async def _produce(role: Role, _: tuple[Any, ...]) -> Any:
    for name, limits in role.option("limits"):
        policy = Policy(
            limit=1, attempts=role.option("attempts"), backoff_ms=(1000, 1000), limits=limits,
            order_key="o" if role.option("order") else "", order_on_dead=role.option("order"),
        )  # fmt: skip
        digest = Digest(policy)
        digest.add([b"0"])
        for result in await create([NewRequest(name, policy, digest, [b"0"])]):
            if isinstance(result, FairlaneError):
                raise result
    return [name for name, _ in role.option("limits")]


def key_setter(*numbers: int | None, key: str = "x") -> Role:
    """Sets the limit of the key to these numbers in turn; None = as the requests say."""
    return Role("x", "key setter", (("numbers", numbers), ("key", key)))


@kind("key setter", again=True)
async def _set_key(role: Role, _: tuple[Any, ...]) -> Any:
    for number in role.option("numbers"):
        await limit_keys.set_key(QUEUE, role.option("key"), number)


def task_registrar(*numbers: int | None) -> Role:
    """Registers workers whose task `x` has these limits, one after the other; None = no limit."""
    return Role("t", "task registrar", (("numbers", numbers),))


@kind("task registrar", again=True)
async def _register(role: Role, _: tuple[Any, ...]) -> Any:
    for number in role.option("numbers"):
        await limit_keys.register_tasks(QUEUE, {"x": number})


def key_resumer() -> Role:
    """Lets the requests behind a stop of the order key go on."""
    return Role("z", "key resumer", ())


@kind("key resumer", again=True)
async def _resume(_: Role, __: tuple[Any, ...]) -> Any:
    return await limit_keys.resume_key(QUEUE, "o")


class Keyed(Several):
    """Held are exactly the leases of a key, never more are granted than its limit, none is left."""

    declares = False  # scripts derive the keys of the dispatch slot
    one_server = True
    names: tuple[str, ...] = ("x", "y")  # of the keys

    def __init__(self, root: Path | None = None, *, in_stream: bool = False) -> None:
        """Adds the keys of the other request, and those of the limits."""
        super().__init__(root, in_stream=in_stream)
        self.known = {
            words: reply for words, reply in self.known.items() if words[0] != b"HMGET"
        }  # it says that requests name keys
        for part, key in zip(keys.REQUEST_PARTS, keys.request_keys(OTHER), strict=True):
            self.adds(key)
            self.keys[f"{OTHER} {part}"] = key
        self._add("limits", keys.of_limits(QUEUE)[3])
        for name in self.names:
            self._add(f"key {name}", keys.limit_key(QUEUE, name))

    def read(self, i: int, raw: Any) -> tuple[Any, str]:
        """Reads a key without the number of tickets: only their order decides anything."""
        name = self._names[i][0]
        if name.startswith("key "):
            places = [
                (member, float(score)) for member, score in zip(raw[::2], raw[1::2], strict=True)
            ]
            return places, repr([(member, _place(score)) for member, score in places])
        if name == "limits":
            limits = dict(zip(raw[::2], raw[1::2], strict=True))
            return limits, repr(sorted(limits.items()))
        said, canonical = super().read(i, raw)
        if name == "conf":
            canonical = repr({word: said[word] for word in said if word != b"ticket"})
        return said, canonical

    def facts(self, said: Sequence[Any]) -> Facts:
        """Adds what each key holds, and the leases of each request."""
        content = dict(zip(self._names, said, strict=False))
        limits = content.get(("limits", "")) or {}
        zones = {
            name: _zones(limits.get(name.encode(), b""), content.get((f"key {name}", "")) or ())
            for name in self.names
        }
        leases = frozenset(
            b"%b#%b.%b" % (one.encode(), k, text.split(b":")[2])
            for one in self.requests
            for k, text in (content.get(("tok", one)) or {}).items()
            if text.startswith(b"h:")
        )
        return super().facts(said)._replace(extra=(zones, leases))

    def wrong_stand(self, facts: Facts) -> tuple[str, ...]:
        wrong = list(super().wrong_stand(facts))
        zones, leases = facts.extra
        named = {name: _named(one) for name, one in ((REQUEST, facts), *facts.others.items())}
        for key, zone in zones.items():
            of_key = {one for one in leases if key in named[one.partition(b"#")[0].decode()]}
            if zone.held != of_key:
                wrong.append(f"key {key} holds {set(zone.held)}, the leases are {of_key}")
            if len(zone.held) + len(zone.called) < zone.limit and zone.waiting:
                wrong.append(f"key {key} has room, and {set(zone.waiting)} wait for it")
            if (zone.held or zone.called or zone.waiting) and not zone.limit:
                wrong.append(f"key {key} is in use without a limit")
            if all(one.is_over for one in each(facts)) and zone.held:
                wrong.append(f"all has ended, and key {key} has {zone}")
        return tuple(wrong)

    def wrong_move(self, before: Facts, after: Facts) -> tuple[str, ...]:
        wrong = super().wrong_move(before, after)
        for name, zone in after.extra[0].items():
            if len(zone.held) > max(zone.limit, len(before.extra[0][name].held)):
                wrong += (f"key {name}: {len(zone.held)} are held, the limit is {zone.limit}",)
        return wrong

    def is_goal(self, facts: Facts, actors: Sequence[Actor]) -> bool:
        """Returns True if all has ended, and nothing of a key is left.

        A token that was placed after the end of its request is called or waits. It is given up
        when it is popped.
        """
        others = [one for one in actors if one.role.kind != "changer"]  # it tries again for ever
        return super().is_goal(facts, others) and all(
            one.is_empty for one in facts.extra[0].values()
        )

    def errands(self, facts: Facts, now: int) -> Iterator[tuple[str, tuple[Any, ...]]]:
        """Adds the audit of what an ended request has left."""
        yield from super().errands(facts, now)
        is_left = any(zone.called for zone in facts.extra[0].values()) and not facts.lanes
        if is_left and all(one.is_over for one in each(facts)):
            yield "keeper audits", ("audit",)


class OfTask(Keyed):
    """The key is that of a task, whose limit its workers set."""

    names = ("task/x",)


class Ordered(Keyed):
    """None starts before the one ahead has ended; a place lasts from the submission to the end."""

    def __init__(self, root: Path | None = None, *, in_stream: bool = False) -> None:
        """Adds the order key."""
        super().__init__(root, in_stream=in_stream)
        self._add("order", keys.limit_key(QUEUE, "!o"))

    def read(self, i: int, raw: Any) -> tuple[Any, str]:
        """Reads a place as its rank among the places."""
        if self._names[i][0] != "order":
            return super().read(i, raw)
        rows = [
            (name, *_zone(float(score))) for name, score in zip(raw[::2], raw[1::2], strict=True)
        ]
        said = [(name.decode(), zone, place) for name, zone, place in rows]
        return said, repr([(name, zone, f"S{_TICKETS + place}") for name, zone, place in rows])

    def facts(self, said: Sequence[Any]) -> Facts:
        """Adds who has a place, in their order."""
        facts = super().facts(said)
        content = dict(zip(self._names, said, strict=False))
        return facts._replace(extra=(*facts.extra, content.get(("order", "")) or []))

    def wrong_stand(self, facts: Facts) -> tuple[str, ...]:
        zones, leases, order = facts.extra
        wrong = list(super().wrong_stand(facts._replace(extra=(zones, leases))))
        places = [name for name, zone, _ in order if zone in {"started", "placed"}]
        waiting = {name.partition("#")[0] for name, zone, _ in order if zone == "waits"}
        live = {name for name, one in ((REQUEST, facts), *facts.others.items()) if _is_live(one)}
        if {*places} != live or len(places) != len(live):
            wrong.append(f"the places are {places}, those that have not ended {live}")
        holders = {one.partition(b"#")[0].decode() for one in leases}
        turn = _turn(order)
        if len(holders) > 1 or not holders <= {turn}:
            wrong.append(f"{holders} have leases, and {turn} has the turn")
        if turn in waiting:
            wrong.append(f"{turn} has the turn, and its token waits for it")
        return tuple(wrong)

    def wrong_move(self, before: Facts, after: Facts) -> tuple[str, ...]:
        """Compares the limits alone."""
        return super().wrong_move(
            before._replace(extra=before.extra[:2]), after._replace(extra=after.extra[:2])
        )

    def is_goal(self, facts: Facts, actors: Sequence[Actor]) -> bool:
        """Returns True if no place is left either, or if a person must lift a stop."""
        zones, leases, order = facts.extra
        if any(zone == "stops" for _, zone, _ in order):
            return _turn(order) is None
        return super().is_goal(facts._replace(extra=(zones, leases)), actors) and not order

    def errands(self, facts: Facts, now: int) -> Iterator[tuple[str, tuple[Any, ...]]]:
        yield from super().errands(facts._replace(extra=facts.extra[:2]), now)


class KeyedApart(Keyed):
    """In a cluster each lease has its entries in the keys, from before its grant to after its end.

    An entry without a lease has its look, which makes the token stale if that may be acquired.
    """

    one_server = False

    def facts(self, said: Sequence[Any]) -> Facts:
        """Names the op of each lease, as the entries of keys do."""
        facts = super().facts(said)
        content = dict(zip(self._names, said, strict=False))
        leases = frozenset(
            b"%b#%b.%b~%b" % (one.encode(), k, *text.split(b":")[2:4])
            for one in self.requests
            for k, text in (content.get(("tok", one)) or {}).items()
            if text.startswith(b"h:")
        )
        looks = [
            int(-score)
            for name in self.names
            for member, score in content.get((f"key {name}", "")) or ()
            if score < 0 and member not in leases
        ]
        return facts._replace(extra=(facts.extra[0], leases, min(looks, default=0)))

    def wrong_stand(self, facts: Facts) -> tuple[str, ...]:
        zones, leases, _ = facts.extra
        wrong = list(super(Keyed, self).wrong_stand(facts))
        named = {name: _named(one) for name, one in ((REQUEST, facts), *facts.others.items())}
        for key, zone in zones.items():
            of_key = {one for one in leases if key in named[one.partition(b"#")[0].decode()]}
            if not of_key <= zone.held:
                wrong.append(f"key {key} holds {set(zone.held)}, the leases are {of_key}")
            if len(zone.held) + len(zone.called) < zone.limit and zone.waiting:
                wrong.append(f"key {key} has room, and {set(zone.waiting)} wait for it")
            if (zone.held or zone.called or zone.waiting) and not zone.limit:
                wrong.append(f"key {key} is in use without a limit")
        return tuple(wrong)

    def errands(self, facts: Facts, now: int) -> Iterator[tuple[str, tuple[Any, ...]]]:
        """Adds the audit of what a key holds without a lease, and of what it has called."""
        yield from super(Keyed, self).errands(facts, now)
        zones, _, look = facts.extra
        is_called = any(zone.called for zone in zones.values()) and not facts.lanes
        if 0 < look < now or is_called:
            yield "keeper audits keys", ("audit",)


def _is_live(facts: Facts) -> bool:
    return bool(facts.fields) and not facts.is_over


def _zone(score: float) -> tuple[str, int]:
    """Returns the zone of a member of an order key, and its place."""
    if score < 0:
        return "started", int(score) + _RANKS
    if score >= LINE:
        return "waits", (int(score) - LINE) // _LANES
    return ("stops", int(score) - STOPS) if score >= STOPS else ("placed", int(score))


def _turn(order: Sequence[tuple[str, str, int]]) -> str | None:
    """Returns the request that has the turn: one that has started, or the first before a stop."""
    stop = min((place for _, zone, place in order if zone == "stops"), default=_RANKS)
    for name, zone, place in order:  # the started one is first
        if zone in {"started", "placed"}:
            return name if zone == "started" or place < stop else None
    return None


def _named(facts: Facts) -> list[str]:
    return re.findall(r"([!/\w]+)=", facts.fields.get(b"keys", b"").decode())


def _place(score: float) -> str:
    """Returns the zone, and of a rank its lane and its ticket, as a score to be compared."""
    if score < -1:
        return f"held {int(-score)}"
    if score < 0:
        return "held"
    zone = "waits" if score >= LINE else "called"
    lane, ticket = divmod(int(score) % LINE, _RANKS)
    return f"{zone} {lane} S{_TICKETS + ticket}"


def _zones(text: bytes, members: Sequence[tuple[bytes, float]]) -> Zones:
    limit, _, is_set = text.partition(b" ")

    def between(least: float, most: float) -> Iterator[bytes]:
        return (member for member, score in members if least <= score < most)

    held, called = between(-LINE, 0), between(0, LINE - 1)
    waiting = between(LINE, 2 * LINE)
    return Zones(
        int(limit or 0), bool(is_set), frozenset(held), frozenset(called), frozenset(waiting)
    )
