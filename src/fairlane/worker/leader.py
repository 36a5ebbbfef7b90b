"""The duties of the leading worker, each on a thread of its own."""

from __future__ import annotations

import logging
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from fairlane import settings
from fairlane.common import clock
from fairlane.common.text import plural
from fairlane.drivers.sync import SyncDriver
from fairlane.errors import FairlaneError, RedisUnreachable
from fairlane.operations import admission, completion, shards, workers
from fairlane.operations.audit import Audit
from fairlane.operations.doctor import Walk, primaries
from fairlane.operations.estimate import demand
from fairlane.operations.flow_hand_over import hand_over
from fairlane.operations.schedules import fire
from fairlane.worker.health_port import is_loopback, split_id, whereabouts
from fairlane.worker.log import Outage, Repeats

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fairlane.operations.workers import Late
    from fairlane.records import Demand


# ------------------------------------------------------------------ duty
# A duty: work that is repeated when it is due, in its own thread.


_log = logging.getLogger("fairlane.worker")
NEVER = float("inf")


class Beat(NamedTuple):
    """The reply to a heartbeat: times of the server's clock in ms, 0 = nothing is due."""

    now_ms: int
    active_due: int
    delayed_due: int
    oldest_beat: int
    died_ms: int
    tick_due: int = 0

    def moment(self, due_ms: int) -> float:
        """Returns a time of the server's clock in seconds of clock.mono_s; NEVER for 0."""
        return clock.mono_s() + max(0, due_ms - self.now_ms) / 1000 if due_ms else NEVER


class Duty:
    """Runs `run` when it is due; the thread begins when the first time is set.

    `next_due` returns when a beat makes the duty due, in seconds of clock.mono_s. A beat may make
    it due sooner. If the duty `follows_beats`, a beat may also make it due later.

    `run` returns when the duty is due again; NEVER = at the next `due` or `set`. It must be safe to
    run twice. Its errors are logged and the thread goes on, because no other worker does this duty
    while this worker leads.
    """

    def __init__(
        self,
        name: str,
        next_due: Callable[[Beat], float],
        run: Callable[[], float],
        *,
        follows_beats: bool = False,
        outage: Outage | None = None,
    ) -> None:
        self.name = name
        self._next_due, self._work = next_due, run
        self._follows_beats = follows_beats
        self._repeats = Repeats(outage)
        self._at = NEVER
        self._changed = threading.Condition()
        self._is_closed = False
        self._thread: threading.Thread | None = None

    @property
    def at(self) -> float:
        """Returns when the duty is due next, in seconds of clock.mono_s; NEVER if it is not."""
        return self._at

    def next(self, beat: Beat) -> None:
        """Sets when the duty is due by this beat."""
        at = self._next_due(beat)
        if self._follows_beats:
            self.set(at)
        else:
            self.due(at)

    def set(self, at: float) -> None:
        """Makes the duty due at this time, and at no other."""
        with self._changed:
            self._at = at
            if self._thread is None and at < NEVER and not self._is_closed:
                self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)
                self._thread.start()
            self._changed.notify()

    def due(self, at: float) -> None:
        """Makes the duty due at this time, unless it is due earlier."""
        if at < self._at:
            self.set(at)

    def close(self) -> None:
        """Ends the thread; a call that runs now is finished first."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()

    def join(self, seconds: float) -> None:
        """Waits for the end of the thread, for so many seconds at most."""
        if self._thread is not None:
            self._thread.join(max(0.0, seconds))

    def pause(self, seconds: float) -> bool:
        """Pauses the duty's `run` for this time; returns True if the duty was closed meanwhile."""
        with self._changed:
            return self._changed.wait_for(lambda: self._is_closed, seconds)

    def _run(self) -> None:
        while self._wait():
            again = NEVER
            try:
                again = self._work()
                self._repeats.over()
            except FairlaneError as error:
                self._repeats.failed(error, f"{self.name}: ")
            except Exception:  # noqa: BLE001  this worker leads: no other one would go on
                _log.exception("%s failed; trying again", self.name)
            self.due(again)

    def _wait(self) -> bool:
        """Waits until the duty is due; returns False once it is closed."""
        with self._changed:
            while not self._is_closed and self._at > clock.mono_s():
                left = self._at - clock.mono_s()
                self._changed.wait(None if left == NEVER else left)
            self._at = NEVER
            return not self._is_closed


