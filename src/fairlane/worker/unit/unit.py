"""A unit: one thread or task, and the leases that it holds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fairlane import settings
from fairlane.protocol import keys
from fairlane.protocol.steps import Command
from fairlane.worker.unit.lane_rotation import LaneRotation
from fairlane.worker.unit.token_budget import TokenBudget

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fairlane.model import Slice
    from fairlane.protocol.steps import Call
    from fairlane.worker.handler.outcome import Outcome
    from fairlane.worker.lease_board import LeaseRecord
    from fairlane.worker.metrics import Metrics
    from fairlane.worker.unit.sizing import SliceSizer


@dataclass(slots=True)
class Unit:
    """One thread or task of a worker: it holds one lease, or a bunch of them.

    `bunches` says how many tokens it takes at once; `spare` is where more leases than one stand.
    `is_alone`: no other unit is in its process, so it may fetch while it handles. `at_once`: one
    server may have all keys; nobody has said otherwise.
    """

    queue: str
    worker: str
    started: str
    record: LeaseRecord
    sizes: SliceSizer
    measures: Metrics
    bunches: TokenBudget = field(default_factory=TokenBudget)
    spare: tuple[LeaseRecord, ...] = ()
    is_alone: bool = False
    at_once: bool = True
    unsent: list[Command | Call] = field(default_factory=list)  # for shards that were away
    quiet_until: float = 0.0  # when it may be logged again that a node is away
    free: list[LeaseRecord] = field(init=False)  # records of no lease
    turns: LaneRotation = field(init=False)
    _notes: int = 0

    def __post_init__(self) -> None:
        self.free = [*self.spare, self.record]
        self.turns = LaneRotation(self.queue, self.worker, self.record)

    @property
    def token_s(self) -> float:
        """How long a token of a large request should keep the handler busy.

        As long as a slice; a quarter of it where others are fetched meanwhile.
        """
        return self.bunches.slice_s / (4 if self.is_alone else 1)

    def note(self, raw: Iterable[bytes]) -> list[Command]:
        """Returns the commands that note in the dispatch slot which tokens were taken.

        They are sent before the tokens are shown: if the whole worker dies, another worker finds
        there what to take back. There are two notes, because one bunch is fetched while the one
        before is handled. The key has a TTL from the first note on, and beats renew it.
        """
        taken = keys.taken(self.queue, self.worker)
        place = b"%d.%d" % (self.record.unit, self._notes % 2)
        commands = [Command(b"HSET", taken, place, b" ".join(raw))]
        if not self._notes:
            commands.append(Command(b"PEXPIRE", taken, settings.TAKEN_TTL_MS))
        self._notes += 1
        return commands

    @property
    def is_holding(self) -> bool:
        """True while it holds a lease."""
        return self.record.is_holding or any(record.is_holding for record in self.spare)


@dataclass(slots=True)
class Lease:
    """One of several leases of a unit."""

    slice: Slice
    record: LeaseRecord
    outcome: Outcome | None = None
    asked: int = 0  # the most entries it was to have; 0 = not known


def hold(record: LeaseRecord, taken: Slice, sent: float, *, shared: bool = False) -> None:
    """Puts a lease on the board; `sent` is when it was asked for, in seconds of clock.mono_s."""
    only = (-len(taken.entries), 0, 0)
    if len(taken.entries) == 1:
        only = (int(taken.entries[0][0].partition(b"-")[2]), taken.attempt, taken.attempts)
    record.hold(
        taken.request_id, taken.k, int(taken.fence), taken.op, sent, taken.lease_ms / 1000,
        *only, shared=shared,
    )  # fmt: skip
