"""Keeps the state of a batch, without I/O: its unanswered steps, their routes and the replies.

In a cluster the steps of a batch go to several nodes. A node may refuse a step because its slot is
elsewhere or is being moved. An answered step is never sent again; the others are, in turns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import redis

from fairlane import settings
from fairlane.common import clock
from fairlane.drivers.cluster import slot_map
from fairlane.drivers.cluster.topology import given_up
from fairlane.drivers.wire import error_mapping
from fairlane.errors import FairlaneError, NodeAway, RedisUnreachable
from fairlane.protocol.steps import Batch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fairlane.drivers.cluster.topology import ServerHealth
    from fairlane.protocol.steps import Call, Command, Operation

_MOST_HOPS = 5  # redirections of one step without a pause


class NodePart(NamedTuple):
    """The steps that go to one node, and the key or address by which the node is found."""

    place: bytes | slot_map.Address | None
    indexes: list[int]
    asking: bool = False  # the slot is being moved to this node: ASKING goes before each step


class BatchState:
    """The state of one batch. `may_pass` returns True for an error that may pass.

    `away_s`: as in Batch; None for a single server.
    """

    def __init__(
        self,
        batch: Batch,
        place: str,
        may_pass: Callable[[Exception], bool],
        away_s: float | None = None,
    ) -> None:
        self.steps = batch.steps
        self.replies: list[Any] = [None] * len(batch.steps)
        self._is_lenient, self._place, self._may_pass = batch.lenient, place, may_pass
        self._left: dict[int, slot_map.Address | None] = dict.fromkeys(range(len(batch.steps)))
        self._errors: dict[int, Exception] = {}
        self._hops = 0
        self._rest_until: float | None = None
        self._away_s, self._again_s = away_s, batch.again_s
        self._sent: set[int] = set()  # steps that a node may have performed without a reply
        if self._away_s is not None:
            self._rest_until = clock.mono_s() + self._away_s
        self._is_late = False
        self._apart: list[int] = []  # steps with `apart` whose slot is being moved
        self._keys: list[bytes | None] = []  # in a cluster, of each step
        self._first: int | None = None  # the first step with a key ...
        self._beside: list[int] = []  # ... and the steps without a key, which go to the same node

    @property
    def is_over(self) -> bool:
        """Returns True when every step is answered."""
        return not self._left

    def parts(self, home: Callable[[bytes], slot_map.Address | None] | None) -> list[NodePart]:
        """Groups the unanswered steps by node; `home` maps keys to nodes, None = one server."""
        if home is None:
            return [NodePart(None, list(self._left))]
        if not self._keys:
            self._find_keys()
        if self._first in self._left:  # it was redirected: the steps without a key follow it
            self._left |= dict.fromkeys(self._beside, self._left[self._first])
        straight = {index: self._keys[index] for index, at in self._left.items() if at is None}
        found = [NodePart(key, indexes) for key, indexes in slot_map.group(straight, home)]
        aside: dict[slot_map.Address, list[int]] = {}
        for index, asked in self._left.items():
            if asked is not None:
                aside.setdefault(asked, []).append(index)
        return [*found, *(NodePart(node, indexes, True) for node, indexes in aside.items())]

    def _find_keys(self) -> None:
        """Finds the key of each step. Keyless steps (TIME) go to the first keyed step's node."""
        own = [slot_map.key_of(step) for step in self.steps]
        self._first = next((index for index, key in enumerate(own) if key is not None), None)
        self._beside = [index for index, key in enumerate(own) if key is None]
        first = None if self._first is None else own[self._first]
        self._keys = [first if key is None else key for key in own]

    def answer(self, index: int, reply: Any) -> None:
        """Notes the reply to a step, or its error."""
        if not isinstance(reply, Exception) or not self._may_pass(reply):
            self.replies[index] = reply
            del self._left[index]
            return
        self._errors[index] = reply
        self._left[index] = asked_at(reply)
        if error_mapping.is_on_the_move(reply) and self.steps[index].apart is not None:
            self._apart.append(index)
            del self._left[index]

    def note_broken(self, indexes: list[int], error: Exception) -> None:
        """Notes that the connection broke, or was not made, before these steps were answered.

        A step that is sent at most once has the reply None, because it may have been performed.
        """
        for index in indexes:
            if index in self._left:
                is_over = self.steps[index].is_once and self._may_pass(error)
                self.answer(index, None if is_over else error)

    def skip_if_away(self, indexes: list[int], server: ServerHealth) -> bool:
        """Gives up these steps and returns True if the server is away and no try is due."""
        if self._away_s is None or server.may_try(self._away_s, self._again_s):
            return False
        self._give_up(indexes, server)
        return True

    def give_up_if_away(self, indexes: list[int], server: ServerHealth | None) -> None:
        """Gives up the unanswered ones of these steps if the server is unreachable by now."""
        if server is not None and self._away_s is not None and server.is_away(self._away_s):
            self._give_up([index for index in indexes if index in self._left], server)

    def _give_up(self, indexes: list[int], server: ServerHealth) -> None:
        for index in indexes:
            self.replies[index] = self._noted(server.away_error(), index in self._sent)
            del self._left[index]

    def note_sent(self, indexes: list[int]) -> None:
        """Notes that steps are sent now: a node that hangs may perform them later."""
        if self._away_s is not None:
            self._sent.update(indexes)

    def _noted(self, error: FairlaneError, was_sent: object) -> FairlaneError:
        if isinstance(error, NodeAway):
            error.was_sent = bool(was_sent)
        return error

    def fallbacks(self) -> Iterator[tuple[int, Operation[Any]]]:
        """Yields each step whose slot is being moved, and the operation to run in its place.

        Their results go into `replies`. The next turn follows without a pause, even if these
        operations have used up all patience.
        """
        while self._apart:
            index = self._apart.pop(0)
            other = self.steps[index].apart
            if other is not None:
                self._is_late = True
                yield index, other()

    def is_enough(self) -> bool:
        """Returns True if the batch has waited long enough for the rest.

        Once some steps of a lenient batch are answered, it waits for BATCH_REST_S more, because
        their leases or tokens must not wait. A batch with an `away_s` waits for `away_s` in all.
        """
        if self._rest_until is None:
            if not self._is_lenient or len(self._left) == len(self.steps):
                return False
            self._rest_until = clock.mono_s() + settings.BATCH_REST_S
        return clock.mono_s() >= self._rest_until

    def pause(self, delays: Iterator[float]) -> float | None:
        """Returns the seconds until the next turn; None when patience is over."""
        is_late, self._is_late = self._is_late, False
        if all(asked is not None for asked in self._left.values()) and self._hops < _MOST_HOPS:
            self._hops += 1
            return 0.0
        return 0.0 if is_late else next(delays, None)

    def result(self, *, is_replica: bool = False) -> list[Any]:
        """Returns the replies. Raises the first error, unless the batch is lenient: it is a reply.

        If no step of the batch was answered, it raises in any case.
        """
        for index in self._left:
            self.replies[index] = self._error(index)
        failed = [index for index, reply in enumerate(self.replies) if isinstance(reply, Exception)]
        if failed and (not self._is_lenient or all(map(self._is_lost, range(len(self.steps))))):
            first = self._ours(failed[0], is_replica=is_replica)
            raise self._noted(first, self._sent) from None
        for index in failed:
            self.replies[index] = self._ours(index)
        return self.replies

    def _error(self, index: int) -> Exception:
        """Returns the error of a step that is still unanswered."""
        error = self._errors[index]
        if self._away_s is None:
            return error
        return self._noted(given_up(error, self._place, self._away_s), index in self._sent)

    def _is_lost(self, index: int) -> bool:
        return index in self._left or isinstance(self.replies[index], RedisUnreachable)

    def _ours(self, index: int, *, is_replica: bool = False) -> FairlaneError:
        error = self.replies[index]
        if isinstance(error, FairlaneError):  # of the operation that ran in the step's place
            return error
        step = self.steps[index]
        return error_mapping.translate(error, self._place, is_replica=is_replica, step=step)


def batch_of(step: Command | Call) -> Batch:
    """Returns the batch of one step."""
    return Batch([step], away_s=step.away_s)


def asked_at(error: Exception) -> slot_map.Address | None:
    """Returns the node that an ASK names."""
    if isinstance(error, redis.exceptions.AskError) and not isinstance(
        error, redis.exceptions.MovedError
    ):
        return (error.host, error.port) if error.host else None
    return None
