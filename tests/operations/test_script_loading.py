"""Tests to which servers `fairlane scripts` sends: every address of a deployment, once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fairlane.errors import FairlaneError, RedisUnreachable
from fairlane.operations.script_loading import ServerAddress, everywhere
from fairlane.protocol.steps import Nodes, OnNode

if TYPE_CHECKING:
    from collections.abc import Callable

A, B, C, D = (("10.0.0.1", 7000), ("10.0.0.2", 7000), ("10.0.0.3", 7000), ("10.0.0.4", 7000))
NODES = b"""\
a 10.0.0.1:7000@17000,one.example master - 0 0 1 connected 0-8000
b 10.0.0.2:7000@17000 master - 0 0 2 connected 8001-16383
c 10.0.0.3:7000@17000 slave a 0 0 1 connected
d 10.0.0.4:7000@17000 slave,fail b 0 0 2 disconnected
e :0@0 master,noaddr - 0 0 3 disconnected
f 10.0.0.6:7000@17000 handshake - 0 0 0 connected
"""


def places_of(
    primaries: list[Any], answer: Callable[[Any, tuple[Any, ...]], Any]
) -> list[ServerAddress]:
    """Returns the servers, when each At is answered so."""
    operation = everywhere("here")
    step = operation.send(None)
    assert isinstance(step, Nodes)
    reply: Any = primaries
    try:
        while True:
            step = operation.throw(reply) if isinstance(reply, Exception) else operation.send(reply)
            assert isinstance(step, OnNode)
            reply = answer(step.node, step.command.args)
    except StopIteration as end:
        found: list[ServerAddress] = end.value
        return found


def test_a_server_and_those_that_follow_it():
    info = (
        b"# Replication\r\nrole:master\r\nconnected_slaves:2\r\n"
        b"slave0:ip=10.0.0.2,port=7000,state=online,offset=14,lag=0\r\n"
        b"slave1:ip=::1,port=7001,state=wait_bgsave,offset=0,lag=0\r\nslave_read_only:1\r\n"
    )
    found = places_of([None], lambda node, words: info)
    assert found == [
        ServerAddress(None, "here"),
        ServerAddress(B, "10.0.0.2:7000"),
        ServerAddress(("::1", 7001), "::1:7001"),
    ]


def test_every_node_of_a_cluster_by_the_name_it_wants():
    slots = [[0, 8000, [b"one.example", 7000, b"a"]], [8001, 16383, [None, 7000, b"b"]]]
    one = ("one.example", 7000)

    def answer(node: Any, words: tuple[Any, ...]) -> Any:
        return slots if b"SLOTS" in words else NODES

    found = places_of([one, B], answer)
    assert [place.node for place in found] == [one, B, C, D]


def test_a_node_that_does_not_answer_is_not_the_only_one_to_ask():
    def answer(node: Any, words: tuple[Any, ...]) -> Any:
        if node == A:
            return RedisUnreachable("away")
        return [[0, 16383, [b"10.0.0.2", 7000, b"b"]]] if b"SLOTS" in words else NODES

    assert {place.node for place in places_of([A, B], answer)} == {A, B, C, D}
    with pytest.raises(FairlaneError, match="away"):
        places_of([A], answer)
