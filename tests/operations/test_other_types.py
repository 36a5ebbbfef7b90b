"""Tests foreign keys under Fairlane's names: one sentence names the key and its type."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fairlane.errors import RedisUnfit
from fairlane.operations import change, queues, request_state
from fairlane.protocol import keys
from fairlane.protocol.steps import Command
from tests.support.operations.drivers import both, run
from tests.support.scripts.requests import once

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import redis

    from fairlane.protocol.steps import Operation


@pytest.fixture(autouse=True)
def others(redis_client: redis.Redis) -> Iterator[None]:
    """Makes keys with a name of Fairlane's and a type that Fairlane does not use."""
    made = [keys.request_hash("hack"), keys.active("hacked")]
    for key in made:
        redis_client.set(key, "x")
    yield
    for key in made:
        redis_client.delete(key)


@both
@pytest.mark.parametrize(
    ("operation", "tag"),
    [
        (lambda: request_state.progress("hack"), "{hack}"),
        (lambda: change.pause("hack"), "{hack}"),
        (lambda: once(Command(b"HGETALL", keys.request_hash("hack"))), "{hack}"),
        (lambda: queues.queue_status("hacked"), "{hacked}"),
    ],
    ids=["batch", "script", "command", "queue"],
)
def test_the_request_or_queue_of_a_foreign_key_is_named(
    kind: str, operation: Callable[[], Operation[Any]], tag: str, redis_url: str
):
    with pytest.raises(RedisUnfit) as raised:
        run(kind, redis_url, operation(), patience_s=5)
    said = str(raised.value).rpartition(" holds ")[2]
    assert said == (
        f"data of another type than Fairlane's under a key of {tag} (WRONGTYPE), perhaps another "
        "program's: choose another id or queue name, or delete that key"
    )
