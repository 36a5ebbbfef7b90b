# Generated from aio/queue.py by `make generate`: do not edit it.
"""The blocking API: a queue on one Redis, and the requests in it."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Self, Unpack

from fairlane import settings
from fairlane.common.chunking import (
    Body,
    chunks,
    chunks_of_groups,
    one_chunk,
)
from fairlane.default_redis import resolve_url
from fairlane.drivers.sync import SyncDriver
from fairlane.errors import InvalidArgument
from fairlane.operations import admission
from fairlane.operations.submit import Many, checked_requests, submit
from fairlane.options import id_for, policy_of
from fairlane.protocol import keys
from fairlane.request import OpenRequest, Request
from fairlane.tracing import receiving, sending

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from fairlane.call_records import TaskPage
    from fairlane.flows import FlowRun, Flows
    from fairlane.model import DeadFilters, RequestChoice, RequestFilters
    from fairlane.operations.admission import Bounds
    from fairlane.operations.change import Change, Selection
    from fairlane.operations.flows import Flow
    from fairlane.operations.observe import Snapshot
    from fairlane.operations.pause import QueuePause
    from fairlane.operations.shards import ShardLayout
    from fairlane.operations.stats import Measured
    from fairlane.operations.take import Taker
    from fairlane.option_types import Duration, RequestOptions, SharedOptions
    from fairlane.records import (
        ChangeReport,
        Completion,
        Demand,
        KeyPage,
        KeyState,
        QueueErrors,
        QueueStatus,
        RequestPage,
        WhyWaiting,
        WorkerCalls,
        WorkerPage,
    )
    from fairlane.schedules import Schedules
    from fairlane.taken import Taken


class Queue:
    """A queue by name; any thread may use it."""

    def __init__(self, driver: SyncDriver, name: str = settings.DEFAULT_QUEUE) -> None:
        if not hasattr(driver, "run"):
            raise InvalidArgument(
                f"queue of {driver!r} is not valid: Queue.from_url(name='images') opens the queue "
                "images, and Queue.from_url('redis://host:6379') names its Redis"
            )
        self.driver = driver
        self.name = keys.check_name("queue", name)

    @classmethod
    def from_url(
        cls,
        url: str | None = None,
        *,
        name: str = settings.DEFAULT_QUEUE,
        patience_s: float = settings.PATIENCE_S,
    ) -> Queue:
        """Returns a queue on the Redis at `url` (default: FAIRLANE_REDIS, or the embedded server).

        The first call connects. While Redis does not answer, each call is repeated for
        `patience_s` seconds; then the call raises RedisUnreachable.
        """
        return cls(SyncDriver(resolve_url(url), patience_s=patience_s), name)

    def submit_request(
        self,
        bodies: Iterable[Body],
        *,
        id: str | None = None,  # noqa: A002  the word of the API
        max_wait: Duration = 0.0,
        **options: Unpack[RequestOptions],
    ) -> Request:
        """Submits one request: one sub-request for each of `bodies` (bytes, or text as UTF-8).

        `bodies` may be lazy and very long: chunks of at most 1,000 bodies and 1 MiB are sent.
        `options` are those of RequestOptions: priority, limit, attempts, backoff, lease,
        retain, deadline, time_limit, and so on. If the caller passes an `id`, the call is
        idempotent until the results of that request expire. If Redis or the queue is full, a chunk
        waits up to `max_wait`. Raises InvalidArgument, RequestExists, RequestEnded, RedisError, and
        TypeError for a wrong option. An error of `bodies` cancels the request and is raised again.
        """
        only = one_chunk(bodies)
        source = chunks(bodies) if only is None else None
        return self._submit(only, source, id, max_wait, **options)

    def submit_chunks(
        self,
        chunks: Iterable[Iterable[Body]],
        *,
        id: str | None = None,  # noqa: A002  the word of the API
        max_wait: Duration = 0.0,
        **options: Unpack[RequestOptions],
    ) -> Request:
        """Submits one request; each of `chunks` is a group of bodies, sent as soon as it comes.

        So the first bodies of a slow source run before the last ones exist. One group is held back
        until the next one comes. `options` are those of submit_request, and so are
        the errors. If a call with an `id` is repeated, it must bring the same groups.
        """
        return self._submit(None, chunks_of_groups(chunks), id, max_wait, **options)

    def _submit(
        self,
        only: list[bytes] | None,
        source: Iterator[list[bytes]] | None,
        id: str | None,  # noqa: A002
        max_wait: Duration,
        **options: Unpack[RequestOptions],
    ) -> Request:
        with sending(self.name) as span:
            policy = policy_of(self.name, trace=span.trace, **options)
            request = Request(self, id_for(policy, id))
            submitted = submit(request.id, policy, max_wait, only=only)
            request.total = self.driver.run(submitted, source)
            span.note_sent(request.id, request.total)
        return request

    def submit_many(
        self,
        requests: Iterable[Iterable[Body]],
        *,
        ids: Iterable[str] | None = None,
        limit: int | Iterable[int] = settings.DEFAULT_LIMIT,
        max_wait: Duration = 0.0,
        **options: Unpack[SharedOptions],
    ) -> list[Request]:
        """Submits many requests, 400 small ones in one round trip; returns them in order.

        `requests` may be lazy; each of them has the bodies of one request. The options are those of
        submit_request, and apply to all; `limit` may also be an iterable with a limit for each. If
        `ids` has an id for each, the call may be repeated until it succeeds. An error's `submitted`
        has the ids that are in Redis already. If a request is invalid, no request of its group of
        400 is written.
        """
        each = self.submit_each(requests, ids=ids, limit=limit, max_wait=max_wait, **options)
        return list(each)

    def submit_each(
        self,
        requests: Iterable[Iterable[Body]],
        *,
        ids: Iterable[str] | None = None,
        limit: int | Iterable[int] = settings.DEFAULT_LIMIT,
        max_wait: Duration = 0.0,
        **options: Unpack[SharedOptions],
    ) -> Iterator[Request]:
        """Does what submit_many does, and yields each request as soon as its group is in Redis.

        Nothing is submitted before the caller takes the first request. If an error is raised, the
        requests that are in Redis are yielded first.
        """
        span = sending(self.name)
        many = Many.of(self.name, limit, max_wait, ids, trace=span.trace, **options)
        with span, many.names_submitted():
            try:
                for bodies in checked_requests(requests):
                    taken = many.collect(bodies)
                    if (step := many.step(taken)) is not None:
                        self.driver.run(step, taken.rest)
                        yield from self._submitted(many)
                many.check_ends()
                self.driver.run(many.rest())
                span.count(many.sent)
            except (Exception, KeyboardInterrupt):
                yield from self._submitted(many)
                raise
        yield from self._submitted(many)

    def _submitted(self, many: Many) -> Iterator[Request]:
        for request_id, total in many.take_submitted():
            yield Request(self, request_id, total)

    def open(
        self,
        *,
        id: str | None = None,  # noqa: A002  the word of the API
        max_wait: Duration = 0.0,
        **options: Unpack[RequestOptions],
    ) -> OpenRequest:
        """Begins a request and leaves it open, so that bodies can be added as they come.

        `with queue.open() as request: request.add(body)`. Workers begin with the first
        sub-request. If an earlier process left a request open, the same `id` and options continue
        it: `added` is where to go on. If nothing is added for an hour, the request is cancelled.
        The options are those of submit_request; `durable` does not apply. Raises RequestExists,
        RequestEnded, InvalidArgument, RedisError.
        """
        return self._open(id, max_wait, **options)

    def _open(
        self, id: str | None, max_wait: Duration, **options: Unpack[RequestOptions]  # noqa: A002
    ) -> OpenRequest:  # fmt: skip
        from fairlane.operations.submit import open_request

        with sending(self.name) as span:
            policy = policy_of(self.name, trace=span.trace, **options)
            begun = self.driver.run(open_request(id_for(policy, id), policy, [], max_wait))
            span.note_sent(begun.new.id, None)
        return OpenRequest(self, begun)

    def request(self, id: str) -> Request:  # noqa: A002  the word of the API
        """Returns the request with this id, without a call to Redis."""
        return Request(self, id)

    def post(
        self,
        body: Body,
        *,
        id: str | None = None,  # noqa: A002  the word of the API
        max_wait: Duration = 0.0,
        **options: Unpack[RequestOptions],
    ) -> Request:
        """Submits a request of one sub-request; the options and errors are those of submit_request.

        A program gets the body by `take`, or a worker calls its handler with the body.
        """
        return self.submit_request([body], id=id, max_wait=max_wait, **options)

    def take(
        self,
        count: int = 1,
        *,
        visible_for: float = settings.TAKE_VISIBLE_S,
        wait_s: float = 0.0,
    ) -> list[Taken]:
        """Takes up to `count` (at most 100) sub-requests as a worker would; [] = there is none.

        Each is held for `visible_for` seconds, at most a day. After that it is charged an attempt,
        and another program may take it. If there is none, the call waits up to `wait_s` seconds for
        the first one. While no worker lives, the call also does the queue's maintenance that is
        due. Raises InvalidArgument, and RedisError if nothing was taken.
        """
        from fairlane.operations.take import take
        from fairlane.taken import Taken

        with receiving(self.name) as span:
            taken = self.driver.run(take(self._taker, count, visible_for, wait_s))
            span.note_received(taken)
        return [Taken(self.driver, *Taken.parts_of(delivery)) for delivery in taken]

    @cached_property
    def _taker(self) -> Taker:
        from fairlane.holding import taker_name
        from fairlane.operations.take import Taker

        return Taker(self.name, taker_name)

    def taken(self, receipt: str) -> Taken:
        """Returns the sub-request with this receipt, without a call to Redis and without its body.

        Raises InvalidArgument if the text is no receipt of this queue.
        """
        from fairlane.taken import Taken

        return Taken(self.driver, *Taken.parts_of_text(self.name, receipt))

    def submit_flow(
        self,
        flow: Flow,
        bodies: Iterable[Body],
        *,
        id: str | None = None,  # noqa: A002  the word of the API
        properties: Mapping[str, object] | None = None,
        max_wait: Duration = 0.0,
    ) -> FlowRun:
        """Submits a flow: `bodies` go to its first step, and each result to the next one.

        If the caller passes an `id`, the call is idempotent until the run expires. `flows.find`
        finds the run by its `properties`. Raises what submit_request raises. If the flow is not
        valid, nothing is written.
        """
        from fairlane.flows import FlowRun
        from fairlane.operations.flows import checked_flow, submit_flow

        run = keys.new_id() if id is None else id
        with sending(self.name) as span:
            steps = checked_flow(flow).plan(self.name, run, properties or {}, span.trace)
            submitted = submit_flow(steps, max_wait)
            span.note_sent(run, self.driver.run(submitted, chunks(bodies)))
        return FlowRun(self, run)

    @property
    def flows(self) -> Flows:
        """Returns the runs of flows that began in this queue: `find`, `run`."""
        from fairlane.flows import Flows

        return Flows(self)

    @property
    def schedules(self) -> Schedules:
        """Returns the recurring work of this queue: `add`, `list`, `pause`, `resume`, `remove`."""
        from fairlane.schedules import Schedules

        return Schedules(self.driver, self.name)

    def completions(self, since: str | None = None, *, follow: bool = True) -> Iterator[Completion]:
        """Yields endings from the durable log, oldest first, each with a `log_id` to resume after.

        `since` is a `log_id` seen last, "0" for all endings kept, a time in ms as text, or None for
        endings from now on. If `follow`, the iterator waits for more and does not end. The log
        keeps about the last 100,000 endings, and up to 2,000,000 for readers that are behind. A
        failover may lose the newest. Raises InvalidArgument, and DataLost if the log has lost
        endings after `since`: then read on from an earlier `log_id` or "0".
        """
        from fairlane.operations import completion

        after = self.driver.run(completion.last_completion(self.name)) if since is None else since
        block = settings.BLOCK_MS if follow else 0
        reader = completion.LogReader(self.name, after)
        while True:
            endings = self.driver.run(reader.page(block))
            for ending in endings:
                reader.after = ending.log_id
                yield ending
            if not endings and not follow:
                return

    def status(self) -> QueueStatus:
        """Returns tokens by lane, beats of workers, and the 1,000 most urgent requests."""
        from fairlane.operations import queues

        return self.driver.run(queues.queue_status(self.name))

    def list_requests(
        self, *, limit: int = 100, after: str | None = None, sort: str = "",
        **wanted: Unpack[RequestFilters],
    ) -> RequestPage:  # fmt: skip
        """Returns a page: unfinished requests, most urgent first, then ended ones, newest first.

        `limit` is 1 to 1,000, `after` is the previous page's. A page reads a bounded part of the
        queue, so it may be empty though its `after` is not None. `wanted` are the filters of
        RequestFilters. `sort` is priority, submitted, waiting or state, with - in front if
        descending. Raises InvalidArgument, and TypeError for a wrong filter.
        """
        from fairlane.operations import find

        chosen = find.filter_of(**wanted)
        listing = find.list_requests(self.name, chosen, limit, after, sort)
        return self.driver.run(listing)

    def select(
        self,
        change: Change,
        ids: str | Iterable[str] | None = None,
        **wanted: Unpack[RequestChoice],
    ) -> Selection:
        """Returns the requests that `change` would change; len() counts them. Only reads.

        `ids` names them, or `wanted`, the filters of list_requests, chooses them in this queue. If
        neither is given, `everything` is required. Raises InvalidArgument, RequestNotFound.
        """
        from fairlane.operations.change import choose

        return self.driver.run(choose(self.name, change, ids, **wanted))

    def change(self, selected: Selection, report: ChangeReport | None = None) -> ChangeReport:
        """Makes the change; after an error `report` shows how far it came. A repeat is safe."""
        from fairlane.operations.change import apply

        return self.driver.run(apply(selected, report))

    def workers(self, limit: int = 1000) -> WorkerPage:
        """Returns at most `limit` workers, those with the newest beats; live ones come first."""
        from fairlane.operations import find

        return self.driver.run(find.list_workers(self.name, limit))

    def stacks(self, worker: str) -> WorkerCalls:
        """Returns the calls that a worker runs now, each with its stack, without ending one.

        The worker answers within about 3 s. Raises InvalidArgument, WorkerNotFound.
        """
        from fairlane.operations import orders

        return self.driver.run(orders.worker_calls(self.name, worker))

    def why(self, id: str) -> WhyWaiting:  # noqa: A002  the word of the API
        """Returns what holds up a request, its place and its start. Raises RequestNotFound."""
        return self.request(id).why()

    def errors(self, **wanted: Unpack[DeadFilters]) -> QueueErrors:
        """Returns the chosen dead sub-requests of all requests by failure; reads at most 100,000.

        Raises InvalidArgument.
        """
        from fairlane.model import DeadChoice
        from fairlane.operations import dead_letters

        choice = DeadChoice.of(**wanted)
        return self.driver.run(dead_letters.queue_errors(self.name, choice=choice))

    def demand(self) -> Demand:
        """Returns how many more leases workers could take now: a signal for autoscaling."""
        from fairlane.operations.estimate import demand

        return self.driver.run(demand(self.name))

    def snapshot(self) -> Snapshot:
        """Returns the state of the queue as a dashboard shows it, from one bounded read."""
        from fairlane.operations.observe import snapshot

        return self.driver.run(snapshot(self.name))

    def stats(self) -> dict[int, Measured]:
        """Returns priority -> what the workers measured: waited (ms) and ran (microseconds)."""
        from fairlane.operations.stats import read_stats

        return self.driver.run(read_stats(self.name))

    def tasks(self, *, by_release: bool = False) -> TaskPage:
        """Returns the tasks of the queue, up to 200, those first that need a person.

        `by_release`: what was measured of each task by release of the users' code.
        """
        from fairlane.operations.observe import snapshot
        from fairlane.operations.task_states import task_page

        found = self.driver.run(snapshot(self.name))
        return self.driver.run(task_page(found, by_release=by_release))

    def set_max_waiting(self, most: int) -> Bounds:
        """Bounds how many sub-requests may wait in this queue (0 = any number); counts them now.

        A submission above the bound waits up to its `max_wait`, then raises QueueFull. Returns
        (max_waiting, waiting). Raises InvalidArgument.
        """
        return self.driver.run(admission.set_max_waiting(self.name, most))

    def set_shards(self, count: int) -> ShardLayout:
        """Spreads this queue's lanes over `count` slots, on different primaries as far as possible.

        If `count` is 0, the queue has its own lanes. Workers read the change within a second;
        existing tokens are moved. Returns the new and the former shards. Raises InvalidArgument.
        """
        from fairlane.operations import shards

        self.driver.servers.forget_slots()  # the topology of a cluster is read again
        self.driver.run(shards.read_shards(self.name))
        wanted = shards.choose(self.name, count, self.driver.servers.node_lookup)
        return self.driver.run(shards.set_shards(self.name, wanted))

    def pause(self, *, for_s: float | None = None) -> QueuePause:
        """Pauses this queue: workers finish what they hold and take nothing; submissions go on.

        The pause ends after `for_s` seconds (at most a year), or if None, at `resume`. Workers
        follow within a second. Returns the pause. Raises InvalidArgument.
        """
        from fairlane.operations import pause as queue_pause

        return self.driver.run(queue_pause.pause_queue(self.name, for_s))

    def resume(self) -> bool:
        """Ends the pause of this queue; returns False if it was not paused."""
        from fairlane.operations import pause as queue_pause

        return self.driver.run(queue_pause.resume_queue(self.name))

    def set_rate(self, rate: str | None, burst: int | None = None) -> None:
        """Bounds how many sub-requests of this queue start, for example `100/s`; None = no rate.

        `burst` of them may start together after a pause, by default what the rate allows in 0.1 s.
        Workers use the rate within a second. Raises InvalidArgument.
        """
        from fairlane.operations import rates

        self.driver.run(rates.set_queue_rate(self.name, rate, burst))

    def keys(self, limit: int = 1000) -> KeyPage:
        """Returns at most `limit` keys of `limits=`, by name: what holds each and waits for it."""
        from fairlane.operations import limit_keys

        return self.driver.run(limit_keys.list_keys(self.name, limit))

    def key(self, name: str, *, order: bool = False) -> KeyState:
        """Returns what holds a key and waits for it. Raises InvalidArgument if it is not in use.

        A key of `limits=` comes before an `order_key` of the same name, unless `order`.
        """
        from fairlane.operations import limit_keys

        return self.driver.run(limit_keys.read_key(self.name, name, order=order))

    def resume_key(self, name: str) -> str | None:
        """Lets the requests behind a stop of an order key go on.

        Returns the request whose dead sub-requests had stopped them (`order_on_dead="stop"`), None
        if nothing had. Raises InvalidArgument.
        """
        from fairlane.operations import limit_keys

        return self.driver.run(limit_keys.resume_key(self.name, name))

    def set_key(self, name: str, limit: int | None) -> int | None:
        """Sets the limit of a key; None takes it back. Returns the limit before, if any.

        A limit that is taken back stays until nothing uses the key. Then the first request that
        names the key sets its limit. A higher limit starts work that waits. Leases above a lower
        limit end as ever. Submissions that name another limit are refused. Raises InvalidArgument.
        """
        from fairlane.operations import limit_keys

        return self.driver.run(limit_keys.set_key(self.name, name, limit))

    def close(self) -> None:
        """Closes the idle connections."""
        self.driver.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Queue {self.name} at {self.driver.place}>"
