"""Loads lua/ and turns each file into a typed call.

A script's first lines are its signature: `local fence = ARGV[3]  -- drawn at acquire` names the
third argument `fence`. Lua runs these lines and the loader reads them, so they can't drift apart:
`scripts.extend(keys, k=…, fence=…, op=…)` with a wrong name is a TypeError before any call.
A `?` behind the name of a key, `-- ids:{id}?`, marks a last key that a call may leave away: it is
nil then. The line `-- Says:` lists the script's replies, see replies.py.

`-- @include lib/permits/mint.lua` inserts a text, each file once. Lua makes each function of a
script anew at every call. So functions that the script does not use are left out. The line
`-- @rare` before a function means that few calls need it: what only such functions use is made
when one of them is called. Names in capitals are constants. `-- @flags` sets how
the server may treat the script: `allow-oom` (it must run when Redis is full, because nothing could
be drained otherwise), `no-writes`, or `grows` (refused when full). In a cluster SPUBLISH, which
stays on one node, replaces PUBLISH in the text.
"""

from __future__ import annotations

import hashlib
import re
from enum import Enum
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairlane.protocol.replies import Replies, Reply
from fairlane.protocol.steps import Arg, Call

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

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
_ONE = re.compile(
    r"^local (\w+) = (?:tonumber\()?(KEYS|ARGV)\[(\d+)\]\)?(?:\s+-- .*)?$", re.MULTILINE
)
_OPTIONAL = re.compile(r"^local \w+ = KEYS\[\d+\]\s+-- \S+\?\s", re.MULTILINE)
_REST = re.compile(r"^local (\w+) = (\d+)\s+-- (KEYS|ARGV)\[\2\.\.\.\].*$", re.MULTILINE)
_FUNCTION = re.compile(r"^local function (\w+)\(.*?^end\n?", re.MULTILINE | re.DOTALL)
_CONSTANT = re.compile(r'^local ([A-Z_]+) = ("[^"\\\n]*"|[A-Z_\d*^ ]+?)(?: +--.*)?\n', re.MULTILINE)
_CONSTANT_NAME = re.compile(r'"[^"\n]*"|--.*|\b[A-Z_]+\b')
_RARE = re.compile(r"^-- @rare\nlocal function (\w+)", re.MULTILINE)
_NAME = re.compile(r"\w+")
_COMMENT = re.compile(r"--.*")
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


def expand(root: Path, name: str, seen: set[str] | None = None) -> str:
    """Returns the text of one Lua file with its includes in place, each file once."""
    seen = set() if seen is None else seen
    seen.add(name)

    def include(match: re.Match[str]) -> str:
        return "" if match[1] in seen else expand(root, match[1], seen)

    return _INCLUDE.sub(include, (root / name).read_text(encoding="utf-8")).rstrip("\n")


def without_unused(text: str) -> str:
    """Returns the text without the top-level functions that it never calls.

    A tenth of a script's cost is making the functions that it might call.
    """
    functions = _functions(text)
    used = _reached(_main(text), functions)
    return _FUNCTION.sub(lambda match: match[0] if match[1] in used else "", text)


def with_constants(text: str) -> str:
    """Returns the text with the value of each constant instead of its name.

    Lua has no constants: each would be a variable, and each function that uses it captures it.
    """
    values: dict[str, str] = {}

    def inlined(part: str) -> str:
        return _CONSTANT_NAME.sub(lambda match: values.get(match[0], match[0]), part)

    for name, value in _CONSTANT.findall(text):
        is_literal = value.startswith('"') or value.isdigit()
        values[name] = value if is_literal else f"({inlined(value)})"
    return inlined(_CONSTANT.sub("", text))


def with_late_functions(text: str) -> str:
    """Returns the text with functions that only rare ones need inside of these.

    So Lua makes them when a rare function is called. Each rare function has its own.
    """
    functions, rare = _functions(text), set(_RARE.findall(text))
    usual = _reached(_main(text), functions, rare)

    def place(match: re.Match[str]) -> str:
        name = match[1]
        if name not in usual:
            return ""
        late = _reached(functions[name], functions, usual) - usual if name in rare else set()
        inside = "".join(each[0] for each in _FUNCTION.finditer(text) if each[1] in late)
        if not inside:
            return match[0]
        return (
            f"local function {name}(...)\n  if not late_functions.{name} then\n{inside}{match[0]}"
            f"    late_functions.{name} = {name}\n  end\n  return late_functions.{name}(...)\nend\n"
        )

    placed = _FUNCTION.sub(place, text)
    end = _end_of_keys(placed)
    return (
        placed if placed == text else f"{placed[:end]}local late_functions = {{}}\n{placed[end:]}"
    )


