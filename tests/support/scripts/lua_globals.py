"""Finds the names that a Lua text uses and does not declare, in the bytecode of Lua 5.1."""

from __future__ import annotations

import struct

_GET, _SET = 5, 7  # opcodes of access to a global
_SIZES = {0: 0, 1: 1, 3: 8}  # bytes of a nil, a boolean and a number


class _Chunk:
    """Reads the output of string.dump."""

    def __init__(self, dumped: bytes) -> None:
        self._dumped, self._at = dumped, 12
        _, _, _, self._int, self._size, *_ = dumped[4:12]
        self.names: set[str] = set()
        self._function()

    def _take(self, count: int) -> bytes:
        self._at += count
        return self._dumped[self._at - count : self._at]

    def _number(self, size: int | None = None) -> int:
        return int.from_bytes(self._take(size or self._int), "little")

    def _text(self) -> bytes:
        return self._take(self._number(self._size))[:-1]

    def _function(self) -> None:
        self._text()  # the name of the source
        self._take(2 * self._int + 4)
        code = struct.iter_unpack("<I", self._take(4 * self._number()))
        instructions = [word for (word,) in code]
        constants = [self._constant() for _ in range(self._number())]
        self.names |= {
            constants[word >> 14].decode() for word in instructions if word & 63 in {_GET, _SET}
        }
        for _ in range(self._number()):
            self._function()
        self._take(self._int * self._number())  # line numbers
        for _ in range(self._number()):  # locals
            self._text()
            self._take(2 * self._int)
        for _ in range(self._number()):  # upvalues
            self._text()

    def _constant(self) -> bytes:
        kind = self._number(1)
        return self._text() if kind == 4 else self._take(_SIZES[kind])


def global_names(text: str) -> set[str]:
    """Returns the names that the compiler found neither among the locals nor the parameters."""
    from lupa.lua51 import LuaRuntime

    runtime = LuaRuntime(encoding=None)
    chunk = runtime.globals()[b"loadstring"](text.encode())
    assert not isinstance(chunk, tuple), chunk
    return _Chunk(runtime.globals()[b"string"][b"dump"](chunk)).names
