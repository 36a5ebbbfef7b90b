"""The own id of a message, and messages without their repeats."""

from __future__ import annotations

import hashlib

import pytest

from fairlane import distinct, xid


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        ("12345", "12345"),
        (b"12345", "12345"),
        ('{"meta": {"id": "x-1"}}', "x-1"),
        ('{"meta": {"id": 7}}', "7"),
    ],
)
def test_a_message_has_an_id_of_its_own(body: str | bytes, wanted: str):
    assert xid(body) == wanted


@pytest.mark.parametrize(
    "body", ["null", "[]", "true", '{"meta": null}', "{", "", "text", "-1", "1.5"]
)
def test_a_message_without_an_id_has_that_of_its_bytes(body: str):
    assert xid(body) == hashlib.sha1(body.encode(), usedforsecurity=False).hexdigest()


def test_repeats_are_left_out_lazily_and_in_order():
    bodies = iter(["7", '{"meta": {"id": "7"}}', "8", "7", "a", "a"])
    found = distinct(bodies)
    assert next(found) == "7"
    assert list(found) == ["8", "a"]


def test_the_caller_may_choose_what_makes_two_the_same():
    assert list(distinct([b"a1", b"a2", b"b1"], key=lambda body: body[:1].decode())) == [
        b"a1",
        b"b1",
    ]
