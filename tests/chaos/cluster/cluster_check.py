"""Checks a cluster's runs: what failovers lost, what waiters received, and the stalls."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from fairlane.errors import FairlaneError, RequestNotFound, WaitTimeout
from fairlane.protocol import keys
from fairlane.protocol.request_hash import hmget, parse_fields
from fairlane.protocol.steps import Command, run_each
from fairlane.queue import Queue
from tests.chaos.check import Check
from tests.chaos.evidence.stalls import longest_gap, shown
from tests.chaos.producers.handlers import name_of
from tests.chaos.producers.waiters import digest_of
from tests.support.processes.workers import broken
from tests.support.scripts.requests import once
from tests.support.servers.clusters import slot_of
from tests.support.wait import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.chaos.cluster.primaries import Primaries
    from tests.chaos.evidence.journal import Journal
    from tests.chaos.producers.waiters import Answer, Waiters

ENDED = {"done", "cancelled"}
AFTER_MS = 15_000.0  # a fault's stall is looked for within this
PROMPT_MS = 1_000.0  # from a promotion on, when the servers themselves took too long for it
MOVE_AFTER_MS = 2_000.0
MOVE_STALL_MS = 1_000.0
_LOOKED_AT = 10
_EVERY_S = 0.5


@dataclass
class Glimpses:
    """Runs the script `check` all the time on requests that are being worked on."""

    url: str
    queue: str = "req"
    enter: Callable[[], None] = lambda: None
    looked: int = 0
    objections: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Ends, at the latest after the present call."""
        self._over.set()
        self._thread.join(PATIENCE_S)

    def _work(self) -> None:
        self.enter()
        with Queue.from_url(self.url) as queue:
            while not self._over.wait(_EVERY_S):
                try:
                    self._look(queue)
                except FairlaneError:
                    continue

    def _look(self, queue: Queue) -> None:
        named = Command(b"ZRANDMEMBER", keys.active(self.queue), _LOOKED_AT)
        for name in queue.driver.run(once(named)):
            found = broken(queue, name.decode())
            self.looked += 1
            if found:
                self.objections.append(f"{name.decode()}: {found}")


