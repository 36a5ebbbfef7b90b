"""Fairlane: a request queue on Redis with priorities, concurrency limits and nothing lost.

Most programs need `App`, whose tasks are functions with typed arguments and results. `Queue`,
`Worker` and `submit_request` are the level below, with bytes; `fairlane.aio` has the queue for
asyncio. Names are loaded at first use, so that importing the package costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fairlane.common.xid import xid
    from fairlane.errors import (
        AccessTokenNotFound,
        ArgumentsRefused,
        CallNotFound,
        CallShared,
        DataLost,
        DeadNotFound,
        FairlaneError,
        HandlerNotFound,
        InvalidArgument,
        NotDurable,
        QueueFull,
        ReceiptExpired,
        RedisError,
        RedisFull,
        RedisUnfit,
        RedisUnreachable,
        RequestClosed,
        RequestEnded,
        RequestExists,
        RequestLost,
        RequestNotEnded,
        RequestNotFound,
        ScheduleNotFound,
        SparkMissing,
        SubscriberNotFound,
        TaskCancelled,
        TaskError,
        TopicNotFound,
        WaitTimeout,
        WebhookNotFound,
        WorkerNotFound,
        WorkerRefused,
    )
    from fairlane.flows import FlowRun
    from fairlane.operations.change import Change
    from fairlane.operations.content_id import content_id
    from fairlane.operations.flow_branches import Fan, Next
    from fairlane.operations.flows import Branch, Child, Flow
    from fairlane.operations.observe import Snapshot
    from fairlane.operations.schedules import Schedule
    from fairlane.option_types import RequestOptions, SharedOptions
    from fairlane.queue import Queue
    from fairlane.records import Completion, Progress, Result
    from fairlane.request import OpenRequest, Request
    from fairlane.shortcut import submit_request
    from fairlane.tasks.app import App, TaskCall
    from fairlane.tasks.chain import chain, group
    from fairlane.tasks.executor import Executor
    from fairlane.worker import Context, Reject, Retry, Worker, batch_handler, time_limit

    __version__: str

_HOMES = {
    "AccessTokenNotFound": ".errors",
    "App": ".tasks.app",
    "ArgumentsRefused": ".errors",
    "Branch": ".operations.flows",
    "CallNotFound": ".errors",
    "CallShared": ".errors",
    "Change": ".operations.change",
    "Child": ".operations.flows",
    "Completion": ".records",
    "Context": ".worker",
    "DataLost": ".errors",
    "DeadNotFound": ".errors",
    "Executor": ".tasks.executor",
    "FairlaneError": ".errors",
    "Fan": ".operations.flow_branches",
    "Flow": ".operations.flows",
    "FlowRun": ".flows",
    "HandlerNotFound": ".errors",
    "InvalidArgument": ".errors",
    "Next": ".operations.flow_branches",
    "NotDurable": ".errors",
    "Progress": ".records",
    "Queue": ".queue",
    "QueueFull": ".errors",
    "ReceiptExpired": ".errors",
    "RedisError": ".errors",
    "RedisFull": ".errors",
    "RedisUnfit": ".errors",
    "RedisUnreachable": ".errors",
    "Reject": ".worker",
    "OpenRequest": ".request",
    "Request": ".request",
    "RequestClosed": ".errors",
    "RequestEnded": ".errors",
    "RequestExists": ".errors",
    "RequestLost": ".errors",
    "RequestNotEnded": ".errors",
    "RequestNotFound": ".errors",
    "RequestOptions": ".option_types",
    "Result": ".records",
    "Retry": ".worker",
    "Schedule": ".operations.schedules",
    "ScheduleNotFound": ".errors",
    "SharedOptions": ".option_types",
    "Snapshot": ".operations.observe",
    "SparkMissing": ".errors",
    "SubscriberNotFound": ".errors",
    "TaskCall": ".tasks.app",
    "TaskCancelled": ".errors",
    "TaskError": ".errors",
    "TopicNotFound": ".errors",
    "WaitTimeout": ".errors",
    "WebhookNotFound": ".errors",
    "Worker": ".worker",
    "WorkerNotFound": ".errors",
    "WorkerRefused": ".errors",
    "batch_handler": ".worker",
    "chain": ".tasks.chain",
    "content_id": ".operations.content_id",
    "group": ".tasks.chain",
    "submit_request": ".shortcut",
    "time_limit": ".worker",
    "xid": ".common.xid",
}

__all__ = [
    "AccessTokenNotFound",
    "App",
    "ArgumentsRefused",
    "Branch",
    "CallNotFound",
    "CallShared",
    "Change",
    "Child",
    "Completion",
    "Context",
    "DataLost",
    "DeadNotFound",
    "Executor",
    "FairlaneError",
    "Fan",
    "Flow",
    "FlowRun",
    "HandlerNotFound",
    "InvalidArgument",
    "Next",
    "NotDurable",
    "OpenRequest",
    "Progress",
    "Queue",
    "QueueFull",
    "ReceiptExpired",
    "RedisError",
    "RedisFull",
    "RedisUnfit",
    "RedisUnreachable",
    "Reject",
    "Request",
    "RequestClosed",
    "RequestEnded",
    "RequestExists",
    "RequestLost",
    "RequestNotEnded",
    "RequestNotFound",
    "RequestOptions",
    "Result",
    "Retry",
    "Schedule",
    "ScheduleNotFound",
    "SharedOptions",
    "Snapshot",
    "SparkMissing",
    "SubscriberNotFound",
    "TaskCall",
    "TaskCancelled",
    "TaskError",
    "TopicNotFound",
    "WaitTimeout",
    "WebhookNotFound",
    "Worker",
    "WorkerNotFound",
    "WorkerRefused",
    "__version__",
    "batch_handler",
    "chain",
    "content_id",
    "group",
    "submit_request",
    "time_limit",
    "xid",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return import_module(".settings", __name__).version()
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name], __name__), name)
