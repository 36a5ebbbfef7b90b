"""Chooses the requests of a change: by their ids, or by filters, each of them once.

The walk reads all unfinished requests and the completion log, 1,000 entries a call, and one HMGET
for each request, 100 in a round trip. It keeps what it chose: about 200 bytes a request.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from fairlane.errors import InvalidArgument
from fairlane.found import ENDED, RUNNING
from fairlane.operations.batching import run_all
from fairlane.operations.control.request_state import completion, not_found
from fairlane.operations.find.filters import RequestFilter, filter_of
from fairlane.operations.find.urgent import unfinished
from fairlane.protocol import keys
from fairlane.protocol.request_hash import hmget, parse_fields
from fairlane.protocol.server_info import time_ms
from fairlane.protocol.steps import Batch, Command

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any, Unpack

    from fairlane.found import RequestChoice
    from fairlane.model import Completion
    from fairlane.operations.many.change import Change
    from fairlane.protocol.steps import Operation

TOGETHER = 100  # requests that are changed in one batch
_PART = 1_000  # entries of `active`, or of the log, that one call reads
_FIELDS = ("state", "queue", "born", "tags", "tenant")


class Chosen(NamedTuple):
    """A request to change, and the life that was chosen: when that began, in ms."""

    id: str
    queue: str
    born: int


@dataclass(frozen=True, slots=True)
class Selection:
    """A change, and the requests that it is for.

    `dead` is how many dead sub-requests they have, if filters chose them for a change of those.
    """

    change: Change
    requests: tuple[Chosen, ...]
    dead: int = 0

    def __len__(self) -> int:
        return len(self.requests)

    @property
    def ids(self) -> list[str]:
        """Returns the ids: unfinished requests first, the most urgent of them at the beginning."""
        return [one.id for one in self.requests]

    def parts(self) -> Iterator[tuple[Chosen, ...]]:
        """Yields the requests in batches."""
        for at in range(0, len(self.requests), TOGETHER):
            yield self.requests[at : at + TOGETHER]


def choose(
    queue: str,
    change: Change,
    ids: str | Iterable[str] | None,
    **wanted: Unpack[RequestChoice],
) -> Operation[Selection]:
    """Returns the operation that chooses by ids or by filters. Raises InvalidArgument."""
    filters: dict[str, Any] = {**wanted}
    everything = filters.pop("everything", False)
    accepted = filter_of(**filters)
    ways = (ids is not None) + (accepted != RequestFilter()) + bool(everything)
    if ways != 1:
        what = "two ways of choice" if ways else "no request is chosen"
        raise InvalidArgument(f"{what}: give ids, or filters, or everything=True")
    if ids is not None:
        return select_ids(change, ids)
    return select(queue, change, accepted)


def select_ids(change: Change, ids: str | Iterable[str]) -> Operation[Selection]:
    """Returns the requests with these ids, each once. Raises InvalidArgument, RequestNotFound."""
    given = (ids,) if isinstance(ids, str) else ids
    names = [keys.check_name("request id", name) for name in dict.fromkeys(given)]
    replies = yield from run_all([hmget(name, *_FIELDS) for name in names])
    found = []
    for name, reply in zip(names, replies, strict=True):
        state, queue, born, *_ = parse_fields(_FIELDS, reply)
        if state in {"", "abandoned"}:
            raise not_found(name)
        found.append(Chosen(name, queue, int(born or 0)))
    return Selection(change, tuple(found))


def select(queue: str, change: Change, wanted: RequestFilter) -> Operation[Selection]:
    """Returns the requests of a queue that the filter accepts and the change can change.

    Raises InvalidArgument if the filter's states exclude those of the change.
    """
    states = frozenset(change.states) & (wanted.states or frozenset(change.states))
    if not states:
        raise InvalidArgument(
            f"state {', '.join(sorted(wanted.states))} is not valid: "
            f"only requests in state {' or '.join(change.states)} can be {change.verb}"
        )
    narrowed = replace(wanted, states=states)
    _, time = yield Batch([Command(b"EXISTS", keys.active(queue)), Command(b"TIME")])
    found = dict[str, Chosen]()
    if narrowed.wants_any(RUNNING):
        yield from _unfinished(queue, narrowed, time_ms(time), found)
    if narrowed.wants_any(ENDED):
        yield from _ended(queue, narrowed, time_ms(time), found)
    chosen = list(found.values())
    if change.word in {"requeue_dead", "drop_dead"}:
        counts = yield from run_all([Command(b"XLEN", keys.dead(one.id)) for one in chosen])
        chosen = [one for one, count in zip(chosen, counts, strict=True) if count]
        return Selection(change, tuple(chosen), sum(counts))
    return Selection(change, tuple(chosen))


def _unfinished(
    queue: str, wanted: RequestFilter, now_ms: int, found: dict[str, Chosen]
) -> Operation[None]:
    """Adds the accepted requests of `active`, the most urgent first."""
    rows, scan = [], "0"
    while True:
        cursor, flat = yield Command(b"ZSCAN", keys.active(queue), scan, b"COUNT", _PART)
        ids = [name.decode("utf-8", "replace") for name in flat[::2]]
        rows += [
            row
            for row in (yield from unfinished(queue, ids, frozenset(ids)))
            if wanted.accepts(row.id, row.state, row.priority, row.submitted_ms, now_ms)
            and wanted.accepts_labels(row.tags, row.tenant)
        ]
        scan = cursor.decode()
        if scan == "0":
            break
    found.update((row.id, Chosen(row.id, queue, row.submitted_ms)) for row in sorted(rows))


def _ended(
    queue: str, wanted: RequestFilter, now_ms: int, found: dict[str, Chosen]
) -> Operation[None]:
    """Adds the accepted endings of the completion log whose requests are still kept."""
    newest = "+"
    while True:
        log = keys.completed(queue)
        entries = yield Command(b"XREVRANGE", log, newest, "-", b"COUNT", _PART)
        ended = [completion(*entry) for entry in entries]
        asked = [
            one
            for one in ended
            if one.id not in found
            and wanted.accepts(one.id, one.state, one.priority, one.submitted_ms, now_ms)
        ]
        for one in (yield from _kept(queue, wanted, asked)):
            found.setdefault(one.id, Chosen(one.id, queue, one.submitted_ms))
        if len(entries) < _PART:
            break
        newest = f"({ended[-1].log_id}"


def _kept(
    queue: str, wanted: RequestFilter, asked: list[Completion]
) -> Operation[list[Completion]]:
    """Returns those whose life is still kept, with the labels that are wanted."""
    replies = yield from run_all([hmget(one.id, *_FIELDS) for one in asked])
    kept = []
    for one, reply in zip(asked, replies, strict=True):
        state, home, born, tags, tenant = parse_fields(_FIELDS, reply)
        is_same = state in ENDED and home == queue and born == str(one.submitted_ms)
        if is_same and wanted.accepts_labels(tags, tenant):
            kept.append(one)
    return kept
