"""Runs the machine on one server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import HealthCheck, Phase, settings
from hypothesis import seed as with_seed
from hypothesis.stateful import run_state_machine_as_test

from tests.model.machine import QueueMachine

if TYPE_CHECKING:
    from tests.model.wire import Wire

FIND_ONLY = (Phase.generate,)
ALSO_SHRINK = (Phase.generate, Phase.shrink)


def play(
    wire: Wire,
    seed: int,
    *,
    examples: int = 100,
    steps: int = 50,
    phases: tuple[Phase, ...] = ALSO_SHRINK,
) -> dict[str, int]:
    """Plays so many examples of so many steps; returns what was counted.

    The same seed does the same again. A failure prints the fewest steps that lead to it.
    """
    counts: dict[str, int] = {}
    machine = type("Machine", (QueueMachine,), {"wire": wire, "counts": counts})
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
