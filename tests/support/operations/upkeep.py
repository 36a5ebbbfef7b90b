"""Reads what maintenance finds in a queue, and watches its operations step by step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairlane.operations.audit import Suspect
from fairlane.protocol import keys
from fairlane.protocol.steps import Batch, Call, Command, Nodes, OnNode
from tests.support.scripts.requests import once

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairlane.drivers.sync import SyncDriver
    from fairlane.protocol.steps import Operation, Step
    from tests.support.scripts.requests import Lane, Tok

ACTIVE, DELAYED, WORKERS = keys.active("req"), keys.delayed("req"), keys.workers("req")
HOME = keys.lanes("req")[5]
STEPS = 200  # more than any of these operations may take


def server_ms(client: Any) -> int:
    """Returns the server's own clock, which the operations use."""
    seconds, micros = client.time()
    return int(seconds) * 1000 + int(micros) // 1000


def name_of(step: Step) -> str:
    """Returns a script's name, a command, or the same of a batch with its size."""
    match step:
        case Call():
            return str(step.script.name)
        case Command():
            return bytes(step.args[0]).decode()  # type: ignore[arg-type]
        case Batch():
            return f"{len(step.steps)} {name_of(step.steps[-1])}"
        case OnNode():
            return name_of(step.command)
        case Nodes():
            return "Nodes"
    raise AssertionError(step)


def watch(
    driver: SyncDriver,
    operation: Operation[Any],
    meanwhile: Callable[[str], object] = lambda _: None,
) -> tuple[Any, list[str]]:
    """Returns the result of an operation and its steps; `meanwhile` is called before each."""
    steps: list[str] = []
    reply: Any = None
    try:
        while len(steps) < STEPS:
            step = operation.send(reply)
            steps.append(name_of(step))
            meanwhile(steps[-1])
            reply = driver.run(once(step))
    except StopIteration as end:
        return end.value, steps
    raise AssertionError(f"it does not end: {steps[:9]} ...")


def queued(lane: Lane) -> dict[str, tuple[str, int, int]]:
    """Returns permit -> (g, lane, due) of the queued permits."""
    found = {}
    for k, text in lane.permits().items():
        if text.startswith("q:"):
            _, g, _, number, due = text.split(":")
            found[k] = (g, int(number), int(due))
    return found


def suspects(lane: Lane) -> list[Suspect]:
    """Returns every queued permit, as if it were suspect."""
    return [Suspect(lane.id, k, g, number) for k, (g, number, _) in queued(lane).items()]


def token(suspect: Suspect | Tok, request_id: str = "r1") -> bytes:
    """Returns the token as it stands in a lane."""
    return f"{request_id}#{suspect.k}.{suspect.g}".encode()


def expected(lane: Lane) -> list[bytes]:
    """Returns the tokens that should be queued."""
    return sorted(token(one) for one in suspects(lane))


def standing(client: Any) -> list[bytes]:
    """Returns the tokens in the lane."""
    return sorted(client.lrange(HOME, 0, -1))
