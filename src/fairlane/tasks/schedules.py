"""Tasks on a schedule: what App.cron registers, and what a worker of the app writes to Redis."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, TypeVar

from fairlane.errors import InvalidArgument, type_of
from fairlane.operations.schedules import Definition, check_schedule_name, define, register
from fairlane.tasks.task import Task

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from fairlane.drivers.sync import SyncDriver
    from fairlane.tasks.app import App

T = TypeVar("T", bound=Task[..., Any, Any])
_log = logging.getLogger("fairlane.worker")


def scheduler(
    app: App,
    name: str | None,
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None,
    given: dict[str, Any],
) -> Callable[[T], T]:
    """Returns the decorator of App.cron; `given` are the arguments of `define`."""
    define(bodies=[b"-"], **given)  # a wrong line is refused before its task is known

    def decorate(task: T) -> T:
        if not isinstance(task, Task):
            raise InvalidArgument(
                f"cron is given {type_of(task)}: write @app.cron(...) above @app.task"
            )
        if task.app is not app:
            raise InvalidArgument(
                f"task {task.name} is of app {task.app.name}: register it there, not at {app.name}"
            )
        own = check_schedule_name(app.name, task.name if name is None else name)
        if own in app.schedules:
            raise InvalidArgument(f"schedule {own} is registered already: choose another name=")
        body = task.encode_call(*args, **(kwargs or {}))
        options = {
            option: value
            for option, value in task.options.items()
            if option not in {"id", "max_wait_s"}  # of one submission
        }
        app.schedules[own] = define(bodies=[body], app=True, **given, **options)
        return task

    return decorate


def schedules_of(apps: Iterable[App]) -> dict[str, Definition]:
    """Returns the schedules of apps of one queue. Raises InvalidArgument: two have one name."""
    found: dict[str, Definition] = {}
    for app in apps:
        for name, definition in app.schedules.items():
            if name in found:
                raise InvalidArgument(
                    f"two apps of queue {app.name} have a schedule {name}: "
                    "give one of them another name="
                )
            found[name] = definition
    return found


def register_schedules(driver: SyncDriver, queue: str, wanted: dict[str, Definition]) -> None:
    """Writes the schedules of apps to Redis; logs those of apps that are not among them."""
    for name in driver.run(register(queue, wanted)):
        _log.warning(
            "schedule %s of queue %s goes on, but no app of this worker has it: "
            "fairlane schedule remove %s --queue %s removes it",
            *(name, queue, name, queue),
        )
