"""Tests the loop over many values: it can fail, it names what failed, and no value sees another."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.support.run.for_each import for_each

if TYPE_CHECKING:
    from pathlib import Path

    import redis

    from tests.support.scripts.requests import Lane


def test_every_value_that_fails_is_named():
    @for_each("value", [1, 2, 3, 4, 5])
    def loop(value: int) -> None:
        if value == 2:
            raise KeyError("lost")
        if value == 4:
            with pytest.raises(ValueError, match="never"):
                pass
        assert value != 5

    with pytest.raises(AssertionError) as failure:
        loop()
    lines = [line for line in str(failure.value).splitlines() if line[:1].isdigit()]
    assert [line.split(":")[0] for line in lines] == ["2", "4", "5"]


def test_a_value_cannot_be_skipped_alone():
    @for_each("value", [1, 2])
    def loop(value: int) -> None:
        if value == 2:
            pytest.skip("not today")

    with pytest.raises(AssertionError, match="2: skipped alone: not today"):
        loop()


def test_a_test_is_skipped_with_its_first_value():
    @for_each("value", [1, 2])
    def loop(value: int) -> None:
        pytest.skip("not here")

    with pytest.raises(pytest.skip.Exception, match="not here"):
        loop()


def test_a_loop_over_nothing_is_refused():
    with pytest.raises(AssertionError, match="cannot fail"):
        for_each("value", [])


@for_each("value, other", [(1, 2), (3, 4)])
def test_no_patch_and_no_file_is_left_for_the_next_value(
    value: int, other: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    assert other == value + 1
    assert "OF_A_LOOP" not in os.environ
    assert [*tmp_path.iterdir()] == []
    monkeypatch.setenv("OF_A_LOOP", "set")
    (tmp_path / "file").touch()


@for_each("size", [1, 2])
@for_each("limit", [1, 2])
def test_each_value_finds_an_empty_server(
    size: int, limit: int, lane: Lane, redis_client: redis.Redis
):
    assert redis_client.dbsize() == 0
    lane.start(size, limit=limit)
    lane.id = "other"


def test_what_a_value_leaves_is_checked(redis_client: redis.Redis):
    @for_each("value", [1, 2])
    def loop(value: int, redis_client: redis.Redis) -> None:
        redis_client.set(f"left:{value}", "forever")

    with pytest.raises(AssertionError, match=r"(?s)1: .*left:1.*2: .*left:2"):
        loop(redis_client=redis_client)
    redis_client.flushall()
