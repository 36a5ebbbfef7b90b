"""`fairlane fsck`: searches a queue for damage, and repairs it with --repair."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from fairlane.cli.options import json_option, open_queue, queue_option, redis_option
from fairlane.cli.output import note, write_json, write_line

if TYPE_CHECKING:
    from fairlane.operations.diagnosis.finding import Finding


@click.command("fsck", short_help="Search a queue for damage, and repair it.")
@click.option("--repair", is_flag=True, help="Repair each finding.")
@queue_option
@json_option
@redis_option
def command(redis: str | None, queue: str, repair: bool, as_json: bool) -> int:
    """Check a queue and each of its requests for damage.

    Print a line for each finding, with what --repair does about it. Workers may run meanwhile. Exit
    code 1 if something is left to repair.
    """
    from fairlane.operations.diagnosis.fsck import Walk

    counts = {"found": 0, "repaired": 0, "left": 0}
    with open_queue(redis, queue) as opened:
        walk = Walk(queue, repair=repair)
        while not walk.is_over:
            for finding in opened.driver.run(walk.page()):
                _show(finding, as_json=as_json)
                counts["found"] += not finding.is_harmless
                counts["repaired"] += finding.is_repaired
                counts["left"] += finding.is_left
    summary = ", ".join(f"{count:,} {word}" for word, count in counts.items())
    requests = "request" if walk.looked == 1 else "requests"
    note(f"looked at {walk.looked:,} {requests} of queue {queue}: {summary}")
    return 1 if counts["left"] else 0


def _show(finding: Finding, *, as_json: bool) -> None:
    state = "note" if finding.is_harmless else "repaired" if finding.is_repaired else "found"
    if as_json:
        write_json(
            {
                "state": state,
                "kind": finding.kind,
                "name": finding.name,
                "what": finding.what,
                "remedy": finding.remedy or None,
                "by_hand": finding.is_by_hand,
            }
        )
        return
    if finding.is_by_hand:
        remedy = f" (by hand: {finding.remedy})"
    elif finding.remedy:
        remedy = (
            f" -> {finding.remedy}" if finding.is_repaired else f" (--repair: {finding.remedy})"
        )
    else:
        remedy = ""
    write_line(f"{state:<8}  {finding.kind:<11}  {finding.name}  {finding.what}{remedy}")
