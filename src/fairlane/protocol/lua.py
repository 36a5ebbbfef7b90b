"""Loads the scripts of lua/: their texts as they are sent, their signatures, their replies.

A script's first lines are its signature: `local fence = ARGV[3]  -- drawn at acquire` names the
third argument `fence`. Lua runs these lines and this module reads them, so they can't drift apart.
A `?` behind the name of a key, `-- ids:{id}?`, marks a last key that a call may omit: it is
nil then. The line `-- Says:` lists the script's replies, see `Reply`. From both follows the
script's typed function in scripts.py.

`-- @include lib/permits.lua` inserts a library, each file once. Lua makes each function of a script
anew at every call. So functions that the script does not use are left out. The line `-- @rare`
before a function means that few calls need it: what only such functions use is made when one of
them is called. Names in capitals are constants: the loader puts their values in their places.
Comments between functions are not sent, and what calls what decides the order of functions. So
they may move between files without another SHA-1 of any script.

`-- @flags` sets how the server may treat the script: `allow-oom` (it must run when Redis is
full, because nothing could be drained otherwise), `no-writes`, or `grows` (refused when full). The
line `-- @once` means that a repeat would have another effect: a driver does not send the call again
when its reply is lost. In a cluster SPUBLISH, which stays on one node, replaces PUBLISH in the
text.
"""

from __future__ import annotations

import hashlib
import re
from enum import Enum
from functools import lru_cache
from importlib.resources import files
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from importlib.abc import Traversable


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


def ending_name(born: int | str, reopened: int | str) -> str:
    """Returns the name of an ending among those of its id: `ending_of` of lua/v1/lib/ids.lua.

    `born` is when the request began, in ms. `reopened` is how often it was reopened before; 0 or ""
    = never.
    """
    return f"{born}|{reopened}" if reopened and reopened != "0" else str(born)


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
    opened: bytes
    given: Sequence[Any] = ()  # what leaves keys in another slot, as tokens for no lane

    @property
    def logged(self) -> tuple[Any, ...]:
        """Returns the values that the completion log gets."""
        return tuple(self)[:-1]

    @property
    def reopened(self) -> int:
        """Returns how often the request was reopened before this end."""
        return int(self.opened.partition(b":")[0] or 0)

    @property
    def ending(self) -> str:
        """Returns what distinguishes this ending from all others of the request's id."""
        return ending_name(self.born, self.reopened)

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
        return lambda reply: Summary(*reply[position])
    if field.endswith("?"):
        return lambda reply: reply[position] if len(reply) > position else None
    if field.endswith("..."):
        return itemgetter(slice(position, None))
    return itemgetter(position)


# ------------------------------------------------------------------ scripts
# The scripts of lua/ as they are sent, each with its signature.


LAYOUT = "v1"
FOLDERS = (
    "request",
    "dispatch",
    "rates",
    "staging",
    "lists",
    "topics",
    "single_server",
)  # of scripts; lib/ is for includes
_INCLUDE = re.compile(r"^-- @include (\S+)$", re.MULTILINE)
_FLAGS = re.compile(r"^-- @flags (\S+)$", re.MULTILINE)
_ONCE = re.compile(r"^-- @once$", re.MULTILINE)
_ONE = re.compile(
    r"^local (\w+) = (?:tonumber\()?(KEYS|ARGV)\[(\d+)\]\)?(?:\s+-- .*)?$", re.MULTILINE
)
_OPTIONAL = re.compile(r"^local \w+ = KEYS\[\d+\]\s+-- \S+\?\s", re.MULTILINE)
_REST = re.compile(r"^local (\w+) = (\d+)\s+-- (KEYS|ARGV)\[\2\.\.\.\].*$", re.MULTILINE)
_FUNCTION = re.compile(r"^local function (\w+)\(.*\n(?:(?!end$).*\n)*end\n?", re.MULTILINE)
_CONSTANT = re.compile(r'^local ([A-Z_]+) = ("[^"\\\n]*"|[A-Z_\d*^ ]+?)(?: +--.*)?\n', re.MULTILINE)
_TABLE = re.compile(r"^local ([A-Z_]+(?:, [A-Z_]+)*) = .*(?<![{(,])\n", re.MULTILINE)
_MOVABLE = re.compile(f"{_FUNCTION.pattern}|{_TABLE.pattern}", re.MULTILINE)
_ROW = re.compile(rf"(?:{_MOVABLE.pattern}|^--.*\n|^\n)+", re.MULTILINE)
_CONSTANT_NAME = re.compile(r'"[^"\n]*"|--.*|\b[A-Z_]+\b')
_RARE = re.compile(r"^-- @rare\nlocal function (\w+)", re.MULTILINE)
_ARGUMENT = re.compile(r"^local \w+ = .*\bARGV\[", re.MULTILINE)
_NAME = re.compile(r'"[^"\n]*"|--.*|([A-Za-z_]\w*)')  # outside of texts and comments
_PUBLISH, _SPUBLISH = 'redis.call("PUBLISH"', 'redis.call("SPUBLISH"'


