"""Reads the runs of flows: the steps of one, and those that have some properties."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from fairlane.errors import InvalidArgument, RequestNotFound
from fairlane.operations.batching import run_all
from fairlane.operations.completion import state, wait
from fairlane.operations.find import MOST_LISTED, check_page, filter_of, list_requests
from fairlane.operations.flows import FLOW_TAG, property_tags
from fairlane.operations.hand_over import (
    DEAD,
    GETS,
    Feed,
    StepPlace,
    cancel_flow,
    request_of,
    run_of,
)
from fairlane.operations.request_state import asks_of_progress, detail_of, progress_in
from fairlane.options import check_whole
from fairlane.protocol.request_hash import hmget, parse_fields, read
from fairlane.records import FlowProgress, StepProgress

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from fairlane.records import Progress


_PAGES = 20  # of requests that one search reads


async def place_of(run: str) -> StepPlace:
    """Returns the place of a run's first step. Raises RequestNotFound."""
    seen, text = await read(request_of(run, 1), "state", "flow")
    place = StepPlace.parse(text)
    if place is None or seen == "abandoned":
        raise RequestNotFound(
            f"there is no flow {run} (one is kept as long as the request of its first step)"
        )
    return place


async def flow_progress(run: str) -> FlowProgress:
    """Returns the steps of a run that are still kept. Raises RequestNotFound."""
    place = await place_of(run)
    ids = [request_of(run, number) for number in range(1, place.steps + 1)]
    replies = await run_all(asks_of_progress(ids))
    found: dict[str, _StepRead] = {}
    for one, fields, held in zip(ids, replies[::2], replies[1::2], strict=True):
        if detail := detail_of(fields):
            found[one] = _StepRead(progress_in(one, detail, held), detail)
    steps = [_step(now, found) for now in found.values()]
    return FlowProgress(run, place.flow, steps)


class _StepRead(NamedTuple):
    progress: Progress
    detail: dict[str, str]

    @property
    def name(self) -> str:
        """Returns the name of the step."""
        place = StepPlace.parse(self.detail.get("flow", ""))
        return place.step if place else self.progress.id


def _step(now: _StepRead, all_steps: Mapping[str, _StepRead]) -> StepProgress:
    feed = Feed.parse(now.detail.get("feed", ""))
    found = [all_steps[one] for one in feed.shown_sources if one in all_steps] if feed else []
    sources = tuple(one.name for one in found)
    gets = GETS[feed.kind] if feed else "input"
    return StepProgress(now.name, sources, bool(feed and feed.kind == DEAD), now.progress, gets)


async def flow_state(run: str) -> str:
    """Returns active, done or cancelled. Raises RequestNotFound."""
    return (await flow_progress(run)).state


async def wait_for_flow(run: str, clock: Callable[[], float], timeout_s: float | None) -> str:
    """Waits for the end of every step; returns done or cancelled.

    Raises WaitTimeout, RequestNotFound, RequestLost.
    """
    began = clock()
    place = await place_of(run)
    for number in range(1, place.steps + 1):
        await wait(request_of(run, number), clock, timeout_s, began)
    return (await flow_progress(run)).state


async def last_step(run: str) -> str:
    """Returns the request of the last step that compensates nothing.

    Raises RequestNotFound, and InvalidArgument if a flow ends with several children or branches.
    """
    place = await place_of(run)
    ids = [request_of(run, number) for number in range(1, place.steps + 1)]
    rows = await run_all([hmget(one, "feed", "flow") for one in ids])
    ends = {ids[0]: place.step}
    for one, row in zip(ids, rows, strict=True):
        text, own = parse_fields(["feed", "flow"], row)
        feed, here = Feed.parse(text), StepPlace.parse(own)
        if feed is not None and here is not None and feed.kind != DEAD:
            ends = {name: step for name, step in ends.items() if name not in feed.sources}
            ends[one] = here.step
    if len(ends) > 1:
        raise InvalidArgument(
            f"flow {run} ends with the steps {', '.join(ends.values())}: read the results of "
            "each, as run.step(NAME).results()"
        )
    (last,) = ends
    await state(last)  # it may be gone before the first one is
    return last


async def cancel_run(run: str, reason: str) -> None:
    """Cancels the steps of a run; a compensating one ends after its source. RequestNotFound."""
    place = await place_of(run)
    await cancel_flow(run, place.steps, reason)


async def find_flows(
    queue: str, properties: Mapping[str, object], flow: str = "", limit: int = 100
) -> list[tuple[str, str]]:
    """Returns the runs with all these properties that began in this queue: (id, first state).

    Unfinished ones come first, and at most `limit` (1 to 1,000). It reads 20 pages of the queue, so
    in a queue of many thousand requests some may be missing. Raises InvalidArgument.
    """
    check_whole("most", limit, 1, MOST_LISTED)
    found: dict[str, str] = {}
    after: str | None = None
    for _ in range(_PAGES):
        page = await flow_page(queue, properties, flow, limit - len(found), after)
        found |= page.runs
        after = page.after
        if not after or len(found) >= limit:
            break
    return [*found.items()]


class FlowPage(NamedTuple):
    """Runs with the states of their first steps; `after` continues behind them, None at the end."""

    runs: dict[str, str]
    after: str | None


async def flow_page(
    queue: str, properties: Mapping[str, object], flow: str, limit: int, after: str | None
) -> FlowPage:
    """Returns the runs with all these properties in one page of the queue's requests.

    So it may have none, and yet another one may follow. Raises InvalidArgument.
    """
    check_page(limit)
    tags = [f"{FLOW_TAG}:{flow}" if flow else FLOW_TAG, *property_tags(properties)]
    page = await list_requests(queue, filter_of(tags=tags), limit, after)
    firsts = (row for row in page.requests if row.id.endswith(".1"))
    return FlowPage({run_of(row.id): row.state for row in firsts}, page.after)


def named_step(progress: FlowProgress, name: str) -> str:
    """Returns the request of a step of this name. Raises InvalidArgument."""
    for one in progress.steps:
        if one.step == name:
            return one.progress.id
    known = ", ".join(one.step for one in progress.steps)
    raise InvalidArgument(f"flow {progress.id} has no step {name}: its steps are {known}")
