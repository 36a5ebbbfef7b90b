"""Delivers the webhooks of a queue: one server at a time, each webhook independent of the others.

Events go out in their order. While one fails, its webhook waits: with a growing pause, and after a
day it is stopped until it is resumed.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import logging
import random
import secrets
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import TYPE_CHECKING

import msgspec

from fairlane import settings
from fairlane.common import clock
from fairlane.common.backoff import retry_delay_ms
from fairlane.errors import DataLost, FairlaneError
from fairlane.operations.completion import place, read_completions
from fairlane.operations.webhooks import begin_round, end_rounds, save
from fairlane.protocol.request_hash import read
from fairlane.web.v1.schemas import Ending, ending_of
from fairlane.web.webhooks.post import Posted, post

if TYPE_CHECKING:
    import httpx2

    from fairlane.aio.queue import Queue
    from fairlane.model import Completion
    from fairlane.operations.webhooks import Deliveries, Hook, Round
    from fairlane.protocol.steps import Operation

ROUND_S = 1.0  # between two looks at what is to be delivered
BACKOFF_MS = (5_000, 3_600_000)
GIVE_UP_MS = 24 * 3_600_000  # an event that fails for so long stops its webhook
_log = logging.getLogger(__name__)


class Event(msgspec.Struct):
    """What is posted: `type` is always request.ended, `timestamp` when it ended (ISO 8601).

    `tags_known` is false if the webhook wants tags, and the request is no longer kept. Then it is
    posted without knowing whether the request had them.
    """

    type: str
    timestamp: str
    queue: str
    data: Ending
    tags_known: bool = True


class Deliverer:
    """Posts what webhooks have not received yet, while this server has the lock."""

    def __init__(self, queue: Queue, *, to_private: bool = False) -> None:
        self._queue = queue
        self._to_private = to_private
        self._server = secrets.token_hex(8)
        self._at_work: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Delivers until it is cancelled; then another server may."""
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
        """Returns events behind the cursor; if the log has lost that place, all that it keeps."""
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
        if wanted.states and one.state not in wanted.states:
            return None
        ended = dt.datetime.fromtimestamp(one.ended_ms / 1000, dt.UTC).isoformat()
        event = Event("request.ended", ended, self._queue.name, ending_of(one))
        if not wanted.tags:
            return event
        tags = await self._queue.driver.run(_tags_of(one))
        if tags is None:
            event.tags_known = False
        elif {*wanted.tags} <= {*tags}:
            event.data.tags = tags
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
    """Returns what stands after a failed post: when it is repeated, or that it is given up."""
    since_ms = now.failing_since_ms or now_ms
    pause_ms = max(retry_delay_ms(now.attempts + 1, *BACKOFF_MS), int(posted.again_s * 1000))
    stopped = ""
    if posted.is_over:
        stopped = "the receiver answered 410: it wants no more events"
    elif now_ms - since_ms >= GIVE_UP_MS:
        stopped = f"it failed for {GIVE_UP_MS // 3_600_000} hours"
    return msgspec.structs.replace(
        now, pending=log_id, attempts=now.attempts + 1, failing_since_ms=since_ms,
        next_ms=now_ms + pause_ms, last_error=posted.error, stopped=stopped,
    )  # fmt: skip


def skipped(now: Deliveries, log_id: str) -> Deliveries:
    """Returns what stands behind an event that is not wanted; it may be the one that failed."""
    if now.pending and place(log_id) >= place(now.pending):
        now = _without_failure(now)
    return msgspec.structs.replace(now, cursor=log_id)


def _delivered(now: Deliveries, log_id: str) -> Deliveries:
    now = _without_failure(now)
    return msgspec.structs.replace(now, cursor=log_id, delivered=now.delivered + 1)


def _without_failure(now: Deliveries) -> Deliveries:
    return msgspec.structs.replace(
        now, pending="", attempts=0, failing_since_ms=0, next_ms=0, last_error=""
    )


def _is_due(hook: Hook, found: Round) -> bool:
    now = hook.deliveries
    has_more = place(found.newest) != place(now.cursor)
    return not now.stopped and has_more and now.next_ms <= found.now_ms


def id_of(queue: str, log_id: str) -> str:
    """Returns the id of an event: without a dot, because dots separate what is signed."""
    return f"{queue.replace('.', '~')}~{log_id}"  # no name has a ~


def _tags_of(one: Completion) -> Operation[tuple[str, ...] | None]:
    """Returns the tags of the life that ended; None if it is no longer kept."""
    born, tags = yield from read(one.id, "born", "tags")
    if born != str(one.submitted_ms):
        return None
    return tuple(filter(None, tags.split(",")))
