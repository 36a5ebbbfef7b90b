"""Flows: requests that run as steps, one after the other."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

from fairlane import settings
from fairlane.common.text import format_duration
from fairlane.errors import (
    FairlaneError,
    InvalidArgument,
    RedisUnreachable,
    RequestEnded,
    RequestExists,
    RequestLost,
    RequestNotFound,
    type_of,
)
from fairlane.operations.after import logged_states
from fairlane.operations.completion import state, wait
from fairlane.operations.find import MOST_LISTED, check_page, filter_of, list_requests
from fairlane.operations.flow_branches import MAX_CHOSEN, Choices, StepPlace
from fairlane.operations.flow_hand_over import (
    ARRAY,
    BRANCH,
    CHOSEN,
    COLLECT,
    CONTINUE,
    DEAD,
    DONE,
    GATHER,
    GETS,
    HOLD,
    JOIN,
    JSON_ARRAY,
    LIST,
    MERGE,
    PLAIN,
    STOP,
    STOPPED,
    Feed,
    Wrap,
    begin_feed,
    cancel_flow,
    request_of,
    run_of,
)
from fairlane.operations.request_state import asks_of_progress, detail_of, progress_in
from fairlane.operations.submit import Submission, open_request, submit
from fairlane.operations.tokens import reschedule_active, seen_to_exist
from fairlane.options import check_whole, policy_of, read_option, shown_time
from fairlane.options_table import BY_NAME, OPTIONS
from fairlane.protocol import keys
from fairlane.protocol.keys import check_name
from fairlane.protocol.request_hash import hmget, parse_fields, read
from fairlane.protocol.server_info import time_ms
from fairlane.protocol.steps import Batch, Command, run_all
from fairlane.records import FlowProgress, StepProgress

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from fairlane.option_types import Duration, StepOptions
    from fairlane.options import Policy
    from fairlane.records import Progress


# ------------------------------------------------------------------ steps
# One step of a flow's definition, and the checks of its name and its options.


_POLICIES = (STOP, CONTINUE, HOLD)  # of on_dead; another word names a compensating step
LEAST_RETAIN_S = 3600  # of results that another step reads
_MAX_TAGS = BY_NAME["tags"].most
_NEVER = tuple(option.name for option in OPTIONS if "step" not in option.where.split())
_LONGEST_NAME = 100  # a key adds the number of a step


class PlannedStep(NamedTuple):
    """A step as it will be submitted: its request's id and policy."""

    id: str
    policy: Policy


@dataclass(frozen=True, slots=True)
class Step:
    """One step: its name, its queue ("" = that of the flow), and the options of its request.

    `on_dead` is "stop", "continue", "hold", or the compensating step that gets the dead bodies.
    `sources` are the steps that this one follows. `wrap` is written around each of their results.
    `gathers`: so many results of the only source make one body; 0 = each makes one. `chosen`: how
    many children a result of the parent may choose; 0 = each child gets every result. A branch gets
    the results that name it. The `default` branch also gets those that name no step.
    """

    name: str
    queue: str = ""
    on_dead: str = CONTINUE
    options: Mapping[str, Any] = field(default_factory=dict)
    wrap: Wrap = PLAIN
    sources: tuple[str, ...] = ()
    is_child: bool = False
    is_compensating: bool = False
    gathers: int = 0
    chosen: int = 0
    is_branch: bool = False
    default: str = ""

    @property
    def is_one_of_several(self) -> bool:
        """Returns True for a child or a branch, because its siblings have the same source."""
        return self.is_child or self.is_branch


class Child:
    """A child of a step with options of its own: `.children("a", Child("b", limit=2))`."""

    def __init__(
        self,
        name: str,
        *,
        queue: str | None = None,
        on_dead: str | None = None,
        wrap: Wrap = PLAIN,
        **options: Unpack[StepOptions],
    ) -> None:
        self.name, self._wrap, self._options = name, wrap, options
        self._queue, self._on_dead = queue, on_dead

    def step(self, queue: str, on_dead: str, options: Mapping[str, Any]) -> Step:
        """Returns the step; its own options replace these, which are for all children."""
        return Step(
            self.name,
            queue if self._queue is None else self._queue,
            on_dead if self._on_dead is None else self._on_dead,
            {**options, **self._options},
            self._wrap,
            is_child=True,
        )

    def __repr__(self) -> str:
        return f"<Child {self.name}>"


