"""Chains and groups of calls: `chain(fetch.s(url), parse.s())`, `group(fetch.s(1), parse.s())`."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

import msgspec

from fairlane.common import clock
from fairlane.errors import ArgumentsRefused, InvalidArgument, type_of
from fairlane.operations.flows.feed import PLAIN, Wrap
from fairlane.operations.flows.flow import Flow
from fairlane.tasks.batch import ResultReader, Submitted, value_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from fairlane.errors import TaskError
    from fairlane.flows.blocking import FlowRun
    from fairlane.options import RequestOptions
    from fairlane.request import Request
    from fairlane.tasks.codec import Codec
    from fairlane.tasks.task import Task

_CHAIN = "chain"
_LEFT = 0.001  # a timeout that has passed meanwhile


class Link(NamedTuple):
    """A call of a task that is a part of a chain or a group; Task.s makes it."""

    task: Task[..., Any, Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def body(self, codec: Codec) -> bytes:
        """Returns the body of the call. Raises ArgumentsRefused."""
        signature = self.task.signature
        return signature.encode(codec, signature.bind(self.args, self.kwargs))

    def wrap(self, codec: Codec) -> Wrap:
        """Returns what is written around a result that is the first argument of the call.

        Raises ArgumentsRefused.
        """
        signature = self.task.signature
        if signature.first is None:
            raise ArgumentsRefused(
                f"task {self.task.name} has no first argument: a call in a chain gets the result "
                "of the call before it as its first argument"
            )
        mark = secrets.token_bytes(16)
        bound = signature.bind((msgspec.Raw(mark), *self.args), self.kwargs)
        before, _, after = signature.encode(codec, bound).partition(mark)
        return Wrap(before, after, codec.none)


@dataclass(frozen=True, slots=True)
class Chain:
    """Calls that follow each other; `chain` makes it."""

    links: tuple[Link, ...]

    def submit(
        self,
        *,
        id: str | None = None,  # noqa: A002  the word of the API
        properties: Mapping[str, object] | None = None,
    ) -> ChainRun:
        """Submits the chain as a flow; see Queue.submit_flow, also for what it raises.

        Each step has the options of its task. If a call is dead, the chain is cancelled.
        """
        app = self.links[0].task.app
        flow = Flow(_CHAIN)
        for number, link in enumerate(self.links, 1):
            wrap = PLAIN if number == 1 else link.wrap(app.codec)
            own = link.task.app.name
            flow = flow.step(
                _step_name(number, link.task.name),
                queue="" if own == app.name else own,
                on_dead="stop",
                wrap=wrap,
                **link.task.options,
            )
        body = self.links[0].body(app.codec)
        run = app.queue.submit_flow(flow, [body], id=id, properties=properties)
        return ChainRun(run, self.links, app.codec)


class ChainRun:
    """A chain that was submitted. `run` is its flow, with its steps."""

    def __init__(self, run: FlowRun, links: tuple[Link, ...], codec: Codec) -> None:
        self.run, self.id = run, run.id
        self._links, self._codec = links, codec

    def result(self, timeout: float | None = None) -> Any:
        """Waits for the last call and returns its result.

        `timeout` in seconds. Raises TaskError (a call of the chain is dead), TaskCancelled,
        WaitTimeout, RequestLost.
        """
        ends = None if timeout is None else clock.mono_s() + timeout
        self.run.wait(timeout)
        steps = self.run.progress().steps
        wanted = next((n for n, one in enumerate(steps) if one.progress.dead), len(steps) - 1)
        link, step = self._links[wanted], steps[wanted]
        reader: ResultReader[Any] = ResultReader(link.task.signature, self._codec, step.progress.id)
        if not step.progress.total:
            raise reader.cancelled(0)
        left = None if ends is None else max(_LEFT, ends - clock.mono_s())
        return Submitted(self.run.step(step.step), reader).result(left)

    def cancel(self, reason: str = "cancelled by the caller") -> None:
        """Cancels every call that has not ended. Raises RequestNotFound."""
        self.run.cancel(reason)

    def __repr__(self) -> str:
        return f"<ChainRun {self.id}>"


@dataclass(frozen=True, slots=True)
class Group:
    """Calls of one app that run together; `group` makes it."""

    links: tuple[Link, ...]

    def submit(self, **options: Unpack[RequestOptions]) -> GroupRun:
        """Submits the calls as one request with these options; see Queue.submit_request."""
        app = self.links[0].task.app
        bodies = [link.body(app.codec) for link in self.links]
        return GroupRun(app.queue.submit_request(bodies, **options), self.links, app.codec)


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


def chain(*links: Link) -> Chain:
    """Returns calls that follow each other: each gets the result before it as first argument.

    `chain(fetch.s(url), parse.s(), store.s()).submit().result(timeout=60)`. The apps of the tasks
    must use one Redis. Raises InvalidArgument.
    """
    return Chain(_checked("chain", links))


def group(*links: Link) -> Group:
    """Returns calls of one app that run together: `group(a.s(1), b.s(2)).submit().results()`.

    Raises InvalidArgument.
    """
    found = _checked("group", links)
    for link in found:
        if link.task.app is not found[0].task.app:
            raise InvalidArgument(
                f"task {link.task.name} is of another app: the calls of a group are one request, "
                "and have one app"
            )
    return Group(found)


def _checked(kind: str, links: tuple[object, ...]) -> tuple[Link, ...]:
    if not links:
        raise InvalidArgument(f"{kind} has no call: give it calls such as resize.s(1)")
    found = tuple(link for link in links if isinstance(link, Link))
    for link in links:
        if not isinstance(link, Link):
            raise InvalidArgument(
                f"{kind} has {type_of(link)} as a call: write resize.s(1) for a task resize"
            )
    return found


def _step_name(number: int, task: str) -> str:
    """Returns the name of a step: a task may be in a chain twice, and have any name."""
    clean = "".join(letter if letter.isalnum() and letter.isascii() else "_" for letter in task)
    return f"{number}.{clean[:90]}"
