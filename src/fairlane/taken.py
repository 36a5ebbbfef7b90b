# Generated from aio/taken.py by `make generate`: do not edit it.
"""A sub-request that a program took, in the blocking API."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlane import settings
from fairlane.holding import Holding

if TYPE_CHECKING:
    from fairlane.common.chunking import Body
    from fairlane.drivers.sync import SyncDriver
    from fairlane.operations.take import Receipt


class Taken(Holding):
    """A sub-request that Queue.take returned, or Queue.taken made of a receipt.

    `id` and `index` name it, `body` is its body (None from a receipt), `attempt` counts from 1.
    `receipt` is text with which another process can settle it: `queue.taken(receipt).done()`.
    """

    def __init__(
        self, driver: SyncDriver, receipt: Receipt, body: bytes | None = None,
        taken_at: float | None = None, trace: str = "",
    ) -> None:  # fmt: skip
        super().__init__(receipt, body, taken_at, trace)
        self._driver = driver

    def done(self, result: Body | None = None) -> None:
        """Stores the result (bytes, or text as UTF-8) and counts the sub-request as done.

        A repeat changes nothing. Raises ReceiptExpired if the lease is over, InvalidArgument, and
        NotDurable if it is done, but too few replicas of a durable request have confirmed that.
        """
        with self._settling("done"):
            self._driver.run(self._done(result))

    def dead(self, reason: str) -> None:
        """Gives the sub-request up: it is kept with its body and this reason. Raises as `done`."""
        with self._settling("dead"):
            self._driver.run(self._dead(reason))

    def release(self, delay_s: float = 0.0) -> None:
        """Returns the sub-request, uncharged, to be taken again after `delay_s` seconds.

        Changes nothing if this receipt has settled it, or if its request has ended. Raises
        ReceiptExpired, InvalidArgument.
        """
        with self._settling("release"):
            self._driver.run(self._release(delay_s))

    def extend(self, visible_for: float = settings.TAKE_VISIBLE_S) -> bool:
        """Holds the sub-request for `visible_for` seconds from now on.

        False = it is held, but its result is not wanted: the request was cancelled, or its deadline
        has passed. Raises ReceiptExpired, InvalidArgument.
        """
        return self._driver.run(self._extend(visible_for))
