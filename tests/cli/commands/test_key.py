"""Tests `fairlane key`, and `rq-submit --key`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.support.run.for_each import for_each
from tests.support.servers import backends

if TYPE_CHECKING:
    from tests.cli.program import Program


ON_EACH = pytest.mark.parametrize("redis_server", backends.every(), indirect=True)


@ON_EACH
def test_keys_are_listed_shown_and_set(program: Program):
    for name in ("r1", "r2"):
        program("submit", program.file(b"a\n"), "--key", "api=1", "--key", "db=2", "--id", name)
    listed = program("key", "list").out.decode().splitlines()
    assert listed[0].startswith("api  0 of 1 held, 1 called, 1 waiting, the oldest for ")
    assert listed[1] == "db   0 of 2 held, 1 called, 0 waiting"
    assert b"next     r2\n" in program("key", "show", "api").out
    assert (
        program("key", "set", "api", 5).out == b"key api of queue req has the limit 5, before 1\n"
    )
    found = json.loads(program("key", "show", "api", "--json").out)
    assert (found["limit"], found["is_set"], found["called"]) == (5, True, 2)
    assert b"keys      api (1), db (2)\n" in program("status", "r1").out
    program("key", "set", "api", "unset")
    program("cancel", "r1")
    program("cancel", "r2")
    assert json.loads(program("key", "list", "--json").out)["keys"] == []


def test_unset_says_which_limit_a_key_in_use_keeps(program: Program):
    program("submit", program.file(b"a\n"), "--key", "x=2", "--id", "r1")
    program("key", "set", "x", 20)
    said = b"key x of queue req keeps the limit 20 until nothing uses it, then that of the first "
    assert program("key", "set", "x", "unset").out == said + b"request\n"
    found = json.loads(program("key", "set", "x", "unset", "--json").out)
    assert (found["limit"], found["former"]) == (20, 20)
    program("cancel", "r1")
    program("key", "set", "x", 20)
    said = b"key x of queue req gets the limit of the first request that names it, before 20\n"
    assert program("key", "set", "x", "unset").out == said
    assert json.loads(program("key", "set", "x", "unset", "--json").out)["limit"] is None


def test_unset_of_a_name_that_only_an_order_has_names_no_limit(program: Program):
    program("submit", program.file(b"a\n"), "--order-key", "k", "--id", "r1")
    said = b"key k of queue req gets the limit of the first request that names it\n"
    assert program("key", "set", "k", "unset").out == said
    assert json.loads(program("key", "set", "k", "unset", "--json").out)["limit"] is None
    program("cancel", "r1")


@for_each(
    "words, said",
    [
        (("set", "api", "0"), "LIMIT 0 is not valid: a whole number from 1 to 10,000, or unset"),
        (("set", "a b", "1"), "key 'a b' is not valid"),
        (("show", "api"), "key api is not in use in queue req"),
    ],
)
def test_a_wrong_key_is_a_usage_error(program: Program, words: tuple[str, ...], said: str):
    program("key", *words).refused(2, said)


@ON_EACH
def test_another_limit_is_refused_and_the_error_names_the_command(program: Program):
    program("submit", program.file(b"a\n"), "--key", "api=1", "--id", "r1")
    said = "key api has the limit 1 in queue req, not 2: submit with 1, or change it with"
    program("submit", program.file(b"a\n"), "--key", "api=2").refused(2, said)
    program("cancel", "r1")
