"""A plugin for pytest: an app under test gets a Redis of its own, which is empty in each test.

    # pyproject.toml
    [tool.pytest.ini_options]
    fairlane_app = ["images:app"]

The fixture `fairlane_app` is the first of these apps; all of them use the test's Redis. In a test
without it no app reaches this user's embedded server, unless the test is marked fairlane_embedded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fairlane.tasks.app import App

_INI = "fairlane_app"
_MARK = "fairlane_embedded"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the setting `fairlane_app`."""
    parser.addini(_INI, "the apps under test, each as module:app", type="args", default=[])


def pytest_configure(config: pytest.Config) -> None:
    """Adds the mark `fairlane_embedded`."""
    config.addinivalue_line("markers", f"{_MARK}: the test may use this user's embedded server")


@pytest.fixture(autouse=True)
def _no_embedded_server(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps a test that forgot the fixture `fairlane_app` from writing to the user's queues."""
    if not request.config.getini(_INI) or request.node.get_closest_marker(_MARK):
        return
    import fairlane.embedded

    monkeypatch.setattr(fairlane.embedded, "ensure", _refuse)


def _refuse() -> NoReturn:
    from fairlane.errors import InvalidArgument

    raise InvalidArgument(
        "this test would use your own embedded server: give it the fixture fairlane_app, or mark "
        f"it with pytest.mark.{_MARK} if that is meant"
    )


@pytest.fixture(scope="session")
def fairlane_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Starts an embedded server for this test run, never a shared one, and returns its URL."""
    from pathlib import Path

    from fairlane.embedded.server import ensure, stop

    home = Path(tmp_path_factory.mktemp("fairlane"))
    yield ensure(home)
    stop(home)


@pytest.fixture
def fairlane_app(request: pytest.FixtureRequest, fairlane_server: str) -> Iterator[App]:
    """Returns the first app of the setting `fairlane_app`, on a Redis that is empty."""
    from fairlane.errors import FairlaneError
    from fairlane.tasks.serve import load_apps
    from fairlane.testing.run import return_to_present

    names: list[str] = request.config.getini(_INI)
    if not names:
        pytest.fail(
            f'name your app in the setting {_INI}, as {_INI} = ["images:app"]', pytrace=False
        )
    try:
        apps = load_apps(names)
    except FairlaneError as error:
        pytest.fail(f"setting {_INI}: {error}", pytrace=False)
    before = [app.url for app in apps]
    for app in apps:
        app.connect_to(fairlane_server)
    apps[0].queue.driver.run(_flush())
    return_to_present()
    yield apps[0]
    for app, url in zip(apps, before, strict=True):
        app.connect_to(url)


async def _flush() -> Any:
    from fairlane.protocol.steps import Command

    return await Command(b"FLUSHALL")
