"""A pytest plugin: which scripts does each test call, and how long does it take?

`tests/explore/mutants.py` runs the tests once with it. A test that calls no script with the changed
line cannot see the change, so it is left out.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fairlane.protocol import scripts

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

VARIABLE = "FAIRLANE_TESTS_CALLS"  # the folder where each process writes what it has recorded
_tests: dict[str, tuple[float, list[str]]] = {}


@contextlib.contextmanager
def recorded() -> Iterator[set[str]]:
    """Yields the names of the scripts that are called meanwhile, and of the files that are read."""
    names: set[str] = set()
    call, source, expand = scripts.Script.__call__, scripts.Script.source, scripts.expand

    def _call(script: scripts.Script, *args: Any, **given: Any) -> Any:
        names.add(script.name)
        return call(script, *args, **given)

    def _source(script: scripts.Script, dialect: scripts.Dialect) -> bytes:
        names.add(script.name)
        return source(script, dialect)

    def _expand(root: Path, name: str, seen: set[str] | None = None) -> str:
        names.add(name)
        return expand(root, name, seen)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scripts.Script, "__call__", _call)
        patch.setattr(scripts.Script, "source", _source)
        patch.setattr(scripts, "expand", _expand)
        yield names


def read(folder: Path) -> dict[str, tuple[float, set[str]]]:
    """Returns the seconds and the scripts of each test that was run with this plugin."""
    found = [json.loads(path.read_text()) for path in folder.iterdir()]
    return {test: (seconds, set(names)) for one in found for test, (seconds, names) in one.items()}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Records one test, with its fixtures."""
    _tests[item.nodeid] = (0.0, [])
    with recorded() as names:
        try:
            return (yield)
        finally:
            seconds, _ = _tests[item.nodeid]
            _tests[item.nodeid] = (seconds, sorted(names))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Adds the time of a test's phase."""
    if report.nodeid in _tests:  # not in the process that only starts others
        seconds, names = _tests[report.nodeid]
        _tests[report.nodeid] = (seconds + report.duration, names)


def pytest_sessionfinish() -> None:
    """Writes what this process has recorded."""
    path = Path(os.environ[VARIABLE], f"{os.getpid()}.json")
    path.write_text(json.dumps(_tests))
