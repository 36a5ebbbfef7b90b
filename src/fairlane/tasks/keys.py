"""The keys of a task's calls: its own limit, and keys that are filled from the arguments."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, replace
from string import Formatter
from typing import TYPE_CHECKING, Any, NamedTuple

from fairlane.errors import ArgumentsRefused, InvalidArgument, type_of
from fairlane.options import check_limits, check_whole, read_limits
from fairlane.options_table import BY_NAME
from fairlane.protocol.keys import check_name, key_of_task

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from fairlane.options import Limits
    from fairlane.tasks.signature import TaskSignature

_BY_NAME = {inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY}


class _Template(NamedTuple):
    """A key whose name has arguments, as `customer-{customer_id}`."""

    text: str
    limit: int
    needs: tuple[str, ...]


class _Function(NamedTuple):
    """A function of arguments that returns keys and their limits."""

    call: Callable[..., Any]
    needs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TaskKeys:
    """The keys that the calls of a task name in `limits`; `limit` is that of the task, 0 = none.

    `fixed` are those of every call. The others depend on the arguments of a call.
    """

    signature: TaskSignature
    limit: int = 0
    fixed: Limits = ()
    templates: tuple[_Template, ...] = ()
    functions: tuple[_Function, ...] = ()

    @staticmethod
    def of(signature: TaskSignature, limit: object = None, limits: object = None) -> TaskKeys:
        """Returns the keys of a task that is registered with these options.

        Raises InvalidArgument.
        """
        keys = TaskKeys(signature)
        if limit is not None:
            checked = check_whole(f"task {keys.task}: limit", limit, 1, BY_NAME["limit"].most)
            keys = replace(keys, limit=checked, fixed=((_own_key(keys.task), checked),))
        return keys.with_more(limits)

    @property
    def task(self) -> str:
        """Returns the name of the task."""
        return self.signature.task

    @property
    def depend_on(self) -> tuple[str, ...]:
        """Returns the names of the arguments that keys depend on."""
        needs = [one.needs for one in self.templates] + [one.needs for one in self.functions]
        return tuple(dict.fromkeys(name for names in needs for name in names))

    def with_more(self, given: object) -> TaskKeys:
        """Returns the keys with others, which a task or a call gives as `limits`.

        They are a dict, whose names may have arguments, or a function of arguments. A call adds
        keys, and takes none away. Raises InvalidArgument.
        """
        if given is None:
            return self
        if callable(given):
            function = _Function(given, self._parameters(given))
            return replace(self, functions=(*self.functions, function))
        try:
            found = read_limits("limits", given)
            names = [(name, limit, self._fields(name)) for name, limit in found]
            for name, limit, _ in names:
                check_whole(f"limit of key {name}", limit, 1, BY_NAME["limit"].most)
            plain = tuple((name, limit) for name, limit, fields in names if not fields)
            fixed = merged_keys(self.fixed, plain)
            filled = [_Template(*each) for each in names if each[2]]
            templates = tuple(dict.fromkeys((*self.templates, *filled)))
            check_limits((*fixed, *((f"k{n}", 1) for n in range(len(templates)))))
        except InvalidArgument as error:
            raise InvalidArgument(f"task {self.task}: {error}") from None
        return replace(self, fixed=fixed, templates=templates)

    def of_call(self, arguments: Mapping[str, Any], where: str = "") -> Limits:
        """Returns the keys of a call with these arguments. Raises ArgumentsRefused.

        `where` names the call in an error.
        """
        if not self.templates and not self.functions:
            return self.fixed
        given = {**self._defaults(), **arguments}
        try:
            filled = tuple((self._filled(one, given, where), one.limit) for one in self.templates)
            returned = [self._returned(one, given) for one in self.functions]
            return check_limits(merged_keys(self.fixed, filled, *returned))
        except ArgumentsRefused:
            raise
        except InvalidArgument as error:
            raise ArgumentsRefused(f"task {self.task}: {error}{where}") from None

    def of_many(self, arguments: Mapping[str, Any], open_names: Collection[str] | None) -> Limits:
        """Returns the keys of a request with several calls, which have these arguments in common.

        `open_names` are the arguments that differ, None = all others. Raises ArgumentsRefused if a
        key depends on one of them, because a request names its keys for all its calls.
        """
        for name in self.depend_on:
            differs = name not in arguments if open_names is None else name in open_names
            if differs:
                raise ArgumentsRefused(
                    f"task {self.task}: its keys depend on argument {name}, which differs between "
                    f"the calls of this request: submit the calls one by one, or give {name}=... "
                    "for all of them"
                )
        return self.of_call(arguments)

    def _filled(self, template: _Template, given: Mapping[str, Any], where: str) -> str:
        for name in template.needs:
            if name not in given or given[name] is None or given[name] == "":
                shown = repr(given[name]) if name in given else "missing"
                raise ArgumentsRefused(
                    f"task {self.task}: argument {name}{where} is {shown}, and key "
                    f"{template.text} needs it: give it a value"
                )
        filled = {name: str(given[name]) for name in template.needs}
        return check_name("key", template.text.format_map(filled))

    def _returned(self, function: _Function, given: Mapping[str, Any]) -> Limits:
        returned = function.call(**{name: given[name] for name in function.needs if name in given})
        if returned is None:
            return ()
        if not isinstance(returned, Mapping):
            raise InvalidArgument(
                f"its function of limits returned {type_of(returned)}: a dict of key and limit is "
                "expected"
            )
        found = read_limits("limits", returned)
        for name, _ in found:
            check_name("key", name)
        return found

    def _defaults(self) -> dict[str, Any]:
        parameters = self.signature.parameters
        return {one.name: one.default for one in parameters if one.default is not one.empty}

    def _arguments(self) -> list[str]:
        return [one.name for one in self.signature.parameters if one.kind in _BY_NAME]

    def _fields(self, key: object) -> tuple[str, ...]:
        """Returns the arguments in the name of a key. Raises InvalidArgument."""
        text = key if isinstance(key, str) else ""
        try:
            parts = [*Formatter().parse(text)]
        except ValueError:
            parts = [(text, "", None, None)]
        fields = [(name, rest) for _, name, *rest in parts if name is not None]
        names = tuple(dict.fromkeys(name for name, _ in fields))
        for name, rest in fields:
            if not name.isidentifier() or any(rest):
                raise InvalidArgument(
                    f"key {key!r:.60} is not valid: write an argument's name in braces, as "
                    "customer-{customer_id}"
                )
            if name not in self._arguments():
                raise InvalidArgument(
                    f"key {text} names {name}, which is no argument of the task: "
                    f"{self._listed_arguments()}"
                )
        check_name("key", "".join(f"{literal}{'x' if name else ''}" for literal, name, *_ in parts))
        return names

    def _parameters(self, function: Callable[..., Any]) -> tuple[str, ...]:
        """Returns the arguments of the task that a function takes. Raises InvalidArgument."""
        known, needs = self._arguments(), list[str]()
        try:
            parameters = inspect.signature(function).parameters.values()
        except (TypeError, ValueError):
            raise InvalidArgument(
                f"task {self.task}: the parameters of its function of limits cannot be read: "
                "write it in Python"
            ) from None
        for one in parameters:
            if one.kind is one.VAR_KEYWORD:
                needs += [name for name in known if name not in needs]
            elif one.kind in _BY_NAME and one.name in known:
                needs.append(one.name)
            elif one.kind is not one.VAR_POSITIONAL and one.default is one.empty:
                raise InvalidArgument(
                    f"task {self.task}: its function of limits takes {one.name}, which is no "
                    f"argument of the task that can be given by name: {self._listed_arguments()}"
                )
        return tuple(needs)

    def _listed_arguments(self) -> str:
        known = self._arguments()
        return f"its arguments are {', '.join(known)}" if known else "it has no arguments"


def merged_keys(*parts: Limits) -> Limits:
    """Returns all these keys. Raises InvalidArgument if one of them has two limits."""
    return read_limits("limits", [each for part in parts for each in part])


def _own_key(task: str) -> str:
    """Returns the key of a task's limit. Raises InvalidArgument if its name fits no key."""
    try:
        return key_of_task(task)
    except InvalidArgument:
        raise InvalidArgument(
            f"task {task!r:.60} has a limit, so its name is part of a key: choose name= with 1 to "
            "123 letters, digits and the characters _ . : -"
        ) from None