def is_in_cluster(info: Mapping[str, str]) -> bool:
    """Returns True if INFO is from a cluster node; Valkey names the field differently."""
    return "cluster" in (info.get("redis_mode"), info.get("server_mode"))


class Dialect(Enum):
    """The two texts that each script has."""

    SINGLE = "single"
    CLUSTER = "cluster"  # its text publishes to sharded channels

    @classmethod
    def of(cls, info: Mapping[str, str]) -> Dialect:
        """Returns the dialect for a server with this INFO; the server's mode decides."""
        return cls.CLUSTER if is_in_cluster(info) else cls.SINGLE


def lua_folder() -> Path:
    """Returns the folder of the scripts: in the installed package, or in the checkout."""
    packaged = Path(__file__).parents[1] / "lua"
    return packaged if packaged.is_dir() else Path(__file__).parents[3] / "lua"


def expand(root: Traversable, name: str, seen: set[str] | None = None) -> str:
    """Returns the text of one Lua file with its includes in place, each file once."""
    seen = set() if seen is None else seen
    seen.add(name)

    def include(match: re.Match[str]) -> str:
        return "" if match[1] in seen else expand(root, match[1], seen)

    return _INCLUDE.sub(include, (root / name).read_text(encoding="utf-8")).rstrip("\n")


def as_sent(text: str) -> str:
    """Returns the text of a script that does the same and takes Lua less time at each call."""
    return _in_a_function(with_functions_in_place(with_constants(_with_used_functions(text))))


def _with_used_functions(text: str) -> str:
    """Returns the text without the functions that it does not reach: less for the steps after."""
    uses: dict[str, list[str]] = {}  # of what stands before it
    for match in _FUNCTION.finditer(text):
        uses[match[1]] = [one for one in _names_in(match[0]) if one in uses]
    main = [name for name in _names_in(_FUNCTION.sub("", text)) if name in uses]
    kept = set(_reached(main, uses))
    return _FUNCTION.sub(lambda match: match[0] if match[1] in kept else "", text)


def with_constants(text: str) -> str:
    """Returns the text with the value of each constant instead of its name.

    Lua has no constants: each would be a variable, and each function that uses it captures it.
    Raises ValueError if a constant has two values.
    """
    values: dict[str, str] = {}

    def inlined(part: str) -> str:
        return _CONSTANT_NAME.sub(lambda match: values.get(match[0], match[0]), part)

    for name, written in _CONSTANT.findall(text):
        is_literal = written.startswith('"') or written.isdigit()
        value = written if is_literal else f"({inlined(written)})"
        if values.setdefault(name, value) != value:
            raise ValueError(f"constant {name} has the values {values[name]} and {value}")
    return inlined(_CONSTANT.sub("", text))


def with_functions_in_place(text: str) -> str:
    """Returns the text without the top-level functions and tables that it never uses.

    Those that only rare functions use are inside of each of these, and made when it is called.
    A tenth of a script's cost is making the functions that it might call. Functions and tables
    that follow each other come in the order of their first uses, whatever files they are from.
    """
    texts: dict[str, str] = {}
    uses: dict[str, list[str]] = {}  # of what stands before it: else Lua takes it for a global
    same: dict[str, str] = {}  # name -> the first name of its line
    for match in _MOVABLE.finditer(text):
        names = [match[1]] if match[1] else match[2].split(", ")
        uses[names[0]] = [same[one] for one in _names_in(match[0]) if one in same]
        texts[names[0]] = match[0]
        same.update(dict.fromkeys(names, names[0]))
    main = [same[one] for one in _names_in(_MOVABLE.sub("", text)) if one in same]
    rare = set(_RARE.findall(text))
    order = _reached(main, uses)
    usual = set(_reached(main, {name: () if name in rare else uses[name] for name in uses}))
    usual |= {name for name in order if not _FUNCTION.match(texts[name])}

    def placed(name: str) -> str:
        late = [one for one in uses[name] if one not in usual] if name in rare else ()
        inside = set(_reached(late, uses)) - usual
        if not inside:
            return texts[name]
        return (
            f"local function {name}(...)\n"
            f"  if not late_functions.{name} then\n"
            f"{''.join(texts[one] for one in order if one in inside)}{texts[name]}"
            f"    late_functions.{name} = {name}\n"
            f"  end\n"
            f"  return late_functions.{name}(...)\n"
            f"end\n"
        )

    def row(match: re.Match[str]) -> str:
        found = [each[1] or each[2].split(", ")[0] for each in _MOVABLE.finditer(match[0])]
        kept = [name for name in order if name in usual and name in found]
        return "".join(placed(name) for name in kept) if found else match[0]

    whole = _ROW.sub(row, text)
    if "late_functions." not in whole:
        return whole
    return _ARGUMENT.sub(r"local late_functions = {}\n\g<0>", whole, count=1)


