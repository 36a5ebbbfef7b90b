"""Reads the URL of a Redis: the servers it names, each connection's options, with or without TLS.

`redis://` and `unix://` are read as redis-py reads them. A cluster or a Sentinel's master has many
hosts, the same credentials and the same options behind a `?`; `rediss` for `redis` means TLS.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple
from urllib.parse import parse_qsl, unquote, unquote_plus, urlsplit

import redis

from fairlane.drivers.error_mapping import NO_TLS
from fairlane.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable


SCHEMES = (
    "redis",
    "rediss",
    "unix",
    "redis+cluster",
    "rediss+cluster",
    "redis+sentinel",
    "rediss+sentinel",
)
# A sentinel has no db, and its credentials differ from those of the servers it watches.
OF_KEYS = frozenset({"db", "username", "password"})
# Up to the last @, because a password may contain any character; a user may be missing.
_SECRET = re.compile(r"(://(?:[^:@/]*:)?).*@")
_HOSTS = r"[\w.-]+(?::\d+)?(?:,[\w.-]+(?::\d+)?)*"
# These hold no password: hosts with a master and a database.
_PLAIN = re.compile(rf"[a-z+]+://{_HOSTS}(/[\w.-]+)?(/\d+)?", re.ASCII)
# Credentials without a second @, a / or a #: they end at the @, and the options begin at the ?.
_LOGIN = r"(?:[^@/#:]*:?[^@/#:]*@)?"
_SOUND = re.compile(
    rf"[a-z+]+://{_LOGIN}{_HOSTS}(/[\w.-]+)?(/\d+)?/?|unix://{_LOGIN}(/[\w.-]*)*", re.ASCII
)
_PLAIN_VALUE = re.compile(r"[\w./+-]*", re.ASCII)
_PLAIN_NAME = re.compile(r"[a-z_]{1,40}")
_PLAIN_PATH = re.compile(r"/[^;=:]*|/[^;=@]*")  # of a socket; with : and @ it may be credentials
_DATABASE = re.compile(r"/*[0-9]{1,9}/*")
_MASTER = re.compile(r"[\w.-]+", re.ASCII)  # as a Sentinel allows it
_YES_NO = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


Address = tuple[str, int]


def address(text: str) -> Address:
    """Reads `host:port`. Raises InvalidArgument."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit():
        raise InvalidArgument(f"Redis node {text!r} is not valid: host:port is expected")
    return host.strip("[]"), int(port)  # [::1] is ::1


class Target(NamedTuple):
    """The parts of a URL."""

    kind: Literal["one", "cluster", "sentinel"]
    is_secure: bool
    options: dict[str, Any]  # of each connection to a server that holds keys
    rest: str = ""  # one: the URL without its query
    hosts: tuple[Address, ...] = ()  # cluster: nodes to ask; sentinel: the sentinels
    master: str = ""
    guards: tuple[tuple[str, str], ...] = ()  # sentinel: the credentials of the sentinels

    def __repr__(self) -> str:
        """Shows no password."""
        return f"<Target {self.kind}>"


def hide_secret(url: str) -> str:
    """Returns the URL without its passwords, for messages."""
    # The query first: a password there may hold an @, too.
    rest, mark, query = url.partition("?")
    shown = "&".join(map(_shown_option, query.split("&")))
    return _SECRET.sub(r"\1***@", rest + mark + shown)


def _shown_option(text: str) -> str:
    name, mark, value = text.partition("=")
    is_secret = "password" in unquote_plus(name) or not _PLAIN_VALUE.fullmatch(value)
    return name + mark + ("***" if is_secret else value)


