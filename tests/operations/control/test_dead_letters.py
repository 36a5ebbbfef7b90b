"""Tests dead sub-requests: they are listed, requeued before and after the end, and dropped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fairlane.errors import (
    DeadNotFound,
    InvalidArgument,
    RequestEnded,
    RequestNotFound,
)
from fairlane.model import DeadChoice
from fairlane.operations import dead_letters as dead_module
from fairlane.operations import lease
from fairlane.operations.completion import ERROR_DROPPED, error_texts_of_many, wait
from fairlane.operations.dead_letters import (
    ChosenDead,
    drop_dead,
    group_dead,
    queue_dead,
    requeue_dead,
)
from fairlane.protocol import keys
from fairlane.protocol.steps import Command, Message, Subscribe, forward
from tests.support.both_faces import both_faces
from tests.support.operations.stepping import script_of
from tests.support.run.for_each import for_each
from tests.support.scripts.dead_letters import ended, refuse, running, work_badly
from tests.support.scripts.requests import (
    dead,
    insert,
    next_slice,
    numbered,
    once,
    take_slice,
    work_off,
)

if TYPE_CHECKING:
    from fairlane.drivers.sync import SyncDriver
    from fairlane.protocol.steps import Operation, Step
    from fairlane.queue import Queue
    from fairlane.request import Request
    from tests.support.scripts.requests import Lane

RAISED = 'Traceback (most recent call last):\n  File "/own/{file}.py", line 7, in go\n{error}\n'
MIB = 1 << 20


async def going_on(operation: Operation[Any], step: Step) -> Any:
    """Runs an operation to its end from a step on that it has awaited."""
    try:
        while True:
            step = operation.send(await forward(step))
    except StopIteration as end:
        return end.value


def answers(request: Request) -> dict[int, tuple[str, bytes | None]]:
    found = [(one.index, (one.status, one.body)) for one in request.results()]
    assert len(found) == len(dict(found))
    return dict(found)


def test_a_text_is_read_from_any_request_that_still_has_it(driver: SyncDriver):
    named = [("r1", {b"n1", b"n2"}), ("r2", {b"n1"}), ("r3", {b"n1", b"n3"}), ("r4", set())]
    texts = {"r1": ("n2", "two"), "r2": ("n1", "one"), "r3": ("n1", "one")}
    errors = {name: keys.errors(name) for name in texts}
    for name, (digest, text) in texts.items():
        driver.run(once(Command(b"HSET", errors[name], digest, text)))
    assert driver.run(error_texts_of_many(named)) == {b"n1": "one", b"n2": "two"}
    assert driver.run(error_texts_of_many([])) == {}
    for key in errors.values():
        driver.run(once(Command(b"DEL", key)))


# ------------------------------------------------------------------ listing


@both_faces
def test_the_dead_come_with_all_that_is_known(queue: Queue):
    request, held = running(queue)
    (one,) = request.dead()
    assert (one.index, one.attempt, one.reason, one.error) == (0, 1, "rejected", "bad port")
    assert (one.worker, one.body, len(one.fingerprint)) == ("w:1", b"b0", 10)
    assert one.died_ms == int(one.dead_id.split("-")[0])
    queue.driver.run(once(lease.complete(held, [], [], [], keep=False)))


def test_the_dead_are_read_in_pages(queue: Queue, monkeypatch: pytest.MonkeyPatch):
    """Their bodies must never be in memory together."""
    sizes = []
    read = dead_module.read_dead

    async def watched(request_id: str, after: str) -> Any:
        page = await read(request_id, after)
        sizes.append(len(page))
        return page

    monkeypatch.setattr(dead_module, "read_dead", watched)
    request = ended(queue, [b"x" * MIB, *numbered(8)])
    assert [one.index for one in request.dead()] == list(range(9))
    assert sizes == [3, 3, 3, 0]


def test_failures_alike_are_one_group(queue: Queue):
    queue.submit_request(numbered(20), id="r1", limit=1)
    queue.submit_request(["x"], id="r2")
    texts = [RAISED.format(file="port", error=f"ValueError: bad port {i}") for i in range(2)]
    held = next_slice(queue.driver)
    for number, (entry_id, _) in enumerate(held.entries):
        verdict = dead(entry_id, "other words" if number == 5 else texts[number % 2])
        queue.driver.run(once(lease.complete(held, [], [], [verdict], keep=True)))
    (first, second), _ = queue.driver.run(group_dead("r1"))
    assert (first.count, first.reason, first.indexes) == (19, "rejected", [0, 1, 2, 3, 4])
    assert (first.headline, first.where) == ("ValueError: bad port 0", "port.py:7 go")
    assert (second.count, second.headline, second.where) == (1, "other words", None)
    assert first.first_ms <= second.first_ms == second.last_ms <= first.last_ms
    queue.driver.run(once(lease.complete(held, [], [], [], keep=False)))


def test_a_queue_lists_which_of_its_requests_have_dead_ones(queue: Queue, lane: Lane):
    for name in ("old", "dropped", "fine"):
        queue.submit_request(["a", "b"], id=name)
        work_badly(lane.driver, (lambda _: False) if name == "fine" else (lambda _: True))
    queue.request("dropped").drop_dead()
    running(queue)
    lane.client.xadd(keys.completed("req"), {"id": "lost", "state": "done", "dead": 3})
    found = lane.run(queue_dead("req"))
    names = ("id", "state", "outcome", "dead", "kept", "reasons")
    assert [tuple(one[name] for name in names) for one in found["requests"]] == [
        ("r1", "active", None, 1, 1, {"rejected": 1}),
        ("old", "done", "failed", 2, 2, {"rejected": 2}),
    ]
    assert found["more"] == 0
    assert lane.run(queue_dead("other")) == {"requests": [], "more": 0}


def test_a_long_log_is_read_from_its_end(queue: Queue, lane: Lane, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(dead_module, "PAGE", 2)
    monkeypatch.setattr(dead_module, "_LOOK_AT", 4)
    for number in range(7):
        queue.submit_request(["a", "b"], id=f"n{number}")
        work_badly(lane.driver)
    found = lane.run(queue_dead("req"))
    assert [row["id"] for row in found["requests"]] == ["n6", "n5", "n4", "n3"]
    assert found["more"] == 3
    assert lane.client.xlen(keys.completed("req")) == 7


@pytest.mark.parametrize("what", ["dead", "requeue_dead", "drop_dead"])
def test_a_missing_request_is_not_found(queue: Queue, lane: Lane, what: str):
    ask = getattr(queue.request("r1"), what)
    with pytest.raises(RequestNotFound, match="no request r1"):
        list(ask())
    assert lane.dump() == {}


# ------------------------------------------------------------------ choosing


@both_faces
def test_only_those_named_are_dropped(queue: Queue, lane: Lane):
    request = ended(queue, numbered(5))
    assert request.drop_dead(indexes=[1, 3]) == 2
    assert [one.index for one in request.dead()] == [0, 2, 4]
    assert request.drop_dead(indexes=[]) == 0
    (fingerprint,) = {one.fingerprint for one in request.dead()}
    assert request.drop_dead(fingerprint=[]) == 0
    assert request.drop_dead(fingerprint=fingerprint) == 3
    assert request.drop_dead() == 0
    assert (request.progress().dead, len(answers(request))) == (5, 5)
    assert lane.is_whole()


def test_what_is_not_among_the_dead_is_named_before_anything_happens(queue: Queue, lane: Lane):
    request = ended(queue)
    before = lane.dump()
    for call in (request.drop_dead, request.requeue_dead):
        with pytest.raises(DeadNotFound, match="no dead sub-request with index 7, 9"):
            call(indexes=[0, 9, 7])
        with pytest.raises(DeadNotFound, match="with fingerprint 0123456789"):
            call(fingerprint="0123456789")
    assert lane.dump() == before


def test_of_many_that_are_missing_some_are_named(queue: Queue):
    request = ended(queue)
    with pytest.raises(DeadNotFound, match=r"with index 3, 4, 5, 6, 7 and 1,992 more: it was"):
        request.requeue_dead(indexes=range(2000))
    with pytest.raises(DeadNotFound, match=r"with index 3, 4, 5, 6, 7: it was never dead"):
        request.drop_dead(indexes=range(8))


@for_each(
    "named",
    [
        {"indexes": [-1]},
        {"indexes": ["1"]},
        {"indexes": 3},
        {"fingerprint": "xyz"},
        {"fingerprint": [7]},
        {"fingerprint": "0123456789", "indexes": [1]},
    ],
)
def test_a_choice_that_cannot_be_is_refused(queue: Queue, named: dict[str, Any]):
    with pytest.raises(InvalidArgument):
        queue.request("r1").requeue_dead(**named)


def test_many_ids_are_kept_small():
    chosen = ChosenDead()
    for number in range(10):
        chosen.add(b"1700000000000-%d" % number)
    assert len(chosen) == 10
    assert chosen.ids(8, 12) == ["1700000000000-8", "1700000000000-9"]


# ------------------------------------------------------------------ requeue before the end


def test_before_the_end_it_runs_in_its_own_request(queue: Queue, lane: Lane):
    request, held = running(queue)
    assert request.requeue_dead() == 1
    reply = lane.run(once(lease.complete(held, [], [], [], keep=False)))
    insert(lane.driver, "req", "r1", reply[2])
    assert sorted(work_off(lane.driver)) == numbered(3)
    assert {index: status for index, (status, _) in answers(request).items()} == dict.fromkeys(
        range(3), "done"
    )
    found = request.progress()
    assert (found.state, found.total, found.done, found.dead) == ("done", 3, 3, 0)
    assert (found.reopened, found.repairs) == (0, ())
    assert lane.client.xlen(keys.dead("r1")) == 0


def test_its_tokens_are_dispatched(queue: Queue):
    request = queue.submit_request(["a", "b"], id="r1", limit=2)
    one, two = next_slice(queue.driver), next_slice(queue.driver)
    refuse(queue.driver, one, lambda _: True)
    assert take_slice(queue.driver) is None
    request.requeue_dead()
    assert work_off(queue.driver) == [b"a"]
    refuse(queue.driver, two, lambda _: False)
    assert request.state() == "done"


def test_many_take_several_calls(queue: Queue, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(dead_module, "CALL_REQUEUED", 10)
    request = queue.submit_request(numbered(36), id="r1", limit=2)
    one, two = next_slice(queue.driver, count=34), next_slice(queue.driver)
    refuse(queue.driver, one, lambda _: True)
    while (more := take_slice(queue.driver)) is not None:
        refuse(queue.driver, more, lambda _: True)
    dead = request.progress().dead
    assert dead + len(two.entries) == 36
    assert queue.driver.run(requeue_dead("r1")) == dead
    assert request.progress().dead == 0
    assert len(work_off(queue.driver)) == dead


def test_a_request_that_is_being_cancelled_takes_nothing_back(queue: Queue):
    request, held = running(queue)
    request.cancel()
    with pytest.raises(RequestEnded, match="when it has ended"):
        request.requeue_dead()
    refuse(queue.driver, held, lambda _: False)
    assert request.state() == "cancelled"
    assert request.requeue_dead() == 1
    assert request.state() == "active"


def test_a_reader_sees_the_last_outcome_only(queue: Queue):
    request = queue.submit_request(numbered(2), id="r1", limit=2)
    one, two = next_slice(queue.driver), next_slice(queue.driver)
    refuse(queue.driver, two, lambda _: True)
    early = request.results("done")
    assert next(early).status == "dead"
    request.requeue_dead()
    work_off(queue.driver)
    refuse(queue.driver, one, lambda _: False)
    assert [(found.index, found.status) for found in early] == [(1, "done"), (0, "done")]
    assert {found.status for found in request.results()} == {"done"}


# ------------------------------------------------------------------ requeue after the end


@both_faces
def test_after_the_end_they_run_again_in_their_own_request(queue: Queue):
    options: dict[str, Any] = {
        "priority": 7, "limit": 9, "attempts": 2, "backoff": (0.005, 0.006), "lease": 7,
        "retain": 7_200, "time_limit": 0.9, "tags": ["mine"],
    }  # fmt: skip
    request = queue.submit_request(numbered(4), id="r1", **options)
    work_badly(queue.driver, lambda body: body in {b"b1", b"b3"})
    before = request.progress()
    assert before.outcome == "partly_failed"
    assert request.requeue_dead() == 2
    found = request.progress()
    assert (found.state, found.total, found.done, found.dead) == ("active", 4, 2, 0)
    assert (found.outcome, found.ended_ms, found.reopened) == (None, None, 1)
    assert (found.submitted_ms, found.tags) == (before.submitted_ms, ("mine",))
    assert (found.priority, found.limit, found.time_limit_ms) == (7, 9, 900)
    assert sorted(work_off(queue.driver)) == [b"b1", b"b3"]
    assert request.wait(5) == "done"
    assert list(request.dead()) == []
    assert [status for status, _ in answers(request).values()] == ["done"] * 4
    assert request.progress().outcome == "repaired"
    assert [(one.reopened, one.count) for one in request.progress().repairs] == [(1, 2)]
    assert request.requeue_dead() == 0
    assert request.requeue_dead(indexes=[]) == 0


def test_a_list_shows_a_request_that_was_reopened_once(queue: Queue, lane: Lane):
    """A running repair hides the former end, and the newest end hides the others."""
    request = ended(queue)
    request.requeue_dead(indexes=[0])

    def listed(**wanted: Any) -> list[tuple[str, str, int]]:
        rows = queue.list_requests(**wanted).requests
        return [(one.id, one.shown_state, one.reopened) for one in rows]

    assert listed() == [("r1", "active", 1)]
    assert listed(states="failed") == []
    work_off(queue.driver)
    assert listed() == [("r1", "done, 2 dead", 1)]
    request.requeue_dead()
    work_off(queue.driver)
    assert listed() == listed(states="repaired") == [("r1", "done, repaired", 2)]
    assert [one.reopened for one in queue.completions("0", follow=False)] == [0, 1, 2]
    lane.client.unlink(*lane.names)
    assert listed() == [("r1", "done, repaired", 2)]


@both_faces
def test_a_part_of_them_after_the_end(queue: Queue):
    request = ended(queue, numbered(4))
    assert request.requeue_dead(indexes=[2]) == 1
    (fingerprint,) = {found.fingerprint for found in request.dead()}
    assert request.requeue_dead(fingerprint=[fingerprint]) == 3
    assert sorted(work_off(queue.driver)) == numbered(4)
    assert request.progress().reopened == 1


def test_big_ones_go_in_several_calls(queue: Queue):
    """No call moves more than about 4 MiB, and the request does not end between two of them."""
    bodies = [b"%02d" % i + b"x" * (MIB // 2 - 2) for i in range(11)]
    request = ended(queue, bodies)
    assert request.requeue_dead() == 11
    assert sorted(work_off(queue.driver)) == sorted(bodies)
    assert (request.progress().reopened, list(request.dead())) == (1, [])


def test_a_waiter_that_has_not_looked_waits_for_the_next_end(queue: Queue, lane: Lane):
    """It got the message of the first end, and reads the state when that is open again."""
    request = ended(queue)
    operation = wait("r1", lambda: 0.0, 9.0)
    step = operation.send(None)
    assert isinstance(step, Subscribe)
    request.requeue_dead()
    step = operation.send(None)
    while not isinstance(step, Message):
        step = operation.send(lane.run(once(step)))
    work_off(queue.driver)
    assert lane.run(going_on(operation, Command(b"EXISTS", keys.request_hash("r1")))) == "done"
    assert request.progress().outcome == "repaired"


def test_results_that_have_expired_cannot_be_repaired(queue: Queue, lane: Lane):
    request = ended(queue)
    lane.client.delete(keys.results("r1"))
    with pytest.raises(RequestEnded, match="its results have expired: submit the work again"):
        request.requeue_dead()
    assert (request.state(), lane.client.zcard(keys.active("req"))) == ("done", 0)


def test_nothing_that_was_dropped_opens_the_request(queue: Queue, lane: Lane):
    """It was dropped after the choice; the intent is taken back."""
    request = ended(queue)
    operation = requeue_dead("r1")
    step = operation.send(None)
    while script_of(step) != "requeue_dead":
        step = operation.send(lane.run(once(step)))
    request.drop_dead()
    assert lane.run(going_on(operation, step)) == 0
    assert (request.state(), lane.client.zcard(keys.active("req"))) == ("done", 0)


def test_a_choice_without_ids_means_all_and_an_empty_one_none():
    """Without a choice all are meant; an empty list means none."""
    assert DeadChoice.of() == DeadChoice()
    assert DeadChoice.of(indexes=[]) != DeadChoice()


def test_dropping_twice_is_once(queue: Queue):
    ended(queue)
    assert [queue.driver.run(drop_dead("r1")) for _ in range(2)] == [3, 0]


# ------------------------------------------------------------------ the texts of errors


def test_a_result_says_that_its_error_was_dropped(queue: Queue):
    request = ended(queue, numbered(2))
    before = {one.index: one.error for one in request.results()}
    assert before == {one.index: one.error for one in request.dead()}
    assert request.drop_dead() == 2
    results = list(request.results())
    assert [(one.status, one.error) for one in results] == [("dead", ERROR_DROPPED)] * 2
    assert not queue.driver.run(once(Command(b"EXISTS", keys.errors(request.id))))


def test_big_dead_letters_are_dropped_a_few_in_a_call(queue: Queue):
    """The script reads what it drops."""
    request = ended(queue, [b"x" * MIB, *numbered(8)])
    named = []

    def watched() -> Any:
        operation: Any = drop_dead(request.id)
        reply: Any = None
        while True:
            try:
                step = operation.send(reply)
            except StopIteration as end:
                return end.value
            if script_of(step) == "drop_dead":
                named.append(len(step.args))
            reply = yield step

    assert queue.driver.run(watched()) == 9
    assert named == [3, 3, 3]
