"""`python -m tests.explore.mutants [word ...]`: is every guard of the Lua held by a test?

A guard is an `if` whose block refuses: it returns, or it chooses a word of refusal. Each is taken
out in turn (its condition is never true), and so is each operand of a condition, and every other
`if`. The change must be seen by the scripts' own tests, or by the explorer in its small systems,
or by the operations' tests. The words choose by file name; --guard, --branch and --operand by kind;
--all asks the explorer, too, when the scripts' tests have seen it already; --fast leaves out the
operations' tests.

What nothing sees is listed in EXCEPTIONS with the reason, or is a fault of this run.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from fairlane.protocol.scripts import library
from tests.explore.explorer import TooLarge, Violation
from tests.explore.runs import explore
from tests.explore.systems import GATE
from tests.support.output import say
from tests.support.servers import server_process

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
LUA_VARIABLE = "FAIRLANE_TESTS_LUA"  # read by tests/conftest.py: the folder that holds v1
KINDS = ("guard", "branch", "operand")
EXPLORE = "explore"
FOLDERS = {
    "scripts": ("tests/scripts", "tests/spark/scripts"),
    EXPLORE: (),
    "operations": ("tests/operations", "tests/spark/operations"),
}
TIMEOUT_S = 300.0  # a mutant may loop for ever
_OPTIONS = ("-x", "-q", "-k", "not system_redis and not cluster1", "-p", "no:cacheprovider")
_IF = re.compile(r"^(\s*)(if|elseif) (.*) then(?=$| +--)")
_VALUE = re.compile(r"^(\s*)(return|local \w+ =) (.*(?:==|~=|<|>).*)$")
_REFUSES = re.compile(r"\breturn\b|\bbreak\b|\bword = ")
# (file, text of the condition or operand) -> why no test can see it
EXCEPTIONS = {
    ("dispatch/register_worker.lua", "other[1]"): (
        "never decides: without a record `renewed` counts as 0, which is longer ago than `late`"
    ),
    ("dispatch/report_backlog.lua", "#ARGV % 4 ~= 0"): (
        "the next guard refuses a row that is cut off, as its numbers are missing"
    ),
    ("lib/check/count_state.lua", 'permit.kind == "q"'): (
        "in `check` itself: a sleeper that is not queued breaks another of its sentences, too"
    ),
    ("lib/lease/settle_results.lua", "#kept == count and acknowledge"): (
        "saves calls: one by one they are settled the same"
    ),
    ("lib/permits/mint.lua", "work == 0"): (
        "implied by the operand before it: where there is work and room, something is queued"
    ),
    ("lib/permits/mint.lua", "state.queued == 0"): (
        "implied by the next operand: no more are queued than there is work, as `check` holds"
    ),
    ("lib/permits/resize.lua", "k"): (
        "without a number the field holds a fence, which does not begin with p"
    ),
    (
        "lib/permits/resize.lua",
        "k >= state.limit",
    ): "the loop below writes those again that it may keep",
    (
        "lib/lease/settle_results.lua",
        "#kept == count",
    ): "saves calls: one by one they are settled the same",
    ("lib/lease/take_back.lua", 'permit.kind ~= "h"'): "a permit that is not held names no worker",
    ("lib/entries/take_slice.lua", "count * state.max_body <= SLICE_BYTES"): (
        "saves calls: in steps the same is read"
    ),
    (
        "lib/entries/inline_bodies.lua",
        "state.few > 0",
    ): "saves a call: otherwise there is no such key",
    ("lib/lease/complete.lua", "done < 0"): (
        "the arguments before the verdicts would be verdicts then, and are refused as such"
    ),
    ("lib/lease/acquire.lua", 'permit.kind == "h"'): "only a held permit has an op",
    ("lib/gate/refusal.lua", 'state.state ~= "active"'): (
        "what makes a request inactive parks its queued permits: their tokens are stale before"
    ),
    ("dispatch/take_turns.lua", "not token"): (
        "saves looks: a turn that finds no token adds nothing to the reply"
    ),
    ("lib/create/enqueue.lua", "state"): "saves a call: without a state there is no digest",
    ("lib/create/enqueue.lua", 'state.state == "cancelled"'): (
        "saves a call: only a request that was cancelled has the field `abandoned`"
    ),
    ("lib/create/extras.lua", "extras == NOTHING"): "saves tables: no extras make the same values",
    ("lib/entries/take_slice.lua", "#read == 0"): (
        "never true: count is at most `fresh`, the number of entries that were not read"
    ),
}


@dataclass(frozen=True)
class Mutant:
    """One change of one line."""

    path: str  # below v1
    line: int
    kind: str  # guard | branch | operand
    gone: str  # what is taken out
    text: str  # the line without it

    @property
    def name(self) -> str:
        """Where it is, and what is gone."""
        return f"{self.path}:{self.line} {self.kind}: {self.gone}"

    def write(self, folder: Path) -> Path:
        """A copy of the scripts with the change; returns their root."""
        root = folder / "v1"
        shutil.copytree(library().root, root)
        lines = (root / self.path).read_text().splitlines()
        lines[self.line - 1] = self.text
        (root / self.path).write_text("\n".join(lines) + "\n")
        return root


def find(root: Path) -> Iterator[Mutant]:
    """All mutants of the scripts, in the order of their files."""
    for path in sorted(root.rglob("*.lua")):
        name = path.relative_to(root).as_posix()
        lines = path.read_text().splitlines()
        for i, line in enumerate(lines):
            yield from _mutants(name, lines, i, line)


def _mutants(name: str, lines: list[str], i: int, line: str) -> Iterator[Mutant]:
    match = _IF.match(line)
    if match:
        indent, word, condition = match.groups()
        kind = "guard" if _refuses(lines, i, len(indent)) else "branch"
        yield Mutant(name, i + 1, kind, condition, f"{indent}{word} false then")
        for gone, left in _without_one(condition):
            yield Mutant(name, i + 1, "operand", gone, f"{indent}{word} {left} then")
        return
    match = _VALUE.match(line)
    if match and not line.rstrip().endswith(("and", "or", "{", ",")):
        indent, word, value = match.groups()
        value = re.sub(r"\s+--.*$", "", value)
        if re.search(r"\b(and|or)\b", value) and "{" not in value:
            for gone, left in _without_one(value):
                yield Mutant(name, i + 1, "operand", gone, f"{indent}{word} {left}")


def _refuses(lines: list[str], i: int, indent: int) -> bool:
    """The block's own lines return, leave a loop, or choose a word."""
    for line in lines[i + 1 :]:
        own = len(line) - len(line.lstrip())
        if line.strip() and own <= indent:
            return False
        if own == indent + 2 and _REFUSES.search(line):
            return True
    return False


