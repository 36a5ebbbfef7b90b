"""Tests what is delivered: the wheel, the container image's recipe, and the CI workflow."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import socket
import subprocess
import sys
import threading
import tomllib
import zipfile
from email.parser import Parser
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from fairlane.protocol.lua import Dialect, library
from tests.support.wait import PATIENCE_S
from tests.support.wheel import build_wheel

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
RELEASE = re.compile(r"Programming Language :: Python :: (3\.\d+)")


def releases() -> list[str]:
    """The versions of Python that the classifiers name, the oldest first."""
    found = [match[1] for one in PROJECT["classifiers"] if (match := RELEASE.fullmatch(one))]
    return sorted(found, key=lambda text: tuple(map(int, text.split("."))))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    return zipfile.ZipFile(build_wheel(tmp_path_factory.mktemp("dist")))


@pytest.mark.rest
def test_the_wheel_has_types_scripts_and_nothing_else(wheel: zipfile.ZipFile):
    names = wheel.namelist()
    assert "fairlane/py.typed" in names
    assert "fairlane/lua/v1/request/acquire.lua" in names
    folders = {name.partition("/")[0] for name in names}
    assert folders == {"fairlane", f"fairlane-{PROJECT['version']}.dist-info"}


SHAS = """
import fairlane
from fairlane.protocol.lua import Dialect, library

print(fairlane.__file__)
print(*(one.shas[Dialect.SINGLE].decode() for one in library()))
"""


@pytest.mark.rest
def test_the_scripts_are_found_in_a_wheel_that_is_not_unpacked(wheel: zipfile.ZipFile):
    """Spark's `--py-files` puts it on Python's path as it is."""
    env = os.environ | {"PYTHONPATH": str(wheel.filename)}
    words = [sys.executable, "-c", SHAS]
    done = subprocess.run(
        words, env=env, capture_output=True, text=True, timeout=PATIENCE_S, check=True
    )
    place, shas = done.stdout.splitlines()
    assert place == f"{wheel.filename}/fairlane/__init__.py"
    assert shas.split() == [one.shas[Dialect.SINGLE].decode() for one in library()]


@pytest.mark.rest
def test_the_wheels_metadata_lead_to_the_project(wheel: zipfile.ZipFile):
    (name,) = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
    metadata = Parser().parsestr(wheel.read(name).decode())
    links = {one.partition(",")[0] for one in metadata.get_all("Project-URL", [])}
    assert links == {"Homepage", "Documentation", "Source", "Issues", "Changelog"}
    assert {"Typing :: Typed", "Framework :: AsyncIO"} <= set(metadata.get_all("Classifier", []))
    entries = wheel.read(name.replace("METADATA", "entry_points.txt")).decode()
    assert {"fairlane", "rq-submit", "rq-worker"} == set(
        re.findall(r"^([\w-]+) =", entries, re.MULTILINE)
    )


def test_the_service_runs_all_checks_on_the_oldest_and_the_newest_python():
    given = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    (run,) = given["jobs"].values()
    assert [step["run"] for step in run["steps"] if ".ci/run" in step.get("run", "")] == [".ci/run"]
    first, *_, last = releases()
    assert run["strategy"]["matrix"]["python"] == [first, last]
    assert PROJECT["requires-python"] == f">={first}"
    assert run["runs-on"].startswith("ubuntu-")


def test_the_image_runs_a_worker_without_rights():
    last = DOCKERFILE.rpartition("\nFROM ")[2].splitlines()
    assert 'ENTRYPOINT ["rq-worker"]' in last
    (user,) = [line.split()[1] for line in last if line.startswith("USER ")]
    assert min(map(int, user.split(":"))) > 0
    assert any(line.startswith("HEALTHCHECK ") for line in last)


def test_the_image_is_built_of_the_files_that_it_needs():
    """Each COPY is of a path that .dockerignore lets in, and nothing else is let in."""
    copied = re.findall(r"^COPY (?!--from)(.*) \S+$", DOCKERFILE, re.MULTILINE)
    paths = {path.partition("/")[0] for line in copied for path in line.split()}
    ignore = (ROOT / ".dockerignore").read_text().splitlines()
    let_in = {line[1:] for line in ignore if line.startswith("!")}
    assert "*" in ignore
    assert let_in == paths | {"Dockerfile"}
    assert all((ROOT / path).exists() for path in let_in)


# ------------------------------------------------------------------ the container's health check


def health() -> Any:
    spec = importlib.util.spec_from_file_location("health", ROOT / "docker" / "health.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def worker() -> Iterator[HTTPServer]:
    """Runs what answers as a worker's health port; its `status` may be changed."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(made.status)  # type: ignore[attr-defined]
            self.end_headers()
            self.wfile.write(json.dumps({"healthy": True}).encode())

        def log_message(self, *_: object) -> None:
            pass

    made = HTTPServer(("127.0.0.1", 0), Answer)
    made.status = 200  # type: ignore[attr-defined]
    serving = threading.Thread(target=made.serve_forever)
    serving.start()
    yield made
    made.shutdown()
    made.server_close()
    serving.join()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, as in a container")
def test_the_check_asks_the_worker_that_listens(
    worker: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("FAIRLANE_WORKER_ID", f":{worker.server_port}")
    assert health().main() == 0
    assert json.loads(capsys.readouterr().out) == {"healthy": True}
    worker.status = 503
    assert health().main() == 1
    assert "is not healthy: HTTP Error 503" in capsys.readouterr().out


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, as in a container")
def test_the_check_fails_where_no_worker_listens(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        monkeypatch.setenv("FAIRLANE_WORKER_ID", f"10.0.0.1:{port}")
        assert health().main() == 1
    assert capsys.readouterr().out == f"no worker listens at port {port}\n"


def test_images_and_actions_are_named_by_what_cannot_change():
    workflows = [*ROOT.joinpath(".github", "workflows").glob("*.yml")]
    uses = [one for file in workflows for one in re.findall(r"uses: (\S+)", file.read_text())]
    assert len(uses) >= 2 * len(workflows) > 0
    assert [one for one in uses if not re.fullmatch(r"\S+@[0-9a-f]{40}", one)] == []
    images = re.findall(r"(?m)^ARG BASE=(\S+)", DOCKERFILE)
    compose = ROOT.joinpath("cluster-compose.yml").read_text()
    images += re.findall(r"image: \$\{\w+:-(\S+)\}", compose)
    assert len(images) == 4
    assert [one for one in images if not re.fullmatch(r"\S+@sha256:[0-9a-f]{64}", one)] == []


def test_a_deployment_has_no_rights_and_the_image_can_serve():
    page = ROOT.joinpath("docs", "how-to", "run", "kubernetes.md").read_text()
    rights = ("runAsNonRoot: true", "readOnlyRootFilesystem: true", "drop: [ALL]")
    deployments = [part for part in page.split("```") if "kind: Deployment" in part]
    assert len(deployments) == 2
    for part in deployments:
        assert all(one in part for one in rights)
    assert '".[web]"' in DOCKERFILE
