"""Tests TLS: to one server, to a cluster, behind sentinels; and why one is refused."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING, Any

import pytest

from fairlane import aio, settings
from fairlane.common import clock
from fairlane.drivers.aio import AsyncDriver
from fairlane.errors import RedisUnfit, RedisUnreachable
from fairlane.protocol.steps import Batch, Command
from fairlane.queue import Queue
from tests.support.operations.drivers import both, run
from tests.support.run.event_loop import in_event_loop
from tests.support.scripts.requests import once, work_off
from tests.support.security import Security, load_scripts, make_security
from tests.support.servers.clusters import run_cluster
from tests.support.servers.sentinels import run_guarded
from tests.support.servers.server_process import HOST, Server, run_server
from tests.support.wait import PATIENCE_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.server


def made_in(folder: Path, **given: Any) -> Security:
    try:
        return make_security(folder, **given)
    except LookupError as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="module")
def security(tmp_path_factory: pytest.TempPathFactory) -> Security:
    return made_in(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def server(security: Security) -> Iterator[Server]:
    with run_server(security=security) as made:
        with contextlib.closing(made.client()) as client:
            load_scripts(client)
        yield made


def go_through(url: str) -> None:
    """Runs requests by both drivers, and a worker's part, as the least privileged user."""
    with Queue.from_url(url, patience_s=5) as queue:
        requests = [queue.submit_request([b"1", b"2"]) for _ in range(5)]
        assert len(work_off(queue.driver)) == 10
        assert {request.wait(timeout=PATIENCE_S) for request in requests} == {"done"}

    async def main() -> str:
        async with aio.Queue.from_url(url, patience_s=5) as queue:
            request = await queue.submit_request([b"1"])
            await request.cancel()
            return await request.wait(timeout=PATIENCE_S)

    assert asyncio.run(main()) == "cancelled"


def test_one_server(server: Server):
    assert server.url.startswith("rediss://")
    go_through(server.url)


def pinged(client: Any) -> int:
    """Returns how many PINGs it has answered, except those of logins."""
    return int(client.info("commandstats").get("cmdstat_ping", {}).get("calls", 0))


def test_replies_of_several_records_are_read_as_they_were_sent(server: Server):
    """TLS returns data piece by piece: after a handler that computed there are many pieces."""

    async def scene(client: Any) -> None:
        driver = AsyncDriver(server.url, patience_s=5)
        old, new = ([b"%b%02d" % (name, i) for i in range(16)] for name in (b"old", b"new"))
        try:
            assert await driver.run(once(Batch([Command(b"PING", word) for word in old]))) == old
            known = pinged(client)
            asked = [asyncio.create_task(driver.run(once(Command(b"PING", w)))) for w in new]
            await asyncio.sleep(0)  # they call; that is sent when the turn ends
            await asyncio.sleep(0)
            wait_until(lambda: pinged(client) >= known + len(new))  # nothing is read meanwhile
            assert await asyncio.gather(*asked) == new
        finally:
            await driver.close()

    with contextlib.closing(server.client()) as client:
        asyncio.run(scene(client))


@pytest.mark.rest
def test_a_cluster(security: Security):
    with run_cluster(3, 0, security=security) as cluster:
        for node in cluster.nodes:
            load_scripts(node.control)
        go_through(cluster.url)


@pytest.mark.rest
def test_a_master_behind_a_sentinel(security: Security):
    """The sentinel uses TLS, too, and has users of its own; they fail over as usual."""
    with run_guarded(security=security) as trio:
        for server in (trio.first, trio.second):
            with contextlib.closing(server.client()) as client:
                load_scripts(client)
        go_through(trio.url)
        trio.kill_the_master()
        go_through(trio.url)


@both
def test_a_server_whose_signer_is_unknown_is_refused_immediately(kind: str, server: Server):
    """Retries would not help; the sentence names the option that does."""
    url = server.url.partition("?")[0]
    with pytest.raises(RedisUnfit, match=r"certificate verify failed.*ssl_ca_certs=FILE"):
        run(kind, url, once(Command(b"TIME")), patience_s=600)


@pytest.mark.rest
@both
def test_a_server_of_another_name_is_refused_unless_the_url_allows_it(kind: str, tmp_path: Path):
    known = made_in(tmp_path, names="DNS:elsewhere.example")
    with run_server(security=known) as server:
        with pytest.raises(RedisUnfit, match="certificate verify failed: IP address mismatch"):
            run(kind, server.url, once(Command(b"TIME")), patience_s=600)
        url = f"{server.url}&ssl_check_hostname=false"
        assert run(kind, url, once(Command(b"TIME")), patience_s=20)


@both
def test_a_server_that_speaks_no_tls_is_suspected(kind: str):
    """It never answers a client that uses TLS."""
    with socket.create_server((HOST, 0)) as mute:
        url = f"rediss://{HOST}:{mute.getsockname()[1]}"
        with pytest.raises(RedisUnreachable, match="does it speak TLS"):
            run(kind, url, once(Command(b"TIME")), patience_s=0, timeout_s=0.2)


@both
def test_a_server_without_tls_is_found_by_a_plain_ping_long_before_the_timeout(kind: str):
    """Redis waits for the rest of what it takes for a command, so the handshake has no end."""
    with run_server("single") as server:
        url = f"rediss://{HOST}:{server.port}"
        began = clock.mono_s()
        with pytest.raises(RedisUnfit, match="answers without TLS: begin the URL with redis inst"):
            run(kind, url, once(Command(b"TIME")), patience_s=600)
        assert clock.mono_s() - began < settings.SOCKET_TIMEOUT_S / 2


@both
def test_a_server_that_speaks_nothing_else_is_suspected(kind: str, server: Server):
    with pytest.raises(RedisUnreachable, match="then the URL begins with rediss"):
        run(kind, f"redis://{HOST}:{server.port}", once(Command(b"TIME")), patience_s=0)


@pytest.mark.rest
@both
def test_a_server_may_want_a_certificate_of_the_client(kind: str, security: Security):
    """It reports so, or closes the connection, whichever is read first."""
    with run_server("single", "--tls-auth-clients", "yes", security=security) as server:
        with pytest.raises((RedisUnfit, RedisUnreachable), match=r"certificate|CERTIFICATE"):
            run(kind, server.url, once(Command(b"TIME")), patience_s=0)
        own = f"ssl_certfile={security.folder}/client.crt&ssl_keyfile={security.folder}/client.key"
        assert run(kind, f"{server.url}&{own}", once(Command(b"TIME")), patience_s=20)


@pytest.mark.rest
@both
def test_a_user_of_a_cluster_with_a_wrong_password_is_refused(kind: str, security: Security):
    with run_cluster(1, 0, security=security) as cluster:
        url = cluster.url.replace("p%40ss", "wrong")
        with pytest.raises(RedisUnfit, match="check user and password"):
            run(kind, url, once(Command(b"TIME")), patience_s=600)


@in_event_loop
async def test_an_abandoned_line_leaves_no_socket_behind(server: Server):
    """TLS waits for the other side's close, which the end of the event loop would cut off."""
    driver = AsyncDriver(server.url, patience_s=5)
    try:
        line: Any = await (await driver.servers.lines_for(None)).take()
        socket_of_it = line._writer.transport._ssl_protocol._transport
        await line.disconnect(nowait=True)
        assert socket_of_it.is_closing()
    finally:
        await driver.close()
