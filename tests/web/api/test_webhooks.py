"""Tests webhooks: every end is posted, signed, in order, despite crashes; failures are retried."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from fairlane import Queue, aio, settings
from fairlane.errors import InvalidArgument
from fairlane.operations import webhooks
from fairlane.operations.webhooks import Deliveries, check_url
from fairlane.web import webhooks as deliverer
from fairlane.web.webhooks import GIVE_UP_MS, Deliverer, Posted, failed, is_public, skipped
from tests.support.run.event_loop import in_event_loop
from tests.support.run.for_each import for_each
from tests.support.run.params import rest_but
from tests.support.wait import PATIENCE_S, wait_until
from tests.web.calls import end_one, is_problem, submit, take
from tests.web.receiver import Receiver, receiving
from tests.web.serving import Serving

if TYPE_CHECKING:
    from collections.abc import Iterator

    import redis

    from tests.cli.program import Program

PRIVATE = "--webhooks-to-private"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as running:
        yield running


def add(program: Program, receiver: Receiver, *options: str) -> str:
    """Adds a webhook; returns its secret."""
    return program("webhook", "add", "billing", receiver.url, *options).out.decode().strip()


def listed(program: Program) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(program("webhook", "list", "--json").out)
    return found


def let_retry(client: redis.Redis) -> None:
    """Makes the next attempt due now."""
    raw = json.loads(client.hget("hooks:{req}:progress", "billing") or b"")
    client.hset("hooks:{req}:progress", "billing", json.dumps({**raw, "next_ms": 0}))


def test_every_ending_is_posted_once_signed_and_in_order(program: Program, receiver: Receiver):
    secret = add(program, receiver)
    assert secret.startswith("whsec_")
    with Serving(program, PRIVATE) as serving:
        for name in ("r1", "r2", "r3"):
            end_one(serving, name)
        wait_until(lambda: receiver.ids == ["r1", "r2", "r3"])
        wait_until(lambda: listed(program)["delivered"] == 3)
        end_one(serving, "r4")
        wait_until(lambda: receiver.ids == ["r1", "r2", "r3", "r4"])
    first = receiver.received[0]
    assert all(one.is_signed_with(secret) for one in receiver.received)
    assert len({one.headers["webhook-id"] for one in receiver.received}) == 4
    assert not any("cookie" in one.headers for one in receiver.received)  # it sets one
    body = json.loads(first.body)
    assert (body["type"], body["queue"], body["data"]["state"]) == ("request.ended", "req", "done")
    assert secret not in program("webhook", "list").out.decode()


@pytest.mark.rest
def test_the_library_of_standard_webhooks_verifies_an_event(
    program: Program, receiver: Receiver, redis_client: redis.Redis
):
    from standardwebhooks.webhooks import Webhook, WebhookVerificationError

    made = program("webhook", "add", "billing", receiver.url, "--queue", "a.b")
    secret = made.out.decode().strip()
    with Serving(program, PRIVATE, "--queue", "a.b") as serving:
        end_one(serving, "r1")
        wait_until(lambda: receiver.ids == ["r1"])
    (one,) = receiver.received
    assert Webhook(secret).verify(one.body, one.headers)["data"]["id"] == "r1"
    with pytest.raises(WebhookVerificationError):
        Webhook(secret).verify(one.body + b" ", one.headers)
    assert one.headers["webhook-id"].startswith("a~b~")
    assert "." not in one.headers["webhook-id"]
    redis_client.delete("hooks:{a.b}", "hooks:{a.b}:progress")


@pytest.mark.rest
def test_an_ending_whose_tags_cannot_be_known_is_posted(
    program: Program, receiver: Receiver, redis_client: redis.Redis
):
    add(program, receiver, "--tag", "billing")
    with Serving(program) as serving:  # it posts nothing to an address of this machine
        for name, tags in (("gone", ["billing"]), ("again", ["billing"]), ("plain", [])):
            submit(serving, bodies=["x"], id=name, tags=tags)
            (taken,) = take(serving)
            serving.call("POST", f"/v1/taken/{taken['receipt']}/done")
        wait_until(lambda: listed(program)["attempts"])
    redis_client.delete("req:{gone}")
    assert program("delete", "again").code == 0
    with Serving(program, PRIVATE) as serving:
        submit(serving, bodies=["x"], id="again", delay="10m")  # another life, without the tag
        let_retry(redis_client)
        wait_until(lambda: receiver.ids == ["gone", "again"])
        submit(serving, bodies=["x"], id="sure", tags=["billing"])
        (taken,) = take(serving)
        serving.call("POST", f"/v1/taken/{taken['receipt']}/done")
        wait_until(lambda: receiver.ids == ["gone", "again", "sure"])
        serving.call("POST", "/v1/requests/again/cancel")
    events = [json.loads(one.body) for one in receiver.received[:3]]
    assert [one["tags_known"] for one in events] == [False, False, True]
    assert events[2]["data"]["tags"] == ["billing"]


def test_a_delivery_leaves_nothing_of_a_webhook_that_was_removed(
    redis_url: str, redis_client: redis.Redis
):
    with Queue.from_url(redis_url) as queue:
        run = queue.driver.run
        made = run(webhooks.add_webhook("req", "billing", "https://shop.example/"))
        run(webhooks.remove_webhook("req", "billing"))
        run(webhooks.save("req", "billing", made.deliveries))
    assert redis_client.keys("hooks:*") == []


@pytest.mark.rest
def test_nothing_is_missed_while_no_server_runs_or_one_is_killed(
    program: Program, receiver: Receiver
):
    add(program, receiver)
    with Serving(program) as without_delivery:
        end_one(without_delivery, "r1")
    serving = Serving(program, PRIVATE)
    wait_until(lambda: receiver.ids == ["r1"])
    serving.running.process.kill()
    serving.running.finish()
    program("submit", "-", "--id", "r2", stdin=b"a\n")
    program("cancel", "r2")
    with Serving(program, PRIVATE):  # it waits until the lock of the killed one is over
        wait_until(lambda: "r2" in receiver.ids)
    assert set(receiver.ids) == {"r1", "r2"}


@pytest.mark.rest
def test_only_one_of_several_servers_delivers(program: Program, receiver: Receiver):
    add(program, receiver)
    with Serving(program, PRIVATE) as serving, Serving(program, PRIVATE):
        names = [f"r{i}" for i in range(10)]
        for name in names:
            end_one(serving, name)
        wait_until(lambda: listed(program)["delivered"] == 10)
    assert receiver.ids == names


@pytest.mark.rest
def test_a_filter_chooses_states_and_tags(program: Program, receiver: Receiver):
    add(program, receiver, "--state", "cancelled", "--tag", "nightly")
    with Serving(program, PRIVATE) as serving:
        end_one(serving, "done")
        for name, tags in (("other", []), ("wanted", ["nightly", "x"])):
            submit(serving, id=name, bodies=["a"], tags=tags)
            serving.call("POST", f"/v1/requests/{name}/cancel")
        wait_until(lambda: receiver.ids == ["wanted"])


@pytest.mark.rest
def test_one_who_wants_failures_gets_the_repair_as_another_event(
    program: Program, receiver: Receiver
):
    add(program, receiver, "--state", "failed")
    with Serving(program, PRIVATE) as serving:
        end_one(serving, "done")
        submit(serving, id="r1", bodies=["a"])
        (taken,) = take(serving)
        serving.call("POST", f"/v1/taken/{taken['receipt']}/dead", {"reason": "no"})
        wait_until(lambda: receiver.ids == ["r1"])
        serving.call("POST", "/v1/requests/r1/dead/requeue", {"everything": True})
        (taken,) = take(serving)
        serving.call("POST", f"/v1/taken/{taken['receipt']}/done", {})
        wait_until(lambda: receiver.ids == ["r1", "r1"])
    first, second = receiver.received
    assert first.headers["webhook-id"] != second.headers["webhook-id"]
    events = [json.loads(one.body)["data"] for one in receiver.received]
    assert [(one["outcome"], one["reopened"]) for one in events] == [("failed", 0), ("repaired", 1)]


@pytest.mark.rest
@pytest.mark.parametrize("status", rest_but(1, zip([500, 302])))
def test_a_failed_post_waits_and_comes_again_with_the_same_id(
    program: Program, receiver: Receiver, redis_client: redis.Redis, status: int
):
    receiver.answers = [status, 204]
    add(program, receiver)
    with Serving(program, PRIVATE) as serving:
        end_one(serving, "r1")
        wait_until(lambda: listed(program)["state"] == "failing")
        found = listed(program)
        assert (found["attempts"], found["last_error"]) == (1, f"status {status}")
        assert found["next_ms"] > found["failing_since_ms"]
        let_retry(redis_client)
        wait_until(lambda: listed(program)["delivered"] == 1)
    first, second = receiver.received
    assert first.headers["webhook-id"] == second.headers["webhook-id"]
    assert (listed(program)["state"], listed(program)["attempts"]) == ("active", 0)


@pytest.mark.rest
def test_one_that_fails_delays_no_other(program: Program, receiver: Receiver):
    program("webhook", "add", "broken", "http://127.0.0.1:1/")
    add(program, receiver)
    with Serving(program, PRIVATE) as serving:
        end_one(serving, "r1")
        end_one(serving, "r2")
        wait_until(lambda: receiver.ids == ["r1", "r2"])


@pytest.mark.rest
def test_a_receiver_that_is_gone_stops_it_until_it_is_resumed(program: Program, receiver: Receiver):
    receiver.answers = [410, 204]
    add(program, receiver)
    with Serving(program, PRIVATE) as serving:
        end_one(serving, "r1")
        end_one(serving, "r2")
        wait_until(lambda: listed(program)["state"] == "stopped")
        assert "410" in listed(program)["stopped"]
        assert program("webhook", "resume", "billing", "--skip").out == b"resumed\n"
        wait_until(lambda: receiver.ids == ["r1", "r2"])


@pytest.mark.rest
def test_an_address_that_is_not_of_the_internet_is_refused(program: Program, receiver: Receiver):
    add(program, receiver)
    with Serving(program) as serving:
        end_one(serving, "r1")
        wait_until(lambda: listed(program)["state"] == "failing")
    assert "127.0.0.1 is not an address of the Internet" in listed(program)["last_error"]
    assert receiver.received == []


@for_each(
    "address",
    [
        *("127.0.0.1", "10.0.0.1", "192.168.1.1", "169.254.169.254", "0.0.0.0", "100.64.0.1"),
        *("::1", "fe80::1%eth0", "fd00::1", "::ffff:127.0.0.1", "2002:7f00:1::", "224.0.0.1"),
        *("2002:101:101::", "::ffff:1.1.1.1", "::7f00:1", "fec0::1", "64:ff9b::7f00:1"),
        *("64:ff9b::a9fe:a9fe", "64:ff9b::e000:1", "64:ff9b:1::1", "ff0e::1"),
    ],
)
def test_private_addresses_are_none_of_the_internet(address: str):
    assert not is_public(address)
    assert is_public("1.1.1.1")
    assert is_public("2606:4700::1111")
    assert is_public("64:ff9b::101:101")


@for_each(
    "url",
    [
        *("ftp://a.example/", "file:///etc/passwd", "http://", "a.example", "http://u:p@a.example"),
        *("http://a.example/#x", "http://a.example:0/", "http://a.example:99999/", "http://a b/"),
        *("http://[::1", f"http://a.example/{'x' * 2_048}", "http://a.example/\n"),
    ],
)
def test_a_url_that_cannot_be_called_is_refused(url: str):
    with pytest.raises(InvalidArgument, match="the webhook's URL"):
        check_url(url)


def test_pauses_grow_and_a_day_of_failures_is_the_end(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(deliverer, "retry_delay_ms", lambda n, low, high: min(high, low * 2**n))
    now, at_ms, pauses = Deliveries(id="a", cursor="0-0"), 1_000, list[int]()
    while not now.stopped:
        now = failed(now, "5-0", Posted("status 500"), at_ms)
        pauses.append(now.next_ms - at_ms)
        at_ms = now.next_ms
    assert pauses == sorted(pauses)
    assert pauses[-1] == 3_600_000
    assert at_ms - now.next_ms == 0
    assert GIVE_UP_MS <= at_ms - now.failing_since_ms <= GIVE_UP_MS + 2 * 3_600_000
    assert (now.cursor, now.pending, now.stopped) == ("0-0", "5-0", "it failed for 24 hours")
    assert failed(Deliveries(id="a", cursor="0"), "1-0", Posted("x", again_s=900), 0).next_ms >= 900


def test_a_pause_of_a_clock_that_went_back_is_over():
    at_ms = 10 * GIVE_UP_MS
    failing = failed(Deliveries(id="a", cursor="0-0"), "5-0", Posted("x", again_s=3_600), at_ms)
    assert not failing.is_due(at_ms)
    assert not failing.is_due(at_ms - 60_000)
    assert failing.is_due(at_ms - 180_000)
    assert failing.is_due(failing.next_ms)
    again = failed(failing, "5-0", Posted("x"), at_ms - 180_000)
    assert again.failing_since_ms == at_ms - 180_000
    assert not again.is_due(at_ms - 180_000)


@pytest.mark.parametrize("log_id", ["5-0", "6-0", "10-0"])
def test_an_event_that_is_wanted_no_more_takes_its_failures_along(log_id: str):
    failing = failed(Deliveries(id="a", cursor="0-0"), "5-0", Posted("status 500"), 1_000)
    assert skipped(failing, log_id) == Deliveries(id="a", cursor=log_id)
    before = skipped(failing, "4-9")
    assert before == msgspec.structs.replace(failing, cursor="4-9")


@in_event_loop
async def test_a_bug_ends_no_delivery_and_is_logged(
    redis_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    rounds = list[int]()
    third = asyncio.Event()

    async def round_of(_: Deliverer, __: object) -> float:
        rounds.append(1)
        if len(rounds) == 3:
            third.set()
        raise TypeError("a bug")

    monkeypatch.setattr(Deliverer, "_round", round_of)
    monkeypatch.setattr(settings, "POLL_S", 0.0)
    async with aio.Queue.from_url(redis_url) as queue:
        work = asyncio.create_task(Deliverer(queue).run())
        async with asyncio.timeout(PATIENCE_S):
            await third.wait()
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
    assert "TypeError: a bug" in caplog.text


@pytest.mark.rest
def test_they_are_managed_by_http_and_the_secret_is_shown_once(serving: Serving):
    given = {"name": "billing", "url": "https://a.example/hook", "states": ["done"]}
    made = serving.call("POST", "/v1/webhooks", given)
    assert made.status == 201
    assert made.json["secret"].startswith("whsec_")
    assert is_problem(serving.call("POST", "/v1/webhooks", given), 422, "is there already")
    (row,) = serving.curl("/v1/webhooks").json["webhooks"]
    assert row == {name: value for name, value in made.json.items() if name != "secret"}
    assert made.json["secret"] not in serving.curl("/v1/audit").body.decode()
    resumed = serving.call("POST", "/v1/webhooks/billing/resume", {})
    assert (resumed.status, resumed.json["state"]) == (200, "active")
    assert serving.curl("-X", "DELETE", "/v1/webhooks/billing").status == 204
    assert is_problem(serving.curl("-X", "DELETE", "/v1/webhooks/billing"), 404, "billing")
    for wrong in ({"url": "file:///x"}, {"states": ["lost"]}, {"name": "a b"}, {"tags": ["ä"]}):
        assert is_problem(serving.call("POST", "/v1/webhooks", {**given, **wrong}), 422)


def test_bad_words_are_refused(program: Program):
    program("webhook", "add", "a", "nowhere").refused(2, "URL is not valid")
    program("webhook", "remove", "a").refused(3, "webhook a is not in queue req")
    program("webhook", "resume", "a").refused(3, "webhook a is not in queue req")
    assert "has no webhooks" in program("webhook", "list").err


@for_each(
    "address",
    [
        "0.0.0.1",
        "10.1.1.1",
        "100.64.0.1",
        "127.0.0.1",
        "169.254.169.254",
        "172.31.0.1",
        "192.0.0.9",
        "192.0.0.170",
        "192.0.2.1",
        "192.31.196.1",
        "192.88.99.1",
        "192.168.1.1",
        "198.18.0.1",
        "198.51.100.1",
        "203.0.113.1",
        "224.0.0.1",
        "239.1.1.1",
        "240.0.0.1",
        "168.63.129.16",
        "255.255.255.255",
        "::",
        "::1",
        "::7f00:1",
        "::ffff:127.0.0.1",
        "::ffff:8.8.8.8",
        "100::1",
        "64:ff9b::7f00:1",
        "64:ff9b::a9fe:a9fe",
        "64:ff9b:1::808:808",
        "2001::1",
        "2001:db8::1",
        "2001:2::1",
        "2001:20::1",
        "2002:7f00:1::",
        "2002:808:808::1",
        "3fff::1",
        "4000::1",
        "5f00::1",
        "fc00::1",
        "fd00::1",
        "fe80::1%eth0",
        "fec0::1",
        "ff02::1",
        "2606:4700::5efe:7f00:1",
        "2606:4700::200:5efe:a00:1",
    ],
)
def test_a_special_address_is_not_one_of_the_internet(address: str):
    assert not is_public(address)


@for_each(
    "address",
    [
        "1.1.1.1",
        "8.8.8.8",
        "168.63.129.17",
        "192.0.1.1",
        "2606:4700::1111",
        "2a00::1",
        "64:ff9b::808:808",
    ],
)
def test_an_address_of_the_internet_may_be_called(address: str):
    assert is_public(address)