def as_child(given: str | Child) -> Child:
    """Returns a child of this name, or the child itself. Raises InvalidArgument."""
    child: object = given
    if isinstance(child, Child):
        return child
    if isinstance(child, str):
        return Child(child)
    raise InvalidArgument(f"child is {type_of(child)}: give its name, or Child(name, limit=2)")


class Branch:
    """A branch of a step, with options of its own, and with steps that follow in it.

    `.branches("a", Branch("b", limit=2).step("c"))`. Each method returns a new branch, and does
    what it does in `Flow`.
    """

    def __init__(
        self,
        name: str,
        *,
        queue: str | None = None,
        on_dead: str | None = None,
        wrap: Wrap = PLAIN,
        **options: Unpack[StepOptions],
    ) -> None:
        self._first = Child(name, queue=queue, on_dead=on_dead, wrap=wrap, **options)
        self._later: tuple[Callable[[Flow], Flow], ...] = ()

    def step(
        self,
        name: str,
        *,
        queue: str = "",
        on_dead: str = CONTINUE,
        wrap: Wrap = PLAIN,
        gathers: int = 0,
        **options: Unpack[StepOptions],
    ) -> Branch:
        """Returns this branch with a step at its end; see Flow.step."""
        return self._with(
            lambda flow: flow.step(
                name, queue=queue, on_dead=on_dead, wrap=wrap, gathers=gathers, **options
            )
        )

    def children(
        self,
        *children: str | Child,
        chosen: int = 0,
        queue: str = "",
        on_dead: str = CONTINUE,
        **options: Unpack[StepOptions],
    ) -> Branch:
        """Returns this branch with the children of its last step; see Flow.children."""
        return self._with(
            lambda flow: flow.children(
                *children, chosen=chosen, queue=queue, on_dead=on_dead, **options
            )
        )

    def branches(
        self,
        *branches: str | Branch,
        default: str | None = "",
        queue: str = "",
        on_dead: str = CONTINUE,
        **options: Unpack[StepOptions],
    ) -> Branch:
        """Returns this branch with the branches of its last step; see Flow.branches."""
        return self._with(
            lambda flow: flow.branches(
                *branches, default=default, queue=queue, on_dead=on_dead, **options
            )
        )

    def _with(self, later: Callable[[Flow], Flow]) -> Branch:
        made = object.__new__(Branch)
        made._first, made._later = self._first, (*self._later, later)
        return made

    def first(self, queue: str, on_dead: str, options: Mapping[str, Any]) -> Step:
        """Returns the first step; its own options replace these, which are for all branches."""
        step = self._first.step(queue, on_dead, options)
        return replace(step, is_child=False, is_branch=True)

    def continued(self, flow: Flow) -> Flow:
        """Returns `flow`, which ends with the first step, with the branch's other steps."""
        for later in self._later:
            flow = later(flow)
        return flow

    def __repr__(self) -> str:
        return f"<Branch {self._first.name}>"


def as_branch(given: str | Branch) -> Branch:
    """Returns a branch of this name, or the branch itself. Raises InvalidArgument."""
    branch: object = given
    if isinstance(branch, Branch):
        return branch
    if isinstance(branch, str):
        return Branch(branch)
    raise InvalidArgument(f"branch is {type_of(branch)}: give its name, or Branch(name, limit=2)")


def check_step(step: Step, where: str) -> None:
    """Raises InvalidArgument for a name or options that a step cannot have."""
    check_flow_name("step", step.name)
    if step.name in _POLICIES:
        raise InvalidArgument(f"{where} has a name with a meaning in on_dead: choose another")
    for option in _NEVER:
        if option in step.options:
            raise InvalidArgument(
                f"{where} has the option {option}, which no step has: a step follows the one "
                "before it, and properties are given to submit_flow"
            )
    try:
        policy_of(step.queue or "req", **step.options)
    except InvalidArgument as error:
        raise InvalidArgument(f"{where}: {error}") from None


def check_followed(step: Step, where: str) -> None:
    """Raises InvalidArgument if results may be gone before the next step has them."""
    retain = step.options.get("retain")
    if retain is not None and read_option("retain", retain) < LEAST_RETAIN_S * 1000:
        raise InvalidArgument(
            f"{where} has retain {shown_time(retain)}, and another step reads its results: "
            f"give {format_duration(LEAST_RETAIN_S * 1000)} or more"
        )


