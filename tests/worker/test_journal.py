"""Tests the journal: outcomes of a batch of leases, readable while the unit writes."""

from __future__ import annotations

import mmap

import pytest

from fairlane.model import Verdict
from fairlane.worker.journal import Journal

HALF = 64 << 10


@pytest.fixture
def page() -> mmap.mmap:
    return mmap.mmap(-1, 4 * HALF)


@pytest.fixture
def journal(page: mmap.mmap) -> Journal:
    return Journal(page, 2 * HALF, HALF)


def note(journal: Journal, body: bytes) -> None:
    journal.result(b"0:d:1:0:5 %d\n" % len(body), body)


def test_outcomes_belong_to_the_entries_of_their_lease_in_order(journal: Journal):
    journal.begin()
    journal.lease(3, 8, b"7-0 7-1 7-2 7-3")
    note(journal, b"one\n\0R")
    journal.verdict(Verdict(b"7-1", "retry", 250, b"1:x:1:0:5", "why\nit fäiled"))
    note(journal, b"")
    worked = journal.read()[3, 8]
    assert (worked.done, worked.results) == (
        [b"7-0", b"7-2"],
        [b"0:d:1:0:5", b"one\n\0R", b"0:d:1:0:5", b""],
    )
    assert worked.verdicts == [Verdict(b"7-1", "retry", 250, b"1:x:1:0:5", "why\nit fäiled")]
    assert worked.ids[worked.count :] == [b"7-3"]


def test_the_batch_before_the_last_is_forgotten(journal: Journal, page: mmap.mmap):
    for batch in range(5):
        journal.begin()
        journal.lease(1, 2 * batch, b" ".join([b"7-%d" % batch] * 3))
        for _ in range(3 - batch % 3):
            note(journal, b"x" * 1000)
        found = journal.read()
        assert sorted(found) == [(1, 2 * at) for at in range(max(0, batch - 1), batch + 1)]
        assert found[1, 2 * batch].count == 3 - batch % 3
    assert page[: 2 * HALF].strip(b"\0") == b"", "a neighbour's part is not touched"


def test_the_newer_batch_counts_if_a_lease_goes_on(journal: Journal):
    journal.begin()
    journal.lease(1, 2, b"7-0 7-1")
    note(journal, b"first")
    journal.begin()
    journal.lease(1, 2, b"7-1")
    assert journal.read()[1, 2].ids == [b"7-1"]


def test_an_entry_that_is_half_written_is_not_read(journal: Journal, page: mmap.mmap):
    journal.begin()
    journal.lease(1, 2, b"7-0 7-1")
    note(journal, b"whole")
    at = page.find(b"\0", 3 * HALF)
    page[at + 1 : at + 10] = b"0:d:1:0:5"
    assert journal.read()[1, 2].done == [b"7-0"]


def test_nothing_is_noted_after_an_outcome_that_had_no_room(journal: Journal):
    """Else the outcomes would belong to other entries."""
    journal.begin()
    assert journal.has_room
    journal.lease(1, 2, b"7-0 7-1 7-2")
    note(journal, b"small")
    note(journal, b"x" * HALF)
    assert journal.is_full
    note(journal, b"small")
    assert journal.read()[1, 2].done == [b"7-0"]
    journal.begin()
    assert not journal.is_full


def test_another_process_begins_an_empty_journal(page: mmap.mmap, journal: Journal):
    """What a process wrote that died is not read as what the next one does."""
    for _ in range(3):
        journal.begin()
        journal.lease(1, 2, b" ".join([b"7-0"] * 9))
        note(journal, b"x")
    Journal(page, 2 * HALF, HALF).clear()
    after = Journal(page, 2 * HALF, HALF)
    assert after.read() == {}
    after.begin()
    after.lease(1, 2, b"8-0")
    assert after.read()[1, 2].count == 0


def test_many_units_have_small_journals():
    """So that all of them fit into memory."""
    assert [Journal.half_of(units) for units in (1, 1000, 256_000)] == [256 << 10, 256 << 10, HALF]


def test_a_half_that_is_used_again_while_it_is_copied_is_left_out():
    """Else the reader would see the beginning of one batch and the end of another."""

    class Page(mmap.mmap):
        """A page whose writer goes on as soon as a reader has copied a half."""

        def __getitem__(self, part: slice) -> bytes:  # type: ignore[override]
            text = super().__getitem__(part)
            if len(text) == HALF and text.startswith(b"B1 "):
                for version in (4, 6):
                    written.begin()
                    written.lease(1, version, b"8-0")
            return text

    written = Journal(Page(-1, 2 * HALF), 0, HALF)
    written.begin()
    written.lease(1, 2, b"7-0 7-1")
    assert (1, 2) not in written.read()
    assert sorted(written.read()) == [(1, 4), (1, 6)]
