"""Tests that no part of a password is shown, in whatever way its URL is mistyped."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import logging
import re
import socket
import traceback
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from fairlane.default_redis import resolve_url
from fairlane.drivers import urls
from fairlane.errors import FairlaneError, InvalidArgument
from fairlane.protocol.steps import Command
from fairlane.queue import Queue
from fairlane.spark.fleet import FleetPlan
from fairlane.worker.child import Assignment
from tests.support.operations.drivers import both, run
from tests.support.run.for_each import for_each
from tests.support.scripts.requests import once

if TYPE_CHECKING:
    from collections.abc import Iterator

# TOP and SECRET are each a part of the password: with what a person may not have escaped between.
PASSWORDS = [
    f"TOP{between}SECRET"
    for between in ("", "%40", "%2F", *"@/:?#[]&=%+,;!$ \\'\"\n\u2100\udcff", "://", "?db=", "%zz")
]
# One for each way to mistype a URL; $ stands for the password, H for a host.
SHAPES = [
    *("redis://u:$@H", "redis://:$@H/0", "redis://$@H", "rediss://u:$@H?db=1", "redis://u:$@H/x"),
    *("redis://u:$", "redis://:$", "redis://u:$/0", "redis://H/u:$", "redis://H@u:$"),
    *("redis:u:$@H", "redis:/u:$@H", "redis:///u:$@H", "redis:////u:$@H", "redis//u:$@H"),
    *("redis:\\\\u:$@H", "redsi://u:$@H", "redis+clster://u:$@H", "http://u:$@H", "REDIS://u:$@H"),
    *("://u:$@H", "u:$@H", "$@H", ":$@H", "//u:$@H", " redis://u:$@H", '"redis://u:$@H"'),
    *("redis ://u:$@H", "redis://u:$@H:x", "redis://u:$@H:1:2", "redis://u:$@", "redis://u:$@@H"),
    *("redis://u:$@:x", "redis://H/password=$", "redis://H/0/$@x", "redis://H#password=$"),
    *("redis://H;password=$", "redis://H&password=$", "redis://H,password=$"),
    *("redis://H/0;password=$", "redis://H password=$", "redis://H?password=$"),
    *("redis://H?db=x&password=$", "redis://H?pasword=$", "redis://H?$", "redis://H?PASSWORD=$"),
    *("redis://H?pass%77ord=$", "redis://H?db=0;password=$", "redis://H?=$"),
    *("redis://H?db=0 password=$", "redis://H?username=u:$", "redis://H?username=u%3AP"),
    *("redis://H?client_name=x;password=$", "redis://H?db=password=$", "redis://H?auth=u:$"),
    *("rediss://H?ssl_password=$&ssl_cert_reqs=x", "rediss://H?ssl_ca_certs=x;ssl_password=$"),
    *("rediss://H?ssl_check_hostname=no;password=$", "redis://H?ssl_password=$"),
    *("unix://u:$@/nowhere/r.sock", "unix://u:$/nowhere/r.sock", "unix:///u:$@/nowhere/r.sock"),
    *("unix:/nowhere/r.sock?password=$", "unix:///nowhere/r.sock?pasword=$", "unix://:$@nowhere"),
    *("unix:///nowhere/r.sock#password=$", "unix:///nowhere/r.sock;password=$"),
    *("redis+sentinel://u:$@H,H", "redis+sentinel://u:$@H,H/m/x", "redis+sentinel://H,u:$@H/m"),
    *("redis+sentinel://H,H/m;password=$", "redis+sentinel://H/m#password=$"),
    *("redis+sentinel://u:$", "redis+sentinel://H/m?sentinel_pasword=$"),
    *("redis+sentinel://H/m?sentinel_password=$&x=$", "redis+sentinel://u:$@H/m/0/1"),
    *("redis+sentinel://H/u:$@m", "redis+sentinel://H/m/$", "redis+cluster://u:$"),
    *("redis+cluster://u:$@H,x", "redis+cluster://H,u:$@H", "redis+cluster://:$"),
    *("redis+cluster://u:$@H?db=1", "redis+cluster://H?sentinel_password=$"),
    *("redis+cluster://H,$@", "redis+cluster://u:$@H/0"),
    *("rediss+cluster://H/password=$", "redis+cluster://H?password=$,H"),
]
NOWHERE = "127.0.0.1:1"
# These cannot be distinguished from a user's name, or a host's: TOP:SECRET@host, u:TOP@SECRET.
READS_AS_NAME = re.compile(r"redis://TOP:|redis://[^/?#]*[:=]TOP@SECRET(/0)?$")
MADE = (
    shape.replace("H", NOWHERE).replace("$", password)
    for shape, password in itertools.product(SHAPES, PASSWORDS)
)
URLS = [url for url in MADE if not READS_AS_NAME.match(url)]


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Resolves no name, because half a password may be taken for one."""

    def refuse(host: Any, port: Any, *_: Any, **__: Any) -> NoReturn:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def shown(url: str, kind: str) -> Iterator[str]:
    """Returns all texts about a URL: its queue, its error with cause and traceback."""
    try:
        with contextlib.closing(Queue.from_url(url)) as queue:
            yield f"{queue!r} {queue.driver.place} {urls.read(url)!r} {urls.read(url)}"
        run(kind, url, once(Command(b"TIME")), patience_s=0)
    except Exception as error:  # noqa: BLE001  the command line shows any
        if not isinstance(error, FairlaneError):
            yield f"TOP: {type(error)} is none of ours"
        yield f"{error} {error!r} {error.__cause__!r}"
        yield "".join(traceback.format_exception(error))


