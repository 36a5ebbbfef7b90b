"""Plays one queue on Redis and in the model at the same time, and finally works it off."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fairlane.operations.flow_hand_over import BRANCH, DEAD, DONE, JOINING, Feed, hand_over
from fairlane.operations.schedules import drop_schedule, fire
from fairlane.protocol import keys
from tests.model.plain.book import DAY_MS, QUEUE, Book, Logged
from tests.model.plain.distinct import with_ids
from tests.model.plain.words import PLACEHOLDER, Copy, Disagreement, agree
from tests.model.play.view import compare, reads
from tests.model.rules.acting import Acting
from tests.model.rules.queue_wide import ENDLESS_MS, LOCK_MS, TTL_MS
from tests.support.scripts.requests import head_of, with_policy

if TYPE_CHECKING:
    from tests.model.plain.reference import Request
    from tests.model.plain.words import Options, Token
    from tests.model.play.wire import Wire

IDS = ("a", "b", "c")
T0 = 1_700_000_000_000
STATUS = {DONE: "d", BRANCH: "d", DEAD: "x"}  # of a result that feeds a request
KEEP_LOGGED_MS = 25 * 3_600_000
BUCKET = keys.bucket(f"queue/{QUEUE}")
DISPATCH = {
    f"{{{QUEUE}}}:{name}".encode()
    for name in ("active", "logged", "completed", "conf", "load", "tenants", "workers")
} | {BUCKET}
ROUNDS = 400
WITH_IDS = {"enqueue", "append", "seal"}
LATE_MS = 5_000  # after which another process may use the name of a worker
EXPECTED = ("BADCHUNK", "NOGROUP", "ERR no such key")  # a gap, and reads of what is not there
KEYS = {
    name: f"{{{QUEUE}}}:{name}".encode()
    for name in ("active", "delayed", "logged", "completed", "conf")
} | {
    "loads": f"{{{QUEUE}}}:load".encode(),
    "turns": keys.turns(QUEUE)[0],
    "tenants": keys.turns(QUEUE)[1],
    "schedules": keys.schedules(QUEUE)[0],
    "ticks": keys.schedules(QUEUE)[1],
    "firing": keys.firing(QUEUE),
}


@dataclass(frozen=True)
class Lease:
    """A worker's lease of a slice."""

    id: str
    k: int
    g: int
    op: str
    worker: str
    started: str
    fence: int
    attempt: int
    entries: tuple[bytes, ...]


def said(name: str, given: dict[str, Any]) -> dict[str, Any]:
    """Returns the arguments of a call, by the names in its script."""
    if name == "enqueue":
        options: Options = given["options"]
        rest = {key: value for key, value in given.items() if key != "options"}
        return with_policy(options._asdict()) | rest
    if name == "reap":
        return given | {"missing": [text for pair in given["missing"] for text in pair]}
    if name != "complete":
        return given
    if "verdicts" in given:  # as the product sends them
        return {key: given[key] for key in ("k", "fence", "op", "keep", "verdicts")} | {
            "done": len(given["done"])
        }
    done, others = given["done"], given["others"]
    verdicts: list[Any] = [sub_id for sub_id, _, _ in done]
    for sub_id, attempt, body in done:
        verdicts += (head_of(sub_id, "d", attempt), body)
    for sub_id, attempt, verdict, delay in others:
        verdicts += (sub_id, verdict, delay, head_of(sub_id, "x", attempt), f"why {verdict}")
    proof = {key: given[key] for key in ("k", "fence", "op", "keep")}
    return proof | {"done": len(done), "verdicts": verdicts}


def word_of(copy: Copy) -> str:
    """Returns a token as a lane holds it."""
    return "@" if copy == PLACEHOLDER else copy.text


