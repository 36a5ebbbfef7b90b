"""Every key name is made here and nowhere else.

There are two hash tags: `{queue}` for what dispatches tokens, `{id}` for what belongs to one
request. A brace in a name would move a key to another slot, so this module checks names, too. The
lanes of a queue may be spread over shards, each with a tag: `{queue/3}`. Shard 0 is `{queue}`.
"""

from __future__ import annotations

import os
import re
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from fairlane import settings
from fairlane.errors import InvalidArgument, type_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


LANES = 100
_LONGEST_NAME = 128
_NAME = re.compile(rf"[A-Za-z0-9_.:-]{{1,{_LONGEST_NAME}}}")
_SHOWN_MOST = 60  # characters of a refused name
REQUEST_PARTS = ("sub", "counter", "req", "tok", "lease", "retry", "out", "dead", "few", "error")
_PARTS = [part.encode() for part in REQUEST_PARTS]
EVERY_TAGGED_KEY = b"*{*}*"  # patterns for SCAN: this one also finds keys of staging, topics, lists
EVERY_REQUEST_HASH = b"req:{*}"
QUEUE_PARTS = ("conf", "active", "completed")  # a queue that was ever used has one of these
EVERY_QUEUE_KEY = b"{*}:[ac]*"  # the keys of QUEUE_PARTS, and few others
EVERY_DONE_CHANNEL = "done:{*}"  # ... and for ACL rules
_REQUEST_KEY = re.compile(rf"({'|'.join(REQUEST_PARTS)}):\{{({_NAME.pattern})\}}")
_BESIDE_KEY = re.compile(
    rf"(?:(?:ids|begun|txn|flow|fed):\{{({_NAME.pattern})\}}"
    rf"|(?:stage|txn):\{{({_NAME.pattern})\}}:[A-Za-z0-9_.:-]+)"
)
_QUEUE_KEY = re.compile(rf"\{{({_NAME.pattern})\}}:({'|'.join(QUEUE_PARTS)})")


def new_id() -> str:
    """Returns a request id that no other request has: 20 hex digits."""
    return os.urandom(10).hex()


def new_ids() -> Iterator[str]:
    """Yields request ids that no other request has, in less time than new_id."""
    while True:
        drawn = os.urandom(1000).hex()
        yield from (drawn[at : at + 20] for at in range(0, len(drawn), 20))


def check_name(kind: str, name: str, longest: int = _LONGEST_NAME) -> str:
    """Returns `name` if it may be part of a key; `kind` names it in the error."""
    if not isinstance(name, str) or not _NAME.fullmatch(name) or len(name) > longest:
        shown = repr(name)
        if isinstance(name, str) and len(name) > _SHOWN_MOST:
            shown = f"{name[:_SHOWN_MOST]!r}... ({len(name):,} characters)"
        raise InvalidArgument(
            f"{kind} {shown} is not valid: use 1 to {longest} letters, digits and the characters "
            "_ . : -"
        )
    return name


_TASK_KEY = "task/"


def check_key_name(name: str) -> str:
    """Returns `name` if it may name a key of `limits`: a name, or task/NAME of a task's limit."""
    own = name.removeprefix(_TASK_KEY) if isinstance(name, str) else name
    if own is name:
        return check_name("key", name)
    check_name(f"key {_TASK_KEY}", own, _LONGEST_NAME - len(_TASK_KEY))
    return name


def key_of_task(task: str) -> str:
    """Returns the key that is the limit of a task. Raises InvalidArgument if no key is named so."""
    return check_key_name(_TASK_KEY + task)


def check_names(
    kind: str, names: Iterable[str], most: int, check: Callable[[str, str], str] = check_name
) -> tuple[str, ...]:
    """Returns 1 to `most` different names of a kind, each checked. Raises InvalidArgument."""
    if isinstance(names, (str, bytes)):
        raise InvalidArgument(f"{kind}s {names!r} is {type_of(names)}: a list of names is expected")
    found = tuple(check(kind, name) for name in names)
    if not 1 <= len(found) <= most:
        raise InvalidArgument(f"{len(found):,} {kind}s: 1 to {most:,} are expected")
    if len(set(found)) < len(found):
        twice = next(name for name in found if found.count(name) > 1)
        raise InvalidArgument(f"{kind} {twice} is named twice: name each {kind} once")
    return found


