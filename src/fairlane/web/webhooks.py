"""Posts the endings of requests to webhooks, which /v1/webhooks manages."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import datetime as dt
import hashlib
import hmac
import ipaddress
import logging
import random
import secrets
import socket
from dataclasses import replace
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

import msgspec
from starlette.responses import Response

from fairlane import settings
from fairlane.common import clock
from fairlane.common.clock import retry_delay_ms
from fairlane.common.text import exact, split_names
from fairlane.errors import DataLost, FairlaneError
from fairlane.operations import webhooks
from fairlane.operations.completion import place, read_completions
from fairlane.operations.webhooks import begin_round, check_url, end_rounds, key_of, save
from fairlane.protocol.request_hash import read
from fairlane.records import Completion
from fairlane.web.answers import answer
from fairlane.web.route import Endpoint, document
from fairlane.web.trail import trail_of

if TYPE_CHECKING:
    import httpx2
    from starlette.requests import Request as Call

    from fairlane.aio.queue import Queue
    from fairlane.operations.webhooks import Deliveries, Hook, Round, Webhook
    from fairlane.records import Completion
    from fairlane.web.app import Site


# ------------------------------------------------------------------ post
# Posts one event, signed as Standard Webhooks specifies, to an address that may be called.


CALL_S = 15.0  # of one post, from resolving the name to the answer's head
_ERROR_MOST = 200  # characters of an error
_GONE = 410  # the receiver wants no more events
_SLOW_DOWN = {429, 503}
_LONGEST_AFTER_S = 3_600
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
# The registries of special addresses (IANA): what Python has of them depends on its version.
_SPECIAL4 = [
    ipaddress.IPv4Network(text)
    for text in (
        *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16"),
        *("172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24", "192.31.196.0/24", "192.52.193.0/24"),
        *("192.88.99.0/24", "192.168.0.0/16", "192.175.48.0/24", "198.18.0.0/15"),
        *("198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4"),
        "168.63.129.16/32",  # not in a registry: Azure's services for the machine itself
    )
]
_PUBLIC6 = ipaddress.IPv6Network("2000::/3")  # all that is assigned
_SPECIAL6 = [
    ipaddress.IPv6Network(text)
    for text in ("2001::/23", "2001:db8::/32", "2002::/16", "2620:4f:8000::/48", "3fff::/20")
]
_ISATAP = {b"\x00\x00\x5e\xfe", b"\x02\x00\x5e\xfe"}


class Posted(NamedTuple):
    """The outcome of a post: no `error` = delivered; `is_over`: the receiver wants no more."""

    error: str = ""
    is_over: bool = False
    again_s: float = 0.0  # the receiver asks for a pause


def headers_of(webhook: Webhook, event_id: str, now_s: int, body: bytes) -> dict[str, str]:
    """Returns the three headers of Standard Webhooks, and the content's type."""
    signed = f"{event_id}.{now_s}.".encode() + body
    digest = hmac.new(key_of(webhook.secret), signed, hashlib.sha256).digest()
    return {
        "content-type": "application/json",
        "user-agent": "fairlane",
        "webhook-id": event_id,
        "webhook-timestamp": str(now_s),
        "webhook-signature": f"v1,{base64.b64encode(digest).decode()}",
    }


async def post(
    client: httpx2.AsyncClient, webhook: Webhook, event_id: str, now_s: int, body: bytes,
    *, to_private: bool,
) -> Posted:  # fmt: skip
    """Posts an event. Redirects are not followed, and the answer's content is not read."""
    import httpx2

    headers = headers_of(webhook, event_id, now_s, body)
    try:
        async with asyncio.timeout(CALL_S):
            parts = urlsplit(check_url(webhook.url))
            host = parts.hostname or ""
            port = parts.port or (443 if parts.scheme == "https" else 80)
            address = await _address(host, port, to_private=to_private)
            named = f"[{address}]" if ":" in address else address
            url = parts._replace(netloc=f"{named}:{port}").geturl()
            headers["host"] = parts.netloc
            extensions = {"sni_hostname": host}
            async with client.stream(
                "POST", url, content=body, headers=headers, extensions=extensions
            ) as response:
                return _outcome(response)
    except TimeoutError:
        return Posted(f"no answer in {exact(CALL_S)} s")
    except (OSError, ValueError, httpx2.HTTPError, httpx2.InvalidURL) as error:
        return Posted((str(error) or type(error).__name__)[:_ERROR_MOST])


