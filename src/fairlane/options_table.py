"""The options of a request: one record for each, as data. Decision 0055 lists what follows from it.

A new option is a record here, a line of lua/v1/lib/create.lua, and what it does.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from fairlane import settings

# Kinds of values.
WHOLE = "whole"  # a whole number
DURATION = "duration"  # seconds, text such as "10m", or a timedelta; 0 = none
PAUSE = "pause"  # the shortest and the longest duration: "1s..5m", a pair, or one for both
MOMENT = "moment"  # a datetime with a zone, or ISO 8601 text with one
RATE = "rate"  # "100/s", "30/m" or "5/h"
NAME = "name"
NAMES = "names"  # one name or several
CHOICE = "choice"  # one of `most`
FLAG = "flag"
KEY = "key"  # a flag, or in Python a function of a body
TASKS = "tasks"  # one name, several, or names with counts
LIMITS = "limits"  # names, each with a limit: a dict, or text such as "api=10,customer-42=3"
KEYS_OF_CALL = "keys of a call"  # LIMITS whose names may have arguments, or a function of them


class Option(NamedTuple):
    """One option.

    `where` names the places, besides single requests in the library, on the command line and over
    HTTP, that have the option: `many` requests of one call; a `task`, and with it each call; only a
    `call` of a task; only the `registration` of a task; a `schedule`; a `step` of a flow; `set`,
    which changes a request; a `sink` of Spark. `stored` is "policy", or the option's line among the
    extras (lib/create.lua).
    """

    name: str
    kind: str
    least: Any
    most: Any
    unit: str  # of a whole number; or what each of several names is
    default: Any
    stored: str
    where: str
    sentence: str


# In the order of Policy's fields, which a content id has.
OPTIONS = (
    Option("priority", WHOLE, 0, 99, "", settings.DEFAULT_PRIORITY, "policy",
           "many task schedule step set sink", "The lane: 0 is first, 99 is last."),
    Option("limit", WHOLE, 1, 10_000, "workers", settings.DEFAULT_LIMIT, "policy",
           "schedule step set sink", "At most so many workers hold parts of it at a time."),
    Option("limits", LIMITS, 0, 3, "key", None, "limits",
           "many schedule step sink",
           "At most so many leases at a time over all requests of the queue that name the key."),
    Option("order_key", NAME, None, None, "", None, "order",
           "many task schedule step",
           "Requests of the queue with this key run one after the other, in their order."),
    Option("order_on_dead", CHOICE, None, ("go_on", "stop"), "", None, "on_dead",
           "many task schedule step",
           "Whether those behind a request that has dead sub-requests go on (else: stop)."),
    Option("attempts", WHOLE, 1, 100, "", 5, "policy",
           "many task schedule step sink", "How often a sub-request is tried before it is dead."),
    Option("backoff", PAUSE, "0s", "24h", "", "1s..5m", "policy",
           "many task schedule step sink",
           "Pause before another attempt, shortest..longest; 1s means 1s..1s."),
    # Short, because the work of a dead worker waits for so long.
    Option("lease", DURATION, "1s", "24h", "", "30s", "policy",
           "many task schedule step sink",
           "How long a worker that sends no heartbeat keeps its work."),
    Option("retain", DURATION, "0s", "366d", "", "24h", "policy",
           "many task schedule step sink",
           "How long results stay after the end; with 0s only the counts."),
    Option("remember", DURATION, "1s", "366d", "", None, "remember",
           "many task schedule",
           "How long its id is known after the end, also without results; 0s = as long as these."),
    Option("deadline", DURATION, "1ms", "366d", "", None, "policy",
           "many task schedule step set sink",
           "A sub-request that has not started so long from now is dead; 0s = no deadline."),
    Option("time_limit", DURATION, "1ms", "24h", "", None, "policy",
           "many task schedule step set sink",
           "A longer call of the handler is stopped, and the attempt fails; 0s = no limit."),
    Option("durable", WHOLE, 0, 16, "replicas", 0, "policy",
           "many task schedule", "So many replicas must confirm each write."),
    Option("delay", DURATION, "0s", "366d", "", None, "delay",
           "many task schedule step sink", "Nothing starts before this time is over."),
    Option("run_at", MOMENT, None, None, "", None, "start",
           "many task step sink", "Nothing starts before this time, as 2026-12-24T18:00+01:00."),
    Option("rate", RATE, None, None, "", None, "rates",
           "many task schedule step set",
           "At most so many sub-requests start in a time: 100/s, 30/m or 5/h."),
    Option("burst", WHOLE, 1, 1_000_000, "", None, "",
           "many task schedule step set",
           "So many may start together after a pause; without it, what the rate has in 0.1 s."),
    Option("rate_key", NAME, None, None, "", None, "",
           "many task schedule step",
           "Requests of the queue with the same key, rate and burst share the rate."),
    Option("weight", WHOLE, 1, 1_000_000, "", 1, "",
           "many task schedule step set", "Each sub-request counts so much at the rate."),
    Option("tags", NAMES, 0, 20, "tag", None, "tags",
           "many task schedule", "A name by which requests are found and changed together."),
    Option("tenant", NAME, None, None, "", None, "tenant",
           "many task schedule step",
           "The customer or team: tenants of one priority get equal time."),
    Option("share", WHOLE, 1, 999, "", 1, "share",
           "many task schedule step set",
           "The tenant gets so many times as much time as a tenant with 1."),
    Option("ageing", DURATION, "1s", "24h", "", None, "ageing",
           "many task schedule step",
           "If nothing of it has started for this time, one slice goes first; 0s = never."),
    Option("on_duplicate", CHOICE, None, ("keep", "replace", "debounce"), "", None, "unique",
           "many call",
           "What happens if its id has another request that runs, or began less than the window "
           "ago."),
    Option("window", DURATION, "0s", "366d", "", None, "",
           "many call",
           "A request of the same id that began within this time counts for on_duplicate."),
    Option("after", NAMES, 0, 100, "request id", None, "after",
           "many task", "The id of a request that must be done before."),
    Option("after_any_end", FLAG, None, None, "", None, "",
           "many task", "Any end of the requests of after is enough."),
    Option("distinct", KEY, None, None, "", None, "distinct",
           "many",
           "Leave out a sub-request whose own id (a number, meta.id, else its hash) came before."),
    Option("task", TASKS, None, None, "", None, "task",
           "many schedule step",
           "The task that its sub-requests call; several ones may have counts."),
    Option("redact", NAMES, 0, 20, "field", None, "redact",
           "many task schedule step",
           "A field of arguments and results that views and logs hide, at any depth."),
)  # fmt: skip
# Of a submission: the request does not keep them.
SUBMISSION = (
    Option("id", NAME, None, None, "", None, "",
           "call", "Its own id: the same submission again finds the same request."),
    Option("max_wait", DURATION, "0s", "40m", "", "0s", "",
           "task", "How long to wait while Redis or the queue is full."),
)  # fmt: skip
# Of a task, where they mean another thing than the options of a request that have their names.
OF_TASK = (
    Option("limit", WHOLE, 1, 10_000, "calls", None, "", "registration",
           "At most so many calls of the task run at a time, over all requests and machines."),
    Option("batch_limit", WHOLE, 1, 10_000, "workers", None, "", "task",
           "At most so many workers run calls of one map, group or other request at a time; by "
           "default the task's limit, else 3."),
    Option("limits", KEYS_OF_CALL, 0, 3, "key", None, "", "task",
           "At most so many calls at a time over all requests of the queue that name the key, as "
           "customer-{customer_id}."),
)  # fmt: skip
BY_NAME = {option.name: option for option in (*OPTIONS, *SUBMISSION)}
# The field of Policy, where it is not the name of the option; "" = a part of another field.
_FIELDS = {"run_at": "start_ms", "rate": "rates", "burst": "", "rate_key": "", "weight": ""}


def options_of(*places: str) -> tuple[Option, ...]:
    """Returns the options of these places."""
    every = (*OF_TASK, *BY_NAME.values())
    return tuple(option for option in every if {*places} & {*option.where.split()})


def field_of(option: Option) -> str:
    """Returns the field of Policy that has the option."""
    in_ms = "_ms" if option.kind in {DURATION, PAUSE} else ""
    return _FIELDS.get(option.name, option.name + in_ms)


def range_text(option: Option) -> str:
    """Returns the range for people: `1s to 24h`, `keep, replace, debounce`, "" = any value."""
    if option.kind == CHOICE:
        return ", ".join(option.most)
    if option.kind in {NAMES, LIMITS, KEYS_OF_CALL}:
        return f"up to {option.most}"
    if option.least is None:
        return ""
    return f"{shown(option.least)} to {shown(option.most)}"


def shown(value: Any) -> str:
    """Returns a bound or a default for people."""
    return f"{value:,}" if isinstance(value, int) else str(value)
