"""Tests content ids: the same content under the same options is one request."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import fairlane
from fairlane.errors import InvalidArgument, RequestExists
from fairlane.operations.content_id import ContentId, content_id
from fairlane.options import Policy
from tests.support.run.for_each import for_each
from tests.support.scripts.requests import numbered, work_off

if TYPE_CHECKING:
    from fairlane.queue import Queue
    from tests.support.scripts.requests import Lane

SOME = st.lists(st.binary(max_size=6), max_size=30)


@given(SOME, st.lists(st.integers(0, 30), max_size=6))
def test_chunks_make_no_difference(bodies: list[bytes], cuts: list[int]):
    digest = ContentId(Policy())
    last = 0
    for cut in sorted(cuts):
        digest.add(bodies[last:cut])
        last = max(last, cut)
    digest.add(bodies[last:])
    assert digest.id == content_id(bodies)


@given(SOME, SOME)
def test_other_bodies_have_another_id(one: list[bytes], other: list[bytes]):
    assume(one != other)
    assert content_id(one) != content_id(other)


@for_each(
    "one, other", [([b"ab"], [b"a", b"b"]), ([b"a", b""], [b"a"]), ([], [b""]), ([b"1:a"], [b"a"])]
)
def test_a_bodys_end_is_part_of_the_id(one: list[bytes], other: list[bytes]):
    assert content_id(one) != content_id(other)


@for_each(
    "changed", [{"queue": "q"}, {"priority": 6}, {"limit": 4}, {"retain": 3_600}, {"durable": 1}]
)
def test_options_are_part_of_the_id(changed: dict):
    """Options at their default are left out, so that options may be added."""
    assert content_id([b"a"], **changed) != content_id([b"a"])
    defaults: dict[str, Any] = {"queue": "req", "priority": 5, "limit": 3, "durable": 0}
    assert content_id([b"a"], **defaults) == content_id([b"a"])


def test_the_id_is_the_same_in_every_process_and_release():
    code = "import fairlane; print(fairlane.content_id(['a', 'ä'], limit=4))"
    printed = subprocess.check_output([sys.executable, "-c", code], text=True).strip()
    assert printed == fairlane.content_id([b"a", "ä"], limit=4)
    assert (printed[:8], len(printed)) == ("dcaf2af4", 40)


@pytest.mark.parametrize("bodies", ["text", [7], None], ids=repr)
def test_what_could_not_be_submitted_has_no_id(bodies: object):
    with pytest.raises(InvalidArgument):
        content_id(bodies)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument):
        content_id([b"a"], limit=0)


def test_a_content_submitted_twice_is_one_request(queue: Queue, lane: Lane):
    for _ in range(2):
        queue.submit_request(numbered(2500), id=content_id(numbered(2500)), limit=3)
    assert len(work_off(queue.driver)) == 2500
    queue.submit_request(numbered(2500), id=content_id(numbered(2500), limit=4), limit=4)
    assert len(work_off(queue.driver)) == 2500
    assert lane.client.xlen("{req}:completed") == 2


def test_an_id_made_with_other_options_is_refused(queue: Queue, lane: Lane):
    del lane
    queue.submit_request([b"a"], id=content_id([b"a"]))
    with pytest.raises(RequestExists):
        queue.submit_request([b"a"], id=content_id([b"a"]), limit=4)