def check_flow_name(kind: str, name: str) -> None:
    """Raises InvalidArgument unless the name, with the number of a step, may be part of a key."""
    check_name(kind, name, _LONGEST_NAME)


# ------------------------------------------------------------------ flow
# The definition of a flow: its steps, checked before anything is written.


MAX_STEPS = 50
MAX_CHILDREN = 20  # of one step; the same as in lua/v1/lib/flows.lua
MAX_GATHERED = 100  # results of one body; the same as in lua/v1/lib/flows.lua
FLOW_TAG = "flow"  # the first step of each flow has this tag, and flow:<name>


@dataclass(frozen=True, slots=True, repr=False)
class Flow:
    """Steps that follow each other: `Flow("access").step("check", limit=8).step("notify")`.

    Each method returns a new flow with one step more, so a flow may be kept and submitted often.
    """

    name: str
    steps: tuple[Step, ...] = field(default=())
    ends: tuple[str, ...] = field(default=())  # the steps that the next one follows
    ends_branched: bool = False  # these are the ends of branches, which only a step may follow

    def __post_init__(self) -> None:
        check_flow_name("flow", self.name)

    def __repr__(self) -> str:
        return f"<Flow {self.name}: {', '.join(one.name for one in self.steps) or 'no step'}>"

    def step(
        self,
        name: str,
        *,
        queue: str = "",
        on_dead: str = CONTINUE,
        wrap: Wrap = PLAIN,
        gathers: int = 0,
        **options: Unpack[StepOptions],
    ) -> Flow:
        """Returns this flow with a step at its end, which gets the results of the step before.

        After `children` the step joins them. For each result of their parent it gets one body: a
        JSON array of the children's results, in the order of the children. A result is text,
        {"base64": ...} if it is no UTF-8, or null if the child is dead or returned None. After
        `branches` the step merges them: each result of each branch is a body.

        Workers of `queue` run the step; "" = the queue to which the flow is submitted. `on_dead` is
        "continue" (dead sub-requests are left out), "stop" (one cancels the flow), "hold" (the next
        step does not end before they are done, after a requeue, or dropped), or the compensating
        step that gets their bodies. `options` are those of submit_request: priority,
        limit, and so on. `wrap` is written around each result. `gathers` neighbouring results make
        one body; if some are left over at the end, the flow is cancelled. Raises InvalidArgument,
        TypeError.
        """
        where = f"step {name} of flow {self.name}"
        check_whole(f"{where}: gathers", gathers, 0, MAX_GATHERED)
        ends = self._ends()
        self._check_merge(ends, where)
        if gathers and (len(ends) != 1 or ends[0].is_child):
            raise InvalidArgument(
                f"{where} gathers {gathers} results, and follows no single step: leave gathers out"
            )
        sources = tuple(one.name for one in ends)
        return self._with(Step(name, queue, on_dead, options, wrap, sources, gathers=gathers))

    def children(
        self,
        *children: str | Child,
        chosen: int = 0,
        queue: str = "",
        on_dead: str = CONTINUE,
        **options: Unpack[StepOptions],
    ) -> Flow:
        """Returns this flow with children of its last step; each child gets all its results.

        They run concurrently: `.children("discord", Child("twitter", limit=2), attempts=3)`. The
        keywords are defaults for all children, and mean the same as in `step`. If a `step` follows,
        it joins the children.

        If `chosen` is given (at most 100), each result chooses up to so many children: the handler
        returns a `Fan`. Then a step must follow, which gets one body for each result: the JSON
        array of its children's results, in their order. If a result is no Fan, it has no children,
        and the body is `[]`. Raises InvalidArgument, TypeError.
        """
        where = f"children of flow {self.name}"
        check_whole(f"{where}: chosen", chosen, 0, MAX_CHOSEN)
        if not children:
            raise InvalidArgument(f"{where} are none: name at least one child")
        made = [as_child(one).step(queue, on_dead, options) for one in children]
        parent = self._parent_of(f"child {made[0].name} of flow {self.name}")
        if len(made) > MAX_CHILDREN:
            raise InvalidArgument(f"{where} are {len(made)}: the most are {MAX_CHILDREN}")
        flow = self
        for one in made:
            flow = flow._with(replace(one, sources=(parent,), chosen=chosen))
        return replace(flow, ends=tuple(one.name for one in made))

    def branches(
        self,
        *branches: str | Branch,
        default: str | None = "",
        queue: str = "",
        on_dead: str = CONTINUE,
        **options: Unpack[StepOptions],
    ) -> Flow:
        """Returns this flow with branches of its last step; each result names one branch.

        The handler of that step returns `Next("check", body)`, and the step `check` gets the body:
        `.branches("check", "reject", Branch("audit", limit=2).step("file"))`. Any other result goes
        to the branch `default`, or ends there if that is "" or None. The keywords are defaults of
        the first step of each branch. If a `step` follows, it gets the last results of all
        branches. Raises InvalidArgument, TypeError.
        """
        where = f"branches of flow {self.name}"
        if not branches:
            raise InvalidArgument(f"{where} are none: name at least one branch")
        made = [as_branch(one) for one in branches]
        firsts = [one.first(queue, on_dead, options) for one in made]
        names = [one.name for one in firsts]
        parent = self._parent_of(f"branch {names[0]} of flow {self.name}")
        if len(made) > MAX_CHILDREN:
            raise InvalidArgument(f"{where} are {len(made)}: the most are {MAX_CHILDREN}")
        if default and default not in names:
            near = get_close_matches(str(default), names, n=1)
            hint = f"did you mean {near[0]}?" if near else "name one of these"
            raise InvalidArgument(
                f"default {default!r} of flow {self.name} is none of its branches "
                f"{', '.join(names)}: {hint}"
            )
        flow, ends = self, tuple[str, ...]()
        for branch, first in zip(made, firsts, strict=True):
            begun = flow._with(replace(first, sources=(parent,), default=default or ""))
            flow = branch.continued(begun)
            ends += flow.ends
        return replace(flow, ends=ends, ends_branched=True)

    def compensate(self, name: str, *, queue: str = "", **options: Unpack[StepOptions]) -> Flow:
        """Returns this flow with a compensating step, which another step names in `on_dead`.

        After that step's end the compensating step gets the bodies of its dead sub-requests.
        Nothing follows a compensating step. Raises what `step` raises.
        """
        return self._with(Step(name, queue, CONTINUE, options, is_compensating=True))

    def _ends(self) -> tuple[Step, ...]:
        """Returns the steps that the next one follows: the last one, or children, or branches."""
        return tuple(one for one in self.steps if one.name in self.ends)

    def _parent_of(self, what: str) -> str:
        """Returns the step whose results children or branches get. Raises InvalidArgument."""
        ends = self._ends()
        if not ends:
            parent = "parent" if what.startswith("child") else "step before it"
            raise InvalidArgument(f"{what} has no {parent}: add a step before it")
        if ends[0].is_child:
            raise InvalidArgument(f"{what} follows children: add a step before it which joins them")
        if self.ends_branched:
            raise InvalidArgument(
                f"{what} follows branches: add a step before it which merges them"
            )
        return ends[0].name

    def _check_merge(self, ends: tuple[Step, ...], where: str) -> None:
        """Raises InvalidArgument if a step would merge branches that end with children."""
        parents = {one.sources for one in ends if one.is_child}
        if parents and (len(parents) > 1 or not all(one.is_child for one in ends)):
            child = next(one for one in ends if one.is_child)
            raise InvalidArgument(
                f"{where} merges branches, and one ends with child {child.name}: add a step to "
                "that branch which joins its children"
            )

    def _with(self, step: Step) -> Flow:
        where = f"step {step.name} of flow {self.name}"
        check_step(step, where)
        if any(one.name == step.name for one in self.steps):
            raise InvalidArgument(
                f"{where} is there already: a flow has no cycle, and each step has its own name"
            )
        if len(self.steps) >= MAX_STEPS:
            raise InvalidArgument(f"{where} is one too many: the most are {MAX_STEPS} steps")
        steps = (*self.steps, step)
        if step.is_compensating:
            return replace(self, steps=steps)
        return replace(self, steps=steps, ends=(step.name,), ends_branched=False)

    def plan(
        self, queue: str, run: str, properties: Mapping[str, object], trace: str = ""
    ) -> list[PlannedStep]:
        """Returns the requests of one run, the first step first. Raises InvalidArgument.

        All steps carry `trace`, so that each continues the trace of the submission.
        """
        check_flow_name("flow id", run)
        line = [one for one in self.steps if not one.is_compensating]
        if not line:
            raise InvalidArgument(f"flow {self.name} has no step: add one with step()")
        first = line[0]
        if first.queue not in {"", queue}:
            raise InvalidArgument(
                f"flow {self.name} begins in queue {first.queue}: submit it to that queue"
            )
        self._check_compensations()
        self._check_followed()
        # Compensating steps come last, so the first step is always number 1.
        ordered = [*line, *(one for one in self.steps if one.is_compensating)]
        ids = {one.name: request_of(run, number) for number, one in enumerate(ordered, 1)}
        tags = property_tags(properties)
        planned = []
        for number, one in enumerate(ordered, 1):
            own = (FLOW_TAG, f"{FLOW_TAG}:{self.name}", *tags) if number == 1 else tags
            feed = self._feed(one, ids)
            policy = policy_of(one.queue or queue, trace=trace, **one.options)
            policy = replace(
                policy,
                retain_ms=self._retain_ms(one, policy.retain_ms),
                tags=own,
                flow=StepPlace(self.name, number, len(ordered), one.name).text,
                feed=feed.text if feed else "",
            )
            planned.append(PlannedStep(ids[one.name], policy))
        return planned

    def _feed(self, one: Step, ids: Mapping[str, str]) -> Feed | None:
        """Returns what a step is fed with; None for the first one."""
        if one.is_compensating:
            (source,) = (each for each in self.steps if each.on_dead == one.name)
            return Feed(DEAD, (ids[source.name],), (CONTINUE,))
        if not one.sources:
            return None
        sources = [each for each in self.steps if each.name in one.sources]
        names = tuple(ids[each.name] for each in sources)
        on_dead = tuple(map(_policy_of, sources))
        if sources[0].is_child:
            return self._join(one, sources, ids)
        if one.gathers or len(sources) > 1:
            kind, width = (GATHER, one.gathers) if one.gathers else (MERGE, len(names))
            return Feed(kind, names, on_dead, one.wrap, width=width)
        joins = [each for each in self.steps if one.name in each.sources]
        bound = ids[joins[0].name] if one.is_child and joins else ""
        feed = Feed(DONE, names, on_dead, one.wrap, bound)
        if one.is_branch or one.chosen:
            beside = tuple(each.name for each in self.steps if each.sources == one.sources)
            choices = Choices(beside, one.default, one.chosen)
            kind, width = (CHOSEN, one.chosen) if one.chosen else (BRANCH, 1)
            feed = feed._replace(kind=kind, width=width, choices=choices)
        return feed

    def _join(self, one: Step, children: list[Step], ids: Mapping[str, str]) -> Feed:
        """Returns what a step that joins children is fed with."""
        is_array = one.wrap == PLAIN
        wrap, chosen = JSON_ARRAY if is_array else one.wrap, children[0].chosen
        sources = children
        if chosen:  # each result of the parent says how many children it has
            parent = children[0].sources
            sources = [*(each for each in self.steps if each.name in parent), *children]
        names = tuple(ids[each.name] for each in sources)
        on_dead = tuple(map(_policy_of, sources))
        if chosen:
            return Feed(LIST if is_array else COLLECT, names, on_dead, wrap, width=chosen)
        return Feed(ARRAY if is_array else JOIN, names, on_dead, wrap, width=len(names))

    def _retain_ms(self, one: Step, given: int) -> int:
        """Returns how long a step is kept: longer by default if another step reads it."""
        if one.options.get("retain") is not None or not self._is_read(one):
            return given
        return max(given, settings.FED_RETAIN_MS)

    def _is_read(self, one: Step) -> bool:
        """Returns True if another step gets the results, or the dead, of this one."""
        followed = any(one.name in each.sources for each in self.steps)
        return followed or one.on_dead not in _POLICIES

    def _check_followed(self) -> None:
        """Raises InvalidArgument if an option has no effect or is too small in its step."""
        for one in self.steps:
            where = f"step {one.name} of flow {self.name}"
            if self._is_read(one):
                check_followed(one, where)
            elif one.on_dead in {STOP, HOLD}:
                raise InvalidArgument(
                    f"{where} has on_dead {one.on_dead!r}, and no step follows it: leave it out"
                )
            next_steps = [each for each in self.steps if one.name in each.sources]
            if one.on_dead == HOLD and (one.is_child or any(each.gathers for each in next_steps)):
                raise InvalidArgument(
                    f"{where} has on_dead 'hold', and the next step puts several of its results "
                    "into one body, which cannot be repaired later: write continue or stop"
                )
            if one.chosen and not any(one.name in each.sources for each in self.steps):
                raise InvalidArgument(
                    f"{where} is a child that results of step {one.sources[0]} choose, and no step "
                    "joins it: add a step after the children"
                )

    def _check_compensations(self) -> None:
        known = {one.name for one in self.steps if one.is_compensating}
        used: set[str] = set()
        for one in self.steps:
            target = one.on_dead
            if target in _POLICIES:
                continue
            if target not in known:
                near = get_close_matches(str(target), [*_POLICIES, *known], n=1)
                hint = f"did you mean {near[0]}?" if near else f"add compensate({target!r})"
                raise InvalidArgument(
                    f"step {one.name} of flow {self.name} has on_dead {target!r}, which is no "
                    f"compensating step: {hint}"
                )
            if target in used:
                raise InvalidArgument(
                    f"step {target} of flow {self.name} compensates two steps: give each its own"
                )
            used.add(target)
        if unused := known - used:
            raise InvalidArgument(
                f"step {min(unused)} of flow {self.name} compensates no step: name it in the "
                "on_dead of one"
            )


