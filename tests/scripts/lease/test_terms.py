"""Tests a lease with a term of its holder's own, shorter or longer than the request's leases."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlane.protocol import keys
from tests.support.run.for_each import for_each

if TYPE_CHECKING:
    from tests.support.scripts.requests import Held, Lane

LEASE = 30_000  # of the request
HOUR, DAY = 3_600_000, 86_400_000


def ends(lane: Lane, held: Held) -> int:
    found = lane.client.zscore(keys.leases(lane.id), held.k)
    return int(found)


def look(lane: Lane) -> int:
    """Returns in how many ms maintenance has something to do; 1 = now."""
    return int(lane.request("glance", queue=lane.queue, grace="")[1])


@for_each("term", [1, 500, LEASE, HOUR, DAY])
def test_an_extended_lease_ends_after_the_term(lane: Lane, term: int):
    held = lane.begin(1)
    lane.later(7)
    assert lane.extend(held, term=term) == "ok"
    assert ends(lane, held) == lane.now + term


def test_without_a_term_a_lease_lasts_as_the_request_says(lane: Lane):
    held = lane.begin(1)
    lane.extend(held, term=HOUR)
    lane.extend(held)
    assert ends(lane, held) == lane.now + LEASE


def test_the_same_term_twice_is_one_term(lane: Lane):
    held = lane.begin(1)
    lane.extend(held, term=HOUR)
    with lane.unchanged():
        assert lane.extend(held, term=HOUR) == "ok"


def test_a_shorter_lease_is_taken_back_at_its_end(lane: Lane):
    held = lane.begin(1)
    lane.extend(held, term=500)
    assert look(lane) == 500
    lane.later(500)
    assert look(lane) == 1
    lane.reap()
    assert lane.extend(held) == "lost"


def test_a_longer_lease_is_not_taken_back_before_its_end(lane: Lane):
    held = lane.begin(1)
    lane.extend(held, term=HOUR)
    assert look(lane) == HOUR
    lane.reap()
    assert ends(lane, held) == lane.now + HOUR
    lane.later(HOUR)
    lane.reap()
    assert lane.extend(held) == "lost"


def test_the_longest_term_of_a_request_holds_for_all_of_its_leases(lane: Lane):
    first, second = (lane.take(token, count=1) for token in lane.start(2, limit=2))
    lane.extend(first, term=2 * HOUR)
    lane.extend(second, term=HOUR)
    assert look(lane) == HOUR
    lane.reap()
    assert ends(lane, first) == lane.now + 2 * HOUR


def test_a_term_that_is_not_longer_than_the_requests_leases_leaves_no_note(lane: Lane):
    held = lane.begin(1)
    lane.extend(held, term=LEASE)
    assert not lane.client.hexists(keys.request_hash(lane.id), "term")


def test_a_lease_from_before_the_clock_went_back_is_cut_to_the_longest_term(lane: Lane):
    held = lane.begin(1)
    lane.extend(held, term=2 * LEASE)
    lane.now -= HOUR
    assert look(lane) == 1
    lane.reap()
    assert ends(lane, held) == lane.now + 2 * LEASE


def test_another_than_the_holder_sets_no_term(lane: Lane):
    held = lane.begin(1)
    with lane.unchanged():
        assert lane.extend(held, term=HOUR, op="f" * 32) == "lost"


def test_after_the_end_there_is_no_lease_to_extend(lane: Lane):
    held = lane.begin(1)
    lane.complete(held)
    with lane.unchanged():
        assert lane.extend(held, term=HOUR) == "ended"
