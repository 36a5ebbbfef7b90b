"""The second half of a script's signature: its header line `-- Says:` lists its replies.

`-- Says: ok left tokens | already tokens | gone` lists the words that a reply may begin with, and
the fields after each word. With such a Reply, `reply.left` is the first field of an `ok`, and
`reply.is_gone` is True for `gone` only. A word that the header lacks, or a field that the word
lacks, raises an error. scripts.py declares the names of each script's replies, with their types.

`(completed acquired?)` is a list without a word, whose last field may be missing. `scores...` takes
all further values. `= count` is a single Redis value, not a list of fields.
"""

from __future__ import annotations

import re
from operator import itemgetter
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_SAYS = re.compile(r"^-- Says: (.+(?:\n--   \|.+)*)$", re.MULTILINE)
_PLAIN = re.compile(r"= [a-z_]+$")
_LIST = re.compile(r"\(([a-z_]+(?: [a-z_]+)*(?:\?|\.\.\.)?)\)$")
_WORDS = re.compile(r"[a-z]+(?: [a-z_]+)*\??$")
CANCELLED = frozenset({b"cancelling", b"cancelled"})  # states
_TAKEN = {
    "count",
    "fields",
    "has_tokens",
    "index",
    "kinds",
    "of",
    "says",
    "script",
    "word",
}  # names that every Reply has


class Summary(NamedTuple):
    """The state of a request or its end: `summary` of lua/v1/lib/state.lua."""

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
    """One reply of a script; the subclass of the script has the names that its header lists.

    `of` makes of each word of the header a class, with the fields of the word.
    """

    __slots__ = ()
    script: ClassVar[str] = ""
    says: ClassVar[str] = ""  # the header
    kinds: ClassVar[Kinds]  # made when the first reply is read
    word: ClassVar[str] = ""
    fields: ClassVar[tuple[str, ...]] = ()  # as the header names them
    # Most scripts have these two words; of a script without them, the names are errors.
    is_ok: bool
    is_gone: bool
    is_ended: ClassVar[bool] = False
    is_stopped: ClassVar[bool] = False
    has_tokens: ClassVar[bool] = False  # to be dispatched
    summary: Summary  # if it has ended
    tokens: list[Any]  # if it has tokens: of each three values

    @classmethod
    def of(cls, raw: Sequence[Any]) -> Self:
        """Returns what Redis replied to this script, with the names of the header."""
        kinds = cls.__dict__.get("kinds")
        if kinds is None:
            kinds = cls.kinds = Kinds(cls)
        kind: Any = kinds.untagged or kinds[raw[0]]
        made: Self = kind(raw)
        return made


class Kinds(dict[Any, type[Reply]]):
    """The replies of one script: word -> the class of that reply."""

    def __init__(self, of: type[Reply]) -> None:
        """Reads the header. Raises ValueError if it is malformed."""
        super().__init__()
        self._of = of
        self.untagged: type[Reply] | None = None
        if match := _LIST.match(of.says):
            self.untagged = _kind(of, "", match[1].split(), ())
            return
        alternatives = of.says.split(" | ")
        if not all(_WORDS.match(alternative) for alternative in alternatives):
            raise ValueError(f"{of.script}: the header line `-- Says: {of.says}` cannot be read")
        words = [alternative.split()[0] for alternative in alternatives]
        for alternative in alternatives:
            word, *fields = alternative.split()
            self[word.encode()] = _kind(of, word, fields, words)

    def __missing__(self, word: Any) -> type[Reply]:
        raise TypeError(f"{self._of.script} replied {word!r}: its header has {self._of.says}")


def says_of(text: str) -> str:
    """Returns the replies that a script's header lists, on one line; "" = there is no such line."""
    (header,) = _SAYS.findall(text) or ("",)
    return " ".join(header.replace("\n--  ", "").split())


def is_plain(says: str) -> bool:
    """Returns True if a header names a single value of Redis, which is no list of fields."""
    return bool(_PLAIN.match(says))


def _kind(of: type[Reply], word: str, fields: list[str], words: Sequence[str]) -> type[Reply]:
    if taken := _TAKEN.intersection(fields):
        raise ValueError(f"{of.script}: a field of a reply cannot be named {taken.pop()}")
    body: dict[str, Any] = {f"is_{other}": other == word for other in words}
    body |= {"__slots__": (), "word": word, "fields": tuple(fields)}
    body["has_tokens"] = "tokens" in fields
    for position, field in enumerate(fields, 1 if word else 0):
        body[field.rstrip("?.")] = property(_getter(field, position))
    return type(f"the reply {of.script} {word}".rstrip(), (of,), body)


def _getter(field: str, position: int) -> Callable[[Reply], Any]:
    if field == "summary":
        return lambda reply: Summary._make(reply[position])
    if field.endswith("?"):
        return lambda reply: reply[position] if len(reply) > position else None
    if field.endswith("..."):
        return lambda reply: reply[position:]
    return itemgetter(position)
