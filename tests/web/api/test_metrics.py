"""Tests GET /metrics: what Prometheus scrapes of a queue."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from fairlane.metrics import BANDS, QUEUE, UP
from fairlane.operations.stats import TaskMeasures, add_stats, add_task_stats
from fairlane.protocol.steps import Batch
from fairlane.web import metrics
from fairlane.web.waiting import Recent
from tests.operations.blockers.test_demand import BY_HAND, submit_all_kinds
from tests.support.processes.beats import beat
from tests.support.promtool import promtool
from tests.support.servers.server_process import run_server
from tests.support.wait import wait_until
from tests.web.serving import Serving

if TYPE_CHECKING:
    from fairlane.drivers.sync import SyncDriver
    from fairlane.queue import Queue
    from tests.cli.program import Program

Samples = dict[tuple[str, ...], float]


def scrape(serving: Serving) -> tuple[str, dict[str, Samples]]:
    """Returns the text, and name of a sample -> values of its labels but the queue -> value."""
    answer = serving.curl("/metrics")
    assert (answer.status, answer.headers["content-type"]) == (200, metrics.MEDIA)
    text, found = answer.body.decode(), dict[str, Samples]()
    kinds = {}
    for family in text_string_to_metric_families(text):
        kinds[family.name] = family.type
        for sample in family.samples:
            labels = dict(sample.labels)
            assert labels.pop("queue") == "req"
            found.setdefault(sample.name, {})[tuple(labels.values())] = sample.value
    known = {metric.family: metric.kind for metric in QUEUE}
    assert kinds.items() <= known.items()
    return text, found


def measured(driver: SyncDriver) -> None:
    """Makes two calls of one band, and a failed one: waited 3 and 100 ms, ran 50 us and 2 s."""
    one = add_stats("req", 12, {3: 1}, {50: 1}, {})
    other = add_stats("req", 17, {100: 1}, {2_000_000: 1}, {"failed": 1})

    tasks = add_task_stats("req", {"send_mail": TaskMeasures(Counter({50: 1, 2_000_000: 1}), 1)})

    async def send() -> Any:
        await Batch([*one, *other, *tasks])

    driver.run(send())


def test_a_scrape_is_valid_and_has_every_metric(serving: Serving, queue: Queue, driver: SyncDriver):
    submit_all_kinds(queue, driver)
    measured(driver)
    text, found = scrape(serving)
    promtool("check", "metrics", given=text)
    assert [one.name for one in QUEUE if not set(one.samples) <= found.keys()] == []
    for metric in QUEUE:
        assert f"# HELP {metric.name} {metric.help}\n" in text


def test_a_scrape_counts_as_by_hand(serving: Serving, queue: Queue, driver: SyncDriver):
    submit_all_kinds(queue, driver)
    beat(queue, "w:1", "3 leases; 4 units 20.000/s")
    _, found = scrape(serving)
    queue_wide = {name.removeprefix("fairlane_queue_"): one.get(()) for name, one in found.items()}
    assert queue_wide["demand"] == sum(BY_HAND.values())
    assert queue_wide["wanted"] == sum(BY_HAND.values()) + 3
    assert (queue_wide["up"], queue_wide["exact"], queue_wide["paused"]) == (1, 1, 0)
    assert (queue_wide["unfinished"], queue_wide["units"]) == (9, 4)
    given = serving.curl("/v1/demand").json
    assert (given["demand"], given["wanted"]) == (queue_wide["demand"], queue_wide["wanted"])
    states = {label: value for (label,), value in found["fairlane_queue_requests"].items()}
    assert states == {"active": 8, "paused": 1, "cancelling": 0, "expiring": 0}
    workers = {label: value for (label,), value in found["fairlane_queue_workers"].items()}
    assert workers == {"alive": 1, "busy": 1, "late": 0}
    assert found["fairlane_queue_running"][("0-9",)] == 3
    assert sum(found["fairlane_queue_waiting"].values()) == 79
    assert found["fairlane_queue_oldest_seconds"][("0-9",)] > 0
    assert found["fairlane_queue_oldest_seconds"][("90-99",)] == 0


def test_the_histograms_have_exact_counts(serving: Serving, driver: SyncDriver):
    measured(driver)
    _, found = scrape(serving)
    assert found["fairlane_queue_waited_seconds_count"] == {("10-19",): 2}
    assert found["fairlane_queue_waited_seconds_sum"] == {("10-19",): 0.103}
    waited = {
        end: count for (_, end), count in found["fairlane_queue_waited_seconds_bucket"].items()
    }
    assert [waited[end] for end in ("0.0", "0.003", "0.063", "0.255", "+Inf")] == [0, 1, 1, 2, 2]
    ran = {end: count for (_, end), count in found["fairlane_queue_ran_seconds_bucket"].items()}
    assert [ran[end] for end in ("6.3e-05", "1.048575", "4.194303", "+Inf")] == [1, 1, 2, 2]
    assert found["fairlane_queue_failed_total"] == {("10-19",): 1}
    assert found["fairlane_queue_task_done_total"] == {("send_mail",): 2}
    assert found["fairlane_queue_task_failed_total"] == {("send_mail",): 1}
    assert found["fairlane_queue_task_ran_seconds_total"] == {("send_mail",): 2.00005}


@pytest.mark.rest
def test_the_number_of_series_does_not_grow_with_priorities_and_tenants(
    serving: Serving, queue: Queue
):
    """It has all 100 priorities, and 1,000 tenants with a tag and a request each."""
    for priority in range(0, 100, 10):
        queue.submit_request(["a"], priority=priority, tenant="t", tags=["g"])
    before = {name: set(one) for name, one in scrape(serving)[1].items()}
    for number in range(1_000):
        name = f"t{number}"
        queue.submit_request(["a"], priority=number % 100, tenant=name, tags=[name])
    unfinished = "fairlane_queue_unfinished"
    wait_until(lambda: scrape(serving)[1][unfinished][()] == 1_010, why="a second has passed")
    _, found = scrape(serving)
    # The growth may be absent: it is not known until all requests were read.
    found.setdefault("fairlane_queue_growth", {(): 0.0})
    assert {name: set(one) for name, one in found.items()} == before
    assert set(found["fairlane_queue_waiting"]) == {(band,) for band in BANDS}
    assert found["fairlane_queue_exact"][()] == 0
    assert found["fairlane_queue_demand"][()] == 1_010
    wait_until(lambda: serving.curl("/v1/demand").json["is_exact"], why="a walk has ended")
    demand = serving.curl("/v1/demand").json
    assert (demand["demand"], demand["requests"], demand["age_ms"] < 60_000) == (1_010, 1_010, True)


@pytest.mark.rest
def test_a_scrape_while_redis_is_off_reports_that(program: Program):
    with run_server() as server:
        program.env["FAIRLANE_REDIS"] = server.url
        with Serving(program) as serving:
            assert scrape(serving)[1]["fairlane_queue_up"] == {(): 1}
            server.process.kill()
            server.process.wait()
            is_off = {UP.name: {(): 0.0}}
            wait_until(lambda: scrape(serving)[1] == is_off, why="the last read is a second old")
            text, _ = scrape(serving)
            promtool("check", "metrics", given=text)


def test_a_server_that_hangs_does_not_hold_a_scrape(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(metrics, "_MOST_S", 0.01)

    class Hanging:
        name = "req"

        async def snapshot(self) -> Any:
            await asyncio.Event().wait()

    class HangingSite:
        queue = Hanging()
        snapshots: Recent[Any]

    async def main() -> bytes:
        site = HangingSite()
        site.snapshots = Recent(site.queue.snapshot)
        answers = await asyncio.gather(*(metrics.metrics(site, None) for _ in range(3)))  # type: ignore[arg-type]
        assert len({bytes(one.body) for one in answers}) == 1
        return bytes(answers[0].body)

    assert b'fairlane_queue_up{queue="req"} 0.0' in asyncio.run(main())


def test_concurrent_scrapes_are_one_read(monkeypatch: pytest.MonkeyPatch):
    now = [100.0]
    monkeypatch.setattr("fairlane.common.clock.mono_s", lambda: now[0])
    reads: list[int] = []

    async def read() -> int:
        reads.append(len(reads))
        await asyncio.sleep(0)
        return reads[-1]

    async def main() -> None:
        recent = Recent(read)
        assert await asyncio.gather(*(recent.get() for _ in range(5))) == [0] * 5
        now[0] += 0.8
        assert await recent.get() == 0
        now[0] += 0.2
        assert await recent.get() == 1

    asyncio.run(main())


def test_a_long_read_rests_after_its_end_and_a_change_makes_it_anew(
    monkeypatch: pytest.MonkeyPatch,
):
    now, reads = [100.0], list[int]()
    monkeypatch.setattr("fairlane.common.clock.mono_s", lambda: now[0])

    async def main() -> None:
        async def read() -> int:
            reads.append(len(reads))
            now[0] += 20.0
            if len(reads) == 3:
                recent.forget()  # what was changed meanwhile may be missing in it
            return reads[-1]

        recent = Recent(read, rest_s=15.0)
        assert await recent.get() == 0
        now[0] += 14.9
        assert await recent.get() == 0
        recent.forget()
        assert await recent.get() == 1
        now[0] += 15.0
        assert [await recent.get(), await recent.get()] == [2, 3]

    asyncio.run(main())


def test_a_read_that_failed_is_read_again():
    results = iter([ConnectionError(), 7])

    async def read() -> Any:
        found = next(results)
        if isinstance(found, Exception):
            raise found
        return found

    async def main() -> None:
        recent = Recent(read)
        with pytest.raises(ConnectionError):
            await recent.get()
        assert await recent.get() == 7

    asyncio.run(main())


def test_a_scrape_needs_the_scope_view(program: Program):
    scopes = {"view": 200, "operate": 200, "submit": 403, "consume": 403}
    texts = {
        scope: program("token", "create", scope, "--scope", scope, "--file", "tokens").out.decode()
        for scope in scopes
    }
    with Serving(program, "--tokens", "tokens") as serving:
        assert serving.curl("/metrics").status == 401
        for scope, status in scopes.items():
            bearer = f"Authorization: Bearer {texts[scope].strip()}"
            assert serving.curl("-H", bearer, "/metrics").status == status