# ------------------------------------------------------------------ demand
# The demand of the queue, which the leader measures while its metrics are read.
#
# The more requests there are, the longer it takes, and the longer is the pause after it.


EVERY_S = 5.0
_ASKED_S = 150.0  # so long after the metrics were last read, it is measured
_FRESH_S = 30.0  # so long after the next value was due, the last one is shown


class DemandGauge:
    """The last demand. Unless something reads the metrics, nothing is measured."""

    def __init__(self, driver: SyncDriver, queue: str) -> None:
        self._driver, self._queue = driver, queue
        self._last: Demand | None = None
        self._next_at = self._asked_at = -NEVER

    def ask(self) -> Demand | None:
        """Notes that the metrics are read; returns the last demand, None if there is no new one."""
        self._asked_at = clock.mono_s()
        return self._last if self._asked_at < self._next_at + _FRESH_S else None

    def measure(self) -> float:
        """Reads the demand; returns when it is to be read again. Raises FairlaneError."""
        began = clock.mono_s()
        self._last = self._driver.run(demand(self._queue))
        now = clock.mono_s()
        self._next_at = now + max(EVERY_S, settings.AUDIT_REST_FACTOR * (now - began))
        return self._next_at if now - self._asked_at < _ASKED_S else NEVER

    @property
    def next_at(self) -> float:
        """Returns when it may be measured next, in seconds of clock.mono_s."""
        return self._next_at


# ------------------------------------------------------------------ leader
# The duties of the leading worker for the whole queue, each in its own thread.
#
# To check thousands of requests, or to try the ports of dead workers, takes time, and the leases
# of this worker can't wait for that. Nor does one duty wait for another: a node that does not
# answer delays the checks of its own requests, but no retry of other nodes and no take-over. Every
# operation may run twice, so the lead may change hands in the middle.
#
# Every hour the leader walks over all requests. It puts requests that are missing in the dispatch
# slot back there, because a failover or a person may have removed them. The first walk is an hour
# after the lead began, or ten seconds after a beat found that the slot was wiped. The walk goes
# page by page, and its pauses are as long as its work. In a cluster, one primary may lose in a
# failover what depends on another's data: an end that was logged, an intent whose request exists.
# So there the first walk is soon after the lead began, and another one follows each new primary.


_PROBERS = 16
_AGAIN_S = 60.0  # after a walk that failed
_LAPSE_S = 60.0  # so long after the last beat that reported the lead, the lead is over
_AUDIT_REST_AFTER_DEATH = 4  # as settings.AUDIT_REST_FACTOR, for the audits that follow deaths
_QUIET_S = 60.0  # between two log lines about requests whose nodes are away
_LOGGED_MOST = 1000  # requests whose errors are remembered as logged


