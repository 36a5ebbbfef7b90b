"""Runs the examples of the pages about FastAPI and Django, also with a call that fails."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import re
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from fairlane.testing import eager

PAGES = Path(__file__).parents[3] / "docs" / "how-to" / "connect"


def blocks(page: str) -> list[str]:
    text = (PAGES / page).read_text()
    return re.findall(r"```\w+\n(.*?)```", text, re.DOTALL)


@pytest.mark.rest
def test_fastapis_example_answers_for_a_failed_call_and_for_what_is_no_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    fastapi = pytest.importorskip("fastapi")
    (tmp_path / "its_service.py").write_text(blocks("fastapi.md")[0])
    monkeypatch.syspath_prepend(tmp_path)
    names = vars(importlib.import_module("its_service"))
    tasks = names["tasks"]

    def broken(path: str, width: int = 200) -> list[int]:
        if path == "bad":
            raise ValueError("no picture")
        return [width, width // 2]

    tasks.tasks.clear()
    names["resize"] = resize = tasks.task(name="resize", attempts=1)(broken)

    async def run() -> list[Any]:
        good, bad = await resize.asubmit("a.png"), await resize.asubmit("bad")
        found: list[Any] = [await names["result"](good.id), await names["result"](bad.id)]
        for wrong in ("never-submitted", "no id {}"):
            with pytest.raises(fastapi.HTTPException) as refused:
                await names["result"](wrong)
            found.append(refused.value.status_code)
        return found

    with eager(tasks):
        assert asyncio.run(run()) == [
            {"state": "done", "size": [200, 100]},
            {"state": "failed", "error": "no picture"},
            404,
            422,
        ]


def test_djangos_middleware_closes_connections_after_a_call_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    closed: list[str] = []
    database: Any = types.ModuleType("django.db")
    database.close_old_connections = lambda: closed.append("closed")
    monkeypatch.setitem(sys.modules, "django", types.ModuleType("django"))
    monkeypatch.setitem(sys.modules, "django.db", database)
    (source,) = [block for block in blocks("django.md") if "@app.middleware" in block]
    (tmp_path / "its_middleware.py").write_text(source[source.index("def connections") :])
    monkeypatch.syspath_prepend(tmp_path)
    names = vars(importlib.import_module("its_middleware"))
    with pytest.raises(ValueError, match="no"), contextlib.contextmanager(names["connections"])(0):
        raise ValueError("no")
    assert closed == ["closed", "closed"]
