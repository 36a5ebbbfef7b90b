"""Tests that units which all wait for calls of their own queue are detected and named."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from fairlane import App
from fairlane.operations import doctor
from fairlane.operations.starved import starved
from fairlane.tasks.serve import workers_of
from fairlane.worker import awaited_calls
from tests.worker.parts import ON_SINGLE

if TYPE_CHECKING:
    from fairlane.queue import Queue


def findings(queue: Queue) -> list[Any]:
    found = queue.driver.run(doctor.examine_queue(queue.name))
    return [one for one in found if one.check == "units"]


@ON_SINGLE
@pytest.mark.parametrize("is_async", [False, True])
def test_a_task_that_waits_for_a_call_of_its_queue_while_no_unit_is_left_is_named(
    redis_url: str,
    is_async: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
):
    monkeypatch.setattr(awaited_calls, "_AFTER_S", 0.0)
    app = App("shop", redis_url)

    @app.task
    def child() -> int:
        return 7

    def parent() -> int:
        return child.submit().result(timeout=60)

    async def aparent() -> int:
        return await (await child.asubmit()).result(timeout=60)

    outer = app.task(name="outer")(aparent if is_async else parent)
    if is_async:
        app = _only_async(app)
    calls = [outer.submit() for _ in range(2)]
    queue, seen = app.queue, dict[str, Any]()

    def watch(_: dict[str, int]) -> bool:
        found = queue.driver.run(starved("shop"))
        if found is None or "no unit is left" not in caplog.text:
            return False
        seen.update(found=found, why=queue.why(found.requests[0]), doctor=findings(queue))
        for call in calls:
            call.cancel()
        for name in found.requests:
            queue.request(name).cancel()
        return True

    (worker,) = workers_of([app], concurrency=2, cancel_grace_s=0)
    assert worker.run(watch=watch) == 0
    found = seen["found"]
    assert (found.units, len(found.requests)) == (2, 2)
    assert found.text.startswith("2 units of the workers of queue shop, all there are, wait in ")
    assert seen["why"].causes[0].kind == "starved"
    assert seen["why"].causes[0].text == f"{found.text}: {found.remedy}"
    assert [(one.severity, one.what) for one in seen["doctor"]] == [("bad", found.text)]
    assert f"{found.text}: {found.remedy}" in caplog.text
    assert queue.driver.run(starved("shop")) is None


def _only_async(app: App) -> App:
    """Leaves the app with async tasks alone, so that the worker's units are asyncio tasks."""

    async def child() -> int:
        await asyncio.sleep(0)
        return 7

    found = App(app.name, app.url)
    found.tasks.update({name: task for name, task in app.tasks.items() if name == "outer"})
    found.task(name="child")(child)
    return found
