"""Tests the word that says how a request came out."""

from __future__ import annotations

from itertools import product

from fairlane.model import ENDED, RUNNING, STATE_ORDER, outcome_of
from fairlane.records import RequestCounts

WORDS: dict[
    tuple[bool, bool], tuple[str | None, str]
] = {  # (a sub-request is done, one is dead) -> the word of a request that is done
    (False, False): ("done", "done"),
    (True, False): ("done", "done"),
    (True, True): ("partly_failed", "done, 1,200 dead"),
    (False, True): ("failed", "failed"),
}


def test_each_state_and_its_counts_have_one_word():
    counts = (0, 1_200)
    for state, done, dead, cancelled in product((*RUNNING, *ENDED), counts, counts, counts):
        total = done + dead + cancelled + 1
        found = RequestCounts(
            id="r", queue="q", state=state, priority=5, total=total,
            done=done, dead=dead, cancelled=cancelled,
        )  # fmt: skip
        outcome, words = WORDS[done > 0, dead > 0]
        if state in RUNNING:
            outcome, words = None, state
        elif state != "done":
            outcome = words = state
        assert (found.outcome, found.shown_state) == (outcome, words), found
        assert outcome_of(state, done, dead) == outcome
        assert (outcome or state) in STATE_ORDER


def test_a_request_that_was_reopened_is_repaired_unless_some_are_dead():
    for done, dead, outcome, words in (
        (7, 0, "repaired", "done, repaired"),
        (7, 1, "partly_failed", "done, 1 dead"),
        (0, 1, "failed", "failed"),
    ):
        found = RequestCounts(
            id="r", queue="q", state="done", priority=5, total=8, done=done, dead=dead, reopened=2
        )
        assert (found.outcome, found.shown_state) == (outcome, words)
        assert outcome in STATE_ORDER


def test_a_state_of_a_later_release_is_shown_as_it_is():
    found = RequestCounts(id="r", queue="q", state="frozen", priority=5, total=1, dead=1)
    assert (found.outcome, found.shown_state) == (None, "frozen")