def _without_one(condition: str) -> Iterator[tuple[str, str]]:
    """A condition of several operands, without each of them in turn."""
    for word in (" or ", " and "):
        parts = _split(condition, word)
        if len(parts) > 1:
            for i, gone in enumerate(parts):
                yield gone, word.join(parts[:i] + parts[i + 1 :])
            if word == " or ":
                for i, part in enumerate(parts):
                    inner = _split(part, " and ")
                    for j, gone in enumerate(inner if len(inner) > 1 else ()):
                        left = " and ".join(inner[:j] + inner[j + 1 :])
                        yield gone, word.join([*parts[:i], left, *parts[i + 1 :]])
            return


def _split(text: str, word: str) -> list[str]:
    """The operands of one operator outside of parentheses and strings."""
    parts, depth, quoted, start, i = [], 0, False, 0, 0
    while i < len(text):
        char = text[i]
        quoted ^= char == '"'
        depth += (char in "([{") - (char in ")]}") if not quoted else 0
        if not quoted and depth == 0 and text.startswith(word, i):
            parts.append(text[start:i])
            i = start = i + len(word)
            continue
        i += 1
    return [*parts, text[start:]]


def caught_by_tests(root: Path, folder: str, word: str) -> bool:
    """Do the tests of these folders fail on these scripts, on one kind of server?

    First those that speak most of the script.
    """
    found = (path for name in FOLDERS[folder] for path in (ROOT / name).rglob("test_*.py"))
    files = sorted(found, key=lambda path: -path.read_text().count(word))
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *files, *_OPTIONS],
            cwd=ROOT,
            env=os.environ | {LUA_VARIABLE: str(root.parent)},
            capture_output=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return True
    if done.returncode not in {0, 1}:
        raise RuntimeError(done.stdout.decode() + done.stderr.decode())
    return done.returncode == 1


def caught_by_explorer(root: Path) -> str:
    """The small system that sees a violation; "" if none does."""
    with server_process.run_server("single") as server:
        try:
            for system in GATE:
                with contextlib.suppress(TooLarge):
                    explore(server, system, root, patience_s=20)
        except Violation as found:
            return found.system
        except (TimeoutError, RuntimeError, ConnectionError) as error:
            return f"{type(error).__name__}"
    return ""


def judge(mutant: Mutant, folders: list[str], *, by_all: bool = False) -> list[str]:
    """Who sees the mutant: the first, or all; what is slow is asked last."""
    seen: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        root = mutant.write(Path(folder))
        for who in folders:
            if seen and not by_all:
                break
            if who == EXPLORE:
                system = caught_by_explorer(root)
                seen += [f"explore ({system})"] if system else []
            elif not seen and caught_by_tests(root, who, Path(mutant.path).stem):
                seen.append(who)
    return seen


def sound(folders: list[str]) -> list[str]:
    """Those that pass on the scripts as they are: others would see every mutant."""
    first = next(find(library().root))
    line = (library().root / first.path).read_text().splitlines()[first.line - 1]
    return [who for who in folders if not judge(replace(first, text=line), [who])]


def main() -> int:
    known = {"--all", "--fast", *(f"--{kind}" for kind in KINDS)}
    if unknown := {word for word in sys.argv[1:] if word.startswith("-")} - known:
        raise SystemExit(f"no option {min(unknown)}; there are: {' '.join(sorted(known))}")
    words = [word for word in sys.argv[1:] if not word.startswith("-")]
    kinds = {kind for kind in KINDS if f"--{kind}" in sys.argv} or set(KINDS)
    chosen = [
        mutant
        for mutant in find(library().root)
        if mutant.kind in kinds and (not words or any(word in mutant.path for word in words))
    ]
    folders = sound([name for name in FOLDERS if "--fast" not in sys.argv or name != "operations"])
    say(f"{len(chosen)} mutants; asked: {', '.join(folders)}")
    began, missed, excused = time.perf_counter(), [], 0
    for mutant in chosen:
        seen = judge(mutant, folders, by_all="--all" in sys.argv)
        why = EXCEPTIONS.get((mutant.path, mutant.gone))
        excused += not seen and why is not None
        if not seen and why is None:
            missed.append(mutant)
        say(f"{mutant.name:90} {', '.join(seen) or why or 'NOTHING'}")
    say(
        f"{len(chosen)} mutants: {len(chosen) - len(missed) - excused} caught, {excused} excused, "
        f"{len(missed)} missed, in {time.perf_counter() - began:.0f} s"
    )
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
