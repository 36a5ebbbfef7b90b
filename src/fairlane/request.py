# Generated from aio/request.py by `make generate`: do not edit it.
"""Requests of the blocking API: one that was submitted, and one that is still being submitted."""

from __future__ import annotations

import threading
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Self, Unpack

from fairlane.common import clock
from fairlane.common.awaited import awaiting
from fairlane.common.chunking import Body, chunks
from fairlane.errors import FairlaneError, InvalidArgument
from fairlane.model import DeadChoice
from fairlane.options import read_option
from fairlane.protocol import keys

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import TracebackType

    from fairlane.model import ChosenFilters, DeadFilters
    from fairlane.operations.submit import Submission
    from fairlane.option_types import Duration
    from fairlane.queue import Queue
    from fairlane.records import (
        DeadSubRequest,
        KilledCall,
        Progress,
        RecentLeases,
        RequestErrors,
        Result,
        WhyWaiting,
        WorkerCalls,
    )


class Request:
    """A request by its id. This object keeps no state, so it is never out of date.

    `total` is how many sub-requests were submitted; None unless a submission returned this object.
    """

    def __init__(self, queue: Queue, request_id: str, total: int | None = None) -> None:
        if not hasattr(queue, "driver"):
            raise InvalidArgument(
                f"queue {queue!r} of a request is not valid: queue.request(id) finds a request of "
                "a queue"
            )
        self.queue = queue
        self.id = keys.check_name("request id", request_id)
        self.total = total

    def state(self) -> str:
        """Returns active, paused, cancelling, expiring, done, cancelled. Raises RequestNotFound."""
        from fairlane.operations import completion

        return self.queue.driver.run(completion.state(self.id))

    def progress(self) -> Progress:
        """Returns the counts: total, done, dead, cancelled, held, limit. Raises RequestNotFound."""
        from fairlane.operations import request_state

        return self.queue.driver.run(request_state.progress(self.id))

    def wait(self, timeout: float | None = None) -> str:
        """Blocks until the request has ended and returns its final state: done or cancelled.

        `timeout` in seconds; raises WaitTimeout, RequestNotFound, RequestLost.
        """
        from fairlane.operations import completion

        with awaiting(self.id):
            return self.queue.driver.run(completion.wait(self.id, clock.mono_s, timeout))

    def results(
        self,
        order: str = "input",
        *,
        timeout: float | None = None,
        before_read: Callable[[], object] | None = None,
    ) -> Iterator[Result]:
        """Yields every result, also while the request still runs, and ends with the request.

        `order` is "input" (a bounded window holds back early results) or "done". Dead sub-requests
        are among the results; cancelled ones have no result. If a dead sub-request is requeued
        after its result was yielded, the order "input" does not yield it again. The order "done"
        yields it again with its new outcome. A reader that begins after the end sees only the last
        outcome. `timeout` bounds the seconds of the whole reading; a request that has ended is read
        to its end. `before_read` is called before each read of Redis, at least every two seconds
        while no result comes; use it to flush output. Raises InvalidArgument, RequestNotFound,
        WaitTimeout, and RequestLost if results are gone before they are read.
        """
        from fairlane.operations.results import flow

        items = flow(self.id, order, timeout)
        try:
            item = next(items)
            while True:
                if isinstance(item, list):
                    yield from item
                    item = next(items)
                else:
                    with closing(item):  # if the caller's function raises, `item` never runs
                        if before_read is not None:
                            before_read()
                        with awaiting(self.id):
                            found = self.queue.driver.run(item)
                    item = items.send(found)
        except StopIteration:
            return

    def why(self) -> WhyWaiting:
        """Returns what holds up the request, its place and its start. Raises RequestNotFound."""
        from fairlane.operations.why import why

        return self.queue.driver.run(why(self.id))

    def stacks(self) -> list[WorkerCalls]:
        """Returns the calls of the request that run now, by worker, each with its stack.

        No call is ended or delayed. A worker that does not answer has its `problem`. Raises
        RequestNotFound.
        """
        from fairlane.operations import orders

        return self.queue.driver.run(orders.request_calls(self.id))

    def kill(
        self, index: int, verdict: str = "charge", *, others: bool = False, by: str = ""
    ) -> KilledCall:
        """Ends the call of a sub-request that runs now, and its process if it must.

        `verdict` is charge (an attempt with its backoff; the last one makes it dead), free (it
        runs again uncharged) or dead (it is given up now). `others`: other calls of the process may
        be ended, too; they run again uncharged. `by` is named in the error. Raises InvalidArgument,
        RequestNotFound, CallNotFound, CallShared, WorkerNotFound.
        """
        from fairlane.operations import orders

        killing = orders.kill(self.id, index, verdict, others=others, by=by)
        return self.queue.driver.run(killing)

    def leases(self, after: str = "") -> RecentLeases:
        """Returns the leases held now, and those that were settled last, oldest first.

        `after` is the `log_id` of a settled lease: only later ones are returned. Raises
        RequestNotFound, InvalidArgument.
        """
        from fairlane.operations.estimate import recent_leases

        return self.queue.driver.run(recent_leases(self.id, after))

    def cancel(self, reason: str = "cancelled by the caller") -> bool:
        """Cancels the request; returns True if it has ended, False if workers hold some of it."""
        from fairlane.operations import change

        own = change.cancel(self.id, reason, queue=self.queue.name)
        return self.queue.driver.run(own)

    def pause(self) -> str:
        """Starts no more sub-requests until `resume`; slices that workers hold are finished.

        Returns the state: `paused`, or `cancelling` or `expiring` if its end is near anyway. Raises
        RequestNotFound, RequestEnded.
        """
        from fairlane.operations import change

        return self.queue.driver.run(change.pause(self.id))

    def resume(self) -> str:
        """Continues a paused request. Returns its state. Raises what `pause` raises."""
        from fairlane.operations import change

        return self.queue.driver.run(change.resume(self.id))

    def set_limit(self, limit: int) -> None:
        """Sets how many workers (1 to 10,000) may take slices; slices now held are finished.

        Raises InvalidArgument, RequestNotFound, RequestEnded.
        """
        from fairlane.operations import change

        self.queue.driver.run(change.set_limit(self.id, limit))

    def set_priority(self, priority: int) -> None:
        """Moves waiting tokens to the lane `priority`, 0 to 99. Raises what set_limit raises."""
        from fairlane.operations import change

        self.queue.driver.run(change.set_priority(self.id, priority))

    def set_deadline(self, deadline: Duration) -> None:
        """Starts no sub-request later than `deadline` from now; 0 removes the deadline.

        Raises InvalidArgument, RequestNotFound, RequestEnded (also if its end is near).
        """
        from fairlane.operations import change

        deadline_ms = read_option("deadline", deadline)
        self.queue.driver.run(change.set_deadline(self.id, deadline_ms))

    def set_time_limit(self, time_limit: Duration) -> None:
        """Ends calls of the handler that take longer, also those that run; 0 removes the limit.

        A call that runs already goes on for a second at least. Workers use the limit within a
        second. Raises InvalidArgument, RequestNotFound, RequestEnded.
        """
        from fairlane.operations import change

        limit_ms = read_option("time_limit", time_limit)
        self.queue.driver.run(change.set_time_limit(self.id, limit_ms))

    def set_share(self, share: int) -> None:
        """Gives the tenant of this request another share of the workers' time, 1 to 999.

        Raises InvalidArgument (also if the request has no tenant), RequestNotFound, RequestEnded.
        """
        from fairlane.operations import change

        self.queue.driver.run(change.set_share(self.id, share))

    def set_rate(
        self, rate: str | None = None, burst: int | None = None, weight: int | None = None
    ) -> None:
        """Lets at most `rate` (as 100/s, 30/m or 5/h) sub-requests start, `burst` together.

        Each of them counts `weight` times. The request keeps its rate key, and the values that are
        None. It then shares the rate with requests of the same key and the same rate. Raises
        InvalidArgument, RequestNotFound, RequestEnded.
        """
        from fairlane.operations.rates import set_rate

        self.queue.driver.run(set_rate(self.id, rate, burst, weight))

    def errors(self, **wanted: Unpack[DeadFilters]) -> RequestErrors:
        """Returns the chosen dead by kind of failure, and the last error.

        Raises InvalidArgument and RequestNotFound.
        """
        from fairlane.operations import dead_letters

        choice = DeadChoice.of(**wanted)
        return self.queue.driver.run(dead_letters.request_errors(self.id, choice=choice))

    def dead(self) -> Iterator[DeadSubRequest]:
        """Yields the dead sub-requests with bodies, first to die first. Raises RequestNotFound."""
        from fairlane.operations import dead_letters

        after = ""
        while page := self.queue.driver.run(dead_letters.read_dead(self.id, after)):
            yield from page
            after = page[-1].dead_id

    def requeue_dead(self, **wanted: Unpack[ChosenFilters]) -> int:
        """Runs dead sub-requests again, with all attempts: the chosen ones, or all of them.

        Returns how many. They keep their indexes. If this request has ended, it is opened again:
        it waits, runs and ends once more, and its results are then those of the repaired whole. A
        deadline that has passed no longer counts. A repeat after an error does what is left. Raises
        InvalidArgument, RequestNotFound, DeadNotFound, NotDurable. Raises RequestEnded if this
        request is cancelling or expiring (repeat the call after its end), and if its results have
        expired.
        """
        from fairlane.operations import dead_letters

        choice = DeadChoice.of(**wanted)
        return self.queue.driver.run(dead_letters.requeue_dead(self.id, choice))

    def drop_dead(self, **wanted: Unpack[ChosenFilters]) -> int:
        """Deletes dead sub-requests and their bodies: the chosen ones, or all. Returns how many.

        Counts and results stay. Raises InvalidArgument, RequestNotFound, DeadNotFound.
        """
        from fairlane.operations import dead_letters

        choice = DeadChoice.of(**wanted)
        return self.queue.driver.run(dead_letters.drop_dead(self.id, choice))

    def __repr__(self) -> str:
        return f"<Request {self.id}>"


