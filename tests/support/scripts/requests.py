"""Drives requests script by script: each call has an explicit time, and `check` runs after it."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from fairlane.errors import InvalidArgument
from fairlane.model import Verdict, result_head
from fairlane.operations import lease, tokens
from fairlane.operations.tokens import follow_up
from fairlane.protocol import keys, scripts
from fairlane.protocol.lua import Dialect, Library, ending_name, library
from fairlane.protocol.request_hash import PACKED, unpacked
from fairlane.protocol.steps import Batch, Command, NextChunk, SingleServer, forward
from tests.support.scripts.called import called
from tests.support.scripts.generate import reply_class
from tests.support.wait import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import redis

    from fairlane.drivers.sync import SyncDriver
    from fairlane.model import Slice, Token
    from fairlane.protocol.lua import Reply, Script
    from fairlane.protocol.steps import Call, Operation, R, Step

T0 = 1_700_000_000_000
MINUTE = 60_000
HOUR = 3_600_000


def stored(client: redis.Redis, request_id: str) -> dict[str, str]:
    """Returns a request's hash as text, with each packed number under its own name."""
    found: Any = client.hgetall(keys.request_hash(request_id))
    return unpacked({name.decode(): value.decode() for name, value in found.items()})


def waiting_bodies(client: redis.Redis, request_id: str) -> list[bytes]:
    """Returns the bodies of a request from which nothing was taken, wherever they are stored."""
    stream, *_, few, _ = keys.request_keys(request_id)
    text: Any = client.get(few)
    if text is None:
        entries: Any = client.xrange(stream)
        return [fields[b"b"] for _, fields in entries]
    bodies = []
    while text:
        length, _, text = text.partition(b":")
        bodies.append(text[: int(length)])
        text = text[int(length) :]
    return bodies


def change_number(client: redis.Redis, request_id: str, name: str, value: object) -> None:
    """Damages one packed number of a request's hash."""
    key = keys.request_hash(request_id)
    ((packed, names),) = [(packed, names) for packed, names in PACKED.items() if name in names]
    text: Any = client.hget(key, packed)
    numbers = dict(
        zip(names, text.decode().split(":"), strict=False)
    )  # the last ones may be missing
    client.hset(key, packed, ":".join((numbers | {name: str(value)}).values()))


def permits_of(client: Any, request_id: str) -> dict[str, str]:
    """Returns the fields of tok:{id}, including the one that the first permit would have."""
    values, key = stored(client, request_id), keys.permits(request_id)
    fields = {k.decode(): text.decode() for k, text in client.hgetall(key).items()}
    if (values.get("seq"), values.get("queued")) == ("1", "1"):
        lane = int(values["priority"]) + 100 * int(values["shards"].partition(",")[0] or 0)
        fields["0"] = f"q:1:{values['born']}:{lane}:0"
    return fields


class Tok(NamedTuple):
    """One token as mint returned it."""

    lane: int
    k: str
    g: str
    delay: int = 0


def toks(flat: list[Any]) -> list[Tok]:
    """Returns the tokens of a reply: flat lane, "k.g", delay."""
    found = []
    for lane, permit, delay in zip(flat[::3], flat[1::3], flat[2::3], strict=True):
        k, g = permit.decode().split(".")
        found.append(Tok(int(lane), k, g, int(delay)))
    return found


@dataclass
class Held:
    """The reply of acquire, and all fields that prove the lease."""

    word: str
    k: str
    g: str
    op: str
    worker: str
    started: str
    fence: str = ""
    attempt: int = 0
    policy: list[int] = field(default_factory=list)
    entries: list[tuple[bytes, bytes]] = field(default_factory=list)
    tokens: list[Tok] = field(default_factory=list)
    reply: list[Any] = field(default_factory=list)

    @property
    def ids(self) -> list[bytes]:
        return [entry_id for entry_id, _ in self.entries]

    @property
    def bodies(self) -> list[bytes]:
        return [body for _, body in self.entries]


def reply_of(name: str) -> type[Reply] | None:
    """Returns the class of a script's replies; None if a reply is a single value."""
    found: type[Reply] | None = getattr(scripts, reply_class(name), None)
    return found


def agree(script: Script, raw: Any) -> None:
    """Fails if a reply of a script is not one that the script's header names."""
    kind = reply_of(script.name)
    if kind is None:
        assert not (isinstance(raw, list) and raw and isinstance(raw[0], str)), raw
        return
    reply = kind.of(raw)
    least = most = len(reply.fields) + bool(reply.word)
    if reply.fields and reply.fields[-1].endswith(("?", "...")):
        least, most = least - 1, most if reply.fields[-1].endswith("?") else len(raw)
    assert least <= len(raw) <= most, f"{script.name} replied {raw}, not {script.says}"


