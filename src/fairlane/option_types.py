"""The types of a request's options, and the fields that Redis stores of them.

Generated from options_table.py by `make generate`: do not edit it. A duration is a number of
seconds, text such as "500ms", "30s", "5m" or "24h", or a timedelta.
"""

from __future__ import annotations

from collections.abc import (  # noqa: TC003  typing.get_type_hints reads these
    Callable,
    Iterable,
    Mapping,
)
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypedDict

from fairlane import settings
from fairlane.common.rate import Rate  # noqa: TC001
from fairlane.common.xid import Key  # noqa: TC001

Duration = float | str | timedelta


class RequestOptions(TypedDict, total=False):
    """The options of a request; each may be left out.

    Attributes:
        priority: The lane: 0 is first, 99 is last (0 to 99).
        limit: At most so many workers hold parts of it at a time (1 to 10,000).
        limits: At most so many leases at a time over all requests of the queue that name the key
            (up to 3).
        order_key: Requests of the queue with this key run one after the other, in their order.
        order_on_dead: Whether those behind a request that has dead sub-requests go on (else: stop)
            (go_on, stop).
        attempts: How often a sub-request is tried before it is dead (1 to 100).
        backoff: Pause before another attempt, shortest..longest; 1s means 1s..1s (0s to 24h).
        lease: How long a worker that sends no heartbeat keeps its work (1s to 24h).
        retain: How long results stay after the end; with 0s only the counts (0s to 366d).
        remember: How long its id is known after the end, also without results; 0s = as long as
            these (1s to 366d).
        deadline: A sub-request that has not started so long from now is dead; 0s = no deadline (1ms
            to 366d).
        time_limit: A longer call of the handler is stopped, and the attempt fails; 0s = no limit
            (1ms to 24h).
        durable: So many replicas must confirm each write (0 to 16).
        delay: Nothing starts before this time is over (0s to 366d).
        run_at: Nothing starts before this time, as 2026-12-24T18:00+01:00.
        rate: At most so many sub-requests start in a time: 100/s, 30/m or 5/h.
        burst: So many may start together after a pause; without it, what the rate has in 0.1 s (1
            to 1,000,000).
        rate_key: Requests of the queue with the same key, rate and burst share the rate.
        weight: Each sub-request counts so much at the rate (1 to 1,000,000).
        tags: A name by which requests are found and changed together (up to 20).
        tenant: The customer or team: tenants of one priority get equal time.
        share: The tenant gets so many times as much time as a tenant with 1 (1 to 999).
        ageing: If nothing of it has started for this time, one slice goes first; 0s = never (1s to
            24h).
        on_duplicate: What happens if its id has another request that runs, or began less than the
            window ago (keep, replace, debounce).
        window: A request of the same id that began within this time counts for on_duplicate (0s to
            366d).
        after: The id of a request that must be done before (up to 100).
        after_any_end: Any end of the requests of after is enough.
        distinct: Leave out a sub-request whose own id (a number, meta.id, else its hash) came
            before.
        task: The task that its sub-requests call; several ones may have counts.
        redact: A field of arguments and results that views and logs hide, at any depth (up to 20).
    """

    priority: int
    limit: int
    limits: Mapping[str, int]
    order_key: str
    order_on_dead: str
    attempts: int
    backoff: Duration | tuple[Duration, Duration]
    lease: Duration
    retain: Duration
    remember: Duration
    deadline: Duration
    time_limit: Duration
    durable: int
    delay: Duration
    run_at: datetime | str
    rate: str
    burst: int
    rate_key: str
    weight: int
    tags: str | Iterable[str]
    tenant: str
    share: int
    ageing: Duration
    on_duplicate: str
    window: Duration
    after: str | Iterable[str]
    after_any_end: bool
    distinct: bool | Key
    task: str | Iterable[str] | Mapping[str, int]
    redact: str | Iterable[str]


