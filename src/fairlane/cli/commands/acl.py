"""`fairlane acl`: least-privilege users of Redis for the roles, as rules to load."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fairlane.cli.options import json_option
from fairlane.cli.output import note, write_json, write_line
from fairlane.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterable

VARIABLE = "FAIRLANE_PASSWORD_"  # and the role in capitals
# No server takes this for a hash: it cannot become a valid password.
PLACEHOLDER = "#SHA256-OF-THE-PASSWORD"
PREFIX = "fairlane-"
_FORMS = {"aclfile": "user {} {}", "commands": "ACL SETUSER {} reset {}"}


@click.command("acl", short_help="Print Redis users with the least rights, as ACL rules.")
@click.argument("roles", metavar="[ROLE]...", nargs=-1)
@click.option(
    "--queue", metavar="NAME", help="The only queue they may dispatch in.  [default: every queue]"
)
@click.option(
    "--key", "patterns", metavar="PATTERN", multiple=True,
    help="Keys of the role lists, such as 'orders:*'; may be repeated.  [default: none]",
)  # fmt: skip
@click.option(
    "--format", "form", type=click.Choice([*_FORMS]), default="aclfile", show_default=True,
    help="Lines of an aclfile, or commands for redis-cli.",
)  # fmt: skip
@click.option(
    "--server", metavar="VERSION", default="7.0", show_default=True,
    help="The version of Redis they are for, such as 7.0 or 7.2.",
)  # fmt: skip
@click.option(
    "--user-prefix", "prefix", metavar="TEXT", default=PREFIX, show_default=True,
    help="The beginning of the users' names.",
)  # fmt: skip
@click.option(
    "--password-file", "file", metavar="FILE", type=click.Path(path_type=Path),
    help=f"Lines ROLE=PASSWORD. Without it, ${VARIABLE}PRODUCER and so on are read.",
)  # fmt: skip
@json_option
def command(
    roles: tuple[str, ...],
    queue: str | None,
    patterns: tuple[str, ...],
    form: str,
    server: str,
    prefix: str,
    file: Path | None,
    as_json: bool,
) -> int:
    """Print a user for each ROLE, or for all of them.

    ROLE is producer, worker, maintenance, monitor, lists, topics, server or deployer. It may be
    several joined by a +, for a user that is all of these. Passwords are printed as hashes. A user
    without a password gets a placeholder that no server accepts. The command connects to no server.
    """
    from fairlane.protocol.acl import ROLES, rules, version

    known = version(server)
    for pattern in patterns:
        if not pattern or not pattern.isprintable() or " " in pattern:
            raise InvalidArgument(
                f"--key {pattern!r} is not valid: a pattern without spaces is needed"
            )
    made = {role: rules(role, queue, server=known, patterns=patterns) for role in roles or ROLES}
    _check_prefix(prefix)
    passwords = _from_file(file, ROLES) if file else _from_environment(made)
    for role, found in made.items():
        name = prefix + role.replace("+", "-")
        words = ["on", _hashed(passwords[role]) if role in passwords else PLACEHOLDER, *found]
        if as_json:
            write_json({"user": name, "role": role, "rules": words})
        else:
            write_line(_FORMS[form].format(name, " ".join(words)))
    if not patterns and any("lists" in role.split("+") for role in made):
        note("the role lists has no key: --key 'orders:*' names those of your lists")
    _note_next_steps([role for role in made if role not in passwords])
    return 0


def _note_next_steps(without: list[str]) -> None:
    if without:
        note(
            f"no password for {', '.join(without)}: where it says {PLACEHOLDER[1:]} put what "
            '`printf %s "$PASSWORD" | sha256sum` prints, or name --password-file'
        )
    note("the user default stays as it is: turn it off when every program has another user")


def _check_prefix(prefix: str) -> None:
    if not all(part.isprintable() and not part.isspace() for part in prefix):
        raise InvalidArgument(f"--user-prefix {prefix!r} is not valid: no spaces are expected")


def _from_environment(roles: Iterable[str]) -> dict[str, str]:
    found = {role: os.environ.get(VARIABLE + _variable(role), "") for role in roles}
    return {role: password for role, password in found.items() if password}


def _variable(role: str) -> str:
    return role.upper().replace("+", "_")


def _from_file(file: Path, known: Iterable[str]) -> dict[str, str]:
    """Returns the passwords of a file. An error names a line by its number, never by its text."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no UTF-8 text"
        raise InvalidArgument(f"--password-file {file} cannot be read: {reason}") from None
    found = {}
    for number, line in enumerate(lines, 1):
        role, _, password = line.partition("=")
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if not set(role.strip().split("+")) <= set(known) or not password:
            raise InvalidArgument(
                f"--password-file {file}, line {number}: ROLE=PASSWORD is expected, and one of "
                f"the roles {', '.join(known)}"
            )
        if role.strip() in found:
            raise InvalidArgument(
                f"--password-file {file}, line {number}: role {role.strip()} is given twice: "
                "give it once"
            )
        found[role.strip()] = password
    return found


def _hashed(password: str) -> str:
    import hashlib

    return "#" + hashlib.sha256(password.encode()).hexdigest()
