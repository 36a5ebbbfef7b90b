"""A small queue on a real Redis as a value, which is saved, restored, and read in canonical form.

Generators can't be copied and a server can't be branched. So what Redis holds at one moment is a
`Stand`: the dump and the content of every key. The server is moved from one stand to the next by
restoring the keys that differ; a step runs, the keys it may have written are read and put back.
Interleavings repeat the same step on the same stand again and again: each is run once.
"""

from __future__ import annotations

import gc
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import hiredis

from fairlane.protocol.keys import part_and_id, request_keys, unique_ids
from fairlane.protocol.lua import Dialect
from fairlane.protocol.steps import Call, Command
from tests.explore.machinery.names import Namer, Template, scored

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tests.explore.machinery.protocol import Protocol

_DAY_MS = 86_400_000
# KEYS that a step may have written, ARGV: dump and "1" if it has a TTL. Returns changes: index,
# dump, TTL, and what the key holds; then all is as before.
_TAKE = """
local function read(key)
  local kind = redis.call("TYPE", key)["ok"]
  if kind == "hash" then
    return redis.call("HGETALL", key)
  elseif kind == "string" then
    return redis.call("GET", key)
  elseif kind == "list" then
    return redis.call("LRANGE", key, 0, -1)
  elseif kind == "zset" then
    return redis.call("ZRANGE", key, 0, -1, "WITHSCORES")
  elseif kind == "set" then
    local members = redis.call("SMEMBERS", key)
    table.sort(members)
    return members
  elseif kind == "stream" then
    local groups, pending = redis.call("XINFO", "GROUPS", key), {}
    if groups[1] then
      pending = redis.call("XPENDING", key, groups[1][2], "-", "+", 100)
    end
    return {redis.call("XRANGE", key, "-", "+"), pending, groups}
  end
  return ""
end

local changed = {}
for i, key in ipairs(KEYS) do
  local dump = redis.call("DUMP", key) or ""
  local ttl = redis.call("PTTL", key) > 0 and "1" or ""
  if dump ~= ARGV[2 * i - 1] or ttl ~= ARGV[2 * i] then
    changed[#changed + 1] = {i, dump, ttl, read(key)}
    redis.call("DEL", key)
    if ARGV[2 * i - 1] ~= "" then
      redis.call("RESTORE", key, ARGV[2 * i] == "1" and 86400000 or 0, ARGV[2 * i - 1])
    end
  end
end
return changed
"""
_READS = {
    *("GET", "HGET", "HMGET", "HGETALL", "ZSCORE", "ZCARD", "ZRANGE", "XRANGE", "XLEN"),
    *("LPOS", "LRANGE", "LLEN", "EXISTS", "PING", "ZSCAN", "glance", "due_schedules"),
}


@dataclass(frozen=True)
class Refused:
    """A script's or command's error, as a reply."""

    text: str


class Kept(NamedTuple):
    """One key at one moment."""

    dump: bytes
    ttl: bytes  # "1" if it has one
    said: Any  # its content, as facts are read from it
    template: Template


class Move(NamedTuple):
    """What a step led to."""

    reply: Any
    stand: Stand
    wrong: tuple[str, ...]


class Stand:
    """What Redis holds at one moment; never changed, but it caches the steps from it."""

    __slots__ = ("checked", "facts", "kept", "moves", "names", "template", "wrong")

    def __init__(self, kept: tuple[Kept, ...], template: Template, facts: Any) -> None:
        self.kept, self.template, self.facts = kept, template, facts
        self.names = frozenset(template.names)
        self.moves: dict[tuple[Doing, int], Move] = {}
        self.checked: dict[int, tuple[str, ...]] = {}
        self.wrong: tuple[str, ...] = ()


class Doing:
    """A step as it is sent to the server; equal steps are one object."""

    __slots__ = (
        *(
            "clock_at",
            "grows",
            "is_once",
            "is_timed",
            "name",
            "pops",
            "reads",
            "script",
            "template",
        ),
        *("touched", "words"),
    )

    def __init__(
        self, name: str, words: tuple[Any, ...], touched: tuple[int, ...], template: Template
    ) -> None:
        self.name, self.words, self.touched, self.template = name, words, touched, template
        self.reads = name in _READS
        # How many tokens a blocking pop takes; 0 = it is none.
        self.pops = {"BRPOP": 1, "BLMPOP": words[-1]}.get(name, 0)
        self.clock_at = 0  # where the moment stands, if the step asks for it
        self.is_timed = False
        self.script = self.grows = self.is_once = False

    def key(self, now: int) -> tuple[Doing, int]:
        """Names the moment only if the result of the step depends on it."""
        return (self, now if self.is_timed else 0)

    def packed(self, now: int) -> bytes:
        """Packs the step as it is sent; the model's clock replaces the server's."""
        words = self.words
        if self.is_timed:
            words = (*words[: self.clock_at], now, *words[self.clock_at + 1 :])
        packed: bytes = hiredis.pack_command(words)
        return packed


