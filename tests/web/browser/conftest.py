"""Fixtures: a real browser for all tests of a file, at a server of its own for each test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.web.browser.browser import CHROMIUM, DRIVER, MISSING, Browser

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.web.serving import Serving


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A browser with a profile of its own."""
    if not CHROMIUM or not DRIVER:
        pytest.skip(MISSING)
    made = Browser(tmp_path_factory.mktemp("profile"))
    yield made
    made.close()


@pytest.fixture
def browser(chromium: Browser, serving: Serving) -> Iterator[Browser]:
    """The browser at a server without tokens; its log must be empty at the end."""
    chromium.url = serving.url
    chromium.problems()  # those of the test before
    yield chromium
    found = chromium.problems()
    chromium.driver.get("about:blank")  # before the server ends
    assert found == []
