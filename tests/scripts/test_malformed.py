"""Malformed arguments: each script refuses them by their code, and writes nothing before."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from fairlane.protocol import keys
from tests.support.requests import HOUR, POLICY, T0, Lane, toks, with_policy

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.requests import Held

RUNNING, NEW, ENDED = "r1", "r2", "r3"
ACTIVE, DELAYED, STATS = keys.active("req"), keys.delayed("req"), keys.stats("req")
WORKERS, RECORD, TAKEN = keys.workers("req"), keys.worker("req", "w:1"), keys.taken("req", "w:1")
BOUND = CONF, LOADS = keys.bound("req")
LANES = keys.lanes("req")
ENDING = [RUNNING, "done", 7, 3, 2, 1, 0, 9, 5, "why", HOUR]
FIRST = f"{T0}-0"  # the entry of the first sub-request
VERDICT = [FIRST, "retry", "0", "0:x:1:0:0", "why"]
LIMITS = ["", "many", 0, -1, 10_001, 1.5, "nan"]
PRIORITIES = ["", "high", -1, 100, 0.5, "nan"]
SHARDS = ["a", "1;2", "-1", "1, 2", ","]


@dataclass(frozen=True)
class Call:
    """A call that a script accepts: its keys, and its arguments by name."""

    names: tuple[bytes, ...]
    given: dict[str, Any]


def three_requests(lane: Lane) -> Held:
    """One runs with a lease and a dead sub-request, one is not there yet, one ended with a dead."""
    ended = Lane(lane.driver, lane.client, request_id=ENDED)
    held = ended.take(ended.start(1)[0])
    ended.complete(held, others=[(held.ids[0], "dead", 0)])
    held = lane.take(lane.start(20, limit=1, open_ms=HOUR)[0], count=1)
    (token,) = toks(lane.complete(held, others=[(held.ids[0], "dead", 0)])[2])
    lane.client.zadd(ACTIVE, {RUNNING: 1})
    lane.client.zadd(DELAYED, {"3|r1#0.1": 1})
    return lane.take(token, count=2)


def accepted(lane: Lane, held: Held) -> dict[str, Call]:
    """Each script with arguments that it accepts."""
    running, new, ended = (keys.request_keys(name) for name in (RUNNING, NEW, ENDED))
    proof = {"k": held.k, "fence": held.fence, "op": held.op}
    born = {"born": lane.number("born"), "chain": lane.hash()["chain"], "before": "none"}
    creation = {"queue": "req", "digest": "d1", "intent": lane.now, "open_ms": 0, "parent": ""}
    creation |= dict.fromkeys(POLICY, 1) | {"shards": "", "over": 0, "bodies": [b"a"]}
    page = {"after": "", "count": 1}
    beat = {"id": "w:1", "started": 7, "ttl": HOUR}
    return {
        "abandon": Call(new, {"seen": 1, "ttl": HOUR}),
        "acquire": Call(running, _shown(held, lane.new_op())),
        "add_stats": Call((STATS,), {"numbers": ["5:ran:count", 1]}),
        "admit": Call((*BOUND, ACTIVE), {"id": RUNNING, "chunk": 1, "count": 1, "pause": 1}),
        "append": Call(running, _next_chunk(lane)),
        "change_shards": Call(running, {"shards": "1,2"}),
        "claim_dead": Call(
            ended, {"id": NEW, "choice": "c0ffee", "expected": 0, "ids": lane.dead_ids()}
        ),
        "complete": Call(running, proof | {"keep": "0", "done": 0, "verdicts": []}),
        "discard": Call(running, born | {"reason": "why", "seen": 0, "ttl": HOUR}),
        "drop_active": Call(
            (ACTIVE, keys.completed("req"), *BOUND),
            {"id": RUNNING, "seen": 1, "gone": "1", "most": 10},
        ),
        "drop_dead": Call(ended, {"id": "", "keep": 0, "ids": ["1-1"]}),
        "enqueue": Call(new, creation),
        "expire_leftovers": Call(running, {"ttl": HOUR}),
        "expire_workers": Call((WORKERS,), {"ttl": HOUR}),
        "glance": Call(running, {"queue": "req", "grace": ""}),
        "heartbeat": Call(
            (WORKERS, RECORD, ACTIVE, DELAYED, CONF, TAKEN),
            beat | {"lock_ms": 5, "holds": "", "taken_ttl": HOUR, "died": ""},
        ),
        "intend": Call((ACTIVE, CONF), {"ids": [NEW], "grace": 5, "above": 0}),
        "list_dead": Call(running, page),
        "promote": Call((DELAYED, *LANES), {"most": 10}),
        "push": Call((b"{t}:list",), {"ttl": HOUR, "words": ["a"]}),
        "register_worker": Call(
            (WORKERS, RECORD, CONF), beat | {"late": 5, "host": "box", "pid": 42}
        ),
        "report_backlog": Call((ACTIVE, *BOUND), {"rows": [RUNNING, 1, 2, 3]}),
        "requeue_dead": Call(running, {"op": "a" * 32, "ids": ["1-1"]}),
        "reschedule_active": Call((ACTIVE,), {"rows": [RUNNING, 1, 2]}),
        "restore_active": Call((ACTIVE,), {"id": NEW, "due": 7}),
        "retire": Call(
            (ACTIVE, keys.logged("req"), keys.completed("req"), *BOUND),
            {"longer": 1, "most": 10, "endings": ENDING},
        ),
        "seal": Call(running, {"chunks": 1, "chain": lane.hash()["chain"]}),
        "set_limit": Call(running, {"limit": 2}),
        "set_max_waiting": Call(BOUND, {"most": 10}),
        "set_priority": Call(running, {"priority": 7}),
        "set_shards": Call((CONF,), {"shards": "1,2", "since": ""}),
    }


def _shown(held: Held, op: str) -> dict[str, Any]:
    """The arguments of acquire with a token that is stale."""
    worker = {"worker": "w:1", "started": "7", "shared": ""}
    return worker | {"k": held.k, "g": held.g, "op": op, "count": 1}


def _next_chunk(lane: Lane) -> dict[str, Any]:
    chain = {"chain": "c2", "before": lane.hash()["chain"]}
    return chain | {"chunk": 2, "open_ms": HOUR, "bodies": [b"a"]}


def each(name: str, *values: Any) -> list[dict[str, Any]]:
    """One argument with several values."""
    return [{name: value} for value in values]


MALFORMED: list[tuple[str, str, list[dict[str, Any]]]] = [
    ("abandon", "BADARGUMENT", [{"seen": "x"}, {"ttl": "x"}]),
    ("acquire", "BADCOUNT", each("count", "0", "-1", "1001", "many", "")),
    ("add_stats", "BADARGUMENT", each("numbers", [], ["f"], ["f", 1, "g", "x"])),
    ("add_stats", "BADARGUMENT", each("numbers", ["f", -1], ["f", 1.5], ["f", 1] * 2001)),
    ("admit", "BADARGUMENT", [{"chunk": "x"}, {"count": ""}, {"pause": "x"}]),
    ("append", "BADARGUMENT", [{"chunk": "two"}, {"open_ms": "long"}]),
    ("append", "BADCHUNK", [{"chunk": 3}, {"bodies": [b""] * 1001}]),
    ("change_shards", "BADSHARDS", each("shards", *SHARDS)),
    ("claim_dead", "claim_dead wants", [{"choice": "not hex"}, {"choice": ""}, {"id": ""}]),
    ("claim_dead", "claim_dead wants", [{"expected": ""}]),
    ("claim_dead", "dead entries", each("ids", ["x"], ["1-1"] * 1001)),
    ("complete", "BADVERDICT", each("done", "x", -1, 1001, 1)),
    ("complete", "BADVERDICT", [{"done": 2, "verdicts": ["x"]}]),
    ("complete", "BADVERDICT", [{"done": 1001, "verdicts": ["x"] * 3003}]),
    ("complete", "BADVERDICT", each("verdicts", VERDICT[:4], [FIRST, "bogus", *VERDICT[2:]])),
    ("complete", "BADVERDICT", each("verdicts", [FIRST, "retry", "soon", *VERDICT[3:]])),
    ("discard", "born", [{"born": "x"}]),
    ("discard", "seen", [{"seen": "x"}]),
    ("discard", "ttl", [{"ttl": "x"}]),
    ("drop_active", "BADARGUMENT", [{"most": "x"}]),
    ("drop_dead", "drop_dead wants", [{"keep": ""}, {"keep": -1, "id": NEW}, {"keep": 1}]),
    ("drop_dead", "dead entries", each("ids", ["x"], ["1-1"] * 1001)),
    ("enqueue", "BADPRIORITY", each("priority", *PRIORITIES)),
    ("enqueue", "BADLIMIT", each("limit", *LIMITS)),
    ("enqueue", "BADARGUMENT", [{name: "soon"} for name in ("open_ms", *POLICY[2:])]),
    ("enqueue", "BADARGUMENT", each("policy", "3:5:", ":".join("3" * 9), ":".join("3" * 11))),
    ("enqueue", "intent and over", [{"intent": "x"}, {"over": "x"}]),
    ("enqueue", "BADSHARDS", each("shards", *SHARDS)),
    ("enqueue", "BADCHUNK", each("bodies", [b""] * 1001)),
    ("expire_leftovers", "BADARGUMENT", each("ttl", "long", 0, -1)),
    ("expire_workers", "BADARGUMENT", each("ttl", "x")),
    ("glance", "BADARGUMENT", each("grace", "soon", "1s")),
    ("heartbeat", "BADARGUMENT", [{"ttl": "x"}, {"lock_ms": "x"}, {"taken_ttl": ""}]),
    ("intend", "BADARGUMENT", [{"grace": "long"}, {"above": "high"}]),
    ("intend", "BADARGUMENT", each("ids", [], [f"r{i}" for i in range(401)])),
    ("list_dead", "dead entr", each("count", 0, 1001, "")),
    ("list_dead", "dead entr", each("after", "x", "-", "1")),
    ("promote", "BADBATCH", each("most", 0, -1, 1001, "many")),
    ("push", "BADARGUMENT", [*each("ttl", "", -1, "soon"), *each("words", [], ["a"] * 1001)]),
    ("register_worker", "BADARGUMENT", [{"ttl": "x"}, {"late": "x"}]),
    ("report_backlog", "BADARGUMENT", each("rows", ["r1", 1, 2], ["r1", 1, 2, "x"])),
    ("report_backlog", "BADARGUMENT", each("rows", ["r1", 1, 2, 3] * 251)),
    ("requeue_dead", "an op of hex digits", [{"op": "x.*"}]),
    ("reschedule_active", "BADARGUMENT", each("rows", [RUNNING, 1, 2, "r2", 1, "x"])),
    ("reschedule_active", "BADARGUMENT", each("rows", [RUNNING, 1], [RUNNING, 1, 2, "r2"])),
    ("reschedule_active", "BADARGUMENT", each("rows", ["r2", 1, 2] * 301)),
    ("restore_active", "BADARGUMENT", each("due", "", "soon")),
    ("retire", "BADARGUMENT", [{"longer": "x"}, {"most": "x"}]),
    ("retire", "BADARGUMENT", each("endings", [], ENDING + ENDING[:10], ENDING * 81)),
    ("retire", "BADARGUMENT", each("endings", [*ENDING, *ENDING[:10], "x"])),
    ("seal", "BADARGUMENT", [{"chunks": "many"}]),
    ("set_limit", "BADLIMIT a whole number from 1 to 10000", each("limit", *LIMITS)),
    ("set_max_waiting", "BADARGUMENT", each("most", -1, 1.5, "x")),
    ("set_priority", "BADPRIORITY a whole number from 0 to 99", each("priority", *PRIORITIES)),
    ("set_shards", "BADSHARDS", each("shards", *SHARDS)),
]  # fmt: skip
ROWS = [(script, code, wrong) for script, code, several in MALFORMED for wrong in several]


def called(lane: Lane, script: str, **wrong: Any) -> Callable[[], Any]:
    """The call of a script on the three requests, with these arguments changed."""
    call = accepted(lane, three_requests(lane))[script]
    given = call.given | wrong
    if script == "enqueue" and "policy" not in wrong:
        given = with_policy(given)
    elif script == "enqueue":
        given = {name: value for name, value in given.items() if name not in POLICY}
    return lambda: lane.call(script, call.names, **given)


@pytest.mark.parametrize("script", dict.fromkeys(script for script, _, _ in ROWS))
def test_a_script_accepts_the_arguments_that_are_made_malformed_below(lane: Lane, script: str):
    called(lane, script)()
    lane.client.flushall()


@pytest.mark.parametrize(("script", "code", "wrong"), ROWS, ids=lambda part: f"{part}"[:50])
def test_a_malformed_argument_is_refused_and_nothing_is_written(
    lane: Lane, script: str, code: str, wrong: dict[str, Any]
):
    call = called(lane, script, **wrong)
    with lane.refuses(code):
        call()
    lane.client.flushall()