def keys_of(step: Call[Any]) -> list[bytes]:
    """Returns the keys that a script may touch: with a request's hash all keys of the request.

    A script for one server declares the hash, and derives the others.
    """
    touched = [*step.keys]
    for key in step.keys:
        part, request_id = part_and_id(key) or ("", "")
        if part == "req":
            every = (*request_keys(request_id), unique_ids(request_id))
            touched += [other for other in every if other not in step.keys]
    return touched


class World:
    """The server, with the scripts of one protocol."""

    def __init__(self, path: str, protocol: Protocol, patience_s: float | None = None) -> None:
        self.protocol, self.namer = protocol, Namer()
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(patience_s)
        self._socket.connect(path)
        self._parser = hiredis.Reader()
        self.trips = 0
        self._keys = list(protocol.keys.values())
        self._index = {key: i for i, key in enumerate(self._keys)}
        self._sha: dict[str, bytes] = {}
        self._take = self.one("SCRIPT", "LOAD", _TAKE)
        self._stands: dict[tuple[int, ...], Stand] = {}
        self._doings: dict[Any, Doing] = {}
        self._empty()

    def close(self) -> None:
        """Empties the server."""
        self.one("FLUSHALL")
        self._socket.close()

    def forget(self) -> None:
        """Frees what was remembered for one system."""
        self._stands.clear()
        self._doings.clear()
        gc.collect()  # stands and moves point at each other
        self.namer = Namer()
        self._empty()

    def _empty(self) -> None:
        self.one("FLUSHALL")
        self._kept: list[dict[str, Kept]] = [{} for _ in self._keys]
        self._nothing = [self._keep(i, b"", b"", b"") for i in range(len(self._keys))]
        self._base = list(self._nothing)
        self.empty = self._stand(self._nothing)

    def has(self, key: Any) -> bool:
        return key in self._index

    def stands(self) -> Iterable[Stand]:
        """All stands that were met since the last forget."""
        return self._stands.values()

    # The wire.

    def one(self, *words: Any) -> Any:
        (reply,) = self._ask([hiredis.pack_command(words)], 1)
        if isinstance(reply, Exception):
            raise reply
        return reply

    def _ask(self, packed: list[bytes], count: int) -> list[Any]:
        self._socket.sendall(b"".join(packed))
        replies: list[Any] = []
        parser, receive = self._parser, self._socket.recv
        while len(replies) < count:
            reply = parser.gets()
            if reply is False:
                data = receive(1 << 20)
                if not data:
                    raise ConnectionError("the server has gone away")
                parser.feed(data)
            else:
                replies.append(reply)
        return replies

    # Steps.

    def doing(self, step: Command | Call[Any]) -> Doing:
        """Prepares a step once."""
        if isinstance(step, Command):
            key: Any = step.args
        else:
            key = (step.script.name, *step.keys, *step.args)
        found = self._doings.get(key)
        if found is None:
            found = self._doings[key] = self._made(step)
        return found

    def _made(self, step: Command | Call[Any]) -> Doing:
        if isinstance(step, Command):
            word = step.args[0]
            name = word.decode() if isinstance(word, bytes) else str(word)
            template = self.namer.template(repr(step.args[:3]))
            return Doing(name, step.args, self._touched(step.args), template)
        script = step.script
        sha = self._sha.get(script.name)
        if sha is None:
            source = self.protocol.instrumented(script.source(Dialect.SINGLE))
            sha = self._sha[script.name] = self.one("SCRIPT", "LOAD", source)
        words = ("EVALSHA", sha, len(step.keys), *step.keys, *step.args)
        template = self.namer.template(repr((script.name, step.keys[-1], scored(step))))
        # What an exchange touches depends on the tokens it pops.
        declared = self.protocol.declares and script.name != "exchange"
        touched = self._touched(keys_of(step)) if declared else tuple(range(len(self._keys)))
        made = Doing(script.name, words, touched, template)
        made.script, made.grows = True, script.flag == "grows"
        made.is_once = script.is_once
        made.is_timed = "now" in script.params
        if made.is_timed:
            made.clock_at = 3 + len(step.keys) + script.params.index("now")
        return made

    def _touched(self, words: Sequence[Any]) -> tuple[int, ...]:
        for word in words:
            if word not in self._index and self.protocol.adds(word):
                self._index[word] = len(self._keys)
                self._keys.append(word)
                self._kept.append({})
                self._nothing.append(self._keep(self._index[word], b"", b"", b""))
                self._base.append(self._nothing[-1])
        return tuple(self._index[word] for word in words if word in self._index)

    def _all(self, stand: Stand) -> list[Kept]:
        """Returns what a stand holds, without the keys that were met later."""
        return [*stand.kept, *self._nothing[len(stand.kept) :]]

    def run(self, wanted: dict[Stand, tuple[set[int], set[tuple[Doing, int]]]]) -> None:
        """Runs all of these in one round trip: checks of a stand at moments, and steps from it.

        The stands cache the results.
        """
        packed: list[bytes] = []
        reads: list[tuple[int, Stand, Any]] = []  # where its reply stands, and what it is of
        count = 0
        for stand, (checks, steps) in wanted.items():
            count += self._move_to(stand, packed)
            for now in checks:
                for words in self.protocol.checks(self, now):
                    reads.append((count, stand, now))
                    packed.append(words)
                    count += 1
            for doing, now in steps:
                packed.append(doing.packed(now))
                reads.append((count, stand, (doing, now)))
                count += 1
                if not doing.reads:
                    packed.append(self._taking(stand, doing.touched))
                    count += 1
        self.trips += 1
        replies = self._ask(packed, count)
        for at, stand, what in reads:
            if isinstance(what, int):
                self._note_check(stand, what, replies[at])
            else:
                doing, now = what
                changed = () if doing.reads else replies[at + 1]
                stand.moves[doing.key(now)] = self._moved(stand, doing, replies[at], changed)

    def _note_check(self, stand: Stand, now: int, reply: Any) -> None:
        if isinstance(reply, Exception):
            raise reply
        said = tuple(sentence.decode() for sentence in reply)
        stand.checked[now] = stand.checked.get(now, ()) + said

    def _move_to(self, stand: Stand, packed: list[bytes]) -> int:
        count = 0
        for i, (have, want) in enumerate(zip(self._base, self._all(stand), strict=True)):
            if have is want:
                continue
            key = self._keys[i]
            if want.dump:
                ttl = _DAY_MS if want.ttl else 0
                words: tuple[Any, ...] = ("RESTORE", key, ttl, want.dump, "REPLACE")
            else:
                words = ("DEL", key)
            packed.append(hiredis.pack_command(words))
            self._base[i] = want
            count += 1
        return count

    def _taking(self, stand: Stand, touched: tuple[int, ...]) -> bytes:
        names = [self._keys[i] for i in touched]
        kept = self._all(stand)
        flat = [part for i in touched for part in kept[i][:2]]
        packed: bytes = hiredis.pack_command(("EVALSHA", self._take, len(touched), *names, *flat))
        return packed

    def _moved(self, stand: Stand, doing: Doing, reply: Any, changed: Any) -> Move:
        if isinstance(changed, Exception):
            raise changed
        after = stand
        if changed:
            kept = self._all(stand)
            for at, dump, ttl, raw in changed:
                i = doing.touched[at - 1]
                kept[i] = self._keep(i, dump, ttl, raw)
            after = self._stand(kept)
        wrong = () if after is stand else self.protocol.wrong_move(stand.facts, after.facts)
        if isinstance(reply, Exception):
            return Move(Refused(str(reply)), after, (*wrong, *self.protocol.refused(str(reply))))
        return Move(frozen(reply), after, wrong)

    def _keep(self, i: int, dump: bytes, ttl: bytes, raw: Any) -> Kept:
        said, canonical = self.protocol.read(i, raw) if dump else (None, "")
        text = repr((said, ttl))
        found = self._kept[i].get(text)
        if found is None:
            template = self.namer.template(f"{canonical}{ttl!r}")
            found = self._kept[i][text] = Kept(dump, ttl, said, template)
        return found

    def _stand(self, all_kept: Sequence[Kept]) -> Stand:
        count = len(all_kept)
        while count and all_kept[count - 1] is self._nothing[count - 1]:
            count -= 1
        kept = tuple(all_kept[:count])
        identity = tuple(map(id, kept))
        found = self._stands.get(identity)
        if found is None:
            template = self.namer.joined([one.template for one in kept])
            facts = self.protocol.facts([one.said for one in all_kept])
            found = self._stands[identity] = Stand(kept, template, facts)
            found.wrong = self.protocol.wrong_stand(facts)
        return found


def frozen(reply: Any) -> Any:
    """Returns a reply that can be cached."""
    return tuple(map(frozen, reply)) if isinstance(reply, list) else reply
