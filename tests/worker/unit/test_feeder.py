"""Tests units that make one exchange together, step by step without Redis."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fairlane import settings
from fairlane.common import clock
from fairlane.errors import RedisUnreachable
from fairlane.operations.lease import exchange_unit
from fairlane.protocol import keys
from fairlane.protocol.steps import Call, Handle, Pause, Popped, Signal, SingleServer
from fairlane.worker.board import LeaseBoard
from fairlane.worker.child import gives_up
from fairlane.worker.feeder import Feeder
from fairlane.worker.measures import Metrics
from fairlane.worker.settle import serve
from fairlane.worker.unit import Sizer, Unit
from tests.support.processes.worker_units import LANE, argument, done, names_of, rest_of
from tests.worker.parts import granted, handled, unnoted

if TYPE_CHECKING:
    from fairlane.worker.calls import Outcome


class Team:
    """Units of one process, each of which calls its handler for a request of its own."""

    each_s = 0.015  # a handler's time

    def __init__(self, count: int) -> None:
        board, sizer = LeaseBoard(count, 3 * count), Sizer(20, 128)
        sizer.observe_tokens(1, 0.015)
        feeder = Feeder(exchange_unit("req", "w:1", "7", 0), sizer)
        self.units = [
            Unit(
                "req", "w:1", "7", record, sizer, Metrics("req"),
                tuple(board.of_unit(record.unit)[1:]), feeder=feeder,
            )
            for record in board.records[:count]
        ]  # fmt: skip
        self.loops: list[Any] = [unnoted(serve(unit)) for unit in self.units]
        self.steps: list[Any] = []
        for number, loop in enumerate(self.loops):
            loop.send(None)
            loop.send([Popped(LANE, [b"r%d#0.3" % number])])
            self.steps.append(loop.send(granted(b"x")))
            assert isinstance(self.steps[number], Handle)

    def finish(self, number: int, outcome: Outcome | None = None) -> Any:
        """Has the handler of a unit return; returns the unit's next step."""
        outcome = outcome or done(1)
        outcome.seconds = self.each_s
        assert self.units[number].record.take_turn()
        return self.send(number, handled(self.steps[number], outcome))

    def send(self, number: int, reply: Any) -> Any:
        self.steps[number] = self.loops[number].send(reply)
        return self.steps[number]

    def gather(self, later: list[float]) -> Any:
        """Has all handlers return; returns the exchange of all units but the first one's."""
        for number in range(len(self.units)):
            self.finish(number)
        later[0] += 0.001
        return self.send(1, None)

    def given(self, number: int) -> Any:
        """Returns the step of a unit after the signal that it waits for, which was given."""
        signal = self.steps[number]
        assert isinstance(signal, Signal)
        assert signal.is_given
        return self.send(number, signal.value)


def call_of(step: Any) -> Call[Any]:
    assert isinstance(step, SingleServer)
    assert isinstance(step.step, Call)
    return step.step


