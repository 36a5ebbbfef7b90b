"""Tests how a FILE is cut into lines, whatever the pieces in which it is read."""

from __future__ import annotations

import pytest

from fairlane.cli.files import line_blocks
from fairlane.errors import InvalidArgument
from tests.support.run.for_each import for_each

LINES = [
    (b"", []),
    (b"\n", [b""]),
    (b"a", [b"a"]),
    (b"a\n", [b"a"]),
    (b"a\n\nb\n", [b"a", b"", b"b"]),
    (b"a\n\n", [b"a", b""]),
    (b"a\r\nb\rc\n", [b"a\r", b"b\rc"]),
    (b"\xff\x00\xfe\n \t \n", [b"\xff\x00\xfe", b" \t "]),
    (b"no end", [b"no end"]),
]


@for_each("step", [1, 2, 3, 1 << 20])
@for_each("content, lines", LINES)
def test_lines_do_not_depend_on_how_they_are_read(content: bytes, lines: list[bytes], step: int):
    pieces = [content[i : i + step] for i in range(0, len(content), step)]
    found = line_blocks(lambda _: pieces.pop(0) if pieces else b"", "here")
    assert [line for block in found for line in block] == lines


@for_each("step", [1, 3])
@for_each("content", [b"ok\nfour5\n", b"ok\nfour5", b"ok\nfour56789"])
def test_a_line_that_is_too_long_is_named(content: bytes, step: int):
    pieces = [content[i : i + step] for i in range(0, len(content), step)]
    blocks = line_blocks(lambda _: pieces.pop(0) if pieces else b"", "here", 4)
    with pytest.raises(InvalidArgument, match="line 2 of here has more than 4 bytes"):
        list(blocks)
