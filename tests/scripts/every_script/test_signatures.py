"""Tests that a script declares what it uses: keys, arguments, includes, flags, bounded unpacks."""

from __future__ import annotations

import re
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from fairlane.protocol import keys, scripts
from fairlane.protocol.lua import (
    FOLDERS,
    Dialect,
    Kinds,
    Library,
    Reply,
    Script,
    as_sent,
    expand,
    library,
    lua_folder,
    with_constants,
    with_functions_in_place,
)
from tests.support.run.for_each import for_each
from tests.support.scripts import generate
from tests.support.scripts.requests import HOUR, Lane, reply_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

ROOT = lua_folder() / "v1"
NAMES = sorted(path.stem for folder in FOLDERS for path in (ROOT / folder).glob("*"))
REQUEST_NAMES = sorted(
    path.stem for folder in ("request", "staging") for path in (ROOT / folder).glob("*.lua")
)
GROWING = {
    *("admit", "append", "append_partition", "append_staged", "append_unique"),
    *("enqueue", "fan_out", "intend", "keep_service", "land", "pin_manifest", "place"),
    *("publish", "push_shortest", "put_schedule", "requeue_dead", "stage", "submit", "subscribe"),
    *("hand_over", "join", "hand_chosen", "join_chosen", "change_shared"),
}
# They have nothing to do with the request itself.
APART = {"measure_stream", "read_heads", "stage", "unstage"}
READING = {
    *("check", "due_schedules", "glance", "list_chosen", "list_dead", "measure_stream"),
    "read_heads",
}
ALL_KEYS = {"DEL", "EXISTS", "UNLINK"}
NO_KEY = {"PUBLISH", "TIME"}  # a channel is no key

REQUEST_KEYS = library()["confirm"].keys  # those of lib/request_keys.lua
# What lib/limit_keys.lua derives. Only one server with all keys has requests that name keys.
LIMIT_KEYS = {
    *('home .. ":limits"', 'home .. ":conf"', 'home .. ":" .. lane'),
    *("key.set", "other.set", "full.set", "tenants", "turns"),
}

script_of = for_each("name", NAMES)


def script(name: str) -> Script:
    made: Script = library()[name]
    return made


def plain(text: str) -> str:
    """Returns the code without its comments."""
    return re.sub(r"--.*", "", text)


def calls_in(code: str) -> Iterator[list[str]]:
    """Returns the arguments of every redis.call."""
    for match in re.finditer(r"redis\.call\(", code):
        yield split(code, match.end())


def split(code: str, start: int) -> list[str]:
    """Returns the comma-separated arguments from `start` to the parenthesis that closes them."""
    parts, depth, at = [""], 1, start
    while True:
        letter = code[at]
        depth += (letter in "([{") - (letter in ")]}")
        if depth == 0:
            return [part.strip() for part in parts]
        if letter == "," and depth == 1:
            parts.append("")
        else:
            parts[-1] += letter
        at += 1


def keys_of(arguments: list[str]) -> list[str]:
    """Returns which arguments of a call are keys."""
    command = arguments[0].strip('"')
    if command in NO_KEY:
        return []
    if command in ALL_KEYS:
        return arguments[1:]
    if command == "LMPOP":
        return arguments[2:]
    if command == "XREADGROUP":
        return [arguments[arguments.index('"STREAMS"') + 1]]
    return [arguments[2] if command == "XGROUP" else arguments[1]]


def loops_over_keys(code: str, names: tuple[str, ...]) -> set[str]:
    """Returns the loop variables that go over declared keys only."""
    found = re.findall(r"for _, (\w+) in ipairs\(\{([\w, ]+)\}\)", code)
    return {variable for variable, listed in found if set(listed.split(", ")) <= set(names)}


@script_of
def test_every_key_a_script_touches_is_declared(name: str):
    """Only a script for one server derives keys: in a cluster they may be in another slot."""
    code = plain(text_of(name))
    declared = script(name).keys
    if path_of(name).startswith("single_server/") and "select_request(" in code:
        declared = (*declared, *REQUEST_KEYS, "bucket", "ids")
    allowed = set(declared) | loops_over_keys(code, declared)
    if "each_key(" in code:
        allowed |= LIMIT_KEYS
    found = [key for arguments in calls_in(code) for key in keys_of(arguments)]
    assert found
    for key in found:
        of_many = script(name).many_keys and re.fullmatch(
            r"KEYS\[\w+ \+ .*\]|unpack\(KEYS, \w+\)|unpack\(args\)", key
        )
        assert key in allowed or of_many, f"{name} touches {key}"


