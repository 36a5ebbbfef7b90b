"""Runs the machine on one server."""

from __future__ import annotations

from inspect import getmembers
from typing import TYPE_CHECKING

from hypothesis import HealthCheck, Phase, settings
from hypothesis import seed as with_seed
from hypothesis.stateful import RULE_MARKER, run_state_machine_as_test

from tests.model.machine import QueueMachine

if TYPE_CHECKING:
    from tests.model.play.wire import Wire

FIND_ONLY = (Phase.generate,)
ALSO_SHRINK = (Phase.generate, Phase.shrink)


def play(
    wire: Wire,
    seed: int,
    *,
    examples: int = 100,
    steps: int = 50,
    phases: tuple[Phase, ...] = ALSO_SHRINK,
    rules: tuple[str, ...] = (),
) -> dict[str, int]:
    """Plays so many examples of so many steps; returns what was counted.

    `rules`: only these; none = all.

    The same seed plays the same steps. A failure prints the fewest steps that lead to it.
    """
    counts: dict[str, int] = {}
    every = [name for name, one in getmembers(QueueMachine) if hasattr(one, RULE_MARKER)]
    hidden = dict.fromkeys(name for name in every if rules and name not in rules)
    machine = type("Machine", (QueueMachine,), hidden | {"wire": wire, "counts": counts})
    run_state_machine_as_test(
        with_seed(seed)(machine),
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            database=None,
            phases=phases,
            print_blob=True,
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        ),
    )
    return counts