def _policy_of(one: Step) -> str:
    """Returns what dead sub-requests of a step do to the next one."""
    return one.on_dead if one.on_dead in _POLICIES else CONTINUE


def checked_flow(flow: Flow) -> Flow:
    """Returns `flow`. Raises InvalidArgument if it is no Flow."""
    given: object = flow
    if not isinstance(given, Flow):
        raise InvalidArgument(f"flow is {type_of(given)}: a Flow is expected")
    return flow


def property_tags(properties: Mapping[str, object]) -> tuple[str, ...]:
    """Returns the tags of a flow's properties: `user_id=5` is the tag user_id:5.

    Raises InvalidArgument.
    """
    if not hasattr(properties, "items"):
        raise InvalidArgument(f"properties {properties!r} are not valid: a dict is expected")
    found = tuple(check_name("property", f"{name}:{value}") for name, value in properties.items())
    if len(found) > _MAX_TAGS - 2:
        raise InvalidArgument(f"{len(found)} properties are too many: the most is {_MAX_TAGS - 2}")
    return found


# ------------------------------------------------------------------ submit
# Submits a flow: begins its later steps, open and empty, and then sends the first step.
#
# So a reader of the first step finds the others. At the end the producer gives each later step a
# cursor. If a source of a step with a cursor vanishes, a leader stops the flow at its next look. If
# the producer dies before, nothing feeds the open steps, and a leader gives them up after an hour.


