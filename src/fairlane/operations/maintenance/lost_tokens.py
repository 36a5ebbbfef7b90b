"""Finds permits whose tokens are in no lane for too long, and mints these tokens again."""

from __future__ import annotations

from itertools import compress
from typing import TYPE_CHECKING, Any, NamedTuple

from fairlane import settings
from fairlane.errors import FairlaneError
from fairlane.model import Token
from fairlane.operations.batching import TOGETHER, call_each, run_each_or_error
from fairlane.operations.lease import turns
from fairlane.operations.lease.leases import reap
from fairlane.operations.lease.shards import move_one, read_shards
from fairlane.operations.maintenance.queued_permits import are_queued
from fairlane.operations.maintenance.registry import glance, settle_reaps
from fairlane.protocol import keys
from fairlane.protocol.steps import Batch, Command, Operation

if TYPE_CHECKING:
    from fairlane.protocol.replies import Reply

_FEW = 20  # up to so many tokens are looked up one by one
_PAGE = 1000  # tokens of a lane read in one call


class Suspect(NamedTuple):
    """A permit whose token has been on its way for too long."""

    request_id: str
    k: str
    g: str
    lane: int
    turn: str = ""

    @property
    def token(self) -> str:
        """Returns the token that should be in the lane, or among those of its tenant."""
        return Token(self.request_id, self.k, self.g, self.turn).text

    @property
    def shard(self) -> int:
        """Returns the shard of the lane; 0 = the queue's own lanes."""
        return self.lane // keys.LANES

    def place_in_delayed(self, queue: str) -> tuple[bytes, str]:
        """Returns the key of `delayed` and the member for this token if it is due later."""
        shard, priority = divmod(self.lane, keys.LANES)
        return keys.delayed(queue, shard), f"{priority}|{self.token}"


def queued_long(
    request_id: str, grace_ms: int = settings.TOKEN_GRACE_MS
) -> Operation[list[Suspect]]:
    """Returns the permits that were queued, and due, at least a grace ago and still are."""
    return suspects_of(request_id, (yield from glance("", request_id, grace_ms).run()))


def suspects_of(request_id: str, reply: Reply) -> list[Suspect]:
    """Returns the permits that a reply of glance names."""
    if not reply.is_ok:
        return []
    flat = [part.decode() for part in reply.late_permits]
    rows = zip(flat[::4], flat[1::4], flat[2::4], flat[3::4], strict=True)
    return [Suspect(request_id, k, g, int(lane), turn) for k, g, lane, turn in rows]


def remint_lost(
    queue: str, suspects: list[Suspect], failed: dict[str, FairlaneError] | None = None
) -> Operation[int]:
    """Mints again the tokens that are in no lane, the most urgent first; returns how many.

    If a worker has just popped the token, that costs one stale token. With `failed`, a request that
    can't be read is put there with its error, and the others get their tokens. The error of a shard
    that does not answer is raised last.
    """
    if not suspects:
        return 0
    spread = yield from read_shards(queue)
    astray = dict.fromkeys(one.request_id for one in suspects if one.shard not in spread.served)
    here = [one for one in suspects if one.request_id not in astray]
    lost, errors = yield from find_lost(queue, here)
    replies = yield from remint(queue, lost, errors)
    count = sum(
        len(lost[name]) for name, reply in replies.items() if not _note_error(name, reply, failed)
    )
    for name in astray:  # in a shard that no worker serves, because `conf` was rolled back
        try:
            yield from move_one(queue, name, spread.present)
            count += 1
        except FairlaneError as error:
            _note_error(name, error, failed)
    if errors:
        raise errors[0]
    return count


def _note_error(name: str, reply: Any, failed: dict[str, FairlaneError] | None) -> bool:
    """Returns True for an error, which it notes in `failed`, or raises if that is None."""
    if not isinstance(reply, FairlaneError):
        return False
    if failed is None:
        raise reply
    failed[name] = reply
    return True


