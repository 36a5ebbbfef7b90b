"""The records of tasks, and of calls that run for long; see records.py for their rules."""

from __future__ import annotations

from dataclasses import dataclass

from fairlane.common.text import brief_ms, plural


@dataclass(frozen=True, slots=True)
class SlowCall:
    """A call that had run for `ran_ms`, 10 s or more, when its worker sent its last heartbeat.

    `index` is that of its sub-request; None for a call of a batch handler with `count` of them.
    """

    id: str
    permit: int
    index: int | None
    count: int
    attempt: int
    ran_ms: int
    task: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LongCall:
    """A call that runs for unusually long: ten times as long as its task's, and at least 10 s.

    It has run since `since_ms`, for `ran_ms`. `usual_ms` is how long 99 of 100 calls took at most:
    those of its `task` if `of_task`, else all of its queue, because its task has too few; None if
    these are too few, too: then it has run for ten minutes. `index` and `count` are those of a
    SlowCall.
    """

    worker: str
    id: str
    index: int | None
    count: int
    attempt: int
    task: str | None
    since_ms: int
    ran_ms: int
    usual_ms: float | None
    of_task: bool

    @property
    def usual(self) -> str:
        """Returns what is usual, in words."""
        if self.usual_ms is None:
            return "too few calls have ended to say what is usual"
        whose = "of its task" if self.of_task else "of the queue"
        return f"99 of 100 calls {whose} take up to {brief_ms(self.usual_ms)}"

    @property
    def what(self) -> str:
        """Returns the call in words, without its request: `sub-request 7 (send_mail)`."""
        named = "a batch" if self.index is None else f"sub-request {self.index}"
        return f"{named} ({self.task})" if self.task else named

    @property
    def remedy(self) -> str:
        """Returns the commands that show where it hangs, and end it."""
        shows = f"`fairlane stacks {self.id}` shows where it is"
        if self.index is None:
            return shows
        return f"{shows}, `fairlane kill {self.id} --index {self.index}` ends it"


@dataclass(frozen=True, slots=True)
class CodeRelease:
    """A release of the users' code, and when its first worker began, by the queue's Redis."""

    name: str
    first_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskState:
    """One task of a queue now, and what was measured of it since the last reset.

    `done` calls had a result and took `p50_ms` (the median), `p99_ms` and at most `slowest_ms`;
    None: there was none. `failed` calls did not, also those that were tried again. Lately, in the
    last one to two minutes, `recent` calls ended, `recent_failed` of them without a result; that
    makes `per_s`. `waiting` sub-requests wait for their first delivery, `running` leases are held,
    `dead` sub-requests are kept, and `long_calls` run unusually long. If requests call several
    tasks, these are shares of theirs. In a table by release these four are None, and `release` is
    None for what workers without a release did. `other` sums up the tasks beyond 200.
    """

    task: str
    release: str | None = None
    done: int = 0
    failed: int = 0
    recent: int = 0
    recent_failed: int = 0
    per_s: float = 0.0
    p50_ms: float | None = None
    p99_ms: float | None = None
    slowest_ms: float | None = None
    waiting: int | None = None
    running: int | None = None
    dead: int | None = None
    long_calls: int | None = None

    @property
    def problem(self) -> str:
        """Returns what needs a person, in words; "" if nothing does."""
        found = []
        if self.long_calls:
            runs = "call runs" if self.long_calls == 1 else "calls run"
            found.append(f"{self.long_calls:,} {runs} unusually long")
        if self.recent_failed:
            found.append(f"{self.recent_failed:,} of {plural(self.recent, 'call')} failed lately")
        if self.dead:
            found.append(f"{self.dead:,} dead")
        return ", ".join(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPage:
    """The tasks of a queue, those first that need a person; `more` are left out, the idlest ones.

    `is_exact` is False if a part of the requests was read, or requests call several tasks: then
    what waits, runs and is dead is an estimate. `long_calls` are the calls that run unusually long,
    the longest first. `releases` are the last ones of the users' code, the newest first.
    """

    tasks: list[TaskState]
    more: int
    is_exact: bool
    long_calls: list[LongCall]
    releases: tuple[CodeRelease, ...]
    now_ms: int