class SharedOptions(TypedDict, total=False):
    """The options that the requests of one call share; each may be left out.

    Attributes:
        priority: The lane: 0 is first, 99 is last (0 to 99).
        limits: At most so many leases at a time over all requests of the queue that name the key
            (up to 3).
        order_key: Requests of the queue with this key run one after the other, in their order.
        order_on_dead: Whether those behind a request that has dead sub-requests go on (else: stop)
            (go_on, stop).
        attempts: How often a sub-request is tried before it is dead (1 to 100).
        backoff: Pause before another attempt, shortest..longest; 1s means 1s..1s (0s to 24h).
        lease: How long a worker that sends no heartbeat keeps its work (1s to 24h).
        retain: How long results stay after the end; with 0s only the counts (0s to 366d).
        remember: How long its id is known after the end, also without results; 0s = as long as
            these (1s to 366d).
        deadline: A sub-request that has not started so long from now is dead; 0s = no deadline (1ms
            to 366d).
        time_limit: A longer call of the handler is stopped, and the attempt fails; 0s = no limit
            (1ms to 24h).
        durable: So many replicas must confirm each write (0 to 16).
        delay: Nothing starts before this time is over (0s to 366d).
        run_at: Nothing starts before this time, as 2026-12-24T18:00+01:00.
        rate: At most so many sub-requests start in a time: 100/s, 30/m or 5/h.
        burst: So many may start together after a pause; without it, what the rate has in 0.1 s (1
            to 1,000,000).
        rate_key: Requests of the queue with the same key, rate and burst share the rate.
        weight: Each sub-request counts so much at the rate (1 to 1,000,000).
        tags: A name by which requests are found and changed together (up to 20).
        tenant: The customer or team: tenants of one priority get equal time.
        share: The tenant gets so many times as much time as a tenant with 1 (1 to 999).
        ageing: If nothing of it has started for this time, one slice goes first; 0s = never (1s to
            24h).
        on_duplicate: What happens if its id has another request that runs, or began less than the
            window ago (keep, replace, debounce).
        window: A request of the same id that began within this time counts for on_duplicate (0s to
            366d).
        after: The id of a request that must be done before (up to 100).
        after_any_end: Any end of the requests of after is enough.
        distinct: Leave out a sub-request whose own id (a number, meta.id, else its hash) came
            before.
        task: The task that its sub-requests call; several ones may have counts.
        redact: A field of arguments and results that views and logs hide, at any depth (up to 20).
    """

    priority: int
    limits: Mapping[str, int]
    order_key: str
    order_on_dead: str
    attempts: int
    backoff: Duration | tuple[Duration, Duration]
    lease: Duration
    retain: Duration
    remember: Duration
    deadline: Duration
    time_limit: Duration
    durable: int
    delay: Duration
    run_at: datetime | str
    rate: str
    burst: int
    rate_key: str
    weight: int
    tags: str | Iterable[str]
    tenant: str
    share: int
    ageing: Duration
    on_duplicate: str
    window: Duration
    after: str | Iterable[str]
    after_any_end: bool
    distinct: bool | Key
    task: str | Iterable[str] | Mapping[str, int]
    redact: str | Iterable[str]


