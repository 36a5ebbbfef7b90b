"""The handler, twice: one text a call for plain workers, a whole Arrow table for the fleet.

Both answer with the same line of JSON: how many lines and words a text has, and how often some
words stand in it. `sha1` says which text it was.
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
    """One text."""
    found = _WORD.findall(body)
    known = dict.fromkeys(WORDS, 0)
    for word in found:
        name = word.decode()
        if name in known:
            known[name] += 1
    return _answer(body, body.count(b"\n"), len(found), known)


def count_table(table: pa.Table) -> pa.Array:
    """Many texts in compiled code: all of their words in one array, counted by text and word."""
    import pyarrow as pa
    import pyarrow.compute as pc

    bodies = table.column("body").combine_chunks()
    lists = pc.split_pattern_regex(bodies, "[^A-Za-z0-9_]+")
    found = pa.table({"text": pc.list_parent_indices(lists), "word": pc.list_flatten(lists)})
    found = found.filter(pc.not_equal(pc.binary_length(found["word"]), 0))
    words = dict.fromkeys(range(len(bodies)), 0)
    for row in found.group_by("text").aggregate([([], "count_all")]).to_pylist():
        words[row["text"]] = row["count_all"]
    known = [dict.fromkeys(WORDS, 0) for _ in words]
    some = found.filter(pc.is_in(found["word"], pa.array([word.encode() for word in WORDS])))
    for row in some.group_by(["text", "word"]).aggregate([([], "count_all")]).to_pylist():
        known[row["text"]][row["word"].decode()] = row["count_all"]
    lines = pc.count_substring(bodies, "\n").to_pylist()
    answers = [
        _answer(body, lines[at], words[at], known[at]) for at, body in enumerate(bodies.to_pylist())
    ]
    return pa.array(answers, pa.binary())


def _answer(body: bytes, lines: int, words: int, known: dict[str, int]) -> bytes:
    answer: dict[str, Any] = {"sha1": hashlib.sha1(body).hexdigest(), "lines": lines}  # noqa: S324
    answer["words"] = words
    answer["known"] = {word: found for word, found in known.items() if found}
    return json.dumps(answer).encode()
