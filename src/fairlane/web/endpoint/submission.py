"""Submits for a caller of the API, whose right ends at what its own token has submitted."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fairlane.common.chunking import chunks_async
from fairlane.errors import RedisUnreachable, RequestNotFound
from fairlane.operations.audit_trail import begin
from fairlane.operations.batching import run_all
from fairlane.operations.schedules import is_of_tick
from fairlane.operations.submit import submit
from fairlane.options import id_for, policy_of
from fairlane.protocol import keys
from fairlane.protocol.steps import Command
from fairlane.tracing import sending
from fairlane.web.endpoint.problem import Refusal, refusal_of
from fairlane.web.endpoint.route import caller_of
from fairlane.web.endpoint.trail import Trail, entry_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.requests import Request

    from fairlane.common.chunking import Bodies
    from fairlane.operations.new_request import Other
    from fairlane.protocol.steps import Operation
    from fairlane.web.endpoint.site import Site

_ACTION = "POST /v1/requests"


async def submit_for(site: Site, call: Request, bodies: Bodies, **options: Any) -> tuple[str, int]:
    """Submits a request, which keeps the id of the caller's token; returns its id and its size.

    A request of the same id that another token has submitted is replaced only for a caller with
    the scope operate. The audit trail has an entry of what is replaced. Raises Refusal, and the
    errors of Queue.submit_request.
    """
    queue, caller = site.queue.name, caller_of(call)
    given = options.pop("id", None)
    with sending(queue) as span:
        policy = policy_of(queue, trace=span.trace, by=caller.id, **options)
        name = keys.check_name("request id", id_for(policy, given))
        if is_of_tick(name) and "operate" not in caller.scopes:
            raise Refusal(403, f"id {name} is one of a schedule's ticks: choose another id")
        replacing = _Replacing(site, call, policy.on_duplicate)
        await site.queue.driver.run(_check_own(queue, policy.after))
        run = submit(name, policy, guard=replacing.guard)
        async with replacing:
            try:
                total = await site.queue.driver.run(run, chunks_async(bodies))
            except RedisUnreachable as error:  # what this leaves open goes when Redis answers again
                if error.take_back is not None:
                    site.withdraw(error.take_back)
                raise
        span.sent(name, total)
    return name, total


class _Replacing:
    """Judges if the caller may replace another request, and records that in the audit trail."""

    def __init__(self, site: Site, call: Request, how: str) -> None:
        self._queue, self._caller = site.queue.name, caller_of(call)
        self._trail = Trail(site.queue, entry_of(call, _ACTION))
        self._how = how

    def guard(self, other: Other) -> Operation[None]:
        """Raises Refusal unless the caller may replace or continue this request."""
        if other.by != self._caller.id and "operate" not in self._caller.scopes:
            whose = "by another token" if other.by else "without a token"
            what = "continued" if other.is_same else "replaced"
            raise Refusal(
                403,
                f"request {other.id} was submitted {whose}: it is {what} for a token with the "
                "scope operate, so choose another id",
            )
        trail = self._trail
        if not other.is_same and not trail.began:  # it is asked again for the end of a cancel
            given = f"on_duplicate={self._how} replaces the request that began at {other.born} ms"
            trail.entry = replace(trail.entry, object=other.id, given=given)
            trail.began = yield from begin(self._queue, trail.entry)

    async def __aenter__(self) -> None:
        """Begins the submission."""

    async def __aexit__(self, _: object, error: BaseException | None, __: object) -> None:
        """Writes what came of it, if another request was replaced."""
        if self._trail.began:
            outcome = refusal_of(error) if isinstance(error, Exception) else Refusal(201, "")
            await self._trail.end(outcome.status, outcome.detail)


def _check_own(queue: str, names: Sequence[str]) -> Operation[None]:
    """Raises RequestNotFound for requests of another queue: the server has no others."""
    if not names:
        return
    homes = yield from run_all([Command(b"HGET", keys.request_hash(n), b"queue") for n in names])
    for name, home in zip(names, homes, strict=True):
        if home != queue.encode():
            raise RequestNotFound(
                f"there is no request {name} in queue {queue}: a request starts only after those "
                "of its own queue"
            )