def read(url: str) -> Target:
    """Reads `url`. Raises InvalidArgument, which shows no password."""
    scheme = url.partition("://")[0]  # urlsplit refuses some passwords with a [
    if scheme not in SCHEMES:
        known = ", ".join(f"{name}://" for name in SCHEMES)
        raise _invalid(url, f"it begins with one of {known}, as in redis://127.0.0.1:6379")
    if not url.isprintable():  # urlsplit drops some of these characters
        raise _invalid(url, "%20 for a space, %0A for a newline and so on is expected")
    family, _, kind = scheme.partition("+")
    secure = family == "rediss"
    if not kind:
        return _one(url, is_secure=secure)
    before, _, query = url.split("://", 1)[1].partition("?")
    if "@" in query:
        raise _invalid(url, "%40 for an @ and %3F for a ? is expected in a password or an option")
    credentials, _, place = before.rpartition("@")
    user, _, password = credentials.partition(":")
    options = _options(url, query, is_secure=secure)
    guards = tuple(
        (name.removeprefix("sentinel_"), options.pop(name))
        for name in ("sentinel_username", "sentinel_password")
        if name in options
    )
    if password:
        options |= {"password": unquote(password)} | ({"username": unquote(user)} if user else {})
    if kind == "cluster":
        if guards or options.pop("db", 0):
            raise _invalid(url, "a cluster has no sentinels, and one database only")
        return Target("cluster", secure, options, hosts=_hosts(url, place.strip("/")))
    return _sentinel(url, place, Target("sentinel", secure, options, guards=guards))


def _one(url: str, *, is_secure: bool) -> Target:
    rest, _, query = url.partition("?")
    if not _is_plain(rest):
        raise _invalid(
            url, "scheme://host:port/db is expected, and %2F for a / and %3F for a ? in a password"
        )
    options = _options(url, query, is_secure=is_secure)
    if any(name.startswith("sentinel_") for name in options):
        raise _invalid(url, "it names no sentinels")
    return Target("one", is_secure, options, rest=rest)


def _is_plain(rest: str) -> bool:
    """Returns False if redis-py would take a part of the password for the host, and show it."""
    try:
        parts = urlsplit(rest)
        _ = parts.port  # raises if it is no number
    except ValueError:  # its text may hold a part of the password
        return False
    if parts.fragment:
        return False
    if parts.scheme == "unix":  # credentials end with an @, and no host is between it and the path
        host = parts.netloc.rpartition("@")[2]
        return not host and _PLAIN_PATH.fullmatch(parts.path) is not None
    return not parts.path.strip("/") or _DATABASE.fullmatch(parts.path) is not None


def _sentinel(url: str, place: str, target: Target) -> Target:
    """Reads `h:p,h:p/master[/db]`."""
    hosts, _, path = place.partition("/")
    master, _, db = path.partition("/")
    if not _MASTER.fullmatch(master):
        raise InvalidArgument(
            "a redis+sentinel:// URL names its master: redis+sentinel://host:26379/mymaster"
        )
    if db:
        if not db.isdigit():
            raise _invalid(url, "behind the master stands the number of a database")
        target.options["db"] = int(db)
    return target._replace(hosts=_hosts(url, hosts), master=master)


def _hosts(url: str, text: str) -> tuple[Address, ...]:
    try:
        return tuple(address(part) for part in text.split(","))
    except InvalidArgument:  # its text has the node, which may be a part of the password
        raise _invalid(url, "host:port is expected for each node") from None


# ------------------------------------------------------------------ options behind the ?


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise ValueError("a whole number is expected")
    return int(text)


def _yes_no(text: str) -> bool:
    if text.lower() not in _YES_NO:
        raise ValueError("true or false is expected")
    return _YES_NO[text.lower()]


def _file(text: str) -> str:
    if not Path(text).is_file():
        raise ValueError("there is no such file")
    return text


def _requirement(text: str) -> str:
    if text not in {"none", "optional", "required"}:
        raise ValueError("it is none, optional or required")
    return text


