"""Runs the tests of what an archive reads on both kinds of server, and the others on one."""

from __future__ import annotations

import pytest

from tests.support.servers import backends


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.definition.path.name != "test_archive.py":
        backends.use_one(metafunc)
