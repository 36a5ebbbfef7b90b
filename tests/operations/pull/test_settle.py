"""Tests how receipts settle taken sub-requests: each verb, twice, after another one, too late."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from fairlane import settings
from fairlane.errors import InvalidArgument, NotDurable, ReceiptExpired
from fairlane.operations.take import new_proof, parse_receipt
from fairlane.protocol import keys
from fairlane.queue import Queue
from tests.support.both_faces import both_faces
from tests.support.processes.takers import HOUR, take_again, take_one
from tests.support.run.for_each import for_each
from tests.support.scripts.requests import numbered
from tests.support.servers.replicas import run_pair

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairlane.records import Result
    from fairlane.request import Request
    from fairlane.taken import Taken

TOO_OLD = pytest.raises(ReceiptExpired, match="is too old: its lease is over")


def taken_of(queue: Queue, total: int = 2, **options: Any) -> tuple[Request, Taken]:
    """Takes the first sub-request of a request with so many."""
    request = queue.submit_request(numbered(total), id="r1", **({"limit": 1} | options))
    return request, take_one(queue, visible_for=HOUR)


def results(request: Request) -> list[Result]:
    """Returns the results so far, also while the request runs."""
    found: list[Result] = []
    with contextlib.suppress(TimeoutError):
        found += request.results(timeout=0)
    return found


VERBS: dict[str, Callable[[Taken], object]] = {
    "done": lambda taken: taken.done("result"),
    "dead": lambda taken: taken.dead("broken"),
    "release": lambda taken: taken.release(),
    "extend": lambda taken: taken.extend(HOUR),
}
BOTH = pytest.mark.parametrize("total", [1, 2], ids=["the last one", "one of two"])


# ------------------------------------------------------------------ done


@for_each(
    "result, stored",
    [(None, None), ("é", "é".encode()), (b"\0", b"\0"), (bytearray(b"x"), b"x"), ("", b"")],
)
def test_done_stores_the_result(queue: Queue, result: Any, stored: bytes | None):
    request, taken = taken_of(queue, 1)
    taken.done(result)
    (found,) = request.results()
    assert (found.index, found.status, found.attempt, found.body) == (0, "done", 1, stored)
    assert found.worker.startswith("taker:")
    assert found.ran_ms > 0


@both_faces
@BOTH
def test_done_twice_keeps_the_first_result(queue: Queue, total: int):
    request, taken = taken_of(queue, total)
    taken.done("first")
    taken.done("second")
    assert [one.body for one in results(request)] == [b"first"]
    assert request.progress().done == 1


def test_done_twice_without_a_retention_is_done_once(queue: Queue):
    request, taken = taken_of(queue, 1, retain=0)
    taken.done()
    taken.done()
    assert request.progress().done == 1


@for_each("result", [1, ["a"], "\ud800", b"x" * (1 << 20) + b"x"])
def test_a_result_that_cannot_be_stored_is_refused_and_the_lease_stays(queue: Queue, result: Any):
    _, taken = taken_of(queue)
    with pytest.raises(InvalidArgument, match="the result"):
        taken.done(result)
    assert taken.extend()


def test_a_result_that_is_written_while_others_end_is_found_again(queue: Queue):
    """A repeat searches what was written since, page by page."""
    queue.submit_request(numbered(1200), id="r1", limit=1200)
    first, *others = [one for _ in range(12) for one in queue.take(100)]
    for one in others[:600]:
        one.done()
    first.done("mine")
    for one in others[600:]:
        one.done()
    first.done("mine")
    with TOO_OLD:
        first.dead("late")


# ------------------------------------------------------------------ dead


@both_faces
@BOTH
def test_dead_keeps_the_body_and_the_reason(queue: Queue, total: int):
    request, taken = taken_of(queue, total)
    for _ in range(2):
        taken.dead("no such port")
    (dead,) = request.dead()
    assert (dead.index, dead.body, dead.attempt) == (0, b"b0", 1)
    assert (dead.reason, dead.error) == ("rejected", "no such port")
    assert dead.worker.startswith("taker:")


def test_the_dead_are_requeued_and_taken_again(queue: Queue):
    request, taken = taken_of(queue, 1)
    taken.dead("no such port")
    assert request.requeue_dead() == 1
    take_one(queue).done()
    assert request.progress().outcome == "repaired"


@for_each("reason", ["", "  ", None, 7])
def test_dead_needs_a_reason(queue: Queue, reason: Any):
    _, taken = taken_of(queue)
    with pytest.raises(InvalidArgument, match="reason"):
        taken.dead(reason)


def test_a_long_reason_is_cut_and_what_is_no_text_is_escaped(queue: Queue):
    request, taken = taken_of(queue, 1)
    taken.dead("\ud800" + "x" * 10_000)
    (dead,) = request.dead()
    assert dead.error.startswith("\\ud800xx")
    assert "\n[...]\n" in dead.error
    assert len(dead.error) == settings.MAX_ERROR


# ------------------------------------------------------------------ release


@both_faces
def test_release_returns_it_immediately_and_uncharged(queue: Queue):
    _, taken = taken_of(queue)
    for _ in range(2):
        taken.release()
    again = take_one(queue)
    assert (again.body, again.attempt) == (taken.body, 1)
    with TOO_OLD:
        taken.done()


def test_a_release_with_a_delay_comes_back_after_it(queue: Queue):
    _, taken = taken_of(queue, 1)
    taken.release(0.3)
    assert queue.take() == []
    assert take_one(queue, wait_s=60).attempt == 1


@BOTH
def test_a_release_of_what_is_settled_changes_nothing(queue: Queue, total: int):
    request, taken = taken_of(queue, total)
    taken.done("first")
    taken.release()
    assert [one.body for one in results(request)] == [b"first"]


@for_each("delay", [-1, float("nan"), float("inf"), 86_401, "1", None, True])
def test_a_delay_that_is_not_valid_is_refused(queue: Queue, delay: Any):
    _, taken = taken_of(queue)
    with pytest.raises(InvalidArgument, match="delay_s"):
        taken.release(delay)


# ------------------------------------------------------------------ extend


@both_faces
def test_extend_holds_it_from_now_on(queue: Queue, redis_client: Any):
    _, taken = taken_of(queue)

    def left_s() -> float:
        seconds, _ = redis_client.time()
        ends: float = redis_client.zscore(keys.leases("r1"), "0")
        return ends / 1000 - int(seconds)

    for seconds in (10, 2 * HOUR, 2 * HOUR, 60):
        assert taken.extend(seconds)
        assert seconds - 10 < left_s() <= seconds + 1


def test_extend_of_a_cancelled_request_reports_that_the_result_is_unwanted(queue: Queue):
    request, taken = taken_of(queue)
    assert not request.cancel()
    assert not taken.extend()
    taken.done("late, but done")
    assert (request.state(), request.progress().done) == ("cancelled", 1)
    assert [one.body for one in request.results()] == [b"late, but done"]


def test_release_ends_a_cancelled_request(queue: Queue):
    request, taken = taken_of(queue)
    request.cancel()
    for _ in range(2):
        taken.release()
    assert (request.state(), request.progress().cancelled) == ("cancelled", 2)


# ------------------------------------------------------------------ too late


@pytest.mark.parametrize("verb", VERBS)
@BOTH
def test_a_receipt_whose_lease_another_has_now_is_refused(
    queue: Queue, redis_client: Any, verb: str, total: int
):
    request, taken = taken_of(queue, total)
    again = take_again(queue, redis_client, taken)
    with TOO_OLD:
        VERBS[verb](taken)
    again.done("other")
    assert [one.body for one in results(request)] == [b"other"]


@pytest.mark.parametrize("verb", ["done", "dead", "extend"])
@BOTH
def test_a_receipt_is_refused_after_another_has_settled(
    queue: Queue, redis_client: Any, verb: str, total: int
):
    request, taken = taken_of(queue, total)
    take_again(queue, redis_client, taken).done("other")
    with TOO_OLD:
        VERBS[verb](taken)
    assert [one.body for one in results(request)] == [b"other"]


@for_each(
    "first, then", [("done", "dead"), ("dead", "done"), ("release", "done"), ("release", "dead")]
)
def test_another_verb_after_the_first_is_refused(queue: Queue, first: str, then: str):
    _, taken = taken_of(queue)
    VERBS[first](taken)
    with TOO_OLD:
        VERBS[then](taken)


@for_each("verb", VERBS)
def test_a_request_that_is_gone_refuses_its_receipts(queue: Queue, redis_client: Any, verb: str):
    _, taken = taken_of(queue)
    redis_client.flushall()
    with TOO_OLD:
        VERBS[verb](taken)
    assert redis_client.keys() == []


@for_each("verb", VERBS)
def test_a_receipt_of_an_earlier_life_settles_nothing_of_the_next(
    queue: Queue, redis_client: Any, verb: str
):
    _, taken = taken_of(queue)
    for key in redis_client.scan_iter("*{r1}*"):
        redis_client.delete(key)
    redis_client.delete(keys.active("req"))
    request, again = taken_of(queue)
    with TOO_OLD:
        VERBS[verb](taken)
    again.done("of this life")
    assert [one.body for one in results(request)] == [b"of this life"]


def test_an_expired_lease_that_was_not_taken_back_is_still_held(queue: Queue, redis_client: Any):
    """Another worker can't have it yet, so its result counts."""
    request, taken = taken_of(queue, 1)
    redis_client.zadd(keys.leases("r1"), {"0": 1})
    taken.done("in time")
    assert [one.body for one in request.results()] == [b"in time"]


