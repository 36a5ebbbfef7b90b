"""What a result of a flow's step may choose: the step that goes on with it, or its children.

A handler returns `Next` or `Fan`. The result in `out` then has a status of its own, and its bytes
have each name with its body. So a reader of the results, and the step that gets them, need nothing
else.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from fairlane import settings
from fairlane.errors import InvalidArgument, type_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fairlane.common.chunking import Body

MAX_CHOSEN = 100  # children of one result; lua/v1/lib/flows.lua has the number
NEXT, FAN = b"b", b"f"  # the status of a result in `out`; see model.result_head
_NO_CHILDREN = (str, bytes, bytearray, memoryview, Mapping)  # they can be iterated, too
_SHOWN = 60  # characters of a name in an error


class StepPlace(NamedTuple):
    """The place of a step in its flow. Steps are counted from 1."""

    flow: str
    number: int
    steps: int
    step: str

    @property
    def text(self) -> str:
        """Returns the field `flow` of the request's hash."""
        return " ".join(map(str, self))

    @classmethod
    def parse(cls, text: str) -> StepPlace | None:
        """Returns the place in a field `flow`; None if the request is no step."""
        match text.split(" "):
            case [flow, number, steps, step] if number.isdecimal() and steps.isdecimal():
                return cls(flow, int(number), int(steps), step)
        return None


class Next:
    """A result that names the step that goes on with it: `return Next("check", body)`.

    The step must be a branch of the handler's step. `body` is what it gets; None is an empty one.
    In a `Fan` it is one child, and names the step that runs it.
    """

    __slots__ = ("body", "step")

    def __init__(self, step: str, body: Body | None = None) -> None:
        self.step, self.body = step, body

    def __repr__(self) -> str:
        return f"Next({self.step!r})"


class Fan:
    """A result that chooses its children: `return Fan([b"role 1", Next("twitter", b"user 5")])`.

    The children of the handler's step must be declared with `chosen`. Each value is the body of one
    child, or a `Next`, which also names the step that runs it. A body alone needs a step with one
    child. `Fan([])` has no children. Raises InvalidArgument for what is no iterable of children.
    """

    __slots__ = ("children",)

    def __init__(self, children: Iterable[Body | Next | None]) -> None:
        given: object = children
        if isinstance(given, _NO_CHILDREN) or not isinstance(given, Iterable):
            raise InvalidArgument(
                f"children of a Fan are {type_of(given)}: give a list of bodies, or of "
                "Next(step, body)"
            )
        self.children = tuple(islice(children, MAX_CHOSEN + 1))  # one too many is refused later

    def __repr__(self) -> str:
        return f"Fan of {len(self.children)}"


class Choice(NamedTuple):
    """A step that a result names, and what that step gets."""

    step: str
    body: bytes | None


# ------------------------------------------------------------------ declared
# What a flow declares for the results of one step.


class Choices(NamedTuple):
    """What the results of a step may choose: its branches, or children, at most `most` of them.

    With branches, `default` gets the results that name none; "" = these results end there.
    """

    steps: tuple[str, ...] = ()
    default: str = ""
    most: int = 0  # 0 = they are branches

    @property
    def text(self) -> str:
        """Returns the steps and the default as a part of the field `feed`."""
        return ",".join((self.default, *self.steps)).encode().hex()

    @classmethod
    def parse(cls, text: str, most: int) -> Choices:
        """Returns what `text` returned. Raises ValueError."""
        default, *steps = bytes.fromhex(text).decode().split(",")
        return cls(tuple(steps), default, most)

    def check(self, result: Next | Fan, step: str, flow: str) -> None:
        """Raises InvalidArgument if a result chooses what the flow does not declare."""
        where = f"step {step} of flow {flow} returned {_shown(result)}"
        if isinstance(result, Next):
            if self.most:
                name = str(result.step)[:_SHOWN]
                raise InvalidArgument(
                    f"{where}, and has children: return Fan([Next({name!r}, body)])"
                )
            if not self.steps:
                raise InvalidArgument(
                    f"{where}, and has no branches: declare them with branches(...)"
                )
            self._check_name(result.step, where, "branches")
            return
        if self.steps and not self.most:
            raise InvalidArgument(
                f"{where}, and has branches: return Next({self.steps[0]!r}, body)"
            )
        if not self.most:
            raise InvalidArgument(
                f"{where}, and its results choose no children: declare them with "
                "children(..., chosen=10), and a step that joins them"
            )
        if len(result.children) > self.most:
            raise InvalidArgument(f"{where}, and the most are {self.most}: choose fewer")
        for one in result.children:
            if isinstance(one, Next):
                self._check_name(one.step, f"{where} with {_shown(one)}", "children")
            elif len(self.steps) > 1:
                raise InvalidArgument(
                    f"{where} with a body alone, and its children are {', '.join(self.steps)}: "
                    f"write Next({self.steps[0]!r}, body)"
                )

    def _check_name(self, name: object, where: str, kind: str) -> None:
        if name in self.steps:
            return
        near = get_close_matches(str(name), self.steps, n=1)
        hint = f"did you mean {near[0]}?" if near else "name one of these"
        raise InvalidArgument(f"{where}, and its {kind} are {', '.join(self.steps)}: {hint}")


