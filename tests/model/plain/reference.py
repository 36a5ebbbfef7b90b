"""Models one request as a plain object: what each script must change and reply.

Every method takes the time, Redis's reply and the arguments. It raises Disagreement for a wrong
reply, changes the model, and returns the tokens to dispatch. Where Redis may choose (the number of
a permit, a generation, a fence), the model takes over its choice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairlane.protocol.lua import ending_name
from tests.model.plain.distinct import Keys
from tests.model.plain.fed import Parts
from tests.model.plain.words import (
    DIED,
    LATE,
    NEVER,
    Permit,
    Result,
    Sub,
    Token,
    agree,
    place,
    tokens_of,
)

if TYPE_CHECKING:
    from tests.model.plain.words import Options

Reply = list[Any]


class Request:
    """A request: its sub-requests, its permits, and what was reported of it."""

    def __init__(self, options: Options, now: int, digest: str, open_ms: int) -> None:
        self.options, self.born = options, now
        self.limit, self.priority = options.limit, options.priority
        self.deadline = now + options.deadline_ms if options.deadline_ms else 0
        self.turn = options.turn
        self.opens = NEVER if options.waits else now + options.delay_ms  # nothing starts before
        self.aged = 0  # when a permit was last hastened
        self.chunks, self.digest, self.chain = 1, digest, digest
        self.keys = Keys(distinct=options.is_distinct)
        self.is_open, self.open_until = open_ms > 0, now + open_ms
        self.state, self.reason = "active", ""
        self.ended = self.timeouts = self.failures = self.seq = self.stamp = 0
        self.reopened, self.since = 0, ""  # how often, and the last result at that time
        self.was_left_open = False  # for too long: its producer has died
        self.given_up = -1  # no new life may be announced by an intent up to this
        self.last_repeated = 0  # the generation up to which tokens were repeated
        self.has_started, self.gated = False, bool(options.delay_ms or options.waits)
        self.handed, self.parts = "", Parts()  # of what other requests feed
        self.moves: dict[str, tuple[int, int]] = {}
        self.subs: list[Sub] = []
        self.permits: dict[int, Permit] = {}
        self.results: list[list[Result]] = []  # what one script reported belongs together
        self.published: list[str] = []

    # ------------------------------------------------------------------ what is the case

    @property
    def has_ended(self) -> bool:
        return self.state in ("done", "cancelled")

    @property
    def is_abandoned(self) -> bool:
        """Returns whether it was never complete, so that a new life of the id may follow."""
        return self.state == "cancelled" and self.was_left_open

    def may_be_followed(self, now: int, window_ms: int | None) -> bool:
        """Returns whether another life may have the id: this one is over, and its producer is gone.

        `window_ms`: it is enough that this one was cancelled, or began so long ago.
        """
        if window_ms is not None and self.has_ended:
            return self.state == "cancelled" or now >= self.born + window_ms
        return self.is_abandoned

    def follow(self, former: Request, now: int) -> None:
        """Begins the next life of an id: distinct from the former one, with higher fences."""
        self.born, self.seq = max(now, former.born + 1), former.seq

    def among(self, *states: str) -> list[Sub]:
        """Returns the sub-requests in these states, in the order of the stream."""
        found = [sub for sub in self.subs if sub.state in states]
        return sorted(found, key=lambda sub: (sub.stamp, sub.index))

    def count(self, state: str) -> int:
        return sum(sub.state == state for sub in self.subs)

    @property
    def left(self) -> int:
        """Returns how many sub-requests are neither done nor dead."""
        return sum(sub.state in ("fresh", "held", "waiting") for sub in self.subs)

    def owed_by(self, k: int) -> list[Sub]:
        """Returns what the holder of a permit has not settled yet."""
        return [sub for sub in self.among("held") if sub.permit == k]

    def due(self, now: int) -> list[Sub]:
        """Returns the sub-requests whose wait is over."""
        return [sub for sub in self.subs if sub.state == "waiting" and sub.due <= now]

    def unblamed(self) -> list[Sub]:
        """Returns what a live worker released in its first attempt: these may share a slice."""
        return [sub for sub in self.subs if sub.state == "waiting" and sub.due == 0]

    def ready(self, now: int) -> int:
        return 0 if self.opens > now else self.count("fresh") + len(self.due(now))

    def standing(self, state: str) -> list[Permit]:
        return [permit for permit in self.permits.values() if permit.state == state]

    @property
    def held(self) -> list[Permit]:
        return self.standing("held")

    def is_overdue(self, now: int) -> bool:
        """Returns whether the deadline has passed, so that nothing starts any more."""
        return 0 < self.deadline <= now

    def summary(self) -> Reply:
        return [
            *(self.state.encode(), self.born, len(self.subs), self.count("done")),
            *(self.count("dead"), self.count("cancelled"), self.ended, self.priority),
            *(self.reason.encode(), self.options.retain_ms),
            f"{self.reopened}:{self.since}".encode() if self.reopened else b"",
        ]

    @property
    def ending(self) -> str:
        """Returns what distinguishes this ending from the others of the id."""
        return ending_name(self.born, self.reopened)

    def queued(self, now: int) -> list[Token]:
        """Returns the queued tokens that were not repeated yet, and marks them as repeated."""
        found = sorted(
            Token(permit.lane, permit.k, permit.g, max(0, permit.due - now), self.turn)
            for permit in self.standing("queued")
            if permit.g > self.last_repeated
        )
        self.last_repeated = max((token.g for token in found), default=self.last_repeated)
        return found

    # ------------------------------------------------------------------ minting and ending

    def wanted(self, now: int) -> list[tuple[int | None, int]]:
        """Returns what mint must queue: (permit or None for any parked one, due)."""
        if self.state != "active" or self.is_overdue(now) or self.opens == NEVER:
            return []
        ready, held = self.ready(now), len(self.held)
        queued = self.standing("queued")
        awake = [permit for permit in queued if not permit.asleep]
        sleepers: list[int | None] = [permit.k for permit in queued if permit.asleep]
        missing = min(self.limit - held, ready) - len(awake)
        if missing > 0:
            return [(k, 0) for k in (sleepers + [None] * missing)[:missing]]
        waiting = [max(sub.due, self.opens) for sub in self.subs if sub.state == "waiting"]
        if self.opens > now:
            waiting += [self.opens] * self.count("fresh")
        if ready or awake or held >= self.limit or not waiting:
            return []
        if not sleepers:
            return [(None, min(waiting))]
        (sleeper,) = (permit for permit in queued if permit.asleep)
        return [(sleeper.k, min(waiting))] if min(waiting) < sleeper.due else []

    def queue(self, token: Token, k: int | None, due: int, now: int, lane: int = -1) -> None:
        """Gives a permit a token of a new generation, in the request's lane unless named."""
        if k is None:
            k = token.k
            parked = self.permits.setdefault(k, Permit(k)).state == "parked"
            agree((parked, 0 <= k < self.limit), (True, True), f"permit {k} is free")
        agree(token[:2], (self.priority if lane < 0 else lane, k), "lane and permit")
        agree(token[3:], (max(0, due - now), self.turn), f"delay and turn of permit {k}")
        agree(token.g > self.seq, True, f"generation {token.g} is above {self.seq}")
        permit = self.permits[k]
        permit.state, permit.g, permit.lane = "queued", token.g, token.lane
        permit.since, permit.due = now, due
        self.seq = token.g

    def mint(self, now: int, tokens: list[Token]) -> None:
        """Checks that the minted tokens are exactly those that are needed."""
        wanted = self.wanted(now)
        agree(len(tokens), len(wanted), f"how many of {tokens} are minted, of {wanted}")
        for token, (k, due) in zip(tokens, wanted, strict=True):
            self.queue(token, k, due, now)
            self.permits[token.k].asleep = due > now

    def park_awake(self, room: int) -> None:
        """Makes the newest tokens stale for which there is no room."""
        awake = [permit for permit in self.standing("queued") if not permit.asleep]
        for permit in sorted(awake, key=lambda one: one.g)[room:]:
            permit.park()

    def stop(self, state: str, reason: str) -> None:
        """Stops the request: nothing more starts."""
        self.state, self.reason = state, reason
        for permit in self.standing("queued"):
            permit.park()

    def is_over(self) -> bool:
        """Returns whether nothing is left, or it was stopped and nothing is leased."""
        if self.state == "cancelling" and not self.held:
            return True
        if self.state == "expiring":
            return self.left == 0
        return self.left == 0 and not self.is_open

    def end(self, now: int) -> None:
        word = "cancelled" if self.state == "cancelling" or self.count("cancelled") else "done"
        for sub in self.among("fresh", "held", "waiting"):
            sub.state = "cancelled"
        self.state, self.ended, self.is_open = word, now, False
        self.permits.clear()
        self.published.append(word)

    def conclude(self, now: int, reply: Reply, *front: Any) -> list[Token]:
        """Returns the reply of a script that may end the request."""
        if self.is_over():
            self.end(now)
            agree(reply, [b"ended", self.summary()], "the last answer")
            return []
        agree(reply[:-1], [b"ok", *front], "the answer")
        tokens = tokens_of(reply[-1])
        self.mint(now, tokens)
        return tokens

    def repeated(self, now: int, reply: Reply, *front: Any) -> list[Token]:
        """Returns the reply of a script without work: the queued tokens, each repeated once."""
        agree(reply[:-1], list(front), "the answer to a repeat")
        agree(sorted(tokens_of(reply[-1])), self.queued(now), "the repeated tokens")
        return tokens_of(reply[-1])

    # ------------------------------------------------------------------ submission

    def add(self, now: int, bodies: list[bytes]) -> None:
        self.stamp = max(now, self.stamp)
        for body in self.keys.new(bodies):
            self.subs.append(Sub(len(self.subs), self.stamp, body))

    def append(
        self,
        now: int,
        reply: Reply,
        *,
        chunk: int,
        chain: str,
        before: str,
        open_ms: int,
        bodies: list[bytes],
    ) -> list[Token]:
        """Appends the next chunk; a repeat changes nothing."""
        if chunk == self.chunks and chain != self.chain:
            agree(reply, [b"conflict"], "other content of the last chunk")
            return []
        if chunk <= self.chunks:
            return self.repeated(now, reply, b"dup")
        if not self.is_open:
            agree(reply, [b"closed"], "a chunk after the seal")
            return []
        if chunk > self.chunks + 1:
            agree(str(reply)[:8], "BADCHUNK", "a chunk after a gap")
            return []
        if before != self.chain or self.state == "cancelling":
            is_other = before != self.chain
            refusal = [b"conflict"] if is_other else [b"cancelling", self.summary()]
            agree(reply, refusal, "a chunk after other content, or of what is being cancelled")
            return []
        self.add(now, bodies)
        self.chunks, self.chain, self.open_until = chunk, chain, now + open_ms
        agree(reply[0], b"ok", "a chunk")
        tokens = tokens_of(reply[1])
        self.mint(now, tokens)
        return tokens

    def seal(self, now: int, reply: Reply, *, chunks: int, chain: str) -> list[Token]:
        """Seals the request: no more chunks follow."""
        if (chunks, chain) != (self.chunks, self.chain):
            agree(reply, [b"conflict"], "a seal of something else")
            return []
        if self.state == "cancelling":
            agree(reply, [b"cancelling", self.summary()], "a seal of what is being cancelled")
            return []
        if not self.is_open:
            return self.repeated(now, reply, b"ok")
        self.is_open = False
        return self.conclude(now, reply)

    # ------------------------------------------------------------------ a worker

    def acquire(
        self, now: int, reply: Reply, *, k: int, g: int, op: str, worker: str, started: str,
        count: int, shared: str, allowance: str, wait: str, token: str,
    ) -> list[Token]:  # fmt: skip
        agree((allowance, wait, token), ("", "", ""), "a request without rates and keys")
        permit = self.permits.get(k)
        if permit and permit.state == "held" and (permit.op, permit.g) == (op, g):
            return self._acquire_again(now, reply, permit)
        if permit is None or permit.state != "queued" or permit.g != g:
            agree(reply, [b"stale"], "a token that is not on its way")
            return []
        if shared and self.state == "active" and self.due(now) and not self.unblamed():
            agree(reply, [b"alone"], "a retry among other leases")
            return []
        if refusal := self._refusal(now):
            permit.park()
            agree(reply[0], refusal, "a refused token")
            tokens = tokens_of(reply[1])
            self.mint(now, tokens)
            return tokens
        agree(reply[0], b"ok", "a good token")
        self.has_started = True
        taken = self._slice(now, count, reply[4])
        self._agree_on_slice(now, reply, taken[0].attempt, taken)
        permit.fence, permit.op, permit.worker, permit.started = int(reply[1]), op, worker, started
        permit.is_shared = bool(shared)
        permit.state, permit.asleep = "held", False
        permit.deadline = now + self.options.lease_ms
        agree(permit.fence > self.seq, True, f"fence {permit.fence} is above {self.seq}")
        self.seq = permit.fence
        for sub in taken:
            sub.state, sub.permit = "held", k
        tokens = tokens_of(reply[5])
        self.mint(now, tokens)
        return tokens

    def _refusal(self, now: int) -> bytes:
        if self.state != "active" or self.is_overdue(now):
            return b"paused"
        if len(self.held) >= self.limit:
            return b"busy"
        return b"" if self.ready(now) else b"empty"

    def _slice(self, now: int, count: int, entries: list[Any]) -> list[Sub]:
        """Chooses a slice: released entries; an earliest due retry alone; fresh ones in order.

        Where there are several, at most the permit's share.
        """
        fresh, unblamed = self.among("fresh"), self.unblamed()
        if unblamed:
            share = -(-(len(fresh) + len(unblamed)) // self.limit)
            return sorted(unblamed, key=lambda sub: sub.id)[: min(count, share)]
        due = self.due(now)
        if due:
            first = min(sub.due for sub in due)
            same = [sub for sub in due if sub.due == first]
            return [next((sub for sub in same if [sub.id] == [one[0] for one in entries]), same[0])]
        return fresh[: min(count, -(-len(fresh) // self.limit))]

    def _agree_on_slice(self, now: int, reply: Reply, attempt: int, subs: list[Sub]) -> None:
        options = self.options
        policy = [
            *(now, self.born, options.lease_ms, options.attempts, options.backoff_min),
            *(options.backoff_max, self.priority, options.time_limit_ms, options.durable),
            *(sum(sub not in subs for sub in (*self.among("fresh"), *self.unblamed())), b""),
        ]
        agree(reply[2:4], [attempt, policy], "attempt and policy")
        agree(reply[4], [[sub.id, [b"b", sub.body]] for sub in subs], "the slice")

    def _acquire_again(self, now: int, reply: Reply, permit: Permit) -> list[Token]:
        permit.deadline = now + self.options.lease_ms
        owed = self.owed_by(permit.k)
        agree(reply[:2], [b"ok", b"%d" % permit.fence], "a repeated acquire")
        self._agree_on_slice(now, reply, owed[0].attempt if owed else 1, owed)
        return self.repeated(now, [reply[5]])

    def complete(
        self,
        now: int,
        reply: Reply,
        *,
        k: int,
        fence: int,
        op: str,
        keep: str,
        done: list[tuple[bytes, int, bytes]],
        others: list[tuple[bytes, int, str, int]],
    ) -> list[Token]:
        """Settles verdicts: only the holder's, only about what it owes, each once."""
        permit = self.permits.get(k)
        if permit is None or not permit.is_held_by(fence, op):
            if permit and permit.settled == fence:
                return self.repeated(now, reply, b"already")
            agree(reply, [b"lost"], "a complete of another holder")
            return []
        owed = {sub.id: sub for sub in self.owed_by(k)}
        results: list[Result] = []
        for sub_id, _, body in done:
            if sub := owed.pop(sub_id, None):
                sub.state = "done"
                results.append(Result(sub.index, "d", sub.attempt, permit.worker, body))
        for sub_id, _, verdict, delay in others:
            if sub := owed.pop(sub_id, None):
                self._settle(now, sub, verdict, delay, permit.worker, results)
        self.results.append(results)
        if keep == "1":
            permit.deadline = now + self.options.lease_ms
        else:
            for sub in owed.values():
                sub.state, sub.due = "waiting", 0 if keep == "u" and not sub.spent else now
            permit.park()
            permit.settled = fence
        return self.conclude(now, reply, self.left)

    def _settle(
        self, now: int, sub: Sub, verdict: str, delay: int, worker: str, results: list[Result]
    ) -> None:
        if verdict == "timeout":
            self.timeouts += 1
        self.failures += verdict not in {"release", "unbegun"}
        if verdict == "release":  # not charged
            sub.state, sub.due = "waiting", now + delay
        elif verdict == "unbegun":  # nor this; it may come with others
            sub.state, sub.due = "waiting", now if sub.spent else 0
        elif verdict == "dead" or sub.attempt >= self.options.attempts:
            reason = {"dead": "rejected", "retry": "attempts", "timeout": "timeout"}[verdict]
            self._bury(sub, sub.attempt, worker, reason, f"why {verdict}".encode(), results)
        else:
            sub.state, sub.due, sub.spent = "waiting", now + delay, sub.attempt

    @staticmethod
    def _bury(
        sub: Sub, attempt: int, worker: str, reason: str, error: bytes, results: list[Result]
    ) -> None:
        sub.state, sub.reason = "dead", reason
        results.append(Result(sub.index, "x", attempt, worker, error))

    def extend(
        self, now: int, reply: Reply, *, k: int, fence: int, op: str, term: int | str
    ) -> list[Token]:
        permit = self.permits.get(k)
        if permit is None or not permit.is_held_by(fence, op):
            agree(reply, [b"lost"], "an extend of another holder")
            return []
        permit.deadline = now + (int(term) if term else self.options.lease_ms)
        unwanted = self.state in ("cancelling", "expiring")
        agree(reply, [b"cancelled" if unwanted else b"ok"], "an extend")
        return []

    # ------------------------------------------------------------------ maintenance

    def reap(
        self,
        now: int,
        reply: Reply,
        *,
        worker: str,
        started: str,
        k: str,
        fence: str,
        missing: list[tuple[int, int]],
    ) -> list[Token]:
        """Takes leases back, kills what is too late, and mints lost tokens again."""
        results: list[Result] = []
        before = self.state
        for permit in self._named(now, worker, started, k, fence):
            self._take_back(now, permit, results, is_named=bool(worker and k))
        if self.is_open and self.open_until < now and self.state != "cancelling":
            self.stop("cancelling", "abandoned")
            self.was_left_open = True
        if self.is_overdue(now) and self.state in ("active", "paused"):
            self.stop("expiring", "deadline")
        if self.state == "expiring":
            for sub in self.among("waiting", "fresh"):
                self._bury(sub, sub.spent, "-", "deadline", LATE, results)
        self.results.append(results)
        again = []
        for number, g in missing:
            found = self.permits.get(number)
            if found and found.state == "queued" and found.g == g and number not in again:
                again.append(number)
        if self.is_over():
            return self.conclude(now, reply)
        word = b"ok" if self.state == before else b"stopped"
        agree(reply[:2], [word, self._look(now)], "a reap")
        tokens = tokens_of(reply[2])
        for token, number in zip(tokens, again, strict=False):
            self.queue(token, number, self.permits[number].due, now)
        self.mint(now, tokens[len(again) :])
        return tokens

    def _named(self, now: int, worker: str, started: str, k: str, fence: str) -> list[Permit]:
        if not worker:
            return [permit for permit in self.held if permit.deadline <= now]
        return [
            permit
            for permit in self.held
            if (permit.worker, permit.started) == (worker, started)
            and k in ("", str(permit.k))
            and fence in ("", str(permit.fence))
        ]

    def _take_back(
        self, now: int, permit: Permit, results: list[Result], *, is_named: bool
    ) -> None:
        """Charges the only sub-request of a worker that died; of several, none is charged."""
        owed = self.owed_by(permit.k)
        for sub in owed:
            sub.state, sub.due = "waiting", now
        if len(owed) == 1 and (is_named or not permit.is_shared):
            (sub,) = owed
            self.failures += 1
            if sub.attempt >= self.options.attempts:
                self._bury(sub, sub.attempt, permit.worker, "died", DIED, results)
            else:
                sub.spent += 1
                sub.due += self._death_delay(sub.spent)
        permit.park()

    def _death_delay(self, deaths: int) -> int:
        if deaths <= 1:
            return 0
        return min(self.options.backoff_max, self.options.backoff_min << (deaths - 2))

    def _look(self, now: int) -> int:
        """Returns the ms until something is due: an expired lease, or the deadline."""
        moments = [permit.deadline for permit in self.held]
        if self.deadline and self.state in ("active", "paused"):
            moments.append(self.deadline)
        return max(2, min(moments) - now) if moments else 0

    # ------------------------------------------------------------------ people

    def cancel(self, now: int, reply: Reply, *, reason: str) -> list[Token]:
        """Cancels: nothing more starts; what is leased ends with its slice."""
        if self.state != "cancelling":
            self.stop("cancelling", reason)
        return self.conclude(now, reply)

    def pause(self, now: int, reply: Reply) -> list[Token]:
        """Pauses: nothing more starts until resume."""
        if self.state == "active" and not self.is_overdue(now):
            self.stop("paused", "")
        agree(reply, [b"ok", self.state.encode(), []], "a pause")
        return []

    def resume(self, now: int, reply: Reply) -> list[Token]:
        if self.state != "paused":
            return self.repeated(now, reply, b"ok", self.state.encode())
        self.state = "active"
        agree(reply[:2], [b"ok", b"active"], "a resume")
        tokens = tokens_of(reply[2])
        self.mint(now, tokens)
        return tokens

    def kept(self) -> list[Sub]:
        """Returns the dead ones whose bodies are kept, in the order of their deaths."""
        found = [sub for sub in self.subs if sub.state == "dead" and not sub.is_dropped]
        return sorted(found, key=lambda sub: place(sub.grave))

    def list_dead(self, reply: Reply, after: bytes, count: int) -> None:
        kept = [sub for sub in self.kept() if place(sub.grave) > place(after or b"0-0")]
        result_of = {one.number: one for group in self.results for one in group}
        page = [
            (
                sub.grave,
                sub.reason.encode(),
                result_of[sub.index].body,
                result_of[sub.index].worker.encode(),
            )
            for sub in kept[:count]
        ]
        found = [(row[0], row[2], row[3], row[4]) for row in reply]
        agree(found, page, "a page of the dead")

    def requeue_dead(
        self,
        now: int,
        reply: Reply,
        *,
        op: str,
        ids: list[bytes],
        ending: str,
        intent: int,
        **_: str,
    ) -> list[Token]:
        """Requeues dead ones, as if they were new; a call that moved some is done once.

        An ended request is opened again, if the caller has logged that end.
        """
        if op in self.moves:
            if self.has_ended:
                agree(reply, [b"over", *self.moves[op], self.summary()], "a repeat after the end")
                return []
            return self.repeated(now, reply, b"ok", *self.moves[op])
        if self.has_ended:
            refusal = self._stays_ended(now, ending, intent)
            if not refusal and not any(sub.grave in ids for sub in self.kept()):
                refusal = [b"ok", len(ids), 0, []]
            if refusal:
                agree(reply, refusal, "an end that stays")
                return []
            self._reopen(now)
        if self.state in ("cancelling", "expiring") or self.is_overdue(now):
            agree(reply, [b"ending"], "the dead of a request that is ending")
            return []
        found = [sub for sub in self.kept() if sub.grave in ids]
        if found:
            self.stamp = max(now, self.stamp + 1)
            self.moves[op] = (len(ids), len(found))
        for sub in found:
            sub.state, sub.stamp, sub.spent = "fresh", self.stamp, 0
        agree(reply[:3], [b"ok", len(ids), len(found)], "the dead wait again")
        back = {sub.index for sub in found}
        self.results = [[one for one in group if one.number not in back] for group in self.results]
        tokens = tokens_of(reply[3])
        if len(found) == len(ids):
            self.mint(now, tokens)
            return tokens
        self.mint(now, [token for token in tokens if token.g > self.seq])
        return self.repeated(now, [reply[3]])

    def _stays_ended(self, now: int, ending: str, intent: int) -> Reply | None:
        if ending != self.ending:
            return [b"ended", self.summary()]
        if self.is_abandoned:
            return [b"abandoned"]
        if self.given_up >= intent:
            return [b"late", self.given_up]
        if now >= self.ended + self.options.retain_ms:
            return [b"expired"]
        return None

    def _reopen(self, now: int) -> None:
        self.reopened += 1
        self.state, self.ended, self.aged = "active", 0, now
        if self.is_overdue(now):
            self.deadline = 0
        if self.opens == NEVER:
            self.opens = 0
        if not self.count("cancelled"):
            self.reason = ""
