"""Failures that are alike share a fingerprint, a hash without the values of one sub-request.

A failure's text is a Python traceback as a worker kept it (its beginning may be cut off), or one
sentence. The sentence of a call that took too long is followed by the place where the call was, and
the reason of a Retry or a Reject by the traceback of its cause.
Two failures are alike if they have the same reason, exception type, place (file and function, no
line) and message, without numbers, quoted words, hex and uuids.
"""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache
from typing import NamedTuple

LENGTH = 10  # hex digits of a fingerprint
FAILED_LAST = "attempts"  # the reason of a sub-request whose last attempt failed
_MESSAGE = 300  # characters of a message that count

_HEADER = "Traceback (most recent call last):"
_FRAME = re.compile(r'^\s+File "(?P<file>.*)", line (?P<line>\d+)(?:, in (?P<function>.+))?$')
_TOO_LONG = "the handler took longer than its time limit"
CAUSE = "Its cause:"  # between the reason of a Retry or a Reject and the traceback of its cause
_STACK = "Stack (most recent call first):"
_CALL = re.compile(r'^\s+File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.+)$')
_ERROR = re.compile(r"^(?P<type>[^\W\d][\w.]*)(?:: (?P<message>.*))?$")
_MARGIN = re.compile(r"^ *[|+] ?")  # of an exception group
_INNER = re.compile(r"^ {4,}[|+]")  # ... and of what is inside the group
FOREIGN = re.compile(
    r"[/\\](?:site-packages|dist-packages|[Ll]ib[/\\]python3[.\d]*)[/\\]|^<frozen "
)
_VARIABLE = (
    (re.compile(r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b"), "<uuid>"),
    (re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\""), "<text>"),
    (re.compile(r"\b0[xX][0-9a-fA-F]+\b"), "<hex>"),
    (re.compile(r"\b(?=[0-9a-fA-F]*\d)(?=[0-9a-fA-F]*[a-fA-F])[0-9a-fA-F]{8,}\b"), "<hex>"),
    (re.compile(r"\d+(?:[.,:]\d+)*"), "<n>"),
)


class Failure(NamedTuple):
    """The parts of a failure's text: `headline` is its first line that matters, `ValueError: bad`.

    `type`, `file` (without folders), `line` and `function` are empty if there is no traceback.
    """

    headline: str
    type: str = ""
    message: str = ""
    file: str = ""
    line: str = ""
    function: str = ""

    @property
    def where(self) -> str:
        """Returns the innermost frame of the caller's own code: `file:line function`, or ""."""
        return f"{self.file}:{self.line} {self.function}".rstrip() if self.file else ""


def read_failure(text: str) -> Failure:
    """Splits a failure's text into its parts."""
    lines = text.splitlines()
    if lines and lines[0].startswith(_TOO_LONG):
        return _too_long(lines[0], lines[1:])
    if CAUSE in lines[1:]:
        cause = read_failure("\n".join(lines[lines.index(CAUSE, 1) + 1 :]))
        both = f"{lines[0]}: {cause.message}" if cause.message else lines[0]
        return cause._replace(headline=f"{lines[0]}: {cause.headline}", message=both)
    outer = [line for line in lines if not _INNER.match(line)]
    lines = [_MARGIN.sub("", line) for line in outer or lines]
    for number in range(len(lines) - 1, -1, -1):
        if lines[number].endswith(_HEADER):
            lines = lines[number + 1 :]
            break
    frames = [(number, match) for number, line in enumerate(lines) if (match := _FRAME.match(line))]
    if not frames:
        return _sentence(lines)
    own = [match for _, match in frames if not FOREIGN.search(match["file"])]
    place = own[-1] if own else frames[-1][1]
    rest = (line for line in lines[frames[-1][0] + 1 :] if line and not line[0].isspace())
    headline = next(rest, "")
    error = _ERROR.match(headline)
    return Failure(
        headline=headline or place[0].strip(),
        type=error["type"] if error else "",
        message=(error["message"] or "") if error else headline,
        file=re.split(r"[/\\]", place["file"])[-1],
        line=place["line"],
        function=place["function"] or "",
    )


def _too_long(headline: str, rest: list[str]) -> Failure:
    """Reads a call that was stopped: what it then raised, or the stack of a killed process."""
    if _STACK not in rest:
        inner = read_failure("\n".join(rest))
        return Failure(headline, "", headline, inner.file, inner.line, inner.function)
    calls = [match for line in rest[rest.index(_STACK) :] if (match := _CALL.match(line))]
    place = next((one for one in calls if not FOREIGN.search(one["file"])), None)
    place = place or (calls[0] if calls else None)
    if place is None:
        return Failure(headline, message=headline)
    file = re.split(r"[/\\]", place["file"])[-1]
    return Failure(headline, "", headline, file, place["line"], place["function"])


def _sentence(lines: list[str]) -> Failure:
    headline = next((line.strip() for line in lines if line.strip()), "")
    return Failure(headline=headline, message=headline)


def without_values(message: str) -> str:
    """Returns the message with a placeholder for each part that differs from case to case."""
    for pattern, word in _VARIABLE:
        message = pattern.sub(word, message)
    return message


@lru_cache(maxsize=256)  # one failure often kills thousands
def fingerprint_of(reason: str, text: str) -> str:
    """Returns the hash of all failures like this one: 10 hex digits."""
    failure = read_failure(text)
    message = without_values(failure.message[:_MESSAGE])
    parts = (reason, failure.type, failure.file, failure.function, message)
    digest = hashlib.sha256("\0".join(parts).encode("utf-8", "replace"))
    return digest.hexdigest()[:LENGTH]
