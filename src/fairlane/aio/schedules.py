"""The schedules of a queue in the asyncio API."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from fairlane import settings
from fairlane.operations import schedules
from fairlane.operations.schedules import DEFAULT_MISSED, Missed, Schedule, define

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fairlane.common.chunking import Body
    from fairlane.drivers.aio import AsyncDriver
    from fairlane.option_types import ScheduleOptions


class AsyncSchedules:
    """The schedules of a queue; Queue.schedules returns it. Workers of the queue keep them."""

    def __init__(self, driver: AsyncDriver, queue: str) -> None:
        self._driver, self._queue = driver, queue

    async def add(
        self,
        name: str,
        *,
        cron: str,
        bodies: Iterable[Body],
        tz: str = "UTC",
        missed: Missed = DEFAULT_MISSED,
        most: int = settings.MISSED_MOST,
        **options: Unpack[ScheduleOptions],
    ) -> Schedule:
        """Adds a schedule, or changes the one of this name: each tick submits one request.

        `cron` has five fields, `0 7 * * mon-fri`, or six with seconds first, in the zone `tz`.
        `bodies` are those of each request, up to 64 KiB together; `options` are those of
        submit_request. `missed` is for ticks while no worker lived: "skip", "one" (the latest), or
        "all", at most the latest `most`. An unchanged line keeps its next tick, and a paused
        schedule stays paused. Raises InvalidArgument, RedisError, and TypeError for a wrong option.
        """
        wanted = define(cron=cron, bodies=bodies, tz=tz, missed=missed, most=most, **options)
        return await self._driver.run(schedules.put_schedule(self._queue, name, wanted))

    async def list(self) -> list[Schedule]:
        """Returns all schedules, the next one first, paused ones last."""
        return await self._driver.run(schedules.list_schedules(self._queue))

    async def pause(self, name: str) -> Schedule:
        """Pauses a schedule: it submits nothing until it is resumed. Raises ScheduleNotFound."""
        return await self._driver.run(schedules.pause(self._queue, name))

    async def resume(self, name: str) -> Schedule:
        """Resumes a schedule; what was due meanwhile is not submitted. Raises ScheduleNotFound."""
        return await self._driver.run(schedules.resume(self._queue, name))

    async def remove(self, name: str) -> None:
        """Removes a schedule; requests of earlier ticks stay. Raises ScheduleNotFound."""
        await self._driver.run(schedules.drop_schedule(self._queue, name))