# ------------------------------------------------------------------ receipts


@for_each("verb", VERBS)
def test_another_process_settles_by_the_text_of_the_receipt(
    queue: Queue, redis_url: str, verb: str
):
    _, taken = taken_of(queue)
    with Queue.from_url(redis_url) as other:
        same = other.taken(taken.receipt)
        assert (same.id, same.index, same.attempt, same.body) == ("r1", 0, 1, None)
        VERBS[verb](same)
        VERBS[verb](same)


def test_a_receipt_needs_no_quotes_in_a_url(queue: Queue):
    from urllib.parse import quote

    _, taken = taken_of(queue)
    assert quote(taken.receipt, safe="") == taken.receipt.replace(":", "%3A")


def test_a_receipt_of_another_queue_is_refused(queue: Queue, redis_url: str):
    _, taken = taken_of(queue)
    with (
        Queue.from_url(redis_url, name="other") as other,
        pytest.raises(InvalidArgument, match="is of queue req, not of other"),
    ):
        other.taken(taken.receipt)


@for_each(
    "text",
    [
        *("", "req", "req~r1", "req~r1~0.1.x.1-0.1.1.0", "req~r1~" + "0." * 99, None, b"req~r1", 7),
        "req~r{1~0.1." + "a" * 32 + ".1-0.1.1.0",
        "req~r1~0.1." + "a" * 32 + ".1-0.1.1.0\n",
    ],
)
def test_what_is_no_receipt_is_refused_without_a_call(queue: Queue, text: Any):
    with pytest.raises(InvalidArgument, match=r"receipt .* is not valid: pass the `receipt`"):
        queue.taken(text)


