"""Tests the names that `import fairlane` offers."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

import fairlane
from fairlane import errors
from fairlane.aio import flows, queue, request, topics
from fairlane.topics import Topic

INTERNAL = {"LayoutTooNew", "NodeAway", "ScriptsNotLoaded"}  # callers catch their base classes


def test_every_offered_name_can_be_imported():
    for name in fairlane.__all__:
        assert getattr(fairlane, name) is not None


def test_every_offered_name_is_imported_for_types_from_the_module_that_has_it():
    """Editors and the reference read these imports."""
    tree = ast.parse(Path(fairlane.__file__).read_text())
    (block,) = (one for one in tree.body if isinstance(one, ast.If))
    found = {
        alias.name: f".{one.module.removeprefix('fairlane.')}"
        for one in block.body
        if isinstance(one, ast.ImportFrom) and one.module
        for alias in one.names
    }
    assert found == fairlane._HOMES


def test_every_error_that_a_caller_may_catch_is_offered():
    every = {
        name
        for name, found in vars(errors).items()
        if isinstance(found, type) and issubclass(found, errors.FairlaneError)
    }
    assert every - INTERNAL == {name for name in fairlane.__all__ if name in every}
    assert fairlane.WaitTimeout is errors.WaitTimeout
    assert fairlane.RequestLost is errors.RequestLost


def test_the_version_is_that_of_the_installed_package():
    assert fairlane.__version__ == version("fairlane")


def test_a_name_that_is_not_offered_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        _ = fairlane.Nothing


def test_importing_the_package_loads_no_client_of_redis():
    code = "import sys, fairlane; print(any(name in sys.modules for name in ('redis', 'click')))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "False\n"


@pytest.mark.parametrize("queue", [fairlane.Queue, fairlane.aio.Queue], ids=["blocking", "asyncio"])
def test_a_queue_that_is_made_of_its_name_is_refused_immediately(queue: type):
    with pytest.raises(fairlane.InvalidArgument, match=r"Queue.from_url\(name='images'\)"):
        queue("images")


@pytest.mark.parametrize(
    "made",
    [
        *(fairlane.Queue, fairlane.Request, fairlane.FlowRun, Topic),
        *(queue.Queue, request.Request, flows.AsyncFlowRun, topics.AsyncTopic),
    ],
)
def test_a_name_in_place_of_what_connects_is_refused_with_the_remedy(made: type):
    with pytest.raises(
        errors.InvalidArgument, match=r"'images'.* is not valid: .*(from_url|queue\.)"
    ):
        made("images", "one")