async def submit_flow(steps: Sequence[PlannedStep], max_wait: Duration = 0.0) -> int:
    """Submits the caller's chunks to the first step; returns how many sub-requests it has.

    The call may be repeated with the same id, flow, properties and content. Raises what `submit`
    raises, and leaves nothing then, unless another producer submitted the flow with this id. If a
    later step was given up before the first one was there, cancels the flow, raises RequestEnded.
    Raises RequestLost if a step of a repeat is gone, and the log does not show its end.
    """
    first = steps[0]
    later = await _later_steps(first, steps[1:])
    begun: list[Submission] = []
    try:
        for step in reversed(later):
            opened = await open_request(step.id, step.policy, [], max_wait, settings.FED_OPEN_MS)
            begun.append(opened)
        total = await submit(first.id, first.policy, max_wait)
    except (GeneratorExit, RedisUnreachable):  # a repeat goes on, or a leader gives up the steps
        raise
    except BaseException as error:
        with suppress(FairlaneError):  # the caller's own error is the one to raise
            await _take_back(first, begun, error)
        raise
    await _check_begun(first, later)
    for step in later:
        await begin_feed(step.id)
        await _look_soon(step)
    return total


async def _later_steps(first: PlannedStep, later: Sequence[PlannedStep]) -> list[PlannedStep]:
    """Returns the later steps without those that have ended and are no longer kept.

    If the first step is there with all its bodies, the flow was submitted before. A step that has
    ended must not begin anew, because its calls would be made once more. Raises RequestExists if
    another flow has the id, because its later steps could be left.
    """
    state, is_open, born, text = await read(first.id, "state", "open", "born", "flow")
    if state in {"", "abandoned"}:
        return [*later]
    if text != first.policy.flow:
        raise RequestExists(
            f"request {first.id} exists, and is not the first step of this flow: "
            "choose another id, or submit the same again"
        )
    if is_open == "1":
        return [*later]
    rows = await run_all([hmget(one.id, "state", "over") for one in later])
    kept = []
    for one, row in zip(later, rows, strict=True):
        seen, over = parse_fields(["state", "over"], row)
        if not seen:
            queue = one.policy.queue
            ending = (await logged_states(queue, [one.id], int(born))).get(one.id, "lost")
            if ending == "lost":
                raise RequestLost(
                    f"step {one.id} is gone, and the completion log of queue {queue} does not show "
                    "its end: submit the flow with another id"
                )
        elif not over:  # else it was deleted
            kept.append(one)
    return kept


