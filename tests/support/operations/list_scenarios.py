"""Scenarios with plain lists and topics, for the tests in which replies are lost."""

from __future__ import annotations

from typing import Any

from fairlane.operations import lists, topics
from fairlane.operations.admission import place, withdraw
from fairlane.operations.lists import Route, Tracking, fan_out, push_shortest
from fairlane.protocol import keys
from fairlane.protocol.keys import Namespace
from fairlane.queue import Queue
from tests.support.scripts.requests import numbered


def fans_out(driver: Any) -> None:
    """Sends messages to two lists, tracked by a service that begins and ends."""
    space = Namespace("{lists}")
    names = [f"{{lists}}:{name}" for name in ("in", "pending", "a", "b")]
    route = Route(names[0], names[1], tuple(names[2:]))
    driver.client.lpush(names[0], "one", "two", "two")
    service = driver.run(lists.register(space, "box", 42, 60, 10))
    driver.run(fan_out(route, 0.01, Tracking(space, service, 3600, 7200)))
    assert driver.run(lists.renew(space, service, 60))
    driver.client.lpush(space.done, *driver.client.lrange(space.messages, 0, 1))
    driver.run(lists.settle_messages(space))
    driver.client.lpush(names[0], "three")
    driver.run(fan_out(route._replace(to="shortest"), 0.01))
    driver.run(fan_out(route, 0.01))
    driver.run(lists.unregister(space, service))


def forwards(driver: Any) -> None:
    """Runs two forwarders in turn; then the target list has forgotten what it had."""
    source, target = "{lists}:from", "{lists}:to"
    driver.client.lpush(source, "one", "two")
    landed = None
    for owner in ("a", "a", "b"):
        flight = driver.run(lists.next_forward(source, owner, 60_000, "e", landed))
        if isinstance(flight, lists.Flight):
            assert driver.run(lists.land(target, flight)).word == "ok"
            landed = flight
            driver.client.lpush(source, "three")
    driver.run(lists.wait_for_message(source, 0.01))
    driver.run(lists.next_forward(source, "a", 0, "e", landed))
    driver.client.delete(keys.landed(target))
    flight = driver.run(lists.next_forward(source, "b", 60_000, "e"))
    assert driver.run(lists.land(target, flight)).word == "gap"
    driver.run(lists.restart_forward(source, flight.epoch, "f", "gap"))
    assert driver.run(lists.read_state(source)).restarts == 1
    flight = driver.run(lists.next_forward(source, "b", 60_000, "e"))
    assert driver.run(lists.land(target, flight)).word == "ok"
    driver.run(lists.next_forward(source, "b", 0, "e", flight))


def balances(driver: Any) -> None:
    driver.run(push_shortest(["{lists}:a", "{lists}:b"], numbered(5)))


def places(driver: Any) -> None:
    """Adds a request to the shortest queue, and withdraws another one."""
    found = driver.run(place(["req"], "placed"))
    Queue(driver, found.queue).submit_request(numbered(1), id="placed")
    driver.run(withdraw(driver.run(place(["req"], "withdrawn")), "withdrawn"))


def publishes(driver: Any) -> None:
    """Publishes to two subscribers: one acknowledges its messages, the other one is removed."""
    for name in ("a", "b", "c"):
        driver.run(topics.subscribe("t", name, "first"))
    driver.run(topics.publish("t", numbered(3)))
    driver.run(topics.unsubscribe("t", "c"))
    while found := driver.run(topics.fetch("t", "a", 2, 0, 0)):
        driver.run(topics.acknowledge("t", "a", [one.id for one in found]))