async def once(step: Step) -> Any:
    """Performs one step; returns what Redis replied."""
    return await forward(step)


async def ask(call: Call[R]) -> R:
    """Makes one call; returns its script's reply."""
    return await call


def head_of(entry_id: bytes, status: str = "d", attempt: int = 1) -> str:
    """Returns the head of one result, as a worker writes it."""
    return f"{entry_id.rpartition(b'-')[2].decode()}:{status}:{attempt}:0:0"


def dead(entry_id: bytes, error: str = "bad port", attempt: int = 1) -> Verdict:
    """Returns the verdict that makes a sub-request dead."""
    return Verdict(entry_id, "dead", 0, head_of(entry_id, "x", attempt).encode(), error)


def settlement(
    held: Held, done: list[bytes], others: list[tuple[bytes, str, int]], reason: str = ""
) -> list[Any]:
    """Returns a worker's settlement of a slice: the results of what is done, verdicts on the rest.

    `reason` is why sub-requests are released.
    """
    rest: list[Any] = list(done)
    for entry_id in done:
        rest += (head_of(entry_id, attempt=held.attempt), b"result of " + entry_id)
    for entry_id, verdict, delay in others:
        is_back = verdict in ("release", "unbegun")
        head = head_of(entry_id, "g" if is_back else "x", held.attempt)
        why = reason if is_back else f"why {verdict}"
        rest += (entry_id, verdict, delay, head, why)
    return rest


POLICY = (  # in the order of lua/v1/lib/create.lua
    *("limit", "priority", "attempts", "backoff_min", "backoff_max", "lease_ms"),
    *("retain_ms", "time_limit_ms", "durable", "deadline_ms"),
)


def with_policy(given: dict[str, Any]) -> dict[str, Any]:
    """Returns the arguments of enqueue or submit, with the policy's numbers encoded as text."""
    rest = {name: value for name, value in given.items() if name not in POLICY}
    return {"policy": ":".join(str(given[name]) for name in POLICY)} | rest


