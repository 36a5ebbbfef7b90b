"""Tests ids that outlive results: a repeat submits nothing, and nothing can be read any more."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from fairlane import Change, InvalidArgument, RequestExists, RequestLost, content_id
from fairlane.protocol import keys
from tests.support.wait import wait_until

if TYPE_CHECKING:
    import redis

    from fairlane import Queue

MONTH = "30d"


def forget_results(client: redis.Redis, name: str) -> None:
    """Does what the end of the retention does."""
    for key in (keys.results(name), keys.dead(name), keys.errors(name)):
        client.delete(key)


def ended(queue: Queue, name: str, **options: Any) -> None:
    queue.submit_request(["a"], id=name, remember=MONTH, **options)
    (taken,) = queue.take(1)
    taken.done("its result")


def test_a_repeat_submits_nothing_though_the_results_are_gone(
    queue: Queue, redis_client: redis.Redis
):
    ended(queue, "order-17")
    forget_results(redis_client, "order-17")
    again = queue.submit_request(["a"], id="order-17", remember=MONTH)
    assert (again.id, again.state()) == ("order-17", "done")
    assert queue.take(1) == []
    found = again.progress()
    assert (found.done, found.retain_ms, found.remember_ms) == (1, 86_400_000, 30 * 86_400_000)
    with pytest.raises(RequestLost, match="their retention is over"):
        list(again.results())
    with pytest.raises(RequestExists, match="exists with other content"):
        queue.submit_request(["b"], id="order-17", remember=MONTH)
    assert len(queue.driver.run(_endings(queue))) == 1


def test_results_whose_retention_is_over_say_so_and_until_when_the_id_is_known(
    queue: Queue, redis_client: redis.Redis
):
    ended(queue, "order-17", retain="1s")
    wait_until(lambda: not redis_client.exists(keys.results("order-17")))
    with pytest.raises(RequestLost) as raised:
        list(queue.request("order-17").results())
    assert re.fullmatch(
        r"the results of request order-17 are gone: it ended at [0-9:]+ UTC \(\d+ s ago\), and "
        r"their retention is 1 s; its id is known until [-0-9: ]+ UTC \(in 7\d\d h\)",
        str(raised.value),
    )


async def _endings(queue: Queue) -> Any:
    from fairlane.protocol.steps import Command

    return await Command(b"XRANGE", keys.completed(queue.name), b"-", b"+")


def test_the_id_of_a_content_is_remembered(queue: Queue, redis_client: redis.Redis):
    name = content_id(["a"], queue=queue.name, remember=MONTH)
    assert name != content_id(["a"], queue=queue.name)
    ended(queue, name)
    forget_results(redis_client, name)
    assert queue.submit_request(["a"], id=name, remember=MONTH).state() == "done"


def test_a_deletion_forgets_the_id(queue: Queue, redis_client: redis.Redis):
    ended(queue, "order-17")
    forget_results(redis_client, "order-17")
    report = queue.change(queue.select(Change.delete(), ["order-17"]))
    assert report.changed == 1
    assert queue.submit_request(["a"], id="order-17", remember=MONTH).state() == "active"
    queue.request("order-17").cancel()


def test_dead_that_have_expired_are_not_run_again(queue: Queue, redis_client: redis.Redis):
    queue.submit_request(["a"], id="order-17", remember=MONTH)
    queue.take(1)[0].dead("no")
    forget_results(redis_client, "order-17")
    assert queue.request("order-17").requeue_dead() == 0
    assert queue.request("order-17").state() == "done"


def test_a_window_may_be_as_long_as_the_id_is_known(queue: Queue):
    queue.submit_request([], id="r", on_duplicate="keep", window="20d", remember=MONTH)
    again = queue.submit_request(["a"], id="r", on_duplicate="keep", window="20d", remember=MONTH)
    assert again.total == 0
    with pytest.raises(InvalidArgument, match="give a longer retain or remember"):
        queue.submit_request([], id="s", on_duplicate="keep", window="31d", remember=MONTH)


@pytest.mark.parametrize("wrong", ["0.5s", "367d", -1, "soon"])
def test_a_time_that_is_not_possible_is_refused(queue: Queue, wrong: Any):
    with pytest.raises(InvalidArgument, match="remember"):
        queue.submit_request(["a"], remember=wrong)