class Player:
    """Sends every call to Redis and to the model, which must agree on all replies."""

    def __init__(self, wire: Wire) -> None:
        self.wire, self.book = wire, Book()
        self.book.now = T0
        self.outbox: list[tuple[str, list[Token]]] = []
        self.leases: list[Lease] = []
        self.copies: list[Copy] = []
        self.history: list[tuple[str, str, dict[str, Any]]] = []
        self.known: dict[tuple[str, str], tuple[int, tuple[int, int]]] = {}  # pause and rate
        self.waits: dict[tuple[str, str], int] = {}  # workers in the line of the rate, until when
        self.calls = self._ops = 0
        self._packed: dict[str, list[bytes]] = {}
        wire.published.clear()
        wire.one("FLUSHALL")

    def new_op(self) -> str:
        self._ops += 1
        return f"{self._ops:032x}"

    # ------------------------------------------------------------------ calls

    def call(self, name: str, request_id: str, *before: bytes, **given: Any) -> list[Any]:
        """Calls a script of the request's slot, after some commands; returns all their replies."""
        self.history.append((name, request_id, given))
        names, words = keys.request_keys(request_id), said(name, given)
        if name in WITH_IDS and self._is_distinct(request_id, given):
            names = (*names, keys.unique_ids(request_id))
            if "bodies" in given:  # the history and the model keep them without their ids
                words = words | {"bodies": with_ids(given["bodies"])}
        if name in {"join", "hand_chosen"}:
            names = (*names, keys.of_flow(request_id), keys.fed(request_id))
        elif name == "hand_over":
            names = (*names, keys.fed(request_id))
        packed = [*before, self._script(name, names, **words), *self._look(request_id)]
        replies = self._send(packed)
        reply = replies[len(before)]
        if isinstance(reply, Exception) and not str(reply).startswith("BADCHUNK"):
            raise Disagreement(f"{name} failed: {reply}")
        tokens = self.book.check_reply(name, request_id, reply, given)
        self._compare(request_id, replies[len(before) + 1 :])
        self.outbox.append((request_id, tokens))
        self.copies += [Copy(request_id, token.k, token.g, token.turn) for token in tokens]
        if name == "acquire" and reply[0] == b"ok":
            self._remember(request_id, given, reply)
        return replies

    def _is_distinct(self, request_id: str, given: dict[str, Any]) -> bool:
        """Returns True if the call is that of a producer whose request takes each key once."""
        request = self.book.requests.get(request_id)
        options = given.get("options") or (request.options if request else None)
        return options is not None and options.is_distinct

    def _script(self, name: str, names: Any, **given: Any) -> bytes:
        if "now" in self.wire.scripts[name].params:
            given["now"] = self.book.now
        return self.wire.script(name, names, **given)

    def _look(self, request_id: str) -> list[bytes]:
        check = self._script("check", keys.request_keys(request_id))
        if request_id not in self._packed:
            self._packed[request_id] = [self.wire.pack(*words) for words in reads(request_id)]
        return [check, *self._packed[request_id]]

    def _compare(self, request_id: str, replies: list[Any]) -> None:
        agree(replies[0], [], f"what check finds wrong with {request_id}")
        compare(self.book, request_id, replies[1:])
        agree(self.wire.published, self.book.published, "what was published")
        self.wire.published.clear()
        self.book.published.clear()

    def _send(self, packed: list[bytes]) -> list[Any]:
        """Sends a call, after the tokens that must be dispatched, all in one round trip."""
        front = []
        for request_id, tokens in self.outbox:
            if tokens:
                self.book.dispatch(request_id, tokens)
                front += self._insertions(request_id, tokens)
        self.outbox.clear()
        self.calls += 1
        replies = self.wire.ask(front + packed)
        for reply in replies:
            if isinstance(reply, Exception) and not str(reply).startswith(EXPECTED):
                raise Disagreement(f"a call failed: {reply}")
        return replies[len(front) :]

    def _insertions(self, request_id: str, tokens: list[Token]) -> list[bytes]:
        """Returns the insertions: tokens of a tenant come before their placeholders."""
        lanes = keys.lanes(QUEUE)
        names = [keys.delayed(QUEUE), *(lanes[token.lane] for token in tokens)]
        placed, flat = list[bytes](), list[Any]()
        for token in tokens:
            copy = Copy(request_id, token.k, token.g, token.turn)
            if token.delay:
                flat += (token.lane, 0, 1, copy.text, token.delay)
                continue
            if token.turn:
                given = {"lane": token.lane, "tokens": [copy.text]}
                placed.append(self._script("add_turns", keys.turns(QUEUE), **given))
            flat += (token.lane, 1, 0, word_of(copy.in_lane))
        return [*placed, self._script("insert_tokens", names, tokens=flat)]

    def _remember(self, request_id: str, given: dict[str, Any], reply: list[Any]) -> None:
        if all(lease.op != given["op"] for lease in self.leases):
            ids = tuple(entry[0] for entry in reply[4])
            who = {name: given[name] for name in ("k", "g", "op", "worker", "started")}
            lease = Lease(id=request_id, fence=int(reply[1]), attempt=reply[2], entries=ids, **who)
            self.leases.append(lease)

    # ------------------------------------------------------------------ the dispatch slot

    def flush(self) -> None:
        if self.outbox:
            self._send([])

    def dispatch(self, name: str, **given: Any) -> Any:
        """Calls a script of the dispatch slot; returns its reply."""
        wanted = self.wire.scripts[name]
        names = [KEYS[key] for key in wanted.keys]
        if wanted.many_keys:
            names += keys.lanes(QUEUE)
        (reply,) = self._send([self._script(name, names, **given)])
        return reply

    def intend(self, request_id: str, grace: int, above: int = 0) -> int:
        """Takes the producer's first step; returns the score."""
        before = self.book.active.get(request_id, 0)
        score = self.book.intend(request_id, grace, above)
        given: Any = {"grace": grace, "above": above, "named": ""}
        bound, _, *scores = self.dispatch("intend", ids=[request_id], **given)
        agree(
            [scores[0], float(scores[1]), bound],
            [score, before, self.book.max_waiting],
            "intent, the one before, the bound",
        )
        return score

    def set_max_waiting(self, most: int) -> None:
        reply = self.dispatch("set_max_waiting", most=most)
        agree(reply, self.book.set_max_waiting(most), "a bound")

    def admit(self, request_id: str, chunk: int, count: int, pause: int = 1_000) -> Any:
        given = {"chunk": chunk, "count": count, "pause": pause}
        reply = self.dispatch("admit", id=request_id, **given)
        agree(reply, self.book.admit(request_id, **given), "room")
        return reply

    def report(self, request_id: str, chunks: int, total: int, settled: int) -> Any:
        rows = (request_id, chunks, total, settled)
        reply = self.dispatch("report_backlog", rows=rows)
        agree(reply, self.book.report(*rows), "what waits")
        return reply

    def postpone(self, request_id: str, seen: float, due: float) -> int:
        reply = self.dispatch("reschedule_active", rows=(request_id, seen, due))
        agree(reply, self.book.postpone(request_id, seen, due), "a postponed entry")
        return int(reply)

    def readmit(self, request_id: str, due: float) -> None:
        """Enters a request again, as doctor does."""
        reply = self.dispatch("restore_active", id=request_id, due=due)
        agree(reply, self.book.readmit(request_id, due), "an entry that was missing")

    def drop(self, request_id: str, seen: float, *, gone: bool) -> int:
        """Drops an entry; `gone`: there is no such request."""
        word = "1" if gone else "0"
        reply = self.dispatch("drop_active", id=request_id, seen=seen, gone=word, most=1000)
        agree(reply, self.book.drop(request_id, seen, gone=gone), "a dropped entry")
        return int(reply)

    def promote(self) -> None:
        self.flush()  # what comes to wait now may be due
        agree(self.dispatch("promote", most=1000), list(self.book.promote()), "promoted, next due")
        if self.book.tenants.seq:
            self.compare_tenants()

    def retire(self, request_id: str, summary: list[Any] | None = None) -> int:
        """Logs the end of a request: as it is now, or as a caller has read it."""
        ending = self.book.requests[request_id].summary() if summary is None else summary
        kept = dict.fromkeys(("least", "longest"), KEEP_LOGGED_MS - 3_600_000)
        reply = self.dispatch("retire", most=1000, endings=[request_id, *ending], **kept)
        agree(reply, self.book.retire(request_id, ending), "a logged end")
        return int(reply)

    def pop(self, lane: int) -> Copy:
        """Pops the next token of a lane; it is lost unless the caller shows it."""
        self.flush()
        copy = self.book.lanes[lane].pop()
        (word,) = self._send([self.wire.pack("RPOP", keys.lanes(QUEUE)[lane])])
        agree(word, word_of(copy).encode(), f"what comes from lane {lane}")
        return copy

    def take(
        self, lane: int, count: int, worker: tuple[str, str], rate: tuple[int, int] = (0, 0)
    ) -> bytes:
        """Pops the next token of a lane and acquires with it; returns the word.

        `rate`: that of the queue, by the last heartbeat of the worker.
        """
        self.flush()
        copy = word = self.book.lanes[lane].pop()
        pop = self.wire.pack("RPOP", keys.lanes(QUEUE)[lane])
        if rate[0]:
            agree(self._send([pop]), [word_of(copy).encode()], f"what comes from lane {lane}")
            count = allowed = self.take_allowance(worker, rate, count)
            if not allowed:
                self.push(lane, [word])
                return b"rated"
            pop = self.wire.pack("ECHO", word_of(copy))
        if copy == PLACEHOLDER:
            found = self.take_turn(lane, pop)
            if found is None:
                self.give_back(rate, count)
                return b"stale"
            copy, pop = found, self.wire.pack("ECHO", found.text)
        proof = {"op": self.new_op(), "worker": worker[0], "started": worker[1], "count": count}
        popped, reply, *_ = self.call(
            "acquire",
            copy.id,
            pop,
            k=copy.k,
            g=copy.g,
            shared="",
            allowance="",
            wait="",
            token="",
            **proof,
        )
        agree(popped, copy.text.encode(), f"what comes from lane {lane}")
        used = len(reply[4]) if reply[0] == b"ok" else 0
        self.give_back(rate, count - used)
        if rate[0] and rate == self.book.wide.rate:
            self.book.wide.bucket.note(self.book.now, *rate, used)
        return bytes(reply[0])

    # ------------------------------------------------------------------ pause and rate

    def beat(self, worker: tuple[str, str]) -> bytes:
        """Sends a worker's heartbeat, which returns pause and rate; a new one registers first."""
        name, started = worker
        wide, now = self.book.wide, self.book.now
        given = {"id": name, "host": "h", "pid": "1", "started": started, "ttl": TTL_MS}
        names = (
            *(keys.workers(QUEUE), keys.worker(QUEUE, name)),
            *(keys.conf(QUEUE), keys.task_stats(QUEUE)),
        )
        if wide.started.get(name) != started:
            call = self._script("register_worker", names, late=LATE_MS, release="", **given)
            agree(self._send([call]), [wide.register(now, *worker, LATE_MS)], "a registration")
        every = (
            *(keys.workers(QUEUE), keys.worker(QUEUE, name), keys.active(QUEUE)),
            *(keys.delayed(QUEUE), keys.conf(QUEUE), keys.taken(QUEUE, name)),
            *(keys.schedules(QUEUE)[1], keys.firing(QUEUE)),
        )
        given = {"id": name, "started": started, "ttl": TTL_MS, "lock_ms": LOCK_MS}
        given |= {"holds": "", "taken_ttl": TTL_MS, "died": ""}
        self.flush()
        (reply,) = self._send([self._script("heartbeat", every, **given)])
        if reply[0] == b"ok" and reply[1]:
            self.book.schedules.look(now)
        agree(reply, wide.beat(now, *worker, self.book.dues()), f"a beat of {worker}")
        if reply[0] == b"ok":
            interval, burst = map(int, reply[11].split() or (0, 0))
            self.known[worker] = reply[10], (interval, burst)
        return bytes(reply[0])

    def pause_queue(self, period: int) -> None:
        names = (keys.conf(QUEUE),)
        call = self._script("pause_queue", names, period=period, longest=ENDLESS_MS)
        agree(self._send([call]), [self.book.wide.pause(self.book.now, period)], "a pause")

    def rate_queue(self, interval: int, burst: int) -> None:
        """Gives the queue a rate, or none; its bucket owes no more than the new burst."""
        call = self._script("rate_queue", (keys.conf(QUEUE),), interval=interval, burst=burst)
        agree(self._send([call]), [1], "a rate")
        self.book.wide.rate = interval, burst
        if interval:
            agree(self._ask_bucket("refit", (interval, burst)), 1, "a bounded bucket")
            self.book.wide.bucket.refit(self.book.now, interval, burst)
            self._compare_bucket()

    def take_allowance(self, worker: tuple[str, str], rate: tuple[int, int], want: int) -> int:
        """Takes a worker's allowance; if that is nothing, the worker waits in line."""
        bucket, now = self.book.wide.bucket, self.book.now
        has_waited = worker in self.waits
        waited = "1" if has_waited else ""
        reply = self._ask_bucket("take", rate, want=want, waited=waited)
        agree(reply, [*bucket.take(now, *rate, want, has_waited=has_waited)], "an allowance")
        if rate != self.book.wide.rate:  # the worker does not have the present rate yet
            bucket.starts.clear()
        self.waits.pop(worker, None)
        if not reply[0]:
            self.waits[worker] = now + reply[1]
        self._compare_bucket()
        return int(reply[0])

    def give_back(self, rate: tuple[int, int], unused: int) -> None:
        if rate[0] and unused:
            agree(self._ask_bucket("refund", rate, unused=unused), unused, "a refund")
            self.book.wide.bucket.refund(self.book.now, rate[0], unused)
            self._compare_bucket()

    def _ask_bucket(self, name: str, rate: tuple[int, int], **given: Any) -> Any:
        terms = {"interval": rate[0], "burst": rate[1], "weight": 1}
        call = self._script(name, (BUCKET,), **terms, **given)
        # Its TTL is by Redis's own clock, and not by that of the model.
        reply, _ = self._send([call, self.wire.pack("PERSIST", BUCKET)])
        return reply

    def _compare_bucket(self) -> None:
        bucket = self.book.wide.bucket
        tat, line, *_ = map(int, self.wire.one("GET", BUCKET).split(b":"))
        agree((tat, line), (bucket.tat, bucket.line), "the bucket of the queue")

    # ------------------------------------------------------------------ tenants

    def take_turn(self, lane: int, pop: bytes) -> Copy | None:
        """Pops a placeholder, and takes the token whose turn it is."""
        call = self._script("take_turns", keys.turns(QUEUE), lane=lane, count=1)
        popped, taken = self._send([pop, call])
        agree(popped, b"@", f"what comes from lane {lane}")
        copy = self.book.tenants.lane(lane).take()
        agree(taken, [copy.text.encode()] if copy else [], "whose turn it is")
        self.compare_tenants()
        return copy

    def charge(self, lane: int, turn: str, turns: int, cost: int) -> None:
        """Charges turns that a worker has measured."""
        share, _, tenant = turn.partition(":")
        call = self._script("charge_turns", keys.turns(QUEUE)[1:], rows=[lane, turn, turns, cost])
        agree(self._send([call]), [1], "a charge")
        self.book.tenants.lane(lane).charge(tenant, int(share), turns, cost)
        self.compare_tenants()

    def compare_tenants(self) -> None:
        """Raises Disagreement unless the same tokens wait, and each tenant was charged the same."""
        turns, tenants = keys.turns(QUEUE)
        looks = [("ZRANGE", turns, 0, -1), ("ZRANGE", tenants, 0, -1, "WITHSCORES")]
        self.book.tenants.compare(*self._send([self.wire.pack(*words) for words in looks]))

    def add_placeholders(self) -> None:
        """Adds lost placeholders, as the auditor."""
        self.flush()
        for lane, count in self.book.missing_placeholders().items():
            self.push(lane, [PLACEHOLDER] * count)

    def push(self, lane: int, copies: list[Copy]) -> None:
        """Pushes tokens so that they leave the lane next."""
        words = [word_of(copy) for copy in copies]
        self._send([self._script("push", (keys.lanes(QUEUE)[lane],), ttl=0, words=words)])
        self.book.lanes.setdefault(lane, deque()).extend(copies)

    def clear(self, lanes: list[int], *, delayed: bool) -> None:
        """Removes lanes of the dispatch slot."""
        self.flush()
        names = [keys.lanes(QUEUE)[lane] for lane in lanes]
        for lane in lanes:
            self.book.lanes[lane].clear()
        if delayed:
            self.book.delayed.clear()
            names.append(keys.delayed(QUEUE))
        if names:
            self._send([self.wire.pack("DEL", *names)])

    def lose(self, lane: int) -> None:
        """Pops a token and loses the reply."""
        copy = self.book.lanes[lane].pop()
        popped = self.wire.one("RPOP", keys.lanes(QUEUE)[lane])
        agree(popped, word_of(copy).encode(), "a lost token")

    def requeue_dead(self, request_id: str, graves: list[bytes], *, again: bool) -> None:
        """Requeues dead ones; opens an ended request again, whose end is logged before."""
        request = self.book.requests[request_id]
        given: dict[str, Any] = {"op": self.new_op(), "ids": graves, "ending": "", "intent": 0}
        given |= {"shards": "", "holder": "ab", "more": "", "by": ""}
        if request.has_ended:
            self.retire(request_id)
            given |= {"ending": request.ending, "intent": self.intend(request_id, 5_000)}
        since = ""
        for _ in range(1 + again):
            before = request.reopened
            if request.has_ended and request.results:  # the model does not know ids of results
                last = self.wire.one("XREVRANGE", keys.results(request_id), "+", "-", "COUNT", 1)
                since = last[0][0].decode() if last else "0-0"
            self.call("requeue_dead", request_id, **given)
            if request.reopened > before:
                request.since = since

    def drop_dead(self, request_id: str, graves: list[bytes]) -> None:
        """Drops the bodies of dead ones; counts and results stay."""
        request = self.book.requests[request_id]
        kept = [sub for sub in request.kept() if sub.grave in graves]
        names = keys.request_keys(request_id)
        (reply,) = self._send([self._script("drop_dead", names, ids=graves)])
        agree(reply, len(kept), "how many are dropped")
        for sub in kept:
            sub.is_dropped = True
        self._compare(request_id, self._send(self._look(request_id)))

    def pass_time(self, ms: int) -> None:
        """Passes time; what has outlived its TTL is forgotten, and all else is compared."""
        self.book.now += ms
        forgotten = self.book.forget()
        front = [self.wire.pack("UNLINK", *keys.request_keys(name)) for name in forgotten]
        alive = list(self.book.live)
        looks = [self._look(name) for name in alive]
        replies = self._send(front + [words for look in looks for words in look])[len(front) :]
        for name, look in zip(alive, looks, strict=True):
            self._compare(name, replies[: len(look)])
            replies = replies[len(look) :]

    # ------------------------------------------------------------------ the end

    def finish(self) -> None:
        """Works everything off; then compares the final counts."""
        self.pause_queue(0)
        Acting(self, fire(QUEUE)).go_on()
        for name in list(self.book.schedules.stored):
            Acting(self, drop_schedule(QUEUE, name)).go_on()
        for _ in range(ROUNDS):
            if not self.book.live:
                break
            if not self._work_a_round():
                moments = self.book.moments()
                if not moments:
                    break
                self.pass_time(moments[0] - self.book.now)
        agree(list(self.book.live), [], "what does not come to its end")
        self._show_what_is_left()
        self._settle_accounts()

    def _show_what_is_left(self) -> None:
        """Acquires with the tokens that are left: each costs one call, and then it is gone."""
        self.flush()
        self.pass_time(max(0, *self.book.delayed.values(), self.book.now) - self.book.now)
        self.promote()
        self.add_placeholders()
        while lanes := self.book.filled():
            word = self.take(lanes[0], 1, ("w:9", "1"))
            agree(word in (b"stale", b"ended", b"gone"), True, f"the last tokens: {word!r}")

    def _work_a_round(self) -> bool:
        """Runs maintenance, then acquires with every token and completes every slice."""
        for name, request in list(self.book.live.items()):
            if request.is_open and not request.options.feeds:
                self.call("seal", name, chunks=request.chunks, chain=request.chain)
            if request.state == "paused":
                self.call("resume", name)
            if request.options.waits and not request.has_ended:
                self.call("open_gate", name, found="end:z", left="", reason="")
            self.flush()
            if not request.has_ended:
                self.reap(name, missing=list(self.book.lost(name)))
            if request.options.feeds:  # after the reap, as the leader does it
                Acting(self, hand_over(name)).go_on()
        self.promote()
        self.add_placeholders()
        progress = False
        while lanes := self.book.filled():
            if self.take(lanes[0], 1000, ("w:9", "1")) == b"ok":
                progress = True
                self.complete(self.leases[-1])
            self.flush()
        return progress

    def reap(self, name: str, **given: Any) -> None:
        """Reaps what has expired, unless the arguments name something else."""
        unnamed: dict[str, Any] = dict.fromkeys(("worker", "started", "k", "fence", "how"), "")
        self.call("reap", name, **unnamed | {"queue": QUEUE, "missing": []} | given)

    def complete(self, lease: Lease, **given: Any) -> None:
        """Completes all of a slice as done, unless the arguments name something else."""
        usual = {
            "k": lease.k,
            "fence": lease.fence,
            "op": lease.op,
            "keep": "0",
            "done": [(sub_id, lease.attempt, b"result") for sub_id in lease.entries],
            "others": [],
        }
        self.call("complete", lease.id, **usual | given)

    def _settle_accounts(self) -> None:
        for name, request in self.book.requests.items():
            self.retire(name)
            numbers = [result.number for group in request.results for result in group]
            agree(len(numbers), len(set(numbers)), f"results of {name}, each reported once")
            agree(
                len(numbers) + request.count("cancelled"),
                len(request.subs),
                f"the account of {name}",
            )
            if request.options.feeds and request.state == "done":
                self._check_fed(name, request)
        for name in list(self.book.active):
            self.call("abandon", name, seen=self.book.active[name], ttl=DAY_MS)
            self.drop(name, self.book.active[name], gone=name not in self.book.requests)
        self._compare_log()
        for name in self._packed:
            self._compare(name, self._send(self._look(name)))
        self._compare_keys()

    def _check_fed(self, name: str, request: Request) -> None:
        """Checks that what fed a request is what became of its sources, each index once.

        A dead sub-request of a source leaves a gap, unless results are joined.
        """
        kind, sources, *_ = request.options.feeds.split()
        made = sorted(request.parts.made)
        agree(len(made), len(request.subs), f"how many bodies {name} has")
        first = self.book.requests.get(sources.partition(",")[0])
        if kind in JOINING or first is None:
            expected = [*range(len(made))] if kind in JOINING else sorted({*made})
        else:
            ended = [result for group in first.results for result in group]
            expected = sorted(one.number for one in ended if one.status == STATUS[kind])
            if kind == BRANCH:
                agree(sorted(request.parts.passed), expected, f"what {name} has passed")
                feed = Feed.parse(request.options.feeds)
                expected = expected if feed and feed.choices.default else []
        agree(made, expected, f"what {name} is fed with, each once")

    def _compare_log(self) -> None:
        found = []
        for _, fields in self.wire.one("XRANGE", keys.completed(QUEUE), "-", "+"):
            entry = {
                name.decode(): value.decode()
                for name, value in zip(fields[::2], fields[1::2], strict=True)
            }
            counts = tuple(int(entry[name]) for name in ("total", "done", "dead", "cancelled"))
            found.append(Logged(entry["id"], entry["state"], counts, entry["reason"]))
        agree(found, self.book.log, "the log")

    def _compare_keys(self) -> None:
        found = self.wire.one("KEYS", "*")
        ttls = self.wire.ask([self.wire.pack("PTTL", key) for key in found])
        lasting = {key for key, ttl in zip(found, ttls, strict=True) if ttl < 0}
        agree(lasting - DISPATCH, set(), "keys that would stay for ever")
        agree(self.book.filled(), [], "tokens that are left")
