"""What `rq-submit` reports when a submission is cut off."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fairlane.cli.submission.request import SubmitOptions, send
from fairlane.errors import RedisUnreachable
from fairlane.model import Policy


def cut_off(*_: Any, **__: Any) -> Any:
    raise RedisUnreachable("Redis does not answer")


@pytest.mark.parametrize(
    ("own_id", "again"),
    [(None, "add --id r7 and run it again"), ("r7", "run the same command again")],
)
@pytest.mark.parametrize("as_they_come", [True, False])
def test_a_submission_that_loses_redis_names_the_request_and_what_completes_it(
    own_id: str | None, again: str, as_they_come: bool
):
    queue = SimpleNamespace(submit_chunks=cut_off, submit_request=cut_off)
    request: Any = SimpleNamespace(id="r7", queue=queue)
    options = SubmitOptions(
        Policy(), own_id, as_json=False, watch=False, waits=False, timeout=None, out=None
    )
    with pytest.raises(RedisUnreachable) as raised:
        send(options, request, [[b"a"]], as_they_come=as_they_come)
    assert str(raised.value) == (
        "Redis does not answer; request r7 may be incomplete: when Redis answers, "
        f"{again} to complete it, or fairlane cancel r7"
    )
