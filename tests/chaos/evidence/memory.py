"""Compares what Redis acknowledged before a restart with what it still has afterwards."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from fairlane.protocol import keys
from tests.chaos.producers.handlers import name_of

if TYPE_CHECKING:
    from tests.chaos.check import Report
    from tests.chaos.producers.load import Load

SYNC_S = 2.0  # an append-only file that is synced every second may be behind by so much
QUEUE = "req"


class Known(NamedTuple):
    """What producers and consumers had received at one moment."""

    submitted: dict[int, int]  # request -> when its submission was acknowledged, ns
    logged: dict[str, int]  # entry of the completion log -> when it was read, ns


@dataclass
class Memory:
    """Compares before and after, restart by restart."""

    client: Any
    load: Load
    restarts: int = 0
    away_ms: list[float] = field(default_factory=list)
    fresh: int = 0  # acknowledgements of the last two seconds before a kill, all restarts
    submissions: list[float] = field(default_factory=list)  # lost; seconds before the kill
    completions: list[float] = field(default_factory=list)

    def known(self) -> Known:
        submitted = {
            number: one.acked_ns
            for number, one in list(self.load.requests.items())
            if one.acked_ns and number not in self.load.forgotten
        }
        logged = {entry: at for seen in list(self.load.logged.values()) for entry, at in list(seen)}
        return Known(submitted, logged)

    def compare(self, known: Known, restart: tuple[int, int]) -> None:
        """Counts what is gone after a restart."""
        killed, answers = restart
        self.restarts += 1
        self.away_ms.append((answers - killed) / 1e6)
        pipe = self.client.pipeline(transaction=False)
        for number in known.submitted:
            pipe.exists(keys.request_hash(name_of(number)))
        for entry in known.logged:
            pipe.xrange(keys.completed(QUEUE), entry, entry)
        found = pipe.execute()
        moments = [*known.submitted.values(), *known.logged.values()]
        self.fresh += sum(killed - at < SYNC_S * 1e9 for at in moments)
        for (number, at), is_there in zip(known.submitted.items(), found, strict=False):
            if not is_there:
                self.submissions.append((killed - at) / 1e9)
                self.load.forgotten.add(number)
        for at, is_there in zip(known.logged.values(), found[len(known.submitted) :], strict=True):
            if not is_there:
                self.completions.append((killed - at) / 1e9)

    def add_to(self, report: Report, *, may_forget: bool) -> None:
        """Adds the figures; a loss is a fault unless the file may be that far behind."""
        for what, lost in (("submissions", self.submissions), ("completions", self.completions)):
            report.figures[f"acknowledged {what} gone after a restart"] = len(lost)
            report.figures[f"... acknowledged at most s before: {what}"] = max(lost, default=0.0)
            worst = [age for age in lost if not may_forget or age > SYNC_S]
            if worst:
                report.fault(f"acknowledged {what} lost", worst, len(worst))
        report.figures["acknowledged in the 2 s before a kill"] = self.fresh
        report.figures["Redis away, ms, most"] = max(self.away_ms, default=0.0)
