"""Lets the processes of one test run share the rewriting of assertions.

pytest rewrites each test module before its first import, which takes longer than the import, and
keeps the result in a cache. Processes that begin together at the same module would all rewrite all
of them. So each first imports a share of its own, and then finds most others in the cache.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).resolve().parents[3]


def import_share(places: Sequence[str], ignored: Sequence[str]) -> None:
    """Imports this process's share of the test modules in these folders, less the ignored ones.

    What cannot be imported is left to the collection, which reports it.
    """
    for path in share_of(modules_in(places, ignored), os.environ):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        with contextlib.suppress(Exception, pytest.skip.Exception):
            importlib.import_module(name)


def modules_in(places: Sequence[str], ignored: Sequence[str] = ()) -> list[Path]:
    """Returns the test modules in these folders of the project, in a fixed order."""
    without = [Path(place).resolve() for place in ignored]
    folders = [Path(place).resolve() for place in places]
    inner = [folder for folder in folders if folder.is_dir() and folder.is_relative_to(ROOT)]
    found = {path for folder in inner for path in folder.rglob("test_*.py")}
    return sorted(path for path in found if not any(map(path.is_relative_to, without)))


def share_of(paths: list[Path], env: os._Environ[str] | dict[str, str]) -> list[Path]:
    """Returns every n-th path for one of n processes of xdist, and none without xdist."""
    count = int(env.get("PYTEST_XDIST_WORKER_COUNT", "0"))
    if count < 2:
        return []
    return paths[int(env["PYTEST_XDIST_WORKER"].removeprefix("gw")) :: count]
