"""How many tokens a unit takes at once."""

from __future__ import annotations

import pytest

from fairlane.worker.unit.token_budget import TokenBudget


def grown(sizes: TokenBudget, each_s: float, turns: int = 6, size: int = 0) -> list[int]:
    """The numbers asked for while every token takes `each_s` and has `size` bytes."""
    asked = []
    for _ in range(turns):
        asked.append(sizes.next(1000))
        sizes.observe(asked[-1], asked[-1] * each_s, asked[-1] * size)
    return asked


def test_a_worker_begins_with_one_token():
    """Nobody knows yet how long its handler takes."""
    sizes = TokenBudget(20, 128)
    assert (sizes.next(128), sizes.is_quick) == (1, False)


def test_a_quick_handler_gets_growing_bunches():
    """Each is at most four times the one before, and none is longer than the most."""
    assert grown(TokenBudget(20, 128), 1e-6) == [1, 4, 16, 64, 128, 128]


def test_a_bunch_is_as_long_as_a_slice_may_take():
    """20 ms at 1 ms each; half of them for half the time."""
    sizes = TokenBudget(20, 128)
    assert grown(sizes, 0.001)[-1] in (19, 20)
    assert sizes.next(128, 0.5) in (9, 10)


@pytest.mark.parametrize("each_s", [0.02, 0.5, 30.0])
def test_a_slow_handler_gets_one_token_at_a_time(each_s: float):
    """So that no token waits in a worker for long."""
    sizes = TokenBudget(20, 128)
    assert set(grown(sizes, each_s)) == {1}
    assert not sizes.is_quick


def test_a_handler_that_slows_down_is_believed_at_once():
    """And one that is quick again only little by little."""
    sizes = TokenBudget(20, 128)
    grown(sizes, 1e-5)
    sizes.observe(10, 10.0)
    assert sizes.next(128) == 1
    assert grown(sizes, 1e-5, 3) == [1, 1, 1]
    assert grown(sizes, 1e-5, 60)[-1] == 128


def test_there_are_never_more_than_there_are_records():
    """Each lease stands on one."""
    sizes = TokenBudget(20, 128)
    grown(sizes, 1e-6)
    assert (sizes.next(5), sizes.next(0)) == (5, 1)


def test_big_bodies_make_small_bunches():
    """A hundred of a mebibyte would be a lot of memory: about four are taken."""
    assert grown(TokenBudget(20, 128), 1e-6, size=1 << 20)[-1] == 4


def test_the_most_may_be_one():
    """Then there are no bunches, however quick the handler is."""
    assert set(grown(TokenBudget(20, 1), 1e-9)) == {1}


def test_slices_of_one_sub_request_leave_the_time_of_a_bunch_alone():
    """A slice time of 0 is about leases, not about round trips."""
    assert grown(TokenBudget(0, 128), 1e-6)[-1] == 128


def test_tokens_are_taken_one_by_one_for_a_while():
    """As many as were asked for; then it goes on as before."""
    sizes = TokenBudget(20, 128)
    grown(sizes, 1e-6)
    sizes.take_singly(2)
    assert [sizes.next(128) for _ in range(3)] == [1, 1, 128]


def test_one_token_is_enough_when_it_fills_the_time():
    """Whether or not tokens are taken one by one for a while: that passes, the time does not."""
    sizes = TokenBudget(20, 128)
    assert not sizes.takes_one(128), "nothing is known"
    grown(sizes, 1e-6)
    sizes.take_singly(2)
    assert not sizes.takes_one(128)
    assert sizes.takes_one(1), "there is room for one only"
    grown(sizes, 0.03)
    assert sizes.takes_one(128)
