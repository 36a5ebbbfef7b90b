"""Tests the sample dashboard, alert rules and configurations: they load, their metrics exist."""

from __future__ import annotations

import json
import re
from itertools import combinations
from typing import TYPE_CHECKING, Any, get_type_hints

import click
import pytest
import yaml

from fairlane.cli.program import fairlane
from fairlane.metrics import ALL, QUEUE
from fairlane.web import why
from fairlane.web.access import SCOPES
from tests.guide.blocks import ROOT
from tests.support.promtool import promtool
from tests.support.run.for_each import for_each

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FOLDER = ROOT / "samples" / "monitoring"
DASHBOARD = json.loads((FOLDER / "grafana-dashboard.json").read_text())
RULES = yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"][0]["rules"]
CASES = yaml.safe_load((FOLDER / "alerts_test.yml").read_text())["tests"]
PAGES = [*sorted(FOLDER.iterdir()), *sorted((ROOT / "docs").rglob("*.md"))]
NAME = re.compile(r"\bfairlane_(?:worker|queue|redis)_\w+")
VARIABLES = {"$__rate_interval": "5m", "$queue": "shop"}


def panels() -> list[dict[str, Any]]:
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def expressions() -> Iterator[str]:
    for panel in panels():
        for target in panel["targets"]:
            text = target["expr"]
            for name, value in VARIABLES.items():
                text = text.replace(name, value)
            yield text


# ------------------------------------------------------------------ Prometheus


def test_the_rules_and_the_configuration_load(tmp_path: Path):
    promtool("check", "rules", FOLDER / "alerts.yml")
    for name in ("prometheus.yml", "alerts.yml"):
        (tmp_path / name).write_text((FOLDER / name).read_text())
    (tmp_path / "fairlane-token").write_text("x")
    promtool("check", "config", tmp_path / "prometheus.yml")


@pytest.mark.rest
def test_the_tests_of_the_rules_pass():
    promtool("test", "rules", "alerts_test.yml", folder=FOLDER)


def test_each_alert_has_a_test_in_which_it_fires_and_one_in_which_it_does_not():
    fires: dict[str, set[bool]] = {}
    for case in CASES:
        for each in case["alert_rule_test"]:
            fires.setdefault(each["alertname"], set()).add(bool(each["exp_alerts"]))
    assert fires == {rule["alert"]: {True, False} for rule in RULES}


def test_each_alert_names_the_fault_and_the_remedy():
    for rule in RULES:
        assert set(rule["annotations"]) == {"summary", "description", "runbook"}, rule["alert"]
        assert (ROOT / rule["annotations"]["runbook"].partition("#")[0]).is_file(), rule["alert"]
        assert rule["labels"]["severity"] in {"info", "warning", "critical"}


def test_each_command_that_an_alert_names_exists():
    for rule in RULES:
        for words in re.findall(
            r"fairlane ([a-z]+(?: [a-z]+)?)", rule["annotations"]["description"]
        ):
            assert is_command(words.split()), f"{rule['alert']}: fairlane {words}"


def is_command(words: list[str]) -> bool:
    """Returns True if the words begin with a command, and name a part of it if it has parts."""
    found: Any = fairlane
    for word in words:
        if not isinstance(found, click.Group):
            break
        found = found.get_command(click.Context(found), word)
    return found is not None and not isinstance(found, click.Group)


# ------------------------------------------------------------------ Grafana


def test_grafana_s_own_types_read_the_dashboard():
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.models.dashboard import Dashboard

    read = Dashboard.from_json(DASHBOARD)
    again = json.loads(JSONEncoder().encode(read))
    assert [panel["title"] for panel in again["panels"]] == [
        panel["title"] for panel in DASHBOARD["panels"]
    ]
    assert [one["name"] for one in again["templating"]["list"]] == ["datasource", "queue"]


def test_every_expression_of_the_dashboard_parses(tmp_path: Path):
    rules = [
        {"record": f"panel:{number}", "expr": text} for number, text in enumerate(expressions())
    ]
    assert len(rules) > 30
    (tmp_path / "rules.yml").write_text(
        yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]})
    )
    assert f"{len(rules)} rules found" in promtool("check", "rules", tmp_path / "rules.yml")


def test_the_panels_have_a_place_and_a_description_each():
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    places = [panel["gridPos"] for panel in DASHBOARD["panels"]]
    assert all(place["x"] + place["w"] <= 24 for place in places)
    for one, other in combinations(places, 2):
        apart_x = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        apart_y = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert apart_x or apart_y
    assert all(panel["description"] for panel in panels())
    assert {panel["datasource"]["uid"] for panel in panels()} == {"${datasource}"}


def test_the_dashboard_and_the_rules_use_every_metric_of_the_queue():
    text = "\n".join([*expressions(), *(rule["expr"] for rule in RULES)])
    used = set(NAME.findall(text))
    assert [one.name for one in QUEUE if not used & set(one.samples)] == []


# ------------------------------------------------------------------ names, KEDA


@for_each("path", PAGES)
def test_every_metric_that_a_file_names_exists(path: Path):
    known = {name for metric in ALL for name in (metric.name, *metric.samples)}
    assert set(NAME.findall(path.read_text())) - known == set()


def test_the_trigger_of_keda_reads_a_number_that_the_server_gives():
    scaled, access = yaml.safe_load_all((FOLDER / "keda-scaledobject.yaml").read_text())
    (trigger,) = scaled["spec"]["triggers"]
    (endpoint,) = [one for one in why.ENDPOINTS if one.path == "/v1/demand"]
    given = trigger["metadata"]
    assert given["url"].endswith(f":8080{endpoint.path}")
    kinds = get_type_hints(endpoint.gives)
    assert kinds[given["valueLocation"]] is int
    assert trigger["authenticationRef"]["name"] == access["metadata"]["name"]
    assert endpoint.scopes == ("view",)
    assert "view" in SCOPES