async def _check_begun(first: PlannedStep, later: Sequence[PlannedStep]) -> None:
    """Raises RequestEnded if a later step ended before the first one could feed it."""
    rows = await run_all([hmget(one.id, "state", "reason") for one in later])
    for one, row in zip(later, rows, strict=True):
        state, reason = parse_fields(["state", "reason"], row)
        is_over = state in {"", "abandoned", "cancelled", "cancelling"}
        if is_over and not reason.startswith(STOPPED):  # else a result has stopped the flow
            why = f"flow: step {one.id} ended while the flow was being submitted"
            await cancel_flow(run_of(first.id), len(later) + 1, why)
            seen = f"{state or 'gone'} ({reason})" if reason else state or "gone"
            raise RequestEnded(
                f"step {one.id} was {seen} before its flow was submitted: the flow is cancelled, "
                "submit it with another id"
            )


async def _look_soon(step: PlannedStep) -> None:
    """Lets the leader look at a step now, because it looks at an intent only after a grace."""
    active = keys.active(step.policy.queue)
    score, time = await Batch([Command(b"ZSCORE", active, step.id), Command(b"TIME")])
    now = time_ms(time)
    if score is not None and float(score) > now:
        row = [step.id, score, seen_to_exist(now)]
        await reschedule_active(step.policy.queue, row)


