"""Tests how replies are read that a connection has received already."""

from __future__ import annotations

from types import SimpleNamespace

import redis
from redis._parsers.hiredis import NOT_ENOUGH_DATA

from fairlane.drivers import calls


def line(*received: object) -> SimpleNamespace:
    """Returns a connection whose reader has these replies, and then no whole one."""
    left = iter(received)
    reader = SimpleNamespace(gets=lambda: next(left, NOT_ENOUGH_DATA))
    return SimpleNamespace(_parser=SimpleNamespace(_reader=reader))


def test_received_replies_are_taken_up_to_the_number_that_is_wanted():
    replies: list[object] = [b"first"]
    assert calls.take_buffered(line(b"a"), replies, 3)  # one more must come
    assert replies == [b"first", b"a"]
    assert not calls.take_buffered(line(b"b", b"c"), replies, 3)
    assert replies == [b"first", b"a", b"b"]


def test_nothing_behind_an_error_is_taken():
    replies: list[object] = [b"first"]
    error = redis.ResponseError("no")
    assert not calls.take_buffered(line(error, b"a"), replies, 3)
    assert replies == [b"first", error]


def test_a_connection_that_was_closed_meanwhile_is_read_again():
    """The next read raises the error of a closed connection."""
    closed = SimpleNamespace(_parser=SimpleNamespace(_reader=None))
    assert calls.take_buffered(closed, [b"first"], 2)
