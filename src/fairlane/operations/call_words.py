"""Shows a call of a task in a short form: `send_mail(to="ann@example.com", tries=3)`."""

from __future__ import annotations

import re
from dataclasses import replace
from json import dumps
from typing import TYPE_CHECKING, Any, TypeVar

from fairlane.common.task_names import task_of
from fairlane.protocol import keys
from fairlane.protocol.request_hash import hmget, parse_fields
from fairlane.protocol.steps import Command, run_all
from fairlane.records import RequestCounts

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

# ------------------------------------------------------------------ hidden fields
# What no view may show of a body or a result: the values of these fields, at any depth.


HIDDEN = "[hidden]"


def hidden_in(value: Any, names: Collection[str]) -> Any:
    """Returns a value as JSON has it, with the values of these fields replaced."""
    if isinstance(value, dict):
        return {
            name: HIDDEN if name in names else hidden_in(one, names) for name, one in value.items()
        }
    return [hidden_in(one, names) for one in value] if isinstance(value, list) else value


def hide(body: bytes, names: Collection[str]) -> bytes:
    """Returns a body or a result without the values of these fields.

    What is neither JSON nor MessagePack is hidden as a whole, because its fields are not known.
    """
    from msgspec import MsgspecError, json, msgpack

    if not names or not body:
        return body
    for codec in (json, msgpack):
        try:
            return bytes(codec.encode(hidden_in(codec.decode(body), names)))
        except (MsgspecError, ValueError, TypeError, RecursionError):
            continue
    return HIDDEN.encode()


def hide_values(text: str, body: bytes, names: Collection[str]) -> str:
    """Returns a text, as of an error, without the values that these fields have in a body.

    A value of one or two characters is replaced where it stands alone.
    """
    from msgspec import MsgspecError, json, msgpack

    try:
        found = json.decode(body) if body[:1] in {b"[", b"{"} else msgpack.decode(body)
    except (MsgspecError, ValueError, RecursionError):
        return HIDDEN
    values = {form for value in _values(found, names, is_hidden=False) for form in _forms(value)}
    for value in sorted(values, key=len, reverse=True):
        if len(value) >= _LONG:
            text = text.replace(value, HIDDEN)
        else:
            text = re.sub(rf"(?<!\w){re.escape(value)}(?!\w)", lambda _: HIDDEN, text)
    return text


_LONG = 3  # characters of a value that is replaced anywhere


def _values(value: Any, names: Collection[str], *, is_hidden: bool) -> Iterator[Any]:
    """Yields the values that are no containers, of these fields and below them."""
    if isinstance(value, dict):
        for name, one in value.items():
            yield from _values(one, names, is_hidden=is_hidden or name in names)
    elif isinstance(value, list):
        for one in value:
            yield from _values(one, names, is_hidden=is_hidden)
    elif is_hidden and value is not None and not isinstance(value, bool):
        yield value


def _forms(value: Any) -> Iterator[str]:
    """Yields how a value stands in a text: as it is, and with escapes."""
    if isinstance(value, bytes):
        value = value.decode("utf-8", "backslashreplace")
    for text in (
        (str(value), repr(value)[1:-1], dumps(value)[1:-1])
        if isinstance(value, str)
        else (str(value),)
    ):
        if text:
            yield text


# ------------------------------------------------------------------ short form

SHORT = 100  # characters of a call
_VALUE = 40  # ... of an argument
_DEEPEST = 3  # levels of an argument that are shown
_ITEMS = 5  # of a list or an object that are shown


def call_words(body: bytes, hidden: Collection[str]) -> str:
    """Returns the short form of a call; its name alone if its arguments cannot be read.

    The values of the `hidden` fields are not shown.

    "" if the body is no call of a task.
    """
    name = task_of(body)
    if not name:
        return ""
    arguments = _arguments(body)
    if arguments is None:
        return name
    arguments = hidden_in(arguments, hidden)
    shown = ", ".join(f"{key}={_short(_text(value), _VALUE)}" for key, value in arguments.items())
    return _short(f"{name}({shown})", SHORT)