def path_of(name: str) -> str:
    (path,) = (found for folder in FOLDERS for found in (ROOT / folder).glob(f"{name}.lua"))
    return path.relative_to(ROOT).as_posix()


def text_of(name: str) -> str:
    """Returns a script with those functions of its libraries that it uses."""
    return with_functions_in_place(expand(ROOT, path_of(name)))


@script_of
def test_a_declared_key_is_never_given_another_name(name: str):
    """A local that is assigned again would hide which key is used."""
    code = plain(text_of(name))
    for key in script(name).keys:
        assert len(re.findall(rf"^\s*(?:local )?{key} = ", code, re.MULTILINE)) == 1, key


@script_of
def test_keys_and_arguments_are_numbered_without_a_gap(name: str):
    code = expand(ROOT, path_of(name))
    for kind in ("KEYS", "ARGV"):
        pattern = re.compile(rf"^local \w+ = .*?\b{kind}\[(\d+)\]", re.MULTILINE)
        single = [int(n) for n in pattern.findall(code)]
        rest = [int(n) for n in re.findall(rf"-- {kind}\[(\d+)\.\.\.\]", code)]
        assert single == list(range(1, len(single) + 1))
        assert rest in ([], [len(single) + 1])


@for_each("name", sorted({*REQUEST_NAMES} - APART))
def test_request_scripts_take_the_keys_of_a_request_in_their_order(name: str):
    header = expand(ROOT, "lib/request_keys.lua")
    declared = re.findall(r"^local (\w+) = KEYS\[\d+\]  -- (\w+):\{id\}", header, re.MULTILINE)
    assert tuple(name for name, _ in declared) == script(name).keys[: len(declared)]
    made = [key.decode().partition(":")[0] for key in keys.request_keys("x")]
    assert [part for _, part in declared] == made


@for_each("name", REQUEST_NAMES)
def test_what_a_request_script_takes_besides_is_staging(name: str):
    made = {
        "stage": keys.area("x", "t", "a"),
        "txn": keys.transaction("x", "t"),
        "ids": keys.unique_ids("x"),
        "flow": keys.of_flow("x"),
        "fed": keys.fed("x"),
    }
    text = expand(ROOT, path_of(name))
    found = re.findall(r"^local \w+ = \S+  -- (?:KEYS\S+  )?(\w+):\{id\}", text, re.MULTILINE)
    own = {key.decode().partition(":")[0] for key in keys.request_keys("x")}
    for part in set(found) - own:
        assert made[part].startswith(b"%b:{x}" % part.encode())
        assert keys.beside(made[part]) == "x"


@script_of
def test_includes_resolve_once(name: str):
    text = expand(ROOT, path_of(name))
    assert "@include" not in text
    functions = re.findall(r"^local function (\w+)", text, re.MULTILINE)
    assert len(functions) == len(set(functions))


LUA = {"error", "ipairs", "pairs", "select", "tonumber", "tostring", "type", "unpack", "pcall"}
KEYWORDS = {"and", "elseif", "function", "if", "in", "not", "or", "return", "until", "while"}


@script_of
def test_what_is_sent_has_all_it_calls_and_nothing_else(name: str):
    sent = script(name).source(Dialect.SINGLE).decode()
    code = plain(sent)
    defined = re.findall(r"^local function (\w+)\(", code, re.MULTILINE)
    assert len(defined) == len(re.findall(r"^local function .*\)$", code, re.MULTILINE)), (
        "one-liner"
    )
    called = set(re.findall(r"(?<![.:\w])(\w+)\(", re.sub(r'"[^"\n]*"', '""', code)))
    local = set(re.findall(r"^\s*local (\w+) = \w+(?:\.\w+)?", code, re.MULTILINE))
    local |= set(re.findall(r"^\s*local function (\w+)\(", code, re.MULTILINE))
    several = re.findall(r"^\s*local ([\w, ]+) = ", code, re.MULTILINE)
    local |= {one.strip() for names in several for one in names.split(",")}
    assert called - local - LUA - KEYWORDS == set()
    unused = {one for one in defined if len(re.findall(rf"\b{one}\b", code)) == 1}
    assert unused == set()


