"""Tests chains and groups of tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fairlane import (
    App,
    ArgumentsRefused,
    InvalidArgument,
    QueueFull,
    Reject,
    TaskCancelled,
    TaskError,
    chain,
    group,
)
from fairlane.protocol.request_hash import read
from tests.support.wait import PATIENCE_S
from tests.tasks.parts import Size

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["json", "msgpack"])
def test_each_call_gets_the_result_before_it_first(redis_url: str, encoding: Any):
    from fairlane.tasks.serve import workers_of

    app = App("images", redis_url, encoding=encoding)

    @app.task
    def fetch(name: str) -> list[Size]:
        return [Size(len(name), 1)]

    @app.task
    def parse(sizes: list[Size], scale: int, *, plus: int = 0) -> Size | None:
        (size,) = sizes
        return Size(size.width * scale + plus, 2) if scale else None

    @app.task
    def store(size: Size | None) -> str:
        return f"{size and size.width}"

    run = chain(fetch.s("abc"), parse.s(2, plus=1), store.s()).submit()
    none = chain(fetch.s("abc"), parse.s(0), store.s()).submit(properties={"user_id": 5})
    workers_of([app])[0].run(until_idle=True)
    assert run.result(timeout=PATIENCE_S) == "7"
    assert none.result(timeout=PATIENCE_S) == "None"
    assert [one.id for one in app.queue.flows.find(user_id=5)] == [none.id]
    app.close()


@pytest.mark.slow
def test_a_dead_call_cancels_the_rest_and_is_the_error(app: App, work: Callable[[], int]):
    @app.task
    def fetch(name: str) -> str:
        raise Reject(f"no {name}")

    @app.task
    def store(text: str) -> str:
        return text

    run = chain(fetch.s("abc"), store.s(), store.s()).submit()
    work()
    with pytest.raises(TaskError, match="no abc") as raised:
        run.result(timeout=PATIENCE_S)
    assert raised.value.task == "fetch"
    assert run.run.state() == "cancelled"


@pytest.mark.slow
def test_a_group_has_the_results_of_all_its_calls_in_order(app: App, work: Callable[[], int]):
    @app.task
    def fetch(name: str) -> str:
        return name.upper()

    @app.task
    def count(number: int) -> int:
        if number < 0:
            raise Reject("negative")
        return number + 1

    run = group(fetch.s("a"), count.s(1), fetch.s("b")).submit(priority=1)
    ill = group(count.s(1), count.s(-1)).submit()
    work()
    assert run.results(timeout=PATIENCE_S) == ["A", 2, "B"]
    assert [isinstance(one, TaskError) for one in ill.outcomes(timeout=5)] == [False, True]
    with pytest.raises(TaskError, match="negative"):
        ill.results(timeout=PATIENCE_S)


def test_a_cancelled_group_has_an_error_for_each_call(app: App):
    @app.task
    def count(number: int) -> int:
        return number

    run = group(count.s(1), count.s(2)).submit()
    run.request.cancel()
    assert [type(one) for one in run.outcomes()] == [TaskCancelled, TaskCancelled]
    waits = chain(count.s(1), count.s()).submit()
    waits.cancel()
    with pytest.raises(TaskCancelled):
        waits.result(timeout=PATIENCE_S)


def test_what_is_not_valid_is_refused_and_nothing_is_written(app: App, redis_client: Any):
    other = App("other", app.url)

    @app.task
    def fetch(name: str) -> str:
        return name

    @app.task
    def nothing() -> None:
        pass

    @other.task
    def count(number: int) -> int:
        return number

    ordered = fetch.with_options(order_key="k")
    refused: list[tuple[Callable[[], Any], type[Exception], str]] = [
        (chain, InvalidArgument, "chain has no call"),
        (group, InvalidArgument, "group has no call"),
        (lambda: chain(fetch), InvalidArgument, "as a call: write resize"),  # type: ignore[arg-type]
        (lambda: group([fetch.s(1)]), InvalidArgument, r"as a call: write group\(\*calls\)"),  # type: ignore[arg-type]
        (lambda: chain(iter([])), InvalidArgument, r"as a call: write chain\(\*calls\)"),  # type: ignore[arg-type]
        (
            lambda: group(fetch.s("a"), count.s(1)).submit(),
            InvalidArgument,
            "count is of another app",
        ),
        (lambda: chain(fetch.s("a"), nothing.s()).submit(), ArgumentsRefused, "no first argument"),
        (lambda: chain(fetch.s("a"), fetch.s("b")).submit(), ArgumentsRefused, "too many"),
        (lambda: chain(fetch.s("a"), fetch.s(nam=1)).submit(), ArgumentsRefused, "nam"),
        (lambda: chain(fetch.s()).submit(), ArgumentsRefused, "name"),
        (lambda: group(fetch.s("a")).submit(batch_limit=0), InvalidArgument, "limit 0"),
        (
            lambda: chain(fetch.s("a"), fetch.with_options(id="x").s()).submit(),
            *(InvalidArgument, r"task fetch of a chain has the id x: .* chain\(...\).submit\(id="),
        ),
        (
            lambda: chain(fetch.with_options(durable=1).s("a")).submit(),
            *(InvalidArgument, "has the option durable"),
        ),
        (
            lambda: chain(ordered.s("a"), ordered.s()).submit(),
            *(InvalidArgument, "step 2.fetch of flow chain has an order key, as step 1.fetch has"),
        ),
    ]
    for make, error, sentence in refused:
        with pytest.raises(error, match=sentence):
            make()
    assert redis_client.dbsize() == 0
    other.close()


def test_a_group_has_the_options_of_its_tasks(app: App):
    """Also as the first part of a chain, where the group is one request."""

    @app.task(attempts=1, time_limit=3, backoff="1s..2s")
    def pay(n: int) -> int:
        raise ValueError(n)

    @app.task
    def after(ns: list[int]) -> int:
        return sum(ns)

    def kept(request_id: str) -> list[str]:
        names = ("attempts", "time_limit_ms", "backoff_min", "backoff_max")
        return list(app.queue.driver.run(read(request_id, *names)))

    single = pay.submit(1)
    assert kept(single.id) == ["1", "3000", "1000", "2000"]
    one = group(pay.s(1), pay.s(2)).submit(priority=2)
    assert one.request.progress().priority == 2
    assert kept(one.id) == kept(single.id)
    other = group(pay.s(1), pay.s(2)).submit(backoff="3s..4s")
    assert kept(other.id) != kept(single.id)
    run = chain(group(pay.s(1), pay.s(2)), after.s()).submit()
    assert kept(f"{run.id}.1") == kept(single.id)


def test_the_submission_of_a_chain_waits_for_room_as_its_first_task_does(app: App):
    app.queue.set_max_waiting(1)
    app.queue.submit_request(["fills the queue"])

    @app.task(max_wait=0.01)
    def look(n: int) -> int:
        return n

    for way in (
        chain(look.s(1), group(look.s(), look.s()), look.s()),
        chain(group(look.s(1), look.s(2)), look.s()),
    ):
        with pytest.raises(QueueFull, match="queue images has 1 waiting"):
            way.submit()


def test_the_result_of_a_chain_has_a_timeout_in_seconds(app: App):
    @app.task
    def look(n: int) -> int:
        return n

    with pytest.raises(InvalidArgument, match="timeout '5s' is not valid: seconds are expected"):
        chain(look.s(1)).submit().result("5s")  # type: ignore[arg-type]


def test_options_of_a_group_have_the_words_of_with_options_and_one_value(app: App):
    @app.task(attempts=1)
    def pay(n: int) -> int:
        return n

    @app.task
    def look(n: int) -> int:
        return n

    with pytest.raises(ArgumentsRefused, match="group: option backof is not valid: did you mean"):
        group(pay.s(1)).submit(backof=(1, 2))  # type: ignore[call-arg]
    for way in (
        lambda: group(pay.s(1), look.s(2)).submit(),
        lambda: chain(group(pay.s(1), look.s(2)), look.s()).submit(),
    ):
        with pytest.raises(InvalidArgument, match=r"tasks pay and look of a group differ in attem"):
            way()
    run = group(pay.s(1), look.s(2)).submit(attempts=2)
    assert run.request.progress().total == 2
    group(pay.s(1), look.with_options(attempts=1).s(2)).submit()


@pytest.mark.parametrize(("first", "most"), [(True, 100), (False, 20)])
def test_a_group_that_is_too_large_for_a_chain_is_named(app: App, first: bool, most: int):
    @app.task
    def look(n: Any) -> Any:
        return n

    calls = [look.s(1) if first else look.s() for _ in range(1_000)]
    parts = (group(*calls), look.s()) if first else (look.s(1), group(*calls), look.s())
    with pytest.raises(InvalidArgument, match=f"has at most {most} calls, not 1,000") as refused:
        chain(*parts).submit()
    assert "gathers" not in str(refused.value)
    assert "children" not in str(refused.value)


def test_a_result_whose_type_would_be_lost_in_the_next_call_is_refused(app: App, redis_client: Any):
    @app.task
    def sized(n: int) -> Size:
        return Size(n, n)

    @app.task
    def several(n: int) -> dict[str, set[int]]:
        return {"a": {n}}

    @app.task
    def plain(n: int) -> list[dict[str, float | None]]:
        return [{"a": n}]

    @app.task
    def untyped(value) -> str:  # noqa: ANN001  as users write it
        return type(value).__name__

    @app.task
    def listed(values: list) -> int:
        return len(values)

    @app.task
    def typed(size: Size) -> int:
        return size.width

    lost = "task untyped: argument value has no type, so the result of task {} would be another"
    for made, task in [
        (chain(sized.s(1), untyped.s()), "sized"),
        (chain(several.s(1), untyped.s()), "several"),
        (chain(several.s(1), group(untyped.s(), untyped.s())), "several"),
        (chain(group(plain.s(1), sized.s(1)), untyped.s()), "sized"),
    ]:
        with pytest.raises(ArgumentsRefused, match=lost.format(task)):
            made.submit()
    with pytest.raises(ArgumentsRefused, match="task listed: argument values has no type"):
        chain(group(sized.s(1), sized.s(2)), listed.s()).submit()
    assert not redis_client.dbsize()
    for made in (
        chain(plain.s(1), untyped.s()),
        chain(untyped.s(1), untyped.s()),
        chain(sized.s(1), typed.s()),
        chain(group(plain.s(1), plain.s(2)), listed.s()),
    ):
        made.submit().cancel()