def _shown(result: Next | Fan) -> str:
    if isinstance(result, Next):
        return f"Next({str(result.step)[:_SHOWN]!r})"
    count = len(result.children)
    children = "1 child" if count == 1 else f"{count} children"
    return f"Fan of {'more than 100 children' if count > MAX_CHOSEN else children}"


# ------------------------------------------------------------------ bytes of a result


def packed(result: Next | Fan, steps: Sequence[str]) -> tuple[bytes, bytes]:
    """Returns the status of a result that was checked, and its bytes for `out`.

    Raises InvalidArgument for a body that is none, or if all of them are too large.
    """
    is_next = isinstance(result, Next)
    children: tuple[Body | Next | None, ...] = (
        (result,) if isinstance(result, Next) else result.children
    )
    rows = [one if isinstance(one, Next) else Next(steps[0], one) for one in children]
    parts, size = [], 0
    for row in rows:
        body = _bytes_of(row.body, "Next" if is_next else "Fan")
        size += len(body or b"")
        length = b"-" if body is None else b"%d" % len(body)
        parts.append(b"%b %b:%b" % (row.step.encode(), length, body or b""))
    if size > settings.MAX_BODY:
        what = "the body of Next" if is_next else "the bodies of a Fan"
        has = "has" if is_next else "have"
        raise InvalidArgument(f"{what} {has} {size:,} bytes: the most is {settings.MAX_BODY:,}")
    return NEXT if is_next else FAN, b"".join(parts)


def _bytes_of(body: object, what: str) -> bytes | None:
    if body is None:
        return None
    if isinstance(body, str):
        try:
            return body.encode()
        except UnicodeEncodeError as error:
            raise InvalidArgument(f"{what} has a body that is not valid UTF-8: {error}") from None
    if isinstance(body, (bytes, bytearray, memoryview)):
        return bytes(body)
    raise InvalidArgument(
        f"{what} has a body that is {type_of(body)}: bytes, str or None is expected"
    )


def unpacked(data: bytes) -> list[Choice]:
    """Returns what `packed` was given, in the same order. Raises ValueError for damage."""
    found, at = [], 0
    while at < len(data):
        space, colon = data.index(b" ", at), data.index(b":", data.index(b" ", at))
        step, length = data[at:space].decode(), data[space + 1 : colon]
        end = colon + 1 + (0 if length == b"-" else int(length))
        found.append(Choice(step, None if length == b"-" else data[colon + 1 : end]))
        at = end
    return found


def as_json(body: bytes) -> bytes:
    """Returns a body as a JSON value: text, or {"base64": "..."} for bytes that are no UTF-8."""
    try:
        value: object = body.decode()
    except UnicodeDecodeError:
        value = {"base64": base64.b64encode(body).decode()}
    return json.dumps(value, ensure_ascii=False).encode()


def shown_body(status: bytes, data: bytes) -> bytes | None:
    """Returns the body of a result that chose something, as it is read back.

    That of a Fan is the JSON array of its children's bodies. Without its bytes it is empty.
    """
    found = unpacked(data)
    if status == NEXT:
        return found[0].body if found else b""
    return b"[%b]" % b",".join(b"null" if one.body is None else as_json(one.body) for one in found)
