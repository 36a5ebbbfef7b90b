"""The format of a task's body, and how arguments and results are encoded.

A body is an array of three values: the format's version, the task's name, and an object that maps
each argument's name to its value:

    [1,"resize",{"path":"a.png","width":100}]

A call in a request that many callers share may have a fourth value: its own trace.

It is JSON, or MessagePack with the same values. The first byte shows which. A result is encoded as
its body was. A result of None has no body. A worker gives back a body of a later version, as it
does with a task that it lacks.

A value is carried if it comes back equal and, where no annotation names its type, with its type.
Carrier refuses any other value where it is made: at the caller, or in the worker for a result.
"""

from __future__ import annotations

import dataclasses
import math
import types
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Union, get_args, get_origin

import msgspec

from fairlane.errors import InvalidArgument, type_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

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
_SCALARS = frozenset({str, int, float, bool, bytes, type(None)})
_NATIVE, _NAMES = frozenset({str, int, bool, type(None)}), frozenset({str})
_DEEPEST = 20  # levels of a value that are looked at before it is compared with its copy
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


def why_not(error: Exception) -> str:
    """Returns why a value cannot be encoded, for one of UNENCODABLE."""
    if isinstance(error, RecursionError):
        return "it contains itself, or too many levels"
    if isinstance(error, UnicodeEncodeError):
        return f"its text has {error.object[error.start : error.end]!r}, which UTF-8 does not have"
    return str(error)


class NotCarried(Exception):
    """Raised for a value that would not come back equal; the text is the end of a sentence.

    `place` is where in the value, as `.width` or `[3]`.
    """

    def __init__(self, what: str, place: str = "") -> None:
        super().__init__(what)
        self.place = place


_OF_JSON = (
    *(msgspec.inspect.AnyType, msgspec.inspect.NoneType, msgspec.inspect.BoolType),
    *(msgspec.inspect.IntType, msgspec.inspect.FloatType, msgspec.inspect.StrType),
    msgspec.inspect.LiteralType,
)


class Carrier:
    """Encodes the values of one annotation, and refuses those that would not come back equal.

    `plain` are the types whose values always do, but for floats that are not finite, and
    `is_native` finds lists and dicts that do. A caller may encode such a value itself, which costs
    less.
    """

    def __init__(self, annotation: Any) -> None:
        self.plain = frozenset(_plain(annotation))
        self.is_native = _native(annotation)
        self._is_exact = _has_any(msgspec.inspect.type_info(annotation), set())
        self._decoders = {name: codec.decoder(annotation) for name, codec in CODECS.items()}

    def encode(self, codec: Codec, value: Any) -> bytes:
        """Returns the encoded value. Raises NotCarried and one of UNENCODABLE."""
        body = codec.encode(value)
        try:
            got = self._decoders[codec.name](body)
        except msgspec.MsgspecError as error:
            place, what = _in_place(str(error))
            raise _not_finite(codec, value) or NotCarried(f"is not valid: {what}", place) from None
        if not self._is_same(value, got):
            found = _difference(value, got, is_exact=self._is_exact)
            if found is not None:
                remedy = "annotate its type" if self._is_exact else "use a value of its annotation"
                text = f"{found[1]}: {remedy}"
                raise _not_finite(codec, value) or NotCarried(text, found[0])
        return body

    def decode(self, codec: Codec, body: bytes) -> Any:
        """Returns a value. Raises msgspec.MsgspecError."""
        return self._decoders[codec.name](body)

    def _is_same(self, given: Any, got: Any) -> bool:
        """Returns True if the values are the same; False needs a closer look."""
        try:
            return bool(given == got) and (not self._is_exact or _is_plain(given))
        except Exception:  # noqa: BLE001  a class may raise anything here
            return False


def _is_plain(value: Any) -> bool:
    """Returns True if a value has lists, dicts and scalars alone, and no subclass of them."""
    if type(value) is dict:
        return _SCALARS.issuperset(map(type, value)) and _are_plain(value.values())
    return type(value) in _SCALARS or (type(value) is list and _are_plain(value))


def _are_plain(values: Iterable[Any]) -> bool:
    return _SCALARS.issuperset(map(type, values)) or all(map(_is_plain, values))


def _plain(annotation: Any) -> tuple[Any, ...]:
    """Returns types whose every value comes back equal, or cannot be encoded at all."""
    if annotation in {str, int, bool, float}:
        return (annotation,)
    if annotation is None or annotation is type(None):
        return (type(None),)
    if annotation is Any:
        return str, int, bool, float, type(None)
    if get_origin(annotation) in {Union, types.UnionType}:
        return tuple(plain for part in get_args(annotation) for plain in _plain(part))
    return ()


def _native(annotation: Any) -> Callable[[Any], bool]:
    """Returns what finds the lists and dicts of an annotation whose values always come back equal.

    It may miss some: then they are compared.
    """
    kind, parts = get_origin(annotation) or annotation, get_args(annotation)
    if kind is Any or (kind in {list, dict} and parts in {(), (Any,), (str, Any)}):
        wanted = frozenset({list, dict}) if kind is Any else frozenset({kind})
        return lambda value: type(value) in wanted and _is_native(value, _DEEPEST)
    scalars = _NATIVE.intersection(_plain(parts[-1])) if kind in {list, dict} else None
    if kind is list and scalars:
        return lambda value: type(value) is list and {*map(type, value)} <= scalars
    if kind is dict and scalars and parts[0] is str:
        return lambda value: (
            type(value) is dict
            and {*map(type, value)} <= _NAMES
            and {*map(type, value.values())} <= scalars
        )
    return lambda _: False


