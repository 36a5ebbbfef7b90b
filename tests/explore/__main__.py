"""`python -m tests.explore [system ...]`: explores and prints what was seen."""

from __future__ import annotations

import pkgutil
import sys
import tempfile
from typing import Any

import redis

from tests.support import servers

from .actors import install
from .explorer import Explorer, Violation
from .systems import BY_NAME
from .world import World


class Patch:
    """setattr with pytest's words; this process ends afterwards."""

    def setattr(self, target: Any, name: Any, value: Any = None) -> None:
        if isinstance(target, str):
            path, attribute = target.rsplit(".", 1)
            setattr(pkgutil.resolve_name(path), attribute, name)
        else:
            setattr(target, name, value)


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> int:
    failed = 0
    with tempfile.TemporaryDirectory(), servers.run_server("single") as server:
        client = redis.Redis.from_url(server.url, protocol=2)
        world = World(client)
        install(world.library, Patch())
        for name in sys.argv[1:] or BY_NAME:
            explorer = Explorer(world, BY_NAME[name])
            try:
                report = explorer.run()
            except Violation as found:
                failed = 1
                say(f"VIOLATION after {len(explorer.known):,} states\n{found}")
                continue
            say(
                f"{report.system}: {report.states:,} states, {report.steps:,} steps, "
                f"{report.ends:,} ends, {report.seconds:.0f} s; {dict(report.events)}"
            )
    return failed


if __name__ == "__main__":
    sys.exit(main())
