"""Tests how many sub-requests a slice covers, and how many tokens a pop takes."""

from __future__ import annotations

import threading

import pytest

from fairlane.worker.unit import Sizer


def grown(sizes: Sizer, request_id: str, each_s: float, turns: int = 10) -> list[int]:
    """Returns the sizes while every sub-request takes `each_s`."""
    asked = []
    for _ in range(turns):
        asked.append(sizes.entries(request_id))
        sizes.observe_slice(request_id, asked[-1], asked[-1] * each_s)
    return asked


def test_a_request_never_seen_gets_one_sub_request():
    assert Sizer(20).entries("r1") == 1


@pytest.mark.parametrize(
    ("slice_ms", "each_s", "expected"),
    [
        pytest.param(20, 1e-6, [1, 16, 256, 1000, 1000], id="fast: 16 times as long, up to 1,000"),
        pytest.param(20, 0.0, [1, 16, 256, 1000, 1000], id="the clock did not move"),
        pytest.param(20, 0.02, [1] * 5, id="one takes as long as a slice"),
        pytest.param(20, 0.021, [1] * 5, id="one takes a little longer than a slice"),
        pytest.param(20, 30.0, [1] * 5, id="slow"),
        pytest.param(0, 0.0, [1] * 5, id="a slice time of zero means COUNT 1"),
    ],
)
def test_slices_grow_as_far_as_the_handler_is_quick(
    slice_ms: float, each_s: float, expected: list[int]
):
    assert grown(Sizer(slice_ms), "r1", each_s, 5) == expected


def test_a_slice_is_as_long_as_the_time_allows():
    """20 ms at 0.5 ms each is 40 sub-requests."""
    assert grown(Sizer(20), "r1", 0.0005)[-1] in (39, 40)


def test_a_slice_may_take_a_little_longer_rather_than_be_half_as_long():
    """A handler that sleeps for 10 ms takes 10.7."""
    assert grown(Sizer(20), "r1", 0.0107)[-1] == 2
    assert grown(Sizer(20), "r1", 0.012)[-1] == 1


def test_a_handler_that_slows_down_is_believed_immediately():
    """A slower measure counts in full, so that no slice is far too long twice."""
    sizes = Sizer(20)
    assert grown(sizes, "r1", 1e-5)[-1] > 900
    sizes.observe_slice("r1", 1000, 10.0)
    assert sizes.entries("r1") == 2


def test_a_handler_that_speeds_up_is_believed_little_by_little():
    """One lucky slice does not make the next one long."""
    sizes = Sizer(20)
    sizes.observe_slice("r1", 10, 0.1)
    sizes.observe_slice("r1", 10, 0.0)
    assert sizes.entries("r1") == 3  # 7 ms each: as long as 21 ms are not too many


def test_a_slice_without_results_is_no_measure():
    """A slice that was released completely is no measure."""
    sizes = Sizer(20)
    sizes.observe_slice("r1", 0, 3.0)
    assert sizes.entries("r1") == 1


def test_requests_are_measured_apart():
    """One request's slow handler does not shorten the other's slices."""
    sizes = Sizer(20)
    assert grown(sizes, "fast", 1e-6)[-1] == 1000
    assert grown(sizes, "slow", 1.0)[-1] == 1
    assert sizes.entries("fast") == 1000


def test_only_the_latest_requests_are_remembered():
    """A worker that sees a million requests does not keep a million measures."""
    sizes = Sizer(20)
    for i in range(1000):
        sizes.observe_slice(f"r{i}", 10, 1e-5)
    assert len(sizes._requests) == 256
    assert sizes.entries("r999") > 1
    assert sizes.entries("r0") == 1


def test_a_request_in_use_is_not_the_one_forgotten():
    """What was measured again counts as seen last."""
    sizes = Sizer(20)
    for i in range(1000):
        sizes.observe_slice("busy", 10, 1e-5)
        sizes.observe_slice(f"r{i}", 10, 1e-5)
    assert sizes.entries("busy") > 1


# ------------------------------------------------------------------ how long a token is


@pytest.mark.parametrize(
    ("wanted", "got", "waiting", "took_s", "share_s", "expected"),
    [
        pytest.param(1, 1, 0, 3e-6, 0.005, 3e-6, id="nothing is left of a small request"),
        pytest.param(1, 1, 10_000, 3e-6, 0.005, 3e-3, id="a large request was not measured yet"),
        pytest.param(16, 16, 10_000, 16e-6, 0.0005, 0.0005, id="other tokens shared the time"),
        pytest.param(4, 4, 16, 4e-6, 0.005, 20e-6, id="no longer than what is left"),
        pytest.param(100, 7, 10_000, 7e-6, 0.005, 7e-6, id="other units hold the rest"),
        pytest.param(1, 1, 50, 0.002, 0.005, 0.02, id="as long as a slice of a slow handler"),
    ],
)
def test_a_token_is_as_long_as_its_request_could_go_on(
    wanted: int, got: int, waiting: int, took_s: float, share_s: float, expected: float
):
    found = Sizer(20).potential_seconds(wanted, got, waiting, took_s, share_s)
    assert found == pytest.approx(expected)


