"""Tests the page on HTTP: its blocks run in order, and print what the page shows."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.guide.blocks import ON_ONE_KIND, ROOT, Shells, blocks_of, environment

if TYPE_CHECKING:
    from pathlib import Path

PAGE = ROOT / "docs" / "how-to" / "connect" / "http.md"


@pytest.mark.slow
@ON_ONE_KIND
@pytest.mark.rest
def test_the_page_runs(redis_url: str, tmp_path: Path):
    reader = {**environment(redis_url), "FAIRLANE_HOME": str(tmp_path / "home")}
    with Shells(tmp_path, reader) as shells:
        said = [shells.run(block) for block in blocks_of(PAGE)]
    _, messages, worker, many, bulk, streams, _, tokens = said
    assert messages.splitlines()[0] == '{"status":"ok"}'
    assert '"message":"hello"}][] 204' in messages
    assert worker.splitlines()[-1] == "['ONE', 'TWO', 'THREE']"
    submitted, changed, paused, listed, cancelled, unknown = map(json.loads, many.splitlines())
    assert submitted == {"id": "many", "total": 100_000}
    assert (changed["limit"], changed["priority"]) == (50, 9)
    assert (paused["state"], cancelled["state"]) == ("paused", "cancelled")
    assert [one["id"] for one in listed["requests"]] == ["many"]
    assert (unknown["status"], unknown["detail"].split(" (")[0]) == (
        404,
        "there is no request nothing",
    )
    counted, deleted, audited = map(json.loads, bulk.splitlines())
    assert (counted["matched"], counted["changed"], deleted["changed"]) == (1, 0, 1)
    (entry,) = audited["entries"]
    assert (entry["who"], entry["action"], entry["status"]) == ("local", "POST /v1/bulk", 200)
    assert streams.count("event: ended") == 3
    _, _, allowed, *refused, revoked, again = tokens.splitlines()
    assert set(json.loads(allowed)) == {"id"}
    assert {json.loads(line)["error"] for line in (*refused, again)} == {
        "You are unauthorized to perform this action"
    }
    assert (len(refused), revoked) == (2, "revoked")
