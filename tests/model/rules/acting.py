"""Plays the product's operations step by step: each may stop anywhere, or be interleaved.

Each script that an operation calls goes to Redis and to the model, as all other calls do. Tokens
wait in the player's outbox. So the calls that dispatch them are left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairlane.errors import FairlaneError
from fairlane.protocol.steps import Batch, Call, Command, Pause, SingleServer
from tests.model.plain.words import Options, agree

if TYPE_CHECKING:
    from fairlane.protocol.steps import Operation, Step
    from tests.model.plain.schedules import Owed, Schedules
    from tests.model.play.player import Player

WHOLE = ("intent", "open_ms", "chunks", "width")  # arguments that are numbers
BYTES = ("before", "between", "after")
OF_REQUESTS = (
    "enqueue",
    "cancel",
    "seal",
    "join",
    "hand_over",
    "hand_chosen",
    "confirm",
    "list_dead",
)
MADE = (b"ok", b"ended")  # the replies of a request that was not there
DISPATCHED = ("insert_tokens", "add_turns")


class Acting:
    """An operation, and how far it has come."""

    def __init__(self, player: Player, operation: Operation[Any]) -> None:
        self.player, self.operation = player, operation
        self.began = player.book.now
        self.is_over = False
        self.result: Any = None
        self.error: FairlaneError | None = None
        self.owed: dict[str, Owed] = {}  # the schedules that it read as due
        self._reply: Any = None

    def go_on(self, steps: int = 10_000) -> Acting:
        """Runs so many steps, or all that are left."""
        for _ in range(steps):
            if self.is_over:
                break
            try:
                step = self.operation.send(self._reply)
            except StopIteration as end:
                self.is_over, self.result = True, end.value
            except FairlaneError as error:
                self.is_over, self.error = True, error
            else:
                self._reply = self._perform(step)
        return self

    def _perform(self, step: Step) -> Any:
        if isinstance(step, Batch):
            return [self._perform(one) for one in step.steps]
        if isinstance(step, Call):
            return self._call(step)
        if isinstance(step, Command):
            return self._command(step)
        agree(isinstance(step, (Pause, SingleServer)), True, f"a step {step}")
        return None

    def _command(self, command: Command) -> Any:
        name, *rest = command.args
        if name == b"TIME":
            seconds, ms = divmod(self.player.book.now, 1000)
            return [b"%d" % seconds, b"%d" % (1000 * ms)]
        if name == b"UNLINK":
            for key in rest:
                self.player.book.drop_parts(id_of(key))
        return self.player.wire.one(name, *rest)

    def _call(self, call: Call[Any]) -> Any:
        name, given = call.script.name, given_of(call)
        if name in DISPATCHED:
            return 1
        if name in OF_REQUESTS:
            request_id = id_of(call.keys[2])
            is_there = request_id in self.player.book.requests
            reply, *_ = self.player.call(name, request_id, **given)
            if name == "enqueue" and reply[0] in MADE and self.owed:
                self._note_tick(request_id, is_there=is_there)
            return reply
        return getattr(self, f"_{name}")(given)

    # ------------------------------------------------------------------ the dispatch slot

    def _intend(self, given: dict[str, Any]) -> Any:
        scores: list[Any] = []
        for request_id in map(as_text, given["ids"]):
            before = self.player.book.active.get(request_id, 0)
            score = self.player.intend(request_id, int(given["grace"]), int(given["above"]))
            scores += (score, f"{before:.1f}".removesuffix(".0").encode())
        return [self.player.book.max_waiting, b"", *scores]

    def _retire(self, given: dict[str, Any]) -> Any:
        rows, count = given["endings"], 0
        for at in range(0, len(rows), 12):
            count += self.player.retire(as_text(rows[at]), rows[at + 1 : at + 12])
        return count

    def _reschedule_active(self, given: dict[str, Any]) -> Any:
        rows, count = given["rows"], 0
        for request_id, seen, due in zip(rows[::3], rows[1::3], rows[2::3], strict=True):
            count += self.player.postpone(as_text(request_id), float(seen), float(due))
        return count

    def _drop_active(self, given: dict[str, Any]) -> Any:
        return self.player.drop(given["id"], float(given["seen"]), gone=given["gone"] == "1")

    def _admit(self, given: dict[str, Any]) -> Any:
        numbers = {name: int(given[name]) for name in ("chunk", "count", "pause")}
        return self.player.admit(given["id"], **numbers)

    def _report_backlog(self, given: dict[str, Any]) -> Any:
        rows, waiting = given["rows"], 0
        for at in range(0, len(rows), 4):
            numbers = map(int, rows[at + 1 : at + 4])
            waiting = self.player.report(as_text(rows[at]), *numbers)
        return waiting

    # ------------------------------------------------------------------ schedules

    @property
    def _schedules(self) -> Schedules:
        return self.player.book.schedules

    def _due_schedules(self, given: dict[str, Any]) -> Any:
        numbers = {name: int(given[name]) for name in ("skip", "most")}
        reply = self.player.dispatch("due_schedules", **numbers)
        agree(reply, self._schedules.due(self.player.book.now, **numbers), "what is due")
        return reply

    def _claim_ticks(self, given: dict[str, Any]) -> Any:
        numbers = {name: int(given[name]) for name in ("skip", "most")}
        now = self.player.book.now
        reply = self.player.dispatch("claim_ticks", **numbers)
        rows = reply[3:]
        flat = [part for at in range(0, len(rows), 4) for part in rows[at : at + 3]]
        agree([*reply[:2], *flat], self._schedules.due(now, **numbers), "what is due")
        self._schedules.look(now)
        self.owed = self._schedules.owed(now)
        return reply

    def _note_tick(self, request_id: str, *, is_there: bool) -> None:
        """Allows a tick one request: none is submitted again after its request has expired."""
        ids = [one for owed in self.owed.values() for one in owed.ids]
        agree(request_id in ids, True, f"a request for {request_id} is owed")
        agree(request_id in self._schedules.made and not is_there, False, f"{request_id} again")
        self._schedules.made.add(request_id)

    def _move_tick(self, given: dict[str, Any]) -> Any:
        reply = self.player.dispatch("move_tick", **given)
        name = given.pop("schedule")
        owed = self.owed.get(name)
        agree(reply, self._schedules.move(name, **given, owed=owed), f"a move of {name}")
        return reply

    def _put_schedule(self, given: dict[str, Any]) -> Any:
        reply = self.player.dispatch("put_schedule", **given)
        name, raw = given.pop("schedule"), given.pop("definition").encode()
        agree(reply, self._schedules.put(name, definition=raw, **given), f"a put of {name}")
        return reply

    def _drop_schedule(self, given: dict[str, Any]) -> Any:
        reply = self.player.dispatch("drop_schedule", **given)
        was_there = self._schedules.stored.pop(given["schedule"], None) is not None
        agree(reply, int(was_there), "a removed schedule")
        if not self._schedules.stored:
            self._schedules.looks.clear()
        return reply


def given_of(call: Call[Any]) -> dict[str, Any]:
    """Returns the arguments of a call by their names, in the terms of the player."""
    script = call.script
    count = len(script.params)
    found: dict[str, Any] = dict(zip(script.params, call.args, strict=False))
    found.pop("now", None)
    found = {name: _value(name, value) for name, value in found.items()}
    if script.rest:
        found[script.rest] = list(call.args[count:])
    if script.name == "list_dead":
        found = {"after": call.args[0], "count": int(call.args[1])}
    if script.name == "enqueue":
        terms = {name: found.pop(name) for name in ("queue", "policy", "extras", "shards")}
        found["options"] = Options.read(**terms)
    return found


def _value(name: str, value: Any) -> Any:
    if name in BYTES:
        return value
    return int(value) if name in WHOLE else as_text(value)


def as_text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def id_of(key: Any) -> str:
    return as_text(key).partition("{")[2].removesuffix("}")
