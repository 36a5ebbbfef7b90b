"""`python -m tests.explore.mutants [word ...]`: is every guard of the Lua held by a test?

A guard is an `if` whose block refuses: it returns, or it chooses a word of refusal. Each is taken
out in turn (its condition is never true), and so is each operand of a condition, and every other
`if`. A test of the scripts or of the operations must fail, or the explorer must find a violation in
its small systems. The words choose by file name; --guard, --branch and --operand by kind; --all
asks the explorer, too, when a test has failed already; --fast leaves out the explorer.

At first all of them run on the scripts as they are, and which scripts each calls is recorded. So a
mutant is judged by those alone that call a script with the changed line.

A mutant that none detects is listed in EXCEPTIONS with the reason, or is a fault of this run.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from fairlane.protocol.scripts import Dialect, Library, library
from tests.explore import recorder
from tests.explore.explorer import TooLarge, Violation
from tests.explore.runs import explore
from tests.explore.systems import BY_NAME, GATE
from tests.support.output import say
from tests.support.servers import server_process

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ROOT = Path(__file__).resolve().parents[2]
LUA_VARIABLE = "FAIRLANE_TESTS_LUA"  # read by tests/conftest.py: the folder that holds v1
KINDS = ("guard", "branch", "operand")
FOLDERS = (
    "tests/scripts",
    "tests/spark/scripts",
    "tests/operations",
    "tests/spark/operations",
)
JOBS = 2  # so many mutants are judged concurrently
TIMEOUT_S = (
    1200.0  # a mutant may loop for ever; then the first test fails after 120 s, or its server hangs
)
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)
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


@dataclass(frozen=True)
class Witness:
    """A test, or a system of the explorer: what it costs, and what it can see."""

    name: str
    seconds: float
    scripts: set[str]  # those that it calls, and the files that it reads

    def rank(self, word: str) -> tuple[bool, int, float]:
        """Scripts' tests come first, then files that speak most of the script, then cheap tests."""
        return (
            "/operations/" in self.name,
            -_mentions(self.name.partition("::")[0], word),
            self.seconds,
        )


@cache
def _mentions(path: str, word: str) -> int:
    return (ROOT / path).read_text().count(word)


class Judges:
    """The tests and the systems that pass on the scripts as they are."""

    def __init__(self, *, with_explorer: bool) -> None:
        self.tests = passing_tests()
        self.systems = passing_systems() if with_explorer else []
        self._exploring = threading.Lock()  # it replaces the operations' library of this process

    def judge(self, mutant: Mutant, *, by_all: bool = False) -> list[str]:
        """Returns who sees the mutant: a test, and the explorer if no test does."""
        with tempfile.TemporaryDirectory() as folder:
            root = mutant.write(Path(folder))
            changed = changed_scripts(root) | {mutant.path}
            tests = [test for test in self.tests if test.scripts & changed]
            word = Path(mutant.path).stem
            seen = [failing_test(root, sorted(tests, key=lambda test: test.rank(word)))]
            if by_all or not any(seen):
                with self._exploring:
                    systems = [one for one in self.systems if one.scripts & changed]
                    seen.append(violated_system(root, systems))
        return [who for who in seen if who]


def changed_scripts(root: Path) -> set[str]:
    """Returns the names of the scripts whose text differs from the product's."""
    changed = Library(root)
    return {
        script.name
        for script in library()
        if script.sha(Dialect.SINGLE) != getattr(changed, script.name).sha(Dialect.SINGLE)
    }


def run_tests(
    tests: Iterable[str], *options: str, timeout_s: float | None, variables: dict[str, str]
) -> tuple[int, str]:
    """Returns the exit code and the output of pytest on these tests, on one kind of server."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("\n".join(tests))
        file.flush()
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *_OPTIONS, *options, f"@{file.name}"],
            cwd=ROOT,
            env=os.environ | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=timeout_s,
            check=False,
        )
    output = done.stdout.decode()
    if done.returncode not in {0, 1}:
        raise RuntimeError(output)
    return done.returncode, output


def passing_tests() -> list[Witness]:
    """Returns the tests with the scripts that each calls; another would see every mutant."""
    with tempfile.TemporaryDirectory() as folder:
        options = ("-p", recorder.__name__, "-n", str(JOBS))
        code, output = run_tests(
            FOLDERS, *options, timeout_s=None, variables={recorder.VARIABLE: folder}
        )
        if code:
            raise RuntimeError(f"a test fails on the scripts as they are:\n{output}")
        return [Witness(name, *found) for name, found in recorder.read(Path(folder)).items()]


def failing_test(root: Path, tests: list[Witness]) -> str:
    """Returns the first of these tests that fails on these scripts; "" if none does."""
    if not tests:
        return ""
    try:
        variables = {LUA_VARIABLE: str(root.parent)}
        code, output = run_tests(
            (test.name for test in tests), timeout_s=TIMEOUT_S, variables=variables
        )
    except subprocess.TimeoutExpired:
        return "no end"
    found = _FAILED.search(output)
    return (found[1] if found else "a test") if code else ""


def passing_systems() -> list[Witness]:
    """Returns the small systems with the scripts that each calls."""
    found = []
    with server_process.run_server("single") as server:
        for system in GATE:
            began = time.perf_counter()
            with recorder.recorded() as names, contextlib.suppress(TooLarge):
                explore(server, system)
            found.append(Witness(system.name, time.perf_counter() - began, names))
    return found


def violated_system(root: Path, systems: list[Witness]) -> str:
    """Returns the first of these systems that sees a violation; "" if none does."""
    if not systems:
        return ""
    with server_process.run_server("single") as server:
        try:
            for system in sorted(systems, key=lambda one: one.seconds):
                with contextlib.suppress(TooLarge):
                    explore(server, BY_NAME[system.name], root, patience_s=20)
        except Violation as found:
            return f"explore ({found.system})"
        except (TimeoutError, RuntimeError, ConnectionError) as error:
            return f"explore ({type(error).__name__})"
    return ""


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
    judges = Judges(with_explorer="--fast" not in sys.argv)
    say(f"{len(chosen)} mutants; {len(judges.tests)} tests, {len(judges.systems)} systems")
    began = time.perf_counter()
    count: Counter[str] = Counter()
    with ThreadPoolExecutor(JOBS) as pool:
        judge = partial(judges.judge, by_all="--all" in sys.argv)
        for mutant, seen in zip(chosen, pool.map(judge, chosen), strict=True):
            why = EXCEPTIONS.get((mutant.path, mutant.gone))
            count["caught" if seen else "excused" if why else "missed"] += 1
            say(f"{mutant.name:90} {', '.join(seen) or why or 'NOTHING'}")
    say(
        f"{len(chosen)} mutants: {count['caught']} caught, {count['excused']} excused, "
        f"{count['missed']} missed, in {time.perf_counter() - began:.0f} s"
    )
    return 1 if count["missed"] else 0


if __name__ == "__main__":
    sys.exit(main())