def test_a_function_that_is_never_called_is_left_out():
    """A function is left out, too, if only such a one, itself or a comment names it."""
    text = (
        "local a = KEYS[1]\n"
        "local function low(x)\n  return x\nend\n"
        "local function high(x)\n  return low(x)\nend\n"
        "local function other(x)\n  return only(x)\nend\n"
        "local function only(x)\n  return only(x - 1)\nend\n"
        "return high(a)  -- not other(a)\n"
    )
    assert with_functions_in_place(text) == (
        "local a = KEYS[1]\n"
        "local function low(x)\n  return x\nend\n"
        "local function high(x)\n  return low(x)\nend\n"
        "return high(a)  -- not other(a)\n"
    )


LOW = "-- Returns it.\nlocal function low(x)\n  return x\nend\n\n"
TABLE = "local BOTH, ROW = 1, {2}  -- why\n"
MIDDLE = "local function middle(x)\n  return low(x), ROW\nend\n"
OTHER = "local function other(x)\n  return low(x), OTHER\nend\n"
REST = "local OTHER = {1}\n"


@for_each("parts", [(LOW, REST, TABLE, MIDDLE, OTHER), (REST, OTHER, TABLE, LOW, MIDDLE)])
def test_functions_and_tables_are_sent_in_the_order_of_their_uses(parts: tuple[str, ...]):
    """Where they are written does not count; comments between them and unused ones are left out."""
    text = "-- of a script\n" + "".join(parts) + "return middle(low(KEYS[1]))  -- not other\n"
    code = "".join(LOW.splitlines(keepends=True)[1:-1]) + TABLE + MIDDLE
    assert with_functions_in_place("local a = 1\n" + text) == (
        f"local a = 1\n{code}return middle(low(KEYS[1]))  -- not other\n"
    )


def test_a_comment_between_statements_is_sent():
    text = "-- of a script\nlocal a = KEYS[1]\n\n-- of the reply\nreturn a\n"
    assert with_functions_in_place(text) == text


def test_a_constant_is_sent_as_its_value():
    """Texts and comments stay; what is computed from another constant is computed, too."""
    text = (
        'local MOST = 980  -- arguments\nlocal SPAN = 2 * MOST\nlocal WORD = "^MOST (%d+)$"\n'
        "local OPEN = {MOST}\n"
        'return MOST, SPAN, WORD, "MOST", OPEN, MOSTLY  -- MOST\n'
    )
    assert with_constants(text) == (
        'local OPEN = {980}\nreturn 980, (2 * 980), "^MOST (%d+)$", "MOST", OPEN, MOSTLY  -- MOST\n'
    )


def test_a_constant_with_two_values_is_refused():
    text = "local MOST = 980\nlocal function all()\n  return MOST\nend\nlocal MOST = 1000\n"
    with pytest.raises(ValueError, match="constant MOST has the values 980 and 1000"):
        with_constants(text)


RARELY = """local key = KEYS[1]
local now = ARGV[1]
local function usual(x)
  return x .. key .. now
end
local function helper(x)
  return usual(x)
end
-- @rare
local function seldom(x, y)
  return helper(x), y, helper
end
-- @rare
local function never()
  return helper("")
end
local first, second, made = seldom("a", "b")
return usual(first), second, made == select(3, seldom("c")), never()
"""


def test_what_only_rare_functions_use_is_inside_of_them():
    placed = with_functions_in_place(RARELY)
    before, inside = placed.split("local function seldom(...)\n")
    assert "local function usual(x)" in before
    assert "local function helper(x)" not in before
    assert inside.count("local function helper(x)") == 2


@pytest.mark.parametrize("to_text", [str, with_functions_in_place, as_sent])
def test_a_text_returns_the_same_however_its_functions_are_placed(to_text: Callable[[str], str]):
    """What a rare function has inside is made once: the helper is the same one at each call."""
    from lupa.lua51 import LuaRuntime

    lua = LuaRuntime()
    returned = lua.execute('KEYS, ARGV = {"k"}, {"n"}\n' + to_text(RARELY))
    assert returned == ("aknkn", "b", True, "kn")


@script_of
def test_each_name_is_declared_once_outside_of_functions(name: str):
    """Constants and functions move: they must mean the same at every place after their own."""
    text = expand(ROOT, path_of(name))
    declared = [
        one
        for names in re.findall(r"^local (?:function )?([\w, ]+?)(?: =|\(|$)", text, re.MULTILINE)
        for one in names.split(", ")
    ]
    assert len(declared) == len(set(declared))
    capitals = re.findall(r"^ +local [^=\n]*\b([A-Z_]{2,})\b", text, re.MULTILINE)
    assert capitals == []


