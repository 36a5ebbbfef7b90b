"""Writes the blocking face from the asyncio one: `make generate`.

A file of FACES is written by hand, for asyncio. The blocking file follows from its tokens: `async`
and `await` go, and names become those of NAMES, without the prefix `Async`. Comments and docstrings
stay, with the words of PHRASES. Where the faces differ, the file itself says so:

- the line of a comment `# blocking: CODE` becomes this code;
- a function or class whose first line ends with `# asyncio only` is left out.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

SRC = Path(__file__).resolve().parent.parent.parent / "src" / "fairlane"
FACES = {
    "aio/flows.py": "flows.py",
    "aio/queue.py": "queue.py",
    "aio/request.py": "request.py",
    "aio/schedules.py": "schedules.py",
    "aio/taken.py": "taken.py",
    "aio/topics.py": "topics.py",
    "lists/async_balancer.py": "lists/balancer.py",
    "tasks/async_batch.py": "tasks/batch.py",
}
NAMES = {
    "AsyncDriver": "SyncDriver",
    "Bodies": "Iterable[Body]",
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "__aiter__": "__iter__",
    "__anext__": "__next__",
    "anext": "next",
    "async": "",
    "asyncio": "threading",  # its Lock
    "await": "",
}
PHRASES = {  # in docstrings and comments
    ", for one event loop": "",
    "an `async with`": "a `with`",
    "Waits until": "Blocks until",
    "context.flow.ashared": "context.flow.shared",
    'await shared.set("user", {"id": 5})': 'shared["user"] = {"id": 5}',
    "Any task may": "Any thread may",
    "any task may": "any thread may",
    "asyncio API": "blocking API",
}
YIELDS = re.compile(r"^( *)for (\w+) in (.*):\n\1    yield \2\n(?!\1 )", re.MULTILINE)
NO_CODE = ("COMMENT", "NL", "INDENT", "DEDENT", "NEWLINE")
TEXTS = ("COMMENT", "STRING", "FSTRING_MIDDLE")  # the last one since Python 3.12
# The formatter joins the lines that have become shorter. Unused names of imports go.
FIXED = "C416,F401,I001,RUF022,RUF100"


def blocking(path: str) -> str:
    """Returns the text of the blocking file that is made of this one, formatted."""
    text = translated((SRC / path).read_text(encoding="utf-8"))
    return formatted(f"# Generated from {path} by `make generate`: do not edit it.\n{text}", path)


def translated(text: str) -> str:
    """Returns the text in the words of the blocking face, not formatted yet."""
    text = with_other_tokens(without_asyncio_only(re.sub(r" +# noqa: ASYNC\d+.*", "", text)))
    text = re.sub(r"^(?!.*# blocking:).*", in_modules, text, flags=re.MULTILINE)
    text = re.sub(r"^.*# blocking:\n", "", text, flags=re.MULTILINE)
    text = re.sub(r"^( *)(?:\S.*)?# blocking: (.*)", r"\1\2", text, flags=re.MULTILINE)
    text = re.sub(r"(Iterable\[[^|=]+\]) \| \1(?=[,\s])", r"\1", text)
    return YIELDS.sub(r"\1yield from \3\n", text)


def in_modules(line: re.Match[str]) -> str:
    """Returns a line with the names of the modules of the blocking face."""
    return line[0].replace("fairlane.drivers.aio", "fairlane.drivers.sync").replace(".aio.", ".")


def without_asyncio_only(text: str) -> str:
    """Returns the text without the functions and classes that the blocking face does not have."""
    lines = text.splitlines(keepends=True)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            first, last = node.lineno - 1, node.end_lineno or 0
            if lines[first].endswith("# asyncio only\n"):
                lines[first:last] = [""] * (last - first)
    return "".join(lines)


def with_other_tokens(text: str) -> str:
    """Returns the text with the tokens of the blocking face; between them it stays what it is."""
    starts = [0, *accumulate(map(len, text.splitlines(keepends=True)))]
    parts, at = list[str](), 0
    for token, new in changes(text):
        (row, column), (last, end) = token.start, token.end
        parts += [text[at : starts[row - 1] + column], new]
        at = starts[last - 1] + end + (not new)  # with the space behind it
    return "".join([*parts, text[at:]])


def changes(text: str) -> Iterator[tuple[tokenize.TokenInfo, str]]:
    """Yields tokens with what they become."""
    line = ""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        kind = tokenize.tok_name[token.type]
        line = line if kind in NO_CODE else line or token.string  # the first word of a statement
        if kind == "NAME":
            yield token, name_of(token.string, is_import=line in ("from", "import"))
        elif kind in TEXTS and "# blocking:" not in token.string:
            yield token, words_of(token.string)
        elif kind == "NEWLINE":
            line = ""


def name_of(name: str, *, is_import: bool = False) -> str:
    """Returns the name that the blocking face has for this one."""
    if name in NAMES:
        return "Body" if is_import and name == "Bodies" else NAMES[name]
    return re.sub(r"^(_?)Async(?=[A-Z])", r"\1", name).removesuffix("_async")


def words_of(text: str) -> str:
    """Returns a docstring or a comment in the words of the blocking face."""
    for phrase, other in PHRASES.items():
        text = text.replace(phrase, other)
    text = re.sub(r"\basync (?=for|with)|\bawait (?=\w+\.)", "", text)
    return re.sub(r"\bAsync[A-Z]\w+", lambda found: name_of(found[0]), text)


def formatted(text: str, path: str) -> str:
    """Returns the text as the project formats its code."""
    ruff, name = [sys.executable, "-m", "ruff"], str(SRC / FACES[path])
    fix = ["check", "--quiet", "--fix-only", "--unsafe-fixes", "--fixable", FIXED]
    for command in (fix, ["format"]):
        done = subprocess.run(
            [*ruff, *command, "--stdin-filename", name, "-"],
            input=text, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise ValueError(f"{path}: {done.stderr}")
        text = done.stdout
    return text


if __name__ == "__main__":
    for source, target in FACES.items():
        (SRC / target).write_text(blocking(source), encoding="utf-8")
