"""What a worker logs: the first failure of a kind whole, later ones counted, an outage once."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import threading
from collections import deque
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Self

from fairlane.common import clock
from fairlane.common.fingerprint import fingerprint_of, read_failure
from fairlane.common.text import plural, printable
from fairlane.errors import FairlaneError, NodeAway, RedisUnreachable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fairlane.model import Slice


# ------------------------------------------------------------------ repeats
# Logs a failure that repeats during an outage, but not each time.


_log = logging.getLogger("fairlane.worker")
_QUIET_S = 30.0  # between two lines about one failure
_OUTAGE_QUIET_S = 60.0  # between two lines about one outage
_BACK_S = 2.0  # an outage is over when no call has failed for so long
_MAX_KINDS = 100  # texts that are remembered; a text may name a request, so there may be very many


def is_redis_away(error: FairlaneError) -> bool:
    """Returns True if all of Redis is unreachable, not only one node: then all calls fail."""
    return isinstance(error, RedisUnreachable) and not isinstance(error, NodeAway)


class Outage:
    """Logs for a whole process that Redis does not answer, at most once a minute, and its end.

    Any thread may call it.
    """

    def __init__(self) -> None:
        self._next = self._failed = 0.0
        self._is_logged = False
        self._changed = threading.Lock()

    def failed(self, error: FairlaneError) -> None:
        """Logs that a call failed, unless that was logged a moment ago."""
        now = clock.mono_s()
        with self._changed:
            self._failed = now
            if now < self._next:
                return
            self._next, self._is_logged = now + _OUTAGE_QUIET_S, True
        _log.warning("%s; trying again", error)

    def answered(self) -> None:
        """Logs the end of an outage that was logged."""
        with self._changed:
            if not self._is_logged or clock.mono_s() < self._failed + _BACK_S:
                return
            self._is_logged = False
        _log.info("Redis answers again")


class Repeats:
    """Logs a text again in the same outage only if 30 s have passed since it was logged.

    If all of Redis is unreachable, `outage` logs that. Any thread may call it.
    """

    def __init__(self, outage: Outage | None = None) -> None:
        self.outage = outage or Outage()
        self._until: dict[str, float] = {}
        self._changed = threading.Lock()

    def failed(self, error: FairlaneError, what: str = "") -> None:
        """Logs the failure of a call that is tried again; `what` names the caller."""
        if is_redis_away(error):
            self.outage.failed(error)
        else:
            self.warn(f"{what}{error}; trying again")

    def warn(self, text: str) -> None:
        """Logs the text as a warning, unless it is a repeat."""
        now = clock.mono_s()
        with self._changed:
            if now < self._until.get(text, now):
                return
            if len(self._until) >= _MAX_KINDS:
                self._until.clear()
            self._until[text] = now + _QUIET_S
        _log.warning("%s", text)

    def over(self) -> None:
        """Notes a success: the next failure belongs to another outage."""
        with self._changed:
            self._until.clear()
        self.outage.answered()


# ------------------------------------------------------------------ log queue
# Writes the supervisor's log in a thread, because a slow reader must not stop the supervisor.
#
# The supervisor shares its stderr with the processes of the handlers. If one of them fills the
# pipe, each further write blocks until a reader empties it. A supervisor that waited would extend
# no lease. O_NONBLOCK is no remedy, because it would change the writes of all processes that share
# the pipe.


_LOGGER = logging.getLogger("fairlane.worker")
_MAX_QUEUED = 1000  # records that wait
_STUCK_S = 2.0  # at the end the thread is given up if it has written nothing for so long
_LAST_S = 10.0  # ... and in any case after this time
_FORK_S = 0.2  # a fork waits so long for a line: no lease is extended meanwhile
_writing = threading.Lock()  # held while a line is written


@contextlib.contextmanager
def between_lines() -> Iterator[None]:
    """Keeps the thread from writing a line while it is entered: a process may be forked.

    A handler's stream has a lock. If the thread holds it at a fork, nothing in the new process ever
    releases it. A line whose reader is slow is waited for up to _FORK_S.
    """
    lock = _writing
    is_between = lock.acquire(timeout=_FORK_S)
    try:
        yield
    finally:
        if is_between:
            lock.release()


def _renew_lock() -> None:
    global _writing  # noqa: PLW0603
    _writing = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)


class LogQueue(logging.Filter):
    """While entered, a thread writes this process's log records with their own handlers.

    A record that finds the queue full is dropped and counted; the count is logged when there is
    room again. At the end the remaining records are written, if that is possible in bounded time.
    """

    def __init__(self) -> None:
        super().__init__()
        self._pid = os.getpid()
        self._waiting: deque[logging.LogRecord] = deque()
        self._changed = threading.Condition()
        self._dropped = self._written = 0
        self._is_closed = False
        self._thread = threading.Thread(target=self._write, name="log", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        _LOGGER.addFilter(self)
        return self

    def __exit__(self, *_: object) -> None:
        _LOGGER.removeFilter(self)
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        until, before = clock.mono_s() + _LAST_S, -1
        while self._thread.is_alive() and self._written > before and clock.mono_s() < until:
            before = self._written
            self._thread.join(_STUCK_S)

    def filter(self, record: logging.LogRecord) -> bool:
        """Puts a record into the queue, so that this thread does not write it."""
        if os.getpid() != self._pid:  # a handler's process, which has no thread of this queue
            return True
        with self._changed:
            if len(self._waiting) >= _MAX_QUEUED:
                self._dropped += 1
            else:
                self._note_dropped()
                self._waiting.append(record)
                self._changed.notify()
        return False

    def _note_dropped(self) -> None:
        """Logs how many records were dropped, at their place in the log."""
        if self._dropped:
            text = "%d lines of this log were dropped: its reader is slow"
            given = ("", 0, text, (self._dropped,), None)
            self._waiting.append(_LOGGER.makeRecord(_LOGGER.name, logging.WARNING, *given))
            self._dropped = 0

    def _write(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._dropped and not self._is_closed:
                    self._changed.wait()
                if not self._waiting:
                    self._note_dropped()
                if not self._waiting:
                    return
                record = self._waiting.popleft()
            with _writing, contextlib.suppress(Exception):  # its failure stops no other line
                _LOGGER.callHandlers(record)
            self._written += 1


# ------------------------------------------------------------------ failures
# Logs what calls of the handler raised: the first failure of a kind whole, later ones counted.
#
# At the level debug, later ones are logged whole, too.
#
# The processes of a worker write a line for each failure to a pipe, and the supervisor logs it. So
# one kind is logged once for all processes. A full pipe stops no handler, because the write does
# not block. A failure that found no room is counted, and reported with the next failure or flush.


_EVERY_S = 30.0  # between two lines about one kind
_LINES = 10  # kinds that are logged in that time, and as many that are counted
_KINDS = 1000  # kinds that are remembered
_HEADLINE = 200  # characters of an error on a line of its own
_PIPE = 65_536  # bytes of one read
_READS = 16  # at one look
_LAST_MS = 1000  # a process that ends waits so long for room

_kind_of = lru_cache(maxsize=128)(lambda text: fingerprint_of("", text))


@dataclass(slots=True)
class _Count:
    """The failures of one kind that are not logged yet."""

    headline: str = ""
    failed: int = 0
    dead: int = 0

    def add(self, failed: int, dead: int) -> None:
        self.failed += failed
        self.dead += dead


class Failures:
    """The failures of one worker; made before the processes are forked.

    `task_of` returns the name of the task that a body calls, "" if there is none.
    """

    def __init__(self, task_of: Callable[[bytes], str] | None = None) -> None:
        self._task_of = task_of
        self._is_each = _log.isEnabledFor(logging.DEBUG)  # every failure is logged
        self._out, self._in = os.pipe()
        for end in (self._out, self._in):
            os.set_blocking(end, False)
        # In a process of the handlers.
        self._lock = threading.Lock()
        self._unsent: dict[str, list[Any]] = {}  # one line for each kind
        self._sent: set[str] = set()  # kinds whose first failure was sent with its traceback
        # In the supervisor.
        self._rest = b""
        self._kinds: dict[str, _Count] = {}  # the kind that came last is the last
        self._others = _Count("failures of other kinds")
        self._next, self._left = clock.mono_s() + _EVERY_S, _LINES

    def close(self) -> None:
        """Closes the pipe."""
        os.close(self._in)
        os.close(self._out)

    # In a process of the handlers.

    def report(
        self, taken: Slice, index: int, delay_ms: int, text: str, body: bytes, *,
        is_dead: bool, is_rejected: bool = False,
    ) -> None:  # fmt: skip
        """Reports a failed attempt of a sub-request; never waits and never raises."""
        kind = _kind_of(text)
        with self._lock:
            _, failed, dead, *_ = self._unsent.pop(kind, (kind, 0, 0))
            line: list[Any] = [kind, failed + 1, dead + is_dead]
            if self._is_each or kind not in self._sent:
                which = [index, taken.request_id, taken.attempt, taken.attempts]
                task = self._task_of(body) if self._task_of is not None else ""
                line += [*which, None if is_dead else delay_ms, is_rejected, task, text]
            self._send(line)

    def flush(self) -> None:
        """Reports what found no room before; never waits and never raises."""
        if not self._unsent:
            return
        with self._lock:
            for kind in list(self._unsent):
                if not self._send(self._unsent.pop(kind)):
                    break

    def flush_last(self) -> None:
        """Reports what is left when a process ends; waits for room, for a bounded time."""
        until = clock.mono_s() + _LAST_MS / 1000
        room = select.poll()
        room.register(self._in, select.POLLOUT)
        self.flush()
        while self._unsent and clock.mono_s() < until:
            room.poll(_LAST_MS / 10)
            self.flush()

    def _send(self, line: list[Any]) -> bool:
        """Writes a line, or keeps it if there is no room."""
        kind, _, _, *first = line
        is_sent = self._write(line)
        if is_sent and first:
            if len(self._sent) >= _KINDS:
                self._sent.clear()
            self._sent.add(kind)
        elif not is_sent and len(self._unsent) < _KINDS:
            self._unsent[kind] = line
        return is_sent

    def _write(self, line: list[Any]) -> bool:
        """Writes a line if there is room; a text too long for one write loses its middle."""
        packed, half = _packed(line), select.PIPE_BUF // 2
        while len(packed) > select.PIPE_BUF:  # a longer write could be interrupted by another
            half -= half // 8 + 1
            packed = _packed([*line[:-1], f"{line[-1][:half]}\n[...]\n{line[-1][-half:]}"])
        try:
            return os.write(self._in, packed) == len(packed)
        except OSError:
            return False

    # In the supervisor.

    def look(self, *, is_last: bool = False) -> None:
        """Logs what was reported; now and then, and at the last look, also the counts."""
        for _ in range(_READS):
            try:
                part = os.read(self._out, _PIPE)
            except BlockingIOError:
                break
            *lines, self._rest = (self._rest + part).split(b"\n")
            for line in lines:
                self._take(*json.loads(line))
        if is_last or clock.mono_s() >= self._next:
            self._next, self._left = clock.mono_s() + _EVERY_S, _LINES
            self._log_counts()

    def _take(self, kind: str, failed: int, dead: int, *first: Any) -> None:
        count = self._kinds.pop(kind, None)
        if first and (self._is_each or (count is None and self._left)):
            level = logging.WARNING if count is None and self._left else logging.DEBUG
            self._left -= level == logging.WARNING
            _log_failure(level, *first)
            failed, dead = failed - 1, dead - (first[4] is None)
        if count is None and first:
            count = _Count(_headline(first[-1]))  # the process does not send it again
        if count is None:
            self._others.add(failed, dead)
            return
        self._kinds[kind] = count
        count.add(failed, dead)
        if len(self._kinds) > _KINDS:
            oldest = self._kinds.pop(next(iter(self._kinds)))
            self._others.add(oldest.failed, oldest.dead)

    def _log_counts(self) -> None:
        """Logs how often each kind came since it was last logged, the most frequent first."""
        counts = [count for count in self._kinds.values() if count.failed]
        counts.sort(key=lambda count: -count.failed)
        for count in counts[_LINES:]:
            self._others.add(count.failed, count.dead)
        for count in [*counts[:_LINES], self._others]:
            if count.failed:
                attempts = plural(count.failed, "more attempt")
                lost = plural(count.dead, "sub-request")
                dead = f" and made {lost} dead" if count.dead else ""
                fields = {"failed": count.failed, "died": count.dead, "error": count.headline}
                _log.warning("%s failed%s: %s", attempts, dead, count.headline, extra=fields)
        for count in [*counts, self._others]:
            count.failed = count.dead = 0


def _packed(line: list[Any]) -> bytes:
    return json.dumps(line, ensure_ascii=False).encode() + b"\n"


def _headline(text: str) -> str:
    return printable(read_failure(text).headline)[:_HEADLINE]


def _log_failure(
    level: int, index: int, request_id: str, attempt: int, attempts: int, delay_ms: int | None,
    is_rejected: bool, task: str, text: str,
) -> None:  # fmt: skip
    """Logs a failure with its traceback; the traceback's lines may contain anything."""
    if not _log.isEnabledFor(level):
        return
    then = "it is dead" if delay_ms is None else f"the next is due in {delay_ms / 1000:.1f} s"
    what = "was rejected by the handler" if is_rejected else "failed"
    called = f"task {printable(task)}: " if task else ""
    message = "%ssub-request %d of request %s %s at attempt %d of %d, %s: %s"
    given = (called, index, request_id, what, attempt, attempts, then, _headline(text))
    fields = attempt_fields(request_id, index, attempt, attempts, delay_ms, _headline(text))
    if task:
        fields["task"] = task
    lines = text.rstrip("\n").split("\n")
    if len(lines) > 1:
        fields["traceback"] = text
    record = _log.makeRecord(_log.name, level, "", 0, message, given, None, extra=fields)
    if len(lines) > 1:
        record.exc_text = "\n".join(f"  {printable(line)}" for line in lines)
    _log.handle(record)


def attempt_fields(
    request_id: str, index: int, attempt: int, attempts: int, delay_ms: int | None, error: str
) -> dict[str, Any]:
    """Returns the fields of a record about a failed attempt; `delay_ms` is None if it is dead."""
    return {
        "request": request_id,
        "index": index,
        "attempt": attempt,
        "attempts": attempts,
        "dead": delay_ms is None,
        "next_s": None if delay_ms is None else delay_ms / 1000,
        "error": error,
    }
