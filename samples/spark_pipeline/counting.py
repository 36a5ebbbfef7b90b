"""The handler, twice: one text a call for plain workers, a whole Arrow table for the fleet.

Both return the same line of JSON: the numbers of lines and words of a text, and how often some
words stand in it. `sha1` identifies the text.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

# Of Python's sources, and of log lines.
WORDS = (
    *("await", "class", "def", "except", "for", "if", "import", "lambda", "raise", "return"),
    *("with", "yield", "INFO", "WARNING", "ERROR", "timeout"),
)
_WORD = re.compile(rb"[A-Za-z0-9_]+")


def count(body: bytes) -> bytes:
    """Counts one text."""
    words = _WORD.findall(body)
    counts = dict.fromkeys(WORDS, 0)
    for word in words:
        name = word.decode()
        if name in counts:
            counts[name] += 1
    return _answer(body, body.count(b"\n"), len(words), counts)


def count_table(table: pa.Table) -> pa.Array:
    """Counts many texts in compiled code: all words in one array, by text and word."""
    import pyarrow as pa
    import pyarrow.compute as pc

    bodies = table.column("body").combine_chunks()
    lists = pc.split_pattern_regex(bodies, "[^A-Za-z0-9_]+")
    pairs = pa.table({"text": pc.list_parent_indices(lists), "word": pc.list_flatten(lists)})
    pairs = pairs.filter(pc.not_equal(pc.binary_length(pairs["word"]), 0))
    words = dict.fromkeys(range(len(bodies)), 0)
    for row in pairs.group_by("text").aggregate([([], "count_all")]).to_pylist():
        words[row["text"]] = row["count_all"]
    counts = [dict.fromkeys(WORDS, 0) for _ in words]
    known_pairs = pairs.filter(pc.is_in(pairs["word"], pa.array([word.encode() for word in WORDS])))
    for row in known_pairs.group_by(["text", "word"]).aggregate([([], "count_all")]).to_pylist():
        counts[row["text"]][row["word"].decode()] = row["count_all"]
    lines = pc.count_substring(bodies, "\n").to_pylist()
    answers = [
        _answer(body, lines[at], words[at], counts[at])
        for at, body in enumerate(bodies.to_pylist())
    ]
    return pa.array(answers, pa.binary())


def _answer(body: bytes, lines: int, words: int, counts: dict[str, int]) -> bytes:
    answer: dict[str, Any] = {"sha1": hashlib.sha1(body).hexdigest(), "lines": lines}  # noqa: S324
    answer["words"] = words
    answer["known"] = {word: number for word, number in counts.items() if number}
    return json.dumps(answer).encode()
