"""Tests samples/ports: other projects' examples do the same here."""

from __future__ import annotations

import http.server
import importlib.util
import re
import threading
from typing import TYPE_CHECKING, Any

import pytest

from fairlane.testing import run_tasks
from tests.guide.blocks import ON_ONE_KIND, ROOT, Shells, blocks_of, environment
from tests.support.wait import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import ModuleType

PORTS = ROOT / "samples" / "ports"


def load(name: str, redis_url: str) -> ModuleType:
    """Imports one of the programs; its app uses the test's Redis."""
    spec = importlib.util.spec_from_file_location(name, PORTS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.app.connect_to(redis_url)
    return module


@pytest.fixture
def page_url() -> Iterator[str]:
    """Runs a server on this machine with one page of four words."""

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"one two three four")

        def log_message(self, *_: object) -> None:
            """Prints nothing."""

    with http.server.HTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


@ON_ONE_KIND
def test_the_example_of_celery(redis_url: str):
    port = load("celery_add", redis_url)
    call = port.add.submit(4, 4)
    assert run_tasks(port.app) == 1
    assert call.result(timeout=PATIENCE_S) == 8


@ON_ONE_KIND
def test_the_example_of_rq(redis_url: str, page_url: str):
    port = load("rq_count_words", redis_url)
    call = port.count_words_at_url.submit(page_url)
    assert run_tasks(port.app) == 1
    assert call.result(timeout=PATIENCE_S) == 4


@ON_ONE_KIND
def test_the_example_of_docket(redis_url: str, monkeypatch: pytest.MonkeyPatch):
    port, steps = load("docket_progress", redis_url), []

    async def sleep(seconds: float) -> None:
        steps.append(seconds)

    monkeypatch.setattr(port.asyncio, "sleep", sleep)
    call = port.long_task.submit()
    assert run_tasks(port.app) == 1
    assert (call.wait(timeout=PATIENCE_S), steps) == ("done", [1] * 100)


@pytest.mark.rest
@ON_ONE_KIND
def test_the_commands_of_the_page_run(redis_url: str, tmp_path: Path):
    for path in PORTS.glob("*.py"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    with Shells(tmp_path, environment(redis_url)) as shells:
        said = [shells.run(block) for block in blocks_of(PORTS / "README.md")]
    assert said[-1].strip() == "8"


def test_the_page_counts_the_lines_of_each_program():
    rows: dict[str, Any] = {}
    for line in (PORTS / "README.md").read_text().splitlines():
        if found := re.search(r"\| (\d+) \| (\d+) \| \[(\w+\.py)\]", line):
            rows[found[3]] = (int(found[1]), int(found[2]))
    counted = {
        path.name: sum(bool(line.strip()) for line in path.read_text().splitlines())
        for path in PORTS.glob("*.py")
    }
    assert {name: here for name, (_, here) in rows.items()} == counted
    assert all(here <= there for there, here in rows.values())
