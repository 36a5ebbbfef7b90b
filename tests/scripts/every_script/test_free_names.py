"""Tests that a library file takes what it needs as parameters, and includes what it calls."""

from __future__ import annotations

from fairlane.protocol.lua import FOLDERS, expand, lua_folder, with_constants
from tests.support.run.for_each import for_each
from tests.support.scripts.lua_globals import global_names

ROOT = lua_folder() / "v1"
SERVER = {"redis", "struct"}  # what the server adds to Lua
LUA = {"error", "ipairs", "math", "pairs", "pcall", "string", "table", "tonumber", "tostring"}
ALLOWED = SERVER | LUA | {"type", "unpack"}
EXCEPTIONS = {
    "lib/dispatch/backlog.lua": "its keys are the queue's, which all its scripts name the same",
    "lib/dispatch/firing.lua": "as above",
    "lib/dispatch/lead.lua": "as above",
    "lib/dispatch/log_endings.lua": "as above",
    "lib/dispatch/due_tokens.lua": "it includes turns",
    "lib/dispatch/tenants.lua": "as above",
    "lib/dispatch/turns.lua": "as above",
    "lib/exchange/follow_ups.lua": "as above; its lanes are the script's",
    "lib/exchange/settle_and_acquire.lua": "it includes follow_ups",
    "lib/exchange/pop_noted.lua": "its lanes, and what it notes, are the script's",
    "lib/create/intend.lua": "as above; it also takes its requests from the script's arguments",
    "lib/create/enqueue.lua": "it reads the bodies where they are, in the script's arguments",
    "lib/create/new_request.lua": "as enqueue",
    "lib/flows/handed.lua": "its string of bits is the script's",
    "lib/flows/parts.lua": "its hash of parts is the script's",
    "lib/flows/shared.lua": "its hash of values is the script's",
}
HEADER = "lib/core/request_keys.lua"  # these declare the keys of a request
LIBRARIES = sorted(
    {path.relative_to(ROOT).as_posix() for path in (ROOT / "lib").rglob("*.lua")}
    - {HEADER, *EXCEPTIONS}
)
SCRIPTS = sorted(
    path.relative_to(ROOT).as_posix() for folder in FOLDERS for path in (ROOT / folder).glob("*")
)


@for_each("name", LIBRARIES)
def test_a_library_file_has_no_free_names_but_the_keys_of_a_request(name: str):
    """A library file reads no KEYS, no ARGV, no local of a script, no function it lacks."""
    keys = (ROOT / HEADER).read_text().replace("KEYS", "({})")
    assert global_names(keys + expand(ROOT, name)) <= ALLOWED


@for_each("name", SCRIPTS)
def test_a_script_has_no_free_names_but_its_keys_and_arguments(name: str):
    text = with_constants(expand(ROOT, name))  # a function may have at most 200 variables
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
