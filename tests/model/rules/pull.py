"""The rules of programs that take sub-requests and settle them by receipt, by the product's code.

A program pops a token as a worker does. What it does then is played step by step, see acting.py:
the exchange of the token for a lease with a deadline of its own, and the calls with the receipt.
So it may die anywhere, and go on when another one has the lease.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st
from hypothesis.stateful import precondition

from fairlane.errors import ReceiptExpired
from fairlane.operations.take import Taker, dead, done, exchange_tokens, extend_term, release
from fairlane.protocol import keys
from fairlane.protocol.steps import Popped
from tests.model.plain.book import QUEUE
from tests.model.plain.words import agree
from tests.model.play.player import word_of
from tests.model.rules.acting import Acting, given_of, id_of
from tests.model.rules.base import MINUTE, Base, pick, step, which
from tests.model.rules.operations import cuts

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairlane.operations.take import Receipt
    from fairlane.protocol.steps import Call, Operation

TAKER = Taker(QUEUE, lambda: "t:1")
NUMBERS = ("k", "g", "fence", "count", "term")
OF_LEASES = ("acquire", "extend", "complete")
STATUS = {"done": "d", "dead": "x"}
visible = st.sampled_from((0.001, 5.0, 600.0))


class Taking(Acting):
    """An operation of a program that takes, or has taken, sub-requests."""

    def _call(self, call: Call[Any]) -> Any:
        name = call.script.name
        if name not in OF_LEASES:
            return super()._call(call)
        given = given_of(call)
        given |= {number: int(given[number]) for number in NUMBERS if given.get(number)}
        if name == "complete":
            given |= verdicts_of(int(given["done"]), given["verdicts"])
        reply, *_ = self.player.call(name, id_of(call.keys[2]), **given)
        return reply

    def _take_turns(self, given: dict[str, Any]) -> Any:
        copy = self.player.take_turn(int(given["lane"]), self.player.wire.pack("ECHO", "@"))
        return [copy.text.encode()] if copy else []


def verdicts_of(count: int, words: list[Any]) -> dict[str, Any]:
    """Returns the verdicts of a `complete` in the model's words, and as they were sent."""
    ids, rest = words[:count], words[count:]
    pairs, others = rest[: 2 * count], rest[2 * count :]
    bodies = zip(ids, pairs[1::2], strict=True)
    rows = [others[at : at + 5] for at in range(0, len(others), 5)]
    return {
        "done": [(sub_id, 0, body) for sub_id, body in bodies],
        "others": [(sub_id, 0, verdict, int(delay)) for sub_id, verdict, delay, *_ in rows],
        "verdicts": words,
    }


def has_taken(machine: Pull) -> bool:
    return bool(machine.receipts())


def may_take(machine: Pull) -> bool:
    """A program reads the pause and the rate before it takes; a queue with a rate is left out."""
    wide = machine.book.wide
    return bool(machine.book.filled()) and not wide.rate[0] and not wide.is_paused(machine.book.now)


class Pull(Base):
    """Programs without a worker's heartbeat."""

    def __init__(self) -> None:
        super().__init__()
        self.takes: list[Acting] = []

    def receipts(self) -> list[Receipt]:
        """Returns the receipts of all that was taken, the newest last."""
        over = [one for one in self.takes if one.is_over and one.result is not None]
        return [delivery.receipt for one in over for delivery in one.result.found]

    def act_as_taker(self, operation: Operation[Any], steps: int) -> Acting:
        """Does an operation of a program; see Operations.act."""
        taking = Taking(self.player, operation).go_on(steps)
        if not taking.is_over:
            self.acting = [*self.acting[-3:], taking]
        return taking

    def owed_by_receipt(self, receipt: Receipt) -> list[bytes] | None:
        """Returns what the receipt's lease owes; None if it does not stand."""
        request = self.book.requests.get(receipt.request_id)
        permit = request.permits.get(int(receipt.k)) if request else None
        fence, op = int(receipt.fence), receipt.op.decode()
        if request is None or permit is None or not permit.is_held_by(fence, op):
            return None
        return [sub.id for sub in request.owed_by(permit.k)]

    @precondition(may_take)
    @step(n=which, visible_for=visible, steps=cuts)
    def take_as_program(self, n: int, visible_for: float, steps: int) -> None:
        """Exchanges the next token for a lease of one sub-request with its own deadline."""
        filled = self.book.filled()
        lane = filled[0] if n < 60 else pick(filled, n)
        copy = self.player.pop(lane)
        popped = Popped(keys.lanes(QUEUE)[lane], [word_of(copy).encode()])
        taking = self.act_as_taker(exchange_tokens(TAKER, popped, int(1000 * visible_for)), steps)
        self.takes = [*self.takes[-5:], taking]
        if taking.is_over:
            agree(taking.error or taking.result.failure, None, "an exchange")
            for delivery in taking.result.found:
                receipt = delivery.receipt
                agree(self.owed_by_receipt(receipt), [receipt.entry_id], f"what {receipt} owes")

    @precondition(has_taken)
    @step(
        n=which,
        how=st.sampled_from(("done", "dead", "release", "extend")),
        delay=st.sampled_from((0, 3, MINUTE // 1000)),
        steps=cuts,
    )
    def use_receipt(self, n: int, how: str, delay: int, steps: int) -> None:
        """Settles what was taken, or asks for more time; a receipt may be used again and again."""
        receipt = pick(self.receipts(), n)
        operations: dict[str, Callable[[], Operation[Any]]] = {
            "done": lambda: done(receipt, b"result", 0),
            "dead": lambda: dead(receipt, "why dead", 0),
            "release": lambda: release(receipt, delay),
            "extend": lambda: extend_term(receipt, 1.0 + delay),
        }
        owed = self.owed_by_receipt(receipt)
        taking = self.act_as_taker(operations[how](), steps)
        if not taking.is_over:
            return
        agree(type(taking.error) in {type(None), ReceiptExpired}, True, f"{how} of {receipt}")
        if owed is not None:
            agree(taking.error, None, f"{how} with a receipt that stands")
        # Only a worker's call may settle what a lease owes, and keep it.
        if how in STATUS and taking.error is None and owed != []:
            agree(self.is_counted(receipt, STATUS[how]), True, f"{receipt} is counted as {how}")

    def is_counted(self, receipt: Receipt, status: str) -> bool:
        """Returns True if the request has a result of this sub-request with this status."""
        request = self.book.requests[receipt.request_id]
        return any(
            (one.number, one.status) == (receipt.index, status)
            for group in request.results
            for one in group
        )