@script_of
def test_a_mark_for_rare_calls_is_before_a_function(name: str):
    text = expand(ROOT, path_of(name))
    assert text.count("@rare") == len(re.findall(r"^-- @rare\nlocal function ", text, re.MULTILINE))


def test_every_lib_is_used():
    included = {found for path in ROOT.rglob("*.lua") for found in includes(path)}
    assert included == {path.relative_to(ROOT).as_posix() for path in (ROOT / "lib").rglob("*.lua")}


def test_every_function_of_a_library_is_sent():
    sent = "".join(made.source(Dialect.SINGLE).decode() for made in library())
    written = "".join(path.read_text() for path in (ROOT / "lib").glob("*.lua"))
    functions = r"^local function (\w+)\("
    missing = set(re.findall(functions, written, re.MULTILINE))
    missing -= set(re.findall(functions, sent, re.MULTILINE))
    assert missing == set()


def includes(path: Path) -> list[str]:
    return re.findall(r"^-- @include (\S+)$", path.read_text(), re.MULTILINE)


@script_of
def test_flags_declare_what_may_run_on_a_full_redis(name: str):
    """Only calls that bring new work are refused; only scripts that read may not write."""
    wanted = "grows" if name in GROWING else "no-writes" if name in READING else "allow-oom"
    assert script(name).flag == wanted
    first = script(name).source(Dialect.SINGLE).split(b"\n", 1)[0]
    assert first == (b"#!lua" if wanted == "grows" else b"#!lua flags=" + wanted.encode())


@for_each("name", sorted(READING))
def test_a_script_that_only_reads_calls_nothing_that_writes(name: str):
    writes = re.compile(r"[HZL]?(SET|ADD|DEL|REM|PUSH|CLAIM|ACK|INCRBY|DECRBY|EXPIRE|UNLINK)$")
    code = plain(script(name).source(Dialect.SINGLE).decode())
    assert not [c[0] for c in calls_in(code) if writes.search(c[0].strip('"'))]


# ------------------------------------------------------------------ calls


def test_the_typed_functions_are_those_of_the_headers():
    """`make generate` writes them."""
    assert generate.formatted(generate.text_of(library())) == generate.FILE.read_text()


@script_of
def test_a_typed_function_gives_its_arguments_in_the_order_of_the_script(name: str):
    """A wrong number of keys is found before Redis is called."""
    made, typed = script(name), getattr(scripts, name)
    words: dict[str, Any] = {param: f"<{param}>" for param in made.params}
    names = [b"k" for _ in made.keys]
    if made.rest:
        words[made.rest] = ["x", "y"]
    call = typed(names, **words)
    rest = ["x", "y"] if made.rest else []
    assert (call.script, [*call.args]) == (made, [f"<{one}>" for one in made.params] + rest)
    words.pop("now", None)
    assert "now" not in made.params or typed(names, **words).args[made.params.index("now")] == ""
    with pytest.raises(TypeError, match="takes the keys"):
        typed(names[: made.least_keys - 1], **words)
    assert typed(names[: made.least_keys], **words).keys == names[: made.least_keys]
    if made.many_keys:
        assert len(typed([*names, b"more"], **words).keys) == len(names) + 1
    else:
        with pytest.raises(TypeError, match="takes the keys"):
            typed([*names, b"more"], **words)


def test_there_is_no_script_that_is_not_a_file():
    with pytest.raises(KeyError, match="enqeue"):
        _ = library()["enqeue"]


def test_two_scripts_never_share_a_name():
    assert len(NAMES) == len(set(NAMES))
    assert [made.name for made in library()] == NAMES


# ------------------------------------------------------------------ replies


def returned_in(code: str) -> Iterator[list[str]]:
    """Returns the elements of every reply that begins with a literal word."""
    for match in re.finditer(r'\{(?="[a-z]+"[,}])', code):
        if "return " in code[code.rindex("\n", 0, match.start()) : match.start()]:
            yield split(code, match.end())
    for match in re.finditer(r'return finish_or_mint\([^"\n]+, (?=")', code):
        yield [*split(code, match.end()), "tokens"]


def kinds_of(name: str) -> Mapping[bytes, type[Reply]]:
    """Returns the class of each word that a script's reply may begin with."""
    kind = reply_of(name)
    return {} if kind is None else Kinds(kind)


