"""Tests the other pages of docs/: their blocks run, and those that cannot run here parse."""

from __future__ import annotations

import ast
import configparser
import importlib.util
import re
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from fairlane.testing import eager
from tests.guide.blocks import GUIDE, ON_ONE_KIND, REQUESTS, ROOT, Shells, blocks_of, environment
from tests.support.run.for_each import for_each

if TYPE_CHECKING:
    from pathlib import Path

DOCS = ROOT / "docs"
RUN_ELSEWHERE = {
    REQUESTS,  # test_requests_page.py
    DOCS / "how-to" / "watch" / "finding.md",  # test_finding.py
    DOCS / "how-to" / "watch" / "at-night.md",  # test_at_night.py
    DOCS / "how-to" / "use" / "schedules.md",  # test_schedules_page.py
    DOCS / "how-to" / "use" / "pull.md",  # test_pull_page.py
    DOCS / "how-to" / "use" / "lists.md",  # test_lists_page.py
    DOCS / "how-to" / "use" / "topics.md",  # test_topics_page.py
    DOCS / "how-to" / "connect" / "http.md",  # test_http_page.py
    DOCS / "how-to" / "watch" / "tracing.md",  # test_tracing_page.py
    DOCS / "how-to" / "use" / "testing.md",  # test_testing.py
    *GUIDE.glob("*.md"),  # test_first_job.py and others
}
PARSED = {
    DOCS / "how-to" / "connect" / "spark.md"
}  # its blocks share one session: tests/spark runs them
PAGES = sorted(
    path
    for path in DOCS.rglob("*.md")
    if path not in RUN_ELSEWHERE and path.is_relative_to(DOCS) and "benchmarks" not in path.parts
)


def names(paths: list[Path]) -> list[str]:
    return [path.relative_to(DOCS).as_posix() for path in paths]


WITH_BLOCKS = [path for path in PAGES if blocks_of(path) and path not in PARSED]


@pytest.mark.slow
@ON_ONE_KIND
@pytest.mark.parametrize("page", WITH_BLOCKS, ids=names(WITH_BLOCKS))
@pytest.mark.rest
def test_the_blocks_of_a_page_run(redis_url: str, tmp_path: Path, page: Path):
    with Shells(tmp_path, environment(redis_url)) as shells:
        for block in blocks_of(page):
            shells.run(block)


def test_there_are_pages_with_blocks():
    found = set(names(WITH_BLOCKS))
    assert {"index.md", "how-to/watch/metrics.md", "how-to/connect/fastapi.md"} <= found


@for_each("page", PAGES)
def test_what_cannot_run_here_parses(page: Path):
    for block in blocks_of(page, languages=("python", "text", "ini", "yaml", "toml")):
        if block.language == "yaml":
            assert yaml.safe_load(block.text)
        elif block.language == "ini":
            parser = configparser.ConfigParser(strict=False)
            parser.optionxform = str  # type: ignore[assignment,method-assign]
            is_unit = "[" in block.text
            parser.read_string(block.text if is_unit else f"[environment]\n{block.text}")
            assert parser.sections()
        elif block.language == "python" or re.search(
            r"^(?:from|import|def|@|class)\b", block.text, re.MULTILINE
        ):
            ast.parse(block.text)


def test_the_unit_of_systemd_starts_a_worker_with_options_that_exist():
    from fairlane.cli.commands.worker import command

    unit, _ = blocks_of(DOCS / "how-to" / "run" / "systemd.md", languages=("ini",))
    words = next(line for line in unit.text.splitlines() if line.startswith("ExecStart=")).split()
    options = {option for parameter in command.params for option in parameter.opts}
    assert {word for word in words if word.startswith("--")} <= options


def test_the_deployments_probe_paths_that_exist():
    from fairlane.cli.commands.serve import command
    from fairlane.web.app import ENDPOINTS

    blocks = blocks_of(DOCS / "how-to" / "run" / "kubernetes.md", languages=("yaml",))
    deployment, serving, scaled = (yaml.safe_load(block.text) for block in blocks)
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    assert container["livenessProbe"]["httpGet"]["path"] == "/metrics"
    assert container["readinessProbe"]["httpGet"]["path"] == "/healthz"
    (server,) = serving["spec"]["template"]["spec"]["containers"]
    paths = {endpoint.path for endpoint in ENDPOINTS}
    probes = {server[name]["httpGet"]["path"] for name in ("livenessProbe", "readinessProbe")}
    options = {option for parameter in command.params for option in parameter.opts}
    assert {word for word in server["command"] if word.startswith("--")} <= options
    url = scaled["spec"]["triggers"][0]["metadata"]["url"]
    assert {*probes, "/" + url.split("/", 3)[3]} <= paths


def test_the_service_of_fastapi_submits_and_returns_a_result(tmp_path: Path):
    testclient = pytest.importorskip("fastapi.testclient")
    (block,) = blocks_of(DOCS / "how-to" / "connect" / "fastapi.md", languages=("python",))
    (tmp_path / "service.py").write_text(block.text)
    spec = importlib.util.spec_from_file_location("service", tmp_path / "service.py")
    assert spec is not None
    assert spec.loader is not None
    service: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(service)
    with eager(service.tasks), testclient.TestClient(service.api) as client:
        submitted = client.post("/resize", params={"path": "a.png", "width": 80})
        assert submitted.status_code == 202
        found = client.get(f"/resize/{submitted.json()['id']}")
        assert found.json() == {"state": "done", "size": [80, 40]}
        assert client.get("/resize/none").status_code == 404


@for_each("page", PAGES)
def test_every_relative_link_of_a_page_leads_somewhere(page: Path):
    links = re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []
