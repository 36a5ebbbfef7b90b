"""`fairlane doctor`: problems with this Redis and this queue, and how to fix them."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import click

from fairlane.cli.options import json_option, open_queue, queue_option, redis_option
from fairlane.cli.output import note, write_json, write_line

if TYPE_CHECKING:
    from fairlane.operations.diagnosis.server_checks import Check

PATIENCE_S, TIMEOUT_S = 1.0, 4.0  # a diagnosis must not take long


@click.command("doctor", short_help="Show problems with a Redis and a queue, and how to fix them.")
@queue_option
@json_option
@redis_option
def command(redis: str | None, queue: str, as_json: bool) -> int:
    """Check the Redis, its settings, the workers and the requests of a queue; nothing is changed.

    Print a line for each check: ok, warn or bad. Then print how to fix each problem. Exit code 1 if
    something is bad, 5 if no server answers.
    """
    from fairlane.common import clock
    from fairlane.drivers.sync.driver import SyncDriver
    from fairlane.operations.diagnosis.doctor import examine

    url = open_queue(redis, queue, check=False).driver.url
    # An unfit server is examined as well, instead of refused.
    driver = SyncDriver(url, patience_s=PATIENCE_S, timeout_s=TIMEOUT_S, checks_fitness=False)
    with contextlib.closing(driver):
        checks = driver.run(examine(queue, clock.mono_s, clock.wall_ms))
    if as_json:
        for check in checks:
            write_json(_as_json(check))
    else:
        _show(checks)
    count = {state: sum(check.state == state for check in checks) for state in ("warn", "bad")}
    note(f"{len(checks)} checks: {count['bad']} bad, {count['warn']} warnings")
    return 1 if count["bad"] else 0


def _as_json(check: Check) -> dict[str, str | None]:
    return {
        "state": check.state,
        "check": check.name,
        "what": check.what,
        "remedy": check.remedy or None,
    }


def _show(checks: list[Check]) -> None:
    width = max(len(check.name) for check in checks)
    for check in checks:
        write_line(f"{check.state:<4}  {check.name:<{width}}  {check.what}")
    remedies = [check for check in checks if check.remedy]
    if remedies:
        write_line("")
    for check in remedies:
        write_line(f"remedy  {check.name:<{width}}  {check.remedy}")
