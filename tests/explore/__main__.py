"""Explores small systems and prints the figures: `python -m tests.explore [system ...]`.

Without a name it explores all but the huge ones. `small` to `huge` (see SYSTEMS) are names, too.
"""

from __future__ import annotations

import logging
import sys
from collections import Counter
from typing import TYPE_CHECKING

from tests.explore.lists import LISTS
from tests.explore.machinery.explorer import TooLarge, Violation
from tests.explore.machinery.runs import explore
from tests.explore.systems import (
    BEGUN_BEFORE,
    BY_NAME,
    DELETED,
    DISTINCTS,
    DURABLES,
    FLOWS,
    HUGE,
    KEYED,
    LARGE,
    MIDDLE,
    OPENS,
    PAUSED,
    PROGRAMS,
    RATES,
    REOPENS,
    SEVERAL,
    SHARDED,
    SHARED,
    SMALL,
    UNIQUES,
)
from tests.support.output import say
from tests.support.servers import server_process

if TYPE_CHECKING:
    from tests.explore.machinery.explorer import System
    from tests.support.servers.server_process import Server

GROUPS = {
    "small": SMALL,
    "middle": MIDDLE,
    "large": LARGE,
    "shared": SHARED,
    "reopens": REOPENS,
    "deletions": DELETED,
    "sharded": SHARDED,
    "durables": DURABLES,
    "flows": FLOWS,
    "lists": LISTS,
    "several": SEVERAL,
    "uniques": UNIQUES,
    "distincts": DISTINCTS,
    "rates": RATES,
    "paused": PAUSED,
    "programs": PROGRAMS,
    "opens": OPENS,
    "begun before": BEGUN_BEFORE,
    "keyed": KEYED,
    "huge": HUGE,
}


def chosen(words: list[str]) -> list[System]:
    found: list[System] = []
    for word in words or [group for group in GROUPS if group != "huge"]:
        if word not in GROUPS and word not in BY_NAME:
            names = "\n".join([*GROUPS, *BY_NAME])  # names have commas
            raise SystemExit(f"there is no system {word!r}; there are:\n{names}")
        found += GROUPS.get(word) or [BY_NAME[word]]
    return found


def explored(server: Server, system: System, total: Counter[str], *, in_stream: bool) -> None:
    try:
        report = explore(server, system, in_stream=in_stream)
    except (Violation, TooLarge) as found:
        total["violations"] += 1
        say(f"VIOLATION {found}")
        return
    say(str(report))
    total.update(systems=1, states=report.states, steps=report.steps, ends=report.ends)
    total["seconds"] += round(report.seconds)


def main() -> int:
    logging.disable()  # a worker warns of what a replica does not confirm
    total: Counter[str] = Counter()
    systems = chosen(sys.argv[1:])
    twice = [system for system in systems if system in (*SMALL, *MIDDLE)]
    with server_process.run_server("single") as server:
        for in_stream, some in ((False, systems), (True, twice)):
            if in_stream and some:
                say("the small and middle ones again, with streams from the start:")
            for system in some:
                explored(server, system, total, in_stream=in_stream)
    say(
        f"{total['systems']} systems: {total['states']:,} states, {total['steps']:,} steps, "
        f"{total['ends']:,} ends, {total['violations']} violations, {total['seconds']} s"
    )
    return 1 if total["violations"] else 0


if __name__ == "__main__":
    sys.exit(main())
