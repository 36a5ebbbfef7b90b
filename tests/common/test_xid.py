"""Tests the xid of a message, and the ids by which a request takes each sub-request once."""

from __future__ import annotations

import hashlib

import pytest

from fairlane import InvalidArgument, xid
from fairlane.common.xid import Key, packed_ids
from tests.support.run.for_each import for_each


@for_each(
    "body, wanted",
    [
        ("12345", "12345"),
        (b"12345", "12345"),
        ('{"meta": {"id": "x-1"}}', "x-1"),
        ('{"meta": {"id": 7}}', "7"),
    ],
)
def test_a_message_has_an_id_of_its_own(body: str | bytes, wanted: str):
    assert xid(body) == wanted


@for_each("body", ["null", "[]", "true", '{"meta": null}', "{", "", "text", "-1", "1.5"])
def test_a_message_without_an_id_has_that_of_its_bytes(body: str):
    assert xid(body) == hashlib.sha1(body.encode(), usedforsecurity=False).hexdigest()


def test_the_ids_of_bodies_are_those_of_their_keys():
    bodies = [b"7", b'{"meta": {"id": "7"}}', b"8", b"8"]
    one, same, other, again = ids_of(bodies, xid)
    assert one == same != other == again


def test_the_caller_may_choose_what_makes_two_the_same():
    one, same, other = ids_of([b"a1", b"a2", b"b1"], lambda body: body[:1])
    assert one == same != other
    assert ids_of([b"x"], lambda _: "a") == [one]


def test_a_key_that_is_no_text_is_refused():
    with pytest.raises(InvalidArgument, match="key of a sub-request is an int"):
        packed_ids([b"1"], int)  # type: ignore[arg-type]


def ids_of(bodies: list[bytes], key: Key) -> list[bytes]:
    packed = packed_ids(bodies, key)
    assert len(packed) == 16 * len(bodies)
    return [packed[at : at + 16] for at in range(0, len(packed), 16)]