def test_a_receipt_that_was_made_up_settles_nothing(queue: Queue):
    request, taken = taken_of(queue)
    made_up = replace(parse_receipt(queue.name, taken.receipt), op=new_proof(queue.name))
    with TOO_OLD:
        queue.taken(made_up.text).done()
    assert request.progress().done == 0


@for_each("at", range(2, 9))
def test_a_receipt_of_which_a_part_was_changed_is_refused_and_the_lease_stays(
    queue: Queue, at: int
):
    """Otherwise the lease of another entry would end, and nothing would be settled."""
    request, taken = taken_of(queue)
    parts = taken.receipt.split(".")
    last = parts[at - 1][-1]
    parts[at - 1] = parts[at - 1][:-1] + ("1" if last == "0" else "0")
    with pytest.raises(InvalidArgument, match="was changed: pass it as it was when it was taken"):
        queue.taken(".".join(parts))
    taken.done()
    taken.done()
    assert request.progress().done == 1


# ------------------------------------------------------------------ durable requests


@pytest.mark.slow
def test_a_durable_request_confirms_what_is_settled(monkeypatch: pytest.MonkeyPatch):
    with run_pair() as pair, Queue.from_url(pair.primary.url) as queue:
        request, taken = taken_of(queue, 3, durable=1)
        request.set_limit(3)
        taken.done()
        late, other = queue.take(2)
        with pair.frozen(), monkeypatch.context() as short:
            short.setattr("fairlane.settings.CONFIRM_MS", 200)
            with pytest.raises(NotDurable, match="is settled, but only 0 of 1 replica"):
                late.done()
            with pytest.raises(NotDurable):
                late.done()
        late.done()
        other.dead("broken")
        assert (request.progress().done, request.progress().dead) == (2, 1)


def test_a_receipt_cannot_be_changed_to_name_another_queue(queue: Queue):
    queue.post("a", id="r1")
    (taken,) = queue.take()
    name = queue.name
    forged = taken.receipt.replace(f"{name}~", "other~", 1)
    other = Queue(queue.driver, "other")
    renamed = replace(parse_receipt(name, taken.receipt), queue="other")
    for text in (forged, renamed.text):
        with pytest.raises(InvalidArgument, match="was changed"):
            other.taken(text)
    with pytest.raises(InvalidArgument):
        queue.taken(taken.receipt.replace("~r1~", "~r1~٣", 1))
    assert [one.id for one in other.completions(since="0", follow=False)] == []
    queue.taken(taken.receipt).done()
    assert [one.id for one in queue.completions(since="0", follow=False)] == ["r1"]
