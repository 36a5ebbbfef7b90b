"""Tests the support for containers: a Redis in one is like any other."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest
import redis

from fairlane import Queue, Worker
from tests.support.run.teardown import check_world
from tests.support.servers import containers, server_process
from tests.support.wait import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator


IN_CONTAINERS = pytest.mark.server


@pytest.fixture(scope="module")
def container() -> Iterator[containers.Container]:
    if reason := containers.no_engine():
        pytest.skip(reason)
    with contextlib.ExitStack() as later:
        try:
            server = later.enter_context(containers.run_redis())
        except LookupError as error:
            pytest.skip(str(error))
        yield server


def shout(body: bytes) -> bytes:
    return body.upper()


@IN_CONTAINERS
def test_a_request_is_worked_off_in_a_container(container: containers.Container):
    bodies = [f"line {number}" for number in range(500)]
    with Queue.from_url(container.url) as queue:
        request = queue.submit_request(bodies, limit=2)
        Worker(queue, shout, processes=2).run(until_idle=True)
        results = [(result.body or b"").decode() for result in request.results()]
        assert request.wait(timeout=PATIENCE_S) == "done"
    assert results == [body.upper() for body in bodies]
    with contextlib.closing(container.client()) as client:
        check_world(client)


@IN_CONTAINERS
def test_a_container_is_gone_when_its_block_ends(container: containers.Container):
    with containers.run_redis("--maxmemory", "64mb") as another:
        assert another.port != container.port
        with contextlib.closing(another.client()) as client:
            assert client.config_get("maxmemory")["maxmemory"] == "67108864"
    with contextlib.closing(another.client()) as client, pytest.raises(redis.ConnectionError):
        client.ping()


@IN_CONTAINERS
def test_an_image_that_is_not_to_be_had_is_named(
    container: containers.Container, monkeypatch: pytest.MonkeyPatch
):
    missing = "fairlane-local/there-is-no-such-image:0"
    monkeypatch.setenv(containers.IMAGE, missing)
    with pytest.raises(LookupError, match=missing), containers.run_redis():
        pass


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("unix:///nowhere/engine.sock", "No such file"),
        ("tcp://127.0.0.1:9", "refused"),
        ("ssh://elsewhere", "neither"),
    ],
)
def test_without_an_engine_there_is_a_reason(url: str, why: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("DOCKER_HOST", url)
    reason = containers.no_engine() or ""
    assert url in reason
    assert why in reason


@pytest.mark.parametrize("redis_server", ["single"], indirect=True)
def test_a_socket_of_something_else_is_no_engine(
    redis_server: server_process.Server, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("DOCKER_HOST", redis_server.socket_url)
    assert "no container engine" in (containers.no_engine() or "")
