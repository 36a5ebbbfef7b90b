"""Fixtures: real servers, with a clean database before each test and a check after it."""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest
import redis.utils

from fairlane import aio
from fairlane.drivers.sync import SyncDriver
from fairlane.protocol import lua
from fairlane.queue import Queue
from tests.support.both_faces import as_blocking, is_asyncio
from tests.support.operations.actor import Actor
from tests.support.run import extras, table
from tests.support.run.first_share import import_share
from tests.support.run.teardown import check_world
from tests.support.scripts.requests import Lane
from tests.support.servers import backends

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator


# All that is imported and collected stays: a search of it for garbage takes long, and finds none.
gc.disable()

# The mutation gate (tests/explore/mutants.py) runs the tests on changed copies of the scripts.
if "FAIRLANE_TESTS_LUA" in os.environ:
    vars(lua)["lua_folder"] = lambda: Path(os.environ["FAIRLANE_TESTS_LUA"])

# A shell starts what runs in its background with SIGINT ignored, nohup with SIGHUP, and every
# child inherits that. A handler ends with the exec of a child, which then has the default.
is_main = threading.current_thread() is threading.main_thread()
if is_main and signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# The runs of xdist end with the run that started them, which may be under nohup.
if is_main and (
    signal.getsignal(signal.SIGHUP) is signal.SIG_IGN or "PYTEST_XDIST_WORKER" in os.environ
):
    signal.signal(signal.SIGHUP, lambda *_: None)

# redis-py reads the metadata of its package again for every connection.
vars(redis.utils)["get_lib_version"] = functools.cache(redis.utils.get_lib_version)

# a loaded machine is no reason to fail
hypothesis.settings.register_profile("patient", deadline=None)
hypothesis.settings.load_profile("patient")


@pytest.fixture
def hangup() -> Iterator[None]:
    """Programs that are started inherit the default of SIGHUP, also if nohup started the tests."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture(scope="session")
def server_of_kind() -> Iterator[Callable[[str], backends.Backend]]:
    """Starts each kind of back end once for the whole run, when it is first wanted."""
    running: dict[str, backends.Backend] = {}
    with contextlib.ExitStack() as later:

        def start(kind: str) -> backends.Backend:
            if kind not in running:
                running[kind] = later.enter_context(backends.run_backend(kind))
            return running[kind]

        yield start


@pytest.fixture(scope="session", params=backends.chosen())
def redis_server(request: pytest.FixtureRequest, server_of_kind: Callable[[str], Any]) -> Any:
    """Yields a private back end of each kind: most are a Server."""
    if reason := backends.why_not(request.param):
        pytest.skip(reason)
    try:
        return server_of_kind(request.param)
    except LookupError as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def raw_client(redis_server: backends.Backend) -> Iterator[Any]:
    """A raw client for all tests of a server: a connection takes as much CPU as many a test."""
    with contextlib.closing(redis_server.client()) as client:
        yield client


@pytest.fixture
def redis_url(
    request: pytest.FixtureRequest, redis_server: backends.Backend, raw_client: Any
) -> Iterator[str]:
    """The URL of a clean server, whose keys are checked when the test has ended."""
    may_all = request.node.get_closest_marker("any_command") is not None
    raw_client.flushall()
    backends.make_ready(redis_server, raw_client)
    yield backends.admin_url(redis_server) if may_all else redis_server.url
    check_world(raw_client)


@pytest.fixture
def redis_client(raw_client: Any, redis_url: str) -> Iterator[Any]:
    """A raw client of the server behind `redis_url`: bytes in, bytes out, no retries."""
    yield raw_client
    backends.leave_one_connection(raw_client)


@pytest.fixture
def driver(redis_url: str) -> Iterator[SyncDriver]:
    """A driver of the server behind `redis_url`, which repeats nothing."""
    with contextlib.closing(SyncDriver(redis_url, patience_s=0)) as made:
        yield made


@pytest.fixture
def queue(request: pytest.FixtureRequest, driver: SyncDriver, redis_url: str) -> Iterator[Queue]:
    """The queue `req` with the blocking API; the asyncio one, too, if a test has `@both_faces`."""
    if not is_asyncio(request):
        yield Queue(driver)
        return
    with as_blocking(aio.Queue.from_url(redis_url, patience_s=0), driver) as awaited:
        yield awaited


@pytest.fixture
def act() -> Iterator[Callable[..., Actor]]:
    """Makes drivers, and closes them."""
    with contextlib.ExitStack() as later:

        def made(*args: Any, **options: Any) -> Actor:
            actor = Actor(*args, **options)
            later.callback(actor.close)
            return actor

        yield made


@pytest.fixture
def lane(driver: SyncDriver, redis_client: redis.Redis) -> Lane:
    """A request `r1` in the queue `req`, not enqueued yet."""
    return Lane(driver, redis_client)


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leaves out the tests of an extra that is not installed."""
    return extras.needs_missing(collection_path) or None


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Imports a share of the modules before all of them are collected."""
    import_share(session.config.args, session.config.getoption("ignore") or ())
    return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Makes no test of the other kind of server if `-m` leaves it out, as `make test` does."""
    path, test = metafunc.definition.path, metafunc.definition
    leaves_out = "not rest" in metafunc.config.getoption("markexpr") and not backends.is_named()
    if leaves_out and "redis_server" in metafunc.fixturenames and not _names_its_kind(test):
        kinds = [kind for kind in backends.chosen() if not backends.is_other_kind(kind, path)]
        test.add_marker(pytest.mark.parametrize("redis_server", kinds, indirect=True))


def pytest_collection_finish() -> None:
    """Keeps the collected tests out of garbage collections, and so of the memory of forks."""
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks the tests that need a server, and those of the other kind. Keeps only chosen kinds."""
    others = []
    for item in items:
        kind = table.kind_of(item)
        if kind and backends.is_other_kind(kind, item.path) and not _names_its_kind(item):
            item.add_marker(pytest.mark.rest)
        if kind is not None or "redis_server" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.server)
        wanted = kind in backends.chosen() and backends.takes(kind, item.path)
        if not wanted:
            others.append(item)
    if backends.is_named():
        config.hook.pytest_deselected(items=others)
        left_out = set(others)
        items[:] = [item for item in items if item not in left_out]


def _names_its_kind(node: pytest.Item | pytest.Function) -> bool:
    """Returns whether `parametrize` names the kinds of server that this test runs on."""
    marks = node.iter_markers("parametrize")
    return any("redis_server" in str(mark.args[0]) for mark in marks)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Adds to the report on which back end the test ran."""
    item.user_properties.append((table.PROPERTY, table.kind_of(item)))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Prints what was left out without an extra, and what ran on which back end, if chosen."""
    for line in extras.lines():
        terminalreporter.write_line(line)
    if backends.is_named():
        for line in table.lines(terminalreporter.stats):
            terminalreporter.write_line(line)