class Lane:
    """One request and one queue, at the time `now`."""

    def __init__(
        self,
        driver: SyncDriver,
        client: Any,
        *,
        request_id: str = "r1",
        queue: str = "req",
        scripts: Library | None = None,
    ) -> None:
        self.driver, self.client, self.id, self.queue = driver, client, request_id, queue
        self.scripts = scripts or library()
        self.names = keys.request_keys(request_id)
        self.now = T0
        self.checked = True
        self._ops = 0

    # ------------------------------------------------------------------ plumbing

    def call(self, name: str, names: tuple[bytes, ...] | list[bytes], **given: Any) -> Any:
        """Runs any script; `now` is the lane's unless given."""
        script = self.scripts[name]
        if "now" in script.params:
            given.setdefault("now", self.now)
        reply = self.driver.run(once(called(script, names, **given)))
        agree(script, reply)
        return reply

    def request(self, name: str, **given: Any) -> list[Any]:
        """Runs a script of the request's slot, then checks the request."""
        reply: list[Any] = self.call(name, self.names, **given)
        if self.checked:
            assert self.check() == [], f"after {name} said {reply[:1]!r}"
        return reply

    def check(self, now: int | None = None) -> list[str]:
        """Returns what the script `check` reports as broken."""
        found = self.call("check", self.names, now=self.now if now is None else now)
        return [sentence.decode() for sentence in found]

    def run(self, operation: Operation[Any], source: Iterator[Any] | None = None) -> Any:
        """Runs any operation."""
        return self.driver.run(operation, source)

    def is_whole(self) -> bool:
        """Returns True if the invariants of the request hold now."""
        return not self.call("check", self.names, now="")

    def raw(self, *words: Any) -> Any:
        """Runs any command; the reply is as Redis sent it."""
        return self.driver.run(once(Command(*words)))

    def later(self, ms: int) -> None:
        self.now += ms

    def new_op(self) -> str:
        self._ops += 1
        return f"{self._ops:032x}"

    # ------------------------------------------------------------------ the request's scripts

    def enqueue(self, bodies: list[bytes] | int, **options: Any) -> list[Any]:
        """Creates the request; a number means that many bodies b0, b1, ..."""
        given: dict[str, Any] = {
            "queue": self.queue,
            "priority": 5,
            "limit": 3,
            "digest": "d1",
            "intent": self.now,
            "open_ms": 0,
            "attempts": 3,
            "backoff_min": 1_000,
            "backoff_max": 10_000,
            "lease_ms": 30_000,
            "retain_ms": HOUR,
            "deadline_ms": 0,
            "time_limit_ms": 0,
            "durable": 0,
            "extras": "",
            "shards": "",
            "over": 0,
            "bodies": numbered(bodies) if isinstance(bodies, int) else bodies,
        }
        return self.request("enqueue", **with_policy(given | options))

    def start(self, bodies: list[bytes] | int, **options: Any) -> list[Tok]:
        reply = self.enqueue(bodies, **options)
        assert reply[0] == b"ok"
        return toks(reply[1])

    def append(self, bodies: list[bytes] | int, *, chunk: int, **given: Any) -> list[Any]:
        chosen = numbered(bodies) if isinstance(bodies, int) else bodies
        before = self.hash().get("chain", "")
        given = {"chain": f"c{chunk}", "before": before, "open_ms": HOUR} | given
        return self.request("append", chunk=chunk, bodies=chosen, **given)

    def seal(self, chunks: int = 1, chain: str | None = None) -> list[Any]:
        """Seals the request; by default its producer sent exactly what is stored."""
        own = self.hash().get("chain", "")
        return self.request("seal", chunks=chunks, chain=chain or own)

    def acquire(
        self,
        token: Tok,
        *,
        count: int = 1000,
        op: str | None = None,
        worker: str = "w:1",
        started: str = "7",
        shared: bool = False,
        allowance: int | str = "",
        wait: int | str = "",
    ) -> Held:
        """Calls acquire with a token."""
        op = op or self.new_op()
        reply = self.request(
            "acquire", k=token.k, g=token.g, op=op, worker=worker, started=started, count=count,
            shared="1" if shared else "", allowance=allowance, wait=wait, token="",
        )  # fmt: skip
        held = Held(reply[0].decode(), token.k, token.g, op, worker, started, reply=reply)
        if held.word == "ok":
            held.fence, held.attempt, held.policy = reply[1].decode(), reply[2], reply[3]
            held.entries = [(entry_id, pair[1]) for entry_id, pair in reply[4]]
            held.tokens = toks(reply[5])
        elif held.word in ("empty", "busy", "paused", "limited"):
            held.tokens = toks(reply[1])
        return held

    def take(self, token: Tok, **given: Any) -> Held:
        held = self.acquire(token, **given)
        assert held.word == "ok", held.reply
        return held

    def begin(
        self,
        bodies: list[bytes] | int,
        *,
        count: int = 1000,
        worker: str = "w:1",
        shared: bool = False,
        **options: Any,
    ) -> Held:
        """Creates the request and takes a slice with its first token."""
        token = self.start(bodies, **options)[0]
        return self.take(token, count=count, worker=worker, shared=shared)

    def complete(
        self,
        held: Held,
        done: list[bytes] | None = None,
        others: list[tuple[bytes, str, int]] | None = None,
        *,
        keep: bool = False,
        is_unbegun: bool = False,
        reason: str = "",
        **changed: Any,
    ) -> list[Any]:
        """Settles a slice: all of it done, or what is named."""
        if done is None:
            done = [] if others else held.ids
        given = {
            "k": held.k,
            "fence": held.fence,
            "op": held.op,
            "keep": "1" if keep else "u" if is_unbegun else "0",
            "done": len(done),
            "verdicts": settlement(held, done, others or [], reason),
        }
        return self.request("complete", **(given | changed))

    def extend(self, held: Held, **changed: Any) -> str:
        given = {"k": held.k, "fence": held.fence, "op": held.op, "term": ""} | changed
        return str(self.request("extend", **given)[0].decode())

    def reap(self, **given: Any) -> list[Any]:
        """Takes leases back, by default those that have expired."""
        usual = dict.fromkeys(("worker", "started", "k", "fence", "how"), "")
        return self.request("reap", **{"queue": self.queue, "missing": []} | usual | given)

    def cancel(self, reason: str = "a person said so") -> list[Any]:
        return self.request("cancel", reason=reason)

    def pause(self) -> list[Any]:
        return self.request("pause")

    def resume(self) -> list[Any]:
        return self.request("resume")

    def set_limit(self, limit: int | str) -> list[Any]:
        return self.request("set_limit", limit=limit)

    def set_priority(self, priority: int | str) -> list[Any]:
        return self.request("set_priority", priority=priority)

    def requeue(
        self,
        ids: list[bytes] | list[str] | None = None,
        *,
        op: str | None = None,
        **given: int | str,
    ) -> list[Any]:
        """Requeues dead sub-requests, by default all of them; as if the request ran."""
        chosen = self.dead_ids() if ids is None else ids
        plain = {"ending": "", "intent": 0, "shards": "", "holder": "ab", "more": "", "by": ""}
        return self.request("requeue_dead", op=op or self.new_op(), ids=chosen, **(plain | given))

    def reopen(self, ids: list[bytes] | list[str] | None = None, **given: Any) -> list[Any]:
        """Requeues dead sub-requests of the ended request, whose end counts as logged."""
        ending = ending_name(self.hash().get("born", ""), self.hash().get("reopened", ""))
        known: dict[str, Any] = {"ending": ending, "intent": self.now}
        return self.requeue(ids, **(known | given))

    def list_dead(self, after: bytes | str = "", count: int | str = 1000) -> list[list[Any]]:
        """Returns one page of the dead sub-requests without their bodies."""
        return self.request("list_dead", after=after, count=count)

    def abandon(self, seen: int | str, ttl: int | str = HOUR) -> list[Any]:
        """Marks an intent that has no request."""
        return self.request("abandon", seen=seen, ttl=ttl)

    # ------------------------------------------------------------------ what is stored

    def hash(self) -> dict[str, str]:
        """Returns the request's hash as text, with each packed number under its own name."""
        return stored(self.client, self.id)

    def change(self, name: str, value: object) -> None:
        change_number(self.client, self.id, name, value)

    def number(self, name: str) -> int:
        return int(self.hash()[name])

    def permits(self) -> dict[str, str]:
        return permits_of(self.client, self.id)

    def pending(self) -> dict[str, int]:
        """Returns, for each consumer, how many entries it has pending."""
        found = self.client.xinfo_consumers(self.names[0], self.names[0])
        return {row["name"].decode(): row["pending"] for row in found}

    def results(self) -> dict[int, tuple[str, int, bytes]]:
        """Returns index -> (status, attempt, body) of `out`; a second result of an index fails."""
        found: dict[int, tuple[str, int, bytes]] = {}
        reply = self.raw("XRANGE", self.names[6], "-", "+")
        for _, fields in reply:
            for head, body in zip(fields[2::2], fields[3::2], strict=True):
                index, status, attempt, _, _ = head.split(b":")
                assert int(index) not in found, f"two results of {index!r}"
                shown = self.error_of(body) if status == b"x" else body
                found[int(index)] = (status.decode(), int(attempt), shown)
        return found

    def dead(self) -> list[dict[str, str]]:
        """Returns the dead sub-requests as text, each with the text of its error."""
        found: Any = self.client.xrange(self.names[7])
        shown = [fields | {b"error": self.error_of(fields[b"error"])} for _, fields in found]
        return [{n.decode(): v.decode() for n, v in fields.items()} for fields in shown]

    def error_of(self, name: bytes) -> bytes:
        """Returns the text that a result or a dead sub-request names."""
        text: Any = self.client.hget(self.names[9], name.decode())
        return b"" if text is None else text

    def dead_ids(self) -> list[bytes]:
        """Returns the positions of the dead sub-requests in their stream."""
        return [entry_id for entry_id, _ in self.client.xrange(self.names[7])]

    def dump(self) -> dict[bytes, tuple[bytes, bool]]:
        """Returns all that is stored, to be compared: key -> (content, whether it has a TTL).

        The repeated tokens are left out: a repeat notes them, and changes nothing else.
        """
        found, key = dump(self.client), self.names[2]
        if key in found:
            fields: Any = self.client.hgetall(key)
            fields.pop(b"repeated", None)
            found[key] = repr(sorted(fields.items())).encode(), found[key][1]
        return found

    @contextlib.contextmanager
    def unchanged(self) -> Iterator[None]:
        """Fails unless the call leaves everything that is stored as it was."""
        before = self.dump()
        yield
        assert self.dump() == before

    @contextlib.contextmanager
    def refuses(self, match: str) -> Iterator[None]:
        """Fails unless the call raises InvalidArgument with this text and writes nothing."""
        with self.unchanged(), pytest.raises(InvalidArgument, match=match):
            yield


