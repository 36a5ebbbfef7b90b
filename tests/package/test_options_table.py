"""Tests that what follows from the table of options agrees with it, and what is stored of options.

The places are the library, tasks, schedules, flows, the command line, HTTP, the page of settings
and the scripts.
"""

from __future__ import annotations

import hashlib
import random
import re
import secrets
import typing
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from fairlane import App, InvalidArgument, option_types, settings
from fairlane.cli.commands import change, schedule, submit
from fairlane.cli.options import flag_of
from fairlane.operations.create import policy_text
from fairlane.operations.flows import Step, check_step
from fairlane.operations.schedules import define
from fairlane.options import plain_options, policy_of, read_option
from fairlane.options_table import BY_NAME, DURATION, OPTIONS, PAUSE, Option, options_of
from fairlane.protocol.lua import lua_folder
from fairlane.protocol.request_hash import PACKED
from fairlane.web.schemas import Changes, Options, RecurringOptions
from tests.support.options import PAGE, TYPES, page_text, types_text
from tests.support.run.for_each import for_each

if TYPE_CHECKING:
    from collections.abc import Callable

    import click

CREATE = lua_folder() / "v1" / "lib" / "create.lua"
# Lines of the extras that are no options: the product sets them.
INNER = {"flow", "feed", "by", "trace", "apart"}
# A value of each option, and what else an option needs.
VALUES: dict[str, Any] = {
    "whole": 2, "duration": "10m", "pause": "1s..5m", "moment": "2999-01-01T00:00Z",
    "rate": "5/s", "name": "a", "names": ["a", "b"], "choice": "keep", "flag": True, "key": True,
    "limits": {"a": 2, "b": 3}, "order_on_dead": "stop", "tasks": {"send_mail": 2, "resize": 1},
}  # fmt: skip
NEEDS: dict[str, dict[str, Any]] = {
    "burst": {"rate": "5/s"},
    "rate_key": {"rate": "5/s"},
    "weight": {"rate": "5/s", "burst": 9},
    "share": {"tenant": "t"},
    "window": {"on_duplicate": "keep"},
    "after_any_end": {"after": "a"},
    "order_on_dead": {"order_key": "a"},
}
# The texts of 500 sets of options, before there was a table.
TEXTS = "c11ed521b03e85d97eee1e68edfa41667e3b8dfc4f70933f37fbaab4eb395d01"


def names(*places: str) -> set[str]:
    return {option.name for option in (options_of(*places) if places else OPTIONS)}


def a_value(name: str) -> dict[str, Any]:
    """Returns an option with a value, and what it needs."""
    return {**NEEDS.get(name, {}), name: VALUES.get(name) or VALUES[BY_NAME[name].kind]}


def test_the_generated_files_are_those_of_the_table():
    """`make generate` writes them."""
    assert TYPES.read_text() == types_text()
    assert PAGE.read_text() == page_text(PAGE.read_text())


def test_each_place_has_the_options_of_the_table():
    hints = typing.get_type_hints
    for kind, places in (
        ("RequestOptions", ()), ("SharedOptions", ("many",)),
        ("TaskOptions", ("registration", "task")), ("CallOptions", ("task", "call")),
        ("ScheduleOptions", ("schedule",)),
        ("StepOptions", ("step",)), ("ChangeOptions", ("set",)),
    ):  # fmt: skip
        assert set(hints(getattr(option_types, kind))) == names(*places), kind
    for struct, wanted in (
        (Options, names() | {"id"}), (RecurringOptions, names("schedule")), (Changes, names("set")),
    ):  # fmt: skip
        assert set(struct.__struct_fields__) == wanted
    for command, wanted in (
        (submit.command, names() | {"max_wait"}), (schedule.add, names("schedule")),
        (change.set_, names("set")),
    ):  # fmt: skip
        assert wanted <= flags_of(command).keys()
        assert {flag_of(BY_NAME[name]) for name in wanted} <= {*flags_of(command).values()}


def flags_of(command: click.Command) -> dict[str | None, str]:
    return {one.name: one.opts[-1] for one in command.params}


