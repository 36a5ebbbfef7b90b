"""The commands for plain lists: fanout, forward, balance."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any, Literal

import click

from fairlane.cli.options import FILE, json_option, log_format_option, redis_option, time_ms, url_of
from fairlane.errors import InvalidArgument

if TYPE_CHECKING:
    from fairlane.lists.service import FanoutOptions, ListAddress


# ------------------------------------------------------------------ fanout


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
def fanout(
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
        return _print_lengths(where, options)
    Fanout(where, options).run(until_idle=until_idle)
    return 0


def _print_lengths(url: str, options: FanoutOptions) -> int:
    """Prints how many messages wait in each list, and the services of the namespace."""
    from fairlane.cli.output import ago, write_line
    from fairlane.lists.fanout import state_of as state_of_fanout

    state = state_of_fanout(url, options)
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


# ------------------------------------------------------------------ forward


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
def forward(
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
    from fairlane.lists.forward import state_of as state_of_forward
    from fairlane.operations.lists import REASONS

    state = state_of_forward(source, target)
    lease = f"lease of {state.owner}" if state.owner else "no forwarder is active"
    write_line(f"lag {state.lag}, forwarded {state.forwarded}, {lease}")
    if state.restarts:
        times = plural(state.restarts, "time")
        note(f"the numbers began again {times}: last, {REASONS[state.reason]}")
    return 0


# ------------------------------------------------------------------ balance


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
def balance(*, file: str, outs: tuple[str, ...], as_json: bool, redis: str | None) -> int:
    """Push each line of FILE (- is stdin) to the list that is the shortest at that moment.

    Prints how many lines each list got. `fairlane fanout --to shortest` does the same for
    the messages of a list, for ever.
    """
    from fairlane.cli.driver import CommandDriver
    from fairlane.cli.files import open_source
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
