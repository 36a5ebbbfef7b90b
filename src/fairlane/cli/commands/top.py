"""`fairlane top`: a queue in a terminal, as it is now."""

from __future__ import annotations

import sys
from importlib.util import find_spec

import click

from fairlane.cli.options import open_queue, queue_option, redis_option, time_ms, url_of
from fairlane.errors import InvalidArgument

MISSING = "fairlane top needs the extra top: pip install '.[top]' in a clone of the repository"
_PATIENCE_S = 2.0  # of a look; then a banner says that Redis does not answer


@click.command("top", short_help="Watch a queue in this terminal.")
@click.option("--every", default="1s", show_default=True, metavar="TIME",
              help="The time between two looks.")  # fmt: skip
@queue_option
@redis_option
def command(every: str, queue: str, redis: str | None) -> int:
    """Watch a queue in this terminal until q is pressed: rates, lanes, requests and workers.

    p holds the view, / filters, s sorts by the next column, w shows the workers. It only reads.
    """
    every_s = time_ms("--every", every, "100ms", "1h") / 1000
    if find_spec("textual") is None:
        raise InvalidArgument(MISSING)
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise InvalidArgument(
            "fairlane top needs a terminal: fairlane status prints how a queue stands"
        )
    with open_queue(redis, queue) as opened:
        name, place = opened.name, opened.driver.place
    from fairlane.cli.top import Top
    from fairlane.drivers.aio import AsyncDriver
    from fairlane.live import Poller
    from fairlane.operations.observe import snapshot

    driver = AsyncDriver(url_of(redis), patience_s=_PATIENCE_S)
    Top(Poller(lambda: driver.run(snapshot(name)), every_s=every_s), name, place).run()
    return 0
