"""`fairlane token`: creates, lists and revokes the bearer tokens of `fairlane serve`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from fairlane.cli.options import FILE, json_option, time_ms
from fairlane.cli.output import note, table, write_json, write_line, write_styled
from fairlane.cli.program import CommandGroup

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairlane.web.access import AccessToken, TokenFile

_HEAD = ("ID", "NAME", "SCOPES", "KEYS", "CREATED", "EXPIRES")
_SCOPES = (
    "counts",
    "view",
    "submit",
    "consume",
    "operate",
    "admin",
)  # web/access.py, which imports more
_WHEN = "%Y-%m-%d %H:%M"


@click.group("token", cls=CommandGroup, short_help="Create, list or revoke bearer tokens of serve.")
def command() -> None:
    """Create, list or revoke the bearer tokens of fairlane serve.

    A file keeps a hash of each token, its name and its scopes. As soon as the file exists, each
    call needs a token. A running server notices a change.
    """


def _file_option(function: Callable[..., Any]) -> Callable[..., Any]:
    text = "The file of tokens.  [default: $FAIRLANE_TOKENS, else tokens.json in the data folder]"
    return click.option("--file", type=FILE, metavar="FILE", help=text)(function)


@command.command("create", short_help="Create a token, and print it once.")
@click.argument("name")
@click.option("--scope", "scopes", type=click.Choice(_SCOPES), multiple=True, required=True,
              help="What its owner may do; may be given again. admin: everything.")  # fmt: skip
@click.option("--expires", metavar="TIME", help="It is valid for so long.  [default: for ever]")
@click.option("--key", "keys", metavar="NAME|BEGINNING*", multiple=True,
              help="A key of limits, order or rate that it may name, as acme-*; may be repeated.  "
              "[default: all with the scope operate, else none]")  # fmt: skip
@_file_option
@json_option
def create(
    name: str,
    scopes: tuple[str, ...],
    expires: str | None,
    keys: tuple[str, ...],
    file: str | None,
    as_json: bool,
) -> int:
    """Create the token NAME, and print it. It is not kept: only its hash is.

    counts: read counts, states, names, times and kinds of errors, but no data: neither bodies nor
    results, arguments or texts of errors. view: read everything. submit: submit requests, and
    read their state and results. consume: take and settle sub-requests. operate: what view reads,
    and cancel, pause, change and requeue.
    """
    expires_s = None if expires is None else time_ms("--expires", expires, "1s", "3660d") / 1000
    made, text = _tokens(file).create(name, scopes, expires_s, keys)
    if as_json:
        write_json({**_fields(made), "token": text})
    else:
        write_line(text)
    return 0


@command.command("list", short_help="List the tokens: names and scopes, not the tokens.")
@_file_option
@json_option
def list_(file: str | None, as_json: bool) -> int:
    """List the tokens with their scopes."""
    tokens = _tokens(file)
    found = tokens.all()
    if as_json:
        for one in found:
            write_json(_fields(one))
    elif found:
        for line in table(_HEAD, [_cells(one) for one in found]):
            write_styled(line)
    else:
        note(f"{tokens.path} has no tokens")
    return 0


@command.command("revoke", short_help="Revoke a token: no call succeeds with it any more.")
@click.argument("token_id", metavar="ID")
@_file_option
def revoke(token_id: str, file: str | None) -> int:
    """Revoke the token ID, as fairlane token list shows it. Exit code 3: there is none."""
    _tokens(file).revoke(token_id)
    write_line("revoked")
    return 0


def _tokens(file: str | None) -> TokenFile:
    from fairlane.web.access import TokenFile, tokens_path

    return TokenFile(tokens_path(file))


def _cells(one: AccessToken) -> tuple[str, ...]:
    expires = one.expires.strftime(_WHEN) if one.expires else "never"
    scopes, keys = ",".join(one.scopes), ",".join(one.keys) or "-"
    return (one.id, one.name, scopes, keys, one.created.strftime(_WHEN), expires)


def _fields(one: AccessToken) -> dict[str, Any]:
    return {
        "id": one.id,
        "name": one.name,
        "scopes": list(one.scopes),
        "keys": list(one.keys),
        "created": one.created.isoformat(),
        "expires": one.expires.isoformat() if one.expires else None,
    }
