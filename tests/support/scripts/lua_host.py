"""Runs a script in a Lua interpreter beside a real Redis, and counts what the call costs.

Redis has no counter of Lua's instructions. The interpreter has: it counts each one, and passes the
script's commands on to the server. So the figures are the same on a busy machine.
"""

from __future__ import annotations

from functools import cache
from itertools import count, takewhile
from typing import TYPE_CHECKING, Any, NamedTuple

import redis
from lupa import lua51

from fairlane.protocol.lua import Dialect

if TYPE_CHECKING:
    from fairlane.protocol.lua import Script
    from fairlane.protocol.steps import Call

COUNTED = b"""
local script, count = ...
local body = loadstring(script)
local executed = 0
debug.sethook(function() executed = executed + 1 end, "", 1)
local done, reply = pcall(body)
debug.sethook()
count(executed)
if not done then return type(reply) == "table" and reply or {err = reply} end
return reply
"""
GLOBALS = b"""
local call = ...
redis = {
  call = function(...)
    local reply = call(...)
    if type(reply) == "table" and reply.err then error(reply, 0) end
    return reply
  end,
  pcall = function(...) return call(...) end,
  error_reply = function(text) return {err = text} end,
  status_reply = function(text) return {ok = text} end,
}
"""


class Cost(NamedTuple):
    """What one call of a script costs the server."""

    instructions: int  # of Lua
    commands: int  # that the script calls
    received: int  # bytes of the call's keys and arguments
    written: int  # bytes of the arguments that the script gives its commands

    def each(self, many: int) -> Cost:
        """Returns the share of one of so many requests or bodies."""
        return Cost(*(round(part / many) for part in self))


class LuaHost:
    """An interpreter of the Lua that Redis has, whose commands go to `client`."""

    def __init__(self, client: redis.Redis) -> None:
        given = client.connection_pool.connection_kwargs
        self._line = redis.Connection(host=given["host"], port=given["port"], protocol=2)
        self._lua = lua51.LuaRuntime(encoding=None, unpack_returned_tuples=True)
        self._lua.execute(GLOBALS, self._call)
        self._run = self._lua.eval(b"function(...) " + COUNTED + b" end")
        self._commands = self._written = self._instructions = 0

    def run(self, call: Call[Any]) -> tuple[Any, Cost]:
        """Runs the call of a script; returns its raw reply, and what it cost."""
        words = [_bytes(word) for word in (*call.keys, *call.args)]
        made = self._lua.globals()
        made[b"KEYS"] = self._lua.table_from([_bytes(key) for key in call.keys])
        made[b"ARGV"] = self._lua.table_from([_bytes(arg) for arg in call.args])
        self._commands = self._written = 0
        reply = self._run(_text(call.script), self._note)
        cost = Cost(self._instructions, self._commands, sum(map(len, words)), self._written)
        return self._to_redis(reply), cost

    def close(self) -> None:
        """Closes the connection to the server."""
        self._line.disconnect()

    def _note(self, executed: int) -> None:
        self._instructions = executed

    def _call(self, *words: Any) -> Any:
        sent = [_bytes(word) for word in words]
        self._commands += 1
        self._written += sum(map(len, sent))
        try:
            self._line.send_command(*sent)
            return self._to_lua(self._line.read_response())
        except redis.ResponseError as error:
            return self._lua.table_from({b"err": str(error).encode()})

    def _to_lua(self, reply: Any) -> Any:
        if reply is None:
            return False
        if isinstance(reply, list):
            return self._lua.table_from([self._to_lua(one) for one in reply])
        if reply == b"OK":
            return self._lua.table_from({b"ok": reply})
        return reply

    def _to_redis(self, reply: Any) -> Any:
        """Converts as Redis does: false is nil, a list ends at the first nil, numbers are whole."""
        if lua51.lua_type(reply) == "table":
            found = dict(reply.items())
            if b"err" in found:
                raise redis.ResponseError(found[b"err"].decode())
            if b"ok" in found:
                return found[b"ok"]
            return [self._to_redis(found[i]) for i in takewhile(found.__contains__, count(1))]
        if reply is False or reply is None:
            return None
        if reply is True:
            return 1
        return int(reply) if isinstance(reply, float) else reply


@cache
def _text(script: Script) -> bytes:
    """Returns the text of a script without its first line, which is for Redis."""
    return script.source(Dialect.SINGLE).partition(b"\n")[2]


def _bytes(word: Any) -> bytes:
    if isinstance(word, bytes):
        return word
    if isinstance(word, float):
        return b"%d" % word if word.is_integer() else b"%.17g" % word
    return str(word).encode()