def _outcome(response: httpx2.Response) -> Posted:
    if response.is_success:
        return Posted()
    after = response.headers.get("retry-after", "")
    again_s = 0
    if response.status_code in _SLOW_DOWN and after.isdecimal():
        again_s = min(int(after[:9]), _LONGEST_AFTER_S)
    return Posted(f"status {response.status_code}", response.status_code == _GONE, again_s)


async def _address(host: str, port: int, *, to_private: bool) -> str:
    """Returns an address of the host. The post goes there, even if the name changes meanwhile.

    Raises OSError if the host is unknown, or if its address must be of the Internet and is not.
    """
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = [str(one[4][0]) for one in found]
    for address in addresses:
        if to_private or is_public(address):
            return address
    named = host if host in addresses else f"{host} ({', '.join(addresses[:3])})"
    raise OSError(
        f"{named} is not an address of the Internet: "
        "fairlane serve --webhooks-to-private allows that"
    )


def is_public(address: str) -> bool:
    """Returns True for an address of the Internet, also if a gateway (NAT64) leads to it.

    Other IPv6 addresses that contain an IPv4 address are not public: nothing is called by them.
    """
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address):
        if found not in _NAT64:
            is_isatap = found.packed[8:12] in _ISATAP
            return (
                found in _PUBLIC6 and not is_isatap and not any(found in one for one in _SPECIAL6)
            )
        found = ipaddress.IPv4Address(found.packed[12:])
    return not any(found in one for one in _SPECIAL4)


# ------------------------------------------------------------------ deliverer
# Delivers the webhooks of a queue: one server at a time, each webhook independent of the others.
#
# Events go out in their order. While an event fails, its webhook waits, with a growing pause. After
# a day the webhook is stopped until a user resumes it.


ROUND_S = 1.0  # between two looks at what is to be delivered
BACKOFF_MS = (5_000, 3_600_000)
GIVE_UP_MS = 24 * 3_600_000  # an event that fails for so long stops its webhook
_log = logging.getLogger(__name__)


class Event(msgspec.Struct):
    """What is posted: `type` is always request.ended, `timestamp` when it ended (ISO 8601).

    `tags_known` is false if the webhook wants tags, but the request is no longer kept. Then the
    event is posted, because the request may have had the tags.
    """

    type: str
    timestamp: str
    queue: str
    data: Completion
    tags_known: bool = True


