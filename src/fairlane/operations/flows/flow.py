"""The definition of a flow: its steps, checked before anything is written."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

from fairlane.errors import InvalidArgument, type_of
from fairlane.operations.flows.feed import DEAD, DONE, PLAIN, Feed, Place, Wrap, request_of
from fairlane.options import MAX_TAGS, Policy, RequestOptions, policy_of
from fairlane.protocol.keys import check_name

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_STEPS = 50
FLOW_TAG = "flow"  # the first step of each flow has this tag, and flow:<name>
_STOP, _CONTINUE = "stop", "continue"
_NEVER = ("after", "after_any_end", "durable", "on_duplicate", "window_s", "tags")
_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,100}")


class PlannedStep(NamedTuple):
    """A step as it will be submitted: its request's id and policy."""

    id: str
    policy: Policy


@dataclass(frozen=True, slots=True)
class Step:
    """One step: its name, its queue ("" = that of the flow), and the options of its request.

    `on_dead` is "stop", "continue", or the compensating step that gets the dead bodies.
    """

    name: str
    queue: str
    on_dead: str
    options: Mapping[str, Any]
    wrap: Wrap = PLAIN
    is_compensating: bool = False


@dataclass(frozen=True, slots=True)
class Flow:
    """Steps that follow each other: `Flow("access").step("check", limit=8).step("notify")`.

    Each method returns another flow with one step more, so a flow may be kept and submitted often.
    """

    name: str
    steps: tuple[Step, ...] = field(default=())

    def __post_init__(self) -> None:
        _check("flow", self.name)

    def step(
        self,
        name: str,
        *,
        queue: str = "",
        on_dead: str = _CONTINUE,
        wrap: Wrap = PLAIN,
        **options: Unpack[RequestOptions],
    ) -> Flow:
        """Returns this flow with a step at its end: it gets the results of the step before it.

        Workers of `queue` run it; "" = the queue to which the flow is submitted. A dead sub-request
        is left out, or cancels the flow ("stop"), or `on_dead` names the compensating step that
        gets its body. `options` are those of submit_request, for this step: priority, limit, and so
        on. `wrap` is what is written around each result. Raises InvalidArgument, TypeError.
        """
        return self._with(Step(name, queue, on_dead, options, wrap))

    def compensate(self, name: str, *, queue: str = "", **options: Unpack[RequestOptions]) -> Flow:
        """Returns this flow with a compensating step, which another step names in `on_dead`.

        It gets the bodies of that step's dead sub-requests after that step's end, and nothing
        follows it. Raises the same as `step`.
        """
        return self._with(Step(name, queue, _CONTINUE, options, is_compensating=True))

    def _with(self, step: Step) -> Flow:
        _check("step", step.name)
        where = f"step {step.name} of flow {self.name}"
        if step.name in {_STOP, _CONTINUE}:
            raise InvalidArgument(f"{where} has a name with a meaning in on_dead: choose another")
        if any(one.name == step.name for one in self.steps):
            raise InvalidArgument(f"{where} is there already: give each step its own name")
        if len(self.steps) >= MAX_STEPS:
            raise InvalidArgument(f"{where} is one too many: the most are {MAX_STEPS} steps")
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
        return replace(self, steps=(*self.steps, step))

    def plan(
        self, queue: str, run: str, properties: Mapping[str, object], trace: str = ""
    ) -> list[PlannedStep]:
        """Returns the requests of one run, the first step first. Raises InvalidArgument.

        All steps carry `trace`, so that each continues the trace of the submission.
        """
        _check("flow id", run)
        line = [one for one in self.steps if not one.is_compensating]
        if not line:
            raise InvalidArgument(f"flow {self.name} has no step: add one with step()")
        first = line[0]
        if first.queue not in {"", queue}:
            raise InvalidArgument(
                f"flow {self.name} begins in queue {first.queue}: submit it to that queue"
            )
        self._check_compensations()
        # A compensating step is behind the others: so the first step is always number 1.
        ordered = [*line, *(one for one in self.steps if one.is_compensating)]
        numbers = {one.name: number for number, one in enumerate(ordered, 1)}
        tags = property_tags(properties)
        count, planned = len(ordered), []
        for one in ordered:
            number = numbers[one.name]
            own = (FLOW_TAG, f"{FLOW_TAG}:{self.name}", *tags) if number == 1 else tags
            policy = replace(
                policy_of(one.queue or queue, trace=trace, **one.options),
                tags=own,
                flow=Place(self.name, number, count, one.name).text,
                feed=self._feed(run, one, ordered, numbers),
            )
            planned.append(PlannedStep(request_of(run, number), policy))
        return planned

    def _feed(self, run: str, one: Step, ordered: list[Step], numbers: dict[str, int]) -> str:
        """Returns the field `feed` of a step; "" for the first one."""
        if one.is_compensating:
            (source,) = (each for each in ordered if each.on_dead == one.name)
            return Feed(DEAD, request_of(run, numbers[source.name])).text
        number = numbers[one.name]
        if number == 1:
            return ""
        stops = ordered[number - 2].on_dead == _STOP
        return Feed(DONE, request_of(run, number - 1), stops, one.wrap).text

    def _check_compensations(self) -> None:
        known = {one.name for one in self.steps if one.is_compensating}
        used: set[str] = set()
        for one in self.steps:
            target = one.on_dead
            if target in {_STOP, _CONTINUE}:
                continue
            if target not in known:
                near = get_close_matches(str(target), [_STOP, _CONTINUE, *known], n=1)
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


def checked_flow(flow: Flow) -> Flow:
    """Returns `flow`. Raises InvalidArgument for what is no Flow."""
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
    if len(found) > MAX_TAGS - 2:
        raise InvalidArgument(f"{len(found)} properties are too many: the most is {MAX_TAGS - 2}")
    return found


def _check(kind: str, name: str) -> None:
    """Raises InvalidArgument unless the name, with the number of a step, may be part of a key."""
    check_name(kind, name)
    if not _NAME.fullmatch(name):
        raise InvalidArgument(f"{kind} {name!r} is too long: the most are 100 characters")
