"""A queue as plain Python: its requests by id, its lanes, `active` and the completion log."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.model.plain.fed import FED
from tests.model.plain.reference import Request
from tests.model.plain.schedules import Schedules
from tests.model.plain.tenants import Tenants
from tests.model.plain.words import PLACEHOLDER, Copy, Options, Token, agree
from tests.model.rules.changes import CHANGES
from tests.model.rules.queue_wide import QueueWide

if TYPE_CHECKING:
    from collections.abc import Iterator

Reply = list[Any]
DAY_MS = 86_400_000
QUEUE = "req"


class Logged(NamedTuple):
    """One entry of the completion log."""

    id: str
    state: str
    counts: tuple[int, ...]  # total, done, dead, cancelled
    reason: str


class Load(NamedTuple):
    """What one request adds to the count of a queue with a bound."""

    admitted: int
    chunk: int
    settled: int

    @property
    def weight(self) -> int:
        """How many of its sub-requests wait, as last counted."""
        return max(0, self.admitted - self.settled)


class Book:
    """The state of a queue, without Redis."""

    def __init__(self) -> None:
        self.now = 0
        self.requests: dict[str, Request] = {}
        self.abandoned: dict[
            str, tuple[int, int]
        ] = {}  # id -> the abandoned intent, when it is forgotten
        self.active: dict[str, float] = {}
        self.lanes: dict[int, deque[Copy]] = {}
        self.tenants = Tenants()
        self.schedules = Schedules(QUEUE)
        self.wide = QueueWide()
        self.delayed: dict[tuple[int, Copy], int] = {}
        self.log: list[Logged] = []
        self.logged: set[tuple[str, int, bytes]] = set()
        self.published: list[tuple[str, str]] = []
        self.max_waiting = 0
        self.loads: dict[str, Load] = {}
        self.recounted = 0

    @property
    def live(self) -> dict[str, Request]:
        return {name: one for name, one in self.requests.items() if not one.has_ended}

    # ------------------------------------------------------------------ the request's slot

    def check_reply(
        self, name: str, request_id: str, reply: Any, given: dict[str, Any]
    ) -> list[Token]:
        """Checks the reply of a script of the request's slot; returns the tokens to dispatch."""
        request = self.requests.get(request_id)
        if name == "enqueue":
            return self._enqueue(request_id, request, reply, **given)
        if name in ("abandon", "expire_leftovers"):
            self._from_outside(name, request_id, request, reply, given)
        elif name in ("confirm", "list_dead"):
            self._looked(name, request, reply, given)
        elif request is None:
            agree(reply, [b"gone"], f"{name} of a request that does not exist")
        elif name == "reap" and given["queue"] != request.options.queue:
            agree(reply, [b"foreign"], "a reap of another queue")
        elif request.has_ended and name != "requeue_dead":
            rest = {"extend": [], "complete": [request.summary(), 1]}
            summary = rest.get(name, [request.summary()])
            agree(reply, [b"ended", *summary], f"{name} after the end")
        else:
            own = {
                what: value
                for what, value in given.items()
                if what not in ("queue", "how", "verdicts")
            }
            left_out = _left_out(request, reply) if name == "append" else None
            change = (CHANGES | FED).get(name)
            tokens: list[Token] = (
                change(request, self.now, reply, **own)
                if change
                else getattr(request, name)(self.now, reply, **own)
            )
            self._publish(request_id, request)
            if left_out is not None:
                agree(left_out, request.keys.left_out, "how many were left out")
            return tokens
        return []

    @staticmethod
    def _looked(name: str, request: Request | None, reply: Reply, given: dict[str, Any]) -> None:
        if request is None:
            agree(reply, [b"gone"] if name == "confirm" else [], f"{name} of nothing")
        elif name == "confirm":
            open_ = int(request.is_open)
            words = [b"ok", request.state.encode(), request.chain.encode(), request.born, open_]
            agree(reply, words, "a confirm")
        else:
            request.list_dead(reply, **given)

    def _publish(self, request_id: str, request: Request) -> None:
        self.published += [(f"done:{{{request_id}}}", word) for word in request.published]
        request.published.clear()

    def _enqueue(
        self,
        request_id: str,
        request: Request | None,
        reply: Reply,
        *,
        options: Options,
        digest: str,
        intent: int,
        open_ms: int,
        over: str,
        bodies: list[bytes],
    ) -> list[Token]:
        is_repeat = request is not None and request.digest == digest
        window = options.window_ms
        former = None
        if request is not None and not (is_repeat and window is not None):
            former = request if request.may_be_followed(self.now, window) else None
        if former and former.ending != over:
            agree(reply, [b"abandoned", former.summary()], "an id whose life is over")
            return []
        if request is not None and not former:
            if not is_repeat:
                word = b"conflict" if window is None else b"kept"
                agree(reply, [word, request.summary()], "other content under the same id")
                return []
            if (left_out := _left_out(request, reply)) is not None:
                agree(left_out, request.keys.left_out, "how many were left out before")
            open_ = int(request.is_open)
            front = (b"exists", request.chunks, request.chain.encode(), open_, request.summary())
            return request.repeated(self.now, reply, *front)
        seen = former.given_up if former else self.abandoned.get(request_id, (-1, 0))[0]
        if seen >= intent:
            agree(reply, [b"late", seen], "an intent that was given up")
            return []
        self.abandoned.pop(request_id, None)
        request = self.requests[request_id] = Request(options, self.now, digest, open_ms)
        if former:
            request.follow(former, self.now)
        request.add(self.now, bodies)
        if (left_out := _left_out(request, reply)) is not None:
            agree(left_out, request.keys.left_out, "how many are left out")
        if reply[0] == b"ok":
            agree(reply[-1], request.born, "when the request began")
            reply = reply[:-1]
        tokens = request.conclude(self.now, reply)
        self._publish(request_id, request)
        return tokens

    def _from_outside(
        self,
        name: str,
        request_id: str,
        request: Request | None,
        reply: Reply,
        given: dict[str, Any],
    ) -> None:
        """Applies the auditor's change of an intent without a request, and doctor's repairs."""
        if name == "expire_leftovers":
            alive = request is not None and not request.has_ended
            agree(reply, [b"alive"] if alive else [b"tidied", 0], "a tidy where all is in order")
        elif request is not None and request.is_abandoned:
            request.given_up = max(request.given_up, int(float(given["seen"])))
            agree(reply, [b"ok"], "an abandon of an abandoned life")
        elif request is not None and request.has_ended:
            request.given_up = max(request.given_up, int(float(given["seen"])))
            agree(reply, [b"over", request.ending.encode()], "an abandon of an ended request")
        elif request is not None:
            agree(reply, [b"exists"], "an abandon of a request")
        else:
            before, _ = self.abandoned.get(request_id, (-1, 0))
            seen = max(before, int(float(given["seen"])))
            self.abandoned[request_id] = (seen, self.now + given["ttl"])
            agree(reply, [b"ok"], "an abandon of an intent")

    # ------------------------------------------------------------------ the dispatch slot

    def intend(self, request_id: str, grace: int, above: int) -> int:
        """Returns the score of a new intent: newer than any that was given up."""
        before = int(self.active.get(request_id, 0))
        score = max(before + 1, above + 1, self.now + grace)
        self.active[request_id] = score
        return score

    def postpone(self, request_id: str, seen: float, due: float) -> int:
        """Postpones the entry, unless it was moved meanwhile."""
        if self.active.get(request_id) != seen:
            return 0
        self.active[request_id] = due
        return 1

    def readmit(self, request_id: str, due: float) -> int:
        """Enters a request again that is not in `active`."""
        if request_id in self.active:
            return 0
        self.active[request_id] = due
        return 1

    def drop(self, request_id: str, seen: float, *, gone: bool) -> int:
        """Drops an entry; a request that existed and is gone is logged as lost."""
        if self.active.get(request_id) != seen:
            return 0
        del self.active[request_id]
        self.loads.pop(request_id, None)
        if gone and seen % 1:
            self.log.append(Logged(request_id, "lost", (0, 0, 0, 0), "gone from Redis"))
        return 1

    def retire(self, request_id: str, summary: Reply) -> int:
        """Logs an ended request, once."""
        state, born, *counts, _, _, reason, _, opened = summary
        marker = (request_id, born, opened.partition(b":")[0])
        if marker in self.logged:
            return 0
        self.logged.add(marker)
        self.active.pop(request_id, None)
        self.loads.pop(request_id, None)
        self.log.append(Logged(request_id, state.decode(), tuple(counts), reason.decode()))
        return 1

    def drop_parts(self, request_id: str) -> None:
        """Drops the parts that wait to be joined."""
        if request_id in self.requests:
            parts = self.requests[request_id].parts
            parts.waiting.clear()

    def dispatch(self, request_id: str, tokens: list[Token]) -> None:
        """Puts tokens into their lanes, or keeps them until they are due."""
        for lane, k, g, delay, turn in tokens:
            copy = Copy(request_id, k, g, turn)
            if delay > 0:
                self.delayed[lane, copy] = self.now + delay
            else:
                self._put(lane, copy)

    def _put(self, lane: int, copy: Copy) -> None:
        if copy.turn:
            self.tenants.add(lane, copy)
        self.lanes.setdefault(lane, deque()).appendleft(copy.in_lane)

    def promote(self) -> tuple[int, int]:
        """Moves due tokens to their lanes, the earliest first: how many, and the next due time."""
        in_order = sorted(
            (due, f"{lane}|{copy.text}", lane, copy) for (lane, copy), due in self.delayed.items()
        )
        due = [one for one in in_order if one[0] <= self.now]
        for _, _, lane, copy in due:
            del self.delayed[lane, copy]
            self._put(lane, copy)
        rest = in_order[len(due) :]
        return len(due), rest[0][0] if rest else 0

    def missing_placeholders(self) -> dict[int, int]:
        """Returns the lanes with fewer placeholders than tenants' tokens, and how many lack."""
        found: dict[int, int] = {}
        for lane, _, _ in self.tenants.waiting():
            found[lane] = found.get(lane, 0) + 1
        for lane in found:
            found[lane] -= self.lanes.get(lane, deque()).count(PLACEHOLDER)
        return {lane: count for lane, count in found.items() if count > 0}

    def dues(self) -> tuple[int, int, int]:
        """Returns when the next entry of `active`, delayed token and tick are due; 0 = none."""
        ticks = [one.tick for one in self.schedules.stored.values() if one.tick is not None]
        next_ones = (self.active.values(), self.delayed.values(), ticks)
        active, delayed, tick = (int(min(each, default=0)) for each in next_ones)
        return active, delayed, tick

    def filled(self) -> list[int]:
        return sorted(lane for lane, copies in self.lanes.items() if copies)

    def lost(self, request_id: str) -> Iterator[tuple[int, int]]:
        """Returns the permits whose token is lost."""
        present = {copy for copies in self.lanes.values() for copy in copies}
        present |= {copy for _, copy in self.delayed}
        present |= {copy for _, _, copy in self.tenants.waiting()}
        request = self.requests[request_id]
        for permit in request.standing("queued"):
            if Copy(request_id, permit.k, permit.g, request.turn) not in present:
                yield permit.k, permit.g

    # ------------------------------------------------------------------ the bound on what waits

    @property
    def waiting(self) -> int:
        """Returns the number that counts against the bound."""
        return sum(load.weight for load in self.loads.values())

    def set_max_waiting(self, most: int) -> int:
        """Sets the bound; without a bound nothing is counted."""
        self.max_waiting = most
        if not most:
            self.loads.clear()
            self.recounted = 0
        return 1

    def admit(self, request_id: str, chunk: int, count: int, pause: int) -> Reply:
        """Admits a chunk, once; if nothing waits, there is always room.

        Nothing is counted that would never be taken off again.
        """
        load = self.loads.get(request_id)
        known = load and chunk <= load.chunk
        if not self.max_waiting or known or request_id not in self.active:
            return [b"ok"]
        waiting = self.waiting
        if waiting and waiting + count > self.max_waiting:
            recount = self.now - self.recounted >= pause
            self.recounted = self.now if recount else self.recounted
            return [b"full", waiting, self.max_waiting, int(recount)]
        before = load or Load(0, 0, 0)
        self.loads[request_id] = Load(before.admitted + count, chunk, before.settled)
        return [b"ok"]

    def report(self, request_id: str, chunks: int, total: int, settled: int) -> int:
        """Notes what was read in the request's own slot; keeps a later chunk."""
        if not self.max_waiting:
            return 0
        before = self.loads.pop(request_id, Load(0, 0, 0))
        if request_id in self.active:
            known = (total, chunks) if chunks >= before.chunk else before[:2]
            self.loads[request_id] = Load(*known, settled)
        return self.waiting

    # ------------------------------------------------------------------ time

    def forget(self) -> list[str]:
        """Forgets what has outlived its TTL; returns the ids."""
        old = [name for name, (_, until) in self.abandoned.items() if until <= self.now]
        for name in old:
            del self.abandoned[name]
        for name, request in list(self.requests.items()):
            if request.has_ended and request.ended + request.options.retain_ms <= self.now:
                del self.requests[name]
                old.append(name)
        return old

    def moments(self) -> list[int]:
        """Returns the moments from now on at which something is due."""
        found = set(self.delayed.values())
        for request in self.live.values():
            found |= {request.deadline, request.open_until + 1 if request.is_open else 0}
            found |= {permit.deadline for permit in request.held}
            found |= {sub.due for sub in request.among("waiting")}
        return sorted(moment for moment in found if moment > self.now)


def _left_out(request: Request, reply: Reply | Exception) -> int | None:
    """Takes from a reply the number that was left out, if the reply has it."""
    if isinstance(reply, Exception) or not request.options.is_distinct:  # an error: a gap
        return None
    return int(reply.pop()) if reply[0] in (b"ok", b"dup", b"exists") else None
