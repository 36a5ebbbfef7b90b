"""The notice about a request whose results do not come."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from fairlane.cli.exit_status import counts_of
from fairlane.cli.output import note
from fairlane.common import clock

if TYPE_CHECKING:
    from fairlane.queue import Request

QUIET_S = 5.0  # after so long without a result


class QuietNotice:
    """Prints once that no result has come for a while, and why."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._due = clock.mono_s() + QUIET_S

    def result_came(self) -> None:
        """Puts the notice off."""
        if self._due < inf:
            self._due = clock.mono_s() + QUIET_S

    def look(self) -> None:
        """Prints the notice if it is due. Raises RequestLost."""
        if clock.mono_s() < self._due:
            return
        self._due = inf
        now = counts_of(self._request)
        if not now.ended:
            from fairlane.operations.control.overview import unserved

            missing = self._request.queue.driver.run(unserved(now.queue))
            note(
                f"no result for {QUIET_S:g} s: waiting for request {now.id} to go on, it is "
                f"{now.state} with {now.done:,}/{now.total:,} done"
                + (f"; {missing}" if missing else "")
            )