class Maintenance:
    """The duties of one worker. Its beats report what is due, and whether this worker leads."""

    def __init__(
        self,
        url: str,
        queue: str,
        worker: str,
        driver: SyncDriver | None = None,
        *,
        outage: Outage | None = None,
    ) -> None:
        self._driver = driver or SyncDriver(url, patience_s=settings.BEAT_MS / 1000)
        self._queue, self._worker = queue, worker
        self._shards: tuple[int, ...] = (0,)
        self._is_moving = self._leads = False
        self._led_at = -NEVER  # when a beat last reported that this worker leads
        self._rebuild_at, self._quiet_until = NEVER, -NEVER
        self._trim_at = -NEVER  # the log is trimmed again then, if anything is unfinished
        self._primaries, self._failed = set[Any](), set[str]()
        self._tokens = Audit(queue)
        # No audit begins before the first of these; the next regular one is due at the second.
        self._rested_at = self._audited_at = -NEVER
        self._died_ms = 0  # the last death that a beat reported, in ms of the server's clock
        self._grace_ends = NEVER  # when tokens that were lost with this death are looked for
        self._fed: dict[str, None] = {}  # steps of flows that get something from another request
        self._schedule_errors = Repeats(outage)
        self._next_tick_at, self._tried_at = NEVER, -NEVER  # of schedules; tried: again after this
        self.on_death: Callable[[], None] = lambda: None  # reports a death with the next beat
        duty = partial(Duty, outage=outage)
        self.promote = duty("promoter", self._next_promote, self._promote, follows_beats=True)
        self.look = duty("reaper", self._next_look, self._look, follows_beats=True)
        self.fire = duty("scheduler", self._next_fire, self._fire, follows_beats=True)
        self.feed = duty("flows", lambda _: NEVER, self._feed)
        self.trim = duty("log", self._next_trim, self._trim)
        self.move = duty("shards", self._next_move, self._move)
        self.audit = duty("auditor", self._next_audit, self._audit)
        self.take_over = duty("take-over", self._next_take_over, self._take_over)
        self.primaries = duty("primaries", self._next_primaries, self._look_for_new_primaries)
        self.walk = duty("walk", self._next_walk, self._walk)
        self._gauge = DemandGauge(self._driver, queue)
        self.measure = duty("demand", lambda _: NEVER, self._gauge.measure)
        often = (self.promote, self.look, self.fire)
        upkeep = (self.feed, self.trim, self.move, self.audit, self.primaries, self.measure)
        self._of_leader = (*often, *upkeep)
        self._duties = (*self._of_leader, self.take_over, self.walk)

    def demand(self) -> Demand | None:
        """Returns the demand of the queue, as it was measured some seconds ago.

        None if this worker does not lead, or has not measured it yet: each call sees to that.
        """
        if not self._leads:
            return None
        found = self._gauge.ask()
        self.measure.due(self._gauge.next_at)
        return found

    def spread(self, numbers: Sequence[int], *, is_moving: bool) -> None:
        """Sets the shards of the queue; `is_moving`: requests must be moved from some of them."""
        self._shards, self._is_moving = tuple(numbers), is_moving

    def on_beat_as_leader(self, beat: Beat) -> None:
        """Sets when each duty is due, after a beat that reported that this worker leads."""
        now = clock.mono_s()
        if now - self._led_at > _LAPSE_S:  # the lead has just begun
            is_one = self._driver.servers.is_one
            self._rebuild_at = now + (settings.REBUILD_S if is_one else settings.WIPED_S)
            self._audited_at = max(self._audited_at, now + settings.AUDIT_FIRST_S)
        for duty in self._duties:
            duty.next(beat)
        self._leads, self._led_at = True, now

    def on_beat_as_follower(self, beat: Beat) -> None:
        """Stops the duties of the leader, after a beat that reported that another worker leads.

        A late worker may be dead, and may be the leader. Then every worker tries its port, because
        the next beat of the leader may be a second away. It does so once: if the port accepts, the
        leader does the rest.
        """
        self._leads = False
        for duty in self._of_leader:
            duty.set(NEVER)
        if (
            settings.PROBE_AFTER_MS
            < beat.now_ms - beat.oldest_beat
            <= settings.PROBE_AFTER_MS + settings.BEAT_MS
        ):
            self.take_over.due(clock.mono_s())

    def audit_after_death(self, at: float) -> None:
        """Makes audits due from this time on, in seconds: a process may have died with tokens.

        The time is a grace after the death; then tokens that are on their way have arrived.
        """
        self._grace_ends = at
        self.audit.due(max(at, self._rested_at))

    def on_registry_lost(self) -> None:
        """Makes a walk due soon: this worker's record was gone, so the slot may be wiped.

        Every worker detects that; the worker that leads by then walks.
        """
        self._led_at = clock.mono_s()
        self._rebuild_at = min(self._rebuild_at, self._led_at + settings.WIPED_S)

    def close(self) -> None:
        """Ends the threads; the calls they are in are finished first."""
        for duty in self._duties:
            duty.close()
        ends = clock.mono_s() + settings.SOCKET_TIMEOUT_S
        for duty in self._duties:
            duty.join(ends - clock.mono_s())

    # When a duty is due by a beat.

    def _next_promote(self, beat: Beat) -> float:
        """Makes promotion due with each beat if there are shards: no beat reads their slots."""
        return beat.moment(beat.delayed_due) if self._shards == (0,) else clock.mono_s()

    def _next_look(self, beat: Beat) -> float:
        return beat.moment(beat.active_due)

    def _next_fire(self, beat: Beat) -> float:
        """Makes the scheduler due with the first tick; one that has just failed waits a moment."""
        if clock.mono_s() < self._tried_at:
            return min(self._tried_at, self._next_tick_at)
        return beat.moment(beat.tick_due)

    def _next_trim(self, beat: Beat) -> float:
        return self._trim_at if beat.active_due else NEVER

    def _next_move(self, _: Beat) -> float:
        return clock.mono_s() if self._is_moving else NEVER

    def _next_take_over(self, beat: Beat) -> float:
        return clock.mono_s() if beat.now_ms - beat.oldest_beat > settings.PROBE_AFTER_MS else NEVER

    def _next_audit(self, beat: Beat) -> float:
        if beat.died_ms != self._died_ms:
            self._died_ms = beat.died_ms
            # After a clock was set back, the audit must not be postponed.
            left_ms = settings.DEATH_GRACE_MS - max(0, beat.now_ms - beat.died_ms)
            self.audit_after_death(clock.mono_s() + max(0, left_ms) / 1000)
        return self._audited_at if beat.active_due else NEVER

    def _next_primaries(self, _: Beat) -> float:
        """Makes the read of the primaries due when the lead begins, and then every few seconds."""
        if self._leads or self._driver.servers.is_one:
            return NEVER
        self._primaries = set()
        return clock.mono_s()

    def _next_walk(self, _: Beat) -> float:
        now = clock.mono_s()
        if now < self._rebuild_at:
            return NEVER
        self._rebuild_at = now + settings.REBUILD_S
        return now

    # The duties: each returns when it is due again, if no beat makes it due before.

    def _promote(self) -> float:
        self._driver.run(workers.promote(self._queue, self._shards))
        return NEVER

    def _move(self) -> float:
        self._driver.run(shards.move(self._queue))
        return NEVER

    def _trim(self) -> float:
        self._trim_at = clock.mono_s() + settings.LOG_TRIM_S
        self._driver.run(completion.trim(self._queue))
        return NEVER

    def _look(self) -> float:
        """Checks a bounded number of due requests after each beat, because checks cost time."""
        failed: dict[str, FairlaneError] = {}
        fed: list[str] = []
        self._driver.run(workers.look_after(self._queue, failed=failed, fed=fed))
        self._feed_from_now(fed)
        self._log_once(failed)
        self._driver.run(admission.report_backlog(self._queue))
        return NEVER

    def _feed_from_now(self, found: list[str]) -> None:
        """Adds steps of flows to those that are fed; the thread of the duty removes them."""
        for name in found[: settings.FED_MOST - len(self._fed)]:
            self._fed[name] = None
        if self._fed:
            self.feed.due(clock.mono_s())

    def _feed(self) -> float:
        """Hands over to each step in turn, until it has got everything."""
        failed: dict[str, FairlaneError] = {}
        began = clock.mono_s()
        for name in list(self._fed):
            if not self._leads or self.feed.pause(0):
                self._fed.clear()  # the next look of a leader finds them again
                return NEVER
            try:
                is_over = self._driver.run(hand_over(name)).is_over
            except FairlaneError as error:
                failed[name], is_over = error, True
            if is_over:
                del self._fed[name]
        self._log_once(failed)
        ended = clock.mono_s()
        return ended + max(settings.FEED_S, ended - began) if self._fed else NEVER

    def _fire(self) -> float:
        """Submits the requests of due ticks, a bounded number of schedules in each call."""
        waiting: dict[str, FairlaneError] = {}
        while True:
            fired = self._driver.run(fire(self._queue, len(waiting)))
            waiting |= fired.waiting
            if fired.full is not None or not fired.has_moved or self.fire.pause(0):
                break
        now = clock.mono_s()
        soon = (fired.next_ms - fired.now_ms) / 1000 if fired.next_ms else NEVER
        self._next_tick_at = now + soon
        self._tried_at = now + settings.SCHEDULES_AGAIN_S if waiting else -NEVER
        for name, error in waiting.items():
            self._schedule_errors.failed(error, f"schedule {name}: ")
        return min(self._next_tick_at, self._tried_at) if waiting else self._next_tick_at

    def _audit(self) -> float:
        began = clock.mono_s()
        self._audited_at = NEVER  # no beat makes it due while it runs
        # Otherwise one death after the other would postpone the end of the grace for ever.
        is_after_death = self._grace_ends < NEVER
        if self._grace_ends <= began:
            self._grace_ends = NEVER
        grace_ms = settings.DEATH_GRACE_MS if is_after_death else settings.TOKEN_GRACE_MS
        failed: dict[str, FairlaneError] = {}
        is_over = False
        try:
            self._driver.run(self._tokens.run(grace_ms, failed))
            is_over = True
        finally:
            ended = clock.mono_s()
            took = min(ended - began, settings.AUDIT_REST_MOST_S / settings.AUDIT_REST_FACTOR)
            self._audited_at = ended + max(settings.AUDIT_S, settings.AUDIT_REST_FACTOR * took)
            # Deaths may follow each other for ever, and an audit may cover very many requests.
            self._rested_at = ended + _AUDIT_REST_AFTER_DEATH * took
            if is_after_death and not is_over:  # Redis may have died with the tokens it had
                self.audit_after_death(ended + settings.DEATH_GRACE_MS / 1000)
            self._log_once(failed)
        return max(self._grace_ends, self._rested_at) if self._grace_ends < NEVER else NEVER

    def _take_over(self) -> float:
        for dead in self._dead():
            try:
                looked = self._driver.run(workers.take_over(self._queue, dead.worker, dead.started))
                self._driver.run(
                    workers.note_death(self._queue, dead.worker, dead.started, dead.host)
                )
            except FairlaneError as error:  # the other dead workers are handled after it
                _log.warning("worker %s is dead: %s", dead.worker, error)
            else:
                _log.warning(
                    "worker %s is dead: looked in %s for what it held",
                    dead.worker,
                    plural(looked, "request"),
                )
            self.on_death()
        return NEVER

    def _look_for_new_primaries(self) -> float:
        """Makes a walk and an audit due if the cluster has a new primary."""
        self.primaries.due(clock.mono_s() + settings.PRIMARIES_S)  # also if this look fails
        self._driver.servers.forget_slots()  # so that the slots are read from the cluster again
        known, self._primaries = self._primaries, set(self._driver.run(primaries()))
        new = self._primaries - known
        if known and new:
            shown = ", ".join(sorted(f"{host}:{port}" for host, port in new))
            _log.warning("%s took over in the cluster: looking for what it may not have", shown)
            self._rebuild_at = min(self._rebuild_at, clock.mono_s())
            self.audit_after_death(clock.mono_s() + settings.DEATH_GRACE_MS / 1000)
        return NEVER

    def _walk(self) -> float:
        """Walks once; a failed walk is repeated soon."""
        walk = Walk(self._queue, thorough=False)
        try:
            while not walk.is_over:
                began = clock.mono_s()
                for found in self._driver.run(walk.page()):
                    self._driver.run(found.apply())
                    shown = (found.subject, found.what, found.remedy)
                    _log.warning("walk: request %s %s: %s", *shown)
                if self.walk.pause(clock.mono_s() - began):
                    break
        except Exception as error:  # noqa: BLE001  no other worker would go on with the walk
            is_bug = not isinstance(error, FairlaneError)
            _log.warning("walk: %s; trying again in a minute", error, exc_info=is_bug)
            self._rebuild_at = clock.mono_s() + _AGAIN_S
        return NEVER

    def _log_once(self, failed: dict[str, FairlaneError]) -> None:
        """Logs an error of a request only once: it would be the same at the next check."""
        away = [error for error in failed.values() if isinstance(error, RedisUnreachable)]
        now = clock.mono_s()
        if away and now >= self._quiet_until:
            self._quiet_until = now + _QUIET_S
            _log.warning("maintenance: %d requests can't be reached: %s", len(away), away[0])
        for name, error in failed.items():
            if isinstance(error, RedisUnreachable):
                continue
            if name not in self._failed and len(self._failed) < _LOGGED_MOST:
                self._failed.add(name)
                _log.warning("maintenance: request %s: %s; going on with the others", name, error)

    def _dead(self) -> list[Late]:
        late = [
            other
            for other in self._driver.run(workers.late_workers(self._queue))
            if other.worker != self._worker
        ]
        if not late:
            return []
        with ThreadPoolExecutor(_PROBERS) as pool:
            refused = list(pool.map(refuses, late))
        return [other for other, is_dead in zip(late, refused, strict=True) if is_dead]


def refuses(late: Late) -> bool:
    """Returns True if the health port of a late worker is closed, which proves its death.

    A port that does not answer proves nothing, nor does a loopback address of another machine.
    """
    try:
        if late.host != whereabouts() and is_loopback(late.worker):
            return False
        with socket.create_connection(split_id(late.worker), timeout=settings.PROBE_S):
            return False
    except ConnectionRefusedError:
        return True
    except (OSError, UnicodeError, FairlaneError):
        return False
