"""What a process of a worker logs when Redis does not answer a unit."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fairlane.errors import NodeAway, RedisUnreachable
from fairlane.worker.log.repeats import Repeats
from fairlane.worker.process.child import _report


@pytest.mark.parametrize(
    ("is_one", "error", "is_logged"),
    [
        (True, RedisUnreachable("no answer"), False),  # the supervisor logs that
        (False, RedisUnreachable("no answer"), True),
        (False, NodeAway("no answer"), True),
    ],
    ids=str,
)
def test_an_outage_of_a_single_server_is_logged_by_the_supervisor_only(
    caplog: pytest.LogCaptureFixture, *, is_one: bool, error: Exception, is_logged: bool
):
    assignment: Any = SimpleNamespace(repeats=Repeats())
    driver: Any = SimpleNamespace(servers=SimpleNamespace(is_one=is_one))
    _report(assignment, driver, error)  # type: ignore[arg-type]
    assert caplog.messages == ["no answer; trying again"] * is_logged
