"""Tests how a Redis URL is read, and what is never shown of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pytest

from fairlane.drivers.sync import Servers
from fairlane.drivers.urls import hide_secret, read
from fairlane.errors import FairlaneError, InvalidArgument
from fairlane.protocol.steps import Command
from fairlane.queue import Queue
from tests.support.operations.drivers import both, run
from tests.support.run.for_each import for_each
from tests.support.scripts.requests import once

if TYPE_CHECKING:
    from pathlib import Path


# ------------------------------------------------------------------ what is read


def test_a_sentinel_url_is_read_from_its_end():
    """A password may contain the separators."""
    found = read("redis+sentinel://u:p@/:,s@a:1,b:2/m/3")
    assert (found.kind, found.is_secure) == ("sentinel", False)
    assert (found.hosts, found.master) == ((("a", 1), ("b", 2)), "m")
    assert found.options == {"db": 3, "username": "u", "password": "p@/:,s"}


@for_each("end", ["a:1,b:2", "a:1/m"])
@for_each("text", ["redis", "rediss"])
def test_a_password_is_decoded_everywhere_as_redis_py_does(text: str, end: str):
    """An escaped @ in one kind of URL is decoded in the others, too."""
    scheme = "sentinel" if "/" in end else "cluster"
    found = read(f"{text}+{scheme}://u%40x:p%3F%25@{end}")
    assert found.options["username"] == "u@x"
    assert found.options["password"] == "p?%"


def test_a_password_may_stand_without_a_user():
    assert read("redis+cluster://:p@a:1").options == {"password": "p"}


def test_an_address_may_be_of_version_six():
    assert read("redis+cluster://[::1]:7000,b:1").hosts == (("::1", 7000), ("b", 1))


def test_the_sentinels_have_credentials_of_their_own():
    found = read("redis+sentinel://u:p@a:1/m?sentinel_username=s&sentinel_password=q")
    assert dict(found.guards) == {"username": "s", "password": "q"}
    assert found.options == {"username": "u", "password": "p"}


SECURE = ["rediss://h:1/0", "rediss+cluster://h:1,i:2", "rediss+sentinel://h:1/m"]


@pytest.mark.parametrize("url", SECURE)
def test_a_secure_connection_looks_at_the_certificate_and_its_name(url: str, tmp_path: Path):
    """The URL may change that; redis-py's default does not matter."""
    authority = tmp_path / "ca.crt"
    authority.touch()
    found = read(f"{url}?ssl_ca_certs={authority}")
    assert found.is_secure
    assert found.options == {"ssl_ca_certs": str(authority), "ssl_check_hostname": True}
    assert read(f"{url}?ssl_check_hostname=no").options == {"ssl_check_hostname": False}
    unchecked = read(f"{url}?ssl_cert_reqs=none").options
    assert unchecked == {"ssl_cert_reqs": "none", "ssl_check_hostname": False}


REFUSED = {
    "redis+cluster://a": "host:port is expected",
    "redis+cluster://a:1/2": "host:port is expected",
    "redis+cluster://a:1?db=1": "one database only",
    "redis+cluster://a:1?sentinel_password=q": "no sentinels",
    "redis+sentinel://a:1": "names its master",
    "redis+sentinel://a:1/m/x": "number of a database",
    "redis://a:1?sentinel_password=q": "names no sentinels",
    "redis://a:1?protocol=3": "'protocol' is none of db, username",
    "redis://a:1?decode_responses=True": "'decode_responses' is none of",
    "redis://a:1?socket_timeout=1": "'socket_timeout' is none of",
    "redis://a:1?db=x": "db 'x'",
    "redis://a:1?db=1&db=2": "its option db is given twice",
    "redis://a:1?ssl_cert_reqs=none": "rediss instead of redis",
    "rediss://a:1?ssl_cert_reqs=never": "none, optional or required",
    "rediss://a:1?ssl_check_hostname=perhaps": "true or false",
    "rediss+cluster://a:1?ssl_ca_certs=nowhere.crt": "'nowhere.crt': there is no such file",
    "redis+cluster://u:p?q@a:1": "%3F for a ?",
    "http://x": "is not valid",
    "x": "is not valid",
    "": "is not valid",
    "redis+tls://a:1": "it begins with one of redis://, rediss://",
    "redis://h:x": "is not valid",
    "redis://u:p@s/s@h:1": "%2F for a /",
    "unix://u:p/s@/run/r.sock": "is not valid",
}


@for_each("url", REFUSED)
def test_a_url_that_cannot_be_read_is_refused_before_a_connection(url: str):
    with pytest.raises(InvalidArgument) as raised:
        Servers(url, 1.0)
    assert REFUSED[url] in str(raised.value)


# ------------------------------------------------------------------ secrets


