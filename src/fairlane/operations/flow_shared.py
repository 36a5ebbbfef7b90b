"""The values that the steps of a run share, in the hash of the first step's request.

So they live as long as that request. A change is one call of a script, which notes it under the
name of its caller. So a change that is repeated after a lost reply is made once, and one that
arrives late is not made.
"""

from __future__ import annotations

import json
import re
import secrets
from abc import ABC, abstractmethod
from collections import deque
from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

from fairlane import settings
from fairlane.errors import InvalidArgument, RequestNotFound, type_of
from fairlane.operations.flow_hand_over import request_of
from fairlane.protocol import keys, scripts
from fairlane.protocol.request_hash import VALUE, as_text
from fairlane.protocol.steps import Command

if TYPE_CHECKING:
    from collections.abc import Iterator


_NAME = re.compile(r"[^\x00-\x1f\x7f]{1,128}")
_LARGEST = 2**53 - 1  # of a whole number that Lua adds to
_MISSING = ""
_SCALARS = frozenset({bool, int, float, str, type(None)})
_KINDS = "use None, bool, int, float, str, list or dict"
_OTHER_KEY = "a dict with a key that is no text: keys are text"


class _Caller(NamedTuple):
    """Makes one change after the other, each with a higher number."""

    name: str
    numbers: Iterator[int]


class _Callers:
    """The callers of this process. Each is lent to one change at a time, in any thread or task."""

    def __init__(self) -> None:
        self._free: deque[_Caller] = deque()

    @contextmanager
    def one(self) -> Iterator[_Caller]:
        """Lends a caller. After an error it is dropped: its last change may still be on its way."""
        try:
            caller = self._free.pop()
        except IndexError:
            caller = _Caller(secrets.token_hex(8), count(1))
        yield caller
        self._free.append(caller)

    def forget(self) -> None:
        """Drops all callers: a forked process must not go on with its parent's numbers."""
        self._free.clear()


_callers = _Callers()
forget_callers = _callers.forget


async def read_value(run: str, name: str) -> Any:
    """Returns a value, None if there is none. Raises InvalidArgument."""
    wanted = VALUE + checked_name(name)
    text = await Command(b"HGET", keys.request_hash(request_of(run, 1)), wanted.encode())
    return None if text is None else json.loads(text)


async def read_shared(run: str) -> dict[str, Any]:
    """Returns all values by their names, in the order of the names."""
    flat = await Command(b"HGETALL", keys.request_hash(request_of(run, 1)))
    found = {
        name.removeprefix(VALUE): json.loads(text)
        for name, text in as_text(flat).items()
        if name.startswith(VALUE)
    }
    return dict(sorted(found.items()))


async def set_value(run: str, name: str, value: Any) -> None:
    """Sets a value. Raises InvalidArgument, and RequestNotFound if the run is not there."""
    await _change_shared(run, "set", name, value_text(name, value))


async def drop_value(run: str, name: str) -> None:
    """Removes a value, if it is there. Raises the same as set_value."""
    await _change_shared(run, "drop", name)


async def add_to_value(run: str, name: str, by: int) -> int:
    """Adds to a whole number, which is 0 at first; returns the sum. Raises as set_value does."""
    if isinstance(by, bool) or not isinstance(by, int) or abs(by) > _LARGEST:
        raise InvalidArgument(f"addition of {by!r} is not valid: a whole number is expected")
    return int((await _change_shared(run, "add", name, str(by)))[1])


async def swap_value(run: str, name: str, expected: Any, value: Any) -> bool:
    """Sets a value if it is the expected one, None = there is none; returns whether it was."""
    wanted = _MISSING if expected is None else value_text(name, expected)
    word, _ = await _change_shared(run, "swap", name, value_text(name, value), wanted)
    return word == "ok"


def value_text(name: str, value: Any) -> str:
    """Returns a value as canonical JSON, so that equal values are equal texts.

    Raises InvalidArgument.
    """
    try:
        text = json.dumps(value, ensure_ascii=False, sort_keys=True, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        raise InvalidArgument(f"value of {name!r} {_problem_of(value)}") from None
    if value is None:
        raise InvalidArgument(f"value of {name!r} is None: delete it instead")
    if changed := _changed(value):
        raise InvalidArgument(f"value of {name!r} has {changed}")
    if not _is_text(text):
        raise InvalidArgument(
            f"value of {name!r} has half of a surrogate pair: give text that UTF-8 can hold"
        )
    if (size := len(text.encode())) > settings.SHARED_VALUE:
        raise InvalidArgument(
            f"value of {name!r} has {size:,} bytes: the most is {settings.SHARED_VALUE:,}: "
            "share a path or a key instead"
        )
    return text


def checked_name(name: str) -> str:
    """Returns the name of a value. Raises InvalidArgument."""
    if not isinstance(name, str) or not _NAME.fullmatch(name) or not _is_text(name):
        raise InvalidArgument(
            f"name {str(name)[:60]!r} of a shared value is not valid: "
            "1 to 128 characters are expected, none of control and no half of a surrogate pair"
        )
    return name


def _problem_of(value: Any) -> str:
    """Returns what is wrong with a value that JSON refuses."""
    try:
        json.dumps(value, skipkeys=True, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return f"is {type_of(value)}, which JSON has not: {_KINDS}"
    return f"has {_OTHER_KEY}"  # so they cannot be sorted


def _changed(value: Any) -> str:
    """Returns what would come back as another type, with the remedy; "" = nothing would."""
    if type(value) is dict:
        if any(type(key) is not str for key in value):
            return _OTHER_KEY
        parts: Any = value.values()
    elif type(value) is list:
        parts = value
    elif type(value) in _SCALARS:
        return ""
    else:
        return f"{type_of(value)}, which would come back as another type: {_KINDS}"
    return next(filter(None, map(_changed, parts)), "")


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


async def _change_shared(
    run: str, how: str, name: str, value: str = "", expected: str = _MISSING
) -> tuple[str, str]:
    """Makes one change; returns the word of the reply and its text."""
    checked_name(name)
    with _callers.one() as caller:
        call = scripts.change_shared(
            keys.request_keys(request_of(run, 1)),
            caller=caller.name,
            number=next(caller.numbers),
            how=how,
            field=name,
            value=value,
            expected=expected,
            most_names=settings.SHARED_NAMES,
            most_bytes=settings.SHARED_BYTES,
        )
        reply = await call
    if reply.is_gone or reply.is_late:
        raise RequestNotFound(f"there is no flow {run}, whose steps could share {name!r}")
    text = reply.text.decode()
    if reply.is_kind:
        raise InvalidArgument(f"value of {name!r} is {text[:60]}: only a whole number is added to")
    if reply.is_full:
        raise InvalidArgument(
            f"shared state of flow {run} is full: at most {settings.SHARED_NAMES:,} values of "
            f"{settings.SHARED_BYTES:,} bytes together: delete some"
        )
    return reply.word, text


class Items(ABC):
    """Lets blocking code use the state as a dict. The asyncio one has no such syntax."""

    @abstractmethod
    def get(self, name: str, default: Any = None) -> Any:
        """Returns a value, or the default if there is none."""

    @abstractmethod
    def set(self, name: str, value: Any) -> None:
        """Sets a value."""

    @abstractmethod
    def delete(self, name: str) -> None:
        """Removes a value, if it is there."""

    def __getitem__(self, name: str) -> Any:
        found = self.get(name)
        if found is None:
            raise KeyError(name)
        return found

    def __setitem__(self, name: str, value: Any) -> None:
        self.set(name, value)

    def __delitem__(self, name: str) -> None:
        self.delete(name)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.get(name) is not None
