"""Tests how a driver finds and follows its server: Sentinel, retries, connections."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from fairlane import settings
from fairlane.common import clock
from fairlane.drivers import error_mapping
from fairlane.drivers.aio import AsyncDriver
from fairlane.errors import RedisUnfit, RedisUnreachable
from fairlane.protocol.steps import Command
from fairlane.queue import Queue
from tests.support.operations.drivers import both, perform, run
from tests.support.scripts.requests import once
from tests.support.servers.sentinels import NAME, run_guarded
from tests.support.wait import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable

    import redis


# ------------------------------------------------------------------ Sentinel


async def write_around(change: Callable[[], None]) -> list[Any]:
    """Writes on the master and reads where; does the same again after a change."""
    said = []
    for step in (change, None):
        await Command(b"SET", "{a}:0", "x", "PX", 60_000)
        said.append(str(await Command(b"INFO", "server")).partition("tcp_port:")[2])
        if step is not None:
            step()
    return [int(text.partition("\\r")[0]) for text in said]


@pytest.mark.server
@both
@pytest.mark.parametrize("how", ["demote_the_master", "kill_the_master"])
def test_a_sentinels_master_is_reached_and_followed(kind: str, how: str):
    """Both drivers follow a demoted or dead master; the operation is not affected."""
    with run_guarded() as trio:
        ports = run(kind, trio.url, write_around(getattr(trio, how)), patience_s=PATIENCE_S)
        assert ports == [trio.first.port, trio.second.port]


@pytest.mark.server
def test_a_queue_behind_a_sentinel_takes_requests():
    """Its scripts run on the master, and its url names no server but the sentinel."""
    with run_guarded() as trio, Queue.from_url(trio.url) as queue:
        request = queue.submit_request([b"1", b"2"])
        assert request.progress().total == 2
        trio.demote_the_master()
        assert request.cancel()
        assert request.wait(timeout=PATIENCE_S) == "cancelled"


@both
def test_a_sentinel_that_does_not_run_is_unreachable(kind: str):
    url = f"redis+sentinel://:secret@127.0.0.1:1,127.0.0.1:2/{NAME}"
    shown = f"redis\\+sentinel://:\\*\\*\\*@127.0.0.1:1,127.0.0.1:2/{NAME} "
    with pytest.raises(RedisUnreachable, match=shown) as raised:
        perform(kind, url, Command(b"TIME"))
    assert "secret" not in str(raised.value)
    assert str(raised.value).endswith(
        f"does not answer: No master found for '{NAME}', and a Sentinel did not answer; "
        "is it running?"
    )


@pytest.mark.rest
@pytest.mark.server
@both
@pytest.mark.parametrize("query", ["", "?sentinel_password=wrong"])
def test_a_sentinel_that_refuses_the_login_is_one_sentence(kind: str, query: str):
    """Retries do not help. redis-py's own text shows the objects of its clients."""
    with run_guarded() as trio:
        trio.sentinels[0].execute_command("ACL", "SETUSER", "default", "resetpass", ">sesame")
        with pytest.raises(RedisUnfit) as raised:
            run(kind, trio.url + query, once(Command(b"TIME")), patience_s=600)
    said = str(raised.value).replace("=***", "=wrong")
    assert said == (
        f"Redis at {trio.url}{query} is not known, because a Sentinel refused the login: "
        "check sentinel_username and sentinel_password in the URL"
    )


@pytest.mark.parametrize("cause", ["auth:AuthenticationError", "AuthenticationError('no')"])
def test_a_refused_login_is_found_in_the_texts_of_all_releases_of_redis_py(cause: str):
    text = f"No master found for 'mymaster' : Redis<ConnectionPool<...>> - {cause}"
    assert error_mapping.is_refusal(text)
    assert "sentinel_password" in error_mapping.why_refused(text)


def test_a_sentinel_with_an_unknown_certificate_is_no_refused_login():
    """The password is right, and redis-py's text of its clients is left out here, too."""
    cause = (
        "ConnectionError('Error 1 connecting to h:1. [SSL: CERTIFICATE_VERIFY_FAILED] self-signed')"
    )
    text = f"No master found for 'mymaster' : Redis<Pool(password=sesame)> - {cause}"
    assert error_mapping.is_refusal(text)
    said = error_mapping.why_refused(text)
    assert "a Sentinel offers no secure connection" in said
    assert "ssl_ca_certs" in said
    assert not {"sesame", "login"} & set(said.replace("=", " ").replace(")", " ").split())


# ------------------------------------------------------------------ patience


class FakeClock:
    """A clock that moves only when a test moves it."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def fake_clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    """Replaces the clock that measures durations."""
    made = FakeClock()
    monkeypatch.setattr("fairlane.common.clock.mono_s", made)
    return made


@pytest.mark.parametrize("try_s", [0.0, 0.4, 2.0])
def test_patience_ends_by_the_clock(fake_clock: FakeClock, try_s: float):
    began = fake_clock.now
    last_try = 0.0
    for pause in clock.connection_delays(5.0):
        assert fake_clock.now + pause <= began + 5.0 + 1e-6
        last_try = fake_clock.now = fake_clock.now + pause
        fake_clock.now += try_s
    assert last_try <= began + 5.0 + 1e-6
    assert began + 5.0 <= fake_clock.now <= began + 5.0 + try_s + 1e-6


def test_one_slow_try_may_use_up_all_patience(fake_clock: FakeClock):
    delays = clock.connection_delays(5.0)
    fake_clock.now += 4.9  # the first try
    assert 0 < next(delays) <= 0.02
    fake_clock.now += 0.1
    assert next(delays, None) is None
    delays = clock.connection_delays(5.0)
    fake_clock.now += 5.0
    assert next(delays, None) is None, "it was the first"


def test_no_patience_is_one_try(fake_clock: FakeClock):
    assert list(clock.connection_delays(0)) == []


def test_pauses_grow_to_a_second(fake_clock: FakeClock, monkeypatch: pytest.MonkeyPatch):
    """They double, with some jitter, and are no longer than what is left."""
    monkeypatch.setattr("random.uniform", lambda _low, high: high)
    pauses = []
    for pause in clock.connection_delays(4.0):
        pauses.append(round(pause, 3))
        fake_clock.now += pause
    assert pauses == [0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.0, 1.0, 0.74]


# ------------------------------------------------------------------ connections


@pytest.mark.parametrize("redis_server", ["single"], indirect=True)
def test_connections_do_not_run_out(redis_url: str, redis_client: redis.Redis):
    """Each wait has one of its own and closes it; redis-py's pool would end at a hundred."""
    with Queue.from_url(redis_url, patience_s=0) as queue:
        request = queue.submit_request([])
        for _ in range(300):
            assert request.wait(timeout=PATIENCE_S) == "done"
        connected = redis_client.info("clients")["connected_clients"]
        assert connected < 20


@pytest.mark.parametrize("redis_server", ["single"], indirect=True)
def test_connections_of_an_event_loop_do_not_run_out(redis_url: str):
    barrier = asyncio.Barrier(200)

    async def main() -> list[Any]:
        driver = AsyncDriver(redis_url, patience_s=0, timeout_s=settings.SOCKET_TIMEOUT_S)

        async def use() -> Any:
            line = await (await driver.servers.lines_for(None)).take()
            await barrier.wait()
            await line.disconnect()
            return line

        try:
            return await asyncio.gather(*(use() for _ in range(200)))
        finally:
            await driver.close()

    assert len(set(map(id, asyncio.run(main())))) == 200