def numbered(count: int) -> list[bytes]:
    """Returns bodies b0, b1, ..."""
    return [b"b%d" % i for i in range(count)]


def dump(client: redis.Redis) -> dict[bytes, tuple[bytes, bool]]:
    """Returns all that is stored: key -> (content, whether it has a TTL)."""
    names: list[bytes] = list(dict.fromkeys(client.scan_iter(count=1000)))
    with client.pipeline(transaction=False) as pipeline:
        for key in names:
            pipeline.dump(key)
            pipeline.pttl(key)
        replies = pipeline.execute()
    return {
        key: (content or b"", ttl != -1)
        for key, content, ttl in zip(names, replies[::2], replies[1::2], strict=True)
    }


def is_sharded(client: Any) -> bool:
    """Returns whether ends are published on sharded channels here."""
    return Dialect.of(client.info("server")) is Dialect.CLUSTER


def listeners(client: Any, channel: str) -> int:
    count = client.pubsub_shardnumsub if is_sharded(client) else client.pubsub_numsub
    return int(count(channel)[0][1])


def publish(client: Any, channel: str, text: str) -> None:
    """Publishes as a script does on this kind of server."""
    (client.spublish if is_sharded(client) else client.publish)(channel, text)


@contextlib.contextmanager
def listening(client: redis.Redis, channel: str) -> Iterator[Callable[[], list[bytes]]]:
    """Listens to a channel; the yielded call returns all that was published until then."""
    sharded = is_sharded(client)
    with contextlib.closing(client.pubsub()) as ear:
        get = getattr(ear, "get_sharded_message", ear.get_message)
        get = get if sharded else ear.get_message
        (ear.ssubscribe if sharded else ear.subscribe)(channel)
        assert (get(timeout=PATIENCE_S) or {})["type"].endswith("subscribe")

        def received() -> list[bytes]:
            publish(client, channel, "the end")
            found: list[bytes] = []
            while True:
                message = get(timeout=PATIENCE_S)
                assert message is not None
                if message["data"] == b"the end":
                    return found
                found.append(message["data"])

        yield received


