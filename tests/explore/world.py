"""One small queue on a real Redis, as a value: saved, restored, and read in canonical form.

Generators can't be copied and a server can't be branched, so a state of the system is the dump of
its keys beside what every actor has been told so far. `visit` puts a dump back, runs one step and
reads what came of it, all in one round trip.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fairlane import keys, scripts
from fairlane.steps import Call, Command

if TYPE_CHECKING:
    from pathlib import Path

    import redis

QUEUE, REQUEST = "req", "r"
LANE = 5
FIRST_SEQ = 7_000_000  # so that a fence is told from every other number by its looks
T0 = 1_700_000_000_000
KEYS = (
    *keys.request_keys(REQUEST),
    *(keys.active(QUEUE), keys.logged(QUEUE), keys.delayed(QUEUE), keys.completed(QUEUE)),
    keys.lanes(QUEUE)[LANE],
)
_STORE = """
for i, key in ipairs(KEYS) do
  redis.call("DEL", key)
  if ARGV[2 * i - 1] ~= "" then
    redis.call("RESTORE", key, ARGV[2 * i], ARGV[2 * i - 1])
  end
end
return 1
"""
_READ = """
local saved, seen = {}, {}
for i, key in ipairs(KEYS) do
  local kind = redis.call("TYPE", key)["ok"]
  if kind == "none" then
    saved[i] = {"", 0}
    seen[i] = ""
  else
    saved[i] = {redis.call("DUMP", key), math.max(0, redis.call("PTTL", key))}
    if kind == "hash" then
      seen[i] = redis.call("HGETALL", key)
    elseif kind == "string" then
      seen[i] = redis.call("GET", key)
    elseif kind == "list" then
      seen[i] = redis.call("LRANGE", key, 0, -1)
    elseif kind == "zset" then
      seen[i] = redis.call("ZRANGE", key, 0, -1, "WITHSCORES")
    else
      seen[i] = {redis.call("XRANGE", key, "-", "+")}
      if i == 1 then
        local pending = redis.call("XPENDING", key, key, "-", "+", 100)
        for j, entry in ipairs(pending) do
          pending[j] = {entry[1], entry[2], entry[4]}
        end
        seen[i][2] = pending
      end
    end
  end
