"""Tests the picture of a run: well-formed, escaped, and readable without its colours."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from fairlane import Child, Flow
from fairlane.flow_svg import svg

if TYPE_CHECKING:
    from fairlane.queue import Queue

SVG = "{http://www.w3.org/2000/svg}"
FLOW = (
    Flow("access")
    .step("check")
    .children("discord", Child("twitter", on_dead="undo"))
    .step("notify")
    .compensate("undo")
)


def texts(picture: str) -> list[str]:
    return [one.text or "" for one in ET.fromstring(picture).iter(f"{SVG}text")]


def test_every_step_is_there_with_its_state_and_its_counts_as_text(queue: Queue):
    found = queue.submit_flow(FLOW, ["a"], id="x").progress()
    shown = texts(svg(found))
    assert shown[0] == "flow access, run x: active"
    for name in ("check", "discord", "twitter", "joins: notify", "dead → undo"):
        assert name in shown
    assert shown.count("▶ submitting") == 4
    assert "0 done, 0 dead, 1 in all" in shown


def test_children_stand_side_by_side(queue: Queue):
    picture = ET.fromstring(svg(queue.submit_flow(FLOW, ["a"]).progress()))
    places = {
        (group.findall(f"{SVG}text")[0].text): group.find(f"{SVG}rect")
        for group in picture.iter(f"{SVG}g")
    }
    discord, twitter = places["discord"], places["twitter"]
    assert discord is not None
    assert twitter is not None
    assert discord.get("y") == twitter.get("y")
    assert discord.get("x") != twitter.get("x")


def test_what_a_name_has_does_not_become_markup(queue: Queue):
    found = queue.submit_flow(FLOW, ["a"]).progress()
    first = found.steps[0]
    ill = '<script>"&\x1b[31m' + "long" * 30
    named = first._replace(step=ill, progress=replace(first.progress, queue=ill))
    picture = svg(found._replace(flow=ill, steps=[named]))
    assert "<script" not in picture
    assert "\x1b" not in picture
    ET.fromstring(picture)


def test_a_long_name_is_squeezed_into_its_box(queue: Queue):
    flow = Flow("f" * 90).step("a-step-with-a-name-of-32-letters").step("short")
    picture = ET.fromstring(svg(queue.submit_flow(flow, ["a"], id="x").progress()))
    lengths = {one.text: one.get("textLength") for one in picture.iter(f"{SVG}text")}
    assert lengths["a-step-with-a-name-of-32-…"] == "200"
    assert lengths["short"] is None
    assert [one for name, one in lengths.items() if name and name.startswith("flow f")] == ["432"]


def test_a_run_without_a_step_is_a_picture_too(queue: Queue):
    found = queue.submit_flow(FLOW, ["a"], id="x").progress()
    assert texts(svg(found._replace(steps=[]))) == ["flow access, run x: done"]
