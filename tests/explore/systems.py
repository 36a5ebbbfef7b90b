"""The small systems that are explored: their actors, and the faults that may happen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairlane.common.rate import Rate
from tests.explore.lists import LISTS
from tests.explore.machinery.actors import Role
from tests.explore.machinery.explorer import System
from tests.explore.machinery.protocol import REQUEST
from tests.explore.machinery.replies import FANS, NAMES
from tests.explore.one_request.deletions import DELETER, Deletions
from tests.explore.one_request.distincts import Distincts
from tests.explore.one_request.durable import WAITER, Durable
from tests.explore.one_request.opened import opener
from tests.explore.one_request.requeues import Reopens, ReopensOnce, reviver
from tests.explore.one_request.spread import OneMoves, Spread, spreader
from tests.explore.one_request.uniques import Replaces, Uniques
from tests.explore.several_requests.feeds import (
    ONE,
    TWO,
    Feeds,
    Joins,
    JoinsChosen,
    OneOfTwo,
    TwoOfThree,
    TwoResults,
    chosen_and_joined,
    chosen_by,
    fed_by,
)
from tests.explore.several_requests.groups import OTHER, Groups, group_producer
from tests.explore.several_requests.limit_keys import (
    Keyed,
    KeyedApart,
    OfTask,
    Ordered,
    key_resumer,
    key_setter,
    keyed_producer,
    task_registrar,
)
from tests.explore.several_requests.programs import (
    Programs,
    dead,
    done,
    extend_and_finish,
    program,
    release,
)
from tests.explore.several_requests.queues import (
    FASTER,
    REGISTRAR,
    SLOWLY,
    AtOneRate,
    Paused,
    Rated,
    beating_worker,
    queue_changer,
)
from tests.explore.several_requests.several import (
    CANCEL_FIRST,
    FIRST,
    After,
    AfterDone,
    HandedOver,
    PausedTicks,
    Ticks,
    flow_producer,
    follower,
    schedule_changer,
    scheduler,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairlane.operations.take import Receipt
    from fairlane.protocol.steps import Operation


def producer(
    *chunks: int,
    limit: int = 1,
    attempts: int = 2,
    deadline_ms: int = 0,
    name: str = "p",
    one_server: bool = False,
    breaks: bool = False,
    comings: int = 1,
    durable: int = 0,
    delay_ms: int = 0,
    ageing_ms: int = 0,
    rates: tuple[Rate, ...] = (),
    tenant: str = "",
    on_duplicate: str = "",
    distinct: bool = False,
) -> Role:
    """Submits chunks of so many sub-requests each; `one_server` if one server has all keys.

    Its source `breaks` after them. A refused submission is repeated, `comings` times in all.
    """
    options = {"chunks": chunks, "limit": limit, "attempts": attempts, "deadline_ms": deadline_ms}
    flags = {"one_server": one_server, "breaks": breaks, "comings": comings, "durable": durable}
    gate: dict[str, Any] = {
        "delay_ms": delay_ms,
        "ageing_ms": ageing_ms,
        "rates": rates,
        "tenant": tenant,
    }
    gate |= {"on_duplicate": on_duplicate, "nonce": f"{ord(name):x}" if on_duplicate else ""}
    gate |= {"distinct": True} if distinct else {}
    return Role(name, "producer", (*options.items(), *flags.items(), *gate.items()))


def changer(*changes: tuple[Any, ...], of: str = REQUEST) -> Role:
    """Makes these live changes of a request, one after the other."""
    return Role("x", "changer", (("changes", changes), ("of", of)))


def worker(number: int, most: int = 1, *, one_server: bool = False) -> Role:
    """Takes slices of at most so many; exchanges leases if `one_server` has all keys."""
    return Role(f"w:{number}", "worker", (("slice", most), ("one_server", one_server)))


def bunch_worker(number: int, *, one_server: bool = False) -> Role:
    """Takes two tokens in one pop."""
    return Role(f"w:{number}", "bunch worker", (("one_server", one_server),))


def puller(
    how: Callable[[Receipt], Operation[Any]], visible_ms: int = 20_000, number: int = 8
) -> Role:
    """Takes each sub-request for so long, and settles it this way."""
    return Role(f"t:{number}", "puller", (("settle", how), ("visible_ms", visible_ms)))


W1, W2, W3 = worker(1), worker(2), worker(3)
ON1, ON2 = worker(1, one_server=True), worker(2, one_server=True)
BUNCH = bunch_worker(1, one_server=True)
CANCEL = Role("c", "canceller")
REQUEUE = Role("d", "requeuer")
TAKER = Role("t", "taker", (("worker", "w:1"),))
CRASH, LOST, COPY, FULL, AWAY = (1,), (0, 1), (0, 0, 1), (0, 0, 0, 1), (0, 0, 0, 0, 1)
DONE = ("all done",)
SLOWLY_DONE = ("all done", "stops")
FAILS = ("all done", "first fails")
BAD = ("all done", "first is bad")
ALL = ("all done", "first fails", "first is bad", "stops", "in parts", "drains")

# One sub-request in twenty seconds.
SLOW: dict[str, Any] = {"limit": 1, "rates": (Rate("=", 20_000_000, 1, 1),)}

SMALL = (  # a few seconds: in every test run
    System("one worker", (producer(1), W1)),
    System("an empty request", (producer(),), (1, 1, 0)),
    System("a deadline", (producer(1, deadline_ms=20_000), W1)),
    System("a delay", (producer(1, delay_ms=20_000), W1)),
    # These take the longest: in `make test-rest`.
    System("a failing handler", (producer(1), W1), hows=FAILS),
    System("open, one server", (producer(1, 1, one_server=True), W1)),
    System("exchange", (producer(2), ON1)),
    System("open", (producer(1, 1), W1)),
)
MIDDLE = (
    System("two workers", (producer(1), W1, W2)),
    System("cancel", (producer(1), W1, CANCEL)),
    System("requeue", (producer(1), W1, REQUEUE), hows=BAD),
    System("stops", (producer(2), worker(1, 2)), hows=("all done", "stops")),
    System("a slow call", (producer(2), worker(1, 2)), hows=SLOWLY_DONE, splits=True),
    System("in parts", (producer(2), worker(1, 2)), hows=("all done", "in parts")),
    System("a lost reply", (producer(1), W1), LOST),
    System("taken for dead", (producer(1), W1, TAKER)),
    System("another lane", (producer(1), W1, changer(("set_priority", 9)))),
    System("pause, resume", (producer(1), W1, changer(("pause",), ("resume",)))),
    System("a late copy", (producer(1), W1), COPY),
    System("limit 2, then 1", (producer(2, limit=2), W1, changer(("set_limit", 1)))),
    System("limit 1, then 2", (producer(2), W1, changer(("set_limit", 2)))),
    System("a deadline, a crash", (producer(1, deadline_ms=20_000), W1), CRASH),
    System("a crash", (producer(1), W1), CRASH),
    System("one server, a lost reply", (producer(1, one_server=True), W1), LOST),
    System("one server, a late copy", (producer(1, one_server=True), W1), COPY),
    System("one server, a crash", (producer(1, one_server=True), W1), CRASH),
    System("one server, by two", (producer(1, one_server=True), producer(1, name="q"), W1)),
    System("a program that takes", (producer(1), puller(done))),
    System("takes, a crash", (producer(1), puller(done)), CRASH),
    System("takes, a lost reply", (producer(1), puller(done)), LOST),
    System("takes, a late copy", (producer(1), puller(done)), COPY),
    System("takes for long, a crash", (producer(1), puller(done, 60_000)), CRASH),
    System("takes and gives up", (producer(1), puller(dead)), LOST),
    System("takes, beside a worker", (producer(1), puller(done), W1)),
    System("takes and returns, beside a worker", (producer(1), puller(release), W1)),
    System("takes, cancel", (producer(2), puller(done), CANCEL)),
    System("ageing", (producer(2, ageing_ms=10_000), W1)),
    System("ageing, a crash", (producer(1, ageing_ms=10_000), W1), CRASH),
    System("ageing, a lost reply", (producer(1, ageing_ms=10_000), W1), LOST),
    System("a rate", (producer(3, **SLOW), W1)),
    System("a rate, a crash", (producer(2, **SLOW), W1), CRASH),
    System("a rate, a lost reply", (producer(2, **SLOW), W1), LOST),
    System("exchange, a rate", (producer(3, **SLOW), ON1)),
    System("hold", (producer(1), W1, changer(("hold", 20_000)))),
    System("a delay, a crash", (producer(1, delay_ms=20_000), W1), CRASH),
    System("a delay, a lost reply", (producer(1, delay_ms=20_000), W1), LOST),
    System("a delay, cancel", (producer(1, delay_ms=20_000), W1, CANCEL)),
    System("hold, a lost reply", (producer(1), W1, changer(("hold", 20_000))), LOST),
    System("hold, fails", (producer(1), W1, changer(("hold", 20_000))), hows=FAILS),
    System("exchange, hold", (producer(2), ON1, changer(("hold", 20_000)))),
    System("exchange, a crash", (producer(2), ON1), CRASH),
    System("exchange, a lost reply", (producer(2), ON1), LOST),
    System("exchange, a late copy", (producer(2), ON1), COPY),
    System("exchange, fails", (producer(2), ON1), hows=FAILS),
    System("exchange, cancel", (producer(2), ON1, CANCEL)),
    System("exchange, taken for dead", (producer(2), ON1, TAKER)),
    System("exchange, another lane", (producer(2), ON1, changer(("set_priority", 9)))),
    System("exchange, limit 2", (producer(3, limit=2), ON1)),
    System("a tenant", (producer(1, tenant="a"), W1)),
    System("exchange, a tenant", (producer(2, tenant="a"), ON1)),
)
LARGE = (
    System("another rate", (producer(2, **SLOW), W1, changer(("set_rate", "6/m")))),
    System("extended leases", (producer(1), W1, W2), extends=True),
    System("a tenant, a crash", (producer(1, tenant="a"), W1), CRASH),
    System("a tenant, a lost reply", (producer(1, tenant="a"), W1), LOST),
    System("another share", (producer(1, tenant="a"), W1, changer(("set_share", 9)))),
    System("exchange, another share", (producer(1, tenant="a"), ON1, changer(("set_share", 9)))),
    System("a tenant, two workers", (producer(1, tenant="a"), W1, W2)),
    System("a slow call of three", (producer(3), worker(1, 3)), hows=SLOWLY_DONE, splits=True),
    System("three workers", (producer(1), W1, W2, W3)),
    System("the last attempt", (producer(1, attempts=1), W1), CRASH, FAILS),
    System("a failing handler, a crash", (producer(1), W1), CRASH, FAILS),
    System("one is bad", (producer(2), worker(1, 2)), hows=BAD),
    System("one is given back", (producer(2), worker(1, 2)), hows=("all done", "drains")),
    System("limit 2", (producer(2, limit=2), W1, W2)),
    System("open, a crash", (producer(1, 1), W1), CRASH),
    System("open, a lost reply", (producer(1, 1), W1), LOST),
    System("open, a late copy", (producer(1, 1), W1), COPY),
    System("open, cancel", (producer(1, 1), W1, CANCEL)),
    System("cancel, a crash", (producer(1), W1, CANCEL), CRASH),
    System("cancel, a lost reply", (producer(1), W1, CANCEL), LOST),
    System("cancel, a late copy", (producer(1), W1, CANCEL), COPY),
    System("another lane, a lost reply", (producer(1), W1, changer(("set_priority", 9))), LOST),
    System("pause, resume, a crash", (producer(1), W1, changer(("pause",), ("resume",))), CRASH),
    System("a deadline, two workers", (producer(2, deadline_ms=20_000), W1, W2)),
    System("two keepers", (producer(1), W1), keepers=2),
    System("two workers, a lost reply", (producer(1), W1, W2), LOST),
    System("two workers, a late copy", (producer(1), W1, W2), COPY),
    System("two workers, a crash", (producer(1), W1, W2), CRASH),
    System("two producers", (producer(1), producer(1, name="q"), W1)),
    System("a crash and a lost reply", (producer(1), W1), (1, 1, 0)),
    System("two tokens together", (producer(2, limit=2), bunch_worker(1))),
    System("exchange two", (producer(2, limit=2), BUNCH)),
    System("exchange, limit 2, then 1", (producer(3, limit=2), ON1, changer(("set_limit", 1)))),
    System("both exchange", (producer(2), ON1, ON2)),
    System("one exchanges, and one", (producer(2, limit=2), ON1, W2)),
)
# Two producers of one id, and one whose submission was abandoned.
VANISHES = frozenset({"RequestLost", "RequestExists"})  # another one took it back, or began anew
P, BREAKS = producer(1, 1), producer(1, 1, name="q", breaks=True)
BREAKS_SOON = producer(1, name="q", breaks=True)  # a second chunk, and a worker: too many states
SHARED = (
    System("comes again", (producer(1, 1, comings=2), W1), most=300_000),
    System("comes again after a crash", (producer(1, comings=2), W1), CRASH),
    System("the source breaks", (BREAKS, W1)),
    System("the source breaks, a lost reply", (BREAKS, W1), LOST),
    System("one of two breaks", (P, BREAKS), tolerates=VANISHES, passes=False),
    System("one of two breaks, time passes", (P, BREAKS), tolerates=VANISHES),
    System("one of two breaks, a worker", (P, BREAKS_SOON, W1), tolerates=VANISHES),
    System("one of two breaks, a lost reply", (P, BREAKS), LOST, tolerates=VANISHES, passes=False),
    System("no room", (producer(1, comings=2), W1), FULL),
    System("no room for one of two", (producer(1), producer(1, name="q")), FULL),
    System("no room for one of two, a worker", (producer(1), producer(1, name="q"), W1), FULL),
)
# Dead sub-requests of an ended request run again: it is opened again, and ends once more. A call
# requeues two of them (see install), so that a requeue of three holds the request.
DIED: dict[str, Any] = {
    "before": (producer(2, attempts=1), worker(1, 2)),
    "hows": ("all are bad", "all done"),
    "protocol": ReopensOnce,
}
# A hold ends after a minute, so a slow requeue of several calls may open it once more.
THREE_DIED: dict[str, Any] = {
    **DIED,
    "before": (producer(3, attempts=1), worker(1, 3)),
    "protocol": Reopens,
}
ONE_DIED: dict[str, Any] = {**DIED, "before": (producer(1, attempts=1), W1)}
CUT_OFF: dict[str, Any] = {"protocol": Reopens}
REPAIR, REPAIR_ONE = reviver("d"), reviver("e", 1)
REOPENS = (
    System("reopen", (REPAIR, W1), **DIED),
    System("reopen, a crash", (REPAIR, W1), CRASH, **ONE_DIED | CUT_OFF),
    System("reopen, a lost reply", (REPAIR, W1), LOST, **ONE_DIED),
    System("reopen, a late copy", (REPAIR, W1), COPY, **ONE_DIED),
    System("reopen, Redis is full", (REPAIR, W1), FULL, **ONE_DIED),
    System("reopen by two", (REPAIR, reviver("e"), W1), **ONE_DIED),
    System("reopen by two, a choice that overlaps", (REPAIR, REPAIR_ONE, W1), **DIED),
    System("reopen by two, a crash", (REPAIR, reviver("e"), W1), CRASH, **ONE_DIED | CUT_OFF),
    System("reopen, cancelled", (REPAIR, W1, CANCEL), **ONE_DIED),
    System("reopen, deleted", (REPAIR, W1, DELETER), **ONE_DIED),
    System("reopen, deleted, a crash", (REPAIR, W1, DELETER), CRASH, **ONE_DIED | CUT_OFF),
    System("reopen, taken for dead", (REPAIR, W1, TAKER), **ONE_DIED),
    System("reopen in two calls", (REPAIR, worker(1, 3)), **THREE_DIED),
    System("reopen in two calls, a crash", (REPAIR, worker(1, 3)), CRASH, **THREE_DIED),
    System("reopen in two calls, a lost reply", (REPAIR, worker(1, 3)), LOST, **THREE_DIED),
    System("reopen in two calls, cancelled", (REPAIR, worker(1, 3), CANCEL), **THREE_DIED),
    System("reopen in two calls beside another", (REPAIR, REPAIR_ONE, worker(1, 3)), **THREE_DIED),
)
# Two requests that are created together.
TOGETHER: dict[str, Any] = {"protocol": Groups}
IN_STEPS, BY_SCRIPT = group_producer(), group_producer(one_server=True)
GROUPS = (
    System("a group", (IN_STEPS,), **TOGETHER),
    System("a group, one server", (BY_SCRIPT, W1), **TOGETHER),
    System("a group, a crash", (IN_STEPS,), CRASH, **TOGETHER),
    System("a group, one server, a crash", (BY_SCRIPT,), CRASH, **TOGETHER),
    System("a group, a lost reply", (IN_STEPS,), LOST, **TOGETHER),
    System("a group, one server, a lost reply", (BY_SCRIPT,), LOST, **TOGETHER),
    System("a group, one server, a late copy", (BY_SCRIPT,), COPY, **TOGETHER),
    System("no room for a group", (IN_STEPS,), FULL, **TOGETHER),
    System("no room for a group, one server", (BY_SCRIPT,), FULL, **TOGETHER),
    System("a group by two", (BY_SCRIPT, group_producer("q", one_server=True)), **TOGETHER),
)
# An ended request is deleted, and its id may have another life.
GOES: dict[str, Any] = {"protocol": Deletions}
DELETED = (
    System("delete", (producer(1), W1, DELETER), protocol=Deletions),
    System("delete, a new life", (producer(1), producer(1, name="q"), W1, DELETER), **GOES),
    System("delete, a crash", (producer(1), W1, DELETER), CRASH, **GOES),
    System("delete, a lost reply", (producer(1), W1, DELETER), LOST, **GOES),
    System("delete, a late copy", (producer(1), W1, DELETER), COPY, **GOES),
    System("delete, cancelled", (producer(1), W1, CANCEL, DELETER), **GOES),
    System("delete, dead ones", (producer(1), W1, DELETER), hows=BAD, **GOES),
    System("another deadline", (producer(1), W1, changer(("set_deadline", 20_000)))),
    System(
        "a deadline, then none",
        (producer(1, deadline_ms=20_000), W1, changer(("set_deadline", 0))),
    ),
)
# A queue over several shards, which change.
ONE_SHARD: dict[str, Any] = {"before": (spreader(1),), "protocol": Spread}
MOVED: dict[str, Any] = {"before": (spreader(1),), "protocol": OneMoves, "keepers": 0}
SHARDED = (
    System("one shard", (producer(1), W1), **ONE_SHARD),
    System("moved by one", (producer(1), spreader(2, until_moved=True)), **MOVED),
    System("moved by one, a worker", (producer(1), W1, spreader(2, until_moved=True)), **MOVED),
    System("moved by one, away", (producer(1), spreader(2, until_moved=True)), AWAY, **MOVED),
    System(
        "moved by one, a crash",
        (producer(1), spreader(2, until_moved=True)),
        CRASH,
        **(MOVED | {"keepers": 1}),
    ),
    System("another shard", (producer(1), W1, spreader(2)), **ONE_SHARD),
    System("no shard any more", (producer(1), W1, spreader()), **ONE_SHARD),
)
# A durable request, and a failover to what the replica has.
SHORT, FAILOVER = (0, 0, 0, 0, 0, 1), (0, 0, 0, 0, 0, 0, 1)
CAUGHT_UP = (*FAILOVER, 1)
SURE = producer(1, durable=1, comings=2)
DURABLES = (
    System("durable, a failover", (SURE,), CAUGHT_UP, protocol=Durable),
    System("durable, open", (producer(1, 1, durable=1),), CAUGHT_UP, protocol=Durable),
    System("durable", (SURE, W1), protocol=Durable),
    System("durable, not confirmed", (SURE, W1), SHORT, protocol=Durable),
    System("durable, a worker", (SURE, W1), FAILOVER, protocol=Durable),
    System("durable, a wait", (SURE, W1, WAITER), FAILOVER, protocol=Durable),
)
# A step of a flow is fed by others. Where these have ended before, only the hand-over is explored.
FED: dict[str, Any] = {"before": (fed_by(*ONE, count=2), W1), "protocol": TwoResults}
FED_ONE: dict[str, Any] = {"before": (fed_by(*ONE), W1), "protocol": Feeds}
FED_LIVE: dict[str, Any] = {"before": (fed_by(*ONE, count=2),), "protocol": TwoResults}
JOINED: dict[str, Any] = {"before": (fed_by(*TWO), W1), "protocol": Joins}
JOINED_LIVE: dict[str, Any] = {"before": (fed_by(*TWO),), "protocol": Joins}
BRANCHED: dict[str, Any] = {"before": (chosen_by(NAMES, 2), W1), "protocol": OneOfTwo}
BRANCHED_LIVE: dict[str, Any] = {"before": (chosen_by(NAMES, 2),), "protocol": OneOfTwo}
CHOSE: dict[str, Any] = {"before": (chosen_by(FANS), W1), "protocol": TwoOfThree}
CHOSE_LIVE: dict[str, Any] = {"before": (chosen_by(FANS),), "protocol": TwoOfThree}
COLLECTED: dict[str, Any] = {"before": (chosen_and_joined(), W1), "protocol": JoinsChosen}
COLLECTED_LIVE: dict[str, Any] = {"before": (chosen_and_joined(),), "protocol": JoinsChosen}
FLOWS = (
    System("hand over", (W1,), **FED),
    System("hand over, a crash", (W1,), CRASH, **FED),
    System("hand over, a lost reply", (W1,), LOST, **FED),
    System("hand over, a late copy", (W1,), COPY, **FED),
    System("join", (W1,), **JOINED),
    System("join, a crash", (W1,), CRASH, **JOINED),
    System("join, a lost reply", (W1,), LOST, **JOINED),
    System("join, a late copy", (W1,), COPY, **JOINED),
    System("branch", (W1,), **BRANCHED),
    System("branch, a crash", (W1,), CRASH, **BRANCHED),
    System("branch, a lost reply", (W1,), LOST, **BRANCHED),
    System("branch, a late copy", (W1,), COPY, **BRANCHED),
    System("children that were chosen", (W1,), **CHOSE),
    System("children that were chosen, a crash", (W1,), CRASH, **CHOSE),
    System("children that were chosen, a lost reply", (W1,), LOST, **CHOSE),
    System("children that were chosen, a late copy", (W1,), COPY, **CHOSE),
    System("join of the chosen", (W1,), **COLLECTED),
    System("join of the chosen, a crash", (W1,), CRASH, **COLLECTED),
    System("join of the chosen, a lost reply", (W1,), LOST, **COLLECTED),
    System("join of the chosen, a late copy", (W1,), COPY, **COLLECTED),
)
# Requests that depend on others: they start after them, belong to a schedule, or to a flow.
TWICE: dict[str, Any] = {"keepers": 2}
ONE_TICK: dict[str, Any] = {"before": (scheduler(),), "protocol": Ticks}
TWO_TICKS: dict[str, Any] = {"before": (scheduler(2),), "protocol": Ticks}
FLOW: dict[str, Any] = {"before": (flow_producer(),), "protocol": HandedOver}
SEVERAL = (
    System("after", (follower(), W1), protocol=AfterDone),
    System("after, submitted, a crash", (follower(),), CRASH, protocol=AfterDone, passes=False),
    System("after, submitted, a lost reply", (follower(),), LOST, protocol=AfterDone, passes=False),
    System("a schedule", (W1,), **ONE_TICK),
    System("a schedule, a crash", (W1,), CRASH, **ONE_TICK),
    System("a schedule, a lost reply", (W1,), LOST, **ONE_TICK),
    System("a schedule, a late copy", (), COPY, **ONE_TICK),
    System("a schedule, two leaders", (), **ONE_TICK, **TWICE),
    System("a schedule, two leaders, a crash", (), CRASH, **ONE_TICK, **TWICE),
    System("two ticks", (), **TWO_TICKS),
    System("two ticks, a crash", (), CRASH, **TWO_TICKS),
    System("two ticks, two leaders", (), **TWO_TICKS, **TWICE),
    System(
        "a schedule is paused",
        (schedule_changer("pause", "resume"),),
        **(ONE_TICK | {"protocol": PausedTicks}),
    ),
    System(
        "a schedule is removed",
        (schedule_changer("remove"),),
        **(ONE_TICK | {"protocol": PausedTicks}),
    ),
    System("a flow", (W1,), **FLOW),
    System("a flow, a crash", (W1,), CRASH, **FLOW),
    System("a flow, a lost reply", (W1,), LOST, **FLOW),
    System("a flow, a late copy", (W1,), COPY, **FLOW),
)


# Two producers of one id, of which one counts.
def duplicates(how: str, delay_ms: int = 0) -> tuple[Role, Role]:
    """Submits other content under the same id, by two producers."""
    given: dict[str, Any] = {"on_duplicate": how, "delay_ms": delay_ms}
    return producer(1, **given), producer(2, name="q", **given)


REPLACE, KEEP, DEBOUNCE = (
    duplicates(*given) for given in (("replace",), ("keep",), ("debounce", 20_000))
)
UNIQUES = (
    System("replace", REPLACE, protocol=Replaces, passes=False),
    System("replace, a crash", REPLACE, CRASH, protocol=Uniques, passes=False),
    System("replace, a lost reply", REPLACE, LOST, protocol=Uniques, passes=False),
    System("keep", KEEP, protocol=Replaces, passes=False),
    System("keep, a crash", KEEP, CRASH, protocol=Uniques, passes=False),
    System("keep, a lost reply", KEEP, LOST, protocol=Uniques, passes=False),
    System("debounce", DEBOUNCE, protocol=Replaces, passes=False),
    System("debounce, a crash", DEBOUNCE, CRASH, protocol=Uniques, passes=False),
    System("debounce, a lost reply", DEBOUNCE, LOST, protocol=Uniques, passes=False),
)
# A request that takes each key once: of four bodies two are left out.
ODD: dict[str, Any] = {"protocol": Distincts}
FOUR, FOUR_IN_ONE = (producer(2, 1, 1, distinct=True, one_server=way) for way in (False, True))
DISTINCTS = (
    System("distinct", (FOUR,), **ODD),
    System("distinct, a crash", (FOUR,), CRASH, **ODD),
    System("distinct, a lost reply", (FOUR,), LOST, **ODD),
    System("distinct, a late copy", (FOUR,), COPY, **ODD),
    System("distinct, one server", (FOUR_IN_ONE,), (1, 1, 0), **ODD),
    System("distinct, one server, a late copy", (FOUR_IN_ONE,), COPY, **ODD),
    System("distinct, no room", (FOUR,), FULL, **ODD),
    System("distinct, cancel", (FOUR, CANCEL), **ODD),
    System(
        "distinct, the source breaks", (producer(2, 1, distinct=True, breaks=True),), LOST, **ODD
    ),
    System(
        "distinct, comes again after a crash",
        (producer(2, 1, distinct=True, comings=2),),
        CRASH,
        **ODD,
    ),
    System(
        "distinct, by two",
        (FOUR, producer(2, 1, 1, distinct=True, name="q")),
        tolerates=VANISHES,
        passes=False,
        **ODD,
    ),
    System("distinct, a worker", (producer(2, 1, distinct=True), W1), **ODD),
)
# A queue has a rate, or is paused; its workers learn that with their beats.
BEATS, WAITED = beating_worker(), beating_worker(has_waited=True)
AT_RATE, PAIR = queue_changer(("rate", SLOWLY)), producer(2)
RATED: dict[str, Any] = {"before": (REGISTRAR, AT_RATE, PAIR), "protocol": AtOneRate}
RATED_TWO: dict[str, Any] = RATED | {"before": (REGISTRAR, AT_RATE, producer(2, limit=2))}
RATED_ONE: dict[str, Any] = {"before": (REGISTRAR, AT_RATE, producer(1)), "protocol": AtOneRate}
NEW_RATE: dict[str, Any] = RATED | {"protocol": Rated, "keepers": 0}
NO_RATE: dict[str, Any] = {"protocol": Rated, "before": (REGISTRAR, PAIR), "keepers": 0}
ANOTHER, REMOVED = queue_changer(("rate", FASTER)), queue_changer(("rate", None))
RATES = (
    System("a queue's rate", (BEATS,), **RATED),
    System("a queue's rate, a crash", (BEATS,), CRASH, **RATED),
    System("a queue's rate, a lost reply", (BEATS,), LOST, **RATED),
    System("a queue's rate, in line", (WAITED,), **(RATED | {"keepers": 0})),
    System("a queue's rate, delayed", (BEATS,), hows=FAILS, **RATED_ONE),
    System("a queue's rate, delayed, a crash", (BEATS,), CRASH, FAILS, **RATED_ONE),
    System("a queue gets a rate", (BEATS, AT_RATE), **NO_RATE),
    System("a queue's rate, another one", (BEATS, ANOTHER), **NEW_RATE),
    System("a queue's rate is removed", (BEATS, REMOVED), **NEW_RATE),
)
WAITS: dict[str, Any] = {"before": (REGISTRAR, producer(1)), "protocol": Paused}
PAUSES, STOPS = queue_changer(("pause", None), ("resume",)), queue_changer(("pause", None))
REST, RESTS_TOO = (queue_changer(("pause", 20.0), name=name) for name in "xy")
PAUSED = (
    System("a queue is paused", (BEATS, PAUSES), **WAITS),
    System("a queue is paused, a crash", (BEATS, STOPS), CRASH, **WAITS),
    System("a queue is paused, a lost reply", (BEATS, STOPS), LOST, **WAITS),
    System("a queue rests", (BEATS, REST), **WAITS),
    System("a queue rests, a crash", (BEATS, REST), CRASH, **WAITS),
    System("a queue rests twice", (BEATS, REST, RESTS_TOO), **(WAITS | {"keepers": 0})),
)
# Programs take from a queue without a worker, and do what is due.
TAKES, LONGER = program(done), program(extend_and_finish)
ONCE = program(done, once=True)
AMONG: dict[str, Any] = {"before": (producer(1),), "protocol": Programs}
ALONE: dict[str, Any] = AMONG | {"keepers": 0}
TWO_WAIT: dict[str, Any] = ALONE | {"before": (producer(2),)}
AT_A_RATE: dict[str, Any] = ALONE | {"before": (AT_RATE, producer(2))}
PROGRAMS = (
    System("stands in", (TAKES,), **TWO_WAIT),
    System("stands in, a crash", (TAKES,), CRASH, **ALONE),
    System("stands in, a lost reply", (TAKES,), LOST, **ALONE),
    System("stands in, a late copy", (TAKES,), COPY, **ALONE),
    System("stands in, gives up", (program(dead),), CRASH, **ALONE),
    System("stands in, beside one who returns", (TAKES, puller(release)), **ALONE),
    System("stands in, extends", (LONGER,), CRASH, **ALONE),
    System("stands in, extends, a lost reply", (LONGER,), LOST, **ALONE),
    System("stands in at a rate", (TAKES,), **AT_A_RATE),
    System("stands in at a rate, a crash", (TAKES,), CRASH, **AT_A_RATE),
    System("stands in at a rate, a lost reply", (TAKES,), LOST, **AT_A_RATE),
    System("stands in, the queue gets a rate", (TAKES, AT_RATE), CRASH, **TWO_WAIT),
    System("stands in, the rate is another", (TAKES, ANOTHER), CRASH, **AT_A_RATE),
    System("stands in, the rate is removed", (TAKES, REMOVED), CRASH, **AT_A_RATE),
    System("stands in, the rate is set twice", (TAKES, ANOTHER), COPY, **AT_A_RATE),
    System("stands in, the queue is paused", (TAKES, PAUSES), **ALONE),
    System("stands in, the queue rests", (TAKES, REST), CRASH, **ALONE),
    System("stands in, the queue rests, a late copy", (TAKES, REST), COPY, **ALONE),
    System("stands in, two pause the queue", (TAKES, REST, RESTS_TOO), CRASH, **ALONE),
)
# A request is open until its producer seals it.
LEAVES, ENDS_SOON = opener(seals=False), opener(seals=False, deadline_ms=20_000)
BEGUN: dict[str, Any] = {"before": (LEAVES,)}
OPENS = (
    System("opens", (opener(), W1)),
    System("opens, a crash", (opener(),), CRASH),
    System("opens, a lost reply", (opener(),), LOST),
    System("opens, a late copy", (opener(),), COPY),
    System("opens, no room", (opener(comings=2),), FULL),
    System("opens, leaves", (LEAVES, W1)),
    System("opens, leaves, a deadline", (ENDS_SOON, W1)),
    System("opens, cancel", (opener(), CANCEL)),
    System("seals what was left", (opener(), W1), **BEGUN),
    System("seals what was left, a crash", (opener(),), CRASH, **BEGUN),
    System("seals what was left, a lost reply", (opener(),), LOST, **BEGUN),
    System("seals what was left, a late copy", (opener(),), COPY, **BEGUN),
)
# What is there before is not interleaved: so these end, though their likes below do not.
FOLLOWS: dict[str, Any] = {"before": (follower(),), "protocol": AfterDone}
ANY_END: dict[str, Any] = {"before": (follower(any_end=True),), "protocol": After}
ONE_IS_THERE: dict[str, Any] = {"before": (follower(FIRST),), "protocol": AfterDone}
OWNED: dict[str, Any] = {"before": (producer(1, tenant="a"),)}
FED_SOON: dict[str, Any] = {"before": (fed_by(*ONE),), "protocol": Feeds}
BEGUN_BEFORE = (
    System("waits for another", (W1,), **FOLLOWS),
    System("waits for another, a crash", (W1,), CRASH, **FOLLOWS),
    System("waits for another, a lost reply", (W1,), LOST, **FOLLOWS),
    System("waits for another, a late copy", (W1,), COPY, **FOLLOWS),
    System("waits for another, dead", (W1,), CRASH, BAD, **FOLLOWS),
    System("waits for another, cancelled", (W1, CANCEL_FIRST), **FOLLOWS),
    System("waits for any end", (W1, CANCEL_FIRST), **ANY_END),
    System("comes after another", (follower(REQUEST), W1), **ONE_IS_THERE),
    System("a new share", (W1, changer(("set_share", 9))), **OWNED),
    System("exchange, a new share", (ON1, changer(("set_share", 9))), **OWNED),
    System("one is fed", (W1,), **FED_SOON),
    System("one is fed, a crash", (W1,), CRASH, **FED_SOON),
)
# Two requests that share a key, or name two keys in another order.
SHARE_X: dict[str, Any] = {"before": (keyed_producer({"x": 1}),), "protocol": Keyed}
SHARE_TWO = SHARE_X | {"before": (keyed_producer({"x": 1, "y": 1}, {"y": 1, "x": 1}),)}
AT_TWO = SHARE_X | {"before": (keyed_producer({"x": 2}),)}
APART_X: dict[str, Any] = {"before": (keyed_producer({"x": 1}),), "protocol": KeyedApart}
APART_TWO = APART_X | {"before": (keyed_producer({"x": 1, "y": 1}, {"y": 1, "x": 1}),)}
IN_ORDER: dict[str, Any] = {"before": (keyed_producer({}, order="go_on"),), "protocol": Ordered}
ORDER_AND_KEY: dict[str, Any] = {"before": (keyed_producer({"x": 1}, order="go_on"),)}
STOPS_OTHERS: dict[str, Any] = IN_ORDER | {
    "before": (keyed_producer({}, attempts=1, order="stop"),)
}
DIES_IN_ORDER = IN_ORDER | {"before": (keyed_producer({}, attempts=1, order="go_on"),)}
DIES_WITH_KEY = IN_ORDER | {"before": (keyed_producer({"x": 1}, attempts=1, order="go_on"),)}
LATE = ("set_deadline", 20_000)
OF_TASK: dict[str, Any] = {"before": (keyed_producer({"task/x": 1}),), "protocol": OfTask}
BY_HAND = key_setter(2, None, key="task/x")
KEYED = (
    System("one key", (ON1, ON2), **SHARE_X),
    System("one key, a worker", (ON1,), **SHARE_X),
    System("one key, a higher limit", (ON1, key_setter(2)), **SHARE_X),
    System("one key, a lower limit", (ON1, key_setter(1)), **AT_TWO),
    System("one key, submitted", (keyed_producer({"x": 1}), ON1), protocol=Keyed),
    System("two keys, a worker", (ON1,), **SHARE_TWO),
    System("a task's limit", (ON1, task_registrar(2)), **OF_TASK),
    System("a task's limit, another release", (ON1, task_registrar(2, 1)), **OF_TASK),
    System("an order", (ON1,), **IN_ORDER),
    System("an order, submitted", (keyed_producer({}, order="go_on"), ON1), protocol=Ordered),
    System("an order and a key", (ON1,), **(IN_ORDER | ORDER_AND_KEY)),
    System("an order, cancel", (ON1, CANCEL), **IN_ORDER),
    System("an order, stops", (ON1, key_resumer()), hows=FAILS, **STOPS_OTHERS),
    System("an order, a repair", (ON1, REQUEUE), hows=FAILS, **DIES_IN_ORDER),
    System("an order, a repair of a stop", (ON1, REQUEUE), hows=FAILS, **STOPS_OTHERS),
    System("an order and a key, a repair", (ON1, REQUEUE), hows=FAILS, **DIES_WITH_KEY),
    System("an order, the first one is late", (ON1, changer(LATE)), **STOPS_OTHERS),
    System("an order, the next one is late", (ON1, changer(LATE, of=OTHER)), **STOPS_OTHERS),
    System("an order, cancel the next one", (ON1, changer(("cancel",), of=OTHER)), **IN_ORDER),
)
HUGE = (  # only by name: most have more than three million states
    System("a key of a cluster", (W1,), **APART_X),
    System("two keys of a cluster", (W1,), **APART_TWO),
    System("a key of a cluster, two workers", (W1, W2), **APART_X),
    System("a key of a cluster, a crash", (W1,), CRASH, **APART_X),
    System("a key of a cluster, a lost reply", (W1,), LOST, **APART_X),
    System("a key of a cluster, a late copy", (W1,), COPY, **APART_X),
    System("a key of a cluster, fails", (W1,), hows=FAILS, **APART_X),
    System("a key of a cluster, cancel", (W1, CANCEL), **APART_X),
    System("a key of a cluster, taken for dead", (W1, TAKER), **APART_X),
    System("two keys of a cluster, two workers", (W1, W2), **APART_TWO),
    System("two keys of a cluster, a crash", (W1,), CRASH, **APART_TWO),
    System("one key, a crash", (ON1,), CRASH, **SHARE_X),
    System("an order, two workers", (ON1, ON2), **IN_ORDER),
    System("an order, a crash", (ON1,), CRASH, **IN_ORDER),
    System("an order, a lost reply", (ON1,), LOST, **IN_ORDER),
    System("an order, fails", (ON1,), hows=FAILS, **IN_ORDER),
    System("an order, another lane", (ON1, changer(("set_priority", 9))), **IN_ORDER),
    System("one key, a lost reply", (ON1,), LOST, **SHARE_X),
    System("one key, a late copy", (ON1,), COPY, **SHARE_X),
    System("one key, fails", (ON1,), hows=FAILS, **SHARE_X),
    System("one key, cancel", (ON1, CANCEL), **SHARE_X),
    System("one key, another lane", (ON1, changer(("set_priority", 9))), **SHARE_X),
    System("one key, taken for dead", (ON1, TAKER), **SHARE_X),
    System("one key, set and unset", (ON1, key_setter(2, None)), **SHARE_X),
    System("a task's limit, by hand, too", (ON1, task_registrar(3), BY_HAND), **OF_TASK),
    System("a task's limit, no longer one", (ON1, task_registrar(2, None)), **OF_TASK),
    System("two keys", (ON1, ON2), **SHARE_TWO),
    System("two keys, a crash", (ON1,), CRASH, **SHARE_TWO),
    System("two keys, a lost reply", (ON1,), LOST, **SHARE_TWO),
    System("two keys, cancel", (ON1, CANCEL), **SHARE_TWO),
    System("a slow call, two workers", (producer(2, limit=2), worker(1, 2), W2), splits=True),
    System("a slow call, a lost reply", (producer(2), worker(1, 2)), LOST, splits=True),
    System("a slow call, a crash", (producer(2), worker(1, 2)), CRASH, SLOWLY_DONE, splits=True),
    System("distinct, a worker, a lost reply", (producer(2, 1, distinct=True), W1), LOST, **ODD),
    System("a queue is paused, a late copy", (BEATS, PAUSES), COPY, **WAITS),
    System("stands in, one of two is late", (ONCE, W1), **AMONG),
    System("stands in, once, a lost reply", (ONCE, W1), LOST, **AMONG),
    System("waits for another, two leaders", (W1,), **FOLLOWS, **TWICE),
    System("a new share, a crash", (W1, changer(("set_share", 9))), CRASH, **OWNED),
    System("two programs stand in", (TAKES, program(done, 9)), **ALONE),
    System("a queue's rate, two workers", (BEATS, beating_worker(2, has_waited=True)), **RATED_TWO),
    System("hand over, two leaders", (W1,), keepers=2, **FED_ONE),
    System("hand over meanwhile", (W1,), **FED_LIVE),
    System("hand over meanwhile, a crash", (W1,), CRASH, **FED_LIVE),
    System("hand over what did not die", (W1,), hows=BAD, **FED_LIVE),
    System("join, two leaders", (W1,), keepers=2, **JOINED),
    System("join meanwhile", (W1,), **JOINED_LIVE),
    System("join meanwhile, a crash", (W1,), CRASH, **JOINED_LIVE),
    System("join the dead", (W1,), hows=BAD, **JOINED_LIVE),
    System("branch, two leaders", (W1,), keepers=2, **BRANCHED),
    System("branch meanwhile", (W1,), **BRANCHED_LIVE),
    System("children that were chosen, two leaders", (W1,), keepers=2, **CHOSE),
    System("children are chosen meanwhile", (W1,), **CHOSE_LIVE),
    System("join of the chosen, two leaders", (W1,), keepers=2, **COLLECTED),
    System("join of the chosen meanwhile", (W1,), **COLLECTED_LIVE),
    System("requeue before the end, a lost reply", (producer(1), W1, REQUEUE), LOST, BAD),
    System(
        "limit 2, then 1, two workers", (producer(2, limit=2), W1, W2, changer(("set_limit", 1)))
    ),
    System("comes again in parts, a crash", (producer(1, 1, comings=2), W1), CRASH),
    System("two crashes", (producer(1), W1), (2, 0, 0)),
    System("a crash and a late copy", (producer(1), W1), (1, 0, 1)),
    System("limit 2, a crash", (producer(2, limit=2), W1, W2), CRASH),
    System("two together, one fails", (producer(2, limit=2), bunch_worker(1)), hows=FAILS),
    System("two together, a crash", (producer(2, limit=2), bunch_worker(1)), CRASH),
    System("exchange two, a crash", (producer(2, limit=2), BUNCH), CRASH),
    System("exchange two, a lost reply", (producer(2, limit=2), BUNCH), LOST),
    System("exchange two, a late copy", (producer(2, limit=2), BUNCH), COPY),
    System("two together, and one", (producer(2, limit=2), bunch_worker(1), W2)),
    System("two together, a lost reply", (producer(2, limit=2), bunch_worker(1)), LOST),
    System("two together, a late copy", (producer(2, limit=2), bunch_worker(1)), COPY),
    System("every ending of a handler", (producer(2), worker(1, 2)), hows=ALL),
    System("two producers, a crash", (producer(1), producer(1, name="q"), W1), CRASH),
    System("after, a crash", (follower(), W1), CRASH, protocol=AfterDone),
    System("after, a lost reply", (follower(), W1), LOST, protocol=AfterDone),
    System("after, cancelled", (follower(), W1, CANCEL_FIRST), protocol=AfterDone),
    System("after, dead", (follower(), W1), protocol=AfterDone, hows=BAD),
    System("after any end", (follower(any_end=True), W1, CANCEL_FIRST), protocol=After),
    System("after, two leaders", (follower(), W1), protocol=AfterDone, **TWICE),
    System("a flow, two leaders", (W1,), **FLOW, **TWICE),
    System("a flow is submitted", (flow_producer(), W1), CRASH, protocol=HandedOver),
    System("replace, a worker", (*REPLACE, W1), protocol=Uniques),
    System("keep, a worker", (*KEEP, W1), protocol=Uniques),
    System("debounce, a worker", (*DEBOUNCE, W1), protocol=Uniques),
)
EVERY = (
    *(*SMALL, *MIDDLE, *LARGE, *SHARED, *REOPENS, *GROUPS, *DELETED),
    *(*SHARDED, *DURABLES, *FLOWS, *LISTS, *SEVERAL, *UNIQUES, *DISTINCTS),
    *(*RATES, *PAUSED, *PROGRAMS, *OPENS, *BEGUN_BEFORE, *KEYED, *HUGE),
)
BY_NAME = {system.name: system for system in EVERY}
QUICK = tuple(  # of the new ones: less than two seconds each, in every test run, too
    BY_NAME[name]
    for name in (
        "one of two breaks",
        "reopen, a lost reply",
        "reopen, Redis is full",
        "moved by one, away",
        "hand over",
        "join",
        "branch",
        "join of the chosen",
        "fan-out, a lost reply",
        "fan-out, tracked, a late copy",
        "fan-out to the shortest, a crash",
        "forward, a crash",
        "forward, a late copy",
        "two ticks, a crash",
        "a schedule, a late copy",
        "replace, a lost reply",
        "keep, a lost reply",
        "distinct",
        "distinct, one server, a late copy",
        "stands in, a lost reply",
        "stands in at a rate",
        "a queue's rate, in line",
        "a queue rests twice",
    )
)
GATE = (*QUICK, *SMALL, *MIDDLE[:5])  # for mutants that the scripts' own tests do not see
