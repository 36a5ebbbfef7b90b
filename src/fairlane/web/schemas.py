"""The types of what /v1 reads and returns. Their JSON Schemas are in /openapi.json."""

from __future__ import annotations

import base64
import binascii
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import UNSET, UnsetType

from fairlane import options_table, settings
from fairlane.operations.call_words import call_words, hide
from fairlane.options_table import (
    BY_NAME,
    CHOICE,
    DURATION,
    FLAG,
    KEY,
    LIMITS,
    NAMES,
    PAUSE,
    TASKS,
    WHOLE,
    Option,
    options_of,
)
from fairlane.web.answers import Refusal
from fairlane.web.route import MOST_ITEMS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from fairlane.aio.taken import AsyncTaken
    from fairlane.records import DeadSubRequest, Progress, Result


class Base64(msgspec.Struct, forbid_unknown_fields=True):
    """Bytes that are no text (UTF-8)."""

    base64: str


Bytes = str | Base64  # bytes of a body or a result: text, or in Base64


def to_bytes(given: Bytes) -> bytes:
    """Returns the bytes. Raises Refusal if they are no Base64."""
    if isinstance(given, str):
        return given.encode("utf-8", "surrogatepass")
    try:
        return base64.b64decode(given.base64, validate=True)
    except (binascii.Error, ValueError):
        raise Refusal(422, "base64 is not valid: encode the bytes as RFC 4648 says") from None


def from_bytes(raw: bytes) -> Bytes:
    """Returns bytes as text, or in Base64 if they are no text."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return Base64(base64.b64encode(raw).decode())


Few = Annotated[list[str], msgspec.Meta(max_length=1_000)]


# Types by kind, for JSON and for the parameters of a URL; the others are text.
_TYPES: dict[str, Any] = {
    WHOLE: int,
    DURATION: float | str,
    PAUSE: tuple[float | str, float | str] | float | str,
    NAMES: str | Few,
    FLAG: bool,
    KEY: bool,
    LIMITS: dict[str, int],
    TASKS: str | Few | dict[str, int],
}


class OptionFields(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Options of requests, as those of submit_request; each may be left out."""

    def given(self) -> dict[str, Any]:
        """Returns the options that the caller named."""
        names = [name for name in self.__struct_fields__ if name in OPTIONS]
        found = {name: getattr(self, name) for name in names}
        return {name: value for name, value in found.items() if value is not UNSET}


def _struct(name: str, says: str, options: Iterable[Option]) -> type[OptionFields]:
    """Returns a struct of these options."""
    fields = [(option.name, _type(option) | UnsetType, UNSET) for option in options]
    text = f"{says} Durations are seconds, or text such as 10m."
    return msgspec.defstruct(
        name, fields, bases=(OptionFields,), namespace={"__doc__": text}, module=__name__,
        kw_only=True, forbid_unknown_fields=True,
    )  # type: ignore[return-value]  # fmt: skip


def _type(option: Option) -> Any:
    """Returns the type of an option; its range is checked later, with a sentence of its own."""
    extra: dict[str, Any] = {}
    if option.kind == WHOLE:
        extra = {"minimum": option.least, "maximum": option.most}
    if option.kind == CHOICE:
        extra = {"enum": [*option.most]}
    meta = msgspec.Meta(description=option.sentence, extra_json_schema=extra or None)
    return Annotated[_TYPES.get(option.kind, str), meta]


if TYPE_CHECKING:

    class RecurringOptions(OptionFields):
        """The options of the requests of a schedule."""

    class Options(OptionFields):
        """The options of a request."""

    class Changes(OptionFields):
        """What to change of a request."""
else:
    RecurringOptions = _struct(
        "RecurringOptions", "The options of the requests of a schedule.", options_of("schedule")
    )
    Options = _struct(
        "Options", "The options of a request.", (*options_table.OPTIONS, BY_NAME["id"])
    )
    Changes = _struct("Changes", "What to change of a request.", options_of("set"))
OPTIONS = frozenset(Options.__struct_fields__)


Bodies = Annotated[list[Bytes], msgspec.Meta(max_length=MOST_ITEMS)]


class RequestToSubmit(Options, kw_only=True, forbid_unknown_fields=True):
    """A request with the bodies of its sub-requests."""

    bodies: Bodies


class SubmittedRequest(msgspec.Struct):
    """A request that was submitted."""

    id: str
    total: int


def shown(found: Progress, *, shows_by: bool) -> Progress:
    """Returns a request as a caller may see it: `by` is for those with the scope operate."""
    if shows_by:
        return found
    repairs = tuple(replace(one, by=None) for one in found.repairs)
    return replace(found, by=None, repairs=repairs)


