"""How many sub-requests a slice covers."""

from __future__ import annotations

import pytest

from fairlane.worker.unit.sizing import SliceSizer


def grown(sizes: SliceSizer, request_id: str, each_s: float, turns: int = 10) -> list[int]:
    """The sizes asked for while every sub-request takes `each_s`."""
    asked = []
    for _ in range(turns):
        asked.append(sizes.next(request_id))
        sizes.observe(request_id, asked[-1], asked[-1] * each_s)
    return asked


def test_a_request_never_seen_gets_one_sub_request():
    """Nobody knows yet how long one takes."""
    assert SliceSizer(20).next("r1") == 1


def test_a_fast_handler_gets_growing_slices_up_to_a_thousand():
    """Each slice is at most 16 times the one before, and none is longer than 1,000."""
    assert grown(SliceSizer(20), "r1", 1e-6, 5) == [1, 16, 256, 1000, 1000]


def test_a_slice_is_as_long_as_the_time_allows():
    """20 ms at 0.5 ms each is 40 sub-requests."""
    assert grown(SliceSizer(20), "r1", 0.0005)[-1] in (39, 40)


def test_a_slice_may_take_a_little_longer_rather_than_be_half_as_long():
    """A handler that sleeps for 10 ms takes 10.7."""
    assert grown(SliceSizer(20), "r1", 0.0107)[-1] == 2
    assert grown(SliceSizer(20), "r1", 0.012)[-1] == 1


@pytest.mark.parametrize("each_s", [0.02, 0.021, 0.5, 30.0])
def test_a_slow_handler_gets_one_at_a_time(each_s: float):
    """What takes as long as a slice should is delivered alone."""
    assert set(grown(SliceSizer(20), "r1", each_s)) == {1}


def test_a_handler_that_slows_down_is_believed_at_once():
    """A slower measure counts in full, so that no slice is far too long twice."""
    sizes = SliceSizer(20)
    assert grown(sizes, "r1", 1e-5)[-1] > 900
    sizes.observe("r1", 1000, 10.0)
    assert sizes.next("r1") == 2


def test_a_handler_that_speeds_up_is_believed_little_by_little():
    """One lucky slice does not make the next one long."""
    sizes = SliceSizer(20)
    sizes.observe("r1", 10, 0.1)
    sizes.observe("r1", 10, 0.0)
    assert sizes.next("r1") == 3  # 7 ms each: as long as 21 ms are not too many


def test_a_slice_time_of_zero_means_one():
    """Whoever wants the seed's COUNT 1 gets it, however fast the handler is."""
    assert set(grown(SliceSizer(0), "r1", 0.0)) == {1}


def test_a_clock_that_did_not_move_divides_nothing():
    """A measure of zero seconds asks for the most that may be asked for."""
    assert grown(SliceSizer(20), "r1", 0.0, 4) == [1, 16, 256, 1000]


def test_nothing_worked_off_teaches_nothing():
    """A slice that was given back whole is no measure."""
    sizes = SliceSizer(20)
    sizes.observe("r1", 0, 3.0)
    assert sizes.next("r1") == 1


def test_requests_are_measured_apart():
    """One request's slow handler does not shorten the other's slices."""
    sizes = SliceSizer(20)
    assert grown(sizes, "fast", 1e-6)[-1] == 1000
    assert grown(sizes, "slow", 1.0)[-1] == 1
    assert sizes.next("fast") == 1000


def test_only_the_requests_seen_last_are_remembered():
    """A worker that sees a million requests does not keep a million measures."""
    sizes = SliceSizer(20)
    for i in range(1000):
        sizes.observe(f"r{i}", 10, 1e-5)
    assert len(sizes._seen) == 256
    assert sizes.next("r999") > 1
    assert sizes.next("r0") == 1


def test_a_request_in_use_is_not_the_one_forgotten():
    """What was measured again counts as seen last."""
    sizes = SliceSizer(20)
    for i in range(1000):
        sizes.observe("busy", 10, 1e-5)
        sizes.observe(f"r{i}", 10, 1e-5)
    assert sizes.next("busy") > 1


# ------------------------------------------------------------------ how long a token is


def test_a_token_of_a_small_request_is_as_long_as_its_slice_was():
    """Nothing is left of it: so many such tokens fit into a slice's time."""
    assert SliceSizer(20).potential_seconds(1, 1, 0, 3e-6, 0.005) == 3e-6


def test_a_token_of_a_large_request_is_as_long_as_it_could_go_on():
    """Its slice was short because nobody knew it yet; or others shared the time."""
    assert SliceSizer(20).potential_seconds(1, 1, 10_000, 3e-6, 0.005) == pytest.approx(3e-3)
    assert SliceSizer(20).potential_seconds(16, 16, 10_000, 16e-6, 0.0005) == 0.0005


def test_a_token_is_no_longer_than_what_is_left_of_its_request():
    assert SliceSizer(20).potential_seconds(4, 4, 16, 4e-6, 0.005) == pytest.approx(20e-6)


def test_a_token_that_did_not_get_what_it_asked_for_is_as_long_as_its_slice_was():
    """Others have taken the rest, or hold it."""
    assert SliceSizer(20).potential_seconds(100, 7, 10_000, 7e-6, 0.005) == 7e-6


def test_a_token_of_a_slow_handler_may_be_as_long_as_a_slice():
    assert SliceSizer(20).potential_seconds(1, 1, 50, 0.002, 0.005) == 0.02
