"""The rules: what producers, workers, maintenance, people and faults may do, in any order."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition

from tests.model.plain.book import DAY_MS, QUEUE
from tests.model.plain.words import Options
from tests.model.play.player import IDS
from tests.model.rules.base import HOUR, MINUTE, has_graves, pick, step, which, workers
from tests.model.rules.operations import Operations
from tests.model.rules.pull import Pull

OPENS = {"found": "end:z", "left": "", "reason": ""}
EXTRAS = ("", "", "delay=7000", "ageing=20000", "after=end:z", "distinct=1")
TENANTS = ("", "", "", "\ntenant=t", "\ntenant=u\nshare=3", "\ntenant=t\nshare=2")
TURNS = ("1:t", "3:u", "2:t")

sizes = st.sampled_from((5, 12, 2, 9, 1, 0))
most = st.sampled_from((1_000, 1, 2))
fates = st.one_of(
    st.sampled_from(("d", "r", "rd", "du")), st.text(alphabet="drxfutn", min_size=1, max_size=4)
)
limits = st.integers(1, 4)
lanes = st.sampled_from((5, 3))
delays = st.sampled_from((0, 1_000, 5_000, 40_000))
costs = st.sampled_from((200, 0, 1_000, 7, 300_000))


@st.composite
def options(draw: st.DrawFn) -> Options:
    return Options(
        priority=draw(lanes),
        limit=draw(limits),
        attempts=draw(st.sampled_from((2, 1, 3))),
        backoff_min=draw(st.sampled_from((1_000, 0, 4_000))),
        deadline_ms=draw(st.sampled_from((0, 0, 20_000, 5 * MINUTE))),
        extras=(draw(st.sampled_from(EXTRAS)) + draw(st.sampled_from(TENANTS))).strip(),
    )


def has_tokens(machine: QueueMachine) -> bool:
    return bool(machine.player.outbox) or bool(machine.player.book.filled())


def has_copies(machine: QueueMachine) -> bool:
    return bool(machine.player.copies)


def has_leases(machine: QueueMachine) -> bool:
    return bool(machine.player.leases)


def has_held(machine: QueueMachine) -> bool:
    return any(request.held for request in machine.player.book.live.values())


def has_tenants(machine: QueueMachine) -> bool:
    return machine.book.tenants.seq > 0


def has_dead(machine: QueueMachine) -> bool:
    return any(map(has_graves, machine.book.requests.values()))


def has_requests(machine: QueueMachine) -> bool:
    return bool(machine.book.requests)


def has_live(machine: QueueMachine) -> bool:
    return bool(machine.book.live)


def has_open(machine: QueueMachine) -> bool:
    return any(request.is_open for request in machine.book.live.values())


def has_ended(machine: QueueMachine) -> bool:
    return len(machine.book.live) < len(machine.book.requests)


class QueueMachine(Operations, Pull):
    """One queue, three ids and those of a flow, two lanes, three lives of two workers."""

    # ------------------------------------------------------------------ producers

    @initialize(chosen=options(), size=sizes)
    def begin(self, chosen: Options, size: int) -> None:
        self.submit_one("a", chosen, size, 0)

    @step(n=which, chosen=options(), size=sizes, open_ms=st.sampled_from((HOUR, 0, 2 * MINUTE, 0)))
    def submit(self, n: int, chosen: Options, size: int, open_ms: int) -> None:
        """Submits a new request, or other content under an id that is taken."""
        free = [name for name in IDS if name not in self.book.live]
        self.submit_one(pick((free if n < 80 else []) or IDS, n), chosen, size, open_ms)

    @step(n=which, ms=st.sampled_from((-1, 0, 1)), chosen=options(), dies=st.booleans())
    def come_late(self, n: int, ms: int, chosen: Options, dies: bool) -> None:
        """Submits late: a producer dies between its steps, or its intent may have been given up."""
        name = pick(IDS, n)
        if dies:
            self.player.intend(name, 5_000 + ms)
            return
        seen, _ = self.book.abandoned.get(name, (self.book.now, 0))
        given = {"options": chosen, "digest": f"d{self.player.new_op()}", "open_ms": 0}
        given["over"] = self.over(name, ms)
        self.player.call("enqueue", name, intent=seen + ms, bodies=self.bodies(2), **given)

    @precondition(has_requests)
    @step(n=which, size=sizes, chunk=st.sampled_from((1, 1, 1, 0, -1, 2)), other=st.booleans())
    def append(self, n: int, size: int, chunk: int, other: bool) -> None:
        """Appends the next chunk, a stored one, or one after a gap; the same or other content."""
        name = self.among(n, lambda request: request.is_open and not request.options.feeds)
        request = self.book.requests.get(name)
        number = request.chunks + chunk if request else 2
        chain = request.chain if request and not chunk else f"c{number}"
        given = {"chain": chain + "'" if other else chain, "open_ms": 2 * MINUTE}
        given["before"] = request.chain if request and size != 1 else ""
        self.player.call("append", name, chunk=number, bodies=self.bodies(size), **given)

    @precondition(has_open)
    @step(n=which, chunks=st.sampled_from((0, 0, 0, 1)), other=st.sampled_from(("", "", "'")))
    def seal(self, n: int, chunks: int, other: str) -> None:
        """Seals, as its own producer or as another one; only a leader seals what it feeds."""
        name = self.among(n, lambda request: request.is_open and not request.options.feeds)
        request = self.book.requests.get(name)
        number, chain = (request.chunks, request.chain) if request else (1, "c1")
        self.player.call("seal", name, chunks=number + chunks, chain=chain + other)

    # ------------------------------------------------------------------ workers

    @precondition(has_tokens)
    @step(n=which, count=most, worker=workers)
    def take(self, n: int, count: int, worker: tuple[str, str]) -> None:
        """Takes the next token, most often of the most urgent lane."""
        self.take_one(n, count, worker)

    @precondition(has_tokens)
    @step(count=most, worker=workers)
    def take_all(self, count: int, worker: tuple[str, str]) -> None:
        """Lets all idle workers take a token."""
        for _ in range(4):
            self.take_one(0, count, worker)

    @precondition(has_tokens)
    @step(count=most, worker=workers, chosen=fates, delay=delays)
    def work(self, count: int, worker: tuple[str, str], chosen: str, delay: int) -> None:
        self.take_one(0, count, worker)
        for lease in self.standing()[-1:]:
            self.give_verdicts(lease, self.owed(lease) or [], chosen, delay, "0")

    @precondition(has_copies)
    @step(n=which, count=most, worker=workers, g=st.sampled_from((0, 0, 0, 1)))
    def show(self, n: int, count: int, worker: tuple[str, str], g: int) -> None:
        """Acquires with a copy of any token that ever existed, or with an invented one."""
        copy = pick(self.player.copies, n)
        proof = {"op": self.player.new_op(), "worker": worker[0], "started": worker[1]}
        proof |= {"shared": "1" if n % 2 else "", "allowance": "", "wait": "", "token": ""}
        self.player.call("acquire", copy.id, k=copy.k, g=copy.g + g, count=count, **proof)

    @precondition(has_held)
    @step(n=which)
    def acquire_again(self, n: int) -> None:
        """Repeats an acquire whose reply was lost."""
        lease = pick(self.standing(), n)
        who = {"op": lease.op, "worker": lease.worker, "started": lease.started}
        self.player.call(
            "acquire",
            lease.id,
            k=lease.k,
            g=lease.g,
            count=1,
            shared="",
            **who | {"allowance": "", "wait": "", "token": ""},
        )

    @precondition(has_held)
    @step(n=which, chosen=fates, delay=delays, keep=st.sampled_from("0u1"))
    def settle(self, n: int, chosen: str, delay: int, keep: str) -> None:
        """Settles with verdicts: done, retry, dead, release, timeout, nothing."""
        lease = pick(self.standing(), n)
        self.give_verdicts(lease, self.owed(lease) or [], chosen, delay, keep)

    @precondition(has_held)
    @step(chosen=fates, delay=delays, turns=st.booleans())
    def settle_all(self, chosen: str, delay: int, turns: bool) -> None:
        """Ends the work of every worker, each with its own verdicts."""
        for i, lease in enumerate(self.standing()):
            turned = chosen[i % len(chosen) :] + chosen
            later = delay * (1 + i) if turns else delay // (1 + i)
            self.give_verdicts(lease, self.owed(lease) or [], turned, later, "0")

    @precondition(has_leases)
    @step(n=which, chosen=fates, keep=st.sampled_from("10u"), twice=st.booleans())
    def settle_what_is_not_owed(self, n: int, chosen: str, keep: str, twice: bool) -> None:
        """Settles entries of any lease, some of them twice, by a worker whose lease may be over."""
        lease = self.lease(n)
        others = [one for one in self.player.leases[-6:] if one.id == lease.id]
        foreign = [entry for one in others for entry in one.entries]
        entries = [*lease.entries, *lease.entries] if twice else [*foreign, b"1-99"]
        self.give_verdicts(lease, entries, chosen, 0, keep)

    @precondition(has_leases)
    @step(n=which, wrong=st.sampled_from(("", "fence", "op", "k")), extends=st.booleans())
    def prove(self, n: int, wrong: str, extends: bool) -> None:
        """Extends or settles, as the holder of a lease, a former holder, or none."""
        lease = self.lease(n)
        proof: dict[str, Any] = {"k": lease.k, "fence": lease.fence, "op": lease.op}
        if wrong:
            proof[wrong] = "ff" if wrong == "op" else proof[wrong] + 1
        if extends:
            self.player.call("extend", lease.id, term="", **proof)
        else:
            self.player.complete(lease, **proof)

    @precondition(has_held)
    @step(n=which, term=st.sampled_from(("", 1, 5_000, 10 * MINUTE)))
    def extend(self, n: int, term: int | str) -> None:
        lease = pick(self.standing(), n)
        proof = {"k": lease.k, "fence": lease.fence, "op": lease.op}
        self.player.call("extend", lease.id, term=term, **proof)

    @step(n=which)
    def repeat(self, n: int) -> None:
        """Repeats any call, as a late copy."""
        name, request_id, given = pick(self.player.history, n)
        self.player.call(name, request_id, **given)

    # ------------------------------------------------------------------ time and maintenance

    @step(ms=st.sampled_from((1_000, 1, 5_000, 30_000, MINUTE)))
    def pass_time(self, ms: int) -> None:
        self.player.pass_time(ms)

    @step(n=which, ms=st.sampled_from((0, 1, -1)))
    def pass_time_until(self, n: int, ms: int) -> None:
        """Passes the time until something is due, or a moment before or after."""
        moments = self.book.moments()
        if moments:
            self.player.pass_time(max(0, moments[n % len(moments)] + ms - self.book.now))

    @precondition(has_live)
    @step(n=which)
    def maintain(self, n: int) -> None:
        """Passes the time until something is due, and runs the maintenance for it."""
        moments = self.book.moments()
        if moments:
            self.player.pass_time(moments[n % len(moments)] - self.book.now)
        self.player.promote()
        for name in list(self.book.live):
            self.player.reap(name)

    @precondition(has_requests)
    @step(n=which, guess=st.sampled_from(("", "lost", "wrong", "old")))
    def reap(self, n: int, guess: str) -> None:
        """Reaps expired leases; some tokens are lost, or believed lost."""
        name = self.some(n)
        self.player.flush()
        request = self.book.requests.get(name)
        missing = []
        if request and guess == "lost":
            missing = list(self.book.lost(name))
        elif request and guess == "wrong":
            missing = [(permit.k, permit.g) for permit in request.standing("queued")]
        elif guess == "old":
            missing = [copy[1:3] for copy in self.player.copies[-4:] if copy.id == name]
        self.player.reap(name, missing=missing)

    @precondition(has_requests)
    @step(n=which, worker=workers, queue=st.sampled_from((QUEUE, QUEUE, QUEUE, "other")))
    def reap_a_worker(self, n: int, worker: tuple[str, str], queue: str) -> None:
        """Reaps all leases of a worker that is dead, or believed dead."""
        self.player.reap(self.some(n), worker=worker[0], started=worker[1], queue=queue)

    @precondition(has_leases)
    @step(n=which, worker=st.one_of(st.none(), workers), fence=st.sampled_from((0, 0, 1)))
    def reap_a_lease(self, n: int, worker: tuple[str, str] | None, fence: int) -> None:
        """Reaps one lease, as a supervisor whose handler died."""
        lease = self.lease(n)
        who, started = worker or (lease.worker, lease.started)
        proof = {"worker": who, "started": started, "k": str(lease.k)}
        self.player.reap(lease.id, fence=str(lease.fence + fence), **proof)

    @step()
    def promote(self) -> None:
        """Promotes due tokens to their lanes."""
        self.player.promote()

    @precondition(has_ended)
    @step(n=which)
    def retire(self, n: int) -> None:
        """Logs an end, perhaps a second time."""
        ended = [name for name, request in self.book.requests.items() if request.has_ended]
        self.player.retire(pick(ended, n))

    @step(
        n=which,
        what=st.sampled_from(("abandon", "drop_active", "reschedule_active", "restore_active")),
        ms=st.sampled_from((0, 0, 0, 0.5, -1, 1)),
        is_seen=st.booleans(),
    )
    def audit(self, n: int, what: str, ms: float, is_seen: bool) -> None:
        """Audits an entry of `active` that was read before; it may have moved since."""
        name = pick(sorted(self.book.active) or IDS, n)
        seen = self.book.active.get(name, self.book.now) + ms
        if what == "abandon":
            self.player.call("abandon", name, seen=seen, ttl=DAY_MS)
        elif what == "drop_active":
            self.player.drop(name, seen, gone=name not in self.book.requests)
        elif what == "restore_active":
            self.player.readmit(self.some(n), self.book.now + 5_000.5)
        else:
            self.player.postpone(name, seen, self.book.now + 5_000 + is_seen / 2)

    # ------------------------------------------------------------------ people

    @precondition(has_live)
    @step(n=which)
    def pause_or_resume(self, n: int) -> None:
        """Pauses a request, or resumes it."""
        name = self.some(n)
        request = self.book.requests.get(name)
        paused = request is not None and request.state == "paused"
        self.player.call("resume" if paused != (n >= 90) else "pause", name)

    @precondition(has_live)
    @step(n=which, limit=limits)
    def set_limit(self, n: int, limit: int) -> None:
        self.player.call("set_limit", self.some(n), limit=limit)

    @precondition(has_live)
    @step(n=which, ms=st.sampled_from((3_000, 30_000)))
    def hold(self, n: int, ms: int) -> None:
        """Holds a request, because its handler's remote side asks for a later call."""
        self.player.call("hold", self.some(n), ms=ms)

    @precondition(has_live)
    @step(n=which, opens=st.booleans())
    def do_chore(self, n: int, opens: bool) -> None:
        """Hastens an ageing request, or starts one that waits for another, as the leader."""
        name = self.among(n, lambda one: one.options.waits if opens else one.options.ageing_ms > 0)
        if opens:
            self.player.call("open_gate", name, **OPENS)
        else:
            self.player.call("hasten", name)

    @precondition(has_live)
    @step(n=which, priority=lanes)
    def set_priority(self, n: int, priority: int) -> None:
        self.player.call("set_priority", self.some(n), priority=priority)

    @precondition(has_live)
    @step(n=which, share=st.integers(1, 3))
    def set_share(self, n: int, share: int) -> None:
        name = self.among(n, lambda one: bool(one.turn))
        self.player.call("set_share", name, share=share)

    @precondition(has_tenants)
    @step(turn=st.sampled_from(TURNS), lane=lanes, turns=st.integers(1, 9), cost=costs)
    def charge(self, turn: str, lane: int, turns: int, cost: int) -> None:
        """Charges the measured cost of turns, in tenths of ms."""
        self.player.flush()
        self.player.charge(lane, turn, turns, cost)

    @precondition(has_dead)
    @step(n=which, count=st.integers(1, 3), twice=st.booleans(), again=st.booleans())
    def requeue_dead(self, n: int, count: int, twice: bool, again: bool) -> None:
        """Requeues dead ones; one may be named twice, or be gone, and the reply may be lost."""
        name, chosen = self.buried(n, count)
        ids = chosen + chosen[:1] if twice else chosen
        self.player.requeue_dead(name, ids, again=again)

    @precondition(has_dead)
    @step(n=which, count=st.integers(1, 3), drops=st.booleans())
    def list_or_drop_dead(self, n: int, count: int, drops: bool) -> None:
        """Lists a page of dead ones, or drops their bodies."""
        name, chosen = self.buried(n, count)
        if drops:
            self.player.drop_dead(name, chosen)
        else:
            self.player.call("list_dead", name, after=chosen[0] if n % 2 else b"", count=count)

    # ------------------------------------------------------------------ rare rules

    @step(
        n=which, what=st.sampled_from(("admit", "report_backlog", "bound")), count=st.integers(0, 9)
    )
    def bound(self, n: int, what: str, count: int) -> None:
        """Sets a bound on what waits, asks for room as a producer, or counts."""
        name = pick(IDS, n)
        request = self.book.requests.get(name)
        if what == "bound":
            self.player.set_max_waiting(count)
        elif what == "admit":
            self.player.admit(name, (request.chunks if request else 0) + n % 3, count)
        elif request:
            total = len(request.subs)
            self.player.report(name, request.chunks, total, total - request.left)

    @step(twice=st.booleans())
    def dispatch_badly(self, twice: bool) -> None:
        """Loses the tokens of the last reply, or dispatches them twice."""
        if twice:
            self.player.outbox *= 2
        else:
            self.player.outbox.clear()

    @step(
        n=which,
        what=st.sampled_from(("expire_leftovers", "confirm", "lose", "wipe", "cancel", "hour")),
    )
    def rarely(self, n: int, what: str) -> None:
        """Runs rare rules: reads, lost tokens, a lost slot, the end, and long after the end."""
        self.player.flush()
        filled = self.book.filled()
        if what == "expire_leftovers":
            self.player.call("expire_leftovers", pick(IDS, n), ttl=DAY_MS)
        elif what == "confirm":
            self.player.call("confirm", self.some(n))
        elif what == "cancel":
            self.player.call("cancel", self.some(n), reason=f"reason {n}")
        elif what == "hour" and n < 50:
            self.player.pass_time(HOUR)
        elif what == "wipe":
            self.player.clear(filled, delayed=True)
        elif what == "lose" and filled:
            self.player.lose(filled[0])
