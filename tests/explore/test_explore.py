"""Explores the small systems completely: the invariants hold, and the end stays reachable."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fairlane.protocol import keys
from fairlane.protocol.lua import library
from tests.explore.machinery.actors import Cast
from tests.explore.machinery.explorer import Explorer, System, Violation
from tests.explore.machinery.protocol import QUEUE, Facts, Fairlane
from tests.explore.machinery.runs import explore, world_of
from tests.explore.mutants import Mutant, find
from tests.explore.systems import BY_NAME, LOST, QUICK, SMALL, W1, producer
from tests.support.run.params import rest_but

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.servers.server_process import Server

pytestmark = pytest.mark.parametrize("redis_server", ["single"], indirect=True)

# Of the quick systems these take the longest: in `make test-rest`.
LONGER = {
    *("hand over", "two ticks, a crash", "forward, a late copy", "reopen, Redis is full"),
    *("stands in, a lost reply", "join", "distinct, one server, a late copy"),
    *("forward, a crash", "replace, a lost reply", "one of two breaks"),
}


@pytest.mark.parametrize(
    "in_stream",
    [
        pytest.param(False, id="as it is"),
        pytest.param(True, id="in a stream", marks=pytest.mark.rest),
    ],
)
@pytest.mark.parametrize("system", rest_but(1, zip(SMALL)), ids=lambda system: system.name)
def test_a_small_system_holds_in_every_state(
    redis_server: Server,
    system: System,
    in_stream: bool,
):
    """Runs every interleaving and every fault of its budget on the real scripts."""
    report = explore(redis_server, system, in_stream=in_stream)
    print(report)  # noqa: T201  how much was seen, for readers with -s
    assert report.states > 400
    assert report.ends > 100


@pytest.mark.parametrize(
    "system",
    [pytest.param(one, marks=pytest.mark.rest if one.name in LONGER else ()) for one in QUICK],
    ids=lambda system: system.name,
)
def test_producers_requeues_shards_and_replicas_hold_in_every_state(
    redis_server: Server, system: System
):
    """Runs the quick systems; `make explore` runs the others, which are larger."""
    report = explore(redis_server, system)
    print(report)  # noqa: T201  how much was seen, for a reader of -s
    assert report.ends > 0


@pytest.mark.rest
def test_a_system_is_the_same_at_every_exploration(redis_server: Server):
    """Checks that nothing of the server's own (clock, ids, counts) gets into a state."""
    one, other = (explore(redis_server, SMALL[0]) for _ in range(2))
    assert (one.states, one.steps, one.ends) == (other.states, other.steps, other.ends)


@pytest.mark.rest
def test_leases_expire_while_their_workers_live(redis_server: Server):
    """Tests the explorer: a slice is taken from a worker that works, and that reports too late."""
    replies = set()
    with world_of(redis_server, Fairlane()) as world:
        Explorer(world, BY_NAME["one worker"]).run()
        for stand in world.stands():
            for (doing, _), move in stand.moves.items():
                if doing.name == "complete":
                    replies.add(move.reply[0])
    assert {b"lost", b"ended"} <= replies


# One guard of each kind whose removal the explorer must detect, quickly.
SAMPLE = [
    ("lib/lease.lua", 'permit.kind ~= "q" or permit.g ~= g', "two workers"),
    ("lib/create.lua", "seen >= intent", "an empty request"),
    ("request/append.lua", "chunk <= chunks", "open, a lost reply"),
    ("request/reap.lua", "is_ended(state)", "one worker"),
    ("lib/finish.lua", "left > 0 and not cancelled and not expired", "one worker"),
    ("lib/queue.lua", 'redis.call("ZADD", logged, "NX"', "one worker"),
    ("request/discard.lua", "state.born ~= born or state.open == 0", "one of two breaks"),
    ("request/seal.lua", 'state.state == "cancelling"', "open"),
]
NOW = {"chunk <= chunks", "left > 0 and not cancelled and not expired"}  # others: `make test-rest`


def mutant(path: str, gone: str) -> Mutant:
    (found,) = [
        mutant
        for mutant in find(library().root)
        if mutant.path == path and mutant.gone.startswith(gone) and mutant.kind == "guard"
    ]
    return found