# ------------------------------------------------------------------ tokens of a pop


def grown_tokens(sizes: Sizer, each_s: float, turns: int = 6, size: int = 0) -> list[int]:
    """Returns the numbers while every token takes `each_s` and has `size` bytes."""
    asked = []
    for _ in range(turns):
        asked.append(sizes.tokens(1000))
        sizes.observe_tokens(asked[-1], asked[-1] * each_s, asked[-1] * size)
    return asked


def test_a_worker_begins_with_one_token():
    sizes = Sizer(20, 128)
    assert (sizes.tokens(128), sizes.is_quick) == (1, False)


def test_a_quick_handler_gets_growing_bunches():
    """Each is at most four times the one before, and none is longer than the most."""
    assert grown_tokens(Sizer(20, 128), 1e-6) == [1, 4, 16, 64, 128, 128]


def test_a_bunch_is_as_long_as_a_slice_may_take():
    """20 ms at 1 ms each; half of them for half the time."""
    sizes = Sizer(20, 128)
    assert grown_tokens(sizes, 0.001)[-1] in (19, 20)
    assert sizes.tokens(128, 0.5) in (9, 10)


@pytest.mark.parametrize("each_s", [0.02, 0.5, 30.0])
def test_a_slow_handler_gets_one_token_at_a_time(each_s: float):
    """So no token waits in a worker for long."""
    sizes = Sizer(20, 128)
    assert set(grown_tokens(sizes, each_s)) == {1}
    assert not sizes.is_quick


def test_after_a_slow_handler_fewer_tokens_are_taken_immediately():
    """A handler that is quick again gets more only little by little."""
    sizes = Sizer(20, 128)
    grown_tokens(sizes, 1e-5)
    sizes.observe_tokens(10, 10.0)
    assert sizes.tokens(128) == 1
    assert grown_tokens(sizes, 1e-5, 3) == [1, 1, 1]
    assert grown_tokens(sizes, 1e-5, 60)[-1] == 128


def test_there_are_never_more_than_there_are_records():
    """Each lease has one record."""
    sizes = Sizer(20, 128)
    grown_tokens(sizes, 1e-6)
    assert (sizes.tokens(5), sizes.tokens(0)) == (5, 1)


def test_big_bodies_make_small_bunches():
    """A hundred of a mebibyte would be a lot of memory: about four are taken."""
    assert grown_tokens(Sizer(20, 128), 1e-6, size=1 << 20)[-1] == 4


def test_the_most_may_be_one():
    """Then there are no batches, however quick the handler is."""
    assert set(grown_tokens(Sizer(20, 1), 1e-9)) == {1}


def test_slices_of_one_sub_request_leave_the_time_of_a_bunch_alone():
    """A slice time of 0 is about leases, not about round trips."""
    assert grown_tokens(Sizer(0, 128), 1e-6)[-1] == 128


def test_tokens_are_taken_one_by_one_for_a_while():
    """There are as many as were requested; then it continues as before."""
    sizes = Sizer(20, 128)
    grown_tokens(sizes, 1e-6)
    sizes.take_singly(2)
    assert [sizes.tokens(128) for _ in range(3)] == [1, 1, 128]


def test_sizes_are_of_every_request_of_which_more_than_one_is_taken():
    """The requests of a lane take turns: the next one is the one that was measured first."""
    sizer = Sizer(20)
    for n in range(200):
        sizer.observe_slice(f"r{n}", 4, 0.0004)
    sizer.observe_slice("slow", 1, 0.5)
    assert dict(sizer.sizes()) == {f"r{n}": 64 for n in range(200)}


def test_a_request_that_has_ended_is_forgotten():
    sizer = Sizer(20)
    sizer.observe_slice("over", 4, 0.0004)
    sizer.forget("over")
    sizer.forget("never seen")
    assert not sizer.has_measured("over")
    assert sizer.sizes() == []


def test_threads_may_measure_while_another_one_asks_for_sizes():
    sizer = Sizer(20)
    ended = threading.Event()

    def measure() -> None:
        n = 0
        while not ended.is_set():
            sizer.observe_slice(f"r{n % 300}", 4, 0.0004)
            n += 1

    thread = threading.Thread(target=measure)
    thread.start()
    try:
        for _ in range(500):
            sizer.sizes()
    finally:
        ended.set()
        thread.join()
