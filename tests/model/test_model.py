"""Tests Redis against a plain Python model: random calls in any order, and equal replies."""

from __future__ import annotations

import contextlib
import shutil
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

import pytest

from fairlane.protocol.lua import library
from tests.model.plain.words import Disagreement
from tests.model.play.wire import Wire
from tests.model.runs import FIND_ONLY, play

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.servers.server_process import Server

only = pytest.mark.parametrize("redis_server", ["single"], indirect=True)


@pytest.fixture
def wire(redis_server: Server, redis_url: str) -> Iterator[Wire]:
    """Yields a connection to the server; empties the server at the end."""
    with contextlib.closing(Wire(redis_server)) as made:
        yield made


@pytest.mark.rest
@only
def test_ten_thousand_steps_agree_with_the_model(wire: Wire):
    """Plays the same steps each time; a failure prints the fewest steps that lead to it."""
    steps, seeds = 0, count()
    while steps < 10_000:
        steps += play(wire, next(seeds))["steps"]


@pytest.mark.rest
@pytest.mark.parametrize("redis_server", ["system_redis", "cluster1"], indirect=True)
def test_other_servers_agree_with_the_model(wire: Wire):
    """Plays a short run, because only the server differs, not the scripts."""
    assert play(wire, 1, examples=20)["steps"] > 500


def mutant(folder: Path, script: str, old: str, new: str) -> Path:
    """Makes a copy of the scripts with one change."""
    root = folder / "v1"
    shutil.copytree(library().root, root)
    path = root / script
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    return root


class Guard(NamedTuple):
    """A guard of a script, its replacement, and the rules that must detect it."""

    script: str
    old: str
    new: str
    rules: tuple[str, ...] = ()  # none = all