def reply(settled: int, *acquired: tuple[bytes, Any], left: Any = ()) -> list[Any]:
    tokens = [token for token, _ in acquired]
    return [[[b"ended"]] * settled, [*left], [], tokens, [one for _, one in acquired]]


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Returns a clock that a test moves."""
    now = [clock.mono_s()]
    monkeypatch.setattr(clock, "mono_s", lambda: now[0])
    return now


def test_the_first_unit_that_has_finished_waits_for_no_other_one():
    """Its exchange has its own lease alone."""
    step = Team(3).finish(1)
    call = call_of(step)
    words = [argument(call, name) for name in ("place", "want", "shared")]
    assert words == [b"x1", 1, b""]
    assert rest_of(call)[0] == "r1"


def test_what_units_finish_meanwhile_goes_in_one_exchange(later: list[float]):
    """It starts a millisecond after the one before. Each unit gets a lease, on its own record."""
    team = Team(5)
    team.finish(0)
    step = team.finish(1)
    assert isinstance(step, Pause)
    assert step.seconds == pytest.approx(0.001)
    for number in (2, 3):
        assert isinstance(team.finish(number), Signal)
    later[0] += 0.001
    call = call_of(team.send(1, None))
    assert [argument(call, name) for name in ("place", "want")] == [b"x1 x2 x3", 3]
    assert [rest_of(call)[9 * i] for i in range(3)] == ["r1", "r2", "r3"]
    assert list(call.keys[8:]) == list(keys.lanes("req"))
    acquired = ((b"r%d#1.8" % i, granted(b"y", fence=i)) for i in (11, 12))
    step = team.send(1, reply(3, *acquired))
    assert names_of(step) == ["handle"]
    assert names_of(team.given(2)) == ["handle"]
    assert names_of(team.given(3)) == ["pop"]
    found = [held and held.request_id for unit in team.units if [held := unit.record.held()]]
    assert found == ["r0", "r11", "r12", None, "r4"]
    assert [unit.record.counts()["done"] for unit in team.units] == [0, 1, 1, 1, 0]


def test_a_death_is_charged_to_the_lease_whose_handler_runs_or_is_not_settled():
    """It has its turn until then."""
    team = Team(2)
    team.finish(0)
    held = team.units[0].record.held()
    assert held is not None
    assert held.has_its_turn
    team.send(0, reply(1, (b"r7#1.8", granted(b"y"))))
    held = team.units[0].record.held()
    assert held is not None
    assert not held.has_its_turn
    assert not held.waits


def test_the_supervisor_finds_the_exchange_on_the_board_of_each_unit(later: list[float]):
    """If the process dies, it asks for the tokens of each. A living one gives it back."""
    team = Team(3)
    team.finish(0)
    team.finish(1)
    team.finish(2)
    assert team.units[1].record.pending_acquire() is None
    later[0] += 0.001
    op = argument(call_of(team.send(1, None)), "op")
    assert [team.units[i].record.pending_acquire() for i in (1, 2)] == [(b"", op)] * 2
    assert team.units[2].record.revoke_exchange() == op
    acquired = [(b"r%d#1.8" % i, granted(b"y", fence=i)) for i in (11, 12)]
    assert names_of(team.send(1, reply(2, *acquired))) == ["handle"]
    step = team.given(2)
    assert names_of(step) == ["complete"]
    assert argument(step.steps[0], "fence") == b"12"


def test_two_exchanges_are_on_their_way_and_the_next_one_begins_when_one_ends(later: list[float]):
    """The unit that has waited longest leads it."""
    team = Team(4)
    for number in (0, 1):
        team.finish(number)
        later[0] += 0.001
    for number in (2, 3):
        assert isinstance(team.finish(number), Signal)
        assert not team.steps[number].is_given
    team.send(0, reply(1))
    assert team.steps[2].is_given
    assert not team.steps[3].is_given
    assert argument(call_of(team.given(2)), "place") == b"x2 x3"


def test_an_error_ends_the_turn_of_each_unit_and_the_next_exchange_is_sent(later: list[float]):
    """Their leases expire; a unit begins again when Redis is back."""
    team = Team(4)
    team.finish(0)
    team.finish(1)
    team.finish(2)
    later[0] += 0.001
    team.send(1, None)
    team.finish(3)
    with pytest.raises(RedisUnreachable):
        team.loops[1].throw(RedisUnreachable("no answer"))
    with pytest.raises(RedisUnreachable):
        team.given(2)
    assert [unit.record.is_holding for unit in team.units] == [True, False, False, True]
    later[0] += 0.001
    assert names_of(team.given(3)) == ["exchange"]


def test_if_the_leader_ends_before_it_sends_the_others_are_not_left_waiting(later: list[float]):
    team = Team(3)
    team.finish(0)
    team.finish(1)
    team.finish(2)
    with pytest.raises(MemoryError):
        team.loops[1].throw(MemoryError())
    with pytest.raises(MemoryError):
        team.given(2)


def test_a_unit_that_settles_for_others_does_not_give_up_while_one_of_them_holds_a_lease():
    """Nor in threads, where each unit has a driver of its own."""
    team = Team(2)
    assert not gives_up(team.units)
    team.units[0].record._worker.is_draining = True
    team.units[1].record.release()
    assert not gives_up(team.units)
    team.units[0].record.release()
    assert gives_up(team.units)


def test_in_a_cluster_each_unit_goes_on_alone(later: list[float]):
    """No unit waits for the handler of another one."""
    team = Team(3)
    team.gather(later)
    assert names_of(team.send(1, None)) == ["complete"]
    assert names_of(team.given(2)) == ["complete"]
    assert [unit.has_one_server for unit in team.units] == [True, False, False]


def test_tokens_that_are_due_later_are_dispatched_by_one_unit(later: list[float]):
    team = Team(3)
    team.gather(later)
    step = team.send(1, reply(2, left=[b"r1", b"5", b"1.4", 250]))
    assert names_of(step) == ["insert_tokens", "pop"]
    assert names_of(team.given(2)) == ["pop"]


def test_a_step_that_was_refused_is_repeated_by_its_own_unit(later: list[float]):
    team = Team(3)
    team.gather(later)
    tokens = [b"r8#1.8", b"r9#1.8"]
    step = team.send(1, [[[b"ended"], b""], [], [], tokens, [granted(b"y"), b""]])
    assert names_of(step) == ["handle"]
    step = team.given(2)
    assert names_of(step) == ["complete"]
    assert names_of(team.send(2, [[b"ended", [b"done", 1, 1, 1, 0, 0, 9, 5, b"", 9, b""]]])) == [
        "retire",
        "acquire",
    ]


@pytest.mark.parametrize(
    ("size", "expected"), [(1, b"x1 x2 x3"), (settings.FLUSH_BYTES // 2, b"x1 x2")]
)
def test_an_exchange_has_results_of_a_bounded_size(size: int, expected: bytes, later: list[float]):
    """Otherwise Redis would be busy with it for long."""
    team = Team(4)
    team.finish(0)
    for number in (1, 2, 3):
        team.finish(number, done(1, size=size))
    later[0] += 0.001
    assert argument(call_of(team.send(1, None)), "place") == expected
    assert team.steps[3].is_given is False


def test_a_draining_unit_settles_and_takes_nothing(later: list[float]):
    """Another one of the same exchange may have begun before the drain."""
    team = Team(3)
    team.finish(0)
    team.finish(1)
    team.units[2].record._worker.is_draining = True
    team.finish(2)
    later[0] += 0.001
    call = call_of(team.send(1, None))
    assert [argument(call, name) for name in ("place", "want")] == [b"x1 x2", 1]
    assert names_of(team.send(1, reply(2, (b"r8#1.8", granted(b"y"))))) == ["handle"]
    with pytest.raises(StopIteration):
        team.given(2)


def test_a_unit_that_takes_several_tokens_makes_its_own_exchange():
    """Its leases are in one note, and a death is charged to none of them."""
    team = Team(3)
    team.finish(0)
    team.finish(1)
    team.units[0].sizer._token_s = team.each_s = 0.001
    call = call_of(team.finish(2))
    assert [argument(call, name) for name in ("place", "want")] == [b"x2", 4]
