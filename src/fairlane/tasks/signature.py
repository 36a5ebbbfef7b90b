"""A task's signature: binds and encodes arguments at the caller, decodes them in the worker."""

from __future__ import annotations

import difflib
import inspect
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Union, get_type_hints

import msgspec
from msgspec import UNSET, UnsetType

from fairlane import settings
from fairlane.errors import ArgumentsRefused, InvalidArgument
from fairlane.option_types import CallOptions
from fairlane.tasks.codec import (
    CODECS,
    UNENCODABLE,
    VERSION,
    Carrier,
    Codec,
    NotCarried,
    is_of_json,
    unsupported,
    why_not,
)
from fairlane.worker.handlers import Context

if TYPE_CHECKING:
    from collections.abc import Callable

_POSITIONAL = inspect.Parameter.POSITIONAL_ONLY
_LIST = inspect.Parameter.VAR_POSITIONAL
_DICT = inspect.Parameter.VAR_KEYWORD
_ITEMS: Any = tuple  # of `*args` and `**kwargs`
_NAMED: Any = dict


class TaskSignature:
    """The parameters and the result of one task; its annotations are resolved once, here.

    `context` is the name of the parameter that takes the worker's Context, or None. `takes_names`:
    the function can be called with its arguments by name, and nothing else. Raises
    InvalidArgument if an annotation cannot be resolved or decoded, or a parameter has a name that
    no argument may have.
    """

    def __init__(self, task: str, function: Callable[..., Any]) -> None:
        self.task = task
        hints = _hints(task, function)
        every = inspect.signature(function).parameters.values()
        contexts = [one.name for one in every if hints.get(one.name) is Context]
        if len(contexts) > 1:
            raise InvalidArgument(
                f"task {task} has {len(contexts)} parameters of type Context: one is enough"
            )
        self.context = contexts[0] if contexts else None
        self.parameters = [one for one in every if one.name != self.context]
        self.result: Any = hints.get("return", Any)
        self._hints = hints
        self._signature = inspect.Signature(self.parameters)
        self._whole = inspect.Signature([*every])
        for one in self.parameters:
            _check_name(task, one.name)
            _check_type(task, f"argument {one.name}", hints.get(one.name, Any))
        _check_type(task, "result", self.result)
        body = _body_type(task, _struct(task, self.parameters, hints))
        self.decoders = {name: codec.decoder(body) for name, codec in CODECS.items()}
        self._carriers = {one.name: Carrier(_type_of(one, hints)) for one in self.parameters}
        self._plain = {name: carrier.plain for name, carrier in self._carriers.items()}
        self._result = Carrier(self.result)
        self._plain_results = self._result.plain
        kinds = {one.kind for one in every}
        self.has_defaults = any(one.default is not one.empty for one in self.parameters)
        self.has_defaults |= bool(kinds & {_LIST, _DICT})
        self._takes_any = _DICT in kinds
        self._is_plain = not kinds & {_POSITIONAL, _LIST, _DICT}
        self.takes_names = self._is_plain and self.context is None

    # At the caller.

    def bind(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], where: str = ""
    ) -> dict[str, Any]:
        """Returns each given argument by its name; see encode. Raises ArgumentsRefused."""
        if self._takes_any and self.context in kwargs:
            raise ArgumentsRefused(
                f"task {self.task}: argument {self.context}{where} is the worker's Context: "
                "leave it out"
            )
        try:
            return self._signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise ArgumentsRefused(
                f"task {self.task}: {self._misfit(error, kwargs, where)}"
            ) from None

    def _misfit(self, error: TypeError, kwargs: dict[str, Any], where: str) -> str:
        """Returns why arguments do not fit; a word that is no argument comes first."""
        names = [one.name for one in self.parameters]
        wrong = [] if self._takes_any else [name for name in kwargs if name not in names]
        what = f"got an unexpected keyword argument {wrong[0]!r}" if wrong else str(error)
        close = difflib.get_close_matches(wrong[0], names, n=1) if wrong else []
        if close:
            return f"{what}{where}; did you mean {close[0]}?"
        if wrong and wrong[0] in CallOptions.__annotations__:
            return f"{what}{where}; give it as an option: with_options({wrong[0]}=...)"
        listed = f"its arguments are {', '.join(names)}" if names else "it has no arguments"
        return f"{what}{where}; {listed}"

    @cached_property
    def first(self) -> str | None:
        """Returns the name of the parameter that each element of `map` goes to, or None."""
        by_place = {_POSITIONAL, inspect.Parameter.POSITIONAL_OR_KEYWORD}
        return next((one.name for one in self.parameters if one.kind in by_place), None)

    def keeps_result(self, other: TaskSignature, *, is_joined: bool) -> bool:
        """Returns True if a result of another task has its type as the first argument of this one.

        It has not, if the result has a type that JSON lacks, and the argument has no type. If it
        `is_joined`, the argument is a list of such results.
        """
        wanted = self._hints.get(self.first or "", Any)
        is_any = wanted is Any or (is_joined and wanted in {list, list[Any]})
        return not is_any or is_of_json(other.result)

    def encode(
        self,
        codec: Codec,
        arguments: dict[str, Any],
        where: str = "",
        trace: str = "",
        encoded: dict[str, msgspec.Raw] | None = None,
    ) -> bytes:
        """Returns the body of one sub-request; `where` names it in errors, `trace` is its own.

        `encoded` are further arguments, which are encoded already.
        Raises ArgumentsRefused, which names the argument that cannot be encoded, or that would not
        arrive equal.
        """
        given = arguments
        for name, value in given.items():
            kind = type(value)
            # Infinity and NaN differ from zero when they are subtracted from themselves.
            if kind in self._plain[name]:
                if kind is not float or value - value == 0.0:
                    continue
            elif self._carriers[name].is_native(value):
                continue
            arguments = dict(given) if arguments is given else arguments
            arguments[name] = self._pack(codec, name, value, where)
        try:
            parts = (VERSION, self.task, {**arguments, **encoded} if encoded else arguments)
            body = codec.encode((*parts, trace) if trace else parts)
        except UNENCODABLE as error:
            raise self._unencodable(codec, arguments, where, error) from None
        if len(body) > settings.MAX_BODY:
            raise ArgumentsRefused(
                f"task {self.task}: the arguments{where} have {len(body):,} bytes: the most is "
                f"{settings.MAX_BODY:,}: pass a path or a key instead"
            )
        return body

    def encode_shared(self, codec: Codec, arguments: dict[str, Any]) -> dict[str, msgspec.Raw]:
        """Returns the arguments that all sub-requests share, each encoded once."""
        return {name: self._pack(codec, name, value, "") for name, value in arguments.items()}

    def _pack(self, codec: Codec, name: str, value: Any, where: str) -> msgspec.Raw:
        """Returns an encoded argument. Raises ArgumentsRefused."""
        try:
            return msgspec.Raw(self._carriers[name].encode(codec, value))
        except NotCarried as error:
            raise ArgumentsRefused(
                f"task {self.task}: argument {name}{error.place}{where} {error}"
            ) from None
        except UNENCODABLE as error:
            raise self._unencodable(codec, {name: value}, where, error) from None

    def _unencodable(
        self, codec: Codec, arguments: dict[str, Any], where: str, error: Exception
    ) -> ArgumentsRefused:
        unfit = (name for name, value in arguments.items() if not _is_fit(codec, value))
        name = next(unfit, next(iter(arguments)))  # a value may be encoded, and not be compared
        return ArgumentsRefused(
            f"task {self.task}: argument {name}{where} cannot be encoded: {why_not(error)}"
        )

    def decode_result(self, codec: Codec, body: bytes | None) -> Any:
        """Returns a result as the return annotation describes it. Raises msgspec.MsgspecError."""
        return self._result.decode(codec, codec.none if body is None else body)

    # In the worker.

    def encode_result(self, codec: Codec, value: Any) -> bytes | None:
        """Returns a result's bytes. Raises NotCarried and one of UNENCODABLE."""
        kind = type(value)
        if kind in self._plain_results and not (kind is float and value - value != 0.0):
            return None if value is None else codec.encode(value)
        if self._result.is_native(value):
            return codec.encode(value)
        body = self._result.encode(codec, value)
        return None if value is None else body

    def place(
        self, given: dict[str, Any], context: Context
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Returns what to call the function with, its context included."""
        if self.context is not None:
            given = {**given, self.context: context}
        if self._is_plain:
            return (), given
        named = inspect.BoundArguments(self._whole, given)
        return named.args, named.kwargs


def _hints(task: str, function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return get_type_hints(function, include_extras=True)
    except Exception as error:  # noqa: BLE001  an annotation may evaluate to anything
        raise InvalidArgument(
            f"task {task}: an annotation cannot be resolved: {error}: "
            "import or define its type at the top of the module, outside of TYPE_CHECKING"
        ) from None


def _check_name(task: str, name: str) -> None:
    """Raises InvalidArgument for a parameter that cannot be given by its name."""
    if name == "self":
        raise InvalidArgument(
            f"task {task}: its parameter self is not valid, because a task is a function without "
            "an object: leave it out; a parameter of type Context has what is known of the call"
        )
    if name.startswith("__"):
        raise InvalidArgument(
            f"task {task}: its parameter {name} is not valid, because names with two underscores "
            "at their beginning are Python's own: rename it"
        )


def _check_type(task: str, what: str, annotation: Any) -> None:
    """Raises InvalidArgument for a type that cannot come out of JSON or MessagePack."""
    try:
        found = unsupported(annotation)
    except TypeError as error:
        raise InvalidArgument(
            f"task {task}: the type of its {what} is not valid: {error}"
        ) from None
    if found is not None:
        raise InvalidArgument(
            f"task {task}: its {what} has the type {found.__qualname__}, which cannot be decoded: "
            "use plain types, a dataclass, a TypedDict or a msgspec.Struct"
        )


def _type_of(parameter: inspect.Parameter, hints: dict[str, Any]) -> Any:
    """Returns the type of what a parameter is bound to."""
    annotation = hints.get(parameter.name, Any)
    if parameter.kind is _LIST:
        return _ITEMS[annotation, ...]
    return _NAMED[str, annotation] if parameter.kind is _DICT else annotation


def _struct(
    task: str, parameters: list[inspect.Parameter], hints: dict[str, Any]
) -> type[msgspec.Struct]:
    """Returns the type that the arguments of one call are decoded to."""
    fields: list[Any] = []
    for one in parameters:
        annotation = _type_of(one, hints)
        if one.default is not one.empty or one.kind in {_LIST, _DICT}:
            fields.append((one.name, Union[annotation, UnsetType], UNSET))  # noqa: UP007
        else:
            fields.append((one.name, annotation))
    return msgspec.defstruct(task, fields, forbid_unknown_fields=True, kw_only=True)


def _body_type(task: str, arguments: type[msgspec.Struct]) -> type[msgspec.Struct]:
    """Returns the type of a whole body, which is valid for this version and task alone."""
    name: Any = Literal[task]
    fields: list[Any] = [("version", Literal[VERSION]), ("task", name), ("arguments", arguments)]
    return msgspec.defstruct(task, fields, array_like=True, gc=False)


def _is_fit(codec: Codec, value: Any) -> bool:
    try:
        codec.encode(value)
    except UNENCODABLE:
        return False
    return True
