"""`fairlane forward`: sends the messages of a list to a list on another Redis, in order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import click

from fairlane.cli.options import log_format_option, time_ms
from fairlane.errors import InvalidArgument

if TYPE_CHECKING:
    from fairlane.lists.service import ListAddress


@click.command("forward", short_help="Send the messages of a list to another Redis, in order.")
@click.option(
    "--from",
    "source",
    metavar="URL/LIST",
    required=True,
    help="The list that is forwarded, such as redis://here:6379/0/orders.",
)
@click.option("--to", "target", metavar="URL/LIST", help="The list that gets the messages.")
@click.option(
    "--lease",
    metavar="TIME",
    default="10s",
    show_default=True,
    help="How long after the death of the active forwarder another one goes on.",
)
@click.option(
    "--metrics",
    "metrics",
    metavar="TIME",
    default="60s",
    show_default=True,
    help="Log the count and the lag in this interval.",
)
@click.option(
    "--lag",
    "shows_lag",
    is_flag=True,
    help="Print how far it is, and end. With --to, a batch "
    "that has just landed counts as forwarded.",
)
@click.option("--until-idle", is_flag=True, help="End when no message is left.")
@log_format_option
def command(
    *,
    source: str,
    target: str | None,
    lease: str,
    metrics: str,
    shows_lag: bool,
    until_idle: bool,
    log_format: Literal["text", "json"],
) -> int:
    """Send the messages of the list --from to the list --to, until SIGTERM or Ctrl-C.

    The last part of a URL is the list; %2F is a slash in its name. Run it several times: one of
    them is active, the others wait. The target gets each message once and in order, also if
    forwarders are killed and replies are lost.
    """
    from fairlane.cli.log import log_to_stderr
    from fairlane.lists.forward import Forwarder
    from fairlane.lists.service import list_address

    log_to_stderr("info", log_format)
    begin = list_address("--from", source)
    end = None if target is None else list_address("--to", target)
    if shows_lag:
        return _print_lag(begin, end)
    if end is None:
        raise InvalidArgument("--to is missing: name the list that gets the messages")
    lease_ms = time_ms("--lease", lease, "1s", "1h")
    metrics_ms = time_ms("--metrics", metrics, "1s", "24h")
    forwarder = Forwarder(
        begin,
        end,
        lease_s=lease_ms / 1000,
        metrics_interval=metrics_ms / 1000,
    )
    forwarder.run(until_idle=until_idle)
    return 0


def _print_lag(source: ListAddress, target: ListAddress | None) -> int:
    from fairlane.cli.output import note, write_line
    from fairlane.common.text import plural
    from fairlane.lists.forward import state_of
    from fairlane.operations.lists import REASONS

    state = state_of(source, target)
    lease = f"lease of {state.owner}" if state.owner else "no forwarder is active"
    write_line(f"lag {state.lag}, forwarded {state.forwarded}, {lease}")
    if state.restarts:
        times = plural(state.restarts, "time")
        note(f"the numbers began again {times}: last, {REASONS[state.reason]}")
    return 0
