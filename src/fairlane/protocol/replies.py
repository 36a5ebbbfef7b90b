"""The second half of a script's signature: its header line `-- Says:` lists its replies.

`-- Says: ok left tokens | already tokens | gone` lists the words that a reply may begin with, and
the fields after each word. With such a Reply, `reply.left` is the first field of an `ok`, and
`reply.is_gone` is True for `gone` only. A word or a field that the header lacks raises an error.

`(completed acquired?)` is a list without a word, whose last field may be missing. `scores...` takes
all further values. `= count` is a single Redis value, not a list of fields.
"""

from __future__ import annotations

import re
from operator import itemgetter
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_SAYS = re.compile(r"^-- Says: (.+(?:\n--   \|.+)*)$", re.MULTILINE)
_PLAIN = re.compile(r"= [a-z_]+$")
_LIST = re.compile(r"\(([a-z_]+(?: [a-z_]+)*(?:\?|\.\.\.)?)\)$")
_WORDS = re.compile(r"[a-z]+(?: [a-z_]+)*\??$")
CANCELLED = frozenset({b"cancelling", b"cancelled"})  # states
_TAKEN = {"count", "fields", "has_tokens", "index", "word"}  # names that every Reply has


class Summary(NamedTuple):
    """The state of a request or its end: `summary` of lua/v1/lib/core/state.lua."""

    state: bytes
    born: int
    total: int
    done: int
    dead: int
    cancelled: int
    ended: int
    priority: int
    reason: bytes
    retain_ms: int

    @property
    def is_cancelled(self) -> bool:
        """Returns True if the request was cancelled, also while slices are held."""
        return self.state in CANCELLED


class Reply(tuple[Any, ...]):
    """One reply of a script. `Replies` makes a class for each word, with the fields of the word."""

    __slots__ = ()
    word: ClassVar[str] = ""
    fields: ClassVar[tuple[str, ...]] = ()  # as the header names them
    is_ended: ClassVar[bool] = False
    is_stopped: ClassVar[bool] = False
    has_tokens: ClassVar[bool] = False  # to be dispatched

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"the reply {type(self).__name__} has no {name}")


class Replies(dict[Any, type[Reply]]):
    """The replies of one script: word -> the class of that reply."""

    def __init__(self, script: str, text: str) -> None:
        """Reads the header of a script's text. Raises ValueError if the header is malformed."""
        super().__init__()
        self.script = script
        self.untagged: type[Reply] | None = None
        (header,) = _SAYS.findall(text) or ("",)
        self.header = " ".join(header.replace("\n--  ", "").split())
        self.is_plain = bool(_PLAIN.match(self.header))
        if self.is_plain:
            return
        if match := _LIST.match(self.header):
            self.untagged = _reply_class(script, "", match[1].split(), ())
            return
        alternatives = self.header.split(" | ")
        if not all(_WORDS.match(alternative) for alternative in alternatives):
            raise ValueError(f"{script}: the header line `-- Says: {header}` cannot be read")
        words = [alternative.split()[0] for alternative in alternatives]
        for alternative in alternatives:
            word, *fields = alternative.split()
            self[word.encode()] = _reply_class(script, word, fields, words)

    def __missing__(self, word: Any) -> type[Reply]:
        raise TypeError(f"{self.script} replied {word!r}: its header has {self.header}")


def _reply_class(script: str, word: str, fields: list[str], words: Sequence[str]) -> type[Reply]:
    if taken := _TAKEN.intersection(fields):
        raise ValueError(f"{script}: a field of a reply cannot be named {taken.pop()}")
    body: dict[str, Any] = {f"is_{other}": other == word for other in words}
    body |= {"__slots__": (), "word": word, "fields": tuple(fields)}
    body["has_tokens"] = "tokens" in fields
    for position, field in enumerate(fields, 1 if word else 0):
        body[field.rstrip("?.")] = property(_getter(field, position))
    return type(f"{script} {word}".rstrip(), (Reply,), body)


def _getter(field: str, position: int) -> Callable[[Reply], Any]:
    if field == "summary":
        return lambda reply: Summary._make(reply[position])
    if field.endswith("?"):
        return lambda reply: reply[position] if len(reply) > position else None
    if field.endswith("..."):
        return lambda reply: reply[position:]
    return itemgetter(position)