@for_each("name", sorted(names()))
def test_an_option_is_refused_where_the_table_does_not_have_it(name: str):
    given = a_value(name)
    assert policy_of("q", **given) is not None
    for place, check in (
        ("schedule", lambda: define(cron="* * * * *", bodies=["x"], **given)),
        ("step", lambda: check_step(Step("a", options=given), "step a")),
        ("call", lambda: App("q").task(name="t")(lambda: None).with_options(**given)),
    ):
        if {*given} <= (names("task", "call") if place == "call" else names(place)):
            check()
        else:
            with pytest.raises((InvalidArgument, TypeError)):
                check()


@for_each("name", sorted(option.name for option in OPTIONS if option.kind in {DURATION, PAUSE}))
def test_a_duration_is_a_number_a_text_or_a_timedelta(name: str):
    same: list[Any] = ["10m", "600s", 600, 600.0, timedelta(minutes=10)]
    if name == "backoff":
        same += [(600, "10m"), ["10m", timedelta(minutes=10)], "10m..10m"]
    made = {read_option(name, one) for one in same}
    assert len(made) == 1
    plain = {repr(plain_options({name: one})) for one in same}
    assert len(plain) == 1


@for_each(
    "name, wrong, sentence",
    [
        ("lease", "soon", "lease 'soon' is not a duration: write 500ms, 30s, 5m, 24h or 7d"),
        ("lease", 0.5, "lease 0.5 s is not valid: a time from 1s to 24h is expected"),
        ("lease", "500ms", "lease 500ms is not valid: a time from 1s to 24h is expected"),
        ("lease", 0, "lease 0 s is not valid: a time from 1s to 24h is expected"),
        ("lease", timedelta(days=2), "lease 172,800 s is not valid: a time from 1s to 24h"),
        ("lease", True, "lease True is not valid: give seconds, text such as 10m, or a timedelta"),
        ("backoff", "5m..1s", "backoff '5m..1s' ends before it begins: write the shorter"),
        ("backoff", (1, 2, 3), "(1, 2, 3) is not valid: give the shortest and the longest time"),
        ("after_any_end", 1, "after_any_end 1 is not valid: give True or False"),
    ],
)
def test_an_error_names_the_option_and_the_value_as_it_was_written(
    name: str, wrong: Any, sentence: str
):
    for called in ("", "--" + name.replace("_", "-")):
        with pytest.raises(InvalidArgument) as refused:
            read_option(name, wrong, called)
        assert sentence.removeprefix(name) in str(refused.value)
        assert str(refused.value).startswith(called or name)


def test_no_time_is_a_time_where_none_is_the_default():
    for option in OPTIONS:
        if option.kind == DURATION and option.default is None:
            assert read_option(option.name, "0s") == read_option(option.name, 0) == 0


def test_a_text_is_the_same_time_as_its_number_of_seconds():
    for text, seconds in (("1.001s", 1.001), ("4.1m", 246.0), ("0.5ms", 0.0005), ("0s", 0)):
        assert read_option("deadline", text) == read_option("deadline", seconds)


def test_a_time_below_zero_is_no_time_however_short_it_is():
    for given in (-0.0001, timedelta(microseconds=-1), -5):
        with pytest.raises(InvalidArgument, match=r"deadline .* is not valid"):
            read_option("deadline", given)


def test_what_is_no_name_is_refused_by_a_sentence():
    wrong: tuple[tuple[str, Any], ...] = (
        ("tags", [["a"]]), ("after", [5]), ("tenant", []), ("tenant", None),
        ("on_duplicate", ["keep"]), ("on_duplicate", {}),
    )  # fmt: skip
    for name, given in wrong:
        with pytest.raises(InvalidArgument, match="is not valid"):
            policy_of("q", **{name: given})


@for_each("option", [option for option in OPTIONS if option.kind != "limits"])
def test_an_empty_text_is_no_value_of_an_option(option: Option):
    """Else a variable that is empty by mistake would submit without the option."""
    with pytest.raises(InvalidArgument, match=r"''|is a str"):
        policy_of("q", **{**NEEDS.get(option.name, {}), option.name: ""})


def test_the_longest_wait_for_room_is_that_of_a_sink():
    assert read_option("max_wait", settings.MAX_WAIT_S) == settings.MAX_WAIT_S * 1000
    assert BY_NAME["max_wait"].most == "40m"


