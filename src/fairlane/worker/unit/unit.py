"""A unit: one thread or task, and the leases that it holds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fairlane import settings
from fairlane.common.rate import rate_of_queue
from fairlane.protocol import keys
from fairlane.protocol.steps import Command
from fairlane.worker.unit.lane_rotation import LaneRotation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from fairlane.common.rate import Rate
    from fairlane.protocol.steps import Call
    from fairlane.worker.lease_board import LeaseRecord
    from fairlane.worker.metrics import Metrics
    from fairlane.worker.unit.sizing import Sizer


@dataclass(slots=True)
class Unit:
    """One thread or task of a worker, which holds one lease or several.

    `spare` are the records of further leases. `is_alone`: no other unit is in its process, so it
    may prefetch. `has_one_server`: as far as is known, one server has all keys.
    `on_delay` is called with the ms for which tokens were delayed.
    """

    queue: str
    worker: str
    started: str
    record: LeaseRecord
    sizer: Sizer
    measures: Metrics
    spare: tuple[LeaseRecord, ...] = ()
    is_alone: bool = False
    has_one_server: bool = True
    on_delay: Callable[[int], None] | None = None
    has_waited: bool = False  # for the queue's rate, as long as its bucket had named
    unsent: list[Command | Call] = field(default_factory=list)  # for shards that were away
    quiet_until: float = 0.0  # when it may be logged again that a node is away
    free: list[LeaseRecord] = field(init=False)  # records of no lease
    turns: LaneRotation = field(init=False)
    _notes: int = 0

    def __post_init__(self) -> None:
        self.free = [*self.spare, self.record]
        self.turns = LaneRotation(self.queue, self.worker, self.record)

    @property
    def share(self) -> float:
        """Returns the part of a slice's time that one pop should take.

        It is half if the unit prefetches.
        """
        return 0.5 if self.is_alone else 1.0

    @property
    def token_s(self) -> float:
        """Returns how long a token of a large request should keep the handler busy.

        It is a slice's time, or a quarter of that if the unit prefetches.
        """
        return self.sizer.slice_s / (4 if self.is_alone else 1)

    def note(self, raw: Iterable[bytes]) -> list[Command]:
        """Returns the commands that note in the dispatch slot which tokens were taken.

        They are sent before the tokens are shown: if the whole worker dies, another worker reads
        there what to take back. There are two notes, because the next leases are fetched while the
        present ones are handled. The key has a TTL from the first note on, and beats renew it.
        """
        taken = keys.taken(self.queue, self.worker)
        place = b"%d.%d" % (self.record.unit, self._notes % 2)
        commands = [Command(b"HSET", taken, place, b" ".join(raw))]
        if not self._notes:
            commands.append(Command(b"PEXPIRE", taken, settings.TAKEN_TTL_MS))
        self._notes += 1
        return commands

    @property
    def queue_rate(self) -> Rate | None:
        """Returns the rate of the queue, which the last beat of the worker reported."""
        found = self.record.queue_rate
        return None if found is None else rate_of_queue(self.queue, *found)

    @property
    def is_holding(self) -> bool:
        """Returns True while the unit holds a lease."""
        return self.record.is_holding or any(record.is_holding for record in self.spare)
