"""The options of tasks and of their calls, checked before anything is submitted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairlane import settings
from fairlane.errors import ArgumentsRefused, InvalidArgument
from fairlane.options import check_option_names, plain_options, policy_of
from fairlane.options_table import SUBMISSION, options_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

_TASK = [option.name for option in options_of("task")]
_CALL = [option.name for option in options_of("task", "call")]
_OF_SUBMISSION = {option.name for option in SUBMISSION}


def task_options(task: str, given: dict[str, Any]) -> dict[str, Any]:
    """Returns options of a task as Queue.submit_request takes them; durations are in seconds.

    Raises ArgumentsRefused for an unknown option, and InvalidArgument for a bad value.
    """
    return _with_rate_key(task, _checked(f"task {task}", given, _TASK))


def call_options(task: str, given: dict[str, Any]) -> dict[str, Any]:
    """Returns options of one request of a task, also its `id`. Raises as task_options does."""
    return _with_rate_key(task, _checked(f"task {task}", given, _CALL))


def group_options(given: dict[str, Any]) -> dict[str, Any]:
    """Returns options of a group's request. Raises as task_options does."""
    return _checked("group", given, _CALL)


def of_request(options: dict[str, Any]) -> dict[str, Any]:
    """Returns the options that a request keeps, without those of its submission."""
    return {name: value for name, value in options.items() if name not in _OF_SUBMISSION}


def hiding(options: dict[str, Any], fields: Iterable[str]) -> dict[str, Any]:
    """Returns the options with these fields among those that views and logs hide."""
    every = tuple(dict.fromkeys((*options.get("redact", ()), *fields)))
    return {**options, "redact": every} if every else options


def executor_options(given: dict[str, Any]) -> dict[str, Any]:
    """Returns options of an Executor: those of a task without `delay`. Raises as task_options does.

    A delay is of a request: it would delay the first calls of the executor, and no later ones.
    """
    if "delay" in given:
        raise InvalidArgument(
            "executor: option delay is not valid, because only the first calls would wait: "
            "submit delayed calls with task.with_options(delay=...)"
        )
    return _checked("executor", given, _TASK)


def _with_rate_key(task: str, found: dict[str, Any]) -> dict[str, Any]:
    """Lets all calls of a task share its rate, because most requests of a task have one call."""
    if "rate" in found:
        found.setdefault("rate_key", task)
    return found


def _checked(what: str, given: dict[str, Any], known: Collection[str]) -> dict[str, Any]:
    try:
        check_option_names(given, known)
        found = plain_options(given)
        policy_of(settings.DEFAULT_QUEUE, **of_request(found))
    except InvalidArgument as error:
        raise InvalidArgument(f"{what}: {error}") from None
    except TypeError as error:
        raise ArgumentsRefused(f"{what}: {error}") from None
    return found
