"""Tests the options of the API: one unit for times, one list of names, checked by mypy."""

from __future__ import annotations

import inspect
import typing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from mypy import api

import fairlane
from fairlane import InvalidArgument, Queue, Worker, aio, content_id, submit_request
from fairlane.common.clock import ms_of
from fairlane.option_types import RequestOptions, SharedOptions
from fairlane.options import Policy, policy_of
from tests.support.run.for_each import for_each

ROOT = Path(__file__).parents[2]
SUBMITTERS = ("submit_request", "submit_chunks", "submit_many", "submit_each")
RIGHT = """
from datetime import timedelta
from fairlane import Queue, aio, content_id, submit_request
async def send(queue: Queue, later: aio.Queue) -> None:
    submit_request(["a"], redis="redis://h", limit=2, lease="30s", backoff=(0.5, 60))
    queue.submit_many([["a"]], limit=[1], retain=3_600.0, durable=1)
    await later.submit_request(["a"], id="x", deadline=timedelta(minutes=1), max_wait=1)
    content_id(["a"], queue="q", priority=0)
"""
TYPOS = (
    'queue.submit_request(["a"], limt=2)',
    'queue.submit_request(["a"], lease=["30s"])',
    'queue.submit_chunks([["a"]], lease_ms=30_000)',
    'queue.submit_many([["a"]], prio=2)',
    'queue.submit_each([["a"]], backoff=[3])',
    'await later.submit_request(["a"], limt=2)',
    'await later.submit_many([["a"]], attempt=2)',
    'submit_request(["a"], retan_s=2)',
    'content_id(["a"], dead_line=2)',
    "Worker(queue, str, slice_ms=20)",
)


def test_seconds_are_stored_as_ms():
    policy = policy_of(
        "q", backoff=(0.5, 300), lease=30, retain=3600.0, deadline=0.0001, time_limit=0
    )
    assert policy == Policy(
        queue="q", backoff_ms=(500, 300_000), retain_ms=3_600_000, deadline_ms=1
    )


@for_each("ms", [1, 7, 999, 1001, 600_001, 86_399_999, 366 * 86_400_000 - 1])
def test_seconds_and_ms_are_the_same_time_in_both_directions(ms: int):
    assert ms_of("deadline", ms / 1000) == ms


def test_every_part_of_a_policy_has_an_option():
    inner = {
        "queue",
        "nonce",
        "flow",
        "feed",
        "by",
        "trace",
        "derived",
    }  # what the product itself sets
    parts = {name.removesuffix("_ms") for name in Policy.__dataclass_fields__} - inner
    options = set(RequestOptions.__optional_keys__)
    made_of = {"start": {"run_at"}, "rates": {"rate", "burst", "rate_key", "weight"}}
    made_of["key"] = {"distinct"}
    assert options == {one for part in parts for one in made_of.get(part, {part})}


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ("limt", "option limt is not valid: did you mean limit?"),
        ("lease_ms", "option lease_ms is not valid: did you mean lease?"),
        ("zzz", "option zzz is not valid: the options are after, after_any_end, "),
    ],
)
def test_a_wrong_name_is_a_type_error_with_a_hint(wrong: str, sentence: str):
    options: dict[str, Any] = {wrong: 1}
    with pytest.raises(TypeError) as raised:
        policy_of("q", **options)
    assert str(raised.value).startswith(sentence)


@for_each("wrong", [True, float("nan"), None, b"1s"])
def test_a_time_that_is_no_number_is_refused(wrong: Any):
    with pytest.raises(InvalidArgument, match="give seconds, text such as 10m, or a timedelta"):
        policy_of("q", lease=wrong)


@for_each("wrong", [10**12, 1e299, "99999999d", timedelta.max])
def test_a_delay_that_is_too_long_names_the_range(wrong: Any):
    with pytest.raises(InvalidArgument, match=r"delay .* is not valid: a time from 0s"):
        policy_of("q", delay=wrong)


def test_no_public_call_takes_any_keyword():
    """None takes a time in another unit than seconds."""
    calls: list[Any] = [submit_request, content_id, Worker]
    for queue in (Queue, aio.Queue):
        calls += [getattr(queue, name) for name in SUBMITTERS]
        calls += [queue.from_url]
    for call in calls:
        for one in inspect.signature(call).parameters.values():
            assert not one.name.endswith("_ms")
            if one.kind is one.VAR_KEYWORD:
                assert one.annotation in {"Unpack[RequestOptions]", "Unpack[SharedOptions]"}
    assert not [name for name in RequestOptions.__optional_keys__ if name.endswith("_ms")]


def test_the_options_are_offered_for_annotations():
    assert fairlane.RequestOptions is RequestOptions
    assert fairlane.SharedOptions is SharedOptions
    assert set(typing.get_type_hints(RequestOptions)) == RequestOptions.__optional_keys__


@pytest.mark.rest
@pytest.mark.slow
def test_a_typo_is_a_type_error(tmp_path: Path):
    """The right calls have none; each wrong one has one, on its own line."""
    lines = RIGHT.replace("submit_request\n", "submit_request, Worker\n").splitlines()
    first = len(lines) + 1
    lines += [f"    {typo}" for typo in TYPOS]
    snippet = tmp_path / "snippet.py"
    snippet.write_text("\n".join(lines) + "\n")
    words = ["--config-file", str(ROOT / "pyproject.toml"), "--no-error-summary", str(snippet)]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        out, err, _ = api.run(words)
    assert err == ""
    found = {int(line.split(":")[1]) for line in out.splitlines() if ": error: " in line}
    assert found == set(range(first, first + len(TYPOS)))


@for_each(
    "given, sentence",
    [
        ({"delay": "soon"}, "delay 'soon' is not a duration: write 500ms"),
        ({"run_at": "tomorrow"}, "run_at 'tomorrow' is not valid: a time with a zone"),
        ({"run_at": "9999-12-31T23:59:59-14:00"}, "is not valid: year 9999"),
        ({"run_at": "2999-01-01T00:00Z", "deadline": 60}, "must be later than run_at"),
        ({"delay": 60, "deadline": 60}, "must be later than the delay of 60 s"),
    ],
)
def test_a_start_that_cannot_be_is_refused(given: Any, sentence: str):
    with pytest.raises(InvalidArgument, match=sentence):
        policy_of("q", **given)


def test_a_deadline_behind_the_start_is_accepted():
    assert policy_of("q", run_at="2020-01-01T00:00Z", deadline=60).start_ms > 0


def test_the_policy_of_the_same_options_is_made_once():
    made = policy_of("req", priority=1, deadline=5)
    assert policy_of("req", priority=1, deadline=5) is made
    assert policy_of("other", priority=1, deadline=5) != made
    with pytest.raises(InvalidArgument, match="priority True is not valid"):
        policy_of("req", priority=True, deadline=5)


def test_a_policy_that_depends_on_more_than_its_options_is_made_anew():
    tags = ["one"]
    before = policy_of("req", tags=tags)
    tags.append("two")
    assert (before.tags, policy_of("req", tags=tags).tags) == (("one",), ("one", "two"))
    nonces = {policy_of("req", on_duplicate="keep", window=5).nonce for _ in range(2)}
    assert len(nonces) == 2
