"""Changes every guard of the Lua scripts in turn: `python -m tests.explore.mutants [word ...]`.

A guard is an `if` whose block refuses: it returns, or it chooses a word of refusal. Each is taken
out in turn (its condition is never true), and so is each operand of a condition, and every other
`if`. A test of the scripts or of the operations must fail, or the explorer must find a violation in
its small systems. The words choose by file name; --guard, --branch and --operand by kind; --all
asks the explorer, too, when a test has failed already; --fast leaves out the explorer.

At first all of them run on the scripts as they are, and which scripts each calls is recorded. So a
mutant is judged only by those that call a script with the changed line.

A mutant that none detects is listed in EXCEPTIONS with the reason, or is a fault of this run.
"""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from fairlane.protocol.lua import Dialect, Library, library
from tests.explore.systems import GATE
from tests.explore.witnesses import collect, forked, record_system, use, violated
from tests.support.output import say

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.explore.witnesses import Collected, Witness

KINDS = ("guard", "branch", "operand")
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
    ("lib/check.lua", 'permit.kind == "q"'): (
        "in `check` itself: a sleeper that is not queued breaks another of its sentences, too"
    ),
    ("lib/finish.lua", 'was == "active"'): (
        "saves a call: otherwise summary reads the same values from the hash"
    ),
    ("lib/keys_of_many.lua", "hash == request"): (
        "saves eight texts: the keys of the same request are the same"
    ),
    ("lib/lease.lua", "#kept == count and acknowledge"): (
        "saves calls: one by one they are settled the same"
    ),
    ("lib/permits.lua", "work == 0"): (
        "implied by the operand before it: where there is work and room, something is queued"
    ),
    ("lib/permits.lua", "state.queued == 0"): (
        "implied by the next operand: no more are queued than there is work, as `check` holds"
    ),
    ("lib/permits.lua", "k"): (
        "without a number the field holds a fence, which does not begin with p"
    ),
    (
        "lib/permits.lua",
        "k >= state.limit",
    ): "the loop below writes those again that it may keep",
    (
        "lib/lease.lua",
        "#kept == count",
    ): "saves calls: one by one they are settled the same",
    ("lib/reap.lua", 'permit.kind ~= "h"'): "a permit that is not held names no worker",
    ("lib/entries.lua", "count * state.max_body <= SLICE_BYTES"): (
        "saves calls: in steps the same is read"
    ),
    (
        "lib/entries.lua",
        "state.few > 0",
    ): "saves a call: otherwise there is no such key",
    ("lib/lease.lua", "done < 0"): (
        "the arguments before the verdicts would be verdicts then, and are refused as such"
    ),
    ("lib/lease.lua", 'permit.kind == "h"'): "only a held permit has an op",
    ("lib/lease.lua", 'state.state ~= "active"'): (
        "what makes a request inactive parks its queued permits: their tokens are stale before"
    ),
    ("single_server/exchange.lua", "measured == 0 and 1"): (
        "saves looks: without sizes none of the tokens is counted"
    ),
    ("dispatch/take_turns.lua", "not token"): (
        "saves looks: a turn that finds no token adds nothing to the reply"
    ),
    ("lib/ids.lua", 'state.state == "cancelled"'): (
        "saves a call: only a request that was cancelled has the field `abandoned`"
    ),
    ("lib/create.lua", "extras == NOTHING"): "saves tables: no extras make the same values",
    ("lib/limit_keys.lua", "is_lease ~= (key.place and true or false)"): (
        "saves a call: a lease is no member of an order key, and a request none of a limit"
    ),
    ("lib/limit_keys.lua", "is_new"): (
        "saves a call: the score of one that was added is that of the line"
    ),
    ("lib/entries.lua", "#read == 0"): (
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
        """The place of the change, and what is removed."""
        return f"{self.path}:{self.line} {self.kind}: {self.gone}"

    def write(self, folder: Path) -> Path:
        """Writes a copy of the scripts with the change; returns their root."""
        root = folder / "v1"
        shutil.copytree(library().root, root)
        lines = (root / self.path).read_text().splitlines()
        lines[self.line - 1] = self.text
        (root / self.path).write_text("\n".join(lines) + "\n")
        return root


def find(root: Path) -> Iterator[Mutant]:
    """Returns all mutants of the scripts, in the order of their files."""
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
    """Returns whether the block's own lines return, leave a loop, or choose a word."""
    for line in lines[i + 1 :]:
        own = len(line) - len(line.lstrip())
        if line.strip() and own <= indent:
            return False
        if own == indent + 2 and _REFUSES.search(line):
            return True
    return False


def _without_one(condition: str) -> Iterator[tuple[str, str]]:
    """Yields a condition of several operands, without each of them in turn."""
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
    """Splits at the operators outside of parentheses and strings."""
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


class Judges:
    """The tests and the systems that pass on the scripts as they are."""

    def __init__(self, collected: Collected, *, with_explorer: bool) -> None:
        self._collected = collected
        self.tests: list[Witness] = []
        for _, found in forked(self._record, collected.files):
            self.tests += [test for test in found if not test.failure]
            for test in found:
                if test.failure:
                    say(f"left out, as it fails on the scripts as they are: {test.failure}")
        self.systems = [one for _, one in forked(record_system, GATE if with_explorer else ())]
        self.systems.sort(key=lambda one: one.seconds)

    def _record(self, names: list[str]) -> list[Witness]:
        return list(self._collected.run(names, on=True))

    def judge(self, mutant: Mutant, *, by_all: bool = False) -> list[str]:
        """Returns what detects the mutant: a test, or the explorer if no test does."""
        with tempfile.TemporaryDirectory() as folder:
            root = mutant.write(Path(folder))
            changed = changed_scripts(root) | {mutant.path}
            use(root)
            seen = self._failing(changed, Path(mutant.path).stem)
            if by_all or not seen:
                seen.append(violated(root, [one for one in self.systems if one.scripts & changed]))
        return [who for who in seen if who]

    def _failing(self, changed: set[str], word: str) -> list[str]:
        """Returns the first test that fails."""
        tests = [test for test in self.tests if test.scripts & changed]
        tests.sort(key=lambda test: test.rank(word))
        ran = self._collected.run([test.name for test in tests])
        return [test.failure for test in ran if test.failure]


def changed_scripts(root: Path) -> set[str]:
    """Returns the names of the scripts whose text differs from the product's."""
    changed = Library(root)
    return {
        script.name
        for script in library()
        if script.shas[Dialect.SINGLE] != changed[script.name].shas[Dialect.SINGLE]
    }


def judge_all(collected: Collected, chosen: list[Mutant], options: list[str]) -> Counter[str]:
    """Prints what detects each mutant; returns how many were caught, excused and missed."""
    judges = Judges(collected, with_explorer="--fast" not in options)
    say(f"{len(chosen)} mutants; {len(judges.tests)} tests, {len(judges.systems)} systems")
    count: Counter[str] = Counter()
    for mutant, seen in forked(partial(judges.judge, by_all="--all" in options), chosen):
        why = EXCEPTIONS.get((mutant.path, mutant.gone))
        count["caught" if seen else "excused" if why else "missed"] += 1
        say(f"{mutant.name:90} {', '.join(seen) or why or 'NOTHING'}")
    return count


def main() -> int:
    known = {"--all", "--fast", *(f"--{kind}" for kind in KINDS)}
    options = [word for word in sys.argv[1:] if word.startswith("-")]
    if unknown := set(options) - known:
        raise SystemExit(f"no option {min(unknown)}; there are: {' '.join(sorted(known))}")
    words = [word for word in sys.argv[1:] if word not in options]
    kinds = {kind for kind in KINDS if f"--{kind}" in options} or set(KINDS)
    chosen = [
        mutant
        for mutant in find(library().root)
        if mutant.kind in kinds and (not words or any(word in mutant.path for word in words))
    ]
    began = time.perf_counter()
    count: Counter[str] = Counter()
    collect(lambda collected: count.update(judge_all(collected, chosen, options)))
    say(
        f"{len(chosen)} mutants: {count['caught']} caught, {count['excused']} excused, "
        f"{count['missed']} missed, in {time.perf_counter() - began:.0f} s"
    )
    return 1 if count["missed"] else 0


if __name__ == "__main__":
    sys.exit(main())
