"""Writes src/fairlane/protocol/scripts.py from the headers of the scripts: `make generate`.

The headers are comments of a text whose digest names the script, so types are not in them. A field
of a reply has its type from TYPES: one name has one type in all scripts, except in TYPES_OF.
"""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

from fairlane.protocol import lua
from fairlane.protocol.lua import is_plain

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fairlane.protocol.lua import Script

FILE = Path(lua.__file__).with_name("scripts.py")
WIDTH = 88
HEAD = '''"""Each script as a function with typed arguments, and its reply as a class.

Generated from the headers of lua/ by `make generate`: do not edit it. A function returns a call,
which an operation sends: `reply = await scripts.extend(keys, k=k, fence=fence, op=op)`.
The files of lua/ say what each argument and each reply is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from fairlane.protocol.lua import Reply, library
from fairlane.protocol.steps import Arg, Call

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

R = TypeVar("R")


def _plain(raw: Any) -> Any:
    return raw


def _call(
    name: str, keys: Sequence[bytes], args: Sequence[Arg], reply: Callable[[Any], R]
) -> Call[R]:
    """Returns the call of a script; TypeError for a wrong number of keys."""
    script = library()[name]
    if len(keys) != script.least_keys:
        script.check_keys(keys)
    return Call(script, keys, args, reply)
'''
_OF_ALL = ("summary", "tokens")  # that Reply declares
TYPES: dict[str, str] = {
    "counts": "list[int]",
    "summary": "Summary",
    **dict.fromkeys(
        (
            *("active_due", "added", "area_count", "at", "attempt", "audits", "born"),
            *("bounded", "charged", "chunks", "delayed_due", "died", "done", "dropped"),
            *("fields", "first", "has_waited", "held", "is_removed", "is_restarted"),
            *("key_count", "last", "late", "leads", "left", "left_out", "length", "logged"),
            *("look_ms", "looked", "made", "max_waiting", "more", "moved", "next"),
            *(
                "next_due",
                "now",
                "oldest_beat",
                "open",
                "orders",
                "paused_until",
                "position",
                "pushed",
            ),
            *("recount", "removed", "restored", "returned", "seen", "sequence", "size"),
            *("taken", "tick_due", "timed_out", "tokens_added", "tokens_inserted", "wait"),
            *("corrected", "tokens_placed"),
            *("waiting",),
        ),
        "int",
    ),
    **dict.fromkeys(
        (
            *("chain", "chore", "cursor", "ending", "epoch", "fence", "former", "host", "manifest"),
            *("pid", "rate", "rates", "resumed", "rolled", "score", "shards", "since", "state"),
            "text",
            *("watched",),
        ),
        "bytes",
    ),
    **dict.fromkeys(
        (*("again", "fresh", "late_permits", "messages", "sentences"),),
        "list[bytes]",
    ),
    **dict.fromkeys(
        (
            *("acquired", "entries", "policy", "queued", "rows", "scores", "settled"),
            *("span", "submitted", "tokens", "unlogged", "workers"),
        ),
        "list[Any]",
    ),
}
TYPES_OF = {
    ("exchange", "left"): "list[Any]",
    ("heartbeat", "left"): "bytes",
    ("pin_manifest", "position"): "bytes",
    ("set_shards", "left"): "bytes",
    ("stand_in", "left"): "bytes",
    ("take_keys", "taken"): "list[int]",
    ("take_messages", "last"): "bytes",
}


def reply_class(name: str) -> str:
    """Returns the name of the class of a script's replies."""
    return "".join(word.title() for word in name.split("_")) + "Reply"


def text_of(scripts: lua.Library) -> str:
    """Returns the text of the module for these scripts, not formatted yet."""
    parts = [HEAD]
    for script in scripts:
        parts += [*_class(script), _function(script)]
    return "\n\n".join(parts)


def formatted(text: str) -> str:
    """Returns the text as the project formats its code."""
    ruff = [sys.executable, "-m", "ruff", "format", "--stdin-filename", str(FILE), "-"]
    return subprocess.run(ruff, input=text, text=True, capture_output=True, check=True).stdout