def remint(
    queue: str, lost: dict[str, list[Suspect]], errors: list[FairlaneError] | None = None
) -> Operation[dict[str, Reply | FairlaneError]]:
    """Mints the tokens of these permits again; returns each request's reply or error.

    The error of a shard that takes no tokens is added to `errors`, or raised if that is None.
    """
    names = sorted(lost, key=lambda name: min(one.lane % keys.LANES for one in lost[name]))
    replies: dict[str, Reply | FairlaneError] = {}
    for start in range(0, len(names), TOGETHER):
        part = names[start : start + TOGETHER]
        calls = [reap(queue, name, missing=_pairs(lost[name])) for name in part]
        answers = dict(zip(part, (yield from call_each(calls)), strict=True))
        replies |= answers
        try:
            yield from settle_reaps(queue, answers)
        except FairlaneError as error:
            if errors is None:
                raise
            errors.append(error)
    return replies


def _pairs(permits: list[Suspect]) -> list[str]:
    return [text for one in permits for text in (one.k, one.g)]


def find_lost(
    queue: str, suspects: list[Suspect]
) -> Operation[tuple[dict[str, list[Suspect]], list[FairlaneError]]]:
    """Returns the suspects whose tokens are in no lane, by request; and the errors of reading.

    `delayed` is read first and the lane last: a token moves only in that direction, so a token
    that is missing in each of them was in none.
    """
    asked = [Command(b"ZSCORE", *suspect.place_in_delayed(queue)) for suspect in suspects]
    due = yield from run_each_or_error(asked)
    waiting = [suspect for suspect, score in zip(suspects, due, strict=True) if score is None]
    errors = [score for score in due if isinstance(score, FairlaneError)]
    lost: dict[str, list[Suspect]] = {}
    for lane in sorted({suspect.lane for suspect in waiting}):
        here = {one.token.encode(): one for one in waiting if one.lane == lane}
        try:
            named = {one.turn.partition(":")[2] for one in here.values() if one.turn}
            # Before the lane: a token that cannot be used yet moves from there to the lane.
            present = set((yield from turns.read(queue, lane, named))) if named else set[bytes]()
            present |= yield from _present(keys.lane(queue, lane), here.keys() - present)
        except FairlaneError as error:
            errors.append(error)
            continue
        for token, suspect in here.items():
            if token not in present:
                lost.setdefault(suspect.request_id, []).append(suspect)
    return lost, errors


def still_lost(queue: str, suspects: list[Suspect]) -> Operation[dict[str, list[Suspect]]]:
    """Returns the suspects whose tokens are in no lane and not in `delayed`, by request.

    Each permit is read again at the end: a worker that had its token has acquired with it by then.
    """
    lost, errors = yield from find_lost(queue, suspects)
    if errors:
        raise errors[0]
    missing = [one for permits in lost.values() for one in permits]
    waits = yield from are_queued([Token(one.request_id, one.k, one.g) for one in missing])
    found: dict[str, list[Suspect]] = {}
    for one in compress(missing, waits):
        found.setdefault(one.request_id, []).append(one)
    return found


def _present(lane: bytes, tokens: set[bytes]) -> Operation[set[bytes]]:
    """Returns the tokens that are in the lane: by LPOS for a few, by reading all of it for many.

    It reads from the end at which tokens come in, so that no token moves past the reader. But a
    lease that goes on may put its next token at that end. So it reads twice if some are missing.
    """
    if not tokens:
        return set()
    if len(tokens) <= _FEW:
        asked = sorted(tokens)
        places = yield Batch([Command(b"LPOS", lane, token, b"RANK", -1) for token in asked])
        return {token for token, place in zip(asked, places, strict=True) if place is not None}
    present: set[bytes] = set()
    for _ in range(2):
        first, is_last = 0, False
        while not is_last and len(present) < len(tokens):
            page = yield Command(b"LRANGE", lane, first, first + _PAGE - 1)
            present |= tokens.intersection(page)
            first += _PAGE
            is_last = len(page) < _PAGE
    return present
