"""Tests limits of tasks on Redis: each way of submission, who sets a limit, and how many run."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from fairlane import App, Executor, chain, group
from fairlane.errors import InvalidArgument
from fairlane.protocol import keys
from fairlane.tasks.registered_limits import RegisteredLimits
from fairlane.tasks.serve import workers_of
from fairlane.testing import eager
from tests.support.run.for_each import for_each
from tests.support.wait import PATIENCE_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import redis

    from fairlane.tasks.task import Task
    from tests.cli.program import Program

OWN = "task/charge"
BY_CUSTOMER = {"customer-{customer_id}": 3}
CODE = b"""
import os, time
from fairlane import App
app = App("images")

def note(word):
    with open("interval", "a") as file:
        file.write(word + "\\n")

@app.task(name="plain")
def plain(customer_id: int, amount: int = 1) -> int:
    return customer_id + amount

@app.task(limit=3, batch_limit=8)
def charge(customer_id: int, amount: int = 1) -> int:
    note("begin")
    time.sleep(0.005)
    note("end")
    return customer_id + amount
"""


def charge(customer_id: int, amount: int = 1) -> int:
    return customer_id + amount


@pytest.fixture(autouse=True)
def tidy(redis_client: redis.Redis) -> Iterator[None]:
    """Many of these requests are run by no worker."""
    yield
    redis_client.flushall()


@pytest.fixture
def stored(redis_client: redis.Redis) -> Callable[[], dict[str, str]]:
    """Returns the limits of the queue."""

    def read() -> dict[str, str]:
        found: Any = redis_client.hgetall(keys.of_limits("images")[3])
        return {name.decode(): text.decode() for name, text in found.items()}

    return read


@pytest.fixture
def named(redis_client: redis.Redis) -> Callable[[str], str]:
    """Returns the keys that a request names."""

    def read(request_id: str) -> str:
        raw: Any = redis_client.hget(keys.request_hash(request_id), "gate")
        return str((raw or b"").decode().rpartition("%")[2])

    return read


def worker_of(app: App, **options: Any) -> App:
    """Runs a worker of another release of the app until the queue is idle."""
    other = App("images", app.url)
    other.task(**options)(charge)
    workers_of([other])[0].run(until_idle=True)
    other.close()
    return other


# ------------------------------------------------------------------ ways of submission


def test_each_way_of_submission_names_the_keys(app: App, named: Callable[[str], str]):
    task = app.task(limit=2, limits=BY_CUSTOMER)(charge)
    last = app.task(name="last", limit=1)(charge)
    ids = [
        task.submit(7).id,
        task.with_options(delay=60, priority=2).with_options(retain=60).submit(7).id,
        group(task.s(7), task.s(7)).submit().id,
        asyncio.run(_asubmit(task)),
    ]
    assert [named(one) for one in ids] == ["customer-7=3,task/charge=2"] * 4
    run = chain(task.s(7), last.s(5)).submit().run
    steps = [named(one.progress.id) for one in run.progress().steps]
    assert steps == ["customer-7=3,task/charge=2", "task/last=1"]


async def _asubmit(task: Task[..., Any, Any]) -> str:
    found = await task.asubmit(7)
    await task.app.aclose()
    return found.id


def test_a_batch_names_the_keys_of_what_its_calls_have_in_common(
    app: App, named: Callable[[str], str]
):
    def pay(amount: int, customer_id: int = 4) -> None: ...

    task = app.task(limit=20, limits=BY_CUSTOMER)(pay)
    batch = task.map([1, 2], customer_id=7)
    assert named(batch.id) == "customer-7=3,task/pay=20"
    assert batch.progress().limit == 20
    assert named(task.map([1, 2]).id) == "customer-4=3,task/pay=20"
    assert named(task.starmap([(1,)], customer_id=8).id) == "customer-8=3,task/pay=20"
    assert task.with_options(batch_limit=2).map([1]).progress().limit == 2


def test_a_group_names_the_keys_of_all_its_calls(app: App, named: Callable[[str], str]):
    one, other = app.task(name="a", limit=7)(charge), app.task(name="b", limit=2)(charge)
    run = group(one.s(1), other.s(1)).submit(limits={"api": 5})
    assert named(run.id) == "api=5,task/a=7,task/b=2"
    assert run.request.progress().limit == 7


def test_a_schedule_names_the_keys_of_its_call(app: App, named: Callable[[str], str]):
    task = app.task(limit=2, limits=BY_CUSTOMER)(charge)
    app.cron("* * * * * *", name="each", args=(7,))(task)
    (worker,) = workers_of([app])
    worker.run(watch=lambda counts: counts["done"] >= 1)
    ended = [end.id for end in app.queue.completions("0", follow=False)]
    assert named(ended[0]) == "customer-7=3,task/charge=2"


def test_a_task_with_a_limit_may_have_an_order(app: App, named: Callable[[str], str]):
    """The order makes the request's own limit 1; the limit of the task is a key."""
    task = app.task(limit=3)(charge)
    other = app.task(name="other", limit=2, order_key="k")(charge)
    ordered = task.with_options(order_key="k")
    requests = [
        ordered.submit(1).request,
        ordered.map([1, 2]).request,
        group(ordered.s(1), ordered.s(2)).submit().request,
        group(task.s(1), task.s(2)).submit(order_key="k").request,
        app.queue.request(chain(ordered.s(1), task.s(2)).submit().run.id + ".1"),
    ]
    for one in requests:
        order, limit = named(one.id).split(",")
        assert (order[:3], limit, one.progress().limit) == ("!k=", "task/charge=3", 1)
    assert named(other.submit(1).id).endswith(",task/other=2")