class OpenRequest(Request):
    """A request that is still being submitted: workers begin with what it has so far.

    Queue.open returns it. At the end of a `with` block it is sealed. If the block raises,
    the request is withdrawn, or cancelled if a worker holds a part of it. Any thread may add to it.
    """

    def __init__(self, queue: Queue, submission: Submission) -> None:
        super().__init__(queue, submission.new.id)
        self._submission = submission
        self._lock = threading.Lock()

    @property
    def added(self) -> int:
        """Returns how many bodies were added so far, also by an earlier process.

        A producer goes on with the body at this index. Repeats that were left out count, too.
        """
        return self._submission.total + self._submission.left_out

    @property
    def left_out(self) -> int:
        """Returns how many of the bodies were left out as repeats; 0 unless it is `distinct`."""
        return self._submission.left_out

    def add(self, body: Body) -> int | None:
        """Adds one sub-request in one round trip; returns its index, None if it was left out.

        See add_many for errors.
        """
        (chunk,) = list(chunks([body]))
        with self._lock:
            before = self.left_out
            self.queue.driver.run(self._submission.add(chunk))
            return self._submission.total - 1 if self.left_out == before else None

    def add_many(self, bodies: Iterable[Body]) -> int:
        """Adds sub-requests, 1,000 in one round trip; returns how many the request has now.

        If Redis or the queue is full, the call waits up to the `max_wait` of the request. After
        QueueFull, RedisFull or RedisUnreachable, `added` shows how far it came, and a repeat of the
        rest adds nothing twice. Raises RequestClosed after `seal` or after an error in the block,
        RequestEnded if the request was cancelled, RequestLost and InvalidArgument.
        """
        for chunk in chunks(bodies):
            with self._lock:  # free while the caller makes the next bodies
                self.queue.driver.run(self._submission.add(chunk))
        return self._submission.total

    def seal(self) -> int:
        """Ends the submission; returns how many sub-requests it has. A repeat changes nothing."""
        with self._lock:
            self.total = self.queue.driver.run(self._submission.seal())
            return self.total

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.seal()
            return
        with suppress(FairlaneError):  # the block's own error is the one to raise
            self.queue.driver.run(self._submission.take_back(error))
