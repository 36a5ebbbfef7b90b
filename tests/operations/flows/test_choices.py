"""Tests what a handler may return as a choice, and what is said about a wrong one."""

from __future__ import annotations

from typing import Any

import pytest

from fairlane.errors import InvalidArgument
from fairlane.operations.flow_branches import Choices, Fan, Next
from fairlane.operations.flows import Branch, Flow
from tests.support.run.for_each import for_each


@for_each(
    "children, kind",
    [
        ("abc", "str"),
        (b"abc", "bytes"),
        (bytearray(b"a"), "bytearray"),
        (memoryview(b"a"), "memoryview"),
        ({"a": b"x"}, "dict"),
        (Next("a"), "Next"),
        (None, "None"),
        (5, "int"),
    ],
)
def test_a_fan_of_no_children_is_refused(children: Any, kind: str):
    sentence = rf"children of a Fan are .*{kind}.*: give a list of bodies, or of Next\(step, body\)"
    with pytest.raises(InvalidArgument, match=sentence):
        Fan(children)


def test_a_fan_takes_anything_that_yields_children():
    assert Fan(one for one in (b"a", None)).children == (b"a", None)
    assert Fan({b"a"}).children == (b"a",)
    assert Fan([]).children == ()


@for_each(
    "choices, result, sentence",
    [
        (
            Choices(("discord", "twitter"), most=5),
            Next("discord"),
            (
                "step one of flow f returned Next('discord'), and has children: "
                "return Fan([Next('discord', body)])"
            ),
        ),
        (
            Choices(("member", "audit")),
            Fan([b"a"]),
            (
                "step one of flow f returned Fan of 1 child, and has branches: "
                "return Next('member', body)"
            ),
        ),
    ],
)
def test_a_choice_of_the_other_kind_says_what_to_return(
    choices: Choices, result: Any, sentence: str
):
    with pytest.raises(InvalidArgument) as caught:
        choices.check(result, "one", "f")
    assert str(caught.value) == sentence


def test_no_default_may_be_written_as_none():
    flow = Flow("f").step("route").branches(Branch("a").branches("b", default=None), default=None)
    assert [one.policy.feed for one in flow.plan("req", "r", {})] == [
        one.policy.feed
        for one in Flow("f").step("route").branches(Branch("a").branches("b")).plan("req", "r", {})
    ]


def test_branches_do_not_follow_a_single_branch():
    sentence = "branch b of flow f follows branches: add a step before it which merges them"
    with pytest.raises(InvalidArgument, match=sentence):
        Flow("f").step("route").branches("a").branches("b")
    with pytest.raises(InvalidArgument, match="child b of flow f follows branches"):
        Flow("f").step("route").branches("a").compensate("undo").children("b")