def test_an_option_of_a_call_may_depend_on_one_of_its_task(app: App):
    """Each is refused without the option of the task."""
    own: dict[str, Any] = {"order_key": "k", "tenant": "acme", "rate": "100/s"}
    own |= {"burst": 4, "after": ["r0"]}
    app.queue.submit_request(["a"], id="r0")
    task, plain = app.task(**own)(charge), app.task(name="plain")(charge)
    for given in (
        {"order_on_dead": "stop"}, {"share": 5}, {"burst": 2}, {"weight": 2},
        {"after_any_end": True},
    ):  # fmt: skip
        options: Any = given
        (name,) = given
        with pytest.raises(InvalidArgument, match=f"{name} needs"):
            plain.with_options(**options)
        with pytest.raises(InvalidArgument, match=f"{name} needs"):
            group(plain.s(1)).submit(**options)
        assert task.with_options(**options).submit(1).request.progress().order_key == "k"
        assert group(task.s(1)).submit(**options).request.progress().order_key == "k"
    with pytest.raises(InvalidArgument, match="deadline 5 s is not valid"):
        plain.with_options(delay=9).with_options(deadline=5)


@for_each("names", [["own"], ["call"], ["own", "call"]])
def test_a_batch_limit_beside_an_order_is_refused_by_its_name(app: App, names: list[str]):
    own: dict[str, Any] = {"batch_limit": 4} if "own" in names else {}
    given: dict[str, Any] = {"batch_limit": 4} if "call" in names else {}
    task = app.task(name="-".join(names), **own)(charge)
    with pytest.raises(InvalidArgument, match="batch_limit 4 is not possible with order_key"):
        task.with_options(order_key="k", **given)
    assert task.with_options(order_key="k", batch_limit=1).submit(1).request.progress().limit == 1


def test_an_executor_has_a_request_for_the_calls_with_the_same_keys(
    app: App, program: Program, named: Callable[[str], str]
):
    program.file(CODE, "thecode.py")
    tasks = app.task(limit=3)(charge), app.task(name="plain")(charge)
    with Executor(app, max_workers=8, limits={"api": 9}) as executor:
        futures = [executor.submit(task, n) for n in range(20) for task in tasks]
        wait_until(lambda: len(app.queue.status().requests) == 2)
        found = [(named(one.id), one.limit) for one in app.queue.status().requests]
        assert sorted(found) == [("api=9", 8), ("api=9,task/charge=3", 8)]
        ended = program("worker", "--app", "thecode:app", "--concurrency", "8", "--until-idle")
        assert ended.code == 0, ended.err
        assert [one.result(PATIENCE_S) for one in futures] == [
            n + 1 for n in range(20) for _ in tasks
        ]


def test_eager_calls_are_checked_and_run_one_after_the_other():
    app = App("images", "redis://127.0.0.1:1")
    task = app.task(limit=1, limits=BY_CUSTOMER)(charge)
    with eager(app):
        assert [task.submit(n).result() for n in (1, 2)] == [2, 3]


# ------------------------------------------------------------------ who sets the limit


