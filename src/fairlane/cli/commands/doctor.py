"""`fairlane doctor`: problems with this Redis and this queue, how to fix them, and their repair."""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import TYPE_CHECKING

import click

from fairlane.cli.options import json_option, open_queue, queue_option, redis_option
from fairlane.cli.output import note, write_json, write_line

if TYPE_CHECKING:
    from fairlane.drivers.sync import SyncDriver
    from fairlane.operations.check_result import Finding

PATIENCE_S, TIMEOUT_S = 1.0, 4.0  # a diagnosis must not take long
_MOST = 10  # lines of one kind; an outage may damage every request


@click.command("doctor", short_help="Show problems with a Redis and a queue, and repair damage.")
@click.option("--repair", is_flag=True, help="Repair the damage for which there is a repair.")
@queue_option
@json_option
@redis_option
def command(redis: str | None, queue: str, repair: bool, as_json: bool) -> int:
    """Check a Redis, its settings, the workers, and every request of a queue.

    Print a line for each check and each problem: ok, note, warn or bad. Then print how to fix them.
    Nothing is changed without --repair. Workers may run meanwhile. Exit code 1 if something bad is
    left, 5 if no server answers, or if --repair is given and the server is unfit for a queue.
    """
    from fairlane.common import clock
    from fairlane.operations.doctor import examine

    report = _Report(as_json=as_json)
    with contextlib.closing(_driver(redis, queue, repair=repair)) as driver:
        for part in examine(queue, clock.mono_s, clock.wall_ms):
            for finding in driver.run(part):
                if repair:
                    driver.run(finding.apply())
                report.add(finding)
    report.end(queue)
    return 1 if report.count["left"] else 0


def _driver(redis: str | None, queue: str, *, repair: bool) -> SyncDriver:
    """Returns a driver that examines an unfit server as well; a repair needs a fit one.

    It does not wait for a Redis that is away, because its absence is a finding.
    """
    from fairlane.drivers.sync import SyncDriver

    driver = open_queue(redis, queue, check=False).driver
    if repair:
        driver.check()
        return driver
    return SyncDriver(driver.url, patience_s=PATIENCE_S, timeout_s=TIMEOUT_S, checks_fitness=False)


class _Report:
    """Prints findings as they come, then what to do."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self.count: Counter[str] = Counter()
        self._lines: Counter[tuple[str, str]] = Counter()
        self._advice: dict[str, None] = {}
        self._pages: dict[str, None] = {}

    def add(self, finding: Finding) -> None:
        """Prints one finding, unless there are many of its kind."""
        state = "fixed" if finding.is_fixed else finding.severity
        self.count[finding.severity] += 1
        self.count["fixed"] += finding.is_fixed
        self.count["left"] += finding.is_left
        if self._as_json:
            write_json(_as_json(finding, state))
            return
        self._lines[state, finding.check] += 1
        if self._lines[state, finding.check] <= _MOST:
            subject = f"{finding.subject}  " if finding.subject else ""
            write_line(f"{state:<6}  {finding.check:<14}  {subject}{finding.what}")
        if finding.remedy and not finding.is_fixed:
            how = "--repair: " if finding.repair else ""
            self._advice[f"remedy  {finding.check:<14}  {how}{finding.remedy}"] = None
            if finding.see:
                self._pages.setdefault(finding.see)

    def end(self, queue: str) -> None:
        """Prints what was not printed, what to do and the counts."""
        for (state, check), count in self._lines.items():
            if count > _MOST:
                write_line(f"{state:<6}  {check:<14}  and {count - _MOST:,} more (--json has all)")
        if self._advice:
            write_line("")
        for line in self._advice:
            write_line(line)
        for page in self._pages:
            write_line(f"see     {page}")
        from fairlane.common.text import plural

        names = {"bad": "bad", "fixed": "fixed", "left": "bad and left"}
        counts = ", ".join(f"{self.count[key]:,} {name}" for key, name in names.items())
        counts += f", {plural(self.count['warn'], 'warning')}"
        note(f"queue {queue}: {counts}")


def _as_json(finding: Finding, state: str) -> dict[str, str | bool | None]:
    return {
        "state": state,
        "check": finding.check,
        "subject": finding.subject or None,
        "what": finding.what,
        "remedy": finding.remedy or None,
        "see": finding.see or None,
        "can_repair": finding.repair is not None,
    }
