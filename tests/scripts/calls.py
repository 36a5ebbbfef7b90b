"""Accepted calls of every script: their keys, and their arguments by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fairlane.protocol import keys
from tests.support.scripts.requests import HOUR, POLICY, T0, Lane, toks

if TYPE_CHECKING:
    from tests.support.scripts.requests import Held

RUNNING, NEW, ENDED = "r1", "r2", "r3"
ACTIVE, DELAYED, STATS = keys.active("req"), keys.delayed("req"), keys.stats("req")
TASKS = keys.task_stats("req")
WORKERS, RECORD, TAKEN = keys.workers("req"), keys.worker("req", "w:1"), keys.taken("req", "w:1")
SCHEDULES = keys.schedules("req")
CHANGED_SCHEDULES = (*SCHEDULES, keys.firing("req"))
BOUND = CONF, LOADS = keys.bound("req")
LANES, TURNS = keys.lanes("req"), keys.turns("req")
BUCKET = keys.bucket("key/api")
RATE = {"interval": 10_000, "burst": 5, "weight": 1}
ENDING = [RUNNING, "done", 7, 3, 2, 1, 0, 9, 5, "why", HOUR, ""]
REQUEUE: dict[str, Any] = {"op": "a" * 32, "ending": "", "intent": 0, "shards": "", "holder": "b"}
REQUEUE |= {"more": "", "by": ""}
MINE = [f"{{lists}}:{name}".encode() for name in ("in", "pending", "a", "b", "ids", "1", "x1")]
TRACKED: dict[str, Any] = {"to": "all", "count": 2, "service": "1", "timeout": 1, "expire": 2}
TRACKED["rows"] = ["m", 1, "x1", "sha1"]
SERVICE = {"id": 1, "is_new": "1", "expire": 60, "capacity": 9, "host": "box", "pid": 42}
FORWARD: dict[str, Any] = {
    "owner": "o",
    "lease": 9,
    "most": 10,
    "fresh": "e",
    "epoch": "",
    "before": 0,
    "count": 0,
}
FORWARD["chain"] = ""
TOPIC = keys.topic("t")
PUBLISH = {"ttl": HOUR, "retain_ms": HOUR, "retain_count": 10, "messages": ["m"]}
SHARED = {"caller": "c", "number": 1, "how": "set", "field": "n", "value": "1", "expected": ""}
SHARED |= {"most_names": 9, "most_bytes": 99}
JOINED = {"since": "0-0", "upto": "1-1", "open_ms": HOUR, "width": 1, "before": "["}
JOINED |= {"between": ",", "after": "]"}
FIRST = f"{T0}-0"  # the entry of the first sub-request


@dataclass(frozen=True)
class Call:
    """A call that a script accepts: its keys, and its arguments by name."""

    names: tuple[bytes, ...]
    given: dict[str, Any]


def three_requests(lane: Lane) -> Held:
    """Makes three requests: one runs with a lease and a dead one, one is absent, one ended."""
    ended = Lane(lane.driver, lane.client, request_id=ENDED)
    held = ended.take(ended.start(1)[0])
    ended.complete(held, others=[(held.ids[0], "dead", 0)])
    held = lane.take(lane.start(20, limit=1, open_ms=HOUR)[0], count=1)
    (token,) = toks(lane.complete(held, others=[(held.ids[0], "dead", 0)])[2])
    lane.client.zadd(ACTIVE, {RUNNING: 1})
    lane.client.zadd(DELAYED, {"3|r1#0.1": 1})
    return lane.take(token, count=2)


def accepted(lane: Lane, held: Held) -> dict[str, Call]:
    """Returns each script with arguments that it accepts."""
    running, new, ended = (keys.request_keys(name) for name in (RUNNING, NEW, ENDED))
    proof = {"k": held.k, "fence": held.fence, "op": held.op}
    born = {"born": lane.number("born"), "chain": lane.hash()["chain"], "before": "none"}
    creation = {"queue": "req", "digest": "d1", "intent": lane.now, "open_ms": 0, "extras": ""}
    creation |= dict.fromkeys(POLICY, 1) | {"shards": "", "over": 0, "bodies": [b"a"]}
    page = {"after": "", "count": 1}
    beat = {"id": "w:1", "started": 7, "ttl": HOUR}
    return {
        "abandon": Call(new, {"seen": 1, "ttl": HOUR}),
        "acquire": Call(running, _shown(held, lane.new_op())),
        "add_stats": Call((STATS,), {"most": 0, "numbers": ["5:ran:count", 1]}),
        "add_turns": Call(TURNS, {"lane": 5, "tokens": ["r1#0.9@1:acme"]}),
        "admit": Call((*BOUND, ACTIVE), {"id": RUNNING, "chunk": 1, "count": 1, "pause": 1}),
        "answer": Call(
            (keys.orders("req", "w:1"), keys.answer("req", "a1")),
            {"order": "a1", "text": "{}", "ttl": HOUR},
        ),
        "append": Call(running, _next_chunk(lane)),
        "cancel": Call(running, {"reason": "enough"}),
        "charge_turns": Call(TURNS[1:], {"rows": [5, "1:acme", 1, 300]}),
        "change_shared": Call(running, SHARED),
        "change_shards": Call(running, {"shards": "1,2"}),
        "claim_messages": Call(tuple(MINE[:2]), {"most": 10}),
        "complete": Call(
            running, proof | {"keep": "0", "done": 1, "verdicts": [FIRST, "0:d:1:0:0", "result"]}
        ),
        "confirm": Call(running, {}),
        "delete": Call(
            (
                *ended,
                keys.unique_ids(ENDED),
                keys.owner(ENDED),
                keys.of_flow(ENDED),
                keys.fed(ENDED),
            ),
            {"ending": T0, "seen": 1, "ttl": HOUR},
        ),
        "discard": Call(running, born | {"reason": "why", "seen": 0, "ttl": HOUR}),
        "drop_active": Call(
            (ACTIVE, keys.completed("req"), *BOUND),
            {"id": RUNNING, "seen": 1, "gone": "1", "most": 10},
        ),
        "drop_dead": Call(ended, {"ids": ["1-1"]}),
        "enqueue": Call(new, creation),
        "expire_leftovers": Call(running, {"ttl": HOUR}),
        "expire_workers": Call((WORKERS,), {"ttl": HOUR}),
        "claim_ticks": Call(CHANGED_SCHEDULES, {"skip": 0, "most": 1}),
        "due_schedules": Call(SCHEDULES, {"skip": 0, "most": 1}),
        "extend": Call(running, proof | {"term": ""}),
        "fan_out": Call(tuple(MINE[1:]), TRACKED),
        "glance": Call(running, {"queue": "req", "grace": ""}),
        "hand_over": Call(
            (*running, keys.fed(RUNNING)),
            {"since": "0-0", "upto": "1-1", "open_ms": HOUR, "bodies": [0, b"a"]},
        ),
        "hand_chosen": Call(
            (*running, keys.of_flow(RUNNING), keys.fed(RUNNING)),
            {"since": "0-0", "upto": "1-1", "open_ms": HOUR, "width": 2, "is_joined": "1"}
            | {"choices": ["0:0", b"a", "0", b""]},
        ),
        "heartbeat": Call(
            (WORKERS, RECORD, ACTIVE, DELAYED, CONF, TAKEN, *CHANGED_SCHEDULES[1:]),
            beat | {"lock_ms": 5, "holds": "", "taken_ttl": HOUR, "died": ""},
        ),
        "hold": Call(running, {"ms": 1}),
        "hold_rate": Call((BUCKET,), RATE | {"ms": 1}),
        "intend": Call((ACTIVE, CONF), {"ids": [NEW], "grace": 5, "above": 0, "named": ""}),
        "keep_service": Call(tuple(MINE[4:6]), SERVICE),
        "join": Call(
            (*running, keys.of_flow(RUNNING), keys.fed(RUNNING)), JOINED | {"parts": ["1:0", "a"]}
        ),
        "join_chosen": Call(
            (*running, keys.of_flow(RUNNING), keys.fed(RUNNING)),
            JOINED | {"parts": ["0:0", "1", "1:0", "a"]},
        ),
        "land": Call(
            (MINE[2], MINE[3]), {"epoch": "e", "before": 0, "chain": "", "messages": ["m"]}
        ),
        "list_chosen": Call((*running, keys.of_flow(RUNNING)), {"after": "0-0", "count": 1}),
        "list_dead": Call(running, page),
        "move_tick": Call(
            CHANGED_SCHEDULES, {"schedule": "s", "found": "", "expected": 1, "tick": 2}
        ),
        "order": Call(
            (keys.orders("req", "w:1"), CONF, keys.answer("req", "a2")),
            {"order": "a2", "text": "{}", "ttl": HOUR, "most": 10},
        ),
        "pause": Call(running, {}),
        "next_forward": Call((*MINE[:2], b"{lists}:state"), FORWARD),
        "pause_queue": Call((CONF,), {"period": 5, "longest": HOUR}),
        "rate_queue": Call((CONF,), {"interval": 10_000, "burst": 5}),
        "place_tokens": Call(keys.of_limits("req")[:3], {"rows": [5, "r1#0.9%x=1"]}),
        "set_key_limit": Call(
            (*keys.of_limits("req"), keys.limit_key("req", "x")),
            {"name": "x", "limit": 2, "by": "set"},
        ),
        "resume_key": Call((*keys.of_limits("req"), keys.limit_key("req", "!x")), {"name": "!x"}),
        "take_keys": Call(
            keys.of_limits("req")[:3], {"look_ms": 5, "rows": [5, "r1#0.9%%x=1", "ab"]}
        ),
        "look_at_keys": Call(keys.of_limits("req"), {"look_ms": 5, "count": 1, "wanted": ["x"]}),
        "check_keys": Call(keys.of_limits("req"), {"first": 0, "most": 9, "names": ["x"]}),
        "promote": Call((DELAYED, *TURNS, *LANES), {"most": 10}),
        "publish": Call((*TOPIC, b"topic:{t}:op:1"), PUBLISH),
        "push": Call((b"{t}:list",), {"ttl": HOUR, "words": ["a"]}),
        "push_shortest": Call(tuple(MINE[4:7]), {"ttl": 9, "messages": ["m"]}),
        "put_schedule": Call(
            CHANGED_SCHEDULES, {"schedule": "s", "found": "", "definition": "{}", "tick": 1}
        ),
        "reap": Call(running, _expired()),
        "register_worker": Call(
            (WORKERS, RECORD, CONF, TASKS),
            beat | {"late": 5, "host": "box", "pid": 42, "release": "1.0"},
        ),
        "refund": Call((BUCKET,), RATE | {"unused": 1}),
        "refit": Call((BUCKET,), RATE),
        "report_backlog": Call((ACTIVE, *BOUND), {"rows": [RUNNING, 1, 2, 3]}),
        "requeue_dead": Call(running, REQUEUE | {"ids": ["1-1"]}),
        "reschedule_active": Call((ACTIVE,), {"rows": [RUNNING, 1, 2]}),
        "restore_active": Call((ACTIVE,), {"id": NEW, "due": 7}),
        "restart_forward": Call((b"{lists}:state",), {"epoch": "e", "fresh": "f", "reason": "gap"}),
        "resume": Call(running, {}),
        "retire": Call(
            (ACTIVE, keys.logged("req"), keys.completed("req"), *BOUND),
            {"least": 1, "longest": 1, "most": 10, "endings": ENDING},
        ),
        "seal": Call(running, {"chunks": 1, "chain": lane.hash()["chain"]}),
        "set_deadline": Call(running, {"deadline_ms": HOUR}),
        "set_limit": Call(running, {"limit": 2}),
        "set_max_waiting": Call(BOUND, {"most": 10}),
        "set_priority": Call(running, {"priority": 7}),
        "settle_messages": Call(
            (*MINE[2:6], b"{lists}:settled", MINE[6]), {"ended": 0, "wanted": ["1"]}
        ),
        "subscribe": Call(TOPIC, {"subscriber": "s", "start": "new", "most": 9}),
        "take_messages": Call(TOPIC, {"subscriber": "s", "most": 9, "redeliver": 1}),
        "set_share": Call(running, {"share": 2}),
        "set_time_limit": Call(running, {"time_limit_ms": 5_000}),
        "set_rate": Call(running, {"rates": "1 = 10000 5 1"}),
        "set_shards": Call((CONF,), {"shards": "1,2", "since": ""}),
        "take_turns": Call(TURNS, {"lane": 5, "count": 1}),
        "stand_in": Call(
            (WORKERS, ACTIVE, DELAYED, CONF, *CHANGED_SCHEDULES[1:]),
            {"id": "t:1", "lock_ms": 5, "rest_ms": 5},
        ),
        "take": Call((BUCKET,), RATE | {"want": 1, "waited": ""}),
    }


def _shown(held: Held, op: str) -> dict[str, Any]:
    """Returns the arguments of acquire with a token that is stale."""
    worker = {
        "worker": "w:1",
        "started": "7",
        "shared": "",
        "allowance": "",
        "wait": "",
        "token": "",
    }
    return worker | {"k": held.k, "g": held.g, "op": op, "count": 1}


def _expired() -> dict[str, Any]:
    """Returns the arguments of reap for all leases that have expired."""
    return dict.fromkeys(("worker", "started", "k", "fence", "how"), "") | {
        "queue": "req",
        "missing": [],
    }


def _next_chunk(lane: Lane) -> dict[str, Any]:
    chain = {"chain": "c2", "before": lane.hash()["chain"]}
    return chain | {"chunk": 2, "open_ms": HOUR, "bodies": [b"a"]}
