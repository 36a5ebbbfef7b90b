"""Tests fingerprints: similar failures share one; a traceback has a headline and a place."""

from __future__ import annotations

import json
import re
import traceback
import uuid
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlane.common.fingerprint import fingerprint_of, read_failure, without_values
from tests.support.run.for_each import for_each

if TYPE_CHECKING:
    from collections.abc import Callable

KEPT = 4096  # characters of a traceback that a worker keeps


def traceback_of(function: Callable[[], object]) -> str:
    """Returns the traceback of what the function raises."""
    try:
        function()
    except BaseException as error:  # noqa: BLE001  whatever it is
        return "".join(traceback.format_exception(error))
    raise AssertionError


def parse_port(text: str) -> None:
    raise ValueError(f"bad port {text}")


def parse_host(text: str) -> None:
    raise ValueError(f"bad port {text}")


def raise_from_another() -> None:
    try:
        parse_port("7")
    except ValueError as error:
        raise RuntimeError("no\nsecond line") from error


def raise_two() -> None:
    found = []
    for text in ("1", "2"):
        try:
            parse_port(text)
        except ValueError as error:
            found.append(error)
    raise ExceptionGroup("two of them", found)


def raise_after_two() -> None:
    try:
        raise_two()
    except ExceptionGroup as error:
        raise OSError(2, "no such file", "x") from error


def raise_with_note() -> None:
    error = KeyError("a")
    error.add_note("a note")
    raise error


# ------------------------------------------------------------------ the parts of a text


@for_each(
    "fail, headline, place",
    [
        (lambda: parse_port("7"), "ValueError: bad port 7", "parse_port"),
        (raise_from_another, "RuntimeError: no", "raise_from_another"),
        (raise_two, "ExceptionGroup: two of them (2 sub-exceptions)", "raise_two"),
        (raise_after_two, "FileNotFoundError: [Errno 2] no such file: 'x'", "raise_after_two"),
        (raise_with_note, "KeyError: 'a'", "raise_with_note"),
    ],
)
def test_a_traceback_has_a_headline_and_a_place(
    fail: Callable[[], None], headline: str, place: str
):
    failure = read_failure(traceback_of(fail))
    assert failure.headline == headline
    assert re.fullmatch(rf"test_fingerprint\.py:\d+ {place}", failure.where)
    assert failure.type == headline.partition(":")[0]


def test_the_place_is_in_the_callers_own_code():
    failure = read_failure(traceback_of(lambda: json.loads("{")))
    assert failure.headline.startswith("json.decoder.JSONDecodeError: ")
    assert failure.file == "test_fingerprint.py"


def test_without_own_code_the_place_is_the_innermost():
    text = (
        'Traceback (most recent call last):\n  File "/usr/lib/python3.12/json/decoder.py", '
        "line 9, in decode\n    raise it\nValueError: no\n"
    )
    assert read_failure(text).where == "decoder.py:9 decode"


def test_a_syntax_error_has_a_line_but_no_function():
    text = traceback_of(lambda: compile("a b", "given.py", "exec"))
    assert read_failure(text).where == "given.py:1"
    assert read_failure(text).headline == "SyntaxError: invalid syntax"


def test_an_exception_without_a_message():
    text = traceback_of(lambda: (_ for _ in ()).throw(SystemExit()))
    assert (read_failure(text).type, read_failure(text).message) == ("SystemExit", "")


def test_a_windows_path():
    text = '  File "C:\\own\\code.py", line 3, in go\nValueError: no'
    assert read_failure(text).where == "code.py:3 go"


@for_each(
    "text, headline",
    [
        ("the worker died", "the worker died"),
        ("\n  two\nlines", "two"),
        ("ValueError: only words", "ValueError: only words"),
        ("", ""),
    ],
)
def test_a_sentence_is_its_own_headline(text: str, headline: str):
    failure = read_failure(text)
    assert (failure.headline, failure.type, failure.where) == (headline, "", "")


def test_a_traceback_without_its_beginning_has_the_same_headline_and_place():
    text = traceback_of(raise_after_two)
    whole = fingerprint_of("attempts", text)
    last = text.rindex('  File "')
    assert {fingerprint_of("attempts", text[start:]) for start in range(0, last, 7)} == {whole}


TOO_LONG = "the handler took longer than its time limit of 0.5 s"
LIBRARY = "/usr/lib/python3.12/asyncio/tasks.py"
STACK = f"""{TOO_LONG}
Stack (most recent call first):
  File "{LIBRARY}", line 520 in wait_for
  File "/srv/own/work.py", line 7 in wait_long
  File "/srv/own/work.py", line 99 in handle
"""
TRACE = f"""{TOO_LONG}
Traceback (most recent call last):
  File "/srv/own/work.py", line 99, in handle
    await wait_long()
  File "/srv/own/work.py", line 7, in wait_long
    await asyncio.wait_for(reply, 9)
  File "{LIBRARY}", line 520, in wait_for
    return await future
asyncio.exceptions.CancelledError
"""


