"""Tests the release of the users' code: of an app, of its worker, and in the statistics."""

from __future__ import annotations

import pytest

from fairlane import App, InvalidArgument, Queue, Worker
from fairlane.operations.stats import read_task_stats, releases
from fairlane.tasks.serve import workers_of
from tests.support.run.for_each import for_each

AWAY = "redis://127.0.0.1:1"


@pytest.fixture(autouse=True)
def no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FAIRLANE_RELEASE", raising=False)


@for_each("text", ["a b", "a:b", "x" * 65, "a\n", "é", 7])
def test_a_release_that_no_view_can_show_is_refused(text: object):
    with pytest.raises(InvalidArgument, match=r"release .* is not valid: up to 64 letters"):
        App("images", AWAY, release=text)  # type: ignore[arg-type]


def test_the_variable_names_the_release_of_apps_and_handlers_that_name_none(
    monkeypatch: pytest.MonkeyPatch,
):
    assert App("images", AWAY).release == ""
    monkeypatch.setenv("FAIRLANE_RELEASE", "2026.11.28")
    assert App("images", AWAY).release == "2026.11.28"
    assert App("images", AWAY, release="1.0").release == "1.0"
    monkeypatch.setenv("FAIRLANE_RELEASE", "a b")
    with pytest.raises(InvalidArgument, match="of FAIRLANE_RELEASE is not valid"):
        Worker(Queue.from_url(AWAY), bytes.upper)


def test_apps_of_one_queue_have_one_release():
    apps = [App("images", AWAY, release=name) for name in ("1.0", "1.1")]
    for number, app in enumerate(apps):
        app.task(name=f"t{number}")(_echo)
    with pytest.raises(InvalidArgument, match=r"the apps of queue images have the releases 1.0"):
        workers_of(apps)


def _echo(text: str) -> str:
    return text


def test_a_worker_reports_its_release_and_measures_its_tasks_by_it(redis_url: str):
    app = App("shop", redis_url, release="2026.11.28")
    task = app.task(_echo)
    calls = [task.submit("a") for _ in range(3)]
    seen = []

    def watch(counts: dict[str, int]) -> bool:
        seen.extend(app.queue.workers().workers[:1])
        return counts["done"] == 3

    (worker,) = workers_of([app])
    assert worker.run(watch=watch) == 0
    assert [call.result(timeout=1) for call in calls] == ["a"] * 3
    driver = app.queue.driver
    assert [one.name for one in driver.run(releases("shop"))] == ["2026.11.28"]
    stats = driver.run(read_task_stats("shop"))
    assert {of.release: one.ran.count for of, one in stats.items()} == {"2026.11.28": 3}
    assert {one.release for one in seen} == {"2026.11.28"}
    assert [one.task for one in app.queue.tasks(by_release=True).tasks] == ["_echo"]