@dataclass
class ClusterCheck(Check):
    """What must hold of a cluster after faults. `node_timeout_s` is its own."""

    hurt: Primaries = field(kw_only=True)
    waiters: Waiters = field(kw_only=True)
    glimpses: Glimpses = field(kw_only=True)
    most_s: float = 5.0  # a stall, around a failover
    fed_until_ms: float = float("inf")  # when the last request was submitted

    # ------------------------------------------------------------------ lost requests

    def states(self, numbers: list[int]) -> dict[int, str]:
        """Returns the state of each; "" = there is no such request (any more)."""
        steps = [hmget(name_of(number), "state") for number in numbers]
        replies = self.queue.driver.run(run_each(steps))
        return {
            number: "?" if isinstance(reply, FairlaneError) else parse_fields(("state",), reply)[0]
            for number, reply in zip(numbers, replies, strict=True)
        }

    def look_for_lost(self) -> None:
        """Finds acknowledged requests that are gone, among those whose end was not seen."""
        seen = set(self.load.logged) | self.load.forgotten
        waiting = [
            number
            for number, one in list(self.load.requests.items())
            if one.acked_ns and number not in seen
        ]
        self._forget(self.states(waiting))

    def _forget(self, states: dict[int, str]) -> None:
        self.load.forgotten |= {
            number for number, state in states.items() if state in {"", "abandoned"}
        }

    def unended(self) -> list[int]:
        """Returns the requests that run, though their end was seen; removes notes of lost ones."""
        numbers = [number for number in self.load.requests if number not in self.load.forgotten]
        states = self.states(numbers)
        self._forget({number: states[number] for number in numbers if self._is_acked(number)})
        gone = self.load.forgotten
        return [n for n, state in states.items() if state not in ENDED and n not in gone]

    def _is_acked(self, number: int) -> bool:
        return self.load.requests[number].acked_ns > 0

    # ------------------------------------------------------------------ at the end

    def run(self) -> Any:
        report = super().run()
        self._submissions()
        self._gone()
        self._ends()
        self._live()
        if self.hurt.faults:
            self._failovers()
        if self.hurt.moves:
            self._moves()
        return report

    def _submissions(self) -> None:
        requests = self.load.requests.values()
        self.report.figures |= {
            "submissions acknowledged": sum(one.acked_ns > 0 for one in requests),
            "... after more than one try": sum(one.tries > 1 for one in requests),
            "... refused in between, by the error": dict(self.load.refused),
        }

    def _gone(self) -> None:
        """Checks that every waiter for a lost request received that error."""
        gone, answers = sorted(self.load.forgotten), self.waiters.answers
        words: Counter[str] = Counter()
        for number in gone:
            words[answers[number].word if number in answers else "-"] += 1
            try:
                state = self.queue.request(name_of(number)).wait(timeout=5)
                self.report.fault("gone, and its waiter got no such answer", f"{number}: {state}")
            except RequestNotFound:
                continue
            except WaitTimeout as error:
                self.report.fault("gone, and its waiter got no such answer", error)
        self.report.figures |= {
            "acknowledged submissions gone": len(gone),
            "... what their waiters got (-: none waited)": dict(words),
            "... logged as lost": len(self.load.lost & set(gone)),
        }
        if self.load.durable and gone:
            self.report.fault("acknowledged submissions gone, durable", gone[:5], len(gone))

    def _ends(self) -> None:
        """Compares the waiters' answers with what is stored."""
        answers = self.waiters.answers
        words = Counter(one.word for one in answers.values())
        unanswered = [number for number, one in answers.items() if not one.word]
        if unanswered:
            self.report.fault("waiters without an answer", unanswered[:5], len(unanswered))
        taken_back = [n for n, one in answers.items() if self._is_taken_back(n, one)]
        for number in taken_back if self.load.durable else ():
            self.report.fault("ends reported and taken back, durable", number)
        if self.load.durable:
            self.report.figures["completions that no replica confirmed"] = self.fleet.unconfirmed
        self.report.figures |= {
            "waiters got": dict(words),
            "... ends, compared with the results at the end": sum(
                1 for one in answers.values() if one.digest
            ),
            "... ends taken back, and run again": len(taken_back),
            "... the longest wait, s": round(max((t.seconds for t in answers.values()), default=0)),
            "... errors in between": dict(self.waiters.problems),
        }

    def _is_taken_back(self, number: int, one: Answer) -> bool:
        if one.word not in ENDED or number in self.load.forgotten:
            return one.word in ENDED
        if not one.digest:
            return False
        return digest_of(self.queue.request(name_of(number)).results()) != one.digest

    def _live(self) -> None:
        found = self.glimpses.objections
        if found:
            what = "requests the script check objects to, while they ran"
            self.report.fault(what, found[:5], len(found))
        self.report.figures["looked at by the script check while they ran"] = self.glimpses.looked

    def _executions(self, journal: Journal, counted: dict[int, dict[int, int]]) -> None:
        """Checks executions, and after which fault something ran again."""
        super()._executions(journal, counted)
        hurts = [(fault.at_ns, fault.kind) for fault in self.hurt.faults]
        hurts += [(at, "a worker killed") for deaths in self.fleet.deaths.values() for at in deaths]
        hurts.sort()
        causes: Counter[str] = Counter()
        for number, fences in counted.items():
            for run in journal.by_request.get(number, []):
                if not run.raised and fences.get(run.place) != run.fence:
                    after = (kind for at, kind in hurts if at >= run.began_ns)
                    causes[next(after, "none")] += 1
        self.report.figures["... again, by the next fault after they began"] = dict(causes)

    # ------------------------------------------------------------------ stalls

    def _all(self, chosen: Callable[[int], bool] = lambda _: True) -> list[int]:
        """Returns when anything was completed, in requests so chosen, while work was waiting."""
        found = [at for number, some in self.moments.items() if chosen(number) for at in some]
        return sorted(at for at in found if at <= self.fed_until_ms)

    @staticmethod
    def _is_in(slots: frozenset[int], number: int) -> bool:
        return slot_of(keys.request_hash(name_of(number))) in slots

    def _failovers(self) -> None:
        every = self._all()
        last = every[-1] if every else 0
        stalls: dict[str, list[float]] = {}
        too_long = 0
        for fault in self.hurt.faults:
            until = min(fault.at_ms + AFTER_MS, last)
            if until <= fault.at_ms:
                continue
            gap = longest_gap(every, fault.at_ms, until)
            stalls.setdefault(fault.kind, []).append(gap)
            if fault.promoted_ms and gap > fault.promoted_ms - fault.at_ms:
                first = next(iter(every[bisect_left(every, fault.promoted_ms) :]), last)
                stalls.setdefault("from the promotion on", []).append(first - fault.promoted_ms)
            too_long += gap > self.most_s * 1000
            promotion = max(0.0, fault.promoted_ms - fault.at_ms)
            if gap > max(self.most_s * 1000, promotion + PROMPT_MS):
                self.report.fault("stalled for longer than allowed", f"{gap:,.0f} ms at {fault}")
            if slot_of("{req}") in fault.slots:
                stalls.setdefault("of the dispatch slot's", []).append(gap)
            own = self._all(partial(self._is_in, fault.slots))
            if own and own[0] < fault.at_ms and own[-1] > until:
                gap = longest_gap(own, fault.at_ms, until)
                stalls.setdefault("in its own requests alone", []).append(gap)
        self.report.figures[f"stalls above {self.most_s:g} s"] = too_long
        for kind, gaps in stalls.items():
            name = f"stall, ms (median / 95 % / most): {kind}, {len(gaps)} x"
            self.report.figures[name] = shown(gaps)
        self.report.figures["promoted after, ms (median / 95 % / most)"] = shown(
            [fault.promoted_ms - fault.at_ms for fault in self.hurt.faults if fault.promoted_ms]
        )
        self.report.figures["longest without any completion, all of the run, ms"] = round(
            longest_gap(every, every[0], last) if every else 0
        )

    def _moves(self) -> None:
        every = self._all()
        for kind in sorted({move.kind for move in self.hurt.moves}):
            moves = [move for move in self.hurt.moves if move.kind == kind]
            beyond = []
            for move in moves:
                until = min(move.done_ms + MOVE_AFTER_MS, every[-1])
                if until <= move.at_ms:
                    continue
                gap = longest_gap(every, move.at_ms, until)
                beyond.append(max(0.0, gap - move.took_ms))
                if beyond[-1] > MOVE_STALL_MS:
                    self.report.fault("a move stalled for longer than allowed", f"{gap} ms: {move}")
            took = [move.took_ms for move in moves]
            self.report.figures |= {
                f"slots moved: {kind} (keys)": f"{len(moves):,} ({sum(m.keys for m in moves):,})",
                "... of them with unfinished requests": sum(1 for move in moves if move.live),
                f"... took, ms (median / 95 % / most): {kind}": shown(took),
                f"... stall beyond that, ms: {kind}": shown(beyond),
            }
