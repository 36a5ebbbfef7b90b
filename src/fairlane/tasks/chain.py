"""Chains and groups of calls: `chain(fetch.s(url), group(parse.s(), count.s()), store.s())`."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

import msgspec

from fairlane import settings
from fairlane.common import clock
from fairlane.errors import ArgumentsRefused, InvalidArgument, type_of
from fairlane.operations.flow_hand_over import CONTINUE, STOP, Wrap
from fairlane.operations.flows import MAX_CHILDREN, MAX_GATHERED, Child, Flow
from fairlane.options import check_limits, read_limits
from fairlane.tasks.keys import merged_keys
from fairlane.tasks.options import group_options, hiding, of_request
from fairlane.tasks.result_reader import ResultReader, value_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fairlane.errors import TaskError
    from fairlane.flows import FlowRun
    from fairlane.option_types import CallOptions
    from fairlane.options import Limits
    from fairlane.request import Request
    from fairlane.tasks.codec import Codec
    from fairlane.tasks.task import Task

_CHAIN, _GROUP = "chain", "group"
_MIN_TIMEOUT_S = 0.001  # after the time is over, results that exist are still read


class Link(NamedTuple):
    """A call of a task that is a part of a chain or a group; Task.s makes it."""

    task: Task[..., Any, Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def body(self, codec: Codec) -> bytes:
        """Returns the body of the call. Raises ArgumentsRefused."""
        signature = self.task.signature
        return signature.encode(codec, signature.bind(self.args, self.kwargs))

    def keys(self) -> Limits:
        """Returns the keys of the call. Raises ArgumentsRefused."""
        bound = self.task.signature.bind(self.args, self.kwargs)
        return self.task.keys.of_call(bound)

    def later_options(self) -> dict[str, Any]:
        """Returns the options of a step whose first argument is a result.

        Raises ArgumentsRefused if a key of the call depends on it.
        """
        task, first = self.task, self.task.signature.first
        if first in task.keys.depend_on:
            raise ArgumentsRefused(
                f"task {task.name}: its keys depend on argument {first}, which in a chain is the "
                "result of the call before it: name another argument in the key"
            )
        bound = task.signature.bind((None, *self.args), self.kwargs)
        return _step_options(task.name, task.options_with(task.keys.of_call(bound)))

    def wrap(self, codec: Codec, joins: int = 0) -> Wrap:
        """Returns what is written around a result that is the first argument of the call.

        `joins`: how many results the argument is a list of, 0 = it is one result. Raises
        ArgumentsRefused.
        """
        signature = self.task.signature
        if signature.first is None:
            raise ArgumentsRefused(
                f"task {self.task.name} has no first argument: a call in a chain gets the result "
                "of the call before it as its first argument"
            )
        mark = secrets.token_bytes(16)
        bound = signature.bind((None, *self.args), self.kwargs)
        del bound[signature.first]
        result = {signature.first: msgspec.Raw(mark)}
        before, _, after = signature.encode(codec, bound, encoded=result).partition(mark)
        if not joins:
            return Wrap(before, after, codec.none)
        opening, between, closing = codec.list_marks(joins)
        return Wrap(before + opening, closing + after, codec.none, between)

    def check_results(self, before: Link | Group) -> None:
        """Raises ArgumentsRefused if the results before it would lose their type in the call."""
        signature, is_joined = self.task.signature, isinstance(before, Group)
        for link in before.links if isinstance(before, Group) else (before,):
            if not signature.keeps_result(link.task.signature, is_joined=is_joined):
                raise ArgumentsRefused(
                    f"task {self.task.name}: argument {signature.first} has no type, so the result "
                    f"of task {link.task.name} would be another value there: annotate it with the "
                    "type of that result"
                )


class _Plan:
    """The flow of a chain, and the calls of each of its steps."""

    def __init__(self, codec: Codec, app: str) -> None:
        self.flow, self.links = Flow(_CHAIN), list[tuple[Link, ...]]()
        self._codec, self._app = codec, app
        self.is_last = False  # the part that is added next is the last one
        self.ends = 1  # steps of the last part
        self.max_wait = 0.0

    def begin(self, links: tuple[Link, ...]) -> None:
        """Adds the first step, one request of all these calls."""
        own = links[0].task
        name = own.name if len(links) == 1 else _GROUP
        options = _options_of(links, {})
        self.max_wait = options.get("max_wait", 0.0)
        options = {**_step_options(own.name, options), "task": _tasks_of(links)}
        self.flow = self.flow.step(self._name(name), on_dead=self._on_dead, **options)
        self.links.append(links)

    @staticmethod
    def check_size(part: Link | Group, *, is_first: bool, is_last: bool) -> None:
        """Raises InvalidArgument if a group has too many calls for its place in a chain."""
        if not isinstance(part, Group) or (is_first and is_last):
            return
        most = MAX_GATHERED if is_first else MAX_CHILDREN
        if len(part.links) > most:
            place = "that begins a chain" if is_first else "in a chain"
            raise InvalidArgument(
                f"a group {place} has at most {most} calls, not {len(part.links):,}: "
                "make several chains, or submit the group alone"
            )

    def add(self, link: Link, joins: int, *, gathers: bool) -> None:
        """Adds a call that gets one result, or the list of `joins` results."""
        self.flow = self.flow.step(
            self._name(link.task.name),
            queue=self._queue(link),
            on_dead=self._on_dead,
            wrap=link.wrap(self._codec, joins),
            gathers=joins if gathers else 0,
            **link.later_options(),
        )
        self.links.append((link,))
        self.ends = 1

    def add_group(self, links: tuple[Link, ...]) -> None:
        """Adds calls that each get the result of the call before the group."""
        children = []
        for link in links:
            name, wrap = self._name(link.task.name), link.wrap(self._codec)
            queue, options = self._queue(link), link.later_options()
            children.append(Child(name, queue=queue, on_dead=self._on_dead, wrap=wrap, **options))
            self.links.append((link,))
        self.flow = self.flow.children(*children)
        self.ends = len(children)

    @property
    def _on_dead(self) -> str:
        return CONTINUE if self.is_last else STOP

    def _queue(self, link: Link) -> str:
        own = link.task.app.name
        return "" if own == self._app else own

    def _name(self, task: str) -> str:
        """Returns the name of a step: a task may be in a chain twice, and have any name."""
        clean = "".join(one if one.isalnum() and one.isascii() else "_" for one in task)
        return f"{len(self.links) + 1}.{clean[:90]}"


@dataclass(frozen=True, slots=True)
class Chain:
    """Calls that follow each other; `chain` makes it."""

    parts: tuple[Link | Group, ...]

    def submit(
        self,
        *,
        id: str | None = None,  # noqa: A002  the word of the API
        properties: Mapping[str, object] | None = None,
    ) -> ChainRun:
        """Submits the chain as a flow; see Queue.submit_flow, also for what it raises.

        Each step has the options of its task, and the submission `max_wait` of the first task. If a
        call before the last part is dead, the chain is cancelled. The calls of a last group do not
        stop each other.
        """
        first = self.parts[0]
        links = first.links if isinstance(first, Group) else (first,)
        app = links[0].task.app
        if isinstance(first, Group):
            first.check_app()
        bodies = [link.body(app.codec) for link in links]
        plan = self._plan(_Plan(app.codec, app.name), links)
        run = app.queue.submit_flow(
            plan.flow, bodies, id=id, properties=properties, max_wait=plan.max_wait
        )
        return ChainRun(run, plan, app.codec, is_group=isinstance(self.parts[-1], Group))

    def _plan(self, plan: _Plan, first: tuple[Link, ...]) -> _Plan:
        before: Link | Group | None = None
        for number, part in enumerate(self.parts, 1):
            plan.is_last = number == len(self.parts)
            plan.check_size(part, is_first=number == 1, is_last=plan.is_last)
            if before is None:
                plan.begin(first)
            elif isinstance(part, Link):
                part.check_results(before)
                joins = len(before.links) if isinstance(before, Group) else 0
                plan.add(part, joins, gathers=joins > 0 and number == 2)  # noqa: PLR2004
            elif isinstance(before, Group):
                raise InvalidArgument(
                    "group in a chain follows a group: put a call between them, which gets the "
                    "results of the first one as a list"
                )
            else:
                for link in part.links:
                    link.check_results(before)
                plan.add_group(part.links)
            before = part
        return plan


class ChainRun:
    """A chain that was submitted. `run` is its flow, with its steps."""

    def __init__(self, run: FlowRun, plan: _Plan, codec: Codec, *, is_group: bool) -> None:
        self.run, self.id = run, run.id
        self._links, self._ends, self._codec = plan.links, plan.ends, codec
        self._is_group = is_group

    def result(self, timeout: float | None = None) -> Any:
        """Waits for the last call and returns its result; of a last group, the list of results.

        `timeout` in seconds. Raises TaskError (a call of the chain is dead), TaskCancelled,
        WaitTimeout, RequestLost.
        """
        began = clock.mono_s()
        self.run.wait(timeout)
        due = None if timeout is None else began + timeout
        values: list[Any] = []
        found = zip(self._links, self.run.progress().steps, strict=False)
        for place, (links, step) in enumerate(found):
            if step.progress.dead or place >= len(self._links) - self._ends:
                left = None if due is None else max(_MIN_TIMEOUT_S, due - clock.mono_s())
                request = self.run.step(step.step)
                values += GroupRun(request, links, self._codec).results(left)
        return values if self._is_group else values[0]

    def cancel(self, reason: str = "cancelled by the caller") -> None:
        """Cancels every call that has not ended. Raises RequestNotFound."""
        self.run.cancel(reason)

    def __repr__(self) -> str:
        return f"<ChainRun {self.id}>"


@dataclass(frozen=True, slots=True)
class Group:
    """Calls of one app that run together; `group` makes it."""

    links: tuple[Link, ...]

    def submit(self, **options: Unpack[CallOptions]) -> GroupRun:
        """Submits the calls as one request; see Queue.submit_request, also for what it raises.

        The request has the options of its tasks, and these, which are those of Task.with_options.
        Raises InvalidArgument if the tasks differ in an option that is not named here.
        """
        self.check_app()
        app, named = self.links[0].task.app, group_options(dict(options))
        chosen = _options_of(self.links, named, ", or name {} in submit")
        bodies = [link.body(app.codec) for link in self.links]
        chosen["task"] = _tasks_of(self.links)
        return GroupRun(app.queue.submit_request(bodies, **chosen), self.links, app.codec)

    def check_app(self) -> None:
        """Raises InvalidArgument unless the calls may be one request."""
        for link in self.links:
            if link.task.app is not self.links[0].task.app:
                raise InvalidArgument(
                    f"task {link.task.name} is of another app: the calls of a group are one "
                    "request, and have one app"
                )


def _tasks_of(links: tuple[Link, ...]) -> str | dict[str, int]:
    """Returns the task of the calls, or task -> how many of them are of it."""
    counts = Counter(link.task.name for link in links)
    return counts if len(counts) > 1 else links[0].task.name


def _step_options(task: str, options: dict[str, Any]) -> dict[str, Any]:
    """Returns the options of a step. Raises InvalidArgument if the task has an id."""
    if "id" in options:
        raise InvalidArgument(
            f"task {task} of a chain has the id {options['id']}: the chain has one id, so give it "
            "to chain(...).submit(id=...)"
        )
    return of_request(options)


def _both(one: Task[..., Any, Any], other: Task[..., Any, Any]) -> str:
    same = one.name == other.name
    return f"calls of task {one.name}" if same else f"tasks {one.name} and {other.name}"


def _options_of(links: tuple[Link, ...], named: dict[str, Any], also: str = "") -> dict[str, Any]:
    """Returns the options of one request of these calls: those of their tasks, and what is named.

    The request names the keys of all its calls. Raises InvalidArgument if two tasks differ in an
    option that is not named, because one request has one value of it. `also` is a further remedy
    for the error, with {} for the option.
    """
    first = links[0].task
    for link in links:
        for option in {**first.options, **link.task.options}:
            one, other = first.options.get(option), link.task.options.get(option)
            if one != other and option not in {*named, "redact", "task"}:
                called = "batch_limit" if option == "limit" else option
                raise InvalidArgument(
                    f"{_both(first, link.task)} of a group differ in {called}: a group is one "
                    f"request, so give both the same value with with_options({called}=...)"
                    f"{also.format(called)}"
                )
    keys = _keys_of(links, named)
    limit = max((link.task.keys.limit for link in links), default=0)
    found = {**({"limit": max(limit, settings.DEFAULT_LIMIT)} if limit else {}), **first.options}
    fields = [field for link in links for field in link.task.options.get("redact", ())]
    return hiding({**found, **named, **({"limits": keys} if keys else {})}, fields)


def _keys_of(links: tuple[Link, ...], named: dict[str, Any]) -> Limits:
    """Returns the keys of all these calls, and those that are named. Raises InvalidArgument."""
    try:
        own = read_limits("limits", named.pop("limits", ()))
        return check_limits(merged_keys(own, *(link.keys() for link in links)))
    except ArgumentsRefused:
        raise
    except InvalidArgument as error:
        raise InvalidArgument(
            f"group: {error}, because one request names the keys of all its calls"
        ) from None


class GroupRun:
    """A group that was submitted, as one request."""

    def __init__(self, request: Request, links: tuple[Link, ...], codec: Codec) -> None:
        self.request, self.id = request, request.id
        self._readers: list[ResultReader[Any]] = [
            ResultReader(link.task.signature, codec, request.id) for link in links
        ]

    def outcomes(self, timeout: float | None = None) -> Iterator[Any | TaskError]:
        """Yields a value or a TaskError for each call, in their order; see Batch.outcomes."""
        due = 0
        for result in self.request.results(timeout=timeout):
            while due < result.index:
                yield self._readers[due].cancelled(due)
                due += 1
            yield self._readers[due].outcome(result)
            due += 1
        for index in range(due, len(self._readers)):
            yield self._readers[index].cancelled(index)

    def results(self, timeout: float | None = None) -> list[Any]:
        """Waits for all calls and returns their results in order. Raises the first TaskError.

        Also raises WaitTimeout and RequestLost.
        """
        return [value_of(one) for one in self.outcomes(timeout)]

    def __repr__(self) -> str:
        return f"<GroupRun {self.id}>"


def chain(*parts: Link | Group) -> Chain:
    """Returns calls that follow each other: each gets the result before it as first argument.

    `chain(fetch.s(url), parse.s(), store.s()).submit().result(timeout=60)`. The calls of a group in
    a chain each get the result before it, and the call after it gets the list of their results. The
    apps of the tasks must use one Redis. Raises InvalidArgument.
    """
    return Chain(_checked(_CHAIN, parts))


def group(*links: Link) -> Group:
    """Returns calls that run together: `group(a.s(1), b.s(2)).submit().results()`.

    They have one app, unless the group is a later part of a chain. Raises InvalidArgument.
    """
    found = tuple(part for part in _checked(_GROUP, links) if isinstance(part, Link))
    if len(found) < len(links):
        raise InvalidArgument("group has a group as a call: write resize.s(1) for a task resize")
    return Group(found)


def _checked(kind: str, parts: tuple[object, ...]) -> tuple[Link | Group, ...]:
    if not parts:
        raise InvalidArgument(f"{kind} has no call: give it calls such as resize.s(1)")
    found = tuple(part for part in parts if isinstance(part, (Link, Group)))
    for part in parts:
        if not isinstance(part, (Link, Group)):
            if isinstance(part, (list, tuple, Iterator)):
                raise InvalidArgument(f"{kind} has {type_of(part)} as a call: write {kind}(*calls)")
            raise InvalidArgument(
                f"{kind} has {type_of(part)} as a call: write resize.s(1) for a task resize"
            )
    return found