def _is_native(value: Any, deepest: int) -> bool:
    """Returns True for a list or a dict of what JSON has, and no subclass of it.

    It looks at `deepest` levels, because the value may contain itself.
    """
    values = value
    if type(value) is dict:
        if not _NAMES.issuperset(map(type, value)):
            return False
        values = value.values()
    if _NATIVE.issuperset(map(type, values)):
        return True
    for one in values:
        kind = type(one)
        if kind is list or kind is dict:
            if not deepest or not _is_native(one, deepest - 1):
                return False
        elif kind not in _NATIVE and (kind is not float or one - one != 0.0):
            return False
    return True


def _has_any(info: Any, seen: set[int]) -> bool:
    """Returns True if a part of an annotation allows any type."""
    if isinstance(info, msgspec.inspect.AnyType):
        return True
    if not isinstance(info, (msgspec.inspect.Type, msgspec.inspect.Field)) or id(info) in seen:
        return False
    seen.add(id(info))
    for name in info.__struct_fields__:
        part = getattr(info, name)
        if any(_has_any(each, seen) for each in (part if isinstance(part, tuple) else (part,))):
            return True
    return False


def is_of_json(annotation: Any) -> bool:
    """Returns True if the values of an annotation come back as they are where no type is known."""
    return _is_of_json(msgspec.inspect.type_info(annotation), set())


def _is_of_json(info: Any, seen: set[int]) -> bool:
    kinds = msgspec.inspect
    if id(info) in seen:  # a TypedDict within itself
        return True
    seen.add(id(info))
    parts: Iterable[Any] = ()
    match info:
        case kinds.Metadata(type=inner):
            parts = (inner,)
        case kinds.ListType(item_type=item):
            parts = (item,)
        case kinds.DictType(key_type=kinds.StrType() | kinds.AnyType(), value_type=value):
            parts = (value,)
        case kinds.UnionType(types=some):
            parts = some
        case kinds.TypedDictType(fields=fields):
            parts = (field.type for field in fields)
        case _:
            return isinstance(info, _OF_JSON)
    return all(_is_of_json(part, seen) for part in parts)


def _in_place(text: str) -> tuple[str, str]:
    """Returns the place in msgspec's sentence, and the sentence without it."""
    what, _, place = text.partition(" - at `$")
    return place.rstrip("`"), what


def _not_finite(codec: Codec, value: Any) -> NotCarried | None:
    """Returns the error for a number that JSON lacks."""
    if codec is not JSON or (found := _find_not_finite(value, "")) is None:
        return None
    place, number = found
    return NotCarried(
        f'is {number!r}, which JSON does not have: use None, or App(..., encoding="msgpack")', place
    )


def _find_not_finite(value: Any, place: str) -> tuple[str, float] | None:
    if isinstance(value, float):
        return None if math.isfinite(value) else (place, value)
    for name, part in _parts(value):
        if (found := _find_not_finite(part, place + name)) is not None:
            return found
    return None


def _parts(value: Any) -> list[tuple[str, Any]]:
    """Returns the places and the values in a container or an object with fields."""
    if isinstance(value, dict):
        return [(f"[{key!r}]", part) for key, part in value.items()]
    if isinstance(value, (list, tuple, set, frozenset)):
        return [(f"[{at}]", part) for at, part in enumerate(value)]
    if isinstance(value, msgspec.Struct):
        return [(f".{name}", getattr(value, name)) for name in value.__struct_fields__]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(f".{one.name}", getattr(value, one.name)) for one in dataclasses.fields(value)]
    return []


def _difference(given: Any, got: Any, *, is_exact: bool, place: str = "") -> tuple[str, str] | None:
    """Returns the first place at which values differ, and how they do; None if they are the same.

    `is_exact`: a subclass is not the same as its base class. A whole number is the same as the
    equal float, and NaN is the same as NaN.
    """
    if type(given) is not type(got):
        is_number = type(given) is int and type(got) is float
        is_same = (is_number or not is_exact) and _is_equal(given, got)
        return None if is_same else (place, f"is {type_of(given)} and would become {type_of(got)}")
    if isinstance(given, dict):
        for one, other in zip(given, got, strict=False):
            if (found := _difference(one, other, is_exact=is_exact)) is not None:
                return place, f"has the key {one!r:.100}, which {found[1]}"
    parts, others = _parts(given), _parts(got)
    if not parts or isinstance(given, (set, frozenset)) or len(parts) != len(others):
        is_nan = not _is_equal(given, given) and not _is_equal(got, got)
        is_same = is_nan or _is_equal(given, got)
        return None if is_same else (place, f"is {given!r:.100} and would become {got!r:.100}")
    pairs = zip(parts, others, strict=True)
    each = (
        _difference(one, other, is_exact=is_exact, place=place + name)
        for (name, one), (_, other) in pairs
    )
    return next(filter(None, each), None)


def _is_equal(given: Any, got: Any) -> bool:
    try:
        return bool(given == got)
    except Exception:  # noqa: BLE001  a class may raise anything here
        return False
