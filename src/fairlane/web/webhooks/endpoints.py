"""/v1/webhooks: where the endings of requests are posted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from starlette.responses import Response

from fairlane.operations import webhooks
from fairlane.web.endpoint.reading import document
from fairlane.web.endpoint.route import Endpoint, answer
from fairlane.web.endpoint.trail import trail_of

if TYPE_CHECKING:
    from starlette.requests import Request as Call

    from fairlane.operations.webhooks import Hook
    from fairlane.web.endpoint.site import Site


class NewWebhook(msgspec.Struct, forbid_unknown_fields=True):
    """A webhook for requests that end in one of `states` (done, cancelled) and have all `tags`."""

    name: str
    url: str
    states: list[str] = msgspec.field(default_factory=list)
    tags: list[str] = msgspec.field(default_factory=list)


class WebhookRow(msgspec.Struct, kw_only=True):
    """A webhook: `state` is active, failing or stopped; everything up to `cursor` was delivered.

    The next event failed `attempts` times, and is posted again at `next_ms`, unless it is stopped.
    """

    name: str
    url: str
    states: tuple[str, ...]
    tags: tuple[str, ...]
    state: str
    delivered: int
    cursor: str
    attempts: int
    failing_since_ms: int | None
    next_ms: int | None
    last_error: str
    stopped: str
    created_ms: int


class MadeWebhook(WebhookRow, kw_only=True):
    """A new webhook; `secret` verifies its signatures, and is not shown again."""

    secret: str


class WebhookList(msgspec.Struct):
    """The webhooks of the queue by name."""

    webhooks: list[WebhookRow]


class Resume(msgspec.Struct, forbid_unknown_fields=True):
    """Whether the event that failed is skipped."""

    skip: bool = False


async def list_webhooks(site: Site, _: Call) -> Response:
    """Lists the webhooks and how far each one is."""
    found = await site.queue.driver.run(webhooks.list_webhooks(site.queue.name))
    return answer(WebhookList([row_of(hook) for hook in found]))


async def add(site: Site, call: Call) -> Response:
    """Adds a webhook for requests that end from now on."""
    given = await document(call, NewWebhook)
    await trail_of(call).note(object_id=given.name, given=_summary(given))
    made = await site.queue.driver.run(
        webhooks.add_webhook(site.queue.name, given.name, given.url, given.states, given.tags)
    )
    row = msgspec.structs.asdict(row_of(made))
    return answer(MadeWebhook(**row, secret=made.webhook.secret), 201)


def _summary(given: NewWebhook) -> str:
    """Returns what was given, for the audit trail."""
    filters = {"states": given.states, "tags": given.tags}
    named = (f"{name}={','.join(values)}" for name, values in filters.items() if values)
    return " ".join((f"url={given.url}", *named))


async def resume(site: Site, call: Call) -> Response:
    """Posts the event that failed again now, also of a stopped webhook; or skips it."""
    given = await document(call, Resume)
    await trail_of(call).note(given=f"skip={given.skip}")
    name = call.path_params["name"]
    found = webhooks.resume_webhook(site.queue.name, name, skip=given.skip)
    return answer(row_of(await site.queue.driver.run(found)))


async def remove(site: Site, call: Call) -> Response:
    """Removes a webhook."""
    name = call.path_params["name"]
    await site.queue.driver.run(webhooks.remove_webhook(site.queue.name, name))
    return Response(status_code=204)


def row_of(hook: Hook) -> WebhookRow:
    """Returns a webhook as JSON has it, without its secret."""
    made, far = hook.webhook, hook.deliveries
    return WebhookRow(
        name=hook.name, url=made.url, states=made.states, tags=made.tags, state=hook.state,
        delivered=far.delivered, cursor=far.cursor, attempts=far.attempts,
        failing_since_ms=far.failing_since_ms or None, next_ms=far.next_ms or None,
        last_error=far.last_error, stopped=far.stopped, created_ms=made.created_ms,
    )  # fmt: skip


_ONE, _GROUP, _SCOPES = "/v1/webhooks/{name}", "Webhooks", ("admin",)
ENDPOINTS = (
    Endpoint(
        method="GET", path="/v1/webhooks", handle=list_webhooks, group=_GROUP, scopes=_SCOPES,
        summary="List the webhooks", gives=WebhookList,
    ),
    Endpoint(
        method="POST", path="/v1/webhooks", handle=add, group=_GROUP, scopes=_SCOPES,
        summary="Add a webhook", takes=NewWebhook, gives=MadeWebhook, status=201,
        refuses=(413, 415, 422), changes=True,
    ),
    Endpoint(
        method="POST", path=f"{_ONE}/resume", handle=resume, group=_GROUP, scopes=_SCOPES,
        summary="Resume a webhook", takes=Resume, gives=WebhookRow, refuses=(404, 413, 415, 422),
        changes=True,
    ),
    Endpoint(
        method="DELETE", path=_ONE, handle=remove, group=_GROUP, scopes=_SCOPES,
        summary="Remove a webhook", status=204, refuses=(404,), changes=True,
    ),
)  # fmt: skip