def in_a_function(text: str) -> str:
    """Returns the text with all that follows its keys in a function.

    Lua searches a list of all variables of the enclosing function, the last one first, for each
    variable that a new function uses. Variables of functions outside of that one need no search.
    """
    if not _FUNCTION.search(text):
        return text
    end = _end_of_keys(text)
    return f"{text[:end]}return (function()\n{text[end:]}\nend)()"


def _end_of_keys(text: str) -> int:
    """Returns where the first argument is, or what follows the last key if there is none."""
    found = [match for names in (_ONE, _REST) for match in names.finditer(text)]
    return min(
        (match.start() for match in found if "ARGV[" in match[0]),
        default=max(match.end() + 1 for match in found),
    )


def _functions(text: str) -> dict[str, str]:
    return {match[1]: _COMMENT.sub("", match[0]) for match in _FUNCTION.finditer(text)}


def _main(text: str) -> str:
    return _COMMENT.sub("", _FUNCTION.sub("", text))


def _reached(text: str, functions: dict[str, str], ends: Collection[str] = ()) -> set[str]:
    """Returns the functions that a text uses, and those that these use, except for `ends`."""
    used: set[str] = set()
    todo = [text]
    while todo:
        found = {name for name in _NAME.findall(todo.pop()) if name in functions} - used
        used |= found
        todo += [functions[name] for name in found if name not in ends]
    return used


class Script:
    """One Lua script: its text in each dialect, their SHA-1s, and its signature."""

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        found = _FLAGS.search(text)
        self.flag = found[1] if found else "grows"
        self.keys = self._names(text, "KEYS")
        self.least_keys = len(self.keys) - len(_OPTIONAL.findall(text))
        self.params = self._names(text, "ARGV")
        rest = {match[3]: match[1] for match in _REST.finditer(text)}
        self.rest = rest.get("ARGV")
        self.many_keys = "KEYS" in rest
        self.replies = Replies(name, text)
        flags = "" if self.flag == "grows" else f" flags={self.flag}"
        sent = in_a_function(with_late_functions(with_constants(text)))
        whole = f"#!lua{flags}\n{sent}\n"
        self._texts = {
            Dialect.SINGLE: whole.encode(),
            Dialect.CLUSTER: whole.replace(_PUBLISH, _SPUBLISH).encode(),
        }
        self._shas = {
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

    def sha(self, dialect: Dialect) -> bytes:
        """Returns the digest that EVALSHA sends."""
        return self._shas[dialect]

    def __call__(self, keys: Sequence[bytes], **given: Any) -> Call:
        """Returns the step that runs this script; TypeError for a wrong, missing or extra name."""
        most = len(keys) if self.many_keys else len(self.keys)
        if not self.least_keys <= len(keys) <= most:
            raise TypeError(f"{self.name} takes the keys {', '.join(self.keys)}, got {len(keys)}")
        rest: Iterable[Arg] = given.pop(self.rest, ()) if self.rest else ()
        given.setdefault("now", "") if "now" in self.params else None
        try:
            args = [given.pop(name) for name in self.params]
        except KeyError as missing:
            raise TypeError(f"{self.name} needs {missing}") from None
        if given:
            raise TypeError(
                f"{self.name} takes no {', '.join(given)}; it takes {', '.join(self.params)}"
            )
        args.extend(rest)
        return Call(self, keys, args)

    def reply(self, raw: Sequence[Any]) -> Reply:
        """Returns the raw reply of this script as a Reply, with the names of the header."""
        kind = self.replies.untagged or self.replies[raw[0]]
        return kind(raw)

    def __repr__(self) -> str:
        return f"<Script {self.name}>"


class Library:
    """All scripts of one layout, as attributes; read from disk at first use, or all with `load`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._paths = {
            path.stem: path for folder in FOLDERS for path in (root / folder).glob("*.lua")
        }

    def __getattr__(self, name: str) -> Script:
        if name.startswith("_") or name not in self._paths:
            raise AttributeError(f"there is no script {name}.lua in {self.root}")
        path = self._paths[name].relative_to(self.root).as_posix()
        script = Script(name, without_unused(expand(self.root, path)))
        self.__dict__[name] = script  # so that this function is not called for it again
        return script

    def __iter__(self) -> Iterator[Script]:
        return (getattr(self, name) for name in sorted(self._paths))

    def load(self) -> None:
        """Reads every script now, for a process that may outlive its installed release."""
        for _ in self:
            continue


@lru_cache(maxsize=1)
def library() -> Library:
    """Returns the scripts of this release."""
    return Library(lua_folder() / LAYOUT)
