"""One step of a flow's definition, and the checks of its name and its options."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

from fairlane.common.text import exact
from fairlane.errors import InvalidArgument, type_of
from fairlane.operations.flows.feed import PLAIN, Wrap
from fairlane.options import Policy, RequestOptions, policy_of
from fairlane.protocol.keys import check_name

if TYPE_CHECKING:
    from collections.abc import Mapping

STOP, CONTINUE = "stop", "continue"
LEAST_RETAIN_S = 3600  # of results that another step reads
_NEVER = ("after", "after_any_end", "durable", "on_duplicate", "window_s", "tags", "distinct")
_LONGEST_NAME = 100  # a key has the number of a step, too


class PlannedStep(NamedTuple):
    """A step as it will be submitted: its request's id and policy."""

    id: str
    policy: Policy


@dataclass(frozen=True, slots=True)
class Step:
    """One step: its name, its queue ("" = that of the flow), and the options of its request.

    `on_dead` is "stop", "continue", or the compensating step that gets the dead bodies. `sources`
    are the steps that it follows. `wrap` is written around each result that it gets. `gathers` is
    how many results of its only source make its body; 0 = each makes one.
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


class Child:
    """A child of a step with options of its own: `.children("a", Child("b", limit=2))`."""

    def __init__(
        self,
        name: str,
        *,
        queue: str | None = None,
        on_dead: str | None = None,
        wrap: Wrap = PLAIN,
        **options: Unpack[RequestOptions],
    ) -> None:
        self._name, self._wrap, self._options = name, wrap, options
        self._queue, self._on_dead = queue, on_dead

    def step(self, queue: str, on_dead: str, options: Mapping[str, Any]) -> Step:
        """Returns the step, with what all children of the call have as defaults."""
        return Step(
            self._name,
            queue if self._queue is None else self._queue,
            on_dead if self._on_dead is None else self._on_dead,
            {**options, **self._options},
            self._wrap,
            is_child=True,
        )

    def __repr__(self) -> str:
        return f"<Child {self._name}>"


def as_child(given: str | Child) -> Child:
    """Returns a child of this name, or the child itself. Raises InvalidArgument."""
    child: object = given
    if isinstance(child, Child):
        return child
    if isinstance(child, str):
        return Child(child)
    raise InvalidArgument(f"child is {type_of(child)}: give its name, or Child(name, limit=2)")


def check_step(step: Step, where: str) -> None:
    """Raises InvalidArgument for a name or options that a step cannot have."""
    check_flow_name("step", step.name)
    if step.name in {STOP, CONTINUE}:
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
    retain_s = step.options.get("retain_s")
    if retain_s is not None and retain_s < LEAST_RETAIN_S:
        raise InvalidArgument(
            f"{where} has retain_s {exact(retain_s)}, and another step reads its results: "
            f"give {LEAST_RETAIN_S:,} or more"
        )


def check_flow_name(kind: str, name: str) -> None:
    """Raises InvalidArgument unless the name, with the number of a step, may be part of a key."""
    check_name(kind, name, _LONGEST_NAME)