end
return {saved, seen}
"""
# Written once and never read by a decision, or the same in every state.
_DULL = {b"seq", b"last_ms", b"total", b"max_body", b"born", b"queue", b"priority", b"digest"}


@dataclass(frozen=True, slots=True)
class Saved:
    """Redis at one moment: dumps to restore, the canonical reading, what `check` complained of."""

    dumps: tuple[tuple[bytes, int], ...]
    seen: Any
    broken: tuple[bytes, ...] = ()


class World:
    """The server, with the scripts of one folder; numbering begins at FIRST_SEQ."""

    def __init__(self, client: redis.Redis, root: Path | None = None) -> None:
        self.client = client
        self.library = scripts.Library(root or scripts.library().root)
        self._store = client.script_load(_STORE)
        self._read = client.script_load(_READ)
        self._sha: dict[str, str] = {}
        self._modern = client.info("server")["redis_version"] >= "7"
        self.empty = Saved(tuple((b"", 0) for _ in KEYS), None)
        self.trips = 0

    def sha(self, name: str) -> str:
        """The script, loaded with its first number moved."""
        if name not in self._sha:
            source = getattr(self.library, name).source(modern=self._modern)
            text = source.replace(b"seq = 0,", b"seq = %d," % FIRST_SEQ)
            self._sha[name] = self.client.script_load(text)
        return self._sha[name]

    def visit(self, saved: Saved, step: Command | Call, now: int) -> tuple[Any, Saved]:
        """From `saved`, `step` runs at the moment `now`: (its reply, Redis afterwards)."""
        self.trips += 1
        pipe = self.client.pipeline(transaction=False)
        flat = [part for dump in saved.dumps for part in dump]
        pipe.evalsha(self._store, len(KEYS), *KEYS, *flat)
        pipe.execute_command(*self.words(step, now))
        pipe.evalsha(self._read, len(KEYS), *KEYS)
        names = keys.request_keys(REQUEST)
        pipe.evalsha(self.sha("check"), len(names), *names, now)
        stored, reply, read, broken = pipe.execute(raise_on_error=False)
        for answer in (stored, read, broken):
            if isinstance(answer, Exception):
                raise answer
        if isinstance(reply, Exception):
            raise reply
        dumps = tuple((dump, ttl) for dump, ttl in read[0])
        return reply, Saved(dumps, canonical(read[1], dumps), tuple(broken))

    def words(self, step: Command | Call, now: int) -> tuple[Any, ...]:
        """A step as a command; the model's clock stands in for the server's."""
        if isinstance(step, Command):
            return step.args
        args = list(step.args)
        if "now" in step.script.params:
            args[step.script.params.index("now")] = now
        return ("EVALSHA", self.sha(step.script.name), len(step.keys), *step.keys, *args)


def canonical(seen: list[Any], dumps: tuple[tuple[bytes, int], ...]) -> Any:
    """What decisions depend on; when a sub-request was delivered and how results look is not."""
    stream, counter, request, permits, leases, retries, results, dead, *dispatch, lane = seen
    state = _pairs(request)
    entries, pending = stream or ([], [])
    return (
        [entry_id.split(b"-")[1] for entry_id, _ in entries],
        [(entry_id.split(b"-")[1], *rest) for entry_id, *rest in pending],
        counter,
        sorted(_score(item) for item in state.items() if item[0] not in _DULL),
        sorted(_pairs(permits).items()),
        leases,
        [part.split(b"-")[-1] if i % 2 == 0 else part for i, part in enumerate(retries)],
        sorted(_outcomes(results)),
        len(dead[0]) if dead else 0,
        [dispatch[0][0], f"S{int(dispatch[0][1])}"] if dispatch[0] else [],
        len(dispatch[1]) // 2,
        dispatch[2],
        len(dispatch[3][0]) if dispatch[3] else 0,
        lane,
        tuple(ttl > 0 for _, ttl in dumps),
    )


def _score(item: tuple[bytes, bytes]) -> tuple[bytes, Any]:
    return (item[0], f"S{int(item[1])}") if item[0] == b"seen" else item


def _pairs(flat: Any) -> dict[bytes, bytes]:
    return dict(zip(flat[::2], flat[1::2], strict=True)) if flat else {}


def _outcomes(results: Any) -> list[bytes]:
    found = []
    for _, fields in results[0] if results else []:
        found += [head.rsplit(b":", 2)[0] for head in fields[::2] if head != b"w"]
    return found


_FENCE = re.compile(r"\b7\d{6}\b")
_OP = re.compile(r"\b[0-9a-f]{32}\b")
_TIME = re.compile(r"\b1[67]\d{11}\b")
_SCORE = re.compile(r"\bS1[67]\d{11}\b")  # a score of `active`: it is compared with others


def rename(text: str, now: int) -> str:
    """The text without what makes no difference.

    Fences, ops and scores are named by their order. A time is in the past, now, or to come: no
    decision asks more, because the clock only moves by steps longer than every delay.
    """
    fences = {name: f"F{i}" for i, name in enumerate(sorted(set(_FENCE.findall(text))))}
    ops = {name: f"O{i}" for i, name in enumerate(sorted(set(_OP.findall(text))))}
    scores = {name: f"S{i}" for i, name in enumerate(sorted(set(_SCORE.findall(text))))}
    text = _SCORE.sub(lambda match: scores[match[0]] + _when(match[0][1:], str(now)), text)
    text = _FENCE.sub(lambda match: fences[match[0]], text)
    text = _OP.sub(lambda match: ops[match[0]], text)
    here = str(now)  # as many digits as every time: text compares like numbers
    return _TIME.sub(lambda match: _when(match[0], here), text)


def _when(moment: str, here: str) -> str:
    if moment == here:
        return "now"
    return "past" if moment < here else "soon"
