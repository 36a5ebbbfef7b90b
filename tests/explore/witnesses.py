"""Chooses and runs the tests and explored systems that may detect a changed script.

pytest collects the tests once. Each judgement then runs in a fork of that process, because most of
the time of a short run is its start. A recording on the scripts as they are shows which scripts
each test calls: a test that calls no changed script cannot detect the change.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import tempfile
import time
from dataclasses import dataclass
from functools import cache
from itertools import zip_longest
from multiprocessing import connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from fairlane.protocol import lua
from tests.explore.machinery.explorer import TooLarge, Violation
from tests.explore.machinery.runs import explore
from tests.explore.systems import BY_NAME
from tests.support.servers import server_process

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from tests.explore.machinery.explorer import System

ROOT = Path(__file__).resolve().parents[2]
LUA_VARIABLE = "FAIRLANE_TESTS_LUA"  # read by tests/conftest.py: the folder that holds v1
FOLDERS = (
    "tests/scripts",
    "tests/spark/scripts",
    "tests/operations",
    "tests/spark/operations",
)
OPTIONS = ("-s", "-q", "-k", "not system_redis and not cluster1", "-p", "no:cacheprovider")
IMPORTED = (
    "-W",
    "ignore::pytest.PytestAssertRewriteWarning",
)  # the product's plugin, by this module
JOBS = 2  # so many forks run concurrently
T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class Witness:
    """A test or a system: what it costs, the scripts that it calls, and the files that it reads."""

    name: str
    seconds: float
    scripts: frozenset[str]
    failure: str = ""

    def rank(self, word: str) -> tuple[bool, int, float]:
        """Ranks tests of the script itself first, then files that use it most, then quick tests."""
        path = self.name.partition("::")[0]
        return "/operations/" in self.name, -_mentions(path, word), self.seconds


@cache
def _mentions(path: str, word: str) -> int:
    return (ROOT / path).read_text().count(word)


class Collected:
    """A plugin of pytest that does its work in place of running all tests."""

    def __init__(self, work: Callable[[Collected], None]) -> None:
        self._work = work
        self._items: dict[str, pytest.Item] = {}
        self._seconds, self._failure = 0.0, ""

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Does the work, with all tests collected."""
        self._items = {item.nodeid: item for item in session.items}
        self._work(self)
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Notes the time of a test's phase, and whether it failed."""
        self._seconds += report.duration
        if report.failed and not self._failure:
            crash = getattr(report.longrepr, "reprcrash", None)
            why = crash.message if crash else str(report.longrepr)
            self._failure = f"{report.nodeid} ({why.splitlines()[0][:60]})"

    @property
    def files(self) -> list[list[str]]:
        """Returns the tests of each file."""
        found: dict[str, list[str]] = {}
        for name in self._items:
            found.setdefault(name.partition("::")[0], []).append(name)
        return list(found.values())

    def run(self, names: Iterable[str], *, on: bool = False) -> Iterator[Witness]:
        """Runs these tests in turn up to the first that fails, or all of them with `on`."""
        items = [self._items[name] for name in names]
        for item, following in zip_longest(items, items[1:]):
            self._seconds, self._failure = 0.0, ""
            with recorded() as found:
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            yield Witness(item.nodeid, self._seconds, frozenset(found), self._failure)
            if self._failure and not on:
                item.session._setupstate.teardown_exact(None)  # its servers end
                return


def collect(work: Callable[[Collected], None]) -> None:
    """Collects the tests, and does the work with them."""
    os.environ[LUA_VARIABLE] = str(lua.lua_folder())  # which a fork changes
    code = pytest.main([*FOLDERS, *OPTIONS, *IMPORTED], plugins=[Collected(work)])
    if code:
        raise RuntimeError(f"pytest could not collect the tests: {code}")


@contextlib.contextmanager
def recorded() -> Iterator[set[str]]:
    """Yields the names of the scripts that are called meanwhile, and of the files that are read."""
    names: set[str] = set()
    item, source, expand = lua.Library.__getitem__, lua.Script.source, lua.expand

    def _item(library: lua.Library, name: str) -> lua.Script:
        names.add(name)
        return item(library, name)

    def _source(script: lua.Script, dialect: lua.Dialect) -> bytes:
        names.add(script.name)
        return source(script, dialect)

    def _expand(root: Path, name: str, seen: set[str] | None = None) -> str:
        names.add(name)
        return expand(root, name, seen)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lua.Library, "__getitem__", _item)
        patch.setattr(lua.Script, "source", _source)
        patch.setattr(lua, "expand", _expand)
        yield names


def forked(work: Callable[[T], R], things: Iterable[T]) -> Iterator[tuple[T, R]]:
    """Yields what the work returns for each thing as it ends, each in a fork, JOBS concurrently."""
    fork = multiprocessing.get_context("fork")
    left, running = iter(things), {}
    while True:
        for thing in left:
            ours, theirs = fork.Pipe(duplex=False)
            process = fork.Process(target=_send, args=(theirs, work, thing))
            process.start()
            theirs.close()
            running[ours] = thing, process
            if len(running) == JOBS:
                break
        if not running:
            return
        ended = connection.wait(running)
        for ours in [one for one in running if one in ended]:
            thing, process = running.pop(ours)
            result = ours.recv()  # EOFError: the fork's traceback is in its output
            process.join()
            yield thing, result


def _send(theirs: connection.Connection, work: Callable[[Any], Any], thing: Any) -> None:
    """Works without output, with a folder of its own for pytest."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["PYTEST_DEBUG_TEMPROOT"] = folder
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        theirs.send(work(thing))


def use(root: Path) -> None:
    """Lets this fork run other scripts."""
    os.environ[LUA_VARIABLE] = str(root.parent)
    lua.library.cache_clear()


def record_system(system: System) -> Witness:
    """Returns the scripts that a system calls; raises Violation."""
    began = time.perf_counter()
    with (
        server_process.run_server("single") as server,
        recorded() as names,
        contextlib.suppress(TooLarge),
    ):
        explore(server, system)
    return Witness(system.name, time.perf_counter() - began, frozenset(names))


def violated(root: Path, systems: list[Witness]) -> str:
    """Returns the first of these systems that detects a violation; "" if none does."""
    if not systems:
        return ""
    with server_process.run_server("single") as server:
        try:
            for system in systems:
                with contextlib.suppress(TooLarge):
                    explore(server, BY_NAME[system.name], root, patience_s=20)
        except Violation as found:
            return f"explore ({found.system})"
        except (TimeoutError, RuntimeError, ConnectionError) as error:
            return f"explore ({type(error).__name__})"
    return ""
