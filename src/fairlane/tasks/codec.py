"""The format of a task's body, and how arguments and results are encoded.

A body is an array of three values: the format's version, the task's name, and an object that maps
each argument's name to its value:

    [1,"resize",{"path":"a.png","width":100}]

A call in a request that many callers share may have a fourth value: its own trace.

It is JSON, or MessagePack with the same values. The first byte shows which. A result is encoded as
its body was. A result of None has no body. A worker gives back a body of a later version, as it
does with a task that it lacks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from fairlane.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable

VERSION = 1
# What msgspec raises for a value that it cannot encode: an unsupported type, a number that is out
# of range, a lone surrogate, or a value that contains itself.
UNENCODABLE = (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError)


class TaskBody(msgspec.Struct, array_like=True, gc=False, frozen=True):
    """The parts of a body; `arguments` is not decoded yet."""

    version: int
    task: str
    arguments: msgspec.Raw
    trace: str = ""  # as tracing.text_of wrote it


@dataclass(frozen=True, slots=True)
class Codec:
    """One encoding. `decoder` makes a function that decodes bytes into a type."""

    name: str
    encode: Callable[[Any], bytes]
    decoder: Callable[[Any], Callable[[Any], Any]]
    decode_body: Callable[[bytes], TaskBody]
    none: bytes

    def list_marks(self, count: int) -> tuple[bytes, bytes, bytes]:
        """Returns what begins a list of so many encoded values, separates two, and ends it."""
        if self.name == "json":
            return b"[", b",", b"]"
        few, packed = 15, self.encode([None] * count)
        return packed[: 1 if count <= few else 3], b"", b""


JSON = Codec(
    "json",
    msgspec.json.Encoder().encode,
    lambda annotation: msgspec.json.Decoder(annotation).decode,
    msgspec.json.Decoder(TaskBody).decode,
    b"null",
)
MSGPACK = Codec(
    "msgpack",
    msgspec.msgpack.Encoder().encode,
    lambda annotation: msgspec.msgpack.Decoder(annotation).decode,
    msgspec.msgpack.Decoder(TaskBody).decode,
    b"\xc0",
)
CODECS = {codec.name: codec for codec in (JSON, MSGPACK)}


def codec_named(name: str) -> Codec:
    """Returns the encoding `json` or `msgpack`. Raises InvalidArgument."""
    if name not in CODECS:
        raise InvalidArgument(f"encoding {name!r} is not valid: write {' or '.join(CODECS)}")
    return CODECS[name]


def unsupported(annotation: Any) -> type | None:
    """Returns the first type in an annotation that cannot be decoded, or None.

    Raises TypeError if the annotation as a whole cannot be decoded.
    """
    return _custom(msgspec.inspect.type_info(annotation), set())


def _custom(info: Any, seen: set[int]) -> type | None:
    if isinstance(info, msgspec.inspect.CustomType):
        return info.cls
    if not isinstance(info, (msgspec.inspect.Type, msgspec.inspect.Field)) or id(info) in seen:
        return None
    seen.add(id(info))
    for name in info.__struct_fields__:
        part = getattr(info, name)
        for each in part if isinstance(part, tuple) else (part,):
            if (found := _custom(each, seen)) is not None:
                return found
    return None
