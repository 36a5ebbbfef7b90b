"""The replies that an actor's step may receive, and how its operation gets them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import redis

from fairlane.errors import RedisFull, RedisUnreachable
from fairlane.model import Slice, Verdict, result_head
from fairlane.operations.flow_branches import Fan, Next, packed
from fairlane.protocol.steps import Batch, Confirmed, Handle, Handled, Pop, Popped
from fairlane.worker.calls import Outcome
from tests.explore.machinery.world import Refused

if TYPE_CHECKING:
    from fairlane.protocol.steps import Operation
    from fairlane.worker.unit import Lease, LeaseBatch


NAMES, FANS = "n", "f"  # requests whose results name a step, or choose children


class Chunk(tuple[bytes, ...]):
    """The reply to a Pull."""

    __slots__ = ()


class SourceFailed(Exception):
    """The producer's bodies could not be read to their end."""


@dataclass(frozen=True)
class Broken:
    """The reply to a Pull whose source raises."""


@dataclass(frozen=True)
class Full:
    """The reply of a Redis that has no room for what the step would write."""


@dataclass(frozen=True)
class Away:
    """The reply of a node that does not answer, in a lenient batch."""


@dataclass(frozen=True)
class ConfirmReply:
    """The reply to a Confirm: the step's own, and how many replicas have what it wrote."""

    reply: Any
    replicas: int


@dataclass(frozen=True)
class Way:
    """The reply to a Handle: how the handler went. The Outcome is made where it is needed."""

    how: str


def replay(generator: Operation[Any], replies: tuple[Any, ...]) -> Any:
    """Returns the step of an operation after these replies."""
    step: Any = generator.send(None)
    for reply in replies:
        if isinstance(reply, Refused):
            step = generator.throw(redis.ResponseError(reply.text))
        elif isinstance(reply, Broken):
            step = generator.throw(SourceFailed())
        elif isinstance(reply, Full) or is_refused(step, reply):
            step = generator.throw(RedisFull("no room"))
        elif isinstance(reply, Way) and isinstance(step, Handle):
            step = generator.send(Handled(handled_in_turn(step.leases, reply.how)))
        else:
            step = generator.send(_delivered(step, reply))
    return step


def is_refused(step: Any, reply: Any) -> bool:
    """Returns True if the error of one step is that of its whole batch."""
    return isinstance(step, Batch) and not step.lenient and Full() in reply


def _delivered(step: Any, reply: Any) -> Any:
    """Returns the reply as a driver passes it on: a pop's is a Popped."""
    if isinstance(step, Batch):
        return tuple(_delivered(one, part) for one, part in zip(step.steps, reply, strict=True))
    if isinstance(reply, Away):
        return RedisUnreachable("no answer")
    if isinstance(reply, Full):
        return RedisFull("no room")
    if isinstance(reply, ConfirmReply):
        return Confirmed(_delivered(step.step, reply.reply), reply.replicas, is_synced=True)
    if not isinstance(step, Pop) or reply is None:
        return reply
    lane, found = reply
    return Popped(lane, [*found])


def result_of(request_id: str, index: int) -> tuple[bytes, bytes]:
    """Returns the status and the bytes of a result: those of two requests choose something.

    Those of NAMES name `x` and `y` in turn, and those of FANS have three children.
    """
    if request_id == NAMES:
        return packed(Next("xy"[index % 2], b"%d" % index), ())
    if request_id == FANS:
        return packed(Fan([Next("x", b"0"), Next("y", b"1"), Next("x", b"2")]), ())
    return b"d", b""


def handled(taken: Slice, position: int, how: str) -> Outcome:
    """Yields what a handler may make of a slice: all done, the first failed, or only one done."""
    entries = taken.entries[position:]
    outcome = Outcome(position=len(taken.entries))
    for i, (entry_id, _) in enumerate(entries):
        index = entry_id.partition(b"-")[2]
        if how == "first fails" and i == 0:
            head = result_head(index, b"x", taken.attempt, 0, 0)
            outcome.verdicts.append(Verdict(entry_id, "retry", 1000, head, "no"))
        elif how == "all are bad" or (how == "first is bad" and i == 0):
            head = result_head(index, b"x", taken.attempt, 0, 0)
            outcome.verdicts.append(Verdict(entry_id, "dead", 0, head, "never"))
        elif how == "stops" and i == 1:
            outcome.position, outcome.is_over = position + 1, True
            break
        elif how == "drains" and i == 0:
            outcome.verdicts.append(Verdict(entry_id, "release", 0, b"", ""))
        elif how == "in parts" and i == 1:
            outcome.position = position + 1
            break
        else:
            outcome.ids.append(entry_id)
            status, body = result_of(taken.request_id, int(index))
            outcome.results += [result_head(index, status, taken.attempt, 0, 0), body]
    return outcome


def handled_in_turn(batch: LeaseBatch, how: str) -> list[Lease]:
    """Yields the same for several leases; "stops" begins one only."""
    done = []
    while lease := batch.take():
        done.append(lease)
        lease.note(handled(lease.slice, lease.position, how))
        if how in {"stops", "in parts"}:
            break
    return done