_OPTIONS: dict[str, Callable[[str], Any]] = {
    "db": _number,
    "username": str,
    "password": str,
    "client_name": str,
    "sentinel_username": str,
    "sentinel_password": str,
    "ssl_ca_certs": _file,
    "ssl_certfile": _file,
    "ssl_keyfile": _file,
    "ssl_password": str,
    "ssl_cert_reqs": _requirement,
    "ssl_check_hostname": _yes_no,
    "ssl_ciphers": str,
}


def _options(url: str, query: str, *, is_secure: bool) -> dict[str, Any]:
    """Reads the options of a URL; none of them changes how this package uses Redis."""
    options: dict[str, Any] = {}
    is_sound = _SOUND.fullmatch(url.partition("?")[0]) is not None
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name in options:
            raise _invalid(url, f"its option {name} is given twice: give it once")
        read_value = _OPTIONS.get(name)
        if read_value is None:
            shown = f" {name!r}" if is_sound and _PLAIN_NAME.fullmatch(name) else ""
            raise _invalid(url, f"its option{shown} is none of {', '.join(_OPTIONS)}")
        if name.startswith("ssl_") and not is_secure:
            raise _invalid(url, f"{name} needs a secure connection, rediss instead of redis")
        try:
            options[name] = read_value(value)
        except ValueError as error:
            shown = f" {value!r}" if is_sound and _PLAIN_VALUE.fullmatch(value) else ""
            raise _invalid(url, f"{name}{shown}: {error}") from None
    if is_secure:  # older redis-py does not check the host's name
        options.setdefault("ssl_check_hostname", options.get("ssl_cert_reqs") != "none")
    return options


def _invalid(url: str, why: str) -> InvalidArgument:
    """Returns the error for a URL. It shows little, because the password may end anywhere."""
    scheme, mark, _ = url.partition("://")
    if _PLAIN.fullmatch(url):
        shown = f" {url!r}"
    else:
        is_word = mark and scheme.replace("+", "").isalpha()
        shown = f" {scheme}://..." if is_word and get_close_matches(scheme, SCHEMES) else ""
    return InvalidArgument(f"Redis URL{shown} is not valid: {why}")


# ------------------------------------------------------------------ TLS probe
# Detects a server that answers without TLS. One with TLS refuses a plain PING, or hangs up.
#
# A Redis without TLS reads the beginning of a TLS handshake as the beginning of a command, and
# waits for its end. So the first handshake has a short timeout, after which a plain PING decides.


GREETING_S = 1.0  # of the first handshake, and of the reply to the plain PING
_PING = b"PING\r\n"
_REPLIES = (b"+", b"-")


def greeting_options(options: dict[str, Any]) -> dict[str, Any]:
    """Returns the options of a connection whose handshake has a short timeout."""
    timeout_s = min(GREETING_S, options.get("socket_timeout") or GREETING_S)
    return options | dict.fromkeys(("socket_timeout", "socket_connect_timeout"), timeout_s)


def refuse_plain(options: dict[str, Any]) -> None:
    """Raises ConnectionError if the server answers a plain PING."""
    place, timeout_s = _place(options)
    reply = b""
    with contextlib.suppress(OSError), socket.create_connection(place, timeout_s) as line:
        line.sendall(_PING)
        reply = line.recv(1)
    _judge(reply)


async def refuse_plain_async(options: dict[str, Any]) -> None:
    """Raises ConnectionError if the server answers a plain PING."""
    place, timeout_s = _place(options)
    reply, writer = b"", None
    try:
        with contextlib.suppress(OSError):
            async with asyncio.timeout(timeout_s):
                reader, writer = await asyncio.open_connection(*place)
                writer.write(_PING)
                reply = await reader.read(1)
    finally:
        if writer is not None:
            writer.transport.abort()
    _judge(reply)


def _place(options: dict[str, Any]) -> tuple[tuple[str, int], float]:
    place = options.get("host", "localhost"), int(options.get("port", 6379))
    return place, greeting_options(options)["socket_timeout"]


def _judge(reply: bytes) -> None:
    if reply in _REPLIES:
        raise redis.exceptions.ConnectionError(NO_TLS)
