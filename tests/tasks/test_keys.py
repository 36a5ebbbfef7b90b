"""Tests limits of tasks: over all calls of a task, and by keys that are filled from arguments."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from fairlane import App, ArgumentsRefused, InvalidArgument, chain, group
from tests.support.run.for_each import for_each

if TYPE_CHECKING:
    from fairlane.tasks.task import Task

OWN = "task/charge"
BY_CUSTOMER = {"customer-{customer_id}": 3}


def charge(customer_id: int, amount: int = 1) -> int:
    return customer_id + amount


def offline(**options: Any) -> Task[..., Any, Any]:
    return App("images", "redis://127.0.0.1:1").task(**options)(charge)


def names(task: Task[..., Any, Any], *args: Any, **kwargs: Any) -> dict[str, int]:
    """Returns the keys of a call."""
    _, options = task.encode_with_options(*args, **kwargs)
    return dict(options.get("limits", ()))


# ------------------------------------------------------------------ what a call names


def test_a_task_without_a_limit_names_no_key():
    task = offline(priority=3)
    assert task.encode_with_options(1)[1] == {"priority": 3, "task": task.name}


def test_the_limit_of_a_task_is_a_key_of_all_its_calls():
    assert names(offline(limit=3), 1) == {OWN: 3}


@for_each(
    "given, call, found",
    [
        (BY_CUSTOMER, (7,), {"customer-7": 3}),
        ({"api": 9, **BY_CUSTOMER}, (7,), {"api": 9, "customer-7": 3}),
        ({"c-{customer_id}.{amount}": 1}, (7, 5), {"c-7.5": 1}),
        ({"c-{customer_id}.{amount}": 1}, (7,), {"c-7.1": 1}),
        (lambda customer_id: {f"c-{customer_id}": 2}, (7,), {"c-7": 2}),
        (lambda amount: {"big": 1} if amount > 9 else None, (7, 10), {"big": 1}),
        (lambda amount: {"big": 1} if amount > 9 else None, (7,), {}),
        (lambda **every: {"-".join(sorted(every)): 1}, (7,), {"amount-customer_id": 1}),
        (lambda other=1: {f"c{other}": 1}, (7,), {"c1": 1}),
    ],
)
def test_keys_are_filled_from_the_arguments_by_name(given: Any, call: tuple[Any, ...], found: Any):
    assert names(offline(limits=given), *call) == found
    assert names(offline(limit=2, limits=given), *call) == {OWN: 2, **found}


def test_a_call_adds_keys_and_takes_none_away():
    task = offline(limit=3, limits=BY_CUSTOMER)
    assert names(task.with_options(limits={}), 1) == {OWN: 3, "customer-1": 3}
    other = task.with_options(priority=1).with_options(limits={"api": 5}).with_options(retain=5)
    assert names(other, 1) == {OWN: 3, "customer-1": 3, "api": 5}
    assert names(task, 1) == {OWN: 3, "customer-1": 3}


def test_a_request_may_use_as_many_workers_as_its_task_unless_it_has_a_limit():
    for task, limit in (
        (offline(limit=9), 9),
        (offline(limit=9, batch_limit=2), 2),
        (offline(batch_limit=4), 4),
        (offline(limit=9).with_options(batch_limit=2), 2),
    ):
        assert task.encode_with_options(1)[1]["limit"] == limit


# ------------------------------------------------------------------ refusals


@for_each(
    "options, reason",
    [
        ({"limit": 0}, "task charge: limit 0 is not valid: a whole number from 1 to 10000"),
        ({"limit": 10_001}, "task charge: limit 10001 is not valid"),
        ({"batch_limit": 0}, "task charge: batch_limit 0 is not valid"),
        ({"limits": {"api": 0}}, "task charge: limit of key api 0 is not valid"),
        ({"limits": {"a" * 200: 1}}, "task charge: key 'aaa"),
        ({"limits": {"a{customer_id}" + "a" * 128: 1}}, "task charge: key 'axaaa"),
        ({"limits": {"a b": 1}}, "task charge: key 'a b' is not valid: use 1 to 128 letters"),
        ({"limits": {"task/other": 1}}, "task charge: key 'task/other' is not valid"),
        ({"limits": {"a-{customer}": 1}}, "key a-{customer} names customer, which is no argument"),
        ({"limits": {"a-{}": 1}}, "write an argument's name in braces, as customer-{customer_id}"),
        ({"limits": {"a-{customer_id!r}": 1}}, "write an argument's name in braces"),
        ({"limits": {"a-{customer_id.x}": 1}}, "write an argument's name in braces"),
        ({"limits": {"a-{customer_id": 1}}, "task charge: key 'a-{customer_id' is not valid"),
        ({"limits": {"a": 1, "b": 1, "c": 1, "d": 1}}, "task charge: 4 keys are too many"),
        ({"limit": 1, "limits": {"a": 1, "b": 1, **BY_CUSTOMER}}, "4 keys are too many"),
        ({"limits": "a=1,a=2"}, "task charge: key a has two limits, 1 and 2"),
        ({"limits": 7}, "task charge: limits 7 is not valid: give a dict of key and limit"),
        ({"limits": lambda customer: {}}, "takes customer, which is no argument of the task that"),
        ({"limit": 1, "name": "größe"}, "task 'größe' has a limit, so its name is part of a key"),
    ],
)  # fmt: skip
def test_wrong_limits_are_refused_at_registration(options: dict[str, Any], reason: str):
    with pytest.raises(InvalidArgument) as refused:
        offline(**options)
    assert reason in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_name_that_is_part_of_no_key_is_fine_without_a_limit():
    assert offline(name="größe").name == "größe"


@for_each(
    "given, call, reason",
    [
        (BY_CUSTOMER, {"customer_id": None}, "customer_id is None, and key customer-"),
        (BY_CUSTOMER, {"customer_id": ""}, "argument customer_id is '', and key"),
        (BY_CUSTOMER, {"customer_id": "a b"}, "task pay: key 'customer-a b' is not valid"),
        (BY_CUSTOMER, {"customer_id": "x" * 128}, "task pay: key 'customer-xxx"),
        (lambda amount: ["a"], {"customer_id": 1}, "its function of limits returned a list"),
        (lambda amount: {"a": 0}, {"customer_id": 1}, "task pay: limit of key a 0 is not valid"),
        (lambda amount: {"task/pay": 9}, {"customer_id": 1}, "task pay: key 'task/pay' is not"),
        (lambda amount: dict.fromkeys("abcd", 1), {"customer_id": 1}, "4 keys are too many"),
    ],
)  # fmt: skip
def test_wrong_keys_of_a_call_are_refused_before_anything_is_sent(
    given: Any, call: dict[str, Any], reason: str
):
    @App("images", "redis://127.0.0.1:1").task(limits=given)
    def pay(customer_id: Any, amount: int = 1) -> None: ...

    with pytest.raises(ArgumentsRefused) as refused:
        pay.submit(**call)
    assert reason in str(refused.value)


def test_a_call_cannot_change_the_limit_of_its_task():
    task = offline(limit=3)
    with pytest.raises(ArgumentsRefused, match="limit is that of a task for all its calls"):
        task.with_options(limit=9)  # type: ignore[call-arg]
    with pytest.raises(ArgumentsRefused, match="group: limit is that of a task"):
        group(task.s(1)).submit(limit=9)  # type: ignore[call-arg]
    with pytest.raises(InvalidArgument, match="key 'task/charge' is not valid"):
        task.with_options(limits={OWN: 9})
    with pytest.raises(InvalidArgument, match="key api has two limits, 2 and 9"):
        offline(limits={"api": 2}).with_options(limits={"api": 9})


def test_a_request_of_calls_with_different_keys_is_refused():
    task = offline(limits=BY_CUSTOMER)
    sentence = "its keys depend on argument customer_id, which differs between the calls"
    for submit in (lambda: task.map([1, 2]), lambda: task.starmap([(1, 2)])):
        with pytest.raises(ArgumentsRefused, match=sentence):
            submit()
    with pytest.raises(ArgumentsRefused, match=sentence):
        asyncio.run(task.amap([1, 2]))
    with pytest.raises(ArgumentsRefused, match="is the result of the call before it"):
        chain(offline().s(1), task.s()).submit()
    app = App("images", "redis://127.0.0.1:1")
    four = [app.task(name=f"t{n}", limit=1)(charge).s(1) for n in range(4)]
    with pytest.raises(
        InvalidArgument, match="group: 4 keys are too many: a request names at most 3, bec"
    ):
        group(*four).submit()