class ScheduleOptions(TypedDict, total=False):
    """The options of the requests of a schedule; each may be left out.

    Attributes:
        priority: The lane: 0 is first, 99 is last (0 to 99).
        limit: At most so many workers hold parts of it at a time (1 to 10,000).
        limits: At most so many leases at a time over all requests of the queue that name the key
            (up to 3).
        order_key: Requests of the queue with this key run one after the other, in their order.
        order_on_dead: Whether those behind a request that has dead sub-requests go on (else: stop)
            (go_on, stop).
        attempts: How often a sub-request is tried before it is dead (1 to 100).
        backoff: Pause before another attempt, shortest..longest; 1s means 1s..1s (0s to 24h).
        lease: How long a worker that sends no heartbeat keeps its work (1s to 24h).
        retain: How long results stay after the end; with 0s only the counts (0s to 366d).
        remember: How long its id is known after the end, also without results; 0s = as long as
            these (1s to 366d).
        deadline: A sub-request that has not started so long from now is dead; 0s = no deadline (1ms
            to 366d).
        time_limit: A longer call of the handler is stopped, and the attempt fails; 0s = no limit
            (1ms to 24h).
        durable: So many replicas must confirm each write (0 to 16).
        delay: Nothing starts before this time is over (0s to 366d).
        rate: At most so many sub-requests start in a time: 100/s, 30/m or 5/h.
        burst: So many may start together after a pause; without it, what the rate has in 0.1 s (1
            to 1,000,000).
        rate_key: Requests of the queue with the same key, rate and burst share the rate.
        weight: Each sub-request counts so much at the rate (1 to 1,000,000).
        tags: A name by which requests are found and changed together (up to 20).
        tenant: The customer or team: tenants of one priority get equal time.
        share: The tenant gets so many times as much time as a tenant with 1 (1 to 999).
        ageing: If nothing of it has started for this time, one slice goes first; 0s = never (1s to
            24h).
        task: The task that its sub-requests call; several ones may have counts.
        redact: A field of arguments and results that views and logs hide, at any depth (up to 20).
    """

    priority: int
    limit: int
    limits: Mapping[str, int]
    order_key: str
    order_on_dead: str
    attempts: int
    backoff: Duration | tuple[Duration, Duration]
    lease: Duration
    retain: Duration
    remember: Duration
    deadline: Duration
    time_limit: Duration
    durable: int
    delay: Duration
    rate: str
    burst: int
    rate_key: str
    weight: int
    tags: str | Iterable[str]
    tenant: str
    share: int
    ageing: Duration
    task: str | Iterable[str] | Mapping[str, int]
    redact: str | Iterable[str]


class StepOptions(TypedDict, total=False):
    """The options of the request of a step of a flow; each may be left out.

    Attributes:
        priority: The lane: 0 is first, 99 is last (0 to 99).
        limit: At most so many workers hold parts of it at a time (1 to 10,000).
        limits: At most so many leases at a time over all requests of the queue that name the key
            (up to 3).
        order_key: Requests of the queue with this key run one after the other, in their order.
        order_on_dead: Whether those behind a request that has dead sub-requests go on (else: stop)
            (go_on, stop).
        attempts: How often a sub-request is tried before it is dead (1 to 100).
        backoff: Pause before another attempt, shortest..longest; 1s means 1s..1s (0s to 24h).
        lease: How long a worker that sends no heartbeat keeps its work (1s to 24h).
        retain: How long results stay after the end; with 0s only the counts (0s to 366d).
        deadline: A sub-request that has not started so long from now is dead; 0s = no deadline (1ms
            to 366d).
        time_limit: A longer call of the handler is stopped, and the attempt fails; 0s = no limit
            (1ms to 24h).
        delay: Nothing starts before this time is over (0s to 366d).
        run_at: Nothing starts before this time, as 2026-12-24T18:00+01:00.
        rate: At most so many sub-requests start in a time: 100/s, 30/m or 5/h.
        burst: So many may start together after a pause; without it, what the rate has in 0.1 s (1
            to 1,000,000).
        rate_key: Requests of the queue with the same key, rate and burst share the rate.
        weight: Each sub-request counts so much at the rate (1 to 1,000,000).
        tenant: The customer or team: tenants of one priority get equal time.
        share: The tenant gets so many times as much time as a tenant with 1 (1 to 999).
        ageing: If nothing of it has started for this time, one slice goes first; 0s = never (1s to
            24h).
        task: The task that its sub-requests call; several ones may have counts.
        redact: A field of arguments and results that views and logs hide, at any depth (up to 20).
    """

    priority: int
    limit: int
    limits: Mapping[str, int]
    order_key: str
    order_on_dead: str
    attempts: int
    backoff: Duration | tuple[Duration, Duration]
    lease: Duration
    retain: Duration
    deadline: Duration
    time_limit: Duration
    delay: Duration
    run_at: datetime | str
    rate: str
    burst: int
    rate_key: str
    weight: int
    tenant: str
    share: int
    ageing: Duration
    task: str | Iterable[str] | Mapping[str, int]
    redact: str | Iterable[str]