@pytest.mark.parametrize(
    ("path", "gone", "system"),
    [pytest.param(*row, marks=() if row[1] in NOW else pytest.mark.rest) for row in SAMPLE],
    ids=lambda text: text.split(",")[0],
)
def test_the_explorer_sees_a_guard_taken_out(
    redis_server: Server,
    tmp_path: Path,
    path: str,
    gone: str,
    system: str,
):
    """`make mutants` removes all of them."""
    root = mutant(path, gone).write(tmp_path)
    with pytest.raises(Violation):
        explore(redis_server, BY_NAME[system], root)


@pytest.mark.rest
@pytest.mark.parametrize(
    ("script", "old", "new", "system"),
    [
        (
            *("lib/permits.lua", "local want = math.min(state.limit - state.held, work)"),
            *("local want = 0", "one worker"),
        ),
        (
            *("lib/lease.lua", "state.left, state.done = 0, count"),
            *("state.left, state.done = 0, 0", "one worker"),
        ),
        (
            *(
                "dispatch/reschedule_active.lua",
                'tonumber(redis.call("ZSCORE", active, id)) == seen',
            ),
            *("true", "no room for one of two"),
        ),
        (
            "lib/rates.lua",
            "tat + granted * step, line, held)",
            "tat, line, held)",
            "a queue's rate, in line",
        ),
        ("dispatch/pause_queue.lua", "if period == 0 then", "if true then", "a queue rests twice"),
        (
            "lists/fan_out.lua",
            'redis.call("LREM", pending, -1, ARGV[row]) == 1',
            "true",
            "fan-out, a lost reply",
        ),
        ("lists/fan_out.lua", "not is_used and", "", "fan-out, tracked, a late copy"),
        ("lists/land.lua", "local first = last - before", "local first = 0", "forward, a crash"),
        (
            "lists/next_forward.lua",
            'redis.call("HGET", state, "sequence") == before',
            "true",
            "forward, a late copy",
        ),
    ],
    ids=[
        *("nothing is minted", "done is not counted", "withdrawn anyway"),
        *("nothing is taken from the bucket", "never paused"),
        *("pushed anyway", "an id twice", "landed twice", "settled twice"),
    ],
)
def test_the_explorer_sees_a_missing_action(
    redis_server: Server,
    tmp_path: Path,
    script: str,
    old: str,
    new: str,
    system: str,
):
    text = (library().root / script).read_text()
    line = next(i for i, one in enumerate(text.splitlines(), 1) if old in one)
    changed = text.splitlines()[line - 1].replace(old, new)
    root = Mutant(script, line, "action", old, changed).write(tmp_path)
    with pytest.raises(Violation):
        explore(redis_server, BY_NAME[system], root)


class NoAudit(Fairlane):
    """The product's protocol in a queue that no worker audits."""

    def errands(self, facts: Facts, now: int) -> Iterator[tuple[str, tuple[Any, ...]]]:
        """Returns all errands but the audit."""
        for label, argument in super().errands(facts, now):
            if argument != ("audit",):
                yield label, argument


@pytest.mark.rest
def test_without_the_audit_a_lost_pop_is_never_made_good(redis_server: Server):
    """Tests the explorer: with the audit the end stays reachable ("a lost reply")."""
    system = System("a lost reply", (producer(1), W1), LOST)
    with (
        world_of(redis_server, NoAudit()) as world,
        pytest.raises(Violation, match="the end can't be reached") as found,
    ):
        Explorer(world, system).run()
    assert found.value.way[-1] == "lost reply of w:1 BRPOP"


@pytest.mark.parametrize(("notes", "first"), [(True, "HSET"), (False, "acquire")])
def test_a_note_is_a_step_of_its_own_where_an_actor_reads_it(
    redis_server: Server, notes: bool, first: str
):
    """Elsewhere the note would only multiply the states."""
    with world_of(redis_server, Fairlane()) as world:
        cast = Cast(world, notes=notes)
        popped = cast.after(cast.first(W1), (keys.lanes(QUEUE)[5], (b"r#0.7000001",)))
        assert popped.doing is not None
        assert popped.doing.name == first