def _in_a_function(text: str) -> str:
    """Returns the text with all that follows its keys, from its first argument on, in a function.

    Lua looks up in a list each variable of the enclosing function that a new function uses. One
    from further outside it copies. So the keys stay outside. A text without arguments stays.
    """
    if not _ARGUMENT.search(text):
        return text
    return _ARGUMENT.sub(r"return (function()\n\g<0>", text, count=1) + "\nend)()"


@lru_cache(maxsize=1024)  # most functions are in several scripts
def _names_in(text: str) -> tuple[str, ...]:
    """Returns each name once, in the order of their first uses."""
    return tuple(dict.fromkeys(_NAME.findall(text)))


def _reached(names: Iterable[str], uses: Mapping[str, Iterable[str]]) -> list[str]:
    """Returns these functions and what they use, each behind all that it uses itself."""
    found: dict[str, None] = {}

    def visit(name: str) -> None:
        if name not in found:
            for used in uses[name]:
                visit(used)
            found[name] = None

    for name in names:
        visit(name)
    return list(found)


class Script:
    """One Lua script: its text in each dialect, their SHA-1s, and its signature."""

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        found = _FLAGS.search(text)
        self.flag = found[1] if found else "grows"
        self.is_once = _ONCE.search(text) is not None
        self.keys = self._names(text, "KEYS")
        self.least_keys = len(self.keys) - len(_OPTIONAL.findall(text))
        self.params = self._names(text, "ARGV")
        rest = {match[3]: match[1] for match in _REST.finditer(text)}
        self.rest = rest.get("ARGV")
        self.many_keys = "KEYS" in rest
        self.says = says_of(text)
        flags = "" if self.flag == "grows" else f" flags={self.flag}"
        whole = f"#!lua{flags}\n{text}\n"
        self._texts = {
            Dialect.SINGLE: whole.encode(),
            Dialect.CLUSTER: whole.replace(_PUBLISH, _SPUBLISH).encode(),
        }
        self.shas = {  # what EVALSHA sends
            dialect: hashlib.sha1(text, usedforsecurity=False).hexdigest().encode()
            for dialect, text in self._texts.items()
        }

    @staticmethod
    def _names(text: str, kind: str) -> tuple[str, ...]:
        found = {int(match[3]): match[1] for match in _ONE.finditer(text) if match[2] == kind}
        return tuple(found[i] for i in sorted(found))

    def source(self, dialect: Dialect) -> bytes:
        """Returns the text that EVAL sends."""
        return self._texts[dialect]

    def check_keys(self, keys: Sequence[bytes]) -> None:
        """Raises TypeError if the script does not take so many keys."""
        most = len(keys) if self.many_keys else len(self.keys)
        if not self.least_keys <= len(keys) <= most:
            raise TypeError(f"{self.name} takes the keys {', '.join(self.keys)}, got {len(keys)}")

    def __repr__(self) -> str:
        return f"<Script {self.name}>"


class Library:
    """All scripts of one layout by name; read at first use, or all with `load`.

    `packed` is the folder in an archive that Python imports from, if there is no folder `root`.
    """

    def __init__(self, root: Path, packed: Traversable | None = None) -> None:
        self.root = root
        self._folder: Traversable = root if packed is None else packed
        self._paths = {
            path.name.removesuffix(".lua"): f"{folder}/{path.name}"
            for folder in FOLDERS
            if (self._folder / folder).is_dir()
            for path in (self._folder / folder).iterdir()
            if path.name.endswith(".lua")
        }
        self._read: dict[str, Script] = {}

    def __getitem__(self, name: str) -> Script:
        script = self._read.get(name)
        return self._now(name) if script is None else script

    def _now(self, name: str) -> Script:
        if name not in self._paths:
            raise KeyError(f"there is no script {name}.lua in {self._folder}")
        text = expand(self._folder, self._paths[name])
        script = self._read[name] = Script(name, as_sent(text))
        return script

    def __iter__(self) -> Iterator[Script]:
        return (self[name] for name in sorted(self._paths))

    def load(self) -> None:
        """Reads every script now, for a process that may outlive its installed release."""
        for _ in self:
            continue


@lru_cache(maxsize=1)
def library() -> Library:
    """Returns the scripts of this release.

    Spark puts what `--py-files` names on Python's path as it is, so the package may be in a zip.
    """
    root = lua_folder() / LAYOUT
    if root.is_dir():
        return Library(root)
    return Library(root, files(__package__.partition(".")[0]) / "lua" / LAYOUT)


@lru_cache(maxsize=8)
def signed(library: Library, name: str, params: tuple[str, ...]) -> Script:
    """Returns a script whose arguments are given in order. Raises TypeError if these changed."""
    script = library[name]
    if script.params != params:
        raise TypeError(f"{name} takes {', '.join(script.params)}")
    return script