class Deliverer:
    """Posts what webhooks have not received yet, while this server has the lock."""

    def __init__(self, queue: Queue, *, to_private: bool = False) -> None:
        self._queue = queue
        self._to_private = to_private
        self._server = secrets.token_hex(8)
        self._at_work: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Delivers until it is cancelled; then another server may deliver."""
        import httpx2

        timeout = httpx2.Timeout(10.0)
        # All receivers share the client, so a cookie of one could reach another.
        cookies = CookieJar(DefaultCookiePolicy(allowed_domains=()))
        try:
            async with httpx2.AsyncClient(
                timeout=timeout, trust_env=False, cookies=cookies
            ) as client:
                while True:
                    pause_s = settings.POLL_S
                    try:
                        pause_s = await self._round(client)
                    except FairlaneError as error:
                        _log.warning("webhooks wait: %s", error)
                    except Exception:  # noqa: BLE001  a bug of one round must not end all others
                        _log.exception("webhooks wait")
                    await asyncio.sleep(pause_s * random.uniform(0.9, 1.0))
        finally:
            await self._end_all()
            with contextlib.suppress(FairlaneError):
                await self._queue.driver.run(end_rounds(self._queue.name, self._server))

    async def _round(self, client: httpx2.AsyncClient) -> float:
        """Begins what is due, and returns the seconds until the next look."""
        found = await self._queue.driver.run(begin_round(self._queue.name, self._server))
        if not found.is_own:
            await self._end_all()
            return settings.POLL_S
        wanted = {hook.webhook.id for hook in found.hooks if not hook.deliveries.stopped}
        for key in [key for key in self._at_work if key not in wanted]:
            self._at_work.pop(key).cancel()
        for hook in found.hooks:
            key = hook.webhook.id
            task = self._at_work.get(key)
            if task is not None and task.done():
                del self._at_work[key]
            if key not in self._at_work and _is_due(hook, found):
                work = self._deliver(client, hook, found.now_ms)
                self._at_work[key] = asyncio.create_task(work)
        return ROUND_S

    async def _end_all(self) -> None:
        tasks = [*self._at_work.values()]
        self._at_work.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _deliver(self, client: httpx2.AsyncClient, hook: Hook, now_ms: int) -> None:
        """Posts events until there are no more, or one fails."""
        began_s = clock.mono_s()
        now = hook.deliveries
        try:
            while not now.attempts or now is hook.deliveries:
                page, now = await self._page(now)
                if not page:
                    return
                for one in page:
                    event = await self._event_for(hook, one)
                    if event is None:
                        now = skipped(now, one.log_id)
                        continue
                    posted = await self._post(client, hook, event)
                    if posted.error:
                        late_ms = int((clock.mono_s() - began_s) * 1000)
                        now = failed(now, one.log_id, posted, now_ms + late_ms)
                        if now.stopped:
                            _log.warning("webhook %s is stopped: %s", hook.name, now.stopped)
                        break
                    now = _delivered(now, one.log_id)
                    await self._save(hook, now)
                await self._save(hook, now)
        except FairlaneError as error:  # the next round tries again
            _log.warning("webhook %s waits: %s", hook.name, error)
        except Exception:  # noqa: BLE001  as above
            _log.exception("webhook %s waits", hook.name)

    async def _page(self, now: Deliveries) -> tuple[list[Completion], Deliveries]:
        """Returns events behind the cursor; if the log has lost that place, all that are kept."""
        read = self._queue.driver.run
        try:
            return await read(read_completions(self._queue.name, now.cursor, 0)), now
        except DataLost as error:
            _log.warning("%s", error)
            lost = msgspec.structs.replace(now, last_error=str(error)[:200])
            return await read(read_completions(self._queue.name, "0", 0)), lost

    async def _event_for(self, hook: Hook, one: Completion) -> Event | None:
        """Returns the event to post, None if the filter does not accept it.

        Only a request that is kept has tags. An ending whose tags are not known is posted, because
        its receiver would miss it otherwise.
        """
        wanted = hook.webhook
        words = {one.state, one.outcome}
        if one.reopened:  # its receiver has an earlier end with dead
            words |= {"failed", "partly_failed"}
        if wanted.states and words.isdisjoint(wanted.states):
            return None
        ended = dt.datetime.fromtimestamp(one.ended_ms / 1000, dt.UTC).isoformat()
        event = Event("request.ended", ended, self._queue.name, one)
        if not wanted.tags:
            return event
        tags = await self._queue.driver.run(_tags_of(one))
        if tags is None:
            event.tags_known = False
        elif {*wanted.tags} <= {*tags}:
            event.data = replace(one, tags=tags)
        else:
            return None
        return event

    async def _post(self, client: httpx2.AsyncClient, hook: Hook, event: Event) -> Posted:
        body = msgspec.json.encode(event)
        event_id = id_of(self._queue.name, event.data.log_id)
        now_s = int(dt.datetime.now(dt.UTC).timestamp())
        return await post(client, hook.webhook, event_id, now_s, body, to_private=self._to_private)

    async def _save(self, hook: Hook, now: Deliveries) -> None:
        await self._queue.driver.run(save(self._queue.name, hook.name, now))


def failed(now: Deliveries, log_id: str, posted: Posted, now_ms: int) -> Deliveries:
    """Returns the state after a failed post: when it is repeated, or why the webhook stops."""
    since_ms = min(now.failing_since_ms or now_ms, now_ms)  # the clock may have gone back
    pause_ms = max(retry_delay_ms(now.attempts + 1, *BACKOFF_MS), int(posted.again_s * 1000))
    stopped = ""
    if posted.is_over:
        stopped = "the receiver answered 410: it wants no more events"
    elif now_ms - since_ms >= GIVE_UP_MS:
        stopped = f"it failed for {GIVE_UP_MS // 3_600_000} hours"
    return msgspec.structs.replace(
        now, pending=log_id, attempts=now.attempts + 1, failing_since_ms=since_ms,
        next_ms=now_ms + pause_ms, pause_ms=pause_ms, last_error=posted.error, stopped=stopped,
    )  # fmt: skip


def skipped(now: Deliveries, log_id: str) -> Deliveries:
    """Returns the state after an event that is not wanted, which may be the one that failed."""
    if now.pending and place(log_id) >= place(now.pending):
        now = _without_failure(now)
    return msgspec.structs.replace(now, cursor=log_id)


def _delivered(now: Deliveries, log_id: str) -> Deliveries:
    now = _without_failure(now)
    return msgspec.structs.replace(now, cursor=log_id, delivered=now.delivered + 1)


def _without_failure(now: Deliveries) -> Deliveries:
    return msgspec.structs.replace(
        now, pending="", attempts=0, failing_since_ms=0, next_ms=0, pause_ms=0, last_error=""
    )


def _is_due(hook: Hook, found: Round) -> bool:
    now = hook.deliveries
    has_more = place(found.newest) != place(now.cursor)
    return not now.stopped and has_more and now.is_due(found.now_ms)


def id_of(queue: str, log_id: str) -> str:
    """Returns the id of an event. It has no dot, because dots separate the signed parts."""
    return f"{queue.replace('.', '~')}~{log_id}"  # no name has a ~


async def _tags_of(one: Completion) -> tuple[str, ...] | None:
    """Returns the tags of the request that ended; None if it is no longer kept."""
    born, tags = await read(one.id, "born", "tags")
    if born != str(one.submitted_ms):
        return None
    return split_names(tags)


# ------------------------------------------------------------------ endpoints
# /v1/webhooks: where the endings of requests are posted.


class NewWebhook(msgspec.Struct, forbid_unknown_fields=True):
    """A webhook for requests that end in one of `states` and have all `tags`.

    `states` are done, failed, partly_failed, repaired and cancelled; done includes the three behind
    it. Each later end of a request that was reopened is posted for failed and partly_failed, too.
    """

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
    """Lists the webhooks, each with its state and its cursor."""
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
    """Returns the given values as text, for the audit trail."""
    filters = {"states": given.states, "tags": given.tags}
    named = (f"{name}={','.join(values)}" for name, values in filters.items() if values)
    return " ".join((f"url={given.url}", *named))


async def resume(site: Site, call: Call) -> Response:
    """Posts or skips the event that failed, now; resumes the webhook if it was stopped."""
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
        changes=True,
    ),
    Endpoint(
        method="POST", path=f"{_ONE}/resume", handle=resume, group=_GROUP, scopes=_SCOPES,
        summary="Resume a webhook", takes=Resume, gives=WebhookRow, refuses=(404,),
        changes=True,
    ),
    Endpoint(
        method="DELETE", path=_ONE, handle=remove, group=_GROUP, scopes=_SCOPES,
        summary="Remove a webhook", status=204, refuses=(404,), changes=True,
    ),
)  # fmt: skip
