"""Tests the audit trail of the API: an entry before each change, replaced by its outcome."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from fairlane import settings
from fairlane.errors import InvalidArgument
from fairlane.operations.audit_trail import ACCESS, TAKES, AuditEntry, begin, read_trail, rewrite
from tests.support.run.for_each import for_each

if TYPE_CHECKING:
    from fairlane.queue import Queue

ENTRY = AuditEntry("anna", "POST /v1/queue/pause", "req", "for_s=60")


def test_the_outcome_replaces_the_entry(queue: Queue):
    began = queue.driver.run(begin(queue.name, ENTRY))
    assert queue.driver.run(read_trail(queue.name)) == ([(f"{began}~local", ENTRY)], "")
    ended = replace(ENTRY, status=200)
    queue.driver.run(rewrite(queue.name, began, ended))
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
        queue.driver.run(rewrite(queue.name, "", replace(ENTRY, given="x" * 9_999)))
    page, after = queue.driver.run(read_trail(queue.name, 1_000))
    assert 100 <= len(page) < 300
    assert (len(page[0][1].given), after) == (4_000, "")


@for_each("after", ["x", "1-x", "-", "1-1-1"])
def test_a_cursor_that_is_none_is_refused(queue: Queue, after: str):
    with pytest.raises(InvalidArgument, match="cursor"):
        queue.driver.run(read_trail(queue.name, after=after))


def test_a_caller_displaces_neither_entries_of_others_nor_its_own_changes(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(settings, "AUDIT_ENTRIES", 100)
    run = queue.driver.run
    anna = AuditEntry("anna", "POST /dashboard/session", token="0a0a0a0a")
    eve = AuditEntry("eve", "POST /v1/queue/pause", token="0b0b0b0b")
    kept = [(anna, ACCESS), (anna, TAKES), (eve, "")]
    for entry, kind in kept:
        run(begin(queue.name, entry, kind))
    for number in range(500):
        for kind in (ACCESS, TAKES):
            run(begin(queue.name, replace(eve, object=f"r{number}"), kind))
            run(begin(queue.name, replace(eve, token="", object=f"r{number}"), kind))
    found = [entry for _, entry in run(read_trail(queue.name, 1_000))[0]]
    after = run(read_trail(queue.name, 1_000))[1]
    if after:
        found += [entry for _, entry in run(read_trail(queue.name, 1_000, after))[0]]
    assert found[-3:] == [entry for entry, _ in reversed(kept)]


def test_a_page_of_large_entries_is_short(queue: Queue):
    """A change of many may have a megabyte of ids."""
    ids = " ".join(f"{number:0128}" for number in range(10_000))
    for number in range(30):
        queue.driver.run(begin(queue.name, replace(ENTRY, ids=ids, object=f"{number}")))
    page, after = queue.driver.run(read_trail(queue.name, 1_000))
    assert [entry.object for _, entry in page] == ["29", "28", "27", "26"]
    assert after == page[-1][0]
