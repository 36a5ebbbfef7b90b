"""Tests malformed arguments: each script refuses them by their code, and writes nothing before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.scripts.calls import ENDING, FIRST, RUNNING, accepted, three_requests
from tests.support.run.for_each import for_each
from tests.support.scripts.requests import POLICY, with_policy

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.scripts.calls import Call
    from tests.support.scripts.requests import Lane

VERDICT = [FIRST, "retry", "0", "0:x:1:0:0", "why"]
WRONG_VERDICTS = (
    *(VERDICT[:4], [FIRST, "bogus", *VERDICT[2:]], [FIRST, "retry", "soon", *VERDICT[3:]]),
)
LIMITS = ["", "many", 0, -1, 10_001, 1.5, "nan"]
PRIORITIES = ["", "high", -1, 100, 0.5, "nan"]
SHARDS = ["a", "1;2", "-1", "1, 2", ","]


def each(name: str, *values: Any) -> list[dict[str, Any]]:
    """Returns one argument with several values."""
    return [{name: value} for value in values]


NO_RATES = (
    "",
    "1",
    "1 ",
    "x = 1 1 1",
    "0 = 1 1 1",
    "1 = 0 1 1",
    "1 = 1 1",
    "1 = 1 1 1 x",
    "1 =  1 1 1",
    "1 |= 1 1 1",
)
MALFORMED: list[tuple[str, str, list[dict[str, Any]]]] = [
    ("abandon", "BADARGUMENT", [{"seen": "x"}, {"ttl": "x"}]),
    ("acquire", "BADCOUNT", each("count", "0", "-1", "1001", "many", "")),
    ("add_stats", "BADARGUMENT", each("numbers", [], ["f"], ["f", 1, "g", "x"])),
    ("add_stats", "BADARGUMENT", each("most", "", "many")),
    ("register_worker", "BADARGUMENT", each("release", "a b", "a:b", "a\tb")),
    ("add_stats", "BADARGUMENT", each("numbers", ["f", -1], ["f", 1.5], ["f", 1] * 2001)),
    ("add_turns", "BADTOKENS", each("tokens", [], ["r1#0.1@1:a"] * 1001)),
    ("admit", "BADARGUMENT", [{"chunk": "x"}, {"count": ""}, {"pause": "x"}]),
    ("append", "BADARGUMENT", [{"chunk": "two"}, {"open_ms": "long"}]),
    ("append", "BADCHUNK", [{"chunk": 3}, {"bodies": [b""] * 1001}]),
    ("change_shards", "BADSHARDS", each("shards", *SHARDS)),
    ("charge_turns", "BADARGUMENT", each("rows", [5, "1:a", 1, 1] * 251)),
    ("claim_messages", "BADCOUNT", each("most", 0, -1, 1001, "many")),
    ("take_turns", "BADARGUMENT", each("count", "many", 0, 1001)),
    ("complete", "BADVERDICT", each("done", "x", -1, 1001, 2)),
    ("complete", "BADVERDICT", [{"done": 1001, "verdicts": ["x"] * 3003}]),
    ("complete", "BADVERDICT", [{"done": 2, "verdicts": ["x"]}, {"done": 1, "verdicts": []}]),
    *(
        ("complete", "BADVERDICT", [{"done": 0, "verdicts": verdict}])
        for verdict in WRONG_VERDICTS
    ),
    ("delete", "BADARGUMENT", [{"ending": "x"}, {"seen": ""}, {"ttl": "x"}, {"ttl": 0}]),
    ("discard", "born", [{"born": "x"}]),
    ("discard", "seen", [{"seen": "x"}]),
    ("discard", "ttl", [{"ttl": "x"}]),
    ("drop_active", "BADARGUMENT", [{"most": "x"}]),
    ("drop_dead", "dead entries", each("ids", ["x"], ["1-1"] * 1001)),
    ("claim_ticks", "BADARGUMENT", [*each("skip", "x", -1), *each("most", "", 0)]),
    ("due_schedules", "BADARGUMENT", [*each("skip", "x", -1), *each("most", "", -1)]),
    ("extend", "BADARGUMENT", each("term", "soon", 0, -1, 86_400_001, "nan")),
    ("enqueue", "BADPRIORITY", each("priority", *PRIORITIES)),
    ("enqueue", "BADLIMIT", each("limit", *LIMITS)),
    ("enqueue", "BADARGUMENT", [{name: "soon"} for name in ("open_ms", *POLICY[2:])]),
    ("enqueue", "BADARGUMENT", each("policy", "3:5:", ":".join("3" * 9), ":".join("3" * 11))),
    ("enqueue", "a number for intent", [{"intent": "x"}]),
    ("enqueue", "BADSHARDS", each("shards", *SHARDS)),
    ("enqueue", "BADCHUNK", each("bodies", [b""] * 1001)),
    ("expire_leftovers", "BADARGUMENT", each("ttl", "long", 0, -1)),
    ("expire_workers", "BADARGUMENT", each("ttl", "x")),
    ("glance", "BADARGUMENT", each("grace", "soon", "1s")),
    ("hand_over", "BADARGUMENT", [*each("since", "", "0", "x-1"), *each("upto", "", "1-", "-1")]),
    ("hand_over", "BADARGUMENT", each("open_ms", "", "long")),
    ("hand_over", "BADARGUMENT", each("bodies", [0, b""] * 1001, [0], ["x", b""])),
    ("heartbeat", "BADARGUMENT", [{"ttl": "x"}, {"lock_ms": "x"}, {"taken_ttl": ""}]),
    ("intend", "BADARGUMENT", [{"grace": "long"}, {"above": "high"}]),
    ("look_at_keys", "BADARGUMENT", each("look_ms", "", "soon")),
    ("look_at_keys", "BADARGUMENT", each("count", "", 0, 2, 11)),
    ("look_at_keys", "BADARGUMENT", each("wanted", [], ["x"] * 1002)),
    ("take_keys", "BADARGUMENT", each("look_ms", "", "soon")),
    ("take_keys", "BADARGUMENT", each("rows", [], [5], [5, "r1#0.9%%x=1"])),
    ("take_keys", "BADTOKENS", each("rows", [5, "r1#0.9%x=1", "ab"], [5, "r1#0.9", "ab"])),
    ("take_keys", "BADTOKENS", each("rows", [100, "r1#0.9%%x=1", "ab"], [5, "r1#0.9%%x=1", "x"])),
    ("intend", "BADARGUMENT", each("ids", [], [f"r{i}" for i in range(401)])),
    ("list_chosen", "BADCOUNT", each("count", 0, 1001, "")),
    ("list_chosen", "BADARGUMENT", each("after", "", "x", "-", "1")),
    ("list_dead", "dead entr", each("count", 0, 1001, "")),
    ("list_dead", "dead entr", each("after", "x", "-", "1")),
    ("move_tick", "BADARGUMENT", [{"expected": "x"}, {"tick": "soon"}]),
    ("fan_out", "BADARGUMENT", each("to", "", "some")),
    ("fan_out", "BADARGUMENT", each("count", 0, 1, 3, "x", 1001)),
    ("fan_out", "BADARGUMENT", [{"service": ""}, {"timeout": 0}, *each("expire", 0, "x")]),
    ("fan_out", "BADARGUMENT", each("rows", [], ["m"], ["m", 1, "x1", "sha1"] * 2)),
    ("keep_service", "BADARGUMENT", [{"id": ""}, *each("expire", 0, "x")]),
    ("keep_service", "BADARGUMENT", each("capacity", -1, "x")),
    ("land", "BADARGUMENT", [{"epoch": ""}, *each("before", "", -1, 1.5, "x")]),
    ("land", "BADARGUMENT", each("messages", [], ["m"] * 1001)),
    ("next_forward", "BADARGUMENT", [{"owner": ""}, {"fresh": ""}, *each("lease", "", -1, "x")]),
    ("next_forward", "BADARGUMENT", [*each("most", 0, 1001, "x"), *each("count", "", -1, "x")]),
    ("publish", "BADARGUMENT", [*each("ttl", 0, "x"), *each("retain_ms", 0, "x")]),
    ("publish", "BADARGUMENT", [*each("retain_count", 0, "x"), {"messages": []}]),
    ("publish", "BADARGUMENT", each("messages", ["m"] * 1001)),
    ("subscribe", "BADARGUMENT", [{"subscriber": ""}, {"start": "old"}, *each("most", 0, "x")]),
    ("take_messages", "BADCOUNT", [{"subscriber": ""}, *each("most", 0, 1001, "x")]),
    ("take_messages", "BADCOUNT", each("redeliver", -1, "x")),
    ("push_shortest", "BADARGUMENT", each("ttl", 0, "", "x")),
    ("push_shortest", "BADARGUMENT", each("messages", [], ["m"] * 1001)),
    ("restart_forward", "BADARGUMENT", [{"epoch": ""}, {"fresh": ""}, {"fresh": "e"}]),
    ("restart_forward", "BADARGUMENT", each("reason", "", "bored")),
    ("settle_messages", "BADARGUMENT", each("wanted", [], ["1", "2"])),
    ("settle_messages", "BADARGUMENT", each("ended", "", -1, 2)),
    ("promote", "BADBATCH", each("most", 0, -1, 1001, "many")),
    ("push", "BADARGUMENT", [*each("ttl", "", -1, "soon"), *each("words", [], ["a"] * 1001)]),
    ("put_schedule", "BADARGUMENT", [{"definition": ""}, {"tick": ""}, {"tick": "soon"}]),
    ("register_worker", "BADARGUMENT", [{"ttl": "x"}, {"late": "x"}]),
    ("report_backlog", "BADARGUMENT", each("rows", ["r1", 1, 2], ["r1", 1, 2, "x"])),
    ("order", "BADARGUMENT", [{"order": ""}, {"text": ""}, *each("ttl", 0, 1.5, "x", "")]),
    ("order", "BADARGUMENT", each("most", "", "x")),
    ("answer", "BADARGUMENT", [{"order": ""}, {"text": ""}, *each("ttl", 0, 1.5, "x", "")]),
    ("pause_queue", "BADARGUMENT", each("period", -1, 1.5, "x", "", 10**9)),
    ("pause_queue", "BADARGUMENT", each("longest", "", "x")),
    ("rate_queue", "BADARGUMENT", each("interval", -1, 0, 1.5, "x", "", 86_400_000_001)),
    ("rate_queue", "BADARGUMENT", each("burst", -1, 0, 1.5, "x", "", 1_000_001)),
    ("report_backlog", "BADARGUMENT", each("rows", ["r1", 1, 2, 3] * 251)),
    ("requeue_dead", "an op and a holder", [{"op": "x.*"}, {"holder": "x"}, {"holder": ""}]),
    ("requeue_dead", "wants an ending", [{"ending": "x"}, {"intent": "x"}, {"by": "a b"}]),
    ("requeue_dead", "wants an ending", each("shards", "x", "1 2")),
    ("requeue_dead", "dead entries", each("ids", ["x"], ["1"], ["1-1", "+"], ["1-1"] * 1001)),
    ("reschedule_active", "BADARGUMENT", each("rows", [RUNNING, 1, 2, "r2", 1, "x"])),
    ("reschedule_active", "BADARGUMENT", each("rows", [RUNNING, 1], [RUNNING, 1, 2, "r2"])),
    ("reschedule_active", "BADARGUMENT", each("rows", ["r2", 1, 2] * 301)),
    ("restore_active", "BADARGUMENT", each("due", "", "soon")),
    ("retire", "BADARGUMENT", [{"least": "x"}, {"longest": "x"}, {"most": "x"}]),
    ("retire", "BADARGUMENT", each("endings", [], ENDING + ENDING[:11], ENDING * 76)),
    ("retire", "BADARGUMENT", each("endings", [*ENDING, *ENDING[:10], "x", ""])),
    ("seal", "BADARGUMENT", [{"chunks": "many"}]),
    ("set_deadline", "BADARGUMENT", each("deadline_ms", "", "x", -1, 0.5, 366 * 86_400_000 + 1)),
    ("set_limit", "BADLIMIT a whole number from 1 to 10000", each("limit", *LIMITS)),
    ("set_max_waiting", "BADARGUMENT", each("most", -1, 1.5, "x")),
    ("set_priority", "BADPRIORITY a whole number from 0 to 99", each("priority", *PRIORITIES)),
    ("set_rate", "BADARGUMENT", each("rates", *NO_RATES)),
    ("set_time_limit", "BADARGUMENT", each("time_limit_ms", "", -1, 1.5, 86_400_001, "x")),
    ("set_share", "BADARGUMENT", each("share", "", 0, -1, 1.5, 1000, "x")),
    ("stand_in", "BADARGUMENT", [*each("lock_ms", "", "x"), *each("rest_ms", "", "x")]),
    ("set_shards", "BADSHARDS", each("shards", *SHARDS)),
]  # fmt: skip
BY_SCRIPT: dict[str, list[tuple[str, dict[str, Any]]]] = {}
for _script, _code, _several in MALFORMED:
    BY_SCRIPT.setdefault(_script, []).extend((_code, wrong) for wrong in _several)


def called(lane: Lane, call: Call, script: str, **wrong: Any) -> Callable[[], Any]:
    """Calls a script with these arguments changed."""
    given = call.given | wrong
    if script == "enqueue" and "policy" not in wrong:
        given = with_policy(given)
    elif script == "enqueue":
        given = {name: value for name, value in given.items() if name not in POLICY}
    return lambda: lane.call(script, call.names, **given)


@for_each("script", BY_SCRIPT)
def test_a_malformed_argument_is_refused_and_nothing_is_written(lane: Lane, script: str):
    """At the end the same call without the malformed argument is accepted."""
    call = accepted(lane, three_requests(lane))[script]
    failed = []
    for code, wrong in BY_SCRIPT[script]:
        try:
            with lane.refuses(code):
                called(lane, call, script, **wrong)()
        except (AssertionError, pytest.fail.Exception) as error:
            failed.append(f"{code} {wrong}: {error}")
    assert failed == []
    called(lane, call, script)()
    lane.client.flushall()