class Secret(NamedTuple):
    """A URL, and what may be shown of it."""

    url: str
    shown: str


SECRETS = [
    Secret("redis://h:1/0", "redis://h:1/0"),
    Secret("unix:///run/redis.sock", "unix:///run/redis.sock"),
    Secret("redis://u:TOP@SECRET@h:1/0", "redis://u:***@h:1/0"),
    Secret("redis://u:TOP/SECRET@h:1/0", "redis://u:***@h:1/0"),
    Secret("redis://:TOP/@:SECRET@h:1/0", "redis://:***@h:1/0"),
    Secret("rediss://u:TOP%40SECRET@h", "rediss://u:***@h"),
    Secret("redis://h:1/0?password=TOPSECRET", "redis://h:1/0?password=***"),
    Secret("redis://h:1/0?password=TOP@SECRET&db=2", "redis://h:1/0?password=***&db=2"),
    Secret("redis://u:TOP@h:1/0?password=SECRET", "redis://u:***@h:1/0?password=***"),
    Secret("redis://u:TOP@h:1/0?password=TOP@SECRET", "redis://u:***@h:1/0?password=***"),
    Secret("unix://u:TOP/SECRET@/run/r.sock", "unix://u:***@/run/r.sock"),
    Secret("unix:///run/r.sock?db=1&password=TOPSECRET", "unix:///run/r.sock?db=1&password=***"),
    Secret("unix:///run/r.sock?password=TOP@SECRET", "unix:///run/r.sock?password=***"),
    Secret("redis+sentinel://:TOP@/SECRET@a:1,b:2/m", "redis+sentinel://:***@a:1,b:2/m"),
    Secret("redis+sentinel://u:TOPSECRET@a:1/m/3", "redis+sentinel://u:***@a:1/m/3"),
    Secret("redis+cluster://u:TOP/@SECRET@a:1,b:2", "redis+cluster://u:***@a:1,b:2"),
    Secret("rediss+cluster://u:TOPSECRET@a:1?db=0", "rediss+cluster://u:***@a:1?db=0"),
    Secret("rediss://a?ssl_password=TOPSECRET", "rediss://a?ssl_password=***"),
    Secret(
        "redis+sentinel://a:1/m?sentinel_password=TOPSECRET",
        "redis+sentinel://a:1/m?sentinel_password=***",
    ),
]


@for_each("secret", SECRETS)
def test_a_password_of_any_shape_is_hidden(secret: Secret):
    """The password has @ and / in it, or is in the query; the rest of the URL is shown."""
    assert hide_secret(secret.url) == secret.shown


# Where no server listens; TOP and SECRET are each a part of the password.
NOWHERE = [
    "redis://u:TOP%40SECRET@127.0.0.1:1/0",
    "redis://u:TOP@SECRET@127.0.0.1:1/0",
    "redis://u:TOP/SECRET@127.0.0.1:1/0",
    "redis://u:TOP@SECRET/@127.0.0.1:1/0",
    "redis://u:TOP@SECRET#@127.0.0.1:1/0",
    "redis://u:TOP[SECRET@127.0.0.1:1/0",
    "redis://127.0.0.1:1/0?password=TOP@SECRET",
    "unix://u:TOPSECRET@/nowhere/r.sock",
    "unix://u:TOP/SECRET@/nowhere/r.sock",
    "unix:///nowhere/r.sock?password=TOP@SECRET",
    "redis+sentinel://u:TOP@/SECRET@127.0.0.1:1/m",
    "redis+sentinel://127.0.0.1:1/m?password=TOPSECRET",
    "redis+sentinel://u:TOP@127.0.0.1:1/m/0?password=SECRET",
    "redis+sentinel://127.0.0.1:1/m?sentinel_password=TOP%40SECRET",
    "redis+sentinel://127.0.0.1:1/m?password=TOP@SECRET",
    "redis+cluster://u:TOP@/SECRET@127.0.0.1:1",
    "redis+cluster://u:TOP?SECRET@127.0.0.1:1",
    "rediss+cluster://u:TOP%40SECRET@127.0.0.1:1",
    "rediss://127.0.0.1:1?db=x&password=TOPSECRET",
    "rediss://127.0.0.1:1?ssl_ca_certs=nowhere&ssl_password=TOPSECRET",
]


@pytest.mark.parametrize("url", NOWHERE)
@both
def test_no_error_and_no_repr_shows_any_of_the_password(kind: str, url: str):
    said = []
    try:
        if kind == "sync":
            said.append(repr(Queue.from_url(url)))
        run(kind, url, once(Command(b"TIME")), patience_s=0)
    except FairlaneError as error:
        said.append(f"{error} {error!r} {error.__cause__}")
    assert said
    assert [text for text in said if "TOP" in text or "SECRET" in text] == []
