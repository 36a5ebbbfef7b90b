"""`fairlane fanout`: pushes each message of one list to several lists, as mpush did."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import click

from fairlane.cli.options import FILE, log_format_option, redis_option, url_of

if TYPE_CHECKING:
    from fairlane.lists.service import FanoutOptions

CONFIG_VARIABLE = "propsFile"  # as mpush has it


@click.command("fanout", short_help="Push each message of a list to several lists.")
@click.option("--in", "source", metavar="LIST", help="The list whose messages are taken.")
@click.option(
    "--out", "outs", metavar="LIST", multiple=True, help="A list that gets them; may be repeated."
)
@click.option(
    "--pending",
    metavar="LIST",
    help="Where a message is until all lists have it.  [default: LIST of --in, and :pending]",
)
@click.option(
    "--config",
    metavar="FILE",
    type=FILE,
    envvar=CONFIG_VARIABLE,
    help="A JSON file with the keys of mpush; options overrule it.  [default: $propsFile]",
)
@click.option(
    "--to",
    type=click.Choice(["all", "shortest"]),
    help="Which of the lists get a message.  [default: all]",
)
@click.option(
    "--pop-timeout",
    type=int,
    metavar="S",
    help="The longest time until it ends after SIGTERM, in seconds.  [default: 10]",
)
@click.option(
    "--namespace",
    metavar="TEXT",
    help="Where it registers itself and records messages, such as demo:mpush.  [default: nowhere]",
)
@click.option(
    "--message-timeout",
    type=int,
    metavar="S",
    help="Track messages: one that is not done after so many seconds is counted.",
)
@click.option(
    "--message-expire",
    type=int,
    metavar="S",
    help="Forget a message after so many seconds.  [default: 6 times --message-timeout]",
)
@click.option(
    "--metrics",
    "metrics_interval",
    type=int,
    metavar="S",
    help="Log what it did, and all lengths, every so many seconds.  [default: 60]",
)
@click.option("--lag", "shows_lag", is_flag=True, help="Print all lengths and services, and end.")
@click.option("--until-idle", is_flag=True, help="End when no message is left.")
@log_format_option
@redis_option
def command(
    *,
    config: str | None,
    redis: str | None,
    shows_lag: bool,
    until_idle: bool,
    log_format: Literal["text", "json"],
    **given: Any,
) -> int:
    """Push each message of the list --in to all lists --out, atomically, until SIGTERM or Ctrl-C.

    Programs push with LPUSH and take with BRPOP. Several fan-outs may share the lists. If one of
    them is killed, no message is lost, and none is doubled.
    """
    from fairlane.cli.log import log_to_stderr
    from fairlane.lists.fanout import Fanout
    from fairlane.lists.service import fanout_options, read_config

    read, url = read_config(config) if config else ({}, None)
    chosen = {name: value for name, value in given.items() if value not in (None, ())}
    options = fanout_options(chosen, read)
    where = redis or url or url_of(None)
    log_to_stderr("info", log_format)
    if shows_lag:
        return _print_lag(where, options)
    Fanout(where, options).run(until_idle=until_idle)
    return 0


def _print_lag(url: str, options: FanoutOptions) -> int:
    """Prints how many messages wait in each list, and the services of the namespace."""
    from fairlane.cli.durations import ago
    from fairlane.cli.output import write_line
    from fairlane.lists.fanout import state_of

    state = state_of(url, options)
    route = options.route
    write_line(f"{route.source} {state.backlog.waiting}")
    write_line(f"{route.pending} {state.backlog.pending}")
    for name, length in zip(route.outs, state.backlog.outs, strict=True):
        write_line(f"{name} {length}")
    for one in state.services:
        name = f"service {options.namespace}:{one.id}"
        if one.is_alive:
            write_line(f"{name} on {one.host}, pid {one.pid}, renewed {ago(one.age_ms)} ago")
        else:
            write_line(f"{name} has expired: the next service takes it off")
    return 0