@lru_cache(maxsize=4096)
def request_keys(request_id: str) -> tuple[bytes, ...]:
    """Returns the ten keys of one request, in the order of lua/v1/lib/request_keys.lua."""
    tail = f":{{{request_id}}}".encode()
    return tuple([part + tail for part in _PARTS])


def part_and_id(key: bytes) -> tuple[str, str] | None:
    """Returns which of REQUEST_PARTS a key is, and its request; None for a key of another shape."""
    match = _REQUEST_KEY.fullmatch(key.decode("utf-8", "replace"))
    return (match[1], match[2]) if match else None


def queue_and_part(key: bytes) -> tuple[str, str] | None:
    """Returns a queue, and which of QUEUE_PARTS its key is; None for a key of another shape.

    The keys of a shard are none of these, because its tag has a / that no name has.
    """
    match = _QUEUE_KEY.fullmatch(key.decode("utf-8", "replace"))
    return (match[1], match[2]) if match else None


def bucket(name: str) -> bytes:
    """`rate:{<name>}`: the bucket of a rate.

    Its name is a request's id, queue/NAME, or that of `common.rate.Shared`.
    """
    return f"rate:{{{name}}}".encode()


def queue_keys(queue: str) -> list[bytes]:
    """Returns the keys of QUEUE_PARTS for one queue, in their order."""
    return [_dispatch(queue, part) for part in QUEUE_PARTS]


def beside(key: bytes) -> str | None:
    """Returns the request (`begun`: the transaction) of a key beside it; None for another shape."""
    match = _BESIDE_KEY.fullmatch(key.decode("utf-8", "replace"))
    return (match[1] or match[2]) if match else None


def every_key(queue: str | None) -> list[str]:
    """Returns patterns for the keys of all requests, and for the slots of one queue or all."""
    dispatch = ["{*}"] if queue is None else [f"{{{queue}}}", f"{{{queue}/[0-9]*}}"]
    others = ["begun:{*}", "fed:{*}", "flow:{*}", "ids:{*}", "rate:{*}", "stage:{*}:*", "txn:{*}*"]
    return [
        *(f"{part}:{{*}}" for part in REQUEST_PARTS),
        *others,
        *(f"{tag}:*" for tag in dispatch),
    ]


def request_hash(request_id: str) -> bytes:
    """`req:{id}`: state, policy and counts."""
    return f"req:{{{request_id}}}".encode()


def bodies(request_id: str) -> bytes:
    """`sub:{id}`: waiting and leased sub-requests."""
    return request_keys(request_id)[0]


def few(request_id: str) -> bytes:
    """`few:{id}`: the sub-requests of a small request, at most about 1 KiB."""
    return request_keys(request_id)[8]


def leases(request_id: str) -> bytes:
    """`lease:{id}`: held permits and their deadlines."""
    return request_keys(request_id)[4]


def retries(request_id: str) -> bytes:
    """`retry:{id}`: entries that wait for another attempt, and when each is due."""
    return request_keys(request_id)[5]


def permits(request_id: str) -> bytes:
    """`tok:{id}`: permits and what state each is in."""
    return request_keys(request_id)[3]


def results(request_id: str) -> bytes:
    """`out:{id}`: results in completion order."""
    return request_keys(request_id)[6]


def dead(request_id: str) -> bytes:
    """`dead:{id}`: dead sub-requests with their bodies and reasons."""
    return request_keys(request_id)[7]


def errors(request_id: str) -> bytes:
    """`error:{id}`: the texts of errors that `dead` and `out` name, each once."""
    return request_keys(request_id)[9]