# ------------------------------------------------------------------ operations


def cut(
    driver: SyncDriver,
    operation: Operation[Any],
    bodies: list[list[bytes]],
    steps: int,
    *,
    across: bool = False,
) -> bool:
    """Runs the operation's first steps, then drops it as a crash does; True if it had ended.

    `across`: scripts for several slots run; otherwise the steps are those of a cluster.
    """
    source = iter(bodies)
    reply: Any = None
    try:
        for _ in range(steps + 1):
            step = operation.send(reply)
            if isinstance(step, NextChunk):
                reply = next(source, None)
            elif isinstance(step, SingleServer) and not across:
                reply = None
            else:
                reply = driver.run(once(step))
    except StopIteration:
        return True
    operation.close()
    return False


def pop_token(driver: SyncDriver, queue: str = "req") -> Token | None:
    """Returns the most urgent token of a queue, without waiting."""
    lanes = keys.lanes(queue)
    counts = driver.run(once(Batch([Command(b"LLEN", lane) for lane in lanes])))
    lane = next((lane for lane, count in zip(lanes, counts, strict=True) if count), None)
    if lane is None:
        return None
    token = tokens.parse(driver.run(once(Command(b"RPOP", lane))))
    assert token is not None
    return token


def take_slice(driver: SyncDriver, queue: str = "req", count: int = 1000) -> Slice | None:
    """Returns a slice of the most urgent token that is not stale; dispatches what it returns."""
    while (token := pop_token(driver, queue)) is not None:
        reply, held = driver.run(lease.acquire(token, "w:1", "7", count))
        for call in follow_up(queue, (token.request_id, reply)):
            driver.run(once(call))
        if held is not None:
            return held
    return None


def next_slice(driver: SyncDriver, queue: str = "req", count: int = 1000) -> Slice:
    """Returns the next slice; fails if there is none."""
    held = take_slice(driver, queue, count)
    assert held is not None
    return held


def settle(driver: SyncDriver, held: Slice, queue: str = "req", answer: bytes = b"done ") -> bytes:
    """Settles all of a slice as done; logs an ended request. Returns the reply's word."""
    pairs: list[Any] = []
    for entry_id, (_, body) in held.entries:
        index = entry_id.rpartition(b"-")[2]
        pairs += (result_head(index, b"d", held.attempt, 0, 1500), answer + body)
    ids = [entry_id for entry_id, _ in held.entries]
    reply = driver.run(ask(lease.complete(held, ids, pairs, [], keep=False)))
    for call in follow_up(queue, (held.request_id, reply)):
        driver.run(once(call))
    return reply.word.encode()


def insert(driver: SyncDriver, queue: str, request_id: str, flat: list[Any]) -> None:
    """Dispatches the tokens that mint returned."""
    for call in tokens.insert(queue, request_id, flat):
        driver.run(once(call))


def work_off(driver: SyncDriver, queue: str = "req", count: int = 1000) -> list[bytes]:
    """Works until no token is left; returns the bodies in the order of their delivery."""
    seen = []
    while (held := take_slice(driver, queue, count)) is not None:
        seen += [body for _, (_, body) in held.entries]
        settle(driver, held, queue)
    return seen
