"""Tests the audit trail of the API: an entry before each change, replaced by its outcome."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from fairlane import settings
from fairlane.errors import InvalidArgument
from fairlane.operations.http.audit_trail import AuditEntry, begin, end, read_trail

if TYPE_CHECKING:
    from fairlane.queue import Queue

ENTRY = AuditEntry("anna", "POST /v1/queue/pause", "req", "for_s=60")


def test_the_outcome_replaces_the_entry(queue: Queue):
    began = queue.driver.run(begin(queue.name, ENTRY))
    assert queue.driver.run(read_trail(queue.name)) == ([(f"{began}~local", ENTRY)], "")
    ended = replace(ENTRY, status=200)
    queue.driver.run(end(queue.name, began, ended))
    ((later, found),), _ = queue.driver.run(read_trail(queue.name))
    assert (found, later > began) == (ended, True)


def test_a_change_whose_server_died_stays_without_an_outcome(queue: Queue):
    queue.driver.run(begin(queue.name, ENTRY))
    ((_, found),), _ = queue.driver.run(read_trail(queue.name))
    assert found.status == 0


def test_long_values_are_cut_and_the_trail_is_bounded(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(settings, "AUDIT_ENTRIES", 100)
    for _ in range(500):
        queue.driver.run(end(queue.name, "", replace(ENTRY, given="x" * 9_999)))
    page, after = queue.driver.run(read_trail(queue.name, 1_000))
    assert 100 <= len(page) < 300
    assert (len(page[0][1].given), after) == (4_000, "")


@pytest.mark.parametrize("after", ["x", "1-x", "-", "1-1-1"])
def test_a_cursor_that_is_none_is_refused(queue: Queue, after: str):
    with pytest.raises(InvalidArgument, match="cursor"):
        queue.driver.run(read_trail(queue.name, after=after))