def area(request_id: str, txn: str, name: str) -> bytes:
    """`stage:{id}:<txn>:<area>`: what one writer of a transaction has staged, chunk by chunk."""
    return f"stage:{{{request_id}}}:{txn}:{name}".encode()


def transaction(request_id: str, txn: str) -> bytes:
    """`txn:{id}:<txn>`: the manifest of a transaction, and how much of it was added."""
    return f"txn:{{{request_id}}}:{txn}".encode()


def owner(request_id: str) -> bytes:
    """`txn:{id}`: the name of the transaction that alone may write to the request."""
    return f"txn:{{{request_id}}}".encode()


def begun(txn: str) -> bytes:
    """`begun:{<txn>}`: the requests that a pipelined transaction has begun, for its abort."""
    return f"begun:{{{txn}}}".encode()


def unique_ids(request_id: str) -> bytes:
    """`ids:{id}`: the ids of sub-requests that were added by their ids."""
    return f"ids:{{{request_id}}}".encode()


def of_flow(request_id: str) -> bytes:
    """`flow:{id}`: beside a step that joins others, what waits to be joined."""
    return f"flow:{{{request_id}}}".encode()


def fed(request_id: str) -> bytes:
    """`fed:{id}`: beside a step that others feed, a bit for each index that it has of them."""
    return f"fed:{{{request_id}}}".encode()


def done_channel(request_id: str) -> bytes:
    """`done:{id}`: where the end of a request is published."""
    return f"done:{{{request_id}}}".encode()


@lru_cache(maxsize=1024)
def lanes(queue: str, shard: int = 0) -> tuple[bytes, ...]:
    """Returns the 100 token lists of a queue, or of one of its shards, most urgent first."""
    tag = _tag(queue, shard)
    return tuple(f"{{{tag}}}:{priority}".encode() for priority in range(LANES))


