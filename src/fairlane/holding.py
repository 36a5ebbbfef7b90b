"""What both APIs share of a sub-request that a program took: its receipt, body and verdicts."""

from __future__ import annotations

import os
import platform
from typing import TYPE_CHECKING

from fairlane.common import clock
from fairlane.operations.take import TAKER, dead, done, extend_term, parse_receipt, release
from fairlane.tracing import settling

if TYPE_CHECKING:
    from fairlane.common.chunking import Body
    from fairlane.operations.take import Delivery, Receipt
    from fairlane.protocol.steps import Operation
    from fairlane.tracing import ClientSpan


def taker_name() -> str:
    """Returns the name of this process, as results and dead letters show who had a sub-request."""
    return f"{TAKER}{platform.node()}:{os.getpid()}"


class Holding:
    """A sub-request that is held: `receipt` is its text, `body` is None if only that is known.

    `index` is its place in the request `id`, and `attempt` counts from 1. `trace` is the context of
    the span that submitted it: a traceparent, and after a space a tracestate; "" = none is known.
    """

    def __init__(
        self, receipt: Receipt, body: bytes | None, taken_at: float | None, trace: str
    ) -> None:
        self._proof, self._taken_at, self.trace = receipt, taken_at, trace
        self.id, self.index, self.attempt = receipt.request_id, receipt.index, receipt.attempt
        self.receipt, self.body = receipt.text, body

    @staticmethod
    def parts_of(delivery: Delivery) -> tuple[Receipt, bytes, float, str]:
        """Returns the arguments for a sub-request that was just taken."""
        return delivery.receipt, delivery.body, clock.mono_s(), delivery.trace

    @staticmethod
    def parts_of_text(queue: str, text: str) -> tuple[Receipt, None, None]:
        """Returns the arguments for a receipt from elsewhere. Raises InvalidArgument."""
        return parse_receipt(queue, text), None, None

    def _done(self, result: Body | None) -> Operation[None]:
        return done(self._proof, result, self._ran_us())

    def _dead(self, reason: str) -> Operation[None]:
        return dead(self._proof, reason, self._ran_us())

    def _release(self, delay_s: float) -> Operation[None]:
        return release(self._proof, delay_s)

    def _extend(self, visible_for: float) -> Operation[bool]:
        return extend_term(self._proof, visible_for)

    def _settling(self, verb: str) -> ClientSpan:
        return settling(verb, self._proof, self.trace)

    def _ran_us(self) -> int:
        """Returns how long the program has had the sub-request; 0 = another process took it."""
        return 0 if self._taken_at is None else int((clock.mono_s() - self._taken_at) * 1e6)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} {self.index}>"
