"""Runs the functions of lua/v1/lib in a Lua interpreter, on a small Redis made of dicts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairlane.protocol.lua import expand, lua_folder

if TYPE_CHECKING:
    from collections.abc import Sequence

KEYS = ("sub", "counter", "req", "tok", "lease", "retry", "out", "dead", "few")
HEADER = """local KEYS, call = ...
local redis = {
  call = function(...) return call(...) end,
  error_reply = function(text) return {err = text} end,
}
"""


class FakeRedis:
    """A Redis of hashes and sorted sets, for the functions of the lib; it counts the calls."""

    def __init__(self, runtime: Any) -> None:
        self.table = runtime.table_from
        self.hashes: dict[str, dict[str, str]] = {}
        self.zsets: dict[str, dict[str, float]] = {}
        self.added: list[tuple[str, str, str]] = []
        self.time = (0, 0)
        self.calls: list[str] = []

    def call(self, name: str, *args: Any) -> Any:
        self.calls.append(name)
        return getattr(self, f"do_{name.lower()}")(*args)

    def do_time(self) -> Any:
        return self.table([str(part) for part in self.time])

    def do_hget(self, key: str, field: str) -> Any:
        return self.hashes.get(key, {}).get(field, False)

    def do_hset(self, key: str, *pairs: Any) -> int:
        self.hashes.setdefault(key, {}).update(
            {as_text(n): as_text(v) for n, v in zip(pairs[::2], pairs[1::2], strict=True)}
        )
        return len(pairs) // 2

    def do_hdel(self, key: str, field: str) -> int:
        return 1 if self.hashes.get(key, {}).pop(field, None) is not None else 0

    def do_hgetall(self, key: str) -> Any:
        return self.table([part for pair in self.hashes.get(key, {}).items() for part in pair])

    def do_zadd(self, key: str, score: float, member: str) -> int:
        self.zsets.setdefault(key, {})[member] = score
        return 1

    def do_zrem(self, key: str, member: str) -> int:
        return 1 if self.zsets.get(key, {}).pop(member, None) is not None else 0

    def do_zcount(self, key: str, low: str, high: float) -> int:
        return sum(score <= high for score in self.zsets.get(key, {}).values())

    def do_zrange(self, key: str, first: int, last: int, _: str) -> Any:
        found = sorted((score, member) for member, score in self.zsets.get(key, {}).items())
        return self.table(
            [part for score, member in found[:1] for part in (member, as_text(score))]
        )

    def do_xadd(self, key: str, entry_id: str, _: str, body: str) -> str:
        self.added.append((key, entry_id, body))
        return entry_id


def as_text(value: Any) -> str:
    """Returns a value as Redis stores what Lua gives it."""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


class Lib:
    """Some files of lua/v1/lib, with their local functions as attributes."""

    def __init__(self, files: Sequence[str], functions: Sequence[str]) -> None:
        from lupa.lua51 import LuaRuntime

        self.runtime = LuaRuntime()
        self.redis = FakeRedis(self.runtime)
        seen: set[str] = set()
        root = lua_folder() / "v1"
        text = "".join(
            expand(root, f"lib/{name}.lua", seen) + "\n" for name in ("request_keys", *files)
        )
        text += "return {" + ", ".join(f"{name} = {name}" for name in functions) + "}"
        load = self.runtime.globals().loadstring
        chunk = load(HEADER + text)
        assert not isinstance(chunk, tuple), chunk
        table = self.runtime.table_from
        self._found = chunk(table(list(KEYS)), self.redis.call)

    def __getattr__(self, name: str) -> Any:
        return self._found[name]

    def table(self, **fields: Any) -> Any:
        return self.runtime.table_from(fields)

    def rows(self, found: Any) -> list[Any]:
        return list(found.values())