def leaks(text: str) -> bool:
    return "TOP" in text or "SECRET" in text


@pytest.mark.rest
@both
@pytest.mark.usefixtures("offline")
def test_no_mistyped_url_shows_a_part_of_its_password(kind: str, caplog: pytest.LogCaptureFixture):
    """Hundreds of them show none: neither a message, nor a repr, a traceback or a log line."""
    caplog.set_level(logging.DEBUG)
    chosen = URLS if kind == "sync" else URLS[::7]
    found = {url: text for url in chosen for text in shown(url, kind) if leaks(text)}
    assert {url: text[-300:] for url, text in list(found.items())[:20]} == {}
    assert len(found) == 0
    assert not leaks(caplog.text)


def test_there_are_enough_mistyped_urls():
    unread = 0
    for url in URLS:
        with contextlib.suppress(FairlaneError):
            urls.read(url)
            continue
        unread += 1
    assert len(set(URLS)) > 2000
    assert unread > 1000


def test_what_is_no_text_is_not_shown():
    with pytest.raises(FairlaneError) as raised:
        resolve_url(b"redis://u:TOPSECRET@127.0.0.1:1")  # type: ignore[arg-type]
    assert not leaks(f"{raised.value} {raised.value!r}")


@pytest.mark.parametrize("kind", [Assignment, FleetPlan])
def test_what_workers_are_given_shows_no_url(kind: type):
    """A traceback or a log may show these arguments."""
    given = dict.fromkeys((one.name for one in dataclasses.fields(kind)), "")
    made = kind(**given | {"url": "redis://u:TOPSECRET@h:1"})
    assert made.url == "redis://u:TOPSECRET@h:1"
    assert not leaks(repr(made))


@for_each(
    "url, what",
    [
        ("redis://h:1/x", "scheme://host:port/db is expected"),
        ("redis://h:1#x", "scheme://host:port/db is expected"),
        ("unix://nowhere/r.sock", "scheme://host:port/db is expected"),
        ("redis://u:p@h:1?pasword=q", "its option 'pasword' is none of"),
        ("redis+sentinel://h:1/m;x", "names its master"),
        ("redsi://u:p@h:1", "Redis URL redsi://... is not valid"),
        ("http://localhost", "Redis URL 'http://localhost' is not valid"),
        ("redis://h:1\t", "Redis URL redis://... is not valid"),
    ],
)
def test_what_is_wrong_is_still_shown(url: str, what: str):
    with pytest.raises(InvalidArgument) as raised:
        urls.read(url)
    assert what in str(raised.value)