def _arguments(body: bytes) -> dict[str, Any] | None:
    from msgspec import MsgspecError, json, msgpack

    try:
        parts = json.decode(body) if body[:1] == b"[" else msgpack.decode(body)
    except (MsgspecError, ValueError, RecursionError):
        return None
    found = parts[2] if isinstance(parts, list) and len(parts) > 2 else None  # noqa: PLR2004
    return found if isinstance(found, dict) else None


def _text(value: Any, depth: int = 0) -> str:
    """Returns a value as JSON has it; of a large one a part."""
    if isinstance(value, bytes):
        return f"<{len(value):,} bytes>"
    if isinstance(value, str):
        return '"' + _short(value, _VALUE - 2) + '"'
    if isinstance(value, (dict, list)):
        if depth == _DEEPEST:
            return "{…}" if isinstance(value, dict) else "[…]"
        parts = [*_parts(value, depth)]
        more = ["…"] if len(value) > _ITEMS else []
        opening, closing = "{}" if isinstance(value, dict) else "[]"
        return opening + ", ".join(parts + more) + closing
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    return str(value)


def _parts(value: dict[Any, Any] | list[Any], depth: int) -> Iterator[str]:
    if isinstance(value, dict):
        for name in list(value)[:_ITEMS]:
            yield f"{_short(str(name), _VALUE)}: {_text(value[name], depth + 1)}"
    else:
        for one in value[:_ITEMS]:
            yield _text(one, depth + 1)


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


# ------------------------------------------------------------------ calls of requests
# Reads the bodies of requests of one call, while these wait, run or are kept as dead.


MOST_READ = 4_096  # bytes of a body; of a larger one the name of its task is enough

Row = TypeVar("Row", bound=RequestCounts)


async def with_calls(rows: Sequence[Row]) -> list[Row]:
    """Returns these requests; those of one call of a task get its short form, if its body is kept.

    It costs one step for each of these, and two more for those that wait for another attempt or
    are dead.
    """
    wanted = [row for row in rows if row.total == 1 and row.tasks and (row.left or row.dead)]
    words = await _few(row for row in wanted if row.left)
    words |= await _others([row for row in wanted if row.id not in words])
    return [replace(row, call=words[row.id]) if words.get(row.id) else row for row in rows]


async def _few(rows: Iterable[RequestCounts]) -> dict[str, str]:
    """Returns id -> short form, of those requests whose body is among the few of a string."""
    wanted = list(rows)
    texts = await run_all([Command(b"GET", keys.few(row.id)) for row in wanted])
    found = {}
    for row, text in zip(wanted, texts, strict=True):
        if (body := few_body(text, 0)) is not None:
            found[row.id] = call_words(body, row.redact)
    return found


def few_body(text: bytes | None, index: int) -> bytes | None:
    """Returns one body of a small request's string, `<length>:<body>` each; None if it has none."""
    rest = text or b""
    for _ in range(index + 1):
        length, _, rest = rest.partition(b":")
        if not length.isdigit():
            return None
        body, rest = rest[: int(length)], rest[int(length) :]
    return body


async def _others(rows: Sequence[RequestCounts]) -> dict[str, str]:
    """Returns the same of those whose body is in a stream, if it is not too large to be read."""
    sizes = await run_all([hmget(row.id, "max_body") for row in rows])
    small = [
        row
        for row, size in zip(rows, sizes, strict=True)
        if 0 < int(parse_fields(("max_body",), size)[0] or 0) <= MOST_READ
    ]
    streams = [keys.bodies(row.id) if row.left else keys.dead(row.id) for row in small]
    replies = await run_all([Command(b"XRANGE", one, "-", "+", b"COUNT", 1) for one in streams])
    found = {}
    for row, entries in zip(small, replies, strict=True):
        for _, flat in entries:
            fields = dict(zip(flat[::2], flat[1::2], strict=True))
            found[row.id] = call_words(fields.get(b"b") or fields.get(b"body", b""), row.redact)
    return found
