"""Explores a queue that has a rate or is paused: its workers receive that with their heartbeats."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from fairlane.operations import pause, rates, workers
from fairlane.protocol import keys
from fairlane.protocol.steps import Handle, forward
from fairlane.worker import settle
from fairlane.worker.unit import Unit
from tests.explore.machinery.actors import Fixed, NoMeasures, Role, StillRecord, kind
from tests.explore.machinery.protocol import QUEUE, T0, Facts, Fairlane

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from fairlane.protocol.scripts import HeartbeatReply
    from tests.explore.machinery.actors import Actor

BEATING = ("w:1", "w:2")
SLOWLY = "3/m"  # one in twenty seconds
SLOW_US = 20_000_000
FASTER = "6/m"
_STARTED = "1"


# The worker.


def beating_worker(number: int = 1, *, has_waited: bool = False) -> Role:
    """Takes one sub-request a round, with a heartbeat before each, and may wait for the rate."""
    return Role(f"w:{number}", "beating worker", (("has_waited", has_waited),))


class BeatRecord(StillRecord):
    """A worker's record with what its last heartbeat reported. It drains after one round."""

    def __init__(self, beat: HeartbeatReply) -> None:
        self.is_paused = pause.QueuePause(beat.paused_until, beat.now).is_paused
        rate = rates.parse_queue_rate(QUEUE, beat.rate)
        self.queue_rate = None if rate is None else (rate.interval_us, rate.burst)


@kind("beating worker", rests_at="heartbeat")
async def _work_by_beats(role: Role, _: tuple[Any, ...]) -> Any:
    """Works round by round; a later heartbeat belongs to a later round."""
    while True:
        beat = await workers.heartbeat(QUEUE, role.name, _STARTED, "")
        record, beaten = BeatRecord(beat), beat.now
        given: Any = (record, Fixed(1), NoMeasures())
        unit = Unit(QUEUE, role.name, _STARTED, *given)
        unit.has_waited = role.option("has_waited")
        del beat, given
        await _one_round(unit, record, beaten)


async def _one_round(unit: Unit, record: BeatRecord, beaten: int) -> None:
    """Serves until the unit would pop again. Each result names when its sub-request started.

    It names 0 if time has passed since the heartbeat, whose allowance may then be older.
    """
    serving = settle.serve(unit)
    step: Any = serving.send(None)
    record.is_draining = True
    while True:
        reply = await forward(step)
        for lease in reply.leases if isinstance(step, Handle) else ():
            started = lease.slice.taken_ms if lease.slice.taken_ms == beaten else 0
            results = lease.outcome.results
            heads = [head.rpartition(b":")[0] for head in results[::2]]
            results[::2] = [b"%b:%d" % (head, started) for head in heads]
        try:
            step = serving.send(reply)
        except StopIteration:
            return


@kind("registrar", again=True)
async def _register(role: Role, _: tuple[Any, ...]) -> Any:
    for name in role.option("workers"):
        await workers.register_worker(QUEUE, name, "host", 1, _STARTED)


REGISTRAR = Role("b", "registrar", (("workers", BEATING),))


# What changes the queue.


def queue_changer(*changes: tuple[Any, ...], name: str = "x") -> Role:
    """Makes these changes: ("rate", text or None), ("pause", seconds or None), ("resume",)."""
    return Role(name, "queue changer", (("changes", changes),))


@kind("queue changer", again=True)
async def _change_queue(role: Role, _: tuple[Any, ...]) -> Any:
    """Returns until when the queue is paused by the last change, 0 = it is not."""
    until = 0
    for change in role.option("changes"):
        until = await _changed(*change)
    return until


async def _changed(word: str, given: Any = None) -> int:
    if word == "rate":
        await rates.set_queue_rate(QUEUE, given)
        return 0
    if word == "resume":
        await pause.resume_queue(QUEUE)
        return 0
    return (await pause.pause_queue(QUEUE, given)).paused_until


# What must hold.


class Beats(Fairlane):
    """What a heartbeat writes decides only who leads, and here any worker may."""

    def __init__(self, root: Path | None = None, *, in_stream: bool = False) -> None:
        """Adds the records of workers, and what a heartbeat reads."""
        super().__init__(root, in_stream=in_stream)
        self._add("ticks", keys.schedules(QUEUE)[1])
        self._add("firing", keys.firing(QUEUE))
        for name in BEATING:
            self._add("beat", keys.worker(QUEUE, name))

    def read(self, i: int, raw: Any) -> tuple[Any, str]:
        """Reads a key without the heartbeats, and with the start of the last result."""
        name = self._names[i][0]
        said, canonical = super().read(i, raw)
        if name in {"workers", "beat"}:
            canonical = ""
        elif name == "conf":
            canonical = repr({word: said[word] for word in said if not word.startswith(b"lock")})
        elif name == "out":
            said = [
                ([one for one in flat[::2] if one != b"w"], entry_id) for entry_id, flat in raw[0]
            ]
            canonical += repr(max(_start_of(head) for heads, _ in said for head in heads))
        return said, canonical


def _start_of(head: bytes) -> int:
    return int(head.rpartition(b":")[2])


class Rated(Beats):
    """The bucket never owes more than the slowest rate's burst."""

    def facts(self, said: Sequence[Any]) -> Facts:
        """Adds the queue's bucket to the facts."""
        content = dict(zip(self._names, said, strict=False))
        return super().facts(said)._replace(extra=(content.get(("rate", "")),))

    def wrong_stand(self, facts: Facts) -> tuple[str, ...]:
        wrong = super().wrong_stand(facts)
        if facts.extra[0]:
            tat, _, seen = map(int, facts.extra[0].split(b":"))
            if tat > seen + SLOW_US:
                wrong += (f"the bucket owes {(tat - seen) // 1000} ms",)
        return wrong


class AtOneRate(Rated):
    """The queue has its rate from the start: no two sub-requests start at the same moment."""

    def wrong_stand(self, facts: Facts) -> tuple[str, ...]:
        wrong = super().wrong_stand(facts)
        starts = Counter(map(_start_of, facts.outcomes))
        together = [start - T0 for start, count in starts.items() if start and count > 1]
        if together:
            wrong += (f"two sub-requests started together, after {together[0]} ms",)
        return wrong


class Paused(Beats):
    """A confirmed pause holds; any person may resume what is paused without an end."""

    def errands(self, facts: Facts, now: int) -> Iterator[tuple[str, tuple[Any, ...]]]:
        """Adds a person who resumes what is paused without an end."""
        yield from super().errands(facts, now)
        if _paused_until(facts) >= pause.ENDLESS_MS:
            yield "a person resumes", ("resume queue",)

    def wrong_actors(self, facts: Facts, actors: Sequence[Actor]) -> tuple[str, ...]:
        """Checks that a pause with an end is resumed only by the actor who paused it."""
        wrong = super().wrong_actors(facts, actors)
        for actor in actors:
            if actor.role.kind != "queue changer" or actor.result is None:
                continue
            last, until = actor.role.option("changes")[-1], actor.result
            stands = until >= pause.ENDLESS_MS or 0 < until <= _paused_until(facts)
            if last[0] == "pause" and not stands:
                wrong += (f"{actor.role.name} has paused the queue, and it is not paused",)
        return wrong


def _paused_until(facts: Facts) -> int:
    return int(facts.conf.get(b"paused_until", b"0"))
