"""Tests which key decides the node of a step in a cluster, without I/O."""

from __future__ import annotations

import re

from fairlane.protocol.steps import Command, key_of
from tests.support.run.for_each import for_each
from tests.test_house import SRC, sources

KEYED = {
    (b"HGET", b"key", b"field"): b"key",
    (b"XREAD", b"COUNT", 1, b"STREAMS", b"key", b"0"): b"key",
    (b"XREAD", b"BLOCK", 1, b"STREAMS", b"key", b"0"): b"key",
    (b"XINFO", b"GROUPS", b"key"): b"key",
    (b"MEMORY", b"USAGE", b"key"): b"key",
    (b"XGROUP", b"CREATE", b"key", b"x", b"0"): b"key",
    (b"LMPOP", 1, b"key", b"LEFT"): b"key",
    (b"BRPOP", b"key", b"other", 2.0): b"key",
    (b"TIME",): None,
    (b"INFO",): None,
}


@for_each("args", KEYED)
def test_the_key_of_a_command_decides_its_node(args: tuple):
    """The first word does not count if it belongs to the command's name."""
    assert key_of(Command(*args)) == KEYED[args]


def test_no_command_of_two_words_is_unknown_here():
    """`key_of` must find the key of a new one, or a cluster would send it to any node."""
    two_words = re.compile(r'Command\(\s*b"([A-Z]+)",\s*b"([A-Z]+)"')
    found = {match for path in sources(SRC) for match in two_words.findall(path.read_text())}
    known = {"XINFO", "XREAD", "CLUSTER", "SCRIPT", "CONFIG", "MEMORY"}
    assert {first for first, _ in found} <= known