class RequestFields(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Which requests; states, priorities, tags, tenants and tasks may be repeated.

    A request must have all tags, and one of the states, priorities, tenants and tasks.
    """

    state: Few | UnsetType = UNSET
    priority: Annotated[list[int], msgspec.Meta(max_length=1_000)] | UnsetType = UNSET
    tag: Few | UnsetType = UNSET
    tenant: Few | UnsetType = UNSET
    task: Few | UnsetType = UNSET
    id_prefix: str | UnsetType = UNSET
    older_s: float | UnsetType = UNSET
    newer_s: float | UnsetType = UNSET

    def given(self) -> dict[str, Any]:
        """Returns the filters that the caller named, by their names in Queue.list_requests."""
        found = {name: getattr(self, name) for name in RequestFields.__struct_fields__}
        return {_FILTERS.get(name, name): one for name, one in found.items() if one is not UNSET}


_FILTERS = {
    "state": "states",
    "priority": "priorities",
    "tag": "tags",
    "tenant": "tenants",
    "task": "tasks",
}


class Filters(RequestFields, kw_only=True, forbid_unknown_fields=True):
    """Which requests a list shows; states, priorities, tags, tenants and tasks may be repeated.

    `sort` is priority, submitted, waiting or state, with - in front if descending. Unfinished
    requests always come before ended ones. If there is no `sort`, the most urgent unfinished
    request comes first, and the newest of the ended ones.
    """

    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 100
    after: str = ""
    sort: str = ""


class Delete(msgspec.Struct, forbid_unknown_fields=True):
    """Whether a request that has not ended is cancelled first."""

    cancel: bool = False


class Cancel(msgspec.Struct, forbid_unknown_fields=True):
    """Why a request is cancelled."""

    reason: str = "cancelled by the caller"


class ResultOrder(msgspec.Struct, forbid_unknown_fields=True):
    """The order of results: "input", or "done" as they come.

    `reveal` also shows the fields that the request hides. It is for the token that has submitted
    the request, and for the scope operate.
    """

    order: str = "input"
    reveal: bool = False


class ResultLine(msgspec.Struct):
    """The result of a sub-request: `status` is done or dead, `error` why it is dead."""

    index: int
    status: str
    attempt: int
    body: Bytes | None
    error: str | None
    worker: str
    waited_ms: int
    ran_ms: float


def result_of(found: Result, hidden: Collection[str]) -> ResultLine:
    """Returns a result as JSON has it, without the values of these fields."""
    body = None if found.body is None else from_bytes(hide(found.body, hidden))
    return ResultLine(
        found.index, found.status, found.attempt, body, found.error, found.worker,
        found.waited_ms, found.ran_ms,
    )  # fmt: skip


class DeadLine(msgspec.Struct):
    """A dead sub-request. Equal failures have one `fingerprint`.

    `task` is the task that it calls, and `call` its short form; null if it is no call.
    """

    index: int
    attempt: int
    reason: str
    error: str
    worker: str
    body: Bytes
    fingerprint: str
    died_ms: int
    task: str | None
    call: str | None


def dead_of(found: DeadSubRequest, hidden: Collection[str]) -> DeadLine:
    """Returns a dead sub-request as JSON has it, without the values of these fields."""
    return DeadLine(
        found.index, found.attempt, found.reason, found.error, found.worker,
        from_bytes(hide(found.body, hidden)), found.fingerprint, found.died_ms, found.task or None,
        call_words(found.body, hidden) or None,
    )  # fmt: skip


class Take(msgspec.Struct, forbid_unknown_fields=True):
    """How many sub-requests to take, how long to hold them, and how long to wait for the first."""

    count: Annotated[int, msgspec.Meta(ge=1, le=settings.TAKE_MOST)] = 1
    visible_for: float = settings.TAKE_VISIBLE_S
    wait_s: Annotated[float, msgspec.Meta(ge=0, le=60)] = 0.0


class TakenOne(msgspec.Struct, omit_defaults=True):
    """A sub-request that was taken. Its receipt settles it.

    If its producer has a trace, `traceparent` and `tracestate` name it as W3C Trace Context does.
    """

    receipt: str
    id: str
    index: int
    attempt: int
    body: Bytes
    traceparent: str = ""
    tracestate: str = ""


def taken_of(found: AsyncTaken) -> TakenOne:
    """Returns what was taken as JSON has it."""
    body, (parent, _, state) = from_bytes(found.body or b""), found.trace.partition(" ")
    return TakenOne(found.receipt, found.id, found.index, found.attempt, body, parent, state)


class TakenList(msgspec.Struct):
    """What was taken, the most urgent first."""

    taken: list[TakenOne]


class Done(msgspec.Struct, forbid_unknown_fields=True):
    """The result of a sub-request, if it has one."""

    result: Bytes | None = None


class Dead(msgspec.Struct, forbid_unknown_fields=True):
    """Why a sub-request is given up."""

    reason: str


class Release(msgspec.Struct, forbid_unknown_fields=True):
    """When a sub-request may be taken again, in seconds from now."""

    delay_s: float = 0.0


class Extend(msgspec.Struct, forbid_unknown_fields=True):
    """How long to hold a sub-request from now on, in seconds."""

    visible_for: float = settings.TAKE_VISIBLE_S


class Extended(msgspec.Struct):
    """`goes_on` is false if the request was cancelled or is past its deadline."""

    goes_on: bool


class Since(msgspec.Struct, forbid_unknown_fields=True):
    """Where to begin: an id of an event, "0" for all that is kept, ms since 1970; "" = now."""

    since: str = ""


class Health(msgspec.Struct):
    """The server's own state."""

    status: str = "ok"
