"""The options of tasks and of their calls, checked before anything is submitted."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from fairlane import settings
from fairlane.errors import ArgumentsRefused, InvalidArgument
from fairlane.options import check_option_names, check_whole, plain_options, policy_of
from fairlane.options_table import BY_NAME, SUBMISSION, options_of
from fairlane.tasks.keys import TaskKeys

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from fairlane.tasks.signature import TaskSignature

_TASK = [option.name for option in options_of("task")]
_CALL = [option.name for option in options_of("task", "call")]
_TASK_ONLY = [option.name for option in options_of("registration")]
_OF_SUBMISSION = {option.name for option in SUBMISSION}


def task_options(
    signature: TaskSignature, given: dict[str, Any]
) -> tuple[dict[str, Any], TaskKeys]:
    """Returns options of a task as Queue.submit_request takes them, and the keys of its calls.

    Durations are in seconds, and `limit` is the `batch_limit`. Raises ArgumentsRefused for an
    unknown option, and InvalidArgument for a bad value.
    """
    task, others = signature.task, {**given}
    limit, limits = others.pop("limit", None), others.pop("limits", None)
    keys = TaskKeys.of(signature, limit, limits)
    found = _with_rate_key(task, _checked(f"task {task}", others, [*_TASK_ONLY, *_TASK]))
    return found, keys


def call_options(
    keys: TaskKeys, own: dict[str, Any], given: dict[str, Any]
) -> tuple[dict[str, Any], TaskKeys]:
    """Returns options of one request of a task, also its `id`, and the keys of its calls.

    They are checked beside the task's own options, on which they may depend. Raises as task_options
    does.
    """
    others = {**given}
    _refuse_limit(f"task {keys.task}", others, "register it with @app.task(limit=...)")
    keys = keys.with_more(others.pop("limits", None))
    return _with_rate_key(keys.task, _checked(f"task {keys.task}", others, _CALL, own)), keys


def group_options(own: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """Returns options of a group's request; `own` are those of its tasks.

    Raises as task_options does.
    """
    _refuse_limit("group", given, "register each with @app.task(limit=...)")
    return _checked("group", given, _CALL, own)


def _refuse_limit(what: str, given: dict[str, Any], remedy: str) -> None:
    if "limit" in given:
        raise ArgumentsRefused(
            f"{what}: limit is that of a task for all its calls, so a call has none: {remedy}, and "
            "bound one request with batch_limit"
        )


def default_limit(limit: int, options: dict[str, Any]) -> dict[str, Any]:
    """Returns the limit that a request of these options has if none is given; 0 = the usual one.

    A request with an order key has the limit 1.
    """
    return {"limit": limit} if limit and not options.get("order_key") else {}


def of_request(options: dict[str, Any]) -> dict[str, Any]:
    """Returns the options that a request keeps, without those of its submission."""
    return {name: value for name, value in options.items() if name not in _OF_SUBMISSION}


def hiding(options: dict[str, Any], fields: Iterable[str]) -> dict[str, Any]:
    """Returns the options with these fields among those that views and logs hide."""
    every = tuple(dict.fromkeys((*options.get("redact", ()), *fields)))
    return {**options, "redact": every} if every else options


def executor_options(given: dict[str, Any]) -> dict[str, Any]:
    """Returns options of an Executor: those of a call without `delay` and an order.

    A delay is of a request: it would delay the first calls of the executor, and no later ones. An
    executor has a request for each set of keys, and one of them would hold back the others for as
    long as it takes calls. Raises as task_options does.
    """
    for name in ("limit", "batch_limit"):
        if name in given:
            raise ArgumentsRefused(
                f"executor: option {name} is not one of an executor: write max_workers"
            )
    if "order_key" in given or "order_on_dead" in given:
        raise InvalidArgument(
            "executor: option order_key is not valid, because its calls are one request, whose "
            "order no later call could join: submit calls of an order with "
            "task.with_options(order_key=...)"
        )
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


def _checked(
    what: str,
    given: dict[str, Any],
    known: Collection[str],
    own: Mapping[str, Any] = MappingProxyType({}),
) -> dict[str, Any]:
    """Returns the options `given`, which are checked beside the task's `own`."""
    try:
        check_option_names(given, known)
        others = {name: value for name, value in given.items() if name != "batch_limit"}
        found = plain_options(others)
        if "batch_limit" in given:
            most = BY_NAME["limit"].most
            found["limit"] = check_whole("batch_limit", given["batch_limit"], 1, most)
        whole = of_request({**own, **found})
        _check_batch_limit(whole)
        policy_of(settings.DEFAULT_QUEUE, **whole)
    except InvalidArgument as error:
        raise InvalidArgument(f"{what}: {error}") from None
    except TypeError as error:
        raise ArgumentsRefused(f"{what}: {error}") from None
    return found


def _check_batch_limit(whole: dict[str, Any]) -> None:
    """Raises InvalidArgument unless the batch limit fits the order key."""
    if whole.get("order_key") and whole.get("limit", 1) != 1:
        raise InvalidArgument(
            f"batch_limit {whole['limit']} is not possible with order_key: its calls start one "
            "after the other, so leave out batch_limit, or give 1"
        )
