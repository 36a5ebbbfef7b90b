"""Tests `fairlane flow`: the runs of a queue, a drawing of one run, and refused input."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from fairlane.operations.flows import Branch, Child, Flow
from fairlane.queue import Queue
from tests.support.run.for_each import for_each

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.cli.program import Program

ORDER = (
    Flow("order").step("pay", on_dead="undo", limit=8).step("ship").step("mail").compensate("undo")
)


@pytest.fixture
def submitted(redis_url: str) -> Iterator[Queue]:
    with Queue.from_url(redis_url) as queue:
        queue.submit_flow(ORDER, ["a", "b"], id="x", properties={"user_id": 5})
        queue.submit_flow(Flow("other").step("one"), ["a"], id="y")
        yield queue


def test_a_run_is_drawn_step_below_step(program: Program, submitted: Queue):
    title, head, *rows = program("flow", "show", "x").out.decode().splitlines()
    assert title == "flow order, run x: active"
    assert head.split()[:4] == ["STEP", "QUEUE", "REQUEST", "STATE"]
    assert [row.partition(" req ")[0].rstrip() for row in rows] == [
        *("pay", "├─ dead → undo", "└─ ship", "   └─ mail"),
    ]
    assert rows[0].split()[1:] == ["req", "x.1", "active", "5", "0", "0", "2", "0/8"]


def test_the_runs_of_a_queue_are_listed(program: Program, submitted: Queue):
    head, *rows = program("flow", "list").out.decode().splitlines()
    assert head.split() == ["RUN", "FLOW", "STATE", "STEPS", "DONE", "DEAD"]
    assert sorted(row.split() for row in rows) == [
        ["x", "order", "active", "4", "0", "0"],
        ["y", "other", "active", "1", "0", "0"],
    ]
    assert len(program("flow", "list", "user_id=5").out.splitlines()) == 2
    assert len(program("flow", "list", "--flow", "other").out.splitlines()) == 2
    assert program("flow", "list", "user_id=6").err == (
        "fairlane: no such flow began in queue req\n"
    )


def test_a_property_that_is_given_twice_is_refused(program: Program):
    program("flow", "list", "a=1", "a=2").refused(2, "property a is given twice: give it once")


def test_json_has_every_step(program: Program, submitted: Queue):
    shown = json.loads(program("flow", "show", "x", "--json").out)
    assert (shown["flow"], shown["state"]) == ("order", "active")
    assert [(one["step"], one["sources"], one["is_compensating"]) for one in shown["steps"]] == [
        *(("pay", [], False), ("ship", ["pay"], False), ("mail", ["ship"], False)),
        ("undo", ["pay"], True),
    ]
    (listed,) = program("flow", "list", "--flow", "order", "--json").out.splitlines()
    assert {**json.loads(listed), "shared": {}} == shown


CHILDREN = (
    Flow("access")
    .step("check")
    .children(Child("discord", on_dead="undo"), "twitter")
    .step("notify")
    .step("end")
    .compensate("undo")
)


def test_children_and_their_join_are_drawn_with_what_the_steps_share(
    program: Program, redis_url: str, tmp_path: Path
):
    with Queue.from_url(redis_url) as queue:
        run = queue.submit_flow(CHILDREN, ["a"], id="c")
        run.shared["user"] = {"id": 5, "name": "\x1b[31m"}
    picture = tmp_path / "c.svg"
    title, _, *rows = program("flow", "show", "c", "--svg", str(picture)).out.decode().splitlines()
    assert title == "flow access, run c: active"
    assert [row.partition(" req ")[0].rstrip() for row in rows[:-1]] == [
        *("check", "├─ discord", "│  └─ dead → undo", "├─ twitter", "└─ joins → notify"),
        "   └─ end",
    ]
    assert rows[-1] == 'shared user = {"id": 5, "name": "\\u001b[31m"}'
    assert picture.read_text().startswith("<svg xmlns=")
    shown = json.loads(program("flow", "show", "c", "--json").out)
    assert shown["shared"] == {"user": {"id": 5, "name": "\x1b[31m"}}
    assert shown["steps"][3]["sources"] == ["discord", "twitter"]


CHOICES = (
    Flow("access")
    .step("check")
    .branches("reject", Branch("reward").children("discord", chosen=5).step("all"))
    .step("end")
)


def test_branches_and_chosen_children_are_drawn(program: Program, redis_url: str, tmp_path: Path):
    with Queue.from_url(redis_url) as queue:
        queue.submit_flow(CHOICES, ["a"], id="c")
    picture = tmp_path / "c.svg"
    _, _, *rows = program("flow", "show", "c", "--svg", str(picture)).out.decode().splitlines()
    assert [row.partition(" req ")[0].rstrip() for row in rows] == [
        *("check", "├─ branch → reject", "├─ branch → reward", "│  ├─ chosen → discord"),
        *("│  └─ joins → all", "└─ merges → end"),
    ]
    for text in ("branch: reject", "chosen: discord", "joins: all", "merges: end"):
        assert text in picture.read_text()
    shown = json.loads(program("flow", "show", "c", "--json").out)
    assert [one["gets"] for one in shown["steps"]] == [
        *("input", "branch", "branch", "chosen", "join", "merge"),
    ]
    assert shown["steps"][4]["sources"] == ["discord"]


def test_a_picture_that_cannot_be_written_is_refused(program: Program, submitted: Queue):
    program("flow", "show", "x", "--svg", "/nowhere/x.svg").refused(
        2, "--svg /nowhere/x.svg cannot be written"
    )


def test_an_unknown_run_is_not_found(program: Program):
    program("flow", "show", "nothing").refused(3, "there is no flow nothing ")


@for_each(
    "words, sentence",
    [
        (("show", "a b"), "flow id 'a b' is not valid"),
        (("list", "user_id"), "property 'user_id' is not valid: write NAME=VALUE"),
        (("list", "user=a b"), "property 'user:a b' is not valid"),
        (("list", "--limit", "0"), "0 is not in the range"),
    ],
)
def test_bad_input_is_refused_in_one_sentence(
    program: Program, words: tuple[str, ...], sentence: str
):
    program("flow", *words).refused(2, sentence)