async def _take_back(first: PlannedStep, begun: list[Submission], error: BaseException) -> None:
    (state,) = await read(first.id, "state")
    if state in {"", "abandoned", "cancelled"}:
        for one in begun:
            await one.take_back(error)


# ------------------------------------------------------------------ flow runs
# Reads the runs of flows: the steps of one, and those that have some properties.


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
    return FlowProgress(run, place.flow, steps, place.steps - len(steps))


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
    """Returns active, done, cancelled or unknown. Raises RequestNotFound."""
    return (await flow_progress(run)).state


async def wait_for_flow(run: str, clock: Callable[[], float], timeout_s: float | None) -> str:
    """Waits for the end of every step; returns done or cancelled.

    Raises WaitTimeout, RequestNotFound, RequestLost.
    """
    began = clock()
    place = await place_of(run)
    states = set[str]()
    for number in range(1, place.steps + 1):
        states.add(await wait(request_of(run, number), clock, timeout_s, began))
    return "cancelled" if "cancelled" in states else "done"


async def last_step(run: str) -> str:
    """Returns the request of the last step, apart from compensating steps.

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
    """Cancels a run's steps; a compensating one ends after its source. Raises RequestNotFound."""
    place = await place_of(run)
    await cancel_flow(run, place.steps, reason)


async def find_flows(
    queue: str, properties: Mapping[str, object], flow: str = "", limit: int = 100
) -> list[tuple[str, str]]:
    """Returns the runs with all these properties that began in this queue: (id, first state).

    Returns at most `limit` (1 to 1,000), unfinished runs first. Only 20 pages of the queue are
    read, so some runs may be missing among many thousand requests. Raises InvalidArgument.
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
    """Runs with the states of their first steps; `after` is the next cursor, None at the end."""

    runs: dict[str, str]
    after: str | None


async def flow_page(
    queue: str, properties: Mapping[str, object], flow: str, limit: int, after: str | None
) -> FlowPage:
    """Returns the runs with all these properties in one page of the queue's requests.

    So the page may be empty although another one follows. Raises InvalidArgument.
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