CHORES = ("submit", "do_chore", "pass_time")
REAP = ("take", "submit", "reap_a_worker", "reap_a_lease")
SETTLE = ("take", "submit", "prove", "settle", "settle_what_is_not_owed")
RESIZE = ("take", "submit", "set_limit", "settle")
TENANTS = ("submit", "take", "work", "set_share", "charge", "settle_all")
SCHEDULES = ("put_schedule", "change_schedule", "fire", "fire_twice", "go_on", "pass_time")
UNIQUE = ("submit_unique", "work", "rarely", "pass_time")
PAUSE = ("pause_queue", "beat", "pass_time")
RATE = ("rate_queue", "take", "submit", "pass_time")
PULL = ("submit", "take_as_program", "use_receipt", "pass_time", "reap")
FLOWS = ("begin_flow", "feed_twice", "work_for_flows", "requeue_dead")
GUARDS = {
    "innocents are charged": Guard(
        "lib/reap.lua", "#owed == 1 and (permit", "#owed >= 1 and (permit", REAP
    ),
    "a release is charged": Guard(
        "lib/lease.lua",
        "math.max(0, attempt - 1)",
        "attempt",
        ("take", "submit", "work", "settle"),
    ),
    "what has not begun is charged": Guard(
        "lib/lease.lua",
        'if verdict == "unbegun" then',
        "if false then",
        ("take", "submit", "work", "settle"),
    ),
    "a token is good for two": Guard(
        "lib/lease.lua", "permit.op == op and permit.g == g", "permit.g == g"
    ),
    "any worker may settle": Guard(
        "lib/lease.lua",
        "permit.fence ~= lease.fence or permit.op ~= lease.op",
        "false",
        SETTLE,
    ),
    "an old receipt settles what another program has": Guard(
        "lib/lease.lua",
        "permit.fence ~= lease.fence or permit.op ~= lease.op",
        "false",
        PULL,
    ),
    "a receipt that has settled is lost": Guard(
        "lib/lease.lua",
        'redis.call("HGET", permits, "last" .. k) == lease.fence',
        "false",
        PULL,
    ),
    "other content is a repeat": Guard(
        "request/append.lua",
        "chunk == chunks and chain ~= last",
        "false",
        ("submit", "append", "repeat"),
    ),
    "a limit is lowered and raised": Guard(
        "lib/permits.lua", "  relink_parked(state)\n", "", RESIZE
    ),
    "an entry that was moved is moved back": Guard(
        "dispatch/reschedule_active.lua",
        ' and tonumber(redis.call("ZSCORE", active, id)) == seen',
        "",
    ),
    "what is young is hastened": Guard(
        "request/hasten.lua", " or aged_at(state, row[1], row[2]) > now", "", CHORES
    ),
    "a gate stays closed": Guard("request/open_gate.lua", "  set_gate(state, 0)\n", "", CHORES),
    "a share changes nothing": Guard(
        "lib/turns.lua", ' / tonumber(string.match(token, "@(%d+):"))', "", TENANTS
    ),
    "a tenant that was away is paid for it": Guard(
        "lib/turns.lua", ', score_above(CLOCK, "v" .. lane, 0)))', ", 0))", TENANTS
    ),
    "tokens keep a former share": Guard(
        "request/set_share.lua", "change_lanes(state, now)", "mint(state, now)", TENANTS
    ),
    "a line that was replaced moves its tick": Guard(
        "dispatch/move_tick.lua", "redis.sha1hex(definition) ~= found", "false", SCHEDULES
    ),
    "a late leader moves a tick": Guard(
        "dispatch/move_tick.lua", "tonumber(present) ~= tonumber(expected)", "false", SCHEDULES
    ),
    "a new definition resumes its schedule": Guard(
        "dispatch/put_schedule.lua", 'stored and "XX" or "CH"', '"CH"', SCHEDULES
    ),
    "an id has no window": Guard("lib/ids.lua", "now >= began + tonumber(window)", "true", UNIQUE),
    "what is cancelled keeps its id": Guard(
        "lib/ids.lua", 'window and state.state == "cancelled"', "false", UNIQUE
    ),
    "a pause has no end": Guard("lib/queue.lua", "ends > now and ends or 0", "ends", PAUSE),
    "a resumed queue is paused": Guard(
        "dispatch/pause_queue.lua",
        'redis.call("HDEL", conf, "paused_until", "paused_ms")',
        "",
        PAUSE,
    ),
    "a bucket gives one too many": Guard(
        "lib/rates.lua",
        "math.floor((depth - (tat - clock)) / step)",
        "1 + math.floor((depth - (tat - clock)) / step)",
        RATE,
    ),
    "a former rate closes a bucket": Guard(
        "lib/rates.lua", "math.min(tat, clock + rate.interval * rate.burst)", "tat", RATE
    ),
    "a refund is no refund": Guard(
        "rates/refund.lua", "refund(bucket, now_ms(now), rate, unused)", "", RATE
    ),
    "two leaders hand over the same": Guard("lib/flows.lua", "cursor ~= since", "false", FLOWS),
    "a repeat is taken": Guard(
        "lib/ids.lua", " and known[i] ~= 1", "", ("submit", "append", "repeat")
    ),
    "a dead part that ran again is joined twice": Guard(
        "lib/flows.lua", "not made[index] and not is_handed(index)", "true", FLOWS
    ),
}


QUICK = {
    *("any worker may settle", "a limit is lowered and raised", "what is young is hastened"),
    *("a gate stays closed", "a bucket gives one too many"),
}


@only
@pytest.mark.parametrize(
    "name",
    [pytest.param(one, marks=() if one in QUICK else pytest.mark.rest) for one in GUARDS],
)
def test_the_model_finds_a_broken_guard(
    redis_server: Server, redis_url: str, tmp_path: Path, name: str
):
    """Tests the model itself, which must be able to fail."""
    guard = GUARDS[name]
    broken = mutant(tmp_path, guard.script, guard.old, guard.new)
    with contextlib.closing(Wire(redis_server, broken)) as wire, pytest.raises(Disagreement):
        play(wire, 1, examples=500, phases=FIND_ONLY, rules=guard.rules)
