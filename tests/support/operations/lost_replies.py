"""Plays scenarios with a driver that loses replies, and compares the outcomes."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from fairlane.errors import FairlaneError
from fairlane.model import Slice, Token, Verdict, result_head
from fairlane.operations import apart_keys, completion, lease, request_state, tokens, workers
from fairlane.operations.audit import Audit
from fairlane.operations.flow_hand_over import look_after_and_feed
from fairlane.operations.submit import submit
from fairlane.operations.topics import read_topic
from fairlane.options import Policy
from fairlane.protocol import keys
from fairlane.protocol.lua import Summary
from fairlane.protocol.steps import (
    Batch,
    Call,
    Command,
    Confirm,
    Nodes,
    OnNode,
    SingleServer,
    forward,
)
from fairlane.queue import Queue
from tests.support.processes.workers import broken
from tests.support.scripts.requests import dump, insert, numbered, once
from tests.support.servers import backends

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fairlane.drivers.sync import SyncDriver
    from fairlane.protocol.steps import Operation

    Scenario = Callable[[Any], None]

REPEATED = (Command, Call, Batch, SingleServer, Nodes, OnNode, Confirm)
# The most urgent first; the shards are those of `spreads`.
LANES = [lane for shard in (0, 3, 7) for lane in keys.lanes("req", shard)]
POPS = {b"BRPOP", b"RPOP", b"LMPOP"}
ON_SINGLE = pytest.mark.parametrize("redis_server", backends.one(), indirect=True)


@dataclass
class Forgetful:
    """A driver that loses replies: number `lose`, every one (0), or none (-1)."""

    driver: SyncDriver
    client: Any
    lose: int = -1
    steps: int = 0
    scripts: set[str] = field(default_factory=set)

    def run(self, operation: Operation[Any], source: Any = None, handle: Any = None) -> Any:
        return self.driver.run(self._losing(operation), source, handle)

    def do(self, step: Any) -> Any:
        return self.run(once(step))

    async def _losing(self, operation: Operation[Any]) -> Any:
        reply: Any = None
        failure: Exception | None = None
        while True:
            try:
                step = operation.send(reply) if failure is None else operation.throw(failure)
            except StopIteration as end:
                return end.value
            reply = failure = None
            try:
                reply = await (self._twice(step) if self._is_lost(step) else once_only(step))
            except Exception as error:  # noqa: BLE001  the operation decides what it means
                failure = error

    async def _twice(self, step: Any) -> Any:
        """Performs a step and loses the reply, then sends it again as a driver does."""
        with contextlib.suppress(FairlaneError):
            await forward(step)
        return await repeated(step)

    def _is_lost(self, step: Any) -> bool:
        if not isinstance(step, REPEATED):
            return False
        inner = step.step if isinstance(step, SingleServer) else getattr(step, "step", step)
        parts = step.steps if isinstance(step, Batch) else [inner]
        self.scripts |= {part.script.name for part in parts if isinstance(part, Call)}
        if self.lose == 0:  # a pop whose reply is always lost brings nothing, ever
            return not any(map(_is_pop, parts))
        self.steps += 1
        return self.steps == self.lose


async def once_only(step: Any) -> Any:
    return await forward(step)


async def repeated(step: Any) -> Any:
    """Sends a step again, without the calls that a driver sends once; their replies are None."""
    if not isinstance(step, Batch):
        return None if getattr(step, "is_once", False) else await forward(step)
    again = [one for one in step.steps if not one.is_once]
    replies = iter(await forward(Batch(again, lenient=step.lenient)) if again else ())
    return [None if one.is_once else next(replies) for one in step.steps]


@dataclass
class Twice(Forgetful):
    """A driver that sends every script again at the same time, and notes which repeats write."""

    lose: int = 0
    writes: dict[str, set[str]] = field(default_factory=dict)  # script -> the keys it changed

    async def _twice(self, step: Any) -> Any:
        step = self._at_one_time(step)
        inner = step.step if isinstance(step, SingleServer) else step
        with contextlib.suppress(FairlaneError):
            await forward(step)
        if isinstance(inner, Call):
            return await self._again(inner)
        if not isinstance(inner, Batch):
            return await forward(step)
        replies: list[Any] = []
        for one in inner.steps:
            try:
                replies.append(await self._again(one))
            except FairlaneError as error:
                if not inner.lenient:
                    raise
                replies.append(error)
        return replies

    async def _again(self, step: Any) -> Any:
        """Sends a step again, and notes what that changed."""
        if not isinstance(step, Call):
            return await forward(step)
        if step.is_once:
            return None
        before = self._stored()
        reply = await forward(step)
        self._note(step.script.name.rpartition("/")[2], before)
        return reply

    def _at_one_time(self, step: Any) -> Any:
        """Returns a step whose scripts all have the present time, so that a repeat has it, too."""
        if isinstance(step, SingleServer):
            return SingleServer(self._at_one_time(step.step))
        if isinstance(step, Confirm):
            return Confirm(self._at_one_time(step.step), step.replicas)
        if isinstance(step, Batch):
            return Batch([self._at_one_time(one) for one in step.steps], lenient=step.lenient)
        if not isinstance(step, Call) or "now" not in step.script.params:
            return step
        seconds, us = self.client.time()
        args, at = list(step.args), step.script.params.index("now")
        args[at] = str(seconds * 1000 + us // 1000)
        return Call(step.script, step.keys, args, step.read)

    def _stored(self) -> dict[bytes, Any]:
        """Returns all that is stored, without the notes of repeats."""
        found: dict[bytes, Any] = dict(dump(self.client))
        for key, fields in self._hashes(list(found)):
            fields.pop(b"repeated", None)
            found[key] = fields, found[key][1]
        return found

    def _hashes(self, names: list[bytes]) -> Iterator[tuple[bytes, dict[bytes, bytes]]]:
        with self.client.pipeline(transaction=False) as pipeline:
            for key in names:
                pipeline.type(key)
            hashes = [
                key for key, kind in zip(names, pipeline.execute(), strict=True) if kind == b"hash"
            ]
            for key in hashes:
                pipeline.hgetall(key)
            yield from zip(hashes, pipeline.execute(), strict=True)

    def _note(self, name: str, before: dict[bytes, Any]) -> None:
        after = self._stored()
        for key in before.keys() | after.keys():
            is_kept = key in after or not before[key][1]  # else it may have expired
            if is_kept and before.get(key) != after.get(key):
                self.writes.setdefault(name, set()).add(key.decode())


def _is_pop(step: Any) -> bool:
    if isinstance(step, Call):
        return bool(step.script.name.endswith("take_turns"))
    return isinstance(step, Command) and step.args[0] in POPS


def put(driver: Any, bodies: int = 4, name: str = "r1", **options: Any) -> None:
    given: dict[str, Any] = {"limit": 2, "attempts": 2, "backoff_ms": (0, 0), "lease_ms": 60_000}
    driver.run(submit(name, Policy(**(given | options))), iter([numbered(bodies)]))


def pop(driver: Any) -> Token | None:
    """Returns the most urgent token, if there is one and its reply was not lost."""
    filled = [key for key in driver.client.scan_iter(count=1000) if key in LANES]
    lane = min(filled, key=LANES.index, default=None)
    raw = driver.do(Command(b"RPOP", lane)) if lane else None
    if lane and raw == tokens.PLACEHOLDER:
        (raw,) = driver.run(tokens.take_turns("req", lane, [raw])) or [None]
    return tokens.parse(raw) if raw else None


def slice_of_a_token(driver: Any, count: int) -> Slice | None:
    """Returns a slice, if there is a token that is valid for one."""
    while (token := pop(driver)) is not None:
        held: Slice | None
        op = lease.new_op()
        if token.is_apart and not any(driver.do(_taking(token, op))):
            continue
        reply, held = driver.run(lease.acquire(token, "w:1", "7", count, op=op))
        insert(driver, "req", token.request_id, reply.tokens if reply.has_tokens else [])
        if token.is_apart and held is None:
            insert(driver, "req", *apart_keys.given_back(token, op))
        if held is not None:
            return held
    return None


def _taking(token: Token, op: bytes) -> Call[list[int]]:
    (call,) = apart_keys.take("req", keys.lanes("req")[5], [(token, op)])
    return call


def take(driver: Any, count: int = 1) -> Slice:
    """Returns a slice, even if tokens are lost before."""
    for _ in range(10):
        held = slice_of_a_token(driver, count)
        if held is not None:
            return held
        heal(driver)
    raise AssertionError("no slice to be had")


def settle(
    driver: Any,
    held: Slice,
    *,
    verdict: str = "",
    keep: bool = False,
    chosen: tuple[bytes, bytes] | None = None,
) -> bytes:
    """Settles all of a slice as done, or with a verdict; dispatches the tokens that return.

    `chosen` is the status and the bytes of results that choose something.
    """
    ids = [entry_id for entry_id, _ in held.entries]
    status, result = chosen or (b"d", b"result")
    heads = [result_head(one.rpartition(b"-")[2], status, held.attempt, 0, 0) for one in ids]
    pairs: list[Any] = [part for head in heads for part in (head, result)]
    if verdict:
        verdicts = [
            Verdict(one, verdict, 0, result_head(one.rpartition(b"-")[2], b"x", 1, 0, 0), "why")
            for one in ids
        ]
        call = lease.complete(held, [], [], verdicts, keep=keep)
    else:
        call = lease.complete(held, ids, pairs, [], keep=keep)
    reply = driver.do(call)
    if reply[0] == b"ended":
        driver.do(tokens.retire("req", held.request_id, reply[1]))
        insert(driver, "req", held.request_id, [*Summary(*reply[1]).given])
    elif reply[0] in {b"ok", b"already"}:
        insert(driver, "req", held.request_id, reply[-1])
    return bytes(reply[0])


def heal(driver: Any) -> None:
    """Runs what maintenance does sooner or later."""
    for name, score in driver.client.zrange(keys.active("req"), 0, -1, withscores=True):
        due = 1 + score % 1  # a fraction marks that it was seen to exist
        driver.client.zadd(keys.active("req"), {name: due})
    driver.run(look_after_and_feed("req"))
    driver.run(workers.promote("req"))
    driver.run(Audit("req").run(-1))


def work_on(driver: Any) -> None:
    """Works until every request has ended."""
    for _ in range(20):
        while (held := slice_of_a_token(driver, 1000)) is not None:
            settle(driver, held)
        if not driver.client.zcard(keys.active("req")):
            return
        heal(driver)
    raise AssertionError("it does not end")


def expire(driver: Any, held: Slice) -> None:
    driver.client.zadd(keys.leases(held.request_id), {held.k: 1})


def lose_tokens(driver: Any) -> None:
    driver.client.delete(*keys.lanes("req"))


def outcome(plain: SyncDriver, client: Any) -> dict[str, Any]:
    """Returns all that a caller can see after the work; first checks that everything is whole."""
    driver: Any = Forgetful(plain, client)
    ids = [key.decode()[5:-1] for key in client.scan_iter("req:{*}")]
    for request_id in ids:
        assert broken(Queue(driver), request_id) == []
    work_on(driver)
    for request_id in ids:  # the mark of an intent that stood for nothing is no request
        if client.hget(keys.request_hash(request_id), "state") == b"abandoned":
            client.delete(keys.request_hash(request_id))
    log = driver.run(completion.read_completions("req", "0", 0))
    return {
        "requests": {
            known(name): seen
            for name in sorted(ids)
            if (seen := seen_of(driver, client, name)) is not None
        },
        "log": sorted((known(end.id), end.state, end.total, end.done, end.dead) for end in log),
        "active": client.zrange(keys.active("req"), 0, -1),
        "waiting": int(client.hget(keys.conf("req"), "waiting") or 0),
        "workers": client.zrange(keys.workers("req"), 0, -1),
        "delayed": client.zcard(keys.delayed("req")),
        "schedules": client.hgetall(keys.schedules("req")[0]),
        "ticks": client.zrange(keys.schedules("req")[1], 0, -1),
        "lists": lists_of(client),
        "topic": topic_of(client, driver),
        "kept": sorted(
            part_and_id(key)
            for key in set(client.scan_iter(count=1000))
            # buckets expire by themselves
            if not key.startswith((b"{req}:", b"rate:", b"{lists}:", b"topic:"))
        ),
    }


def lists_of(client: Any) -> dict[bytes, Any]:
    """Returns the contents of the user's lists; for ids, which are random, only their number."""
    found = {}
    for key in sorted(client.scan_iter("{lists}:*")):
        if client.type(key) == b"list":
            found[key] = client.llen(key) if b"ids" in key else client.lrange(key, 0, -1)
    found[b"done"] = client.hget("{lists}:metrics:done", "count")
    return found


