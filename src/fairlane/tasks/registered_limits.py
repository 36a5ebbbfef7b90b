"""The limits of the tasks of a worker: sets them in Redis, and reports those that are others."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from fairlane.common import clock
from fairlane.errors import InvalidArgument
from fairlane.operations.limit_keys import TaskLimit, other_limits, register_tasks
from fairlane.protocol.keys import key_of_task

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fairlane.drivers.sync import SyncDriver
    from fairlane.tasks.keys import TaskKeys

_log = logging.getLogger("fairlane.worker")
_LOOK_S = 10.0  # between looks for the limits that other workers have set


class RegisteredLimits:
    """The limits of the tasks that a worker has; the last worker to register sets them.

    So a deployment changes a limit with the first worker of the new release. Workers of two
    releases that run side by side log that they differ.
    """

    def __init__(self, queue: str, keys: Iterable[TaskKeys]) -> None:
        self._queue = queue
        self._wanted = {one.task: one.limit or None for one in keys if _may_have_limit(one.task)}
        self._known = dict[str, TaskLimit]()  # what was logged of other workers
        self._looked = clock.mono_s()

    def register(self, driver: SyncDriver) -> None:
        """Sets the limits; logs those that were others."""
        try:
            changed = driver.run(register_tasks(self._queue, self._wanted))
        except InvalidArgument as error:  # no server has all keys
            names = ", ".join(task for task, limit in self._wanted.items() if limit)
            _log.warning("the limit of %s of queue %s is not set: %s", names, self._queue, error)
            return
        for one in changed:
            wanted = self._wanted[one.task]
            if one.is_set:
                _log.warning(
                    "task %s of queue %s keeps the limit %s, which was set by hand, and not %s: "
                    "fairlane key set task/%s unset --queue %s ends that",
                    *(one.task, self._queue, one.now, wanted, one.task, self._queue),
                )
            elif one.before is not None:
                _log.warning(
                    "task %s of queue %s has the limit %s now, before %s",
                    *(one.task, self._queue, wanted or "none", one.before),
                )

    def look(self, driver: SyncDriver) -> None:
        """Logs, once for each change, which limits another worker has set since."""
        now = clock.mono_s()
        if now - self._looked < _LOOK_S or not any(self._wanted.values()):
            return
        self._looked = now
        found = {one.task: one for one in driver.run(other_limits(self._queue, self._wanted))}
        for task, one in found.items():
            if self._known.get(task) != one:
                _log.warning(
                    "task %s of queue %s has the limit %s now, which another worker has set; the "
                    "release of this worker has %s",
                    *(task, self._queue, one.now or "none", self._wanted[task] or "none"),
                )
        self._known = found


def _may_have_limit(task: str) -> bool:
    try:
        key_of_task(task)
    except InvalidArgument:
        return False
    return True