class TaskOptions(TypedDict, total=False):
    """The options of a task; each may be left out.

    Attributes:
        limit: At most so many calls of the task run at a time, over all requests and machines (1 to
            10,000).
        batch_limit: At most so many workers run calls of one map, group or other request at a time;
            by default the task's limit, else 3 (1 to 10,000).
        limits: At most so many calls at a time over all requests of the queue that name the key, as
            customer-{customer_id} (up to 3).
        priority: The lane: 0 is first, 99 is last (0 to 99).
        order_key: Requests of the queue with this key run one after the other, in their order.
        order_on_dead: Whether those behind a request that has dead sub-requests go on (else: stop)
            (go_on, stop).
        attempts: How often a sub-request is tried before it is dead (1 to 100).
        backoff: Pause before another attempt, shortest..longest; 1s means 1s..1s (0s to 24h).
        lease: How long a worker that sends no heartbeat keeps its work (1s to 24h).
        retain: How long results stay after the end; with 0s only the counts (0s to 366d).
        remember: How long its id is known after the end, also without results; 0s = as long as
            these (1s to 366d).
        deadline: A sub-request that has not started so long from now is dead; 0s = no deadline (1ms
            to 366d).
        time_limit: A longer call of the handler is stopped, and the attempt fails; 0s = no limit
            (1ms to 24h).
        durable: So many replicas must confirm each write (0 to 16).
        delay: Nothing starts before this time is over (0s to 366d).
        run_at: Nothing starts before this time, as 2026-12-24T18:00+01:00.
        rate: At most so many sub-requests start in a time: 100/s, 30/m or 5/h.
        burst: So many may start together after a pause; without it, what the rate has in 0.1 s (1
            to 1,000,000).
        rate_key: Requests of the queue with the same key, rate and burst share the rate.
        weight: Each sub-request counts so much at the rate (1 to 1,000,000).
        tags: A name by which requests are found and changed together (up to 20).
        tenant: The customer or team: tenants of one priority get equal time.
        share: The tenant gets so many times as much time as a tenant with 1 (1 to 999).
        ageing: If nothing of it has started for this time, one slice goes first; 0s = never (1s to
            24h).
        after: The id of a request that must be done before (up to 100).
        after_any_end: Any end of the requests of after is enough.
        redact: A field of arguments and results that views and logs hide, at any depth (up to 20).
        max_wait: How long to wait while Redis or the queue is full (0s to 40m).
    """

    limit: int
    batch_limit: int
    limits: Mapping[str, int] | Callable[..., Mapping[str, int]]
    priority: int
    order_key: str
    order_on_dead: str
    attempts: int
    backoff: Duration | tuple[Duration, Duration]
    lease: Duration
    retain: Duration
    remember: Duration
    deadline: Duration
    time_limit: Duration
    durable: int
    delay: Duration
    run_at: datetime | str
    rate: str
    burst: int
    rate_key: str
    weight: int
    tags: str | Iterable[str]
    tenant: str
    share: int
    ageing: Duration
    after: str | Iterable[str]
    after_any_end: bool
    redact: str | Iterable[str]
    max_wait: Duration