def summary_of(text: str) -> str:
    """Returns the first sentence of a script's header, as `Exchanges a token for a permit.`."""
    lines = re.match(r"(?:-- .*\n)+", text)
    assert lines is not None, text[:80]
    found = re.sub(r"^-- ", "", lines[0].split("\n-- Says:")[0], flags=re.MULTILINE)
    sentence = re.split(r"(?<=\.)\s", " ".join(found.split()).partition(": ")[2])[0].rstrip(".")
    return f"{sentence[:1].upper()}{sentence[1:]}."


def _class(script: Script) -> Iterator[str]:
    if is_plain(script.says):
        return
    words, fields = [], dict[str, str]()
    for alternative in script.says.strip("()").split(" | "):
        word, *more = alternative.split()
        if script.says.startswith("("):
            word, more = "", [word, *more]
        words += [word] if word else []
        for field in more:
            name = field.rstrip("?.")
            found = _type(script, name)
            found = f"{found} | None" if field.endswith("?") else found
            fields[name] = "tuple[Any, ...]" if field.endswith("...") else found
    lines = [f"class {reply_class(script.name)}(Reply):", *_quoted(f"A reply of {script.name}.")]
    lines += ["", "    __slots__ = ()", f'    script = "{script.name}"']
    says = [f'        "{line}"' for line in _pieces(script.says)]
    lines += (
        ["    says = (", *says, "    )"] if len(says) > 1 else [f"    says = {says[0].strip()}"]
    )
    own = [f"    is_{word}: bool" for word in words if word not in ("ended", "stopped")]
    own += [f"    {name}: {kind}" for name, kind in fields.items() if name not in _OF_ALL]
    yield "\n".join(lines + own)


def _type(script: Script, field: str) -> str:
    return TYPES_OF.get((script.name, field)) or TYPES[field]


def _pieces(text: str) -> list[str]:
    lines = textwrap.wrap(text, WIDTH - 10, break_on_hyphens=False)
    return [f"{line} " for line in lines[:-1]] + lines[-1:]


def _function(script: Script) -> str:
    own = [name for name in script.params if name != "now"]
    types = dict.fromkeys(own, "Arg")
    given = [f"{name}: {types[name]}" for name in own]
    if script.rest:
        given.append(f"{script.rest}: Iterable[Arg] = ()")
    if "now" in script.params:
        given.append('now: Arg = ""')
    plain = is_plain(script.says)
    reply = _type(script, script.says[2:]) if plain else reply_class(script.name)
    args = ", ".join(script.params) + ("," if len(script.params) == 1 else "")
    args = f"({args})" if not script.rest else f"({args.rstrip(',')}, *{script.rest})"
    if script.rest and not script.params:
        args = f"(*{script.rest},)"
    of = "_plain" if plain else f"{reply}.of"
    given = ["keys: Sequence[bytes]", *(["*"] if given else []), *given]
    lines = [
        f"def {script.name}({', '.join(given)}) -> Call[{reply}]:",
        *_quoted(summary_of(lua.expand(lua.lua_folder() / lua.LAYOUT, path_of(script.name)))),
        f'    return _call("{script.name}", keys, {args}, {of})',
    ]
    return "\n".join(lines)


def path_of(name: str) -> str:
    """Returns the path of a script below its layout's folder."""
    root = lua.lua_folder() / lua.LAYOUT
    (path,) = [path for folder in lua.FOLDERS for path in (root / folder).glob(f"{name}.lua")]
    return path.relative_to(root).as_posix()


def _quoted(text: str) -> list[str]:
    lines = textwrap.wrap(text, WIDTH, break_on_hyphens=False)
    if len(lines) == 1:
        return [f'    """{lines[0]}"""']
    return ['    """', *[f"    {line}" for line in lines], '    """']


if __name__ == "__main__":
    FILE.write_text(formatted(text_of(lua.library())), encoding="utf-8")