def test_the_scripts_have_the_numbers_and_the_lines_of_the_table():
    text = CREATE.read_text()
    table = re.search(r"local patterns = \{(.*?)\}\n", text, re.DOTALL)
    assert table
    patterns = dict(re.findall(r'(\w+) = "(\^[^"]+)"', table[1]))
    lines = {option.stored for option in OPTIONS} - {"", "policy"}
    assert patterns.keys() - INNER == lines
    described = set(re.findall(r"^--   (\w+) +\S", text, re.MULTILINE)) | {"start", "share"}
    assert described == patterns.keys()
    stored = re.search(r"fields = \{\}\n.*ipairs\(\{(.*?)\}\)", text)
    assert stored
    assert set(re.findall(r'"(\w+)"', stored[1])) <= patterns.keys()
    kinds = {
        "name": "^[%w_.:-]+$", "names": "^[%w_.:-][%w_.:,-]*$", "flag": "^1$", "key": "^1$",
        "moment": "^%d+$",
    }  # fmt: skip
    for option in OPTIONS:
        if option.stored in lines - {"after"} and option.kind in kinds:
            assert patterns[option.stored] == kinds[option.kind], option.name
    policy = {option.name for option in OPTIONS if option.stored == "policy"}
    numbers = [name.removesuffix("_ms") for name in PACKED["policy"]]
    assert policy == {name.partition("_m")[0] for name in numbers} - {"born", "shards", "remember"}
    for name in ("priority", "limit"):
        assert f"is_whole({name}, {BY_NAME[name].least}, {BY_NAME[name].most})" in text


def test_equal_options_have_the_texts_that_they_always_had(monkeypatch: pytest.MonkeyPatch):
    """They are part of a request's digest."""
    monkeypatch.setattr(secrets, "token_hex", lambda size: "00" * size)
    rng, digest = random.Random(32), hashlib.sha256()
    for _ in range(500):
        policy = policy_of("q", **option_set(rng))
        digest.update(f"{policy_text(policy)}\n{policy.extras}\n\n".encode())
    assert digest.hexdigest() == TEXTS


def option_set(rng: random.Random) -> dict[str, Any]:  # noqa: C901  one line for each option
    """Returns random options of one request that go together."""
    names = ("a", "b.c", "x-1", "team_7", "n:9")
    day = 86_400_000
    low = rng.randint(0, day)
    found: dict[str, Any] = {}

    def ms(least: int, most: int) -> float:
        return rng.randint(least, most) / 1000

    def maybe(name: str, make: Callable[[], Any]) -> None:
        if rng.random() < 0.3:
            found[name] = make()

    maybe("priority", lambda: rng.randint(0, 99))
    maybe("limit", lambda: rng.randint(1, 10_000))
    maybe("attempts", lambda: rng.randint(1, 100))
    maybe("backoff", lambda: (low / 1000, rng.randint(low, day) / 1000))
    maybe("lease", lambda: ms(1_000, day))
    maybe("retain", lambda: ms(0, 366 * day))
    maybe("time_limit", lambda: ms(0, day))
    maybe("durable", lambda: rng.randint(0, 16))
    if rng.random() < 0.3:
        found["rate"] = f"{rng.randint(1, 900)}/{rng.choice('smh')}"
        found["burst"] = rng.randint(10, 500)
        maybe("rate_key", lambda: rng.choice(names))
        maybe("weight", lambda: rng.randint(1, 9))
    maybe("tags", lambda: rng.sample(names, rng.randint(1, 3)))
    if rng.random() < 0.3:
        found["tenant"] = rng.choice(names)
        maybe("share", lambda: rng.randint(1, 999))
    maybe("ageing", lambda: ms(1_000, day))
    start = rng.choice(("", "", "delay", "run_at", "after"))
    if start == "delay":
        found["delay"] = ms(1, 30 * day)
    elif start == "run_at":
        found["run_at"] = f"2030-01-{rng.randint(1, 28):02}T12:00:00+01:00"
    elif start == "after":
        found["after"] = rng.sample(names, rng.randint(1, 3))
        maybe("after_any_end", lambda: True)
    if start != "run_at":
        maybe("deadline", lambda: ms(31 * day, 366 * day))
    if rng.random() < 0.2:
        found["on_duplicate"] = rng.choice(("keep", "replace"))
        maybe("window", lambda: rng.randint(0, int(found.get("retain", 86_400) * 1000)) / 1000)
    maybe("distinct", lambda: True)
    return found
