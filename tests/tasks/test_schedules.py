"""Tests `App.cron`: recurring tasks, which the workers of the app add to the queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fairlane import App, ArgumentsRefused, InvalidArgument
from fairlane.tasks.serve import workers_of

if TYPE_CHECKING:
    from collections.abc import Callable


def report(day: str = "today") -> str:
    return day


def names(app: App) -> list[str]:
    return [schedule.name for schedule in app.queue.schedules.list()]


def tidy(app: App) -> None:
    for name in names(app):
        app.queue.schedules.remove(name)


def test_a_worker_adds_the_schedules_of_its_app(app: App, work: Callable[[], int]):
    task = app.task(priority=2)(report)
    again = app.cron("0 7 * * mon-fri", tz="Europe/Berlin", kwargs={"day": "monday"})(task)
    assert again is task
    work()
    (schedule,) = app.queue.schedules.list()
    assert (schedule.name, schedule.tz, schedule.is_of_app) == ("report", "Europe/Berlin", True)
    assert schedule.bodies == (b'[1,"report",{"day":"monday"}]',)
    assert schedule.options == {"priority": 2, "task": "report"}
    tidy(app)


def test_a_worker_that_starts_again_keeps_the_tick_and_a_changed_line_replaces_it(
    app: App, work: Callable[[], int], redis_client: Any
):
    app.cron("0 7 * * *")(app.task(report))
    work()
    redis_client.zadd("{images}:ticks", {"report": 4_000_000_000_000})
    work()
    assert app.queue.schedules.list()[0].next_ms == 4_000_000_000_000
    other = App("images", app.url)
    other.cron("30 8 * * *")(other.task(report))
    workers_of([other])[0].run(until_idle=True)
    (moment,) = other.queue.schedules.list()[0].next()
    assert (moment.hour, moment.minute) == (8, 30)
    tidy(other)
    other.close()


def test_a_due_call_runs_on_the_worker(app: App, redis_client: Any):
    app.cron("* * * * * *", name="each-second")(app.task(report))
    (worker,) = workers_of([app])
    worker.run(watch=lambda counts: counts["done"] >= 2)
    ended = [end.id for end in app.queue.completions("0", follow=False)]
    assert len(ended) == len(set(ended)) >= 2
    assert all(one.startswith("images:each-second:20") for one in ended)
    tidy(app)
    redis_client.flushall()  # a call may wait


def test_a_schedule_that_no_app_names_goes_on_and_is_logged(
    app: App, work: Callable[[], int], worker_log: list[str]
):
    app.cron("0 7 * * *", name="old")(app.task(report))
    work()
    del app.schedules["old"]
    app.cron("0 7 * * *", name="new")(app.tasks["report"])
    work()
    assert sorted(names(app)) == ["new", "old"]
    (line,) = [line for line in worker_log if "schedule old" in line]
    assert line.endswith("fairlane schedule remove old --queue images removes it")
    tidy(app)


def test_a_wrong_schedule_of_a_task_is_refused_when_it_is_registered():
    app = App("images")
    task = app.task(report)
    with pytest.raises(InvalidArgument, match="is never due"):
        app.cron("0 0 31 2 *")
    with pytest.raises(InvalidArgument, match="'Mars' does not exist"):
        app.cron("0 0 * * *", tz="Mars")
    with pytest.raises(ArgumentsRefused):
        app.cron("0 0 * * *", kwargs={"dy": "x"})(task)
    with pytest.raises(InvalidArgument, match="args 5 of cron is not valid: a tuple such as"):
        app.cron("0 0 * * *", args=5)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match=r"kwargs .1. of cron is not valid: a dict such as"):
        app.cron("0 0 * * *", kwargs=[1])  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match=r"write @app.cron\(...\) above @app.task"):
        app.cron("0 0 * * *")(report)  # type: ignore[type-var]
    with pytest.raises(InvalidArgument, match="is of app images: register it there"):
        App("mail").cron("0 0 * * *")(task)
    app.cron("0 0 * * *")(task)
    with pytest.raises(InvalidArgument, match="report is registered already: choose another name="):
        app.cron("0 1 * * *")(task)
    assert list(app.schedules) == ["report"]


def test_two_apps_of_a_queue_share_no_name_of_a_schedule():
    apps = [App("images", "redis://127.0.0.1:1"), App("images", "redis://127.0.0.1:1")]
    for number, app in enumerate(apps):
        app.cron("0 0 * * *", name="daily")(app.task(name=f"report{number}")(report))
    with pytest.raises(InvalidArgument, match="two apps of queue images have a schedule daily"):
        workers_of(apps)
