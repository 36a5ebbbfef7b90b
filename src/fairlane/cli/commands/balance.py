"""`fairlane balance`: pushes each line to the shortest of several lists."""

from __future__ import annotations

from itertools import chain

import click

from fairlane.cli.options import FILE, json_option, redis_option, url_of


@click.command("balance", short_help="Push each line to the shortest of several lists.")
@click.argument("file", metavar="[FILE]", type=FILE, default="-")
@click.option(
    "--out",
    "outs",
    metavar="LIST",
    multiple=True,
    required=True,
    help="One of the lists; repeat it for each of them.",
)
@json_option
@redis_option
def command(*, file: str, outs: tuple[str, ...], as_json: bool, redis: str | None) -> int:
    """Push each line of FILE (- is stdin) to the list that is the shortest at that moment.

    Prints how many lines each list got. `fairlane fanout --to shortest` does the same for
    the messages of a list, for ever.
    """
    from fairlane.cli.driver import CommandDriver
    from fairlane.cli.input_lines import open_source
    from fairlane.cli.output import write_json, write_line
    from fairlane.lists.balancer import Balancer

    driver = CommandDriver(url_of(redis))
    with Balancer(driver, outs) as balancer, open_source(file) as source:
        driver.greet()
        counts = balancer.push_many(chain.from_iterable(source.blocks()))
    for name in balancer.names:
        count = counts.get(name, 0)
        if as_json:
            write_json({"list": name, "pushed": count})
        else:
            write_line(f"{name} {count}")
    return 0