def test_a_worker_sets_the_limit_of_its_tasks_and_the_last_one_wins(
    app: App, stored: Callable[[], dict[str, str]]
):
    worker_of(app, limit=3)
    assert stored() == {OWN: "3 task"}
    worker_of(app, limit=5)
    assert stored() == {OWN: "5 task"}
    worker_of(app)
    assert stored() == {}


def test_a_call_that_comes_first_takes_what_it_brings(
    app: App, stored: Callable[[], dict[str, str]]
):
    old, new = app.task(limit=3)(charge), App("images", app.url).task(limit=5)(charge)
    old.submit(1)
    new.submit(1)
    assert stored() == {OWN: "3"}
    new.app.close()


def test_a_call_never_changes_a_limit_that_a_worker_has_set(
    app: App, stored: Callable[[], dict[str, str]]
):
    worker_of(app, limit=3)
    app.task(limit=9)(charge).submit(1)
    app.queue.submit_request(["x"], limits={OWN: 10})
    assert stored() == {OWN: "3 task"}
    assert app.queue.key(OWN).limit == app.queue.key(OWN).of_task == 3


def test_a_limit_by_hand_stays_until_it_is_unset(app: App, stored: Callable[[], dict[str, str]]):
    worker_of(app, limit=3)
    app.queue.set_key(OWN, 8)
    worker_of(app, limit=5)
    assert stored() == {OWN: "8 set 5"}
    found = app.queue.key(OWN)
    assert (found.limit, found.is_set, found.of_task) == (8, True, 5)
    app.queue.set_key(OWN, None)
    assert stored() == {OWN: "5 task"}


def test_both_sides_log_that_they_differ(
    app: App, worker_log: list[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("fairlane.tasks.registered_limits._LOOK_S", -1.0)
    driver = app.queue.driver
    old = RegisteredLimits("images", [app.task(limit=3)(charge).keys])
    new = RegisteredLimits("images", [App("images").task(limit=5)(charge).keys])
    old.register(driver)
    old.look(driver)
    assert worker_log == []
    new.register(driver)
    for _ in range(2):
        old.look(driver)
        new.look(driver)
    assert len(worker_log) == 2
    assert worker_log[0] == "task charge of queue images has the limit 5 now, before 3"
    assert worker_log[1].startswith(
        "task charge of queue images has the limit 5 now, which another worker has set; the rel"
    )
    app.queue.set_key(OWN, 7)
    old.register(driver)
    assert worker_log[2].startswith(
        "task charge of queue images keeps the limit 7, which was set by hand, and not 3: fairlane "
    )


def test_a_worker_whose_tasks_have_no_limit_looks_for_none(app: App):
    calls = list[object]()

    class Driver:
        def run(self, operation: object) -> None:
            calls.append(operation)

    plain = RegisteredLimits("images", [app.task(charge).keys, app.task(name="größe")(charge).keys])
    plain.look(Driver())  # type: ignore[arg-type]
    assert calls == []


# ------------------------------------------------------------------ how many run


def test_no_more_calls_of_a_task_run_at_a_time_than_its_limit(app: App, program: Program):
    """Over single calls, a batch and a group, by two processes of a worker."""
    program.file(CODE, "thecode.py")
    task = app.task(limit=3, batch_limit=8)(charge)
    calls = [task.submit(n) for n in range(30)]
    batch = task.map(range(30))
    run = group(*(task.s(n) for n in range(10))).submit()
    words = ("--app", "thecode:app", "--concurrency", "4", "--processes", "2", "--until-idle")
    ended = program("worker", *words)
    assert ended.code == 0, ended.err
    assert [call.result(PATIENCE_S) for call in calls] == [n + 1 for n in range(30)]
    assert [*batch] == [n + 1 for n in range(30)]
    assert len(run.results(PATIENCE_S)) == 10
    running = most = 0
    for word in (program.folder / "interval").read_text().split():
        running += 1 if word == "begin" else -1
        most = max(most, running)
    assert most == 3


def test_a_task_without_a_limit_sends_what_a_plain_request_sends(
    app: App, redis_client: redis.Redis
):
    def sent(submit: Callable[[], object]) -> dict[str, int]:
        submit()  # the first one loads scripts
        redis_client.config_resetstat()
        submit()
        stats: dict[str, Any] = redis_client.info("commandstats")
        return {name: row["calls"] for name, row in stats.items() if "config" not in name}

    task, body = app.task(charge), b'[1,"charge",{"customer_id":1}]'
    plain = sent(lambda: app.queue.submit_request([body]))
    assert sent(lambda: task.submit(1)) == plain