def lane(queue: str, number: int) -> bytes:
    """Returns a lane's key by its number: its priority plus a hundred times its shard."""
    return lanes(queue, number // LANES)[number % LANES]


def number_of(lane_key: bytes) -> int:
    """Returns the number of a lane."""
    tag, _, priority = lane_key.rpartition(b":")
    shard = tag.rpartition(b"/")[2] if b"/" in tag else b"}"
    return int(shard[:-1] or 0) * LANES + int(priority)


def _tag(queue: str, shard: int) -> str:
    return f"{queue}/{shard}" if shard else queue


@lru_cache(maxsize=1024)
def _dispatch(queue: str, name: str) -> bytes:
    return f"{{{queue}}}:{name}".encode()


def active(queue: str) -> bytes:
    """Zset: request -> when to check it next, ms. Written before the request exists."""
    return _dispatch(queue, "active")


def logged(queue: str) -> bytes:
    """Zset: endings that are in the completion log already."""
    return _dispatch(queue, "logged")


def delayed(queue: str, shard: int = 0) -> bytes:
    """Zset: tokens that are due later."""
    return _dispatch(_tag(queue, shard), "delayed")


def turns(queue: str, shard: int = 0) -> tuple[bytes, bytes]:
    """Returns the zsets of the tokens that name a tenant, and of the tenants' virtual times."""
    tag = _tag(queue, shard)
    return _dispatch(tag, "turns"), _dispatch(tag, "tenants")


def of_limits(queue: str) -> tuple[bytes, bytes, bytes, bytes]:
    """Returns the keys of scripts that place tokens: `conf`, `turns`, `tenants` and `limits`.

    `limits` is the hash of the keys in use: key -> its limit.
    """
    return (conf(queue), *turns(queue), _dispatch(queue, "limits"))


def limit_key(queue: str, name: str) -> bytes:
    """Zset: what holds a key and what waits for it (lua/v1/lib/limit_keys.lua)."""
    return _dispatch(queue, f"key:{name}")


def completed(queue: str) -> bytes:
    """Stream: the completion log."""
    return _dispatch(queue, "completed")


# What only the server of the HTTP API may read: the patterns of the other roles match none of it.
SERVER_PARTS = ("audit", "hooks")


def every_server_key(queue: str | None) -> list[str]:
    """Returns rules for what only the server of the HTTP API keeps, of one queue or all.

    It also reads the completion log, which its webhooks follow, and marks how far they are.
    """
    tag = "{*}" if queue is None else f"{{{queue}}}"
    parts = (f"~{part}:{tag}*" for part in SERVER_PARTS)
    return [*parts, f"%R~{tag}:completed", f"~{tag}:readers"]


def every_delivery_key(queue: str | None) -> list[str]:
    """Returns rules to read how far the webhooks of one queue or all are, without their secrets."""
    tag = "{*}" if queue is None else f"{{{queue}}}"
    return [f"%R~hooks:{tag}:progress", f"%R~hooks:{tag}:lock"]


def reached_by(pattern: str, queue: str | None) -> str | None:
    """Returns a key of queues or topics, such as `audit:{req}`, that a pattern of lists reaches.

    None = it reaches none. A pattern with a whole hash tag, as `{orders}:*`, is one of lists,
    unless the tag is that of this queue.
    """
    name = settings.DEFAULT_QUEUE if queue is None else queue
    fixed = re.split(r"[*?[\\]", pattern, maxsplit=1)[0]
    is_open = fixed != pattern
    if tag := re.match(r"\{([^{}]+)\}", fixed):
        return f"{{{name}}}:active" if tag[1].partition("/")[0] == name else None
    parts = [*every_key(None), *(f"{part}:{{*}}" for part in SERVER_PARTS), EVERY_TOPIC_KEY]
    for start in (one.partition("*")[0] for one in parts):
        if fixed.startswith(start) or (is_open and start.startswith(fixed)):
            return f"{start}{name}}}"
    return None


def log_readers(queue: str) -> bytes:
    """Hash with a TTL: reader of the completion log -> its place, and when its mark ends, ms."""
    return _dispatch(queue, "readers")


def audit(queue: str) -> bytes:
    """`audit:{queue}`: zset: each part of the audit trail -> the time of its last entry, ms."""
    return f"audit:{{{queue}}}".encode()


def audit_part(queue: str, part: str) -> bytes:
    """`audit:{queue}:<part>`: stream: entries of the audit trail, such as those of one token."""
    return f"audit:{{{queue}}}:{part}".encode()


def audit_tokens(queue: str) -> bytes:
    """`audit:{queue}/tokens`: hash: the tokens that the audit trail has, id -> what each may do."""
    return f"audit:{{{queue}}}/tokens".encode()


def hooks(queue: str) -> tuple[bytes, bytes]:
    """The hashes webhook -> its definition, and webhook -> how far its deliveries are."""
    stem = f"hooks:{{{queue}}}".encode()
    return stem, stem + b":progress"


def hooks_lock(queue: str) -> bytes:
    """String with a TTL: the server that delivers the webhooks."""
    return f"hooks:{{{queue}}}:lock".encode()


def workers(queue: str) -> bytes:
    """Zset: worker -> its last beat, ms."""
    return _dispatch(queue, "workers")


def deaths(queue: str) -> bytes:
    """Hash with a TTL: `<started ms>|<worker>` of a worker that died -> `<when, ms> <host>`."""
    return _dispatch(queue, "deaths")


def worker(queue: str, worker_id: str) -> bytes:
    """Hash with a TTL: one living worker."""
    return _dispatch(queue, f"worker:{worker_id}")


@lru_cache(maxsize=256)
def taken(queue: str, worker_id: str) -> bytes:
    """Hash with a TTL: unit of a worker -> the tokens that it last took from the lanes."""
    return _dispatch(queue, f"taken:{worker_id}")


def wake(queue: str, worker_id: str, shard: int = 0) -> bytes:
    """List with a short TTL: a word in it ends the blocking pops of a draining worker."""
    return _dispatch(_tag(queue, shard), f"wake:{worker_id}")


def rights(queue: str, worker_id: str) -> bytes:
    """String with a short TTL: a starting worker tries its rights on it."""
    return _dispatch(queue, f"rights:{worker_id}")


def orders(queue: str, worker_id: str) -> bytes:
    """Hash with a TTL: order -> what this worker is asked to do."""
    return _dispatch(queue, f"orders:{worker_id}")


def answer(queue: str, order: str) -> bytes:
    """Stream with a TTL: the answer to an order, one entry."""
    return _dispatch(queue, f"answer:{order}")


def is_wake(key: bytes) -> bool:
    """Returns True for the list that wakes a worker."""
    return b"}:wake:" in key


def stats(queue: str) -> bytes:
    """Hash: what the workers measured, by priority."""
    return _dispatch(queue, "stats")


def task_stats(queue: str) -> bytes:
    """Hash: what the workers measured, by task."""
    return _dispatch(queue, "tasks")


def bound(queue: str) -> tuple[bytes, bytes]:
    """The hashes of the bound on what waits: `conf`, and request -> what it adds to the sum."""
    return _dispatch(queue, "conf"), _dispatch(queue, "load")


def firing(queue: str) -> bytes:
    """Returns the hash of what leaders note about due ticks: see lua/v1/lib/queue.lua."""
    return _dispatch(queue, "firing")


def schedules(queue: str) -> tuple[bytes, bytes]:
    """The hash schedule -> its definition, and the zset schedule -> its next tick, ms."""
    return _dispatch(queue, "schedules"), _dispatch(queue, "ticks")


def fleets(queue: str) -> bytes:
    """Zset: fleet -> when its stop was requested, in microseconds."""
    return _dispatch(queue, "fleets")


def conf(queue: str) -> bytes:
    """Hash: queue-wide switches and the maintenance lock."""
    return _dispatch(queue, "conf")


EVERY_TOPIC_KEY = "topic:{*}*"  # a pattern, also for ACL rules
EVERY_TOPIC_CONF = b"topic:{*}:conf"
_TOPIC_CONF = re.compile(rf"topic:\{{({_NAME.pattern})\}}:conf")


def topic(name: str) -> tuple[bytes, bytes]:
    """The stream of a topic's messages, and the hash of its counts, retention and subscribers."""
    stream = f"topic:{{{name}}}".encode()
    return stream, stream + b":conf"


def topic_op(name: str, op: str) -> bytes:
    """String with a TTL: what became of one publication."""
    return f"topic:{{{name}}}:op:{op}".encode()


def topic_of(conf_key: bytes) -> str | None:
    """Returns the topic whose hash this key is; None for a key of another shape."""
    match = _TOPIC_CONF.fullmatch(conf_key.decode("utf-8", "replace"))
    return match[1] if match else None


# ------------------------------------------------------------------ list keys
# The keys beside a person's lists: what a service records under its namespace.
#
# The names are those that the README of mpush describes; its program puts `service:` before those
# of services. A list keeps the name that a person gave it. In a cluster a hash tag, `{orders}:in`,
# puts all of them into one slot.


_LONGEST = 512  # bytes of a name
_FORWARD = re.compile(rb"(?:\{([^{}]+)\}|(.+)):forward", re.DOTALL)
_TAG = re.compile(r"^[^{]*\{[^}]+\}")  # what Redis reads as a hash tag


def check_list(kind: str, name: str) -> str:
    """Returns `name` if it can be the name of a list. Raises InvalidArgument, which names `kind`.

    A brace must be a part of a hash tag, because a key beside the list has to be in its slot.
    """
    shown = repr(name)
    if not isinstance(name, str) or not 1 <= len(name.encode(errors="replace")) <= _LONGEST:
        if isinstance(name, str) and len(name) > _SHOWN_MOST:
            shown = f"{name[:_SHOWN_MOST]!r}... ({len(name):,} characters)"
        raise InvalidArgument(
            f"{kind} {shown} is not valid: a name of 1 to {_LONGEST} bytes is expected"
        )
    if ("{" in name or "}" in name) and not _TAG.match(name):
        raise InvalidArgument(
            f"{kind} {shown} is not valid: its brace begins no hash tag such as {{orders}}:in"
        )
    return name


def raw(name: str) -> bytes:
    """Returns a list's name as Redis has it; a name from the command line may hold any bytes."""
    return name.encode("utf-8", "surrogateescape")


def pending(source: str) -> str:
    """`<list>:pending`: where messages wait between their list and the lists that get them."""
    return f"{source}:pending"


def _beside(name: str, what: str) -> bytes:
    """Returns a key in the slot of the list."""
    return raw(f"{name}:{what}" if _TAG.match(name) else f"{{{name}}}:{what}")


def in_flight(source: str) -> bytes:
    """`{<list>}:forwarding`: list of messages that left their list and are not settled."""
    return _beside(source, "forwarding")


def forward_state(source: str) -> bytes:
    """`{<list>}:forward`: hash, which forwarder is active, and how far it is."""
    return _beside(source, "forward")


def forwarded_list(key: bytes) -> str | None:
    """Returns the list whose `forward_state` this key is; None for a key of another shape."""
    match = _FORWARD.fullmatch(key)
    name = (match[1] or match[2]).decode("utf-8", "surrogateescape") if match else ""
    return name if name and forward_state(name) == key else None


def landed(target: str) -> bytes:
    """`{<list>}:landed`: hash, the last number that came in each of the last 1,000 epochs."""
    return _beside(target, "landed")


def balanced(name: str, op: str) -> bytes:
    """`{<list>}:balanced:<op>`: string with a TTL, what became of one push to the shortest list."""
    return _beside(name, f"balanced:{op}")


def tag_of(name: str) -> str:
    """Returns what decides the slot of a list: its hash tag, or its whole name."""
    found = _TAG.match(name)
    return found[0].partition("{")[2][:-1] if found else name


class Namespace(NamedTuple):
    """The keys of services and of the messages that they track, as `demo:mpush:ids`."""

    name: str

    def _key(self, rest: str) -> bytes:
        return raw(f"{self.name}:{rest}")

    def has(self, name: str) -> bool:
        """Returns True if a list of this name would be one of these keys."""
        before, _, rest = name.partition(f"{self.name}:")
        is_own = rest in {"id", "ids"} or rest.isdecimal()
        return not before and (is_own or rest.startswith(("message:", "metrics:")))

    @property
    def last_id(self) -> bytes:
        """`<namespace>:id`: the number of services so far."""
        return self._key("id")

    @property
    def ids(self) -> bytes:
        """`<namespace>:ids`: list of services, newest first."""
        return self._key("ids")

    def service(self, service_id: str) -> bytes:
        """`<namespace>:<id>`: hash with a TTL, one live service."""
        return self._key(service_id)

    @property
    def last_message(self) -> bytes:
        """`<namespace>:message:id`: the number of messages so far."""
        return self._key("message:id")

    @property
    def messages(self) -> bytes:
        """`<namespace>:message:ids`: list of messages that were handed over, newest first."""
        return self._key("message:ids")

    @property
    def settled(self) -> bytes:
        """`<namespace>:message:settled`: set of ids that are counted and still in that list."""
        return self._key("message:settled")

    @property
    def done(self) -> bytes:
        """`<namespace>:message:done`: list to which consumers push the ids of what they did."""
        return self._key("message:done")

    def message(self, message_id: str) -> bytes:
        """`<namespace>:message:<id>`: hash with a TTL, one tracked message."""
        return self._key(f"message:{message_id}")

    def message_of(self, xid: str) -> bytes:
        """`<namespace>:message:xid:<xid>`: hash with a TTL, the id of the message of this xid."""
        return self._key("message:xid:") + xid.encode("utf-8", "replace")

    def metrics(self, name: str) -> bytes:
        """`<namespace>:metrics:<name>`: hash of count, and for `done` of sum and max."""
        return self._key(f"metrics:{name}")