@pytest.mark.parametrize("text", [STACK, TRACE])
def test_a_call_that_took_too_long_has_that_headline_and_its_place(text: str):
    failure = read_failure(text)
    assert failure.headline == TOO_LONG
    assert failure.where == "work.py:7 wait_long"
    assert fingerprint_of("timeout", STACK) == fingerprint_of("timeout", TRACE)


@pytest.mark.parametrize("text", [STACK, TRACE])
def test_two_places_where_it_took_too_long_are_two_failures(text: str):
    elsewhere = text.replace("wait_long", "wait_longer")
    assert fingerprint_of("timeout", text) != fingerprint_of("timeout", elsewhere)
    other_limit = text.replace("0.5 s", "7 s").replace("line 7", "line 8")
    assert fingerprint_of("timeout", text) == fingerprint_of("timeout", other_limit)


@for_each(
    "text, where",
    [
        (TOO_LONG, ""),
        (f"{TOO_LONG}\nStack (most recent call first):\n", ""),
        (
            f'{TOO_LONG}\nStack (most recent call first):\n  File "{LIBRARY}", line 5 in f\n  ...',
            "tasks.py:5 f",
        ),
        (f"{TOO_LONG}\nValueError: cut off", ""),
    ],
)
def test_a_call_that_took_too_long_without_a_frame_of_its_own(text: str, where: str):
    failure = read_failure(text)
    assert (failure.headline, failure.where) == (TOO_LONG, where)


# ------------------------------------------------------------------ equal or not


@for_each(
    "one, other",
    [
        ("bad port 80", "bad port 8080"),
        ("bad port -80", "bad port -8"),
        ("took 1.5 s", "took 12 s"),
        ("at 10:11:12", "at 9:59:00"),
        ("no key 'a'", "no key 'a long one'"),
        ('no key "a"', 'no key "it\'s"'),
        (r"no key 'it\'s'", "no key 'x'"),
        ("at 0x7f00deadbeef", "at 0x10"),
        ("sha 00deadbeef", "sha a1a1a1a1a1a1a1a1"),
        ("id 6f1c0f5e-3f0a-4c55-9a3e-0123456789ab", "id 00000000-0000-4000-8000-000000000000"),
    ],
)
def test_what_differs_from_case_to_case_makes_no_difference(one: str, other: str):
    assert fingerprint_of("attempts", one) == fingerprint_of("attempts", other)


@for_each(
    "one, other",
    [("bad port", "bad host"), ("deadbeef", "feedface"), ("no key 'a'", "no key a"), ("1", "")],
)
def test_other_words_are_another_failure(one: str, other: str):
    assert fingerprint_of("attempts", one) != fingerprint_of("attempts", other)


def test_the_reason_and_the_place_count_and_the_line_does_not():
    port, host = traceback_of(lambda: parse_port("7")), traceback_of(lambda: parse_host("7"))
    assert fingerprint_of("attempts", port) != fingerprint_of("attempts", host)
    assert fingerprint_of("attempts", port) != fingerprint_of("timeout", port)
    moved = re.sub(r"line \d+", "line 999", port)
    assert moved != port
    assert fingerprint_of("attempts", port) == fingerprint_of("attempts", moved)
    elsewhere = port.replace('File "', 'File "elsewhere/')
    assert fingerprint_of("attempts", port) == fingerprint_of("attempts", elsewhere)


def test_the_message_is_replaced_in_words():
    said = f"port 80 of 'a' at 0xff is {uuid.UUID(int=7)}"
    assert without_values(said) == "port <n> of <text> at <hex> is <uuid>"


def test_a_fingerprint_is_the_same_in_every_release():
    """Users note it down, so a change of the rules must be intended."""
    text = '  File "code.py", line 3, in go\nValueError: bad port 80'
    assert fingerprint_of("attempts", text) == "2b66744165"


@given(st.text(), st.text())
def test_any_text_has_a_fingerprint(reason: str, text: str):
    assert re.fullmatch(r"[0-9a-f]{10}", fingerprint_of(reason, text))
    assert "\n" not in read_failure(text).headline


@given(st.text(alphabet="abc 'x\"\n:|+-", max_size=60), st.integers(0, 10**12))
def test_numbers_never_matter(words: str, number: int):
    text = traceback_of(lambda: parse_port(f"{words} {number}"))
    other = traceback_of(lambda: parse_port(f"{words} {number + 1}"))
    assert fingerprint_of("attempts", text[-KEPT:]) == fingerprint_of("attempts", other[-KEPT:])


def test_a_reason_keeps_the_type_and_the_place_of_its_cause():
    text = (
        "the bank is closed\nIts cause:\nTraceback (most recent call last):\n"
        '  File "/srv/shop.py", line 7, in pay\n    fail()\nValueError: no line\n'
    )
    found = read_failure(text)
    assert found.headline == "the bank is closed: ValueError: no line"
    assert (found.type, found.message) == ("ValueError", "the bank is closed: no line")
    assert found.where == "shop.py:7 pay"
