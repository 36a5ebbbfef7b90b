"""Submits a flow: its later steps are begun first, open and empty; then the first step is sent.

So a reader of the first step finds the others. At the end the producer gives each of them a cursor:
if a step that feeds it vanishes from then on, a leader stops the flow at its next look. If the
producer dies before, nothing feeds the open ones, and a leader gives them up after an hour.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from fairlane import settings
from fairlane.errors import FairlaneError, RedisUnreachable, RequestEnded
from fairlane.operations.batching import run_all
from fairlane.operations.create.intents import seen_to_exist
from fairlane.operations.flows.feed import run_of
from fairlane.operations.flows.hand_over import STOPPED, begin_feed, cancel_flow
from fairlane.operations.lease.tokens import reschedule_active
from fairlane.operations.submit.open_request import Submission, open_request
from fairlane.operations.submit.stream import submit
from fairlane.protocol import keys
from fairlane.protocol.request_hash import hmget, parse_fields, read
from fairlane.protocol.server_info import time_ms
from fairlane.protocol.steps import Batch, Command

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fairlane.operations.flows.steps import PlannedStep
    from fairlane.protocol.steps import Operation


def submit_flow(steps: Sequence[PlannedStep], max_wait_s: float = 0.0) -> Operation[int]:
    """Submits the caller's chunks to the first step; returns how many sub-requests it has.

    Repeatable with the same id, flow, properties and content. Raises what `submit` raises: nothing
    is left then, unless another producer of the id submitted the flow. Raises RequestEnded, and
    cancels the flow, if a later step was given up before the first one was there.
    """
    first, *later = steps
    begun: list[Submission] = []
    try:
        for step in reversed(later):
            opened = yield from open_request(
                step.id, step.policy, [], max_wait_s, settings.FED_OPEN_MS
            )
            begun.append(opened)
        total = yield from submit(first.id, first.policy, max_wait_s)
    except (GeneratorExit, RedisUnreachable):  # a repeat goes on, or they are given up
        raise
    except BaseException as error:
        with suppress(FairlaneError):  # the caller's own error is the one to raise
            yield from _take_back(first, begun, error)
        raise
    yield from _check_begun(first, later)
    for step in later:
        yield from begin_feed(step.id)
        yield from _look_soon(step)
    return total


def _check_begun(first: PlannedStep, later: Sequence[PlannedStep]) -> Operation[None]:
    """Raises RequestEnded if a later step ended before the first one could feed it."""
    rows = yield from run_all([hmget(one.id, "state", "reason") for one in later])
    for one, row in zip(later, rows, strict=True):
        state, reason = parse_fields(["state", "reason"], row)
        is_over = state in {"", "abandoned", "cancelled", "cancelling"}
        if is_over and not reason.startswith(STOPPED):  # else a result has stopped the flow
            why = f"flow: step {one.id} ended while the flow was being submitted"
            yield from cancel_flow(run_of(first.id), len(later) + 1, why)
            seen = f"{state or 'gone'} ({reason})" if reason else state or "gone"
            raise RequestEnded(
                f"step {one.id} was {seen} before its flow was submitted: the flow is cancelled, "
                "submit it with another id"
            )


def _look_soon(step: PlannedStep) -> Operation[None]:
    """Lets the leader look at a step now; an intent would be looked at only after its grace."""
    active = keys.active(step.policy.queue)
    score, time = yield Batch([Command(b"ZSCORE", active, step.id), Command(b"TIME")])
    now = time_ms(time)
    if score is not None and float(score) > now:
        row = [step.id, score, seen_to_exist(now)]
        yield reschedule_active(step.policy.queue, row)


def _take_back(
    first: PlannedStep, begun: list[Submission], error: BaseException
) -> Operation[None]:
    (state,) = yield from read(first.id, "state")
    if state in {"", "abandoned", "cancelled"}:
        for one in begun:
            yield from one.take_back(error)
