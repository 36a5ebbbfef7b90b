"""Tests a user who may not load scripts, on a server without them: a wait, then an error."""

from __future__ import annotations

import re
import threading
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from fairlane.drivers.sync import driver_of_all
from fairlane.errors import RedisUnfit, ScriptsNotLoaded
from fairlane.operations import tokens
from fairlane.operations.script_loading import everywhere, look
from fairlane.protocol import keys, scripts
from fairlane.protocol.steps import Batch, Command
from tests.support.operations.drivers import both, run
from tests.support.scripts.requests import once
from tests.support.servers.users import Users, forget_scripts, servers_of
from tests.support.wait import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    import redis

    from tests.support.servers.backends import Backend

PATIENCE_S = 20.0


@pytest.fixture
def users(redis_server: Backend, redis_url: str) -> Iterator[Users]:
    """Makes users on servers that have no scripts."""
    made = Users(redis_url, servers_of(redis_server))
    forget_scripts(made.servers)
    yield made
    made.remove()


def load(url: str) -> None:
    """Does what `fairlane scripts load` does."""
    with closing(driver_of_all(url, patience_s=1, timeout_s=5)) as driver:
        for place in driver.run(everywhere("here")):
            assert driver.run(look(place, load=True)).is_well


def insertion(token: str) -> Any:
    names = (keys.delayed("req"), keys.lanes("req")[5])
    return scripts.insert_tokens(names, tokens=(5, 1, 0, token))


@both
def test_the_error_names_the_server_and_the_remedy(kind: str, users: Users):
    """It replaces the server's own text, which names a command that no caller sent."""
    worker = users.add("worker")
    ports = {str(one.connection_pool.connection_kwargs["port"]) for one in users.servers}
    with pytest.raises(ScriptsNotLoaded) as raised:
        run(kind, worker, once(insertion("a")), patience_s=0)
    said = re.fullmatch(
        r"scripts of this release are not loaded at 127\.0\.0\.1:(\d+) and this user "
        "may not load them: a deployer runs `fairlane scripts load`",
        str(raised.value),
    )
    assert said is not None
    assert said[1] in ports


@both
def test_a_call_goes_on_when_they_are_loaded(kind: str, users: Users, redis_client: redis.Redis):
    """They are loaded after the first refusal, which the server has counted."""
    worker, deployer = users.add("worker"), users.add("deployer")
    helper = threading.Thread(target=load_when_refused, args=(users.servers, deployer))
    helper.start()
    run(kind, worker, once(insertion("a")), patience_s=PATIENCE_S)
    helper.join()
    assert redis_client.lrange("{req}:5", 0, -1) == [b"a"]
    redis_client.delete("{req}:5")


def load_when_refused(servers: list[redis.Redis], deployer: str) -> None:
    wait_until(
        lambda: any(one.execute_command("ACL", "LOG") for one in servers), why="EVAL was refused"
    )
    load(deployer)


@both
def test_what_a_batch_has_popped_meanwhile_is_not_lost(
    kind: str, users: Users, redis_client: redis.Redis
):
    """Only the refused step is repeated."""
    worker, deployer = users.add("worker"), users.add("deployer")
    redis_client.lpush("{req}:5", "a")
    helper = threading.Thread(target=load_when_refused, args=(users.servers, deployer))
    helper.start()
    steps = [insertion("b"), tokens.pop("req", 50), Command(b"TIME")]
    _, popped, _ = run(kind, worker, once(Batch(steps)), patience_s=PATIENCE_S)
    helper.join()
    assert popped.tokens == [b"a"]
    assert redis_client.lrange("{req}:5", 0, -1) == [b"b"]
    redis_client.delete("{req}:5")


@both
def test_a_user_with_the_right_loads_missing_scripts(
    kind: str, users: Users, redis_client: redis.Redis
):
    run(kind, users.add("worker", "+eval"), once(insertion("a")), patience_s=0)
    assert redis_client.llen("{req}:5") == 1
    redis_client.delete("{req}:5")


@both
def test_a_right_that_is_missing_inside_a_script_is_another_sentence(kind: str, users: Users):
    url = users.add("worker", "+eval", "-lpush")
    with pytest.raises(RedisUnfit, match="`fairlane acl` lists what a role needs"):
        run(kind, url, once(insertion("a")), patience_s=600)