class CallOptions(TypedDict, total=False):
    """The options of the request of one call of a task; each may be left out.

    Attributes:
        batch_limit: At most so many workers run calls of one map, group or other request at a time;
            by default the task's limit, else 3 (1 to 10,000).
        limits: At most so many calls at a time over all requests of the queue that name the key, as
            customer-{customer_id} (up to 3).
        priority: The lane: 0 is first, 99 is last (0 to 99).
        order_key: Requests of the queue with this key run one after the other, in their order.
        order_on_dead: Whether those behind a request that has dead sub-requests go on (else: stop)
            (go_on, stop).
        attempts: How often a sub-request is tried before it is dead (1 to 100).
        backoff: Pause before another attempt, shortest..longest; 1s means 1s..1s (0s to 24h).
        lease: How long a worker that sends no heartbeat keeps its work (1s to 24h).
        retain: How long results stay after the end; with 0s only the counts (0s to 366d).
        remember: How long its id is known after the end, also without results; 0s = as long as
            these (1s to 366d).
        deadline: A sub-request that has not started so long from now is dead; 0s = no deadline (1ms
            to 366d).
        time_limit: A longer call of the handler is stopped, and the attempt fails; 0s = no limit
            (1ms to 24h).
        durable: So many replicas must confirm each write (0 to 16).
        delay: Nothing starts before this time is over (0s to 366d).
        run_at: Nothing starts before this time, as 2026-12-24T18:00+01:00.
        rate: At most so many sub-requests start in a time: 100/s, 30/m or 5/h.
        burst: So many may start together after a pause; without it, what the rate has in 0.1 s (1
            to 1,000,000).
        rate_key: Requests of the queue with the same key, rate and burst share the rate.
        weight: Each sub-request counts so much at the rate (1 to 1,000,000).
        tags: A name by which requests are found and changed together (up to 20).
        tenant: The customer or team: tenants of one priority get equal time.
        share: The tenant gets so many times as much time as a tenant with 1 (1 to 999).
        ageing: If nothing of it has started for this time, one slice goes first; 0s = never (1s to
            24h).
        on_duplicate: What happens if its id has another request that runs, or began less than the
            window ago (keep, replace, debounce).
        window: A request of the same id that began within this time counts for on_duplicate (0s to
            366d).
        after: The id of a request that must be done before (up to 100).
        after_any_end: Any end of the requests of after is enough.
        redact: A field of arguments and results that views and logs hide, at any depth (up to 20).
        id: Its own id: the same submission again finds the same request.
        max_wait: How long to wait while Redis or the queue is full (0s to 40m).
    """

    batch_limit: int
    limits: Mapping[str, int] | Callable[..., Mapping[str, int]]
    priority: int
    order_key: str
    order_on_dead: str
    attempts: int
    backoff: Duration | tuple[Duration, Duration]
    lease: Duration
    retain: Duration
    remember: Duration
    deadline: Duration
    time_limit: Duration
    durable: int
    delay: Duration
    run_at: datetime | str
    rate: str
    burst: int
    rate_key: str
    weight: int
    tags: str | Iterable[str]
    tenant: str
    share: int
    ageing: Duration
    on_duplicate: str
    window: Duration
    after: str | Iterable[str]
    after_any_end: bool
    redact: str | Iterable[str]
    id: str
    max_wait: Duration


class ChangeOptions(TypedDict, total=False):
    """The options that can be changed of a request; each may be left out.

    Attributes:
        priority: The lane: 0 is first, 99 is last (0 to 99).
        limit: At most so many workers hold parts of it at a time (1 to 10,000).
        deadline: A sub-request that has not started so long from now is dead; 0s = no deadline (1ms
            to 366d).
        time_limit: A longer call of the handler is stopped, and the attempt fails; 0s = no limit
            (1ms to 24h).
        rate: At most so many sub-requests start in a time: 100/s, 30/m or 5/h.
        burst: So many may start together after a pause; without it, what the rate has in 0.1 s (1
            to 1,000,000).
        weight: Each sub-request counts so much at the rate (1 to 1,000,000).
        share: The tenant gets so many times as much time as a tenant with 1 (1 to 999).
    """

    priority: int
    limit: int
    deadline: Duration
    time_limit: Duration
    rate: str
    burst: int
    weight: int
    share: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyFields:
    """The fields of a policy that are options; times are in ms."""

    queue: str = settings.DEFAULT_QUEUE
    priority: int = 5
    limit: int = 3
    limits: tuple[tuple[str, int], ...] = ()
    order_key: str = ""
    order_on_dead: str = ""
    attempts: int = 5
    backoff_ms: tuple[int, int] = (1_000, 300_000)
    lease_ms: int = 30_000
    retain_ms: int = 86_400_000
    remember_ms: int = 0
    deadline_ms: int = 0
    time_limit_ms: int = 0
    durable: int = 0
    delay_ms: int = 0
    start_ms: int = 0
    rates: tuple[Rate, ...] = ()
    tags: tuple[str, ...] = ()
    tenant: str = ""
    share: int = 1
    ageing_ms: int = 0
    on_duplicate: str = ""
    window_ms: int = 0
    after: tuple[str, ...] = ()
    after_any_end: bool = False
    distinct: bool = False
    task: str = ""
    redact: tuple[str, ...] = ()
