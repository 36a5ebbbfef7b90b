"""Steps of flows without workers: submit, settle, hand over, and read the outcome."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairlane.model import Verdict, result_head
from fairlane.operations import change, lease, tokens
from fairlane.operations.flow_branches import Fan, Next, StepPlace, packed
from fairlane.operations.flow_hand_over import hand_over, read_choices
from fairlane.operations.flows import flow_progress, flow_state, submit_flow
from fairlane.protocol import keys
from tests.support.operations.lost_replies import settle, slice_of_a_token, take
from tests.support.scripts.requests import insert, numbered, once

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairlane.drivers.sync import SyncDriver
    from fairlane.model import Slice
    from fairlane.operations.flows import Flow

FIRST, SECOND, THIRD, FOURTH = "r.1", "r.2", "r.3", "r.4"
EVERY = (SECOND, THIRD, FOURTH, *(f"r.{number}" for number in range(5, 11)))


class Plain:
    """A driver for scenarios, which also runs single steps."""

    def __init__(self, driver: SyncDriver, client: Any) -> None:
        self.run, self.client = driver.run, client

    def do(self, step: Any) -> Any:
        return self.run(once(step))


def start(driver: Any, flow: Flow, count: int = 4) -> None:
    steps = flow.plan("req", "r", {"user_id": 5})
    driver.run(submit_flow(steps), iter([numbered(count)]))


def start_digits(driver: Any, flow: Flow, count: int = 4) -> None:
    """Submits a flow whose bodies are 0, 1, and so on."""
    steps = flow.plan("req", "r", {"user_id": 5})
    driver.run(submit_flow(steps), iter([[b"%d" % one for one in range(count)]]))


def work(driver: Any, *verdicts: str) -> None:
    """Settles one sub-request for each verdict: "" = it is done."""
    for verdict in verdicts:
        settle(driver, take(driver), verdict=verdict)


def drain(driver: Any) -> None:
    """Works until no token is left."""
    while (held := slice_of_a_token(driver, 1000)) is not None:
        settle(driver, held)


class Dead(Exception):
    """Raised by a handler of a test: its sub-request is dead."""


def work_by(driver: Any, handler: Callable[[str, bytes], Any], most: int = 1000) -> int:
    """Settles what waits with what a handler returns for a step and a body; returns how many."""
    count = 0
    while count < most and (held := slice_of_a_token(driver, 1)) is not None:
        settle_by(driver, held, handler)
        count += 1
    return count


def settle_by(driver: Any, held: Slice, handler: Callable[[str, bytes], Any]) -> None:
    """Settles one sub-request with what a handler returns, checked as a worker checks it."""
    ((entry_id, (_, body)),) = held.entries
    index = entry_id.rpartition(b"-")[2]
    place = StepPlace.parse(driver.client.hget(keys.request_hash(held.request_id), "flow").decode())
    assert place is not None
    try:
        result = handler(place.step, body)
    except Dead:
        head = result_head(index, b"x", 1, 0, 0)
        call = lease.complete(held, [], [], [Verdict(entry_id, "dead", 0, head, "why")], keep=False)
    else:
        status, data = (b"n", b"") if result is None else (b"d", result)
        if isinstance(result, (Next, Fan)):
            found = driver.run(read_choices(held.request_id))
            found[1].check(result, place.step, place.flow)
            status, data = packed(result, found[1].steps)
        head = result_head(index, status, held.attempt, 0, 0)
        call = lease.complete(held, [entry_id], [head, data], [], keep=False)
    reply = driver.do(call)
    if reply[0] == b"ended":
        driver.do(tokens.retire("req", held.request_id, reply[1]))
    else:
        insert(driver, "req", held.request_id, reply[-1])


def work_off_by(driver: Any, handler: Callable[[str, bytes], Any]) -> str:
    """Hands over and works until nothing waits; returns the state of the run."""
    for _ in range(30):
        work_by(driver, handler)
        if (state := driver.run(flow_state("r"))) != "active":
            return str(state)
        feed_all(driver)
    raise AssertionError("it does not end")


def work_off(driver: Any, request_id: str = "r") -> None:
    """Hands over and works until nothing waits."""
    for _ in range(20):
        drain(driver)
        if driver.run(flow_state(request_id)) != "active":
            return
        feed_all(driver)
    raise AssertionError("it does not end")


def feed_all(driver: Any) -> None:
    """Hands over to every step."""
    for name in EVERY:
        driver.run(hand_over(name))


def counts(driver: Any) -> list[tuple[str, str, int, int, int]]:
    return [
        (one.step, one.progress.state, one.progress.total, one.progress.done, one.progress.dead)
        for one in driver.run(flow_progress("r")).steps
    ]


def bodies_of(driver: Any, request_id: str) -> list[bytes]:
    stream = keys.request_keys(request_id)[0]
    return [fields[b"b"] for _, fields in driver.client.xrange(stream)]


def lose_what_was_not_sent(driver: Any) -> None:
    """Restores tokens that were minted, and not inserted, as maintenance does."""
    for one in EVERY:
        if is_unfinished(driver, one):
            driver.run(change.pause(one))
            driver.run(change.resume(one))


def is_unfinished(driver: Any, request_id: str) -> bool:
    state = driver.client.hget(keys.request_hash(request_id), "state")
    return state not in {b"done", b"cancelled", None}


def rest_of(operation: Any, step: Any) -> Any:
    """Runs an operation that has yielded this step."""
    while True:
        reply = yield step
        try:
            step = operation.send(reply)
        except StopIteration as end:
            return end.value


def kept(driver: Any, request_id: str) -> dict[bytes, bytes]:
    """Returns the keys of a request as a replica has them, to be set back to."""
    names = keys.request_keys(request_id)
    return {key: text for key in names if (text := driver.client.dump(key)) is not None}


def set_back(driver: Any, request_id: str, rows: dict[bytes, bytes]) -> None:
    """Plays a failover of a request's slot, which takes back what came after `kept`."""
    driver.client.delete(*keys.request_keys(request_id))
    for key, text in rows.items():
        driver.client.restore(key, 0, text)
    driver.run(change.pause(request_id))  # its tokens are minted again, as maintenance does
    driver.run(change.resume(request_id))


def put_cursor_ahead(driver: Any, request_id: str, sources: int = 1) -> None:
    """Makes the cursor later than all results that will come: the new primary's clock is behind."""
    driver.client.hset(
        keys.request_hash(request_id), "handed", ",".join(["9999999999999-0"] * sources)
    )
