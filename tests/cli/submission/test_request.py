"""Tests what `rq-submit` reports when a submission is cut off."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fairlane.cli.commands.submit import SubmitOptions, send
from fairlane.errors import RedisUnreachable
from fairlane.options import Policy


def cut_off(*_: Any, **__: Any) -> Any:
    raise RedisUnreachable("Redis does not answer")


@pytest.mark.parametrize(
    ("own_id", "as_they_come", "remedy"),
    [
        ("r7", False, "run the same command again to complete it, or fairlane cancel r7"),
        (None, False, "add --id r7 and run it again to complete it, or fairlane cancel r7"),
        # A pipe's chunks depend on when its lines came, so a repeat would be another request.
        (
            None,
            True,
            "fairlane cancel r7, then run the command again; with --id, a repeat completes it",
        ),
    ],
)
def test_a_submission_that_loses_redis_names_the_request_and_what_completes_it(
    own_id: str | None, as_they_come: bool, remedy: str
):
    queue = SimpleNamespace(submit_chunks=cut_off, submit_request=cut_off)
    request: Any = SimpleNamespace(id="r7", queue=queue)
    options = SubmitOptions(
        Policy(), own_id, as_json=False, watch=False, waits=False, timeout=None, out=None
    )
    with pytest.raises(RedisUnreachable) as raised:
        send(options, request, [[b"a"]], as_they_come=as_they_come)
    assert str(raised.value) == (
        f"Redis does not answer; request r7 may be incomplete: when Redis answers, {remedy}"
    )