@script_of
def test_a_header_names_what_the_script_returns(name: str):
    """Each literal reply has a word of the header and its fields; no word is invented."""
    kinds = kinds_of(name)
    code = plain(text_of(name))
    seen = set()
    for word, *fields in returned_in(code) if kinds else ():
        reply = kinds[word.strip('"').encode()]
        seen.add(reply.word)
        if not any(field.startswith("unpack(") for field in fields):
            required = [field for field in reply.fields if not field.endswith("?")]
            fits = len(required) <= len(fields) <= len(reply.fields)
            assert fits, f"{name} returns {word} with {fields}"
    unseen = {word.decode() for word in kinds} - seen
    assert {word for word in unseen if f'"{word}"' not in code} == set()


@script_of
def test_a_reply_has_the_names_of_its_header(name: str):
    """Each field has a name, and each word a property; any other name is an error."""
    kinds = kinds_of(name)
    for word, kind in kinds.items():
        raw = [word, *([number] * 11 for number in range(len(kind.fields)))]
        reply = kind.of(raw)
        assert reply == tuple(raw)
        for field, value in zip(kind.fields, raw[1:], strict=True):
            assert getattr(reply, field.rstrip("?")) == (
                (*value, ()) if field == "summary" else value
            )
        for other in kinds:
            assert getattr(reply, f"is_{other.decode()}") is (other == word)
        with pytest.raises(AttributeError, match=f"the reply {name} {kind.word}.*nonsense"):
            _ = reply.nonsense  # type: ignore[attr-defined]


def test_a_word_that_the_header_lacks_is_an_error():
    with pytest.raises(TypeError, match=r"extend replied b'maybe': its header has ok \| cancelled"):
        scripts.ExtendReply.of([b"maybe"])


def test_a_list_without_a_word_has_names_too():
    """The last field may be missing, or stand for all that follow."""
    moved = scripts.PromoteReply.of([3, 17])
    assert (moved.moved, moved.next_due, moved.word, moved.is_ended) == (3, 17, "", False)
    exchanged = scripts.ExchangeReply.of([[[b"lost"]], [], [], [b"r1#0.1"], [[b"stale"]]])
    assert (exchanged.settled, exchanged.acquired) == ([[b"lost"]], [[b"stale"]])
    assert scripts.IntendReply.of([0, b"", 5, b"0"]).scores == (5, b"0")


@for_each("header", ["Ok", "ok count", "ok | 1", "", "ok left, tokens"])
def test_a_header_that_cannot_be_read_is_an_error(header: str):
    kind: Any = type("BrokenReply", (Reply,), {"script": "broken", "says": header})
    with pytest.raises(ValueError, match="broken"):
        kind.of([b"ok"])


# ------------------------------------------------------------------ unpack

WATCHED = """local unpack = function(t, i, j)
  if (j or #t) - (i or 1) + 1 > 1000 then error("unpack over 1,000") end
  return unpack(t, i or 1, j or #t)
end
"""


@pytest.fixture
def watched(tmp_path: Path) -> Library:
    """Makes the scripts, each with an unpack that fails over 1,000."""
    shutil.copytree(ROOT, tmp_path / "v1")
    for name in NAMES:
        path = tmp_path / "v1" / path_of(name)
        path.write_text(WATCHED + path.read_text())
    return Library(tmp_path / "v1")


@pytest.mark.any_command
def test_unpack_never_goes_over_a_thousand(lane: Lane, watched: Library):
    """It calls each with the most it may have: 1,000 bodies, results, retries, tokens, workers."""
    lane.scripts = watched
    tokens = lane.start(1000, limit=1000, open_ms=HOUR)
    lane.append(1000, chunk=2)
    assert len(tokens) == 1000
    one = Lane(lane.driver, lane.client, request_id="r2", scripts=watched)
    held = one.begin(1000, limit=1)
    assert one.complete(held, held.ids[:999], keep=True)[:2] == [b"ok", 1]
    one.later(30_000)
    one.reap()
    lane.client.zadd(keys.workers("req"), {f"w:{i}": 1 for i in range(1100)})
    lane.call("expire_workers", (keys.workers("req"),), ttl=1)
    names = [keys.delayed("req"), keys.lanes("req")[5]]
    later = [part for i in range(999) for part in (f"r1#{i}.1", 1)]
    lane.call("insert_tokens", names, tokens=[5, 999, 999, *["r1#9.9"] * 999, *later])
    lane.later(1)
    assert (
        lane.call("promote", (names[0], *keys.turns("req"), *keys.lanes("req")), most=1000)[0]
        == 999
    )
    lane.seal(2)
    assert lane.cancel()[0] == b"ended"


def test_the_watched_unpack_would_be_noticed(watched: Library):
    assert all("unpack over 1,000" in made.source(Dialect.SINGLE).decode() for made in watched)
