"""Tests doctor's checks of a queue at work: each names what happens, and the command against it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from fairlane.operations import dead_letters
from fairlane.operations.doctor import examine_queue
from fairlane.operations.incident_checks import INCIDENTS, work
from fairlane.operations.webhooks import Deliveries, add_webhook, begin_round, save
from fairlane.operations.workers import note_death, recent_deaths
from fairlane.protocol import keys
from fairlane.protocol.steps import Command
from tests.operations.find.test_failures import fail
from tests.support.scripts.requests import once
from tests.support.servers import backends

if TYPE_CHECKING:
    from fairlane.operations.check_result import Finding
    from fairlane.queue import Queue

ON_ONE = pytest.mark.parametrize("redis_server", backends.one(), indirect=True)


def examined(queue: Queue) -> dict[str, Finding]:
    """Returns what the checks of incidents find, by the name of the check."""
    return {
        one.check: one for check in INCIDENTS for one in queue.driver.run(check(queue.name, [None]))
    }


def beat(queue: Queue, worker: str = "w:1") -> None:
    """Writes a heartbeat of now."""
    seconds, _ = queue.driver.run(once(Command(b"TIME")))
    words = (b"ZADD", keys.workers(queue.name), int(seconds) * 1000 + 1000, worker)
    queue.driver.run(once(Command(*words)))


def test_a_queue_in_which_nothing_happens_has_no_finding(queue: Queue):
    queue.submit_request([b"x"])
    assert examined(queue) == {}


# ------------------------------------------------------------------ failures


def test_dead_sub_requests_are_a_warning_with_the_commands(queue: Queue):
    queue.submit_request([b"x"] * 3, id="r1", limit=1, task="send_mail")
    fail(queue, [("dead", "ValueError: bad 1"), ("dead", "ValueError: bad 2"), ("dead", "OSError")])
    found = examined(queue)["failures"]
    (group, _) = queue.errors().groups
    assert found.severity == "warn"
    assert found.what.startswith("3 sub-requests are dead, of 2 kinds, the latest one died ")
    assert found.what.endswith("; most often: ValueError: bad 1")
    assert found.remedy == (
        "fairlane errors; when its cause is removed, fairlane dead requeue --fingerprint "
        f"{group.fingerprint} --yes"
    )
    assert found.see == "docs/how-to/watch/at-night.md#a-bad-deployment"


def test_what_fails_and_has_no_result_is_a_warning_and_else_a_note(queue: Queue):
    queue.submit_request([b"x"] * 2, id="r1", limit=1, task="send_mail")
    fail(queue, [("retry", "ValueError: bad 1")] * 2)
    found = examined(queue)["retries"]
    assert found.severity == "warn"
    assert (
        "2 sub-requests of 1 request wait for another attempt, and none of them has" in found.what
    )
    assert "fairlane pause --task send_mail" in found.remedy
    queue.submit_request([b"x"] * 2, id="r2", limit=1)
    (one,) = queue.take(1, visible_for=60)
    one.done(b"a result")
    fail(queue, [("retry", "ValueError: bad 2")])
    assert examined(queue)["retries"].severity == "note"


def test_the_failures_of_a_queue_have_what_is_tried_again(queue: Queue):
    for name in ("r1", "r2"):
        queue.submit_request([b"x"] * 2, id=name, limit=1, task="send_mail")
        fail(queue, [("retry", "ValueError: bad 1")] * 2)
    errors = queue.errors()
    (found,) = errors.retries
    assert (errors.groups, found.headline, found.count) == ([], "ValueError: bad 1", 4)
    assert (found.requests, sorted(found.examples)) == (2, ["r1", "r2"])
    assert found.tasks == {"send_mail": None}
    for chosen, count in (
        ({"task": "send_mail"}, 1),
        ({"task": "resize"}, 0),
        ({"error": "BAD"}, 1),
        ({"error": "no such text"}, 0),
        ({"since": "1h"}, 1),
        ({"until": "1h"}, 0),
        ({"fingerprint": found.fingerprint}, 1),
        ({"fingerprint": "0" * 10}, 0),
    ):
        wanted: Any = chosen
        assert len(queue.errors(**wanted).retries) == count, chosen


# ------------------------------------------------------------------ growth, floods


def test_one_tenant_with_most_of_what_waits_is_a_warning(queue: Queue):
    queue.submit_request([b"x"] * 1_500, tenant="acme", priority=1)
    assert "tenants" not in examined(queue)  # no other one waits
    queue.submit_request([b"x"] * 300, tenant="bakery")
    found = examined(queue)["tenants"]
    assert found.what == "tenant acme has 1,500 of the 1,800 sub-requests that wait, in lane 1"
    assert found.remedy.startswith("fairlane set --tenant acme --priority 90 --yes ")
    queue.submit_request([b"x"] * 200, tenant="bakery")
    assert "tenants" not in examined(queue)


def test_work_that_waits_and_does_not_grow_is_no_finding(queue: Queue):
    beat(queue)
    queue.submit_request([b"x"] * 5_000)
    assert queue.driver.run(work(queue.name, [None])) == []


# ------------------------------------------------------------------ workers


def test_workers_of_a_host_that_die_again_and_again_are_a_warning(queue: Queue):
    run = queue.driver.run
    run(note_death(queue.name, "w:1", "5", "box1 a-part"))
    run(note_death(queue.name, "w:2", "6", "box2"))
    assert "flapping" not in examined(queue)
    run(note_death(queue.name, "w:1", "7", "box1"))
    run(note_death(queue.name, "w:1", "7", "box1"))  # a repeat is the same death
    assert examined(queue)["flapping"].what.startswith("workers of host box1 died 2 times within")
    deaths = run(recent_deaths(queue.name))
    assert {(one.worker, one.host, one.started_ms) for one in deaths} == {
        *(("w:1", "box1", 5), ("w:2", "box2", 6), ("w:1", "box1", 7)),
    }
    ttl = run(once(Command(b"PTTL", keys.deaths(queue.name))))
    assert 0 < ttl <= 3_600_000


# ------------------------------------------------------------------ keys


@ON_ONE
def test_a_full_key_is_a_note_that_names_the_holder(queue: Queue):
    queue.submit_request([b"x"], id="r1", limits={"bank": 1})
    (held,) = queue.take(1, visible_for=60)
    assert "keys" not in examined(queue)  # nothing waits for it
    queue.submit_request([b"x"], id="r2", limits={"bank": 1})
    found = examined(queue)["keys"]
    assert (found.severity, found.subject) == ("note", "key bank")
    assert found.what.startswith("is full: 1 of 1 held by r1; 1 waiting, the oldest for ")
    assert found.remedy.startswith(
        "fairlane stacks r1 shows what holds it, fairlane key set bank N"
    )
    held.done()
    assert "keys" not in examined(queue)


@ON_ONE
def test_a_stopped_order_is_bad_until_its_dead_run_again(queue: Queue):
    for name in ("r1", "r2"):
        queue.submit_request([b"x"], id=name, order_key="a", order_on_dead="stop", attempts=1)
    fail(queue, [("dead", "ValueError")])
    found = examined(queue)["orders"]
    assert (found.severity, found.subject) == ("bad", "order key a")
    assert found.what.startswith("is stopped by the dead of request r1; 1 request waits, ")
    assert found.remedy == (
        "fairlane dead requeue r1 --all runs them again, fairlane key resume a leaves them"
    )
    beat(queue)
    why = queue.why("r2")
    assert "`fairlane dead requeue r1 --all`" in why.causes[0].text
    assert why.estimate.why_not is not None
    assert why.estimate.why_not.startswith("an order that is stopped until a person lets it go on")
    queue.driver.run(dead_letters.requeue_dead("r1"))
    assert "orders" not in examined(queue)


# ------------------------------------------------------------------ schedules and webhooks


def test_an_overdue_schedule_is_bad_without_a_worker(queue: Queue):
    queue.schedules.add("daily", cron="0 7 * * *", bodies=[b"a"])
    assert "schedules" not in examined(queue)
    queue.driver.run(once(Command(b"ZADD", keys.schedules(queue.name)[1], b"XX", 1, b"daily")))
    found = examined(queue)["schedules"]
    assert (found.severity, found.subject) == ("bad", "schedule daily")
    assert found.remedy.startswith("start a worker: ")
    beat(queue)
    assert examined(queue)["schedules"].severity == "warn"


def test_webhooks_that_fail_are_stopped_or_are_not_served_are_found(queue: Queue):
    run = queue.driver.run
    hook = run(add_webhook(queue.name, "crm", "https://example.com/x"))
    assert "webhooks" not in examined(queue)  # there is no event yet
    words = (b"XADD", keys.completed(queue.name), b"*", b"id", b"r1", b"state", b"done")
    run(once(Command(*words)))
    assert examined(queue)["webhooks"].what.endswith("and no server delivers them")
    run(begin_round(queue.name, "server"))
    assert "webhooks" not in examined(queue)
    far = Deliveries(id=hook.webhook.id, cursor="0-0", attempts=2, last_error="status 500")
    run(save(queue.name, "crm", far))
    found = examined(queue)["webhooks"]
    assert (found.severity, found.subject) == ("warn", "webhook crm")
    assert found.what == "2 attempts failed: status 500"
    run(save(queue.name, "crm", msgspec.structs.replace(far, stopped="it failed for 24 hours")))
    assert examined(queue)["webhooks"].severity == "bad"


def test_a_check_that_fails_does_not_hide_the_others(queue: Queue):
    queue.schedules.add("daily", cron="0 7 * * *", bodies=[b"a"])
    run = queue.driver.run
    run(once(Command(b"HSET", keys.schedules(queue.name)[0], b"daily", b"no definition")))
    run(note_death(queue.name, "w:1", "5", "box1"))
    run(note_death(queue.name, "w:1", "6", "box1"))
    found = {one.check: one for one in run(examine_queue(queue.name))}
    assert "can't be read" in found["queue"].what
    assert {"workers", "flapping"} <= set(found)
