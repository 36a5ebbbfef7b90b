"""What is to become of many requests: one change, with its values checked."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fairlane.common.clock import ms_of
from fairlane.errors import InvalidArgument
from fairlane.found import ENDED
from fairlane.model import DeadChoice
from fairlane.operations.many.set_rate import NewRate, check_rate
from fairlane.options import check_deadline, check_limit, check_priority, check_share

if TYPE_CHECKING:
    from collections.abc import Iterable

_GOING = ("active", "paused")
_KEPT = tuple(
    state for state in ENDED if state != "lost"
)  # there is nothing to change in a lost one


@dataclass(frozen=True, slots=True)
class Change:
    """One change of many requests; the methods of its class make it.

    `states` are those in which a request can be changed so; requests in others are not chosen.
    `verb` says what becomes of a request: "cancelled".
    """

    word: str
    verb: str
    states: tuple[str, ...]
    reason: str = ""
    limit: int | None = None
    priority: int | None = None
    deadline_ms: int | None = None
    rate: str | None = None
    burst: int | None = None
    weight: int | None = None
    share: int | None = None
    choice: DeadChoice = field(default_factory=DeadChoice)
    cancels: bool = False

    @classmethod
    def cancel(cls, reason: str = "cancelled by the caller") -> Change:
        """Cancels requests that have not ended. Raises InvalidArgument."""
        if not isinstance(reason, str):
            raise InvalidArgument(f"reason {reason!r} is not valid: words are expected")
        return cls("cancel", "cancelled", (*_GOING, "expiring"), reason=reason)

    @classmethod
    def pause(cls) -> Change:
        """Pauses requests until they are resumed."""
        return cls("pause", "paused", ("active",))

    @classmethod
    def resume(cls) -> Change:
        """Continues paused requests."""
        return cls("resume", "resumed", ("paused",))

    @classmethod
    def set(
        cls,
        *,
        limit: int | None = None,
        priority: int | None = None,
        deadline_s: float | None = None,
        rate: str | None = None,
        burst: int | None = None,
        weight: int | None = None,
        share: int | None = None,
    ) -> Change:
        """Gives requests what is named here; the deadline is in seconds from now, 0 = none.

        Each request keeps its rate key and its tenant. Raises InvalidArgument, also if there is
        nothing to set.
        """
        check_rate(NewRate(rate, burst, weight))
        if {limit, priority, deadline_s, rate, weight, share} == {None}:
            raise InvalidArgument(
                "there is nothing to set: give a limit, a priority, a deadline, a rate, a weight "
                "or a share"
            )
        return cls(
            "set",
            "changed",
            _GOING,
            limit=None if limit is None else check_limit(limit),
            priority=None if priority is None else check_priority(priority),
            deadline_ms=None
            if deadline_s is None
            else check_deadline(ms_of("deadline_s", deadline_s)),
            rate=rate,
            burst=burst,
            weight=weight,
            share=None if share is None else check_share(share),
        )

    @classmethod
    def requeue_dead(cls, *, fingerprint: str | Iterable[str] | None = None) -> Change:
        """Runs the dead sub-requests of requests again: all, or those with these fingerprints."""
        choice = DeadChoice.of(fingerprint, None)
        return cls("requeue_dead", "requeued", (*_GOING, *_KEPT), choice=choice)

    @classmethod
    def drop_dead(cls, *, fingerprint: str | Iterable[str] | None = None) -> Change:
        """Deletes the dead sub-requests of requests: all, or those with these fingerprints."""
        choice = DeadChoice.of(fingerprint, None)
        verb = "relieved of dead sub-requests"
        return cls("drop_dead", verb, (*_GOING, *_KEPT), choice=choice)

    @classmethod
    def delete(cls, *, cancel: bool = False) -> Change:
        """Deletes ended requests; with `cancel`, others are cancelled first."""
        running = (*_GOING, "expiring", "cancelling") if cancel else ()
        return cls("delete", "deleted", (*running, *_KEPT), cancels=cancel)