def topic_of(client: Any, driver: SyncDriver) -> Any:
    """Returns the counts of the topic t and its subscribers' positions; None without a topic."""
    if not client.exists(*keys.topic("t")):
        return None
    state = driver.run(read_topic("t"))
    subscribers = [one._replace(seen_ms=0, oldest_ms=0) for one in state.subscribers]
    return state.messages, state.published, subscribers


def known(request_id: str) -> str:
    """Returns a known id, or marks it as new, because new ids depend on when a process died."""
    is_ours = request_id in {"r1", "r2", "r3"} or request_id.startswith("f.")
    return request_id if is_ours else "new"


def part_and_id(key: bytes) -> tuple[str, str]:
    """Returns which key of which request this is."""
    found = keys.part_and_id(key)
    if found is None:
        staging = keys.beside(key)
        assert staging is not None, key
        found = key.decode().partition(":")[0], staging
    return found[0], known(found[1])


def seen_of(driver: Any, client: Any, request_id: str) -> Any:
    """Returns the counts and results of one request; each result may occur once."""
    if not client.exists(keys.request_hash(request_id)):
        return None
    seen = driver.run(request_state.progress(request_id))
    pages = driver.run(completion.read_results(request_id, b"0", 0)).entries
    results = sorted((one.index, one.status) for _, found in pages for one in found)
    return (
        *(seen.state, seen.total, seen.done, seen.dead, seen.cancelled, seen.left, seen.held),
        *(seen.limit, seen.priority, results, client.xlen(keys.dead(request_id))),
    )


def play(scenario: Scenario, driver: Any, client: Any, lose: int) -> Forgetful:
    """Plays the scenario on an empty server and loses these replies."""
    client.flushall()
    forgetful = Forgetful(driver, client, lose)
    scenario(forgetful)
    return forgetful
