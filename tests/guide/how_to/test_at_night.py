"""Tests docs/how-to/watch/at-night.md: its commands find each cause and close each case."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest
import yaml

from fairlane.operations.check_result import PAGE as NAMED
from fairlane.operations.check_result import SECTIONS
from tests.guide.blocks import ROOT, blocks_of
from tests.incidents.incidents import INCIDENTS, Incident
from tests.incidents.stage import QUEUE, Stage

if TYPE_CHECKING:
    from pathlib import Path

PAGE = ROOT / NAMED
RULES = yaml.safe_load((ROOT / "samples" / "monitoring" / "alerts.yml").read_text())


def anchor_of(heading: str) -> str:
    return heading.lower().replace(" ", "-")


def anchors() -> set[str]:
    return {anchor_of(heading) for heading in re.findall(r"(?m)^## (.+)$", PAGE.read_text())}


@pytest.mark.slow
@pytest.mark.rest
@pytest.mark.server
@pytest.mark.parametrize("incident", INCIDENTS, ids=[anchor_of(one.heading) for one in INCIDENTS])
def test_the_commands_of_a_section_find_the_cause_and_close_the_case(
    incident: Incident, tmp_path: Path
):
    first, *others = blocks_of(PAGE, incident.heading)
    with Stage(tmp_path, *incident.options) as stage:
        incident.set_up(stage)
        assert seen_by_doctor(stage, anchor_of(incident.heading)) == incident.is_seen
        shown = stage.run(first.text, must_succeed=False).text
        assert [cause for cause in incident.cause if not re.search(cause, shown)] == [], shown
        for number, block in enumerate(others, 1):
            if number in incident.hands:
                incident.hands[number](stage)
            if block.is_background:
                stage.worker_of(block.text)
            else:
                stage.run(block.text)
        incident.closed(stage)


def seen_by_doctor(stage: Stage, anchor: str) -> bool:
    """Returns True if a finding that is not ok links to the section."""
    shown = stage.run(f"fairlane doctor --queue {QUEUE} --json", must_succeed=False).text
    found = [json.loads(line) for line in shown.splitlines() if line.startswith("{")]
    return f"{NAMED}#{anchor}" in {one["see"] for one in found}


def test_each_section_has_an_incident_that_is_set_up():
    assert anchors() == {anchor_of(one.heading) for one in INCIDENTS}


def test_what_the_doctor_and_the_alerts_link_to_is_on_the_page():
    linked = {rule["annotations"]["runbook"] for rule in RULES["groups"][0]["rules"]}
    assert {*SECTIONS} - anchors() == set()
    sections = {link.removeprefix(f"{NAMED}#") for link in linked if link.startswith(f"{NAMED}#")}
    assert sections
    assert sections - anchors() == set()
