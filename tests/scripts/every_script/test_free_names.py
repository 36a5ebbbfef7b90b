"""Tests that a library takes what it needs as parameters, and includes what it calls."""

from __future__ import annotations

from fairlane.protocol.lua import (
    FOLDERS,
    expand,
    lua_folder,
    with_constants,
    with_functions_in_place,
)
from tests.support.run.for_each import for_each
from tests.support.scripts.lua_globals import global_names

ROOT = lua_folder() / "v1"
SERVER = {"redis", "struct"}  # what the server adds to Lua
LUA = {"error", "ipairs", "math", "pairs", "pcall", "string", "table", "tonumber", "tostring"}
ALLOWED = SERVER | LUA | {"type", "unpack"}
QUEUE = {"active", "completed", "conf", "firing", "loads", "logged", "ticks"}
UNIT = {"lanes", "taken", "op", "ttl"}  # where it takes tokens, and what it notes
FREE = {  # what a library takes from the script that includes it, which all of them name the same
    "lib/queue.lua": QUEUE,
    "lib/exchange.lua": QUEUE | UNIT | {"KEYS", "select_request"},
    "lib/create.lua": {"active", "conf"},
    "lib/flows.lua": {"handed", "joins"},
    "lib/chosen.lua": {"handed", "joins"},
}
HEADER = "lib/request_keys.lua"  # these declare the keys of a request
LIBRARIES = sorted({f"lib/{path.name}" for path in (ROOT / "lib").glob("*.lua")} - {HEADER})
SCRIPTS = sorted(
    path.relative_to(ROOT).as_posix() for folder in FOLDERS for path in (ROOT / folder).glob("*")
)


@for_each("name", LIBRARIES)
def test_a_library_has_no_free_names_but_the_keys_of_a_request(name: str):
    """A library reads no ARGV and no local of a script, and lacks no function, but for FREE."""
    keys = (ROOT / HEADER).read_text().replace("KEYS", "({})")
    text = with_constants(expand(ROOT, name))  # a function may have at most 200 variables
    assert global_names(keys + text) - ALLOWED == FREE.get(name, set())


@for_each("name", SCRIPTS)
def test_a_script_has_no_free_names_but_its_keys_and_arguments(name: str):
    text = with_functions_in_place(with_constants(expand(ROOT, name)))
    assert global_names(text) <= ALLOWED | {"KEYS", "ARGV"}


def test_every_use_of_a_free_name_is_found():
    text = """
    local function outer(given)
      local inner = function() return given + nested end
      do local scoped = 1 end
      written = scoped
      return inner, later("text.quoted", given.field), -1.5, nil, true
    end
    local later = 1
    """
    assert global_names(text) == {"nested", "scoped", "written", "later"}
